"""Why healthy jobs make no steps for a while: drawn for an attempt, and what moves meanwhile painted on the canvas.

Durations: 20 to 600 s, a third above 120 s. A pause of a real job has at least one live signal and often only one, and
that one may be faint: a rank that writes a few MB/s, one busy core, a log line a minute. BLOOM's log shows 40 s for a
2.3 TB checkpoint; OPT's and ByteRobust's tell of minutes for evaluation, data loaders and compilation. No live signal
is silent for more than 60 s: longer silence cannot be told from a hang by anybody.
"""

import numpy as np
from numpy.random import Generator

from ops_pipelines_lab.simulator.replay.canvas import Brush, Canvas
from ops_pipelines_lab.simulator.replay.day import PauseKind
from ops_pipelines_lab.simulator.replay.fleet import Fleet
from ops_pipelines_lab.simulator.replay.jobs import Attempt, Program, Rest

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
