"""Pages as files: whole or not at all, by harmless names, bounded in number and age."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.record import ShelfError
from ops_pipelines.resources.page_files import PageFiles

NOW = datetime(2026, 11, 21, 9, 0, 0, 123456, tzinfo=UTC)
DAY = timedelta(days=1)


def shelf(directory: Path, **options: object) -> PageFiles:
    return PageFiles(directory / "reports", **options)  # type: ignore[arg-type]  # as given


def test_page_is_kept_with_the_time_that_it_shows_and_replaced_by_the_next(tmp_path: Path) -> None:
    pages = shelf(tmp_path)

    before = pages.shows("INC-0001")
    place = pages.keep("INC-0001", "<p>größer ✓", shows=NOW)
    shown = pages.shows("INC-0001")
    pages.keep("INC-0001", "<p>newer", shows=NOW + DAY)

    assert before is None
    assert place == pages.place("INC-0001") == str(tmp_path / "reports" / "INC-0001.html")
    assert shown is not None
    assert abs(shown - NOW) < timedelta(milliseconds=1)
    assert Path(place).read_text(encoding="utf-8") == "<p>newer"
    assert [each.name for each in (tmp_path / "reports").iterdir()] == ["INC-0001.html"]


def test_page_names_users_and_is_not_for_the_whole_machine(tmp_path: Path) -> None:
    place = Path(shelf(tmp_path).keep("INC-0001", "x", shows=NOW))

    assert place.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", "a\n", "a" * 101, "größe", "a b", "-x"])
def test_name_that_could_be_a_path_is_refused(tmp_path: Path, name: str) -> None:
    pages = shelf(tmp_path)

    with pytest.raises(ShelfError, match="names no page"):
        pages.keep(name, "x", shows=NOW)
    with pytest.raises(ShelfError, match="names no page"):
        pages.shows(name)


def test_half_of_a_surrogate_does_not_cost_the_page(tmp_path: Path) -> None:
    assert Path(shelf(tmp_path).keep("INC-0001", "a\ud800b", shows=NOW)).read_text(encoding="utf-8") == "a?b"


@pytest.mark.parametrize(("age", "is_kept"), [(DAY - timedelta(seconds=1), True), (DAY, True), (2 * DAY, False)])
def test_page_is_kept_as_long_as_it_may_be(tmp_path: Path, age: timedelta, is_kept: bool) -> None:
    pages = shelf(tmp_path, kept_for=DAY)
    at = NOW.replace(microsecond=0)
    pages.keep("INC-0001", "x", shows=at)

    pages.tidy(at + age)

    assert (pages.shows("INC-0001") is not None) is is_kept


@pytest.mark.parametrize(("count", "left"), [(2, {"p0", "p1"}), (3, {"p0", "p1", "p2"}), (4, {"p1", "p2", "p3"})])
def test_of_too_many_pages_the_oldest_go(tmp_path: Path, count: int, left: set[str]) -> None:
    pages = shelf(tmp_path, max_page_count=3)
    for number in range(count):
        pages.keep(f"p{number}", "x", shows=NOW + timedelta(seconds=number))

    gone = pages.tidy(NOW + timedelta(minutes=1))

    assert gone == count - len(left)
    assert {each.stem for each in (tmp_path / "reports").iterdir()} == left


def test_shelf_that_was_never_used_is_tidy(tmp_path: Path) -> None:
    assert shelf(tmp_path).tidy(NOW) == 0


def test_disk_that_takes_no_page_is_told_and_the_page_before_stays(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file where the directory should be")

    with pytest.raises(ShelfError, match="Check its owner, mode and free space"):
        shelf(tmp_path).keep("INC-0001", "x", shows=NOW)
