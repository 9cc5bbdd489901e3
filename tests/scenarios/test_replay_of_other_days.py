"""Replays of days that were not plain: yeses by link, refusals, isolation, new rules half-way, another catalogue."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.action import Verb
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.record import ApprovalLinks
from ops_pipelines.people import orders
from ops_pipelines.people.orders import link_for, read_link
from ops_pipelines.resources.web_access import KeyFileSeal
from ops_pipelines.review.replay import replay
from ops_pipelines.review.replay_result import Difference, Replay
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.scenarios.ladder_stage import Stage
from tests.scenarios.small_autopilot import POLICY
from tests.scenarios.test_isolation import QUICK_TO_SPREAD, link_down, shown
from tests.scenarios.test_replay_of_yesterday import RecordingAutopilot, history_of
from tests.simulator.fake_clock import BEGINNING
from tests.simulator.small_cluster import TRAINING

HOUR = timedelta(hours=1)
END = BEGINNING + timedelta(days=1)
ASKING = replace(
    POLICY,
    consents={ActionClass.REBOOT: Consent.APPROVE},
    drain_budget=replace(POLICY.drain_budget, max_out_count=1),
)


class RecordingStage(RecordingAutopilot, Stage):
    """The ladder's stage, with rules and refusals kept as in production."""


def again(autopilot: RecordingAutopilot, policy: Policy) -> Replay:
    return replay(history_of(autopilot.cluster), policy, proposed="new.yaml", since=BEGINNING, until=END)


def is_exact(found: Replay) -> bool:
    made = found.reproduction
    return 0 < made.decision_count == made.same_count and not made.different


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> RecordingAutopilot:
    """A day on which a reboot needed an approval, which came by link, and the budget let only one of two nodes go."""
    autopilot = RecordingAutopilot(tmp_path_factory.mktemp("asking"), TRAINING, node_count=5, policy=ASKING)
    key = autopilot.directory / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    links = ApprovalLinks(seal=KeyFileSeal(key), base_url="https://ops.example.org", life=HOUR)
    autopilot.cluster = replace(autopilot.cluster, approval_links=links)
    autopilot.keep_rules()
    autopilot.let_pass(15)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.run_for(25)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu004", gpu=1)
    autopilot.run_for(9)
    plan = autopilot.incidents()[0].plan
    assert plan is not None
    link = link_for(plan, autopilot.cluster, person="ada")
    assert link is not None
    orders.approve_by_link(read_link(link.rsplit("/", 1)[1], autopilot.cluster), autopilot.cluster)
    autopilot.run_for(40)
    return autopilot


def test_a_day_of_yeses_by_link_and_refusals_comes_out_the_same(asking: RecordingAutopilot) -> None:
    found = again(asking, ASKING)

    assert is_exact(found)
    assert {act.difference for act in found.acts} == {Difference.SAME}
    assert found.then == found.new
    assert found.then.approval_count >= 1
    assert found.then.refusals["drain_budget"] >= 1
    (reboot,) = [act for act in found.acts if act.verb is Verb.REBOOT and act.done_at is not None]
    (drain,) = [act for act in found.acts if act.verb is Verb.DRAIN and act.incident == reboot.incident]
    assert reboot.at > drain.at


def test_without_the_consents_the_reboot_comes_earlier_and_says_what_it_waited_for(asking: RecordingAutopilot) -> None:
    found = again(asking, replace(ASKING, consents={}))

    first = asking.incidents()[0].incident
    of_first = {act.verb: act for act in found.acts if act.incident == first}
    assert is_exact(found)
    assert of_first[Verb.DRAIN].difference is Difference.SAME
    assert of_first[Verb.REBOOT].difference is Difference.OTHER_MOMENT
    assert of_first[Verb.REBOOT].why.startswith("approval: ")
    assert [each.key for each in found.policy_differences] == ["consents.reboot"]


def test_what_a_new_policy_forbids_is_done_on_no_yes_of_then(asking: RecordingAutopilot) -> None:
    found = again(asking, replace(ASKING, consents={ActionClass.REBOOT: Consent.FORBID}))

    assert is_exact(found)
    assert all(act.verb is not Verb.REBOOT for act in found.acts if act.plan_new is not None)
    assert any(act.verb is Verb.REBOOT and act.difference is Difference.ONLY_THEN for act in found.acts)


def test_a_yes_that_nothing_was_begun_on_begins_nothing_on_either_side(tmp_path: Path) -> None:
    careful = replace(POLICY, mode=Mode.APPROVE)
    autopilot = RecordingAutopilot(tmp_path, node_count=5, policy=careful)
    autopilot.keep_rules()
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu002", gpu=1)
    autopilot.run_for(6)
    plan = autopilot._plans[-1].plan
    orders.approve(plan, autopilot.cluster, actor="ada", valid_for=timedelta(seconds=1))
    autopilot.let_pass(5)
    autopilot.run_for(6)

    found = again(autopilot, careful)

    assert is_exact(found)
    assert (found.acts, found.then.approval_count) == ((), 1)


def test_a_day_of_isolation_comes_out_the_same(tmp_path: Path) -> None:
    stage = RecordingStage(tmp_path, node_count=2, policy=QUICK_TO_SPREAD)
    stage.keep_rules()
    shown(stage, link_down(stage))
    stage.run_for(20)
    shown(stage)
    stage.run_until(IncidentState.RESOLVED)

    found = again(stage, QUICK_TO_SPREAD)

    assert is_exact(found)
    assert {act.difference for act in found.acts} == {Difference.SAME}
    assert Verb.DRAIN in {act.verb for act in found.acts}


def test_rules_that_changed_half_way_are_each_compared_with_their_own_decisions(tmp_path: Path) -> None:
    """Observed until a restart with another policy; the catalogue forgets Xid 79 at the same time, and again today."""
    observing = replace(POLICY, mode=Mode.OBSERVE)
    autopilot = RecordingAutopilot(tmp_path, node_count=8, policy=observing)
    autopilot.keep_rules()
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu002", gpu=3)
    autopilot.run_for(6)
    known = autopilot.cluster.rules.catalogue
    forgetful = replace(known, xids={code: rule for code, rule in known.xids.items() if code != 79})
    autopilot.restart()
    autopilot.cluster = replace(
        autopilot.cluster, rules=replace(autopilot.cluster.rules, policy=POLICY, catalogue=forgetful)
    )
    autopilot.keep_rules()
    changed_at = autopilot.clock.now()
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu005", gpu=3)
    autopilot.run_for(12)
    autopilot.cluster = replace(autopilot.cluster, rules=replace(autopilot.cluster.rules, catalogue=known))

    as_now, as_before = again(autopilot, POLICY), again(autopilot, observing)

    assert is_exact(as_now)
    assert is_exact(as_before)
    assert as_now.policies_then_count == as_before.policies_then_count == 2
    assert any("2 different rules decided" in each for each in as_now.cautions)
    later = [act for act in as_now.acts if act.then_at is not None]
    assert later
    assert all(act.then_at is not None and act.then_at >= changed_at for act in later)
    waited = [act for act in as_now.acts if act.at < changed_at]
    assert {act.difference for act in waited} == {Difference.OTHER_MOMENT}
    assert all(act.why.startswith("mode: ") for act in waited)
    assert {act.difference for act in as_now.acts if act.at >= changed_at} == {Difference.SAME}
    assert as_before.then.node_act_count > as_before.new.node_act_count == 0
