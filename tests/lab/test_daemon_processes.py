"""A drill's daemon is waited for until it answers; one that ended first is named, with what it printed last."""

import os
from pathlib import Path

import pytest

from ops_pipelines_lab.drills.daemon_processes import DaemonError, Daemons


def test_daemon_that_ended_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    daemons = Daemons(run=tmp_path, log=tmp_path)
    daemons.start(
        "site",
        ["sh", "-c", "read line <$0; echo no port is free; exit 1", str(_pipe(tmp_path))],
        env={"PATH": "/usr/bin:/bin"},
    )
    asked = []

    def is_ready() -> bool:
        if not asked:
            (tmp_path / "pipe").write_text("go\n")
        asked.append(True)
        return False

    with pytest.raises(DaemonError, match=r"site ended while starting(.|\n)*no port is free"):
        daemons.wait_for("site", is_ready)


def test_daemon_that_answers_is_waited_for_no_longer(tmp_path: Path) -> None:
    daemons = Daemons(run=tmp_path, log=tmp_path)
    daemons.start("site", ["sleep", "600"], env={"PATH": "/usr/bin:/bin"})
    answers = iter((False, False, True))
    try:
        daemons.wait_for("site", lambda: next(answers))
    finally:
        daemons.kill(["site"])
    assert next(answers, None) is None


def _pipe(directory: Path) -> Path:
    path = directory / "pipe"
    os.mkfifo(path)
    return path
