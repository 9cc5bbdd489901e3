"""Composes what is to be told of quotas: that a proposal waits for a yes, and to each team that its quota changed.

One note a day for the on-call, one line for a team of an applied proposal. What was told is known by its key; sending
is `telling.delivery`'s.
"""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.identity import digest_of
from ops_pipelines.core.notes import ON_CALL, Audience, Lane, Note, Severity, body_of, quiet_end
from ops_pipelines.core.policy import ActionClass, Consent, Mode
from ops_pipelines.core.proposal import ProposalRecord, ProposalState, ProposedQuota

SOURCE = "messages on quotas"
_NEWS = timedelta(days=1)
"""What is older is no news: a ledger that was never told from may be years old."""
_LOOKED_BACK = 10


def tell_of_quotas(cluster: Cluster) -> int:
    """Compose what is new and return how many notes were kept. Raises LedgerError."""
    outbox = cluster.outbox
    if outbox is None:
        return 0
    now = cluster.clock.now()
    after = cluster.ledger.cursor(SOURCE)
    records = cluster.ledger.proposals(limit=_LOOKED_BACK)
    fresh = [each for each in records if now - each.since < _NEWS]
    cursor = " ".join(f"{each.name} {each.state.value}" for each in fresh)
    if not fresh or cursor == after:
        return 0
    notes = [note for record in fresh for note in _notes_of(record, cluster, now=now)]
    with suppress(LedgerConflict):  # Somebody else told in between: the next look finds what is left.
        return outbox.hand_in(notes, source=SOURCE, after=after, cursor=cursor, now=now)
    return 0


def _notes_of(record: ProposalRecord, cluster: Cluster, *, now: datetime) -> list[Note]:
    if record.state is ProposalState.APPLIED:
        return [
            _to_team(record, line, cluster, now=now)
            for line in record.proposal.lines
            if line.team and line.limit != line.after
        ]
    return [_question(record, cluster, now=now)] if _waits(record, cluster) else []


def _waits(record: ProposalRecord, cluster: Cluster) -> bool:
    policy = cluster.rules.policy
    is_open = record.state is ProposalState.PROPOSED and record.proposal.changes_anything
    return is_open and policy.mode is not Mode.OBSERVE and policy.consent_to(ActionClass.QUOTAS) is Consent.APPROVE


def _question(record: ProposalRecord, cluster: Cluster, *, now: datetime) -> Note:
    title = f"quotas for {record.proposal.day} wait for a yes"
    return Note(
        # By the day: a second proposal of the same day asks nobody anew.
        key=f"quotas-{record.proposal.day}/{Audience.ON_CALL.value}/asks",
        audience=Audience.ON_CALL,
        recipient=ON_CALL,
        thread=record.name,
        subject=f"quotas for {record.proposal.day}",
        title=title,
        body=body_of(
            [
                ("What", record.proposal.headline),
                ("Read it", f"`ops-pipelines quota diff {record.name}`"),
                ("What you must do", f"`ops-pipelines quota apply {record.name}`; without it quotas stay as they are"),
            ]
        ),
        line=title,
        lines_title="quotas of {count} days wait for a yes",
        severity=Severity.NOTICE,
        likeness="quotas asks",
        made_at=now,
        lane=_lane(cluster, now),
        ready_at=_ready_at(cluster, now),
    )


def _to_team(record: ProposalRecord, line: ProposedQuota, cluster: Cluster, *, now: datetime) -> Note:
    kind = f" of {line.gpu_type}" if line.gpu_type else ""
    title = f"your quota is {line.after} GPUs{kind} now, and was {line.before:g}"
    return Note(
        key=f"{record.name}/team/{digest_of(line.team)[:12]}/{line.gpu_type}",
        audience=Audience.TEAM,
        recipient=line.team,
        thread=record.name,
        subject=f"quotas for {record.proposal.day}",
        title=title,
        body=body_of([("Why", line.reason), ("Without it", line.counterfactual), ("What runs", "goes on")]),
        line=title,
        lines_title="{count} of your quotas changed",
        severity=Severity.INFO,
        likeness="quotas changed",
        made_at=now,
        lane=_lane(cluster, now),
        ready_at=_ready_at(cluster, now),
    )


def _lane(cluster: Cluster, now: datetime) -> Lane:
    return Lane.AT_ONCE if quiet_end(cluster.tell_rules, now) is None else Lane.DIGEST


def _ready_at(cluster: Cluster, now: datetime) -> datetime:
    """Return when it goes out: by night nobody is woken by a quota."""
    morning = quiet_end(cluster.tell_rules, now)
    return (now + cluster.tell_rules.group_window if morning is None else morning).astimezone(UTC)
