"""The metrics of a pretended node's disks and of its mount of the shared file system.

Names are those of node_exporter, smartctl_exporter and lustre_exporter. A node that does not answer gives none.
"""

from collections.abc import Iterator
from datetime import datetime

from ops_pipelines_lab.simulator.exposition import Metric, Reading, joined
from ops_pipelines_lab.simulator.hardware import Node
from ops_pipelines_lab.simulator.work import work_of

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
_TEMPERATURE = Metric("smartctl_device_temperature", "gauge", "Device temperature celsius")
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
        # How the disk is comes from its life before this boot, which nothing in the pretended world changes.
        life = 0.25 + 0.5 * work.phase
        yield (
            _TEMPERATURE,
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
