"""The twin as the world that the contract suites ask for. Four nodes without work, on simulated time."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import Checkpointing, Workload
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import InstallOrder
from ops_pipelines_lab.simulator.adapters import simulated_ports
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.scenario import PARTITION, SHORT_DURATIONS, JobSpec, Scenario, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin
from ops_pipelines_lab.simulator.versions import ReleaseFault, ReleaseTrouble
from tests.ports.fleet_contract import driver_order
from tests.simulator.fake_clock import FakeClock

BROKEN_PACKAGE = ReleaseFault(component=Component.DRIVER, version="590.99.99", trouble=ReleaseTrouble.INSTALL_FAILS)


class SimulatedWorld:
    """Fits SchedulerWorld, FleetWorld, TelemetryWorld and LogsWorld."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        scenario = Scenario(nodes=cluster_nodes(4), durations=SHORT_DURATIONS, release_faults=(BROKEN_PACKAGE,))
        self.twin = Twin.create(directory, scenario, seed=7, clock=self.clock)
        ports = simulated_ports(self.twin)
        self.scheduler, self.fleet, self.telemetry, self.logs = (
            ports.scheduler,
            ports.fleet,
            ports.telemetry,
            ports.logs,
        )
        self.node_names = tuple(node.name for node in scenario.nodes)
        self.partition = PARTITION
        self.gpus_per_node = scenario.gpus_per_node
        self.first_scrape_at = self.clock.now()

    def submit(
        self,
        *,
        name: str,
        node_count: int,
        workload: Workload,
        gpus_per_node: int = 8,
        time_limit: timedelta | None = None,
        comment: str = "",
    ) -> JobId:
        words = dict(word.split("=", 1) for word in comment.split())
        every = words.get("ckpt_every")
        return self.twin.submit(
            JobSpec(
                name=name,
                user="research-train",
                account="research",
                workload=workload,
                node_count=node_count,
                gpus_per_node=gpus_per_node,
                time_limit_seconds=None if time_limit is None else time_limit.total_seconds(),
                service=words.get("service", ""),
                min_serving_count=int(words.get("min_serving", "0")),
                checkpointing=Checkpointing.NO if words.get("ckpt") == "none" else Checkpointing.UNKNOWN,
                declared_interval_seconds=None if every is None else float(every),
            )
        )

    def occupy(self, node: NodeName) -> None:
        others = [name for name in self.node_names if name != node]
        self.scheduler.drain(others, reason="the test wants the job elsewhere")
        self.submit(name="occupies", node_count=1, workload=Workload.TRAINING)

    def silence(self, node: NodeName) -> None:
        self.twin.inject(FaultKind.NODE_UNREACHABLE, node)

    def write(self, node: NodeName) -> str:
        self.clock.wait(0.1)
        self.scheduler.drain([name for name in self.node_names if name != node], reason="the line comes from elsewhere")
        self.scheduler.resume(node)
        job = self.submit(name="crashes", node_count=1, workload=Workload.BATCH, gpus_per_node=1)
        with self.twin.present() as world:
            (attempt,) = world.hardware.writers_of(job)
            (gpu,) = world.node(node).processes[attempt].gpus
            pid = world.node(node).processes[attempt].first_pid
        self.twin.inject(FaultKind.APPLICATION_XID31, node, gpu=gpu)
        return f"pid={pid},"

    def now(self) -> datetime:
        return self.clock.now()

    def let_pass(self, seconds: float) -> None:
        self.clock.wait(seconds)

    def order(self) -> InstallOrder:
        return driver_order("590.44.01")

    def failing_order(self) -> InstallOrder:
        return driver_order(BROKEN_PACKAGE.version)

    def wait_until(self, predicate: Callable[[], bool], timeout_seconds: float) -> None:
        self.clock.wait_until(predicate, timeout_seconds)
