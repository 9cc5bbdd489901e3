"""Versions as Dagster's page and the command line show them, on a small simulated cluster."""

import json
from pathlib import Path

import dagster as dg
import pytest
import typer
from typer.testing import CliRunner

from ops_pipelines.acting_jobs import look_at_versions, version_schedule
from ops_pipelines.assets.rollouts import fleet_versions
from ops_pipelines.terminal.rollout_commands import versions
from tests.flow.fake_store import observatory_on
from tests.scenarios.small_autopilot import SmallAutopilot

ROOT = Path(__file__).parents[2]


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    return SmallAutopilot(tmp_path, node_count=4)


def test_page_shows_a_picture_and_who_runs_what(autopilot: SmallAutopilot, tmp_path: Path) -> None:
    observatory = observatory_on(tmp_path / "lake", clock=autopilot.clock, scheduler=autopilot.cluster.scheduler)

    result = dg.materialize([fleet_versions], resources={"cluster": autopilot.cluster, "observatory": observatory})

    (event,) = result.asset_materializations_for_node("fleet_versions")
    assert "base64" in str(event.metadata["picture"].value)
    assert event.metadata["drift_count"].value == 0
    assert event.metadata["silent_count"].value == 0
    shown = event.metadata["versions"]
    assert isinstance(shown, dg.TableMetadataValue)
    assert "driver" in {record.data["component"] for record in shown.records}


def test_versions_are_looked_at_every_hour() -> None:
    assert version_schedule.cron_schedule == "12 * * * *"
    assert version_schedule.job_name == look_at_versions.name


def test_command_tells_every_node_and_its_json_every_line(autopilot: SmallAutopilot) -> None:
    app = typer.Typer()
    app.command()(versions)
    runner = CliRunner()
    asked = ["--cluster", str(ROOT / "cluster.yaml")]

    shown = runner.invoke(app, asked, obj=lambda _: autopilot.cluster)
    told = runner.invoke(app, [*asked, "--json"], obj=lambda _: autopilot.cluster)

    assert shown.exit_code == 0, shown.output
    assert "driver" in shown.output
    parsed = json.loads(told.output)
    assert parsed["node_count"] == 4
    assert {each["told_by"] for each in parsed["versions"]} == {"node"}
