"""What every act of the lab's drill is: one fault under one training job, what is over, and what must have come of it.

An act never mends: that is the program's part, except where an operator's part is played (a daemon started again).
The acts themselves are in `lab_acts`.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

from ops_pipelines.core.action import MESSAGES, SOFT, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobState, JobStatus
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines_lab.drills.lab_stage import Demand, DrillError, LabView, saved_step
from ops_pipelines_lab.drills.writer_watch import WRITE_LOG_SUFFIX, Write, read_writes
from ops_pipelines_lab.simulator.journal import FaultKind

SOON_SECONDS = 300.0
"""Far above what a single step of a drill needs on a loaded machine."""
NOTE_LENGTH = 120
"""How much of an incident's note is printed."""
OFTEN_SECONDS = 0.05
"""How often a moment is looked for that lasts a few tenths of a second."""
MOVED = (Verb.DRAIN, Verb.HOLD, Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE)
"""What is done before a repair, where the job may be moved at once."""
RETURNED = (Verb.CHECK, Verb.PUT_LAST, Verb.RESUME, Verb.PUT_BACK)
"""What is done after a repair that helped: tests, the return as last choice, and the end of the probation."""


class Act(ABC):
    """One fault under one training job."""

    fault: str
    node_count = 1
    options: Sequence[str] = ()
    """Further words for sbatch."""

    def __init__(self, view: LabView, name: str) -> None:
        self.view = view
        self.name = name
        self.did = "not started"
        self.began_at: float | None = None
        self.ended_at: float | None = None
        self._job: JobId | None = None
        self._before: JobStatus | None = None
        self._saved_before = 0

    # -- what a drill calls, in this order --

    def submit(self) -> None:
        """Submit the act's job."""
        self._job = self.view.stage.slurm.submit_training(
            name=self.job_name,
            node_count=self.node_count,
            comment=self.comment,
            checkpoint=self.checkpoint,
            step_seconds=0.5,
            steps_per_checkpoint=2,
            options=self.options,
        )

    def has_begun_to_save(self) -> bool:
        return saved_step(self.checkpoint) > 0

    def play(self) -> None:
        """Break it; return once it is broken."""
        before = self.view.job(self.job)
        if before is None or not before.nodes:
            raise DrillError(f"job {self.job} is not running, so {self.name} cannot be played")
        self._before, self._saved_before = before, saved_step(self.checkpoint)
        self.began_at = time.monotonic()
        self.did = "started, and broken off"
        self.did = self._break()
        self.view.say(f"{self.name}: {self.did}")

    def look(self) -> None:
        """Play what comes next, if anything does, and note when the act is over."""
        if self.began_at is None or self.ended_at is not None:
            return
        self._go_on()
        if self._is_over():
            self.ended_at = time.monotonic()
            self.view.say(f"{self.name}: over after {self.seconds:.0f} s")

    @abstractmethod
    def demands(self) -> Iterator[Demand]:
        """What must be so once the act is over."""

    # -- what it is about --

    @property
    def job_name(self) -> str:
        return self.name

    @property
    def comment(self) -> str:
        return f"workload=training ckpt={self.checkpoint}"

    @property
    def job(self) -> JobId:
        assert self._job is not None  # submitted first
        return self._job

    @property
    def before(self) -> JobStatus:
        """The job when its node was broken."""
        assert self._before is not None  # played first
        return self._before

    @property
    def checkpoint(self) -> Path:
        return self.view.stage.checkpoints / self.name

    @property
    def node(self) -> NodeName:
        """The node that is broken: the one whose process writes the checkpoint."""
        return min(self.before.nodes)

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """Every node that the act broke."""
        return () if self._before is None else (self.node,)

    @property
    def ends_with(self) -> IncidentState:
        """How the incidents of the act's nodes must end."""
        return IncidentState.RESOLVED

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    @property
    def seconds(self) -> float:
        assert self.began_at is not None  # asked once it is over
        assert self.ended_at is not None
        return self.ended_at - self.began_at

    def writes(self) -> tuple[Write, ...]:
        log = self.checkpoint.with_name(self.checkpoint.name + WRITE_LOG_SUFFIX)
        return read_writes(log.read_text()) if log.exists() else ()

    def how_it_stands(self) -> str:
        """Return the state of the act's incidents, job and node, for those who ask why it is not over."""
        incidents = "; ".join(
            f"{each.incident} {each.state.value} ({each.note[:NOTE_LENGTH]})"
            for node in self.nodes
            for each in self._incidents(node)
        )
        job = self.view.job(self.job)
        state = "unknown" if job is None else f"{job.state.value}{', held' if job.is_held else ''}"
        return f"incidents: {incidents or 'none'}; job {self.job} is {state}"

    @property
    def returned_by_people(self) -> Sequence[NodeName]:
        """The nodes that the drill itself put back into service, in an operator's part."""
        return ()

    @abstractmethod
    def _break(self) -> str: ...

    def _go_on(self) -> None:
        """Play the next step of an act that has several, once its moment has come."""
        return

    @abstractmethod
    def _is_over(self) -> bool: ...

    # -- what acts share --

    def _drop_gpu(self) -> None:
        self.view.stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, self.node, gpu=3)

    def _write_kernel_line(self, message: str) -> None:
        """Let the kernel of the act's node say something that its simulated hardware knows nothing of."""
        written_at = self.view.stage.cluster.clock.now().isoformat(timespec="microseconds")
        with self.view.stage.application_log.open("a") as file:
            file.write(f"{written_at} {self.node} kernel: [ 4711.000001] {message}\n")

    def _end_job(self) -> None:
        self.view.stage.slurm.cancel(self.job)

    def _mend(self, node: NodeName) -> None:
        """Do a technician's part: replace what is broken, and boot."""
        self.view.stage.twin.repair_by_hand(node)
        self.view.stage.slurm.reboot_node(node)

    def _is_paged(self) -> bool:
        return any(
            record.action.verb is Verb.PAGE_HUMAN and is_done(record) for record in self.view.records_of(self.node)
        )

    def _plans(self, node: NodeName) -> tuple[IncidentPlan, ...]:
        """Return the plans that were started for a node, in order."""
        ledger = self.view.stage.cluster.ledger
        names = dict.fromkeys(record.plan for record in self.view.records_of(node) if record.plan is not None)
        return tuple(plan for name in names if (plan := ledger.plan(name)) is not None)

    def _notices(self, job: JobId) -> tuple[str, ...]:
        """Return what the owner of a job was notified of, in order."""
        return tuple(
            record.action.text
            for record in self.view.records()
            if record.action.verb is Verb.NOTIFY_OWNER
            and record.action.attempt is not None
            and record.action.attempt.job == job
            and is_done(record)
        )

    def _incidents(self, node: NodeName) -> tuple[Incident, ...]:
        return self.view.incidents_of(node)

    def _await_record(self, verb: Verb) -> ActionRecord:
        """Return the before-entry of the node's first act of this kind, as soon as it is in the ledger."""
        found: list[ActionRecord] = []

        def has_begun() -> bool:
            found[:] = [record for record in self.view.records_of(self.node) if record.action.verb is verb]
            return bool(found)

        self.view.wait(
            f"{verb.value} of {self.node}", has_begun, limit_seconds=SOON_SECONDS, every_seconds=OFTEN_SECONDS
        )
        return found[0]

    def _is_handed_over(self) -> bool:
        """Return whether a person has what we could not end, and was notified."""
        incidents = self._incidents(self.node)
        return self._is_paged() and any(each.state is IncidentState.ESCALATED for each in incidents)

    def _is_going_on(self) -> bool:
        """Return whether a later attempt, away from the broken node, saves."""
        job, writes = self.view.job(self.job), self.writes()
        is_away = job is not None and job.state is JobState.RUNNING and self.node not in job.nodes
        return is_away and job is not None and bool(writes) and writes[-1].writer.node in job.nodes


class HealedAct(Act):
    """A fault after which the node is repaired and returned, and the job continues elsewhere."""

    story: Sequence[Verb] = (*MOVED, Verb.REBOOT, *RETURNED)
    is_job_moved = True

    def _is_over(self) -> bool:
        incidents = self._incidents(self.node)
        lost = [each for each in incidents if each.state is IncidentState.ESCALATED]
        if lost:
            return True  # Nothing more will come of it by itself; `demands` says so.
        is_closed = bool(incidents) and all(each.state is IncidentState.RESOLVED for each in incidents)
        is_healed = is_closed and self.view.is_in_service(self.node)
        return is_healed and (not self.is_job_moved or self._is_going_on())

    def demands(self) -> Iterator[Demand]:
        incidents = self._incidents(self.node)
        # Slurm 22.05 shows a node as silent for a moment after it was returned: seen, and gone before it is believed.
        acted_on = [each for each in incidents if each.plan_count > 0]
        yield Demand(
            is_so=len(acted_on) == 1, otherwise=f"{self.node} has {len(acted_on)} incidents that were acted on, not one"
        )
        verbs = done_verbs(self.view.records_of(self.node))
        told = ", ".join(verb.value for verb in verbs)
        yield Demand(is_so=verbs == tuple(self.story), otherwise=f"the ledger holds {told}")
        if self.is_job_moved:
            yield from self._job_demands()

    def _job_demands(self) -> Iterator[Demand]:
        after = self.view.job(self.job)
        if after is None or after.state is not JobState.RUNNING:
            state = "not answered for" if after is None else after.state.value
            yield Demand(is_so=False, otherwise=f"job {self.job} is {state}")
            return
        yield Demand(is_so=self.node not in after.nodes, otherwise=f"job {self.job} runs on {self.node} again")
        yield Demand(
            # Slurm counts requeues, not starts: one that had to be sent twice counts twice.
            is_so=after.restart_count > self.before.restart_count,
            otherwise=f"job {self.job} was not restarted",
        )
        yield Demand(
            is_so=saved_step(self.checkpoint) > self._saved_before,
            otherwise=f"job {self.job} lost its checkpoint: step {saved_step(self.checkpoint)}",
        )


def is_done(record: ActionRecord) -> bool:
    """Return whether an action was witnessed done, and not only found needless."""
    return record.outcome is not None and record.outcome.kind is OutcomeKind.DONE


def done_verbs(records: Sequence[ActionRecord]) -> tuple[Verb, ...]:
    """Return what was done to nodes and jobs, in order; messages are people's business.

    Room kept free is left out: a plan continues without it, and whether there is any is the moment's chance.
    """
    return tuple(
        record.action.verb for record in records if is_done(record) and record.action.verb not in MESSAGES | SOFT
    )
