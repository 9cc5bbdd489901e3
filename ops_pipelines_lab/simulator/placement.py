"""Where a job fits: a pure choice of nodes and GPUs, the same for the same question.

When jobs are considered, and in which order, is `controller`'s business.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ops_pipelines.core.identity import NodeName
from ops_pipelines_lab.simulator.jobs import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The GPU indices found for a job, by node; complete or not."""

    gpus: dict[NodeName, tuple[int, ...]]
    is_complete: bool


def find_place(
    job: Job,
    *,
    free_gpus: Mapping[NodeName, tuple[int, ...]],
    kept: Collection[NodeName],
    last: Collection[NodeName],
    gpus_per_node: int,
) -> Place:
    """Return where the job fits first.

    Whole nodes are taken from the front of the list, parts of nodes from nodes already in use and then from the
    back, so that small jobs leave whole nodes whole. `kept` are nodes that a job before this one waits for; those of
    `last` are taken only where no others fit.
    A job that could not even run on an empty cluster of these nodes keeps nothing.
    """
    need = job.spec.gpus_per_node
    fitting = [
        name for name, free in free_gpus.items() if len(free) >= need and name not in job.excluded and name not in kept
    ]
    if need < gpus_per_node:
        is_in_use = [name for name in fitting if len(free_gpus[name]) < gpus_per_node]
        fitting = is_in_use + [name for name in reversed(fitting) if len(free_gpus[name]) == gpus_per_node]
    if last:
        fitting.sort(key=lambda name: name in last)
    chosen = {name: free_gpus[name][:need] for name in fitting[: job.spec.node_count]}
    if len(chosen) == job.spec.node_count:
        return Place(gpus=chosen, is_complete=True)
    allowed_count = sum(name not in job.excluded for name in free_gpus)
    return Place(gpus=chosen if allowed_count >= job.spec.node_count else {}, is_complete=False)
