"""What the public diaries of three large trainings tell, rebuilt as our detectors and rules would have met it.

A diary gives the hour, the words of people and a few quoted lines. Losses and step times are the quoted ones; whatever
else a panel needs is the training of the detectors' tests, at the scale that the diary names. What was assumed besides
is in each case. Printing is `real_cases`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from ops_pipelines.core.identity import JobId, Topology
from ops_pipelines.core.observation import Observation, Signal
from ops_pipelines.observe.detectors.detect import detect_jobs
from ops_pipelines.observe.logs import tables as log
from ops_pipelines.observe.panels.panel import Detection, Panel
from ops_pipelines.observe.panels.tables import panel_from_tables
from tests.frames.detectors.panels import START_SECONDS, STEP_SECONDS, job_parts, node_parts, panel, topology
from tests.frames.detectors.training import Training

FOLDER = Path(__file__).parent.parent.parent / "shared" / "data" / "training_chronicles"
BLOOM, WIDE_104B, BASE_13B = (
    "bigscience__tr11-176B-ml.md",
    "bigscience__tr8-104B-wide.md",
    "bigscience__tr1-13B-base.md",
)
HEALTHY_MINUTES = 40
"""# Assumption: as long as detectors look back, a job did before what it did at the first quoted line."""
BLOOM_NODES, BLOOM_STEP_SECONDS = 48, 105.0
EVALUATION_ROWS = 2
"""One of 29 data sets; the diary gives 12 minutes for all."""
_AT = datetime.fromtimestamp(START_SECONDS, UTC)
_JOB = JobId("17")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """One symptom of a diary as a panel, and when it began there."""

    panel: Panel
    began_at: datetime
    topology: Topology

    def first(self, signal: Signal) -> Detection | None:
        """Return what was first seen of a kind; None if nothing was."""
        found = [each for each in detect_jobs(self.panel, topology=self.topology) if each.signal is signal]
        return min(found, key=lambda each: each.first_seen_at, default=None)

    def seconds_until(self, signal: Signal) -> float | None:
        """Return how long after the beginning a detector reported it; None: never."""
        found = self.first(signal)
        return None if found is None else (found.first_seen_at - self.began_at).total_seconds()

    def conditions(self) -> list[tuple[datetime, Observation]]:
        """Return all that the detectors saw, each with the time at which it was certain."""
        return [(each.first_seen_at, each.observation()) for each in detect_jobs(self.panel, topology=self.topology)]


@cache
def quoted(name: str, heading: str, *, block: int | None = None) -> tuple[str, ...]:
    """Return the quoted lines of a diary, those between ``` fences, under a heading; of one block, or of all."""
    blocks = _blocks(name)[heading]
    return tuple(line for number, lines in enumerate(blocks) for line in lines if block in (None, number))


@cache
def _blocks(name: str) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    heading, is_quoted = "", False
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            is_quoted = not is_quoted
            if is_quoted:
                found.setdefault(heading, []).append([])
        elif is_quoted:
            found[heading][-1].append(line)
        elif line.startswith("#"):
            heading = line.strip("# ")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LossLine:
    """What one quoted line says of its step."""

    step: int
    step_seconds: float
    loss: float


def read_losses(lines: Sequence[str]) -> list[LossLine]:
    """Return steps, step times and losses as our own reader of job logs takes them from the lines."""
    # The diary breaks the lines of 2022-04-28 twice.
    whole = re.sub(r"\n(?= rate:|iterations:)", " ", "\n".join(lines))
    rows = log.parse(whole.encode(), source="diary", at=_AT).tables["job_logs"]
    rows = rows.filter(pc.and_(pc.is_valid(rows["loss"]), pc.is_valid(rows["step_seconds"])))
    return [
        LossLine(step=row["step"], step_seconds=row["step_seconds"], loss=row["loss"])
        for row in rows.select(["step", "step_seconds", "loss"]).to_pylist()
        if row["step"] is not None
    ]


def loss_gauge(losses: Sequence[LossLine], *, jump: int, stands_seconds: float = 600.0) -> Rebuilt:
    """Return a job that exports its loss: each quoted loss is until the next step that is quoted was made.

    `jump` is the step whose loss people call the spike; `stands_seconds` is how long the last quoted loss is.
    """
    rows = [_rows(HEALTHY_MINUTES * 60)]
    rows += [_rows((b.step - a.step) * b.step_seconds) for a, b in pairwise(losses)]
    rows.append(_rows(stands_seconds))
    values = np.repeat([losses[0].loss, *(each.loss for each in losses)], rows)
    steps = np.cumsum(np.full(len(values), STEP_SECONDS / losses[0].step_seconds)).astype(int)
    place = next(number for number, each in enumerate(losses) if each.step == jump)
    whole = panel(
        time_count=len(values),
        nodes=(node_parts(nodes=1), {"target_up": 1.0}),
        jobs=(job_parts(_JOB), {"loss": values[:, None], "step_count": steps[:, None]}),
        held_by=0,
    )
    return Rebuilt(panel=whole, began_at=whole.time(int(sum(rows[: place + 1]))), topology=topology(nodes=1))


def loss_in_lines(losses: Sequence[LossLine], *, jump: int) -> Rebuilt:
    """Return the same job where only its log reports the loss, a line a quoted step: through our tables of the lake."""
    gauge = loss_gauge(losses, jump=jump)
    first = gauge.panel.time(_rows(HEALTHY_MINUTES * 60))
    usual = losses[0].step_seconds
    before = [
        (first - timedelta(seconds=usual * back), losses[0])
        for back in range(int(HEALTHY_MINUTES * 60 / usual) - 1, 0, -1)
    ]
    at, told = first, [*before]
    for number, each in enumerate(losses):
        if number:
            at += timedelta(seconds=(each.step - losses[number - 1].step) * each.step_seconds)
        told.append((at, each))
    text = "\n".join(
        f"[{time:%Y-%m-%d %H:%M:%S}] iteration {each.step}/ 311541 | elapsed time per iteration (s): "
        f"{each.step_seconds} | lm loss: {each.loss:E} | number of nan iterations: 0 |"
        for time, each in told
    )
    rows = log.parse(text.encode(), source="diary", at=_AT).tables["job_logs"]
    rows = rows.set_column(rows.schema.get_field_index("job"), rows.schema.field("job"), [[str(_JOB)] * rows.num_rows])
    whole = panel_from_tables(
        {"job_logs": rows},
        start=gauge.panel.time(0),
        end=gauge.panel.time(len(gauge.panel.times) - 1),
        step_seconds=STEP_SECONDS,
        topology=gauge.topology,
    )
    held = np.zeros((len(whole.times), len(whole.nodes.parts)), dtype=np.int32)
    return replace(gauge, panel=replace(whole, held_by=held))


def _rows(seconds: float) -> int:
    return max(1, round(seconds / STEP_SECONDS))


def hang_at_evaluation(*, idle_rank: int | None = None, pulse_after_seconds: float = 60.0) -> Rebuilt:
    """Return 2022-04-30: 384 GPUs spin at 100 % after one data set of an evaluation, and the log only says its pulse.

    The diary's watchdog writes into the log of the job, one line an hour: when it hung is not known better than that.
    `pulse_after_seconds` is when the first line falls. `idle_rank` waits for its data loader and is in no collective,
    as one process did when people reproduced it.
    """
    healthy, hung = _rows(HEALTHY_MINUTES * 60), _rows(3 * 3600)
    job = _bloom(healthy + EVALUATION_ROWS + hung, nodes=BLOOM_NODES)
    job.values["steps"][healthy : healthy + EVALUATION_ROWS] = 0.0
    stuck = slice(healthy + EVALUATION_ROWS, None)
    job.waits(stuck)
    pulses = range(stuck.start + _rows(pulse_after_seconds), job.rows, _rows(3600))
    job.values["lines"][list(pulses), 0] = 1 / STEP_SECONDS
    if idle_rank is not None:
        # Its process waits in a queue: the memory stays, the GPU has nothing to do.
        job.rank_is_gone(stuck, idle_rank)
    return _rebuilt(job, at=stuck.start)


def crash_without_end(*, nodes: int) -> Rebuilt:
    """Return 2022-05-18: the processes of one node died, all others wait for them, and Slurm lets the job run."""
    healthy = _rows(HEALTHY_MINUTES * 60)
    job = _bloom(healthy + _rows(1800), nodes=nodes)
    job.waits(slice(healthy, None))
    for rank in range(job.gpus):
        job.rank_is_gone(slice(healthy, None), rank)
        job.values["memory_used_bytes"][healthy:, rank] = 0.0
    return _rebuilt(job, at=healthy)


def one_slow_gpu(*, slower_ratio: float) -> Rebuilt:
    """Return 2022-04-28: a step takes longer by `slower_ratio` from one minute to the next, because of one GPU.

    # Assumption: it is as busy as ever, and all others wait for it that much longer; its clock shows nothing.
    """
    healthy = _rows(HEALTHY_MINUTES * 60)
    job = _bloom(healthy + _rows(3600), nodes=BLOOM_NODES)
    for name in ("tensor_active_ratio", "sm_active_ratio", "dram_active_ratio"):
        job.values[name][healthy:, 1:] /= 1 + slower_ratio
    job.values["step_seconds"][healthy:] *= 1 + slower_ratio
    job.values["steps"][healthy:] /= 1 + slower_ratio
    return _rebuilt(job, at=healthy)


def _bloom(rows: int, *, nodes: int) -> Training:
    return Training(rows=rows, nodes=nodes, gpus=8, step_seconds_usual=BLOOM_STEP_SECONDS)


def _rebuilt(job: Training, *, at: int) -> Rebuilt:
    whole = job.build(job=_JOB)
    return Rebuilt(panel=whole, began_at=whole.time(at - 1), topology=topology(nodes=job.nodes))
