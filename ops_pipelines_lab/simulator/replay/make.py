"""Makes a recorded day: a fleet, a day of work, what only looks like a fault, faults, and what the sensors showed.

The same seed gives the same day. Nothing here is tuned to what detectors can see. Faults come class by class in turn,
wide ones in hours of their own, the others anywhere; how each shows itself is in `faults_gpu`, `faults_node`,
`faults_shared` and `faults_job`.

Jobs that are well write sparse texts: start, steps now and then, checkpoints, evaluations. How many lines they write is
in `job_columns`; only some of them are kept as text, as log stores sample them. A job writes nothing while it is stuck,
and in a pause only where that pause logs.

What looks like a fault and is none: restarts of exporters, counters set to zero, planned drains, single lines. Rates
are assumptions: frequent enough that every kind occurs several times a day in 256 nodes, as operators of such fleets
report (dcgm-exporter issues 348, 190, 500; NVSentinel 1280). Pauses of jobs are `jobs`'; ends of jobs, with their Xid
45 and 43, belong to `cluster`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
from numpy.random import Generator

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import JobState, JobStatus, NodeStatus
from ops_pipelines_lab.simulator.replay import faults_gpu, faults_job, faults_node, faults_shared, texts
from ops_pipelines_lab.simulator.replay.cluster import Cluster
from ops_pipelines_lab.simulator.replay.day import (
    GPUS_PER_NODE,
    PORTS_PER_NODE,
    Brush,
    Canvas,
    Day,
    FaultClass,
    Pause,
    PauseKind,
    build_fleet,
)
from ops_pipelines_lab.simulator.replay.injection import APART_SECONDS, Injector, Window
from ops_pipelines_lab.simulator.replay.jobs import Attempt, line_times
from ops_pipelines_lab.simulator.replay.render import Rendering
from ops_pipelines_lab.simulator.replay.texts import Scribe

_MEAN_SECONDS = 900.0
_PAUSE_TEXTS = {
    PauseKind.CHECKPOINT: "saving checkpoint shard {n} of 128 to /checkpoints/run-{m}",
    PauseKind.EVALUATION: "evaluation batch {n}: accuracy 0.{m}",
    PauseKind.DATA_LOADING: "loading shard {n} of epoch {m}",
    PauseKind.WARM_UP: "building process groups: {n} of {m} done",
    PauseKind.COMPILATION: "torch._inductor: compiled graph {n} in {m} ms",
}


def write_job_lines(rng: Generator, cluster: Cluster) -> None:
    """Write the ordinary lines of all attempts."""
    for attempt in cluster.attempts:
        if not attempt.program.style.logs:
            continue
        if attempt.is_training:
            _write_steps(rng, cluster, attempt)
        for rest in attempt.rests:
            if "log" in rest.signals:
                for number, at in enumerate(line_times(rng, rest)):
                    if at < attempt.end and rng.random() < 0.25:
                        text = _PAUSE_TEXTS[rest.kind].format(n=number + 1, m=int(rng.integers(100, 999)))
                        cluster.scribe.job(attempt, at, text)


def _write_steps(rng: Generator, cluster: Cluster, attempt: Attempt) -> None:
    style = attempt.program.style
    time = max(attempt.first_step + style.step_seconds, 0.0)
    stops = [(rest.began, rest.ended) for rest in attempt.rests]
    stops += [(freeze.began, freeze.ended) for freeze in attempt.freezes]
    while time < min(attempt.end, cluster.seconds):
        if not any(began <= time < ended for began, ended in stops):
            step = int((time - attempt.first_step) / style.step_seconds)
            loss = 1.7 + 3 / (1 + step / 900) + float(rng.normal(0, 0.01))
            broken = next((how for began, how in attempt.loss_breaks if time >= began), None)
            told = "nan" if broken == "nan" else f"{loss * (3.5 if broken else 1):.6E}"
            took = style.step_seconds * 1000
            cluster.scribe.job(
                attempt,
                time,
                f" iteration {step:8d}/  500000 | consumed samples: {step * 2048:12d} | elapsed time per iteration "
                f"(ms): {took:.1f} | learning rate: 6.000E-05 | global batch size:  2048 | lm loss: {told} | grad "
                f"norm: {'nan' if broken == 'nan' else f'{rng.uniform(0.1, 1.5):.3f}'} |",
            )
        time += float(rng.exponential(_MEAN_SECONDS)) + style.step_seconds


Inject = Callable[[Injector], bool]
"""Puts one fault into the cluster now; False if there is no fitting target."""
NARROW: Mapping[FaultClass, Inject] = {
    FaultClass.GPU_OFF_BUS: faults_gpu.gpu_off_bus,
    FaultClass.GPU_VANISHED: faults_gpu.gpu_vanished,
    FaultClass.MEMORY_UNCORRECTABLE: faults_gpu.memory_uncorrectable,
    FaultClass.MEMORY_CONTAINED: faults_gpu.memory_contained,
    FaultClass.GSP_TIMEOUT: faults_gpu.gsp_timeout,
    FaultClass.NVLINK_FAULT: faults_gpu.nvlink_fault,
    FaultClass.NVSWITCH_FAULT: faults_gpu.nvswitch_fault,
    FaultClass.HOST_MEMORY: faults_node.host_memory,
    FaultClass.NODE_DOWN: faults_node.node_down,
    FaultClass.NIC_ERRORS: faults_node.nic_errors,
    FaultClass.LINK_FLAPS: faults_node.link_flaps,
    FaultClass.PCIE_DEGRADED: faults_node.pcie_degraded,
    FaultClass.FAN_FAILURE: faults_node.fan_failure,
    FaultClass.DISK_FAILING: faults_node.disk_failing,
    FaultClass.SLOW_GPU: faults_job.slow_gpu,
    FaultClass.HANG_ONE_RANK: faults_job.hang_one_rank,
    FaultClass.HANG_OF_PROGRAM: faults_job.hang_of_program,
    FaultClass.APPLICATION_CRASHES: faults_job.application_crashes,
    FaultClass.NODE_FAILS_JOBS: faults_job.node_fails_jobs,
    FaultClass.LOSS_DIVERGES: faults_job.loss_diverges,
}
WIDE: Mapping[FaultClass, Callable[[Injector, Window], bool]] = {
    FaultClass.LEAF_SWITCH: faults_shared.leaf_switch,
    FaultClass.POWER_FEED: faults_shared.power_feed,
    FaultClass.COOLING: faults_shared.cooling,
    FaultClass.SHARED_STORAGE: faults_shared.shared_storage,
}
_PATIENCE_SECONDS = 2400.0
"""How long a wide fault waits for its area to be clear of others before it is given up."""
_RETRY_SECONDS = 150.0
_PLACINGS = 400
"""How often a time is drawn for a wide fault before the day counts as full."""
_SLOW_TO_SHOW = frozenset({FaultClass.NODE_FAILS_JOBS, FaultClass.APPLICATION_CRASHES})


def plan_faults(injector: Injector, classes: Sequence[FaultClass], count: int) -> None:
    """Tell the cluster when to break what: each class as often as any other, at most once more."""
    rng, seconds = injector.rng, injector.cluster.seconds
    wanted: list[FaultClass] = []
    while len(wanted) < count:
        turn = [classes[int(index)] for index in rng.permutation(len(classes))]
        wanted.extend(turn[: count - len(wanted)])
    last = seconds - min(1800.0, 0.25 * seconds)
    _plan_wide(injector, [fault for fault in wanted if fault in WIDE], last)
    for fault in wanted:
        if fault in NARROW:
            # What takes hours to be seen must begin early enough; the rest begins anywhere.
            end = min(last, max(seconds - 4 * 3600, 0.3 * seconds)) if fault in _SLOW_TO_SHOW else last
            at = float(rng.uniform(min(300.0, 0.05 * seconds), end))
            injector.cluster.at(at, lambda fault=fault, end=end: _try(injector, fault, end))  # type: ignore[misc]  # mypy cannot infer a lambda with a default


def _plan_wide(injector: Injector, faults: Sequence[FaultClass], last: float) -> None:
    """Give each wide fault an interval of the day in which its area is kept clear of others."""
    rng = injector.rng
    length = _PATIENCE_SECONDS + faults_shared.LONGEST_SECONDS
    for fault in faults:
        _, nodes = faults_shared.area_of(rng, fault, injector.fleet.node_count)
        for attempt in range(_PLACINGS):
            began = float(rng.uniform(min(300.0, 0.05 * last), last))
            # First apart from all others; where the day is too full for that, from those on the same nodes.
            others = [each for each in injector.windows if attempt < _PLACINGS / 2 or each.nodes & nodes]
            apart = length + APART_SECONDS
            if all(abs(each.began - began) >= apart for each in others):
                break
        else:
            continue
        window = Window(nodes, began, began + length)
        injector.windows.append(window)
        injector.cluster.at(began, lambda fault=fault, window=window: _try_wide(injector, fault, window))  # type: ignore[misc]  # mypy cannot infer a lambda with a default


def _try_wide(injector: Injector, fault: FaultClass, window: Window) -> None:
    if WIDE[fault](injector, window):
        return
    later = injector.now + _RETRY_SECONDS
    if later < window.began + _PATIENCE_SECONDS:
        injector.cluster.at(later, lambda: _try_wide(injector, fault, window))


def _try(injector: Injector, fault: FaultClass, last: float) -> None:
    """Break it now, or try again a little later."""
    if NARROW[fault](injector):
        return
    later = injector.now + float(injector.rng.uniform(60, 900))
    if later < last:
        injector.cluster.at(later, lambda: _try(injector, fault, last))


DRAIN_REASONS = (
    "kernel 6.8.0-62 rollout", "BIOS update", "ticket 48121 cable relabel", "reserved for acceptance test",
    "firmware NIC 28.41", "driver upgrade window",
)  # fmt: skip


def add_negatives(rng: Generator, cluster: Cluster) -> None:
    """Put a day's harmless events into a cluster, before it runs. Planned drains are given to it as events."""
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
            # The exporter's own sums begin again; what the driver counts continues.
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
    """Set counters of a node to zero: somebody ran `perfquery -R`, a field group was created again."""
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
        # Written when its time comes: by then the node may have booted again.
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
    """Write a program's own Xid where a notebook or a batch job runs: it continues, with a new kernel."""
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


_FIRST_DAY = datetime(2026, 1, 5, tzinfo=UTC)
_LISTED_SECONDS = 600.0
_MIN_PAUSE_SECONDS = 20.0
_FIELD_STRENGTH = 40 / (256 * 24)


def make_day(
    seed: int,
    *,
    node_count: int = 256,
    hours: float = 24,
    fault_count: int | None = 40,
    classes: Sequence[FaultClass] | None = None,
    step_seconds: int = 15,
) -> Day:
    """Return one day with at most `fault_count` faults, spread evenly over `classes` (None: all).

    None as `fault_count` gives 40 a day in 256 nodes, in proportion where the day is shorter or the cluster smaller.
    A fault that finds no fitting target, with no other fault on its nodes and jobs within an hour, is left out.
    """
    if node_count < 1 or hours <= 0 or step_seconds < 1:
        raise ValueError(f"a day of {node_count} nodes, {hours} hours, {step_seconds} s; all must be above 0")
    wanted = max(1, round(_FIELD_STRENGTH * node_count * hours)) if fault_count is None else fault_count
    chosen = tuple(FaultClass) if classes is None else tuple(classes)
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(6)]
    row_count = max(2, int(hours * 3600 / step_seconds))
    seconds = float(row_count * step_seconds)
    began_at = _FIRST_DAY + timedelta(days=seed % 300)
    fleet = build_fleet(streams[0], node_count=node_count)
    canvas = Canvas(row_count=row_count, step_seconds=step_seconds)
    scribe = Scribe(rng=streams[1], fleet=fleet, began_at=began_at, seconds=seconds)
    cluster = Cluster(rng=streams[2], fleet=fleet, canvas=canvas, scribe=scribe, seconds=seconds)
    injector = Injector(rng=streams[3], cluster=cluster)
    if chosen and wanted > 0:
        plan_faults(injector, chosen, wanted)
    add_negatives(streams[4], cluster)
    cluster.run()
    injector.close()
    write_job_lines(streams[1], cluster)
    times = int(began_at.timestamp()) + np.arange(row_count, dtype=np.int64) * step_seconds
    rendering = Rendering(rng=streams[5], fleet=fleet, canvas=canvas, cluster=cluster, times=times)
    panel = rendering.panel()
    end = began_at + timedelta(seconds=seconds)
    lines, arrivals = scribe.lines()
    return Day(
        seed=seed,
        topology=fleet.topology,
        panel=panel,
        lines=lines,
        arrivals=arrivals,
        truths=injector.told(),
        pauses=_pauses(cluster),
        repairs=tuple(
            sorted((each for each in cluster.repairs if each.returned_at <= end), key=lambda each: each.drained_at)
        ),
        jobs=_job_pictures(cluster),
        nodes=_node_pictures(cluster),
    )


def make_quiet_day(seed: int, *, node_count: int = 256, hours: float = 24, step_seconds: int = 15) -> Day:
    """Return one day without any fault."""
    return make_day(seed, node_count=node_count, hours=hours, fault_count=0, step_seconds=step_seconds)


def _pauses(cluster: Cluster) -> tuple[Pause, ...]:
    """Return the pauses that were within the day and long enough to be one; cut short by the end of their job."""
    found = []
    for attempt in cluster.attempts:
        for rest in attempt.rests:
            began, ended = rest.began, min(rest.ended, attempt.end)
            if began < 0 or ended > cluster.seconds or ended - began < _MIN_PAUSE_SECONDS:
                continue
            found.append(
                Pause(
                    kind=rest.kind,
                    job=attempt.job,
                    began_at=cluster.scribe.at(began),
                    ended_at=cluster.scribe.at(ended),
                    live_signals=frozenset(rest.signals),
                )
            )
    return tuple(sorted(found, key=lambda pause: (pause.began_at, pause.job)))


def _job_pictures(cluster: Cluster) -> tuple[tuple[datetime, tuple[JobStatus, ...]], ...]:
    """Return what the scheduler lists at each change: jobs that run, wait to run again, or ended lately."""
    listed: dict[JobId, tuple[JobStatus, float]] = {}
    pictures: list[tuple[datetime, tuple[JobStatus, ...]]] = []
    changes = cluster.job_changes
    for index, (at, status) in enumerate(changes):
        is_over = status.state not in (JobState.RUNNING, JobState.PENDING)
        listed[status.job] = (status, at + _LISTED_SECONDS if is_over else float("inf"))
        if index + 1 < len(changes) and changes[index + 1][0] == at:
            continue
        listed = {job: entry for job, entry in listed.items() if entry[1] > at}
        pictures.append((cluster.scribe.at(at), tuple(entry[0] for entry in listed.values())))
    return tuple(pictures)


def _node_pictures(cluster: Cluster) -> tuple[tuple[datetime, tuple[NodeStatus, ...]], ...]:
    current: dict[int, NodeStatus] = {}
    pictures: list[tuple[datetime, tuple[NodeStatus, ...]]] = []
    changes = cluster.node_changes
    for index, (at, node, status) in enumerate(changes):
        current[node] = status
        if index + 1 == len(changes) or changes[index + 1][0] != at:
            pictures.append((cluster.scribe.at(at), tuple(current[each] for each in sorted(current))))
    return tuple(pictures)
