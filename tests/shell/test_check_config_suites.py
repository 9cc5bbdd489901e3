"""`check-config` says what is wrong with a site's expectations, before an hour is judged by them."""

from pathlib import Path

import pytest

from ops_pipelines import cli
from tests.shell.desk import Desk


@pytest.mark.parametrize(("text", "said"), [('{"expectations": []}', ""), ("{", "gpu_telemetry.json: no JSON")])
def test_a_suite_that_cannot_be_used_is_a_warning(text: str, said: str, tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    suites = tmp_path / "expectations"
    suites.mkdir()
    (suites / "gpu_telemetry.json").write_text(text, encoding="utf-8")

    answer = desk.run("check-config")

    assert answer.exit_code == cli.ExitCode.OK
    assert said in answer.stderr
    assert bool(said) == bool(answer.stderr)
