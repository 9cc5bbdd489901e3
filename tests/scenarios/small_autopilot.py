"""The whole loop without Dagster: twin, ledger and flow on a clock that tests advance."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import IncidentId, Place, Topology, digest_of
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.notes import Audience, Message
from ops_pipelines.core.observation import JobStatus, NodeStatus
from ops_pipelines.core.plan import IncidentPlan, Rules
from ops_pipelines.core.policy import DrainBudget, Durations, MassEvent, Mode, Policy
from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.carry_out import carry_out, plans_to_carry_out
from ops_pipelines.remediate.decide import decide
from ops_pipelines.remediate.gate import prove_and_record, unproved_in_force
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.remediate.snapshot import take_snapshot
from ops_pipelines.remediate.verify import verify_repaired
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines.resources.documents import encode
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.state_files import PauseFile
from ops_pipelines_lab.simulator.adapters import SimulatedFleet, SimulatedLogs, SimulatedScheduler, SimulatedTelemetry
from ops_pipelines_lab.simulator.journal import NOT_COMMANDS, Entry, EntryKind
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, JobSpec, Scenario, SimulatedDurations, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin
from ops_pipelines_lab.simulator.versions import ReleaseFault
from tests.simulator.fake_clock import BEGINNING, FakeClock

POLICY = Policy(
    mode=Mode.AUTO,
    drain_budget=DrainBudget(max_out_count=4, max_out_per_rack_count=4, min_in_service_ratio=0.5),
    mass_event=MassEvent(min_node_count=6, window=timedelta(seconds=60)),
    durations=Durations(
        confirm_unreachable_after=timedelta(seconds=5),
        confirm_gpu_missing_after=timedelta(seconds=5),
        telemetry_stale_after=timedelta(seconds=12),
        run_patience=timedelta(seconds=12),
        soak=timedelta(seconds=5),
        fence_limit=timedelta(seconds=30),
        reset_limit=timedelta(seconds=30),
        reboot_limit=timedelta(seconds=60),
        probation=timedelta(0),
    ),
)


COMMANDS = tuple(kind for kind in EntryKind if kind not in NOT_COMMANDS)


class MessagesInMemory:
    """A notifier that keeps what it was given."""

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self.messages = list(messages)

    def send(self, message: Message) -> str:
        self.messages.append(message)
        return f"message {len(self.messages)}"


class SlowLoop:
    """The autopilot's clock on a busy machine: a poll that wants to wait for 0.2 s comes back after a second.

    Nothing may depend on how often it polls, and each poll costs a test as much as a pass of another.
    """

    shortest_wait_seconds = 1.0

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()

    def wait(self, seconds: float) -> None:
        self._clock.wait(max(seconds, self.shortest_wait_seconds))


@cache
def _empty_ledger() -> bytes:
    """Return the file of a ledger that was just made: a thousand tests begin with one, and migrations cost time."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "ledger.sqlite"
        SqlLedger(f"sqlite:///{file}").close()
        return file.read_bytes()


class SmallAutopilot:
    """A twin of `node_count` nodes with the given jobs, and the autopilot on it."""

    verify_patience = timedelta(seconds=5)
    """How long a pass waits for nodes that soak."""

    def __init__(
        self,
        directory: Path,
        *jobs: JobSpec,
        node_count: int = 12,
        gpus_per_node: int = 8,
        policy: Policy = POLICY,
        ledger_url: str | None = None,
        release_faults: tuple[ReleaseFault, ...] = (),
        durations: SimulatedDurations = SHORT_DURATIONS,
        has_start_guard: bool = False,
    ) -> None:
        self.clock = FakeClock()
        self.ledger_url = ledger_url
        self.messages = MessagesInMemory()
        self.failures: list[str] = []
        """Passes that ended with a source that did not answer, as runs that fail in Dagster."""
        scenario = Scenario(
            nodes=cluster_nodes(node_count),
            gpus_per_node=gpus_per_node,
            durations=durations,
            initial_jobs=jobs,
            release_faults=release_faults,
            has_start_guard=has_start_guard,
        )
        self._begin_on(directory, Twin.create(directory / "twin", scenario, seed=7, clock=self.clock), policy)

    @classmethod
    def on_disk(
        cls, directory: Path, *, at: datetime, messages: MessagesInMemory, policy: Policy = POLICY
    ) -> "SmallAutopilot":
        """Return a new process, started at `at`, on a directory that another one left behind in whatever state."""
        autopilot = cls.__new__(cls)
        autopilot.clock = FakeClock()
        autopilot.ledger_url = None
        autopilot.clock.wait((at - BEGINNING).total_seconds())
        autopilot.messages = messages
        autopilot.failures = []
        autopilot._begin_on(directory, Twin.attach(directory / "twin", autopilot.clock), policy)
        return autopilot

    def _begin_on(self, directory: Path, twin: Twin, policy: Policy) -> None:
        self.directory = directory
        self.twin = twin
        scenario = twin.scenario
        topology = Topology(
            places={
                node.name: Place(rack=node.rack, nvlink_domain=node.name, leaf_switch=node.leaf_switch)
                for node in scenario.nodes
            },
            gpus_per_node=scenario.gpus_per_node,
        )
        self.cluster = Cluster(
            name="small",
            scheduler=SimulatedScheduler(self.twin),
            fleet=SimulatedFleet(self.twin),
            telemetry=SimulatedTelemetry(self.twin),
            logs=(SimulatedLogs(self.twin),),
            ledger=self._open_ledger(),
            notifier=self.messages,
            clock=SlowLoop(self.clock),
            rules=Rules(policy=policy, topology=topology, catalogue=read_catalogue()),
            rules_digest=digest_of("rules of the test"),
        )
        self.lease = Lease(holder="test", given=None)
        self._plans: tuple[IncidentPlan, ...] = ()
        self._refusals: tuple[tuple[IncidentId, Refusal], ...] = ()

    def _open_ledger(self) -> SqlLedger:
        file = self.directory / "ledger.sqlite"
        if self.ledger_url is None and not file.exists():
            file.write_bytes(_empty_ledger())
        return SqlLedger(self.ledger_url or f"sqlite:///{file}", pause_file=PauseFile(self.directory))

    def restart(self) -> None:
        """End this process and begin another one on the same disk: nothing that was only in memory is left."""
        self._begin_on(self.directory, Twin.attach(self.directory / "twin", self.clock), self.cluster.rules.policy)

    def use_policy(self, policy: Policy) -> None:
        """Continue under another policy, as after an edit of policy.yaml."""
        rules = replace(self.cluster.rules, policy=policy)
        self.cluster = replace(self.cluster, rules=rules, rules_digest=digest_of("rules of the test", encode(policy)))

    def let_pass(self, seconds: float) -> None:
        self.clock.wait(seconds)

    def observe_and_decide(self) -> None:
        """Do what the steps up to `remediation_plan` do."""
        snapshot = take_snapshot(self.cluster).snapshot
        decision = decide(snapshot, self.cluster.rules)
        prove_and_record(
            decision,
            snapshot,
            inputs=self.cluster.ledger.store_snapshot(snapshot),
            cluster=self.cluster,
            expected_head=snapshot.ledger_head,
            incidents=decision.incidents,
            also=unproved_in_force(snapshot.incidents, self.cluster),
        )
        self._plans, self._refusals = decision.plans, decision.refusals

    def act_and_verify(self) -> None:
        """Do what the steps from `action_log` on do."""
        policy = self.cluster.rules.policy
        present = self.cluster.ledger.read_state(self.clock.now()).incidents
        carry_out(
            plans_to_carry_out(self._plans, present, self.cluster),
            self.cluster,
            lease=self.lease,
            patience=policy.durations.run_patience,
        )
        verify_repaired(self.cluster, lease=self.lease, patience=self.verify_patience)

    def run_once(self) -> None:
        self.observe_and_decide()
        self.act_and_verify()

    def run_for(self, seconds: float) -> None:
        """Run a pass about every 3 s of simulated time; a source that does not answer fails the pass, not the rest."""
        until = self.clock.now() + timedelta(seconds=seconds)
        while self.clock.now() < until:
            try:
                self.run_once()
            except SourceError as problem:
                self.failures.append(str(problem))
            self.let_pass(3.0)

    def run_until(self, state: IncidentState, *, seconds: float = 120) -> None:
        """Run until every incident there ever was is in `state`; raise TimeoutError naming where they are."""
        until = self.clock.now() + timedelta(seconds=seconds)
        while not self.incidents() or any(each.state is not state for each in self.incidents()):
            if self.clock.now() > until:
                found = ", ".join(f"{each.incident} {each.state.value}: {each.note}" for each in self.incidents())
                raise TimeoutError(f"not {state.value} after {seconds:.0f} s: {found or 'no incident'}")
            self.run_for(1)

    def incidents(self) -> tuple[Incident, ...]:
        """Return every incident there ever was, oldest first."""
        return self.cluster.ledger.incidents_since(self.twin.began_at)

    def incident(self) -> Incident:
        """Return the one incident there ever was."""
        (incident,) = self.incidents()
        return incident

    def node(self, name: str) -> NodeStatus:
        return next(each for each in SimulatedScheduler(self.twin).read_nodes() if each.node == name)

    def job(self, name: str = "pretrain") -> JobStatus:
        return next(each for each in SimulatedScheduler(self.twin).read_jobs() if each.name == name)

    def commands(self) -> list[EntryKind]:
        """Return every command that the cluster accepted, in order: neither faults nor what users do."""
        return [entry.kind for entry in self.received(*COMMANDS)]

    def pages(self) -> list[Message]:
        return [message for message in self.messages.messages if message.audience is Audience.ON_CALL]

    def owners_told(self) -> list[Message]:
        return [message for message in self.messages.messages if message.audience is Audience.OWNER]

    def received(self, *kinds: EntryKind) -> tuple[Entry, ...]:
        """Return the accepted commands of these kinds, in the order received."""
        return tuple(entry for entry in self.twin.entries() if entry.kind in kinds and entry.refusal is None)
