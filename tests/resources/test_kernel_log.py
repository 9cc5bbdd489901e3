"""Log files and the journal: rotation, truncation, restarts, torn and hostile lines."""

import json
import os
import shutil
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.sources import LogBatch, LogLine, SourceNonsense, SourceUnavailable
from ops_pipelines.observe.logs.signals import observe_log_lines
from ops_pipelines.resources.config.cluster_config import NodeNameSource
from ops_pipelines.resources.kernel_log import CONTINUED, FileTailLogs, JournaldLogs, parse_line_prefix
from tests.ports.logs_contract import LogsContract

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
FALLEN = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


class StoppedClock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


def tail(*patterns: object, max_line_bytes: int = 8192, clock: StoppedClock | None = None) -> FileTailLogs:
    return FileTailLogs(
        [str(pattern) for pattern in patterns], clock=clock or StoppedClock(), max_line_bytes=max_line_bytes
    )


def append(path: Path, text: str | bytes) -> None:
    with path.open("ab") as stream:
        stream.write(text.encode() if isinstance(text, str) else text)


def texts(batch: LogBatch) -> list[str]:
    return [line.text for line in batch.lines]


class WrittenFile:
    """One file on a log host, to which two nodes write."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "kernel.log"
        self._path.touch()
        self._count = 0
        self.logs = tail(self._path)
        self.node_names = (NodeName("gpu001"), NodeName("gpu002"))

    def write(self, node: NodeName) -> str:
        self._count += 1
        text = f"line number {self._count} of all"
        append(self._path, f"2026-11-21T07:25:29.136825+00:00 {node} kernel: [   12.345678] {text}\n")
        return text


class TestFileTailLogs(LogsContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> WrittenFile:
        return WrittenFile(tmp_path)


@pytest.mark.parametrize(
    ("text", "host", "written_at"),
    [
        pytest.param("2026-11-21T05:52:39.1368+00:00 gpu003 kernel: x", "gpu003", "2026-11-21T05:52:39.136800", id="a"),
        pytest.param("2026-11-21T05:52:39Z gpu003 kernel: x", "gpu003", "2026-11-21T05:52:39", id="ISO, Z"),
        pytest.param("2026-11-21T05:52:39-05:00 gpu003 kernel: x", "gpu003", "2026-11-21T10:52:39", id="ISO, zone"),
        pytest.param("2026-11-21T08:00:00 gpu003 kernel: x", "gpu003", "2026-11-21T07:00:00", id="ISO, local"),
        pytest.param("Nov 21 08:25:29 gpu003 kernel: x", "gpu003", "2026-11-21T07:25:29", id="classic"),
        pytest.param("Nov  1 08:25:29 gpu003 kernel: x", "gpu003", "2026-11-01T07:25:29", id="classic, one digit"),
        pytest.param("Dec 31 23:59:59 gpu003 kernel: x", "gpu003", "2025-12-31T22:59:59", id="classic of last year"),
        pytest.param("Nov 22 08:00:00 gpu003 kernel: x", "gpu003", "2026-11-22T07:00:00", id="a clock that is ahead"),
        pytest.param("Feb 29 12:00:00 gpu003 kernel: x", "gpu003", "2024-02-29T11:00:00", id="leap day"),
        pytest.param("Feb 30 12:00:00 gpu003 kernel: x", "gpu003", None, id="no such day"),
        pytest.param("april 24 16:22:15 gpu003 kernel: x", "gpu003", "2026-04-24T14:22:15", id="month in full"),
        pytest.param("kvě 24 16:22:15 gpu003 kernel: x", "gpu003", None, id="month of a language not known"),
        pytest.param("<4>1 2026-11-21T07:25:29Z gpu003 kernel - - - x", "gpu003", "2026-11-21T07:25:29", id="RFC 5424"),
        pytest.param("Nov 21 08:25:29 kernel: x", None, "2026-11-21T07:25:29", id="no host"),
        pytest.param("[Fri Aug 30 11:11:22 2024] x", None, "2024-08-30T09:11:22", id="dmesg with a date"),
        pytest.param("[ 1843.308145] x", None, None, id="dmesg"),
        pytest.param("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 x", None, "2025-01-21T04:41:44.283302", id="b"),
        pytest.param("6,3964,206764307,-;x", None, None, id="kmsg"),
        pytest.param("", None, None, id="empty"),
    ],
)  # fmt: skip
def test_prefix_gives_host_and_time(text: str, host: str | None, written_at: str | None) -> None:
    prefix = parse_line_prefix(text, received_at=NOW, timezone=ZoneInfo("Europe/Berlin"))

    assert prefix.host == host
    assert prefix.written_at == (None if written_at is None else datetime.fromisoformat(written_at + "+00:00"))
    assert prefix.text == text


def test_json_line_gives_its_message_behind_the_tag() -> None:
    line = (
        '{"ts":"2026-11-21T05:52:39.134314+00:00", "host":"vm", "tag":"kernel", "facility":"user", "severity":"err",'
        ' "msg":" NVRM: Xid (PCI:0000:4b:00): 79, pid=1, GPU has fallen off the bus."}'
    )

    prefix = parse_line_prefix(line, received_at=NOW, timezone=UTC)

    assert prefix.host == "vm"
    assert prefix.written_at == datetime(2026, 11, 21, 5, 52, 39, 134314, tzinfo=UTC)
    assert prefix.text == "kernel: NVRM: Xid (PCI:0000:4b:00): 79, pid=1, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(
            f'{{"host":"a","tag":"night-shift","msg":"","tag":"kernel","msg":"{FALLEN}"}}', id="broke out of quotes"
        ),
        pytest.param(f'{{"host":"a","tag":"x kernel","msg":"{FALLEN}"}}', id="tag that poses as host and tag"),
        pytest.param(f'{{"host":"a","tag":"night-shift","msg":"{FALLEN}"}}', id="another program"),
        pytest.param(f'{{"host":"a","msg":"{FALLEN}"}}', id="no tag"),
        pytest.param("{" * 100_000 + FALLEN, id="deep nesting"),
        pytest.param(f'{{"host":"a" {FALLEN}', id="broken JSON"),
    ],
)
def test_json_line_that_another_program_could_have_written_is_rejected(line: str) -> None:
    prefix = parse_line_prefix(line, received_at=NOW, timezone=UTC)
    written = LogLine(node=prefix.host or "gpu001", written_at=None, position="p", text=prefix.text)

    observations, rejected = observe_log_lines([written], source="s", received_at=NOW)

    assert (len(observations), len(rejected)) == (0, 1)


def test_partial_last_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "one\ntw")
    first = tail(path).read_new(None, max_lines=10)
    append(path, "o\n")

    second = tail(path).read_new(first.cursor, max_lines=10)

    assert (texts(first), texts(second)) == (["one"], ["two"])


def test_file_renamed_by_rotation_is_read_to_its_end_before_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "one\n")
    first = tail(path).read_new(None, max_lines=10)
    append(path, "two\n")
    path.rename(tmp_path / "kernel.log.1")
    append(path, "three\n")
    append(tmp_path / "kernel.log.1", "written late\n")

    second = tail(path).read_new(first.cursor, max_lines=10)
    (tmp_path / "kernel.log.1").rename(tmp_path / "kernel.log.2")
    append(tmp_path / "kernel.log.2", "written very late\n")
    third = tail(path).read_new(second.cursor, max_lines=10)

    assert texts(second) == ["two", "written late", "three"]
    assert texts(third) == ["written very late"]
    assert second.notes == third.notes == ()


def test_moment_between_rename_and_the_new_file_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "one\n")
    first = tail(path).read_new(None, max_lines=10)
    append(path, "two\n")
    path.rename(tmp_path / "kernel.log.1")

    second = tail(path).read_new(first.cursor, max_lines=10)
    append(path, "three\n")
    third = tail(path).read_new(second.cursor, max_lines=10)

    assert (texts(second), texts(third)) == (["two"], ["three"])


def test_several_rotations_during_an_outage_lose_nothing_that_the_pattern_names(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "one\n")
    first = tail(f"{path}*").read_new(None, max_lines=10)
    append(path, "two\n")
    path.rename(tmp_path / "kernel.log.1")
    append(path, "three\n")
    (tmp_path / "kernel.log.1").rename(tmp_path / "kernel.log.2")
    path.rename(tmp_path / "kernel.log.1")
    append(path, "four\n")

    second = tail(f"{path}*").read_new(first.cursor, max_lines=10)

    assert sorted(texts(second)) == ["four", "three", "two"]
    assert second.notes == ()


def test_renamed_file_is_forgotten_an_hour_after_its_last_line(tmp_path: Path) -> None:
    clock = StoppedClock()
    path = tmp_path / "kernel.log"
    append(path, "one\n")
    first = tail(path, clock=clock).read_new(None, max_lines=10)
    path.rename(tmp_path / "kernel.log.1")
    os.utime(tmp_path / "kernel.log.1", (NOW.timestamp(), NOW.timestamp()))
    append(path, "two\n")

    clock.wait(3600)
    second = tail(path, clock=clock).read_new(first.cursor, max_lines=10)
    clock.wait(1)
    third = tail(path, clock=clock).read_new(second.cursor, max_lines=10)

    assert len(json.loads(second.cursor)["files"]) == 2
    assert len(json.loads(third.cursor)["files"]) == 1
    assert third.notes == ()


def test_file_truncated_in_place_is_read_from_its_beginning_after_its_copy(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "first line of the old file\n")
    first = tail(path).read_new(None, max_lines=10)
    append(path, "not read yet\n")
    shutil.copy(path, tmp_path / "kernel.log.1")
    os.truncate(path, 0)
    append(path, "new\n")

    second = tail(path).read_new(first.cursor, max_lines=10)
    append(path, "newer\n")
    third = tail(path).read_new(second.cursor, max_lines=10)

    assert texts(second) == ["not read yet", "new"]
    assert texts(third) == ["newer"]
    assert "was truncated" in " ".join(second.notes)
    assert third.notes == ()


def test_truncated_file_that_has_grown_past_the_old_end_is_recognised_by_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "old\n")
    first = tail(path).read_new(None, max_lines=10)
    os.truncate(path, 0)
    append(path, "a new and longer line\nand another\n")

    second = tail(path).read_new(first.cursor, max_lines=10)

    assert texts(second) == ["a new and longer line", "and another"]


def test_line_at_the_same_place_after_a_truncation_has_a_position_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "Nov 21 07:00:00 gpu001 kernel: a\n")
    first = tail(path).read_new(None, max_lines=10)
    os.truncate(path, 0)
    append(path, "Nov 21 08:00:00 gpu001 kernel: a\n")

    second = tail(path).read_new(first.cursor, max_lines=10)

    assert first.lines[0].position != second.lines[0].position


def test_inode_used_again_by_another_file_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "one\n")
    first = tail(path).read_new(None, max_lines=10)
    cursor = json.loads(first.cursor)
    path.unlink()
    append(path, "uno\ndos\n")
    cursor["files"][0]["inode"] = path.stat().st_ino

    second = tail(path).read_new(json.dumps(cursor), max_lines=10)

    assert texts(second) == ["uno", "dos"]


def test_file_that_vanished_with_unread_lines_is_noted_once(tmp_path: Path) -> None:
    paths = [tmp_path / "gpu001.log", tmp_path / "gpu002.log"]
    for path in paths:
        append(path, "one\ntwo\n")
    first = tail(tmp_path / "*.log").read_new(None, max_lines=2)
    paths[0].unlink()

    second = tail(tmp_path / "*.log").read_new(first.cursor, max_lines=10)
    third = tail(tmp_path / "*.log").read_new(second.cursor, max_lines=10)

    assert "gpu001.log: a part that was not read yet is gone" in second.notes[0]
    assert (texts(second), third.notes) == (["two"], ())


def test_line_that_is_too_long_comes_in_parts_and_none_of_it_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, f"{'x' * 150}{FALLEN}\nnext\n")

    batch = tail(path, max_line_bytes=100).read_new(None, max_lines=10)

    assert texts(batch)[-1] == "next"
    parts = texts(batch)[:-1]
    assert "".join(part.removeprefix(CONTINUED) for part in parts) == f"{'x' * 150}{FALLEN}"
    assert all(part.startswith(CONTINUED) for part in parts[1:])
    assert "was cut" in batch.notes[0]


def test_xid_at_the_start_of_a_part_of_a_cut_line_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "gpu001.log"
    append(path, "y" * 200 + FALLEN + "\n")
    logs = FileTailLogs(
        [str(path)], clock=StoppedClock(), node_name_source=NodeNameSource.FILE_STEM, max_line_bytes=200
    )

    observations, rejected = observe_log_lines(logs.read_new(None, max_lines=10).lines, source="s", received_at=NOW)

    assert observations == ()
    assert "another program" in rejected[0].reason


def test_endless_line_without_an_end_is_read_in_bounded_parts_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "x" * 250)
    first = tail(path, max_line_bytes=100).read_new(None, max_lines=10)
    append(path, "y" * 10 + "\nnext\n")

    second = tail(path, max_line_bytes=100).read_new(first.cursor, max_lines=10)

    assert texts(first) == ["x" * 100, CONTINUED + "x" * 100]
    assert texts(second) == [CONTINUED + "x" * 50 + "y" * 10, "next"]


def test_bytes_that_are_not_utf8_are_shown_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, b"a\xff\xfeb\r\n\x00\x00c\n")

    batch = tail(path).read_new(None, max_lines=10)

    assert texts(batch) == ["a\\xff\\xfeb", "\x00\x00c"]


def test_node_comes_from_the_file_name_where_configured(tmp_path: Path) -> None:
    append(tmp_path / "gpu003.dmesg.log", f"[ 1.5] {FALLEN}\n")
    logs = FileTailLogs([str(tmp_path / "*.log")], clock=StoppedClock(), node_name_source=NodeNameSource.FILE_STEM)

    (line,) = logs.read_new(None, max_lines=10).lines

    assert (line.node, line.written_at) == ("gpu003", None)


def test_a_file_is_seen_to_have_grown_from_one_reading_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "one\n")
    logs = tail(path)
    seen = [logs.has_grown()]

    def read_and_glance() -> None:
        logs.read_new(None, max_lines=10)
        seen.append(logs.has_grown())

    read_and_glance()
    append(path, "half")  # no line yet, but more than there was: read once, and no more until it goes on
    seen.append(logs.has_grown())
    read_and_glance()
    path.write_text("")
    seen.append(logs.has_grown())
    read_and_glance()
    path.unlink()
    seen.append(logs.has_grown())

    assert seen == [False, False, True, False, True, False, True]
    with pytest.raises(SourceUnavailable):
        logs.read_new(None, max_lines=10)
    assert not logs.has_grown()


def test_what_stands_under_the_name_of_a_rotated_file_is_no_growth_of_it(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "one\n")
    logs = tail(path)
    cursor = logs.read_new(None, max_lines=10).cursor
    path.rename(tmp_path / "kernel.log.1")
    append(path, "a longer one\n")
    assert logs.has_grown()

    cursor = logs.read_new(cursor, max_lines=10).cursor
    logs.read_new(cursor, max_lines=10)

    assert not logs.has_grown()
    append(path, "two\n")
    assert logs.has_grown()


@pytest.mark.parametrize(("count", "is_seen"), [(64, True), (65, False)])
def test_so_many_files_are_glanced_at(tmp_path: Path, count: int, is_seen: bool) -> None:
    for number in range(count):
        append(tmp_path / f"{number}.log", "one\n")
    logs = tail(tmp_path / "*.log")
    logs.read_new(None, max_lines=1000)

    append(tmp_path / "7.log", "two\n")

    assert logs.has_grown() is is_seen


def test_flood_of_one_node_does_not_silence_the_others(tmp_path: Path) -> None:
    append(tmp_path / "gpu001.log", "flood\n" * 1000)
    append(tmp_path / "gpu002.log", f"{FALLEN}\n")

    batch = tail(tmp_path / "*.log").read_new(None, max_lines=10)

    assert len(batch.lines) == 10
    assert FALLEN in texts(batch)


def test_more_files_than_lines_in_a_batch_take_turns(tmp_path: Path) -> None:
    for number in range(5):
        append(tmp_path / f"gpu00{number}.log", f"node {number}\n" * 20)
    cursor, seen = None, set()

    for _ in range(5):
        batch = tail(tmp_path / "*.log").read_new(cursor, max_lines=2)
        cursor = batch.cursor
        seen.update(texts(batch))

    assert len(seen) == 5


def test_compressed_files_and_pipes_are_passed_over(tmp_path: Path) -> None:
    append(tmp_path / "kernel.log", "one\n")
    append(tmp_path / "kernel.log.2.gz", "not text\n")
    os.mkfifo(tmp_path / "kernel.log.pipe")

    batch = tail(tmp_path / "kernel.log*").read_new(None, max_lines=10)

    assert texts(batch) == ["one"]


def test_no_matching_file_is_unavailable_and_not_silence(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match=r"no readable log file matches .*absent"):
        tail(tmp_path / "absent.log").read_new(None, max_lines=10)


@pytest.mark.parametrize(
    "cursor",
    [
        "", "{}", "[]", "null", '{"version":2,"turn":0,"files":[]}', '{"version":1,"turn":0,"files":[{}]}',
        '{"version":1,"turn":0,"files":[{"path":1,"device":1,"inode":1,"offset":1,"head_digest":"",'
        '"is_inside_line":false,"was_at_end":true}]}',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_cursor_that_is_none_is_nonsense(tmp_path: Path, cursor: str) -> None:
    append(tmp_path / "kernel.log", "one\n")

    with pytest.raises(SourceNonsense, match="delete it"):
        tail(tmp_path / "kernel.log").read_new(cursor, max_lines=10)


EVENTS = st.lists(
    st.one_of(
        st.sampled_from([1, 13, 25, 26, 52, 78]).map(lambda count: ("append", count)),
        st.sampled_from([("read", 1), ("read", 3), ("read", 100), ("rename", 0), ("copy and truncate", 0)]),
    ),
    max_size=25,
)


@given(EVENTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_split_of_appends_over_rotations_and_restarts_yields_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int]]
) -> None:
    directory = tmp_path_factory.mktemp("logs")
    path = directory / "kernel.log"
    path.touch()
    stream = b"".join(b"%06d line of the kernel\n" % number for number in range(400))
    written, cursor, seen, generation = 0, None, [], 0
    positions: set[str] = set()
    for event, number in [*events, ("read", 1000), ("read", 1000)]:
        if event == "append":
            append(path, stream[written : written + number])
            written += number
        elif event == "read":
            batch = tail(path).read_new(cursor, max_lines=number)
            cursor = batch.cursor
            seen += [line.text for line in batch.lines]
            positions |= {line.position for line in batch.lines}
        elif written % 26 == 0 and cursor is not None:
            # A writer rotates between lines: a torn line would be torn for every reader.
            # A file must have been met, and a copy be known by a line of it, before it is rotated away.
            batch = tail(path).read_new(cursor, max_lines=20)
            cursor = batch.cursor
            seen += [line.text for line in batch.lines]
            positions |= {line.position for line in batch.lines}
            generation += 1
            old = directory / f"kernel.log.{generation}"
            if event == "rename":
                path.rename(old)
                path.touch()
            elif path.stat().st_size:
                shutil.copy(path, old)
                os.truncate(path, 0)

    assert sorted(seen) == stream[:written].decode().split("\n")[: written // 26]
    assert len(positions) == len(seen)


FAKE_JOURNALCTL = """\
import json, pathlib, sys, time
arguments = sys.argv[1:]
directory = next(a for a in arguments if a.startswith("--directory=")).split("=", 1)[1]
after = next((a.split("=", 1)[1] for a in arguments if a.startswith("--after-cursor=")), None)
assert "_TRANSPORT=kernel" in arguments
lines = (pathlib.Path(directory) / "entries.jsonl").read_text().splitlines()
cursors = [json.loads(line).get("__CURSOR") if line.startswith("{") else None for line in lines]
for line in lines[cursors.index(after) + 1 if after else 0 :]:
    if line == "sleep":
        time.sleep(60)
    if line == "fail":
        sys.exit("Failed to open journal: Permission denied")
    print(line, flush=True)
"""


class FakeJournal:
    """A directory in which a stand-in for journalctl finds its entries."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "system.journal").touch()
        (directory / "entries.jsonl").touch()
        script = directory / "journalctl.py"
        script.write_text(FAKE_JOURNALCTL)
        self._count = 0
        self.logs = JournaldLogs(
            directory=directory, journalctl=[sys.executable, str(script)], timeout=timedelta(seconds=20)
        )
        self.node_names = (NodeName("gpu001"), NodeName("gpu002"))

    def write(self, node: NodeName) -> str:
        return self.write_entry(MESSAGE=f"line number {self._count + 1} of all", _HOSTNAME=node)

    def write_entry(self, **fields: object) -> str:
        self._count += 1
        entry = {
            "__CURSOR": f"s={'6d71fb7c' * 4};i={self._count:x};b={'0' * 32};m=3e8;t=660c2f7c1a2d8;x=e335885526ac69e2",
            "__REALTIME_TIMESTAMP": str(1795240356848344 + self._count),
        }
        append(self.directory / "entries.jsonl", json.dumps(entry | fields) + "\n")
        return str(fields["MESSAGE"])


class TestJournaldLogs(LogsContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> FakeJournal:
        return FakeJournal(tmp_path)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        pytest.param(FALLEN, FALLEN, id="text"),
        pytest.param(list(b"a\xffb"), "a\\xffb", id="bytes that are not UTF-8"),
        pytest.param([FALLEN, "second"], FALLEN, id="repeated field"),
        pytest.param([list(b"first"), "second"], "first", id="repeated field of bytes"),
        pytest.param(None, "", id="null"),
        pytest.param([], "", id="empty list"),
    ],
)
def test_journal_message_of_any_shape_is_read(tmp_path: Path, message: object, text: str) -> None:
    journal = FakeJournal(tmp_path)
    journal.write_entry(MESSAGE=message, _HOSTNAME=["gpu003", "other"])

    (line,) = journal.logs.read_new(None, max_lines=10).lines

    assert (line.text, line.node) == (text, "gpu003")
    assert line.written_at == datetime(2026, 11, 21, 5, 52, 36, 848345, tzinfo=UTC)


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param("not JSON", id="no JSON"),
        pytest.param("[]", id="no object"),
        pytest.param("{}", id="no fields"),
        pytest.param('{"__CURSOR": "-x", "__REALTIME_TIMESTAMP": "1"}', id="hostile cursor"),
        pytest.param('{"__CURSOR": "s=1", "__REALTIME_TIMESTAMP": "soon"}', id="no time"),
    ],
)
def test_journal_entry_that_cannot_be_read_is_nonsense(tmp_path: Path, entry: str) -> None:
    journal = FakeJournal(tmp_path)
    append(tmp_path / "entries.jsonl", entry + "\n")

    with pytest.raises(SourceNonsense):
        journal.logs.read_new(None, max_lines=10)


def test_journalctl_that_fails_is_unavailable_with_its_own_words(tmp_path: Path) -> None:
    journal = FakeJournal(tmp_path)
    append(tmp_path / "entries.jsonl", "fail\n")

    with pytest.raises(SourceUnavailable, match="Permission denied"):
        journal.logs.read_new(None, max_lines=10)


def test_journalctl_that_hangs_is_ended_at_the_limit(tmp_path: Path) -> None:
    journal = FakeJournal(tmp_path)
    append(tmp_path / "entries.jsonl", "sleep\n")
    logs = JournaldLogs(
        directory=tmp_path,
        journalctl=[sys.executable, str(tmp_path / "journalctl.py")],
        timeout=timedelta(seconds=0.5),
    )

    with pytest.raises(SourceUnavailable, match=r"did not answer within 0\.5 s"):
        logs.read_new(None, max_lines=10)
    assert journal.logs.source == "kernel_log"


def test_journalctl_that_is_not_installed_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "system.journal").touch()

    with pytest.raises(SourceUnavailable, match="could not be started"):
        JournaldLogs(directory=tmp_path, journalctl=["no-such-journalctl"]).read_new(None, max_lines=10)


def test_directory_without_a_journal_is_unavailable_and_not_silence(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="holds no journal"):
        JournaldLogs(directory=tmp_path).read_new(None, max_lines=10)


def find_journal_remote() -> str | None:
    return shutil.which("systemd-journal-remote", path="/lib/systemd:/usr/lib/systemd:/usr/sbin:/usr/bin")


@pytest.mark.live
def test_real_journal_gives_the_kernels_lines_only_and_goes_on_after_the_cursor(tmp_path: Path) -> None:
    remote = find_journal_remote()
    if remote is None or shutil.which("journalctl") is None:
        if os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") == "1":
            pytest.fail("systemd-journal-remote and journalctl are required here; install systemd-journal-remote")
        pytest.skip("systemd-journal-remote or journalctl is not installed")
    entries = [("kernel", f"kernel line {number}") for number in range(3)] + [("syslog", FALLEN)]
    export = "".join(
        f"__REALTIME_TIMESTAMP={1795240356848344 + number}\n__MONOTONIC_TIMESTAMP={1000 + number}\n"
        f"_BOOT_ID={'0' * 31}b\n_HOSTNAME=gpu003\n_TRANSPORT={transport}\nMESSAGE={message}\n\n"
        for number, (transport, message) in enumerate(entries)
    )
    subprocess.run(
        [remote, "-o", str(tmp_path / "system.journal"), "-"], input=export.encode(), check=True, capture_output=True
    )
    logs = JournaldLogs(directory=tmp_path)

    first = logs.read_new(None, max_lines=2)
    second = logs.read_new(first.cursor, max_lines=2)
    third = logs.read_new(second.cursor, max_lines=2)

    assert texts(first) == ["kernel line 0", "kernel line 1"]
    assert texts(second) == ["kernel line 2"]
    assert third.lines == ()
    assert third.cursor == second.cursor
    assert {line.node for line in first.lines} == {"gpu003"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_file_that_may_not_be_read_is_noted_and_the_others_are_read(tmp_path: Path) -> None:
    append(tmp_path / "gpu001.log", "one\n")
    append(tmp_path / "gpu002.log", "two\n")
    (tmp_path / "gpu001.log").chmod(stat.S_IWUSR)

    batch = tail(tmp_path / "*.log").read_new(None, max_lines=10)

    assert texts(batch) == ["two"]
    assert "gpu001.log cannot be read (Permission denied)" in batch.notes[0]
