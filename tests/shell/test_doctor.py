"""`ops-pipelines doctor` where the ledger cannot be used: what else there is, is asked all the same."""

import json
from pathlib import Path

from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.sensors.runs import hold_lease
from ops_pipelines.wiring import forget_opened
from tests.shell.desk import CLUSTER_YAML, Desk


def test_all_else_is_asked_where_the_ledgers_server_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "ledger.url").write_text("postgresql://ops:secret@127.0.0.1:9/ops", encoding="utf-8")
    (tmp_path / "policy.yaml").write_text("mode: approve\n", encoding="utf-8")
    cluster_file = tmp_path / "cluster.yaml"
    cluster_file.write_text(CLUSTER_YAML + "ledger: {url_file: ledger.url}\n", encoding="utf-8")
    before = {each.name for each in tmp_path.rglob("*")}

    found = CliRunner().invoke(cli.app, ["doctor", "--cluster", str(cluster_file), "--json"])

    answer = json.loads(found.stdout)
    assert found.exit_code == 3
    (ledger,) = [each for each in answer["blind"] if each.startswith("ledger: ")]
    assert "the server does not answer" in ledger
    assert "secret" not in found.output
    assert {each.split(":")[0] for each in answer["works"]} >= {"scheduler", "telemetry"}
    assert answer["next_step"] == "make the ledger answer, then run this again"
    made = {each.name for each in tmp_path.rglob("*")} - before
    assert not {each for each in made if "ledger" in each}


def test_a_ledger_that_was_deleted_is_named_and_not_begun_anew(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.lose_gpu("gpu001")
    hold_lease(desk.cluster)
    for file in desk.ledger_file.parent.glob("ledger.sqlite*"):
        file.unlink()
    forget_opened()
    seen = {each: each.read_bytes() for each in desk.ledger_file.parent.iterdir() if each.is_file()}

    found = CliRunner().invoke(cli.app, ["doctor", "--cluster", str(desk.cluster_file), "--json"])

    answer = json.loads(found.stdout)
    assert found.exit_code == 3
    (ledger,) = [each for each in answer["blind"] if each.startswith("ledger: ")]
    assert "is not there any more" in ledger
    assert all(file.read_bytes() == content for file, content in seen.items())
