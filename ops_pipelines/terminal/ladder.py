"""The ladder of repairs that an incident stands on, as values and as print."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import listed
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.policy import Durations, LadderLimits
from ops_pipelines.core.proof import Refusal
from ops_pipelines.remediate.by_hand import WaitingRepair
from ops_pipelines.remediate.ladder import RUNGS, Rung, limit_of, max_tries, rung_of
from ops_pipelines.remediate.nodes.tests import Probation, Standing
from ops_pipelines.report.numbers import moment
from ops_pipelines.report.terminal import printable
from ops_pipelines.terminal.outlook import Outlook
from ops_pipelines.terminal.tables import duration_text, style_of

# -- what `ladder`, `probation` and `repair` answer --


@dataclass(frozen=True, slots=True, kw_only=True)
class TryView:
    """One repair that did not help."""

    repair: str
    ended_at: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingView:
    """Where one node stands. `next_rung` is null where nothing comes next by itself."""

    node: str
    incident: str
    state: str
    rung: str
    rung_number: int
    since: datetime
    for_seconds: float
    cause: str
    tries: tuple[TryView, ...]
    next_rung: str | None
    waits_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderView:
    """Answer of `ladder --json`."""

    cluster: str
    taken_at: datetime
    nodes: tuple[StandingView, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RungView:
    """One rung as the table of the program has it. Both limits are null where there is none."""

    rung: str
    number: int
    acts: tuple[str, ...]
    precondition: str
    witness: str
    compensation: str
    limit_seconds: float | None
    max_tries: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RungsView:
    """Answer of `ladder --explain --json`."""

    cluster: str
    rungs: tuple[RungView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbationView:
    """One node on probation. `jobs` is null if the scheduler did not answer."""

    node: str
    incident: str
    since: datetime
    until: datetime
    left_seconds: float
    ends_with: str
    jobs: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbationsView:
    """Answer of `probation --json`."""

    cluster: str
    taken_at: datetime
    nodes: tuple[ProbationView, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingView:
    """One node in the repair queue."""

    node: str
    incident: str
    since: datetime
    age_seconds: float
    cause: str
    parts: tuple[str, ...]
    asks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """Answer of `repair list --json`."""

    cluster: str
    taken_at: datetime
    nodes: tuple[WaitingView, ...]


def view_standing(standing: Standing, outlook: Outlook, *, now: datetime) -> StandingView:
    """Return a standing; of an open incident, or one that is acted on, with what its plan waits for."""
    incident = standing.incident
    waits_for = standing.waits_for
    if incident.state is IncidentState.OPEN:
        present = outlook.present(incident.incident)
        if isinstance(present, Refusal):
            waits_for = f"{present.guardrail}: {present.reason}"
        else:
            waits_for = outlook.view(incident).waits_for or waits_for
    elif incident.state is IncidentState.ACTING:
        waits_for = outlook.view(incident).waits_for or waits_for
    return StandingView(
        node=standing.node,
        incident=incident.incident,
        state=incident.state.value,
        rung=rung_word(standing.rung),
        rung_number=int(standing.rung),
        since=standing.since,
        for_seconds=max(0.0, (now - standing.since).total_seconds()),
        cause=incident.cause,
        tries=tuple(
            TryView(repair=rung_word(rung_of(each.response)), ended_at=each.ended_at, why=each.why)
            for each in incident.tries
        ),
        next_rung=None if standing.next_rung is None else rung_word(standing.next_rung),
        waits_for=waits_for,
    )


def view_probation(probation: Probation, *, now: datetime) -> ProbationView:
    """Return a probation with what would end it, either way."""
    return ProbationView(
        node=probation.node,
        incident=probation.incident.incident,
        since=probation.since,
        until=probation.until,
        left_seconds=max(0.0, (probation.until - now).total_seconds()),
        ends_with=(
            f"no fault on it until {moment(probation.until)}: it is chosen like any other again; "
            "a fault on it before: it is drained, and the next repair is planned"
        ),
        jobs=probation.jobs,
    )


def view_waiting(waiting: WaitingRepair) -> WaitingView:
    """Return a node of the repair queue in short; its report has the rest."""
    return WaitingView(
        node=waiting.report.node,
        incident=waiting.incident.incident,
        since=waiting.since,
        age_seconds=waiting.age.total_seconds(),
        cause=waiting.report.what_broke,
        parts=tuple(f"{each.part}{f', serial {each.serial}' if each.serial else ''}" for each in waiting.report.parts),
        asks=waiting.report.asks,
    )


def view_rungs(durations: Durations, limits: LadderLimits) -> tuple[RungView, ...]:
    """Return the table of rungs with the limits that policy.yaml sets."""
    tried: Mapping[Rung, int] = {
        rung_of(each): max_tries(each, limits)
        for each in (Response.ISOLATE, Response.RESET_GPU, Response.REBOOT_NODE, Response.POWER_CYCLE, Response.REIMAGE)
    }
    return tuple(
        RungView(
            rung=rung_word(rung),
            number=int(rung),
            acts=tuple(verb.value for verb in rule.verbs),
            precondition=rule.precondition,
            witness=rule.witness,
            compensation=rule.compensation,
            limit_seconds=_seconds(limit_of(rung, durations)),
            max_tries=tried.get(rung),
        )
        for rung, rule in RUNGS.items()
    )


def _seconds(limit: timedelta | None) -> float | None:
    return None if limit is None else limit.total_seconds()


def rung_word(rung: Rung) -> str:
    """Return the name of a rung as people read it and scripts compare it."""
    return rung.name.lower()


# -- how `ladder`, `probation` and `repair list` are printed for people --


_JOBS_SHOWN = 5


def print_ladder(out: Console, view: LadderView) -> None:
    """Print one block a node: where it stands, what did not help, what comes next."""
    if not view.nodes:
        out.print(Text("no node stands above watching"))
        return
    table = _table("node", "rung", "for", "incident", "what was tried, and what comes next")
    for column, width in zip(table.columns, (24, 10, 10, 10), strict=False):
        column.max_width = width  # so that the words keep half of 80 columns
    for each in view.nodes:
        lines = [each.cause]
        lines += [f"{tried.repair.replace('_', ' ')} did not help: {tried.why}" for tried in each.tries]
        lines += [f"then: {each.next_rung.replace('_', ' ')}"] if each.next_rung else []
        lines += [f"waits for {each.waits_for}"] if each.waits_for else []
        table.add_row(
            _text(each.node),
            _text(f"{each.rung_number} {each.rung.replace('_', ' ')}"),
            duration_text(timedelta(seconds=each.for_seconds)),
            Text(printable(f"{each.incident} {each.state}"), style=style_of(each.state), overflow="fold"),
            Text("\n").join(_text(line) for line in lines),
        )
    out.print(table)


def print_rungs(out: Console, view: RungsView) -> None:
    """Print the table of rungs, one block a rung: on 80 columns six of them would be unreadable."""
    for each in view.rungs:
        out.print(Text(f"{each.number} {each.rung.replace('_', ' ')}", style="bold"))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        limit = "none" if each.limit_seconds is None else duration_text(timedelta(seconds=each.limit_seconds))
        rows = asdict(each) | {
            "acts": ", ".join(verb.replace("_", " ") for verb in each.acts) or "none",
            "time limit": limit,
            "tries a day": "" if each.max_tries is None else f"{each.max_tries} a node; more are passed over",
        }
        for name in ("acts", "precondition", "witness", "compensation", "time limit", "tries a day"):
            if rows[name]:
                grid.add_row(f"  {name}", _text(str(rows[name])))
        out.print(grid)


def print_probations(out: Console, view: ProbationsView) -> None:
    """Print one row a node."""
    if not view.nodes:
        out.print(Text("no node is on probation"))
        return
    table = _table("node", "incident", "since (UTC)", "left", "jobs on it")
    for each in view.nodes:
        jobs = "not known" if each.jobs is None else listed(each.jobs, at_most=_JOBS_SHOWN) or "none"
        table.add_row(
            _text(each.node),
            _text(each.incident),
            moment(each.since).removesuffix(" UTC"),
            duration_text(timedelta(seconds=each.left_seconds)),
            _text(jobs),
        )
    out.print(table)
    out.print(Text("\na fault ends it early: the node is drained again, and the next repair is planned", style="dim"))


def print_queue(out: Console, view: QueueView) -> None:
    """Print one row a node, the longest waiting first."""
    if not view.nodes:
        out.print(Text("the repair queue is empty"))
        return
    table = _table("node", "incident", "waits", "what is asked for")
    for each in view.nodes:
        table.add_row(
            _text(each.node),
            _text(each.incident),
            duration_text(timedelta(seconds=each.age_seconds)),
            Text("\n").join(_text(line) for line in each.asks),
        )
    out.print(table)
    out.print(
        Text(
            "\n`ops-pipelines repair report INC-...` is for the vendor; `repair done INC-... --note ...` ends the wait",
            style="dim",
            overflow="fold",
        )
    )


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _text(text: str) -> Text:
    return Text(printable(text), overflow="fold")
