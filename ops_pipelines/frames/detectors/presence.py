"""Series that end: a GPU that vanished while its neighbours report, a node whose GPU metrics stopped altogether.

The live path judges the same from single readings (`lake.telemetry`); this is for panels. That a node was drained,
is rebooting or was switched off is for the flow to know.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.core.identity import Topology
from ops_pipelines.core.observation import Signal
from ops_pipelines.frames.detectors.peers import Groups, group_by, group_count
from ops_pipelines.frames.detectors.windows import ever, layer_of, told
from ops_pipelines.frames.panels.detection import Detection, held_lately, lasting
from ops_pipelines.frames.panels.panel import Flags, Layer, Panel, Part

MISSING_ROWS = 3
"""Assumption: three samples in a row with its neighbours there at each. One or two of one GPU are lost now and then (a
field that timed out), and nothing tells such a loss from a lost GPU before the third; NVSentinel gives NICs three
polls, too. An exporter that restarts takes all GPUs of its node along, and brings them back one after another."""
STALE_SECONDS = 120
"""Assumption, as for the live path: the restart of an exporter takes a minute at most."""
WAS_THERE_SECONDS = 1_800
"""Assumption: who reported within half an hour should."""


def detect_presence(panel: Panel, *, topology: Topology) -> Iterator[Detection]:
    """Yield GPU_MISSING and TELEMETRY_STALE.

    A part is expected while the panel has a column for it. A GPU that was exchanged has two columns with one address
    and is there; nobody is missing on a node that reports as many GPUs as cluster.yaml declares. While no GPU of any
    node reports, it is the store that is silent; then only a node is told whose other metrics go on.
    """
    gpus = panel.gpus
    if not gpus.parts or not gpus.values or not len(panel.times):
        return
    slots = group_by([(part.node, part.device or part.uuid) for part in gpus.parts])
    there: Flags = group_count(gpus.present, slots) > 0
    owners = [_owner(gpus, columns[columns >= 0].tolist()) for columns in slots.members]
    by_node = group_by([part.node for part in owners])
    counts = group_count(there, by_node)
    yield from _detect_missing(panel, topology, owners, there, by_node, counts)
    nodes = [Part(node=owners[columns[0]].node) for columns in by_node.members]
    yield from _detect_stale(panel, nodes, counts > 0)


def _owner(gpus: Layer, columns: list[int]) -> Part:
    """Return what is known of a slot: which of several GPUs it held is not asked here."""
    part = gpus.parts[columns[0]]
    return part if len(columns) == 1 else replace(part, uuid=None)


def _detect_missing(
    panel: Panel, topology: Topology, slots: list[Part], there: Flags, by_node: Groups, node_counts: NDArray[np.int32]
) -> Iterator[Detection]:
    """`there` is (times, slots); `node_counts` (how many GPUs a node reports) is (times, nodes)."""
    declared = np.array([topology.gpus_per_node if topology.knows(part.node) else np.inf for part in slots])
    columns = ever(~there)
    counts = node_counts[:, by_node.index[columns]]
    missing = ~there[:, columns] & (counts > 0) & (counts < declared[columns])
    yield from told(
        panel,
        layer_of(panel, slots),
        lasting(missing, MISSING_ROWS),
        columns=columns,
        signal=Signal.GPU_MISSING,
        describe=lambda row, place: (
            f"vanished from the metrics; {counts[row, place]} other GPU(s) of its node report",
            None,
        ),
        signs=missing,
        sign_rows=MISSING_ROWS,
        code=1,  # how many are missing: one detection a GPU
    )


def _detect_stale(panel: Panel, nodes: list[Part], reports: Flags) -> Iterator[Detection]:
    """`reports` is (times, nodes): any GPU of the node has a sample."""
    rows = panel.rows_in(STALE_SECONDS)
    columns = ever(lasting(~reports, rows))
    if not len(columns):
        return
    host = np.zeros((len(reports), len(columns)), dtype=bool)
    host_columns = {part.node: column for column, part in enumerate(panel.nodes.parts)}
    for place, column in enumerate(columns):
        host_column = host_columns.get(nodes[column].node)
        if host_column is not None and panel.nodes.values:
            host[:, place] = panel.nodes.present[:, host_column]
    was_there = held_lately(reports[:, columns], panel.rows_in(WAS_THERE_SECONDS))
    silent = ~reports[:, columns] & (reports.any(axis=1, keepdims=True) | (host & was_there))
    yield from told(
        panel,
        layer_of(panel, nodes),
        lasting(silent, rows),
        columns=columns,
        signal=Signal.TELEMETRY_STALE,
        describe=lambda row, place: (
            "gives no GPU metrics; "
            + ("others of it still come in" if host[row, place] else "no others come in either"),
            None,
        ),
        signs=silent,
        sign_rows=rows,
    )
