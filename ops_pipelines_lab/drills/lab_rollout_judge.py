"""What must have come of the lab's rollouts: judged on what Slurm and the nodes wrote down, then on our ledger."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from ops_pipelines.core.action import MESSAGES, ActionRecord, Verb
from ops_pipelines.core.identity import NodeName, cause_of
from ops_pipelines.core.rollout import NodeStage, Rollout, RolloutState
from ops_pipelines_lab.drills.lab_node import FIRST_KERNEL, GOOD_KERNEL, NodeDisk
from ops_pipelines_lab.drills.lab_rollout_jobs import AccountedJob
from ops_pipelines_lab.drills.lab_rollout_story import OPERATORS_REASON, Sight, Story
from ops_pipelines_lab.drills.lab_stage import Demand

_LINE = re.compile(
    r"\[(?P<at>[0-9T:.-]+)\] update_node: node (?P<node>\S+) "
    r"(?:(?P<ours>reason set to: ops_pipelines ROLL-)|state set to (?P<back>IDLE|MIXED|ALLOCATED)$)"
)

_BOOKED = re.compile(r"Created reservation=(ops-ROLL-\d+-w\d+)")


def demands_on(sight: Sight, story: Story, *, good: Rollout, bad: Rollout) -> Iterator[Demand]:
    """Yield what must be so of versions, nodes and people once both releases are over."""
    yield from _good_release(sight, story, good)
    yield from _bad_release(sight, bad)
    yield from _people(sight, story, good)
    limit = sight.view.stage.cluster.rules.policy.rollouts.max_out_count
    most = most_out(sight.view.stage.slurm.read_controller_log())
    yield Demand(is_so=0 < len(most) <= limit, otherwise=f"{', '.join(most)} were out by us at once, not {limit}")
    yield from _nothing_is_left(sight)


def _good_release(sight: Sight, story: Story, good: Rollout) -> Iterator[Demand]:
    yield Demand(is_so=good.state is RolloutState.DONE, otherwise=f"{good.release} ended {good.state.value}")
    updated = {each.node for each in sight.nodes_of(good) if each.stage is NodeStage.UPDATED}
    yield Demand(
        is_so=updated == set(sight.members), otherwise=f"{sorted(set(sight.members) - updated)} were not updated"
    )
    sizes = [len(wave.nodes) for wave in good.waves]
    rest = len(sight.members) - 7
    yield Demand(is_so=sizes == [1, 2, 4, rest], otherwise=f"its waves were of {sizes} nodes")
    for node, version in sight.running_versions().items():
        yield Demand(is_so=version == GOOD_KERNEL, otherwise=f"{node} runs {version}, not {GOOD_KERNEL}")
    yield Demand(is_so=bool(story.kept_off), otherwise="the gang was never kept off a node that soaks")
    booked = _BOOKED.findall(sight.view.stage.slurm.read_controller_log())
    yield Demand(is_so=bool(booked), otherwise="Slurm was never told of maintenance")


def _bad_release(sight: Sight, bad: Rollout) -> Iterator[Demand]:
    yield Demand(is_so=bad.state is RolloutState.WENT_BACK, otherwise=f"{bad.release} ended {bad.state.value}")
    records = sight.view.stage.cluster.ledger.records(cause_of(bad.rollout))
    touched = {record.action.node for record in records if record.action.verb is Verb.INSTALL}
    canaries = {*bad.waves[0].nodes, *bad.waves[1].nodes}
    yield Demand(is_so=touched <= canaries, otherwise=f"{sorted(filter(None, touched - canaries))} were touched too")
    yield Demand(
        is_so=set(bad.waves[0].nodes) < touched, otherwise=f"no second opinion: only {sorted(filter(None, touched))}"
    )
    for each in sight.nodes_of(bad):
        wanted = NodeStage.BACK if each.node in touched else NodeStage.PENDING
        yield Demand(
            is_so=each.stage is wanted or (wanted is NodeStage.PENDING and each.stage is NodeStage.SKIPPED),
            otherwise=f"{each.node} is {each.stage.value}, not {wanted.value}",
        )
        # One boot for the first kernel's successor, then, if touched, one there and one back.
        boots = NodeDisk(sight.lab, each.node).boots
        count = 3 if each.node in touched else 1
        yield Demand(
            is_so=len(boots) == count and set(boots) == {GOOD_KERNEL} and FIRST_KERNEL not in boots,
            otherwise=f"{each.node} booted {', '.join(boots) or 'never'}; expected {count} boots of {GOOD_KERNEL}",
        )


def _people(sight: Sight, story: Story, good: Rollout) -> Iterator[Demand]:
    records = sight.view.stage.cluster.ledger.records(cause_of(good.rollout))
    theirs = [each for each in records if each.action.node == story.operators_node]
    first = min((each.begun_at for each in theirs), default=None)
    returned_at = story.operators_return_at
    yield Demand(
        is_so=first is not None and returned_at is not None and first >= returned_at,
        otherwise=f"{story.operators_node} was an operator's until {returned_at}, and we began there at {first}",
    )
    yield Demand(
        is_so=story.operators_reasons == {OPERATORS_REASON},
        otherwise=f"the operator's node was drained for {story.operators_reasons}",
    )
    begun = [
        each
        for each in records
        if each.action.verb is Verb.DRAIN and _is_within(each, story.paused_at, story.resumed_at)
    ]
    yield Demand(is_so=bool(story.waiting_in_pause), otherwise="nobody waited while it was paused")
    yield Demand(
        is_so=not begun,
        otherwise=f"{', '.join(each.action.target for each in begun)} was begun while the rollout was paused",
    )
    yield Demand(is_so=story.was_asked, otherwise="the gate never asked")
    yield Demand(is_so=story.was_killed, otherwise="the code server was not killed")


def _nothing_is_left(sight: Sight) -> Iterator[Demand]:
    """No node is out without an owner, nobody's job is kept off, no incident acted, the chain is whole."""
    nodes = sight.view.nodes()
    for node in sight.members:
        status = nodes.get(node)
        yield Demand(
            is_so=status is not None and not status.is_drained and status.is_responding,
            otherwise=f"{node} is not in service: {'no answer' if status is None else status.reason}",
        )
    reserved = sorted({status.reserved_as for status in nodes.values() if status.reserved_as})
    yield Demand(is_so=not reserved, otherwise=f"reservations are left: {', '.join(reserved)}")
    for rollout in sight.rollouts():
        yield Demand(is_so=not rollout.kept_off, otherwise=f"{rollout.rollout} still keeps jobs off nodes")
        for record in sight.view.stage.cluster.ledger.records(cause_of(rollout.rollout)):
            name = f"{record.action.verb.value} of {record.action.target} ({rollout.rollout})"
            yield Demand(is_so=record.outcome is not None, otherwise=f"{name} has no outcome")
    for incident in sight.view.incidents():
        acted = [each.action for each in sight.view.stage.cluster.ledger.records(incident.incident)]
        beyond = [each.verb.value for each in acted if each.verb not in MESSAGES and each.node in sight.members]
        yield Demand(is_so=not beyond, otherwise=f"{incident.incident} ({incident.cause}) acted: {', '.join(beyond)}")
        paged = incident.nodes.intersection(sight.members) and any(each.verb is Verb.PAGE_HUMAN for each in acted)
        yield Demand(is_so=not paged, otherwise=f"{incident.incident} paged for what the update did: {incident.cause}")
    verdict = sight.view.stage.cluster.ledger.verify_chain()
    yield Demand(is_so=verdict.first_broken_seq is None, otherwise=f"the ledger is broken: {verdict.problem}")


def most_out(log: str) -> tuple[NodeName, ...]:
    """Return the nodes that rollouts had out when these were most, as slurmctld wrote it down."""
    out: set[NodeName] = set()
    most: tuple[NodeName, ...] = ()
    for line in log.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        node = NodeName(found["node"])
        if found["ours"]:
            out.add(node)
            most = tuple(sorted(out)) if len(out) > len(most) else most
        else:
            out.discard(node)
    return most


def _is_within(record: ActionRecord, begins_at: datetime | None, ends_at: datetime | None) -> bool:
    return begins_at is not None and ends_at is not None and begins_at <= record.begun_at < ends_at


def tell(sight: Sight, *, good: Rollout, bad: Rollout, jobs: Sequence[AccountedJob]) -> str:
    """Return in words what came of both."""
    most = len(most_out(sight.view.stage.slurm.read_controller_log()))
    done = sum(each.state == "COMPLETED" for each in jobs)
    took = (good.since - good.created_at).total_seconds(), (bad.since - bad.created_at).total_seconds()
    back = sum(each.stage is NodeStage.BACK for each in sight.nodes_of(bad))
    return (
        f"{len(sight.members)} nodes updated in {took[0]:.0f} s, {most} out at most; the bad one back on {back} nodes "
        f"in {took[1]:.0f} s; {done} jobs ran to their end, none was lost"
    )
