"""The part of the ledger's contract on decisions, incidents, plans and what people say."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.entries import Approval, EntryKind, LedgerConflict, LedgerError, Pause
from ops_pipelines.core.identity import IncidentId, JobAttempt, JobId, NodeName, PlanId
from ops_pipelines.core.incident import IncidentEvent, IncidentState, advance
from ops_pipelines.core.ledger import Ledger
from tests.ports.ledger_samples import (
    INPUTS,
    NOW,
    SECOND,
    decide,
    drain,
    incident,
    kinds,
    observation,
    page,
    plan,
    take_in,
)


def reserve(*nodes: str) -> tuple[Action, ...]:
    """Return the act that keeps nodes free for a job; none without a node."""
    attempt = JobAttempt(job=JobId("42"), started_at=NOW)
    spares = tuple(NodeName(name) for name in nodes)
    known = Action(verb=Verb.UNRESERVE, incident=IncidentId("INC-0001"), attempt=attempt)
    return (replace(known, verb=Verb.RESERVE, spares=spares), known) if spares else ()


class LedgerDecisionContract:
    """Mixed into `LedgerContract`, which names the fixture."""

    # -- decisions --

    def test_decision_writes_incidents_and_plans_and_moves_decided_through(self, ledger: Ledger) -> None:
        take_in(ledger, observation("1"))

        head = decide(ledger, incident(1), plans=(plan(1, drain(1)),), through=1)

        state = ledger.read_state(NOW)
        assert (state.head_seq, state.decided_through, state.incident_count) == (head, 1, 1)
        assert state.incidents == (incident(1),)
        assert ledger.incident(IncidentId("INC-0001")) == incident(1)
        assert ledger.plan(PlanId("PLAN-1")) == plan(1, drain(1))
        assert kinds(ledger) == [EntryKind.DECISION, EntryKind.INCIDENT, EntryKind.PLAN]

    def test_decision_on_an_old_state_conflicts_and_changes_nothing(self, ledger: Ledger) -> None:
        decide(ledger, incident(1))
        head = ledger.read_state(NOW).head_seq

        with pytest.raises(LedgerConflict):
            ledger.record_decision(
                inputs=INPUTS, decided_through=9, expected_head=head - 1, incidents=[incident(2)], plans=[], now=NOW
            )

        state = ledger.read_state(NOW)
        assert (state.head_seq, state.decided_through, state.incident_count) == (head, 0, 1)

    def test_decision_without_an_expected_head_is_written_on_whatever_stands(self, ledger: Ledger) -> None:
        decide(ledger, incident(1))

        ledger.record_decision(
            inputs=INPUTS, decided_through=0, expected_head=None, incidents=[], plans=[plan(1, drain(1))], now=NOW
        )

        assert ledger.plan(PlanId("PLAN-1")) is not None

    def test_decision_that_changes_nothing_writes_nothing(self, ledger: Ledger) -> None:
        head = decide(ledger, incident(1), plans=(plan(1, drain(1)),), through=4)

        again = decide(ledger, incident(1), plans=(plan(1, drain(1)),), through=4)

        assert again == head == ledger.read_state(NOW).head_seq

    def test_decision_that_only_moves_decided_through_is_written(self, ledger: Ledger) -> None:
        decide(ledger, through=4)

        assert ledger.read_state(NOW).decided_through == 4
        assert kinds(ledger) == [EntryKind.DECISION]

    def test_decided_through_never_goes_back(self, ledger: Ledger) -> None:
        decide(ledger, through=4)

        with pytest.raises(LedgerError, match="would return"):
            decide(ledger, through=3)

    def test_known_plan_in_other_words_keeps_its_first_wording(self, ledger: Ledger) -> None:
        decide(ledger, plans=(plan(1, drain(1)),))

        decide(ledger, plans=(replace(plan(1, drain(1)), effects=("two jobs continue",)),))

        assert ledger.plan(PlanId("PLAN-1")) == plan(1, drain(1))

    def test_known_plan_with_other_actions_is_an_error(self, ledger: Ledger) -> None:
        decide(ledger, plans=(plan(1, drain(1)),))

        with pytest.raises(LedgerError, match="another plan"):
            decide(ledger, plans=(plan(1, drain(1), page(1)),))

    @pytest.mark.parametrize("later", [(), ("gpu009",)], ids=["no room", "room for it"])
    def test_known_plan_that_would_keep_other_nodes_free_is_the_known_plan(
        self, ledger: Ledger, later: tuple[str, ...]
    ) -> None:
        """Which nodes are free changes by the second."""
        first = plan(1, drain(1), *reserve("gpu008")) if not later else plan(1, drain(1))
        decide(ledger, plans=(first,))

        decide(ledger, plans=(plan(1, drain(1), *reserve(*later)),))

        assert ledger.plan(PlanId("PLAN-1")) == first

    def test_final_incident_is_not_opened_again_by_a_decision(self, ledger: Ledger) -> None:
        decide(ledger, incident(1, state=IncidentState.RESOLVED))

        with pytest.raises(LedgerError, match="final"):
            decide(ledger, incident(1))

    def test_state_shows_open_incidents_oldest_first_and_counts_all(self, ledger: Ledger) -> None:
        decide(ledger, incident(1, at=NOW + SECOND), incident(2), incident(3, state=IncidentState.RESOLVED))

        state = ledger.read_state(NOW)

        assert [each.incident for each in state.incidents] == ["INC-0002", "INC-0001"]
        assert state.incident_count == 3

    @pytest.mark.parametrize(
        ("changed_at", "is_returned"),
        [
            pytest.param(NOW - SECOND, False, id="just before"),
            pytest.param(NOW, True, id="exactly then"),
            pytest.param(NOW + SECOND, True, id="just after"),
        ],
    )
    def test_final_incident_is_returned_if_it_changed_at_or_after_a_time(
        self, ledger: Ledger, changed_at: datetime, is_returned: bool
    ) -> None:
        decide(ledger, incident(1, state=IncidentState.RESOLVED, at=changed_at))

        assert bool(ledger.incidents_since(NOW)) is is_returned

    def test_open_incident_is_returned_however_old(self, ledger: Ledger) -> None:
        decide(ledger, incident(1, at=NOW - timedelta(days=90)), incident(2))

        assert [each.incident for each in ledger.incidents_since(NOW)] == ["INC-0001", "INC-0002"]

    # -- changes of one incident --

    def test_incident_changes_along_its_life_cycle(self, ledger: Ledger) -> None:
        decide(ledger, incident(1))
        acting = advance(incident(1), IncidentEvent.PLAN_BEGUN, at=NOW + SECOND, note="plan started")

        ledger.change_incident(acting, actor="autopilot", now=NOW + SECOND)

        assert ledger.incident(acting.incident) == acting

    def test_incident_may_change_within_its_state(self, ledger: Ledger) -> None:
        decide(ledger, incident(1))

        ledger.change_incident(replace(incident(1), note="waits for budget"), actor="autopilot", now=NOW)

        assert ledger.read_state(NOW).incidents[0].note == "waits for budget"

    def test_change_on_an_old_reading_does_not_lose_the_findings_that_joined_since(self, ledger: Ledger) -> None:
        decide(ledger, incident(1))
        more = replace(incident(1), findings=(*incident(1).findings, *incident(2).findings))
        ledger.change_incident(more, actor="autopilot", now=NOW)
        stale = advance(incident(1), IncidentEvent.CLEARED, at=NOW, note="well again")

        with pytest.raises(LedgerConflict, match="new findings"):
            ledger.change_incident(stale, actor="autopilot", now=NOW)

        assert ledger.read_state(NOW).incidents == (more,)

    def test_plans_are_added_by_whoever_has_decided_on_less(self, ledger: Ledger) -> None:
        take_in(ledger, observation("1"), observation("2"))
        decide(ledger, incident(1), through=2)

        ledger.record_decision(
            inputs=INPUTS,
            decided_through=1,
            expected_head=None,
            incidents=(),
            plans=(plan(1, drain(1)),),
            now=NOW,
        )

        assert ledger.read_state(NOW).decided_through == 2
        assert ledger.plan(PlanId("PLAN-1")) is not None

    def test_incident_as_it_is_writes_nothing(self, ledger: Ledger) -> None:
        head = decide(ledger, incident(1))

        ledger.change_incident(incident(1), actor="autopilot", now=NOW)

        assert ledger.read_state(NOW).head_seq == head

    @pytest.mark.parametrize(
        ("present", "wanted"),
        [
            pytest.param(IncidentState.OPEN, IncidentState.VERIFYING, id="a state is skipped"),
            pytest.param(IncidentState.ESCALATED, IncidentState.ACTING, id="a human has it"),
            pytest.param(IncidentState.RESOLVED, IncidentState.OPEN, id="final"),
        ],
    )
    def test_change_that_the_present_state_does_not_lead_to_conflicts_and_changes_nothing(
        self, ledger: Ledger, present: IncidentState, wanted: IncidentState
    ) -> None:
        decide(ledger, incident(1, state=present))

        with pytest.raises(LedgerConflict):
            ledger.change_incident(incident(1, state=wanted), actor="autopilot", now=NOW)

        assert ledger.incident(IncidentId("INC-0001")) == incident(1, state=present)

    def test_final_incident_does_not_change_in_its_state_either(self, ledger: Ledger) -> None:
        decide(ledger, incident(1, state=IncidentState.RESOLVED))

        with pytest.raises(LedgerConflict):
            ledger.change_incident(
                replace(incident(1, state=IncidentState.RESOLVED), note="other"), actor="ada", now=NOW
            )

    def test_person_opens_an_incident_by_hand(self, ledger: Ledger) -> None:
        by_hand = incident(1, state=IncidentState.ESCALATED)

        ledger.change_incident(by_hand, actor="ada", now=NOW)

        state = ledger.read_state(NOW)
        assert (state.incidents, state.incident_count) == ((by_hand,), 1)
        assert ledger.entries(after=0, limit=1)[0].actor == "ada"

    def test_second_incident_that_took_the_same_number_conflicts(self, ledger: Ledger) -> None:
        ledger.change_incident(incident(1, state=IncidentState.ESCALATED), actor="ada", now=NOW)

        with pytest.raises(LedgerConflict, match="another incident"):
            ledger.change_incident(
                incident(1, state=IncidentState.ESCALATED, at=NOW + SECOND), actor="night-shift", now=NOW + SECOND
            )

    # -- people --

    def test_approval_counts_until_it_expires(self, ledger: Ledger) -> None:
        decide(ledger, incident(1), plans=(plan(1, drain(1)),))
        yes = Approval(plan=PlanId("PLAN-1"), actor="ada", given_at=NOW, expires_at=NOW + 10 * SECOND)

        ledger.approve(yes)

        assert ledger.read_state(NOW + 9 * SECOND).approvals == (yes,)
        assert ledger.read_state(NOW + 10 * SECOND).approvals == ()

    def test_approval_of_an_unknown_plan_is_an_error(self, ledger: Ledger) -> None:
        yes = Approval(plan=PlanId("PLAN-9"), actor="ada", given_at=NOW, expires_at=NOW + SECOND)

        with pytest.raises(LedgerError, match="no plan PLAN-9"):
            ledger.approve(yes)

        assert ledger.read_state(NOW).head_seq == 0

    def test_first_pause_stands_until_the_autopilot_is_resumed(self, ledger: Ledger) -> None:
        first = Pause(actor="ada", since=NOW, reason="maintenance")
        second = Pause(actor="night-shift", since=NOW + SECOND, reason="me too")
        ledger.pause(first)
        ledger.pause(second)

        during = ledger.read_state(NOW).pause
        ledger.resume_autopilot(actor="ada", now=NOW + 2 * SECOND)

        assert during == first
        assert ledger.read_state(NOW).pause is None
        assert kinds(ledger) == [EntryKind.PAUSE, EntryKind.PAUSE, EntryKind.RESUME_AUTOPILOT]
        ledger.pause(second)
        assert ledger.read_state(NOW).pause == second
