"""When declared checkpoint files were last written. Looks only beneath roots that the operator named.

File systems hang when a server does, so looking happens in a thread of its own and is given up after a limit.
"""

import stat
import threading
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path


class CheckpointFiles:
    """Reads modification times, at most one look at a time. No roots: nothing is ever looked at."""

    def __init__(self, roots: Collection[Path]) -> None:
        self._roots = tuple(root.resolve() for root in roots)
        self._looking = threading.Lock()
        self._seen: frozenset[str] = frozenset()

    def was_seen(self, path: str | None) -> bool:
        """Return whether a look since this program began found the file, also if the last one did not.

        Kept for paths that are still asked for: a name that no job declares any more is forgotten.
        """
        return path in self._seen

    def read_times(self, paths: Collection[str], *, timeout_seconds: float) -> Mapping[str, datetime]:
        """Return path -> time of its last change, for the regular files whose resolved path lies beneath a root.

        Incomplete if the limit passes, empty while an earlier look still hangs: unknown is not never.
        """
        if not self._roots or not paths or not self._looking.acquire(blocking=False):
            return {}
        found: dict[str, datetime] = {}
        thread = threading.Thread(target=self._look, args=(tuple(paths), found), daemon=True)
        thread.start()
        thread.join(timeout_seconds)
        return dict(found)

    def _look(self, paths: Collection[str], found: dict[str, datetime]) -> None:
        try:
            for path in paths:
                changed_at = self._changed_at(path)
                if changed_at is not None:
                    found[path] = changed_at
                    self._seen |= {path}
            self._seen &= frozenset(paths)
        finally:
            self._looking.release()

    def _changed_at(self, path: str) -> datetime | None:
        try:
            resolved = Path(path).resolve(strict=True)
            if not any(resolved.is_relative_to(root) for root in self._roots):
                return None
            status = resolved.lstat()
        except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links, before Python 3.13
            return None
        return parse_change_time(status.st_mtime) if stat.S_ISREG(status.st_mode) else None


def parse_change_time(seconds: float) -> datetime | None:
    """Return a file's time of change; None for one that no calendar has: its owner sets it to whatever he likes."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None
