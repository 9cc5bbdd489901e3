"""The last minutes of the live cycle in memory, and what the detectors see in them.

As far back as detectors look, and no further: an old process and one that was started a minute ago see the same. Writes
conditions into evidence; what they mean is `observe.rules`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING

from ops_pipelines.core.cluster import Cluster, hour_of
from ops_pipelines.core.identity import JobId, NodeName, PciAddress, Topology
from ops_pipelines.core.observation import (
    DETECTOR_SOURCE,
    HAS_PROCESSES,
    NO_NODE,
    JobState,
    JobStatus,
    NodeStatus,
    Observation,
    Signal,
)
from ops_pipelines.core.sources import Lake, LakeError, Rows
from ops_pipelines.observe.intake import on_watched_nodes, our_doing
from ops_pipelines.observe.repeated import Hold, RepetitionWatch

if TYPE_CHECKING:
    from ops_pipelines.observe.detectors.stalls import EndedAttempt
    from ops_pipelines.observe.panels.panel import Detection, Detector, Panel

REJECTED = "rejected_rows"
MARGIN = timedelta(minutes=10)
"""Rows of lines are kept for so much longer: one may be dated a few minutes ahead (`metrics.pages.within_reach`)."""

FAILURES_REACH = timedelta(hours=24)
"""So long are attempts remembered that ended: more than `job_failures` looks at."""
READ_AT_ONCE = timedelta(minutes=5)
"""Bounds what a start holds beside the window itself."""
LONGEST_GAP = timedelta(minutes=5)
"""Assumption: detectors bridge so long a gap between cycles; after a longer one the window begins again."""
ENDED_AT_MOST = 20_000
"""Of attempts that ended the newest so many are remembered: a user who submits in a loop must not fill the memory."""
RESUMED = timedelta(minutes=5)
"""Assumption: a job that was suspended shows within so long after it continues that it moves."""
_STANDING_STILL = frozenset({Signal.JOB_HUNG, Signal.JOB_STALLED, Signal.GPUS_IDLE})
"""What a suspended job does because somebody requested it to."""

_NO_METRICS = frozenset({REJECTED, "job_logs", "job_allocations"})
"""Tables whose rows do not say that metrics were seen at their times."""


class Sight(Enum):
    """How much of a cycle's metrics came."""

    ALL = "all"
    """Every source answered. Parts may still be silent."""
    PART = "part"
    """A source failed before it had reported everything."""
    NOTHING = "nothing"


class LiveWindow:
    """Rows of the last cycles, the attempts that the scheduler named, and how far the logs of jobs were read.

    Bounded by the size of the cluster and by how many lines a cycle takes in.
    """

    def __init__(self, *, topology: Topology, step: timedelta) -> None:
        from ops_pipelines.observe.panels.panel import LOOKBACK_SECONDS
        from ops_pipelines.observe.panels.tables import RollingPanel

        self._step = step
        self._reach = timedelta(seconds=LOOKBACK_SECONDS) + step
        self._samples = RollingPanel(
            topology=topology, step_seconds=int(step.total_seconds()), row_count=self._reach // step
        )
        self._cycles: list[tuple[datetime, str, Rows]] = []
        """Rows of jobs and of lines: few, and not at grid times."""
        self._seen_since: datetime | None = None
        self._seen_until: datetime | None = None
        self._gpus: dict[NodeName, frozenset[PciAddress]] = {}
        self._attempts: dict[tuple[JobId, datetime], JobStatus] = {}
        self._ended: dict[tuple[JobId, datetime], EndedAttempt] = {}
        self._holds: dict[tuple[JobId, datetime], Hold] = {}
        self._suspended_at: dict[JobId, datetime] = {}
        self.told: set[str] = set()
        """Positions of the conditions that this window itself has seen."""
        self.repetitions = RepetitionWatch()
        self._nodes: tuple[NodeStatus, ...] = ()
        self._lines_read_at: datetime | None = None
        self._are_lines_read = True

    def prime(self, lake: Lake, *, before: datetime) -> tuple[str, ...]:
        """Take in what the lake holds of the time before the first cycle, at `before`; return what went wrong.

        A table that cannot be read is left out from there on, and then the window counts as started at `before`
        (`is_whole`). Lines that a cycle had kept before it could move its cursor come again with the next one, and
        count twice.
        """
        from ops_pipelines.observe.panels.grid import times_of
        from ops_pipelines.observe.panels.panel import PANEL_COLUMNS, columns_to_read
        from ops_pipelines.observe.past_states import ACCOUNTING_COLUMNS, attempts_of

        start = before - self._reach - self._step
        problems: list[str] = []
        times: set[datetime] = set()
        for table in PANEL_COLUMNS:
            if table == REJECTED:
                continue  # may be many, and a loss that is no number is refused again at the next cycle
            # A line may be dated ahead; what was held is kept by the hour.
            end = before + MARGIN if table == "job_logs" else before
            begin = hour_of(start) if table == "job_allocations" else start
            try:
                while begin < end:
                    until = min(begin + READ_AT_ONCE, end)
                    rows = lake.read(table, start=begin, end=until, columns=columns_to_read(table))
                    self._keep(table, rows, at=before)
                    if table not in _NO_METRICS:
                        times.update(times_of(rows))
                    begin = until
            except LakeError as problem:
                problems.append(str(problem))
        try:
            accounted = lake.read(
                "job_accounting", start=before - FAILURES_REACH, end=before + MARGIN, columns=ACCOUNTING_COLUMNS
            )
        except LakeError as problem:
            problems.append(str(problem))
        else:
            attempts = attempts_of(accounted, None)
            self._note_ended(attempts, at=before)
            self._note_holds(attempts, at=before)
        for time in () if problems else sorted(times):
            self._note_seen(time)
        return tuple(dict.fromkeys(problems))

    def add(self, table: str, rows: Rows, *, at: datetime) -> None:
        """Take in rows of the cycle `at`; those of tables that no panel is made of are passed over."""
        if self._keep(table, rows, at=at) and table not in _NO_METRICS:
            self._note_seen(at)

    def _keep(self, table: str, rows: Rows, *, at: datetime) -> bool:
        """Take in rows, and return whether any of them are kept."""
        from ops_pipelines.observe.panels.grid import SELECTED_TABLES, addresses_of, panel_rows
        from ops_pipelines.observe.panels.panel import PANEL_COLUMNS

        self._cycles = [each for each in self._cycles if each[0] > at - self._reach - MARGIN]
        if table not in PANEL_COLUMNS or not rows.num_rows:
            return False
        kept = panel_rows(table, rows)
        if not kept.num_rows:
            return False
        if table in SELECTED_TABLES:
            self._samples.add(table, kept, at=at)
        else:
            self._cycles.append((at, table, kept))
        if table == "gpu_telemetry":
            for node, addresses in addresses_of(kept).items():
                self._gpus[node] = self._gpus.get(node, frozenset()) | addresses
        return True

    def _note_seen(self, at: datetime) -> None:
        if self._seen_since is None or self._seen_until is None or at - self._seen_until > LONGEST_GAP + self._step:
            self._seen_since = at
            self.told.clear()
        self._seen_until = at if self._seen_until is None else max(self._seen_until, at)

    def is_whole(self, at: datetime) -> bool:
        """Return whether metrics were seen, without a long gap, as far back from `at` as detectors look.

        Before that a detector may be silent because its window is too short, which ends no condition.
        """
        return self._seen_since is not None and at - self._seen_since >= self._reach - self._step

    @property
    def cycle_count(self) -> int:
        """Return how many grid times of samples and tables of lines are kept."""
        return self._samples.time_count + len(self._cycles)

    @property
    def attempt_count(self) -> int:
        """Return how many attempts are remembered."""
        return len(self._attempts)

    @property
    def gpus(self) -> Mapping[NodeName, frozenset[PciAddress]]:
        """Return the GPUs that were seen on each node: one that fell off the bus is still its."""
        return self._gpus

    def note_jobs(self, jobs: Iterable[JobStatus], *, at: datetime) -> None:
        """Take in all jobs that the scheduler names at `at`: an attempt that it names no longer has ended by then."""
        named = {
            (job.job, job.started_at): job
            for job in jobs
            if job.started_at is not None and job.state is not JobState.PENDING
        }
        for key, job in self._attempts.items():
            if key not in named and job.ended_at is None:
                next_start = min((start for each, start in named if each == key[0] and start > key[1]), default=at)
                self._attempts[key] = replace(job, ended_at=min(at, next_start))
        self._attempts.update(named)
        self._note_ended(named.values(), at=at)
        self._suspended_at |= {job: at for (job, _), each in named.items() if each.state is JobState.SUSPENDED}
        self._suspended_at = {job: last for job, last in self._suspended_at.items() if at - last < RESUMED}
        self._note_holds(self._attempts.values(), at=at)
        forgotten = at - self._reach - MARGIN
        self._attempts = {
            key: job for key, job in self._attempts.items() if job.ended_at is None or job.ended_at > forgotten
        }

    def _note_ended(self, jobs: Iterable[JobStatus], *, at: datetime) -> None:
        from ops_pipelines.observe.past_states import ended_attempts

        self._ended |= {(each.job, each.started_at): each for each in ended_attempts(jobs)}
        self._ended = {key: each for key, each in self._ended.items() if each.ended_at > at - FAILURES_REACH}
        if len(self._ended) > ENDED_AT_MOST:
            newest = sorted(self._ended.items(), key=lambda item: (item[1].ended_at, item[0]))[-ENDED_AT_MOST:]
            self._ended = dict(newest)

    def _note_holds(self, jobs: Iterable[JobStatus], *, at: datetime) -> None:
        """Remember who held which nodes, those of attempts that continue and the newest of those that ended."""
        for job in jobs:
            if job.started_at is not None:
                self._holds[job.job, job.started_at] = Hold(
                    job=job.job, nodes=job.nodes, started_at=job.started_at, ended_at=job.ended_at, user=job.user
                )
        young = ((key, each) for key, each in self._holds.items() if (each.ended_at or at) > at - FAILURES_REACH)
        newest = sorted(young, key=lambda item: (item[1].ended_at is None, item[1].ended_at or at, item[0]))
        self._holds = dict(newest[-ENDED_AT_MOST:])

    @property
    def holds(self) -> tuple[Hold, ...]:
        """Return who held which nodes lately."""
        return tuple(self._holds.values())

    @property
    def ended(self) -> "tuple[EndedAttempt, ...]":
        """Return the attempts that ended lately, for who judges failures over many of them."""
        return tuple(self._ended.values())

    @property
    def suspended(self) -> frozenset[JobId]:
        """Return the jobs that are suspended, or were a moment before the scheduler last named its jobs."""
        return frozenset(self._suspended_at)

    def failures(self, at: datetime) -> "list[Detection]":
        """Return who is to blame for attempts that failed: a job, or a node since its last boot."""
        from ops_pipelines.observe.detectors.stalls import SHORT_LIFE, detect_failures

        surviving_count = sum(
            job.state in HAS_PROCESSES and job.ended_at is None and started_at <= at - SHORT_LIFE
            for (_, started_at), job in self._attempts.items()
        )
        return detect_failures(
            self._ended.values(),
            at=at,
            surviving_count=surviving_count,
            booted_at={node.node: node.booted_at for node in self._nodes if node.booted_at is not None},
        )

    @property
    def nodes(self) -> tuple[NodeStatus, ...]:
        """Return the nodes as the scheduler last notified them."""
        return self._nodes

    def note_nodes(self, nodes: tuple[NodeStatus, ...]) -> None:
        """Take in the nodes as the scheduler reports them: who booted when."""
        self._nodes = nodes

    def note_lines(self, *, are_read: bool, at: datetime) -> None:
        """Take in whether the logs of jobs were read to their end at `at`: lines that were not read are no silence."""
        self._are_lines_read = are_read
        if are_read:
            self._lines_read_at = at

    def panel(self, at: datetime) -> "Panel":
        """Return the panel whose newest grid time is `at`; it is good until rows are added."""
        from ops_pipelines.observe.panels.grid import joined_rows

        parts: dict[str, list[Rows]] = {}
        for _, table, rows in self._cycles:
            parts.setdefault(table, []).append(rows)
        start = at - self._reach + self._step
        read_until = self._lines_read_at or start - self._step
        return self._samples.panel(
            {table: joined_rows(rows) for table, rows in parts.items()},
            start=start,
            end=at + timedelta(microseconds=1),
            jobs=tuple(self._attempts.values()),
            lines_until=None if self._are_lines_read else read_until,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LookResult:
    """What became of one look of the detectors."""

    new_count: int
    """How many conditions began."""
    problems: tuple[str, ...] = ()
    """Each detector that failed, in words."""


def tell_detections(
    window: LiveWindow,
    cluster: Cluster,
    *,
    at: datetime,
    sight: Sight,
    nodes: tuple[NodeStatus, ...] | None,
    detect: "Sequence[Detector] | None" = None,
    release: Mapping[str, str] | None = None,
) -> LookResult:
    """Take into evidence what the detectors see at the cycle `at`.

    A condition ends when it is seen to be gone, never because nothing was seen: without metrics nothing is reported;
    with a part of them, or where a detector failed, conditions may begin and none ends; one whose own part is silent
    stays (`out_of_sight`), and so does one that was reported before the window began, until the window is whole.
    `nodes` are as the scheduler reports them: those that somebody else drained are left out, and what began before a
    node's boot is not reported it (`without_leftovers`). `detect` None: all detectors. Raises LedgerError.
    """
    from ops_pipelines.observe.detectors.detect import live_detectors, look_live, out_of_sight, without_leftovers

    if nodes is not None:
        window.note_nodes(nodes)
    if sight is Sight.NOTHING:
        return LookResult(new_count=0)
    topology = cluster.rules.topology
    panel = window.panel(at)
    detectors = live_detectors(topology=topology, release=release or {}) if detect is None else detect
    look = look_live(panel, detectors)

    def detect_failures(_: "Panel") -> "list[Detection]":
        return window.failures(at)

    failures = look_live(panel, (detect_failures,))
    problems = (*look.problems, *failures.problems)
    holding = [
        *(each for each in look.found if each.last_seen_at == at and not _is_wanted(each, window)),
        *failures.found,
    ]
    is_all_told = sight is Sight.ALL and not problems
    present = {each.position: each.observation() for each in without_leftovers(holding, window.nodes, at=at)}
    remembered = [each for each in _told(cluster) if each.position not in present]
    lasting = out_of_sight(panel, remembered) if is_all_told else remembered
    if is_all_told and not window.is_whole(at):
        # What this window saw begin it can see end; what was reported before it began may rest on more than it holds.
        lasting = [*lasting, *(each for each in remembered if each.position not in window.told and each not in lasting)]
    declared = [each for each in (*present.values(), *lasting) if each.node == NO_NODE or topology.knows(each.node)]
    window.told = {each.position for each in remembered if each.position in window.told} | present.keys()
    present_now = on_watched_nodes(
        declared, nodes, doing=our_doing(cluster, now=at), newest={each.node: at for each in declared}
    )
    new_count = cluster.ledger.take_in_conditions(source=DETECTOR_SOURCE, present=present_now, now=at)
    return LookResult(new_count=new_count, problems=problems)


def _is_wanted(detection: "Detection", window: LiveWindow) -> bool:
    """Return whether a job has stopped because somebody suspended it."""
    return detection.signal in _STANDING_STILL and detection.job is not None and detection.job in window.suspended


def _told(cluster: Cluster) -> tuple[Observation, ...]:
    return tuple(each for each in cluster.ledger.conditions() if each.source == DETECTOR_SOURCE)
