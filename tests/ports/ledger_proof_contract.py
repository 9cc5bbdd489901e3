"""What every ledger asks before it lets anything of a plan begin: a proof of this very plan, whole and passed."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.entries import Begun, EntryKind, LedgerConflict, LedgerError
from ops_pipelines.core.identity import JobAttempt, JobId, digest_of
from ops_pipelines.core.incident import IncidentEvent, advance
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.proof import LASTS, PROVER_VERSION, ActProof, CheckedPlan, Proof, Refusal
from tests.ports.ledger_samples import INPUTS, NOW, SECOND, allow, decide, drain, incident, kinds, page, plan, record
from tests.ports.proved_plans import passed, passed_act

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


OURS = "gpu003 is none of ours"
UNPROVED_ACTS: dict[str, Callable[[ActProof], ActProof | None]] = {
    "nobody has proved this act": lambda _: None,
    "what was proved is another act": lambda proof: replace(proof, act=drain(2).key),
    "of another version": lambda proof: replace(proof, version=PROVER_VERSION + 1),
    "of another version of": lambda proof: replace(proof, checks=proof.checks[1:]),
    "its proof has expired": lambda proof: replace(proof, made_at=NOW - 31 * SECOND),
    OURS: lambda proof: replace(proof, contradictions=(OURS,)),
}
REBOOT = replace(drain(1), verb=Verb.REBOOT)
ATTEMPT = JobAttempt(job=JobId("42"), started_at=NOW - 60 * SECOND)


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

    @pytest.mark.parametrize("why", UNPROVED_ACTS)
    def test_act_is_not_begun_on_a_proof_of_its_own_that_has_not_passed(self, ledger: Ledger, why: str) -> None:
        proof = UNPROVED_ACTS[why](passed_act(drain(1), at=NOW))

        refusal = ledger.begin(record(drain(1)), guard=lambda *_: proof, lease_token=None, actor="ada", now=NOW)

        assert isinstance(refusal, Refusal)
        assert why in refusal.reason
        assert refusal.guardrail == ("second_opinion" if why == OURS else "proof")
        assert kinds(ledger) == [EntryKind.ACTION_REFUSED]

    def test_act_is_sent_again_only_on_a_proof_of_that_moment(self, ledger: Ledger) -> None:
        def let(seconds: float) -> object:
            now = NOW + seconds * SECOND
            proof = passed_act(drain(1), at=NOW + 60 * SECOND)
            return ledger.begin_again(
                begun.record, after=0, guard=lambda *_: proof, lease_token=None, actor="ada", now=now
            )

        begun = ledger.begin(record(drain(1)), guard=allow, lease_token=None, actor="ada", now=NOW)
        assert isinstance(begun, Begun)

        late, in_time = let(91), let(90)

        assert isinstance(late, Refusal)
        assert "expired" in late.reason
        assert isinstance(in_time, Begun)

    def test_record_keeps_what_was_proved_of_its_act(self, ledger: Ledger) -> None:
        proof = passed_act(drain(1), at=NOW)

        begun = ledger.begin(record(drain(1)), guard=lambda *_: proof, lease_token=None, actor="ada", now=NOW)

        assert isinstance(begun, Begun)
        assert ledger.records(drain(1).incident)[0].proof == begun.record.proof == proof

    @pytest.mark.parametrize(
        ("act", "why"),
        [
            (REBOOT, "reboot of gpu003 is no act of PLAN-1"),
            (replace(REBOOT, verb=Verb.HOLD, node=None, attempt=ATTEMPT), "hold of job 42 is no act of PLAN-1"),
        ],
    )
    def test_step_that_its_plan_does_not_hold_is_not_begun(self, unproved: Ledger, act: Action, why: str) -> None:
        keep(unproved, passed(PLAN, unproved, at=NOW))

        refusals = [
            unproved.begin(replace(record(act), plan=name), guard=allow, lease_token=None, actor="ada", now=NOW)
            for name in (PLAN.plan, None)
        ]

        assert [each.reason for each in refusals if isinstance(each, Refusal)] == [
            why,
            why.replace("PLAN-1", "any plan"),
        ]

    def test_step_that_differs_by_a_byte_from_what_was_proved_is_not_begun(self, ledger: Ledger) -> None:
        made = plan(1, drain(1), REBOOT)
        decide(ledger, incident(1), plans=(made,))
        keep(ledger, passed(made, ledger, at=NOW))
        other = replace(REBOOT, text=REBOOT.text + " ")

        refusal, begun = (
            ledger.begin(replace(record(act), plan=made.plan), guard=allow, lease_token=None, actor="ada", now=NOW)
            for act in (other, REBOOT)
        )

        assert isinstance(refusal, Refusal)
        assert isinstance(begun, Begun)

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
