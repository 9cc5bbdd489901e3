"""An operator's place for tests: four simulated nodes, a terminal, and an autopilot that moves when reported."""

import os
import pwd
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.finding import Finding, Response
from ops_pipelines.core.identity import IncidentId, NodeName, PlanId
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobStatus, NodeStatus, Observation, Signal, Workload
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.remediate.carry_out import carry_out
from ops_pipelines.remediate.decide import decide
from ops_pipelines.remediate.gate import prove_and_record
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.remediate.snapshot import take_snapshot
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.wiring import TWIN_DIRECTORY, assemble
from ops_pipelines_lab.simulator.adapters import SimulatedScheduler
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, JobSpec, Scenario, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin
from tests.simulator.fake_clock import FakeClock

CLUSTER_YAML = """
name: test
state_directory: state
policy: policy.yaml
gpus_per_node: 8
racks: [{name: r1, nodes: "gpu[001-004]"}]
scheduler: {kind: simulator}
telemetry: {kind: simulator}
logs: {kind: simulator}
fleet: {kind: simulator}
notifier: {kind: file}
"""
POLICY_YAML = "mode: approve\ndrain_budget: {min_in_service_ratio: 0.5}\n"
ME = pwd.getpwuid(os.getuid()).pw_name
HOSTILE = "$(reboot) [bold]loud[/bold] \x1b]0;owned\x07 \x1b[2J\x9b31m \u202etxt.exe\r\nall is well"


class SilentScheduler(SimulatedScheduler):
    """A controller that does not answer."""

    def read_nodes(self) -> tuple[NodeStatus, ...]:
        raise SourceUnavailable("slurmctld did not answer within 4 s; check that it runs")

    def read_jobs(self) -> tuple[JobStatus, ...]:
        raise SourceUnavailable("slurmctld did not answer within 4 s; check that it runs")


class Answer:
    """What one call of the command line gave."""

    def __init__(self, exit_code: int, stdout: str, stderr: str) -> None:
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


class Desk:
    """An operator's place: a cluster, a terminal, and an autopilot that moves when reported."""

    def __init__(self, directory: Path, *, policy: str = POLICY_YAML, cluster_yaml: str = CLUSTER_YAML) -> None:
        self.clock = FakeClock()
        self.cluster_file = directory / "cluster.yaml"
        self.cluster_file.write_text(cluster_yaml, encoding="utf-8")
        (directory / "policy.yaml").write_text(policy, encoding="utf-8")
        self.ledger_file = directory / "state" / "ledger.sqlite"
        scenario = Scenario(nodes=cluster_nodes(4), durations=SHORT_DURATIONS)
        self.twin = Twin.create(directory / "state" / TWIN_DIRECTORY, scenario, seed=7, clock=self.clock)
        self.cluster: Cluster = assemble(read_cluster(self.cluster_file), self.clock)

    def run(self, *arguments: str, typed: str | None = None, columns: int = 80) -> Answer:
        result = CliRunner().invoke(
            cli.app,
            [*arguments, "--cluster", str(self.cluster_file)],
            obj=self.open,
            input=typed,
            env={"COLUMNS": str(columns), "USER": "somebody-else", "LOGNAME": "somebody-else"},
            catch_exceptions=False,
        )
        return Answer(result.exit_code, result.stdout, result.stderr)

    def open(self, cluster_file: Path) -> Cluster:
        assert cluster_file == self.cluster_file
        return self.cluster

    def reopen(self) -> None:
        """Read cluster.yaml and policy.yaml again, as a process that begins."""
        self.cluster = assemble(read_cluster(self.cluster_file), self.clock)

    def silence_scheduler(self) -> None:
        self.cluster = replace(self.cluster, scheduler=SilentScheduler(self.twin))

    def lose_gpu(self, node: str) -> PlanId:
        """Let a GPU of a busy node fall off the bus, let the autopilot decide, and return its plan."""
        self.twin.submit(JobSpec(name="train", user="u", account="a", workload=Workload.TRAINING, node_count=4))
        self.clock.wait(5)
        self.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=3)
        self.clock.wait(1)
        return self.decide()

    def decide(self) -> PlanId:
        observed = take_snapshot(self.cluster)
        decision = decide(observed.snapshot, self.cluster.rules)
        prove_and_record(
            decision,
            observed.snapshot,
            inputs=self.cluster.ledger.store_snapshot(observed.snapshot),
            cluster=self.cluster,
            expected_head=None,
            incidents=decision.incidents,
        )
        return decision.plans[0].plan

    def act(self, plan: PlanId) -> None:
        known = self.cluster.ledger.plan(plan)
        assert known is not None
        carry_out([known], self.cluster, lease=Lease(holder="test", given=None), patience=timedelta(seconds=60))

    def approval_count(self) -> int:
        return len(self.cluster.ledger.read_state(self.clock.now()).approvals)


def incident_with(text: str, desk: Desk, *, state: IncidentState) -> Incident:
    now = desk.clock.now()
    observation = Observation(
        signal=Signal.XID, node=NodeName("gpu001"), observed_at=now, source="kernel_log", position="line:1", text=text
    )
    finding = Finding(
        rule="xid_79", response=Response.PAGE, node=NodeName("gpu001"), gpu=None, found_at=now, is_lasting=False,
        is_driver_verdict=False, evidence=(observation,), explanation=text, source="a test",
    )  # fmt: skip
    return Incident(
        incident=IncidentId("INC-0001"), state=state, response=Response.PAGE, nodes=frozenset({NodeName("gpu001")}),
        gpus=frozenset(), victims=frozenset(), findings=(finding,), opened_at=now, changed_at=now,
        closed_at=now if state is IncidentState.RESOLVED else None, note=text,
    )  # fmt: skip


def record(incident: Incident, desk: Desk) -> None:
    desk.cluster.ledger.record_decision(
        inputs=desk.cluster.ledger.store("{}"), decided_through=0, expected_head=None, incidents=[incident], plans=[],
        now=desk.clock.now(),
    )  # fmt: skip
