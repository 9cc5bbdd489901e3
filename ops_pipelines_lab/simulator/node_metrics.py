"""The metrics of a simulated node, its network ports and its jobs, and the formats in which any metric is shown:
exporters' text, and the answer to a range query.

Readings are plain tuples, for there are some ten thousand of them at each grid time. What one node does and has done
since its boot is a closed form of time like `load`: the sum over its GPUs, from which every counter of the node
follows, so that the same moment always gives the same numbers.

Names are those of node_exporter; disks are `site_metrics`'. A node that does not answer gives none. Real exporters do
not name the node: the scrape does, with `own`. The first rank's node serves what its job says of itself, training steps
or an inference service with queues and latencies, while it answers. Inference is Triton with the vLLM backend, which
shows the series of both. The names of the training series are ours: no exporter is common to all launchers.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from ops_pipelines.core.observation import Workload
from ops_pipelines_lab.simulator.hardware import Gpu, Node
from ops_pipelines_lab.simulator.jobs import Job
from ops_pipelines_lab.simulator.load import SHAPES, HostShape, Load
from ops_pipelines_lab.simulator.world import World


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as the exporter declares it."""

    name: str
    kind: str
    """`gauge`, `counter`, `histogram` or `summary`."""
    help_text: str
    decimals: int = 0
    """Digits after the point in the exporter's text; real exporters print integers or six digits."""
    family: str = ""
    """What HELP and TYPE name, where that is not the series: `x` for `x_bucket`."""


Reading = tuple[Metric, str, float]
"""A metric, its labels as they stand between the braces, and the value."""


@lru_cache(maxsize=200_000)
def joined(*labels: str) -> str:
    """Return label texts as one: `a="1",b="2"`. Empty ones fall away."""
    return ",".join(text for text in labels if text)


def write(readings: Iterable[Reading], *, at: datetime | None = None) -> bytes:
    """Return the readings as text, one block per metric, in the order of their first appearance.

    With `at` each sample carries that time in milliseconds, which exporters leave to who scrapes them.
    """
    end = "\n" if at is None else f" {round(at.timestamp() * 1000)}\n"
    blocks: dict[str, list[str]] = {}
    for metric, labels, value in readings:
        family = metric.family or metric.name
        block = blocks.get(family)
        if block is None:
            block = blocks[family] = [f"# HELP {family} {metric.help_text}\n", f"# TYPE {family} {metric.kind}\n"]
        number = f"{value:.{metric.decimals}f}"
        block.append(f"{metric.name}{{{labels}}} {number}{end}" if labels else f"{metric.name} {number}{end}")
    return "".join(line for block in blocks.values() for line in block).encode()


def write_range(readings: Iterable[tuple[datetime, Iterable[Reading]]]) -> bytes:
    """Return the readings of several times, in their order, as Prometheus answers a range query."""
    series: dict[tuple[str, str], list[str]] = {}
    for at, of_time in readings:
        seconds = round(at.timestamp())
        for metric, labels, value in of_time:
            point = f'[{seconds},"{value:.{metric.decimals}f}"]'
            points = series.get((metric.name, labels))
            if points is None:
                series[metric.name, labels] = [point]
            else:
                points.append(point)
    results = (
        f'{{"metric":{{"__name__":"{name}"{_as_json(labels)}}},"values":[{",".join(points)}]}}'
        for (name, labels), points in series.items()
    )
    return f'{{"status":"success","data":{{"resultType":"matrix","result":[{",".join(results)}]}}}}'.encode()


@lru_cache(maxsize=200_000)
def _as_json(labels: str) -> str:
    """Return label texts as members of a JSON object; both formats escape values alike."""
    return re.sub(r'(?:^|,)([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"', r',"\1":"\2"', labels)


CPU_CORE_COUNT = 112
MEMORY_BYTES = 2.0 * 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWork:
    """The work of one node at one moment."""

    uptime_seconds: float
    seconds: tuple[dict[Load, float], ...]
    """Per GPU: time under each load since the boot."""
    loads: tuple[Load, ...]
    """Per GPU: what it does now."""
    phase: float
    """0..1, of this node alone: no two nodes are alike."""
    wave: float
    """-1..1, slowly."""

    def grown(self, field: str) -> float:
        """Return what a rate of `HostShape` has added up to since the boot, over all GPUs."""
        return sum(grown(seconds, field) for seconds in self.seconds)

    def rate(self, field: str) -> float:
        """Return a rate of `HostShape` as it is now, over all GPUs."""
        return sum(_host_value(load, field) for load in self.loads)


def grown(seconds: dict[Load, float], field: str) -> float:
    """Return what a rate of `HostShape` adds up to over `seconds` under each load."""
    return sum(_host_value(load, field) * passed for load, passed in seconds.items())


def work_of(node: Node, *, at: datetime) -> NodeWork:
    """Return what `node` does at `at`, and has done since it booted."""
    phase = node.gpus[0].meter.phase
    return NodeWork(
        uptime_seconds=max(0.0, (at - node.booted_at).total_seconds()),
        seconds=tuple(gpu.meter.seconds(at) for gpu in node.gpus),
        loads=tuple(gpu.meter.load for gpu in node.gpus),
        phase=phase,
        wave=math.sin(2 * math.pi * (at.timestamp() % 1e6 / (90.0 + 60.0 * phase) + phase)),
    )


def watts_of(node: Node, *, at: datetime) -> float:
    """Return the power that the node draws: nothing without power, whatever it does otherwise."""
    if not node.is_powered:
        return 0.0
    cores = sum(_host_value(gpu.meter.load, "cpu_cores") for gpu in node.gpus)
    return _BASE_WATTS + _WATTS_PER_CORE * cores + _sum_of_watts(node.gpus, at)


def _sum_of_watts(gpus: Iterable[Gpu], at: datetime) -> float:
    return sum(gpu.meter.watts(at) for gpu in gpus)


_BASE_WATTS = 1_900.0
"""Assumption: fans, memory, switches and network cards of an HGX node, so that 8 x 700 W come to some 8 kW."""
_WATTS_PER_CORE = 4.0


_HOST_VALUES = {
    (load, name): float(getattr(shape.host, name)) for load, shape in SHAPES.items() for name in HostShape.__slots__
}


def _host_value(load: Load, field: str) -> float:
    return _HOST_VALUES[load, field]


_SOCKETS = (0, 1)
_FILE_SYSTEMS = (
    # mountpoint, device, type, bytes, share in use at most
    ("/", "/dev/md0", "ext4", 1.9e12, 0.2),
    ("/raid", "/dev/md1", "xfs", 3.0e13, 0.55),
)
_PACKET_BYTES = 4096
_TICKS_PER_SECOND = 1e6
_PORT_BYTES_PER_SECOND = 5e10
"""400 Gbit/s."""


def _gauge(name: str, help_text: str, decimals: int = 0) -> Metric:
    return Metric(name, "gauge", help_text, decimals)


def _counter(name: str, help_text: str, decimals: int = 0) -> Metric:
    return Metric(name, "counter", help_text, decimals)


_CPU = _counter("node_cpu_seconds_total", "Seconds the CPUs spent in each mode.", 2)
_LOAD1 = _gauge("node_load1", "1m load average.", 2)
_BOOT_TIME = _gauge("node_boot_time_seconds", "Node boot time, in unixtime.")
_MEMORY_TOTAL = _gauge("node_memory_MemTotal_bytes", "Memory information field MemTotal_bytes.")
_MEMORY_AVAILABLE = _gauge("node_memory_MemAvailable_bytes", "Memory information field MemAvailable_bytes.")
_SWAP_FREE = _gauge("node_memory_SwapFree_bytes", "Memory information field SwapFree_bytes.")
_CPU_WAITING = _counter(
    "node_pressure_cpu_waiting_seconds_total", "Total time in seconds that processes have waited for CPU time", 6
)
_MEMORY_STALLED = _counter(
    "node_pressure_memory_stalled_seconds_total",
    "Total time in seconds no process could make progress due to memory congestion",
    6,
)
_IO_WAITING = _counter(
    "node_pressure_io_waiting_seconds_total",
    "Total time in seconds that processes have waited due to IO congestion",
    6,
)
_IO_STALLED = _counter(
    "node_pressure_io_stalled_seconds_total",
    "Total time in seconds no process could make progress due to IO congestion",
    6,
)
_OOM_KILLS = Metric("node_vmstat_oom_kill", "untyped", "/proc/vmstat information field oom_kill.")
_PROCS_BLOCKED = _gauge("node_procs_blocked", "Number of processes blocked waiting for I/O to complete.")
_CLOCK_OFFSET = _gauge("node_timex_offset_seconds", "Time offset in between local system and reference clock.", 9)
_CLOCK_SYNC = _gauge("node_timex_sync_status", "Is clock synchronized to a reliable server (1 = yes, 0 = no).")
_FS_SIZE = _gauge("node_filesystem_size_bytes", "Filesystem size in bytes.")
_FS_AVAILABLE = _gauge("node_filesystem_avail_bytes", "Filesystem space available to non-root users in bytes.")
_FS_FILES_FREE = _gauge("node_filesystem_files_free", "Filesystem total free file nodes.")
_FS_READ_ONLY = _gauge("node_filesystem_readonly", "Filesystem read-only status.")
_EDAC_CORRECTABLE = _counter("node_edac_correctable_errors_total", "Total correctable memory errors.")
_EDAC_UNCORRECTABLE = _counter("node_edac_uncorrectable_errors_total", "Total uncorrectable memory errors.")
_NET_RECEIVE = _counter("node_network_receive_bytes_total", "Network device statistic receive_bytes.")
_NET_TRANSMIT = _counter("node_network_transmit_bytes_total", "Network device statistic transmit_bytes.")
_NET_RECEIVE_ERRORS = _counter("node_network_receive_errs_total", "Network device statistic receive_errs.")
_NET_TRANSMIT_ERRORS = _counter("node_network_transmit_errs_total", "Network device statistic transmit_errs.")
_NET_RECEIVE_DROPS = _counter("node_network_receive_drop_total", "Network device statistic receive_drop.")
_NET_CARRIER = _counter("node_network_carrier_changes_total", "Network device property: carrier_changes_total")
_NET_UP = _gauge("node_network_up", "Value is 1 if operstate is 'up', 0 otherwise.")
_IB_STATE = _gauge(
    "node_infiniband_state_id",
    "State of the InfiniBand port (0: no change, 1: down, 2: init, 3: armed, 4: active, 5: act defer)",
)
_IB_PHYSICAL = _gauge(
    "node_infiniband_physical_state_id",
    "Physical state of the InfiniBand port (0: no change, 1: sleep, 2: polling, 3: disable, 4: shift, 5: link up,"
    " 6: link error recover, 7: phytest)",
)
_IB_RATE = _gauge("node_infiniband_rate_bytes_per_second", "Maximum signal transfer rate")
_IB_RECEIVED = _counter("node_infiniband_port_data_received_bytes_total", "Number of data octets received on all links")
_IB_SENT = _counter(
    "node_infiniband_port_data_transmitted_bytes_total", "Number of data octets transmitted on all links"
)
_IB_PACKETS_RECEIVED = _counter(
    "node_infiniband_port_packets_received_total",
    "Number of packets received on all VLs by this port (including errors)",
)
_IB_PACKETS_SENT = _counter(
    "node_infiniband_port_packets_transmitted_total",
    "Number of packets transmitted on all VLs from this port (including errors)",
)
_IB_WAIT = _counter(
    "node_infiniband_port_transmit_wait_total",
    "Number of ticks during which the port had data to transmit but no data was sent during the entire tick",
)
_IB_SYMBOL_ERRORS = _counter(
    "node_infiniband_symbol_error_total",
    "Number of minor link errors detected on one or more physical lanes.",
)
_IB_DOWNED = _counter(
    "node_infiniband_link_downed_total",
    "Number of times the link failed to recover from an error state and went down",
)
_IB_STILL = (
    _counter(
        "node_infiniband_link_error_recovery_total",
        "Number of times the link successfully recovered from an error state",
    ),
    _counter(
        "node_infiniband_port_errors_received_total",
        "Number of packets containing an error that were received on this port",
    ),
    _counter(
        "node_infiniband_port_discards_transmitted_total",
        "Number of outbound packets discarded by the port because the port is down or congested",
    ),
)
"""Counters that stand at 0 while the fabric is well, as it is here."""


def node_readings(node: Node, *, at: datetime, own: str = "") -> Iterator[Reading]:
    """Yield the metrics of the node and its ports; nothing if the node does not answer."""
    if node.answers:
        work = work_of(node, at=at)
        yield from _host(node, work, own)
        yield from _network(node, work, own)
        yield from _ports(node, work, own)


def _host(node: Node, work: NodeWork, own: str) -> Iterator[Reading]:
    user = 0.9 * (core_seconds := work.grown("cpu_cores")) + 0.4 * work.uptime_seconds
    system = 0.1 * core_seconds + 0.15 * work.uptime_seconds
    waiting = work.grown("io_stalled_ratio") + 0.01 * work.uptime_seconds
    idle = CPU_CORE_COUNT * work.uptime_seconds - user - system - waiting
    for socket in _SOCKETS:
        for mode, seconds in (("idle", idle), ("user", user), ("system", system), ("iowait", waiting)):
            # One series a socket, not one a core: a hundred times fewer, and the same sums.
            yield _CPU, joined(own, f'cpu="{socket}",mode="{mode}"'), seconds / len(_SOCKETS)
    yield _LOAD1, own, 1.0 + work.rate("cpu_cores") * (1 + 0.06 * work.wave)
    yield _BOOT_TIME, own, node.booted_at.timestamp()
    yield _MEMORY_TOTAL, own, MEMORY_BYTES
    yield _MEMORY_AVAILABLE, own, 0.97 * MEMORY_BYTES - work.rate("memory_bytes") * (1 + 0.02 * work.wave)
    yield _SWAP_FREE, own, 0
    stalled = work.grown("io_stalled_ratio") / len(work.loads)
    yield _CPU_WAITING, own, 0.0002 * core_seconds
    yield _MEMORY_STALLED, own, 0
    yield _IO_WAITING, own, 1.3 * stalled
    yield _IO_STALLED, own, stalled
    yield _OOM_KILLS, own, 0
    yield _PROCS_BLOCKED, own, round(4 * work.rate("io_stalled_ratio"))
    yield _CLOCK_OFFSET, own, 4e-6 * work.wave
    yield _CLOCK_SYNC, own, 1
    for mountpoint, device, kind, size, used in _FILE_SYSTEMS:
        labels = joined(own, f'device="{device}",fstype="{kind}",mountpoint="{mountpoint}"')
        yield _FS_SIZE, labels, size
        yield _FS_AVAILABLE, labels, size * (1 - used * (0.9 + 0.05 * work.phase + 0.05 * work.wave))
        yield _FS_FILES_FREE, labels, size / 16_384 * (1 - 0.1 * work.phase)
        yield _FS_READ_ONLY, labels, 0
    for controller in _SOCKETS:
        labels = joined(own, f'controller="{controller}"')
        yield _EDAC_CORRECTABLE, labels, int(work.uptime_seconds / 86_400 * work.phase * 0.3 * controller)
        yield _EDAC_UNCORRECTABLE, labels, 0


def _network(node: Node, work: NodeWork, own: str) -> Iterator[Reading]:
    labels = joined(own, 'device="eth0"')
    # The shared file system hangs on this network, and so do the programs that watch the node.
    yield _NET_RECEIVE, labels, 2e4 * work.uptime_seconds + work.grown("shared_read_bytes_per_second")
    yield _NET_TRANSMIT, labels, 5e4 * work.uptime_seconds + work.grown("shared_write_bytes_per_second")
    yield _NET_RECEIVE_ERRORS, labels, 0
    yield _NET_TRANSMIT_ERRORS, labels, 0
    yield _NET_RECEIVE_DROPS, labels, int(work.uptime_seconds / 7_200)
    yield _NET_CARRIER, labels, 2 + 2 * node.cut_off_count
    yield _NET_UP, labels, 1


def _ports(node: Node, work: NodeWork, own: str) -> Iterator[Reading]:
    """One port for each GPU, as HGX nodes have it."""
    for index, seconds in enumerate(work.seconds):
        labels = joined(own, f'device="mlx5_{index}",port="1"')
        sent = 300 * work.uptime_seconds + grown(seconds, "fabric_bytes_per_second")
        is_up = node.links_down_until is None
        yield _IB_STATE, labels, 4 if is_up else 1
        yield _IB_PHYSICAL, labels, 5 if is_up else 2
        yield _IB_RATE, labels, _PORT_BYTES_PER_SECOND
        yield _IB_RECEIVED, labels, 0.98 * sent
        yield _IB_SENT, labels, sent
        yield _IB_PACKETS_RECEIVED, labels, 0.98 * sent / _PACKET_BYTES
        yield _IB_PACKETS_SENT, labels, sent / _PACKET_BYTES
        yield _IB_WAIT, labels, _TICKS_PER_SECOND * grown(seconds, "congestion_ratio")
        yield _IB_SYMBOL_ERRORS, labels, int(work.uptime_seconds / 86_400 * work.phase * (index == 5))
        yield _IB_DOWNED, labels, node.links_down_count
        for metric in _IB_STILL:
            yield metric, labels, 0


_STEP_SECONDS = Metric("training_step_seconds", "gauge", "Duration of the last training step.", 6)
_TOKENS = Metric("training_tokens_per_second", "gauge", "Tokens trained on, a second.", 3)
_STEPS = Metric("training_steps_total", "counter", "Training steps done by this attempt.")
_LOSS = Metric("training_loss", "gauge", "Training loss.", 6)
_TOKENS_PER_GPU_SECOND = 3_200.0
"""Assumption: a 70-billion-parameter model on H100 at a third of its peak."""
_SLOWED_BY = {Load.INPUT_STALLED: 3.4, Load.COMMUNICATION_BOUND: 2.1}
"""How much longer a step takes than it would."""

_REQUESTS_PER_GPU_SECOND = 1.5
_PROMPT_TOKENS, _WRITTEN_TOKENS = 900, 210
_FAILED_RATIO = 0.0008
_MEAN_SECONDS, _SPREAD = 2.6, 0.55
"""Latencies are log-normal: median and spread of the logarithm."""
_BOUNDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
"""Buckets of vLLM's request latency."""
_QUANTILES = (("0.5", 0.0), ("0.95", 1.644854), ("0.99", 2.326348))
"""Quantile, and its place in the standard normal distribution."""
_LATENCY = "vllm:e2e_request_latency_seconds"
_LATENCY_HELP = "Histogram of e2e request latency in seconds."
_BUCKET, _SUM, _COUNT = (
    Metric(f"{_LATENCY}_{part}", "histogram", _LATENCY_HELP, decimals, family=_LATENCY)
    for part, decimals in (("bucket", 0), ("sum", 3), ("count", 0))
)
_QUEUE_SUM, _QUEUE_COUNT = (
    Metric(
        f"vllm:request_queue_time_seconds_{part}",
        "histogram",
        "Histogram of time spent in WAITING phase for request.",
        decimals,
        family="vllm:request_queue_time_seconds",
    )
    for part, decimals in (("sum", 3), ("count", 0))
)
_RUNNING = Metric("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.")
_WAITING = Metric("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.")
_CACHE = Metric("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", 6)
_ENDED = Metric("vllm:request_success_total", "counter", "Count of successfully processed requests.")
_PROMPTS = Metric("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.")
_WRITTEN = Metric("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.")
_SUCCESS = Metric("nv_inference_request_success", "counter", "Number of successful inference requests, all batch sizes")
_FAILURE = Metric("nv_inference_request_failure", "counter", "Number of failed inference requests, all batch sizes")
_PENDING = Metric(
    "nv_inference_pending_request_count",
    "gauge",
    "Instantaneous number of pending requests awaiting execution per-model.",
)
_SUMMARY = Metric(
    "nv_inference_request_summary_us", "summary", "Summary of inference request durations in microseconds"
)


def jobs_by_first_node(world: World) -> dict[str, list[Job]]:
    """Return the jobs that run, by the node of their first rank."""
    found: dict[str, list[Job]] = {}
    for job in world.controller.jobs.values():
        if job.is_running and job.allocation:
            found.setdefault(next(iter(job.allocation)), []).append(job)
    return found


def job_readings(node: Node, jobs: list[Job], *, at: datetime, own: str = "") -> Iterator[Reading]:
    """Yield what `jobs`, whose first rank is on `node`, say of themselves."""
    for job in jobs if node.answers else ():
        if job.spec.workload is Workload.TRAINING:
            yield from _training(job, at, own)
        elif job.spec.workload is Workload.INFERENCE:
            yield from _inference(job, at, own)


def _training(job: Job, at: datetime, own: str) -> Iterator[Reading]:
    labels = joined(own, f'job_id="{job.job}",job_name="{job.spec.name}",user="{job.spec.user}"')
    work_seconds = job.fresh_work(at).total_seconds()
    # As with `_SLOWED_BY`: a slow step shows in what the job says of itself, its work continues at its own pace.
    whole_seconds = job.spec.step_seconds * _SLOWED_BY.get(job.load, 1.0) * (1 + job.slowdown_ratio)
    step_seconds = whole_seconds * (1 + 0.03 * _wave(job, at))
    # A hung rank keeps saying how long its last step took, but no further token is trained on.
    rate = 0.0 if job.hung_at is not None else _TOKENS_PER_GPU_SECOND * job.gpu_count
    yield _STEP_SECONDS, labels, step_seconds
    yield _TOKENS, labels, rate * job.spec.step_seconds / step_seconds
    yield _STEPS, labels, int(work_seconds / whole_seconds)
    yield _LOSS, labels, 1.8 + 9.0 / (1 + (job.saved_work.total_seconds() + work_seconds) / 400.0)


def _inference(job: Job, at: datetime, own: str) -> Iterator[Reading]:
    model = job.spec.name
    labels = joined(own, f'model_name="{model}",engine="0"')
    triton = joined(own, f'model="{model}",version="1"')
    rate = _REQUESTS_PER_GPU_SECOND * job.gpu_count
    ended = int(rate * job.fresh_work(at).total_seconds())
    failed = int(_FAILED_RATIO * ended)
    hung_seconds = 0.0 if job.hung_at is None else (at - job.hung_at).total_seconds()
    median_seconds = _MEAN_SECONDS * (1 + 0.12 * _wave(job, at)) + min(hung_seconds, 600.0)
    waiting = min(100_000, round(rate * hung_seconds) + round(0.3 * rate * (1 + _wave(job, at))))
    mean_seconds = _MEAN_SECONDS * math.exp(_SPREAD**2 / 2)
    yield _RUNNING, labels, 0 if hung_seconds else round(rate * median_seconds)
    yield _WAITING, labels, waiting
    yield _CACHE, labels, 0.62 + 0.2 * _wave(job, at)
    yield _ENDED, joined(labels, 'finished_reason="stop"'), ended - failed
    yield _ENDED, joined(labels, 'finished_reason="abort"'), failed
    yield _PROMPTS, labels, _PROMPT_TOKENS * ended
    yield _WRITTEN, labels, _WRITTEN_TOKENS * ended
    for bound, share in _SHARES:
        yield _BUCKET, joined(labels, f'le="{bound}"'), int(share * ended)
    yield _BUCKET, joined(labels, 'le="+Inf"'), ended
    yield _SUM, labels, mean_seconds * ended
    yield _COUNT, labels, ended
    yield _QUEUE_SUM, labels, 0.2 * ended
    yield _QUEUE_COUNT, labels, ended
    yield _SUCCESS, triton, ended - failed
    yield _FAILURE, triton, failed
    yield _PENDING, triton, waiting
    for quantile, place in _QUANTILES:
        microseconds = 1e6 * median_seconds * math.exp(_SPREAD * place)
        yield _SUMMARY, joined(triton, f'quantile="{quantile}"'), microseconds


def _wave(job: Job, at: datetime) -> float:
    phase = int(job.job) % 17 / 17
    return math.sin(2 * math.pi * (at.timestamp() % 1e6 / (140.0 + 60.0 * phase) + phase))


def _share_below(seconds: float) -> float:
    return 0.5 * (1 + math.erf(math.log(seconds / _MEAN_SECONDS) / (_SPREAD * math.sqrt(2))))


_SHARES = tuple((bound, _share_below(bound)) for bound in _BOUNDS)
