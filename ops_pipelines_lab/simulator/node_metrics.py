"""The metrics of a pretended node and its network ports, in the names of node_exporter; disks are `storage_metrics`'.

A node that does not answer gives none. Real exporters do not name the node: whoever scrapes it does, with `own`.
"""

from collections.abc import Iterator
from datetime import datetime

from ops_pipelines_lab.simulator.exposition import Metric, Reading, joined
from ops_pipelines_lab.simulator.hardware import Node
from ops_pipelines_lab.simulator.work import CPU_CORE_COUNT, MEMORY_BYTES, NodeWork, grown, work_of

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
