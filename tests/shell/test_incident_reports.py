"""Incident reports at the edges: the command, the asset that keeps pages, the address that serves them."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.assets.incident_pages import (
    WRITTEN_AT_ONCE,
    describe_reports,
    incident_reports,
    reported,
    write_stale_pages,
)
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.record import ShelfError
from ops_pipelines.resources.page_files import PageFiles
from ops_pipelines.server import build_app
from tests.shell.desk import HOSTILE, Desk, incident_with, record
from tests.shell.test_server import get


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# -- the command ------------------------------------------------------------------------------------------------------


def test_command_prints_the_report_and_how_to_get_what_only_a_page_shows(desk: Desk) -> None:
    plan = desk.lose_gpu("gpu001")

    answer = desk.run("report", "INC-0001", columns=200)

    assert answer.exit_code == 0
    assert answer.stdout.startswith("INC-0001: open\ngpu001: ")
    assert f"ops-pipelines approve {plan}" in answer.stdout
    assert "fault began" in answer.stdout
    assert "--html FILE" in answer.stdout


def test_json_is_one_document_with_the_keys_that_help_promises(desk: Desk) -> None:
    desk.lose_gpu("gpu001")

    answer = desk.run("report", "INC-0001", "--json")
    told = json.loads(answer.stdout)
    described = desk.run("report", "--help", columns=200).stdout

    assert told["incident"] == "INC-0001"
    assert [key for key in told if key not in described] == []
    for nested in (told["events"][0], told["plans"][0], told["victims"][0], told["cost"], told["lines"][0]):
        assert [key for key in nested if key not in described] == []


def test_html_is_written_to_the_named_file_and_hostile_words_reach_no_terminal(desk: Desk, tmp_path: Path) -> None:
    record(incident_with(HOSTILE, desk, state=IncidentState.ESCALATED), desk)
    file = tmp_path / "page.html"

    written = desk.run("report", "INC-0001", "--html", str(file))
    printed = desk.run("report", "INC-0001")

    assert (written.exit_code, written.stdout) == (0, f"INC-0001 is written to {file}\n")
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & set(printed.stdout + file.read_text(encoding="utf-8"))


def test_file_that_cannot_be_written_and_unknown_incident_are_told(desk: Desk, tmp_path: Path) -> None:
    desk.lose_gpu("gpu001")

    unwritable = desk.run("report", "INC-0001", "--html", str(tmp_path / "none" / "page.html"))
    unknown = desk.run("report", "INC-9999")

    assert (unwritable.exit_code, unknown.exit_code) == (2, 4)
    assert "Choose another with --html" in unwritable.stderr
    assert "there is no incident INC-9999" in unknown.stderr


# -- the asset --------------------------------------------------------------------------------------------------------


def fill(desk: Desk, count: int) -> None:
    one = incident_with("a bad row", desk, state=IncidentState.ESCALATED)
    for number in range(1, count + 1):
        record(replace(one, incident=IncidentId(f"INC-{number:04d}")), desk)


def stale(desk: Desk, shelf: PageFiles) -> list[str]:
    now = desk.clock.now()
    incidents = reported(desk.cluster.ledger.incidents_since(now - timedelta(days=7)))
    return [each.report.incident for each in write_stale_pages(incidents, desk.cluster, shelf, now=now)]


def test_pages_are_written_a_few_at_a_time_and_again_only_when_the_ledger_overtook_them(
    desk: Desk, tmp_path: Path
) -> None:
    shelf = PageFiles(tmp_path / "pages")
    fill(desk, WRITTEN_AT_ONCE + 1)

    first, second, third = stale(desk, shelf), stale(desk, shelf), stale(desk, shelf)
    desk.clock.wait(59)
    too_early = stale(desk, shelf)
    desk.clock.wait(1)
    minute_later = stale(desk, shelf)

    assert (len(first), len(second), third, too_early) == (WRITTEN_AT_ONCE, 1, [], [])
    assert len(minute_later) == WRITTEN_AT_ONCE  # Open ones: acts change them without a change of the incident.


def test_what_is_only_watched_has_no_page(desk: Desk) -> None:
    watched = replace(incident_with("x", desk, state=IncidentState.OPEN), response=Response.MONITOR)

    assert reported([watched]) == ()


def test_asset_shows_where_each_page_is_and_a_full_disk_does_not_end_the_run(desk: Desk) -> None:
    class Full(PageFiles):
        def keep(self, *args: object, **options: object) -> str:
            raise ShelfError("no space left on device")

    fill(desk, 1)
    shown = _materialize(desk)
    desk.cluster = replace(desk.cluster, page_shelf=Full(Path("unused")))
    full = _materialize(desk)

    assert "INC_0001" in shown
    assert str(shown["newest_page"].value).endswith("reports/INC-0001.html")
    assert Path(str(shown["newest_page"].value)).is_file()
    assert "INC_0001" not in full
    assert "reports" in full


def _materialize(desk: Desk) -> dict[str, dg.MetadataValue]:
    result = dg.materialize(
        [incident_reports], resources={"cluster": dg.ResourceDefinition.hardcoded_resource(desk.cluster)}
    )
    (event,) = result.get_asset_materialization_events()
    return dict(event.materialization.metadata)


def test_no_markdown_of_others_is_left_as_such(desk: Desk, tmp_path: Path) -> None:
    evil = incident_with("[x](javascript:alert(1)) **bold** <b> `code` ![i](//evil)", desk, state=IncidentState.OPEN)
    record(evil, desk)
    shelf = PageFiles(tmp_path / "pages")
    now = desk.clock.now()
    written = write_stale_pages([evil], desk.cluster, shelf, now=now)

    shown = describe_reports([evil], written, replace(desk.cluster, page_shelf=shelf))

    words = str(shown["INC_0001"].value)
    assert not re.search(r"(?<!\\)(\]\(|!\[|<b>|`)", words)


# -- the address ------------------------------------------------------------------------------------------------------


def test_address_serves_the_report_and_unknown_names_are_not_found(desk: Desk) -> None:
    record(incident_with(f"{HOSTILE}<script>alert(1)</script>", desk, state=IncidentState.OPEN), desk)
    app = build_app(lambda: desk.cluster)

    known = get(app, "/incidents/INC-0001")
    unknown = get(app, "/incidents/<script>")
    posted = get(app, "/incidents/INC-0001", method="POST")

    assert (known.status, unknown.status, posted.status) == (200, 404, 405)
    assert "<h1>INC-0001" in known.body
    assert "<script" not in known.body + unknown.body
