"""Recovery is by witness: done, provably not done, or unknown; and no node returns without proof."""

from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import MESSAGES, ActionRecord, OutcomeKind, Verb, Witness, reservation_of
from ops_pipelines.core.finding import Finding
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import (
    JobState,
    NodeInspection,
    NodeState,
    NodeStatus,
    PowerState,
    RecoveryAction,
    Signal,
)
from ops_pipelines.core.policy import Durations
from ops_pipelines.remediate.verbs import Scene, count_outcomes, explain_action
from ops_pipelines.remediate.verbs import testify as hear
from ops_pipelines.remediate.verification import (
    Recovery,
    TestsStanding,
    Verdict,
    judge_probation,
    judge_recovery,
    repair_finished_at,
    repaired_at,
)
from tests.domain.builders import (
    GPU,
    NODE,
    NOW,
    OTHER_NODE,
    action,
    after,
    ago,
    attempt,
    begun,
    ended,
    foreign_node,
    gpu_addresses,
    gpu_inspection,
    gpu_missing,
    held_job,
    incident,
    inspection,
    job,
    node,
    observation,
    our_node,
    telemetry,
    telemetry_stale,
    unreachable,
    xid,
)

DONE, NOT_DONE, UNKNOWN = Witness.DONE, Witness.NOT_DONE, Witness.UNKNOWN


def witness_of(verb: Verb, scene: Scene, **record_changes: Any) -> Witness:
    record: ActionRecord = begun(action(verb, on=NODE, of=attempt("42"), gpu=GPU), **record_changes)
    testimony = hear(record, scene)
    assert testimony.seen
    return testimony.witness


@pytest.mark.parametrize("verb", list(Verb))
def test_what_could_not_be_read_is_unknown(verb: Verb) -> None:
    assert witness_of(verb, Scene()) is UNKNOWN


@pytest.mark.parametrize("verb", sorted(MESSAGES, key=attrgetter("value")))
def test_a_message_leaves_no_trace(verb: Verb) -> None:
    scene = Scene(node=our_node(), job=job(), inspection=inspection(), power=PowerState.OFF)

    assert witness_of(verb, scene) is UNKNOWN


@pytest.mark.parametrize(
    ("verb", "scene", "witness"),
    [
        pytest.param(Verb.DRAIN, Scene(node=our_node()), DONE, id="drain with our reason"),
        pytest.param(Verb.DRAIN, Scene(node=node()), NOT_DONE, id="drain flag not set"),
        pytest.param(Verb.DRAIN, Scene(node=foreign_node()), NOT_DONE, id="drained by someone else"),
        pytest.param(
            Verb.DRAIN, Scene(node=our_node(incident="INC-0002")), NOT_DONE, id="drained for another incident"
        ),
        pytest.param(Verb.DRAIN, Scene(node=our_node(is_drained=False)), NOT_DONE, id="our reason without the flag"),
        pytest.param(Verb.HOLD, Scene(job=held_job()), DONE, id="held and pending"),
        pytest.param(
            Verb.HOLD, Scene(job=job(state=JobState.COMPLETING, is_held=True)), DONE, id="held and completing"
        ),
        pytest.param(Verb.HOLD, Scene(job=job(state=JobState.COMPLETING)), UNKNOWN, id="completing, hold not shown"),
        pytest.param(Verb.HOLD, Scene(job=job()), NOT_DONE, id="still running"),
        pytest.param(Verb.HOLD, Scene(job=job(started_at=ago(5))), UNKNOWN, id="hold: on another attempt"),
        pytest.param(Verb.FENCE, Scene(job=held_job()), DONE, id="fence: pending"),
        pytest.param(Verb.FENCE, Scene(job=job(state=JobState.FAILED)), DONE, id="fence: ended"),
        pytest.param(Verb.FENCE, Scene(job=job()), NOT_DONE, id="fence: running"),
        pytest.param(Verb.FENCE, Scene(job=job(state=JobState.COMPLETING)), NOT_DONE, id="fence: completing"),
        pytest.param(Verb.FENCE, Scene(job=job(state=JobState.SUSPENDED)), NOT_DONE, id="fence: suspended"),
        pytest.param(Verb.FENCE, Scene(job=job(state=JobState.UNKNOWN)), UNKNOWN, id="fence: a state without a word"),
        pytest.param(Verb.FENCE, Scene(job=job(started_at=ago(5))), UNKNOWN, id="fence: on another attempt"),
        pytest.param(Verb.POWER_OFF, Scene(power=PowerState.OFF), DONE, id="power reads off"),
        pytest.param(Verb.POWER_OFF, Scene(power=PowerState.ON), NOT_DONE, id="power reads on"),
        pytest.param(Verb.POWER_OFF, Scene(power=PowerState.UNKNOWN), UNKNOWN, id="the switch does not tell"),
        pytest.param(Verb.POWER_OFF, Scene(node=node(is_responding=False)), UNKNOWN, id="silence is not off"),
        pytest.param(Verb.DECLARE_DOWN, Scene(node=our_node(state=NodeState.DOWN)), DONE, id="reads down"),
        pytest.param(Verb.DECLARE_DOWN, Scene(node=our_node()), NOT_DONE, id="reads idle"),
        pytest.param(Verb.EXCLUDE, Scene(job=held_job(excluded_nodes=frozenset({NODE}))), DONE, id="excluded"),
        pytest.param(
            Verb.EXCLUDE, Scene(job=held_job(excluded_nodes=frozenset({OTHER_NODE}))), NOT_DONE, id="other node"
        ),
        pytest.param(Verb.RELEASE, Scene(job=held_job(is_held=False)), DONE, id="no longer held"),
        pytest.param(Verb.RELEASE, Scene(job=job(started_at=ago(5))), DONE, id="runs again"),
        pytest.param(Verb.RELEASE, Scene(job=held_job()), NOT_DONE, id="still held"),
        pytest.param(Verb.RESET_GPU, Scene(inspection=inspection()), DONE, id="GPU present and clean"),
        pytest.param(
            Verb.RESET_GPU,
            Scene(inspection=inspection(gpus=(gpu_inspection(recovery_action=RecoveryAction.RESET_GPU),))),
            NOT_DONE,
            id="the driver still asks",
        ),
        pytest.param(
            Verb.RESET_GPU,
            Scene(inspection=inspection(gpus=(gpu_inspection(uncorrectable_ecc_count=1),))),
            NOT_DONE,
            id="errors still counted",
        ),
        pytest.param(
            Verb.RESET_GPU,
            Scene(inspection=inspection(gpus=(gpu_inspection(gpu_addresses()[1]),))),
            NOT_DONE,
            id="GPU gone",
        ),
        pytest.param(Verb.PUT_LAST, Scene(node=node(is_last_choice=True)), DONE, id="last choice"),
        pytest.param(Verb.PUT_LAST, Scene(node=node()), NOT_DONE, id="chosen like any other"),
        pytest.param(Verb.PUT_BACK, Scene(node=node()), DONE, id="put back"),
        pytest.param(Verb.PUT_BACK, Scene(node=node(is_last_choice=True)), NOT_DONE, id="still last choice"),
        pytest.param(Verb.CHECK, Scene(is_check_over=True), DONE, id="the tests are over"),
        pytest.param(Verb.CHECK, Scene(is_check_over=False), UNKNOWN, id="the tests run"),
        pytest.param(Verb.RESUME, Scene(node=node()), DONE, id="drain flag gone"),
        pytest.param(Verb.RESUME, Scene(node=our_node()), NOT_DONE, id="still drained"),
        pytest.param(Verb.RESUME, Scene(node=node(state=NodeState.DOWN)), NOT_DONE, id="still down"),
    ],
)
def test_the_witness_of_each_verb(verb: Verb, scene: Scene, witness: Witness) -> None:
    assert witness_of(verb, scene) is witness


RESERVE = action(Verb.RESERVE, of=attempt("42"))  # It names the second node.
KEPT = reservation_of(RESERVE)


@pytest.mark.parametrize(
    ("nodes", "reserved", "handed_over"),
    [
        pytest.param((node(OTHER_NODE, reserved_as=KEPT),), DONE, NOT_DONE, id="kept free under our name"),
        pytest.param((node(OTHER_NODE, reserved_as="somebody"),), NOT_DONE, DONE, id="under another name"),
        pytest.param((node(OTHER_NODE),), NOT_DONE, DONE, id="not kept"),
        pytest.param((node(OTHER_NODE), node(reserved_as=KEPT)), NOT_DONE, NOT_DONE, id="another node is"),
        pytest.param((), NOT_DONE, DONE, id="no node is listed"),
    ],
)
def test_a_reservation_is_witnessed_by_its_nodes(
    nodes: tuple[NodeStatus, ...], reserved: Witness, handed_over: Witness
) -> None:
    unreserve = action(Verb.UNRESERVE, of=attempt("42"))

    assert reservation_of(unreserve) == KEPT
    assert hear(begun(RESERVE), Scene(nodes=nodes)).witness is reserved
    assert hear(begun(unreserve), Scene(nodes=nodes)).witness is handed_over


@pytest.mark.parametrize("verb", [Verb.REBOOT, Verb.POWER_ON, Verb.REIMAGE])
@pytest.mark.parametrize(
    ("before", "boot_id", "booted_at", "witness"),
    [
        pytest.param({"boot_id_before": "old"}, "new", ago(9), DONE, id="boot id changed"),
        pytest.param({"boot_id_before": "old"}, "old", after(9), NOT_DONE, id="boot id is the old one"),
        pytest.param({"booted_before": ago(100)}, "any", ago(101), NOT_DONE, id="boot time just before the old"),
        pytest.param({"booted_before": ago(100)}, "any", ago(100), NOT_DONE, id="boot time is the old one"),
        pytest.param(
            {"booted_before": ago(100)}, "any", ago(97), NOT_DONE, id="boot time jittered by as much as it may"
        ),
        pytest.param({"booted_before": ago(100)}, "any", ago(96), DONE, id="boot time beyond the jitter"),
        pytest.param({}, "any", ago(1), NOT_DONE, id="booted before we began"),
        pytest.param({}, "any", after(1), DONE, id="booted after we began"),
    ],
)
def test_a_restart_is_witnessed_by_a_new_boot(
    verb: Verb, before: dict[str, Any], boot_id: str, booted_at: datetime, witness: Witness
) -> None:
    scene = Scene(inspection=inspection(boot_id=boot_id, booted_at=booted_at))

    assert witness_of(verb, scene, **before) is witness


@given(
    verb=st.sampled_from(Verb),
    state=st.sampled_from(JobState),
    is_held=st.booleans(),
    is_drained=st.booleans(),
    node_state=st.sampled_from(NodeState),
    power=st.sampled_from([None, *PowerState]),
)
def test_testimony_never_raises(
    verb: Verb, state: JobState, is_held: bool, is_drained: bool, node_state: NodeState, power: PowerState | None
) -> None:
    scene = Scene(
        node=node(is_drained=is_drained, state=node_state),
        job=job(state=state, is_held=is_held, started_at=None),
        inspection=inspection(gpus=()),
        power=power,
    )

    assert witness_of(verb, scene) in Witness


# -- recovery ---------------------------------------------------------------------------------------------------

REPAIRED = ago(300)
CASE = incident(xid(79, seconds_ago=900), state=IncidentState.VERIFYING, plan_count=1)


def recovery(**changes: Any) -> Verdict:
    known: dict[str, Any] = {
        "incident": CASE,
        "repair_finished_at": REPAIRED,
        "status": our_node(),
        "inspection": inspection(),
        "telemetry": telemetry(),
        "conditions": (),
        "gpu_count": 8,
        "durations": Durations(soak=timedelta(seconds=300)),
        "now": NOW,
        **changes,
    }
    what = known.pop("incident")
    return judge_recovery(what, **known)


def test_a_node_is_recovered_when_everything_is_proven() -> None:
    verdict = recovery()

    assert verdict.recovery is Recovery.RECOVERED
    assert len(verdict.facts) == 4


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param(299, Recovery.SOAKING, id="just before the soak ends"),
        pytest.param(300, Recovery.RECOVERED, id="exactly"),
        pytest.param(301, Recovery.RECOVERED, id="just after"),
    ],
)
def test_a_repaired_node_soaks(seconds: float, expected: Recovery) -> None:
    assert recovery(repair_finished_at=ago(seconds)).recovery is expected


CONDITIONS = [each for finding in (gpu_missing(), unreachable(), telemetry_stale()) for each in finding.evidence]


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param({"inspection": None}, id="no check on the node"),
        pytest.param({"telemetry": None}, id="no metrics"),
        pytest.param({"telemetry": telemetry(seconds_ago=301)}, id="metrics from before the repair"),
        pytest.param({"telemetry": telemetry(seconds_ago=300)}, id="metrics from the very instant"),
        pytest.param({"telemetry": telemetry(gpu_count=7)}, id="metrics of seven GPUs"),
        pytest.param({"telemetry": telemetry(gpu_count=0)}, id="metrics of no GPU"),
        pytest.param({"status": None}, id="not listed by the scheduler"),
        pytest.param({"status": our_node(is_responding=False)}, id="silent"),
        *(pytest.param({"conditions": (each,)}, id=f"still {each.signal.value}") for each in CONDITIONS),
    ],
)
def test_a_missing_proof_is_never_health(missing: dict[str, Any]) -> None:
    verdict = recovery(**missing)

    assert verdict.recovery is Recovery.UNKNOWN
    assert verdict.facts


def test_metrics_just_after_the_repair_are_proof() -> None:
    assert recovery(telemetry=telemetry(seconds_ago=299)).recovery is Recovery.RECOVERED


def test_a_condition_on_another_node_is_none_of_this() -> None:
    assert recovery(conditions=gpu_missing(node=OTHER_NODE).evidence).recovery is Recovery.RECOVERED


def with_gpu(**changes: Any) -> NodeInspection:
    sick, *well = inspection().gpus
    return inspection(gpus=(replace(sick, **changes), *well))


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(inspection(gpus=inspection().gpus[:7]), id="seven GPUs"),
        pytest.param(inspection(gpus=()), id="no GPU"),
        pytest.param(with_gpu(recovery_action=RecoveryAction.RESET_GPU), id="the driver asks for a reset"),
        pytest.param(with_gpu(uncorrectable_ecc_count=1), id="uncorrectable errors"),
        pytest.param(with_gpu(is_row_remap_pending=True), id="a row remap waits"),
        pytest.param(inspection(failures=("fabric manager is not running",)), id="its own check complains"),
    ],
)
@pytest.mark.parametrize(
    "others", [{}, {"telemetry": None, "status": None}], ids=["all else proven", "all else unknown"]
)
def test_a_fault_outweighs_everything_else(seen: NodeInspection, others: dict[str, Any]) -> None:
    assert recovery(inspection=seen, **others).recovery is Recovery.PERSISTS


@pytest.mark.parametrize(
    ("seconds_ago", "expected"),
    [
        pytest.param(301, Recovery.RECOVERED, id="before the repair"),
        pytest.param(300, Recovery.RECOVERED, id="at its very end"),
        pytest.param(299, Recovery.PERSISTS, id="after the repair"),
    ],
)
def test_a_fault_counts_only_after_the_repair(seconds_ago: float, expected: Recovery) -> None:
    again = replace(CASE, findings=(*CASE.findings, xid(79, seconds_ago=seconds_ago)))

    assert recovery(incident=again).recovery is expected


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(xid(43), id="what is only watched"),
        pytest.param(gpu_missing(), id="a condition that has passed"),
    ],
)
def test_what_is_no_event_after_the_repair_is_no_fault(later: Finding) -> None:
    assert recovery(incident=replace(CASE, findings=(*CASE.findings, later))).recovery is Recovery.RECOVERED


def test_an_old_count_that_an_exporter_still_shows_makes_unknown_and_not_broken() -> None:
    stale_count = observation(Signal.ECC_UNCORRECTABLE, code=1, gpu=GPU, source="telemetry")

    assert recovery(conditions=(stale_count,)).recovery is Recovery.UNKNOWN


@given(
    has_inspection=st.booleans(),
    gpu_count=st.integers(0, 8),
    telemetry_age=st.none() | st.integers(0, 600),
    is_listed=st.booleans(),
    is_responding=st.booleans(),
    has_condition=st.booleans(),
    quiet_seconds=st.integers(0, 900),
)
def test_no_node_returns_unless_every_proof_is_there(
    has_inspection: bool,
    gpu_count: int,
    telemetry_age: int | None,
    is_listed: bool,
    is_responding: bool,
    has_condition: bool,
    quiet_seconds: int,
) -> None:
    verdict = recovery(
        repair_finished_at=ago(quiet_seconds),
        inspection=inspection(gpus=inspection().gpus[:gpu_count]) if has_inspection else None,
        telemetry=None if telemetry_age is None else telemetry(seconds_ago=telemetry_age),
        status=our_node(is_responding=is_responding) if is_listed else None,
        conditions=gpu_missing().evidence if has_condition else (),
    )

    is_proven = (
        has_inspection
        and gpu_count == 8
        and telemetry_age is not None
        and telemetry_age < quiet_seconds
        and is_listed
        and is_responding
        and not has_condition
        and quiet_seconds >= 300
    )
    assert (verdict.recovery is Recovery.RECOVERED) is is_proven
    assert verdict.facts


# -- the repair's end -------------------------------------------------------------------------------------------

REBOOT = action(Verb.REBOOT, on=NODE)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param((), None, id="no action"),
        pytest.param((ended(action(Verb.DRAIN, on=NODE), seconds_ago=5),), None, id="a drain is no repair"),
        pytest.param((begun(REBOOT),), None, id="not finished"),
        pytest.param((ended(REBOOT, OutcomeKind.FAILED),), None, id="failed"),
        pytest.param((ended(REBOOT, seconds_ago=5),), ago(5), id="witnessed"),
        pytest.param(
            (ended(REBOOT, seconds_ago=9), ended(action(Verb.RESET_GPU, on=NODE, gpu=GPU), seconds_ago=5)),
            ago(5),
            id="the last of two",
        ),
    ],
)
def test_the_repair_ends_with_its_last_witness(records: tuple[ActionRecord, ...], expected: datetime | None) -> None:
    assert repaired_at(records) == expected


def test_outcomes_are_counted_and_those_without_are_open() -> None:
    records = (ended(REBOOT), ended(REBOOT), ended(REBOOT, OutcomeKind.FAILED), begun(REBOOT))

    assert count_outcomes(records) == {"done": 2, "failed": 1, "open": 1}


def test_an_action_reads_as_a_person_says_it() -> None:
    assert explain_action(action(Verb.RESET_GPU, on=NODE, gpu=GPU)) == "reset gpu gpu001 GPU 0000:1b:00"


# -- what tests on the node add ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        pytest.param(TestsStanding(proofs=("nvml passed",)), Recovery.RECOVERED, id="passed"),
        pytest.param(TestsStanding(are_running=True), Recovery.SOAKING, id="they run"),
        pytest.param(TestsStanding(unknowns=("nvml was not run",)), Recovery.UNKNOWN, id="not run"),
        pytest.param(TestsStanding(faults=("nvml failed",)), Recovery.PERSISTS, id="failed"),
        pytest.param(
            TestsStanding(faults=("nvml failed",), unknowns=("host was not run",), are_running=True),
            Recovery.PERSISTS,
            id="a fault outweighs everything",
        ),
        pytest.param(None, Recovery.RECOVERED, id="nobody asked for any"),
    ],
)
def test_what_the_tests_say_counts_like_everything_else(tests: TestsStanding | None, expected: Recovery) -> None:
    verdict = recovery(tests=tests)

    assert verdict.recovery is expected
    if tests is not None and expected is not Recovery.SOAKING:
        assert set(tests.faults or tests.unknowns or tests.proofs) <= set(verdict.facts)


@pytest.mark.parametrize(
    ("records", "mended_at", "expected"),
    [
        pytest.param((), None, ago(900), id="nothing was done: since it last changed"),
        pytest.param((ended(action(Verb.REBOOT, on=NODE), seconds_ago=300),), None, ago(300), id="a repair"),
        pytest.param((ended(action(Verb.REBOOT, on=NODE), seconds_ago=300),), ago(60), ago(60), id="by hands since"),
        pytest.param((ended(action(Verb.REBOOT, on=NODE), seconds_ago=30),), ago(60), ago(30), id="by us since"),
        pytest.param((), ago(60), ago(60), id="by hands alone"),
        pytest.param(
            (
                ended(action(Verb.POWER_OFF, on=NODE), seconds_ago=300),
                ended(action(Verb.CHECK, on=NODE), seconds_ago=200),
                ended(action(Verb.PUT_LAST, on=NODE), seconds_ago=100),
                ended(action(Verb.NOTIFY_OWNER, of=attempt("42")), seconds_ago=50),
                begun(action(Verb.RESUME, on=NODE), seconds_ago=40),
            ),
            None,
            ago(300),
            id="no repair was needed: the last act that is no proof",
        ),
    ],
)
def test_a_node_must_prove_itself_from_its_last_repair_on(
    records: tuple[ActionRecord, ...], mended_at: datetime | None, expected: datetime
) -> None:
    what = incident(state=IncidentState.VERIFYING, changed_at=ago(900), mended_at=mended_at)

    assert repair_finished_at(what, records) == expected


# -- probation --------------------------------------------------------------------------------------------------------

WATCHED = Durations(probation=timedelta(seconds=600))


def probation(*findings: Finding, returned_seconds_ago: float = 300, **changes: Any) -> Verdict:
    """Judge a node on probation; what was found on it is in the incident, and holds."""
    what = incident(
        xid(79, seconds_ago=3600), *findings, state=IncidentState.PROBATION, returned_at=ago(returned_seconds_ago)
    )
    lasting = tuple(each for finding in findings if finding.is_lasting for each in finding.evidence)
    defaults: dict[str, Any] = {
        "status": node(),
        "inspection": inspection(),
        "conditions": lasting,
        "gpu_count": 8,
        "durations": WATCHED,
        "now": NOW,
    }
    return judge_probation(what, **defaults | changes)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(599, Recovery.SOAKING), (600, Recovery.RECOVERED), (601, Recovery.RECOVERED)],
)
def test_probation_lasts_its_time(seconds: float, expected: Recovery) -> None:
    assert probation(returned_seconds_ago=seconds).recovery is expected


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        pytest.param(gpu_missing(seconds_ago=59), Recovery.SOAKING, id="not yet believed"),
        pytest.param(gpu_missing(seconds_ago=60), Recovery.PERSISTS, id="it has lasted"),
        pytest.param(gpu_missing(seconds_ago=299), Recovery.PERSISTS, id="since its return"),
        pytest.param(gpu_missing(seconds_ago=300), Recovery.SOAKING, id="it was there when it was returned"),
        pytest.param(unreachable(seconds_ago=60), Recovery.PERSISTS, id="silent"),
        pytest.param(replace(unreachable(seconds_ago=60), is_secondary=True), Recovery.SOAKING, id="damage only"),
        pytest.param(xid(31, seconds_ago=60), Recovery.SOAKING, id="what a program does wrong"),
    ],
)
def test_a_condition_that_lasts_ends_a_probation(finding: Finding, expected: Recovery) -> None:
    assert probation(finding).recovery is expected


def test_a_condition_that_went_again_is_no_relapse() -> None:
    assert probation(gpu_missing(seconds_ago=90), conditions=()).recovery is Recovery.SOAKING


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"inspection": None}, Recovery.UNKNOWN, id="it could not be looked at"),
        pytest.param({"status": None}, Recovery.UNKNOWN, id="the scheduler does not list it"),
        pytest.param({"status": node(is_responding=False)}, Recovery.UNKNOWN, id="it does not answer"),
        pytest.param({"inspection": with_gpu(uncorrectable_ecc_count=1)}, Recovery.PERSISTS, id="errors are counted"),
        pytest.param({"inspection": inspection(gpus=())}, Recovery.PERSISTS, id="its GPUs are gone"),
    ],
)
def test_a_probation_ends_well_only_with_a_proof(changes: dict[str, Any], expected: Recovery) -> None:
    assert probation(returned_seconds_ago=600, **changes).recovery is expected
