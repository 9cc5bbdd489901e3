"""The acts that break a node, a job or a drain: what the cluster does to us.

What a repair does not help is in `lab_ladder`, when jobs are moved in `lab_moments`, what is broken of our own
machinery in `lab_interruptions`, what must hold over all acts together in `lab_judge`.
"""

from collections.abc import Iterator
from datetime import datetime

from ops_pipelines.core.action import Verb
from ops_pipelines.core.finding import Response
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobState
from ops_pipelines_lab.drills.daemon_processes import born_at
from ops_pipelines_lab.drills.lab_act import OFTEN_SECONDS, RETURNED, SOON_SECONDS, Act, HealedAct, done_verbs, is_done
from ops_pipelines_lab.drills.lab_stage import Demand, LabView

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
    """Xid 31: the program's own doing. Its owner is told; nothing else."""

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
        return f"slurmd of {self.node} killed; {len(self._orphans)} processes of the job go on there"

    def demands(self) -> Iterator[Demand]:
        yield from super().demands()
        if self._killed_at is None:
            return
        killed_at = self._killed_at.timestamp() * 1e6
        first = [write for write in self.writes() if write.writer.node == self.node]
        last_written = max((write.at_microseconds for write in first), default=0)
        yield Demand(
            is_so=bool(self._orphans) and last_written > killed_at,
            otherwise=f"nothing of the job went on writing on {self.node}, so the fence was not put to the test",
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
            otherwise=f"job {self.job} did not go on elsewhere",
        )


class ForeignDrainMeanwhile(ForeignDrainBefore):
    """An operator takes the node over while we are at it: whatever we had begun, we do not return it."""

    fault = "foreign drain over ours, incident open"
    _reason = "OPS-18 hands off"
    # What was begun before the operator came may have been done; never the return.
    _forbidden = frozenset({Verb.RESUME})

    def _break(self) -> str:
        self._drop_gpu()
        self.view.wait("our drain", self._is_ours, limit_seconds=SOON_SECONDS, every_seconds=OFTEN_SECONDS)
        self.view.stage.slurm.drain_as_operator(self.node, reason=self.reason)
        return f"Xid 79 on {self.node}; after our drain an operator drained it too ({self.reason})"

    def _is_ours(self) -> bool:
        return Verb.DRAIN in done_verbs(self.view.records_of(self.node))
