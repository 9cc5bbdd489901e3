"""Answers, on a node, how old the processes of a job are there: whom the start guard asks. The standard library alone.

`node_witness.py --port 4271` listens until SIGTERM, or answers the one connection of a systemd socket (`--inetd`). A
question is one line: a munge credential of root or of slurmctld's user; so is the answer, with the question's token.
It reads /proc and nothing else, writes nothing, and starts munge and unmunge alone. Rights: to read other users'
`/proc/PID/environ` and `cgroup` (root, or CAP_SYS_PTRACE); without them it refuses to answer, so that blindness is not
taken for "no process".
"""

import argparse
import contextlib
import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PROTOCOL = "ops-pipelines-node-witness-1"
_QUESTION_BYTES = 8_192
_PATIENCE_SECONDS = 5.0
_CONNECTIONS = 32
_JOB_ID = re.compile(r"[0-9]{1,12}\Z")
_STEP_DAEMON = re.compile(r"slurmstepd: \[(\d+)")


class WitnessError(RuntimeError):
    """The question cannot be answered. The message says why."""


class Witness:
    """One node's answers."""

    def __init__(
        self,
        node: str,
        *,
        asker_uids: Sequence[int],
        munge_socket: str | None,
        only_with: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`only_with`: variables and their values, where several simulated nodes, and clusters, share one machine (the
        drills): a process counts if it has each of them. `A|B` is a variable that has either name."""
        self._node, self._munge_socket = node, munge_socket
        self._asker_uids = frozenset(asker_uids)
        self._only_with = tuple((frozenset(names.split("|")), value) for names, value in only_with)

    def answer(self, line: bytes) -> bytes:
        """Return the answer to one question; raise WitnessError if it is none, or cannot be answered."""
        head, _, payload = self._run_munge(
            "unmunge", line.decode("ascii", "replace"), "--keys", "STATUS,UID"
        ).partition("\n\n")
        uid = re.search(r"^UID:.*\((\d+)\)\s*$", head, re.MULTILINE)
        if uid is None or int(uid.group(1)) not in self._asker_uids:
            raise WitnessError("asked by somebody who may not")
        try:
            asked = json.loads(payload)
            job, token = asked["job"], asked["token"]
        except (ValueError, KeyError, TypeError):
            raise WitnessError("the question cannot be read") from None
        if asked.get("protocol") != PROTOCOL or not isinstance(job, str) or not _JOB_ID.match(job):
            raise WitnessError("the question is of another protocol, or names no job")
        said = {
            "protocol": PROTOCOL,
            "node": self._node,
            "job": job,
            "token": token,
            "ages_seconds": sorted(self._ages(job), reverse=True)[:1000],
        }
        return self._run_munge("munge", json.dumps(said)).strip().encode() + b"\n"

    def _ages(self, job: str) -> Iterator[float]:
        """Yield the age of each process of a job: by its environment, its control group, or as Slurm's step daemon."""
        up_seconds = float(Path("/proc/uptime").read_text().split()[0])
        ticks = os.sysconf("SC_CLK_TCK")
        for entry in os.scandir("/proc"):
            # The first process is no job's, and may keep its environment even from root.
            if not entry.name.isdecimal() or int(entry.name) in (1, os.getpid()):
                continue
            try:
                if self._is_of(Path(entry.path), job):
                    stat = (Path(entry.path) / "stat").read_text().rpartition(")")[2].split()
                    if stat[0] not in "ZX":
                        yield max(0.0, up_seconds - int(stat[19]) / ticks)
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended meanwhile

    def _is_of(self, process: Path, job: str) -> bool:
        try:
            environment = _read_environment(process)
        except PermissionError:
            raise WitnessError("processes of others cannot be read: run it as root, or with CAP_SYS_PTRACE") from None
        for names, value in self._only_with:
            if not any(environment.get(name) == value for name in names):
                return False
        if environment.get("SLURM_JOB_ID") == job or environment.get("SLURM_JOBID") == job:
            return True
        # Read as bytes with a limit: a job may give its processes any name.
        command = (process / "cmdline").read_bytes()[:256].decode("utf-8", "replace")
        daemon = _STEP_DAEMON.match(command)
        if daemon is not None and daemon.group(1) == job:
            return True
        with contextlib.suppress(OSError):
            return f"/job_{job}/" in (process / "cgroup").read_text() + "/"
        return False

    def _run_munge(self, program: str, text: str, *words: str) -> str:
        argv = [program, *(["--socket", self._munge_socket] if self._munge_socket else []), *words]
        try:
            done = subprocess.run(
                argv, input=text, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise WitnessError(f"{program} did not answer: {problem}") from None
        if done.returncode != 0:
            raise WitnessError(f"{program} refused: {done.stderr.strip()[:200]}")
        return done.stdout


def _read_environment(process: Path) -> Mapping[str, str]:
    words = (process / "environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(word).partition("=") for word in words)
    return {key: value for key, _, value in pairs}


def serve_one(witness: Witness, connection: socket.socket) -> None:
    """Answer one connection, or close it without a word: who may not ask learns nothing."""
    with connection:
        connection.settimeout(_PATIENCE_SECONDS)
        question = b""
        try:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while not question.endswith(b"\n") and len(question) <= _QUESTION_BYTES and time.monotonic() < deadline:
                more = connection.recv(4096)
                if not more:
                    return
                question += more
            connection.sendall(witness.answer(question))
        except (OSError, WitnessError) as problem:
            print(f"node_witness: not answered: {problem}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="node_witness", description="Says which processes of a job live on this node."
    )
    parser.add_argument("--node", default=socket.gethostname().partition(".")[0], help="the node's name in Slurm")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104 - slurmctld asks from outside; who may, munge says
    parser.add_argument("--port", type=int, default=4271)
    parser.add_argument("--inetd", action="store_true", help="answer the one connection on standard input")
    parser.add_argument("--asker", default="slurm", help="the user of slurmctld, who may ask beside root")
    parser.add_argument("--munge-socket")
    parser.add_argument("--only-with", metavar="NAME=VALUE", action="append", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    witness = Witness(
        options.node,
        asker_uids=[0, *_uids_of(options.asker)],
        munge_socket=options.munge_socket,
        only_with=[(names, value) for names, _, value in (each.partition("=") for each in options.only_with)],
    )
    if options.inetd:
        serve_one(witness, socket.socket(fileno=os.dup(sys.stdin.fileno())))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    room = threading.BoundedSemaphore(_CONNECTIONS)
    with socket.create_server((options.host, options.port), backlog=128) as listening:
        while True:
            connection, _ = listening.accept()
            room.acquire()
            threading.Thread(target=_serve_in_turn, args=(witness, connection, room), daemon=True).start()


def _serve_in_turn(witness: Witness, connection: socket.socket, room: threading.BoundedSemaphore) -> None:
    try:
        serve_one(witness, connection)
    finally:
        room.release()


def _uids_of(user: str) -> tuple[int, ...]:
    try:
        return (pwd.getpwnam(user).pw_uid,)
    except KeyError:
        return ()


if __name__ == "__main__":
    sys.exit(main())
