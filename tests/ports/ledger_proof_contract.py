"""What every ledger asks before it lets anything of a plan begin: a proof of this very plan, whole and passed."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.domain.guardrails.refusal import Refusal
from ops_pipelines.domain.identity import digest_of
from ops_pipelines.domain.incident import IncidentEvent, advance
from ops_pipelines.domain.proof import LASTS, PROVER_VERSION, CheckedPlan, Proof
from ops_pipelines.ports.ledger import Begun, EntryKind, Ledger, LedgerConflict, LedgerError
from tests.ports.ledger_samples import INPUTS, NOW, SECOND, allow, decide, drain, incident, kinds, page, plan, record
from tests.ports.proved_plans import passed

PLAN = plan(1, drain(1))


def keep(ledger: Ledger, *proofs: Proof) -> None:
    ledger.record_decision(
        inputs=INPUTS, decided_through=0, expected_head=None, incidents=(), plans=(), now=NOW, proofs=proofs
    )


def contradicted(proof: Proof) -> Proof:
    first, *others = proof.checked
    return replace(proof, checked=(replace(first, contradictions=("gpu003 is none of ours",)), *others))


UNPROVED: dict[str, Callable[[Proof], Proof]] = {
    "contradicts": contradicted,
    "of another version": lambda proof: replace(proof, version=PROVER_VERSION - 1),
    "another plan by the name": lambda proof: replace(proof, content=digest_of("a byte more")),
    "of another version of": lambda proof: replace(proof, checked=proof.checked[1:]),
}


class LedgerProofContract:
    """A ledger with an incident whose plan nobody has proved yet."""

    @pytest.fixture
    def unproved(self, ledger: Ledger) -> Ledger:
        decide(ledger, incident(1), plans=(PLAN,))
        return ledger

    def put_in_force(self, ledger: Ledger, *, seconds: float = 0.0) -> None:
        now = NOW + seconds * SECOND
        begun = replace(advance(incident(1), IncidentEvent.PLAN_BEGUN, at=now, note=""), plan=PLAN.plan, plan_count=1)
        ledger.change_incident(begun, actor="autopilot", now=now)

    def begin(self, ledger: Ledger) -> object:
        act = replace(record(drain(1)), plan=PLAN.plan)
        return ledger.begin(act, guard=allow, lease_token=None, actor="autopilot", now=NOW)

    def test_nothing_of_a_plan_without_a_proof_is_begun_but_people_are_told(self, unproved: Ledger) -> None:
        told = replace(record(page(1)), plan=PLAN.plan)

        with pytest.raises(LedgerConflict, match="nobody has proved this plan"):
            self.put_in_force(unproved)
        refusal = self.begin(unproved)

        assert isinstance(refusal, Refusal)
        assert (refusal.guardrail, EntryKind.ACTION_BEGUN in kinds(unproved)) == ("proof", False)
        answer = unproved.begin(told, guard=allow, lease_token=None, actor="autopilot", now=NOW)
        assert isinstance(answer, Begun)

    @pytest.mark.parametrize("why", UNPROVED)
    def test_nothing_is_begun_on_a_proof_that_has_not_passed_whole(self, unproved: Ledger, why: str) -> None:
        keep(unproved, UNPROVED[why](passed(PLAN, unproved, at=NOW)))

        with pytest.raises(LedgerConflict, match=why):
            self.put_in_force(unproved)
        refusal = self.begin(unproved)

        assert isinstance(refusal, Refusal)
        assert why in refusal.reason

    def test_proved_plan_is_put_in_force_while_its_proof_holds_and_then_finished(self, unproved: Ledger) -> None:
        keep(unproved, passed(PLAN, unproved, at=NOW))

        with pytest.raises(LedgerConflict, match="has expired"):
            self.put_in_force(unproved, seconds=LASTS.total_seconds())
        self.put_in_force(unproved, seconds=LASTS.total_seconds() - 1)

        assert isinstance(self.begin(unproved), Begun)
        assert unproved.verify_chain().problem == ""

    def test_same_proof_is_written_again_only_when_half_its_time_is_over(self, unproved: Ledger) -> None:
        proof = passed(PLAN, unproved, at=NOW)
        for seconds in (0, 1, LASTS.total_seconds() / 2, LASTS.total_seconds() / 2 + 1):
            keep(unproved, replace(proof, made_at=NOW + timedelta(seconds=seconds)))

        assert kinds(unproved).count(EntryKind.PROOF) == 2
        assert kinds(unproved).count(EntryKind.DECISION) == 1
        known = unproved.proof(PLAN.plan)
        assert known is not None
        assert known.made_at == NOW + LASTS / 2 + SECOND

    def test_contradiction_takes_the_place_of_a_proof_at_once(self, unproved: Ledger) -> None:
        proof = passed(PLAN, unproved, at=NOW)
        keep(unproved, proof)
        keep(unproved, contradicted(proof))

        assert isinstance(self.begin(unproved), Refusal)

    def test_proof_of_a_plan_that_nobody_knows_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(LedgerError, match="there is no plan PLAN-1"):
            keep(ledger, passed(PLAN, ledger, at=NOW))

    def test_what_was_proved_comes_back_as_it_was(self, unproved: Ledger) -> None:
        proof = contradicted(passed(PLAN, unproved, at=NOW))
        proof = replace(proof, checked=(*proof.checked, CheckedPlan(check="'; DROP", contradictions=("\x00ä",))))

        keep(unproved, proof)

        assert unproved.proof(PLAN.plan) == proof
