"""The whole loop where single classes of acts need an approval, or are forbidden: what continues alone, and what
waits."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.entries import ApprovalWay
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.policy import ActionClass, Consent
from ops_pipelines.core.record import ApprovalLinks
from ops_pipelines.people import orders
from ops_pipelines.people.orders import link_for, read_link
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.resources.web_access import KeyFileSeal
from ops_pipelines_lab.simulator import ground_truth
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.small_cluster import TRAINING

HOUR = timedelta(hours=1)


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.let_pass(15)
    return autopilot


def ask_for(autopilot: SmallAutopilot, **consents: str) -> None:
    policy = replace(POLICY, consents={ActionClass(kind): Consent(word) for kind, word in consents.items()})
    autopilot.use_policy(policy)


def lose_gpu(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)


def say_yes(autopilot: SmallAutopilot, *, valid_for: timedelta = HOUR) -> None:
    plan = autopilot.incident().plan or autopilot._plans[-1].plan
    orders.approve(plan, autopilot.cluster, actor="ada", valid_for=valid_for)


def with_links(autopilot: SmallAutopilot) -> None:
    key = autopilot.directory / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    links = ApprovalLinks(seal=KeyFileSeal(key), base_url="https://ops.example.org", life=HOUR)
    autopilot.cluster = replace(autopilot.cluster, approval_links=links)


def test_node_is_drained_and_its_job_moved_by_itself_and_rebooted_on_a_yes_by_link(autopilot: SmallAutopilot) -> None:
    ask_for(autopilot, reboot="approve")
    with_links(autopilot)
    lose_gpu(autopilot)

    autopilot.run_for(40)
    half_way, plan = autopilot.incident(), autopilot.incident().plan
    before = (half_way.state, autopilot.commands(), autopilot.job().state)
    assert plan is not None
    link = link_for(plan, autopilot.cluster, person="ada")
    assert link is not None
    orders.approve_by_link(read_link(link.rsplit("/", 1)[1], autopilot.cluster), autopilot.cluster)
    autopilot.run_until(IncidentState.RESOLVED)

    state, commands, job_state = before
    assert state is IncidentState.ACTING
    assert EntryKind.DRAIN in commands
    assert EntryKind.REBOOT not in commands
    assert job_state is JobState.RUNNING
    assert len(autopilot.received(EntryKind.REBOOT)) == 1
    assert ground_truth.read_nodes(autopilot.twin)[0].is_healthy
    assert not autopilot.node("gpu001").is_drained
    (approval,) = autopilot.cluster.ledger.read_state(autopilot.clock.now()).approvals
    assert (approval.actor, approval.via, approval.plan) == ("ada", ApprovalWay.LINK, plan)


def test_drain_that_needed_nobody_is_no_yes_to_the_reboot_and_an_expired_yes_is_none_either(
    autopilot: SmallAutopilot,
) -> None:
    ask_for(autopilot, reboot="approve")
    lose_gpu(autopilot)
    autopilot.run_for(20)
    lease, autopilot.lease = autopilot.lease, Lease(holder="old", given="an outdated token")
    say_yes(autopilot, valid_for=timedelta(seconds=5))
    autopilot.let_pass(5)
    autopilot.lease = lease

    autopilot.run_for(20)

    assert EntryKind.REBOOT not in autopilot.commands()
    assert autopilot.incident().state is IncidentState.ACTING


def test_forbidden_reboot_leaves_the_node_drained_the_job_moved_and_a_person_paged_by_name(
    autopilot: SmallAutopilot,
) -> None:
    ask_for(autopilot, reboot="forbid")
    lose_gpu(autopilot)

    autopilot.run_until(IncidentState.ESCALATED)

    assert autopilot.node("gpu001").is_drained
    assert autopilot.job().state is JobState.RUNNING
    assert autopilot.node("gpu001").node not in autopilot.job().nodes
    assert EntryKind.REBOOT not in autopilot.commands()
    assert ["consents.reboot: forbid" in page.body for page in autopilot.pages()] == [True]
    with pytest.raises(ByHandRefused, match="no longer waits"):
        say_yes(autopilot)


def test_no_job_is_touched_before_the_yes_to_its_move(autopilot: SmallAutopilot) -> None:
    ask_for(autopilot, move_jobs="approve")
    lose_gpu(autopilot)

    autopilot.run_for(30)
    before = autopilot.commands()
    say_yes(autopilot)
    autopilot.run_until(IncidentState.RESOLVED)

    assert set(before) == {EntryKind.DRAIN}
    assert autopilot.received(EntryKind.RELEASE, EntryKind.REBOOT) != ()


def test_what_is_held_is_released_although_moving_is_forbidden_by_now(autopilot: SmallAutopilot) -> None:
    durations = replace(POLICY.durations, run_patience=timedelta(0))
    autopilot.use_policy(replace(POLICY, durations=durations))
    lose_gpu(autopilot)
    while EntryKind.HOLD not in autopilot.commands():
        autopilot.run_once()
        autopilot.let_pass(0.5)

    ask_for(autopilot, move_jobs="forbid", reboot="approve")
    autopilot.run_for(40)

    assert autopilot.received(EntryKind.RELEASE) != ()
    assert autopilot.job().state is JobState.RUNNING
    assert EntryKind.REBOOT not in autopilot.commands()


def test_job_of_a_silent_node_is_not_held_while_nobody_may_cut_the_power(autopilot: SmallAutopilot) -> None:
    ask_for(autopilot, power="approve")
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")

    autopilot.run_for(30)
    before = (autopilot.incident().state, autopilot.commands())
    say_yes(autopilot)
    autopilot.run_until(IncidentState.RESOLVED, seconds=240)

    assert before == (IncidentState.ACTING, [EntryKind.DRAIN])
    assert autopilot.received(EntryKind.HOLD, EntryKind.POWER_OFF, EntryKind.RELEASE) != ()
    assert not autopilot.node("gpu001").is_drained


def test_repaired_node_waits_for_the_yes_to_its_return(autopilot: SmallAutopilot) -> None:
    ask_for(autopilot, return_node="approve")
    lose_gpu(autopilot)

    autopilot.run_for(60)
    before = (autopilot.incident().state, autopilot.node("gpu001").is_drained)
    say_yes(autopilot)
    autopilot.run_until(IncidentState.RESOLVED)

    assert before == (IncidentState.VERIFYING, True)
    assert not autopilot.node("gpu001").is_drained


def test_node_that_may_not_be_returned_is_handed_over_well(autopilot: SmallAutopilot) -> None:
    ask_for(autopilot, return_node="forbid", check="forbid")
    lose_gpu(autopilot)

    autopilot.run_until(IncidentState.ESCALATED)

    assert autopilot.node("gpu001").is_drained
    assert ground_truth.read_nodes(autopilot.twin)[0].is_healthy
    assert any("consents.return_node: forbid" in page.body for page in autopilot.pages())
