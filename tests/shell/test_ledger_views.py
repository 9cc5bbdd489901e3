"""What the history shows of lines about rollouts and proposals of quotas."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.core.proposal import ProposalEvent
from ops_pipelines.core.rollout import RolloutState
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.terminal.status import gist_of
from tests.ports.quota_samples import DAY, kept, move, proposal
from tests.ports.rollout_samples import begun, change, open_rollout


@pytest.fixture
def ledger() -> Iterator[SqlLedger]:
    ledger = SqlLedger("sqlite://")
    yield ledger
    ledger.close()


def test_lines_of_a_rollout_say_where_it_is_or_where_its_nodes_are(ledger: SqlLedger) -> None:
    opened, (one, two, three) = open_rollout(ledger, 1)
    change(ledger, None, begun(one))
    change(ledger, None, begun(two), begun(three))
    change(ledger, replace(opened, state=RolloutState.PAUSED, reason="ada: wait"), actor="ada")

    said = [gist_of(each) for each in ledger.entries(after=0, limit=9)]

    assert said == [
        "ROLL-0001 running: started by ada",
        "ROLL-0001 gpu001 draining: ",
        "ROLL-0001: 2 nodes",
        "ROLL-0001 paused: ada: wait",
    ]


@pytest.mark.parametrize("body", ["{}", '{"rollout": 7, "nodes": 7}', '{"rollout": null, "nodes": [7]}', "[]", "x"])
def test_line_of_another_version_gives_fewer_words_and_no_error(ledger: SqlLedger, body: str) -> None:
    open_rollout(ledger, 1)
    (entry,) = ledger.entries(after=0, limit=1)

    assert isinstance(gist_of(replace(entry, body=body)), str)


def test_lines_of_a_proposal_say_where_it_is_and_whose_place_it_took(ledger: SqlLedger) -> None:
    first = kept(ledger)
    second = move(ledger, kept(ledger, proposal(day=DAY + timedelta(days=1))), ProposalEvent.BEGIN)

    said = [gist_of(each) for each in ledger.entries(after=0, limit=9)]

    assert said == [
        f"{first.name} proposed: 05:00",
        f"{second.name} proposed: 05:00 (in place of {first.name})",
        f"{second.name} applying: begin of a test",
    ]


@pytest.mark.parametrize("body", ["{}", '{"standing": 7, "superseded": 7}', '{"superseded": [7]}', "[]", "x"])
def test_line_on_quotas_of_another_version_gives_fewer_words_and_no_error(ledger: SqlLedger, body: str) -> None:
    kept(ledger)
    (entry,) = ledger.entries(after=0, limit=1)

    assert isinstance(gist_of(replace(entry, body=body)), str)
