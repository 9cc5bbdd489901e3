"""From a line in a kernel log to the decision that covers it in the ledger, in a storm: latency, loss and memory.

256 nodes with jobs on all of them. A process of its own appends to real log files, 500 events a second for 60 s and
then 4,200 a second for 10 s; the fault sensor itself is called as Dagster's daemon calls it: a turn every 5 s, none
where the tick before has not ended; between ticks its own thread looks on. An event counts as recorded when a decision
that covers its evidence is committed; the incidents that it opens or changes stand in the same transaction. Scheduler
and metrics are made up, and answer as late as real ones. Run it with `make bench`, or `python -m bench.intake`; exits
1 where P90 is 1 s or more, an event is lost or doubled, a faulty node is in no incident, or memory grows.
"""

import argparse
import cProfile
import multiprocessing
import pstats
import resource
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import dagster as dg
from rich.console import Console
from rich.table import Table

from bench.intake_load import GPUS_PER_NODE, JOBS, NODES, Part, make_files, number_of, read_times, write_load
from ops_pipelines.clock import SystemClock
from ops_pipelines.core.cluster import Cluster, Fleet
from ops_pipelines.core.finding import REPAIRS
from ops_pipelines.core.identity import JobId, NodeName, Place, Topology, digest_of
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.notes import Message
from ops_pipelines.core.observation import JobState, JobStatus, NodeState, NodeStatus, Workload
from ops_pipelines.core.plan import Rules
from ops_pipelines.core.policy import Mode, Policy
from ops_pipelines.core.scheduler import Scheduler, SchedulerLimits
from ops_pipelines.core.sources import Sample
from ops_pipelines.observe.rules import find
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines.resources.kernel_log import FileTailLogs
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.sensors.fault import fault_sensor
from ops_pipelines_lab.drills.postgres_server import PostgresServer, find_programs
from ops_pipelines_lab.drills.stack import free_port

TURN_SECONDS = 5.0
"""How often Dagster's daemon looks at its sensors."""
P90_LIMIT_SECONDS = 1.0
MEMORY_LIMIT_BYTES = 250e6
"""How much the process may grow from its first tick on."""
_GIVE_UP_AFTER_SECONDS = 120.0
_RACK_SIZE = 16
_BORN = datetime(2026, 11, 1, tzinfo=UTC)
_EVIDENCE_PAGE = 5_000
_METRICS = {
    "DCGM_FI_DEV_GPU_TEMP": 60.0,
    "DCGM_FI_DEV_POWER_USAGE": 600.0,
    "DCGM_FI_DEV_GPU_UTIL": 99.0,
    "DCGM_FI_DEV_FB_USED": 70_000.0,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0.0,
    "DCGM_FI_DEV_ROW_REMAP_PENDING": 0.0,
}


class BusyScheduler:
    """The port `Scheduler`: every node runs a job, for ever; a drain is believed. Answers after `answer_seconds`."""

    def __init__(self, answer_seconds: float) -> None:
        self._answer_seconds = answer_seconds
        job_of = {node: number for number, job in enumerate(JOBS) for node in job}
        self._nodes = {
            node: NodeStatus(
                node=NodeName(node), state=NodeState.ALLOCATED, is_drained=False, is_responding=True, reason=None,
                reason_set_at=None, booted_at=_BORN, gpu_count=GPUS_PER_NODE, gpu_in_use_count=GPUS_PER_NODE,
            )
            for node in job_of
        }  # fmt: skip
        self._jobs = tuple(
            JobStatus(
                job=JobId(str(1000 + number)), state=JobState.RUNNING, is_held=False, is_requeueable=True,
                name="pretrain", user="ada", account="research", workload=Workload.TRAINING,
                nodes=frozenset(map(NodeName, job)), gpu_count=GPUS_PER_NODE * len(job), started_at=_BORN,
                ended_at=None, restart_count=0, excluded_nodes=frozenset(), checkpointed_at=None,
            )
            for number, job in enumerate(JOBS)
        )  # fmt: skip

    def read_nodes(self) -> tuple[NodeStatus, ...]:
        time.sleep(self._answer_seconds)
        return tuple(self._nodes.values())

    def read_jobs(self) -> tuple[JobStatus, ...]:
        time.sleep(self._answer_seconds)
        return self._jobs

    def read_limits(self) -> SchedulerLimits:
        minute = timedelta(minutes=1)
        return SchedulerLimits(
            silence_limit=5 * minute, ping_interval=minute, answer_limit=minute,
            is_every_down_node_returned=False, is_requeue_the_default=True, unguarded="",
        )  # fmt: skip

    def drain(self, nodes: Collection[NodeName], *, reason: str) -> None:
        time.sleep(self._answer_seconds)
        now = datetime.now(UTC).replace(microsecond=0)
        for node in nodes:
            self._nodes[node] = replace(self._nodes[node], is_drained=True, reason=reason, reason_set_at=now)

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"a tick does not {name}")


class HealthyMetrics:
    """The port `Telemetry`: every GPU is seen, and well."""

    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        return tuple(
            Sample(
                metric=metric,
                labels={"Hostname": node, "gpu": str(gpu), "pci_bus_id": f"00000000:{0x1B + 0x10 * gpu:02X}:00.0"},
                value=value,
                sampled_at=at,
            )
            for metric, value in _METRICS.items()
            for node in NODES
            for gpu in range(GPUS_PER_NODE)
        )


class Nobody:
    """The port `Notifier`."""

    def send(self, message: Message) -> str:
        return "taken"


class StampedLedger:
    """A ledger that notes when each decision was committed, and through which evidence it went."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._ledger = ledger
        self.decided: list[tuple[int, float]] = []

    def record_decision(self, *, decided_through: int, **values: object) -> int:
        head = self._ledger.record_decision(decided_through=decided_through, **values)  # type: ignore[arg-type]
        self.decided.append((decided_through, time.monotonic()))
        return head

    def __getattr__(self, name: str) -> object:
        return getattr(self._ledger, name)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one part of the load."""

    ledger: str
    part: Part
    latencies: list[float]
    """Seconds, ascending, of the events that were recorded."""

    def quantile(self, share: float) -> float:
        if not self.latencies:
            return float("inf")
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What came of the whole load on one ledger."""

    results: list[Result]
    written: int
    kept: int
    doubled: int
    decisions: int
    ticks: int
    longest_tick_seconds: float
    grown_bytes: float
    cpu_seconds: float
    ledger_bytes: int
    unnamed_nodes: int

    @property
    def problems(self) -> list[str]:
        """Return which bounds were missed."""
        found = [
            f"{result.part.name}: P90 {result.quantile(0.9):.2f} s"
            for result in self.results
            if result.quantile(0.9) >= P90_LIMIT_SECONDS
        ]
        found += [f"{self.written - self.kept} events lost"] if self.written != self.kept else []
        found += [f"{self.doubled} events doubled"] if self.doubled else []
        found += [f"{self.unnamed_nodes} faulty nodes stand in no incident"] if self.unnamed_nodes else []
        grown = self.grown_bytes > MEMORY_LIMIT_BYTES
        return found + ([f"memory grew by {self.grown_bytes / 1e6:.0f} MB"] if grown else [])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 if a bound was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], default=Mode.OBSERVE.value)
    parser.add_argument("--files", choices=["one", "per-node"], default="one", help="as rsyslog gathers them")
    parser.add_argument("--steady", type=float, default=60.0, help="seconds at 500 events a second")
    parser.add_argument("--burst", type=float, default=10.0, help="seconds at 4,200 events a second")
    parser.add_argument(
        "--answer",
        type=float,
        default=0.03,
        help="seconds until the scheduler answers; a slurmctld of 256 nodes: 0.045, 0.010",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="print where the ticks spent their time")
    options = parser.parse_args(argv)
    parts = [
        Part(name="500/s", per_second=500, seconds=options.steady),
        Part(name="4,200/s", per_second=4_200, seconds=options.burst),
    ]
    console = Console(highlight=False)
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="intake-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # PostgreSQL's own user passes through
        for kind, url in _ledgers(directory, options.ledger, console):
            place = directory / kind
            place.mkdir()
            measured = _measure(kind, url, place, parts, options)
            console.print(_table(kind, measured, options))
            problems += [f"{kind}: {problem}" for problem in measured.problems]
    for problem in problems:
        console.print(f"[red]{problem}[/red]")
    return 1 if problems else 0


def _measure(kind: str, url: str, place: Path, parts: Sequence[Part], options: argparse.Namespace) -> Measured:
    logs = place / "logs"
    logs.mkdir()
    per_node = options.files == "per-node"
    pattern = make_files(logs, per_node=per_node)
    ledger = StampedLedger(SqlLedger(url))
    cluster = _cluster(ledger, pattern, mode=Mode(options.mode), answer_seconds=options.answer)
    times_file = place / "times"
    writer = multiprocessing.get_context("spawn").Process(
        target=write_load, args=(logs, parts), kwargs={"per_node": per_node, "seed": options.seed, "out": times_file}
    )
    profile = cProfile.Profile() if options.profile else None
    with dg.instance_for_test() as instance:
        context = _Daemon(cluster, instance, profile)
        context.turn()  # what is loaded once is loaded
        memory_before, cpu_before = _peak_bytes(), time.process_time()
        writer.start()
        give_up_at = time.monotonic() + sum(part.seconds for part in parts) + _GIVE_UP_AFTER_SECONDS
        while not (times_file.exists() and _is_all_decided(cluster, parts)) and time.monotonic() < give_up_at:
            context.turn()
        grown, cpu = _peak_bytes() - memory_before, time.process_time() - cpu_before
        writer.join()
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(60)
    return _judge(
        kind, parts, read_times(times_file), ledger, cluster,
        daemon=context, grown_bytes=grown, cpu_seconds=cpu, ledger_bytes=_size_of(url),
    )  # fmt: skip


class _Daemon:
    """Calls the sensor as Dagster's daemon does."""

    def __init__(self, cluster: Cluster, instance: dg.DagsterInstance, profile: cProfile.Profile | None) -> None:
        self._cluster = cluster
        self._instance = instance
        self._profile = profile
        self._began = time.monotonic()
        self._cursor: str | None = None
        self.tick_seconds: list[float] = []

    def turn(self) -> None:
        """Wait for the next turn of the daemon's loop, and let the sensor have its tick."""
        since = time.monotonic() - self._began
        time.sleep(TURN_SECONDS - since % TURN_SECONDS)
        begun = time.monotonic()
        context = dg.SensorEvaluationContext(
            instance_ref=None,
            instance=self._instance,
            cursor=self._cursor,
            resources={"cluster": dg.ResourceDefinition.hardcoded_resource(self._cluster)},
            sensor_name="fault",
            last_tick_completion_time=time.time(),
        )
        result = fault_sensor(context) if self._profile is None else self._profile.runcall(fault_sensor, context)
        assert isinstance(result, dg.SensorResult)
        self._cursor = result.cursor
        self.tick_seconds.append(time.monotonic() - begun)


def _judge(
    kind: str,
    parts: Sequence[Part],
    times: Sequence[float],
    ledger: StampedLedger,
    cluster: Cluster,
    *,
    daemon: _Daemon,
    grown_bytes: float,
    cpu_seconds: float,
    ledger_bytes: int,
) -> Measured:
    through = [seq for seq, _ in ledger.decided]
    seen: dict[int, float] = {}
    doubled = 0
    faulty: set[NodeName] = set()
    after = 0
    while page := cluster.ledger.evidence_after(after, limit=_EVIDENCE_PAGE):
        after = page[-1].seq
        for each in page:
            number = number_of(each.observation.text)
            doubled += number in seen
            place = bisect_left(through, each.seq)
            if place < len(through):
                seen[number] = ledger.decided[place][1] - times[number]
            if find(each.observation, cluster.rules.catalogue).response in REPAIRS:
                faulty.add(each.observation.node)
    named = {
        node
        for incident in cluster.ledger.incidents_since(_BORN)
        for node in (*incident.nodes, *(finding.node for finding in incident.findings))
    }
    results = []
    start = 0
    for part in parts:
        numbers = range(start, start + part.count)
        latencies = sorted(seen[number] for number in numbers if number in seen)
        results.append(Result(ledger=kind, part=part, latencies=latencies))
        start += part.count
    return Measured(
        results=results,
        written=len(times),
        kept=len(seen),
        doubled=doubled,
        decisions=len(ledger.decided),
        ticks=len(daemon.tick_seconds),
        longest_tick_seconds=max(daemon.tick_seconds),
        grown_bytes=grown_bytes,
        cpu_seconds=cpu_seconds,
        ledger_bytes=ledger_bytes,
        unnamed_nodes=len(faulty - named),
    )


def _is_all_decided(cluster: Cluster, parts: Sequence[Part]) -> bool:
    state = cluster.ledger.read_state(cluster.clock.now())
    return state.decided_through >= max(state.evidence_head, sum(part.count for part in parts))


def _cluster(ledger: StampedLedger, pattern: str, *, mode: Mode, answer_seconds: float) -> Cluster:
    clock = SystemClock()
    places = {
        NodeName(node): Place(rack=f"r{number // _RACK_SIZE}", nvlink_domain=node, leaf_switch=f"s{number // 32}")
        for number, node in enumerate(NODES)
    }
    nobody: object = None
    return Cluster(
        name="bench",
        scheduler=cast("Scheduler", BusyScheduler(answer_seconds)),  # a tick sends nothing but drains
        fleet=cast("Fleet", nobody),  # nothing here goes beyond a drain
        telemetry=HealthyMetrics(),
        logs=(FileTailLogs([pattern], clock=clock),),
        ledger=cast("Ledger", ledger),
        notifier=Nobody(),
        clock=clock,
        rules=Rules(
            policy=Policy(mode=mode),
            topology=Topology(places=places, gpus_per_node=GPUS_PER_NODE),
            catalogue=read_catalogue(),
        ),
        rules_digest=digest_of("bench"),
    )


def _ledgers(directory: Path, wanted: str, console: Console) -> Iterator[tuple[str, str]]:
    if wanted in ("sqlite", "both"):
        yield "SQLite", f"sqlite:///{directory}/ledger.sqlite"
    if wanted in ("postgres", "both"):
        if find_programs() is None:
            console.print("PostgreSQL is not installed: not measured")
            return
        with _postgres(directory) as url:
            yield "PostgreSQL", url


@contextmanager
def _postgres(directory: Path) -> Iterator[str]:
    server = PostgresServer(directory / "p", port=free_port(), databases=("ledger",))
    server.start()
    try:
        yield server.url("ledger")
    finally:
        server.stop()


def _size_of(url: str) -> int:
    path = Path(url.removeprefix("sqlite:///"))
    return path.stat().st_size if url.startswith("sqlite") else 0


def _peak_bytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _table(kind: str, measured: Measured, options: argparse.Namespace) -> Table:
    table = Table(
        title=f"{kind}, mode {options.mode}, log files: {options.files}",
        caption=(
            f"{measured.written} events written, {measured.kept} recorded, {measured.doubled} doubled; "
            f"{measured.decisions} decisions in {measured.ticks} ticks, the longest of "
            f"{measured.longest_tick_seconds:.1f} s; {measured.cpu_seconds:.0f} s of CPU; memory grew by "
            f"{measured.grown_bytes / 1e6:.0f} MB"
            + (f", the ledger to {measured.ledger_bytes / 1e6:.0f} MB" if measured.ledger_bytes else "")
        ),
    )
    for heading in ("events", "count", "P50 s", "P90 s", "P99 s", "worst s"):
        table.add_column(heading, justify="right")
    for result in measured.results:
        quantiles = [f"{result.quantile(share):.2f}" for share in (0.5, 0.9, 0.99, 1.0)]
        table.add_row(result.part.name, f"{len(result.latencies)} of {result.part.count}", *quantiles)
    return table


if __name__ == "__main__":
    sys.exit(main())
