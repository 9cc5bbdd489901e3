"""What the audit must find: every way of changing the chain or a projection behind the ledger's back."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, text

from ops_pipelines.core.proposal import ProposalEvent
from ops_pipelines.core.rollout import RolloutState
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from tests.ports.ledger_samples import decide, fill
from tests.ports.quota_samples import DAY, MADE_AT, kept, move, proposal
from tests.ports.rollout_samples import begun, open_rollout
from tests.ports.rollout_samples import change as change_rollout


def change(url: str, *statements: str, **values: object) -> None:
    """Change the database behind the ledger's back."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement), values)
    engine.dispose()


class LedgerAuditContract:
    """Mixed into `SqlLedgerContract`, which names the fixtures. Line numbers are those of `fill`."""

    @pytest.mark.parametrize(
        ("statements", "broken_seq", "problem"),
        [
            pytest.param(["UPDATE entries SET body = body || ' ' WHERE seq = 4"], 4, "was changed", id="body"),
            pytest.param(["UPDATE entries SET actor = 'eve' WHERE seq = 4"], 4, "was changed", id="actor"),
            pytest.param(["UPDATE entries SET kind = 'plan' WHERE seq = 2"], 2, "was changed", id="kind"),
            pytest.param(["UPDATE entries SET incident = NULL WHERE seq = 2"], 2, "was changed", id="incident"),
            pytest.param(["UPDATE entries SET written_at = 'yesterday' WHERE seq = 4"], 4, "was changed", id="time"),
            pytest.param(
                ["UPDATE entries SET entry_hash = previous_hash WHERE seq = 4"], 4, "was changed", id="its own hash"
            ),
            pytest.param(
                ["UPDATE entries SET previous_hash = entry_hash WHERE seq = 4"], 4, "does not follow", id="hash before"
            ),
            pytest.param(["DELETE FROM entries WHERE seq = 4"], 4, "is missing", id="a line removed"),
            pytest.param(["DELETE FROM entries WHERE seq = 1"], 1, "is missing", id="the first line removed"),
            pytest.param(
                ["DELETE FROM entries WHERE seq = 4", "UPDATE entries SET seq = seq - 1 WHERE seq > 4"],
                4,
                "does not follow",
                id="a line removed and the rest moved up",
            ),
            pytest.param(
                [
                    "UPDATE entries SET seq = -4 WHERE seq = 4",
                    "UPDATE entries SET seq = 4 WHERE seq = 5",
                    "UPDATE entries SET seq = 5 WHERE seq = -4",
                ],
                4,
                "does not follow",
                id="two lines in the other order",
            ),
            pytest.param(
                [
                    "INSERT INTO entries SELECT 0, written_at, kind, actor, incident, body, previous_hash, entry_hash "
                    "FROM entries WHERE seq = 1"
                ],
                0,
                "was inserted",
                id="a line before the first",
            ),
            pytest.param(
                [
                    "INSERT INTO entries SELECT seq + 1, written_at, kind, actor, incident, body, entry_hash, "
                    "entry_hash FROM entries ORDER BY seq DESC LIMIT 1"
                ],
                21,
                "was changed",
                id="a line after the last",
            ),
        ],
    )
    def test_changed_chain_is_found_at_its_first_broken_line(
        self, ledger: SqlLedger, url: str, statements: list[str], broken_seq: int, problem: str
    ) -> None:
        fill(ledger)
        change(url, *statements)

        verdict = ledger.verify_chain()

        assert (verdict.first_broken_seq, problem in verdict.problem) == (broken_seq, True), verdict

    @pytest.mark.parametrize(
        ("statement", "problem"),
        [
            pytest.param("UPDATE incidents SET body = replace(body, 'INC', 'inc')", "body", id="incident body"),
            pytest.param("UPDATE incidents SET is_open = 1 - is_open", "is_open", id="incident closed"),
            pytest.param("UPDATE incidents SET changed_at = 'x'", "changed_at", id="incident time"),
            pytest.param("UPDATE incidents SET opened_at = 'x'", "opened_at", id="incident's first time"),
            pytest.param("UPDATE incidents SET number = number + 1 WHERE number = 2", "number", id="incident number"),
            pytest.param("UPDATE incidents SET last_change_seq = 1", "last_change_seq", id="incident's last change"),
            pytest.param("UPDATE incidents SET seq = 1", "seq", id="incident's line"),
            pytest.param("UPDATE incidents SET first_seq = 1", "first_seq", id="incident's first line"),
            pytest.param("UPDATE incidents SET incident = 'INC-9' WHERE number = 2", "INC-9", id="incident renamed"),
            pytest.param("DELETE FROM incidents WHERE number = 2", "is missing", id="incident removed"),
            pytest.param(
                "INSERT INTO incidents SELECT 'INC-9', 3, is_open, opened_at, changed_at, first_seq, seq, "
                "last_change_seq, body FROM incidents WHERE number = 2",
                "did not record it",
                id="incident invented",
            ),
            pytest.param("UPDATE actions SET body = replace(body, 'why', 'wry')", "body", id="action body"),
            pytest.param("UPDATE actions SET key = 'k' WHERE begun_seq = 7", "key", id="action key"),
            pytest.param("UPDATE actions SET begun_at = 'x'", "begun_at", id="action time"),
            pytest.param("UPDATE actions SET incident = 'INC-9'", "incident", id="action's incident"),
            pytest.param("UPDATE actions SET node = 'gpu999'", "node", id="action's node"),
            pytest.param(
                "UPDATE actions SET finished_seq = NULL WHERE begun_seq = 7", "differs", id="outcome forgotten"
            ),
            pytest.param(
                "UPDATE actions SET finished_seq = NULL, body = (SELECT body FROM entries WHERE seq = 8) "
                "WHERE begun_seq = 7",
                "line 9 (action_finished)",
                id="outcome undone",
            ),
            pytest.param("UPDATE actions SET sent_seq = NULL", "line 8 (action_sent)", id="sending forgotten"),
            pytest.param("UPDATE actions SET begun_seq = 1 WHERE begun_seq = 7", "did not record", id="another line"),
            pytest.param("DELETE FROM actions WHERE begun_seq = 7", "line 7 (action_begun)", id="action removed"),
            pytest.param("UPDATE plans SET body = replace(body, 'Xid', 'xid')", "body", id="plan body"),
            pytest.param("UPDATE plans SET plan = plan || 'x'", "PLAN-1x", id="plan id"),
            pytest.param("DELETE FROM plans", "line 4 (plan)", id="plan removed"),
            pytest.param("UPDATE approvals SET expires_at = '2999'", "expires_at", id="approval prolonged"),
            pytest.param("UPDATE approvals SET body = replace(body, 'ada', 'eve')", "body", id="approval body"),
            pytest.param("DELETE FROM approvals", "line 6 (approval)", id="approval removed"),
            pytest.param(
                "INSERT INTO approvals SELECT 7, expires_at, body FROM approvals",
                "did not record",
                id="approval invented",
            ),
            pytest.param("UPDATE refusals SET identity = 'x'", "identity", id="refusal"),
            pytest.param("DELETE FROM refusals", "(action_refused)", id="refusal removed"),
        ],
    )
    def test_changed_projection_is_found(self, ledger: SqlLedger, url: str, statement: str, problem: str) -> None:
        fill(ledger)
        change(url, statement)

        verdict = ledger.verify_chain()

        assert verdict.first_broken_seq is not None
        assert problem in verdict.problem

    @pytest.mark.parametrize(
        ("statement", "problem"),
        [
            pytest.param("UPDATE rollouts SET body = replace(body, 'ada', 'eve')", "body", id="rollout body"),
            pytest.param("UPDATE rollouts SET body = 'rubbish'", "body", id="rollout body unreadable"),
            pytest.param("UPDATE rollouts SET is_open = 0", "is_open", id="rollout ended"),
            pytest.param("UPDATE rollouts SET changed_at = 'x'", "changed_at", id="rollout time"),
            pytest.param("UPDATE rollouts SET plan = 'PLAN-9'", "plan", id="rollout's plan"),
            pytest.param("UPDATE rollouts SET plan_document = 'x'", "plan_document", id="rollout's plan document"),
            pytest.param("UPDATE rollouts SET number = 7", "number", id="rollout number"),
            pytest.param("UPDATE rollouts SET first_seq = 9", "first_seq", id="rollout's first line"),
            pytest.param("UPDATE rollouts SET seq = 1", "seq", id="rollout's line"),
            pytest.param("UPDATE rollouts SET rollout = 'ROLL-9'", "its rollout is not", id="rollout renamed"),
            pytest.param("DELETE FROM rollouts", "its rollout is not", id="rollout removed, nodes left"),
            pytest.param("DELETE FROM rollout_nodes", "is missing", id="nodes removed"),
            pytest.param("DELETE FROM rollout_nodes WHERE node = 'gpu003'", "gpu003", id="one node removed"),
            pytest.param("UPDATE rollout_nodes SET stage = 'skipped'", "stage", id="node disowned"),
            pytest.param("UPDATE rollout_nodes SET seq = 1 WHERE node = 'gpu001'", "seq", id="node's line"),
            pytest.param("UPDATE rollout_nodes SET body = replace(body, '570', '571')", "body", id="the rollback"),
            pytest.param(
                "UPDATE rollout_nodes SET node = 'gpu9' WHERE node = 'gpu002'", "did not record it", id="node renamed"
            ),
            pytest.param(
                "INSERT INTO rollout_nodes SELECT 'ROLL-9', node, stage, seq, body FROM rollout_nodes",
                "of ROLL-9 is in its table, but its rollout",
                id="nodes of no rollout",
            ),
            pytest.param("DELETE FROM documents", "plan or release of ROLL-0001", id="plan and release removed"),
            pytest.param(
                "UPDATE documents SET compressed = (SELECT compressed FROM documents ORDER BY digest LIMIT 1)",
                "plan or release of ROLL-0001",
                id="plan and release the same",
            ),
        ],
    )
    def test_changed_rollout_is_found(self, ledger: SqlLedger, url: str, statement: str, problem: str) -> None:
        opened, (one, *_) = open_rollout(ledger, 1)
        change_rollout(ledger, None, begun(one))
        change_rollout(ledger, replace(opened, state=RolloutState.PAUSED))
        whole = ledger.verify_chain()
        change(url, statement)

        verdict = ledger.verify_chain()

        assert whole.problem == ""
        assert verdict.first_broken_seq is not None
        assert problem in verdict.problem

    def test_rollouts_with_each_others_numbers_are_found(self, ledger: SqlLedger, url: str) -> None:
        open_rollout(ledger, 1, names=("gpu001",))
        open_rollout(ledger, 2, names=("gpu002",))
        change(
            url,
            "UPDATE rollouts SET number = -1 WHERE number = 1",
            "UPDATE rollouts SET number = 1 WHERE number = 2",
            "UPDATE rollouts SET number = 2 WHERE number = -1",
        )

        assert "number" in ledger.verify_chain().problem

    def test_lost_rollout_with_its_nodes_is_found(self, ledger: SqlLedger, url: str) -> None:
        open_rollout(ledger, 1)
        change(url, "DELETE FROM rollout_nodes", "DELETE FROM rollouts")

        assert "line 1 (rollout)" in ledger.verify_chain().problem

    @pytest.mark.parametrize(
        ("statement", "problem"),
        [
            pytest.param("UPDATE quota_proposals SET body = replace(body, 'ada', 'eve')", "body", id="who"),
            pytest.param("UPDATE quota_proposals SET body = 'rubbish'", "body", id="unreadable"),
            pytest.param("UPDATE quota_proposals SET state = 'proposed'", "state", id="state"),
            pytest.param("UPDATE quota_proposals SET number = number + 7", "number", id="number"),
            pytest.param("UPDATE quota_proposals SET day = '2026-04-01'", "day", id="day"),
            pytest.param("UPDATE quota_proposals SET document = 'x'", "document", id="document"),
            pytest.param("UPDATE quota_proposals SET first_seq = first_seq + 70", "first_seq", id="first line"),
            pytest.param("UPDATE quota_proposals SET begun_seq = NULL", "begun_seq", id="beginning forgotten"),
            pytest.param("UPDATE quota_proposals SET seq = 1", "seq", id="line"),
            pytest.param("UPDATE quota_proposals SET proposal = proposal || 'x'", "line 1 (quotas)", id="renamed"),
            pytest.param(
                "INSERT INTO quota_proposals SELECT 'QUOTA-9', 9, day, state, document, 99, NULL, seq, body "
                "FROM quota_proposals WHERE number = 3",
                "did not record it",
                id="invented",
            ),
            pytest.param("DELETE FROM quota_proposals", "line 1 (quotas)", id="removed"),
            pytest.param("DELETE FROM quota_proposals WHERE number = 1", "line 1 (quotas)", id="one removed"),
            pytest.param("DELETE FROM documents", "cannot be read", id="documents removed"),
            pytest.param(
                "UPDATE documents SET compressed = (SELECT compressed FROM documents ORDER BY digest LIMIT 1)",
                "cannot be read",
                id="documents the same",
            ),
        ],
    )
    def test_changed_proposal_is_found(self, ledger: SqlLedger, url: str, statement: str, problem: str) -> None:
        move(ledger, kept(ledger), ProposalEvent.BEGIN, ProposalEvent.READ_BACK)
        kept(ledger, proposal(day=DAY + timedelta(days=1), made_at=MADE_AT + timedelta(days=1)))
        kept(ledger, proposal(day=DAY + timedelta(days=2), made_at=MADE_AT + timedelta(days=2)))
        whole = ledger.verify_chain()
        change(url, statement)

        verdict = ledger.verify_chain()

        assert whole.problem == ""
        assert verdict.first_broken_seq is not None
        assert problem in verdict.problem

    def test_two_actions_with_each_others_lines_are_found(self, ledger: SqlLedger, url: str) -> None:
        fill(ledger)
        change(
            url,
            "UPDATE actions SET begun_seq = -1 WHERE begun_seq = 7",
            "UPDATE actions SET begun_seq = 7 WHERE begun_seq = 10",
            "UPDATE actions SET begun_seq = 10 WHERE begun_seq = -1",
        )

        assert "begun_seq" in ledger.verify_chain().problem

    def test_lines_cut_off_the_end_show_against_a_head_hash_kept_elsewhere(self, ledger: SqlLedger, url: str) -> None:
        decide(ledger, through=1)
        decide(ledger, through=2)
        kept = ledger.head_hash()
        change(url, "DELETE FROM entries WHERE seq = 2")

        verdict = ledger.verify_chain()

        assert verdict.problem == ""
        assert verdict.head_hash != kept
