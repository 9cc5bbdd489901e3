"""What the stories of the ladder start from: a small twin, short waits, a console for what the twin does not break.

The twin breaks at once what it breaks; a fault that lets a job continue for hours is reported by its kernel line alone.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import NodeName, PlanId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.sources import LogBatch, LogLine
from ops_pipelines_lab.simulator import kernel_lines
from ops_pipelines_lab.simulator.hardware import slot_address
from ops_pipelines_lab.simulator.journal import EntryKind
from ops_pipelines_lab.simulator.scenario import JobSpec
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.small_cluster import TRAINING

HASTY = replace(POLICY, durations=replace(POLICY.durations, run_patience=timedelta(seconds=1)))
WATCHFUL = replace(
    HASTY, durations=replace(HASTY.durations, soak=timedelta(seconds=6), probation=timedelta(seconds=30))
)
"""Returned nodes are on probation for half a minute."""
SMALL_TRAINING = replace(TRAINING, node_count=1, gpus_per_node=2)


class Console:
    """A second source of kernel lines, written by the test."""

    source = "console"

    def __init__(self) -> None:
        self._lines: list[LogLine] = []

    def say(self, node: str, message: str, at: datetime) -> None:
        text = f"{at.isoformat(timespec='microseconds')} {node} kernel: [ 9000.000001] {message}"
        self._lines.append(LogLine(node=node, written_at=at, position=f"c:{len(self._lines)}", text=text))

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        first = int(cursor or 0)
        lines = tuple(self._lines[first : first + max_lines])
        return LogBatch(lines=lines, cursor=str(first + len(lines)))


class Stage(SmallAutopilot):
    """A small autopilot that also reads a console. Its passes wait for no soaking node: that is what costs time."""

    verify_patience = timedelta(0)

    def __init__(
        self, directory: Path, *jobs: JobSpec, node_count: int = 3, gpus_per_node: int = 2, **options: object
    ) -> None:
        super().__init__(
            directory, *jobs, node_count=node_count, gpus_per_node=gpus_per_node, **{"policy": WATCHFUL} | options
        )  # type: ignore[arg-type]  # passed on as they are
        self.console = Console()
        self.cluster = replace(self.cluster, logs=(*self.cluster.logs, self.console))
        self.let_pass(15)

    def remap_row(self, node: str, gpu: int) -> None:
        """Let a GPU note a bad row: it works on, and wants a reset when its job has ended (Xid 63)."""
        self.console.say(node, kernel_lines.row_remap(slot_address(gpu), 0x1000), self.clock.now())

    def reach(self, time: datetime) -> None:
        """Let time pass without a look at anything."""
        self.let_pass((time - self.clock.now()).total_seconds())

    @property
    def plan(self) -> IncidentPlan:
        """The plan in force of the one incident."""
        plan = None if self.incident().plan is None else self.cluster.ledger.plan(PlanId(str(self.incident().plan)))
        assert plan is not None
        return plan

    def records_of(self, verb: Verb) -> list[ActionRecord]:
        """Return every record of an act of this kind, oldest first."""
        return [
            record
            for incident in self.incidents()
            for record in self.cluster.ledger.records(incident.incident)
            if record.action.verb is verb
        ]

    def when(self, kind: EntryKind) -> list[datetime]:
        """Return when the cluster got commands of this kind."""
        return [entry.at for entry in self.received(kind)]


def tried(incident: Incident) -> list[Response]:
    return [each.response for each in incident.tries]


def node_of(autopilot: SmallAutopilot, job: str) -> NodeName:
    (name,) = autopilot.job(job).nodes
    return name
