"""The port `Scheduler` over Slurm's clients: what is asked and what is sent, for nodes, jobs and reservations.

How a client is run, and what a refusal means, is `client`; how answers are read is `answers` and `jobs`.

Measured on 22.05.8; the JSON of 23.02 to 25.11 was read from its source, not run. The words of every command are our
own or names that were validated: nothing that a user wrote is sent. One class, because it is one port.
"""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import JobAttempt, JobId, NodeName, parse_job_id, parse_node_name
from ops_pipelines.core.observation import (
    HAS_PROCESSES,
    Checkpointing,
    JobState,
    JobStatus,
    NodeState,
    NodeStatus,
    Rejected,
    has_moved_on,
)
from ops_pipelines.core.scheduler import SchedulerLimits
from ops_pipelines.core.sources import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import RunCommand, run_scheduler_command
from ops_pipelines.resources.slurm.answers import (
    LAST_CHOICE_WEIGHT,
    NodesAnswer,
    Reservation,
    booking_words,
    can_be_changed,
    checked_reservation_name,
    node_listing,
    prolog_in,
    read_config_answer,
    read_nodes_answer,
    read_reservations_answer,
    reservation_words,
    reserved_nodes,
)
from ops_pipelines.resources.slurm.client import Limit, SlurmClient, quoted_reason
from ops_pipelines.resources.slurm.guard.installation import GuardStatus
from ops_pipelines.resources.slurm.jobs import CheckpointFiles, JobRow, read_jobs_answer

log = logging.getLogger(__name__)

_IS_PENDING = "Job is pending execution"
_NO_SUCH_RESERVATION = "Requested reservation is invalid"
_LIVING = HAS_PROCESSES | {JobState.PENDING}
_OWN_DRIFT = 0.05
"""# Assumption: fair share and age move a computed priority by less while its node is silent. A priority that is set is
computed no more, so one that moved by itself is left alone; what an administrator sets for a job is lost."""


class SlurmScheduler:
    """The `Scheduler` port over `scontrol`, `sinfo` and `squeue`. Safe to share between threads."""

    def __init__(
        self,
        *,
        clock: Clock,
        slurm_conf: Path | None = None,
        checkpoint_roots: Collection[Path] = (),
        guard_status: Sequence[str] = (),
        run: RunCommand = run_scheduler_command,
    ) -> None:
        """Without `slurm_conf` SLURM_CONF stays as this process has it; without `checkpoint_roots` no file is read.

        `guard_status` prints the state of slurmctld's start guard; without it the guard is looked for on this host.
        """
        self._clock = clock
        self._guard = GuardStatus(guard_status, run=run)
        self._client = SlurmClient(run=run, slurm_conf=slurm_conf)
        self._checkpoints = CheckpointFiles(checkpoint_roots)

    # -- reading --

    def read_nodes(self) -> tuple[NodeStatus, ...]:
        """Return every node. A row that cannot be believed is left out and logged: a node unseen stays untouched."""
        limit = Limit()
        nodes = self._read_nodes(limit).nodes
        # Asked always: Slurm shows the flag RESERVED only seconds later, and the witness of `reserve` looks before.
        reserved = reserved_nodes(self._read_reservations(limit), now=self._clock.now())
        return tuple(replace(status, reserved_as=reserved.get(status.node)) for status in nodes)

    def read_jobs(self) -> tuple[JobStatus, ...]:
        """Return every job that Slurm still knows: the ended ones for MinJobAge (300 s by default).

        The start of an attempt is known while it runs and after the job ended, not once it was requeued. The tasks
        of an array that wait are one row, `30_waiting`; a heterogeneous job is one, under the id of its leader.
        Raises SourceNonsense if any row cannot be believed: a node must not look idle because its job could not be
        read.
        """
        limit = Limit()
        rows = self._read_jobs(limit)
        paths = {row.checkpoint_path for row in rows if row.checkpoint_path is not None}
        times = self._checkpoints.read_times(paths, timeout_seconds=limit.left() / 2)
        now = self._clock.now()
        return tuple(
            _with_checkpoint(
                row.status,
                written_at=times.get(row.checkpoint_path or ""),
                was_seen=self._checkpoints.was_seen(row.checkpoint_path),
                now=now,
            )
            for row in rows
        )

    def read_limits(self) -> SchedulerLimits:
        """Return what slurmctld runs with now, which need not be what slurm.conf says since."""
        # As text: scontrol of 22.05 knows no JSON, and only administrators write these lines.
        argv = ("scontrol", "show", "config")
        text = self._client.send(*argv, limit=Limit()).stdout
        limits = read_config_answer(text, source=" ".join(argv))
        return limits if limits.unguarded else replace(limits, unguarded=self._guard.problem_of(prolog_in(text)))

    # -- nodes --

    def drain(self, nodes: Collection[NodeName], *, reason: str) -> None:
        """Drain the batch with one command. Unknown names are found before: Slurm would drain the rest of the batch.

        Draining again with the same reason leaves the time of the first.
        """
        names = _checked_names(nodes, verb="drain")
        quoted = quoted_reason(reason, verb="drain")
        limit = Limit()
        # Of one node Slurm itself says that it knows none such, and a reading takes ten times as long as the command.
        known = {status.node for status in self._read_nodes(limit).nodes} if len(names) > 1 else set(names)
        unknown = sorted(set(names) - known)
        if unknown:
            raise SourceRefused(f"Slurm knows no node {', '.join(unknown)}; nothing was drained. Check cluster.yaml")
        try:
            self._client.send("scontrol", "update", f"NodeName={','.join(names)}", "State=DRAIN", quoted, limit=limit)
        except SourceRefused as exc:
            if len(names) > 1:
                raise SourceUnavailable(f"{exc}; others of {', '.join(names)} may be drained. Read the nodes") from exc
            raise

    def resume(self, node: NodeName) -> None:
        """Take back drain and down. Just after, 22.05 reads NOT_RESPONDING until the node registers again (seconds)."""
        name = parse_node_name(node)
        limit = Limit()
        status = next((status for status in self._read_nodes(limit).nodes if status.node == name), None)
        if status is None:
            raise SourceRefused(f"Slurm knows no node {name}; nothing was resumed. Check cluster.yaml")
        if status.state is NodeState.DOWN:
            if not status.is_responding:
                raise SourceRefused(f"{name} is down and does not answer; start it before it is resumed")
            self._client.send("scontrol", "update", f"NodeName={name}", "State=RESUME", limit=limit)
        elif status.is_drained:
            # UNDRAIN succeeds twice; RESUME of a node in service is refused ("Invalid node state specified").
            self._client.send("scontrol", "update", f"NodeName={name}", "State=UNDRAIN", limit=limit)

    def declare_down(self, node: NodeName, *, reason: str) -> None:
        """Set the node DOWN. A drain stays; its time too if `reason` is the drain's own, else Slurm dates it again."""
        name = parse_node_name(node)
        quoted = quoted_reason(reason, verb="declare down")
        self._client.send("scontrol", "update", f"NodeName={name}", "State=DOWN", quoted, limit=Limit())

    def put_last(self, node: NodeName) -> None:
        """Raise the node's weight.

        Slurm keeps weights in memory: `scontrol reconfigure` or a restart of slurmctld brings back those of
        slurm.conf. So who put a node last reads it again, and repeats it. Neither slurmd nor a reboot forgets it.
        """
        limit = Limit()
        name, weight = self._read_weight(node, limit=limit)
        if weight < LAST_CHOICE_WEIGHT:
            self._set_weight(name, weight + LAST_CHOICE_WEIGHT, limit=limit)

    def put_back(self, node: NodeName) -> None:
        """Give the node the weight back that it had."""
        limit = Limit()
        name, weight = self._read_weight(node, limit=limit)
        if weight >= LAST_CHOICE_WEIGHT:
            self._set_weight(name, weight - LAST_CHOICE_WEIGHT, limit=limit)

    def _read_weight(self, node: NodeName, *, limit: Limit) -> tuple[NodeName, int]:
        name = parse_node_name(node)
        answer = self._read_nodes(limit)
        if name in answer.weights:
            return name, answer.weights[name]
        if any(status.node == name for status in answer.nodes):
            raise SourceNonsense(
                f"Slurm reports no weight of {name}; nothing was changed. Look at `scontrol show node`"
            )
        raise SourceRefused(f"Slurm knows no node {name}; its weight was not changed. Check cluster.yaml")

    def _set_weight(self, node: NodeName, weight: int, *, limit: Limit) -> None:
        self._client.send("scontrol", "update", f"NodeName={node}", f"Weight={weight}", limit=limit)

    # -- reservations --

    def reserve(self, nodes: Collection[NodeName], *, name: str, until: datetime) -> None:
        """Reserve idle nodes that are in service, all of them or none. See `reservations` for what is chosen.

        Slurm itself refuses what is busy by then; it would reserve what is drained or down.
        """
        names = _checked_names(nodes, verb="reserve")
        checked_reservation_name(name)
        limit = Limit()
        self._refuse_unless_free(names, limit=limit)
        is_known = any(each.name == name for each in self._read_reservations(limit))
        words = reservation_words(
            names, name=name, until=until, now=self._clock.now(), user_id=os.geteuid(), is_known=is_known
        )
        self._client.send(*words, limit=limit)

    def book(self, nodes: Collection[NodeName], *, name: str, begins_at: datetime, ends_at: datetime) -> None:
        """Make a maintenance reservation; of a name that Slurm does not know nothing is booked. See `reservations`."""
        names = _checked_names(nodes, verb="book")
        checked_reservation_name(name)
        limit = Limit()
        known = next((each for each in self._read_reservations(limit) if each.name == name), None)
        now = self._clock.now()
        is_kept = known is not None and can_be_changed(known, begins_at=begins_at, now=now)
        words = booking_words(
            names,
            name=name,
            begins_at=begins_at,
            ends_at=ends_at,
            now=now,
            user_id=os.geteuid(),
            known=known if is_kept else None,
        )
        if known is not None and not is_kept:
            self._delete(name, limit=limit)
        self._client.send(*words, limit=limit)

    def unreserve(self, name: str) -> None:
        """Delete the reservation. The scheduler then looks at what waits, by priority (seen: a start within 1 s)."""
        self._delete(checked_reservation_name(name), limit=Limit())

    def _delete(self, name: str, *, limit: Limit) -> None:
        try:
            self._client.send("scontrol", "delete", f"ReservationName={name}", limit=limit)
        except SourceRefused as exc:
            if _NO_SUCH_RESERVATION not in str(exc):
                raise

    def _refuse_unless_free(self, names: Collection[NodeName], *, limit: Limit) -> None:
        known = {status.node: status for status in self._read_nodes(limit).nodes}
        unknown = sorted(set(names) - known.keys())
        if unknown:
            raise SourceRefused(f"Slurm knows no node {', '.join(unknown)}; nothing was reserved. Check cluster.yaml")
        taken = sorted(name for name in names if not _is_free(known[name]))
        if taken:
            raise SourceRefused(f"{', '.join(taken)} not free (busy, drained or down); nothing was reserved")

    # -- jobs --

    def hold(self, job: JobId) -> None:
        """Requeue and hold. Reads the job first: Slurm would requeue a job that has ended or was cancelled, too.

        An attempt on a node that does not answer is only marked: it reads RUNNING and held until the node is declared
        down, which requeues it, still held. `requeuehold` followed by a node going down would break it: 22.05.8 then
        loses the GPUs of the restarted job ("Invalid generic resource (gres) specification"), and the job fails.
        """
        limit = Limit()
        row = self._living_job(job, verb="hold", limit=limit)
        if row.status.is_held and row.status.state in (JobState.PENDING, JobState.COMPLETING):
            return
        if self._has_silent_node(row.status, limit=limit):
            if not row.status.is_held:
                self._client.send("scontrol", "hold", row.leader, limit=limit)
            return
        # A pending job may start between two commands, and `hold` only marks a running one: so requeuehold has the
        # last word, and "pending" is then its way to agree.
        if self._requeue_or_find_pending("requeuehold", row.leader, limit=limit):
            self._client.send("scontrol", "hold", row.leader, limit=limit)
            self._requeue_or_find_pending("requeuehold", row.leader, limit=limit)

    def requeue(self, job: JobId) -> None:
        """Requeue; a pending job stays as it is."""
        limit = Limit()
        row = self._living_job(job, verb="requeue", limit=limit)
        self._requeue_or_find_pending("requeue", row.leader, limit=limit)

    def exclude(self, job: JobId, nodes: Collection[NodeName]) -> None:
        """Add `nodes` to the job's ExcNodeList. Slurm can only replace the list: a change made meanwhile is lost."""
        names = _checked_names(nodes, verb="exclude")
        limit = Limit()
        # Each component of a heterogeneous job has a list of its own, and may be put on any node.
        for component in self._living_job(job, verb="exclude from", limit=limit).components:
            if not component.excluded_nodes.issuperset(names):
                excluded = ",".join(sorted(component.excluded_nodes | set(names)))
                self._client.send(
                    "scontrol", "update", f"JobId={component.job}", f"ExcNodeList={excluded}", limit=limit
                )

    def readmit(self, job: JobId, nodes: Collection[NodeName]) -> None:
        """Take `nodes` out of the job's ExcNodeList; an empty list keeps it off nothing."""
        names = _checked_names(nodes, verb="readmit")
        limit = Limit()
        row = self._living_job(job, verb="readmit to", limit=limit)
        if row.status.state is not JobState.PENDING:
            raise SourceRefused(f"job {job} is {row.status.state.value}; only a pending one is let onto nodes again")
        for component in row.components:
            if not component.excluded_nodes.isdisjoint(names):
                excluded = ",".join(sorted(component.excluded_nodes - set(names)))
                self._client.send(
                    "scontrol", "update", f"JobId={component.job}", f"ExcNodeList={excluded}", limit=limit
                )

    def release(self, job: JobId) -> None:
        """Release; a job that is not held stays as it is."""
        limit = Limit()
        self._client.send("scontrol", "release", self._living_job(job, verb="release", limit=limit).leader, limit=limit)

    def mark(self, attempts: Collection[JobAttempt]) -> None:
        """`scontrol hold` of what runs: it reads RUNNING and held, and priority 0 until it is released (22.05)."""
        if not attempts:
            raise ValueError("there is no job to mark; an empty collection never means all")
        limit = Limit()
        rows = {name: row for row in self._read_jobs(limit) for name in row.ids}
        leaders: list[JobId] = []
        amiss: list[str] = []
        for attempt in sorted(set(attempts)):
            row = rows.get(parse_job_id(attempt.job))
            if row is None or row.is_waiting_array or has_moved_on(row.status, attempt):
                amiss.append(
                    f"Slurm knows no attempt of job {attempt.job} that began {attempt.started_at:%H:%M:%S} UTC"
                )
            elif row.status.ended_at is not None or row.status.state not in _LIVING:
                amiss.append(f"job {attempt.job} is {row.status.state.value}; there is nothing to mark")
            elif not row.status.is_held:
                leaders.append(row.leader)
        if leaders:
            self._send_to_jobs("hold", leaders, limit=limit)
        if amiss:
            raise (SourceRefused if len(attempts) == 1 else SourceUnavailable)("; ".join(amiss))

    def unmark(self, jobs: Mapping[JobId, int | None]) -> None:
        """Release those that are held, but not by their users; then bring priorities back."""
        if not jobs:
            raise ValueError("there is no job to unmark; an empty collection never means all")
        limit = Limit()
        rows = [row for row in self._read_jobs(limit) if not row.is_waiting_array and not row.ids.isdisjoint(jobs)]
        held = [row for row in rows if row.status.is_held and not row.status.is_held_by_user]
        leaders = {row.leader: next(jobs[name] for name in sorted(row.ids) if name in jobs) for row in held}
        if leaders:
            self._send_to_jobs("release", leaders, limit=limit)
            self._bring_back(leaders, limit=limit)

    def _send_to_jobs(self, verb: str, leaders: Collection[JobId], *, limit: Limit) -> None:
        """Send one command for all; Slurm does the rest of them where it refuses one."""
        try:
            self._client.send("scontrol", verb, ",".join(leaders), limit=limit)
        except SourceRefused as exc:
            if len(leaders) > 1:
                raise SourceUnavailable(f"{exc}; others of {', '.join(leaders)} were sent. Read the jobs") from exc
            raise

    def _bring_back(self, priorities: Mapping[JobId, int | None], *, limit: Limit) -> None:
        """Set priorities that a release has lost: Slurm computes one again, also where an administrator had set it."""
        wanted = {leader: priority for leader, priority in priorities.items() if priority}
        if not wanted:
            return
        now = {row.leader: row.status.priority for row in self._read_jobs(limit)}
        for leader, before in wanted.items():
            found = now.get(leader)
            if found is not None and abs(found - before) > _OWN_DRIFT * before:
                self._client.send("scontrol", "update", f"JobId={leader}", f"Priority={before}", limit=limit)

    def _living_job(self, job: JobId, *, verb: str, limit: Limit) -> JobRow:
        name = parse_job_id(job)
        row = next((row for row in self._read_jobs(limit) if name in row.ids), None)
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

    def _has_silent_node(self, job: JobStatus, *, limit: Limit) -> bool:
        if job.state not in HAS_PROCESSES:
            return False
        return any(node.node in job.nodes and not node.is_responding for node in self._read_nodes(limit).nodes)

    def _requeue_or_find_pending(self, verb: str, job: JobId, *, limit: Limit) -> bool:
        """Send `verb`; return True if nothing had to be requeued, because the job is pending."""
        try:
            self._client.send("scontrol", verb, job, limit=limit)
        except SourceRefused as exc:
            if _IS_PENDING in str(exc):
                return True
            raise
        return False

    # -- asking --

    def _read_nodes(self, limit: Limit) -> NodesAnswer:
        argv = node_listing(self._client.read_version(limit))
        answer = read_nodes_answer(self._client.send(*argv, limit=limit).stdout, source=" ".join(argv))
        _log_left_out(answer.rejected)
        if answer.rejected and not answer.nodes:
            raise SourceNonsense(f"no row of {' '.join(argv)} can be believed; the first: {answer.rejected[0].reason}")
        return answer

    def _read_reservations(self, limit: Limit) -> tuple[Reservation, ...]:
        argv = ("scontrol", "--all", "show", "reservation", "-o")
        answer = read_reservations_answer(self._client.send(*argv, limit=limit).stdout, source=" ".join(argv))
        _log_left_out(answer.rejected)
        return answer.reservations

    def _read_jobs(self, limit: Limit) -> tuple[JobRow, ...]:
        # 22.05 ignores filters with --json and prints all; later versions obey them, so all is spelled.
        argv = ["squeue", "--all", "--states=all", "--json"]
        text = self._client.send(*argv, limit=limit).stdout
        answer = read_jobs_answer(text, source=" ".join(argv), now=self._clock.now())
        if answer.rejected:
            rows = "; ".join(f"{rejected.position}: {rejected.reason}" for rejected in answer.rejected[:3])
            raise SourceNonsense(f"{len(answer.rejected)} job(s) of {' '.join(argv)} cannot be believed: {rows}")
        return answer.jobs


def _with_checkpoint(job: JobStatus, *, written_at: datetime | None, was_seen: bool, now: datetime) -> JobStatus:
    """Return the job with what its declared file shows. What it says of the time itself counts more."""
    if was_seen:
        job = replace(job, checkpointing=Checkpointing.YES)
    if written_at is None or written_at > now or job.checkpointed_at is not None:
        return job
    return replace(job, checkpointed_at=written_at)


def _is_free(node: NodeStatus) -> bool:
    return node.state is NodeState.IDLE and node.is_responding and not node.is_drained


def _log_left_out(rejected: Collection[Rejected]) -> None:
    for row in rejected:
        log.warning("source=%s row=%s left out: %s", row.source, row.position, row.reason)


def _checked_names(nodes: Collection[NodeName], *, verb: str) -> tuple[NodeName, ...]:
    """Return the names, sorted, each validated: `ALL` is a word of Slurm's and must never be one of them."""
    if not nodes:
        raise ValueError(f"there is no node to {verb}; an empty batch never means all")
    names = tuple(sorted({parse_node_name(node) for node in nodes}))
    if any(name.upper() == "ALL" for name in names):
        raise ValueError(f"'ALL' is no node name; to {verb} all nodes, name them")
    return names
