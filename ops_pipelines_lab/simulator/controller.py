"""The simulated scheduler: what a slurmctld believes of nodes and jobs, and what it does by itself.

It sees the hardware only as a real one does: by pings, registrations, and daemons that start and kill processes on
nodes that answer. Source of the behaviour: a real Slurm 22.05, measured. Refusing commands is `commands`' business.

Longer than other modules: what a slurmctld does by itself is one chain of events.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.identity import JobAttempt, JobId, NodeName
from ops_pipelines.core.observation import JobState
from ops_pipelines_lab.simulator.hardware import Hardware, Node
from ops_pipelines_lab.simulator.jobs import EndCause, Job, Loss, QuotaLimits, SplitBrain, find_place
from ops_pipelines_lab.simulator.load import Load
from ops_pipelines_lab.simulator.reservations import Booking, Reservations
from ops_pipelines_lab.simulator.scenario import JobSpec, Scenario


@dataclass(slots=True)
class NodeRecord:
    """What the scheduler believes of one node."""

    booted_at: datetime
    heard_at: datetime
    """When it last registered, or began to answer again."""
    is_drained: bool = False
    is_down: bool = False
    is_responding: bool = True
    reason: str | None = None
    reason_set_at: datetime | None = None
    expects_reboot: bool = False
    """The scheduler itself had it rebooted, so its next registration is no surprise."""
    is_last_choice: bool = False
    """Jobs are put on it only where no other node fits."""

    @property
    def takes_jobs(self) -> bool:
        return self.is_responding and not self.is_drained and not self.is_down


Happening = Callable[[datetime], None]
Later = Callable[[datetime, Happening], None]
"""Arranges that something happens at a later time."""


_FIRST_JOB = 1001
_GUARD_LOOKS_EVERY = timedelta(seconds=10)
"""As the real start guard looks again at what it holds."""


class Controller:
    """Nodes and jobs as the scheduler knows them. Every method is given the time and happens at once."""

    def __init__(self, scenario: Scenario, hardware: Hardware, *, began_at: datetime, later: Later) -> None:
        self._durations = scenario.durations
        self._hardware = hardware
        self._began_at = began_at
        self._later = later
        self.records = {
            node.name: NodeRecord(booted_at=node.booted_at, heard_at=began_at) for node in hardware.nodes.values()
        }
        self.jobs: dict[JobId, Job] = {}
        self.losses: list[Loss] = []
        self.split_brains: list[SplitBrain] = []
        self.reservations = Reservations()
        self.quotas = QuotaLimits(scenario)
        self.job_starts: Callable[[Job, datetime], None] = _nobody_listens
        """Called at each attempt that starts."""
        self._partitions = {node.name: node.partitions for node in scenario.nodes}
        self._next_job = _FIRST_JOB
        self._has_guard = scenario.has_start_guard
        self._guard_looks_at = began_at
        self.has_services = False
        """Whether any job that was ever submitted is a replica of a service."""

    @property
    def submitted_count(self) -> int:
        """How many jobs were ever submitted."""
        return self._next_job - _FIRST_JOB

    # -- jobs --

    def submit(self, spec: JobSpec, at: datetime) -> Job:
        job = Job(job=JobId(str(self._next_job)), spec=spec, submitted_at=at, eligible_at=at)
        self._next_job += 1
        self.quotas.add_account(spec.account)
        self.has_services = self.has_services or bool(spec.service)
        self.jobs[job.job] = job
        self.start_jobs(at)
        return job

    def start_jobs(self, at: datetime) -> None:
        """Start every pending job for which there is room: highest priority first, then the one submitted first."""
        waiting = sorted(
            (job for job in self.jobs.values() if job.may_start(at)),
            key=lambda job: (-job.spec.priority, job.submitted_at, int(job.job)),
        )
        if not waiting:
            return
        kept: set[NodeName] = set()
        last = {name for name, record in self.records.items() if record.is_last_choice}
        for job in waiting:
            if self.quotas.holds(job, self.jobs.values()) or self._is_guarded(job, at):
                continue
            limit = job.spec.time_limit_seconds
            ends_at = None if limit is None else at + timedelta(seconds=limit)
            booked = self.reservations.booked(begins_at=at, ends_at=ends_at)
            free_gpus = {name: free for name, free in self._free_gpus(job.spec.partition).items() if name not in booked}
            place = find_place(job, free_gpus=free_gpus, kept=kept, last=last, gpus_per_node=self._gpus_per_node())
            if place.is_complete:
                self._start(job, place.gpus, at)
            else:
                # A wide job that waits keeps the whole nodes it has found; else small jobs would starve it.
                kept.update(place.gpus)

    def _is_guarded(self, job: Job, at: datetime) -> bool:
        """Return whether the start guard keeps a restart back: a node of an attempt before is not seen to be clear."""
        for attempt, names in tuple(job.unclear.items()):
            nodes = self._hardware.nodes
            left = frozenset(name for name in names if nodes[name].is_powered and self._is_left(attempt, name))
            if left:
                job.unclear[attempt] = left
            else:
                del job.unclear[attempt]
        if job.unclear and self._has_guard and self._guard_looks_at <= at:
            self._guard_looks_at = at + _GUARD_LOOKS_EVERY
            self._later(self._guard_looks_at, self.start_jobs)
        return bool(job.unclear) and self._has_guard

    def requeue(self, job: Job, at: datetime) -> None:
        """End the attempt and put the job back in the queue; the hold, if any, is the caller's."""
        self._terminate(job, at, becomes=JobState.PENDING, cause=EndCause.REQUEUED)

    def cancel(self, job: Job, at: datetime) -> None:
        if job.state is JobState.PENDING:
            self._finish(job, at, JobState.CANCELLED)
        elif job.state is JobState.COMPLETING:
            job.becomes = JobState.CANCELLED
        else:
            self._terminate(job, at, becomes=JobState.CANCELLED, cause=EndCause.CANCELLED)

    def fail(self, job: Job, at: datetime) -> None:
        """End a job whose program crashed: the launcher takes the other ranks down at once, where nodes answer.

        As in Slurm it keeps completing while a node does not say that its processes are gone.
        """
        begins_again = job.spec.requeues_itself
        self._record_loss(job, at, EndCause.CRASHED_AND_REQUEUED if begins_again else EndCause.APPLICATION_FAILED)
        self._kill_where_answering(job.attempt, job.allocation, at)
        left = {name for name in job.allocation if self._is_left(job.attempt, name) and not self.records[name].is_down}
        self._end_program(job, at, left=left, becomes=JobState.PENDING if begins_again else JobState.FAILED)

    def reserve(self, nodes: Collection[NodeName], *, name: str, until: datetime, at: datetime) -> None:
        """Let no job start on the nodes before `until`, or before they are given back."""
        reservation = self.reservations.reserve(nodes, name=name, until=until)

        def run_out(then: datetime) -> None:
            self.reservations.run_out(reservation)
            self.start_jobs(then)

        self._later(until, run_out)
        self.start_jobs(at)

    def book(
        self, nodes: Collection[NodeName], *, name: str, begins_at: datetime, ends_at: datetime, at: datetime
    ) -> None:
        """Let no job start on the nodes that would run into the time between; those that run are let be."""
        booking = Booking(name=name, nodes=frozenset(nodes), begins_at=begins_at, ends_at=ends_at)
        self.reservations.book(booking)

        def end(then: datetime) -> None:
            self.reservations.end_booking(booking)
            self.start_jobs(then)

        self._later(ends_at, end)
        self.start_jobs(at)

    def unreserve(self, name: str, at: datetime) -> None:
        self.reservations.give_back(name)
        self.start_jobs(at)

    def partitions_of(self, name: NodeName) -> frozenset[str]:
        return frozenset(self._partitions[name])

    def is_free(self, name: NodeName) -> bool:
        """Return whether a node takes jobs and has none, not even one that completes."""
        return self.records[name].takes_jobs and not self._jobs_on(name)

    def notice_hangs(self, at: datetime) -> None:
        """Mark running attempts that lost a GPU, a node or a process: they compute no more, and do not know it."""
        for job in self.jobs.values():
            if job.is_running and job.hung_at is None and self._is_broken(job):
                job.hung_at = at
                for name in job.allocation:
                    process = self._hardware.nodes[name].processes.get(job.attempt)
                    if process is not None and not process.is_stopped:
                        self._hardware.set_load(self._hardware.nodes[name], job.attempt, Load.HUNG, at)

    # -- nodes --

    def set_reason(self, name: NodeName, reason: str, at: datetime) -> None:
        record = self.records[name]
        if record.reason != reason:
            record.reason, record.reason_set_at = reason, at

    def declare_down(self, name: NodeName, at: datetime) -> None:
        """Give a node up: its jobs are requeued first, and killed afterwards, where the node answers."""
        self.records[name].is_down = True
        for job in self._jobs_on(name):
            if job.is_running:
                becomes = JobState.PENDING if job.spec.is_requeueable else JobState.NODE_FAIL
                self._terminate(job, at, becomes=becomes, cause=EndCause.NODE_DOWN)
            else:
                self._confirm_gone(job, name, at)

    def expect_change(self, name: NodeName, at: datetime) -> None:
        """Notice at the next ping that a node answers no more, or answers again."""
        interval = timedelta(seconds=self._durations.ping_interval_seconds)
        pings = (at - self._began_at) // interval + 1
        self._later(self._began_at + pings * interval, lambda then: self._ping(name, then))

    def register(self, name: NodeName, at: datetime) -> None:
        """Take a node's registration after its boot: nothing that was there before is left."""
        node, record = self._hardware.nodes[name], self.records[name]
        record.booted_at = node.booted_at
        self._hear(name, at)
        if not record.expects_reboot:
            # As Slurm does with ReturnToService=0; a reason that is there already stays.
            if record.reason is None:
                self.set_reason(name, "Node unexpectedly rebooted", at)
            self.declare_down(name, at)
        record.expects_reboot = False
        self.start_jobs(at)

    # -- what follows by itself --

    def _ping(self, name: NodeName, at: datetime) -> None:
        record = self.records[name]
        if self._hardware.nodes[name].answers and self._hardware.nodes[name].booted_at != record.booted_at:
            self.register(name, at)
        elif self._hardware.nodes[name].answers:
            self._hear(name, at)
            self.start_jobs(at)
        elif record.is_responding:
            record.is_responding = False
            last_answer = max(record.heard_at, at - timedelta(seconds=self._durations.ping_interval_seconds))
            record.heard_at = last_answer
            give_up_at = last_answer + timedelta(seconds=self._durations.slurmd_timeout_seconds)
            self._later(max(at, give_up_at), lambda then: self._give_up(name, last_answer, then))

    def _give_up(self, name: NodeName, last_answer: datetime, at: datetime) -> None:
        record = self.records[name]
        if record.is_responding or record.heard_at != last_answer or record.is_down:
            return
        if record.reason is None:
            self.set_reason(name, "Not responding", at)
        self.declare_down(name, at)
        self.start_jobs(at)

    def _hear(self, name: NodeName, at: datetime) -> None:
        """Let a node that answers again kill what it should no longer run, and say what it runs no more."""
        node, record = self._hardware.nodes[name], self.records[name]
        record.is_responding, record.heard_at = True, at
        for attempt in list(node.processes):
            job = self.jobs.get(attempt.job)
            if job is None or not (job.is_running and job.attempt == attempt):
                self._hardware.kill_process(node, attempt, at)
        for job in self._jobs_on(name):
            if job.is_running and job.attempt not in node.processes:
                # The batch step is missing from the registration: Slurm ends the attempt.
                becomes = JobState.PENDING if job.spec.is_requeueable else JobState.NODE_FAIL
                self._terminate(job, at, becomes=becomes, cause=EndCause.NODE_DOWN)
            if job.attempt not in node.processes:
                self._confirm_gone(job, name, at)

    def _start(self, job: Job, gpus: dict[NodeName, tuple[int, ...]], at: datetime) -> None:
        job.state, job.allocation, job.started_at, job.hung_at = JobState.RUNNING, gpus, at, None
        attempt = job.attempt
        for name, indices in gpus.items():
            node = self._hardware.nodes[name]
            if node.answers:
                self._hardware.start_process(node, attempt, gpus=indices, load=job.load, at=at)
        # Writers become more only here, so that no moment with two of them is missed.
        writers = self._hardware.writers_of(job.job)
        if len(writers) > 1:
            self.split_brains.append(SplitBrain(seen_at=at, attempts=writers))
        # A launch on a node that died since the last ping, or on a GPU that is gone, waits for ever for that rank.
        self.notice_hangs(at)
        finishes_at = job.finishes_at()
        if finishes_at is not None:
            self._later(finishes_at, lambda then: self._complete(job, attempt, then))
        if job.spec.time_limit_seconds is not None:
            ends_by = at + timedelta(seconds=job.spec.time_limit_seconds)
            self._later(ends_by, lambda then: self._time_out(job, attempt, then))
        if job.spec.warm_up_seconds and job.spec.service:
            # Nothing changes then but that the replica serves: the moment is to be noticed.
            self._later(at + timedelta(seconds=job.spec.warm_up_seconds), lambda _: None)
        self.job_starts(job, at)

    def _complete(self, job: Job, attempt: JobAttempt, at: datetime) -> None:
        if job.is_running and job.attempt == attempt and job.hung_at is None:
            nodes = {name: self._hardware.nodes[name] for name in job.allocation}
            for node in nodes.values():
                self._hardware.kill_process(node, attempt, at)
            left = {name for name, node in nodes.items() if attempt in node.processes}
            self._end_program(job, at, left=left, becomes=JobState.COMPLETED)
            self.start_jobs(at)

    def _time_out(self, job: Job, attempt: JobAttempt, at: datetime) -> None:
        if job.is_running and job.attempt == attempt:
            self._terminate(job, at, becomes=JobState.TIMEOUT, cause=EndCause.TIMED_OUT)
            self.start_jobs(at)

    def _end_program(self, job: Job, at: datetime, *, left: set[NodeName], becomes: JobState) -> None:
        """End a job whose program has ended: it completes until the nodes that are `left` say that nothing is."""
        if not left and becomes is not JobState.PENDING:
            self._finish(job, at, becomes)
            return
        job.save(at)
        job.state, job.becomes, job.hung_at, job.waits_for = JobState.COMPLETING, becomes, None, left
        if not left:
            self._finish_completing(job, at)
        self._await_unkillable(job.attempt, tuple(left), at)

    def _is_left(self, attempt: JobAttempt, name: NodeName) -> bool:
        """Return whether a node has not yet reported that the attempt's processes are gone."""
        node = self._hardware.nodes[name]
        return not node.answers or attempt in node.processes

    def _await_unkillable(self, attempt: JobAttempt, names: Collection[NodeName], at: datetime) -> None:
        """Let Slurm drain the nodes on which a process outlives its SIGKILL for too long."""
        stuck = [name for name in names if self._is_left(attempt, name) and self._hardware.nodes[name].answers]
        if not stuck:
            return

        def drain(then: datetime) -> None:
            for name in stuck:
                record = self.records[name]
                if attempt in self._hardware.nodes[name].processes and not record.is_drained:
                    record.is_drained = True
                    self.set_reason(name, record.reason or "Kill task failed", then)

        self._later(at + timedelta(seconds=self._durations.unkillable_step_seconds), drain)

    def _terminate(self, job: Job, at: datetime, *, becomes: JobState, cause: EndCause) -> None:
        """Send SIGTERM: no more work is done; after KillWait the processes are killed where nodes answer."""
        self._record_loss(job, at, cause)
        attempt, names = job.attempt, tuple(job.allocation)
        job.save(at)
        job.state, job.becomes, job.hung_at = JobState.COMPLETING, becomes, None
        job.waits_for = {name for name in names if not self.records[name].is_down}
        for name in names:
            self._hardware.set_load(self._hardware.nodes[name], attempt, Load.IDLE, at)
        kill_at = at + timedelta(seconds=self._durations.kill_wait_seconds)
        self._later(kill_at, lambda then: self._kill(job, attempt, names, then))
        if not job.waits_for:
            self._finish_completing(job, at)

    def _kill(self, job: Job, attempt: JobAttempt, names: tuple[NodeName, ...], at: datetime) -> None:
        self._kill_where_answering(attempt, names, at)
        for name in names:
            if job.started_at == attempt.started_at and not self._is_left(attempt, name):
                self._confirm_gone(job, name, at)
        self._await_unkillable(attempt, names, at)
        self.start_jobs(at)

    def _kill_where_answering(self, attempt: JobAttempt, names: Collection[NodeName], at: datetime) -> None:
        for name in names:
            if self._hardware.nodes[name].answers:
                self._hardware.kill_process(self._hardware.nodes[name], attempt, at)

    def _confirm_gone(self, job: Job, name: NodeName, at: datetime) -> None:
        if job.state is JobState.COMPLETING:
            job.waits_for.discard(name)
            if not job.waits_for:
                self._finish_completing(job, at)

    def _finish_completing(self, job: Job, at: datetime) -> None:
        if job.becomes is not JobState.PENDING:
            self._finish(job, at, job.becomes)
            return
        left = frozenset(name for name in job.allocation if self._is_left(job.attempt, name))
        if left:
            job.unclear[job.attempt] = left
        job.state, job.allocation = JobState.PENDING, {}
        job.restart_count += 1
        job.eligible_at = at + timedelta(seconds=self._durations.requeue_delay_seconds)
        self._later(job.eligible_at, self.start_jobs)

    def _finish(self, job: Job, at: datetime, state: JobState) -> None:
        job.save(at)
        job.last_nodes = tuple(job.allocation)
        job.state, job.allocation, job.ended_at, job.hung_at = state, {}, at, None
        job.waits_for.clear()
        self._later(at + timedelta(seconds=self._durations.min_job_age_seconds), lambda _: self._forget(job))

    def _forget(self, job: Job) -> None:
        self.jobs.pop(job.job, None)

    def _record_loss(self, job: Job, at: datetime, cause: EndCause) -> None:
        self.losses.append(
            Loss(
                attempt=job.attempt,
                account=job.spec.account,
                cause=cause,
                ended_at=at,
                unsaved_gpu_hours=job.unsaved_gpu_hours(at),
                hung_gpu_hours=job.hung_gpu_hours(at),
                warm_up_gpu_hours=job.warm_up_gpu_hours(at),
            )
        )

    def _is_broken(self, job: Job) -> bool:
        nodes = [self._hardware.nodes[name] for name in job.allocation]
        if len(nodes) > 1 and any(node.links_down_until is not None for node in nodes):
            return True
        return any(not self._serves(self._hardware.nodes[name], job, gpus) for name, gpus in job.allocation.items())

    def _serves(self, node: Node, job: Job, gpus: tuple[int, ...]) -> bool:
        process = node.processes.get(job.attempt)
        is_alive = node.is_up and not node.is_wedged and process is not None and not process.is_stopped
        return is_alive and all(node.gpus[index].can_compute for index in gpus)

    def _jobs_on(self, name: NodeName) -> tuple[Job, ...]:
        return tuple(job for job in self.jobs.values() if name in job.allocation)

    def _free_gpus(self, partition: str) -> dict[NodeName, tuple[int, ...]]:
        reserved = {name for reservation in self.reservations.all() for name in reservation.nodes}
        used: dict[NodeName, set[int]] = {
            name: set()
            for name, record in self.records.items()
            if record.takes_jobs and name not in reserved and partition in self._partitions[name]
        }
        for job in self.jobs.values():
            for name, gpus in job.allocation.items():
                if name in used:
                    used[name].update(gpus)
        every = range(self._gpus_per_node())
        return {name: tuple(index for index in every if index not in taken) for name, taken in used.items()}

    def _gpus_per_node(self) -> int:
        return len(next(iter(self._hardware.nodes.values())).gpus)


def _nobody_listens(_job: Job, _at: datetime) -> None:
    """Do nothing: a scheduler alone has no programs with bugs."""
