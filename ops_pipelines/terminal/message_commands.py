"""`ops-pipelines messages`: what was told to whom, what waits, and what no channel took. Changes nothing.

Its shape is `message_views`; delivering is the message sensor's business.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.caller import DEFAULT_CLUSTER_FILE, AsJson, ClusterFile, open_named
from ops_pipelines.terminal.edge import at_the_edge

if TYPE_CHECKING:
    from ops_pipelines.terminal.message_views import MessagesView, NoteView

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
    from ops_pipelines.terminal.message_views import view_messages

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
