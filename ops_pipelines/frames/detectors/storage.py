"""Nodes that wait for shared storage and get nothing: every task stalled on I/O while no shared byte moves.

One node or hundreds: what they share is found by `diagnosis`. Waiting for the node's own disks is none of it.
"""

from collections.abc import Iterator

import numpy as np

from ops_pipelines.core.observation import Signal
from ops_pipelines.frames.detectors.allocations import growth_over_gaps
from ops_pipelines.frames.panels.detection import Detection, counted, lasting, stretches
from ops_pipelines.frames.panels.panel import Flags, Layer, Numbers, Panel

STALLED_ABOVE_RATIO = 0.3
"""Share of time in which all tasks that could run waited for I/O (PSI `full`); a healthy loader stays below 0.05."""
STALLED_SECONDS = 60
NOTHING_BELOW_BYTES_PER_SECOND = 1e6
USES_ABOVE_BYTES_PER_SECOND = 5e6
"""A node that never moved so much over shared storage lately has no reason to wait for it."""
USED_SECONDS = 1_800
LOCAL_ABOVE_BYTES_PER_SECOND = 2e7
"""Then it is the node's own disks that it waits for."""


def detect_storage_stalls(panel: Panel) -> Iterator[Detection]:
    """Yield STORAGE_STALL for each node and stretch."""
    if not panel.nodes.values:
        return
    stalled = _growth(panel.nodes, "pressure_io_stalled_seconds")
    shared = _sum_known(_growth(panel.nodes, "shared_read_bytes"), _growth(panel.nodes, "shared_written_bytes"))
    rows, used_rows = panel.rows_in(STALLED_SECONDS), panel.rows_in(USED_SECONDS)
    waits = (stalled >= STALLED_ABOVE_RATIO) & (shared < NOTHING_BELOW_BYTES_PER_SECOND)
    waits &= ~(_local_bytes(panel) >= LOCAL_ABOVE_BYTES_PER_SECOND)
    uses_it = counted(shared >= USES_ABOVE_BYTES_PER_SECOND, used_rows) > 0
    for stretch in stretches(lasting(waits, rows) & uses_it):
        node = panel.nodes.parts[stretch.column].node
        began_at = panel.time(max(0, stretch.first - rows + 1))
        ratio = float(stalled[stretch.first, stretch.column])
        yield Detection(
            signal=Signal.STORAGE_STALL,
            node=node,
            began_at=began_at,
            first_seen_at=panel.time(stretch.first),
            last_seen_at=panel.time(stretch.last),
            value=ratio,
            text=f"every task of {node} waits for I/O {ratio:.0%} of the time, and shared storage has delivered nothing"
            f" since {began_at:%H:%M:%S}",
        )


def _growth(layer: Layer, column: str) -> Numbers:
    if column not in layer:
        return np.full((layer.time_count, len(layer.parts)), np.nan)
    return growth_over_gaps(layer.value(column), step_seconds=layer.step_seconds)


def _sum_known(*values: Numbers) -> Numbers:
    """Return the sum of what is known; NaN where nothing is."""
    unknown: Flags = np.logical_and.reduce([np.isnan(each) for each in values])
    total = np.sum([np.nan_to_num(each) for each in values], axis=0)
    return np.where(unknown, np.nan, total)


def _local_bytes(panel: Panel) -> Numbers:
    """Return what the disks of each node move, per second: (times, nodes); 0 where it has none that is measured."""
    total = np.zeros((len(panel.times), len(panel.nodes.parts)))
    if not panel.disks.values:
        return total
    moved = _sum_known(_growth(panel.disks, "read_bytes"), _growth(panel.disks, "written_bytes"))
    order = {part.node: column for column, part in enumerate(panel.nodes.parts)}
    for column, part in enumerate(panel.disks.parts):
        if part.node in order:
            total[:, order[part.node]] += np.nan_to_num(moved[:, column])
    return total
