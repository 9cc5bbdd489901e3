"""Files for people: whole or not at all, for their owner alone, whatever is at their name."""

import os
import resource
import signal
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.record import ShelfError
from ops_pipelines.resources.files import put_whole
from ops_pipelines.resources.page_files import ComparisonPages, PageFiles

NOW = datetime(2026, 11, 22, 8, tzinfo=UTC)


def test_page_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        place = Path(PageFiles(tmp_path / "reports").keep("INC-0001", "<p>x", shows=NOW))
        compared = Path(ComparisonPages(tmp_path).keep("<p>x"))
    finally:
        os.umask(before)

    assert [stat.S_IMODE(each.stat().st_mode) for each in (place, compared)] == [0o600, 0o600]
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700


def test_symlink_at_the_name_is_replaced_and_not_followed(tmp_path: Path) -> None:
    precious, page = tmp_path / "precious", tmp_path / "page.html"
    precious.write_text("keep me")
    page.symlink_to(precious)

    put_whole(page, "new")

    assert (precious.read_text(), page.read_text(), page.is_symlink()) == ("keep me", "new", False)


def test_full_disk_leaves_the_page_of_before_and_no_draft(tmp_path: Path) -> None:
    shelf = PageFiles(tmp_path)
    shelf.keep("INC-0001", "old", shows=NOW)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(ShelfError, match="free space"):
            shelf.keep("INC-0001", "x" * 100_000, shows=NOW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, heard)

    assert (shelf.read("INC-0001"), [each.name for each in tmp_path.iterdir()]) == ("old", ["INC-0001.html"])


def test_draft_of_a_killed_process_is_deleted_after_an_hour(tmp_path: Path) -> None:
    shelf = PageFiles(tmp_path)
    for name, age in (("old", timedelta(minutes=61)), ("new", timedelta(minutes=59))):
        draft = tmp_path / f".{name}.html.0123abcd.draft"
        draft.write_text("half")
        os.utime(draft, ((NOW - age).timestamp(),) * 2)

    shelf.tidy(NOW)

    assert [each.name for each in tmp_path.iterdir()] == [".new.html.0123abcd.draft"]


def test_page_that_is_damaged_on_the_disk_is_still_a_page(tmp_path: Path) -> None:
    (tmp_path / "INC-0001.html").write_bytes(b"<p>\xff")

    assert PageFiles(tmp_path).read("INC-0001") == "<p>\ufffd"
