"""Speaks with Slurm through its clients: what to ask, what to send, and what a refusal means. Reading answers is
`slurm_answers`. Argument lists only, a clean environment, one limit for everything that one method sends.

Measured on 22.05.8; the JSON of 23.02 to 25.11 was read from its source, not run.
"""

import logging
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.domain.fencing_room import SchedulerLimits
from ops_pipelines.domain.identity import JobId, NodeName, parse_job_id, parse_node_name
from ops_pipelines.domain.observation import HAS_PROCESSES, JobState, JobStatus, NodeState, NodeStatus
from ops_pipelines.ports.source_error import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.checkpoint_files import CheckpointFiles
from ops_pipelines.resources.command_line import CommandAnswer, RunCommand, run_command
from ops_pipelines.resources.slurm_answers import JobRow, read_config_answer, read_jobs_answer, read_nodes_answer

log = logging.getLogger(__name__)

COMMAND_LIMIT_SECONDS = 4.5
"""For all clients that one method runs together: a third of the lease (15 s), less some room."""
_FIRST_VERSION_WITH_SCONTROL_JSON = (23, 2)
_STEERING_PREFIXES = ("SLURM_", "SLURMCTLD_", "SINFO_", "SQUEUE_", "SCONTROL_", "SACCT_", "SBATCH_")
"""Variables that change what clients ask and print: SLURM_TIME_FORMAT, SLURM_JWT, SLURM_CLUSTERS, SQUEUE_STATES..."""
_REFUSALS = (
    "Access/permission denied",
    "Invalid job id",
    "Invalid node name",
    "Invalid node state",
    "Invalid user id",
    "Job has already finished",
    "Job is no longer pending execution",
    "Job is pending execution",
    "Job not heterogeneous job leader",
    "Job/step already completing or completed",
    "Requested operation is presently disabled",
    "You must specify a reason",
)
"""What slurmctld says when it has read a command and not obeyed (seen, 22.05). All else leaves the effect unknown."""
_IS_PENDING = "Job is pending execution"
_LIVING = HAS_PROCESSES | {JobState.PENDING}


class SlurmScheduler:
    """The `Scheduler` port over `scontrol`, `sinfo` and `squeue`. Safe to share between threads."""

    def __init__(
        self,
        *,
        clock: Clock,
        slurm_conf: Path | None = None,
        checkpoint_roots: Collection[Path] = (),
        run: RunCommand = run_command,
    ) -> None:
        """Without `slurm_conf` SLURM_CONF stays as this process has it; without `checkpoint_roots` no file is read."""
        self._clock = clock
        self._environment = _clean_environment(os.environ, slurm_conf=slurm_conf)
        self._checkpoints = CheckpointFiles(checkpoint_roots)
        self._run = run
        self._version: tuple[int, int] | None = None

    # -- reading --

    def read_nodes(self) -> tuple[NodeStatus, ...]:
        """Return every node. A row that cannot be believed is left out and logged: a node unseen stays untouched."""
        return self._read_nodes(_Limit())

    def read_jobs(self) -> tuple[JobStatus, ...]:
        """Return every job that Slurm still knows: the ended ones for MinJobAge (300 s by default).

        The start of an attempt is known while it runs and after the job ended, not once it was requeued. The tasks
        of an array that wait are one row, `30_waiting`. Raises SourceNonsense if any row cannot be believed: a node
        must not look idle because its job could not be read.
        """
        limit = _Limit()
        rows = self._read_jobs(limit)
        paths = {row.checkpoint_path for row in rows if row.checkpoint_path is not None}
        times = self._checkpoints.read_times(paths, timeout_seconds=limit.left() / 2)
        now = self._clock.now()
        statuses = []
        for row in rows:
            written_at = times.get(row.checkpoint_path or "")
            is_better = written_at is not None and written_at <= now and row.status.checkpointed_at is None
            statuses.append(replace(row.status, checkpointed_at=written_at) if is_better else row.status)
        return tuple(statuses)

    def read_limits(self) -> SchedulerLimits:
        """Return what slurmctld runs with now, which need not be what slurm.conf says since."""
        # As text: scontrol of 22.05 knows no JSON, and only administrators write these lines.
        argv = ("scontrol", "show", "config")
        return read_config_answer(self._send(*argv).stdout, source=" ".join(argv))

    # -- nodes --

    def drain(self, nodes: Collection[NodeName], *, reason: str) -> None:
        """Drain the batch with one command. Unknown names are found before: Slurm would drain the rest of the batch.

        Draining again with the same reason leaves the time of the first.
        """
        names = _checked_names(nodes, verb="drain")
        quoted = _quoted_reason(reason, verb="drain")
        limit = _Limit()
        # Of one node Slurm itself says that it knows none such, and a reading takes ten times as long as the command.
        known = {status.node for status in self._read_nodes(limit)} if len(names) > 1 else set(names)
        unknown = sorted(set(names) - known)
        if unknown:
            raise SourceRefused(f"Slurm knows no node {', '.join(unknown)}; nothing was drained. Check cluster.yaml")
        try:
            self._send("scontrol", "update", f"NodeName={','.join(names)}", "State=DRAIN", quoted, limit=limit)
        except SourceRefused as exc:
            if len(names) > 1:
                raise SourceUnavailable(f"{exc}; others of {', '.join(names)} may be drained. Read the nodes") from exc
            raise

    def resume(self, node: NodeName) -> None:
        """Take back drain and down. Just after, 22.05 reads NOT_RESPONDING until the node registers again (seconds)."""
        name = parse_node_name(node)
        limit = _Limit()
        status = next((status for status in self._read_nodes(limit) if status.node == name), None)
        if status is None:
            raise SourceRefused(f"Slurm knows no node {name}; nothing was resumed. Check cluster.yaml")
        if status.state is NodeState.DOWN:
            if not status.is_responding:
                raise SourceRefused(f"{name} is down and does not answer; start it before it is resumed")
            self._send("scontrol", "update", f"NodeName={name}", "State=RESUME", limit=limit)
        elif status.is_drained:
            # UNDRAIN succeeds twice; RESUME of a node in service is refused ("Invalid node state specified").
            self._send("scontrol", "update", f"NodeName={name}", "State=UNDRAIN", limit=limit)

    def declare_down(self, node: NodeName, *, reason: str) -> None:
        """Set the node DOWN. A drain stays; its time too if `reason` is the drain's own, else Slurm dates it anew."""
        name = parse_node_name(node)
        self._send("scontrol", "update", f"NodeName={name}", "State=DOWN", _quoted_reason(reason, verb="declare down"))

    # -- jobs --

    def hold(self, job: JobId) -> None:
        """Requeue and hold. Reads the job first: Slurm would requeue a job that has ended or was cancelled, too.

        An attempt on a node that does not answer is only marked: it reads RUNNING and held until the node is declared
        down, which requeues it, still held. `requeuehold` followed by a node going down would break it: 22.05.8 then
        loses the GPUs of the restarted job ("Invalid generic resource (gres) specification"), and the job fails.
        """
        limit = _Limit()
        row = self._living_job(job, verb="hold", limit=limit)
        if row.status.is_held and row.status.state in (JobState.PENDING, JobState.COMPLETING):
            return
        if self._has_silent_node(row.status, limit=limit):
            if not row.status.is_held:
                self._send("scontrol", "hold", row.leader, limit=limit)
            return
        # A pending job may start between two commands, and `hold` only marks a running one: so requeuehold has the
        # last word, and "pending" is then its way to say yes.
        if self._requeue_or_find_pending("requeuehold", row.leader, limit=limit):
            self._send("scontrol", "hold", row.leader, limit=limit)
            self._requeue_or_find_pending("requeuehold", row.leader, limit=limit)

    def requeue(self, job: JobId) -> None:
        """Requeue; a pending job stays as it is."""
        limit = _Limit()
        row = self._living_job(job, verb="requeue", limit=limit)
        self._requeue_or_find_pending("requeue", row.leader, limit=limit)

    def exclude(self, job: JobId, nodes: Collection[NodeName]) -> None:
        """Add `nodes` to the job's ExcNodeList. Slurm can only replace the list: a change made meanwhile is lost."""
        names = _checked_names(nodes, verb="exclude")
        limit = _Limit()
        status = self._living_job(job, verb="exclude from", limit=limit).status
        if not status.excluded_nodes.issuperset(names):
            excluded = ",".join(sorted(status.excluded_nodes | set(names)))
            self._send("scontrol", "update", f"JobId={status.job}", f"ExcNodeList={excluded}", limit=limit)

    def release(self, job: JobId) -> None:
        """Release; a job that is not held stays as it is."""
        limit = _Limit()
        self._send("scontrol", "release", self._living_job(job, verb="release", limit=limit).leader, limit=limit)

    def _living_job(self, job: JobId, *, verb: str, limit: "_Limit") -> JobRow:
        name = parse_job_id(job)
        row = next((row for row in self._read_jobs(limit) if row.status.job == name), None)
        if row is None:
            raise SourceRefused(
                f"Slurm knows no job {name} (Invalid job id); nothing to {verb}. It may have ended long ago"
            )
        if row.is_waiting_array:
            raise SourceRefused(
                f"{name} is the waiting tasks of an array; a command would touch its running tasks too. Name one task"
            )
        if row.status.ended_at is not None or row.status.state not in _LIVING:
            raise SourceRefused(
                f"job {name} is {row.status.state.value} and its run is over; there is nothing to {verb}"
            )
        return row

    def _has_silent_node(self, job: JobStatus, *, limit: "_Limit") -> bool:
        if job.state not in HAS_PROCESSES:
            return False
        return any(node.node in job.nodes and not node.is_responding for node in self._read_nodes(limit))

    def _requeue_or_find_pending(self, verb: str, job: JobId, *, limit: "_Limit") -> bool:
        """Send `verb`; return True if nothing had to be requeued, because the job is pending."""
        try:
            self._send("scontrol", verb, job, limit=limit)
        except SourceRefused as exc:
            if _IS_PENDING in str(exc):
                return True
            raise
        return False

    # -- asking --

    def _read_nodes(self, limit: "_Limit") -> tuple[NodeStatus, ...]:
        # From 23.02 `sinfo --json` groups nodes into rows; before, scontrol has no --json.
        argv = ["scontrol", "--all", "show", "nodes", "--json"]
        if self._read_version(limit) < _FIRST_VERSION_WITH_SCONTROL_JSON:
            argv = ["sinfo", "--all", "--json"]
        answer = read_nodes_answer(self._send(*argv, limit=limit).stdout, source=" ".join(argv))
        for rejected in answer.rejected:
            log.warning("source=%s row=%s left out: %s", rejected.source, rejected.position, rejected.reason)
        if answer.rejected and not answer.nodes:
            raise SourceNonsense(f"no row of {' '.join(argv)} can be believed; the first: {answer.rejected[0].reason}")
        return answer.nodes

    def _read_jobs(self, limit: "_Limit") -> tuple[JobRow, ...]:
        # 22.05 ignores filters with --json and prints all; later versions obey them, so all is spelled.
        argv = ["squeue", "--all", "--states=all", "--json"]
        text = self._send(*argv, limit=limit).stdout
        answer = read_jobs_answer(text, source=" ".join(argv), now=self._clock.now())
        if answer.rejected:
            rows = "; ".join(f"{rejected.position}: {rejected.reason}" for rejected in answer.rejected[:3])
            raise SourceNonsense(f"{len(answer.rejected)} job(s) of {' '.join(argv)} cannot be believed: {rows}")
        return answer.jobs

    def _read_version(self, limit: "_Limit") -> tuple[int, int]:
        if self._version is None:
            text = self._send("scontrol", "--version", limit=limit).stdout
            words = text.split()[-1:] or [""]
            major, _, rest = words[0].partition(".")
            minor = rest.partition(".")[0]
            if not (major.isdecimal() and minor.isdecimal()):
                raise SourceNonsense(
                    f"scontrol --version printed {text[:80]!r}; expected a line such as 'slurm 22.05.8'"
                )
            self._version = int(major), int(minor)
        return self._version

    def _send(self, *argv: str, limit: "_Limit | None" = None) -> CommandAnswer:
        """Run one client; raise SourceRefused for a clear no, SourceUnavailable for whatever else is not a yes."""
        seconds = (limit or _Limit()).left()
        answer = self._run(argv, environment=self._environment, timeout_seconds=seconds)
        if answer.returncode == 0:
            return answer
        said = " / ".join(answer.stderr.strip().splitlines())[:300] or answer.stdout.strip()[:300]
        what = f"{' '.join(argv[:3])} ended with {answer.returncode}: {said}"
        if any(refusal in said for refusal in _REFUSALS):
            raise SourceRefused(what)
        raise SourceUnavailable(f"{what}; whether it took effect is unknown. Check slurmctld and munge")


class _Limit:
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


def _clean_environment(inherited: Mapping[str, str], *, slurm_conf: Path | None) -> Mapping[str, str]:
    """Return the environment for clients: nothing that steers them but SLURM_CONF, UTC, and messages in English."""
    kept = {
        name: value
        for name, value in inherited.items()
        if name == "SLURM_CONF" or not name.startswith(_STEERING_PREFIXES)
    }
    chosen = {} if slurm_conf is None else {"SLURM_CONF": str(slurm_conf)}
    return {**kept, **chosen, "TZ": "UTC", "LC_ALL": "C.UTF-8"}


def _checked_names(nodes: Collection[NodeName], *, verb: str) -> tuple[NodeName, ...]:
    """Return the names, sorted, each validated: `ALL` is a word of Slurm's and must never be one of them."""
    if not nodes:
        raise ValueError(f"there is no node to {verb}; an empty batch never means all")
    names = tuple(sorted({parse_node_name(node) for node in nodes}))
    if any(name.upper() == "ALL" for name in names):
        raise ValueError(f"'ALL' is no node name; to {verb} all nodes, name them")
    return names


def _quoted_reason(reason: str, *, verb: str) -> str:
    """Return the argument that gives the reason. scontrol strips one quote from either end, so it gets two to strip."""
    if not reason.strip():
        raise ValueError(f"the reason is {reason!r}; to {verb} a node, say why")
    return f'Reason="{reason}"'
