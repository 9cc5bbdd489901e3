"""A small twin with a few jobs, and short ways to ask it: what the simulator's own tests start from."""

from dataclasses import replace
from pathlib import Path

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import JobState, JobStatus, NodeStatus, Workload
from ops_pipelines_lab.simulator import ground_truth
from ops_pipelines_lab.simulator.adapters import simulated_ports
from ops_pipelines_lab.simulator.ground_truth import JobProgress, NodeTruth
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, JobSpec, Scenario, SimulatedDurations, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin
from ops_pipelines_lab.simulator.versions import ReleaseFault
from tests.simulator.fake_clock import FakeClock

GPU1, GPU2, GPU3, GPU4 = (NodeName(f"gpu00{number}") for number in (1, 2, 3, 4))
TRAINING = JobSpec(
    name="pretrain",
    user="research-train",
    account="research",
    workload=Workload.TRAINING,
    node_count=2,
    checkpoint_interval_seconds=10.0,
    step_seconds=0.5,
)
SESSION = JobSpec(
    name="notebook",
    user="science-notebooks",
    account="science",
    workload=Workload.INTERACTIVE,
    gpus_per_node=1,
    is_requeueable=False,
)
SERVICE = replace(TRAINING, name="chat-api", workload=Workload.INFERENCE, checkpoint_interval_seconds=None)


class SmallCluster:
    """Four nodes x 8 GPUs; the given jobs start at once, in order, on gpu001, gpu002, ..."""

    def __init__(
        self,
        directory: Path,
        *jobs: JobSpec,
        durations: SimulatedDurations = SHORT_DURATIONS,
        node_count: int = 4,
        release_faults: tuple[ReleaseFault, ...] = (),
        has_start_guard: bool = False,
    ) -> None:
        self.clock = FakeClock()
        self.directory = directory
        scenario = Scenario(
            nodes=cluster_nodes(node_count),
            durations=durations,
            initial_jobs=jobs,
            release_faults=release_faults,
            has_start_guard=has_start_guard,
        )
        self.use(Twin.create(directory, scenario, seed=7, clock=self.clock))
        self.jobs = tuple(JobId(str(1001 + number)) for number in range(len(jobs)))

    def use(self, twin: Twin) -> None:
        self.twin = twin
        ports = simulated_ports(twin)
        self.scheduler, self.fleet, self.telemetry, self.logs = (
            ports.scheduler,
            ports.fleet,
            ports.telemetry,
            ports.logs,
        )

    def job(self, job: JobId) -> JobStatus:
        return next(status for status in self.scheduler.read_jobs() if status.job == job)

    def node(self, node: NodeName) -> NodeStatus:
        return next(status for status in self.scheduler.read_nodes() if status.node == node)

    def progress(self, job: JobId) -> JobProgress:
        return next(progress for progress in ground_truth.read_progress(self.twin) if progress.job == job)

    def truth(self, node: NodeName) -> NodeTruth:
        return next(truth for truth in ground_truth.read_nodes(self.twin) if truth.node == node)

    def log_texts(self) -> list[str]:
        return [line.text for line in self.logs.read_new(None, max_lines=1000).lines]

    def metric(self, name: str, node: NodeName) -> dict[str, float]:
        """Return the newest values of one metric of one node, by PCI address as the exporter writes it."""
        return {
            sample.labels["pci_bus_id"]: sample.value
            for sample in self.telemetry.read_samples(self.clock.now())
            if sample.metric == name and sample.labels["Hostname"] == node
        }

    def is_in(self, job: JobId, state: JobState) -> bool:
        return self.job(job).state is state

    def snapshot(self) -> object:
        """Return everything that can be read of the twin, for comparison."""
        return (
            self.scheduler.read_nodes(),
            self.scheduler.read_jobs(),
            self.telemetry.read_samples(self.clock.now()),
            self.logs.read_new(None, max_lines=10_000),
            ground_truth.read_progress(self.twin),
            ground_truth.read_nodes(self.twin),
            ground_truth.read_lost_gpu_hours(self.twin),
            ground_truth.read_split_brains(self.twin),
            ground_truth.read_reservations(self.twin),
            ground_truth.read_serving(self.twin),
            self.twin.entries(),
        )
