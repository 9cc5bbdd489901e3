"""One pass: what it writes of each event, whom it begins, and that nothing in the way of one stops the others."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.action import Action, ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster, Fleet
from ops_pipelines.core.identity import NodeName, RolloutId, cause_of
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import (
    IN_HAND,
    Direction,
    NodeEvent,
    NodeStage,
    Rollout,
    RolloutEvent,
    RolloutNode,
    RolloutState,
)
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.rollouts import orders
from ops_pipelines.rollouts.course import Turn
from ops_pipelines.rollouts.cycle import advance_rollouts, measured_visits, nodes_by_stage
from ops_pipelines.rollouts.engine import Step
from ops_pipelines.rollouts.gate.evidence import GateVerdict
from ops_pipelines.rollouts.node_pass import after_step
from ops_pipelines.rollouts.rollout_pass import Judge, after_turn
from ops_pipelines_lab.simulator.adapters import SimulatedFleet
from ops_pipelines_lab.simulator.twin import Twin
from tests.ports.rollout_samples import RELEASE, node, rollout
from tests.scenarios.rollout_stage import FIRST, KERNEL, LIMITS, PERSON, ROLLOUT_POLICY, RolloutStage, release_of
from tests.scenarios.rollout_stage import change as changed
from tests.simulator.small_cluster import GPU1, GPU2

MINUTE = timedelta(minutes=1)
ONE, TWO, THREE = (NodeName(f"gpu00{number}") for number in (1, 2, 3))


class NobodyAnswers:
    """A scheduler that must not be needed."""

    def read_nodes(self) -> tuple[object, ...]:
        raise SourceUnavailable("slurmctld did not answer")

    read_jobs = read_nodes


class SilentAboutVersions(SimulatedFleet):
    """A fleet of which one node does not tell what it runs, and another only a part."""

    def __init__(self, twin: Twin, *, silent: NodeName, partly: NodeName) -> None:
        super().__init__(twin)
        self._silent, self._partly = silent, partly

    def read_versions(self, node: NodeName) -> dict[Component, str]:
        if node == self._silent:
            raise SourceUnavailable(f"{node} does not answer")
        found = dict(super().read_versions(node))
        return {Component.BIOS: found[Component.BIOS]} if node == self._partly else found


@pytest.fixture
def stage(tmp_path: Path) -> RolloutStage:
    return RolloutStage(tmp_path, node_count=3)


# -- what is written of an event --


@pytest.mark.parametrize(
    ("state", "event", "wave", "paused_from", "is_deadline_set"),
    [
        (RolloutState.SOAKING, RolloutEvent.WAVE_GOOD, 2, None, False),
        (RolloutState.SOAKING, RolloutEvent.ONE_WAY_NEXT, 2, None, True),
        (RolloutState.SOAKING, RolloutEvent.LAST_WAVE_GOOD, 1, None, False),
        (RolloutState.SOAKING, RolloutEvent.GATE_UNDECIDED, 1, RolloutState.SOAKING, True),
        (RolloutState.RUNNING, RolloutEvent.WAVE_UPDATED, 1, None, False),
        (RolloutState.RUNNING, RolloutEvent.PAUSE, 1, RolloutState.RUNNING, True),
        (RolloutState.GOING_BACK, RolloutEvent.BACK_FAILED, 1, None, True),
        (RolloutState.GOING_BACK, RolloutEvent.ALL_BACK, 1, None, False),
        (RolloutState.PAUSED, RolloutEvent.RESUME_UPDATING, 1, None, False),
    ],
)
def test_an_event_moves_the_wave_the_deadline_and_where_it_goes_on(
    stage: RolloutStage,
    state: RolloutState,
    event: RolloutEvent,
    wave: int,
    paused_from: RolloutState | None,
    is_deadline_set: bool,
) -> None:
    now = stage.clock.now()
    before = replace(
        rollout(1, state=state), paused_from=RolloutState.RUNNING if state is RolloutState.PAUSED else None
    )

    after = after_turn(before, Turn(event=event, reason="why"), stage.cluster, now=now)

    assert (after.wave, after.paused_from, after.since, after.reason) == (wave, paused_from, now, "why")
    assert after.deadline == (now + LIMITS.answer_limit if is_deadline_set else None)


@pytest.mark.parametrize("known", ["", "too little was seen, and a person let it continue"])
def test_why_the_gate_stopped_it_is_kept_to_its_end(stage: RolloutStage, known: str) -> None:
    events = {
        RolloutEvent.GATE_STOPPED: "2 nodes failed",
        RolloutEvent.PAUSE: "somebody looks at it",
        RolloutEvent.RESUME_GOING_BACK: "somebody has looked",
        RolloutEvent.BACK_FAILED: "one did not come back",
        RolloutEvent.GO_BACK: "try again",
        RolloutEvent.ALL_BACK: "all back",
    }
    now = replace(rollout(1), stopped_because=known)

    for event, reason in events.items():
        now = after_turn(now, Turn(event=event, reason=reason), stage.cluster, now=stage.clock.now())

        assert (now.stopped_because, now.reason) == ("2 nodes failed", reason)


@pytest.mark.parametrize(
    ("before", "event", "stage_after", "step", "is_returned"),
    [
        (NodeStage.VERIFYING, NodeEvent.NEXT_STEP, NodeStage.INSTALLING, 1, False),
        (NodeStage.VERIFYING, NodeEvent.VERIFIED, NodeStage.TESTING, 0, False),
        (NodeStage.RETURNING, NodeEvent.RETURNED, NodeStage.SOAKING, 0, True),
        (NodeStage.RETURNING, NodeEvent.IS_BACK, NodeStage.BACK, 0, True),
    ],
)
def test_a_step_of_a_node_begins_its_stage_anew(
    stage: RolloutStage, before: NodeStage, event: NodeEvent, stage_after: NodeStage, step: int, is_returned: bool
) -> None:
    now = stage.clock.now()
    on = replace(node(1, ONE, stage=before), good_reads=2, failure="an old failure")

    after = after_step(on, Step(event=event, reason="why"), RELEASE, stage.cluster, now=now)

    assert (after.stage, after.step, after.since, after.reason) == (stage_after, step, now, "why")
    assert (after.good_reads, after.read_at, after.failure) == (0, None, "an old failure")
    assert after.returned_at == (now if is_returned else None)
    assert (after.deadline is not None) is (stage_after in IN_HAND)


# -- a whole pass --


def test_without_a_rollout_no_system_is_asked(stage: RolloutStage) -> None:
    stage.cluster = replace(stage.cluster, scheduler=cast("Scheduler", NobodyAnswers()))

    report = advance_rollouts(stage.cluster, lease=stage.lease)

    assert (report.passes, report.problems) == ((), ())


def test_a_pass_at_the_same_instant_finds_nothing_to_write(stage: RolloutStage) -> None:
    stage.start()
    stage.run_to(RolloutState.SOAKING)
    stage.advance()
    head = stage.cluster.ledger.read_state(stage.clock.now()).head_seq

    stage.advance()

    assert stage.cluster.ledger.read_state(stage.clock.now()).head_seq == head


def test_what_ran_before_is_kept_when_a_node_begins_and_of_the_release_alone(stage: RolloutStage) -> None:
    before = stage.versions()
    stage.start()

    stage.run_until_stage("gpu001", *IN_HAND)

    begun = stage.nodes()[ONE]
    assert begun.versions_before == {Component.KERNEL: before[ONE]}
    assert (begun.try_number, begun.step, begun.direction) == (2, 0, Direction.FORWARD)


def test_who_does_not_tell_what_it_runs_is_not_begun_and_another_takes_its_place(tmp_path: Path) -> None:
    policy = replace(ROLLOUT_POLICY, rollouts=replace(LIMITS, canary_counts=(3,)))
    stage = RolloutStage(tmp_path, node_count=3, policy=policy)
    stage.start()
    fleet = SilentAboutVersions(stage.twin, silent=ONE, partly=TWO)
    stage.cluster = replace(stage.cluster, fleet=cast("Fleet", fleet))

    stage.advance()

    assert {name for name, each in stage.nodes().items() if each.stage in IN_HAND} == {THREE}
    assert [each.try_number for each in stage.nodes().values()] == [1, 1, 2]


def test_the_word_of_a_person_that_comes_in_mid_pass_holds(stage: RolloutStage) -> None:
    stage.start()

    def judging(_: Rollout, cluster: Cluster) -> Judge:
        def judge(present: Rollout, nodes: Sequence[RolloutNode]) -> GateVerdict | None:
            known = stage.rollout()
            if known.state is RolloutState.RUNNING:
                orders.pause(FIRST, cluster, actor=PERSON, reason="a visit")
            return None

        return judge

    report = advance_rollouts(stage.cluster, lease=stage.lease, judging=judging)

    assert stage.rollout().state is RolloutState.PAUSED
    assert len(report.passes[0].problems) == 1
    assert set(stage.stages().values()) == {"pending"}


def test_a_node_that_nobody_declares_any_more_is_lost_on_the_way_back_and_not_waited_for(stage: RolloutStage) -> None:
    stage.start()
    stage.run_until_stage("gpu001", NodeStage.SOAKING)
    rules = stage.cluster.rules
    places = {name: place for name, place in rules.topology.places.items() if name != ONE}
    topology = replace(rules.topology, places=places)
    stage.cluster = replace(stage.cluster, rules=replace(rules, topology=topology))
    orders.send_back(FIRST, stage.cluster, actor=PERSON, reason="a bug")

    stage.run_to(RolloutState.STUCK)

    assert stage.stage_of(ONE) is NodeStage.LOST
    assert "not declared in cluster.yaml" in stage.nodes()[ONE].reason


def test_the_report_counts_where_nodes_stand_and_says_what_the_gate_sees(stage: RolloutStage) -> None:
    stage.start()
    stage.run_to(RolloutState.SOAKING)
    stage.advance()

    (report,) = stage.reports[-1].passes

    assert nodes_by_stage(report) == {"soaking": 1, "pending": 2}
    assert report.verdict is not None
    assert report.problems == ()


def test_two_rollouts_are_advanced_in_one_pass_each_with_its_report(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, node_count=2)
    stage.start(release_of(*KERNEL.changes, opted_out=frozenset({"gpu002"})))
    other = release_of(changed(Component.DCGM, "4.4.2"), name="winter", opted_out=frozenset({"gpu001"}))
    second = stage.start(other)

    stage.advance()

    assert [each.rollout.rollout for each in stage.reports[-1].passes] == [FIRST, second]
    assert stage.nodes(FIRST)[GPU1].stage in IN_HAND
    assert stage.nodes(second)[GPU2].stage in IN_HAND


# -- how long visits took --


def act(
    verb: Verb,
    at: datetime,
    *,
    on: str = "gpu001",
    direction: Direction = Direction.FORWARD,
    step: int = 0,
    suite: str = "",
    number: int = 2,
    took: timedelta | None = timedelta(0),
    kind: OutcomeKind = OutcomeKind.DONE,
) -> ActionRecord:
    part = f"{step} {direction.value}" if verb is Verb.INSTALL else ""
    action = Action(
        verb=verb,
        incident=cause_of(RolloutId("ROLL-0001")),
        node=NodeName(on),
        suite=suite,
        part=part,
        try_number=number,
    )
    outcome = None if took is None else Outcome(kind=kind, witness="seen", finished_at=at + took)
    return ActionRecord(action=action, plan=None, begun_at=at, outcome=outcome)


def test_a_visit_lasts_from_its_first_installation_to_its_return(stage: RolloutStage) -> None:
    now = stage.clock.now()
    visit = (
        act(Verb.DRAIN, now - 60 * MINUTE),
        act(Verb.INSTALL, now),
        act(Verb.INSTALL, now + 5 * MINUTE, step=1),
        act(Verb.CHECK, now + 9 * MINUTE, suite="release"),
        act(Verb.RESUME, now + 11 * MINUTE, took=MINUTE),
    )

    assert measured_visits(visit, canary_suite="release_canary").others == [12 * MINUTE]


@pytest.mark.parametrize(("suite", "canaries", "others"), [("release_canary", 1, 0), ("release", 0, 1), ("", 0, 1)])
def test_a_visit_with_the_longer_tests_is_a_canary(stage: RolloutStage, suite: str, canaries: int, others: int) -> None:
    now = stage.clock.now()
    visit = (
        act(Verb.INSTALL, now),
        *([act(Verb.CHECK, now, suite=suite)] if suite else []),
        act(Verb.RESUME, now + MINUTE),
    )

    found = measured_visits(visit, canary_suite="release_canary")

    assert (len(found.canaries), len(found.others)) == (canaries, others)


@pytest.mark.parametrize(
    "last",
    [
        {"verb": Verb.RESUME, "took": None},
        {"verb": Verb.RESUME, "kind": OutcomeKind.FAILED},
        {"verb": Verb.RESUME, "on": "gpu002"},
        {"verb": Verb.RESUME, "number": 3},
        {"verb": Verb.CHECK, "suite": "release"},
    ],
)
def test_who_has_not_returned_from_this_visit_is_not_measured(stage: RolloutStage, last: dict[str, object]) -> None:
    now = stage.clock.now()
    records = (act(Verb.INSTALL, now), act(at=now + MINUTE, **last))  # type: ignore[arg-type]

    assert measured_visits(records, canary_suite="release_canary").others == []


def test_ways_back_are_not_measured(stage: RolloutStage) -> None:
    now = stage.clock.now()
    back = (act(Verb.INSTALL, now, direction=Direction.BACK), act(Verb.RESUME, now + MINUTE))

    assert measured_visits(back, canary_suite="release_canary").others == []
