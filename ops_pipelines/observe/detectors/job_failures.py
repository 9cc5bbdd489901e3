"""Attempts that failed: is it the job, which fails wherever it runs, or the node, which fails whatever runs there.

Looks at ended attempts and not at panels. Time limits, cancellations and preemptions are no failures.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import comb

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import NO_NODE, JobState, JobStatus, Signal
from ops_pipelines.observe.detectors.shared import job_component
from ops_pipelines.observe.panels.panel import Detection

WINDOW = timedelta(hours=6)
LEAST_FAILURES = 3
SHORT_LIFE = timedelta(minutes=30)
"""A program or a node that is broken shows it early (a loop: the median life); later, jobs fail for many reasons."""
LEAST_WEIGHT = 1.0
"""Of a node's failures: a job of n nodes counts 1/n for each of them."""
FALSE_ALARM_RATE = 0.002
"""Chance that any node of the cluster looks so bad by accident, once a window."""
LEAST_BASE_RATE = 0.02
"""Of attempts that fail: never believed to be better, however few were seen."""
_OWN_FAILURES = frozenset({JobState.FAILED, JobState.OUT_OF_MEMORY})
_NODE_FAILURES = frozenset({JobState.FAILED, JobState.NODE_FAIL})
"""A job that used up its memory did so itself."""
_JUDGED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.NODE_FAIL})
_OVER = _JUDGED | {JobState.CANCELLED, JobState.TIMEOUT, JobState.PREEMPTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """One attempt of a job that is over."""

    job: JobId
    name: str
    user: str
    nodes: frozenset[NodeName]
    started_at: datetime
    ended_at: datetime
    state: JobState

    @property
    def program(self) -> tuple[str, str]:
        """Return what is the same over resubmissions: user and name."""
        return (self.user, self.name)

    @property
    def life(self) -> timedelta:
        return self.ended_at - self.started_at


def ended_attempts(jobs: Iterable[JobStatus]) -> list[EndedAttempt]:
    """Return the attempts that are over, of what the scheduler says of jobs; those of unknown times are left out."""
    return [
        EndedAttempt(
            job=job.job,
            name=job.name,
            user=job.user,
            nodes=job.nodes,
            started_at=job.started_at,
            ended_at=job.ended_at,
            state=job.state,
        )
        for job in jobs
        if job.state in _OVER and job.started_at is not None and job.ended_at is not None
    ]


def detect_failures(
    attempts: Iterable[EndedAttempt],
    *,
    at: datetime,
    window: timedelta = WINDOW,
    surviving_count: int = 0,
    booted_at: Mapping[NodeName, datetime] | None = None,
) -> list[Detection]:
    """Return JOB_CRASH_LOOP and NODE_FAILS_JOBS as of `at`, from attempts that ended in the `window` before it.

    Older attempts only tell how often attempts fail early where nothing is wrong. So does `surviving_count`, how many
    attempts run now for longer than SHORT_LIFE: without them a cluster of long jobs looks as if most failed.
    What began on a node before its last boot, `booted_at`, is not held against the node: it may have been repaired.
    Neither the order of attempts nor that one is told twice changes anything.
    """
    known = _latest(each for each in attempts if each.state in _JUDGED and each.ended_at <= at)
    judged = [each for each in known if at - window < each.ended_at]
    loops = list(_crash_loops(known, since=at - window))
    looping = {program for program, _ in loops}
    found = [detection for _, detection in loops]
    found += _failing_nodes(
        [each for each in judged if each.program not in looping],
        known=[each for each in known if each.program not in looping],
        surviving_count=surviving_count,
        booted_at=booted_at or {},
    )
    return sorted(found, key=lambda each: each.position)


def _latest(attempts: Iterable[EndedAttempt]) -> list[EndedAttempt]:
    """Return each attempt once, by time; where two tellings differ, the one that ended later."""
    found: dict[tuple[JobId, datetime], EndedAttempt] = {}
    for each in sorted(attempts, key=lambda each: (each.ended_at, each.state.value, each.program, sorted(each.nodes))):
        found[each.job, each.started_at] = each
    return sorted(found.values(), key=lambda each: (each.ended_at, each.job, each.started_at))


def _crash_loops(attempts: Sequence[EndedAttempt], *, since: datetime) -> Iterator[tuple[tuple[str, str], Detection]]:
    told: set[tuple[str, str]] = set()
    for groups in (_grouped(attempts, lambda each: each.job), _grouped(attempts, lambda each: each.program)):
        for group in groups.values():
            run = _failures_at_the_end(group)
            if len(run) < LEAST_FAILURES or run[-LEAST_FAILURES].ended_at <= since or run[-1].program in told:
                continue
            lives = sorted(each.life for each in run)
            stayed = frozenset.intersection(*(each.nodes for each in run))
            # A large job seldom gets none of its nodes again.
            if lives[len(lives) // 2] > SHORT_LIFE or len(stayed) > min(len(each.nodes) for each in run) // 8:
                continue
            told.add(run[-1].program)
            yield run[-1].program, _loop(run)


def _grouped(
    attempts: Sequence[EndedAttempt], key: Callable[[EndedAttempt], Hashable]
) -> Mapping[Hashable, list[EndedAttempt]]:
    groups: dict[Hashable, list[EndedAttempt]] = defaultdict(list)
    for each in attempts:
        groups[key(each)].append(each)
    return groups


def _failures_at_the_end(group: Sequence[EndedAttempt]) -> list[EndedAttempt]:
    """Return the unbroken run of failures that ends a group: one success shows that it can run."""
    run: list[EndedAttempt] = []
    for each in group:
        run = [*run, each] if each.state in _OWN_FAILURES else []
    return run


def _loop(run: Sequence[EndedAttempt]) -> Detection:
    last = run[-1]
    nodes = frozenset[NodeName]().union(*(each.nodes for each in run))
    return Detection(
        signal=Signal.JOB_CRASH_LOOP,
        node=NO_NODE,
        # Submitted anew, it has another id each time: the first one stays its name.
        component=job_component(run[0].job),
        job=run[0].job,
        began_at=run[0].ended_at,
        first_seen_at=run[LEAST_FAILURES - 1].ended_at,
        last_seen_at=last.ended_at,
        value=float(len(run)),
        text=f"{last.name} of {last.user} failed {len(run)} times in a row on {len(nodes)} nodes that changed, last as"
        f" job {last.job}: it is the job",
    )


def _failing_nodes(
    attempts: Sequence[EndedAttempt],
    *,
    known: Sequence[EndedAttempt],
    surviving_count: int,
    booted_at: Mapping[NodeName, datetime],
) -> Iterator[Detection]:
    """Yield the nodes that explain failures better than chance does, the best first; what one explains is taken out.

    So a node that only shared the jobs of a bad one is left without failures of its own.
    """
    runs = {
        node: [each for each in mine if node not in booted_at or each.started_at >= booted_at[node]]
        for node, mine in _grouped_by_node(attempts).items()
    }
    # Who ran fewer programs cannot be blamed, so only these are tried, and chance has so many tries.
    tried = {node for node, mine in runs.items() if len({each.program for each in mine}) >= LEAST_FAILURES}
    base_rate = _base_rate(known, suspects=_suspects(known), surviving_count=surviving_count)
    failed = [each for each in attempts if _fails_early(each)]
    left = set(failed)
    while left:
        scores = {node: _score(node, runs[node], failed, left=left, base_rate=base_rate) for node in tried}
        ranked = sorted((score, node) for node, score in scores.items() if score is not None)
        if not ranked or ranked[0][0] * len(tried) > FALSE_ALARM_RATE:
            return
        best, node = ranked[0]
        mine = [each for each in runs[node] if each in left]
        rivals = [other for score, other in ranked[1:] if score <= best and left.intersection(runs[other]) == set(mine)]
        left -= set(mine)
        if not rivals:
            yield _failing(node, mine, runs[node])


def _fails_early(attempt: EndedAttempt) -> bool:
    return attempt.state in _NODE_FAILURES and attempt.life <= SHORT_LIFE


def _suspects(known: Sequence[EndedAttempt]) -> set[NodeName]:
    """Return the nodes on which, at any time, so many programs failed early within a window: they show no base rate."""
    found: set[NodeName] = set()
    for node, mine in _grouped_by_node([each for each in known if _fails_early(each)]).items():
        firsts = sorted({each.program: each.ended_at for each in reversed(mine)}.values())
        runs = zip(firsts, firsts[LEAST_FAILURES - 1 :], strict=False)
        if any(last - first <= WINDOW for first, last in runs):
            found.add(node)
    return found


def _base_rate(known: Sequence[EndedAttempt], *, suspects: set[NodeName], surviving_count: int) -> float:
    """Return how likely a program fails early where nothing is wrong: on nodes without so many failures."""
    usual = [each for each in known if not each.nodes & suspects]
    failed = {each.program for each in usual if _fails_early(each)}
    others = sum(not _fails_early(each) for each in usual) + surviving_count
    return max(LEAST_BASE_RATE, (len(failed) + 1) / (len(failed) + others + 2))


def _grouped_by_node(attempts: Sequence[EndedAttempt]) -> dict[NodeName, list[EndedAttempt]]:
    runs: dict[NodeName, list[EndedAttempt]] = defaultdict(list)
    for each in attempts:
        for node in sorted(each.nodes):
            runs[node].append(each)
    return runs


def _score(
    node: NodeName,
    mine: Sequence[EndedAttempt],
    failed: Sequence[EndedAttempt],
    *,
    left: set[EndedAttempt],
    base_rate: float,
) -> float | None:
    """Return how likely chance alone fails so many programs on a node; None if they are too few, or fail elsewhere.

    `failed`: all early failures, wherever; those of them in `left` are not explained by another node.
    """
    unexplained = [each for each in mine if each in left]
    if len({each.program for each in unexplained}) < LEAST_FAILURES:
        return None
    failed_elsewhere = {each.program for each in failed if node not in each.nodes}
    programs: dict[tuple[str, str], float] = {}
    for each in unexplained:
        if each.program not in failed_elsewhere:
            programs[each.program] = max(programs.get(each.program, 0.0), 1 / len(each.nodes))
    if len(programs) < LEAST_FAILURES or sum(programs.values()) < LEAST_WEIGHT:
        return None
    return _tail(len({each.program for each in mine}), len(programs), base_rate)


def _tail(count: int, least: int, rate: float) -> float:
    """Return the chance of `least` or more of `count` independent failures at a rate."""
    return sum(comb(count, k) * rate**k * (1 - rate) ** (count - k) for k in range(least, count + 1))


def _failing(node: NodeName, failed: Sequence[EndedAttempt], ran: Sequence[EndedAttempt]) -> Detection:
    programs = sorted({each.name for each in failed})
    return Detection(
        signal=Signal.NODE_FAILS_JOBS,
        node=node,
        began_at=failed[0].ended_at,
        first_seen_at=failed[-1].ended_at,
        last_seen_at=failed[-1].ended_at,
        value=float(len(failed)),
        text=f"{len(failed)} of {len(ran)} attempts on {node} failed, of different programs that do not fail elsewhere:"
        f" {', '.join(programs[:5])}",
    )
