"""The pause beside the ledger: whatever is under its name means paused; only no file means that nobody paused."""

import errno
import os
import stat
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.entries import Pause
from ops_pipelines.resources.state_files import PAUSE_FILE, PauseFile

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
ORDER = Pause(actor="day-shift", since=NOON, reason="moving racks")


def test_no_file_is_no_pause(tmp_path: Path) -> None:
    assert PauseFile(tmp_path).read() is None
    assert PauseFile(tmp_path / "nowhere").read() is None


def test_order_comes_back_as_it_was_given(tmp_path: Path) -> None:
    file = PauseFile(tmp_path)

    file.put(ORDER)

    assert file.read() == ORDER
    assert file.remove() == ORDER
    assert file.read() is None
    assert file.remove() is None


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="touched by hand"),
        pytest.param(b'{"actor": "day-shift", "since": "2026-', id="half-written"),
        pytest.param(b"[]", id="no order"),
        pytest.param(b'{"actor": 7, "since": 8, "reason": ["x"]}', id="of other types"),
        pytest.param(b"\xff\xfe\x00", id="no text"),
        pytest.param(b"[" * 9_000, id="nested without end"),
    ],
)
def test_file_that_says_nothing_is_a_pause_since_it_was_written(tmp_path: Path, content: bytes) -> None:
    file = PauseFile(tmp_path)
    file.path.write_bytes(content)
    os.utime(file.path, (NOON.timestamp(), NOON.timestamp()))

    pause = file.read()

    assert pause is not None
    assert (pause.actor, pause.since) == ("somebody", NOON)
    assert "does not say why" in pause.reason


def test_directory_pipe_and_dangling_link_are_a_pause_and_nobody_waits_for_them(tmp_path: Path) -> None:
    for make in (lambda path: path.mkdir(), os.mkfifo, lambda path: path.symlink_to("nowhere")):
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        place.mkdir()
        make(place / PAUSE_FILE)

        pause = PauseFile(place).read()

        assert pause is not None
        assert "is no file" in pause.reason


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077])
def test_pause_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        PauseFile(tmp_path).put(ORDER)
    finally:
        os.umask(before)

    assert stat.S_IMODE(PauseFile(tmp_path).path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for somebody else")
def test_what_root_wrote_can_be_read_by_the_user_of_the_program(tmp_path: Path) -> None:
    os.chown(tmp_path, 4711, 4712)

    PauseFile(tmp_path).put(ORDER)

    found = PauseFile(tmp_path).path.stat()
    assert (found.st_uid, found.st_gid) == (4711, 4712)


@given(content=st.binary(max_size=400))
def test_any_bytes_are_a_pause(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = PauseFile(tmp_path_factory.mktemp("state"))
    file.path.write_bytes(content)

    pause = file.read()

    assert pause is not None
    assert pause.reason
    assert pause.reason.isprintable()
    assert pause.actor.isprintable()
    assert pause.since.tzinfo is not None


@pytest.mark.parametrize(("fault", "is_paused"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)])
def test_disk_that_takes_no_content_takes_the_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int, is_paused: bool
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr("ops_pipelines.resources.state_files.put_whole", full)
    file = PauseFile(tmp_path)

    with suppress(OSError) if is_paused else pytest.raises(OSError, match="denied"):
        file.put(ORDER)

    assert (file.read() is not None) is is_paused
