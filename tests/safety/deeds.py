"""Deeds: what somebody does in one directed story and no seed draws, for a new kind of move re-draws every seed.

Each returns what is done to a stage, as a move is by `moves`; what comes of it is the story's business.
"""

from collections.abc import Callable
from dataclasses import replace

from ops_pipelines.core.action import Verb
from ops_pipelines_lab.simulator.adapters import SimulatedScheduler
from ops_pipelines_lab.simulator.journal import EntryKind
from tests.safety.lies import SchedulerLie
from tests.safety.stage import Stage, name_of

Deed = Callable[[Stage], None]
"""Something that is done on a stage."""


def undeclare(node: int) -> Deed:
    """Return the operator's taking a node out of cluster.yaml: the program and the judge both work by the new one."""

    def take_out(stage: Stage) -> None:
        places = {name: place for name, place in stage.orders.topology.places.items() if name != name_of(node)}
        topology = replace(stage.orders.topology, places=places)
        stage.orders = replace(stage.orders, topology=topology)
        stage.judge.orders = stage.orders
        for process in stage.processes.values():
            process.cluster = replace(process.cluster, rules=replace(process.cluster.rules, topology=topology))

    return take_out


def give_up(node: int) -> Deed:
    """Return another admin's declaring a silent node down, whose power nobody has cut."""
    return lambda stage: stage.twin.command(
        EntryKind.DECLARE_DOWN, nodes=(name_of(node),), reason="not responding for long"
    )


def release_training(stage: Stage) -> None:
    """Let another admin release the training job, no matter who held it."""
    stage.twin.command(EntryKind.RELEASE, job=_training_of(stage))


def requeue_training(stage: Stage) -> None:
    """Let the training job's user requeue it: it continues with another attempt."""
    stage.twin.command(EntryKind.REQUEUE, job=_training_of(stage))


def _training_of(stage: Stage) -> str:
    return next(each.job for each in SimulatedScheduler(stage.twin).read_jobs() if each.name == "pretrain")


def hide_jobs_while_fencing(stage: Stage) -> None:
    """Let the scheduler list no jobs between the witness of a hold and the end of the room that was kept for it.

    In between the program asks whether the processes are gone, and keeps the job off the node.
    """

    def before_each_question() -> None:
        records = stage.ledger.read_state(stage.own_clock.now()).records
        is_held = any(each.action.verb is Verb.HOLD and each.outcome is not None for each in records)
        is_over = any(each.action.verb is Verb.UNRESERVE for each in records)
        stage.mischief.scheduler = SchedulerLie.NO_JOBS if is_held and not is_over else None
        if not is_over:
            ask_again()

    def ask_again() -> None:
        stage.mischief.calls_to_interruption, stage.mischief.interruption = 1, before_each_question

    ask_again()
