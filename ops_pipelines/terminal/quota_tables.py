"""How `quota propose`, `diff`, `apply`, `explain` and `history` are printed for people, at 80 columns and wider.

Names of teams are the scheduler's words: text reaches the terminal only through `printable`.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ops_pipelines.report.numbers import moment
from ops_pipelines.report.terminal import print_fields, print_lines, printable
from ops_pipelines.terminal.quota_views import (
    AgreedView,
    DiffView,
    HistoryView,
    LineView,
    PreviewView,
    ProposalView,
    ReclaimedJob,
    ReclaimView,
    TeamView,
)
from ops_pipelines.terminal.tables import style_of

_NOTES_SHOWN = 12
_JOBS_SHOWN = 10
_WIDE_COLUMNS = 110


def print_proposal(out: Console, view: ProposalView) -> None:
    """Print the headline, a row a team, the supply, and below each change why it is."""
    out.print(_heading(f"{view.proposal} for {view.day}: {view.state.replace('_', ' ')}", view.state))
    print_fields(
        out,
        {
            "in short": view.headline,
            "stands still": view.stands_still,
            "state": view.reason if view.reason != view.headline else "",
            "demand": _demand(view),
        },
    )
    has_types = any(each.gpu_type for each in view.lines)
    table = _table(
        "team", *(["type"] if has_types else []), "quota", "guarantee", "used", "wanted", "debt", right_from=1
    )
    for each in view.lines:
        cells = [each.team, *([each.gpu_type] if has_types else []), _change(each), f"{each.guarantee:g}"]
        cells += [_amount(each.used_mean), f"{each.wanted_mean:.1f}", f"{each.debt:+.1f}"]
        table.add_row(*map(_text, cells))
    out.print(table)
    for each in view.lines:
        if round(each.before) != each.after:
            print_why(out, each)
    for each_supply in view.supplies:
        kind = f"{each_supply.gpu_type}: " if each_supply.gpu_type else ""
        print_lines(
            out,
            [
                f"{kind}{each_supply.supply:g} GPUs to give out of {each_supply.installed:g}; {each_supply.broken:g} "
                f"broken, {each_supply.in_rollouts:g} in rollouts, {each_supply.kept_back:g} kept back"
            ],
        )
    print_lines(out, [f"contradiction: {each}" for each in view.contradictions])
    _print_notes(out, view.notes)
    out.print(Text("quotas in GPUs; used and wanted: means of the last full day; debt below 0: it lent", style="dim"))


def print_why(out: Console, line: LineView) -> None:
    """Print why one quota is what it is, and what would be without the change."""
    kind = f" {line.gpu_type}" if line.gpu_type else ""
    print_lines(out, [f"{line.team}{kind} {_change(line)}: {line.reason}"])
    out.print(Padding(_text(line.counterfactual), (0, 0, 0, 2)))


def print_diff(out: Console, view: DiffView) -> None:
    """Print what is in force, what is proposed, and what was agreed."""
    out.print(_heading(f"{view.proposal}: {view.state.replace('_', ' ')}", view.state))
    has_types = any(each.gpu_type for each in view.rows)
    table = _table(
        "team", *(["type"] if has_types else []), "in force", "proposed", "change", "guarantee", "at most", right_from=1
    )
    for each in view.rows:
        change = "" if each.in_force is None else f"{each.proposed - each.in_force:+d}"
        in_force = "no limit" if each.in_force is None else str(each.in_force)
        cells = [each.team, *([each.gpu_type] if has_types else []), in_force, str(each.proposed), change]
        cells += [f"{each.guarantee:g}", "no cap" if each.most is None else f"{each.most:g}"]
        table.add_row(*map(_text, cells))
    out.print(table)
    changed = [each.team for each in view.rows if not each.is_as_read]
    if changed and view.state == "proposed":
        print_lines(out, [f"changed since it was proposed: {', '.join(changed)}; propose anew before it is applied"])
    if view.read_at is None:
        print_lines(out, ["this scheduler keeps no limits"])


def print_preview(out: Console, view: PreviewView) -> None:
    """Print what would be set, and what is in the way."""
    out.print(_heading(f"{view.proposal}: {view.state.replace('_', ' ')}", view.state))
    print_lines(out, [f"would be set: {each}" for each in view.changes] or ["nothing would be set"])
    print_lines(out, [f"in the way: {each}" for each in view.hindrances])
    print_lines(out, [f"warning: {each}" for each in view.warnings])


def print_team(out: Console, view: TeamView) -> None:
    """Print one team's agreements, its quota with the reason, and what it was before."""
    out.print(_heading(f"{view.team} on {view.day}", ""))
    print_fields(out, {"belongs to": view.belongs_to or "", "proposal": f"{view.proposal}, {view.state}"})
    print_lines(out, [_agreed(each) for each in view.agreed])
    print_lines(out, view.projects)
    for each in view.lines:
        out.print(Text("\nThe quota" + (f" of {printable(each.gpu_type)}" if each.gpu_type else ""), style="bold"))
        waited = None if each.used_mean is None else max(0.0, each.wanted_mean - each.used_mean)
        print_fields(
            out,
            {
                "held to": "nothing" if each.limit is None else f"{each.limit} GPUs",
                "proposed": _change(each),
                "wanted": f"{each.wanted_mean:.1f} GPUs on average of the last full day, queue included",
                "ran": "" if each.used_mean is None else f"{each.used_mean:.1f} GPUs",
                "waited for": "" if waited is None else f"{waited:.1f} GPUs",
                "ran last": f"{each.ran_last:g} GPUs in the last full hour",
                "debt": _debt(each.debt),
                "why": each.reason,
                "without it": each.counterfactual,
            },
        )
    if not view.lines:
        print_lines(out, ["it gets no quota itself: the teams below it do, and its terms bind their sum"])
    for lent in view.reclaim:
        _print_reclaim(out, lent)
    if view.history:
        out.print(Text("\nUntil now", style="bold"))
        for past in view.history:
            kind = f" {past.gpu_type}" if past.gpu_type else ""
            state = past.state.replace("_", " ")
            print_lines(out, [f"{past.day}{kind} {past.before:g} -> {past.after} ({state}): {past.reason}"])
    _print_notes(out, view.notes)


def _print_reclaim(out: Console, view: ReclaimView) -> None:
    """Print whose jobs preemption would end for the guarantee; one line where nothing would have to."""
    kind = f" of {printable(view.gpu_type)}" if view.gpu_type else ""
    out.print(Text(f"\nIf it wanted all of its guarantee{kind} now", style="bold"))
    stands = f"{view.guarantee:g} GPUs guaranteed, {view.runs} run, {view.free} healthy ones stand free"
    if not view.wanted:
        print_lines(out, [f"{stands}: no job would have to end"])
        return
    print_lines(out, [f"{stands}: {view.wanted:g} would have to come from borrowers"])
    shown = view.jobs[:_JOBS_SHOWN]
    print_lines(out, [_ran(each) for each in shown] or ["no borrower's job may be taken"])
    if len(view.jobs) > len(shown):
        print_lines(out, [f"and {len(view.jobs) - len(shown)} more jobs; --json lists them all"])
    missing = f"{view.missing:g} GPUs, until jobs end by themselves" if view.missing else ""
    print_fields(out, {"to wait for": missing, "rule": view.rule, "scheduler": view.scheduler})


def _ran(job: ReclaimedJob) -> str:
    return f"job {job.job} of {job.team}: {job.gpus} GPUs, ran for {job.ran_seconds / 3600:.1f} hours"


def print_history(out: Console, view: HistoryView) -> None:
    """Print one row a proposal; on a narrow terminal two lines."""
    if not view.proposals:
        out.print(Text("nothing was ever proposed"))
        return
    if out.width < _WIDE_COLUMNS:
        for each in view.proposals:
            state = each.state.replace("_", " ")
            print_lines(out, [f"{each.proposal} {state} since {moment(each.since)} by {each.actor}"])
            out.print(Padding(_text(each.headline), (0, 0, 0, 2)))
        return
    table = _table("proposal", "state", "since, UTC", "by", "changes", "in short")
    for each in view.proposals:
        word = Text(each.state.replace("_", " "), style=style_of(each.state))
        cells = [_minute(each.since), each.actor, str(each.changed_count), each.headline]
        table.add_row(_text(each.proposal), word, *map(_text, cells))
    out.print(table)


def _demand(view: ProposalView) -> str:
    until = "" if view.demand_until is None else f"known until {moment(view.demand_until)}, "
    return f"{until}{view.known_hour_ratio:.0%} of its hours"


def _agreed(view: AgreedView) -> str:
    kind = f"{view.gpu_type}: " if view.gpu_type else ""
    limits = (
        ("borrows at most", view.borrow_limit),
        ("lends at most", view.lend_limit),
        ("reserved", view.reserved or None),
        ("never more than", view.cap),
    )
    more = "".join(f", {name} {amount:g}" for name, amount in limits if amount is not None)
    return (
        f"{kind}{view.contract}: guarantee {view.guarantee:g}, weight {view.weight:g}{more}, priority {view.priority}"
    )


def _debt(debt: float) -> str:
    if abs(debt) < 0.05:
        return "none: it had its fair share"
    return (
        f"it had {debt:.1f} GPUs beyond its fair share"
        if debt > 0
        else f"others had {-debt:.1f} GPUs of its fair share"
    )


def _print_notes(out: Console, notes: Iterable[str]) -> None:
    shown = list(notes)
    print_lines(out, [f"note: {each}" for each in shown[:_NOTES_SHOWN]])
    if len(shown) > _NOTES_SHOWN:
        print_lines(out, [f"and {len(shown) - _NOTES_SHOWN} more notes; --json lists them all"])


def _change(line: LineView) -> str:
    return str(line.after) if round(line.before, 3) == line.after else f"{line.before:g} -> {line.after}"


def _amount(amount: float | None) -> str:
    return "?" if amount is None else f"{amount:.1f}"


def _minute(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"


def _heading(text: str, state: str) -> Text:
    return Text(printable(text), style=style_of(state) if state else "bold", overflow="fold")


def _table(*names: str, right_from: int | None = None) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, name in enumerate(names):
        is_number = right_from is not None and place >= right_from and name != "type"
        table.add_column(name, overflow="fold", justify="right" if is_number else "left")
    return table


def _text(text: str) -> Text:
    return Text(printable(text), overflow="fold")
