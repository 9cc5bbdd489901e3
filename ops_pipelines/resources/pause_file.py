"""The pause beside the ledger: a file in the state directory, which stops new actions while it is there.

For the day on which the ledger, cluster.yaml or policy.yaml cannot be used: written without any of them, and read
before every act. Whatever stands under its name means paused, an empty or half-written file too: only no file means
that nobody paused in this way. Made by hand it counts the same: `touch STATE/PAUSE`.
"""

import errno
import json
import os
import stat
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ops_pipelines.core.entries import Pause
from ops_pipelines.resources.whole_file import put_whole

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
            return _unexplained(f"whether {self.path} is there cannot be told ({why})", since=None)
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
        """Take the file away and return what it said; None if there was none. Raises OSError where it stays."""
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
