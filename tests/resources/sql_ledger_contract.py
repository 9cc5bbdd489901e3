"""What holds for a ledger on SQLite and on PostgreSQL beyond its port: processes, kills, schema versions, damage."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from ops_pipelines.core.entries import Begun, LedgerError
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.rollout import NodeStage
from ops_pipelines.resources.ledger.database import KNOWN_VERSIONS, LedgerDatabase
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.ledger.tables import metadata
from tests.forked import CONTEXT
from tests.ports.ledger_contract import LedgerContract
from tests.ports.ledger_samples import (
    NO_LIMIT,
    NOW,
    SECOND,
    begin,
    decide,
    drain,
    fill,
    incident,
    observation,
    record,
    take_in,
)
from tests.ports.quota_samples import kept
from tests.ports.rollout_samples import RELEASE_DIGEST, open_rollout
from tests.resources import ledger_processes
from tests.resources.ledger_audit_contract import LedgerAuditContract, change
from tests.resources.outbox_contract import OutboxContract

REPOSITORY = Path(__file__).parents[2]
TO_VERSION_0005 = (
    "DROP TABLE proofs",
    "DROP TABLE identity",
    "ALTER TABLE leases DROP COLUMN epoch",
    "ALTER TABLE leases DROP COLUMN taken_at",
    "DROP TABLE quota_proposals",
    "DROP TABLE rollouts",
    "DROP TABLE rollout_nodes",
    "DROP INDEX ix_actions_incident_node",
    "ALTER TABLE actions DROP COLUMN node",
    "CREATE INDEX ix_actions_incident ON actions (incident)",
    "UPDATE alembic_version SET version_num = '0005'",
)
"""What takes a ledger without rollouts back to the version before they came."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """A process that does something to a ledger."""

    process: BaseProcess
    answer: Connection

    def end(self) -> int | None:
        """Wait for the end and return how it was."""
        self.process.join()
        return self.process.exitcode


def start(deed: Callable[[str, str], int], url: str, name: int) -> Started:
    answer, answered = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=ledger_processes.do, args=(deed, url, str(name), answered))
    process.start()
    answered.close()
    return Started(process=process, answer=answer)


def finish_all(started: list[Started]) -> list[int]:
    assert [each.end() for each in started] == [0] * len(started)
    return [int(each.answer.recv()) for each in started]


class SqlLedgerContract(LedgerContract, LedgerAuditContract, OutboxContract):
    """What holds on both databases; a subclass provides `url`, an empty database's."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError("a subclass of SqlLedgerContract provides the fixture `url`")

    @pytest.fixture
    def ledger(self, url: str) -> Iterator[SqlLedger]:
        ledger = SqlLedger(url)
        yield ledger
        ledger.close()

    # -- several processes --

    def test_processes_that_open_a_fresh_ledger_at_once_do_not_collide(self, url: str) -> None:
        finish_all([start(ledger_processes.open_ledger, url, name) for name in (1, 2, 3)])

        ledger = SqlLedger(url)
        assert ledger.read_state(NOW).incident_count == 3
        assert ledger.verify_chain().problem == ""
        ledger.close()

    def test_processes_that_append_at_once_lose_no_line_and_keep_the_chain_whole(
        self, ledger: SqlLedger, url: str
    ) -> None:
        finish_all([start(ledger_processes.append, url, name) for name in (1, 2, 3)])

        verdict = ledger.verify_chain()
        assert (verdict.entry_count, verdict.problem) == (150, "")
        assert [len(ledger.records(IncidentId(f"INC-000{name}"))) for name in (1, 2, 3)] == [25] * 3

    def test_processes_together_begin_no_more_than_the_budget(self, ledger: SqlLedger, url: str) -> None:
        begun = finish_all([start(ledger_processes.spend_budget, url, name) for name in (1, 2, 3)])

        assert sum(begun) == ledger_processes.BUDGET
        assert len(ledger.read_state(NOW).records) == ledger_processes.BUDGET

    def test_each_key_begins_in_one_process_only(self, ledger: SqlLedger, url: str) -> None:
        begun = finish_all([start(ledger_processes.begin_same, url, name) for name in (1, 2)])

        assert sum(begun) == 20

    def test_observation_is_new_to_one_process_only(self, ledger: SqlLedger, url: str) -> None:
        new = finish_all([start(ledger_processes.take_in_same, url, name) for name in (1, 2)])

        assert sum(new) == 100
        assert len(ledger.evidence_after(0, limit=NO_LIMIT)) == 100

    @pytest.mark.parametrize("count", [99, 100, 900])
    def test_many_pieces_of_evidence_at_once_are_kept_as_one_is_whatever_they_say(
        self, ledger: SqlLedger, count: int
    ) -> None:
        hard = ("a\\b", "a\tb", "a\nb\r", "\\N", "\\.", "", "''", '"', "%s %(a)s :x", "ü\U0001f525", "a\x00b", "\ud800")
        given = [
            replace(observation(f"{number}/{hard[number % len(hard)]}"), text=hard[number % len(hard)])
            for number in range(count)
        ]
        one_by_one = [replace(each, source="alone") for each in given[: len(hard)]]
        for each in one_by_one:
            take_in(ledger, each)

        new_counts = [take_in(ledger, *given), take_in(ledger, *given)]

        found = [each.observation for each in ledger.evidence_after(len(one_by_one), limit=NO_LIMIT)]
        alone = [each.observation for each in ledger.evidence_after(0, limit=len(one_by_one))]
        assert new_counts == [count, 0]
        assert [replace(each, source="alone") for each in found[: len(alone)]] == alone
        assert [each.position.split("/")[0] for each in found] == [str(number) for number in range(count)]

    def test_nodes_are_taken_by_the_rollout_of_one_process_only(self, ledger: SqlLedger, url: str) -> None:
        opened = finish_all([start(ledger_processes.open_same_rollout, url, name) for name in (1, 2, 3)])

        assert (sum(opened), ledger.rollout_count(), len(ledger.entries(after=0, limit=NO_LIMIT))) == (1, 1, 1)

    def test_each_node_of_a_rollout_begins_in_one_process_only(self, ledger: SqlLedger, url: str) -> None:
        opened, nodes = open_rollout(ledger, 1, names=[f"gpu{number:02d}" for number in range(20)])

        begun = finish_all([start(ledger_processes.begin_same_nodes, url, name) for name in (1, 2)])

        assert sum(begun) == len(nodes) == len(ledger.read_state(NOW).owned)
        assert {each.try_number for each in ledger.rollout_nodes(opened.rollout)} == {2}
        assert ledger.verify_chain().problem == ""

    def test_threads_share_one_ledger(self, ledger: SqlLedger) -> None:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda number: begin(ledger, drain(1, try_number=number)), range(40)))

        assert all(isinstance(answer, Begun) for answer in answers)
        assert ledger.verify_chain().problem == ""

    # -- killed --

    def test_before_entry_of_a_killed_process_is_there_without_an_outcome(self, ledger: SqlLedger, url: str) -> None:
        ended = start(ledger_processes.begin_and_die, url, 1).end()

        assert ended == -signal.SIGKILL
        assert ledger.read_state(NOW).records == (record(drain(1)),)
        assert ledger.verify_chain().problem == ""

    def test_process_killed_while_it_judges_leaves_nothing_and_frees_the_lock(
        self, ledger: SqlLedger, url: str
    ) -> None:
        ended = start(ledger_processes.die_while_judging, url, 1).end()

        assert ended == -signal.SIGKILL
        assert ledger.read_state(NOW).head_seq == 0
        assert isinstance(begin(ledger, drain(1)), Begun)

    def test_process_killed_while_it_opens_a_rollout_leaves_nothing_of_it(self, ledger: SqlLedger, url: str) -> None:
        ended = start(ledger_processes.die_while_opening, url, 1).end()

        assert ended == -signal.SIGKILL
        assert (ledger.rollout_count(), ledger.read_state(NOW).head_seq) == (0, 0)
        with pytest.raises(LedgerError, match="never stored"):
            ledger.release(RELEASE_DIGEST)
        open_rollout(ledger, 1)
        assert ledger.verify_chain().problem == ""

    def test_nodes_that_a_killed_process_began_are_in_hand(self, ledger: SqlLedger, url: str) -> None:
        _, nodes = open_rollout(ledger, 1)

        ended = start(ledger_processes.change_and_die, url, 1).end()

        assert ended == -signal.SIGKILL
        assert ledger.read_state(NOW).owned == {each.node: "ROLL-0001" for each in nodes}
        assert ledger.verify_chain().problem == ""

    # -- kept --

    def test_everything_is_there_after_closing_and_opening(self, ledger: SqlLedger, url: str) -> None:
        fill(ledger)
        open_rollout(ledger, 1, stage=NodeStage.INSTALLING)
        before = ledger.read_state(NOW)
        ledger.close()

        again = SqlLedger(url)

        assert again.read_state(NOW) == before
        again.close()

    def test_head_hash_is_that_of_the_last_line(self, ledger: SqlLedger) -> None:
        assert ledger.head_hash() == "0" * 64
        decide(ledger, incident(1))

        assert ledger.head_hash() == ledger.entries(after=0, limit=NO_LIMIT)[-1].entry_hash

    def test_changed_document_is_not_believed(self, ledger: SqlLedger, url: str) -> None:
        one, other = ledger.store("one"), ledger.store("other")
        of_other = "SELECT compressed FROM documents WHERE digest = :other"
        change(url, f"UPDATE documents SET compressed = ({of_other}) WHERE digest = :one", one=one, other=other)

        with pytest.raises(LedgerError, match="was changed after it was stored"):
            ledger.load(one)

    def test_damaged_document_is_an_error(self, ledger: SqlLedger, url: str) -> None:
        digest = ledger.store("one")
        change(url, "UPDATE documents SET compressed = :rubbish", rubbish=b"rubbish")

        with pytest.raises(LedgerError, match="damaged"):
            ledger.load(digest)

    def test_record_with_a_field_that_this_program_does_not_know_is_an_error(self, ledger: SqlLedger, url: str) -> None:
        begin(ledger, drain(1))
        change(url, """UPDATE actions SET body = replace(body, '"plan"', '"colour": 1,"plan"')""")

        with pytest.raises(LedgerError, match=r"colour.*another version"):
            ledger.records(IncidentId("INC-0001"))

    # -- schema versions --

    def test_migrations_make_the_tables_that_the_program_uses(self, url: str) -> None:
        database = LedgerDatabase(url)
        with database.read() as connection:
            differences = compare_metadata(MigrationContext.configure(connection), metadata)
        database.close()

        assert differences == []

    def test_evidence_of_the_version_before_its_rule_was_kept_is_there_and_not_counted(self, url: str) -> None:
        older = SqlLedger(url)
        take_in(older, observation("1"))
        older.close()
        change(
            url,
            "DROP INDEX ix_evidence_rule_observed_at",
            "ALTER TABLE evidence DROP COLUMN rule",
            "ALTER TABLE evidence DROP COLUMN observed_at",
            "DROP TABLE node_checks",
            "DROP TABLE notes",
            *TO_VERSION_0005,
            "UPDATE alembic_version SET version_num = '0002'",
        )

        ledger = SqlLedger(url)
        new_count = take_in(ledger, observation("1"), observation("2"))

        positions = [each.observation.position for each in ledger.evidence_after(0, limit=NO_LIMIT)]
        counted = [each.observation.position for each in ledger.evidence_since(NOW, rules=["xid_79"], limit=NO_LIMIT)]
        assert (new_count, positions, counted) == (1, ["1", "2"], ["2"])
        ledger.close()

    def test_ledger_of_the_version_before_rollouts_knows_the_nodes_of_its_actions(self, url: str) -> None:
        older = SqlLedger(url)
        fill(older)
        before = older.read_state(NOW)
        older.close()
        change(url, *TO_VERSION_0005)

        ledger = SqlLedger(url)

        on_node = ledger.records_on(IncidentId("INC-0001"), NodeName("gpu003"))
        assert ledger.read_state(NOW) == before
        assert on_node == ledger.records(IncidentId("INC-0001"))
        assert len(on_node) == 2
        assert ledger.verify_chain().problem == ""
        open_rollout(ledger, 1)
        assert ledger.verify_chain().problem == ""
        ledger.close()

    def test_action_that_cannot_be_read_does_not_stop_an_upgrade_and_is_found_by_the_audit(self, url: str) -> None:
        older = SqlLedger(url)
        begin(older, drain(1))
        begin(older, drain(2))
        older.close()
        change(url, *TO_VERSION_0005, "UPDATE actions SET body = 'rubbish' WHERE incident = 'INC-0001'")

        ledger = SqlLedger(url)

        assert len(ledger.records_on(IncidentId("INC-0002"), NodeName("gpu003"))) == 1
        assert "differs" in ledger.verify_chain().problem
        ledger.close()

    def test_lease_of_the_version_before_epochs_is_the_first_and_is_kept(self, url: str) -> None:
        with_lease = SqlLedger(url)
        token = with_lease.take_lease(holder="a", ttl=15 * SECOND, now=NOW)
        with_lease.close()
        change(
            url,
            "DROP TABLE proofs",
            "DROP TABLE identity",
            "ALTER TABLE leases DROP COLUMN epoch",
            "ALTER TABLE leases DROP COLUMN taken_at",
            "UPDATE alembic_version SET version_num = '0007'",
        )

        ledger = SqlLedger(url)
        held = ledger.held_lease(NOW + SECOND)
        ledger.take_lease(holder="b", ttl=15 * SECOND, now=NOW + 15 * SECOND)
        next_one = ledger.held_lease(NOW + 16 * SECOND)

        assert held is not None
        assert (held.token, held.epoch, held.taken_at) == (token, 1, None)
        assert next_one is not None
        assert next_one.epoch == 2

    def test_ledger_of_the_version_before_proposals_keeps_what_it_holds_and_gains_them(self, url: str) -> None:
        older = SqlLedger(url)
        fill(older)
        before = older.read_state(NOW)
        older.close()
        change(
            url,
            "DROP TABLE proofs",
            "DROP TABLE identity",
            "ALTER TABLE leases DROP COLUMN epoch",
            "ALTER TABLE leases DROP COLUMN taken_at",
            "DROP TABLE quota_proposals",
            "UPDATE alembic_version SET version_num = '0006'",
        )

        ledger = SqlLedger(url)

        assert ledger.read_state(NOW) == before
        record = kept(ledger)
        assert ledger.proposals(limit=9) == (record,)
        assert ledger.verify_chain().problem == ""
        ledger.close()

    def test_newer_database_is_refused_and_left_alone(self, url: str) -> None:
        SqlLedger(url).close()
        change(url, "UPDATE alembic_version SET version_num = '9999'")

        with pytest.raises(LedgerError, match=rf"version 9999.* {KNOWN_VERSIONS[-1]}.*newer ops_pipelines"):
            SqlLedger(url)
