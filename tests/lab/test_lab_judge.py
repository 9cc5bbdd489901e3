"""The lab's verdict: nothing twice, nothing lost, judged against what slurmctld wrote down (recorded, 22.05.8)."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from ops_pipelines.core.action import Action, OutcomeKind, Verb
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import IncidentId, NodeName, PciAddress
from ops_pipelines.core.incident import IncidentState, Try
from ops_pipelines_lab.drills.lab_judge import (
    find_kept_room,
    find_losses,
    find_repetitions,
    reasons_set,
    requeues,
    returns,
)
from ops_pipelines_lab.drills.lab_stage import Demand
from tests.domain.builders import NOW, action, attempt, begun, ended, incident

DRAINED_AND_MOVED = """\
[2026-11-21T10:29:12.908] update_node: node gpu001 reason set to: ops_pipelines INC-0001: Xid 79 (GPU_OFF_THE_BUS)
[2026-11-21T10:29:12.908] update_node: node gpu001 state set to DRAINING
[2026-11-21T10:29:13.489] Requeuing JobId=1
[2026-11-21T10:29:14.117] sched: _update_job: setting exc_nodes to gpu001 for JobId=1
[2026-11-21T10:29:14.473] sched: _release_job_rec: release hold on JobId=1 by uid 0
[2026-11-21T10:29:19.130] sched: Allocate JobId=1 NodeList=gpu[002-003] #CPUs=2 Partition=batch
[2026-11-21T10:29:26.729] update_node: node gpu001 state set to IDLE
[2026-11-21T10:29:27.156] Node gpu001 now responding
"""
SILENT_AND_DECLARED_DOWN = """\
[2026-11-21T10:40:50.589] update_node: node gpu004 reason set to: ops_pipelines INC-0004: the scheduler gets no answer
[2026-11-21T10:40:50.589] update_node: node gpu004 state set to DRAINED*
[2026-11-21T10:41:42.027] sched: _hold_job_rec: hold on JobId=3 by uid 0
[2026-11-21T10:41:51.688] update_node: node gpu004 reason set to: ops_pipelines INC-0004: the scheduler gets no answer
[2026-11-21T10:41:51.688] requeue job JobId=3 due to failure of node gpu004
[2026-11-21T10:41:51.688] update_node: node gpu004 state set to DOWN
[2026-11-21T10:41:54.405] Requeuing JobId=3
"""
OPERATOR = """\
[2026-11-21T10:43:06.100] update_node: node gpu011 reason set to: OPS-18 hands off
[2026-11-21T10:43:06.100] update_node: node gpu011 state set to DRAINED
"""


def test_each_time_that_we_gave_a_reason_counts() -> None:
    """Declaring a node down gives the reason again."""
    assert reasons_set(DRAINED_AND_MOVED + SILENT_AND_DECLARED_DOWN) == {"gpu001": 1, "gpu004": 2}


def test_operators_reasons_are_theirs() -> None:
    assert reasons_set(OPERATOR) == {}


def test_requeues_are_counted_for_each_job() -> None:
    log = DRAINED_AND_MOVED + SILENT_AND_DECLARED_DOWN + DRAINED_AND_MOVED

    assert requeues(log) == {"1": 2, "3": 1}


def test_only_a_command_that_ends_in_service_is_a_return() -> None:
    assert returns(DRAINED_AND_MOVED + SILENT_AND_DECLARED_DOWN + OPERATOR) == {"gpu001": 1}


# -- nothing twice --

MOVED = [
    ended(action(Verb.DRAIN, on="gpu001")),
    ended(action(Verb.HOLD, of=attempt("1"))),
    ended(action(Verb.REBOOT, on="gpu001")),
]
ONE_REBOOT = {(Verb.REBOOT, NodeName("gpu001")): 1}


def test_what_was_told_once_is_as_stated() -> None:
    assert unmet(find_repetitions(MOVED, resent={}, received=ONE_REBOOT, log=DRAINED_AND_MOVED)) == []


def test_second_reboot_is_found_in_the_machines_own_journal() -> None:
    received = {(Verb.REBOOT, NodeName("gpu001")): 2}

    assert unmet(find_repetitions(MOVED, resent={}, received=received, log=DRAINED_AND_MOVED)) == [
        "reboot of gpu001 was received 2 times, sent 1 times"
    ]


def test_second_drain_and_second_requeue_are_found_in_slurms_log() -> None:
    assert unmet(find_repetitions(MOVED, resent={}, received=ONE_REBOOT, log=DRAINED_AND_MOVED * 2)) == [
        "Slurm was given 2 times a reason why gpu001 is out, not 1",
        "Slurm requeued job 1 2 times, not 1",
    ]


def test_what_the_ledger_says_was_sent_again_may_be_received_again() -> None:
    resent = {record.action.key: 1 for record in MOVED}

    assert unmet(find_repetitions(MOVED, resent=resent, received=ONE_REBOOT, log=DRAINED_AND_MOVED * 2)) == []


# -- nothing lost --


def test_action_without_an_outcome_is_lost() -> None:
    lost = [begun(action(Verb.RELEASE, of=attempt("1")))]

    assert unmet(find_losses([], lost, left_to_people=())) == ["release of job 1 (INC-0001) has no outcome"]


@pytest.mark.parametrize("kind", [OutcomeKind.FAILED, OutcomeKind.UNKNOWN])
def test_action_that_did_not_succeed_is_lost(kind: OutcomeKind) -> None:
    failed = [ended(action(Verb.DRAIN, on="gpu001"), kind)]
    resolved = incident(state=IncidentState.RESOLVED)

    assert unmet(find_losses([resolved], failed, left_to_people=())) == [
        f"drain of gpu001 (INC-0001) ended {kind.value}: seen"
    ]


@pytest.mark.parametrize("kind", [OutcomeKind.FAILED, OutcomeKind.UNKNOWN])
def test_action_may_have_failed_where_a_person_has_the_incident(kind: OutcomeKind) -> None:
    failed = [ended(action(Verb.DRAIN, on="gpu001"), kind)]
    escalated = incident(state=IncidentState.ESCALATED)

    assert unmet(find_losses([escalated], failed, left_to_people=["gpu001"])) == []


@pytest.mark.parametrize("state", [state for state in IncidentState if state is not IncidentState.RESOLVED])
def test_incident_that_is_not_resolved_is_lost(state: IncidentState) -> None:
    assert len(unmet(find_losses([incident(state=state)], [], left_to_people=()))) == 1


@pytest.mark.parametrize("state", [state for state in IncidentState if state is not IncidentState.ESCALATED])
def test_node_that_is_a_persons_must_end_with_a_person(state: IncidentState) -> None:
    assert len(unmet(find_losses([incident(state=state)], [], left_to_people=["gpu001"]))) == 1


def test_resolved_and_rightly_escalated_incidents_are_as_stated() -> None:
    resolved, escalated = incident(state=IncidentState.RESOLVED), incident(state=IncidentState.ESCALATED)

    assert unmet(find_losses([resolved], MOVED, left_to_people=())) == []
    assert unmet(find_losses([escalated], MOVED, left_to_people=["gpu001"])) == []


@pytest.mark.parametrize("verb", [Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_ON])
def test_repair_may_have_failed_where_a_stronger_one_followed(verb: Verb) -> None:
    gpu = PciAddress("0000:1b:00") if verb is Verb.RESET_GPU else None
    failed = [ended(replace(action(Verb.REBOOT, on="gpu001"), verb=verb, gpu=gpu), OutcomeKind.FAILED)]
    useless = Try(response=Response.RESET_GPU, ended_at=NOW, why="still asks for it")
    resolved = incident(state=IncidentState.RESOLVED)

    assert unmet(find_losses([replace(resolved, tries=(useless,))], failed, left_to_people=())) == []
    assert len(unmet(find_losses([resolved], failed, left_to_people=()))) == 1


def test_room_that_could_not_be_kept_free_is_no_loss() -> None:
    failed = [ended(reserve("1"), OutcomeKind.FAILED)]

    assert unmet(find_losses([incident(state=IncidentState.RESOLVED)], failed, left_to_people=())) == []


# -- room kept free --


def test_room_kept_free_and_handed_over_is_as_stated() -> None:
    records = [ended(reserve("1")), ended(action(Verb.UNRESERVE, of=attempt("1")))]

    assert unmet(find_kept_room(records)) == []


def test_room_that_stayed_reserved_is_found() -> None:
    records = [ended(reserve("1")), ended(reserve("2")), ended(action(Verb.UNRESERVE, of=attempt("1")))]

    assert unmet(find_kept_room(records)) == ["gpu009 stayed reserved for job 2 (INC-0001)"]


def test_drill_in_which_no_room_was_ever_kept_proves_nothing_of_it() -> None:
    refused = [ended(reserve("1"), OutcomeKind.FAILED)]
    moved = [ended(action(Verb.RELEASE, of=attempt("1")))]

    assert unmet(find_kept_room(refused)) == ["no node was ever kept free for a job"]
    assert unmet(find_kept_room(moved)) == ["no node was ever kept free for a job"]


def test_drill_in_which_no_job_was_moved_need_not_keep_room() -> None:
    assert unmet(find_kept_room([ended(action(Verb.DRAIN, on="gpu001"))])) == []


def reserve(job: str) -> Action:
    spares = (NodeName("gpu009"),)
    return Action(verb=Verb.RESERVE, incident=IncidentId("INC-0001"), attempt=attempt(job), spares=spares)


def unmet(demands: Iterable[Demand]) -> list[str]:
    return [demand.otherwise for demand in demands if not demand.is_so]
