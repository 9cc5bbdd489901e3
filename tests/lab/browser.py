"""A real browser without a window, for tests marked `live`: opens a page, runs its scripts, returns what it shows.

Skips where Chromium is not installed, unless OPS_PIPELINES_REQUIRE_SERVERS=1 says it must be there.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_ATTEMPTS = 5
_PAGE_SECONDS = 20
_LIMIT_SECONDS = 90
_WINDOW = (1600, 1400)


def find_browser() -> str:
    """Return the path of Chromium."""
    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") == "1":
            pytest.fail("chromium is not installed, and servers are required")
        pytest.skip("chromium is not installed")
    return path


class Browser:
    """One browser with a profile of its own below `directory`."""

    def __init__(self, directory: Path, *, flags: Sequence[str] = ()) -> None:
        self._program = find_browser()
        self._directory = directory
        self._flags = flags

    def open(self, url: str, *, until: Sequence[str], window: tuple[int, int] = _WINDOW) -> str:
        """Return the page's document once it shows every text of `until`; fail the test if it never does.

        A page that asks its server is as slow as the machine, so it is opened again a few times. What lies outside the
        window may not be in the document: Dagster draws no node of a graph that nobody sees.
        """
        shown = ""
        for _ in range(_ATTEMPTS):
            shown = self._dump(url, window)
            if all(text in shown for text in until):
                return shown
        lacking = [text for text in until if text not in shown]
        return pytest.fail(f"{url} never showed {lacking}; it ends with {shown[-500:]!r}")

    def _dump(self, url: str, window: tuple[int, int]) -> str:
        done = subprocess.run(
            [
                self._program,
                *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
                f"--user-data-dir={self._directory / 'profile'}",
                f"--virtual-time-budget={_PAGE_SECONDS * 1000}",
                f"--window-size={window[0]},{window[1]}",
                *self._flags,
                "--dump-dom",
                url,
            ],
            capture_output=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
        return done.stdout.decode(errors="replace")
