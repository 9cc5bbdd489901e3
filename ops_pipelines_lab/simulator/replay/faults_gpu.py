"""Faults of GPUs, their memory, NVLink and NVSwitches.

Expressions follow the driver's table, Delta's study (propagation of 74 to the same GPU .66 and a neighbour .14; GSP
timeouts leave the GPU unusable in .99 of cases), dcgm-exporter issue 348 (a fallen GPU's series end, with or without
an Xid), NVSentinel 1748 (Xid 45 on every rank). Parts of each are missing at random, as in the field.
"""

from ops_pipelines_lab.simulator.replay import texts
from ops_pipelines_lab.simulator.replay.day import GPUS_PER_NODE, Brush, FaultClass
from ops_pipelines_lab.simulator.replay.injection import Injector, RepairTimes
from ops_pipelines_lab.simulator.replay.jobs import NEVER, Attempt

_ECC_ERROR = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
_NVLINK_ERROR = "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"
_UNKNOWN_ERROR = "RuntimeError: CUDA error: unspecified launch failure"


def _close(
    injector: Injector,
    fault: FaultClass,
    gpu: int,
    attempt: Attempt | None,
    *,
    says: str | None,
    waits: bool | None = None,
    onset: float,
    times: RepairTimes,
) -> None:
    """Let the job die, and note the truth of one GPU's fault."""
    node = gpu // GPUS_PER_NODE
    over = None
    if attempt is not None:
        words = (says,) if says is not None and injector.rng.random() < 0.6 else ()
        over = injector.break_job(attempt, node, gpu=gpu, says=words, waits=waits)
    injector.tell(
        fault,
        onset=onset,
        end=times.returned,
        culprit=injector.fleet.gpu_component(gpu),
        own=(node,),
        affected=() if attempt is None else attempt.nodes,
        jobs=() if attempt is None else (attempt.job,),
        victims_until=over,
    )


def _target(injector: Injector) -> tuple[int, int, Attempt | None] | None:
    picked = injector.pick_node()
    if picked is None:
        return None
    node, attempt = picked
    return injector.gpu_of(node, attempt), node, attempt


def gpu_off_bus(injector: Injector) -> bool:
    """Xid 79, often with PCIe errors before and the wish for a reboot after; its series end."""
    target = _target(injector)
    if target is None:
        return False
    gpu, node, attempt = target
    rng, scribe, now, pci = injector.rng, injector.scribe, injector.now, injector.fleet.address(gpu)
    if rng.random() < 0.4:
        scribe.kernel(node, now - 0.4, texts.uncorrected_pcie(pci))
    scribe.kernel_event(node, now, texts.off_bus(rng, pci))
    if rng.random() < 0.6:
        scribe.kernel_event(node, now + float(rng.uniform(0, 3)), texts.recovery(pci, 2), lost=0.1)
    times = injector.repair(node)
    injector.canvas.hide("gpus", gpu, (now + float(rng.uniform(0, 12)), min(times.back, NEVER)))
    _close(injector, FaultClass.GPU_OFF_BUS, gpu, attempt, says=_UNKNOWN_ERROR, onset=now, times=times)
    return True


def gpu_vanished(injector: Injector) -> bool:
    """The series of one GPU end and no kernel line shows it."""
    target = _target(injector)
    if target is None:
        return False
    gpu, node, attempt = target
    times = injector.repair(node)
    injector.canvas.hide("gpus", gpu, (injector.now, times.back))
    _close(injector, FaultClass.GPU_VANISHED, gpu, attempt, says=_UNKNOWN_ERROR, onset=injector.now, times=times)
    return True


def memory_uncorrectable(injector: Injector) -> bool:
    """Xid 48 or 95, a row to be remapped at the next reset; the count of uncorrectable errors, the driver's wish."""
    target = _target(injector)
    if target is None:
        return False
    gpu, node, attempt = target
    rng, scribe, canvas, now = injector.rng, injector.scribe, injector.canvas, injector.now
    pci = injector.fleet.address(gpu)
    is_uncontained = rng.random() < 0.2
    scribe.kernel_event(node, now, texts.uncontained(rng, pci) if is_uncontained else texts.double_bit(rng, pci))
    remaps = rng.random() < 0.85
    if remaps:
        fails = rng.random() < 0.1
        text = texts.row_remap_failed(rng, pci) if fails else texts.row_remap(rng, pci)
        scribe.kernel_event(node, now + float(rng.uniform(0, 2)), text, lost=0.1)
        canvas.grow("gpus/row_remap_uncorrectable_count", gpu, now + 5)
        canvas.paint(
            "gpus/row_remap_failed" if fails else "gpus/row_remap_pending", gpu, (now + 5, NEVER), Brush.SET, 1.0
        )
    if rng.random() < 0.9:
        canvas.grow(
            "gpus/ecc_uncorrectable_volatile_count", gpu, now + float(rng.uniform(0, 10)), float(rng.integers(1, 4))
        )
    if rng.random() < 0.6:
        scribe.kernel_event(node, now + float(rng.uniform(0, 4)), texts.recovery(pci, 1), lost=0.1)
        canvas.paint("gpus/recovery_action", gpu, (now + 5, NEVER), Brush.SET, 1.0)
    injector.show_xid(gpu, 95 if is_uncontained else 48, now)
    times = injector.repair(node)
    _close(
        injector, FaultClass.MEMORY_UNCORRECTABLE, gpu, attempt, says=_ECC_ERROR, waits=False, onset=now, times=times
    )
    return True


def memory_contained(injector: Injector) -> bool:
    """Xid 94: one process dies, the GPU works on until its next reset remaps the row."""
    target = _target(injector)
    if target is None:
        return False
    gpu, node, attempt = target
    rng, scribe, canvas, now = injector.rng, injector.scribe, injector.canvas, injector.now
    pci = injector.fleet.address(gpu)
    scribe.kernel_event(node, now, texts.contained(rng, pci))
    if rng.random() < 0.8:
        scribe.kernel_event(node, now - float(rng.uniform(0, 0.5)), texts.row_remap(rng, pci), lost=0.1)
        canvas.grow("gpus/row_remap_uncorrectable_count", gpu, now + 5)
        canvas.paint("gpus/row_remap_pending", gpu, (now + 5, NEVER), Brush.SET, 1.0)
    if rng.random() < 0.8:
        canvas.grow("gpus/ecc_uncorrectable_volatile_count", gpu, now + 5)
    injector.show_xid(gpu, 94, now)
    times = injector.repair(node)
    _close(injector, FaultClass.MEMORY_CONTAINED, gpu, attempt, says=_ECC_ERROR, waits=False, onset=now, times=times)
    return True


def gsp_timeout(injector: Injector) -> bool:
    """Xid 119 again and again, sometimes 120; in half the cases the GPU's sensors stand still or end."""
    target = _target(injector)
    if target is None:
        return False
    gpu, node, attempt = target
    rng, scribe, canvas, now = injector.rng, injector.scribe, injector.canvas, injector.now
    pci = injector.fleet.address(gpu)
    scribe.kernel_event(node, now, texts.gsp_timeout(rng, pci, gpu=gpu % 8))
    if rng.random() < 0.2:
        scribe.kernel_event(node, now + 1, texts.gsp_error(rng, pci))
    for repeat in range(int(rng.integers(0, 9))):
        scribe.kernel(
            node, now + 6.5 * (repeat + 1) + float(rng.uniform(0, 3)), texts.gsp_timeout(rng, pci, gpu=gpu % 8)
        )
    times = injector.repair(node)
    if rng.random() < 0.5:
        canvas.hide("gpus", gpu, (now + float(rng.uniform(5, 45)), times.back))
    else:
        injector.show_xid(gpu, 119, now)
    if rng.random() < 0.4:
        scribe.kernel_event(node, now + float(rng.uniform(5, 30)), texts.recovery(pci, 2), lost=0.1)
        canvas.paint("gpus/recovery_action", gpu, (now + 30, NEVER), Brush.SET, 2.0)
    _close(injector, FaultClass.GSP_TIMEOUT, gpu, attempt, says=_UNKNOWN_ERROR, onset=now, times=times)
    return True


def nvlink_fault(injector: Injector) -> bool:
    """Xid 74 with CRC errors on the link before; a neighbour may log it too, later."""
    target = _target(injector)
    if target is None:
        return False
    gpu, node, attempt = target
    rng, scribe, canvas, now = injector.rng, injector.scribe, injector.canvas, injector.now
    pci, link = injector.fleet.address(gpu), int(rng.integers(18))
    onset = now
    if rng.random() < 0.6:
        rate = float(rng.uniform(110, 2500))
        canvas.paint("gpus/nvlink_crc_flit_error_count", gpu, (now, now + float(rng.uniform(60, 600))), Brush.ADD, rate)
        canvas.grow("gpus/nvlink_replay_error_count", gpu, now + 15, float(rng.integers(1, 400)))
    if rng.random() < 0.6:
        canvas.grow("gpus/nvlink_recovery_error_count", gpu, now, float(rng.integers(1, 6)))
    for repeat in range(1 + int(rng.random() < 0.66) * int(rng.integers(1, 4))):
        text = texts.nvlink_fatal(rng, pci, link)
        if repeat == 0:
            scribe.kernel_event(node, now, text)
        else:
            scribe.kernel(node, now + repeat * float(rng.uniform(0.2, 20)), text)
    injector.show_xid(gpu, 74, now)
    if rng.random() < 0.14:
        peer = node * 8 + (gpu + 1 + int(rng.integers(7))) % 8
        scribe.kernel(
            node, now + float(rng.uniform(0.3, 5)), texts.nvlink_fatal(rng, injector.fleet.address(peer), link)
        )
        injector.show_xid(peer, 74, now)
    if rng.random() < 0.4:
        scribe.kernel_event(node, now + float(rng.uniform(0, 4)), texts.recovery(pci, 1), lost=0.1)
        canvas.paint("gpus/recovery_action", gpu, (now + 5, NEVER), Brush.SET, 1.0)
    times = injector.repair(node)
    _close(injector, FaultClass.NVLINK_FAULT, gpu, attempt, says=_NVLINK_ERROR, onset=onset, times=times)
    return True


def nvswitch_fault(injector: Injector) -> bool:
    """A fatal SXid on one baseboard; the job on it dies with Xid 45 on all its ranks, wherever they are."""
    attempt = injector.pick_attempt(is_stepping=False, lasts=5400)
    if attempt is None:
        return False
    rng, scribe, canvas, now = injector.rng, injector.scribe, injector.canvas, injector.now
    node = int(rng.choice(attempt.nodes))
    switch, code = int(rng.integers(4)), int(rng.choice([20034, 19084, 14017, 24007], p=[0.55, 0.15, 0.15, 0.15]))
    link = int(rng.integers(64))
    scribe.kernel_event(node, now, texts.switch_error(switch, code, link))
    for _ in range(int(rng.integers(0, 6))):
        scribe.kernel(node, now + float(rng.exponential(3)), texts.switch_error(switch, code, int(rng.integers(64))))
    told = rng.random()
    for slot in range(8):
        gpu = node * 8 + slot
        if rng.random() < told:
            scribe.kernel(
                node,
                now + float(rng.exponential(1)),
                texts.nvlink_fatal(rng, injector.fleet.address(slot), int(rng.integers(18))),
            )
            injector.show_xid(gpu, 74, now, share=0.7)
        if rng.random() < 0.5:
            canvas.grow("gpus/nvlink_recovery_error_count", gpu, now + 5, float(rng.integers(1, 4)))
    times = injector.repair(node)
    over = injector.break_job(attempt, node, says=(_NVLINK_ERROR,) if rng.random() < 0.5 else (), waits=False)
    # Every rank, at nearly the same moment: the storm that hides its own cause.
    injector.cluster.at(over - 0.01, lambda: injector.cluster.write_teardown(attempt, share=1.0))
    injector.tell(
        FaultClass.NVSWITCH_FAULT,
        onset=now,
        end=times.returned,
        culprit=injector.fleet.node_component(node),
        own=(node,),
        affected=attempt.nodes,
        jobs=(attempt.job,),
        victims_until=over,
    )
    return True
