"""A check as a document: what a node prints is believed only as far as it makes sense."""

import json
from typing import Any

import pytest

from ops_pipelines.core.identity import ActionKey
from ops_pipelines.core.node_tests import NodeCheck, TestResult, TestRun
from ops_pipelines.resources.fleet.documents import check_from_json, check_to_json
from tests.resources.node_bench import NODE, NOW

KEY = ActionKey("0123456789abcdef" * 2)
CHECK = NodeCheck(
    key=KEY,
    node=NODE,
    suite="system",
    started_at=NOW,
    finished_at=NOW,
    tests=(TestRun(test="host", result=TestResult.NOT_RUN, said="no tool", seconds=1.5, is_absent=True),),
)


def document(**changes: Any) -> str:
    told = json.loads(check_to_json(CHECK))
    told["tests"][0].update(changes)
    return json.dumps(told)


def test_a_check_reads_as_it_was_written() -> None:
    assert check_from_json(check_to_json(CHECK), node=NODE, key=KEY) == CHECK


def test_without_a_word_on_it_a_test_that_was_not_run_is_not_taken_for_absent() -> None:
    told = json.loads(document())
    del told["tests"][0]["is_absent"]

    assert not check_from_json(json.dumps(told), node=NODE, key=KEY).tests[0].is_absent


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"seconds": float("inf")}, id="seconds without an end"),
        pytest.param({"seconds": float("nan")}, id="seconds that are none"),
        pytest.param({"seconds": -0.5}, id="before it began"),
        pytest.param({"test": "magic"}, id="no such test"),
        pytest.param({"result": "splendid"}, id="no such result"),
        pytest.param({"said": "x" * 4001}, id="a text without an end"),
        pytest.param({"measurements": [{"name": "n", "value": 1.0, "unit": "u"}] * 4097}, id="numbers without an end"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        check_from_json(document(**changes), node=NODE, key=KEY)


def test_a_document_without_an_end_is_not_read() -> None:
    with pytest.raises(ValueError, match="expected at most 1048576"):
        check_from_json(document() + " " * 2**20, node=NODE, key=KEY)
