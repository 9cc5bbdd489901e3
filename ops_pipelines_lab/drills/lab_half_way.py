"""Stops a program between its first order to slurmdbd and its second: a sacctmgr that waits, and a kill meanwhile."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops_pipelines_lab.drills.lab_stage import DrillError

_BEGUN, _REACHED, _GONE = "begun", "reached", "gone"
_LIMIT_SECONDS = 240.0
"""While slurmdbd is gone each look at it takes its time, and the program looks often before it gives up."""
_WAIT_COUNT = 3000
"""Tenths of a second that sacctmgr waits at most: a drill that died leaves nothing hanging."""

Wait = Callable[[str, Callable[[], bool]], None]
"""Returns once something named is so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the program ended and what it printed."""

    returncode: int
    stdout: str


def stop_half_way(program: Sequence[str], *, directory: Path, kill: Callable[[], None], wait: Wait) -> Ended:
    """Run `program`, call `kill` before its second order is sent, and return how it ended.

    `directory` must not be there yet. Raises DrillError where it printed nothing.
    """
    real = shutil.which("sacctmgr")
    if real is None:
        raise DrillError("the program sacctmgr is missing; run: apt-get install --no-install-recommends slurm-client")
    directory.mkdir()
    shim = directory / "sacctmgr"
    shim.write_text(sacctmgr_program(real, directory))
    shim.chmod(0o755)
    with subprocess.Popen(
        program,
        env={**os.environ, "PATH": os.pathsep.join([str(directory), os.environ.get("PATH", os.defpath)])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            wait("the second order", lambda: (directory / _REACHED).exists() or running.poll() is not None)
            kill()
            (directory / _GONE).touch()
            said, complaint = running.communicate(timeout=_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise DrillError(f"{shlex.join(program)} did not end within {_LIMIT_SECONDS:.0f} s") from None
        finally:
            running.kill()
    if not said:
        raise DrillError(f"{shlex.join(program)} ended with {running.returncode}: {complaint.strip()[-500:]}")
    return Ended(returncode=running.returncode, stdout=said)


def sacctmgr_program(sacctmgr: str, directory: Path) -> str:
    """Return a program that stands before the real sacctmgr: the second order waits until the drill says go on."""
    marks = {mark: shlex.quote(str(directory / mark)) for mark in (_BEGUN, _REACHED, _GONE)}
    return f"""\
#!/bin/sh
if [ "$1 $2" = "-i modify" ]; then
    if [ -e {marks[_BEGUN]} ]; then
        touch {marks[_REACHED]}
        count=0
        until [ -e {marks[_GONE]} ] || [ "$count" -ge {_WAIT_COUNT} ]; do
            sleep 0.1
            count=$((count + 1))
        done
    fi
    touch {marks[_BEGUN]}
fi
exec {shlex.quote(sacctmgr)} "$@"
"""
