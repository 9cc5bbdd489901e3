"""The acts that interrupt us in the middle of a healing: controller, accounting, run worker and database die.

Each comes in the moment in which it hurts most, and the healing must end as if it had not.
"""

from collections.abc import Iterator

from ops_pipelines.core.action import Verb
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import JobState
from ops_pipelines_lab.drills.lab_act import OFTEN_SECONDS, SOON_SECONDS, HealedAct, done_verbs
from ops_pipelines_lab.drills.lab_stage import Demand, DrillError, LabView, saved_step

_SETTLED_SECONDS = 10.0
"""slurmctld saves its state about every 5 s: a job older than this is not lost with it."""
_TRIES = 3
"""How often a moment of some tenths of a second is tried to be hit, each time on another node."""


class ControllerKilled(HealedAct):
    """slurmctld dies with the drain that it has just taken and not yet saved: when it is back, it knows of none."""

    fault = "slurmctld killed in mid-drain"
    _has_forgotten = False

    def _break(self) -> str:
        slurm = self.view.stage.slurm
        self.view.wait("the jobs to be on Slurm's disk", self._is_settled, limit_seconds=SOON_SECONDS)
        # slurmctld saves at most once in 5 s: what follows this remark within that time is not on its disk.
        slurm.remark(self.node, "about to lose a GPU")
        self._drop_gpu()
        self.view.wait("Slurm to take the drain", self._is_drained, limit_seconds=SOON_SECONDS, every_seconds=0.01)
        slurm.kill_controller()
        slurm.start_controller()
        status = self.view.nodes().get(self.node)
        self._has_forgotten = status is not None and not status.is_drained
        return (
            f"Xid 79 on {self.node}; slurmctld killed when it had taken the drain, and started again"
            f"{', having forgotten it' if self._has_forgotten else ''}"
        )

    @property
    def ends_with(self) -> IncidentState:
        """A drain that was witnessed and is gone may be an operator's doing: to tell a person is right, too."""
        is_noticed = self._has_forgotten and self._is_handed_over()
        return IncidentState.ESCALATED if is_noticed else IncidentState.RESOLVED

    def demands(self) -> Iterator[Demand]:
        if self.ends_with is IncidentState.RESOLVED:
            yield from super().demands()
            return
        self.did += "; noticed, and a person was paged"
        job = self.view.job(self.job)
        yield Demand(
            is_so=job is not None and job.state is JobState.RUNNING and not job.is_held,
            otherwise=f"job {self.job} does not go on",
        )

    def _is_drained(self) -> bool:
        status = self.view.nodes().get(self.node)
        return status is not None and status.is_drained

    def _is_settled(self) -> bool:
        started_at = self.before.started_at
        now = self.view.stage.cluster.clock.now()
        return started_at is not None and (now - started_at).total_seconds() > _SETTLED_SECONDS


class AccountingDown(HealedAct):
    """slurmdbd is down from before the fault until the node is healed: nothing of ours may wait for it."""

    fault = "slurmdbd down during a healing"
    _is_mended = False

    def _break(self) -> str:
        self.view.stage.slurm.kill_accounting()
        self._drop_gpu()
        return f"slurmdbd killed, then Xid 79 on {self.node}"

    def look(self) -> None:
        super().look()
        if self.is_over and not self._is_mended:
            self._is_mended = True
            self.view.stage.slurm.start_accounting()
            self.view.say(f"{self.name}: slurmdbd is started again")

    def demands(self) -> Iterator[Demand]:
        yield Demand(is_so=self._is_mended, otherwise="slurmdbd was not started again")
        yield from super().demands()


class WorkerKilled(HealedAct):
    """The run worker dies between plan and act; the next run reads the ledger and goes on."""

    fault = "run worker killed between plan and act"

    def __init__(self, view: LabView, name: str) -> None:
        super().__init__(view, name)
        self._broken: list[NodeName] = []
        self._hit: NodeName | None = None

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        return tuple(self._broken)

    @property
    def node(self) -> NodeName:
        return self._broken[-1] if self._broken else super().node

    def _break(self) -> str:
        for number in range(1, _TRIES + 1):
            if number > 1:
                self._begin_with_another_job()
            self._broken.append(min(self.before.nodes))
            self._drop_gpu()
            self._await_first_step()
            killed_count = self.view.stage.stack.kill_run_workers()
            if killed_count > 0 and not self._has_acted():
                self._hit = self.node
                return f"Xid 79 on {self.node}; run worker killed before the first act beyond the drain (try {number})"
            self.view.say(f"{self.name}: the moment was missed on {self.node}")
        return f"Xid 79 on {', '.join(self._broken)}; no kill came between plan and act"

    def _begin_with_another_job(self) -> None:
        """Submit the job anew: one that was moved as often as policy.yaml allows is left alone."""
        self._end_job()
        self.view.wait("the job to be gone", self._is_job_gone, limit_seconds=SOON_SECONDS)
        saved_before = saved_step(self.checkpoint)
        self.submit()
        self.view.wait(
            "the next job to save", lambda: saved_step(self.checkpoint) > saved_before, limit_seconds=SOON_SECONDS
        )
        again = self.view.job(self.job)
        if again is None or not again.nodes:
            raise DrillError(f"job {self.job} is not running, so {self.name} cannot be played again")
        self._before, self._saved_before = again, saved_step(self.checkpoint)

    def _is_job_gone(self) -> bool:
        job = self.view.job(self.job)
        return job is None or job.state is JobState.CANCELLED

    def _await_first_step(self) -> None:
        """Return once a run has begun the plan: a step beyond the drain has its before-entry."""

        def has_begun() -> bool:
            return any(record.action.verb is not Verb.DRAIN for record in self.view.records_of(self.node))

        self.view.wait("a run to begin the plan", has_begun, limit_seconds=SOON_SECONDS, every_seconds=OFTEN_SECONDS)

    def _has_acted(self) -> bool:
        acted = set(done_verbs(self.view.records_of(self.node))) - {Verb.DRAIN}
        return bool(acted)

    def _is_over(self) -> bool:
        return all(self.view.is_in_service(node) for node in self._broken[:-1]) and super()._is_over()

    def demands(self) -> Iterator[Demand]:
        yield Demand(is_so=self._hit is not None, otherwise=f"the moment was missed {len(self._broken)} times")
        yield from super().demands()


class DatabaseRestarted(HealedAct):
    """PostgreSQL crashes and comes back while an act is under way: what it had confirmed is still there."""

    fault = "PostgreSQL restarted (immediate) in mid-action"

    def _break(self) -> str:
        self._drop_gpu()
        record = self._await_record(Verb.HOLD)
        self.view.stage.postgres.restart()
        verb = record.action.verb.value
        return f"Xid 79 on {self.node}; PostgreSQL killed after the before-entry of {verb}, and started again"
