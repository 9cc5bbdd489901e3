"""Two writers: whether two processes ever wrote one checkpoint at a time, from what each save wrote down about itself.

The judgement is pure, over the lines of a write log; the watch applies it all the time, on a thread of its own, and
asks besides whether the writer before still lives. Who is to blame is not its business.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ops_pipelines_lab.drills.daemon_processes import born_at

WRITE_LOG_SUFFIX = ".writes"
"""The write log is beside the checkpoint: one line before and one after each save."""
_LOOK_EVERY_SECONDS = 0.05


class TwoWritersError(RuntimeError):
    """Two processes wrote one checkpoint at a time. The message names both and the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One process that writes a checkpoint.

    The process and not the restart count distinguishes attempts: a scheduler that lost its state counts one twice.
    """

    job: str
    restart_count: int
    node: str
    pid: int

    def __str__(self) -> str:
        return f"job {self.job} restart {self.restart_count} on {self.node} (pid {self.pid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One line of a write log."""

    at_microseconds: int
    writer: Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Two writers whose times of writing overlap."""

    first: Writer
    second: Writer
    overlap_microseconds: int

    def __str__(self) -> str:
        return f"{self.first} still wrote {self.overlap_microseconds / 1e6:.2f} s after {self.second} had started to"


def read_writes(text: str) -> tuple[Write, ...]:
    """Return the writes of a log; raise ValueError for a line that is none. A last line without its end is passed over:
    its writer was killed, or is at it."""
    complete, _, _torn = text.rpartition("\n")
    return tuple(_read_line(line, number) for number, line in enumerate(complete.splitlines(), start=1))


def find_overlaps(writes: Iterable[Write]) -> tuple[Overlap, ...]:
    """Return every two writers of one checkpoint whose times from first to last write overlap.

    One that begins in the very microsecond in which the other ends only touches it.
    """
    spans: dict[Writer, tuple[int, int]] = {}
    for write in writes:
        began, ended = spans.get(write.writer, (write.at_microseconds, write.at_microseconds))
        spans[write.writer] = (min(began, write.at_microseconds), max(ended, write.at_microseconds))
    ordered = sorted(spans.items(), key=lambda item: item[1])
    return tuple(
        Overlap(first=first, second=second, overlap_microseconds=min(ended, second_ended) - second_began)
        for position, (first, (_, ended)) in enumerate(ordered)
        for second, (second_began, second_ended) in ordered[position + 1 :]
        if second_began < ended
    )


@dataclass(slots=True, kw_only=True)
class _Followed:
    """How far one log was read, and when each of its writers was born, in the order of their first writes."""

    offset: int = 0
    writes: list[Write] = field(default_factory=list)
    born_at: dict[Writer, int | None] = field(default_factory=dict)


class WriterWatch:
    """Looks twenty times a second at every write log below a directory; remembers the first two writers it sees."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._followed: dict[Path, _Followed] = {}
        self._problem: str | None = None
        self._look_count = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer watch", daemon=True)

    @property
    def look_count(self) -> int:
        return self._look_count

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Look a last time and end the thread. Stopping twice is fine."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def refuse_two_writers(self) -> None:
        """Raise TwoWritersError if two writers were seen at any time, or if the watch itself could not continue."""
        if self._problem is not None:
            raise TwoWritersError(self._problem)

    def look(self) -> None:
        """Look once at every log."""
        self._look_count += 1
        for path in sorted(self._directory.glob(f"*{WRITE_LOG_SUFFIX}")):
            followed = self._followed.setdefault(path, _Followed())
            if not self._take_in(path, followed):
                continue
            overlaps = find_overlaps(followed.writes)
            if overlaps:
                self._problem = self._problem or f"two writers of {path}: {overlaps[0]}"
            # The last to begin is the one that may write; who wrote before it must be gone.
            *earlier, last = followed.born_at
            living = [writer for writer in earlier if _lives(writer, followed.born_at[writer])]
            if living:
                self._problem = self._problem or f"two writers of {path}: {living[0]} lives while {last} writes"

    def _take_in(self, path: Path, followed: _Followed) -> bool:
        """Read what is new in one log; return whether there was anything."""
        with path.open("rb") as file:
            file.seek(followed.offset)
            complete, end, _torn = file.read().rpartition(b"\n")
        followed.offset += len(complete) + len(end)
        new = read_writes((complete + end).decode())
        for write in new:
            if write.writer not in followed.born_at:
                followed.born_at[write.writer] = born_at(write.writer.pid)
        followed.writes += new
        return bool(new)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(_LOOK_EVERY_SECONDS):
                self.look()
            self.look()
        except (OSError, ValueError) as problem:
            self._problem = self._problem or f"the watch for two writers cannot continue: {problem}"


def _lives(writer: Writer, born: int | None) -> bool:
    return born is not None and born_at(writer.pid) == born


def _read_line(line: str, number: int) -> Write:
    words = line.split(" ")
    try:
        at, job, restart_count, node, pid = words
        writer = Writer(job=job, restart_count=int(restart_count), node=node, pid=int(pid))
        return Write(at_microseconds=int(at), writer=writer)
    except ValueError:
        raise ValueError(
            f"line {number} of a write log is {line!r}; expected '<microseconds> <job> <restart> <node> <pid>'"
        ) from None
