"""What looks like a fault and is none: restarts of exporters, counters set to zero, planned drains, single lines.

Rates are assumptions: frequent enough that every kind occurs several times a day in 256 nodes, as operators of such
fleets tell (dcgm-exporter issues 348, 190, 500; NVSentinel 1280). Pauses of jobs are `pauses`; ends of jobs, with their
Xid 45 and 43, belong to `cluster`.
"""

from functools import partial

from numpy.random import Generator

from ops_pipelines_lab.simulator.replay import texts
from ops_pipelines_lab.simulator.replay.canvas import Brush
from ops_pipelines_lab.simulator.replay.cluster import Cluster
from ops_pipelines_lab.simulator.replay.fleet import GPUS_PER_NODE, PORTS_PER_NODE

DRAIN_REASONS = (
    "kernel 6.8.0-62 rollout", "BIOS update", "ticket 48121 cable relabel", "reserved for acceptance test",
    "firmware NIC 28.41", "driver upgrade window",
)  # fmt: skip


def add_negatives(rng: Generator, cluster: Cluster) -> None:
    """Put a day's harmless events into a cluster, before it runs. Planned drains are told to it as events."""
    share = cluster.fleet.node_count * cluster.seconds / (256 * 86_400)
    _restart_exporters(rng, cluster, int(rng.poisson(70 * share)))
    _reset_counters(rng, cluster, int(rng.poisson(25 * share)))
    _lose_single_series(rng, cluster, int(rng.poisson(150 * share)))
    _write_harmless_lines(rng, cluster, share)
    for _ in range(int(rng.poisson(16 * share))):
        at = float(rng.uniform(0, cluster.seconds))
        cluster.at(at, lambda: _drain_for_maintenance(rng, cluster))
    _warm_some_nodes(rng, cluster)


def _node(rng: Generator, cluster: Cluster) -> int:
    return int(rng.integers(cluster.fleet.node_count))


def _restart_exporters(rng: Generator, cluster: Cluster, count: int) -> None:
    """Take away a node's series for 1 to 6 samples: its GPU exporter's, its node exporter's, or both."""
    canvas, fleet = cluster.canvas, cluster.fleet
    for _ in range(count):
        node, at = _node(rng, cluster), float(rng.uniform(0, cluster.seconds))
        span = (at, at + canvas.step_seconds * (int(rng.integers(1, 7)) - 0.01))
        which = rng.random()
        if which < 0.75:
            canvas.hide("gpus", fleet.gpu_slice(node), span)
            # The exporter's own sums begin anew; what the driver counts goes on.
            for column in ("nvlink_bandwidth_bytes", "thermal_throttle_seconds", "power_throttle_seconds"):
                canvas.restarts.append(("gpus", column, fleet.gpu_slice(node), canvas.row(span[1])))
            if rng.random() < 0.5:
                cluster.scribe.kernel(node, at, "Stopping dcgm-exporter.service - DCGM exporter...", tag="systemd[1]")
        if which > 0.5:
            for layer, parts in (
                ("nodes", slice(node, node + 1)),
                ("ports", fleet.port_slice(node)),
                ("disks", fleet.disk_slice(node)),
            ):
                canvas.hide(layer, parts, span)


def _reset_counters(rng: Generator, cluster: Cluster, count: int) -> None:
    """Set counters of a node to zero: somebody ran `perfquery -R`, a field group was created anew."""
    canvas, fleet = cluster.canvas, cluster.fleet
    for _ in range(count):
        node, row = _node(rng, cluster), int(rng.integers(1, max(2, canvas.row_count)))
        if rng.random() < 0.5:
            for column in ("symbol_error_count", "link_downed_count", "receive_bytes", "transmit_bytes"):
                canvas.restarts.append(("ports", column, fleet.port_slice(node), row))
        else:
            canvas.restarts.append(("gpus", "nvlink_bandwidth_bytes", fleet.gpu_slice(node), row))


def _lose_single_series(rng: Generator, cluster: Cluster, count: int) -> None:
    """Take away one GPU's or one port's samples once or twice: a field that timed out."""
    canvas = cluster.canvas
    for _ in range(count):
        at = float(rng.uniform(0, cluster.seconds))
        layer, width = (("gpus", GPUS_PER_NODE), ("ports", PORTS_PER_NODE))[int(rng.integers(2))]
        part = _node(rng, cluster) * width + int(rng.integers(width))
        canvas.hide(layer, part, (at, at + canvas.step_seconds * (int(rng.integers(1, 3)) - 0.01)))


def _write_harmless_lines(rng: Generator, cluster: Cluster, share: float) -> None:
    canvas, fleet, scribe = cluster.canvas, cluster.fleet, cluster.scribe

    def times(mean: float) -> list[float]:
        return [float(at) for at in rng.uniform(0, cluster.seconds, int(rng.poisson(mean * share)))]

    for at in times(5000):
        # Written when its time comes: by then the node may have booted anew.
        cluster.at(at, partial(scribe.kernel, _node(rng, cluster), at, texts.benign(rng)))
    for at in times(60):
        node = _node(rng, cluster)
        scribe.kernel(node, at, texts.corrected_memory(rng, dimm=int(rng.integers(16))))
        canvas.grow("nodes/edac_correctable_count", node, at)
    for at in times(60):
        node = _node(rng, cluster)
        scribe.kernel(node, at, texts.corrected_pcie(rng, fleet.address(int(rng.integers(8)))))
    for at in times(50):
        gpu = _node(rng, cluster) * GPUS_PER_NODE + int(rng.integers(8))
        canvas.grow("gpus/pcie_replay_count", gpu, at, float(rng.integers(1, 4)))
    for at in times(40):
        gpu = _node(rng, cluster) * GPUS_PER_NODE + int(rng.integers(8))
        canvas.grow("gpus/ecc_correctable_volatile_count", gpu, at, float(rng.integers(1, 5)))
    for at in times(30):
        gpu = _node(rng, cluster) * GPUS_PER_NODE + int(rng.integers(8))
        canvas.grow("gpus/nvlink_crc_flit_error_count", gpu, at, float(rng.integers(1, 30)))
    for at in times(10):
        canvas.grow("disks/error_log_count", _node(rng, cluster) * 2 + int(rng.integers(2)), at)
    for at in times(120):
        port = _node(rng, cluster) * PORTS_PER_NODE + int(rng.integers(8))
        canvas.grow("ports/symbol_error_count", port, at, float(rng.integers(1, 4)))
    for at in times(25):
        node = _node(rng, cluster)
        scribe.kernel(node, at, texts.cpu_throttled(rng))
        canvas.grow("nodes/cpu_package_throttle_count", node, at, float(rng.integers(1, 9)))
    for at in times(30):
        node = _node(rng, cluster)
        pci = fleet.address(int(rng.integers(8)))
        text = texts.mmu_fault(rng, pci) if rng.random() < 0.6 else texts.graphics_exception(rng, pci)
        cluster.at(at, lambda node=node, text=text: _if_small(cluster, node, text))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    for at in times(30):
        cluster.at(at, lambda: _warn_from_nccl(rng, cluster))


def _if_small(cluster: Cluster, node: int, text: str) -> None:
    """Write a program's own Xid where a notebook or a batch job runs: it goes on, with a new kernel."""
    holder = cluster.holder(node)
    if holder is not None and not holder.is_training:
        cluster.scribe.kernel(node, cluster.now, text)


def _warn_from_nccl(rng: Generator, cluster: Cluster) -> None:
    """Write a warning of NCCL that has no consequence."""
    several = [each for each in cluster.running.values() if each.is_training and len(each.nodes) > 1]
    if several:
        attempt = several[int(rng.integers(len(several)))]
        name = cluster.fleet.names[attempt.nodes[0]]
        pid = int(rng.integers(9000, 99_000))
        text = (
            f"{name}:{pid}:{pid + 80} [0] transport/net_ib.cc:1016 NCCL WARN NET/IB : Unable to open device mlx5_bond_0"
            if rng.random() < 0.5
            else f"{name}:{pid}:{pid + 80} [0] init.cc:1774 NCCL WARN MSCCL++: Cannot open libmscclpp-nccl.so"
        )
        cluster.scribe.job(attempt, cluster.now, text)


def _drain_for_maintenance(rng: Generator, cluster: Cluster) -> None:
    """Drain a free node, or one with a job that ends by itself, reboot it, and give it back."""
    candidates = [
        node
        for node, life in enumerate(cluster.lives)
        if not (life.is_drained or life.is_down or life.keep_free) and life.is_responding
    ]
    free = [node for node in candidates if cluster.lives[node].holder is None]
    # Who plans takes what is free, or what will be within two hours.
    soon = [
        node for node in candidates if (each := cluster.lives[node].holder) and each.planned_end < cluster.now + 7200
    ]
    choices = free if free and (rng.random() < 0.7 or not soon) else soon
    if not choices:
        return
    node = int(rng.choice(choices))
    holder, now = cluster.lives[node].holder, cluster.now
    begin = now + float(rng.uniform(120, 900)) if holder is None else max(holder.planned_end, now) + 120
    silent = float(rng.uniform(240, 900))
    cluster.lives[node].keep_free = True
    cluster.take_out(
        node,
        drained=now,
        rebooted=begin,
        silent_seconds=silent,
        returned=begin + silent + float(rng.uniform(60, 1200)),
        reason=DRAIN_REASONS[int(rng.integers(len(DRAIN_REASONS)))],
    )


def _warm_some_nodes(rng: Generator, cluster: Cluster) -> None:
    """Give a few nodes a dusty filter: one to three kelvin warmer at load, far from any limit."""
    canvas, fleet = cluster.canvas, cluster.fleet
    for node in range(fleet.node_count):
        if rng.random() < 0.03:
            warmer = float(rng.uniform(1.02, 1.08))
            canvas.paint("gpus/heat_resistance", fleet.gpu_slice(node), (0, cluster.seconds), Brush.SCALE, warmer)
            canvas.paint("nodes/fan_revolutions_per_minute", node, (0, cluster.seconds), Brush.SCALE, 2 - warmer)
