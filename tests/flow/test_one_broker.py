"""In the running program too: what a rollout has is nobody else's, and it acts within its plan and its yes."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.entries import AUTOPILOT, Begun, LedgerState
from ops_pipelines.core.identity import IncidentId, NodeName, PlanId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.plan import Order
from ops_pipelines.core.policy import Mode, RolloutLimits
from ops_pipelines.core.proof import ActProof, Authority, Patience, Refusal
from ops_pipelines.core.rollout import NodeStage, Rollout, RolloutState
from ops_pipelines.remediate.by_hand import ByHandRefused, drain_by_hand, return_by_hand
from ops_pipelines.remediate.guardrails.facts import drain_reason
from ops_pipelines.remediate.judgement import ActJudge, authority_of, read_facts
from ops_pipelines.remediate.oversight import remind_of_waiting, settle_left_behind
from ops_pipelines.remediate.perform import Progress, Stage, perform
from ops_pipelines.remediate.probation import put_back_what_was_left
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.ports.proved_plans import allow
from tests.ports.rollout_samples import RELEASE, node, rollout, rollout_plan
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.small_cluster import GPU1, GPU2, GPU3

PLAN = PlanId("PLAN-R1")
CAUSE = IncidentId("ROLL-0001")
LIMITS = replace(POLICY, rollouts=RolloutLimits(max_out_count=2))


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, node_count=4, policy=LIMITS)
    autopilot.let_pass(5)
    return autopilot


def begin_rollout(autopilot: SmallAutopilot, *in_hand: NodeName, **changes: object) -> Rollout:
    """Open a rollout of three nodes of which some are in hand, and none is drained yet."""
    opened = replace(rollout(1, nodes=(GPU1, GPU2, GPU3)), **changes)  # type: ignore[arg-type]
    wave_of = {name: wave.number for wave in opened.waves for name in wave.nodes}
    nodes = [
        node(1, name, wave=wave_of[name], stage=NodeStage.DRAINING if name in in_hand else NodeStage.PENDING)
        for name in (GPU1, GPU2, GPU3)
    ]
    autopilot.cluster.ledger.open_rollout(
        opened, nodes, plan=rollout_plan(opened), release=RELEASE, actor="ada", now=autopilot.clock.now()
    )
    return opened


def of_rollout(verb: Verb, *, on: NodeName = GPU1) -> Action:
    part = "0 forward" if verb is Verb.INSTALL else ""
    text = drain_reason(CAUSE, "driver 580") if verb is Verb.DRAIN else ""
    return Action(verb=verb, incident=CAUSE, node=on, part=part, text=text, try_number=2)


def do(autopilot: SmallAutopilot, action: Action, *, plan: PlanId = PLAN) -> Progress:
    progress = perform(Order(action=action, behind=plan), autopilot.cluster, lease=autopilot.lease)
    if progress.stage is Stage.UNDER_WAY:
        progress = perform(Order(action=action, behind=plan), autopilot.cluster, lease=autopilot.lease)
    return progress


def begin(autopilot: SmallAutopilot, action: Action) -> None:
    """Write a before-entry, and send nothing."""
    ledger, now = autopilot.cluster.ledger, autopilot.clock.now()
    record = ActionRecord(action=action, plan=PLAN, begun_at=now)
    answer = ledger.begin(record, guard=allow, lease_token=None, actor=AUTOPILOT, now=now)
    assert isinstance(answer, Begun)


def state_of(autopilot: SmallAutopilot) -> LedgerState:
    return autopilot.cluster.ledger.read_state(autopilot.clock.now())


def judged(autopilot: SmallAutopilot, action: Action, *, plan: PlanId = PLAN) -> Refusal | None:
    """Return why an act would be refused; the second opinion has nothing against one that is not."""
    cluster = autopilot.cluster
    facts = read_facts({action.verb}, cluster)
    found = ActJudge(facts, cluster).judge(action, plan, state_of(autopilot))
    assert not (isinstance(found, ActProof) and found.contradictions)
    return found if isinstance(found, Refusal) else None


# -- the rollout's own acts --


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        pytest.param({}, None, id="running"),
        pytest.param({"state": RolloutState.PAUSED}, "plan_in_force", id="paused"),
        pytest.param({"state": RolloutState.SOAKING}, "plan_in_force", id="its wave soaks"),
        pytest.param({"state": RolloutState.GOING_BACK}, "plan_in_force", id="it rolls back"),
        pytest.param({"yes_through": 0}, "approval", id="nobody approved"),
        pytest.param({"yes_through": 1}, None, id="an approval through its wave"),
    ],
)
def test_a_node_is_begun_while_its_rollout_runs_and_the_yes_covers_its_wave(
    autopilot: SmallAutopilot, changes: dict[str, object], rule: str | None
) -> None:
    begin_rollout(autopilot, GPU1, **changes)

    refusal = judged(autopilot, of_rollout(Verb.DRAIN))

    assert (None if refusal is None else refusal.guardrail) == rule
    assert refusal is None or refusal.patience is Patience.WAIT


def test_a_yes_covers_no_wave_beyond_its_own(autopilot: SmallAutopilot) -> None:
    begin_rollout(autopilot, GPU1, GPU2, yes_through=1)

    refusal = judged(autopilot, of_rollout(Verb.DRAIN, on=GPU2))

    assert refusal is not None
    assert refusal.guardrail == "approval"
    assert "gpu002 is of wave 2" in refusal.reason


def test_a_node_in_hand_is_finished_in_every_state(autopilot: SmallAutopilot) -> None:
    opened = begin_rollout(autopilot, GPU1)
    assert do(autopilot, of_rollout(Verb.DRAIN)).stage is Stage.DONE
    ledger, now = autopilot.cluster.ledger, autopilot.clock.now()
    paused = replace(opened, state=RolloutState.PAUSED, paused_from=RolloutState.RUNNING, since=now)
    ledger.change_rollout(paused, (), actor="ada", now=now)

    assert judged(autopilot, of_rollout(Verb.INSTALL)) is None
    assert judged(autopilot, of_rollout(Verb.RESUME)) is None


def test_an_act_of_another_plan_or_of_no_rollout_is_never_begun(autopilot: SmallAutopilot) -> None:
    begin_rollout(autopilot, GPU1)
    unknown = replace(of_rollout(Verb.DRAIN), incident=IncidentId("ROLL-0007"))

    for refusal in (
        judged(autopilot, of_rollout(Verb.DRAIN), plan=PlanId("PLAN-9")),
        judged(autopilot, unknown),
    ):
        assert refusal is not None
        assert (refusal.guardrail, refusal.patience) == ("plan_in_force", Patience.NEVER)


def test_the_mark_of_a_node_is_taken_off_when_its_rollout_is_over(autopilot: SmallAutopilot) -> None:
    autopilot.twin.command(EntryKind.PUT_LAST, nodes=(GPU1,))

    progress = do(autopilot, of_rollout(Verb.PUT_BACK))

    assert progress.stage is Stage.DONE
    assert not autopilot.node(GPU1).is_last_choice


def test_the_yes_to_a_rollout_is_the_word_on_which_it_acts(autopilot: SmallAutopilot) -> None:
    begin_rollout(autopilot, GPU1)
    asking = replace(LIMITS, mode=Mode.APPROVE)
    silent = state_of(autopilot)
    said = replace(silent, rollouts=tuple(replace(each, yes_by="ada") for each in silent.rollouts))

    assert authority_of(PLAN, silent, asking, actor=AUTOPILOT) is Authority.AUTOPILOT
    assert authority_of(PLAN, said, asking, actor=AUTOPILOT) is Authority.APPROVED_PLAN
    assert authority_of(PlanId("PLAN-9"), said, asking, actor=AUTOPILOT) is Authority.AUTOPILOT


# -- everybody else --


def test_a_person_drains_and_returns_no_node_that_a_rollout_has(autopilot: SmallAutopilot) -> None:
    begin_rollout(autopilot, GPU1)
    do(autopilot, of_rollout(Verb.DRAIN))

    for by_hand in (drain_by_hand, return_by_hand):
        with pytest.raises(ByHandRefused, match="gpu001 is being updated by ROLL-0001"):
            by_hand(GPU1, autopilot.cluster, lease=autopilot.lease, actor="day-shift", why="fan")

    assert state_of(autopilot).incidents == ()
    assert autopilot.node(GPU1).is_drained


def test_a_person_is_first_where_the_drain_of_a_rollout_waits(autopilot: SmallAutopilot) -> None:
    begin_rollout(autopilot, GPU1)
    incident = drain_by_hand(GPU1, autopilot.cluster, lease=autopilot.lease, actor="day-shift", why="fan")

    waits = do(autopilot, of_rollout(Verb.DRAIN))
    return_by_hand(GPU1, autopilot.cluster, lease=autopilot.lease, actor="day-shift", why="done")
    begins = do(autopilot, of_rollout(Verb.DRAIN))

    assert waits.stage is Stage.WAITING
    assert incident.incident in waits.reason
    assert begins.stage is Stage.DONE


def test_a_fault_on_a_node_that_is_drained_for_an_update_waits(autopilot: SmallAutopilot) -> None:
    begin_rollout(autopilot, GPU1)
    do(autopilot, of_rollout(Verb.DRAIN))
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=1)
    autopilot.let_pass(120)

    autopilot.run_once()

    (incident,) = state_of(autopilot).incidents
    assert (incident.nodes, incident.state) == ({GPU1}, IncidentState.OPEN)
    assert autopilot.received(EntryKind.REBOOT) == ()
    assert autopilot.pages() == []


def test_what_a_change_did_to_its_node_pages_nobody_however_long_it_takes(autopilot: SmallAutopilot) -> None:
    begin_rollout(autopilot, GPU1)
    do(autopilot, of_rollout(Verb.DRAIN))
    begin(autopilot, of_rollout(Verb.INSTALL))
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=1)
    autopilot.let_pass(LIMITS.durations.waiting_limit.total_seconds() + 120)
    autopilot.run_once()
    autopilot.let_pass(LIMITS.durations.waiting_limit.total_seconds() + 1)

    reminded = remind_of_waiting(autopilot.cluster, lease=autopilot.lease)

    assert state_of(autopilot).incidents == ()
    assert reminded == ()
    assert autopilot.pages() == []


def test_a_rollout_follows_its_own_acts(autopilot: SmallAutopilot) -> None:
    begin_rollout(autopilot, GPU1)
    do(autopilot, of_rollout(Verb.DRAIN))
    begin(autopilot, of_rollout(Verb.INSTALL))
    autopilot.let_pass(3 * LIMITS.rollouts.install_limit.total_seconds())

    settled_count = settle_left_behind(autopilot.cluster)

    assert settled_count == 0
    outcomes = {each.action.verb: each.outcome for each in autopilot.cluster.ledger.records(CAUSE)}
    assert outcomes[Verb.INSTALL] is None


def test_the_mark_of_a_node_that_soaks_stays(autopilot: SmallAutopilot) -> None:
    autopilot.use_policy(replace(LIMITS, durations=replace(LIMITS.durations, probation=timedelta(hours=6))))
    begin_rollout(autopilot, GPU1)
    for verb in (Verb.DRAIN, Verb.PUT_LAST, Verb.RESUME):
        assert do(autopilot, of_rollout(verb)).stage is Stage.DONE

    put_back_what_was_left(autopilot.cluster, lease=autopilot.lease)

    assert autopilot.node(GPU1).is_last_choice
    kinds = {each.outcome.kind for each in autopilot.cluster.ledger.records(CAUSE) if each.outcome is not None}
    assert kinds == {OutcomeKind.DONE}
