"""What is due, and under which key: at once for what is new, at growing distances for what waits, never twice."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.finding import Finding
from ops_pipelines.core.incident import Incident, IncidentState, Recovery
from ops_pipelines.core.observation import NodeStatus, Observation
from ops_pipelines.core.policy import Durations
from ops_pipelines.remediate.due import Due, due_remediation, due_verification, last_touched_at
from tests.domain.builders import (
    NODE,
    NOW,
    OTHER_NODE,
    action,
    after,
    ago,
    attempt,
    begun,
    conditions_of,
    ended,
    gpu_missing,
    incident,
    node,
    our_node,
    telemetry_stale,
    unreachable,
    xid,
)

RETRY = timedelta(seconds=30)
DURATIONS = Durations(soak=timedelta(seconds=300), probation=timedelta(seconds=600))
REBOOT = action(Verb.REBOOT, on=NODE)


def ledger(*incidents: Incident, records: Iterable[ActionRecord] = (), **changes: Any) -> LedgerState:
    defaults = LedgerState(
        head_seq=7,
        decided_through=5,
        evidence_head=5,
        incidents=incidents,
        incident_count=len(incidents),
        last_change_seq={each.incident: 7 for each in incidents},
        records=tuple(records),
        approvals=(),
        pause=None,
    )
    return replace(defaults, **changes)


def remediation(
    state: LedgerState,
    *,
    now: datetime = NOW,
    conditions: Iterable[Observation] = (),
    retry_after: timedelta = RETRY,
    recorded_through: int = 5,
) -> Due | None:
    return due_remediation(
        state, tuple(conditions), recorded_through=recorded_through, retry_after=retry_after, now=now
    )


def verification(state: LedgerState, *nodes: NodeStatus, now: datetime = NOW) -> Due | None:
    return due_verification(state, nodes, durations=DURATIONS, retry_after=RETRY, now=now)


def waiting(*, changed_seconds_ago: float = 0, **changes: Any) -> Incident:
    return incident(xid(79, seconds_ago=changed_seconds_ago), **changes)


def key_of(due: Due | None) -> str | None:
    return None if due is None else due.run_key


# -- remediation ------------------------------------------------------------------------------------------------


def test_without_evidence_and_incidents_nothing_is_due() -> None:
    assert remediation(ledger()) is None


@pytest.mark.parametrize(
    ("head", "is_due"), [pytest.param(5, False, id="all decided"), pytest.param(6, True, id="one new")]
)
def test_new_evidence_is_due_at_once(head: int, is_due: bool) -> None:
    assert (remediation(ledger(evidence_head=head)) is not None) is is_due


def test_new_evidence_comes_before_what_waits() -> None:
    due = remediation(ledger(waiting(changed_seconds_ago=900), evidence_head=6))

    assert due is not None
    assert due.run_key.startswith("observe:")
    assert due.reason == "1 new observations"


def test_evidence_left_over_from_a_full_run_is_another_turn() -> None:
    first = remediation(ledger(evidence_head=9000, decided_through=0))
    rest = remediation(ledger(evidence_head=9000, decided_through=5000), recorded_through=9000)

    assert key_of(first) != key_of(rest)


@pytest.mark.parametrize(
    ("recorded_through", "after"),
    [
        pytest.param(5, None, id="a run was requested for all"),
        pytest.param(4, 4, id="the reflex decided on one that no run has reported"),
        pytest.param(0, 0, id="no run was ever requested"),
    ],
)
def test_evidence_that_the_reflex_decided_on_is_due_for_its_record(recorded_through: int, after: int | None) -> None:
    due = remediation(ledger(), recorded_through=recorded_through)

    assert (None if due is None else due.evidence_after) == after


def test_evidence_that_a_failed_run_left_undecided_is_due_again() -> None:
    """Dagster starts a run key once: under the old key a run that failed would never be repeated."""
    state = ledger(evidence_head=6)

    assert key_of(remediation(state)) == key_of(remediation(state, now=after(29.9)))
    assert key_of(remediation(state)) != key_of(remediation(state, now=after(30)))


def test_an_incident_whose_conditions_are_gone_is_closed_at_once() -> None:
    open_one = incident(telemetry_stale(), state=IncidentState.ESCALATED, plan_count=1)

    due = remediation(ledger(open_one))

    assert due is not None
    assert due.run_key.startswith("clear:INC-0001:7:")
    assert remediation(ledger(open_one), conditions=conditions_of(telemetry_stale())) is None


def test_a_closing_that_failed_is_due_again() -> None:
    state = ledger(incident(gpu_missing()))

    assert key_of(remediation(state)) != key_of(remediation(state, now=after(30)))


def test_a_repair_that_a_person_has_does_not_keep_others_from_their_turn() -> None:
    """Nothing closes it, so a run for it would be asked for without end, and no other run ever."""
    with_person = incident(unreachable(seconds_ago=900), state=IncidentState.ESCALATED, plan_count=1)
    other = waiting(changed_seconds_ago=60, name="INC-0002")

    assert key_of(remediation(ledger(with_person, other))) == "remediate:INC-0002:7:2"
    assert remediation(ledger(with_person)) is None


@pytest.mark.parametrize(
    ("seconds", "launch_number"),
    [
        pytest.param(29.9, None, id="just before the first"),
        pytest.param(30, 1, id="the first"),
        pytest.param(30.1, 1, id="just after the first"),
        pytest.param(59.9, 1, id="just before the second"),
        pytest.param(60, 2, id="the second"),
        pytest.param(119.9, 2, id="just before the third"),
        pytest.param(120, 3, id="the third"),
        pytest.param(239.9, 3, id="just before the fourth"),
        pytest.param(240, 4, id="the fourth"),
        pytest.param(539.9, 4, id="just before five minutes later"),
        pytest.param(540, 5, id="five minutes later"),
        pytest.param(839.9, 5, id="just before ten minutes later"),
        pytest.param(840, 6, id="ten minutes later"),
        pytest.param(240 + 300 * 100, 104, id="after hours"),
    ],
)
def test_what_waits_is_looked_at_again_at_growing_distances(seconds: float, launch_number: int | None) -> None:
    due = remediation(ledger(waiting(changed_seconds_ago=seconds)))

    assert key_of(due) == (None if launch_number is None else f"remediate:INC-0001:7:{launch_number}")


@given(
    retry_seconds=st.integers(1, 1200),
    elapsed=st.lists(st.integers(0, 100_000), min_size=2, max_size=2).map(sorted),
)
def test_the_launch_number_never_falls_and_no_turn_is_longer_than_it_may_be(
    retry_seconds: int, elapsed: list[int]
) -> None:
    retry_after = timedelta(seconds=retry_seconds)
    numbers = []
    for seconds in elapsed:
        due = remediation(ledger(waiting(changed_seconds_ago=seconds)), retry_after=retry_after)
        numbers.append(0 if due is None else int(due.run_key.rsplit(":", 1)[1]))

    earlier, later = numbers
    longest = max(300, 2 * retry_seconds)
    assert earlier <= later
    if elapsed[1] - elapsed[0] >= longest:
        assert earlier < later


def test_a_change_starts_the_count_anew_under_another_key() -> None:
    before = remediation(ledger(waiting(changed_seconds_ago=60)))
    changed = ledger(waiting(changed_seconds_ago=60), last_change_seq={waiting().incident: 8})

    assert key_of(before) == "remediate:INC-0001:7:2"
    assert key_of(remediation(changed)) == "remediate:INC-0001:8:2"


@pytest.mark.parametrize("state", list(IncidentState))
def test_only_what_waits_or_is_under_way_is_looked_at_again(state: IncidentState) -> None:
    due = remediation(ledger(waiting(changed_seconds_ago=60, state=state)))

    assert (due is not None) is (state in (IncidentState.OPEN, IncidentState.ACTING))


def test_one_run_covers_all_and_is_named_after_the_latest_change() -> None:
    old = waiting(changed_seconds_ago=900)
    new = waiting(changed_seconds_ago=60, name="INC-0002")
    state = ledger(old, new, last_change_seq={old.incident: 3, new.incident: 9})

    assert key_of(remediation(state)) == "remediate:INC-0002:9:2"


def test_what_changed_just_now_does_not_hide_what_waits_longer() -> None:
    old = waiting(changed_seconds_ago=60)
    new = waiting(changed_seconds_ago=1, name="INC-0002")
    state = ledger(old, new, last_change_seq={old.incident: 3, new.incident: 9})

    assert key_of(remediation(state)) == "remediate:INC-0001:3:2"


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param([], ago(900), id="its own change"),
        pytest.param([begun(REBOOT, seconds_ago=60)], ago(60), id="an action started"),
        pytest.param([ended(REBOOT, seconds_ago=10, begun_at=ago(60))], ago(10), id="an action ended"),
        pytest.param([begun(action(Verb.REBOOT, on=NODE, incident="INC-0002"))], ago(900), id="another's action"),
    ],
)
def test_an_incident_is_touched_by_itself_and_by_its_actions(records: list[ActionRecord], expected: datetime) -> None:
    what = waiting(changed_seconds_ago=900)

    assert last_touched_at(what, ledger(what, records=records)) == expected


# -- verification -----------------------------------------------------------------------------------------------


CHECKED = begun(action(Verb.CHECK, on=NODE, try_number=0))


def verifying(*, repaired_seconds_ago: float, records: Iterable[ActionRecord] = (CHECKED,)) -> LedgerState:
    what = waiting(changed_seconds_ago=900, state=IncidentState.VERIFYING)
    return ledger(what, records=[ended(REBOOT, seconds_ago=repaired_seconds_ago), *records])


@pytest.mark.parametrize(
    ("seconds", "key"),
    [
        pytest.param(299, None, id="just before the soak ends"),
        pytest.param(300, "verify:INC-0001:7:0", id="exactly"),
        pytest.param(301, "verify:INC-0001:7:0", id="just after"),
        pytest.param(329, "verify:INC-0001:7:0", id="just before it is asked again"),
        pytest.param(330, "verify:INC-0001:7:1", id="asked again"),
        pytest.param(360, "verify:INC-0001:7:2", id="and again"),
    ],
)
def test_a_repaired_node_is_verified_when_its_soak_is_over(seconds: float, key: str | None) -> None:
    assert key_of(verification(verifying(repaired_seconds_ago=seconds), our_node())) == key


@pytest.mark.parametrize(
    ("seconds", "records", "key"),
    [
        pytest.param(4, [], None, id="before the scheduler reaches it"),
        pytest.param(5, [], "test:INC-0001:7:0", id="as soon as it does"),
        pytest.param(34, [], "test:INC-0001:7:0", id="just before it is asked again"),
        pytest.param(35, [], "test:INC-0001:7:1", id="asked again, where they could not begin"),
        pytest.param(35, [CHECKED], None, id="they have started"),
        pytest.param(
            35,
            [begun(action(Verb.CHECK, on=NODE, try_number=-1))],
            "test:INC-0001:7:1",
            id="only those of an earlier repair have started",
        ),
    ],
)
def test_the_tests_of_a_repaired_node_begin_while_it_soaks(
    seconds: float, records: list[ActionRecord], key: str | None
) -> None:
    state = verifying(repaired_seconds_ago=seconds, records=records)

    assert key_of(verification(state, our_node())) == key


@pytest.mark.parametrize(("seconds", "is_due"), [(299, False), (300, True)])
def test_without_a_witnessed_repair_the_soak_counts_from_the_last_change(seconds: float, is_due: bool) -> None:
    what = waiting(changed_seconds_ago=seconds, state=IncidentState.VERIFYING)

    assert (verification(ledger(what, records=[CHECKED]), our_node()) is not None) is is_due


def test_a_node_mended_by_hands_soaks_from_then_on_and_not_from_the_repair_that_did_not_help() -> None:
    what = waiting(changed_seconds_ago=900, state=IncidentState.VERIFYING, mended_at=ago(100))
    state = ledger(what, records=[ended(REBOOT, seconds_ago=900), CHECKED])

    assert verification(state, our_node()) is None
    assert key_of(verification(state, our_node(), now=after(200))) == "verify:INC-0001:7:0"


def test_a_soaking_node_does_not_hide_one_that_is_ready() -> None:
    soaking = waiting(changed_seconds_ago=10, state=IncidentState.VERIFYING)
    ready = waiting(changed_seconds_ago=400, state=IncidentState.VERIFYING, name="INC-0002")

    assert key_of(verification(ledger(soaking, ready, records=[CHECKED]))) == "verify:INC-0002:7:2"


def test_what_was_asked_for_already_does_not_hide_what_becomes_due_meanwhile() -> None:
    """Dagster starts a key once: one that stays the same for minutes would keep all others from a run."""
    asked = waiting(changed_seconds_ago=450, state=IncidentState.VERIFYING)
    soaking = waiting(changed_seconds_ago=298, state=IncidentState.VERIFYING, name="INC-0002")
    checked = begun(action(Verb.CHECK, on=NODE, try_number=0, incident="INC-0002"))
    state = ledger(asked, soaking, records=[checked])

    alone, together = verification(state), verification(state, now=after(2))

    assert key_of(alone) == "verify:INC-0001:7:3"
    assert together is not None
    assert together.run_key.startswith("verify:INC-0001:7:3+")
    assert together.reason.endswith("; so is 1 more")


# -- probation --------------------------------------------------------------------------------------------------


def on_probation(*, seconds: float, **changes: Any) -> Incident:
    """Return an incident whose node was returned so long ago."""
    return waiting(changed_seconds_ago=900, state=IncidentState.PROBATION, returned_at=ago(seconds), **changes)


@pytest.mark.parametrize(
    ("seconds", "key"),
    [
        pytest.param(599, None, id="just before its end"),
        pytest.param(600, "probation:INC-0001:7:0", id="at its end"),
        pytest.param(630, "probation:INC-0001:7:1", id="asked again"),
    ],
)
def test_the_end_of_a_probation_is_due(seconds: float, key: str | None) -> None:
    assert key_of(verification(ledger(on_probation(seconds=seconds)), our_node(is_last_choice=True))) == key


@pytest.mark.parametrize(
    ("finding", "is_due"),
    [
        pytest.param(gpu_missing(seconds_ago=59), False, id="not yet believed"),
        pytest.param(gpu_missing(seconds_ago=60), True, id="believed"),
        pytest.param(gpu_missing(seconds_ago=301), False, id="it was there before the return"),
        pytest.param(gpu_missing(node=OTHER_NODE, seconds_ago=60), False, id="on another node"),
    ],
)
def test_a_condition_that_lasts_on_probation_is_due(finding: Finding, is_due: bool) -> None:
    due = due_verification(
        ledger(on_probation(seconds=300)), (), conditions_of(finding), durations=DURATIONS, retry_after=RETRY, now=NOW
    )

    assert (due is not None) is is_due


@pytest.mark.parametrize(
    ("recovery", "key"),
    [
        pytest.param({}, "follow:INC-0001:7:3", id="not yet seen to continue"),
        pytest.param({"progressed_at": ago(5)}, None, id="continues"),
        pytest.param({"ended_as": "cancelled"}, None, id="ended"),
    ],
)
@pytest.mark.parametrize("state", [IncidentState.PROBATION, IncidentState.IN_REPAIR, IncidentState.ESCALATED])
def test_a_job_that_was_moved_is_looked_at_until_it_goes_on(
    state: IncidentState, recovery: dict[str, Any], key: str | None
) -> None:
    moved = Recovery(attempt=attempt("42"), gpu_count=8, held_at=ago(200), checkpointed_at=None, **recovery)
    what = replace(on_probation(seconds=120, recoveries=(moved,)), state=state, changed_at=ago(120))

    assert key_of(verification(ledger(what))) == key


@pytest.mark.parametrize("verb", [Verb.REBOOT, Verb.POWER_ON])
@pytest.mark.parametrize(
    ("booted_at", "is_responding", "is_back"),
    [
        pytest.param(ago(101), True, False, id="booted just before the old boot"),
        pytest.param(ago(100), True, False, id="still the old boot"),
        pytest.param(ago(97), True, False, id="jittered by as much as a boot time may"),
        pytest.param(ago(96), True, True, id="booted since"),
        pytest.param(ago(96), False, False, id="booted since, but silent"),
        pytest.param(None, True, False, id="no boot time given"),
    ],
)
def test_a_node_is_back_when_it_answers_with_a_later_boot(
    verb: Verb, booted_at: datetime | None, is_responding: bool, is_back: bool
) -> None:
    what = waiting(changed_seconds_ago=60, state=IncidentState.ACTING)
    state = ledger(what, records=[begun(action(verb, on=NODE), seconds_ago=60, booted_before=ago(100))])

    due = verification(state, our_node(booted_at=booted_at, is_responding=is_responding))

    assert (due is not None) is is_back


@pytest.mark.parametrize(
    ("booted_at", "is_back"),
    [
        pytest.param(ago(61), False, id="the second before the command"),
        pytest.param(ago(60), False, id="the second of the command"),
        pytest.param(ago(59), True, id="the second after"),
    ],
)
def test_without_an_old_boot_time_the_second_of_the_command_counts(booted_at: datetime, is_back: bool) -> None:
    what = waiting(changed_seconds_ago=60, state=IncidentState.ACTING)
    state = ledger(what, records=[begun(REBOOT, seconds_ago=59.7)])

    assert (verification(state, our_node(booted_at=booted_at)) is not None) is is_back


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([], id="nothing started"),
        pytest.param([ended(REBOOT, seconds_ago=60)], id="witnessed already"),
        pytest.param([begun(action(Verb.DRAIN, on=NODE), seconds_ago=60)], id="only drained"),
    ],
)
def test_a_node_that_was_not_told_to_restart_is_not_waited_for(records: list[ActionRecord]) -> None:
    what = waiting(changed_seconds_ago=60, state=IncidentState.ACTING)

    assert verification(ledger(what, records=records), node(booted_at=NOW)) is None


@pytest.mark.parametrize("state", [IncidentState.OPEN, IncidentState.ESCALATED, IncidentState.RESOLVED])
def test_only_repaired_nodes_are_verified(state: IncidentState) -> None:
    assert verification(ledger(waiting(changed_seconds_ago=900, state=state)), our_node(booted_at=NOW)) is None
