"""Composes what is to be told of each rollout that is under way, or was over at the last look.

Looked at when the chain has grown, and each minute besides: a deadline passes and a team's turn comes nearer without a
line. Sending is `telling.delivery`'s.
"""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.notes import Note, Outbox
from ops_pipelines.core.rollout import Rollout
from ops_pipelines.rollouts.notices import RolloutSituation, tell_teams
from ops_pipelines.rollouts.operator_notices import tell_operators

SOURCE = "messages on rollouts"
_LOOKED_BACK = timedelta(hours=1)
"""A ledger that was never told from may be years old: of its past only what is open, or ended just now, is news."""
_LATE = timedelta(minutes=10)
"""How much older than our last look a line may be that was written after it."""


def tell_of_rollouts(cluster: Cluster) -> int:
    """Compose what is new and return how many notes were kept. Raises LedgerError."""
    outbox = cluster.outbox
    if outbox is None:
        return 0
    now = cluster.clock.now()
    after = cluster.ledger.cursor(SOURCE)
    rollouts = cluster.ledger.rollouts(final_since=_looked_at(after, now) - _LATE)
    if not rollouts:
        return 0
    minute = now.astimezone(UTC).replace(second=0, microsecond=0)
    cursor = f"{cluster.ledger.read_state(now).head_seq} {minute.isoformat()}"
    if cursor == after:
        return 0
    notes = [note for rollout in rollouts for note in _notes_of(rollout, outbox, cluster, now=now)]
    with suppress(LedgerConflict):  # Somebody else told in between: the next look finds what is left.
        return outbox.hand_in(notes, source=SOURCE, after=after, cursor=cursor, now=now)
    return 0


def _notes_of(rollout: Rollout, outbox: Outbox, cluster: Cluster, *, now: datetime) -> tuple[Note, ...]:
    situation = RolloutSituation(
        rollout=rollout,
        nodes=cluster.ledger.rollout_nodes(rollout.rollout),
        release=cluster.ledger.release(rollout.release_digest),
        plan=cluster.ledger.rollout_plan(rollout.plan),
        told=outbox.notes_of(rollout.rollout),
        limits=cluster.rules.policy.rollouts,
        rules=cluster.tell_rules,
        now=now,
    )
    return (*tell_operators(situation), *tell_teams(situation))


def _looked_at(cursor: str | None, now: datetime) -> datetime:
    """Return when the last look was."""
    if cursor is None:
        return now - _LOOKED_BACK
    return min(now, datetime.fromisoformat(cursor.partition(" ")[2]))
