"""The live cycle's child process: started by the code server, fed a line a tick, ended by silence.

Its standard input is the leash: when the code server dies the pipe closes, when the sensor is switched off no line
comes, and in both cases the child ends by itself. Its standard output is one line a cycle. The leash is read by a
thread of its own, so a child may hang and still hold it: one that says nothing for too long is killed.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ops_pipelines.core.sources import LiveNews

MODULE = "ops_pipelines.live"
SILENT_LIMIT_SECONDS = 300.0
"""Far above a cycle of the largest cluster; the child says a line at least once a minute while it waits."""
_FRUGAL = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "1048576", "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""How the child's allocators are configured unless the site configures them otherwise. Each cycle takes and frees
hundreds of megabytes in large pieces: by their defaults glibc and Arrow keep most of it."""
_ENDS_WITHIN_SECONDS = 30.0
"""Assumption: a cycle under way writes its files in less."""
_DEATH_SECONDS = 1.0
"""What is killed is gone within milliseconds, unless the kernel holds it (a dead NFS server)."""


class LiveProcess:
    """Holds one child. Safe for the threads of a code server."""

    def __init__(
        self,
        cluster_file: Path | None,
        *,
        command: Sequence[str] | None = None,
        silent_limit_seconds: float = SILENT_LIMIT_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`command` None runs the live cycle of `cluster_file` with this Python; another needs no cluster."""
        self._command = command or (sys.executable, "-P", "-m", MODULE, "--cluster", str(cluster_file))
        self._silent_limit_seconds = silent_limit_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def tend(self) -> LiveNews:
        """Start the child if it does not run and keep it alive; see `core.sources.LiveCycle`."""
        with self._lock:
            ended = None
            if self._child is not None and self._child.has_ended():
                ended = self._child.how_it_ended()
                self._child.let_go()
                self._child = None
            if self._child is None:
                try:
                    self._child = _Child(self._command, monotonic=self._monotonic)
                except OSError as problem:
                    return LiveNews(is_running=False, note=f"the live cycle cannot be started: {problem}")
                return LiveNews(is_running=True, note=f"started again: {ended}" if ended else "started")
            if self._child.silent_seconds() >= self._silent_limit_seconds:
                return LiveNews(is_running=False, note=self._child.kill())
            if not self._child.pull():
                return LiveNews(is_running=False, note="the live cycle is ending")
            return LiveNews(is_running=True, note=f"{self._child.said()} ({self._child.silent_seconds():.0f} s ago)")

    def stop(self) -> None:
        """End the child, if there is one, and wait for its end."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.stop()


class _Child:
    """One process from its start to its end, and what was heard of it."""

    def __init__(self, command: Sequence[str], *, monotonic: Callable[[], float]) -> None:
        """Start it. Raises OSError."""
        self._monotonic = monotonic
        # Without a buffer: a line is there at once, and none is left behind when the child is gone.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env={**_FRUGAL, **os.environ}
        )
        self._heard_at = monotonic()
        self._last_line = ""
        self._killed = ""
        threading.Thread(target=self._listen, daemon=True, name="live-cycle-news").start()

    def _listen(self) -> None:
        assert self._process.stdout is not None, "the news come through a pipe"
        with self._process.stdout as news:
            while line := news.readline():
                # The time first: a new line with an old time would look as if it were about to be killed.
                self._heard_at = self._monotonic()
                self._last_line = line.decode(errors="replace").strip()

    def said(self) -> str:
        return self._last_line or "nothing yet"

    def silent_seconds(self) -> float:
        """Return how long ago it reported its last line, or was started."""
        return self._monotonic() - self._heard_at

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def how_it_ended(self) -> str:
        if self._killed:
            return self._killed
        return f"it ended by itself with exit code {self._process.returncode}; its last words: {self.said()}"

    def kill(self) -> str:
        """Kill it for its silence, and return why."""
        self._killed = (
            f"it printed nothing for {self.silent_seconds():.0f} s and was killed; its last words: {self.said()}"
        )
        self._process.kill()
        try:
            self._process.wait(_DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{self._killed}; it has not ended yet"
        return self._killed

    def stop(self) -> None:
        """Ask it to end, and wait for that; what does not hear is killed: a cycle cut short is taken up again.

        Cutting the leash alone would do for ours. SIGTERM alone would not: in the background of a script SIGINT is
        ignored, Dagster then ignores SIGTERM too, and its children inherit that.
        """
        self.let_go()
        self._process.terminate()
        try:
            self._process.wait(_ENDS_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def pull(self) -> bool:
        """Say that it is still needed; return whether it can hear that."""
        assert self._process.stdin is not None, "the leash is a pipe"
        try:
            self._process.stdin.write(b"\n")
        except OSError:
            return False
        return True

    def let_go(self) -> None:
        """Close our end of the leash of a child that has ended; its listener closes the other pipe."""
        assert self._process.stdin is not None, "the leash is a pipe"
        self._process.stdin.close()
