"""A Slurm, its accounting, munge and nodes as the start guard meets them: programs on PATH, and a socket for each node.

Jobs are directories with a file for each field; accounting is a text in sacct's own form. An array's own number means
all of its tasks, as with the real scontrol.
"""

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ops_pipelines.resources.slurm.guard.start_guard import PROTOCOL, Settings, judge_start, note

_SQUEUE = """
case "$*" in
*--json*)
    sep=''; printf '{"jobs": ['
    for job in "$cluster"/jobs/*; do
        [ -e "$job/name" ] || continue
        printf '%s{"job_id": %s, "admin_comment": "%s"}' "$sep" "${job##*/}" "$(cat "$job/comment")"; sep=', '
    done
    echo ']}'; exit 0 ;;
esac
case "$*" in
*--states=RUNNING*)
    for job in "$cluster"/jobs/*; do
        [ -e "$job/started" ] && echo "${job##*/}|$(cat "$job/name")|$(cat "$job/started")"
    done
    exit 0 ;;
esac
for word in "$@"; do case $word in --jobs=*) asked=${word#--jobs=} ;; esac; done
found=no
for job in $(jobs_called "$asked"); do
    found=yes
    echo "$job|$(cat "$cluster/jobs/$job/name")|$(cat "$cluster/jobs/$job/state")|$(cat "$cluster/jobs/$job/priority")"
done
[ $found = yes ] || { echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; }
"""
_SCONTROL = """
case "$1 $2" in
'hold '*)
    if [ -e "$cluster/holds_come_late" ]; then echo "$2" >"$cluster/late"; echo 'timed out' >&2; exit 1; fi
    for job in $(jobs_called "$2"); do echo 0 >"$cluster/jobs/$job/priority"; done ;;
'release '*) for job in $(jobs_called "$2"); do echo 9 >"$cluster/jobs/$job/priority"; done ;;
'show job')
    for job in $(jobs_called "$3"); do
        echo "JobId=$job"; comment=$(cat "$cluster/jobs/$job/comment")
        [ -z "$comment" ] || echo "   AdminComment=$comment"
    done ;;
'show node') cat "$cluster/nodes" ;;
'show config') echo "BOOT_TIME               = $(cat "$cluster/booted")" ;;
'update '*) for job in $(jobs_called "${2#*=}"); do echo "${3#*=}" >"$cluster/jobs/$job/comment"; done ;;
esac
"""
_SACCT = """
[ -e "$cluster/accounting" ] || { echo 'sacct: error: slurmdbd does not answer' >&2; exit 1; }
case "$*" in *JobIDRaw*) cat "$cluster/accounting" ;; *) cut -d'|' -f2- "$cluster/accounting" ;; esac
"""
_COMMON = """#!/bin/sh
cluster={directory}
jobs_called() {{
    for each in "$cluster"/jobs/*; do
        case ${{each##*/}} in "$1") echo "${{each##*/}}"; continue ;; esac
        case $(cat "$each/name" 2>/dev/null) in "$1" | "$1"_*) echo "${{each##*/}}" ;; esac
    done
}}
"""
_PROGRAMS = {
    "squeue": _SQUEUE,
    "scontrol": _SCONTROL,
    "sacct": _SACCT,
    "sacctmgr": "exit 0\n",
    "munge": "base64 -w0\n",
    "unmunge": "printf 'STATUS: Success (0)\\nUID: root (0)\\n\\n'; base64 -d\n",
}


class FakeGuardSlurm:
    """One cluster in a directory; its programs lie in `programs`."""

    def __init__(self, directory: Path) -> None:
        self.programs = directory / "programs"
        self._directory = directory
        (directory / "jobs").mkdir(parents=True)
        (directory / "nodes").touch()
        (directory / "addresses").touch()
        self.programs.mkdir()
        for name, text in _PROGRAMS.items():
            program = self.programs / name
            program.write_text(_COMMON.format(directory=directory) + text)
            program.chmod(0o755)

    def settings_in(self, directory: Path) -> Settings:
        return Settings(
            state=directory / "state",
            fallback=directory / "fallback",
            slurm_conf=str(directory / "slurm.conf"),
            port=1,
            addresses=self._directory / "addresses",
        )

    def put_job(self, job: str, *, name: str = "", state: str = "PENDING", is_held: bool = False) -> None:
        place = self._directory / "jobs" / job
        place.mkdir(exist_ok=True)
        for field, text in (("name", name or job), ("state", state), ("priority", "0" if is_held else "9")):
            (place / field).write_text(f"{text}\n")
        (place / "comment").touch()

    def put_running(self, job: str, *, started_at: float, name: str = "") -> None:
        self.put_job(job, name=name, state="RUNNING")
        (self._directory / "jobs" / job / "started").write_text(f"{_in_utc(started_at)}\n")

    def boot(self, at: float) -> None:
        """Let slurmctld have been started so long ago."""
        (self._directory / "booted").write_text(f"{_in_utc(at)}\n")

    def is_held(self, job: str) -> bool:
        return self._read(job, "priority") == "0"

    def comment_of(self, job: str) -> str:
        return self._read(job, "comment")

    def comment(self, job: str, words: str) -> None:
        (self._directory / "jobs" / job / "comment").write_text(f"{words}\n")

    def _read(self, job: str, field: str) -> str:
        return (self._directory / "jobs" / job / field).read_text().strip()

    def account(self, *rows: str) -> None:
        """Let accounting know `JobIDRaw|Start|End|State|NodeList`; before that it does not answer."""
        (self._directory / "accounting").write_text("".join(f"{row}\n" for row in rows))

    def show_nodes(self, *rows: str) -> None:
        (self._directory / "nodes").write_text("".join(f"{row}\n" for row in rows))

    def let_holds_come_late(self) -> None:
        """Let the client of a hold give up before slurmctld does it."""
        (self._directory / "holds_come_late").touch()

    def do_late_hold(self) -> None:
        (self._directory / "jobs" / (self._directory / "late").read_text().strip() / "priority").write_text("0\n")

    def answer_as(self, node: str, *, ages_seconds: Sequence[float], when: Callable[[], object] = lambda: None) -> None:
        """Let a node answer once `when` returned, no matter who asks; a node that this was not called for does not."""
        listening = socket.create_server(("127.0.0.1", 0))
        with (self._directory / "addresses").open("a") as file:
            file.write(f"{node} 127.0.0.1 {listening.getsockname()[1]}\n")
        threading.Thread(target=_answer, args=(listening, node, tuple(ages_seconds), when), daemon=True).start()


def _in_utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def restart(settings: Settings, job: str, at: float, *, nodes: str = "n2") -> int:
    """Start a job again, as the wrapper does."""
    note(settings, job, f"start {at} 1 {nodes}")
    return judge_start(settings, job, at)


def let_time_pass(settings: Settings, job: str, seconds: float) -> None:
    """Let the guard have held a job so long ago."""
    held_at = time.time() - seconds
    os.utime(settings.state / "held" / job, (held_at, held_at))


@contextmanager
def as_nobody(directory: Path) -> Iterator[None]:
    """Work as a user without rights, as SlurmUser is, who may come as far as a test's own directory."""
    places = (directory, *directory.parents)
    of_pytest = [number for number, place in enumerate(places) if place.name.startswith("pytest-of-")]
    for place in places[: of_pytest[0] + 1 if of_pytest else 1]:
        place.chmod(0o755)  # The directories of pytest are for their owner alone.
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def _answer(listening: socket.socket, node: str, ages_seconds: Sequence[float], when: Callable[[], object]) -> None:
    while True:
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as question:
            asked = json.loads(base64.b64decode(question.readline()))
            said = {"protocol": PROTOCOL, "node": node, "job": asked["job"], "token": asked["token"]}
            when()
            said["ages_seconds"] = list(ages_seconds)
            connection.sendall(base64.b64encode(json.dumps(said).encode()) + b"\n")
