"""Reports of quarters on a shelf: the first of a quarter stays, checks lie beside it, and broken files are reported."""

from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest

from ops_pipelines.capacity.reporting import keep_page, keep_report, kept_as, kept_report
from ops_pipelines.core.record import StatementFilesError
from ops_pipelines.resources.page_files import PlanDirectory
from ops_pipelines.teams.desk import TeamsDesk
from tests.flow import capacity_samples as samples
from tests.flow.capacity_samples import kept_check

UNUSED = cast("Any", None)


def desk_on(directory: Path | None) -> TeamsDesk:
    files = None if directory is None else PlanDirectory(directory)
    return TeamsDesk(cluster=UNUSED, observatory=UNUSED, agreements=None, plan_files=files)


def test_the_first_report_of_a_quarter_is_kept_and_read_back(tmp_path: Path) -> None:
    desk = desk_on(tmp_path / "capacity")

    place = keep_report(desk, samples.report())

    assert place == str(tmp_path / "capacity" / "2026Q4.json")
    kept = kept_report(desk, "2026Q4")
    assert kept is not None
    assert kept.plan == samples.report().plan
    assert kept_report(desk, "2026Q3") is None


def test_a_later_one_is_kept_beside_it_by_its_month(tmp_path: Path) -> None:
    desk = desk_on(tmp_path)
    keep_report(desk, samples.report())

    check = samples.report(samples.order(count=9), as_of=date(2026, 11, 1))
    place = keep_report(desk, check)

    assert place == str(tmp_path / "2026Q4-check-2026-11.json")
    first, beside = kept_report(desk, "2026Q4"), kept_check(desk, "2026Q4", month="2026-11")
    assert first is not None
    assert beside is not None
    assert first.plan.orders[0].count == 6
    assert beside.plan.orders[0].count == 9
    assert kept_check(desk, "2026Q4", month="2026-12") is None


def test_the_first_is_not_written_over_even_as_of_its_own_day(tmp_path: Path) -> None:
    desk = desk_on(tmp_path)
    keep_report(desk, samples.report())

    other = samples.report(samples.order(count=9))

    assert kept_as(desk, other) == "2026Q4-check-2026-10"
    keep_report(desk, other)
    kept = kept_report(desk, "2026Q4")
    assert kept is not None
    assert kept.plan.orders[0].count == 6


def test_the_same_report_again_is_the_same_file(tmp_path: Path) -> None:
    desk = desk_on(tmp_path)
    place = keep_report(desk, samples.report())
    before = Path(place).read_bytes()

    assert keep_report(desk, samples.report()) == place
    assert Path(place).read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["2026Q4.json"]


def test_a_page_lies_beside_its_report(tmp_path: Path) -> None:
    desk = desk_on(tmp_path)

    assert keep_page(desk, b"<html>", name="2026Q4") == str(tmp_path / "2026Q4.html")
    assert (tmp_path / "2026Q4.html").read_bytes() == b"<html>"


def test_without_a_shelf_nothing_is_kept() -> None:
    desk = desk_on(None)

    assert keep_report(desk, samples.report()) == ""
    assert keep_page(desk, b"", name="2026Q4") == ""
    assert kept_report(desk, "2026Q4") is None
    assert kept_check(desk, "2026Q4", month="2026-11") is None


def test_a_damaged_report_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "2026Q4.json").write_text('{"version": 1}', encoding="utf-8")

    with pytest.raises(StatementFilesError, match=r"2026Q4\.json cannot be read: report lacks .*Move it away"):
        kept_report(desk_on(tmp_path), "2026Q4")


@pytest.mark.parametrize("quarter", ["../2026Q4", "2026Q5", "2026Q4-check-2026-11", ""])
def test_only_quarters_are_asked_for(tmp_path: Path, quarter: str) -> None:
    with pytest.raises(ValueError, match="names no quarter"):
        kept_report(desk_on(tmp_path), quarter)


@pytest.mark.parametrize(
    "name",
    ["2026Q4.csv", "2026-11.json", "../2026Q4.json", "2026Q4.json\n", "2026Q4-check.json", "2026Q4-check-2026-11"],
)
def test_other_names_are_refused_by_the_shelf(tmp_path: Path, name: str) -> None:
    shelf = PlanDirectory(tmp_path)

    with pytest.raises(StatementFilesError, match="names no capacity report"):
        shelf.keep(name, b"")
    with pytest.raises(StatementFilesError, match="names no capacity report"):
        shelf.read(name)
