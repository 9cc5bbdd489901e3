"""`ops-pipelines placement`: tables and JSON of a day on a simulated cluster; a day to come says what to do."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.efficiency.placement.day import PlacementReport, placement_report
from ops_pipelines.efficiency.placement.document import placement_document
from ops_pipelines.lake.quantities import Refused
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.report.terminal import console, print_document
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from tests.flow.placement_stage import DAY, END, GANG, SMALL, desk_of
from tests.shell.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """An operator's place where a job ran for an hour the day before."""
    place = Desk(tmp_path)
    began_at = place.clock.now().replace(minute=0, second=0, microsecond=0) - timedelta(days=1)
    row = {
        "job": "1", "attempt": began_at.isoformat(), "name": "\x1b[31mred", "user": "ada", "account": "alpha",
        "partition": "batch", "gpu_count": 8, "nodes": "gpu001", "state": "COMPLETED", "node_count": 1,
        "submitted_at": began_at - timedelta(hours=3), "started_at": began_at,
        "ended_at": began_at + timedelta(minutes=30), "time": began_at,
    }  # fmt: skip
    lake = ParquetLake(place.cluster_file.parent / "state" / "lake", clock=place.clock)
    lake.add("job_accounting", TABLES["job_accounting"].from_rows([row]))
    return place


def test_yesterday_is_shown_without_being_asked_for(desk: Desk) -> None:
    answer = desk.run("placement", columns=200)

    assert answer.exit_code == 0, answer.stderr
    assert "1 of 1 job waited longer than 1 h" in answer.stdout
    assert "not known: " in answer.stdout


def test_json_is_one_document_with_every_part(desk: Desk) -> None:
    yesterday = f"{desk.clock.now() - timedelta(days=1):%Y-%m-%d}"

    answer = desk.run("placement", "--day", yesterday, "--json")

    assert answer.exit_code == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert told["started_count"] == 1
    assert told["queue_times"][0]["size"] == "1 node"
    assert told["start"].startswith(yesterday)
    assert {"straddles", "broken_domains", "fits", "hours", "stranded", "backfill", "holes", "findings"} <= told.keys()


def test_a_day_that_has_not_begun_is_refused_with_what_to_do(desk: Desk) -> None:
    answer = desk.run("placement", "--day", f"{desk.clock.now() + timedelta(days=2):%Y-%m-%d}")

    assert answer.exit_code == 4
    assert "ask for a day that has started" in answer.stderr


def _report() -> PlacementReport:
    found = placement_report(DAY, END, desk_of(SMALL, GANG))
    hostile = Refused(record="\x1b[31m", reason="unknown_node", detail="\x1b]0;x", text="")
    return PlacementReport(
        day=found.day, sentences=(*found.sentences, "\x1b[31mred"), notes=("\x1b[2J",), refused=(hostile,)
    )


def test_no_text_of_others_reaches_the_terminal_as_control(capsys: pytest.CaptureFixture[str]) -> None:
    print_document(console(), placement_document(_report(), cluster="small", day=DAY.date()))

    shown = capsys.readouterr().out
    assert "\x1b[31m" not in shown
    assert "\x1b[2J" not in shown
    assert "2, could be 1" in shown
    assert datetime.strftime(DAY, "%Y-%m-%d") in shown
