"""What goes wrong by itself: faults of nature, bugs of programs and bad versions, what they do at once to machines and
jobs, and what stays broken behind what shows.

`Hardware` knows what shows now. A defect is a course of faults over repairs, boots and load: a repair that is too weak
lets the fault return, at once, after a time, or under load. When repairs happen is `world`'s, whether a fault can
happen now `commands`'. A bad version harms the nodes that run it as the scenario states, at the installation, the boot,
under load: a fold of seed and scenario, so the same node always has the same luck with a version. How a version comes
to run is `installs`'.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.identity import JobAttempt, NodeName
from ops_pipelines.core.release import Component
from ops_pipelines_lab.simulator.controller import Controller
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.hardware import Gpu, Hardware, Node, Process
from ops_pipelines_lab.simulator.jobs import Job
from ops_pipelines_lab.simulator.journal import Entry, FaultKind, InstallPart
from ops_pipelines_lab.simulator.scenario import Bug, Scenario
from ops_pipelines_lab.simulator.versions import ReleaseFault, ReleaseTrouble

USUAL_COURSES = {
    FaultKind.BOOT_HANGS: Course(cure=Cure.POWER_CYCLE),
    FaultKind.HIDDEN_DEFECT: Course(
        cure=Cure.REPLACEMENT, found_by=("dcgm_diag_r2", "dcgm_diag_r3", "dcgm_memtest", "nccl_loopback")
    ),
}
"""Of the faults that are defects even if nobody says so."""
HAVE_COURSES = frozenset(
    {
        FaultKind.GPU_FELL_OFF_BUS,
        FaultKind.UNCORRECTABLE_ECC,
        FaultKind.NODE_UNREACHABLE,
        FaultKind.BOOT_HANGS,
        FaultKind.HIDDEN_DEFECT,
        FaultKind.ROW_REMAP_WAITS,
    }
)
"""Faults of a node or of one of its GPUs; those of programs, links and networks end otherwise."""
_STOP_BOOTS = frozenset({FaultKind.BOOT_HANGS, FaultKind.NODE_UNREACHABLE})


@dataclass(slots=True, kw_only=True, eq=False)
class Defect:
    """One thing that is broken on a node until it is cured, whether it shows or not."""

    node: NodeName
    gpu: Gpu | None
    fault: FaultKind
    course: Course
    failed_check_count: int = 0
    is_asleep: bool = False
    """A weak repair has made it vanish for a while."""
    sleep_count: int = 0

    @property
    def sentence(self) -> str:
        """Return what is wrong, for people who look at the truth."""
        place = "" if self.gpu is None else f" of GPU {self.gpu.address}"
        shown = ", not shown at present" if self.is_asleep or self.fault is FaultKind.HIDDEN_DEFECT else ""
        return f"{self.fault.value}{place} until {self.course.cure.value}{shown}"


class Defects:
    """All defects of the cluster. `show` lets one show again; `later` arranges something for another time."""

    def __init__(
        self,
        *,
        show: Callable[[Defect, datetime], None],
        later: Callable[[datetime, Callable[[datetime], None]], None],
    ) -> None:
        self._show = show
        self._later = later
        self._of_node: dict[NodeName, list[Defect]] = {}

    def of(self, node: NodeName) -> tuple[Defect, ...]:
        """Return what is broken on a node, in the order of its beginning."""
        return tuple(self._of_node.get(node, ()))

    def begin(self, node: Node, gpu: Gpu | None, fault: FaultKind, course: Course) -> None:
        """Keep a defect from now on; that it shows is the caller's business."""
        self._of_node.setdefault(node.name, []).append(Defect(node=node.name, gpu=gpu, fault=fault, course=course))

    def stops_boot(self, node: Node, repair: Cure) -> bool:
        """Return whether a boot as part of this repair does not come up."""
        return any(
            defect.fault in _STOP_BOOTS
            and not repair.ends(defect.course.cure)
            and defect.course.returns_after_seconds is None
            and defect.course.returns_after_load_seconds is None
            for defect in self.of(node.name)
        )

    def repaired(self, node: Node, gpu: Gpu | None, repair: Cure, at: datetime) -> tuple[Defect, ...]:
        """Take note of a finished repair of the node (or of one GPU) that made everything vanish; return what it cured.

        What it was too weak for shows again, at once or when its course says.
        """
        touched = [each for each in self.of(node.name) if gpu is None or each.gpu is gpu]
        cured = tuple(each for each in touched if repair.ends(each.course.cure))
        self._of_node[node.name] = [each for each in self.of(node.name) if each not in cured]
        for defect in touched:
            if defect not in cured and defect.fault not in (FaultKind.BOOT_HANGS, FaultKind.HIDDEN_DEFECT):
                self._fall_asleep(defect, at)
        return cured

    def work_begins(self, node: Node, attempt: JobAttempt, at: datetime) -> None:
        """Arrange that what sleeps until there is load wakes up, if the job is still there by then."""
        for defect in self.of(node.name):
            seconds, sleep_count = defect.course.returns_after_load_seconds, defect.sleep_count
            if seconds is None or not defect.is_asleep or not _uses(node, attempt, defect.gpu):
                continue

            def wake(then: datetime, defect: Defect = defect, sleep_count: int = sleep_count) -> None:
                if _uses(node, attempt, defect.gpu):
                    self._wake(defect, sleep_count, then)

            self._later(at + timedelta(seconds=seconds), wake)

    def fail_check(self, defect: Defect) -> None:
        """Count one failed check; the last that its course allows ends the defect."""
        defect.failed_check_count += 1
        if defect.failed_check_count == defect.course.failing_check_count:
            self._of_node[defect.node].remove(defect)

    def _fall_asleep(self, defect: Defect, at: datetime) -> None:
        defect.is_asleep = True
        defect.sleep_count += 1
        course, sleep_count = defect.course, defect.sleep_count
        if course.returns_after_seconds is not None:
            returns_at = at + timedelta(seconds=course.returns_after_seconds)
            self._later(returns_at, lambda then: self._wake(defect, sleep_count, then))
        elif course.returns_after_load_seconds is None:
            self._wake(defect, sleep_count, at)

    def _wake(self, defect: Defect, sleep_count: int, at: datetime) -> None:
        # Another repair since then has started another sleep, or ended the defect.
        if defect.is_asleep and defect.sleep_count == sleep_count and defect in self.of(defect.node):
            defect.is_asleep = False
            self._show(defect, at)


def _uses(node: Node, attempt: JobAttempt, gpu: Gpu | None) -> bool:
    process = node.processes.get(attempt)
    return process is not None and (gpu is None or gpu.index in process.gpus)


Later = Callable[[datetime, Callable[[datetime], None]], None]
_OF_A_GPU = frozenset(
    {
        FaultKind.GPU_FELL_OFF_BUS,
        FaultKind.UNCORRECTABLE_ECC,
        FaultKind.HIDDEN_DEFECT,
        FaultKind.ROW_REMAP_WAITS,
    }
)


class Faults:
    """Lets faults happen to hardware and jobs."""

    def __init__(self, hardware: Hardware, controller: Controller, *, later: Later) -> None:
        self._hardware = hardware
        self._controller = controller
        self._later = later
        self.defects = Defects(show=self._show_again, later=later)
        hardware.work_begins = self.defects.work_begins
        controller.job_starts = self._await_bug

    def happen(self, entry: Entry) -> None:
        """Let the fault of an accepted entry happen."""
        for name in entry.nodes:
            node = self._hardware.nodes[NodeName(name)]
            gpu = None if entry.gpu is None else node.gpu_at(entry.gpu)
            course = entry.course or (None if entry.fault is None else USUAL_COURSES.get(entry.fault))
            if course is not None and entry.fault is not None:
                self._begin_defect(node, gpu, entry.fault, course)
            self._break(node, gpu, entry)
        self._controller.notice_hangs(entry.at)

    def _begin_defect(self, node: Node, gpu: Gpu | None, fault: FaultKind, course: Course) -> None:
        self.defects.begin(node, gpu if fault in _OF_A_GPU else None, fault, course)

    def _break(self, node: Node, gpu: Gpu | None, entry: Entry) -> None:
        at, hardware = entry.at, self._hardware
        match entry.fault:
            case FaultKind.GPU_FELL_OFF_BUS if gpu is not None:
                hardware.drop_gpu_off_bus(node, gpu, at)
            case FaultKind.UNCORRECTABLE_ECC if gpu is not None:
                hardware.damage_memory(node, gpu, at)
            case FaultKind.ROW_REMAP_WAITS if gpu is not None:
                hardware.note_bad_row(node, gpu, at)
            case FaultKind.APPLICATION_XID31 if gpu is not None:
                self._crash_application(node, gpu, at)
            case FaultKind.NODE_UNREACHABLE:
                self._wedge(node, at)
            case FaultKind.RANK_STOPS if gpu is not None:
                process = node.user_of(gpu)
                if process is not None:
                    hardware.stop_process(node, process, at)
            case FaultKind.UNKILLABLE_PROCESS if gpu is not None:
                process = node.user_of(gpu)
                if process is not None:
                    hardware.make_unkillable(node, process)
            case FaultKind.LEAF_SWITCH_DOWN:
                self._lose_links(node, at, until=at + timedelta(seconds=entry.seconds or 0.0))
            case FaultKind.NETWORK_PARTITION:
                self._cut_off(node, at, until=at + timedelta(seconds=entry.seconds or 0.0))

    def _show_again(self, defect: Defect, at: datetime) -> None:
        """Let a defect show after a sleep; what is down or in a reset is repaired again first."""
        node, gpu = self._hardware.nodes[defect.node], defect.gpu
        if not node.is_up or (gpu is not None and not gpu.is_visible):
            return
        match defect.fault:
            case FaultKind.GPU_FELL_OFF_BUS if gpu is not None:
                self._hardware.drop_gpu_off_bus(node, gpu, at)
            case FaultKind.UNCORRECTABLE_ECC if gpu is not None:
                self._hardware.damage_memory(node, gpu, at)
            case FaultKind.ROW_REMAP_WAITS if gpu is not None:
                self._hardware.note_bad_row(node, gpu, at)
            case FaultKind.NODE_UNREACHABLE if not node.is_wedged:
                self._wedge(node, at)
        self._controller.notice_hangs(at)

    def wedge(self, node: Node, at: datetime) -> None:
        """Let a node answer nobody any more, while it computes on."""
        self._wedge(node, at)
        self._controller.notice_hangs(at)

    def stop_gpu_processor(self, node: Node, gpu: Gpu, at: datetime) -> None:
        """Let the GPU's own processor answer no more: what uses the GPU fails."""
        process = node.user_of(gpu)
        if process is not None:
            self._hardware.time_out_gsp(node, gpu, process, at)
            self._end_process(node, process, at)

    def _wedge(self, node: Node, at: datetime) -> None:
        self._hardware.wedge(node)
        self._controller.expect_change(node.name, at)

    def _crash_application(self, node: Node, gpu: Gpu, at: datetime) -> None:
        process = node.user_of(gpu)
        if process is None:
            return
        self._hardware.fault_in_application(node, gpu, process, at)
        self._end_process(node, process, at)

    def _end_process(self, node: Node, process: Process, at: datetime) -> None:
        self._hardware.kill_process(node, process.attempt, at)
        job = self._controller.jobs.get(process.attempt.job)
        if job is not None and job.is_running and job.attempt == process.attempt:
            self._controller.fail(job, at)
            self._controller.start_jobs(at)

    def _lose_links(self, node: Node, at: datetime, *, until: datetime) -> None:
        self._hardware.lose_links(node, at, until=until)

        def heal(then: datetime) -> None:
            if node.links_down_until == until:
                self._hardware.regain_links(node, then)

        self._later(until, heal)

    def _cut_off(self, node: Node, at: datetime, *, until: datetime) -> None:
        self._hardware.cut_off(node, until=until)
        self._controller.expect_change(node.name, at)

        def heal(then: datetime) -> None:
            if node.cut_off_until == until:
                self._hardware.reconnect(node)
                self._controller.expect_change(node.name, then)

        self._later(until, heal)

    # -- bugs of programs --

    def _await_bug(self, job: Job, at: datetime) -> None:
        if job.spec.bug is not None:
            attempt = job.attempt
            shows_at = at + timedelta(seconds=job.spec.bug_after_seconds)
            self._later(shows_at, lambda then: self._show_bug(job, attempt, then))

    def _show_bug(self, job: Job, attempt: JobAttempt, at: datetime) -> None:
        if not job.is_running or job.attempt != attempt or job.hung_at is not None:
            return
        name, gpus = next(iter(job.allocation.items()))
        node = self._hardware.nodes[name]
        gpu = node.gpus[gpus[0]]
        if job.spec.bug is Bug.CRASHES:
            self._crash_application(node, gpu, at)
        elif gpu.is_visible:
            self._hardware.drop_gpu_off_bus(node, gpu, at)
        self._controller.notice_hangs(at)


class ReleaseEffects:
    """What each version does to each node."""

    def __init__(
        self,
        scenario: Scenario,
        hardware: Hardware,
        faults: Faults,
        *,
        seed: int,
        later: Callable[[datetime, Callable[[datetime], None]], None],
    ) -> None:
        self._told = scenario.release_faults
        self._hardware = hardware
        self._faults = faults
        self._seed = seed
        self._later = later
        self._arranged: set[tuple[NodeName, int, ReleaseFault]] = set()
        """What was arranged already for one boot of a node."""

    # -- installing and restarting --

    def fails_to_install(self, node: Node, part: InstallPart) -> bool:
        return self._has(ReleaseTrouble.INSTALL_FAILS, node, part.component, part.version)

    def comes_up_old(self, node: Node, component: Component, version: str) -> bool:
        return self._has(ReleaseTrouble.COMES_UP_OLD, node, component, version)

    def stops_boot(self, node: Node) -> bool:
        """Return whether a node that runs these versions does not come up."""
        return any(True for _ in self._running(node, ReleaseTrouble.NEVER_BOOTS))

    def loaded(self, node: Node, at: datetime) -> None:
        """Let show what shows as soon as versions are loaded: after a boot, or a new start of the driver."""
        for fault in self._running(node, ReleaseTrouble.LOSES_GPU):
            gpu = node.gpus[self._draw(fault, node, "gpu").randrange(len(node.gpus))]
            if gpu.is_on_bus:
                self._hardware.drop_gpu_off_bus(node, gpu, at)

    # -- under load --

    def work_begins(self, node: Node, _attempt: JobAttempt, at: datetime) -> None:
        """Arrange what happens under load, once for each boot."""
        for fault in self._running(node, ReleaseTrouble.HANGS):
            if self._is_first(node, fault):
                self._arrange(node, fault, at + timedelta(seconds=fault.after_seconds), self._hang)
        for fault in self._running(node, ReleaseTrouble.XID_PRONE):
            if self._is_first(node, fault):
                self._arrange_xid(node, fault, number=1, after=at)

    def slowdown_of(self, nodes: Iterable[Node]) -> float:
        """Return by which share steps take longer on these nodes together: all wait for the slowest."""
        ratios = [each.slowdown_ratio for node in nodes for each in self._running(node, ReleaseTrouble.SLOWER)]
        return max(ratios, default=0.0)

    def lowers(self, node: Node, test: str) -> float:
        """Return by which share the numbers of a test are lower on a node."""
        found = [each for each in self._running(node, ReleaseTrouble.SLOWER) if test in each.found_by]
        return max((each.slowdown_ratio for each in found), default=0.0)

    def _arrange(
        self, node: Node, fault: ReleaseFault, at: datetime, show: Callable[[Node, ReleaseFault, datetime], None]
    ) -> None:
        boot_count = node.boot_count

        def happen(then: datetime) -> None:
            # Another boot, or another version, has ended what was arranged.
            if node.is_up and node.boot_count == boot_count and _runs(node, fault):
                show(node, fault, then)

        self._later(at, happen)

    def _arrange_xid(self, node: Node, fault: ReleaseFault, *, number: int, after: datetime) -> None:
        draw = self._draw(fault, node, f"{node.boot_count}:{number}")
        gap = timedelta(seconds=draw.expovariate(1 / fault.after_seconds))
        index = draw.randrange(len(node.gpus))

        def show(node: Node, fault: ReleaseFault, at: datetime) -> None:
            if node.gpus[index].is_visible and node.user_of(node.gpus[index]) is not None:
                self._faults.stop_gpu_processor(node, node.gpus[index], at)
            self._arrange_xid(node, fault, number=number + 1, after=at)

        self._arrange(node, fault, after + gap, show)

    def _hang(self, node: Node, _fault: ReleaseFault, at: datetime) -> None:
        if not node.is_wedged:
            self._faults.wedge(node, at)

    def _is_first(self, node: Node, fault: ReleaseFault) -> bool:
        what = (node.name, node.boot_count, fault)
        is_first = what not in self._arranged
        self._arranged.add(what)
        return is_first

    # -- whom a fault is about --

    def _has(self, trouble: ReleaseTrouble, node: Node, component: Component, version: str) -> bool:
        return any(
            (each.trouble, each.component, each.version) == (trouble, component, version) and self._is_about(each, node)
            for each in self._told
        )

    def _running(self, node: Node, trouble: ReleaseTrouble) -> Iterable[ReleaseFault]:
        return (
            each for each in self._told if each.trouble is trouble and _runs(node, each) and self._is_about(each, node)
        )

    def _is_about(self, fault: ReleaseFault, node: Node) -> bool:
        if fault.nodes is not None and node.name not in fault.nodes:
            return False
        return fault.node_ratio == 1.0 or self._draw(fault, node, "luck").random() < fault.node_ratio

    def _draw(self, fault: ReleaseFault, node: Node, what: str) -> random.Random:
        told = f"{fault.component.value}:{fault.version}:{fault.trouble.value}"
        return random.Random(f"{self._seed}:release:{told}:{node.name}:{what}")


def _runs(node: Node, fault: ReleaseFault) -> bool:
    return node.versions.get(fault.component) == fault.version
