"""Reads the section `objectives` of cluster.yaml: what was promised to whom. What a promise means is `domain`'s.

One entry may promise several things to one team; each becomes an objective of its own.
"""

from collections.abc import Sequence
from datetime import timedelta

from ops_pipelines.core.objectives import Objective, ObjectiveKind, WorkloadClass
from ops_pipelines.resources.config.models import ObjectiveModel
from ops_pipelines.resources.config.strict_yaml import YamlFile


def read_objectives(file: YamlFile, entries: Sequence[ObjectiveModel]) -> tuple[Objective, ...]:
    """Return the objectives in their order; what contradicts itself is kept as a fault of the file."""
    found: list[Objective] = []
    known: set[tuple[str, WorkloadClass, ObjectiveKind]] = set()
    for number, entry in enumerate(entries):
        at = ("objectives", number)
        made = _objectives_of(entry)
        if not made:
            file.add_fault(at, "promises nothing; expected uptime_ratio, queue_wait or inference_p99")
        if entry.inference_p99 is not None and entry.workload not in ("inference", "any"):
            file.add_fault((*at, "inference_p99"), f"found workload {entry.workload}; expected inference or any")
        for objective in made:
            key = (objective.team, objective.workload, objective.kind)
            if key in known:
                file.add_fault(at, f"{objective.kind.value} of {entry.team}, {entry.workload}, stands there twice")
            known.add(key)
            found.append(objective)
    return tuple(found)


def _objectives_of(entry: ObjectiveModel) -> list[Objective]:
    workload = WorkloadClass(entry.workload)
    found = []
    if entry.uptime_ratio is not None:
        found.append(
            Objective(team=entry.team, workload=workload, kind=ObjectiveKind.UPTIME, target_ratio=entry.uptime_ratio)
        )
    if entry.queue_wait is not None:
        found.append(
            Objective(
                team=entry.team,
                workload=workload,
                kind=ObjectiveKind.QUEUE_WAIT,
                target_ratio=entry.queue_wait.ratio,
                limit=timedelta(minutes=entry.queue_wait.minutes),
            )
        )
    if entry.inference_p99 is not None:
        found.append(
            Objective(
                team=entry.team,
                workload=workload,
                kind=ObjectiveKind.INFERENCE_P99,
                target_ratio=entry.inference_p99.ratio,
                limit=timedelta(milliseconds=entry.inference_p99.milliseconds),
            )
        )
    return found
