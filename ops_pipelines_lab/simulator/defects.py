"""What is broken for longer than it shows: courses of faults over repairs, boots and load.

`Hardware` knows what shows now; here stands what is behind it. A repair that is too weak lets the fault come back: at
once, after a time, or under load. When repairs happen is `world`'s business.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.identity import JobAttempt, NodeName
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.hardware import Gpu, Node
from ops_pipelines_lab.simulator.journal import FaultKind

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
        # Another repair since then has begun another sleep, or ended the defect.
        if defect.is_asleep and defect.sleep_count == sleep_count and defect in self.of(defect.node):
            defect.is_asleep = False
            self._show(defect, at)


def _uses(node: Node, attempt: JobAttempt, gpu: Gpu | None) -> bool:
    process = node.processes.get(attempt)
    return process is not None and (gpu is None or gpu.index in process.gpus)
