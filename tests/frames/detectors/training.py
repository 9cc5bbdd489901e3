"""A synchronised training job as its sources show it: at work, in a pause with one live sign, and hung.

Written for the tests of job-level detectors, apart from `simulator.replay`: a detector that only fits one of the two is
wrong. Figures: H100 SXM at work and in a spinning collective, as `simulator.load` gives them; two cores a waiting rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.observe.panels.panel import Layer, Panel, Part
from tests.frames.detectors.panels import START_SECONDS, STEP_SECONDS, gpu_parts, job_parts, node_parts

Matrix = NDArray[np.float64]
LIVE_SIGNS = ("storage", "network", "cpu", "log", "gpu")
GIB = 2.0**30
GPU_GAUGES = (
    "utilisation_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "power_watts", "sm_clock_hertz",
    "memory_used_bytes",
)  # fmt: skip


@dataclass
class Training:
    """One job over an interval; rates and gauges, each (rows, parts). Change them, then `build`."""

    rows: int
    nodes: int = 4
    gpus: int = 8
    seed: int = 0
    values: dict[str, Matrix] = field(default_factory=dict)
    held_rows: tuple[int | None, int | None] = (None, None)
    step_seconds_usual: float = 6.0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        ranks = self.nodes * self.gpus
        self.values = {
            "utilisation_ratio": self.noisy(0.99, 0.005, ranks).clip(0, 1),
            "sm_active_ratio": self.noisy(0.88, 0.02, ranks),
            "tensor_active_ratio": self.noisy(0.46, 0.02, ranks),
            "dram_active_ratio": self.noisy(0.38, 0.02, ranks),
            "power_watts": self.noisy(640, 15, ranks),
            "sm_clock_hertz": self.noisy(1.74e9, 1e7, ranks),
            "memory_used_bytes": self.noisy(70 * GIB, 1e6, ranks),
            "nvlink": self.noisy(1.8e11, 5e9, ranks),
            "fabric": self.noisy(2.9e11, 5e9, self.nodes),
            "read": self.noisy(4.8e8, 2e7, self.nodes),
            "written": self.noisy(1e6, 1e5, self.nodes),
            "cores": self.noisy(5.0 * self.gpus, 1.0, self.nodes),
            "io_stalled": self.noisy(0.01, 0.002, self.nodes).clip(0, 1),
            "steps": np.full((self.rows, 1), 1 / self.step_seconds_usual),
            "lines": np.full((self.rows, 1), 1 / self.step_seconds_usual),
            "step_seconds": self.noisy(self.step_seconds_usual, 0.05, 1),
            "loss": self.noisy(2.1, 0.02, 1),
        }

    def noisy(self, mean: float, deviation: float, parts: int, rows: int | None = None) -> Matrix:
        return mean + deviation * self.random.standard_normal((self.rows if rows is None else rows, parts))

    def waits(self, rows: slice) -> "Training":
        """Let all ranks spin in a collective: nothing else moves."""
        count, ranks = len(range(*rows.indices(self.rows))), self.nodes * self.gpus
        still = {
            "utilisation_ratio": np.full((count, ranks), 1.0),
            "sm_active_ratio": self.noisy(0.98, 0.003, ranks, count),
            "tensor_active_ratio": np.zeros((count, ranks)),
            "dram_active_ratio": self.noisy(0.01, 0.002, ranks, count),
            "power_watts": self.noisy(245, 3, ranks, count),
            "sm_clock_hertz": np.full((count, ranks), 1.98e9),
            "nvlink": np.zeros((count, ranks)),
            "fabric": np.abs(self.noisy(2e4, 1e4, self.nodes, count)),
            "read": np.abs(self.noisy(2e4, 1e4, self.nodes, count)),
            "written": np.abs(self.noisy(2e4, 1e4, self.nodes, count)),
            "cores": self.noisy(1.6 * self.gpus, 0.07, self.nodes, count),
            "steps": np.zeros((count, 1)),
            "lines": np.zeros((count, 1)),
        }
        for name, matrix in still.items():
            self.values[name][rows] = matrix
        return self

    def rank_is_gone(self, rows: slice, rank: int) -> "Training":
        """Let one rank stand still outside the collective in which the others wait."""
        for name, value in {"utilisation_ratio": 0.0, "sm_active_ratio": 0.0, "power_watts": 75.0}.items():
            self.values[name][rows, rank] = value
        return self

    def lives(self, rows: slice, sign: str) -> "Training":
        """Let one sign of life move in a pause: on one node, or one rank, as a real one may."""
        moving = range(*rows.indices(self.rows))
        if sign == "storage":
            self.values["written"][rows, 0] = 3e8
        elif sign == "network":
            self.values["fabric"][rows, -1] = 4e8
        elif sign == "cpu":
            self.values["cores"][rows, 0] += 30.0
        elif sign == "log":
            # One line within each minute.
            self.values["lines"][list(moving)[::4], 0] = 1 / STEP_SECONDS
        elif sign == "gpu":
            self.values["tensor_active_ratio"][rows, 0] = 0.2
        else:
            raise ValueError(f"{sign} is none of {LIVE_SIGNS}")
        return self

    def share(self, row: int, ratio: float, names: Sequence[str] = ("nvlink", "fabric", "read", "cores")) -> None:
        """Let what is read at `row` be work for only a share of the time since the sample before it."""
        for name in (*names, "tensor_active_ratio", "dram_active_ratio"):
            self.values[name][row] += ratio * (self.values[name][max(0, row - 1)] - self.values[name][row])

    def build(self, *, job: str = "17", measured: Sequence[str] | None = None) -> Panel:
        """Return the panel; of `values` only those named in `measured`, all if None."""
        kept = self.values if measured is None else {name: self.values[name] for name in measured}
        held = np.full((self.rows, self.nodes), -1)
        held[slice(*self.held_rows)] = 0

        def columns(names: dict[str, str], *, as_counter: bool) -> dict[str, Matrix]:
            return {
                column: STEP_SECONDS * np.cumsum(kept[name], axis=0) if as_counter else kept[name]
                for name, column in names.items()
                if name in kept
            }

        steps = columns({"steps": "step_count", "lines": "line_count"}, as_counter=True)
        empty = Layer(parts=(), values={}, step_seconds=STEP_SECONDS)
        # Not `panels.panel`: a counter of bytes needs 64 bits, or a few kilobytes look like a jump of megabytes.
        return Panel(
            times=START_SECONDS + STEP_SECONDS * np.arange(self.rows, dtype=np.int64),
            step_seconds=STEP_SECONDS,
            gpus=_layer(
                gpu_parts(nodes=self.nodes, gpus=self.gpus),
                columns({name: name for name in GPU_GAUGES}, as_counter=False)
                | columns({"nvlink": "nvlink_bandwidth_bytes"}, as_counter=True),
            ),
            nodes=_layer(
                node_parts(nodes=self.nodes),
                columns(
                    {
                        "fabric": "fabric_bytes",
                        "read": "shared_read_bytes",
                        "written": "shared_written_bytes",
                        "cores": "cpu_busy_seconds",
                        "io_stalled": "pressure_io_stalled_seconds",
                    },
                    as_counter=True,
                ),
            ),
            ports=empty,
            disks=empty,
            racks=empty,
            jobs=_layer(
                job_parts(job),
                {column: np.floor(matrix + 1e-6) for column, matrix in steps.items()}
                | columns({"step_seconds": "step_seconds", "loss": "loss"}, as_counter=False),
            ),
            held_by=held.astype(np.int32),
        )


def _layer(parts: Sequence[Part], values: dict[str, Matrix]) -> Layer:
    copies = {name: matrix.copy() for name, matrix in values.items()}
    return Layer(parts=tuple(parts), values=copies, step_seconds=STEP_SECONDS)


def beside(first: Panel, second: Panel) -> Panel:
    """Return two panels of the same times as one: two jobs that share nothing. Names of the second get a suffix."""

    def together(name: str) -> object:
        one, two = getattr(first, name), getattr(second, name)
        values = {column: np.hstack([one.value(column), two.value(column)]) for column in {**one.values, **two.values}}
        renamed = tuple(
            replace(part, node=type(part.node)(f"{part.node}b") if part.node else part.node, device=part.device)
            for part in two.parts
        )
        if name == "jobs":
            renamed = tuple(replace(part, device=f"{part.device}b") for part in two.parts)
        return replace(one, parts=one.parts + renamed, values=values, _rates={})

    jobs = len(first.jobs.parts)
    held = np.where(second.held_by >= 0, second.held_by + jobs, -1)
    layers = {name: together(name) for name in ("gpus", "nodes", "ports", "disks", "racks", "jobs")}
    return replace(first, held_by=np.hstack([first.held_by, held]), **layers)  # type: ignore[arg-type]  # layers by name
