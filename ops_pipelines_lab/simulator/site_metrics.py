"""The metrics of a simulated cluster that belong to no GPU, node or job: power supplies and fans of each BMC, racks,
coolant, the power of the site; disks and the mount of the shared file system; the scheduler, and the scrapes
themselves.

A BMC answers whether its node does or not, and a node without power draws none. Names are those of redfish_exporter,
node_exporter, smartctl_exporter, lustre_exporter, slurm_exporter, and Prometheus' own; those of racks and site are
ours, for every building has others. A node that does not answer gives none.
"""

import math
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import JobState
from ops_pipelines_lab.simulator.hardware import Node
from ops_pipelines_lab.simulator.node_metrics import CPU_CORE_COUNT, Metric, Reading, joined, watts_of, work_of
from ops_pipelines_lab.simulator.world import World

_SITE = 'site="hall-1"'
_SUPPLY_COUNT = 6
_SUPPLY_WATTS = 3_300.0
_SUPPLY_EFFICIENCY = 0.94
_FAN_COUNT = 4
_RACK_SWITCH_WATTS = 900.0
_RACK_LIMIT_WATTS = 90_000.0
_COOLING_RATIO = 0.19
"""Assumption: power of chillers and pumps over IT power; with what follows, PUE is near 1.25."""
_OTHER_WATTS_PER_RACK = 400.0
_TRANSFORMER_RATIO = 0.03

_CONSUMED = Metric("redfish_chassis_power_average_consumed_watts", "gauge", "power wattage of the chassis", 1)
_CHASSIS_HEALTH = Metric("redfish_chassis_health", "gauge", "health of chassis, 1(OK),2(Warning),3(Critical)")
_AIR_TEMPERATURE = Metric(
    "redfish_chassis_temperature_celsius", "gauge", "celsius of temperature on this chassis component", 1
)
_FAN = Metric("redfish_chassis_fan_rpm", "gauge", "fan RPM or percentage on this chassis component")
_OUTPUT = Metric("redfish_chassis_power_powersupply_power_output_watts", "gauge", "measured output power, in Watts", 1)
_INPUT = Metric("redfish_chassis_power_powersupply_power_input_watts", "gauge", "measured input power, in Watts", 1)
_CAPACITY = Metric("redfish_chassis_power_powersupply_power_capacity_watts", "gauge", "capacity of the power supply")
_SUPPLY_HEALTH = Metric(
    "redfish_chassis_power_powersupply_health", "gauge", "powersupply health, 1(OK),2(Warning),3(Critical)"
)
_RACK_POWER = Metric("rack_power_watts", "gauge", "Power of the rack, all feeds.", 1)
_RACK_LIMIT = Metric("rack_power_limit_watts", "gauge", "Power that the rack's breakers allow.")
_RACK_INLET = Metric("rack_inlet_temperature_celsius", "gauge", "Air at the front of the rack.", 2)
_SUPPLY_COOLANT = Metric("facility_coolant_supply_celsius", "gauge", "Coolant to the racks.", 2)
_RETURN_COOLANT = Metric("facility_coolant_return_celsius", "gauge", "Coolant from the racks.", 2)
_COOLING_POWER = Metric("facility_cooling_power_watts", "gauge", "Power of chillers, pumps and fans.", 1)
_IT_POWER = Metric("facility_it_power_watts", "gauge", "Power of the IT equipment.", 1)
_SITE_POWER = Metric("facility_power_watts", "gauge", "Power of the whole site.", 1)
_PUE = Metric("facility_pue_ratio", "gauge", "Power of the site over power of the IT equipment.", 6)


def facility_readings(world: World, *, at: datetime) -> Iterator[Reading]:
    """Yield the metrics of every BMC, every rack and the site."""
    racks: dict[str, float] = {}
    for node in world.hardware.nodes.values():
        watts = watts_of(node, at=at)
        racks[node.rack] = racks.get(node.rack, _RACK_SWITCH_WATTS) + watts
        yield from _bmc(f'Hostname="{node.name}"', watts, inlet=_inlet(node.rack, at))
    for rack, watts in racks.items():
        labels = f'rack="{rack}"'
        yield _RACK_POWER, labels, watts
        yield _RACK_LIMIT, labels, _RACK_LIMIT_WATTS
        yield _RACK_INLET, labels, _inlet(rack, at)
    it_watts = sum(racks.values())
    cooling = _COOLING_RATIO * it_watts
    site_watts = (1 + _TRANSFORMER_RATIO) * it_watts + cooling + _OTHER_WATTS_PER_RACK * len(racks)
    supply = 19.0 + 0.5 * _wave(at, 0.4)
    yield _SUPPLY_COOLANT, 'loop="1"', supply
    yield _RETURN_COOLANT, 'loop="1"', supply + 9.0 * it_watts / (it_watts + 20_000.0 * len(racks))
    yield _COOLING_POWER, _SITE, cooling
    yield _IT_POWER, _SITE, it_watts
    yield _SITE_POWER, _SITE, site_watts
    yield _PUE, _SITE, site_watts / it_watts


def _bmc(own: str, watts: float, *, inlet: float) -> Iterator[Reading]:
    chassis = joined(own, 'resource="chassis",chassis_id="1"')
    yield _CHASSIS_HEALTH, chassis, 1
    yield _CONSUMED, chassis, watts
    yield _AIR_TEMPERATURE, joined(chassis, 'sensor="Inlet Temp",sensor_id="1"'), inlet
    yield _AIR_TEMPERATURE, joined(chassis, 'sensor="Exhaust Temp",sensor_id="2"'), inlet + 2.2e-3 * watts
    for number in range(_FAN_COUNT):
        labels = joined(chassis, f'fan="Fan {number + 1}",fan_id="{number + 1}",fan_unit="RPM"')
        yield _FAN, labels, 10 * round((0 if not watts else 520 + 0.07 * watts) + 3 * number * bool(watts))
    for number in range(_SUPPLY_COUNT):
        labels = joined(chassis, f'power_supply="PSU{number + 1}",power_supply_id="{number + 1}"')
        yield _OUTPUT, labels, watts / _SUPPLY_COUNT
        yield _INPUT, labels, watts / _SUPPLY_COUNT / _SUPPLY_EFFICIENCY
        yield _CAPACITY, labels, _SUPPLY_WATTS
        yield _SUPPLY_HEALTH, labels, 1


def _inlet(rack: str, at: datetime) -> float:
    place = sum(map(ord, rack)) % 10 / 10
    return 22.5 + 2.0 * place + 0.6 * _wave(at, place)


def _wave(at: datetime, phase: float) -> float:
    return math.sin(2 * math.pi * (at.timestamp() / 1_800.0 + phase))


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


_DISKS = (("nvme0n1", 0.6), ("nvme1n1", 0.4))
"""Name and share of the node's local traffic."""
_CACHED_RATIO = 0.1
"""Assumption: share of what is read from the shared file system that comes from the local disks' cache as well."""
_WRITTEN_RATIO = 0.3
"""Assumption: share of what is written to the shared file system that is written to local disks first."""
_IO_BYTES = 131_072
_IO_SECONDS = 0.0004
_PARALLEL_COUNT = 8
_MOUNT = 'component="client",target="scratch-ffff9a3c"'
_SHARED_KIBIBYTES = 4 * 2**40
"""4 PiB."""
_RATED_BYTES = 1.4e16
"""Assumption: what a 7.68 TB data-centre disk may write in its life, one drive write a day for five years."""

_READ_BYTES, _WRITTEN_BYTES, _READS, _WRITES, _READ_SECONDS, _WRITE_SECONDS, _BUSY_SECONDS, _WEIGHTED_SECONDS = (
    Metric(f"node_disk_{name}", "counter", help_text, decimals)
    for name, help_text, decimals in (
        ("read_bytes_total", "The total number of bytes read successfully.", 0),
        ("written_bytes_total", "The total number of bytes written successfully.", 0),
        ("reads_completed_total", "The total number of reads completed successfully.", 0),
        ("writes_completed_total", "The total number of writes completed successfully.", 0),
        ("read_time_seconds_total", "The total number of seconds spent by all reads.", 3),
        ("write_time_seconds_total", "This is the total number of seconds spent by all writes.", 3),
        ("io_time_seconds_total", "Total seconds spent doing I/Os.", 3),
        ("io_time_weighted_seconds_total", "The weighted # of seconds spent doing I/Os.", 3),
    )
)
_IN_FLIGHT = Metric("node_disk_io_now", "gauge", "The number of I/Os currently in progress.")
_DISK_TEMPERATURE = Metric("smartctl_device_temperature", "gauge", "Device temperature celsius")
_USED = Metric("smartctl_device_percentage_used", "counter", "Device write percentage used")
_SPARE = Metric(
    "smartctl_device_available_spare",
    "counter",
    "Normalized percentage (0 to 100%) of the remaining spare capacity available",
)
_MEDIA_ERRORS = Metric("smartctl_device_media_errors", "counter", "Unrecovered data integrity errors")
_WARNING = Metric("smartctl_device_critical_warning", "counter", "Critical warnings for the state of the controller")
_PASSED = Metric("smartctl_device_smart_status", "gauge", "General smart status")
_POWER_ON = Metric("smartctl_device_power_on_seconds", "counter", "Device power on seconds")
_LUSTRE_READ = Metric("lustre_read_bytes_total", "counter", "The total number of bytes that have been read.")
_LUSTRE_WRITTEN = Metric("lustre_write_bytes_total", "counter", "The total number of bytes that have been written.")
_LUSTRE_READS = Metric("lustre_read_samples_total", "counter", "Total number of reads that have been recorded.")
_LUSTRE_WRITES = Metric("lustre_write_samples_total", "counter", "Total number of writes that have been recorded.")
_LUSTRE_CAPACITY = Metric("lustre_capacity_kibibytes", "gauge", "Capacity of the pool in kibibytes")
_LUSTRE_AVAILABLE = Metric("lustre_available_kibibytes", "gauge", "Number of kibibytes readily available in the pool")


def storage_readings(node: Node, *, at: datetime, own: str = "") -> Iterator[Reading]:
    """Yield the metrics of the node's disks and of its mount of the shared file system."""
    if not node.answers:
        return
    work = work_of(node, at=at)
    shared_read, shared_written = (work.grown(f"shared_{way}_bytes_per_second") for way in ("read", "write"))
    read = 1e5 * work.uptime_seconds + _CACHED_RATIO * shared_read
    written = 4e5 * work.uptime_seconds + _CACHED_RATIO * shared_read + _WRITTEN_RATIO * shared_written
    waiting = work.rate("io_stalled_ratio")
    for number, (disk, share) in enumerate(_DISKS):
        labels = joined(own, f'device="{disk}"')
        reads, writes = share * read / _IO_BYTES, share * written / _IO_BYTES
        busy = (reads + writes) * _IO_SECONDS
        yield _READ_BYTES, labels, share * read
        yield _WRITTEN_BYTES, labels, share * written
        yield _READS, labels, int(reads)
        yield _WRITES, labels, int(writes)
        yield _READ_SECONDS, labels, reads * _IO_SECONDS
        yield _WRITE_SECONDS, labels, writes * _IO_SECONDS
        yield _BUSY_SECONDS, labels, busy / _PARALLEL_COUNT
        yield _WEIGHTED_SECONDS, labels, busy
        yield _IN_FLIGHT, labels, round(waiting * 3 * share)
        # The state of the disk comes from its life before this boot, which nothing in the simulated world changes.
        life = 0.25 + 0.5 * work.phase
        yield (
            _DISK_TEMPERATURE,
            joined(own, f'device="{disk}",temperature_type="current"'),
            round(34 + 6 * min(1.0, waiting) + 2 * work.wave),
        )
        yield _USED, labels, int(100 * (life * (0.2 + 0.1 * number) + share * written / _RATED_BYTES))
        yield _SPARE, labels, 100
        yield _MEDIA_ERRORS, labels, 0
        yield _WARNING, labels, 0
        yield _PASSED, labels, 1
        yield _POWER_ON, labels, int(3.2e7 * life + work.uptime_seconds)
    mount = joined(own, _MOUNT)
    yield _LUSTRE_READ, mount, shared_read
    yield _LUSTRE_WRITTEN, mount, shared_written
    yield _LUSTRE_READS, mount, int(shared_read / 2**20)
    yield _LUSTRE_WRITES, mount, int(shared_written / 2**20)
    yield _LUSTRE_CAPACITY, mount, _SHARED_KIBIBYTES
    yield _LUSTRE_AVAILABLE, mount, 0.41 * _SHARED_KIBIBYTES
