"""Hours of allocations, efficiency and accounting -> what jobs that are alike did in them.

Alike: one team, one user, one name but for a number at its end. Whether that is good or bad is `efficiency`'s.
What lines tell of checkpoints comes from `saves`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import Workload
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.sources import ReadComment
from ops_pipelines.efficiency.advice import Attempt, JobWork, NodeFailures, UseHours, one_line, subject_of_jobs
from ops_pipelines.teams.desk import AdviceSettings

ALLOCATIONS = (
    "job", "node", "time", "name", "user", "account", "partition", "started_at", "held_seconds", "gpu_count",
)  # fmt: skip
EFFICIENCY = (
    "job", "node", "time", "verdict", "rule", "gpu_count", "held_seconds", "utilisation_ratio", "sm_active_ratio",
    "memory_used_ratio", "straggler",
)  # fmt: skip
ACCOUNTING = (
    "job", "time", "name", "user", "account", "partition", "state", "submitted_at", "eligible_at", "started_at",
    "ended_at", "elapsed_seconds", "time_limit_seconds", "node_count", "gpu_count", "memory_bytes", "comment",
    "restart_count",
)  # fmt: skip
STEPS = ("job", "time", "task_count", "max_rss_bytes")
INVENTORY = ("node", "kind", "memory_bytes", "gpu_count")
NO_TEAM = TeamName("")
"""The scheduler names no account: it is counted, and nobody can be notified."""
_HOUR = timedelta(hours=1)
_SESSION_NAMES = frozenset({"bash", "sh", "zsh", "interactive", "salloc", "jupyter", "vscode", "code-server", "debug"})
_SESSION_WORDS = ("jupyter", "sys/dashboard", "vscode", "interactive")
_SESSION_PARTITIONS = ("interactive", "debug")

Subject = tuple[TeamName, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What is known of nodes, beside the rows."""

    gpu_types: Mapping[NodeName, GpuType] = field(default_factory=dict)
    device_memory_bytes: Mapping[str, float] = field(default_factory=dict)
    """Of one GPU, the smallest of each node."""
    host_memory_bytes_per_gpu: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRun:
    """The longest job of its kind: whose lines are worth reading."""

    job: str
    hours: frozenset[datetime]
    held_hours: float
    node_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Works:
    """All jobs of an interval of time."""

    works: tuple[JobWork, ...]
    longest: Mapping[Subject, LongRun]
    unknown_gpu_hours: float
    """Measured of jobs that no allocation names: they are in no work."""


@dataclass(slots=True, kw_only=True)
class _Sum:
    """Sums of one verdict; what was not measured is in no mean."""

    gpu_hours: float = 0.0
    weighed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))

    def add(self, row: Mapping[str, object], gpu_hours: float) -> None:
        self.gpu_hours += gpu_hours
        for name in ("utilisation_ratio", "sm_active_ratio", "memory_used_ratio"):
            value = row.get(name)
            if isinstance(value, int | float):
                self.weighed[name][0] += value * gpu_hours
                self.weighed[name][1] += gpu_hours

    def mean(self, name: str) -> float | None:
        total, hours = self.weighed[name]
        return total / hours if hours > 0 else None


@dataclass(slots=True, kw_only=True)
class _Tally:
    """What is added up of one subject."""

    held: float = 0.0
    seen: float = 0.0
    uses: dict[str, _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    all_uses: _Sum = field(default_factory=_Sum)
    early: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    idle: float = 0.0
    half_idle: float = 0.0
    early_idle: float = 0.0
    hung: float = 0.0
    stragglers: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    straggler_gpus: set[str] = field(default_factory=set)
    most_memory: float | None = None
    idle_hours: dict[tuple[str, str], dict[datetime, float]] = field(default_factory=lambda: defaultdict(dict))
    nodes: set[str] = field(default_factory=set)
    is_interactive: bool = False
    workloads: set[Workload] = field(default_factory=set)
    attempts: list[Attempt] = field(default_factory=list)
    gpu_counts: set[int] = field(default_factory=set)
    job_hours: dict[str, dict[datetime, float]] = field(default_factory=lambda: defaultdict(dict))
    job_nodes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def read_works(
    allocations: Iterable[pa.Table],
    efficiency: Iterable[pa.Table],
    accounting: Iterable[pa.Table],
    steps: Iterable[pa.Table],
    *,
    since: datetime,
    until: datetime,
    settings: AdviceSettings,
    hardware: Hardware,
    read_comment: ReadComment,
    known: Mapping[str, Workload],
) -> Works:
    """Return what the jobs of [since, until) did. Each iterable gives hours in their order, with the columns above.

    `known`: the workload of jobs as the scheduler has it, for those whose comment accounting does not have yet.
    """
    tallies: dict[Subject, _Tally] = defaultdict(_Tally)
    subjects: dict[str, Subject] = {}
    held: dict[tuple[datetime, str, str], tuple[float, datetime | None]] = {}
    for table in allocations:
        _add_held(table, tallies, subjects, held, known=known)
    unknown = 0.0
    for table in efficiency:
        unknown += _add_use(table, tallies, subjects, held, settings=settings)
    used = _used_memory(steps)
    for table in accounting:
        _add_attempts(table, tallies, used, read_comment=read_comment)
    works = {
        subject: _work(subject, tally, since=since, until=until, hardware=hardware)
        for subject, tally in sorted(tallies.items())
    }
    longest = {subject: run for subject, tally in tallies.items() if (run := _longest(tally)) is not None}
    return Works(works=tuple(works.values()), longest=longest, unknown_gpu_hours=unknown)


def count_hours(rows: pa.Table) -> int:
    """Return in how many hours there are any of these rows."""
    return len(pc.unique(pc.floor_temporal(rows["time"], unit="hour")))


def read_hardware(inventory: pa.Table, gpu_types: Mapping[NodeName, GpuType]) -> Hardware:
    """Return the memory of GPUs and nodes, from an hour of `inventory`."""
    devices: dict[str, float] = {}
    hosts: dict[str, float] = {}
    counts: dict[str, int] = defaultdict(int)
    stated: dict[str, int] = {}
    for row in inventory.to_pylist():
        node, size = row["node"], row["memory_bytes"]
        if row["kind"] == "gpu":
            counts[node] += 1
            if size:
                devices[node] = min(size, devices.get(node, size))
        elif row["kind"] == "node":
            if size:
                hosts[node] = size
            if row["gpu_count"]:
                stated[node] = row["gpu_count"]
    shares = {
        node: size / count for node, size in hosts.items() if (count := stated.get(node) or counts.get(node, 0)) > 0
    }
    return Hardware(gpu_types=gpu_types, device_memory_bytes=devices, host_memory_bytes_per_gpu=shares)


def read_failures(accounting: Iterable[pa.Table]) -> NodeFailures:
    """Return how often nodes failed under jobs with GPUs, over the node-hours of all of them that ended."""
    failed, hours = 0, 0.0
    for table in accounting:
        for row in table.select(["state", "elapsed_seconds", "node_count", "gpu_count"]).to_pylist():
            if row["gpu_count"]:
                hours += max(0.0, row["elapsed_seconds"] or 0.0) / 3600 * (row["node_count"] or 1)
                failed += _word(row["state"]) == "NODE_FAIL"
    return NodeFailures(failure_count=failed, node_hours=hours)


def _add_held(
    table: pa.Table,
    tallies: dict[Subject, _Tally],
    subjects: dict[str, Subject],
    held: dict[tuple[datetime, str, str], tuple[float, datetime | None]],
    *,
    known: Mapping[str, Workload],
) -> None:
    for row in table.to_pylist():
        job, node, gpus = row["job"], row["node"], row["gpu_count"] or 0.0
        hours = max(0.0, row["held_seconds"] or 0.0) / 3600
        if not gpus:
            continue
        subject = _subject(row)
        subjects[job] = subject
        tally = tallies[subject]
        tally.held += gpus * hours
        tally.nodes.add(node)
        tally.is_interactive |= _is_session(row)
        if job in known:
            tally.workloads.add(known[job])
        at = _hour(row["time"])
        tally.job_hours[job][at] = max(hours, tally.job_hours[job].get(at, 0.0))
        tally.job_nodes[job].add(node)
        before = held.get((at, node, job))
        starts = [each for each in (row["started_at"], before[1] if before else None) if each is not None]
        held[at, node, job] = gpus * hours + (before[0] if before else 0.0), max(starts, default=None)


def _add_use(
    table: pa.Table,
    tallies: Mapping[Subject, _Tally],
    subjects: Mapping[str, Subject],
    held: Mapping[tuple[datetime, str, str], tuple[float, datetime | None]],
    *,
    settings: AdviceSettings,
) -> float:
    """Add an hour's verdicts, and return the GPU-hours of jobs that no allocation names."""
    unknown = 0.0
    for row in table.to_pylist():
        job, node, at = row["job"], row["node"], _hour(row["time"])
        gpu_hours = max(0.0, row["gpu_count"] or 0.0) * max(0.0, row["held_seconds"] or 0.0) / 3600
        allotted = held.get((at, node, job))
        if not job or gpu_hours <= 0 or row["verdict"] in {None, "unknown"}:
            continue
        if allotted is None:
            unknown += gpu_hours
            continue
        # GPUs that several jobs share are given to each of them: nobody used more than he held.
        gpu_hours = min(gpu_hours, allotted[0])
        age = None if allotted[1] is None else at - allotted[1]
        _add_row(tallies[subjects[job]], row, at, gpu_hours, age=age, settings=settings)
    return unknown


def _add_row(
    tally: _Tally,
    row: Mapping[str, object],
    at: datetime,
    gpu_hours: float,
    *,
    age: timedelta | None,
    settings: AdviceSettings,
) -> None:
    """`age`: of the attempt when the hour began, below 0 if it began within it; None: not known, so not young."""
    verdict, rule = str(row["verdict"]), str(row["rule"])
    tally.seen += gpu_hours
    tally.all_uses.add(row, gpu_hours)
    memory = row["memory_used_ratio"]
    if isinstance(memory, int | float):
        tally.most_memory = max(float(memory), tally.most_memory or 0.0)
    if age is not None and age < settings.warm_up:
        tally.early[verdict] += gpu_hours
    else:
        tally.uses[verdict].add(row, gpu_hours)
    if rule == "spinning_collective":
        tally.hung += gpu_hours
    if verdict == "straggler":
        tally.stragglers[rule] += gpu_hours
        tally.straggler_gpus.add(f"{row['node']}/{row['straggler']}")
    if verdict != "idle":
        return
    if age is not None and age < settings.idle_grace:
        tally.early_idle += gpu_hours
    elif rule == "half_idle":
        tally.half_idle += gpu_hours
        _note_idle(tally, row, at)
    else:
        tally.idle += gpu_hours
        _note_idle(tally, row, at)


def _note_idle(tally: _Tally, row: Mapping[str, object], at: datetime) -> None:
    seconds = row["held_seconds"]
    hours = float(seconds) / 3600 if isinstance(seconds, int | float) else 0.0
    tally.idle_hours[str(row["job"]), str(row["node"])][at] = min(1.0, hours)


def _used_memory(steps: Iterable[pa.Table]) -> dict[str, float]:
    """Return the most that any step of each job had in use: its largest task times its tasks, which is never less."""
    used: dict[str, float] = {}
    for table in steps:
        for row in table.select(list(STEPS)).to_pylist():
            if row["max_rss_bytes"] and row["task_count"]:
                used[row["job"]] = max(row["max_rss_bytes"] * row["task_count"], used.get(row["job"], 0.0))
    return used


def _add_attempts(
    table: pa.Table, tallies: dict[Subject, _Tally], used: Mapping[str, float], *, read_comment: ReadComment
) -> None:
    for row in table.to_pylist():
        if not row["gpu_count"] or row["started_at"] is None or row["ended_at"] is None:
            continue
        tally = tallies[_subject(row)]
        tally.is_interactive |= _is_session(row)
        tally.gpu_counts.add(row["gpu_count"])
        if row["comment"]:
            said = read_comment(row["comment"]).workload
            if said is not Workload.UNKNOWN:
                tally.workloads.add(said)
        since = row["eligible_at"] or row["submitted_at"] or row["started_at"]
        tally.attempts.append(
            Attempt(
                elapsed_hours=max(0.0, row["elapsed_seconds"] or 0.0) / 3600,
                limit_hours=None if not row["time_limit_seconds"] else row["time_limit_seconds"] / 3600,
                state=_word(row["state"]),
                restart_count=row["restart_count"] or 0,
                gpu_count=row["gpu_count"],
                node_count=row["node_count"] or 1,
                asked_memory_bytes=row["memory_bytes"] or None,
                used_memory_bytes=used.get(row["job"]),
                waited_hours=max(0.0, (row["started_at"] - since) / _HOUR),
            )
        )


def _work(subject: Subject, tally: _Tally, *, since: datetime, until: datetime, hardware: Hardware) -> JobWork:
    types = {hardware.gpu_types.get(NodeName(node), GpuType("")) for node in tally.nodes}
    devices = [hardware.device_memory_bytes.get(node) for node in tally.nodes]
    hosts = [hardware.host_memory_bytes_per_gpu.get(node) for node in tally.nodes]
    counts = tally.gpu_counts
    return JobWork(
        team=subject[0],
        subject=subject[1],
        since=since,
        until=until,
        held_gpu_hours=tally.held,
        seen_gpu_hours=min(tally.seen, tally.held),
        uses={
            verdict: UseHours(
                gpu_hours=each.gpu_hours,
                utilisation_ratio=each.mean("utilisation_ratio"),
                sm_active_ratio=each.mean("sm_active_ratio"),
                memory_used_ratio=each.mean("memory_used_ratio"),
            )
            for verdict, each in sorted(tally.uses.items())
        },
        early_gpu_hours=dict(sorted(tally.early.items())),
        idle_gpu_hours=tally.idle,
        half_idle_gpu_hours=tally.half_idle,
        early_idle_gpu_hours=tally.early_idle,
        longest_idle_hours=_longest_stretch(tally.idle_hours.values()),
        hung_gpu_hours=tally.hung,
        straggler_gpu_hours=dict(sorted(tally.stragglers.items())),
        straggler_gpus=frozenset(tally.straggler_gpus),
        mean_utilisation_ratio=tally.all_uses.mean("utilisation_ratio"),
        most_memory_used_ratio=tally.most_memory,
        workloads=frozenset(tally.workloads - {Workload.UNKNOWN}),
        is_interactive=tally.is_interactive or Workload.INTERACTIVE in tally.workloads,
        attempts=tuple(tally.attempts),
        gpu_counts=frozenset(counts),
        gpu_type=types.pop() if len(types) == 1 else GpuType(""),
        device_memory_bytes=_smallest(devices),
        host_memory_bytes_per_gpu=_smallest(hosts),
    )


def _smallest(sizes: Iterable[float | None]) -> float | None:
    """Return the smallest; None where any is not known."""
    listed = list(sizes)
    known = [each for each in listed if each is not None]
    return min(known) if known and len(known) == len(listed) else None


def _longest_stretch(idle: Iterable[Mapping[datetime, float]]) -> float:
    """Return the longest time on end, in hours."""
    longest = 0.0
    for hours in idle:
        run, before = 0.0, None
        for at, held in sorted(hours.items()):
            run = run + held if before is not None and at - before == _HOUR else held
            longest, before = max(longest, run), at
    return longest


def _longest(tally: _Tally) -> LongRun | None:
    """Return the job that held nodes for the longest; None where none held any."""
    if not tally.job_hours:
        return None
    job = max(sorted(tally.job_hours), key=lambda each: sum(tally.job_hours[each].values()))
    hours = tally.job_hours[job]
    return LongRun(
        job=job,
        hours=frozenset(hours),
        held_hours=sum(hours.values()),
        node_count=len(tally.job_nodes[job]),
    )


def _subject(row: Mapping[str, object]) -> Subject:
    team = row["account"]
    return TeamName(one_line(str(team)) if team else NO_TEAM), subject_of_jobs(
        str(row["user"] or "somebody"), str(row["name"] or "")
    )


def _is_session(row: Mapping[str, object]) -> bool:
    name, partition = str(row["name"] or "").lower(), str(row["partition"] or "").lower()
    return (
        name in _SESSION_NAMES
        or any(word in name for word in _SESSION_WORDS)
        or any(partition.startswith(word) for word in _SESSION_PARTITIONS)
    )


def _word(state: object) -> str:
    return (str(state or "").split() or [""])[0]


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)
