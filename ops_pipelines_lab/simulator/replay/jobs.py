"""The work of a recorded day: what kinds of jobs there are, how they are drawn, and one attempt of one.

Who runs where and when is `cluster`; what a job does while it makes no steps is `pauses`. The mix of end states follows
Meta RSC (60 % completed, 24 % failed, 10 % preempted, 0.6 % time limit); sizes and durations are assumptions between
RSC's (most jobs small, most GPU time in large ones) and Acme's (large pre-trainings hold the GPU time).
"""

from dataclasses import dataclass, field

from numpy.random import Generator

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import JobState, Workload
from ops_pipelines_lab.simulator.replay.day import PauseKind
from ops_pipelines_lab.simulator.replay.looks import Look

NEVER = float("inf")
_USERS = (
    "akira", "amara", "bjorn", "chen", "dimitra", "elif", "farid", "grace", "hana", "ines", "jonas", "kavya", "leon",
    "mina", "nadia", "oskar", "priya", "quentin", "rosa", "samir", "tomas", "uma", "viktor", "wen", "yusuf", "zoe",
)  # fmt: skip
_ACCOUNTS = ("pretraining", "posttraining", "vision", "speech", "science", "serving")
_NAMES = {
    Workload.TRAINING: (
        "moe-8x22b-pretrain", "dense-70b-pretrain", "sft-34b", "dpo-13b", "vit-h-imagenet", "asr-conformer", "t2i-dit",
        "proteins-3b", "rlhf-ppo-7b", "embed-large", "code-15b", "ablation-lr", "long-context-ft",
    ),
    Workload.INFERENCE: ("chat-serve", "embeddings-api", "rerank-serve", "batch-scoring-api", "vlm-serve"),
    Workload.BATCH: ("tokenise-shards", "eval-harness", "dedup-minhash", "render-frames", "docking", "cfd-run"),
    Workload.INTERACTIVE: ("jupyter", "bash", "vscode-tunnel"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one program behaves, the same in all its attempts."""

    step_seconds: float
    intensity: float
    """Work a second against the typical job of its kind: tensor activity, traffic, power."""
    waiting: Look
    """What its GPUs do while it makes no step: spin in a collective, or nothing."""
    counts_steps: bool
    """Whether it exports its steps and its loss; many programs do not."""
    logs: bool
    log_seconds: float
    """Mean time between its log lines."""
    checkpoint_every: float
    checkpoint_seconds: float
    reads_shared: bool
    """Whether its data come from the shared file system while it runs; some copy them to local disks first."""
    watchdog_seconds: float
    """Its collective timeout; NEVER where it was switched off, as in the BLOOM training."""
    is_uneven: bool
    """Some programs' speed wanders by several percent: variable sequence lengths, shared services."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a user submits."""

    kind: Workload
    name: str
    user: str
    account: str
    node_count: int
    gpus_per_node: int
    style: Style


@dataclass(slots=True, kw_only=True)
class Rest:
    """One stretch without steps, and what moves meanwhile. Signal -> (nodes by place in the attempt, strength 0..1)."""

    kind: PauseKind
    began: float
    ended: float
    signals: dict[str, tuple[tuple[int, ...], float]]


@dataclass(slots=True, kw_only=True)
class Freeze:
    """All ranks wait for something that does not come."""

    began: float
    ended: float
    idle_gpus: tuple[int, ...] = ()
    """GPUs (of the whole fleet) whose rank stopped instead of waiting with the others."""
    look: Look | None = None
    """How the others wait; None: as the program always does in a collective, spinning."""


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One run of a job. Times are seconds of the day; before it began they are negative."""

    job: JobId
    program: Program
    nodes: tuple[int, ...]
    started: float
    planned_end: float
    planned_state: JobState
    first_step: float
    restart_count: int = 0
    rests: list[Rest] = field(default_factory=list)
    freezes: list[Freeze] = field(default_factory=list)
    slowdowns: list[tuple[float, float, float]] = field(default_factory=list)
    """(from, to, factor): steps come at `factor` of their usual rate."""
    loss_breaks: list[tuple[float, str]] = field(default_factory=list)
    """(from, `nan` or `diverge`)."""
    ended: float | None = None
    state: JobState = JobState.RUNNING

    @property
    def end(self) -> float:
        return self.planned_end if self.ended is None else self.ended

    @property
    def is_training(self) -> bool:
        return self.program.kind is Workload.TRAINING

    def is_resting(self, at: float, margin: float = 0.0) -> bool:
        return any(rest.began - margin <= at < rest.ended + margin for rest in self.rests)

    def freeze(self, freeze: Freeze) -> None:
        """Let all ranks wait from now on: what it would have paused for within that time does not come."""
        self.freezes.append(freeze)
        self.rests = [rest for rest in self.rests if rest.ended <= freeze.began or rest.began >= freeze.ended]


def draw_program(rng: Generator, *, kind: Workload, node_count: int) -> Program:
    """Return what somebody might submit."""
    gpus = 8
    if kind is Workload.INTERACTIVE:
        gpus = int(rng.choice([1, 2, 4, 8], p=[0.5, 0.2, 0.15, 0.15]))
    names = _NAMES[kind]
    step_seconds = float(rng.uniform(1, 6) if rng.random() < 0.55 else rng.uniform(6, 40))
    # A third of all pauses is above 120 s, so a third of the programs checkpoint that slowly.
    is_slow_saver = rng.random() < 0.34
    return Program(
        kind=kind,
        name=f"{names[rng.integers(len(names))]}-{rng.integers(10, 99)}",
        user=_USERS[rng.integers(len(_USERS))],
        account=_ACCOUNTS[rng.integers(len(_ACCOUNTS))],
        node_count=node_count,
        gpus_per_node=gpus,
        style=Style(
            step_seconds=step_seconds,
            intensity=float(rng.uniform(0.72, 1.1)),
            waiting=Look.SPINNING if rng.random() < 0.65 else Look.WAITING,
            counts_steps=bool(rng.random() < 0.7),
            logs=bool(rng.random() < 0.92),
            log_seconds=float(max(step_seconds * rng.choice([1, 1, 5, 10]), 4.0)),
            checkpoint_every=float(rng.uniform(1200, 5400)),
            checkpoint_seconds=float(rng.uniform(125, 560) if is_slow_saver else rng.uniform(20, 118)),
            reads_shared=bool(rng.random() < 0.85),
            watchdog_seconds=float(rng.choice([600.0, 1800.0, NEVER], p=[0.75, 0.15, 0.1])),
            is_uneven=bool(rng.random() < 0.25),
        ),
    )


def draw_duration(rng: Generator, program: Program) -> float:
    """Return how long it would run, in seconds."""
    median, spread = {
        Workload.TRAINING: (2.2 * 3600 * program.node_count**0.35, 0.7),
        Workload.INFERENCE: (20 * 3600, 0.5),
        Workload.BATCH: (2600, 0.7),
        Workload.INTERACTIVE: (3600, 0.8),
    }[program.kind]
    return float(max(median * rng.lognormal(0, spread), 180))


def draw_state(rng: Generator, program: Program) -> JobState:
    """Return how an attempt would end by itself. Large trainings fail of themselves less often than small ones."""
    failed = 0.16 if program.node_count <= 2 else 0.08
    if program.kind is Workload.INFERENCE:
        return JobState.CANCELLED if rng.random() < 0.8 else JobState.PREEMPTED
    if program.kind is Workload.INTERACTIVE:
        return JobState.CANCELLED if rng.random() < 0.7 else JobState.TIMEOUT
    return {
        0: JobState.COMPLETED,
        1: JobState.FAILED,
        2: JobState.PREEMPTED,
        3: JobState.TIMEOUT,
        4: JobState.CANCELLED,
        5: JobState.OUT_OF_MEMORY,
    }[int(rng.choice(6, p=[0.77 - failed, failed, 0.1, 0.05, 0.07, 0.01]))]
