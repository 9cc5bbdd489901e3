"""What people say by command: approvals, silences, pauses, and the messages that went out."""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.core.notes import KeptNote, NoteState
from ops_pipelines.report import document as doc
from ops_pipelines.report.document import Keys, fields_of
from ops_pipelines.report.numbers import moment
from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    AsJson,
    ClusterFile,
    ExitCode,
    StateDirectory,
    at_the_edge,
    complain,
    open_named,
    print_answer,
    who_calls,
)

if TYPE_CHECKING:
    from ops_pipelines.core.cluster import Cluster
    from ops_pipelines.core.entries import Pause

_LONGEST_APPROVAL_MINUTES = 24 * 60
"""# Assumption: approval is for the situation that was seen; anyone who wants more than a day of it wants `mode:
auto`."""


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
    """Approve to exactly one plan, in your name.

    What will be done is shown first. A plan that changes gets another name: an approval never carries over.
    """
    from ops_pipelines.core.identity import PlanId
    from ops_pipelines.people import orders
    from ops_pipelines.report.terminal import console, print_document, print_lines
    from ops_pipelines.terminal.approval import plan_to_approve, what_stands_in_the_way
    from ops_pipelines.terminal.incidents import plan_document
    from ops_pipelines.terminal.outlook import Outlook, PlanOutlook, PlanStanding

    cluster = open_named(ctx, cluster_file)
    outlook = Outlook(cluster)
    known = plan_to_approve(PlanId(plan), cluster, outlook)
    given = outlook.approval(known.plan)
    standing = PlanStanding.WAITS_FOR_APPROVAL if given is None else PlanStanding.APPROVED
    shown = PlanOutlook(recorded=known, standing=standing, approval=given)
    print_document(console(), plan_document(shown, cluster=cluster.name))
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
    person: Annotated[str, typer.Option(help="Whom the link is for: their name is in the ledger.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    valid_minutes: Annotated[
        int | None, typer.Option(min=1, max=_LONGEST_APPROVAL_MINUTES, help="Shorter than serve.link_life_seconds.")
    ] = None,
) -> None:
    """Print a link with which one person may approve one plan, once, until it expires.

    For chat: anyone who has the link can use it, so send it to that person alone. Opening it shows the plan; only the
    form on the page approves. Needs `serve.base_url` and `serve.link_key_file`, and `ops-pipelines serve` running
    there.
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
    reason: Annotated[str, typer.Option(help="Why, for anyone who reads it at night.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    state: StateDirectory = None,
) -> None:
    """Stop new actions until `resume-autopilot`.

    A pause outlives restarts. What is started is finished. It needs neither a right configuration nor the ledger: a
    file PAUSE in the state directory stops every act, and is in the ledger as soon as that answers.
    """
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.core.entries import Pause
    from ops_pipelines.report.terminal import console, print_lines

    if not reason.strip():
        raise typer.BadParameter("it is empty; say why, anyone who resumes has to know", param_hint="--reason")
    order = Pause(actor=who_calls(), since=SystemClock().now(), reason=reason.strip())
    beside = _pause_beside(order, cluster_file, state=state)
    recorded = _pause_in_ledger(
        order, lambda: open_named(ctx, cluster_file, state=state), is_paused=bool(beside.places)
    )
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
    ending = "what is started is finished; `ops-pipelines resume-autopilot` ends the pause"
    print_lines(console(), [said, *files, ending])


@at_the_edge
def close(
    ctx: typer.Context,
    incident: Annotated[str, typer.Argument(help="The escalated incident that you have dealt with.")],
    reason: Annotated[str, typer.Option(help="What was done, for anyone who reads it later.")],
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
        bool,
        typer.Option("--new-ledger", help="Continue with the ledger that is there, though it is not the one seen."),
    ] = False,
    reason: Annotated[str, typer.Option(help="With --new-ledger: why the one that was seen cannot come back.")] = "",
) -> None:
    """Allow new actions again.

    Ends every pause: in the ledger, and as a file in the state directory. Where the ledger is refused, because it is
    gone, older than it was, or another, nothing is allowed before it is restored (`ops-pipelines restore`), or started
    again with --new-ledger: then whatever happened until now is history, and nothing is done about it.
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
    from ops_pipelines.report.terminal import console, print_lines

    # Each of the two may be the only one that can be reached; the file first, for acts would write it down again.
    try:
        cluster = open_named(ctx, cluster_file, state=state)
        before = cluster.ledger.read_state(cluster.clock.now()).pause
    except (PolicyError, LedgerError) as problem:
        lifted = _lift_beside(cluster_file, state=state)
        print_lines(console(), [f"{place} is taken away" for place in lifted.places])
        for still in lifted.problems:
            complain(still)
        complain(f"the ledger is not informed, and may hold a pause still: {problem}")
        complain("Run this again when it answers: until then `ops-pipelines status` says whether it is paused")
        raise typer.Exit(ExitCode.NO_ANSWER) from problem
    refused = cluster.ledger.why_refused()
    if refused is not None and not new_ledger:
        complain(f"NOT resumed: {refused.words}")
        raise typer.Exit(ExitCode.REFUSED)
    if new_ledger:
        orders.begin_anew(cluster, actor=who_calls(), reason=reason.strip())
    lifted = _lift_beside(cluster_file, state=state)
    if lifted.problems:
        for still in lifted.problems:
            complain(still)
        raise typer.Exit(ExitCode.REFUSED)
    orders.resume_autopilot(cluster, actor=who_calls())
    was = "it was not paused" if before is None else f"it was paused by {before.actor} since {moment(before.since)}"
    files = [f"{place} is taken away" for place in lifted.places]
    print_lines(console(), [f"{cluster.name} may act again, in mode {cluster.rules.policy.mode.value}; {was}", *files])


_LEDGER_LIMIT_SECONDS = 1.0
"""Of the three seconds within which a pause has to hold, the start of the program takes the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """What came of the files."""

    places: tuple[Path, ...]
    """Files that were written, or taken away."""
    problems: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Recorded:
    """What came of recording it in the ledger."""

    cluster: str = ""
    problem: str | None = "it has not answered yet"
    """Why it does not know; None: it does."""
    fault: Exception | None = field(default=None, repr=False)
    """An error that is not the operator's."""


def _pause_beside(order: "Pause", cluster_file: Path, *, state: Path | None) -> _Beside:
    """Write the pause file into every state directory that is known."""
    from ops_pipelines.resources.config.in_force import state_directories
    from ops_pipelines.resources.state_files import PauseFile

    directories = state_directories(cluster_file, named=state)
    written, problems = [], []
    for directory in directories:
        file = PauseFile(directory)
        try:
            file.put(order)
        except OSError as problem:
            problems.append(f"{file.path} cannot be written: {problem.strerror}; run this as a user who may")
        else:
            written.append(file.path)
    if not directories:
        problems.append(f"no state directory is known: {cluster_file} does not name one that is there")
    return _Beside(places=tuple(written), problems=tuple(problems))


def _lift_beside(cluster_file: Path, *, state: Path | None) -> _Beside:
    """Take the pause file out of every state directory that is known."""
    from ops_pipelines.resources.config.in_force import state_directories
    from ops_pipelines.resources.state_files import PauseFile

    lifted, problems = [], []
    for directory in state_directories(cluster_file, named=state):
        file = PauseFile(directory)
        try:
            was = file.remove()
        except OSError as problem:
            problems.append(f"STILL paused: {file.path} cannot be taken away ({problem.strerror}); do it as who may")
        else:
            lifted += [file.path] if was is not None else []
    return _Beside(places=tuple(lifted), problems=tuple(problems))


def _pause_in_ledger(order: "Pause", open_cluster: Callable[[], "Cluster"], *, is_paused: bool) -> _Recorded:
    """Write the pause into the ledger; where a file `is_paused` already, wait no longer than the limit for it."""
    from ops_pipelines.core.entries import LedgerError
    from ops_pipelines.core.policy import PolicyError
    from ops_pipelines.people import orders

    recorded = _Recorded()

    def record() -> None:
        try:
            cluster = open_cluster()
            recorded.cluster = cluster.name
            orders.pause(cluster, actor=order.actor, reason=order.reason)
            recorded.problem = None
        except (PolicyError, LedgerError, OSError) as problem:
            recorded.problem = str(problem)
        except Exception as problem:  # Carried over to the thread that waits, which raises it.
            recorded.fault = problem

    recorder = threading.Thread(target=record, daemon=True, name="ledger")
    recorder.start()
    recorder.join(_LEDGER_LIMIT_SECONDS if is_paused else None)
    if recorded.fault is not None and not is_paused:
        raise recorded.fault
    if recorded.fault is not None:
        recorded.problem = str(recorded.fault) or type(recorded.fault).__name__
    return recorded


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _is_agreed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:  # the end of input, or Ctrl-C: anyone who leaves has not approved
        return False


# -- `ops-pipelines messages` --


_LONGEST_LIST = 10_000
_LISTED_STATES = (NoteState.WAITING, NoteState.SENT, NoteState.UNDELIVERABLE)


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
    undeliverable), audience, recipient, incident, severity, `said`, made_at, sent_at, next_at, message,
    attempt_count, receipt, problem].
    """
    from ops_pipelines.remediate.by_hand import ByHandRefused

    cluster = open_named(ctx, cluster_file)
    if cluster.outbox is None:
        raise ByHandRefused(f"{cluster.name} keeps no outbox")
    name, now = cluster.name, cluster.clock.now()
    counts, notes = cluster.outbox.count_notes(), cluster.outbox.recent_notes(limit=limit)
    print_answer(
        lambda: _messages_json(notes, counts, cluster=name, now=now),
        lambda: _messages_document(notes, counts, cluster=name, now=now),
        as_json=json,
    )


def _messages_json(notes: Sequence[KeptNote], counts: Mapping[NoteState, int], *, cluster: str, now: datetime) -> Keys:
    return {
        "cluster": cluster,
        "taken_at": now,
        **{f"{state.value}_count": counts[state] for state in _LISTED_STATES},
        "notes": [
            {
                "key": kept.note.key,
                "state": kept.state,
                **fields_of(kept.note, "audience recipient"),
                "incident": kept.note.thread,
                "severity": kept.note.severity,
                "said": kept.note.line,
                "made_at": kept.note.made_at,
                "sent_at": kept.sent_at,
                "next_at": kept.next_at if kept.state is NoteState.WAITING else None,
                "message": kept.batch,
                **fields_of(kept, "attempt_count receipt problem"),
            }
            for kept in notes
        ],
    }


def _messages_document(
    notes: Sequence[KeptNote], counts: Mapping[NoteState, int], *, cluster: str, now: datetime
) -> doc.Document:
    words = ", ".join(f"{counts[state]} {state.value}" for state in _LISTED_STATES)
    return doc.Document(
        title=cluster,
        state=doc.Span(text=f"{words}; {len(notes)} shown"),
        cluster=cluster,
        about="",
        blocks=[
            doc.Card(
                title=f"{kept.state.value.upper()}  {kept.note.thread}  to {kept.note.recipient} "
                f"({kept.note.audience.value}, {kept.note.severity.value})",
                rows={"message": kept.note.line, "delivery": _delivery_words(kept, now=now)},
            )
            for kept in notes
        ],
    )


def _delivery_words(kept: KeptNote, *, now: datetime) -> str:
    """Return what became of a note. One that was due long ago waits for its recipient's next turn, not for a time."""
    if kept.sent_at is not None:
        return f"{kept.batch} at {moment(kept.sent_at)}: {kept.receipt}"
    tried = f"tried {kept.attempt_count} time(s): {kept.problem}" if kept.problem else "not tried yet"
    if kept.state is not NoteState.WAITING or kept.next_at is None:
        return tried
    if kept.next_at <= now:
        return f"{tried}; due since {moment(kept.next_at)}, goes out with the next message that its recipient may get"
    return f"{tried}; next at {moment(kept.next_at)}"
