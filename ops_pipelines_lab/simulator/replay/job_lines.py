"""The sparse texts that jobs write while they are well: start, steps now and then, checkpoints, evaluations.

How many lines they write is in `job_columns`; only some of them are kept as text, as log stores sample them. A job
writes nothing while it is stuck, and in a pause only where that pause logs.
"""

from numpy.random import Generator

from ops_pipelines_lab.simulator.replay.cluster import Cluster
from ops_pipelines_lab.simulator.replay.day import PauseKind
from ops_pipelines_lab.simulator.replay.jobs import Attempt
from ops_pipelines_lab.simulator.replay.pauses import line_times

_MEAN_SECONDS = 900.0
_PAUSE_TEXTS = {
    PauseKind.CHECKPOINT: "saving checkpoint shard {n} of 128 to /checkpoints/run-{m}",
    PauseKind.EVALUATION: "evaluation batch {n}: accuracy 0.{m}",
    PauseKind.DATA_LOADING: "loading shard {n} of epoch {m}",
    PauseKind.WARM_UP: "building process groups: {n} of {m} done",
    PauseKind.COMPILATION: "torch._inductor: compiled graph {n} in {m} ms",
}


def write_job_lines(rng: Generator, cluster: Cluster) -> None:
    """Write the ordinary lines of all attempts."""
    for attempt in cluster.attempts:
        if not attempt.program.style.logs:
            continue
        if attempt.is_training:
            _write_steps(rng, cluster, attempt)
        for rest in attempt.rests:
            if "log" in rest.signals:
                for number, at in enumerate(line_times(rng, rest)):
                    if at < attempt.end and rng.random() < 0.25:
                        text = _PAUSE_TEXTS[rest.kind].format(n=number + 1, m=int(rng.integers(100, 999)))
                        cluster.scribe.job(attempt, at, text)


def _write_steps(rng: Generator, cluster: Cluster, attempt: Attempt) -> None:
    style = attempt.program.style
    time = max(attempt.first_step + style.step_seconds, 0.0)
    stops = [(rest.began, rest.ended) for rest in attempt.rests]
    stops += [(freeze.began, freeze.ended) for freeze in attempt.freezes]
    while time < min(attempt.end, cluster.seconds):
        if not any(began <= time < ended for began, ended in stops):
            step = int((time - attempt.first_step) / style.step_seconds)
            loss = 1.7 + 3 / (1 + step / 900) + float(rng.normal(0, 0.01))
            broken = next((how for began, how in attempt.loss_breaks if time >= began), None)
            told = "nan" if broken == "nan" else f"{loss * (3.5 if broken else 1):.6E}"
            took = style.step_seconds * 1000
            cluster.scribe.job(
                attempt,
                time,
                f" iteration {step:8d}/  500000 | consumed samples: {step * 2048:12d} | elapsed time per iteration "
                f"(ms): {took:.1f} | learning rate: 6.000E-05 | global batch size:  2048 | lm loss: {told} | grad "
                f"norm: {'nan' if broken == 'nan' else f'{rng.uniform(0.1, 1.5):.3f}'} |",
            )
        time += float(rng.exponential(_MEAN_SECONDS)) + style.step_seconds
