"""A ledger that keeps its answers until they may change: thousands of stories ask the same things over and over.

It answers as the ledger itself would in a story, which lasts less than the day for which a ledger shows actions. All
processes of one story share one database and one memory of it.
"""

import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.entries import Approval, LedgerState, Pause
from ops_pipelines.core.identity import IncidentId, NodeName, RolloutId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.rollout import IN_HAND, NodeStage, Rollout
from ops_pipelines.resources.documents import decode
from ops_pipelines.resources.ledger.chain import Decision
from ops_pipelines.resources.ledger.database import LedgerDatabase
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.ledger.watch import Watch
from ops_pipelines.resources.state_files import PauseFile
from tests.safety.quick_database import QuickDatabase

_OF_STATE = frozenset({"actions", "approvals", "entries", "evidence", "incidents", "rollout_nodes", "rollouts"})
_NAMES = frozenset(
    {
        "checks",
        "conditions",
        "current_lease",
        "cursor",
        "entries",
        "evidence_after",
        "evidence_since",
        "head_hash",
        "heartbeats",
        "held_lease",
        "history_until",
        "incident",
        "incidents_since",
        "load_snapshot",
        "plan",
        "records",
        "records_on",
        "rejected",
        "release",
        "resent_at",
        "rollout",
        "rollout_count",
        "rollout_nodes",
        "rollout_plan",
        "rollouts",
        "undecided",
        "withheld",
    }
)
"""Questions whose answer depends on what was asked and on the ledger alone."""


class Memory:
    """What a story's ledgers have answered, each answer until one of the tables that it rests on is written to."""

    def __init__(self, database: QuickDatabase) -> None:
        self._database = database
        self._answers: dict[object, tuple[object, tuple[tuple[str, int], ...]]] = {}

    def ask(self, name: str, question: object, answer: Callable[[], Any]) -> Any:
        counts = self._database.write_counts
        known = self._answers.get((name, question))
        if known is not None and all(counts[table] == count for table, count in known[1]):
            return known[0]
        self._database.tables_read = set()
        given = answer()
        # Documents are kept under their digest: nobody changes what was read once.
        rests_on = tuple((table, counts[table]) for table in self._database.tables_read - {"documents"})
        self._answers[name, question] = (given, rests_on)
        return given

    def read_state(self) -> LedgerState:
        """Return the state with every approval that there ever was, read by the plainest SQL."""
        self._database.tables_read |= _OF_STATE
        execute = self._database.own.execute

        def bodies(statement: str) -> list[str]:
            return [row[0] for row in execute(statement)]

        def newest(statement: str) -> Any:
            return next(iter(bodies(statement)), None)

        opened = execute(
            "SELECT incident, last_change_seq, body FROM incidents WHERE is_open = 1 ORDER BY opened_at, number"
        ).fetchall()
        decision = newest("SELECT body FROM entries WHERE kind = 'decision' ORDER BY seq DESC LIMIT 1")
        resumed_seq = newest("SELECT max(seq) FROM entries WHERE kind = 'resume_autopilot'") or 0
        pause = newest(f"SELECT body FROM entries WHERE kind = 'pause' AND seq > {resumed_seq} ORDER BY seq LIMIT 1")
        return LedgerState(
            head_seq=newest("SELECT max(seq) FROM entries") or 0,
            decided_through=0 if decision is None else _decoded(Decision, decision).decided_through,
            evidence_head=newest("SELECT max(seq) FROM evidence") or 0,
            incidents=tuple(_decoded(Incident, row[2]) for row in opened),
            incident_count=newest("SELECT max(number) FROM incidents") or 0,
            last_change_seq={IncidentId(row[0]): row[1] for row in opened},
            records=tuple(
                _decoded(ActionRecord, each) for each in bodies("SELECT body FROM actions ORDER BY begun_seq")
            ),
            approvals=tuple(_decoded(Approval, each) for each in bodies("SELECT body FROM approvals ORDER BY seq")),
            pause=None if pause is None else _decoded(Pause, pause),
            rollouts=tuple(
                _decoded(Rollout, each)
                for each in bodies("SELECT body FROM rollouts WHERE is_open = 1 ORDER BY number")
            ),
            owned={
                NodeName(row[0]): RolloutId(row[1])
                for row in execute(
                    "SELECT node, rollout, stage FROM rollout_nodes JOIN rollouts USING (rollout) WHERE is_open = 1"
                )
                if NodeStage(row[2]) in IN_HAND
            },
        )


@lru_cache(maxsize=4096)
def _decoded(kind: type[Any], body: str) -> Any:
    return decode(kind, body)


class QuickLedger:
    """One process's ledger, with the memory of its story."""

    def __init__(self, ledger: SqlLedger, memory: Memory) -> None:
        self.plain = ledger
        self._memory = memory

    def read_state(self, now: datetime) -> LedgerState:
        state: LedgerState = self._memory.ask("read_state", None, self._memory.read_state)
        if not state.approvals:
            return state
        return replace(
            state,
            approvals=tuple(each for each in state.approvals if each.expires_at > now),
            past_approvals=tuple(
                each for each in state.approvals if now - timedelta(hours=24) < each.expires_at <= now
            ),
        )

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.plain, name)
        if name not in _NAMES:
            return method

        def remember(*args: Any, **options: Any) -> Any:
            question = (args, tuple((key, repr(option)) for key, option in sorted(options.items())))
            return self._memory.ask(name, question, lambda: method(*args, **options))

        return remember


class StoryLedger(SqlLedger):
    """The ledger on the database of its story, which no other story shares."""

    def __init__(self, database: QuickDatabase, *, pause_file: PauseFile) -> None:
        self._database = cast("LedgerDatabase", database)
        self._pause_file = pause_file
        self._watch = Watch(self._database, None)


@cache
def empty_ledger() -> bytes:
    """Return the file of a ledger in which nothing is: to make one again takes as long as a pass."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ledger.sqlite"
        SqlLedger(f"sqlite:///{path}").close()
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = DELETE")  # A database in memory has no WAL.
        return path.read_bytes()
