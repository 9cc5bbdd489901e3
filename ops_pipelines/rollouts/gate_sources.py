"""What the gate sees of a rollout: gathered once a pass from ledger, scheduler and lake.

What is counted how is reported in `rollouts.gate`: `rollouts.gate.seen_events`, `seen_events`,
`rollouts.gate.measures`. A source that does not answer is named, and so is one that is not there.

Reading is `gate_sources`', what it means is `rollouts.gate.judge_wave`'s. A source that does not answer makes nothing
good: the wave waits, and the verdict says for what.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.health import WATCHER
from ops_pipelines.core.identity import NodeName, Topology, cause_of, listed
from ops_pipelines.core.node_tests import GPU_COUNT, NodeCheck
from ops_pipelines.core.observation import HAS_PROCESSES, JobState, JobStatus, Signal
from ops_pipelines.core.periods import Interval, merged
from ops_pipelines.core.rollout import FINAL, NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines.core.sources import LakeError, PastWork, Rows, SourceError
from ops_pipelines.rollouts.course import is_wave_updated, present_wave
from ops_pipelines.rollouts.gate.evidence import (
    CauseCounts,
    ControlShift,
    EventCounts,
    EventKind,
    GateEvidence,
    GateVerdict,
    LevelKind,
    LevelSamples,
    TestLine,
    UpdateTry,
    VerdictKind,
)
from ops_pipelines.rollouts.gate.judge_wave import Looking, judge_wave, sought_in
from ops_pipelines.rollouts.gate.measures import compare_runs, compared_nodes, control_shift
from ops_pipelines.rollouts.gate.seen_events import (
    ComparedTimes,
    SeenEvent,
    Worked,
    causes_of,
    compared_times,
    count_causes,
    count_events,
    events_of,
    joined,
    known_from,
    node_days,
    unconfirmed_on,
    worked_within,
)
from ops_pipelines.rollouts.rollout_pass import Judge

# -- reads what the gate counts and compares --


_OF_NODES = (EventKind.NODE_FAILURE, EventKind.XID, EventKind.ECC, EventKind.LINK)
_LATE_AFTER = timedelta(hours=3)
"""# Assumption: an hour of the lake is filled within an hour of its end; later, somebody must look."""
_CHECK_COUNT = 20
_BANDWIDTH = ("nccl_loopback", "busbw")
_BYTES_PER_GIGABYTE = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What sources reported of a rollout, and what they did not."""

    worked: Worked
    counts: tuple[EventCounts, ...]
    causes: tuple[CauseCounts, ...]
    levels: tuple[LevelSamples, ...] = ()
    shifts: tuple[ControlShift, ...] = ()
    silent: tuple[str, ...] = ()
    """Sources that did not answer now, one sentence each: nothing is good meanwhile."""
    notes: tuple[str, ...] = ()
    """What nobody keeps, or keeps late, one sentence each: what it would show stays unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What is known of jobs."""

    worked: Worked
    """When any job ran."""
    alone: Worked
    """When jobs of a single node ran: of these it is known where they failed."""
    failures: tuple[SeenEvent, ...] = ()
    allocations: Rows | None = None
    known_since: datetime | None = None
    """The first hour that the lake knows; None: it knows none."""


def read_seen(rollout: Rollout, nodes: Sequence[RolloutNode], cluster: Cluster, *, now: datetime) -> Seen:
    """Return what is seen of updated nodes and of the others. Raises LedgerError."""
    times = compared_times(rollout, nodes, cluster.ledger.records(cause_of(rollout.rollout)), now=now)
    if not times.treated:
        return Seen(worked={}, counts=(), causes=())
    silent: list[str] = []
    notes: list[str] = []
    work = _work(nodes, times, cluster, now=now, silent=silent, notes=notes)
    touched = {node: each.ends_at for node, each in times.own.items()}
    times = known_from(times, work.known_since)
    silent += _blindness(times.treated.keys(), cluster, now=now)
    incidents, durations = cluster.ledger.incidents_since(times.since or now), cluster.rules.policy.durations
    missed = unconfirmed_on(times.treated.keys(), incidents, durations=durations, now=now)
    if missed:
        silent.append(f"{listed(sorted(missed))} may be broken: too short a time has passed to tell")
    events = (*events_of(incidents, durations=durations, now=now), *work.failures)
    counts = [count_events(kind, events, times, work.worked) for kind in _OF_NODES]
    if work.known_since is not None and _is_mostly_alone(work, times):
        counts.append(count_events(EventKind.JOB_FAILURE, events, times, work.alone))
    treated, controls = compared_nodes(nodes, times, present=present_wave(rollout), waves=rollout.waves)
    levels, untouched = _levels(work, times, cluster.past_work, treated, controls, now=now, silent=silent)
    return Seen(
        worked=work.worked,
        counts=tuple(counts),
        causes=count_causes(tuple(causes_of(incidents)), times, work.worked),
        levels=(*levels, *_bandwidth(treated, touched, cluster)),
        shifts=(control_shift(LevelKind.STEP_TIME, untouched),) if untouched else (),
        silent=tuple(silent),
        notes=tuple(notes),
    )


def _blindness(treated: Collection[NodeName], cluster: Cluster, *, now: datetime) -> Iterator[str]:
    """Yield why faults of updated nodes may go unnoticed now: what nobody sees makes nothing good."""
    watcher = next((each for each in cluster.ledger.heartbeats() if each.name == WATCHER), None)
    if watcher is not None and watcher.is_silent(now):
        yield f"nobody looks for faults: no heartbeat of {WATCHER} since {watcher.at:%Y-%m-%d %H:%M} UTC"
    elif watcher is not None and watcher.failing_sources:
        yield f"faults may go unnoticed: {', '.join(watcher.failing_sources)} does not answer"
    stale = {each.node for each in cluster.ledger.conditions() if each.signal is Signal.TELEMETRY_STALE}
    unseen = stale.intersection(treated)
    if unseen:
        yield f"no fresh metrics from {listed(sorted(unseen))}"


def _is_mostly_alone(work: _Work, times: ComparedTimes) -> bool:
    """Return whether jobs of one node are most of the work of updated nodes: where few run, they decide nothing."""
    return 0 < node_days(times.treated, work.worked) <= 2 * node_days(times.treated, work.alone)


def _work(
    nodes: Collection[RolloutNode],
    times: ComparedTimes,
    cluster: Cluster,
    *,
    now: datetime,
    silent: list[str],
    notes: list[str],
) -> _Work:
    """Return when jobs ran, from the scheduler (now) and the lake (until about an hour ago) together."""
    present: tuple[JobStatus, ...] = ()
    try:
        present = tuple(cluster.scheduler.read_jobs())
    except SourceError as problem:
        silent.append(f"the scheduler does not say who works: {problem}")
    running = _at_work(present, now=now)
    alone = _at_work([job for job in present if len(job.nodes) == 1], now=now)
    if cluster.past_work is None:
        notes.append("nobody keeps which jobs ran: only those that the scheduler still shows count")
        return _Work(worked=running, alone=alone)
    names = [each.node for each in nodes if each.stage is not NodeStage.SKIPPED]
    try:
        rows = cluster.past_work.allocations(nodes=names, start=times.since or now, end=now)
    except LakeError as problem:
        silent.append(f"the lake does not say which jobs ran: {problem}")
        return _Work(worked=running, alone=alone)
    from ops_pipelines.rollouts.past_rows import failed_attempts, known_until, of_one_node, since_when_known, work_times

    until = known_until(rows)
    if until is None:
        notes.append("the lake holds no job of these nodes (job_allocations): only those that still run count")
        return _Work(worked=running, alone=alone)
    if now - until > _LATE_AFTER:
        notes.append(f"the lake knows jobs until {until:%Y-%m-%d %H:%M} UTC only (job_allocations): fill its hours")
    return _Work(
        worked=joined(running, work_times(rows, now=now)),
        alone=joined(alone, work_times(of_one_node(rows), now=now)),
        failures=tuple(failed_attempts(rows)),
        allocations=rows,
        known_since=since_when_known(rows),
    )


def _at_work(jobs: Collection[JobStatus], *, now: datetime) -> Worked:
    """Return when the jobs that the scheduler still knows ran on each node."""
    found: defaultdict[NodeName, list[Interval]] = defaultdict(list)
    for job in jobs:
        until = now if job.state in HAS_PROCESSES or job.ended_at is None else job.ended_at
        if job.started_at is None or job.state is JobState.PENDING or until <= job.started_at:
            continue
        for node in job.nodes:
            found[node].append(Interval(begins_at=job.started_at, ends_at=until))
    return {node: merged(stretches) for node, stretches in found.items()}


def _levels(
    work: _Work,
    times: ComparedTimes,
    past_work: PastWork | None,
    treated: Collection[NodeName],
    controls: Collection[NodeName],
    *,
    now: datetime,
    silent: list[str],
) -> tuple[tuple[LevelSamples, ...], tuple[LevelSamples, ...]]:
    """Return how long steps took on updated nodes, and on the others."""
    if past_work is None or work.allocations is None:
        return (), ()
    from ops_pipelines.rollouts.past_rows import attempts_on, measure_runs

    attempts = attempts_on(work.allocations, {*treated, *controls})
    try:
        steps = past_work.steps(jobs={each.job for each in attempts}, start=times.since or now, end=now)
    except LakeError as problem:
        silent.append(f"the lake does not say how fast jobs ran: {problem}")
        return (), ()
    return compare_runs(measure_runs(attempts, steps), times, treated=treated, controls=controls)


def _bandwidth(
    treated: Collection[NodeName], touched: Mapping[NodeName, datetime], cluster: Cluster
) -> tuple[LevelSamples, ...]:
    """Return what tests on the node measured before and since; only where there is a past to compare with."""
    found = []
    for node in sorted(treated):
        touched_at, checks = touched[node], cluster.ledger.checks(node, limit=_CHECK_COUNT)
        since = [value for each, _ in checks if each.finished_at >= touched_at for value in _busbw(each)]
        gpu_counts = {count for count, _ in since}
        before = [
            value
            for each, was_well in checks
            if was_well and each.finished_at < touched_at
            for count, value in _busbw(each)
            if not gpu_counts or count in gpu_counts
        ]
        if len(before) >= 2 and len(gpu_counts) <= 1:
            found.append(
                LevelSamples(
                    kind=LevelKind.BANDWIDTH,
                    node=node,
                    before=tuple(reversed(before)),
                    after=tuple(value for _, value in reversed(since)),
                )
            )
    return tuple(found)


def _busbw(check: NodeCheck) -> list[tuple[float | None, float]]:
    """Return the bandwidth that each test of a check measured, in bytes per second, with how many GPUs took part."""
    test, name = _BANDWIDTH
    found = []
    for run in check.tests:
        values: Mapping[str, float] = {each.name: each.value for each in run.measurements}
        if run.test == test and values.get(name, 0.0) > 0:
            found.append((values.get(GPU_COUNT), values[name] * _BYTES_PER_GIGABYTE))
    return found


# -- what the gate sees of a rollout --


_AT_WORK = frozenset({NodeStage.SOAKING, NodeStage.UPDATED})
_NOT_JUDGED = FINAL | {RolloutState.GOING_BACK, RolloutState.STUCK}
"""What rolls back has its verdict."""


def judge_of(rollout: Rollout, cluster: Cluster) -> Judge:
    """Return who judges a rollout in one pass: what the world shows is read when it is first asked.

    Raises LedgerError when asked; of other sources the verdict says what they did not tell.
    """
    seen: list[Seen] = []

    def judge(present: Rollout, nodes: Sequence[RolloutNode]) -> GateVerdict | None:
        tries = update_tries(nodes, cluster.rules.topology)
        if not tries or present.state in _NOT_JUDGED:
            return None
        now = cluster.clock.now()
        if not seen:
            seen.append(read_seen(rollout, nodes, cluster, now=now))
        return _judged(present, gate_evidence(present, nodes, tries, seen[0], now=now), seen[0], nodes, cluster)

    return judge


def update_tries(nodes: Collection[RolloutNode], topology: Topology) -> tuple[UpdateTry, ...]:
    """Return the updates that came to an end, well or not, in the order of their names."""
    return tuple(
        UpdateTry(
            node=each.node,
            model=topology.places[each.node].model if each.node in topology.places else "",
            is_good=not each.failure,
            signature=each.failure,
        )
        for each in sorted(nodes, key=lambda each: each.node)
        if each.failure or each.stage in _AT_WORK
    )


def gate_evidence(
    rollout: Rollout, nodes: Sequence[RolloutNode], tries: tuple[UpdateTry, ...], seen: Seen, *, now: datetime
) -> GateEvidence:
    """Return everything that the gate judges the present wave on."""
    of_wave = [each for each in nodes if each.wave == rollout.wave]
    return GateEvidence(
        at=now,
        tries=tries,
        counts=seen.counts,
        levels=seen.levels,
        shifts=seen.shifts,
        causes=seen.causes,
        soaks={each.node: _soaked(each, seen.worked, now=now) for each in of_wave if each.stage in _AT_WORK},
        soak_began_at=_soak_began_at(of_wave) if is_wave_updated(rollout, nodes) else None,
    )


def _judged(
    rollout: Rollout, evidence: GateEvidence, seen: Seen, nodes: Sequence[RolloutNode], cluster: Cluster
) -> GateVerdict:
    wave, limits = present_wave(rollout), cluster.rules.policy.rollouts
    claims = cluster.ledger.release(rollout.release_digest).claims
    verdict = judge_wave(
        evidence,
        Looking(
            claims=claims,
            limits=limits,
            sought=sought_in(wave, rollout.waves, claims=claims, limits=limits),
            is_updated=is_wave_updated(rollout, nodes),
            is_canary=wave.is_canary,
            resumed_at=rollout.resumed_at,
        ),
    )
    began = max((at for at in (evidence.soak_began_at, rollout.resumed_at) if at is not None), default=evidence.at)
    return _with_sources(verdict, seen, at=evidence.at, decides_by=began + limits.soak_limit)


def _soaked(node: RolloutNode, worked: Worked, *, now: datetime) -> timedelta:
    """Return for how long a node has worked under jobs since its return."""
    if node.returned_at is None or node.returned_at >= now:
        return timedelta(0)
    return worked_within(worked.get(node.node, ()), Interval(begins_at=node.returned_at, ends_at=now))


def _soak_began_at(of_wave: Collection[RolloutNode]) -> datetime | None:
    """Return when the last node of a wave rolled back to work; of a wave in which none did, when the last gave up.

    What a node that failed alone does while it rolls back holds up no soak.
    """
    begun = [each for each in of_wave if each.stage is not NodeStage.SKIPPED]
    returned = [each.returned_at for each in begun if each.returned_at is not None and not each.failure]
    return max(returned, default=None) or max((each.since for each in begun), default=None)


def _with_sources(verdict: GateVerdict, seen: Seen, *, at: datetime, decides_by: datetime) -> GateVerdict:
    """Return the verdict with what could not be looked at: while a source is silent nothing is good, nor bad for it."""
    lines = tuple(
        TestLine(name="sources", state=VerdictKind.UNDECIDED, said=each, evidence_ratio=0.0)
        for each in (*seen.silent, *seen.notes)
    )
    tests = (*verdict.tests, *lines)
    if verdict.kind is not VerdictKind.GOOD or not seen.silent:
        return replace(verdict, tests=tests)
    why = "; ".join(seen.silent)
    if at >= decides_by:
        return GateVerdict(kind=VerdictKind.ASK, reason=why, tests=tests)
    return GateVerdict(kind=VerdictKind.UNDECIDED, reason=why, tests=tests, decides_by=decides_by)
