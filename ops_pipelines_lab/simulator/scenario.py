"""What the simulated cluster is made of: nodes, durations, jobs at the start, jobs that arrive later.

Values only. How hardware behaves is `hardware`'s business, how the scheduler does that of `workload`.
Two ready scenarios stand at the end; any other is a plain dict given to `scenario_from_plain`.

Longer than other modules: what a scenario may say, and the two that say it, are read together.
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.observation import Checkpointing, Workload
from ops_pipelines.core.release import Component, Means
from ops_pipelines_lab.simulator.load import Load
from ops_pipelines_lab.simulator.plain import from_plain, to_plain
from ops_pipelines_lab.simulator.versions import USUAL_VERSIONS, ComponentVersion, ReleaseFault

PARTITION = "batch"
"""Where nodes and jobs are that say nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedNode:
    """One node that exists."""

    name: NodeName
    rack: str
    leaf_switch: str
    partitions: tuple[str, ...] = (PARTITION,)
    versions: tuple[ComponentVersion, ...] = ()
    """What it runs otherwise than the others at the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedDurations:
    """How long things take. The defaults are those of a real H100 node and of Slurm's own defaults."""

    reboot_seconds: float = 420.0
    """Assumption: an HGX server with 2 TiB of memory trains its memory for minutes; real ones take 5 to 15 minutes."""
    power_on_seconds: float = 480.0
    gpu_reset_seconds: float = 5.0
    kill_wait_seconds: float = 30.0
    """Slurm KillWait, default 30: between SIGTERM and SIGKILL."""
    requeue_delay_seconds: float = 121.0
    """Slurm cred_expire + 1, default 121: a requeued job starts no earlier (measured on 22.05)."""
    ping_interval_seconds: float = 100.0
    """A Slurm controller pings about every SlurmdTimeout / 3 (measured on 22.05)."""
    slurmd_timeout_seconds: float = 300.0
    min_job_age_seconds: float = 300.0
    """Slurm MinJobAge, default 300: how long an ended job can still be read."""
    scrape_interval_seconds: float = 30.0
    """dcgm-exporter collects every 30 s by default."""
    reimage_seconds: float = 2400.0
    """Assumption: writing an image over the network and two boots; sites report 20 to 60 minutes."""
    check_seconds: float = 900.0
    """A whole suite on the node. AWS observed about 15 minutes for a light one, hours with DCGM level 4."""
    install_seconds: float = 600.0
    """Assumption: a driver with its packages from a mirror; firmware of a whole HGX board takes longer."""
    driver_reload_seconds: float = 30.0
    """Assumption: unloading and loading the modules of eight GPUs, and the fabric manager's start."""
    unkillable_step_seconds: float = 60.0
    """Slurm UnkillableStepTimeout, default 60: afterwards the node is drained, "Kill task failed"."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise ValueError(f"durations.{name} is {getattr(self, name)}; it must be above 0")


class Bug(Enum):
    """What is wrong with the program of a job; it shows after each of its starts."""

    CRASHES = "crashes"
    """It reads where it must not: Xid 31, and the attempt fails."""
    LOSES_GPU = "loses_gpu"
    """A GPU under it falls off the bus, wherever it runs: the fault follows the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What a user submits."""

    name: str
    user: str
    account: str
    workload: Workload
    node_count: int = 1
    gpus_per_node: int = 8
    work_seconds: float | None = None
    """Productive time until the job completes; None runs until somebody ends it, as a service does."""
    checkpoint_interval_seconds: float | None = None
    """Productive time between checkpoints; None writes none: a restart begins from nothing."""
    step_seconds: float = 1.0
    """Productive time of one training step."""
    is_requeueable: bool = True
    priority: int = 0
    """Higher starts first; equal ones in the order of submission."""
    load: Load | None = None
    """What it does to its GPUs; None: what its workload usually does."""
    checkpoint_save_seconds: float = 0.0
    """How long a checkpoint takes; no work is done meanwhile, and it counts only when it is complete."""
    checkpoint_phase_seconds: float = 0.0
    """The first attempt's first checkpoint comes so much sooner: it began in the middle of an interval."""
    warm_up_seconds: float = 0.0
    """After each start: loading the checkpoint and the like. No work is done, no request served."""
    checkpointing: Checkpointing = Checkpointing.UNKNOWN
    """What it declares. YES declares its interval too."""
    checkpoint: str = ""
    """Where it says that it saves."""
    declared_interval_seconds: float | None = None
    """What it says of its checkpoints where that is not so."""
    partition: str = PARTITION
    time_limit_seconds: float | None = None
    """Its attempt is ended after so long; None: never."""
    service: str = ""
    """It is one replica of this service."""
    min_serving_count: int = 0
    """How many replicas of its service must serve, as declared."""
    bug: Bug | None = None
    bug_after_seconds: float = 5.0
    """So long after each start its bug shows."""
    requeues_itself: bool = False
    """Its script answers a crash with `scontrol requeue`, so that it begins again and again."""

    def __post_init__(self) -> None:
        if self.node_count < 1 or self.gpus_per_node < 1:
            raise ValueError(
                f"job {self.name} asks for {self.node_count} nodes x {self.gpus_per_node} GPUs; both must be 1 or more"
            )
        positive = ("work_seconds", "checkpoint_interval_seconds", "declared_interval_seconds", "step_seconds")
        for name in (*positive, "time_limit_seconds", "bug_after_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"job {self.name}: {name} is {value}; it must be above 0")
        for name in ("checkpoint_save_seconds", "checkpoint_phase_seconds", "warm_up_seconds", "min_serving_count"):
            if getattr(self, name) < 0:
                raise ValueError(f"job {self.name}: {name} is {getattr(self, name)}; it must be 0 or more")
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        interval = self.checkpoint_interval_seconds
        if self.checkpointing is Checkpointing.NO and interval is not None:
            raise ValueError(f"job {self.name} declares no checkpoints and writes one every {interval} s")
        if self.checkpointing is Checkpointing.YES and interval is None:
            raise ValueError(f"job {self.name} declares checkpoints; give it a checkpoint_interval_seconds")
        cycle = 0.0 if interval is None else interval + self.checkpoint_save_seconds
        if self.checkpoint_phase_seconds and self.checkpoint_phase_seconds >= cycle:
            raise ValueError(f"job {self.name}: checkpoint_phase_seconds must lie below its interval of {cycle} s")
        if self.min_serving_count and not self.service:
            raise ValueError(f"job {self.name} declares a minimum of replicas; name its service")


def with_checkpoint_age(spec: JobSpec, *, age_seconds: float, after_seconds: float) -> JobSpec:
    """Return the job so that `after_seconds` after its first start its newest checkpoint is `age_seconds` old.

    Raises ValueError where there would be no checkpoint by then, or a newer one.
    """
    interval = spec.checkpoint_interval_seconds
    if interval is None:
        raise ValueError(f"job {spec.name} writes no checkpoints; give it a checkpoint_interval_seconds")
    cycle = interval + spec.checkpoint_save_seconds
    productive_seconds = after_seconds - spec.warm_up_seconds
    if not 0 <= age_seconds < cycle or age_seconds >= productive_seconds:
        raise ValueError(
            f"job {spec.name} cannot have a checkpoint {age_seconds} s old {after_seconds} s after its start: the age "
            f"must lie below its interval of {cycle} s and below its time of work"
        )
    phase_seconds = (age_seconds - productive_seconds) % cycle
    return replace(spec, checkpoint_phase_seconds=phase_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Jobs that keep coming: exponential gaps, uniform lengths, all drawn from the seed."""

    job: JobSpec
    """The pattern; its name gets a running number, its `work_seconds` is drawn."""
    mean_gap_seconds: float
    min_work_seconds: float
    max_work_seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.min_work_seconds <= self.max_work_seconds or self.mean_gap_seconds <= 0:
            raise ValueError(f"arrivals of {self.job.name}: need 0 < min_work <= max_work and a mean gap above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLimit:
    """How many GPUs the jobs of one account may hold together, from the beginning on."""

    account: str
    gpu_count: int

    def __post_init__(self) -> None:
        if self.gpu_count < 0:
            raise ValueError(f"the limit of {self.account} is {self.gpu_count} GPUs; it must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulated cluster."""

    nodes: tuple[SimulatedNode, ...]
    gpus_per_node: int = 8
    gpu_model: str = "NVIDIA H100 80GB HBM3"
    driver_version: str = "580.95.05"
    durations: SimulatedDurations = field(default_factory=SimulatedDurations)
    initial_jobs: tuple[JobSpec, ...] = ()
    arrivals: tuple[Arrivals, ...] = ()
    benign_lines_per_node_hour: float = 0.0
    """Kernel lines that mean nothing, for readers that must tell them from the others."""
    absent_tests: tuple[str, ...] = ()
    """Tests that no node can run, for want of the tool."""
    is_reimaging_offered: bool = True
    """Whether the site has a means to reimage a node."""
    versions: tuple[ComponentVersion, ...] = USUAL_VERSIONS
    """What nodes run at the beginning, and whatever the site's image brings, beside the driver."""
    controller_version: str = "25.11.2"
    """Of slurmctld, which moves before the nodes' slurmd."""
    release_faults: tuple[ReleaseFault, ...] = ()
    """Versions that do harm."""
    offered_means: tuple[Means, ...] = tuple(Means)
    """By which means the site installs."""
    accounts: tuple[str, ...] = ()
    """Accounts beside those of its jobs."""
    limits: tuple[AccountLimit, ...] = ()
    """What accounts are held to at the beginning; one that is not named has no limit."""
    has_start_guard: bool = True
    """Whether the scheduler itself lets no restart go ahead before the nodes of its last attempts are clear."""

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        if not names:
            raise ValueError("a scenario needs at least one node")
        if len(set(names)) != len(names):
            raise ValueError("two nodes of the scenario have the same name; give each its own")
        if self.benign_lines_per_node_hour < 0:
            raise ValueError(f"benign_lines_per_node_hour is {self.benign_lines_per_node_hour}; it must be 0 or more")
        if not 1 <= self.gpus_per_node <= 8:
            raise ValueError(f"gpus_per_node is {self.gpus_per_node}; an HGX board carries 1 to 8")
        for job in (*self.initial_jobs, *(arrival.job for arrival in self.arrivals)):
            if job.gpus_per_node > self.gpus_per_node:
                raise ValueError(
                    f"job {job.name} asks for {job.gpus_per_node} GPUs a node; there are {self.gpus_per_node}"
                )
            if job.partition not in self.partitions:
                raise ValueError(f"job {job.name} asks for partition {job.partition}, which no node is in")

    def versions_of(self, node: SimulatedNode) -> dict[Component, str]:
        """Return what a node runs when it has just been installed."""
        driver = {Component.DRIVER: self.driver_version, Component.FABRIC_MANAGER: self.driver_version}
        told = {each.component: each.version for each in (*self.versions, *node.versions)}
        return {**driver, **told}

    @property
    def partitions(self) -> frozenset[str]:
        """Return every partition that a node is in."""
        return frozenset(partition for node in self.nodes for partition in node.partitions)

    @property
    def topology(self) -> Topology:
        """Return where the nodes stand, as cluster.yaml would declare it."""
        return Topology(
            places={
                node.name: Place(rack=node.rack, nvlink_domain=node.name, leaf_switch=node.leaf_switch)
                for node in self.nodes
            },
            gpus_per_node=self.gpus_per_node,
        )


def scenario_to_plain(scenario: Scenario) -> object:
    """Return the scenario as JSON and YAML can hold it."""
    return to_plain(scenario)


def scenario_from_plain(data: object) -> Scenario:
    """Return the scenario that `data` describes; raise ValueError naming what does not fit."""
    return from_plain(Scenario, data)


def cluster_nodes(count: int, *, nodes_per_rack: int = 8) -> tuple[SimulatedNode, ...]:
    """Return gpu001, gpu002, ... in racks r1, r2, ...; two racks share one leaf switch (leaf1, leaf2, ...)."""
    nodes = []
    for position in range(count):
        rack = position // nodes_per_rack
        nodes.append(
            SimulatedNode(
                name=NodeName(f"gpu{position + 1:03d}"), rack=f"r{rack + 1}", leaf_switch=f"leaf{rack // 2 + 1}"
            )
        )
    return tuple(nodes)


SHORT_DURATIONS = SimulatedDurations(
    reboot_seconds=5.0,
    power_on_seconds=6.0,
    gpu_reset_seconds=2.0,
    kill_wait_seconds=1.0,
    requeue_delay_seconds=3.0,
    ping_interval_seconds=2.0,
    slurmd_timeout_seconds=300.0,
    min_job_age_seconds=300.0,
    scrape_interval_seconds=1.0,
    reimage_seconds=9.0,
    check_seconds=4.0,
    unkillable_step_seconds=6.0,
    install_seconds=3.0,
    driver_reload_seconds=2.0,
)
"""A repair that takes minutes in reality, in seconds. SlurmdTimeout stays long: Slurm itself must not be first."""


SWEEP_INTERVAL_SECONDS = 900.0
"""The sweep's checkpoints are as far apart as real ones: their age is what its part of the demo is about."""
SWEEP_FIRST_SAVE_SECONDS = 60.0
"""So long after a multiple of the interval the first trial of the sweep saves."""
SWEEP_GAP_SECONDS = 15.0
"""So long after each trial the next one saves."""
_TWO_WEEKS_SECONDS = 14 * 86_400.0


def demo_scenario() -> Scenario:
    """Return 64 nodes x 8 H100 with four teams at work and about a tenth of the nodes free, on short durations."""
    return Scenario(
        nodes=cluster_nodes(64),
        durations=SHORT_DURATIONS,
        initial_jobs=(*_demo_training(), *_demo_services(), *_demo_small_jobs(), *_demo_sweep()),
        benign_lines_per_node_hour=3.0,
        arrivals=(
            Arrivals(
                job=_small("notebook", "science-notebooks", "science", Workload.INTERACTIVE),
                mean_gap_seconds=20.0,
                min_work_seconds=30.0,
                max_work_seconds=180.0,
            ),
            Arrivals(
                job=_small("eval", "research-eval", "research", Workload.BATCH),
                mean_gap_seconds=25.0,
                min_work_seconds=20.0,
                max_work_seconds=120.0,
            ),
        ),
    )


def lab_scenario(node_count: int = 16) -> Scenario:
    """Return hardware only: the jobs come from the real Slurm that runs beside it."""
    return Scenario(nodes=cluster_nodes(node_count), durations=replace(SHORT_DURATIONS, slurmd_timeout_seconds=120.0))


def _demo_training() -> tuple[JobSpec, ...]:
    pretraining = JobSpec(
        name="pretrain-70b",
        user="research-train",
        account="research",
        workload=Workload.TRAINING,
        node_count=16,
        checkpoint_interval_seconds=10.0,
        checkpointing=Checkpointing.YES,
        time_limit_seconds=_TWO_WEEKS_SECONDS,
        step_seconds=0.5,
        priority=100,
    )
    return (
        pretraining,
        replace(pretraining, name="pretrain-13b", node_count=8),
        replace(pretraining, name="vision-encoder", user="science-train", account="science", node_count=6),
        replace(pretraining, name="ranker-finetune", user="product-train", account="product", node_count=4),
        replace(
            pretraining,
            name="speech-finetune",
            user="product-train",
            account="product",
            node_count=4,
            load=Load.INPUT_STALLED,
        ),
        replace(
            pretraining,
            name="protein-fold",
            user="science-train",
            account="science",
            node_count=2,
            load=Load.COMMUNICATION_BOUND,
        ),
        replace(pretraining, name="reward-model", user="research-train", node_count=2),
    )


def _demo_sweep() -> tuple[JobSpec, ...]:
    """Return four jobs that are the same but for the moment of their next checkpoint: one follows the other."""
    trial = JobSpec(
        name="sweep",
        user="research-sweep",
        account="research",
        workload=Workload.TRAINING,
        checkpoint_interval_seconds=SWEEP_INTERVAL_SECONDS,
        checkpointing=Checkpointing.YES,
        time_limit_seconds=_TWO_WEEKS_SECONDS,
        step_seconds=0.5,
        priority=100,
    )
    return tuple(
        replace(
            with_checkpoint_age(
                trial,
                age_seconds=0.0,
                after_seconds=SWEEP_INTERVAL_SECONDS + SWEEP_FIRST_SAVE_SECONDS + number * SWEEP_GAP_SECONDS,
            ),
            name=f"sweep-{number + 1}",
        )
        for number in range(4)
    )


def _demo_services() -> tuple[JobSpec, ...]:
    service = JobSpec(
        name="chat-api",
        user="product-serving",
        account="product",
        workload=Workload.INFERENCE,
        node_count=4,
        priority=200,
    )
    single = replace(service, user="platform-serving", account="platform", node_count=1)
    return (
        service,
        replace(service, name="search-embeddings", node_count=2),
        replace(single, name="code-assist", gpus_per_node=4),
        replace(single, name="moderation", gpus_per_node=2),
    )


def _demo_small_jobs() -> tuple[JobSpec, ...]:
    conversion = JobSpec(
        name="video-embeddings",
        user="platform-batch",
        account="platform",
        workload=Workload.BATCH,
        gpus_per_node=8,
        work_seconds=900.0,
        checkpoint_interval_seconds=30.0,
    )
    session = _small("debug-session", "research-interactive", "research", Workload.INTERACTIVE)
    return (
        conversion,
        replace(conversion, name="dataset-dedup", user="research-batch", account="research", work_seconds=1200.0),
        # srun sessions are not requeueable: Slurm refuses to requeue them.
        replace(session, name="debug-session-1", work_seconds=1800.0, is_requeueable=False),
        replace(session, name="debug-session-2", work_seconds=1500.0, is_requeueable=False),
        replace(session, name="profiling", user="platform-interactive", account="platform", work_seconds=1200.0),
    )


def _small(name: str, user: str, account: str, workload: Workload) -> JobSpec:
    return JobSpec(name=name, user=user, account=account, workload=workload, gpus_per_node=1, is_requeueable=False)
