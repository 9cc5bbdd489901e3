"""The judge sees what no guardrail names: commands that stand in no ledger, that come twice, that rest on old news."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ops_pipelines.core.action import Action, ActionRecord, Verb
from ops_pipelines.core.identity import IncidentId, JobId, PlanId, is_rollout
from ops_pipelines.core.policy import BlastCaps, MassEvent, Mode
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.guardrails.facts import drain_reason
from ops_pipelines_lab.simulator import ground_truth
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.ports.proved_plans import allow, as_step
from tests.safety.directed_stories import PASS, break_by, lose_gpu, wait
from tests.safety.hostile_plans import WEDGE, WIDE, attempt_to_send, on_job, on_node
from tests.safety.lies import SchedulerLie
from tests.safety.moves import Move, MoveKind, make
from tests.safety.stage import Leases, Setting, Stage, name_of
from tests.safety.stories import Story, play


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path, Setting(budget=WIDE))
    stage.process("first").cluster.scheduler.read_nodes()
    stage.process("first").cluster.scheduler.read_jobs()
    yield stage
    stage.close()


def test_command_that_the_ledger_does_not_know_is_seen(stage: Stage) -> None:
    stage.process("first").cluster.scheduler.drain([name_of(3)], reason="ops_pipelines INC-0001: by the way")

    assert stage.judge.broken_rules == {"before_entry"}


def test_commands_of_a_rollout_are_judged_by_what_the_ledger_has_of_them(stage: Stage) -> None:
    cluster, now = stage.process("first").cluster, stage.own_clock.now()
    cause = IncidentId("ROLL-0001")
    drain = replace(on_node(Verb.DRAIN, 3), incident=cause, text=drain_reason(cause, "driver"))
    restart = replace(on_node(Verb.REBOOT, 3), incident=cause, part="0 forward")
    for action in (drain, restart):
        record = ActionRecord(action=action, plan=PlanId("PLAN-R1"), begun_at=now)
        cluster.ledger.begin(record, guard=allow, lease_token=None, actor="autopilot", now=now)

    cluster.scheduler.drain([name_of(3)], reason=drain.text)
    cluster.fleet.reboot(name_of(3), reason=restart.text)

    assert stage.judge.watched[Verb.DRAIN] == stage.judge.watched[Verb.REBOOT] == 1
    assert stage.judge.broken_rules.isdisjoint({"before_entry", "consent", "approval"})


def _send(stage: Stage, verb: Verb, index: int, *, cause: str) -> None:
    """Send a command that no guardrail has looked at, with its before-entry."""
    cluster, incident = stage.process("first").cluster, IncidentId(cause)
    text = drain_reason(incident, "driver") if verb is Verb.DRAIN else "driver"
    action = replace(on_node(verb, index), incident=incident, text=text, part="0 forward")
    plan = PlanId("PLAN-R1") if is_rollout(incident) else None
    record = as_step(ActionRecord(action=action, plan=plan, begun_at=stage.own_clock.now()), cluster.ledger)
    cluster.ledger.begin(record, guard=allow, lease_token=None, actor="autopilot", now=stage.own_clock.now())
    if verb is Verb.DRAIN:
        cluster.scheduler.drain([name_of(index)], reason=text)
    elif verb is Verb.RESUME:
        cluster.scheduler.resume(name_of(index))
    else:
        cluster.fleet.reboot(name_of(index), reason=text)


def test_act_of_an_incident_on_a_node_that_a_rollout_has_is_seen(stage: Stage) -> None:
    _send(stage, Verb.DRAIN, 3, cause="ROLL-0001")
    _send(stage, Verb.REBOOT, 3, cause="INC-0001")

    assert "owned" in stage.judge.broken_rules


def test_act_of_a_rollout_on_a_node_that_an_incident_has_is_seen(stage: Stage) -> None:
    _send(stage, Verb.DRAIN, 3, cause="INC-0001")
    stage.process("first").cluster.scheduler.read_nodes()
    _send(stage, Verb.REBOOT, 3, cause="ROLL-0001")

    assert "owned" in stage.judge.broken_rules


@pytest.mark.parametrize(("count", "broken"), [(1, set()), (2, {"rollout_share"})])
def test_more_nodes_out_for_updates_than_allowed_are_seen(stage: Stage, count: int, broken: set[str]) -> None:
    for index in range(2, 2 + count):
        _send(stage, Verb.DRAIN, index, cause="ROLL-0001")
        stage.process("first").cluster.scheduler.read_nodes()

    assert stage.judge.broken_rules & {"rollout_share"} == broken


def test_return_of_an_updated_node_without_a_test_is_seen(stage: Stage) -> None:
    _send(stage, Verb.DRAIN, 3, cause="ROLL-0001")
    install = replace(on_node(Verb.REBOOT, 3), verb=Verb.INSTALL, incident=IncidentId("ROLL-0001"), part="0 forward")
    cluster, now = stage.process("first").cluster, stage.own_clock.now()
    record = ActionRecord(action=install, plan=PlanId("PLAN-R1"), begun_at=now)
    cluster.ledger.begin(record, guard=allow, lease_token=None, actor="autopilot", now=now)
    cluster.scheduler.read_nodes()
    _send(stage, Verb.RESUME, 3, cause="ROLL-0001")

    assert "proven" in stage.judge.broken_rules


def test_second_reboot_for_one_cause_is_seen(stage: Stage) -> None:
    attempt_to_send(on_node(Verb.DRAIN, 3), stage)
    reboot = on_node(Verb.REBOOT, 3)
    attempt_to_send(reboot, stage, times=1)

    with suppress(SourceError):
        stage.process("first").cluster.fleet.reboot(name_of(3), reason=reboot.text)

    assert stage.judge.broken_rules == {"twice"}


def test_reboot_that_took_effect_without_an_answer_is_not_sent_again(stage: Stage) -> None:
    attempt_to_send(on_node(Verb.DRAIN, 3), stage)
    make(Move(kind=MoveKind.LOSE_ANSWER), stage)

    attempt_to_send(on_node(Verb.REBOOT, 3), stage, times=30)

    assert stage.judge.violations == []
    assert stage.judge.watched[Verb.REBOOT] == 1


@pytest.mark.parametrize(("seconds", "broken"), [(29.0, set()), (30.0, set()), (31.0, {"fresh_reading"})])
def test_command_on_old_news_is_seen(stage: Stage, seconds: float, broken: set[str]) -> None:
    attempt_to_send(on_job(Verb.HOLD, stage), stage, times=1)
    stage.true_clock.wait(seconds)

    stage.process("first").cluster.scheduler.hold(JobId("1001"))

    assert stage.judge.broken_rules - {"twice", "fresh_telemetry"} == broken


def test_batch_of_drains_is_counted_as_a_whole(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Setting())  # two nodes may be out
    scheduler = stage.process("first").cluster.scheduler
    scheduler.read_nodes()
    scheduler.read_jobs()

    scheduler.drain([name_of(0), name_of(2), name_of(3)], reason="ops_pipelines INC-0001: a storm")

    over = [violation for violation in stage.judge.violations if violation.rule == "max_out_count"]
    assert [violation.command.node for violation in over] == [name_of(3)]
    stage.close()


@pytest.mark.parametrize(
    ("is_drained", "min_node_count", "broken"),
    [
        pytest.param(True, 2, {"storm_brake"}, id="the node itself counts"),
        pytest.param(True, 3, set(), id="its spares do not"),
        pytest.param(False, 2, {"storm_brake"}, id="a cause of which only spares are seen counts"),
        pytest.param(False, 3, set(), id="and once, however many they are"),
    ],
)
def test_kept_spares_stand_in_a_storm_for_their_cause_alone(
    tmp_path: Path, is_drained: bool, min_node_count: int, broken: set[str]
) -> None:
    stage = Stage(tmp_path, Setting(budget=WIDE, node_count=6, caps=BlastCaps(max_out_per_partition_ratio=1.0)))
    storm = MassEvent(min_node_count=min_node_count)
    stage.judge.orders = replace(stage.orders, policy=replace(stage.orders.policy, mass_event=storm))
    attempt_to_send(_drain_for("INC-0002", 4), stage)
    if is_drained:
        attempt_to_send(on_node(Verb.DRAIN, 0), stage)
    attempt_to_send(replace(on_job(Verb.HOLD, stage), verb=Verb.RESERVE, spares=(name_of(2), name_of(3))), stage)

    attempt_to_send(_drain_for("INC-0003", 5), stage)

    assert stage.judge.watched == {Verb.DRAIN: 2 + is_drained, Verb.RESERVE: 2}
    assert stage.judge.broken_rules == broken
    stage.close()


def _drain_for(cause: str, index: int) -> Action:
    incident = IncidentId(cause)
    return replace(on_node(Verb.DRAIN, index), incident=incident, text=drain_reason(incident, "a test"))


@pytest.mark.parametrize(
    ("by_its_owner", "is_seen"),
    [(EntryKind.CANCEL, False), (EntryKind.REQUEUE, True)],
    ids=["ends for good", "would start elsewhere"],
)
def test_hold_of_a_replica_that_its_owner_ended_takes_nothing_unless_it_would_start_again(
    tmp_path: Path, by_its_owner: EntryKind, is_seen: bool
) -> None:
    stage = Stage(tmp_path, Setting(budget=WIDE, replica_count=2))
    for move in (break_by(FaultKind.NODE_UNREACHABLE, 3), PASS, wait(6), PASS, wait(6)):
        make(move, stage)
    stage.twin.command(by_its_owner, job="1002")
    scheduler = stage.process("first").cluster.scheduler
    scheduler.read_nodes()
    scheduler.read_jobs()

    with suppress(SourceError):
        scheduler.hold(JobId("1002"))

    assert ("serving_truth" in stage.judge.broken_rules) is is_seen
    stage.close()


def test_second_writer_after_a_release_is_found_at_the_end(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Setting(budget=WIDE))
    scheduler = stage.process("first").cluster.scheduler
    make(Move(kind=MoveKind.BREAK, node=1, number=WEDGE), stage)
    stage.true_clock.wait(5.0)
    scheduler.hold(JobId("1001"))
    stage.twin.command(EntryKind.DECLARE_DOWN, nodes=(name_of(1),), reason="does not answer")
    scheduler.release(JobId("1001"))
    stage.true_clock.wait(30.0)

    assert [found.split(":")[0] for found in stage.faults_at_the_end()] == ["split_brain"]
    stage.close()


def test_line_of_the_ledger_that_was_changed_is_found_at_the_end(stage: Stage) -> None:
    attempt_to_send(on_node(Verb.DRAIN, 3), stage)
    stage.database.own.execute("update entries set actor = 'somebody else' where seq = 1")

    assert [found.split(":")[0] for found in stage.faults_at_the_end()] == ["chain"]


@pytest.mark.parametrize("lie", SchedulerLie)
def test_no_lie_of_the_scheduler_leads_to_an_unsafe_act(lie: SchedulerLie) -> None:
    bend = Move(kind=MoveKind.BEND_SCHEDULER, node=3, number=list(SchedulerLie).index(lie))
    moves = (lose_gpu(0), PASS, bend, lose_gpu(3), PASS, Move(kind=MoveKind.WAIT, number=6), PASS)

    verdict = play(Story(setting=Setting(leases=Leases.SHARED), moves=moves))

    assert verdict.violations == ()


@pytest.mark.parametrize("is_told", [True, False])
def test_overlap_that_nobody_is_told_of_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    if not is_told:
        monkeypatch.setattr("tests.safety.stage.see_to_overlaps", lambda *_, **__: None)
    setting = Setting(budget=WIDE, mode=Mode.OBSERVE, slurmd_timeout_seconds=10.0, leases=Leases.HANDED_OVER)
    stage = Stage(tmp_path, setting)

    for move in (PASS, break_by(FaultKind.NODE_UNREACHABLE, 0), wait(18), wait(18), PASS):
        make(move, stage)

    assert len(ground_truth.read_split_brains(stage.twin)) == 1
    assert [found.split(":")[0] for found in stage.faults_at_the_end()] == ([] if is_told else ["untold_overlap"])
    stage.close()


def test_two_writers_under_the_start_guard_are_found_whoever_made_them(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Setting(budget=WIDE, slurmd_timeout_seconds=10.0))
    stage.setting = replace(stage.setting, has_start_guard=True)  # It is stated to be there, and is not.

    for move in (break_by(FaultKind.NODE_UNREACHABLE, 0), wait(18), wait(18)):
        make(move, stage)

    assert [found.split(":")[0] for found in stage.faults_at_the_end()] == ["split_brain"]
    stage.close()
