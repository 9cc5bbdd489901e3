"""The judge of restarts, in one file: the standard library alone, no environment of ours, as the user of slurmctld.

`judge` says whether a restart may go ahead, `look-again` releases what was held once its nodes are clear, `pass` is a
person's word for one job, `status` reports whether the guard works. What a start is and how it is written down is in
`start_guard.sh`, which calls `judge` and needs no interpreter for first starts.

A node is clear of an attempt if it answers and reports no process of the job older than this start, has no power,
or if it is silent and Slurm itself ended the attempt there: accounting calls it requeued or preempted, and the node's
slurmd was there all the time and never down since. A job's id is enough to know its attempts: Slurm gives a requeued
job a new time of submission, and may give the id of a job that it forgot to the next one, which then waits for an
answer, no longer.

One file of more than 500 lines, because it is copied to the host of slurmctld and run there with `python -I -S`.
"""

import argparse
import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

GO_AHEAD, REFUSED, BROKEN = 0, 10, 1
"""Exit codes of `judge`; the wrapper takes every other one for no verdict."""
MARK = "start guard: "
"""Begins the AdminComment of a job that the guard holds. Who writes another one takes the job over."""
RECORD_DAYS = 30
PROTOCOL = "ops-pipelines-node-witness-1"
_ANSWER_BYTES = 65_536
_SAME_START_SECONDS = 2.0
"""A process that is younger than this start by more belongs to it, or to its prolog on the node."""
_MINUTE_SECONDS = 60.0
_ON_ITS_WAY_SECONDS = 60.0
"""So long slurmctld may show a job as running whose start was refused."""
_LATE_HOLD_SECONDS = 3_600.0
"""A hold whose client gave up may still be done by a busy slurmctld: after 70 s with 500 restarts (measured)."""
_UNSEEN_SECONDS = 3_600.0
"""A start that the guard was not asked about is looked for so long."""
_JUST_NOW_SECONDS = 30.0
"""A start so young may be on its way into the record."""
_LOOKS_AT_ONCE = 2
"""Each asks slurmctld and a node: with 16 at once on two cores 500 restarts starved their own judges and went round."""
_ORDERLY = frozenset({"REQUEUED", "PREEMPTED"})
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}\Z")


class GuardError(RuntimeError):
    """The guard cannot do what it is for. The message says what is wrong and what to do."""


@dataclass(frozen=True)
class Settings:
    """What is in start_guard.json."""

    state: Path
    fallback: Path
    """Where starts are written down while `state` cannot be written: another file system."""
    slurm_conf: str
    port: int
    """On which `node_witness` listens on each node."""
    addresses: Path | None = None
    """Lines `node host port`, for nodes that are not reached by their name or on `port`."""
    power_state: tuple[str, ...] = ()
    """Prints `off` for a node without power; `{node}` means its name. Empty: power is no witness."""
    munge_socket: str | None = None
    ask_seconds: float = 5.0
    look_again_seconds: float = 10.0
    needs_boot_after: float = 0.0
    """Slurm takes up its first PrologSlurmctld at its start alone (22.05): one that runs since before this moment
    shows the guard in its configuration and asks it nothing. 0: it had one before."""
    installed_at: float = 0.0
    """When the settings were written."""


@dataclass(frozen=True)
class Start:
    """One line of a job's record: a start that may have run."""

    at: float
    nodes: str
    """As Slurm writes them: `gpu[001-003]`."""


@dataclass
class GuardDecision:
    """Whether a job may start, and what is in its way."""

    in_the_way: list[str] = field(default_factory=list)

    @property
    def is_clear(self) -> bool:
        return not self.in_the_way

    def words(self, job: str) -> str:
        """Return the reason as a person reads it in `scontrol show job`."""
        listed = "; ".join(self.in_the_way[:3]) + ("; ..." if len(self.in_the_way) > 3 else "")
        return (
            f"{MARK}an earlier attempt may still run: {listed}. It continues by itself once that is cleared up; "
            f"to let it go now: ops-pipelines guard pass {job}"
        )


# -- the record of starts ----------------------------------------------------------------------------------------------


def read_settings(path: Path) -> Settings:
    """Return what `path` says; raise GuardError naming the fault."""
    try:
        said = json.loads(path.read_text())
        return Settings(
            state=Path(said["state"]),
            fallback=Path(said["fallback"]),
            slurm_conf=str(said["slurm_conf"]),
            port=int(said["port"]),
            addresses=Path(said["addresses"]) if said.get("addresses") else None,
            power_state=tuple(str(word) for word in said.get("power_state") or ()),
            munge_socket=said.get("munge_socket") or None,
            ask_seconds=float(said.get("ask_seconds", 5.0)),
            look_again_seconds=float(said.get("look_again_seconds", 10.0)),
            needs_boot_after=float(said.get("needs_boot_after", 0.0)),
            installed_at=path.stat().st_mtime,
        )
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise GuardError(
            f"{path} cannot be used ({problem!r}); write it again with `ops-pipelines guard install`"
        ) from None


def record_paths(settings: Settings, job: str) -> tuple[Path, ...]:
    """Return where starts of a job are written down."""
    return tuple(place / "starts" / str(int(job) % 1000) / job for place in (settings.state, settings.fallback))


def open_starts(settings: Settings, job: str, *, before: float) -> tuple[Start, ...]:
    """Return the starts before this one that may have run and are not known to be over, oldest first.

    A torn line is passed over: it is that of a start which the wrapper did not survive, so slurmctld did not either.
    """
    lines: list[list[str]] = []
    for path in record_paths(settings, job):
        with contextlib.suppress(FileNotFoundError):
            lines += [line.split(" ", 3) for line in path.read_text(errors="replace").splitlines()]
    starts: dict[float, str] = {}
    refused: set[float] = set()
    cleared = 0.0
    for words in lines:
        try:
            at = float(words[1])
        except (IndexError, ValueError):
            continue
        if words[0] == "start" and len(words) == 4:
            starts[at] = words[3]
        elif words[0] == "refused":
            refused.add(at)
        elif words[0] == "cleared":
            cleared = max(cleared, at)
    return tuple(
        Start(at=at, nodes=nodes)
        for at, nodes in sorted(starts.items())
        if cleared <= at < before and at not in refused
    )


def has_record(settings: Settings, job: str, *, before: float) -> bool:
    """Return whether the record shows all that ran before this start: it has a clearing, or begins with a first
    start.

    One that begins with a restart, refused or broken off, shows nothing of the attempts before it.
    """
    starts: list[tuple[float, bool]] = []
    for path in record_paths(settings, job):
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_text(errors="replace").splitlines():
                words = line.split(" ", 3)
                with contextlib.suppress(IndexError, ValueError):
                    if words[0] == "cleared" and float(words[1]) < before:
                        return True
                    if words[0] == "start" and float(words[1]) < before:
                        starts.append((float(words[1]), words[2] == "0"))
    return bool(starts) and min(starts)[1]


def note(settings: Settings, job: str, line: str) -> None:
    """Add a line to a job's record, on the disk; raise OSError if neither place takes it."""
    problem: OSError | None = None
    for path in record_paths(settings, job):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as why:
            problem = why
        else:
            return
    assert problem is not None  # there are two places
    raise problem


# -- asking Slurm ------------------------------------------------------------------------------------------------------


def ask_slurm(settings: Settings, *argv: str, seconds: float) -> str:
    """Return what a client of Slurm prints; raise GuardError if it refuses or does not answer."""
    environment = {**os.environ, "SLURM_CONF": settings.slurm_conf, "TZ": "UTC", "LC_ALL": "C.UTF-8"}
    environment.pop("SLURM_TIME_FORMAT", None)
    try:
        done = subprocess.run(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise GuardError(f"{argv[0]} did not answer: {problem}") from None
    if done.returncode != 0:
        raise GuardError(f"{' '.join(argv[:3])}: {(done.stderr or done.stdout).strip()[:200]}")
    return done.stdout


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of one `scontrol show node -o`: only reasons hold blanks, and they come last."""
    fields: dict[str, str] = {}
    for word in line.split(" "):
        key, is_field, text = word.partition("=")
        if is_field:
            fields.setdefault(key, text)
    return fields


@dataclass(frozen=True)
class JobFacts:
    """What slurmctld says of a job in fields that no user writes: a job's name may forge whole lines of others."""

    leader: str
    """The job itself, or the first component of the heterogeneous job that it is part of."""
    name: str
    """By which scontrol means this job alone: `ARRAY_TASK` for a task, whose own id may be that of the whole array."""
    state: str
    is_held: bool


def job_facts(settings: Settings, job: str) -> JobFacts:
    """Return what slurmctld says of a job; raise GuardError if it says nothing."""
    argv = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%A|%i|%T|%Q")
    for line in ask_slurm(settings, *argv, seconds=settings.ask_seconds).splitlines():
        words = line.split("|")
        if len(words) == 4 and words[0] == job:
            leader = words[1].partition("+")[0] if "+" in words[1] else job
            name = words[1] if "_" in words[1] else leader
            if "[" in name:  # The tasks of an array that have not started: none of them was ever held by us.
                continue
            return JobFacts(leader=leader, name=name, state=words[2], is_held=words[3] == "0")
    raise GuardError(f"Invalid job id: slurmctld shows no job {job}")


def admin_comments(settings: Settings) -> dict[str, str]:
    """Return the AdminComment of every job; raise GuardError if slurmctld does not say it."""
    text = ask_slurm(settings, "squeue", "--all", "--states=all", "--json", seconds=4 * settings.ask_seconds)
    try:
        return {str(row["job_id"]): str(row.get("admin_comment") or "") for row in json.loads(text)["jobs"]}
    except (ValueError, KeyError, TypeError):
        raise GuardError("squeue --json printed nothing that can be read") from None


def hold(settings: Settings, job: str, reason: str) -> None:
    """Hold a job, and say why where people look; raise GuardError if slurmctld does not do it."""
    facts = job_facts(settings, job)
    if not facts.is_held:
        # Before: slurmctld may do it after its client gave up, and then it would be nobody's hold.
        _write_held(settings, job, "not answered yet")
        ask_slurm(settings, "scontrol", "hold", facts.name, seconds=settings.ask_seconds)
        _write_held(settings, job, reason)
    with contextlib.suppress(GuardError):  # The hold is what counts.
        _explain(settings, facts.name, reason)


def _explain(settings: Settings, name: str, words: str) -> None:
    """Say something of a job, or nothing any more, unless somebody else does."""
    shown = ask_slurm(settings, "scontrol", "show", "job", name, seconds=settings.ask_seconds)
    comment = re.search(r"^\s*AdminComment=(.*?)\s*$", shown, re.MULTILINE)
    if comment is None or comment.group(1).startswith(MARK):
        _say(settings, name, words)


def _say(settings: Settings, name: str, words: str) -> None:
    argv = ("scontrol", "update", f"JobId={name}", f"AdminComment={words}")
    ask_slurm(settings, *argv, seconds=settings.ask_seconds)


def _write_held(settings: Settings, job: str, reason: str) -> None:
    for place in (settings.state, settings.fallback):
        with contextlib.suppress(OSError):
            (place / "held").mkdir(parents=True, exist_ok=True)
            new = place / f"held.{job}.new"  # Who reads the directory sees each whole.
            new.write_text(reason + "\n")
            new.replace(place / "held" / job)
            return


def _forget_held(settings: Settings, job: str) -> None:
    for place in (settings.state, settings.fallback):
        with contextlib.suppress(OSError):
            (place / "held" / job).unlink(missing_ok=True)


def _read_held(settings: Settings, job: str) -> tuple[str, float]:
    """Return what is in a job's held file, and its age in seconds; empty and 0 if there is none."""
    for place in (settings.state, settings.fallback):
        with contextlib.suppress(OSError):
            file = place / "held" / job
            return file.read_text(errors="replace"), time.time() - file.stat().st_mtime
    return "", 0.0


def held_jobs(settings: Settings) -> tuple[str, ...]:
    """Return the jobs that the guard held and has not released."""
    names = set()
    for place in (settings.state, settings.fallback):
        with contextlib.suppress(OSError):
            names |= {path.name for path in (place / "held").iterdir() if path.name.isdecimal()}
    return tuple(sorted(names, key=int))


# -- witnesses ---------------------------------------------------------------------------------------------------------


def expand(nodes: str) -> tuple[str, ...]:
    """Return the names in a list as Slurm writes it, `a[1-2,5],b`; raise GuardError for one that is none."""
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        names = [""]
        for text, ranges in re.findall(r"([^\[]*)(?:\[([^\]]*)\])?", part):
            if not text and not ranges:
                continue
            names = [f"{name}{text}{each}" for name in names for each in _numbers(ranges)]
        found += names
    if not found or not all(_NODE_NAME.match(name) for name in found):
        raise GuardError(f"{nodes!r} is no list of nodes")
    return tuple(dict.fromkeys(found))


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for each in ranges.split(",") if ranges else [""]:
        first, dash, last = each.partition("-")
        if not dash:
            numbers.append(first)
        elif first.isdecimal() and last.isdecimal() and 0 <= int(last) - int(first) < 100_000:
            numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        else:
            raise GuardError(f"[{ranges}] is no range of node numbers")
    return numbers


_TAKEN_BACK = "(null)"
"""Instead of nodes: slurmctld was so busy that the job was requeued before it asked us. Nothing is launched before we
have answered, so nothing was (seen among 500 restarts at once, 22.05)."""


def judge(settings: Settings, job: str, started_at: float) -> GuardDecision:
    """Say whether no attempt before the start at `started_at` can still run; every doubt is in the verdict."""
    try:
        if _pass_of(settings, job):
            return GuardDecision()
    except GuardError as problem:
        verdict = _judge_by_nodes(settings, job, started_at)
        return verdict if verdict.is_clear else GuardDecision(in_the_way=[str(problem), *verdict.in_the_way])
    return _judge_by_nodes(settings, job, started_at)


def _judge_by_nodes(settings: Settings, job: str, started_at: float) -> GuardDecision:
    starts = open_starts(settings, job, before=started_at)
    if not has_record(settings, job, before=started_at):
        try:
            starts += _starts_by_accounting(settings, job)
        except GuardError as problem:
            return GuardDecision(in_the_way=[f"where it ran before is not known ({problem})"])
    attempts: dict[str, float] = {}
    for start in starts:
        if start.nodes == _TAKEN_BACK:
            continue
        try:
            for node in expand(start.nodes):
                attempts[node] = max(attempts.get(node, 0.0), start.at)
        except GuardError as problem:
            return GuardDecision(in_the_way=[str(problem)])
    if not attempts:
        return GuardDecision()
    deadline = time.monotonic() + settings.ask_seconds
    addresses = _addresses(settings)
    with _patient_pool(len(attempts) + 1) as pool:
        orderly = pool.submit(_ended_by_slurm, settings, job, attempts)
        witnesses = {
            node: pool.submit(_count_old_processes, settings, node, job, started_at, addresses) for node in attempts
        }
        seen: dict[str, str] = {}
        silent: dict[str, str] = {}
        for node, witness in witnesses.items():
            try:
                old_count = witness.result(timeout=max(0.0, deadline - time.monotonic()))
                if old_count:
                    seen[node] = f"{node} still runs {old_count} process(es) of it"
            except GuardError as problem:
                silent[node] = f"{node} does not answer ({problem})"
            except TimeoutError:
                silent[node] = f"{node} did not answer within {settings.ask_seconds:g} s"
        if silent:  # Accounting speaks for who is silent, and never against what a node sees.
            with contextlib.suppress(TimeoutError, GuardError):
                cleared = orderly.result(timeout=max(0.0, deadline - time.monotonic()))
                silent = {node: why for node, why in silent.items() if node not in cleared}
    return GuardDecision(in_the_way=[why for _, why in sorted((seen | silent).items())])


@contextlib.contextmanager
def _patient_pool(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool that nobody waits for: who has not answered by the end is left behind."""
    pool = ThreadPoolExecutor(max_workers=min(count, 64))
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _count_old_processes(
    settings: Settings, node: str, job: str, started_at: float, addresses: Mapping[str, tuple[str, int]]
) -> int:
    """Return how many processes of earlier attempts a node has; raise GuardError if it does not say, and has power."""
    try:
        ages = ask_node(settings, node, job, address=addresses.get(node, (node, settings.port)))
    except GuardError:
        if _has_no_power(settings, node):
            return 0
        raise
    return len([age for age in ages if age > time.time() - started_at + _SAME_START_SECONDS])


def ask_node(settings: Settings, node: str, job: str, *, address: tuple[str, int]) -> tuple[float, ...]:
    """Return the ages of a job's processes on a node, in seconds; raise GuardError unless the node itself reported
    so."""
    token = secrets.token_hex(16)
    question = _munge(settings, "munge", json.dumps({"protocol": PROTOCOL, "job": job, "token": token}))
    try:
        with socket.create_connection(address, timeout=settings.ask_seconds) as connection:
            connection.settimeout(settings.ask_seconds)
            connection.sendall(question.strip().encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n") and len(answer) <= _ANSWER_BYTES:
                more = connection.recv(4096)
                if not more:
                    break
                answer += more
    except OSError as problem:
        raise GuardError(str(problem)) from None
    if not answer.endswith(b"\n"):
        raise GuardError("it closed the connection without an answer; its own log says why")
    try:
        said = json.loads(_munge(settings, "unmunge", answer.decode("ascii")))
        if (said["protocol"], said["job"], said["token"], said["node"]) != (PROTOCOL, job, token, node):
            raise GuardError(f"it answers for {str(said['node'])[:60]!r}, or for another question")
        return tuple(float(age) for age in said["ages_seconds"])
    except (ValueError, KeyError, TypeError) as problem:
        raise GuardError(f"its answer cannot be read: {type(problem).__name__}") from None


def _munge(settings: Settings, program: str, text: str) -> str:
    """Return a credential for `text`, or what a credential holds if root or our own user made it."""
    argv = [program, *(["--socket", settings.munge_socket] if settings.munge_socket else [])]
    if program == "unmunge":
        argv += ["--keys", "STATUS,UID"]
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=settings.ask_seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise GuardError(f"{program} did not answer: {problem}") from None
    if done.returncode != 0:
        raise GuardError(f"{program} ended with {done.returncode}: {done.stderr.strip()[:200]}")
    if program == "munge":
        return done.stdout
    head, _, payload = done.stdout.partition("\n\n")
    uid = re.search(r"^UID:.*\((\d+)\)\s*$", head, re.MULTILINE)
    if uid is None or int(uid.group(1)) not in (0, os.geteuid()):
        raise GuardError("it was signed by somebody else than root or the user of slurmctld")
    return payload


def _has_no_power(settings: Settings, node: str) -> bool:
    if not settings.power_state:
        return False
    argv = [word.replace("{node}", node) for word in settings.power_state]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=settings.ask_seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip().lower() == "off"


def _addresses(settings: Settings) -> dict[str, tuple[str, int]]:
    if settings.addresses is None:
        return {}
    found = {}
    with contextlib.suppress(OSError):
        for line in settings.addresses.read_text().splitlines():
            words = line.split()
            if len(words) == 3 and words[2].isdecimal():
                found[words[0]] = (words[1], int(words[2]))
    return found


def _ended_by_slurm(settings: Settings, job: str, attempts: Mapping[str, float]) -> frozenset[str]:
    """Return the nodes on which Slurm itself ended every attempt: in order, and with its slurmd there all the time."""
    rows = _accounted(settings, job)
    states: dict[str, set[str]] = {}
    for row in rows:
        if row["End"] is not None:  # The attempt that starts now has no end yet.
            for node in expand(str(row["NodeList"])):
                states.setdefault(node, set()).add(str(row["State"]))
    orderly = {node for node, seen in states.items() if node in attempts and seen <= _ORDERLY}
    if not orderly:
        return frozenset()
    names = ",".join(sorted(orderly))
    seconds = settings.ask_seconds
    shown = ask_slurm(settings, "scontrol", "show", "node", names, "-o", seconds=seconds)
    since = _in_utc(min(attempts[node] for node in orderly))
    events = ask_slurm(
        settings,
        *("sacctmgr", "-nP", "show", "event", f"nodes={names}", f"start={since}", "format=NodeName,State"),
        seconds=seconds,
    )
    been_down = {line.split("|")[0] for line in events.splitlines() if "DOWN" in line.upper()}
    clear = set()
    for line in shown.splitlines():
        told = fields_of(line)
        name, state = told.get("NodeName", ""), told.get("State", "DOWN").upper()
        is_there = not any(word in state for word in ("DOWN", "NOT_RESPONDING", "*", "UNKNOWN"))
        slurmd_since = _time(told.get("SlurmdStartTime", ""))
        was_there = slurmd_since is not None and slurmd_since < attempts.get(name, 0.0)
        if name in orderly and name not in been_down and is_there and was_there:
            clear.add(name)
    return frozenset(clear)


def _starts_by_accounting(settings: Settings, job: str) -> tuple[Start, ...]:
    """Return the attempts that accounting knows of a job; raise GuardError if it knows none."""
    rows = [row for row in _accounted(settings, job) if row["End"] is not None]
    if not rows:
        raise GuardError("accounting knows no earlier attempt")
    return tuple(Start(at=float(str(row["Start"])), nodes=str(row["NodeList"])) for row in rows if row["Start"])


def _accounted(settings: Settings, job: str) -> list[dict[str, object]]:
    since = _in_utc(time.time() - RECORD_DAYS * 86_400)
    text = ask_slurm(
        settings,
        *("sacct", "-D", "-X", "-P", "-n", "-j", job, "-S", since, "-o", "JobIDRaw,Start,End,State,NodeList"),
        seconds=settings.ask_seconds,
    )
    rows: list[dict[str, object]] = []
    for line in text.splitlines():
        words = line.split("|")
        # The id of an array's last task is the array's: accounting answers for every task.
        if len(words) == 5 and words[0] == job and words[4] != "None assigned":
            start, end = _time(words[1]), _time(words[2])
            rows.append({"Start": start, "End": end, "State": words[3].split(" ")[0], "NodeList": words[4]})
    return rows


def _in_utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(f"{text}+00:00").timestamp()
    except ValueError:
        return None  # Unknown, None


# -- people's word -----------------------------------------------------------------------------------------------------


def _pass_of(settings: Settings, job: str) -> str:
    """Return a person's word for a job that no start has used yet, empty if there is none.

    Raise GuardError where one may be there and cannot be read: that lets nothing start, and is reported.
    """
    for place in (settings.state, settings.fallback):
        try:
            said = (place / "passes" / job).read_text(errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as problem:
            raise GuardError(f"whether a pass is there cannot be read: {problem}") from None
        if said and said not in _used_passes(settings, job):
            return said
    return ""


def _used_passes(settings: Settings, job: str) -> set[str]:
    used = set()
    for path in record_paths(settings, job):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            words = [line.split(" ", 2) for line in path.read_text(errors="replace").splitlines()]
            used |= {each[2].strip() for each in words if each[0] == "passed" and len(each) == 3}
    return used


def let_pass(settings: Settings, job: str, *, who: str, reason: str) -> None:
    """Write down that a person lets one job start, whatever its nodes say: once. Root writes it for SlurmUser."""
    make_passes(settings)
    draft = settings.state / "passes" / f".{job}.{secrets.token_hex(4)}"
    try:
        draft.write_text(f"{time.time():.3f} {' '.join(who.split())}: {' '.join(reason.split())}\n")
        _give_to_owner(settings, draft)
        draft.replace(draft.with_name(job))
    finally:
        draft.unlink(missing_ok=True)


def make_passes(settings: Settings) -> None:
    """Make the place for passes, whose owner is that of the state: he takes them off."""
    directory = settings.state / "passes"
    directory.mkdir(parents=True, exist_ok=True)
    _give_to_owner(settings, directory)


def _give_to_owner(settings: Settings, path: Path) -> None:
    owner = settings.state.stat()
    if os.geteuid() == 0:
        os.chown(path, owner.st_uid, owner.st_gid)


def _use_pass(settings: Settings, job: str, started_at: float) -> None:
    """Keep in the job's record whose word it was, which uses it up, and take the pass off."""
    with contextlib.suppress(GuardError):
        if said := _pass_of(settings, job):
            note(settings, job, f"passed {started_at} {said}")
    for place in (settings.state, settings.fallback):
        with contextlib.suppress(OSError):
            (place / "passes" / job).unlink()


# -- the commands ------------------------------------------------------------------------------------------------------


def judge_start(settings: Settings, job: str, started_at: float) -> int:
    """Judge one restart for the wrapper: let it go, or hold it with its reason."""
    verdict = judge(settings, job, started_at)
    if verdict.is_clear:
        note(settings, job, f"cleared {started_at}")
        _use_pass(settings, job, started_at)
        held_for, _ = _read_held(settings, job)
        if held_for.startswith(MARK):  # Somebody released it. Who holds it from now on is not us.
            _forget_held(settings, job)
            quick = replace(settings, ask_seconds=1.0)  # slurmctld waits for the verdict.
            with contextlib.suppress(GuardError):
                _explain(quick, job_facts(quick, job).name, "")
        return GO_AHEAD
    reason = verdict.words(job)
    note(settings, job, f"refused {started_at} {reason}")
    with contextlib.suppress(GuardError):  # It does not start in any case: slurmctld comes back with it.
        hold(settings, job, reason)
    return REFUSED


def look_again(settings: Settings) -> tuple[str, ...]:
    """Released what the guard held and nobody took over, where the nodes are clear by now; return what was done.

    Several jobs at once, and a beat for each: in a storm every one of them waits for nodes that do not answer.
    """
    did: list[str] = []
    _leave_beat(settings)
    if held := held_jobs(settings):
        with contextlib.suppress(GuardError):  # slurmctld does not say who has them now: the next look asks again.
            comments = admin_comments(settings)
            with ThreadPoolExecutor(max_workers=_LOOKS_AT_ONCE) as pool:
                for look in as_completed([pool.submit(_look_at, settings, job, comments) for job in held]):
                    _leave_beat(settings)
                    with contextlib.suppress(GuardError, OSError):
                        did += look.result()
    _leave_beat(settings)
    return tuple(did)


def _look_at(settings: Settings, job: str, comments: Mapping[str, str]) -> list[str]:
    try:
        facts = job_facts(settings, job)
    except GuardError as problem:
        if "Invalid job id" not in str(problem):
            raise
        _forget_held(settings, job)
        return [f"job {job} is gone"]
    comment = comments.get(facts.leader, "")
    if facts.state in ("COMPLETING", "CONFIGURING"):
        return []  # On its rollback from the prolog.
    if facts.state not in ("PENDING", "RUNNING"):
        _forget_held(settings, job)
        return [f"job {job} is over"]
    if facts.state == "RUNNING" or not facts.is_held:
        held_for, age_seconds = _read_held(settings, job)
        is_answered = held_for.startswith(MARK)
        if facts.is_held and not is_answered:
            return []  # The hold came after it had started: it is released like any other once it waits.
        patience = _ON_ITS_WAY_SECONDS if is_answered else _LATE_HOLD_SECONDS
        if age_seconds < patience and (facts.state == "RUNNING" or not is_answered):
            return []  # On its rollback from the prolog, or the hold is on its way.
        _forget_held(settings, job)  # Who holds it from now on is not us.
        if comment.startswith(MARK):
            _say(settings, facts.name, "")
        return [f"job {job} was released by somebody: its start is judged like any other"]
    if comment and not comment.startswith(MARK):
        _forget_held(settings, job)
        return [f"job {job} was taken over: {comment[:80]}"]
    now = time.time()
    verdict = judge(settings, job, now)
    if not verdict.is_clear:
        if not _read_held(settings, job)[0].startswith(MARK):
            _write_held(settings, job, verdict.words(job))  # The hold has come, who gave up waiting for it.
        if comment != verdict.words(job):
            _say(settings, facts.name, verdict.words(job))
        return []
    note(settings, job, f"cleared {now}")
    _say(settings, facts.name, "")
    ask_slurm(settings, "scontrol", "release", facts.name, seconds=settings.ask_seconds)
    _forget_held(settings, job)
    return [f"job {job} is released: every node of its attempts is clear"]


def look_for_unseen(settings: Settings) -> tuple[str, ...]:
    """Write down and return the running jobs that slurmctld started lately without a word to the guard.

    Whatever the reason: it was not restarted after the install, somebody changed slurm.conf, or no disk took the
    record. Raises GuardError if slurmctld does not say what runs, OSError if the answer cannot be kept.
    """
    argv = ("squeue", "--noheader", "--all", "--local", "--states=RUNNING", "--format=%A|%i|%S")
    now, unseen = time.time(), []
    for line in ask_slurm(settings, *argv, seconds=4 * settings.ask_seconds).splitlines():
        words = line.split("|")
        started_at = _time(words[2]) if len(words) == 3 and words[0].isdecimal() else None
        if started_at is None or "+" in words[1]:  # Of a heterogeneous job the components start as one.
            continue
        is_due = max(now - _UNSEEN_SECONDS, settings.installed_at) < started_at < now - _JUST_NOW_SECONDS
        # Nodes that are powered up first: Slurm asks at the allocation, and counts the start from when they are up.
        if is_due and not _is_written_down(settings, words[0], since=started_at - _UNSEEN_SECONDS):
            unseen.append(words[0])
    new = settings.state / "unseen.new"
    new.write_text(" ".join(unseen))
    new.replace(settings.state / "unseen")
    return tuple(unseen)


def _is_written_down(settings: Settings, job: str, *, since: float) -> bool:
    for path in record_paths(settings, job):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime >= since:
                return True
    return False


def _has_not_been_asked(settings: Settings, shown: str) -> str:
    """Return why a slurmctld that shows this configuration starts jobs without the guard; empty if it is not known to.

    Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        if unseen := (settings.state / "unseen").read_text().split():
            return (
                f"{len(unseen)} running job(s) started without the guard, such as {unseen[0]}: restart slurmctld, and "
                "see that slurm.conf names the guard and a disk takes its records"
            )
    if settings.needs_boot_after == 0.0:
        return ""
    booted = re.search(r"^BOOT_TIME\s*=\s*(\S+)", shown, re.MULTILINE)
    booted_at = _time(booted[1]) if booted is not None else None
    # slurmctld reports whole seconds, rounded down.
    if booted_at is None or booted_at + 1.0 > settings.needs_boot_after or _has_a_start(settings):
        return ""
    return "slurmctld has not been restarted since the guard was installed, and asks it nothing: restart slurmctld"


def _has_a_start(settings: Settings) -> bool:
    return any(
        path.stat().st_mtime > settings.needs_boot_after
        for place in (settings.state, settings.fallback)
        for path in (place / "starts").glob("*/*")
    )


def prune(settings: Settings) -> int:
    """Delete records that nobody wrote to for RECORD_DAYS, of jobs that Slurm has forgotten; return how many."""
    text = ask_slurm(settings, "squeue", "--noheader", "--all", "--array-unique", "--format=%A", seconds=30.0)
    known = set(text.split())
    before, count = time.time() - RECORD_DAYS * 86_400, 0
    for path in (settings.state / "starts").glob("*/*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < before and path.name not in known:
                path.unlink()
                count += 1
    return count


def _leave_beat(settings: Settings) -> None:
    with contextlib.suppress(OSError):
        settings.state.mkdir(parents=True, exist_ok=True)
        new = settings.state / "looked.new"
        new.write_text(f"{time.time():.3f}\n")
        new.replace(settings.state / "looked")


def _seconds_to_write(settings: Settings) -> float:
    """Return how long a synced write into the state takes; raise OSError if it cannot be done."""
    began = time.monotonic()
    probe = settings.state / f"probe.{secrets.token_hex(4)}"  # Of its own: others may ask at the same time.
    try:
        with probe.open("w") as file:
            file.write("probe\n")
            file.flush()
            os.fsync(file.fileno())
    finally:
        probe.unlink(missing_ok=True)
    return time.monotonic() - began


def _is_ours(settings: Settings) -> bool:
    """Return whether we are root or the owner of the state, as SlurmUser is."""
    with contextlib.suppress(OSError):
        return os.geteuid() in (0, settings.state.stat().st_uid)
    return os.geteuid() == 0


def status(settings: Settings) -> dict[str, object]:
    """Return whether the guard can do its work, in words that check-config and people read.

    Who is neither root nor the owner of the state writes nothing there: that the watch looked just now shows that it
    can be written.
    """
    problems = []
    took = looked_at = None
    quick = replace(settings, ask_seconds=1.0)  # Who asks does not wait long.
    is_ours = _is_ours(settings)
    try:
        took = _seconds_to_write(settings) if is_ours else None
        for place in (settings.state, settings.state / "held", *([settings.state / "passes"] if is_ours else [])):
            if place == settings.state or place.exists():
                list(place.iterdir())
        with contextlib.suppress(FileNotFoundError, ValueError):
            looked_at = float((settings.state / "looked").read_text())
        if looked_at is None or time.time() - looked_at > 6 * settings.look_again_seconds:
            problems.append("nobody looks again at what is held: start ops-pipelines-start-guard.service (`watch`)")
    except OSError as problem:
        problems.append(
            f"{settings.state} cannot be used: {problem}"
            if is_ours
            else f"{settings.state} cannot be read by this user ({problem}): run the guard's status as its owner, "
            "SlurmUser, and name that command in cluster.yaml as scheduler.guard_status"
        )
    try:
        shown = ask_slurm(quick, "scontrol", "show", "config", seconds=quick.ask_seconds)
        if why := _has_not_been_asked(quick, shown):
            problems.append(why)
    except GuardError as problem:
        problems.append(str(problem))
    except OSError:  # Reported above, as the state that cannot be used.
        pass
    try:
        _munge(quick, "unmunge", _munge(quick, "munge", "probe"))
    except GuardError as problem:
        problems.append(str(problem))
    return {
        "is_well": not problems,
        "problems": problems,
        "held": list(held_jobs(settings)),
        "looked_at": looked_at,
        "write_seconds": took,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Do one of the commands; `judge` ends with GO_AHEAD or REFUSED, and with anything else for no verdict."""
    parser = argparse.ArgumentParser(prog="start_guard", description="Lets no second copy of a job start.")
    parser.add_argument("--config", type=Path, required=True)
    verbs = parser.add_subparsers(dest="verb", required=True)
    judging = verbs.add_parser("judge")
    judging.add_argument("job", type=_job_id)
    judging.add_argument("started_at", type=float)
    passing = verbs.add_parser("pass")
    passing.add_argument("job", type=_job_id)
    passing.add_argument("--reason", required=True)
    passing.add_argument("--who", required=True)
    for verb in ("look-again", "watch", "status", "prune"):
        verbs.add_parser(verb)
    options = parser.parse_args(argv)
    try:
        settings = read_settings(options.config)
        if options.verb == "judge":
            return judge_start(settings, options.job, options.started_at)
        if options.verb == "pass":
            let_pass(settings, options.job, who=options.who, reason=options.reason)
        elif options.verb == "status":
            told = status(settings)
            print(json.dumps(told))
            return 0 if told["is_well"] else 3
        elif options.verb == "prune":
            print(f"{prune(settings)} record(s) deleted")
        elif options.verb == "look-again":
            print("\n".join(look_again(settings)), end="")
        else:
            _watch(settings)
    except (GuardError, OSError) as problem:
        print(f"start_guard: {problem}", file=sys.stderr)
        return BROKEN
    return 0


def _watch(settings: Settings) -> None:
    """Look again for ever; once a minute for starts that we were not asked about; clean up once a day."""
    pruned_at = time.monotonic()
    sought_at = -_MINUTE_SECONDS
    while True:
        for line in look_again(settings):
            print(line, flush=True)
        if time.monotonic() - sought_at > _MINUTE_SECONDS:
            sought_at = time.monotonic()
            with contextlib.suppress(GuardError, OSError):
                look_for_unseen(settings)
        if time.monotonic() - pruned_at > 86_400:
            pruned_at = time.monotonic()
            with contextlib.suppress(GuardError):
                prune(settings)
        time.sleep(settings.look_again_seconds)


def _job_id(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no job id; expected a number")
    return text


if __name__ == "__main__":
    # What does not answer is left behind: a thread that waits for it must not keep slurmctld waiting.
    code = main()
    sys.stdout.flush()
    os._exit(code)
