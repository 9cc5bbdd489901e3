"""What people say by command: approvals, silences, pauses, and the messages that went out."""

import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

import typer

from ops_pipelines.core.notes import KeptNote, NoteState, Outbox
from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    AsJson,
    ClusterFile,
    ExitCode,
    StateDirectory,
    at_the_edge,
    complain,
    open_named,
    who_calls,
)

# -- what `messages` answers --


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteView:
    """One fact for one recipient. `message` names the message it went into, null before it is tried."""

    key: str
    state: str
    audience: str
    recipient: str
    incident: str
    severity: str
    said: str
    made_at: datetime
    sent_at: datetime | None
    next_at: datetime | None
    message: str | None
    attempt_count: int
    receipt: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesView:
    """The answer of `messages`: what waits or failed first, then what was sent, each the newest first."""

    cluster: str
    taken_at: datetime
    waiting_count: int
    sent_count: int
    undeliverable_count: int
    notes: tuple[NoteView, ...]


def view_messages(outbox: Outbox, *, cluster: str, limit: int, now: datetime) -> MessagesView:
    """Return the newest notes and how many there are in each state; raises LedgerError."""
    counts = outbox.count_notes()
    return MessagesView(
        cluster=cluster,
        taken_at=now,
        waiting_count=counts[NoteState.WAITING],
        sent_count=counts[NoteState.SENT],
        undeliverable_count=counts[NoteState.UNDELIVERABLE],
        notes=tuple(_view(kept) for kept in outbox.recent_notes(limit=limit)),
    )


def _view(kept: KeptNote) -> NoteView:
    note = kept.note
    return NoteView(
        key=note.key,
        state=kept.state.value,
        audience=note.audience.value,
        recipient=note.recipient,
        incident=note.thread,
        severity=note.severity.value,
        said=note.line,
        made_at=note.made_at,
        sent_at=kept.sent_at,
        next_at=kept.next_at if kept.state is NoteState.WAITING else None,
        message=kept.batch,
        attempt_count=kept.attempt_count,
        receipt=kept.receipt,
        problem=kept.problem,
    )


# -- `ops-pipelines approve`, `approval-link`, `pause`, `close` and `resume-autopilot` --


_LONGEST_APPROVAL_MINUTES = 24 * 60
"""# Assumption: a yes is for the situation that was seen; whoever wants more than a day of them wants `mode: auto`."""


@at_the_edge
def approve(
    ctx: typer.Context,
    plan: Annotated[str, typer.Argument(help="Such as PLAN-0123456789ab; `incidents` lists what waits.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    valid_minutes: Annotated[
        int, typer.Option(min=1, max=_LONGEST_APPROVAL_MINUTES, help="The approval expires after this long.")
    ] = 60,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: for scripts, after somebody read the plan.")] = False,
) -> None:
    """Say yes to exactly one plan, in your name.

    What will be done is shown first. A plan that changes gets another name: an approval never carries over.
    """
    from ops_pipelines.core.identity import PlanId
    from ops_pipelines.people import orders
    from ops_pipelines.report.numbers import moment
    from ops_pipelines.report.terminal import console, print_lines
    from ops_pipelines.terminal.approval import plan_to_approve, what_stands_in_the_way
    from ops_pipelines.terminal.outlook import Outlook
    from ops_pipelines.terminal.tables import print_plan
    from ops_pipelines.terminal.views import PlanStanding, view_plan

    cluster = open_named(ctx, cluster_file)
    outlook = Outlook(cluster)
    known = plan_to_approve(PlanId(plan), cluster, outlook)
    given = outlook.approval(known.plan)
    standing = PlanStanding.WAITS_FOR_APPROVAL if given is None else PlanStanding.APPROVED
    print_plan(console(), view_plan(known, standing=standing, approval=given))
    for notice in what_stands_in_the_way(known, cluster, outlook):
        complain(f"note: {notice}")
    if not yes:
        if not _can_ask():
            complain("standard input is no terminal, so nobody can be asked; read the plan, then repeat with --yes")
            raise typer.Exit(ExitCode.USAGE)
        if not _is_agreed(f"Approve exactly this for {known.incident}?"):
            complain("not approved; nothing was changed")
            raise typer.Exit(ExitCode.REFUSED)
    _, approval = orders.approve(known.plan, cluster, actor=who_calls(), valid_for=timedelta(minutes=valid_minutes))
    print_lines(console(), [f"{known.plan} is approved by {approval.actor} until {moment(approval.expires_at)}"])


@at_the_edge
def approval_link(
    ctx: typer.Context,
    plan: Annotated[str, typer.Argument(help="Such as PLAN-0123456789ab; `incidents` lists what waits.")],
    person: Annotated[str, typer.Option(help="Whom the link is for: their name stands in the ledger.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    valid_minutes: Annotated[
        int | None, typer.Option(min=1, max=_LONGEST_APPROVAL_MINUTES, help="Shorter than serve.link_life_seconds.")
    ] = None,
) -> None:
    """Print a link with which one person may approve one plan, once, until it expires.

    For chat: whoever has the link can use it, so send it to that person alone. Opening it shows the plan; only the form
    on the page approves. Needs `serve.base_url` and `serve.link_key_file`, and `ops-pipelines serve` running there.
    """
    from ops_pipelines.core.entries import ApprovalWay
    from ops_pipelines.core.identity import PlanId
    from ops_pipelines.core.policy import PolicyError
    from ops_pipelines.people.orders import link_for
    from ops_pipelines.terminal.approval import plan_to_approve
    from ops_pipelines.terminal.outlook import Outlook

    cluster = open_named(ctx, cluster_file)
    known = plan_to_approve(PlanId(plan), cluster, Outlook(cluster))
    valid_for = None if valid_minutes is None else timedelta(minutes=valid_minutes)
    try:
        link = link_for(known.plan, cluster, person=person, valid_for=valid_for, via=ApprovalWay.CHAT)
    except PolicyError:  # A ValueError too, and the operator's: the key cannot be used.
        raise
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="--person") from problem
    if link is None:
        complain("cluster.yaml makes no links: name serve.base_url and serve.link_key_file there (docs/APPROVALS.md)")
        raise typer.Exit(ExitCode.USAGE)
    typer.echo(link)


@at_the_edge
def pause(
    ctx: typer.Context,
    reason: Annotated[str, typer.Option(help="Why, for whoever reads it at night.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    state: StateDirectory = None,
) -> None:
    """Stop new actions until `resume-autopilot`.

    A pause outlives restarts. What is begun is finished. It needs neither a right configuration nor the ledger: a file
    PAUSE in the state directory stops every act, and stands in the ledger as soon as that answers.
    """
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.core.entries import Pause
    from ops_pipelines.report.numbers import moment
    from ops_pipelines.report.terminal import console, print_lines
    from ops_pipelines.terminal.outlook import pause_beside, pause_in_ledger

    if not reason.strip():
        raise typer.BadParameter("it is empty; say why, whoever resumes has to know", param_hint="--reason")
    order = Pause(actor=who_calls(), since=SystemClock().now(), reason=reason.strip())
    beside = pause_beside(order, cluster_file, state=state)
    recorded = pause_in_ledger(order, lambda: open_named(ctx, cluster_file, state=state), is_paused=bool(beside.places))
    if recorded.problem is not None and not beside.places:
        complain(f"NOT paused: {recorded.problem}")
        for problem in beside.problems:
            complain(problem)
        complain(
            "Name the state directory (`ops-pipelines pause --state DIR --reason ...`), or make the file by hand: "
            "`touch DIR/PAUSE`. To stop the autopilot now, stop its code server (`systemctl stop ops-pipelines-code`)"
        )
        raise typer.Exit(ExitCode.NO_ANSWER)
    for problem in beside.problems:
        complain(f"note: {problem}")
    if recorded.problem is not None:
        complain(f"note: not in the ledger yet, where the autopilot writes it once it can: {recorded.problem}")
    said = f"{recorded.cluster or cluster_file} is paused by {order.actor} since {moment(order.since)}: {order.reason}"
    files = [f"every act finds {place}" for place in beside.places]
    ending = "what is begun is finished; `ops-pipelines resume-autopilot` ends the pause"
    print_lines(console(), [said, *files, ending])


@at_the_edge
def close(
    ctx: typer.Context,
    incident: Annotated[str, typer.Argument(help="The escalated incident that you have dealt with.")],
    reason: Annotated[str, typer.Option(help="What was done, for whoever reads it later.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
) -> None:
    """End an incident that was handed to a person. Touches no node."""
    from ops_pipelines.core.identity import IncidentId
    from ops_pipelines.people import orders
    from ops_pipelines.report.terminal import console, print_lines

    if not reason.strip():
        raise typer.BadParameter("it is empty; say what was done", param_hint="--reason")
    cluster = open_named(ctx, cluster_file)
    closed = orders.close(IncidentId(incident), cluster, actor=who_calls(), reason=reason.strip())
    print_lines(console(), [f"{closed.incident} is closed: {closed.note}"])


@at_the_edge
def resume_autopilot(
    ctx: typer.Context,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    state: StateDirectory = None,
    new_ledger: Annotated[
        bool, typer.Option("--new-ledger", help="Go on with the ledger that is there, though it is not the one seen.")
    ] = False,
    reason: Annotated[str, typer.Option(help="With --new-ledger: why the one that was seen cannot come back.")] = "",
) -> None:
    """Allow new actions again.

    Ends every pause: in the ledger, and as a file in the state directory. Where the ledger is refused, because it is
    gone, older than it was, or another, nothing is allowed before it is restored (`ops-pipelines restore`), or begun
    anew with --new-ledger: then whatever happened until now is history, and nothing is done about it.
    """
    if new_ledger and not reason.strip():
        raise typer.BadParameter(
            "it is empty; say why the ledger that was seen cannot come back", param_hint="--reason"
        )
    if reason and not new_ledger:
        raise typer.BadParameter("it goes with --new-ledger", param_hint="--reason")
    from ops_pipelines.core.entries import LedgerError
    from ops_pipelines.core.policy import PolicyError
    from ops_pipelines.people import orders
    from ops_pipelines.report.numbers import moment
    from ops_pipelines.report.terminal import console, print_lines
    from ops_pipelines.terminal.outlook import lift_beside

    # Each of the two may be the only one that can be reached; the file first, for acts would write it down again.
    try:
        cluster = open_named(ctx, cluster_file, state=state)
        before = cluster.ledger.read_state(cluster.clock.now()).pause
    except (PolicyError, LedgerError) as problem:
        lifted = lift_beside(cluster_file, state=state)
        print_lines(console(), [f"{place} is taken away" for place in lifted.places])
        for still in lifted.problems:
            complain(still)
        complain(f"the ledger is not told, and may hold a pause still: {problem}")
        complain("Run this again when it answers: until then `ops-pipelines status` says whether it is paused")
        raise typer.Exit(ExitCode.NO_ANSWER) from problem
    refused = cluster.ledger.why_refused()
    if refused is not None and not new_ledger:
        complain(f"NOT resumed: {refused.words}")
        raise typer.Exit(ExitCode.REFUSED)
    if new_ledger:
        orders.begin_anew(cluster, actor=who_calls(), reason=reason.strip())
    lifted = lift_beside(cluster_file, state=state)
    if lifted.problems:
        for still in lifted.problems:
            complain(still)
        raise typer.Exit(ExitCode.REFUSED)
    orders.resume_autopilot(cluster, actor=who_calls())
    was = "it was not paused" if before is None else f"it was paused by {before.actor} since {moment(before.since)}"
    files = [f"{place} is taken away" for place in lifted.places]
    print_lines(console(), [f"{cluster.name} may act again, in mode {cluster.rules.policy.mode.value}; {was}", *files])


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _is_agreed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:  # the end of input, or Ctrl-C: whoever leaves has not said yes
        return False


# -- `ops-pipelines messages` --


_LONGEST_LIST = 10_000


@at_the_edge
def messages(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=_LONGEST_LIST, help="How many at most.")] = 50,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """List the outbox: what waits or failed first, then what was sent.

    Pages of plans are acts and stand in `explain`. URLs of channels are shown nowhere.

    \b
    JSON: cluster, taken_at, waiting_count, sent_count, undeliverable_count, notes [key, state (waiting, sent,
    undeliverable), audience, recipient, incident, severity, said, made_at, sent_at, next_at, message, attempt_count,
    receipt, problem].
    """
    from ops_pipelines.remediate.by_hand import ByHandRefused
    from ops_pipelines.report.json_form import to_json

    cluster = open_named(ctx, cluster_file)
    if cluster.outbox is None:
        raise ByHandRefused(f"{cluster.name} keeps no outbox")
    view = view_messages(cluster.outbox, cluster=cluster.name, limit=limit, now=cluster.clock.now())
    if json:
        typer.echo(to_json(view))
    else:
        _print(view)


def _print(view: "MessagesView") -> None:
    from ops_pipelines.report.terminal import console, print_lines

    counts = (
        f"{view.waiting_count} waiting, {view.sent_count} sent, {view.undeliverable_count} undeliverable; "
        f"{len(view.notes)} shown"
    )
    lines = [f"{view.cluster}: {counts}"]
    for note in view.notes:
        lines += ["", _head(note), f"  {note.said}", f"  {_fate(note, now=view.taken_at)}"]
    print_lines(console(), lines)


def _head(note: "NoteView") -> str:
    return f"{note.state.upper()}  {note.incident}  to {note.recipient} ({note.audience}, {note.severity})"


def _fate(note: "NoteView", *, now: datetime) -> str:
    """Return what became of a note. One that was due long ago waits for its recipient's next turn, not for a time."""
    from ops_pipelines.report.numbers import moment

    if note.sent_at is not None:
        return f"{note.message} at {moment(note.sent_at)}: {note.receipt}"
    tried = f"tried {note.attempt_count} time(s): {note.problem}" if note.problem else "not tried yet"
    if note.next_at is None:
        return tried
    if note.next_at <= now:
        return f"{tried}; due since {moment(note.next_at)}, goes out with the next message that its recipient may get"
    return f"{tried}; next at {moment(note.next_at)}"
