"""The work of a recorded day: what kinds of jobs there are, how they are drawn, one attempt of one; how a GPU and its
host look under each load; and why healthy jobs make no steps for a while.

Who runs where and when is `cluster`. The mix of end states follows Meta RSC (60 % completed, 24 % failed, 10 %
preempted, 0.6 % time limit); sizes and durations are assumptions between RSC's (most jobs small, most GPU time in large
ones) and Acme's (large pre-trainings hold the GPU time).

Looks are numbers only, as tables by code: `load.SHAPES`, and the loads of a recorded day that it has no word for;
noise, waves and single parts belong to `render`.

Pauses are drawn for an attempt, and what moves meanwhile is painted on the canvas. Durations: 20 to 600 s, a third
above 120 s. A pause of a real job has at least one live signal and often only one, and that one may be faint: a rank
that writes a few MB/s, one busy core, a log line a minute. BLOOM's log shows 40 s for a 2.3 TB checkpoint; OPT's and
ByteRobust's report minutes for evaluation, data loaders and compilation. No live signal is silent for more than 60 s:
nobody can distinguish longer silence from a hang.
"""

from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import JobState, Workload
from ops_pipelines_lab.simulator.load import SHAPES, HostShape, Load, LoadShape
from ops_pipelines_lab.simulator.replay.day import Brush, Canvas, Fleet, PauseKind


class Look(IntEnum):
    """What a GPU does at a grid time."""

    IDLE = 0
    TRAINING = 1
    INFERENCE = 2
    BATCH = 3
    INTERACTIVE = 4
    INPUT_STALLED = 5
    COMMUNICATION_BOUND = 6
    SPINNING = 7
    """Waits in a collective: kernels spin."""
    WAITING = 8
    """Waits on the host: memory held, no kernel."""
    EVALUATING = 9
    """Forward passes only, in small batches."""
    STARTING = 10
    """Memory is being filled; nothing else."""


_GIB = 2.0**30
_WAITING_HOST = HostShape(cpu_cores=1.1, memory_bytes=90 * _GIB)
"""Who waits spins one thread a rank at most. `load` gives a hung node eight cores a GPU; stack dumps of hung trainings
(BLOOM chronicle, NCCL issues 1409 and 2013) show a main thread in cudaStreamSynchronize and everybody else asleep."""
LOOKS: dict[Look, LoadShape] = {
    Look.IDLE: SHAPES[Load.IDLE],
    Look.TRAINING: SHAPES[Load.TRAINING],
    Look.INFERENCE: SHAPES[Load.INFERENCE],
    Look.BATCH: SHAPES[Load.BATCH],
    Look.INTERACTIVE: SHAPES[Load.INTERACTIVE],
    Look.INPUT_STALLED: SHAPES[Load.INPUT_STALLED],
    Look.COMMUNICATION_BOUND: SHAPES[Load.COMMUNICATION_BOUND],
    Look.SPINNING: replace(SHAPES[Load.HUNG], host=_WAITING_HOST),
    Look.WAITING: replace(
        SHAPES[Load.IDLE], watts=118, swing_watts=2, sm_megahertz=1980, memory_mebibytes=71_680, host=_WAITING_HOST
    ),
    Look.EVALUATING: replace(
        SHAPES[Load.INFERENCE], watts=340, busy_ratio=0.6, sm_active_ratio=0.4, tensor_ratio=0.14, dram_ratio=0.3,
        memory_mebibytes=71_680,
    ),
    Look.STARTING: replace(
        SHAPES[Load.IDLE], watts=112, sm_megahertz=1980, memory_mebibytes=22_000,
        host=HostShape(cpu_cores=1.1, memory_bytes=30 * _GIB),
    ),
}  # fmt: skip


def table(name: str) -> NDArray[np.float32]:
    """Return one property of all looks, by code: a field of LoadShape, or of HostShape behind `host.`."""
    field = name.removeprefix("host.")
    return np.array(
        [getattr(LOOKS[look].host if name.startswith("host.") else LOOKS[look], field) for look in Look],
        dtype=np.float32,
    )


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
    """An interval without steps, and what moves in it. Signal -> (nodes by place in the attempt, strength 0..1)."""

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


_LIKELY = {
    PauseKind.CHECKPOINT: (("storage", "network", "cpu", "log", "gpu"), (0.62, 0.14, 0.14, 0.06, 0.04)),
    PauseKind.EVALUATION: (("storage", "network", "cpu", "log", "gpu"), (0.05, 0.05, 0.15, 0.25, 0.5)),
    PauseKind.DATA_LOADING: (("storage", "network", "cpu", "log", "gpu"), (0.5, 0.15, 0.25, 0.08, 0.02)),
    PauseKind.WARM_UP: (("storage", "network", "cpu", "log", "gpu"), (0.25, 0.15, 0.3, 0.2, 0.1)),
    PauseKind.COMPILATION: (("storage", "network", "cpu", "log", "gpu"), (0.02, 0.02, 0.76, 0.15, 0.05)),
}
_LONG_SHARE = 0.36
"""Above a third, because some pauses are cut short by the end of their job."""


def draw_length(rng: Generator) -> float:
    return float(rng.uniform(122, 600) if rng.random() < _LONG_SHARE else rng.uniform(20, 120))


def draw_rest(rng: Generator, program: Program, kind: PauseKind, *, began: float, seconds: float) -> Rest:
    """Return one pause with its live signals: one in 55 of 100 cases, else two or three."""
    names, odds = _LIKELY[kind]
    wanted = int(rng.choice([1, 2, 3], p=[0.55, 0.3, 0.15]))
    chosen = list(rng.choice(len(names), size=wanted, replace=False, p=odds))
    signals = {}
    for index in chosen:
        name = names[index]
        if name == "log" and not program.style.logs:
            name = "cpu"
        where: tuple[int, ...]
        spread = rng.random()
        if spread < 0.45:
            where = (0,)
        elif spread < 0.6:
            where = (int(rng.integers(program.node_count)),)
        else:
            where = tuple(range(program.node_count))
        # 0 is as faint as it gets; three in ten are near it.
        strength = float(rng.uniform(0, 0.12) if rng.random() < 0.3 else rng.uniform(0.12, 1))
        signals[name] = (where, strength)
    return Rest(kind=kind, began=began, ended=began + seconds, signals=signals)


def plan_rests(rng: Generator, attempt: Attempt, *, until: float) -> None:
    """Put the pauses of a training into its attempt: at the start, then checkpoints, evaluations, data, compilation."""
    style, program = attempt.program.style, attempt.program
    rests: list[Rest] = []
    if attempt.started > -600:
        kind = PauseKind.COMPILATION if rng.random() < 0.3 else PauseKind.WARM_UP
        rests.append(draw_rest(rng, program, kind, began=attempt.started, seconds=attempt.first_step - attempt.started))
    begin = max(attempt.first_step, 0.0)
    planned: list[tuple[float, PauseKind, float]] = []
    time = begin + float(rng.uniform(0.2, 1)) * style.checkpoint_every
    while time < until:
        planned.append((time, PauseKind.CHECKPOINT, style.checkpoint_seconds * float(rng.uniform(0.85, 1.15))))
        time += style.checkpoint_every * float(rng.uniform(0.95, 1.05))
    for kind, mean_seconds in (
        (PauseKind.EVALUATION, 9000.0),
        (PauseKind.DATA_LOADING, 12000.0),
        (PauseKind.COMPILATION, 60000.0),
    ):
        time = begin + float(rng.exponential(mean_seconds))
        while time < until:
            planned.append((time, kind, draw_length(rng)))
            time += 1800 + float(rng.exponential(mean_seconds))
    free_from = begin + 90.0
    for time, kind, seconds in sorted(planned):
        if time >= free_from:
            length = min(max(seconds, 20.0), 600.0)
            rests.append(draw_rest(rng, program, kind, began=time, seconds=length))
            free_from = time + length + 120.0
    attempt.rests = rests


def line_times(rng: Generator, rest: Rest) -> list[float]:
    """Return when lines are written in a pause that logs: 4 to 55 s apart, the fainter the rarer."""
    _, strength = rest.signals["log"]
    mean = 4 + (1 - strength) * 38
    times, time = [], rest.began + float(rng.uniform(1, 15))
    while time < rest.ended:
        times.append(time)
        time += mean * float(rng.uniform(0.7, 1.3))
    return times


def paint_rest(rng: Generator, canvas: Canvas, fleet: Fleet, attempt: Attempt, rest: Rest) -> None:
    """Paint what moves while a job pauses; its log lines are counted elsewhere."""
    span = (rest.began, rest.ended)
    rows = canvas.row_count_of(span)
    if rows == 0:
        return
    for name, (where, strength) in rest.signals.items():
        for place in where:
            node = attempt.nodes[place]
            flicker = _flicker(rng, rows)
            if name == "storage":
                reads = rest.kind is not PauseKind.CHECKPOINT
                column = "nodes/shared_read_bytes" if reads else "nodes/shared_written_bytes"
                # 2 MB/s (one writer on a busy file system) to 2 GB/s a node.
                canvas.paint(column, node, span, Brush.ADD, flicker * 2e6 * 1000.0**strength)
            elif name == "network":
                # 5 MB/s to 10 GB/s over one port of the node.
                port = fleet.port_slice(node).start + int(rng.integers(8))
                canvas.paint("ports/bytes", port, span, Brush.ADD, flicker * 5e6 * 2000.0**strength)
            elif name == "cpu":
                # From one busy core to half of the node.
                canvas.paint("nodes/cpu_cores", node, span, Brush.ADD, flicker * 1.0 * 45.0**strength)
            elif name == "gpu":
                _paint_gpus(rng, canvas, fleet, node, span, flicker, strength)


def _paint_gpus(
    rng: Generator,
    canvas: Canvas,
    fleet: Fleet,
    node: int,
    span: tuple[float, float],
    flicker: np.ndarray,
    strength: float,
) -> None:
    """Let one GPU of the node, or all of them, compute: 5 to 70 % of the multiprocessors, some of it tensor work."""
    whole = fleet.gpu_slice(node)
    parts: slice | int = whole if rng.random() < 0.4 else whole.start + int(rng.integers(8))
    active = np.minimum(flicker * (0.05 + 0.5 * strength), 0.8)
    if isinstance(parts, slice):
        active = active[:, None] * rng.uniform(0.85, 1.0, 8)
    canvas.paint("gpus/sm_active_ratio", parts, span, Brush.SET, active)
    canvas.paint("gpus/tensor_active_ratio", parts, span, Brush.SET, active * 0.3)
    canvas.paint("gpus/dram_active_ratio", parts, span, Brush.SET, active * 0.6)
    canvas.paint("gpus/utilisation_ratio", parts, span, Brush.SET, np.minimum(active * 1.5, 1.0))
    canvas.paint("gpus/power_watts", parts, span, Brush.SET, 120 + 520 * active)
    canvas.paint("gpus/pcie_receive_bytes_per_second", parts, span, Brush.SET, active * 4e8)


def _flicker(rng: Generator, rows: int) -> np.ndarray:
    """Return how a live signal moves: around 1, never the same twice, low for at most three samples in a row."""
    level = rng.lognormal(0, 0.35, rows)
    if rows > 6 and rng.random() < 0.4:
        period = int(rng.integers(3, 6))
        level = np.where((np.arange(rows) + rng.integers(period)) % period == 0, level * 2, level * 0.25)
    return level
