"""Makes a recorded day: a fleet, a day of work, what only looks like a fault, faults, and what the sensors showed.

The same seed gives the same day. Nothing here is tuned to what detectors can see.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import JobState, JobStatus, NodeStatus
from ops_pipelines_lab.simulator.replay.canvas import Canvas
from ops_pipelines_lab.simulator.replay.cluster import Cluster
from ops_pipelines_lab.simulator.replay.day import Day, FaultClass, Pause
from ops_pipelines_lab.simulator.replay.faults import plan_faults
from ops_pipelines_lab.simulator.replay.fleet import build_fleet
from ops_pipelines_lab.simulator.replay.injection import Injector
from ops_pipelines_lab.simulator.replay.job_lines import write_job_lines
from ops_pipelines_lab.simulator.replay.negatives import add_negatives
from ops_pipelines_lab.simulator.replay.render import Rendering
from ops_pipelines_lab.simulator.replay.scribe import Scribe

_FIRST_DAY = datetime(2026, 1, 5, tzinfo=UTC)
_LISTED_SECONDS = 600.0
_MIN_PAUSE_SECONDS = 20.0
_FIELD_STRENGTH = 40 / (256 * 24)


def make_day(
    seed: int,
    *,
    node_count: int = 256,
    hours: float = 24,
    fault_count: int | None = 40,
    classes: Sequence[FaultClass] | None = None,
    step_seconds: int = 15,
) -> Day:
    """Return one day with at most `fault_count` faults, spread evenly over `classes` (None: all).

    None as `fault_count` gives 40 a day in 256 nodes, in proportion where the day is shorter or the cluster smaller.
    A fault that finds no fitting target, with no other fault on its nodes and jobs within an hour, is left out.
    """
    if node_count < 1 or hours <= 0 or step_seconds < 1:
        raise ValueError(f"a day of {node_count} nodes, {hours} hours, {step_seconds} s; all must be above 0")
    wanted = max(1, round(_FIELD_STRENGTH * node_count * hours)) if fault_count is None else fault_count
    chosen = tuple(FaultClass) if classes is None else tuple(classes)
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(6)]
    row_count = max(2, int(hours * 3600 / step_seconds))
    seconds = float(row_count * step_seconds)
    began_at = _FIRST_DAY + timedelta(days=seed % 300)
    fleet = build_fleet(streams[0], node_count=node_count)
    canvas = Canvas(row_count=row_count, step_seconds=step_seconds)
    scribe = Scribe(rng=streams[1], fleet=fleet, began_at=began_at, seconds=seconds)
    cluster = Cluster(rng=streams[2], fleet=fleet, canvas=canvas, scribe=scribe, seconds=seconds)
    injector = Injector(rng=streams[3], cluster=cluster)
    if chosen and wanted > 0:
        plan_faults(injector, chosen, wanted)
    add_negatives(streams[4], cluster)
    cluster.run()
    injector.close()
    write_job_lines(streams[1], cluster)
    times = int(began_at.timestamp()) + np.arange(row_count, dtype=np.int64) * step_seconds
    rendering = Rendering(rng=streams[5], fleet=fleet, canvas=canvas, cluster=cluster, times=times)
    panel = rendering.panel()
    end = began_at + timedelta(seconds=seconds)
    lines, arrivals = scribe.lines()
    return Day(
        seed=seed,
        topology=fleet.topology,
        panel=panel,
        lines=lines,
        arrivals=arrivals,
        truths=injector.told(),
        pauses=_pauses(cluster),
        repairs=tuple(
            sorted((each for each in cluster.repairs if each.returned_at <= end), key=lambda each: each.drained_at)
        ),
        jobs=_job_pictures(cluster),
        nodes=_node_pictures(cluster),
    )


def make_quiet_day(seed: int, *, node_count: int = 256, hours: float = 24, step_seconds: int = 15) -> Day:
    """Return one day without any fault."""
    return make_day(seed, node_count=node_count, hours=hours, fault_count=0, step_seconds=step_seconds)


def _pauses(cluster: Cluster) -> tuple[Pause, ...]:
    """Return the pauses that were within the day and long enough to be one; cut short by the end of their job."""
    found = []
    for attempt in cluster.attempts:
        for rest in attempt.rests:
            began, ended = rest.began, min(rest.ended, attempt.end)
            if began < 0 or ended > cluster.seconds or ended - began < _MIN_PAUSE_SECONDS:
                continue
            found.append(
                Pause(
                    kind=rest.kind,
                    job=attempt.job,
                    began_at=cluster.scribe.at(began),
                    ended_at=cluster.scribe.at(ended),
                    live_signals=frozenset(rest.signals),
                )
            )
    return tuple(sorted(found, key=lambda pause: (pause.began_at, pause.job)))


def _job_pictures(cluster: Cluster) -> tuple[tuple[datetime, tuple[JobStatus, ...]], ...]:
    """Return what the scheduler lists at each change: jobs that run, wait to run again, or ended lately."""
    listed: dict[JobId, tuple[JobStatus, float]] = {}
    pictures: list[tuple[datetime, tuple[JobStatus, ...]]] = []
    changes = cluster.job_changes
    for index, (at, status) in enumerate(changes):
        is_over = status.state not in (JobState.RUNNING, JobState.PENDING)
        listed[status.job] = (status, at + _LISTED_SECONDS if is_over else float("inf"))
        if index + 1 < len(changes) and changes[index + 1][0] == at:
            continue
        listed = {job: entry for job, entry in listed.items() if entry[1] > at}
        pictures.append((cluster.scribe.at(at), tuple(entry[0] for entry in listed.values())))
    return tuple(pictures)


def _node_pictures(cluster: Cluster) -> tuple[tuple[datetime, tuple[NodeStatus, ...]], ...]:
    current: dict[int, NodeStatus] = {}
    pictures: list[tuple[datetime, tuple[NodeStatus, ...]]] = []
    changes = cluster.node_changes
    for index, (at, node, status) in enumerate(changes):
        current[node] = status
        if index + 1 == len(changes) or changes[index + 1][0] != at:
            pictures.append((cluster.scribe.at(at), tuple(current[each] for each in sorted(current))))
    return tuple(pictures)
