"""The live cycle's child process: started by the code server, fed a line a tick, ended by silence.

Its standard input is the leash: when the code server dies the pipe closes, when the sensor is switched off no line
comes, and in both cases the child ends by itself. Its standard output is one line a cycle.
"""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from ops_pipelines.ports.live_cycle import LiveNews

MODULE = "ops_pipelines.live"


class LiveProcess:
    """Holds one child. Safe for the threads of a code server."""

    def __init__(self, cluster_file: Path | None, *, command: Sequence[str] | None = None) -> None:
        """`command` None runs the live cycle of `cluster_file` with this Python; another needs no cluster."""
        self._command = command or (sys.executable, "-m", MODULE, "--cluster", str(cluster_file))
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._last_line = ""

    def tend(self) -> LiveNews:
        """Start the child if it does not run and keep it alive; see `ports.live_cycle.LiveCycle`."""
        with self._lock:
            ended = None
            if self._child is not None and self._child.poll() is not None:
                ended = f"it ended by itself with exit code {self._child.returncode}; its last words: {self._said()}"
                self._let_go(self._child)
                self._child = None
            if self._child is None:
                try:
                    self._child = self._start()
                except OSError as problem:
                    return LiveNews(is_running=False, note=f"the live cycle cannot be started: {problem}")
                return LiveNews(is_running=True, note=f"started again: {ended}" if ended else "started")
            if not self._pull(self._child):
                return LiveNews(is_running=False, note="the live cycle is ending")
            return LiveNews(is_running=True, note=self._said())

    def stop(self) -> None:
        """End the child, if there is one, and wait for its end."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.terminate()
            child.wait()
            self._let_go(child)

    def _start(self) -> subprocess.Popen[bytes]:
        self._last_line = ""
        # Without a buffer: a line is there at once, and none is left behind when the child is gone.
        child = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        threading.Thread(target=self._listen, args=(child,), daemon=True, name="live-cycle-news").start()
        return child

    def _listen(self, child: "subprocess.Popen[bytes]") -> None:
        assert child.stdout is not None, "the news come through a pipe"
        with child.stdout as news:
            while line := news.readline():
                self._last_line = line.decode(errors="replace").strip()

    def _said(self) -> str:
        return self._last_line or "nothing yet"

    @staticmethod
    def _let_go(child: "subprocess.Popen[bytes]") -> None:
        """Close our end of the leash of a child that has ended; its listener closes the other pipe."""
        assert child.stdin is not None, "the leash is a pipe"
        child.stdin.close()

    @staticmethod
    def _pull(child: "subprocess.Popen[bytes]") -> bool:
        assert child.stdin is not None, "the leash is a pipe"
        try:
            child.stdin.write(b"\n")
        except OSError:
            return False
        return True
