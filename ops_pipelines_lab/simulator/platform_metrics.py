"""What is measured of the pretended scheduler, in slurm_exporter's names, and of the scrapes, in Prometheus' own."""

import math
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import JobState
from ops_pipelines_lab.simulator.exposition import Metric, Reading
from ops_pipelines_lab.simulator.work import CPU_CORE_COUNT
from ops_pipelines_lab.simulator.world import World

_PARTITION = 'partition="gpu"'
_JOB_STATES = {
    JobState.PENDING: "pending",
    JobState.RUNNING: "running",
    JobState.COMPLETING: "completing",
    JobState.COMPLETED: "completed",
    JobState.CANCELLED: "cancelled",
    JobState.FAILED: "failed",
    JobState.NODE_FAIL: "node_fail",
}
_JOBS = {word: Metric(f"slurm_jobs_{word}", "gauge", f"Jobs {word}") for word in _JOB_STATES.values()}
_QUEUE_PENDING = Metric("slurm_queue_pending", "gauge", "Pending jobs in the queue")
_QUEUE_RUNNING = Metric("slurm_queue_running", "gauge", "Running jobs in the cluster")
_NODES = {
    word: Metric(f"slurm_nodes_{word}", "gauge", f"{word} nodes") for word in ("alloc", "mix", "idle", "down", "drain")
}
_NODES_TOTAL = Metric("slurm_nodes_total", "gauge", "Total number of nodes")
_GPUS = {word: Metric(f"slurm_gpus_{word}", "gauge", f"{word} GPUs") for word in ("alloc", "idle", "total")}
_CPUS_TOTAL = Metric("slurm_cpus_total", "gauge", "Total CPUs")
_THREADS = Metric("slurm_scheduler_threads", "gauge", "Number of scheduler threads")
_QUEUE_SIZE = Metric("slurm_scheduler_queue_size", "gauge", "Length of the scheduler queue")
_DBD_QUEUE = Metric("slurm_scheduler_dbd_queue_size", "gauge", "Length of the DBD queue")
_LAST_CYCLE = Metric("slurm_scheduler_last_cycle", "gauge", "Scheduler last cycle time in microseconds")
_BACKFILL_CYCLE = Metric(
    "slurm_scheduler_backfill_last_cycle", "gauge", "Scheduler backfill last cycle time in microseconds"
)
_SUBMITTED = Metric("slurm_scheduler_jobs_submitted", "gauge", "Jobs submitted since the statistics began")
_UP = Metric("up", "gauge", "1 if the last scrape worked.")
_SCRAPE_SECONDS = Metric("scrape_duration_seconds", "gauge", "Duration of the last scrape.", 6)


def platform_readings(world: World, *, at: datetime) -> Iterator[Reading]:
    """Yield what the scheduler's exporter says."""
    jobs = world.controller.jobs.values()
    counts = Counter(_JOB_STATES[job.state] for job in jobs if job.state in _JOB_STATES)
    for word, metric in _JOBS.items():
        yield metric, "", counts[word]
    yield _QUEUE_PENDING, _PARTITION, counts["pending"]
    yield _QUEUE_RUNNING, _PARTITION, counts["running"]
    in_use = Counter(dict.fromkeys(world.hardware.nodes, 0))
    for job in jobs:
        for name, gpus in job.allocation.items():
            in_use[name] += len(gpus)
    states = Counter(_node_state(world, name, used) for name, used in in_use.items())
    for word, metric in _NODES.items():
        yield metric, _PARTITION, states[word]
    yield _NODES_TOTAL, "", len(in_use)
    gpu_count, used_count = len(in_use) * world.scenario.gpus_per_node, in_use.total()
    yield _GPUS["alloc"], "", used_count
    yield _GPUS["idle"], "", gpu_count - used_count
    yield _GPUS["total"], "", gpu_count
    yield _CPUS_TOTAL, "", CPU_CORE_COUNT * len(in_use)
    wave = math.sin(2 * math.pi * at.timestamp() / 300.0)
    yield _THREADS, "", 3
    yield _QUEUE_SIZE, "", 0
    yield _DBD_QUEUE, "", 0
    yield _LAST_CYCLE, "", round(900 + 40 * counts["pending"] + 200 * wave)
    yield _BACKFILL_CYCLE, "", round(2_500 + 180 * counts["pending"] + 600 * wave)
    yield _SUBMITTED, "", world.controller.submitted_count


def scrape_readings(world: World) -> Iterator[Reading]:
    """Yield what a Prometheus that scrapes each node's exporters would add by itself."""
    for node in world.hardware.nodes.values():
        labels = f'instance="{node.name}",job="node"'
        yield _UP, labels, int(node.answers)
        yield _SCRAPE_SECONDS, labels, 0.04 + 0.02 * node.gpus[0].meter.phase if node.answers else 1.0


def _node_state(world: World, name: NodeName, used: int) -> str:
    record = world.controller.records[name]
    if record.is_down:
        return "down"
    if record.is_drained:
        return "drain"
    if used == 0:
        return "idle"
    return "alloc" if used == world.scenario.gpus_per_node else "mix"
