"""What `status` and /healthz answer, as values in the shape of their JSON: how the cluster and the program stand.

Field names are the JSON keys. Judging is `core.health`'s, reading `outlook`'s, printing `tables`'.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.entries import Pause
from ops_pipelines.core.health import Health, Heartbeat, VitalSigns


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatView:
    """The last tick of one process that watches. `age_seconds` is negative where its clock is ahead of ours."""

    name: str
    at: datetime
    age_seconds: float
    holder: str
    note: str
    mode: str
    is_lease_held: bool
    failing_sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    """How the program itself stands. All but word and reasons is null or empty where the ledger cannot be read."""

    word: str
    """`blind`, `paused`, `observing` or `acting`."""
    reasons: tuple[str, ...]
    mode: str | None
    """The mode that the running autopilot works with, whatever the policy file says since it started."""
    heartbeats: tuple[HeartbeatView, ...]
    newest_evidence_at: datetime | None
    newest_evidence_age_seconds: float | None
    waiting_evidence_count: int | None
    ledger_head: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedJobView:
    """A job that is held for a silent node, so that it starts nowhere else while its processes may still write."""

    job: str
    nodes: tuple[str, ...]
    since: datetime
    incident: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """The answer of `status`. What a system did not tell is null, and `problems` says so."""

    cluster: str
    taken_at: datetime
    health: HealthView
    mode: str | None
    """What holds by the policy file."""
    paused: Pause | None
    """Shown as the ledger holds it: actor, since, reason."""
    is_autopilot_alive: bool | None
    """Whether some process holds the lease, without which nothing is begun."""
    nodes_by_state: Mapping[str, int] | None
    jobs_by_state: Mapping[str, int] | None
    marked_jobs: tuple[MarkedJobView, ...] | None
    open_incidents_by_state: Mapping[str, int] | None
    actions_by_outcome: Mapping[str, int] | None
    """Begun in the last 24 hours; `open` counts those without an outcome."""
    waiting_evidence_count: int | None
    problems: tuple[str, ...]
    disk_bytes: Mapping[str, int] = field(default_factory=dict)
    """What files here take, by part (`disk_use`); empty where it is not known."""


def view_health(health: Health, signs: VitalSigns | None) -> HealthView:
    """Return the verdict with what it was judged on; without `signs`, which an unreadable ledger does not give."""
    if signs is None:
        return HealthView(
            word=health.word.value,
            reasons=health.reasons,
            mode=None,
            heartbeats=(),
            newest_evidence_at=None,
            newest_evidence_age_seconds=None,
            waiting_evidence_count=None,
            ledger_head=None,
        )
    newest_at = signs.newest_evidence_at
    return HealthView(
        word=health.word.value,
        reasons=health.reasons,
        mode=signs.working_mode.value,
        heartbeats=tuple(_view_heartbeat(beat, signs.taken_at) for beat in signs.heartbeats),
        newest_evidence_at=newest_at,
        newest_evidence_age_seconds=None if newest_at is None else (signs.taken_at - newest_at).total_seconds(),
        waiting_evidence_count=signs.undecided_evidence_count,
        ledger_head=signs.head_seq,
    )


def _view_heartbeat(beat: Heartbeat, now: datetime) -> HeartbeatView:
    return HeartbeatView(
        name=beat.name,
        at=beat.at,
        age_seconds=(now - beat.at).total_seconds(),
        holder=beat.holder,
        note=beat.note,
        mode=beat.mode.value,
        is_lease_held=beat.is_lease_held,
        failing_sources=beat.failing_sources,
    )


def view_marks(marks: Iterable[ActionRecord]) -> tuple[MarkedJobView, ...]:
    """Return the jobs that `marks` hold."""
    return tuple(
        MarkedJobView(
            job=mark.action.attempt.job,
            nodes=tuple(sorted(mark.attempt_nodes)),
            since=mark.begun_at,
            incident=mark.action.incident,
        )
        for mark in marks
        if mark.action.attempt is not None
    )


def count_words(words: Iterable[str]) -> Mapping[str, int]:
    """Return how often each word comes, in the order of the alphabet."""
    return dict(sorted(Counter(words).items()))
