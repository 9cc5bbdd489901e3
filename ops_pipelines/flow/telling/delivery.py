"""Hands waiting notes to the channels: claimed before, marked after, tried again at growing distances, never lost.

Who dies between delivery and mark has the message repeated once, under the same key. Composing is
`flow.telling.tell`'s.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import IncidentId, PlanId, RolloutId, digest_of, is_rollout
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.notes import BATCH_PREFIX, NOT_SENT, KeptNote, Link, Note, Outbox, PersonalLinks, no_links
from ops_pipelines.core.sources import SourceError
from ops_pipelines.flow.people.approval_links import link_for
from ops_pipelines.flow.telling.batches import Batch, gather
from ops_pipelines.flow.telling.messages import message_of
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.rollouts.notices import is_still_asked

_NOTES_AT_ONCE = 2_000
_CLAIM_LASTS = timedelta(minutes=2)
"""Longer than the slowest channel takes to say yes or no; then whoever tried counts as dead."""
_FIRST_PAUSE = timedelta(seconds=30)
_LONGEST_PAUSE = timedelta(hours=1)
_FEWEST_TRIES = 5
"""Also of what is a day old when we come back after a stop of our own."""
_MOST_LINKS = 8
_SETTLED = f"{NOT_SENT}it was settled before, or a newer plan took its place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What came of one look at the outbox; counts of messages."""

    sent_count: int
    failed_count: int
    given_up_count: int
    waiting_count: int
    """Notes that wait for company, for their time, for room, or for another try."""


def deliver(cluster: Cluster, *, stop_at: datetime) -> Delivered:
    """Send what is due until `stop_at`, each recipient within their limit; raises LedgerError.

    A message under way at `stop_at` is finished: how long a channel may take is the notifier's limit.
    """
    outbox = cluster.outbox
    if outbox is None:
        return Delivered(sent_count=0, failed_count=0, given_up_count=0, waiting_count=0)
    rules, now = cluster.tell_rules, cluster.clock.now()
    waiting = _without_answered(outbox.waiting_notes(limit=_NOTES_AT_ONCE), outbox, cluster)
    sent = outbox.sent_times(now - rules.burst_count * rules.refill) if waiting else {}
    sent_count = failed_count = given_up_count = 0
    for batch in gather(waiting, sent, rules=rules, now=now):
        if cluster.clock.now() >= stop_at:
            break
        keys = [note.key for note in batch.notes]
        at = cluster.clock.now()
        if not outbox.claim_notes(batch.name, keys, until=at + _CLAIM_LASTS, now=at):
            continue
        message = message_of(batch, pages_url=cluster.pages_url, personal_links=_links_of(batch, cluster))
        try:
            receipt = cluster.notifier.send(message)
        except SourceError as problem:
            failed_count += 1
            given_up_count += _note_failure(batch, str(problem), outbox, cluster)
        else:
            outbox.mark_delivered(batch.name, receipt=receipt, now=cluster.clock.now())
            sent_count += 1
    return Delivered(
        sent_count=sent_count, failed_count=failed_count, given_up_count=given_up_count, waiting_count=len(waiting)
    )


def forget_old(cluster: Cluster) -> int:
    """Delete what was sent long ago and return how many notes; what waits or failed stays."""
    if cluster.outbox is None:
        return 0
    return cluster.outbox.forget_sent(cluster.clock.now() - cluster.tell_rules.kept_for)


def pause_after(attempt_count: int) -> timedelta:
    """Return how long a message waits after so many attempts: half a minute, doubled each time, an hour at most."""
    doubled = int(2 ** min(max(0, attempt_count - 1), 10))
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * doubled)


def _note_failure(batch: Batch, problem: str, outbox: Outbox, cluster: Cluster) -> bool:
    """Write what went wrong and when it is tried again; return whether it is given up."""
    now = cluster.clock.now()
    attempts = batch.attempt_count + 1
    due_since = min(note.ready_at for note in batch.notes)
    is_hopeless = now - due_since >= cluster.tell_rules.give_up_after and attempts >= _FEWEST_TRIES
    again_at = None if is_hopeless else now + pause_after(attempts)
    outbox.mark_undelivered(batch.name, problem=problem, again_at=again_at, now=now)
    return is_hopeless


def _without_answered(waiting: Sequence[KeptNote], outbox: Outbox, cluster: Cluster) -> list[KeptNote]:
    """Return what still needs to be said: a question that is settled before it went out is put to nobody."""
    now = cluster.clock.now()
    fresh = [each for each in waiting if each.batch is None]
    asked = [each for each in fresh if each.note.asks_for is not None]
    approved = {each.plan for each in cluster.ledger.read_state(now).approvals} if asked else set()
    settled = {each.note.key for each in asked if not _is_still_asked(each.note, approved, outbox, cluster)}
    names = {each.note.thread for each in fresh if is_rollout(IncidentId(each.note.thread))}
    rollouts = {name: cluster.ledger.rollout(RolloutId(name)) for name in names}
    settled |= {each.note.key for each in fresh if not is_still_asked(each.note, rollouts)}
    for key in settled:
        name = f"{BATCH_PREFIX}{digest_of(key)[:12]}"
        if outbox.claim_notes(name, [key], until=now + _CLAIM_LASTS, now=now):
            outbox.mark_delivered(name, receipt=_SETTLED, now=now)
    return [each for each in waiting if each.note.key not in settled]


def _is_still_asked(note: Note, approved: Collection[PlanId], outbox: Outbox, cluster: Cluster) -> bool:
    incident = cluster.ledger.incident(IncidentId(note.thread))
    if incident is None or note.asks_for in approved:
        return False
    if incident.state is not IncidentState.OPEN and (not incident.is_open or incident.plan != note.asks_for):
        return False
    newest = [each.note.asks_for for each in outbox.notes_of(note.thread) if each.note.asks_for is not None]
    return not newest or newest[-1] == note.asks_for


def _links_of(batch: Batch, cluster: Cluster) -> PersonalLinks:
    """Return what gives a named person the right to approve what is asked; made when it is sent, and kept nowhere."""
    asked = [note.asks_for for note in batch.notes if note.asks_for is not None][:_MOST_LINKS]
    if not asked or cluster.approval_links is None:
        return no_links

    def links(person: str) -> tuple[Link, ...]:
        found = ((plan, _link(plan, cluster, person)) for plan in asked)
        return tuple(Link(label=f"{plan}, for {person} alone, once", url=url) for plan, url in found if url)

    return links


def _link(plan: PlanId, cluster: Cluster, person: str) -> str | None:
    try:
        return link_for(plan, cluster, person=person)
    except (ValueError, ByHandRefused):  # PolicyError is a ValueError: a key that cannot be used
        return None  # The message still names the plan, and the command that approves it.
