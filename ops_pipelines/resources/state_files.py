"""Small state beside the ledger, one file each in the state directory: the pause, and what is remembered of jobs.

The pause stops new actions while its file is there. For the day on which the ledger, cluster.yaml or policy.yaml cannot
be used: written without any of them, and read before every act. Whatever is under its name means paused, an empty
or half-written file too: only no file means that nobody paused in this way. Made by hand it counts the same: `touch
STATE/PAUSE`.

The port `JobFacts` is two small JSON files, each with one writer, each replaced by rename. What does not fit the form
to the letter is not believed at all: half a truth about checkpoints is worse than none.
"""

import errno
import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex
from typing import Generic, TypeVar

from ops_pipelines.core.entries import LedgerError, Pause
from ops_pipelines.core.identity import JobId, parse_job_id
from ops_pipelines.core.plan import RestartCosts
from ops_pipelines.core.sources import TIMES_KEPT, CheckpointSeen, JobFactsError, JobFactsReading
from ops_pipelines.resources.documents import decode, encode
from ops_pipelines.resources.files import put_whole

# -- the pause --


PAUSE_FILE = "PAUSE"
_MOST_BYTES = 10_000
_MOST_SHOWN = 1_000
_BY_SOMEBODY = "somebody"


class PauseFile:
    """The file of one state directory."""

    def __init__(self, state_directory: Path) -> None:
        self.path = state_directory / PAUSE_FILE

    def read(self) -> Pause | None:
        """Return the pause; None if there is no file. What cannot be read or understood is a pause all the same."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return None
        except OSError as problem:
            why = problem.strerror or type(problem).__name__
            return _unexplained(f"whether {self.path} is there cannot be known ({why})", since=None)
        since = _moment(found.st_mtime)
        if not stat.S_ISREG(found.st_mode):
            return _unexplained(f"{self.path} is there, and is no file", since=since)
        try:
            with self.path.open("rb") as file:
                content = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return None  # Lifted in this moment.
        except OSError as problem:
            why = problem.strerror or type(problem).__name__
            return _unexplained(f"{self.path} is there, and cannot be read ({why})", since=since)
        return _decoded(content, since=since) or _unexplained(f"{self.path} does not say why", since=since)

    def put(self, pause: Pause) -> None:
        """Write the pause whole; empty on a full disk, which still takes a name. Raise OSError if neither can be."""
        said = {"actor": pause.actor, "since": pause.since.astimezone(UTC).isoformat(), "reason": pause.reason}
        try:
            put_whole(self.path, json.dumps(said) + "\n")
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.path.touch(mode=0o600)
        place = self.path.parent.stat()
        if os.geteuid() == 0 and place.st_uid != 0:
            # What root wrote has to be readable for the program's own user; if it is not, it is a pause all the same.
            with suppress(OSError):
                os.chown(self.path, place.st_uid, place.st_gid, follow_symlinks=False)
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)  # A pause that a power cut undoes is none.
        finally:
            os.close(descriptor)

    def remove(self) -> Pause | None:
        """Take the file away and return what it reported; None if there was none. Raises OSError where it stays."""
        was = self.read()
        if was is not None:
            self.path.unlink(missing_ok=True)
        return was


def _decoded(content: bytes, *, since: datetime) -> Pause | None:
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    actor, reason = _shown(said.get("actor")), _shown(said.get("reason"))
    if not reason:
        return None
    return Pause(actor=actor or _BY_SOMEBODY, since=_stated(said.get("since")) or since, reason=reason)


def _unexplained(reason: str, *, since: datetime | None) -> Pause:
    return Pause(actor=_BY_SOMEBODY, since=since or datetime.fromtimestamp(0, UTC), reason=reason)


def _shown(value: object) -> str:
    """Return a text that can be stored and shown anywhere: what is not printable is left out."""
    if not isinstance(value, str):
        return ""
    return "".join(char for char in value[:_MOST_SHOWN] if char.isprintable()).strip()


def _stated(value: object) -> datetime | None:
    try:
        stated = datetime.fromisoformat(value) if isinstance(value, str) else None
        return None if stated is None or stated.tzinfo is None else stated.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _moment(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


# -- job facts --


CHECKPOINTS_FILE = "job_checkpoints.json"
COSTS_FILE = "restart_costs.json"
MAX_BYTES = 32 * 1024 * 1024
"""Of a file that is read: 20,000 jobs take 5 MB."""
_VERSION = 1
_LONGEST_SECONDS = timedelta(days=7).total_seconds()
T = TypeVar("T")
Stamp = tuple[int, int, int]
"""Inode, size and time of change: a file with the same three is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checkpoints:
    version: int
    checkpoints: Mapping[JobId, CheckpointSeen]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costs:
    version: int
    costs: RestartCosts


class JobFactsFile:
    """Keeps what was learned of jobs under `directory`, which must exist. Safe to share between processes."""

    def __init__(self, directory: Path) -> None:
        self._checkpoints = _File(directory / CHECKPOINTS_FILE, _Checkpoints, check=_check_checkpoints)
        self._costs = _File(directory / COSTS_FILE, _Costs, check=_check_costs)

    def read(self) -> JobFactsReading:
        """Return what is kept; see `core.sources`. Files that have not changed are not read again."""
        checkpoints, no_checkpoints = self._checkpoints.read()
        costs, no_costs = self._costs.read()
        return JobFactsReading(
            costs=RestartCosts() if costs is None else costs.costs,
            checkpoints={} if checkpoints is None else checkpoints.checkpoints,
            problems=tuple(problem for problem in (no_checkpoints, no_costs) if problem),
        )

    def keep_checkpoints(self, checkpoints: Mapping[JobId, CheckpointSeen]) -> None:
        self._checkpoints.write(_Checkpoints(version=_VERSION, checkpoints=checkpoints))

    def keep_costs(self, costs: RestartCosts) -> None:
        self._costs.write(_Costs(version=_VERSION, costs=costs))


class _File(Generic[T]):
    """One JSON document: whole or not there, and read once for each time that it changes."""

    def __init__(self, path: Path, kind: type[T], *, check: Callable[[T], None]) -> None:
        self._path = path
        self._kind = kind
        self._check = check
        self._read: tuple[Stamp, T | None, str] | None = None

    def read(self) -> tuple[T | None, str]:
        """Return the document, and why there is none; both empty where none was ever written."""
        try:
            found = self._path.stat()
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            kept = self._read
            if kept is not None and kept[0] == stamp:
                return kept[1], kept[2]
            if found.st_size > MAX_BYTES:
                raise ValueError(f"{found.st_size:,} bytes; expected at most {MAX_BYTES:,}")
            value = decode(self._kind, self._path.read_text(encoding="ascii"))
            self._check(value)
        except FileNotFoundError:
            return None, ""
        except OSError as problem:
            return None, f"{self._path.name} cannot be read: {problem.strerror or problem}; nothing of it is used"
        except (ValueError, LedgerError, RecursionError) as problem:
            why = f"{self._path.name} is damaged and nothing of it is used ({problem}); delete it, it is learned again"
            self._read = (stamp, None, why)
            return None, why
        self._read = (stamp, value, "")
        return value, ""

    def write(self, value: T) -> None:
        temporary = self._path.with_name(f".tmp-{self._path.name}-{token_hex(4)}")
        try:
            with temporary.open("xb") as out:
                out.write(encode(value).encode("ascii"))
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(self._path)
        except (OSError, LedgerError) as problem:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise JobFactsError(f"{self._path.name} cannot be written: {problem}; free space, or mend the right") from (
                problem
            )


def _check_checkpoints(value: _Checkpoints) -> None:
    _check_version(value.version)
    for job, seen in value.checkpoints.items():
        parse_job_id(job)
        if len(seen.times) > TIMES_KEPT or list(seen.times) != sorted(map(_aware, seen.times)):
            raise ValueError(f"job {job}: expected at most {TIMES_KEPT} times, oldest first")
        for time in (seen.saving_since, seen.staged_at):
            if time is not None:
                _aware(time)


def _check_costs(value: _Costs) -> None:
    _check_version(value.version)
    costs = value.costs
    for seconds in (costs.restart_seconds, costs.queue_seconds, costs.no_room_queue_seconds):
        if not (math.isfinite(seconds) and 0 <= seconds <= _LONGEST_SECONDS):
            raise ValueError(f"{seconds} s; expected 0 to {_LONGEST_SECONDS:.0f}")
    if costs.measured_count < 0:
        raise ValueError(f"measured_count {costs.measured_count}; expected 0 or more")


def _check_version(version: int) -> None:
    if version != _VERSION:
        raise ValueError(f"version {version}; expected {_VERSION}")


def _aware(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ValueError(f"{time.isoformat()} has no time zone; expected UTC")
    return time
