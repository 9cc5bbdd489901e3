"""GPUs that a job holds and never uses: all of them at rest, with nothing in their memory, for half an hour.

A service that waits for traffic has its model in memory, and is not idle. Partly used jobs are `efficiency`'s.
"""

from collections.abc import Iterator

import numpy as np

from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.frames.detectors.allocations import allocations, job_component, row_max
from ops_pipelines.frames.panels.detection import Detection, lasting, stretches
from ops_pipelines.frames.panels.panel import Panel

IDLE_SECONDS = 1_800
REST_BELOW = {
    "utilisation_ratio": 0.02,
    "sm_active_ratio": 0.02,
    "graphics_active_ratio": 0.02,
    "tensor_active_ratio": 0.01,
    # A CUDA context alone takes about 0.5 GiB; two of them, and nothing else.
    "memory_used_bytes": 2 * 2.0**30,
}


def detect_idle_gpus(panel: Panel) -> Iterator[Detection]:
    """Yield GPUS_IDLE where every GPU of a job rested for IDLE_SECONDS. Activity and memory must both be measured."""
    rows = panel.rows_in(IDLE_SECONDS)
    for held in allocations(panel):
        if held.end - held.first < rows or not len(held.gpus):
            continue
        largest = {name: row_max(held.of(panel.gpus, name, columns=held.gpus)) for name in REST_BELOW}
        in_use = np.logical_or.reduce([largest[name] >= REST_BELOW[name] for name in REST_BELOW])
        activity_known = np.logical_or.reduce(
            [~np.isnan(largest[name]) for name in REST_BELOW if name != "memory_used_bytes"]
        )
        rests = ~in_use & activity_known & ~np.isnan(largest["memory_used_bytes"])
        job = panel.job(held.job_column)
        for stretch in stretches(lasting(rests[:, np.newaxis], rows)):
            began_at = panel.time(held.first + stretch.first - rows + 1)
            yield Detection(
                signal=Signal.GPUS_IDLE,
                node=NO_NODE,
                component=job_component(job),
                job=job,
                began_at=began_at,
                first_seen_at=panel.time(held.first + stretch.first),
                last_seen_at=panel.time(held.first + stretch.last),
                value=float(len(held.gpus)),
                text=f"job {job} holds {len(held.gpus)} GPUs and has used none of them since {began_at:%H:%M}: no"
                " activity, nothing in their memory",
            )
