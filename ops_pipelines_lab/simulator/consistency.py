"""States that no cluster can be in. Finding one means that the simulator is wrong, never the program under test."""

from collections import Counter

from ops_pipelines.core.observation import HAS_PROCESSES, JobState
from ops_pipelines_lab.simulator.hardware import Node
from ops_pipelines_lab.simulator.jobs import Job
from ops_pipelines_lab.simulator.world import World


class ImpossibleStateError(AssertionError):
    """The pretended cluster is in a state that cannot exist. The message lists every contradiction."""


def check_consistency(world: World) -> None:
    """Return if the world could exist; raise ImpossibleStateError with all contradictions otherwise."""
    found = [*_in_allocations(world), *_in_reservations(world)]
    for job in world.controller.jobs.values():
        found.extend(_in_job(world, job))
    for node in world.hardware.nodes.values():
        found.extend(_in_node(world, node))
    if found:
        raise ImpossibleStateError(f"at {world.now.isoformat()}: " + "; ".join(found))


def _in_allocations(world: World) -> list[str]:
    allocated = Counter(
        (name, gpu) for job in world.controller.jobs.values() for name, gpus in job.allocation.items() for gpu in gpus
    )
    return [f"GPU {gpu} of {name} is allocated {count} times" for (name, gpu), count in allocated.items() if count > 1]


def _in_reservations(world: World) -> list[str]:
    kept = Counter(node for reservation in world.controller.reservations.all() for node in reservation.nodes)
    found = [f"{node} is in {count} reservations" for node, count in kept.items() if count > 1]
    for job in world.controller.jobs.values():
        found += [f"job {job.job} is on {name}, which is reserved" for name in job.allocation if name in kept]
    over = [each.name for each in world.controller.reservations.all() if each.until <= world.now]
    over += [each.name for each in world.controller.reservations.bookings() if each.ends_at <= world.now]
    return found + [f"reservation {name} should have run out" for name in over]


def _in_job(world: World, job: Job) -> list[str]:
    found = []
    if (job.state in HAS_PROCESSES) != bool(job.allocation):
        found.append(f"job {job.job} is {job.state.value} with {len(job.allocation)} nodes")
    if job.state in HAS_PROCESSES and len(job.allocation) != job.spec.node_count:
        found.append(f"job {job.job} has {len(job.allocation)} of {job.spec.node_count} nodes")
    if any(len(gpus) != job.spec.gpus_per_node for gpus in job.allocation.values()):
        found.append(f"job {job.job} does not have {job.spec.gpus_per_node} GPUs on each of its nodes")
    if job.state is JobState.RUNNING and job.started_at is None:
        found.append(f"job {job.job} runs without having started")
    if (job.state is JobState.COMPLETING) != bool(job.waits_for):
        found.append(f"job {job.job} is {job.state.value} and waits for {len(job.waits_for)} nodes")
    for name in job.allocation:
        if job.is_running and world.controller.records[name].is_down:
            found.append(f"job {job.job} runs on {name}, which is down")
        if job.is_running and job.hung_at is None and job.attempt not in world.hardware.nodes[name].processes:
            found.append(f"job {job.job} makes progress without a process on {name}")
    return found


def _in_node(world: World, node: Node) -> list[str]:
    found: list[str] = []
    # What cannot be killed may hold a GPU that the scheduler has given to another job meanwhile.
    processes = [process for process in node.processes.values() if not process.is_unkillable]
    held = Counter(gpu for process in processes for gpu in process.gpus)
    found.extend(f"GPU {gpu} of {node.name} is used by {count} jobs" for gpu, count in held.items() if count > 1)
    if node.is_up and not node.is_powered:
        found.append(f"{node.name} is up without power")
    if node.processes and not node.is_up:
        found.append(f"{node.name} has processes and is not up")
    if any(gpu.uncorrectable_ecc_count < 0 or gpu.remapped_row_count < 0 for gpu in node.gpus):
        found.append(f"{node.name} has a negative count")
    record = world.controller.records[node.name]
    if (record.is_drained or record.is_down) != (record.reason is not None):
        found.append(f"{node.name}: drained {record.is_drained}, down {record.is_down}, but reason {record.reason}")
    return found
