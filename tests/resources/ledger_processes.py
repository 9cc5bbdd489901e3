"""What other processes do to a ledger in `test_sql_ledger`: they begin actions, append, take in, or are killed."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import NoReturn

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.entries import Begun, LedgerConflict, LedgerState
from ops_pipelines.core.identity import RolloutId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.proof import ActProof, Refusal
from ops_pipelines.core.rollout import RolloutNode
from ops_pipelines.resources.ledger import rollouts as ledger_rollouts
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from tests.ports.ledger_samples import (
    NOW,
    SECOND,
    allow,
    drain,
    incident,
    observation,
    outcome,
    record,
    refuse,
    take_in,
)
from tests.ports.rollout_samples import NODES, begun, change, open_rollout

BUDGET = 3


def open_ledger(url: str, name: str) -> int:
    """Open the ledger and write one line, so that a ledger opened half would show."""
    ledger = SqlLedger(url)
    ledger.change_incident(incident(int(name), state=IncidentState.ESCALATED), actor=name, now=NOW)
    return 1


def append(url: str, name: str) -> int:
    """Write 50 lines: 25 actions and their outcomes."""
    ledger = SqlLedger(url)
    for number in range(25):
        action = drain(int(name), try_number=number + 1)
        ledger.begin(record(action), guard=allow, lease_token=None, actor=name, now=NOW)
        ledger.finish(action.key, outcome(), actor=name)
    return 50


def spend_budget(url: str, name: str) -> int:
    """Try to begin ten drains where only BUDGET of all processes' may pass; return how many did."""
    ledger = SqlLedger(url)

    def guard(act: ActionRecord, state: LedgerState) -> Refusal | ActProof | None:
        return refuse("no room") if len(state.records) >= BUDGET else act.proof

    answers = [
        ledger.begin(record(drain(1, node=f"gpu{name}-{number}")), guard=guard, lease_token=None, actor=name, now=NOW)
        for number in range(10)
    ]
    return sum(isinstance(answer, Begun) for answer in answers)


def begin_same(url: str, name: str) -> int:
    """Try to begin the same 20 actions as every other process; return how many began here."""
    ledger = SqlLedger(url)
    answers = [
        ledger.begin(record(drain(1, try_number=number)), guard=allow, lease_token=None, actor=name, now=NOW)
        for number in range(20)
    ]
    return sum(isinstance(answer, Begun) for answer in answers)


def take_in_same(url: str, name: str) -> int:
    """Take in the same 100 observations as every other process; return how many were new here."""
    ledger = SqlLedger(url)
    return sum(take_in(ledger, observation(str(number)), cursor=str(number)) for number in range(100))


def begin_and_die(url: str, name: str) -> NoReturn:
    """Begin an action and be killed before its command and its outcome."""
    ledger = SqlLedger(url)
    ledger.begin(record(drain(1)), guard=allow, lease_token=None, actor=name, now=NOW)
    die()


def die_while_judging(url: str, name: str) -> NoReturn:
    """Be killed inside the budget transaction, with the write lock held."""
    ledger = SqlLedger(url)

    def guard(act: ActionRecord, state: LedgerState) -> Refusal | None:
        die()

    ledger.begin(record(drain(1)), guard=guard, lease_token=None, actor=name, now=NOW)
    raise AssertionError("nobody judged")


def open_same_rollout(url: str, name: str) -> int:
    """Try to open a rollout over the same nodes as every other process, under the next id; return whether it was."""
    ledger = SqlLedger(url)
    try:
        open_rollout(ledger, ledger.rollout_count() + 1)
    except LedgerConflict:
        return 0
    return 1


def begin_same_nodes(url: str, name: str) -> int:
    """Try to begin each of the nodes that every other process begins too; return how many began here."""
    ledger = SqlLedger(url)
    begun_count = 0
    for each in ledger.rollout_nodes(RolloutId("ROLL-0001")):
        after = replace(begun(each), since=each.since + int(name) * SECOND)
        try:
            ledger.change_rollout(None, [after], actor=name, now=NOW)
        except LedgerConflict:
            continue
        begun_count += 1
    return begun_count


def die_while_opening(url: str, name: str) -> NoReturn:
    """Be killed when a rollout's line, documents and own row are written, and the rows of its nodes are not."""
    ledger = SqlLedger(url)
    rows = ledger_rollouts.node_row

    def node_row(node: RolloutNode) -> dict[str, str | int]:
        die() if node.node == NODES[-1] else None
        return rows(node)

    ledger_rollouts.node_row = node_row
    open_rollout(ledger, 1)
    raise AssertionError("no row was made")


def change_and_die(url: str, name: str) -> NoReturn:
    """Begin all nodes of a rollout and be killed before anything is done to them."""
    ledger = SqlLedger(url)
    change(ledger, None, *map(begun, ledger.rollout_nodes(RolloutId("ROLL-0001"))))
    die()


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process that was killed continues")


def do(deed: Callable[[str, str], int], url: str, name: str, answer: Connection) -> None:
    """Do a deed and answer with what it returns."""
    answer.send(deed(url, name))
