"""Which fault comes when: classes in turn, wide ones in hours of their own, the others anywhere.

How each class shows itself is in `faults_gpu`, `faults_node`, `faults_shared` and `faults_job`.
"""

from collections.abc import Callable, Mapping, Sequence

from ops_pipelines_lab.simulator.replay import faults_gpu, faults_job, faults_node, faults_shared
from ops_pipelines_lab.simulator.replay.day import FaultClass
from ops_pipelines_lab.simulator.replay.injection import APART_SECONDS, Injector, Window

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
    """Give each wide fault a stretch of the day in which its area is kept clear of others."""
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
