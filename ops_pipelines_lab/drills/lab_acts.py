"""The acts that break a node, a job or a drain: what the cluster does to us. Among them the act whose names and reasons
mean ill, and those that interrupt a repair.

What a repair does not help is in `lab_ladder`, when jobs are moved in `lab_moments`, what must hold over all acts
together in `lab_judge`. Each hostile name would do harm in a shell or in markup; the proof is a file that each of them
would make: none may exist. Slurm itself takes all of this from any user. Controller, accounting, run worker and
database die in the moment in which it hurts most, and the repair must end as if they had not.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from ops_pipelines.core.action import Verb
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobState
from ops_pipelines_lab.drills.daemon_processes import born_at
from ops_pipelines_lab.drills.lab_act import OFTEN_SECONDS, RETURNED, SOON_SECONDS, Act, HealedAct, done_verbs, is_done
from ops_pipelines_lab.drills.lab_stage import Demand, DrillError, LabView, saved_step

_POWER_CYCLED = (
    *(Verb.MARK, Verb.HOLD, Verb.DRAIN, Verb.POWER_OFF, Verb.DECLARE_DOWN, Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE),
    *(Verb.POWER_ON, *RETURNED),
)


class GpuFallsOff(HealedAct):
    """The plain case."""

    fault = "a GPU falls off the bus"
    node_count = 2

    def _break(self) -> str:
        self._drop_gpu()
        return f"Xid 79 on {self.node}, its series vanish"


class ApplicationErrs(Act):
    """Xid 31: the program's own doing. Its owner is notified; nothing else."""

    fault = "application error (Xid 31)"

    def _break(self) -> str:
        self._write_kernel_line(
            "NVRM: Xid (PCI:0000:1b:00): 31, pid=4711, name=python3, Ch 00000007, intr 00000000. "
            "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_6 faulted"
        )
        return f"Xid 31 of job {self.job} on {self.node}"

    def _told(self) -> tuple[Incident, ...]:
        return tuple(
            each
            for each in self.view.incidents()
            if each.response is Response.NOTIFY_OWNER and any(victim.job == self.job for victim in each.victims)
        )

    def _is_over(self) -> bool:
        return any(each.state is IncidentState.RESOLVED for each in self._told())

    def demands(self) -> Iterator[Demand]:
        ledger = self.view.stage.cluster.ledger
        verbs = [record.action.verb for each in self._told() for record in ledger.records(each.incident)]
        yield Demand(
            is_so=verbs == [Verb.NOTIFY_OWNER],
            otherwise=f"for an application error the ledger holds {[verb.value for verb in verbs]}",
        )
        yield Demand(is_so=self.view.is_in_service(self.node), otherwise=f"the application error cost {self.node}")
        now = self.view.job(self.job)
        yield Demand(
            is_so=now is not None and now.started_at == self.before.started_at,
            otherwise=f"job {self.job} was restarted for its own error",
        )


class SilentNode(HealedAct):
    """slurmd dies, its job's processes do not: they must be gone before a second copy starts."""

    fault = "kill -9 of slurmd under the running job"
    node_count = 2
    story = _POWER_CYCLED

    def __init__(self, view: LabView, name: str) -> None:
        super().__init__(view, name)
        self._killed_at: datetime | None = None
        self._orphans: dict[int, int] = {}

    def _break(self) -> str:
        slurm = self.view.stage.slurm
        slurm.kill_node(self.node)
        self._killed_at = self.view.stage.cluster.clock.now()
        self._orphans = slurm.find_processes_of(self.node)
        return f"slurmd of {self.node} killed; {len(self._orphans)} processes of the job keep running there"

    def demands(self) -> Iterator[Demand]:
        yield from super().demands()
        if self._killed_at is None:
            return
        killed_at = self._killed_at.timestamp() * 1e6
        first = [write for write in self.writes() if write.writer.node == self.node]
        last_written = max((write.at_microseconds for write in first), default=0)
        yield Demand(
            is_so=bool(self._orphans) and last_written > killed_at,
            otherwise=f"nothing of the job kept writing on {self.node}, so the fence was not put to the test",
        )
        off = [record for record in self.view.records_of(self.node) if record.action.verb is Verb.POWER_OFF]
        witnessed_at = [record.outcome.finished_at.timestamp() * 1e6 for record in off if record.outcome is not None]
        yield Demand(
            is_so=bool(witnessed_at) and last_written < min(witnessed_at),
            otherwise=f"{self.node} still wrote after it was witnessed without power",
        )
        living = [pid for pid, born in self._orphans.items() if born_at(pid) == born]
        yield Demand(is_so=not living, otherwise=f"{len(living)} processes of the first attempt still live")

    def is_held(self) -> bool:
        """Return whether the job can no longer start elsewhere by itself."""
        return any(record.action.verb is Verb.HOLD and is_done(record) for record in self.view.records_of(self.node))


class ForeignDrainBefore(Act):
    """An operator has the node already when its GPU falls off: its job is moved, the node is left to them."""

    fault = "foreign drain just before ours"
    _reason = "OPS-17 cable swap"
    _forbidden = frozenset({Verb.DRAIN, Verb.REBOOT, Verb.RESET_GPU, Verb.POWER_OFF, Verb.POWER_ON, Verb.RESUME})

    @property
    def reason(self) -> str:
        return self._reason

    @property
    def ends_with(self) -> IncidentState:
        return IncidentState.ESCALATED

    def _break(self) -> str:
        self.view.stage.slurm.drain_as_operator(self.node, reason=self.reason)
        self._drop_gpu()
        return f"an operator drained {self.node} ({self.reason}), then Xid 79 there"

    def _is_over(self) -> bool:
        incidents = self._incidents(self.node)
        is_handed_over = bool(incidents) and all(each.state is IncidentState.ESCALATED for each in incidents)
        return is_handed_over and self._is_going_on()

    def demands(self) -> Iterator[Demand]:
        status = self.view.nodes().get(self.node)
        kept = status is not None and status.is_drained and status.reason == self.reason
        yield Demand(
            is_so=kept,
            otherwise=f"{self.node} should be drained for {self.reason!r}; "
            + ("it is not answered for" if status is None else f"drained: {status.is_drained}, {status.reason!r}"),
        )
        records = self.view.records_of(self.node)
        done = done_verbs(records)
        wrong = [verb.value for verb in done if verb in self._forbidden]
        yield Demand(is_so=not wrong, otherwise=f"{self.node} is somebody else's, yet the ledger holds {wrong}")
        yield Demand(is_so=self._is_handed_over(), otherwise=f"nobody was paged about {self.node}")
        after = self.view.job(self.job)
        yield Demand(
            is_so=after is not None and after.state is JobState.RUNNING and self.node not in after.nodes,
            otherwise=f"job {self.job} did not continue elsewhere",
        )


class ForeignDrainMeanwhile(ForeignDrainBefore):
    """An operator takes the node over while we are at it: whatever we had started, we do not return it."""

    fault = "foreign drain over ours, incident open"
    _reason = "OPS-18 hands off"
    # What was started before the operator came may have been done; never the return.
    _forbidden = frozenset({Verb.RESUME})

    def _break(self) -> str:
        self._drop_gpu()
        self.view.wait("our drain", self._is_ours, limit_seconds=SOON_SECONDS, every_seconds=OFTEN_SECONDS)
        self.view.stage.slurm.drain_as_operator(self.node, reason=self.reason)
        return f"Xid 79 on {self.node}; after our drain an operator drained it too ({self.reason})"

    def _is_ours(self) -> bool:
        return Verb.DRAIN in done_verbs(self.view.records_of(self.node))


_MARKUP = "<img src=x onerror=alert(1)>"


class HostileWords(ForeignDrainBefore):
    """A job's name and comment, and an operator's reason, with quotes, commands, markup, lines of their own."""

    fault = "hostile job name, comment and reason"

    @property
    def _canary(self) -> Path:
        return self.view.stage.checkpoints / "canary"

    @property
    def _spell(self) -> str:
        touch = f"touch {self._canary}"
        return f"'; {touch}1 #\"; {touch}2 #`{touch}3`$({touch}4) {_MARKUP} |[x](javascript:alert(1))|"

    @property
    def job_name(self) -> str:
        return f"{self._spell}\nJobId=1 JobName=x\nNodeList=gpu001 JobState=COMPLETED\n{{node}} {{reason}}"

    @property
    def comment(self) -> str:
        return f"{super().comment} {self._spell}\nNodeList=gpu001 service={self._spell} min_serving=9"

    @property
    def reason(self) -> str:
        return f"OPS-19 {self._spell} NodeList=gpu001 State=RESUME {{node}}"

    def _break(self) -> str:
        super()._break()
        return f"an operator drained {self.node} with a hostile reason, then Xid 79 under a job with a hostile name"

    def demands(self) -> Iterator[Demand]:
        yield from super().demands()
        made = sorted(path.name for path in self._canary.parent.glob(f"{self._canary.name}*"))
        yield Demand(is_so=not made, otherwise=f"something reached a shell: {', '.join(made)} exist")
        job = self.view.job(self.job)
        is_whole = job is not None and job.name == self.job_name
        yield Demand(is_so=is_whole, otherwise=f"the job reads as {None if job is None else job.name!r}")
        messages = self.view.stage.around.site.messages.read_text(encoding="utf-8")
        yield Demand(
            is_so=bool(messages) and self._canary.name not in messages and "onerror" not in messages,
            otherwise="words of the job or of the reason are in the messages",
        )
        for incident in self._incidents(self.node):
            report = self.view.command("repair", "report", incident.incident)
            yield Demand(is_so=_MARKUP not in report, otherwise=f"the report on {incident.incident} holds live markup")
            shown = self.view.command("show", incident.incident)
            steering = sorted({char for char in shown if not (char.isprintable() or char == "\n")})
            yield Demand(is_so=not steering, otherwise=f"{incident.incident} is shown with {steering}")


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
            otherwise=f"job {self.job} does not continue",
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
    """The run worker dies between plan and act; the next run reads the ledger and continues."""

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
        """Submit the job again: one that was moved as often as policy.yaml allows is left alone."""
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
        """Return once a run has started the plan: a step beyond the drain has its before-entry."""

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
