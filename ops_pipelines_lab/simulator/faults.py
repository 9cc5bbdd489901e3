"""What goes wrong by itself, and what it does at once to machines and jobs: faults of nature and bugs of programs.

How a defect lasts over repairs is `defects`' business, whether a fault can happen now `commands`'.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from ops_pipelines.core.identity import JobAttempt, NodeName
from ops_pipelines_lab.simulator.controller import Controller
from ops_pipelines_lab.simulator.course import Course
from ops_pipelines_lab.simulator.defects import USUAL_COURSES, Defect, Defects
from ops_pipelines_lab.simulator.hardware import Gpu, Hardware, Node, Process
from ops_pipelines_lab.simulator.jobs import Job
from ops_pipelines_lab.simulator.journal import Entry, FaultKind
from ops_pipelines_lab.simulator.scenario import Bug

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
        """Let a defect show after a sleep; what is down or in a reset is repaired anew first."""
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
