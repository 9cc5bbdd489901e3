"""What the commands of rollouts answer, as values for JSON and as tables."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.release import Release, activation_of
from ops_pipelines.core.rollout import Contradiction, Rollout, RolloutNode, RolloutPlan
from ops_pipelines.report.numbers import moment
from ops_pipelines.report.terminal import print_fields, print_lines, printable
from ops_pipelines.rollouts.engine import words_of
from ops_pipelines.rollouts.gate.evidence import Verdict
from ops_pipelines.rollouts.orders import Planned
from ops_pipelines.terminal.tables import first_of, style_of

# -- the shape of answers about rollouts --


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeView:
    component: str
    version: str
    activation: str
    reversible: str
    conditions: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveView:
    wave: int
    kind: str
    """canary, deciding (the last canaries), or growing."""
    nodes: tuple[str, ...]
    planned_from: datetime | None
    planned_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamView:
    team: str
    nodes: tuple[str, ...]
    gpu_count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTouchedView:
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContradictionView:
    rule: str
    said: str
    source: str
    nodes: tuple[str, ...]
    """Empty: the release itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """What a rollout would be if it began now; `plan` is None where there is none, and `refused` says why."""

    cluster: str
    made_at: datetime
    release: str
    about: str
    plan: str | None
    refused: str
    changes: tuple[ChangeView, ...]
    node_count: int
    waves: tuple[WaveView, ...]
    starts_at: datetime | None
    finishes_at: datetime | None
    lost_gpu_hours: float | None
    teams: tuple[TeamView, ...]
    not_touched: tuple[NotTouchedView, ...]
    contradictions: tuple[ContradictionView, ...]
    needs_yes_for: tuple[str, ...]
    """Components that cannot go back: each alone in its wave, each wave asked for."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TestView:
    __test__ = False

    test: str
    verdict: str
    said: str
    evidence_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    node: str
    wave: int | None
    """None: left out when it was planned."""
    stage: str
    direction: str
    since: datetime
    deadline: datetime | None
    reason: str
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """One rollout as it stands."""

    rollout: str
    release: str
    plan: str
    state: str
    owner: str
    reason: str
    since: datetime
    deadline: datetime | None
    wave: int
    wave_count: int
    nodes_by_stage: dict[str, int]
    finishes_at: datetime | None
    created_by: str
    created_at: datetime
    yes_by: str
    stopped_because: str
    waits_for: str
    """Why no further node is begun now, where that is the calendar's; empty: it is not."""
    tests: tuple[TestView, ...]
    """Of the gate, as it judges now; empty where nothing was updated yet."""
    verdict: str
    nodes: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsView:
    cluster: str
    taken_at: datetime
    rollouts: tuple[RolloutView, ...]
    problems: tuple[str, ...]


def view_plan(planned: Planned, *, cluster: str) -> PlanView:
    """Return a plan, or why there is none, as it is shown."""
    release, plan = planned.release, planned.plan
    made = plan if isinstance(plan, RolloutPlan) else None
    return PlanView(
        cluster=cluster,
        made_at=planned.fleet.taken_at,
        release=release.name,
        about=release.about,
        plan=None if made is None else made.plan,
        refused=f"{plan.guardrail}: {plan.reason}" if isinstance(plan, Refusal) else "",
        changes=_changes(release),
        node_count=0 if made is None else sum(len(wave.nodes) for wave in made.waves),
        waves=() if made is None else _waves(made),
        starts_at=None if made is None else made.starts_at,
        finishes_at=None if made is None else made.finishes_at,
        lost_gpu_hours=None if made is None else round(made.lost_gpu_hours, 1),
        teams=() if made is None else _teams(made),
        not_touched=()
        if made is None
        else tuple(NotTouchedView(node=each.node, reason=each.reason) for each in made.skipped),
        contradictions=tuple(_contradiction(each) for each in planned.contradictions),
        needs_yes_for=() if made is None else tuple(each.component.value for each in made.one_way),
        warnings=(*(() if made is None else made.warnings), *(each.reason for each in planned.rejected)),
    )


def view_rollout(
    rollout: Rollout, nodes: Sequence[RolloutNode], verdict: Verdict | None, *, waits_for: str
) -> RolloutView:
    """Return one rollout as it is shown."""
    return RolloutView(
        rollout=rollout.rollout,
        release=rollout.release,
        plan=rollout.plan,
        state=rollout.state.value,
        owner=rollout.owner,
        reason=rollout.reason,
        since=rollout.since,
        deadline=rollout.deadline,
        wave=rollout.wave,
        wave_count=len(rollout.waves),
        nodes_by_stage=dict(Counter(each.stage.value for each in nodes)),
        finishes_at=rollout.finishes_at,
        created_by=rollout.created_by,
        created_at=rollout.created_at,
        yes_by=rollout.yes_by,
        stopped_because=rollout.stopped_because,
        waits_for=waits_for,
        tests=() if verdict is None else _tests(verdict),
        verdict="" if verdict is None else f"{verdict.kind.value}: {verdict.reason}",
        nodes=tuple(_node(each) for each in nodes),
    )


def _changes(release: Release) -> tuple[ChangeView, ...]:
    return tuple(
        ChangeView(
            component=change.component.value,
            version=change.version,
            activation=activation_of(step).value,
            reversible=change.reversibility.value,
            conditions=change.conditions,
        )
        for step in release.steps
        for change in step
    )


def _waves(plan: RolloutPlan) -> tuple[WaveView, ...]:
    return tuple(
        WaveView(
            wave=wave.number,
            kind="deciding" if wave.is_deciding else "canary" if wave.is_canary else "growing",
            nodes=wave.nodes,
            planned_from=wave.planned_from,
            planned_until=wave.planned_until,
        )
        for wave in plan.waves
    )


def _teams(plan: RolloutPlan) -> tuple[TeamView, ...]:
    return tuple(
        TeamView(
            team=each.team,
            nodes=each.nodes,
            gpu_count=each.gpu_count,
            first_at=each.first_at,
            last_at=each.last_at,
        )
        for each in plan.teams
    )


def _contradiction(found: Contradiction) -> ContradictionView:
    return ContradictionView(rule=found.rule, said=found.said, source=found.source, nodes=found.nodes)


def _tests(verdict: Verdict) -> tuple[TestView, ...]:
    return tuple(
        TestView(test=each.name, verdict=each.state.value, said=each.said, evidence_ratio=round(each.evidence_ratio, 2))
        for each in verdict.tests
    )


def _node(node: RolloutNode) -> NodeView:
    return NodeView(
        node=node.node,
        wave=node.wave,
        stage=node.stage.value,
        direction=node.direction.value,
        since=node.since,
        deadline=node.deadline,
        reason=node.reason,
        failure=node.failure,
    )


# -- how `rollout plan`, `status` and `history` are printed for people, at 80 columns and wider --


_NAMES_SHOWN = 6
_NODES_SHOWN = 40
_WIDE_COLUMNS = 110
_AT_REST = ("pending", "updated", "skipped", "back")


def print_plan(out: Console, view: PlanView) -> None:
    """Print what would be done, when, at what cost and to whom; or why nothing would."""
    if view.plan is None:
        print_lines(out, [f"{view.release} cannot be rolled out: {view.refused}"])
    else:
        print_fields(
            out,
            {
                "plan": view.plan,
                "release": f"{view.release}: {view.about}",
                "nodes": f"{view.node_count} in {len(view.waves)} waves",
                "begins": "" if view.starts_at is None else moment(view.starts_at),
                "ends": "nobody can foresee it" if view.finishes_at is None else moment(view.finishes_at),
                "costs": f"{view.lost_gpu_hours} GPU-hours without work",
                "cannot go back": ", ".join(view.needs_yes_for),
            },
        )
    changes = _table("component", "version", "takes effect by", "can go back")
    for change in view.changes:
        back = f"{change.reversible.replace('_', ' ')}{': ' if change.conditions else ''}{change.conditions}"
        changes.add_row(*map(_text, (change.component, change.version, change.activation.replace("_", " "), back)))
    out.print(changes)
    if view.waves:
        waves = _table("wave", "nodes", "from, UTC", "until, soak included")
        for wave in view.waves:
            waves.add_row(
                _text(f"{wave.wave} {wave.kind}"),
                _text(f"{len(wave.nodes)}: {first_of(wave.nodes, _NAMES_SHOWN)}"),
                _text("" if wave.planned_from is None else _minute(wave.planned_from)),
                _text("" if wave.planned_until is None else _minute(wave.planned_until)),
            )
        out.print(waves)
    if view.teams:
        teams = _table("team", "nodes", "GPUs", "first, UTC", "last")
        for team in view.teams:
            teams.add_row(
                _text(team.team),
                _text(f"{len(team.nodes)}: {first_of(team.nodes, _NAMES_SHOWN)}"),
                str(team.gpu_count),
                _text(_minute(team.first_at)),
                _text(_minute(team.last_at)),
            )
        out.print(teams)
    print_lines(out, _not_touched(view))
    told = [f"{each.rule}: {each.said} ({each.source})" for each in view.contradictions]
    print_lines(out, [each for each in told if each not in view.refused])
    print_lines(out, [f"note: {each}" for each in view.warnings])


def print_rollouts(out: Console, view: RolloutsView) -> None:
    """Print one block a rollout: its state and owner, the gate's tests, and the nodes that are on their way."""
    if not view.rollouts:
        out.print(Text("no rollout is under way"))
    for each in view.rollouts:
        _print_rollout(out, each)


def print_history(out: Console, view: RolloutsView) -> None:
    """Print one row a rollout; on a narrow terminal two lines, as thin columns would fold every word."""
    if not view.rollouts:
        out.print(Text("no rollout in the last 30 days"))
        return
    if out.width < _WIDE_COLUMNS:
        for each in view.rollouts:
            _print_short(out, each)
        return
    table = _table("rollout", "release", "state", "since, UTC", "nodes", "why")
    for each in view.rollouts:
        table.add_row(
            _text(each.rollout),
            _text(each.release),
            Text(each.state.replace("_", " "), style=style_of(each.state)),
            _text(_minute(each.since)),
            _text(_stages(each)),
            _text(each.stopped_because or each.reason),
        )
    out.print(table)


def _print_short(out: Console, view: RolloutView) -> None:
    state = view.state.replace("_", " ")
    out.print(_text(f"{view.rollout} {view.release}: {state} since {moment(view.since)}; {_stages(view)}"))
    out.print(Padding(_text(view.stopped_because or view.reason), (0, 0, 0, 2)))


def _print_rollout(out: Console, view: RolloutView) -> None:
    out.print(Text(printable(f"{view.rollout} {view.release}: {view.state.replace('_', ' ')}"), style="bold"))
    print_fields(
        out,
        {
            "why": view.reason,
            "stopped because": view.stopped_because if view.stopped_because != view.reason else "",
            "waits for": view.waits_for,
            "owner": view.owner,
            "since": moment(view.since),
            "answer by": "" if view.deadline is None else moment(view.deadline),
            "wave": f"{view.wave} of {view.wave_count}",
            "nodes": _stages(view),
            "ends": "" if view.finishes_at is None else f"{moment(view.finishes_at)}, as planned",
            "gate": view.verdict,
        },
    )
    if view.tests:
        tests = _table("test", "verdict", "what it saw")
        for each in view.tests:
            tests.add_row(_text(each.test), _text(each.verdict), _text(each.said))
        out.print(tests)
    moving = [each for each in view.nodes if each.stage not in _AT_REST]
    if moving:
        out.print(_nodes(moving[:_NODES_SHOWN]))
    if len(moving) > _NODES_SHOWN:
        print_lines(out, [f"and {len(moving) - _NODES_SHOWN} more; --json lists them all"])


def _nodes(nodes: Sequence[NodeView]) -> Table:
    table = _table("node", "stage", "since, UTC", "why")
    for each in nodes:
        way = "" if each.direction == "forward" else ", going back"
        table.add_row(
            _text(each.node),
            _text(f"{each.stage}{way}"),
            _text(_minute(each.since)),
            _text(words_of(each.failure) or each.reason),
        )
    return table


def _stages(view: RolloutView) -> str:
    return ", ".join(f"{count} {stage}" for stage, count in view.nodes_by_stage.items())


def _not_touched(view: PlanView) -> list[str]:
    """Return who is left out, by reason: hundreds of nodes have the same one."""
    nodes: dict[str, list[str]] = {}
    for each in view.not_touched:
        nodes.setdefault(each.reason, []).append(each.node)
    most_first = sorted(nodes.items(), key=lambda item: -len(item[1]))
    return [f"not touched: {len(names)} ({first_of(names, 4)}): {reason}" for reason, names in most_first]


def _minute(at: datetime) -> str:
    """Return a time as a cell shows it; the heading says the zone."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _text(text: str) -> Text:
    return Text(printable(text), overflow="fold")
