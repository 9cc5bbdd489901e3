"""All that is looked for in jobs, in one call."""

import numpy as np

from ops_pipelines.core.observation import Signal
from ops_pipelines.observe.detectors.detect import detect_jobs
from tests.frames.detectors.panels import panel, topology
from tests.frames.detectors.training import Training, beside


def test_everything_is_told_by_time() -> None:
    hung = Training(rows=120).waits(slice(80, None)).build()
    diverged = Training(rows=120, seed=1)
    diverged.values["loss"][50:] = np.inf

    found = detect_jobs(beside(hung, diverged.build()), topology=topology(nodes=4))

    assert [(each.signal, each.job) for each in found] == [
        (Signal.LOSS_NOT_FINITE, "17b"),
        (Signal.JOB_HUNG, "17"),
    ]


def test_healthy_jobs_and_an_empty_panel_say_nothing() -> None:
    assert detect_jobs(Training(rows=300).build(), topology=topology(nodes=4)) == []
    assert detect_jobs(panel(time_count=10), topology=topology(nodes=1)) == []
    assert detect_jobs(panel(time_count=0), topology=topology(nodes=1)) == []
