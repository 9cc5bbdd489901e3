"""`ops-pipelines node-check` and `gates`, as a person or ssh calls them: what was not run is never passed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops_pipelines.cli import app
from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.node_tests import TestResult
from ops_pipelines.resources.catalogue_files import GATES_TABLE, shipped_table
from ops_pipelines.resources.fleet.documents import check_from_json
from ops_pipelines.resources.node import checks as node_check
from ops_pipelines.resources.node.checks import CheckRuns
from tests.resources.stub_nvml import H200, build_stub

RECORDED = Path(__file__).parents[1] / "data" / "node_check" / "thorough_without_a_gpu.json"
KEY = "0123456789abcdef" * 2
RUN = (sys.executable, "-c", "from ops_pipelines.cli import main; main()", "node-check")


def call(*words: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, list(words))
    return found.exit_code, found.stdout, found.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(("--suite", "magic"), 2, "there is no suite 'magic'", id="no such suite"),
        pytest.param(("--test", "magic"), 2, "is no test", id="no such test"),
        pytest.param(("--test", "nvml;reboot"), 2, "is no test", id="hostile test"),
        pytest.param(("--suite", "gpu", "--test", "nvml"), 2, "not both", id="suite and test"),
        pytest.param(("--node", "a;reboot", "--test", "nvml"), 2, "is not a node name", id="hostile node"),
        pytest.param(("--start", "--suite", "gpu"), 2, "wants --key", id="start without a key"),
        pytest.param(("--start", "--suite", "magic", "--key", KEY), 77, "there is no suite", id="start of no suite"),
        pytest.param(("--start", "--key", "../x"), 77, "is not a key", id="start under a path"),
        pytest.param(("--key", "../x", "--test", "nvml"), 2, "is not a key", id="run under a path"),
        pytest.param(("--result", "../x"), 2, "is not a key", id="result of a path"),
        pytest.param(("--result", KEY, "--start"), 2, "is alone", id="result and start"),
        pytest.param(("--limit", "0.5"), 2, "", id="no time"),
    ],
)
def test_wrong_words_are_refused_and_nothing_is_run(words: tuple[str, ...], code: int, said: str) -> None:
    returncode, stdout, stderr = call("node-check", *words)

    assert (returncode, stdout) == (code, "")
    assert said in stderr


def test_a_result_that_nobody_started_is_none(tmp_path: Path) -> None:
    assert call("node-check", "--result", KEY, "--state", str(tmp_path))[:2] == (4, "none\n")


def test_a_check_beside_another_is_asked_for_again_later(tmp_path: Path) -> None:
    runs = CheckRuns(tmp_path, clock=SystemClock())
    other = ActionKey("f" * 32)
    tmp_path.chmod(0o750)

    with runs.alone(other, node=NodeName("gpu003"), suite="gpu", tests=("nvml",), limit_seconds=60.0):
        begun = call("node-check", "--start", "--node", "gpu003", "--key", KEY, "--state", str(tmp_path))
        beside = call("node-check", "--test", "dcgm_memtest", "--node", "gpu003", "--state", str(tmp_path))

    assert [begun[0], beside[0]] == [75, 75]
    assert "still runs on this node" in begun[2]


def test_a_check_that_breaks_does_not_end_as_if_a_test_had_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(node_check, "run_check", breaks)

    returncode, stdout, stderr = call("node-check", "--test", "nvml", "--node", "gpu003")

    assert (returncode, stdout) == (70, "")
    assert "a bug" in stderr


def test_a_node_with_healthy_gpus_passes_by_nvml_alone(tmp_path: Path) -> None:
    library = build_stub(tmp_path)
    (library / "values.txt").write_text(H200)

    answer = subprocess.run(
        [*RUN, "--json", "--node", "gpu003", "--test", "nvml", "--key", KEY],
        env={**os.environ, "LD_LIBRARY_PATH": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (answer.returncode, answer.stderr) == (0, "")
    check = check_from_json(answer.stdout, node=NodeName("gpu003"), key=ActionKey(KEY))
    assert (check.gpu_models, check.tests[0].result) == (("NVIDIA H200",), TestResult.PASSED)
    assert check.inspection is not None
    assert len(check.inspection.gpus) == 8


def test_what_was_recorded_on_a_machine_without_a_gpu_claims_nothing() -> None:
    told = json.loads(RECORDED.read_text())

    check = check_from_json(RECORDED.read_text(), node=NodeName(told["node"]), key=ActionKey(told["key"]))

    assert len(check.tests) == 8
    assert {run.result for run in check.tests} == {TestResult.NOT_RUN}
    assert all(run.said for run in check.tests)
    assert (check.inspection, check.serials, check.gpu_models) == (None, (), ())


def test_the_shipped_gates_are_free_of_complaints() -> None:
    returncode, stdout, stderr = call("gates", "lint")

    assert (returncode, stderr) == (0, "")
    assert "each can fail, and can be passed" in stdout


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",460,", ",800,", "cannot pass"),
        (",460,", ",0.46,", "cannot fail"),
        ("GB/s,H100", "Gb/s,H100", "one unit"),
        (",460,", ",x,", "line 3"),
    ],
)
def test_a_table_of_ones_own_is_refused_with_its_fault(tmp_path: Path, old: str, new: str, said: str) -> None:
    table = tmp_path / "gates.csv"
    table.write_text(shipped_table(GATES_TABLE).replace(old, new))

    returncode, _, stderr = call("gates", "lint", str(table))

    assert returncode == 2
    assert said in stderr


def test_a_table_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert call("gates", "lint", str(tmp_path / "none.csv"))[0] == 2
