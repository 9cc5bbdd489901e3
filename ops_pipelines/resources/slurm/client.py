"""Runs Slurm's clients: a clean environment, one limit for all that belongs together, and what a refusal means; and the
two ports that need no more than that, reboots through Slurm and accounting.

Argument lists only. Which commands are sent to the scheduler, and what its answers mean, is `scheduler` and `answers`.

Reboots are plain `scontrol reboot` of a node that is drained and idle, and of no other; never with a reason. For sites
whose nodes are rebooted by Slurm alone; over ssh, past Slurm, is as good. What each form does to a drain was tried on
22.05.8 and is in docs/SLURM.md. After the plain one nobody but us returns the node to service: the drain lasts
through the boot, its reason still begins with our words, and its new date is that of the reboot, by whose record
`remediate.guardrails` recognises it. A reboot is refused where Slurm would return the node by itself: not drained,
or ReturnToService=2, with which a boot that outlasts ResumeTimeout ends in service.

Accounting is asked of sacct. For a window alone it gives what was eligible or ran at any time in it, and leaves out
what was cancelled before it could start; for the states in which attempts end it gives what ended in the window, such
jobs too. Its edges are not sharp, so rows are chosen here by the start and end of the attempt; a row whose times cannot
be read is passed on, and refused where rows are read. Measured on 22.05.8. Who waits is asked of squeue: sacct keeps
the last reason that was neither priority nor resources, and so says nothing of now. As JSON, because columns of text
are cut.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ops_pipelines.core.identity import NodeName, parse_node_name
from ops_pipelines.core.observation import NodeState, NodeStatus
from ops_pipelines.core.sources import AccountingPage, SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import CommandAnswer, RunCommand, run_scheduler_command
from ops_pipelines.resources.slurm.answers import Row, node_listing, read_config_answer, read_nodes_answer, read_rows

# -- one client, one limit --


COMMAND_LIMIT_SECONDS = 4.5
"""For all clients that one method runs together: a third of the lease (15 s), less some room."""
_STEERING_PREFIXES = ("SLURM_", "SLURMCTLD_", "SINFO_", "SQUEUE_", "SCONTROL_", "SACCT_", "SBATCH_")
"""Variables that change what clients ask and print: SLURM_TIME_FORMAT, SLURM_JWT, SLURM_CLUSTERS, SQUEUE_STATES..."""
_REFUSALS = (
    "Access/permission denied",
    "Duplicate reservation name",
    "Invalid job id",
    "Invalid node name",
    "Invalid node state",
    "Invalid user id",
    "Job has already finished",
    "Job is no longer pending execution",
    "Job is pending execution",
    "Job not heterogeneous job leader",
    "Job/step already completing or completed",
    "Requested nodes are busy",
    "Requested operation is presently disabled",
    "Requested reservation is in use",
    "Reservation already started",
    "Requested reservation is invalid",
    "Requested reservation overlaps with another reservation",
    "Start time cannot be after end time",
    "You must specify a reason",
)
"""What slurmctld says when it has read a command and not obeyed (seen, 22.05). All else leaves the effect unknown."""


class Limit:
    """What is left of the time that one method may take. Monotonic: the wall clock may be set meanwhile."""

    def __init__(self) -> None:
        self._ends_at = time.monotonic() + COMMAND_LIMIT_SECONDS

    def left(self) -> float:
        """Return the seconds left; raise SourceUnavailable if there are none."""
        seconds = self._ends_at - time.monotonic()
        if seconds <= 0:
            raise SourceUnavailable(
                f"Slurm took more than {COMMAND_LIMIT_SECONDS} s; whether all took effect is unknown"
            )
        return seconds


class SlurmClient:
    """Sends one command at a time; safe to share between threads."""

    def __init__(self, *, run: RunCommand, slurm_conf: Path | None) -> None:
        """Without `slurm_conf` SLURM_CONF stays as this process has it."""
        self._run = run
        self._environment = _clean_environment(os.environ, slurm_conf=slurm_conf)
        self._version: tuple[int, int] | None = None

    def send(self, *argv: str, limit: Limit) -> CommandAnswer:
        """Run one client; raise SourceRefused for a clear no, SourceUnavailable for whatever else is no success."""
        answer = self._run(argv, environment=self._environment, timeout_seconds=limit.left())
        if answer.returncode == 0:
            return answer
        said = " / ".join(answer.stderr.strip().splitlines())[:300] or answer.stdout.strip()[:300]
        what = f"{' '.join(argv[:3])} ended with {answer.returncode}: {said}"
        if any(refusal in said for refusal in _REFUSALS):
            raise SourceRefused(what)
        raise SourceUnavailable(f"{what}; whether it took effect is unknown. Check slurmctld and munge")

    def read_version(self, limit: Limit) -> tuple[int, int]:
        """Return the major and minor version of the clients, such as (22, 5); asked once."""
        if self._version is None:
            text = self.send("scontrol", "--version", limit=limit).stdout
            words = text.split()[-1:] or [""]
            major, _, rest = words[0].partition(".")
            minor = rest.partition(".")[0]
            if not (major.isdecimal() and minor.isdecimal()):
                raise SourceNonsense(
                    f"scontrol --version printed {text[:80]!r}; expected a line such as 'slurm 22.05.8'"
                )
            self._version = int(major), int(minor)
        return self._version


def quoted_reason(reason: str, *, verb: str) -> str:
    """Return the argument that gives the reason. scontrol strips one quote from either end, so it gets two to strip."""
    if not reason.strip():
        raise ValueError(f"the reason is {reason!r}; to {verb} a node, say why")
    return f'Reason="{reason}"'


def _clean_environment(inherited: Mapping[str, str], *, slurm_conf: Path | None) -> Mapping[str, str]:
    """Return the environment for clients: nothing that steers them but SLURM_CONF, UTC, and messages in English."""
    kept = {
        name: value
        for name, value in inherited.items()
        if name == "SLURM_CONF" or not name.startswith(_STEERING_PREFIXES)
    }
    chosen = {} if slurm_conf is None else {"SLURM_CONF": str(slurm_conf)}
    return {**kept, **chosen, "TZ": "UTC", "LC_ALL": "C.UTF-8"}


# -- reboots --


_ISSUED = " : reboot issued"
_AT_WORK = frozenset({NodeState.ALLOCATED, NodeState.MIXED, NodeState.UNKNOWN})


class SlurmReboots:
    """Restarts nodes as the port `Fleet` says, through slurmctld and its RebootProgram. Safe to share."""

    def __init__(self, *, slurm_conf: Path | None = None, run: RunCommand = run_scheduler_command) -> None:
        """Without `slurm_conf` SLURM_CONF stays as this process has it."""
        self._client = SlurmClient(run=run, slurm_conf=slurm_conf)

    def reboot(self, node: NodeName) -> None:
        """Restart a drained node that answers and runs no job; asked again before it went down it boots once."""
        name = parse_node_name(node)
        limit = Limit()
        status = self._status(name, limit=limit)
        self._refuse_unless_safe(status)
        config = ("scontrol", "show", "config")
        settings = read_config_answer(self._client.send(*config, limit=limit).stdout, source=" ".join(config))
        if settings.is_every_down_node_returned:
            raise SourceRefused(
                "ReturnToService=2: Slurm would return a node whose boot outlasts ResumeTimeout by itself; set it to 0 "
                "or 1, or have nodes rebooted over ssh (fleet.reboot)"
            )
        if status.reason is not None and status.reason.endswith(_ISSUED):
            # At a second reboot Slurm would write "reboot issued" in the place of the whole reason (seen, 22.05).
            quoted = quoted_reason(status.reason.removesuffix(_ISSUED), verb="reboot")
            self._client.send("scontrol", "update", f"NodeName={name}", "State=DRAIN", quoted, limit=limit)
        self._client.send("scontrol", "reboot", name, limit=limit)

    def _status(self, name: NodeName, *, limit: Limit) -> NodeStatus:
        argv = node_listing(self._client.read_version(limit))
        answer = read_nodes_answer(self._client.send(*argv, limit=limit).stdout, source=" ".join(argv))
        status = next((each for each in answer.nodes if each.node == name), None)
        if status is None:
            raise SourceRefused(f"Slurm knows no node {name}; nothing was rebooted. Check cluster.yaml")
        return status

    def _refuse_unless_safe(self, status: NodeStatus) -> None:
        if not status.is_drained:
            raise SourceRefused(f"{status.node} is not drained: after its boot Slurm would return it by itself")
        if status.state in _AT_WORK or status.gpu_in_use_count > 0:
            raise SourceRefused(f"{status.node} is {status.state.value}; Slurm would reboot it at the end of its job")
        if not status.is_responding:
            raise SourceUnavailable(f"{status.node} does not answer; slurmd there must be ordered to reboot")


ACCOUNTING_LIMIT_SECONDS = 60.0
"""For one page. The database answers in 0.1 s a thousand jobs, and waits for its locks."""
PAGE = timedelta(hours=6)
"""The longest interval that one command is asked for: bounds what one answer holds in memory."""
DELIMITER = "\x1f"
"""A job's name may hold a `|`, and often does."""
_END_STATES = "BF,CA,CD,DL,F,NF,OOM,PR,RQ,RS,RV,TO"
"""Every state in which an attempt ends; a resized job (RS) and a requeued one (RQ) continue as the next."""
_FIELDS = (
    "JobID",
    "End",
    "Start",
    "JobIDRaw",
    "Cluster",
    "User",
    "Account",
    "Partition",
    "QOS",
    "State",
    "ExitCode",
    "Submit",
    "Eligible",
    "ElapsedRaw",
    "TimelimitRaw",
    "NNodes",
    "NCPUS",
    "ReqMem",
    "ReqTRES",
    "AllocTRES",
    "NTasks",
    "MaxRSS",
    "TotalCPU",
    "NodeList",
    "Reason",
    "WorkDir",
    "JobName",
    "Comment",
)
"""Id and times come first: by them a row is known from the rest of a name that holds a line break."""
_TIME = r"[0-9T:.-]{19}|Unknown|None|"
_ROW = re.compile(
    rf"(?P<job>\d[^{DELIMITER}\n]{{0,100}}){DELIMITER}(?P<end>{_TIME}){DELIMITER}(?P<start>{_TIME}){DELIMITER}"
)
_WAITING_STATES = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_LISTING = ("squeue", "--all", "--states=all", "--json")
"""22.05 ignores filters with --json and prints all; later versions obey them, so all is spelled."""
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "SLURM_CONF")


class SlurmAccounting:
    """The port `Accounting` over `sacct`. Safe to share between threads."""

    def __init__(self, *, slurm_conf: Path | None = None, run: RunCommand = run_scheduler_command) -> None:
        """Without `slurm_conf` SLURM_CONF stays as this process has it."""
        self._environment = accounting_environment(os.environ, slurm_conf=slurm_conf)
        self._run = run

    @property
    def source(self) -> str:
        return "sacct"

    def read_attempts(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        """Yield pages of at most six hours. Times are whole seconds: so Slurm keeps them."""
        _check(start=start, end=end)
        return self._read_ended(start=start, end=end)

    def read_overlapping(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        """Yield pages of at most six hours: an attempt is in that in which it began, or in the first."""
        _check(start=start, end=end)
        return self._read_overlapping(start=start, end=end)

    def read_waiting(self, *, at: datetime) -> Iterator[AccountingPage]:
        """Yield one page: what squeue says of the jobs that wait, as it says it."""
        answer = self._run(_LISTING, environment=self._environment, timeout_seconds=ACCOUNTING_LIMIT_SECONDS)
        name = " ".join(_LISTING)
        if answer.returncode != 0:
            said = " / ".join(answer.stderr.strip().splitlines())[:300] or answer.stdout.strip()[:300]
            raise SourceUnavailable(f"{name} ended with {answer.returncode}: {said}. Check slurmctld and munge")
        jobs: list[Row] = []
        # A row that is no object is none of a job that waits; those that are one are read where rows are read.
        read_rows(answer.stdout, key="jobs", source=name, take=jobs.append)
        waiting = {"jobs": [job for job in jobs if _is_waiting(job)]}
        yield AccountingPage(body=json.dumps(waiting).encode(), source="squeue", start=at, end=at)

    def _read_ended(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        for since, until in _stretches(start=start, end=end):
            header, *rows = _rows(self._ask(start=since, end=until, states=_END_STATES))
            kept = [row.text for row in rows if row.ended_within(since, until)]
            yield self._page(header.text, kept, start=since, end=until)

    def _read_overlapping(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        for since, until in _stretches(start=start, end=end):
            # In this order: what ends between the two commands is in the second answer, with its end.
            _, *seen = _rows(self._ask(start=since, end=until, states=None))
            header, *ended = _rows(self._ask(start=since, end=until, states=_END_STATES))
            known = {row.key for row in ended}
            rows = [*ended, *(row for row in seen if row.key not in known)]
            kept = [row.text for row in rows if row.belongs_to(since, until, is_first=since == start)]
            yield self._page(header.text, kept, start=since, end=until)

    def _page(self, header: str, rows: Sequence[str], *, start: datetime, end: datetime) -> AccountingPage:
        body = "\n".join([header, *rows, ""]).encode("utf-8", errors="replace")
        return AccountingPage(body=body, source=self.source, start=start, end=end)

    def _ask(self, *, start: datetime, end: datetime, states: str | None) -> str:
        argv = [
            "sacct",
            "--allusers",
            "--duplicates",
            "--parsable2",
            "--noconvert",
            *(() if states is None else (f"--state={states}",)),
            f"--delimiter={DELIMITER}",
            f"--format={','.join(_FIELDS)}",
            f"--starttime={_slurm_time(start)}",
            # sacct takes whole seconds: one more, and the rows are chosen here.
            f"--endtime={_slurm_time(end + timedelta(seconds=1))}",
        ]
        answer = self._run(argv, environment=self._environment, timeout_seconds=ACCOUNTING_LIMIT_SECONDS)
        if answer.returncode != 0:
            said = " / ".join(answer.stderr.strip().splitlines())[:300] or answer.stdout.strip()[:300]
            raise SourceUnavailable(f"sacct ended with {answer.returncode}: {said}. Check slurmdbd and its database")
        if not answer.stdout.startswith(DELIMITER.join(_FIELDS)):
            said = answer.stderr.strip()[:200] or answer.stdout[:120]
            raise SourceNonsense(f"sacct printed no header of {len(_FIELDS)} fields: {said!r}; run it by hand")
        return answer.stdout


def _is_waiting(job: Row) -> bool:
    """Return whether a job is in the queue and none of its processes is left; flags may stand beside the state."""
    told = job.get("job_state")
    names = set(map(str, told)) if isinstance(told, list) else {str(told)}
    return not names.isdisjoint(_WAITING_STATES) and "COMPLETING" not in names


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One row of the answer, with the lines that follow because a name in it holds line breaks."""

    text: str
    key: tuple[str, str]
    """Job or step, and start."""
    started_at: datetime | None
    ended_at: datetime | None
    is_read: bool = True
    """False: its times cannot be read."""

    def ended_within(self, start: datetime, end: datetime) -> bool:
        return not self.is_read or (self.ended_at is not None and start <= self.ended_at < end)

    def belongs_to(self, start: datetime, end: datetime, *, is_first: bool) -> bool:
        """Return whether an attempt that ran in [start, end) did not run in the interval before."""
        if not self.is_read or self.started_at is None:
            return self.ended_within(start, end)
        if self.ended_at is not None and self.ended_at < start:
            return False
        return self.started_at < end and (is_first or start <= self.started_at)


def _rows(text: str) -> list[_Row]:
    """Return the header, and the rows."""
    rows: list[_Row] = []
    for line in text.split("\n"):
        found = _ROW.match(line)
        if found is None and rows and len(rows) > 1:
            rows[-1] = replace(rows[-1], text=f"{rows[-1].text}\n{line}")
        elif found is None:
            rows.append(_Row(text=line, key=(line, ""), started_at=None, ended_at=None, is_read=False))
        else:
            rows.append(_read_row(line, found))
    # The answer ends with a line break.
    rows[-1] = replace(rows[-1], text=rows[-1].text.removesuffix("\n"))
    return [row for row in rows if row.text]


def _read_row(line: str, found: re.Match[str]) -> _Row:
    key = found["job"], found["start"]
    try:
        started_at, ended_at = _read_time(found["start"]), _read_time(found["end"])
    except ValueError:
        return _Row(text=line, key=key, started_at=None, ended_at=None, is_read=False)
    return _Row(text=line, key=key, started_at=started_at, ended_at=ended_at)


def _read_time(text: str) -> datetime | None:
    if text in ("Unknown", "None", ""):
        return None
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _check(*, start: datetime, end: datetime) -> None:
    if start >= end:
        raise ValueError(f"{start} to {end} holds no time; expected the start before the end")


def _stretches(*, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    while start < end:
        until = min(start + PAGE, end)
        yield start, until
        start = until


def _slurm_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")


def accounting_environment(inherited: Mapping[str, str], *, slurm_conf: Path | None) -> dict[str, str]:
    """Return the environment of a client of slurmdbd: UTC, and nothing else that changes what it asks and prints."""
    kept = {name: inherited[name] for name in _KEPT_VARIABLES if name in inherited}
    chosen = {} if slurm_conf is None else {"SLURM_CONF": str(slurm_conf)}
    return {**kept, **chosen, "TZ": "UTC", "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}
