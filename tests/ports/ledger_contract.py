"""What every ledger must do: one suite, run on SQLite and, marked `live`, on PostgreSQL.

A subclass provides the fixture `ledger`, fresh for each test. What needs several processes, a damaged file or a second
ledger on the same database is in the adapter's own tests.
"""

from dataclasses import replace

import pytest

from ops_pipelines.core.entries import EntryKind, Pause
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.proof import Refusal
from tests.ports.ledger_action_contract import LedgerActionContract
from tests.ports.ledger_approval_contract import LedgerApprovalContract
from tests.ports.ledger_check_contract import LedgerCheckContract
from tests.ports.ledger_decision_contract import LedgerDecisionContract
from tests.ports.ledger_evidence_contract import LedgerEvidenceContract
from tests.ports.ledger_heartbeat_contract import LedgerHeartbeatContract
from tests.ports.ledger_proof_contract import LedgerProofContract
from tests.ports.ledger_quota_contract import LedgerQuotaContract
from tests.ports.ledger_rollout_contract import LedgerRolloutContract
from tests.ports.ledger_samples import (
    HOSTILE,
    NO_LIMIT,
    NOW,
    begin,
    decide,
    drain,
    fill,
    incident,
    observation,
    plan,
    record,
    refusing,
    take_in,
)
from tests.ports.quota_samples import kept
from tests.ports.rollout_samples import open_rollout


class LedgerContract(
    LedgerEvidenceContract,
    LedgerDecisionContract,
    LedgerApprovalContract,
    LedgerProofContract,
    LedgerActionContract,
    LedgerRolloutContract,
    LedgerQuotaContract,
    LedgerCheckContract,
    LedgerHeartbeatContract,
):
    """Subclass as `class TestX(LedgerContract)` and define the fixture `ledger`."""

    @pytest.fixture
    def ledger(self) -> Ledger:
        raise NotImplementedError("a subclass of LedgerContract provides the fixture `ledger`")

    # -- fresh --

    def test_fresh_ledger_holds_nothing_and_is_whole(self, ledger: Ledger) -> None:
        state = ledger.read_state(NOW)

        assert (state.head_seq, state.decided_through, state.evidence_head, state.incident_count) == (0, 0, 0, 0)
        assert (state.incidents, state.records, state.approvals, state.pause) == ((), (), (), None)
        assert state.last_change_seq == {}
        verdict = ledger.verify_chain()
        assert (verdict.entry_count, verdict.first_broken_seq, verdict.problem) == (0, None, "")

    # -- chain --

    def test_lines_are_numbered_from_one_and_each_names_the_hash_before_it(self, ledger: Ledger) -> None:
        decide(ledger, incident(1), plans=(plan(1, drain(1)),), through=1)
        begin(ledger, drain(1))

        lines = ledger.entries(after=0, limit=NO_LIMIT)

        assert [line.seq for line in lines] == [1, 2, 3, 4]
        assert [line.previous_hash for line in lines[1:]] == [line.entry_hash for line in lines[:-1]]
        assert [line.written_at for line in lines] == [NOW] * 4
        assert ledger.entries(after=1, limit=2) == lines[1:3]

    def test_ledger_in_which_everything_happened_is_whole(self, ledger: Ledger) -> None:
        fill(ledger)
        open_rollout(ledger, 1)
        kept(ledger)

        verdict = ledger.verify_chain()

        lines = ledger.entries(after=0, limit=NO_LIMIT)
        assert (verdict.first_broken_seq, verdict.problem) == (None, "")
        assert (verdict.entry_count, verdict.head_hash) == (len(lines), lines[-1].entry_hash)
        assert {line.kind for line in lines} == set(EntryKind) - {EntryKind.LEDGER}

    def test_lines_about_an_incident_come_with_the_decisions_that_made_them_and_with_no_others(
        self, ledger: Ledger
    ) -> None:
        fill(ledger)
        decide(ledger, incident(3), plans=(plan(3, drain(3)),), through=1)
        chain = ledger.entries(after=0, limit=NO_LIMIT)

        about = {number: ledger.entries_about(IncidentId(f"INC-{number:04d}")) for number in (1, 2, 3, 4)}

        for number in (1, 2, 3):
            name = IncidentId(f"INC-{number:04d}")
            decisions = [each for each in about[number] if each.kind is EntryKind.DECISION]
            assert [each for each in about[number] if each.incident == name] == [
                each for each in chain if each.incident == name
            ]
            assert len(decisions) == 1
            assert name in decisions[0].body
            assert list(about[number]) == sorted(about[number], key=lambda each: each.seq)
        assert about[4] == ()

    # -- hostile text --

    def test_hostile_text_is_kept_as_text_and_breaks_nothing(self, ledger: Ledger) -> None:
        hostile_incident = replace(incident(1), note=HOSTILE, incident=IncidentId("INC-'; DROP TABLE entries; --"))
        decide(ledger, hostile_incident)
        take_in(ledger, replace(observation(HOSTILE, source=HOSTILE), text=HOSTILE), cursor=HOSTILE)
        ledger.take_in(
            source=HOSTILE,
            observations=(),
            rejected=(Rejected(source=HOSTILE, position=HOSTILE, reason=HOSTILE, text=HOSTILE),),
            cursor=HOSTILE,
            now=NOW,
        )
        ledger.take_in_conditions(source=HOSTILE, present=(observation(HOSTILE, source=HOSTILE),), now=NOW)
        action = replace(drain(1), incident=hostile_incident.incident, text=HOSTILE)
        answer = ledger.begin(record(action), guard=refusing(HOSTILE), lease_token=None, actor=HOSTILE, now=NOW)
        ledger.pause(Pause(actor=HOSTILE, since=NOW, reason=HOSTILE))

        assert isinstance(answer, Refusal)
        assert ledger.verify_chain().problem == ""
        assert ledger.incident(hostile_incident.incident) is not None
        assert len(ledger.entries_about(hostile_incident.incident)) == 3
        assert len(ledger.evidence_after(0, limit=NO_LIMIT)) == 2
        assert len(ledger.conditions()) == len(ledger.rejected(limit=9)) == 1
        assert ledger.cursor(HOSTILE) is not None
        assert "DROP TABLE" in ledger.read_state(NOW).incidents[0].note
