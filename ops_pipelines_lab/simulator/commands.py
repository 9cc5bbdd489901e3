"""Which commands and faults the simulated cluster can take now, and what it answers to the others.

Judges only; what an accepted one does is `world`'s business. The answers are worded as a real system would.
"""

from collections.abc import Callable

from ops_pipelines.core.cluster import NOT_OFFERED
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.faults import HAVE_COURSES
from ops_pipelines_lab.simulator.hardware import Gpu, Node
from ops_pipelines_lab.simulator.installs import is_by_bmc
from ops_pipelines_lab.simulator.jobs import Job
from ops_pipelines_lab.simulator.journal import Entry, EntryKind, FaultKind
from ops_pipelines_lab.simulator.world import World


class ImpossibleFaultError(ValueError):
    """A fault cannot happen to this hardware in its present state. Nothing was recorded."""


def judge(world: World, entry: Entry) -> None:
    """Return if the world can take the entry now.

    Raises SourceRefused if it answers no, SourceUnavailable if the command cannot reach its node,
    ImpossibleFaultError for a fault that makes no sense.
    """
    _JUDGES[entry.kind](world, entry)


def _judge_nodes(world: World, entry: Entry) -> None:
    unknown = [name for name in entry.nodes if NodeName(name) not in world.hardware.nodes]
    if unknown or not entry.nodes:
        raise SourceRefused(f"{entry.kind.value}: invalid node name {', '.join(unknown) or '(none given)'}")


def _judge_job(world: World, entry: Entry) -> Job:
    job = world.controller.jobs.get(JobId(entry.job or ""))
    if job is None:
        raise SourceRefused(f"{entry.kind.value}: invalid job id {entry.job}")
    if job.has_ended_for_good:
        raise SourceRefused(f"{entry.kind.value}: job {entry.job} has already ended ({job.state.value})")
    return job


def _judge_requeue(world: World, entry: Entry) -> None:
    job = _judge_job(world, entry)
    if job.is_running and not job.spec.is_requeueable:
        raise SourceRefused(f"{entry.kind.value}: job {job.job} must not be requeued (Requeue=0)")


def _judge_job_exists(world: World, entry: Entry) -> None:
    _judge_job(world, entry)


def _judge_exclude(world: World, entry: Entry) -> None:
    job = _judge_job(world, entry)
    _judge_nodes(world, entry)
    if job.state is not JobState.PENDING:
        raise SourceRefused(f"{entry.kind.value}: job {job.job} is no longer pending execution ({job.state.value})")


def _judge_submit(world: World, entry: Entry) -> None:
    spec = entry.spec
    if spec is None or spec.gpus_per_node > world.scenario.gpus_per_node:
        raise SourceRefused("submit: the requested node configuration is not available")
    if spec.partition not in world.scenario.partitions:
        raise SourceRefused(f"submit: invalid partition name {spec.partition}")


def _judge_reset(world: World, entry: Entry) -> None:
    node = _judge_reachable(world, entry)
    gpu = node.gpu_at(entry.gpu or "")
    if gpu is None or not gpu.is_visible:
        raise SourceRefused(f"reset_gpu: {node.name} has no GPU {entry.gpu}")
    user = node.user_of(gpu)
    if user is not None:
        raise SourceRefused(f"reset_gpu: GPU {entry.gpu} of {node.name} is in use by job {user.attempt.job}")


def _judge_reboot(world: World, entry: Entry) -> None:
    _judge_without_work(world, entry, _judge_reachable(world, entry))


def _judge_reimage(world: World, entry: Entry) -> None:
    # An installation begins from the network: the node that is installed need not answer.
    _judge_nodes(world, entry)
    if not world.scenario.is_reimaging_offered:
        raise SourceRefused("reimage: no command for it is configured")
    node = world.node(entry.nodes[0])
    _judge_without_work(world, entry, node)
    if not node.is_powered:
        raise SourceRefused(f"reimage: {node.name} has no power")


def _judge_repair_by_hand(world: World, entry: Entry) -> None:
    _judge_nodes(world, entry)
    _judge_without_work(world, entry, world.node(entry.nodes[0]))


def _judge_check(world: World, entry: Entry) -> None:
    _judge_reachable(world, entry)
    if entry.check is None or not entry.check.tests or not entry.check.key:
        raise SourceRefused("start_check: it needs a key and at least one test")


def _judge_reserve(world: World, entry: Entry) -> None:
    _judge_nodes(world, entry)
    controller, nodes = world.controller, [NodeName(name) for name in entry.nodes]
    taken = [name for name in nodes if not controller.is_free(name)]
    taken += sorted(controller.reservations.keeps(nodes, besides=entry.reservation))
    if taken:
        raise SourceRefused(f"reserve: the requested nodes are busy: {', '.join(taken)}")
    if not entry.reservation or entry.until is None or entry.until <= world.now:
        raise SourceRefused(f"reserve: it needs a name and an end in the future, found {entry.until}")


def _judge_book(world: World, entry: Entry) -> None:
    _judge_nodes(world, entry)
    if entry.begins_at is None or entry.until is None or entry.until <= max(entry.begins_at, world.now):
        raise SourceRefused(f"book: it needs a beginning, and a later end in the future; found {entry.until}")


def _judge_install(world: World, entry: Entry) -> None:
    command = entry.install
    if command is None or not command.parts or not command.key:
        raise SourceRefused("start_install: it needs a key and at least one change; empty never means the newest")
    missing = sorted({each.means.value for each in command.parts if each.means not in world.scenario.offered_means})
    if missing:
        raise SourceRefused(f"{NOT_OFFERED} install by {', '.join(missing)}")
    _judge_nodes(world, entry)
    node = world.node(entry.nodes[0])
    if not is_by_bmc(command):
        _judge_reachable(world, entry)
    if world.installs.is_known(node, command.key):
        return
    if world.installs.is_busy(node):
        raise SourceUnavailable(f"start_install: another installation runs on {node.name}; ask again after it")
    _judge_unused(entry, node)


def _judge_reload(world: World, entry: Entry) -> None:
    node = _judge_reachable(world, entry)
    _judge_unused(entry, node)
    if world.installs.is_busy(node):
        raise SourceUnavailable(f"reload_driver: an installation runs on {node.name}; ask again after it")


def _judge_unused(entry: Entry, node: Node) -> None:
    users = sorted({process.attempt.job for process in node.processes.values()})
    if users:
        raise SourceRefused(f"{entry.kind.value}: GPUs of {node.name} are in use by job {', '.join(users)}")


def _judge_quotas(world: World, entry: Entry) -> None:
    unknown = sorted({each.account for each in entry.quotas if each.account not in world.controller.quotas.accounts})
    if unknown or not entry.quotas:
        raise SourceRefused(f"set_quotas: there is no account {', '.join(unknown) or '(none given)'}")


def _judge_nothing(world: World, entry: Entry) -> None:
    """Take it as it is: what is gone already stays gone."""


def _judge_without_work(world: World, entry: Entry, node: Node) -> None:
    jobs = sorted({attempt.job for attempt in node.processes})
    jobs = jobs or sorted(job.job for job in world.controller.jobs.values() if node.name in job.allocation)
    if jobs:
        raise SourceRefused(f"{entry.kind.value}: {node.name} still runs job {', '.join(jobs)}")


def _judge_reachable(world: World, entry: Entry) -> Node:
    _judge_nodes(world, entry)
    node = world.node(entry.nodes[0])
    if not node.answers:
        raise SourceUnavailable(f"{entry.kind.value}: {node.name} does not answer; the command was not delivered")
    return node


def _judge_fault(world: World, entry: Entry) -> None:
    for name in entry.nodes or ("",):
        if NodeName(name) not in world.hardware.nodes:
            raise ImpossibleFaultError(f"there is no node {name!r} that could fail")
        node = world.node(name)
        if not node.is_up:
            raise ImpossibleFaultError(f"{name} is off or booting; nothing can happen to it")
        if entry.fault is FaultKind.NODE_UNREACHABLE and node.is_wedged:
            raise ImpossibleFaultError(f"{name} is unreachable already")
        if entry.fault is FaultKind.NETWORK_PARTITION and node.cut_off_until is not None:
            raise ImpossibleFaultError(f"{name} is cut off already")
        if entry.fault is FaultKind.LEAF_SWITCH_DOWN and node.links_down_until is not None:
            raise ImpossibleFaultError(f"the links of {name} are down already")
    if entry.fault in (FaultKind.NETWORK_PARTITION, FaultKind.LEAF_SWITCH_DOWN):
        if entry.seconds is None or entry.seconds <= 0:
            raise ImpossibleFaultError("a network partition or a switch's fault needs a duration above 0 s")
    elif len(entry.nodes) != 1:
        raise ImpossibleFaultError("this fault happens to one node at a time")
    elif entry.fault not in (FaultKind.NODE_UNREACHABLE, FaultKind.BOOT_HANGS) and not (
        entry.fault is FaultKind.HIDDEN_DEFECT and entry.gpu is None
    ):
        _judge_gpu_fault(world.node(entry.nodes[0]), entry)
    if entry.course is not None:
        _judge_course(entry, entry.course)


def _judge_course(entry: Entry, course: Course) -> None:
    if entry.fault not in HAVE_COURSES:
        raise ImpossibleFaultError(f"{entry.fault} ends otherwise than by a repair; leave the course away")
    if course.cure is Cure.RESET and entry.gpu is None:
        raise ImpossibleFaultError("a reset is of one GPU; a fault of a whole node needs a stronger cure")
    if entry.fault is FaultKind.HIDDEN_DEFECT and not course.found_by:
        raise ImpossibleFaultError("a hidden defect that no test finds is none; name a test in found_by")


def _judge_gpu_fault(node: Node, entry: Entry) -> None:
    gpu: Gpu | None = node.gpu_at(entry.gpu or "")
    if gpu is None:
        raise ImpossibleFaultError(f"{node.name} has no GPU {entry.gpu}")
    if not gpu.is_visible:
        raise ImpossibleFaultError(f"GPU {entry.gpu} of {node.name} has fallen off the bus or is being reset")
    if entry.fault in _OF_PROCESSES and node.user_of(gpu) is None:
        raise ImpossibleFaultError(f"no process uses GPU {entry.gpu} of {node.name}; no application can fault there")


_OF_PROCESSES = (FaultKind.APPLICATION_XID31, FaultKind.RANK_STOPS, FaultKind.UNKILLABLE_PROCESS)

_JUDGES: dict[EntryKind, Callable[[World, Entry], object]] = {
    EntryKind.FAULT: _judge_fault,
    EntryKind.SUBMIT: _judge_submit,
    EntryKind.CANCEL: _judge_job_exists,
    EntryKind.DRAIN: _judge_nodes,
    EntryKind.RESUME: _judge_nodes,
    EntryKind.HOLD: _judge_requeue,
    EntryKind.MARK: _judge_requeue,
    EntryKind.REQUEUE: _judge_requeue,
    EntryKind.EXCLUDE: _judge_exclude,
    EntryKind.READMIT: _judge_exclude,
    EntryKind.RELEASE: _judge_job_exists,
    EntryKind.DECLARE_DOWN: _judge_nodes,
    EntryKind.RESET_GPU: _judge_reset,
    EntryKind.REBOOT: _judge_reboot,
    EntryKind.POWER_OFF: _judge_nodes,
    EntryKind.POWER_ON: _judge_nodes,
    EntryKind.REIMAGE: _judge_reimage,
    EntryKind.START_CHECK: _judge_check,
    EntryKind.RESERVE: _judge_reserve,
    EntryKind.UNRESERVE: _judge_nothing,
    EntryKind.BOOK: _judge_book,
    EntryKind.SET_QUOTAS: _judge_quotas,
    EntryKind.START_INSTALL: _judge_install,
    EntryKind.RELOAD_DRIVER: _judge_reload,
    EntryKind.PUT_LAST: _judge_nodes,
    EntryKind.PUT_BACK: _judge_nodes,
    EntryKind.REPAIR_BY_HAND: _judge_repair_by_hand,
}
