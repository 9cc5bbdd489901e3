"""The fixed drill of `make lab ONCE=1`: a GPU falls off under a real job, later the job itself errs.

The end is judged on what Slurm says, on the checkpoint file and on the ledger. Bringing the lab up is `lab`'s business.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console

from ops_pipelines.domain.action import OutcomeKind, Verb
from ops_pipelines.domain.finding import Response
from ops_pipelines.domain.identity import JobId, NodeName
from ops_pipelines.domain.incident import Incident, IncidentState
from ops_pipelines.domain.observation import JobState, JobStatus, NodeStatus
from ops_pipelines.drills.daemon_processes import wait_until
from ops_pipelines.drills.slurm_cluster import SlurmCluster
from ops_pipelines.drills.stack import DagsterStack
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.simulator.journal import FaultKind
from ops_pipelines.simulator.twin import Twin

_HEAL_LIMIT_SECONDS = 180.0


class DrillError(RuntimeError):
    """The drill did not end as stated. The message says what was found."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What the drill plays on."""

    cluster: Cluster
    slurm: SlurmCluster
    twin: Twin
    stack: DagsterStack
    checkpoints: Path
    application_log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Story:
    """What must be so, and how it reads when it is not."""

    is_so: bool
    otherwise: str


class LabDrill:
    """The drill, step by step."""

    def __init__(self, stage: Stage, console: Console) -> None:
        self._stage = stage
        self._twin = stage.twin
        self._cluster = stage.cluster
        self._console = console
        self._began = time.monotonic()
        self._since = self._cluster.clock.now()

    def run(self) -> None:
        """Raise DrillError with the first thing that is not as stated."""
        self._await("metrics of all nodes", self._sees_all_nodes, 60.0)
        checkpoint = self._stage.checkpoints / "checkpoint"
        job = self._stage.slurm.submit_training(
            name="pretrain", node_count=2, comment=f"workload=training ckpt={checkpoint}", checkpoint=checkpoint
        )
        self._await("the job to save its first checkpoint", lambda: _saved_step(checkpoint) > 0, 60.0)
        before = self._job(job)
        bad = min(before.nodes)
        saved_before = _saved_step(checkpoint)
        self._say(f"job {job} trains on {', '.join(sorted(before.nodes))}, saved step {saved_before}")

        self._twin.inject(FaultKind.GPU_FELL_OFF_BUS, bad, gpu=3)
        self._say(f"broke {bad}: Xid 79 in its kernel log, its series vanish")
        reason = self._await_reason(bad)
        self._say(f"{bad} is drained: {reason}")
        self._await("the node to be verified and returned", lambda: self._is_healed(bad), _HEAL_LIMIT_SECONDS)
        self._await("the job to pass its checkpoint", lambda: _saved_step(checkpoint) > saved_before, 60.0)
        after = self._job(job)
        self._check_healed(bad, before, after, reason)
        self._say(f"job {job} went on from its checkpoint on {', '.join(sorted(after.nodes))}; {bad} is back")

        node = max(after.nodes)
        self._write_application_xid(node)
        self._say(f"application Xid 31 on {node}")
        self._await("the owner to be told", lambda: self._told_owner() is not None, 60.0)
        self._check_application_error(job, after)
        self._tell_ledger()

    def _check_healed(self, bad: NodeName, before: JobStatus, after: JobStatus, reason: str) -> None:
        incident = self._incident_of(bad)
        verbs = [
            record.action.verb
            for record in self._cluster.ledger.records(incident.incident)
            if record.outcome is not None
            and record.outcome.kind is OutcomeKind.DONE
            and record.action.verb is not Verb.NOTIFY_OWNER
        ]
        story = [Verb.DRAIN, Verb.HOLD, Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE, Verb.REBOOT, Verb.RESUME]
        _demand(
            _Story(is_so=incident.incident in reason and "79" in reason, otherwise=f"the drain reason is {reason!r}"),
            _Story(is_so=verbs == story, otherwise=f"the ledger holds {', '.join(verb.value for verb in verbs)}"),
            _Story(is_so=after.state is JobState.RUNNING, otherwise=f"job {after.job} is {after.state.value}"),
            _Story(is_so=bad not in after.nodes, otherwise=f"job {after.job} runs on {bad} again"),
            _Story(
                # Slurm counts requeues, not starts: one that had to be sent twice counts twice.
                is_so=after.restart_count > before.restart_count,
                otherwise=f"job {after.job} was not restarted",
            ),
        )

    def _check_application_error(self, job: JobId, before: JobStatus) -> None:
        told = self._told_owner()
        assert told is not None  # awaited just before
        records = self._cluster.ledger.records(told.incident)
        drained = [node.node for node in self._cluster.scheduler.read_nodes() if node.is_drained]
        now = self._job(job)
        _demand(
            _Story(
                is_so={record.action.verb for record in records} == {Verb.NOTIFY_OWNER},
                otherwise="more was done than telling the owner",
            ),
            _Story(is_so=not drained, otherwise=f"the application error cost {', '.join(drained)}"),
            _Story(is_so=now.started_at == before.started_at, otherwise=f"job {job} was restarted"),
        )

    def _tell_ledger(self) -> None:
        verdict = self._cluster.ledger.verify_chain()
        _demand(_Story(is_so=verdict.first_broken_seq is None, otherwise=f"the ledger is broken: {verdict.problem}"))
        for incident in self._cluster.ledger.incidents_since(self._since):
            self._console.print(f"  {incident.incident} {incident.state.value}: {incident.cause}", markup=False)
            for record in self._cluster.ledger.records(incident.incident):
                witness = record.outcome.witness if record.outcome is not None else "under way"
                self._console.print(
                    f"    {record.begun_at:%H:%M:%S} {record.action.verb.value} {record.action.target}: {witness}",
                    markup=False,
                )
        self._console.print(f"  {verdict.entry_count} entries, chain whole, head {verdict.head_hash[:16]}")

    def _sees_all_nodes(self) -> bool:
        samples = self._cluster.telemetry.read_samples(self._cluster.clock.now())
        return len({sample.labels.get("Hostname") for sample in samples}) == len(self._stage.slurm.node_names)

    def _await_reason(self, node: NodeName) -> str:
        self._await("the broken node to be drained", lambda: self._node(node).is_drained, 60.0)
        return self._node(node).reason or ""

    def _is_healed(self, node: NodeName) -> bool:
        found = [each for each in self._incidents() if node in each.nodes]
        lost = [each for each in found if each.state is IncidentState.ESCALATED]
        if lost:
            raise DrillError(f"{lost[0].incident} was handed to a human: {lost[0].note}")
        status = self._node(node)
        is_closed = bool(found) and all(each.state is IncidentState.RESOLVED for each in found)
        return is_closed and not status.is_drained and status.is_responding

    def _incident_of(self, node: NodeName) -> Incident:
        found = [each for each in self._incidents() if node in each.nodes]
        if len(found) != 1:
            raise DrillError(f"{node} has {len(found)} incidents, one was expected")
        return found[0]

    def _told_owner(self) -> Incident | None:
        wanted = [
            each
            for each in self._incidents()
            if each.response is Response.NOTIFY_OWNER and each.state is IncidentState.RESOLVED
        ]
        return wanted[0] if wanted else None

    def _incidents(self) -> tuple[Incident, ...]:
        return self._cluster.ledger.incidents_since(self._since)

    def _node(self, name: NodeName) -> NodeStatus:
        return next(node for node in self._cluster.scheduler.read_nodes() if node.node == name)

    def _job(self, job: JobId) -> JobStatus:
        return next(each for each in self._cluster.scheduler.read_jobs() if each.job == job)

    def _write_application_xid(self, node: NodeName) -> None:
        now: datetime = self._cluster.clock.now()
        line = (
            f"{now.isoformat(timespec='microseconds')} {node} kernel: [ 4711.000001] NVRM: Xid (PCI:0000:1b:00): 31, "
            "pid=4711, name=python3, Ch 00000007, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_6 faulted\n"
        )
        with self._stage.application_log.open("a") as file:
            file.write(line)

    def _await(self, what: str, is_so: Callable[[], bool], limit_seconds: float) -> None:
        self._stage.stack.refuse_dead()
        wait_until(what, is_so, timeout_seconds=limit_seconds, every_seconds=0.3)

    def _say(self, what: str) -> None:
        self._console.print(f"{time.monotonic() - self._began:5.0f} s  {what}", markup=False, soft_wrap=True)


def _saved_step(checkpoint: Path) -> int:
    """Return the step in the checkpoint; 0 if there is none yet."""
    try:
        return int(checkpoint.read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _demand(*stories: _Story) -> None:
    for story in stories:
        if not story.is_so:
            raise DrillError(story.otherwise)
