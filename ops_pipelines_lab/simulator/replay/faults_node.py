"""Faults of one node's host, its fans, PCIe links, NICs and disks.

Shapes: RSC's table of what lemon nodes had (GPU 28 %, DIMM 21 %, PCIe 15 %, NIC 8 %, PSU 5 %, optics 3 %), NVSentinel's
and gpud's link limits (a flap is a drop of 25 s and more; 120 symbol errors an hour), NVMe's own warnings.
"""

import numpy as np

from ops_pipelines.core.fault import Component
from ops_pipelines.core.observation import JobState
from ops_pipelines_lab.simulator.replay import texts
from ops_pipelines_lab.simulator.replay.day import Brush, FaultClass
from ops_pipelines_lab.simulator.replay.injection import Injector, RepairTimes
from ops_pipelines_lab.simulator.replay.jobs import Attempt


def host_memory(injector: Injector) -> bool:
    """An uncorrected error that kills a process, or corrected ones without end on one DIMM."""
    picked = injector.pick_node()
    if picked is None:
        return False
    node, attempt = picked
    rng, scribe, canvas, now = injector.rng, injector.scribe, injector.canvas, injector.now
    dimm = int(rng.integers(16))
    is_uncorrected = rng.random() < 0.6
    over = None
    times = injector.repair(node)
    if is_uncorrected:
        for index, text in enumerate(texts.uncorrected_memory(rng, dimm)):
            scribe.kernel_event(node, now + 0.2 * index, text, lost=0.2 if index != 1 else 0.0)
        if rng.random() < 0.85:
            canvas.grow("nodes/edac_uncorrectable_count", node, now)
        if attempt is not None:
            rank = attempt.nodes.index(node) * 8
            says = (texts.task_killed(injector.fleet.names[node], rank, "Bus error (core dumped)"),)
            over = injector.break_job(attempt, node, says=says, waits=False)
    else:
        # A storm: from some a minute to thousands; the kernel logs few of them and says so.
        rate = float(10 ** rng.uniform(-0.6, 1.8))
        canvas.paint("nodes/edac_correctable_count", node, (now, times.rebooted), Brush.ADD, rate)
        time = now + float(rng.uniform(0, 10))
        while time < min(times.rebooted, now + 1800):
            scribe.kernel(node, time, texts.corrected_memory(rng, int(max(1, rate * 5)), dimm))
            time += float(rng.uniform(5, 90))
    injector.tell(
        FaultClass.HOST_MEMORY,
        onset=now,
        end=times.returned,
        culprit=injector.fleet.node_component(node),
        own=(node,),
        affected=() if attempt is None or over is None else attempt.nodes,
        jobs=() if attempt is None or over is None else (attempt.job,),
        victims_until=over,
    )
    return True


def node_down(injector: Injector) -> bool:
    """A node falls silent: panic, power supply, or wedged. Its series end, and Slurm hears nothing of it."""
    picked = injector.pick_node(idle_share=0.2)
    if picked is None:
        return False
    node, attempt = picked
    rng, scribe, now = injector.rng, injector.scribe, injector.now
    last_words, onset = rng.random(), now
    if last_words < 0.15:
        onset = now - 0.5  # its last words are the first that shows it
        scribe.kernel(node, onset, "Kernel panic - not syncing: Fatal exception in interrupt")
    elif last_words < 0.3:
        onset = now - 2
        scribe.kernel(
            node,
            onset,
            f"watchdog: BUG: soft lockup - CPU#{rng.integers(112)} stuck for 26s! [kworker:{rng.integers(9999)}]",
        )
    back = now + float(rng.uniform(900, 3600))
    returned = back + float(rng.uniform(120, 900))
    over = None
    if attempt is not None:
        over = injector.break_job(
            attempt,
            node,
            waits=bool(rng.random() < 0.5),
            state=JobState.NODE_FAIL,
            idle_gpus=(),
            blames_peer_ports=True,
        )
    injector.cluster.go_silent(node, now, back)
    injector.cluster.lives[node].keep_free = True
    injector.cluster.at(now + float(rng.uniform(2, 100)), lambda: injector.cluster.lose(node))
    injector.cluster.at(returned, lambda: injector.cluster.back(node))
    injector.tell(
        FaultClass.NODE_DOWN,
        onset=onset,
        end=returned,
        culprit=injector.fleet.node_component(node),
        own=(node,),
        affected=() if attempt is None else attempt.nodes,
        jobs=() if attempt is None else (attempt.job,),
        victims_until=over,
    )
    return True


def _slow_until_repair(
    injector: Injector, attempt: Attempt | None, node: int, factor: float, soon: tuple[float, float]
) -> RepairTimes:
    """Let the job of a node continue slowly until people take the node out; return when."""
    rng = injector.rng
    times = injector.repair(node, soon=float(rng.uniform(*soon)))
    if attempt is not None:
        injector.slow(attempt, injector.now, times.rebooted, factor)
        injector.cluster.at(times.rebooted - 1, lambda: _requeue(injector, attempt))
    return times


def _requeue(injector: Injector, attempt: Attempt) -> None:
    """Let people cancel the job before they reboot its node, and submit it again."""
    if attempt.ended is None:
        injector.cluster.write_end(attempt, JobState.CANCELLED)
        injector.cluster.end(attempt, JobState.CANCELLED)
        injector.cluster.restart(attempt, after=float(injector.rng.uniform(60, 600)))


def _tell_part(
    injector: Injector, fault: FaultClass, culprit: Component, node: int, attempt: Attempt | None, end: float
) -> None:
    injector.tell(
        fault,
        onset=injector.now,
        end=end,
        culprit=culprit,
        own=(node,),
        affected=() if attempt is None else attempt.nodes,
        jobs=() if attempt is None else (attempt.job,),
    )


def fan_failure(injector: Injector) -> bool:
    """A fan of one node stops: its GPUs warm up within minutes and slow themselves, its neighbours do not."""
    attempt = injector.pick_attempt(is_stepping=False, lasts=7200)
    if attempt is None:
        return False
    rng, scribe, canvas, fleet, now = injector.rng, injector.scribe, injector.canvas, injector.fleet, injector.now
    node = int(rng.choice(attempt.nodes))
    worst = float(rng.uniform(1.55, 2.2))
    times = injector.repair(node, soon=float(rng.uniform(900, 4800)))
    end = times.rebooted
    rise = float(rng.uniform(60, 420))
    rows = canvas.row_count_of((now, end))
    if rows:
        climb = 1 + (worst - 1) * (1 - np.exp(-np.arange(rows) * canvas.step_seconds / rise))
        # Fans cool rows of GPUs: some of the eight feel it less.
        shares = rng.uniform(0.45, 1.0, 8)
        shares[rng.integers(8)] = 1.0
        canvas.paint(
            "gpus/heat_resistance", fleet.gpu_slice(node), (now, end), Brush.SCALE, 1 + (climb[:, None] - 1) * shares
        )
    kept = float(rng.uniform(0.0, 0.55))
    if rng.random() < 0.8:
        canvas.paint("nodes/fan_revolutions_per_minute", node, (now, end), Brush.SCALE, kept)
    slows_at = now + rise * 1.3
    if worst > 1.75:
        injector.slow(attempt, slows_at, end, float(rng.uniform(0.6, 0.93)))
    for _ in range(int(rng.integers(0, 6))):
        scribe.kernel(node, slows_at + float(rng.exponential(300)), texts.cpu_throttled(rng))
        canvas.grow("nodes/cpu_package_throttle_count", node, slows_at, float(rng.integers(1, 30)))
    if rng.random() < 0.4:
        text = "ERROR [1514002:1514004] [[Health]] Detected a WARNING in health system Thermal: 'Detected clocks event "
        scribe.kernel(
            node, slows_at + 30, f"{text}due to thermal violation in GPU {rng.integers(8)}.'", tag="nv-hostengine[1514]"
        )
    _tell_part(injector, FaultClass.FAN_FAILURE, fleet.node_component(node), node, attempt, times.returned)
    return True


def pcie_degraded(injector: Injector) -> bool:
    """A GPU's link trains down to fewer lanes or an older generation, with replays and AER lines, or without."""
    attempt = injector.pick_attempt(is_stepping=False, lasts=7200)
    if attempt is None:
        return False
    rng, scribe, canvas, fleet, now = injector.rng, injector.scribe, injector.canvas, injector.fleet, injector.now
    node = int(rng.choice(attempt.nodes))
    gpu = injector.gpu_of(node, attempt)
    pci = fleet.address(gpu)
    # Its job is slow, which the repair ends; the link itself is narrow until the node was put right.
    times = _slow_until_repair(injector, attempt, node, float(rng.uniform(0.55, 0.97)), (900, 5400))
    end = times.rebooted
    if rng.random() < 0.75:
        canvas.paint(
            "gpus/pcie_link_width", gpu, (now, end), Brush.SET, float(rng.choice([8, 4, 1], p=[0.6, 0.3, 0.1]))
        )
    else:
        canvas.paint("gpus/pcie_link_generation", gpu, (now, end), Brush.SET, float(rng.choice([1, 3, 4])))
    canvas.paint("gpus/pcie_receive_bytes_per_second", gpu, (now, end), Brush.SCALE, float(rng.uniform(0.25, 0.6)))
    if rng.random() < 0.7:
        canvas.paint("gpus/pcie_replay_count", gpu, (now, end), Brush.ADD, float(10 ** rng.uniform(-0.6, 1.5)))
    if rng.random() < 0.6:
        for _ in range(int(rng.integers(1, 25))):
            scribe.kernel(node, now + float(rng.exponential(500)), texts.corrected_pcie(rng, pci))
    _tell_part(injector, FaultClass.PCIE_DEGRADED, fleet.gpu_component(gpu), node, attempt, times.returned)
    return True


def nic_errors(injector: Injector) -> bool:
    """A port's bits flip: symbol errors far above the limit, packets sent again, a job that slows."""
    attempt = injector.pick_attempt(min_nodes=2, is_stepping=False, lasts=7200)
    if attempt is None:
        return False
    rng, scribe, canvas, fleet, now = injector.rng, injector.scribe, injector.canvas, injector.fleet, injector.now
    node = int(rng.choice(attempt.nodes))
    port = fleet.port_slice(node).start + int(rng.integers(8))
    times = _slow_until_repair(injector, attempt, node, float(rng.uniform(0.7, 0.99)), (900, 5400))
    end = times.rebooted
    rate = float(10 ** rng.uniform(-0.7, 2.5))  # 12 a minute to 300 a second
    canvas.paint("ports/symbol_error_count", port, (now, end), Brush.ADD, rate)
    for column, share, part in (
        ("receive_error_count", 0.7, 0.3), ("local_integrity_error_count", 0.3, 0.02),
        ("packet_sequence_error_count", 0.5, 0.1), ("link_error_recovery_count", 0.3, 0.003),
        ("ack_timeout_count", 0.3, 0.01),
    ):  # fmt: skip
        if rng.random() < share:
            canvas.paint(f"ports/{column}", port, (now, end), Brush.ADD, rate * part)
    name = fleet.names[node]
    if rng.random() < 0.4:
        scribe.kernel(
            node, now + float(rng.uniform(5, 300)),
            f"mlx5_core {texts.nic_address(port % 8)}: "
            f"mlx5_port_module_event:1131:(pid 0): Port module event[error]: module {port % 8}, Cable error, "
            f"{'High Temperature' if rng.random() < 0.4 else 'Bad or unsupported cable type'}",
        )  # fmt: skip
    if rng.random() < 0.35:
        for _ in range(int(rng.integers(1, 5))):
            scribe.job(
                attempt,
                now + float(rng.exponential(600)),
                texts.completion_error(rng, name, port % 8, node, 12),
                rank=attempt.nodes.index(node) * 8,
            )
    _tell_part(injector, FaultClass.NIC_ERRORS, fleet.port_component(port), node, attempt, times.returned)
    return True


def link_flaps(injector: Injector) -> bool:
    """A port goes down and comes back, again and again: optics or a cable. Half of the jobs die, the others stall."""
    attempt = injector.pick_attempt(min_nodes=2, is_stepping=False, lasts=5400)
    if attempt is None:
        return False
    rng, scribe, canvas, fleet, now = injector.rng, injector.scribe, injector.canvas, injector.fleet, injector.now
    node = int(rng.choice(attempt.nodes))
    port = fleet.port_slice(node).start + int(rng.integers(8))
    kills = rng.random() < 0.5
    count = int(rng.integers(3, 11))
    time, downs = now, []
    for _ in range(count):
        length = float(rng.uniform(3, 90))
        downs.append((time, time + length))
        time += length + float(rng.uniform(30, 420))
    times = injector.repair(node, soon=float(rng.uniform(max(300.0, downs[2][1] - now), max(600.0, time - now))))
    name = fleet.names[node]
    over = None
    for index, (began, ended) in enumerate(downs):
        if began >= times.rebooted:
            break
        canvas.paint("ports/link_state", port, (began, ended), Brush.SET, 1.0)
        canvas.paint("ports/physical_state", port, (began, ended), Brush.SET, 2.0)
        canvas.paint("ports/bytes", port, (began, ended), Brush.SET, 0.0)
        canvas.grow("ports/link_downed_count", port, began)
        if rng.random() < 0.5:
            canvas.grow("ports/link_error_recovery_count", port, began, float(rng.integers(1, 3)))
        scribe.kernel_event(node, began, texts.link_change(rng, port % 8, is_up=False), lost=0.15)
        scribe.kernel_event(node, ended, texts.link_change(rng, port % 8, is_up=True), lost=0.15)
        if rng.random() < 0.6 and not (kills and index):
            rank = attempt.nodes.index(node) * 8 + port % 8
            scribe.job(attempt, began + 1, texts.port_error(rng, name, port % 8, port % 8), rank=rank)
        if not kills and attempt.ended is None:
            # The transport waits for the port and continues; nobody makes a step meanwhile.
            injector.slow(attempt, began, ended, 0.05)
    if kills:
        over = injector.break_job(attempt, node, waits=bool(rng.random() < 0.4), blames_peer_ports=True, idle_gpus=())
    else:
        injector.cluster.at(times.rebooted - 1, lambda: _requeue(injector, attempt))
    injector.tell(
        FaultClass.LINK_FLAPS,
        onset=now,
        end=times.returned,
        culprit=fleet.port_component(port),
        own=(node,),
        affected=attempt.nodes,
        jobs=(attempt.job,),
        victims_until=over,
    )
    return True


def disk_failing(injector: Injector) -> bool:
    """A local NVMe disk gives up: timeouts, media errors, a critical warning, a file system gone read-only."""
    picked = injector.pick_node(idle_share=0.25)
    if picked is None:
        return False
    node, attempt = picked
    rng, scribe, canvas, fleet, now = injector.rng, injector.scribe, injector.canvas, injector.fleet, injector.now
    disk = fleet.disk_slice(node).start + int(rng.integers(2))
    which = disk % 2
    times = injector.repair(node, soon=float(rng.uniform(300, 4800)))
    span = (now, times.rebooted)
    shows = [bool(rng.random() < share) for share in (0.7, 0.6, 0.7)]
    if not any(shows):
        shows[int(rng.integers(3))] = True
    if shows[0]:
        canvas.paint("disks/media_error_count", disk, span, Brush.ADD, float(10 ** rng.uniform(-2, 0.3)))
        canvas.grow("disks/media_error_count", disk, now, float(rng.integers(1, 40)))
        canvas.grow("disks/error_log_count", disk, now, float(rng.integers(1, 90)))
    if shows[1]:
        canvas.paint("disks/critical_warning", disk, span, Brush.SET, float(rng.choice([1, 4, 8, 5])))
        if rng.random() < 0.4:
            canvas.paint("disks/spare_ratio", disk, span, Brush.SET, float(rng.uniform(0, 0.09)))
        if rng.random() < 0.4:
            canvas.paint("disks/healthy", disk, span, Brush.SET, 0.0)
    over = None
    if shows[2]:
        for _ in range(int(rng.integers(1, 8))):
            at = now + float(rng.exponential(120))
            scribe.kernel_event(
                node, at, f"nvme nvme{which}: I/O {rng.integers(1024)} QID {rng.integers(1, 64)} timeout, aborting"
            )
        if rng.random() < 0.4:
            scribe.kernel_event(
                node,
                now + float(rng.uniform(30, 200)),
                f"blk_update_request: critical medium error, dev nvme{which}n1, sector {rng.integers(2**31)} op 0x0",
            )
        if rng.random() < 0.35:
            scribe.kernel_event(
                node,
                now + float(rng.uniform(30, 300)),
                f"EXT4-fs error (device nvme{which}n1p2): ext4_journal_check_start:83: Detected aborted journal",
            )
            canvas.paint("nodes/filesystem_read_only", node, span, Brush.SET, 1.0)
            if attempt is not None:
                says = ("OSError: [Errno 30] Read-only file system: '/scratch/cache/index.bin'",)
                over = injector.break_job(attempt, node, says=says, waits=False)
    injector.tell(
        FaultClass.DISK_FAILING,
        onset=now,
        end=times.returned,
        culprit=fleet.disk_component(disk),
        own=(node,),
        affected=() if over is None or attempt is None else attempt.nodes,
        jobs=() if over is None or attempt is None else (attempt.job,),
        victims_until=over,
    )
    return True
