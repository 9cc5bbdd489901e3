"""Ports of a node that are down, flapping, slow or with errors; and series that end.

Which end is at fault, and that many ports lead to one switch, is correlation's to see. Congestion (waits, marks,
discards) is no fault of a port.

The live path judges the same from single readings (`lake.telemetry`); this is for panels. That a node was drained, is
rebooting or was switched off is for the flow to know.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.core.identity import Topology
from ops_pipelines.core.observation import Signal
from ops_pipelines.observe.detectors.shared import (
    GAP_SECONDS,
    Groups,
    Growth,
    Told,
    carried,
    ever,
    group_by,
    group_count,
    group_median,
    growth,
    layer_of,
    told,
    told_counts,
)
from ops_pipelines.observe.panels.panel import (
    Detection,
    Flags,
    Layer,
    Numbers,
    Panel,
    Part,
    counted,
    held_lately,
    lasting,
)

# -- ports of a node --


ACTIVE, LINK_UP = 4, 5
"""Logical and physical state of a port that works (node_exporter, infiniband collector)."""
DOWN_ROWS = 2
"""Assumption: down for two samples; a shorter loss is a flap. gpud waits for 25 s."""
GONE_ROWS = 3
"""NVSentinel docs/nic-health-monitor.md: a device that is missing in three polls."""
WAS_UP_SECONDS = 1_800
"""A port that was up within half an hour is meant to be up, whatever its peers do. Assumption."""
FLAP_COUNT, FLAP_WINDOW_SECONDS = 2, 600
"""catalogue/metrics.csv, network_carrier_change_count: two within ten minutes flap. One is LINK_DOWN's, if it lasts."""
ERRORS_PER_SECOND_LIMIT, ERRORS_ROWS = 10, 2
"""NVSentinel docs/nic-health-monitor.md: more than 10 symbol errors a second. Assumption: at two samples in a row."""
ERRORS_PER_HOUR_LIMIT, ERRORS_WINDOW_SECONDS, ERRORS_SAMPLES = 120, 1_800, 5
"""The same: more than 120 an hour breaks IBTA's bit error rate of 1e-12. Assumption: half an hour reports, and growth
at five samples of it, so that one burst does not."""
_LEAST_ERRORS = ERRORS_PER_HOUR_LIMIT * ERRORS_WINDOW_SECONDS / 3600
RECOVERIES_PER_MINUTE_LIMIT = 5
"""The same: more than 5 link error recoveries a minute."""
EVENT_HOLD_SECONDS = 600
"""Assumption: an error of which each one counts is notified for ten minutes."""
SLOW_RATIO, SLOW_ROWS, PEER_COUNT = 0.75, 4, 3
"""Assumption: a port that came up with three quarters or less of what the same port of most nodes has."""

_RATED = {
    "symbol_error_count": "symbol errors",
    "receive_error_count": "packets received in error",
    "ethernet_symbol_error_count": "symbol errors",
    "ethernet_checksum_error_count": "frames with a wrong checksum",
}
"""The limits are those of symbol errors; for the others, Assumption: the same."""
_EACH_COUNTS = {
    "local_integrity_error_count": "local link integrity errors",
    "buffer_overrun_count": "buffer overruns",
    "checksum_error_count": "packets with a wrong checksum",
}
"""NVSentinel: any increment of the first two is fatal; dcgm_fields: the third is corruption on the path."""


def detect_links(panel: Panel) -> Iterator[Detection]:
    """Yield LINK_DOWN, LINK_FLAPS and LINK_ERRORS, each with its port."""
    if not len(panel.times) or not panel.ports.parts:
        return
    by_name = group_by([part.device for part in panel.ports.parts])
    down, known = _is_down(panel)
    yield from _detect_down(panel, by_name, down, known)
    yield from _detect_gone(panel, by_name)
    yield from _detect_flaps(panel, down, known)
    for column, what in _RATED.items():
        yield from _detect_rate(panel, column, what)
    yield from _detect_recoveries(panel)
    for column, what in _EACH_COUNTS.items():
        yield from _detect_each(panel, column, what)
    yield from _detect_slow(panel, by_name, down)


def _is_down(panel: Panel) -> tuple[Flags, Flags]:
    """Return where a port says that it is not up, and where it says anything."""
    down = np.zeros((len(panel.times), len(panel.ports.parts)), dtype=bool)
    known = down.copy()
    for column, good in (("link_state", ACTIVE), ("physical_state", LINK_UP)):
        if column in panel.ports:
            says = ~np.isnan(panel.ports.values[column])
            down |= says & (panel.ports.values[column] != good)
            known |= says
    return down, known


def _detect_down(panel: Panel, by_name: Groups, down: Flags, known: Flags) -> Iterator[Detection]:
    columns = ever(down)
    if not len(columns):
        return
    up = known & ~down
    was_up = held_lately(up[:, columns], panel.rows_in(WAS_UP_SECONDS))
    # an empty socket is down on every node: who was not up lately is missed only if most of its namesakes are up
    most_up = (2 * group_count(up, by_name) > group_count(known, by_name))[:, by_name.index[columns]]
    missed = carried(down[:, columns] & (was_up | most_up), known[:, columns], panel.rows_in(GAP_SECONDS))
    said = lasting(missed, DOWN_ROWS)
    yield from told(
        panel,
        panel.ports,
        said,
        columns=columns,
        signal=Signal.LINK_DOWN,
        describe=lambda row, place: (f"is down{_state_words(panel, row, int(columns[place]))}", None),
        signs=missed,
        sign_rows=DOWN_ROWS,
    )


def _state_words(panel: Panel, row: int, column: int) -> str:
    said = [
        f"{name} {matrix[row, column]:.0f}"
        for name, key in (("logical state", "link_state"), ("physical state", "physical_state"))
        if (matrix := panel.ports.values.get(key)) is not None and not np.isnan(matrix[row, column])
    ]
    return f" ({', '.join(said)})" if said else ""


def _detect_gone(panel: Panel, by_name: Groups) -> Iterator[Detection]:
    """A port whose series end while others of its node report: without them it is the node, or what asks it, that is
    silent."""
    layer = panel.ports
    present = layer.present
    columns = ever(~present)
    if not len(columns):
        return
    by_node = group_by([part.node for part in layer.parts])
    others = (group_count(present, by_node) > 0)[:, by_node.index[columns]]
    was_there = held_lately(present[:, columns], panel.rows_in(WAS_UP_SECONDS))
    most_there = (2 * group_count(present, by_name) > by_name.sizes)[:, by_name.index[columns]]
    gone = lasting(~present[:, columns] & others, GONE_ROWS) & (was_there | most_there)
    yield from told(
        panel,
        layer,
        gone,
        columns=columns,
        signal=Signal.LINK_DOWN,
        describe=lambda *_: ("is gone from the metrics; other ports of its node report", None),
        signs=~present[:, columns],
        sign_rows=GONE_ROWS,
    )


def _detect_flaps(panel: Panel, down: Flags, known: Flags) -> Iterator[Detection]:
    rows = panel.rows_in(FLAP_WINDOW_SECONDS)
    falls = np.zeros(down.shape, dtype=bool)
    falls[1:] = down[1:] & known[:-1] & ~down[:-1]
    seen = np.zeros(down.shape, dtype=np.float32)
    for column in ("link_downed_count", "ethernet_link_down_count"):
        grown = growth(panel, panel.ports, column)
        seen[:, grown.columns] = np.maximum(seen[:, grown.columns], grown.counts)
    columns = ever(falls | (seen > 0))
    if not len(columns):
        return
    signs = falls[:, columns] | (seen[:, columns] > 0)
    told_by_counter = Growth(columns, seen[:, columns].astype(np.float64)).within(rows)
    told_by_state = counted(falls[:, columns], rows)
    flaps = np.maximum(told_by_counter, told_by_state)
    yield from told(
        panel,
        panel.ports,
        flaps >= FLAP_COUNT,
        columns=columns,
        signal=Signal.LINK_FLAPS,
        describe=lambda row, place: (
            f"went down {flaps[row, place]:.0f} times within ten minutes",
            float(flaps[row, place]),
        ),
        signs=signs,
        sign_rows=rows,
    )


def _detect_rate(panel: Panel, column: str, what: str) -> Iterator[Detection]:
    grown = growth(panel, panel.ports, column, least=_LEAST_ERRORS)
    rows = panel.rows_in(ERRORS_WINDOW_SECONDS)
    within = grown.within(rows)
    fast = grown.counts > ERRORS_PER_SECOND_LIMIT * panel.step_seconds
    steady = (within > _LEAST_ERRORS) & (counted(grown.grew, rows) >= ERRORS_SAMPLES)
    said = steady | held_lately(lasting(fast, ERRORS_ROWS), panel.rows_in(GAP_SECONDS))
    yield from _errors(panel, grown, said, within, rows, f"counts {{0:.0f}} {what} within half an hour")


def _detect_recoveries(panel: Panel) -> Iterator[Detection]:
    grown = growth(panel, panel.ports, "link_error_recovery_count", least=RECOVERIES_PER_MINUTE_LIMIT)
    within = grown.within(panel.rows_in(60))
    said = held_lately(within > RECOVERIES_PER_MINUTE_LIMIT, panel.rows_in(GAP_SECONDS))
    yield from _errors(panel, grown, said, within, panel.rows_in(60), "recovers from {0:.0f} link errors a minute")


def _detect_each(panel: Panel, column: str, what: str) -> Iterator[Detection]:
    grown = growth(panel, panel.ports, column)
    rows = panel.rows_in(EVENT_HOLD_SECONDS)
    said = held_lately(grown.grew, rows)
    yield from _errors(panel, grown, said, grown.within(rows), rows, f"counts {{0:.0f}} {what}")


def _errors(
    panel: Panel, grown: Growth, said: Flags, values: NDArray[np.float64], sign_rows: int, words: str
) -> Iterator[Detection]:
    yield from told_counts(
        panel,
        panel.ports,
        grown,
        said=said,
        values=values,
        signal=Signal.LINK_ERRORS,
        words=words,
        sign_rows=sign_rows,
    )


def _detect_slow(panel: Panel, by_name: Groups, down: Flags) -> Iterator[Detection]:
    rates = panel.ports.values.get("rate_bits_per_second")
    if rates is None:
        return
    usual: Numbers = group_median(rates, by_name)
    usual[:, by_name.sizes <= PEER_COUNT] = np.nan
    slow = (rates <= SLOW_RATIO * usual[:, by_name.index]) & ~down
    columns = ever(slow)
    slow = slow[:, columns]

    def describe(row: int, place: int) -> Told:
        column = columns[place]
        rate, most = rates[row, column] / 1e9, usual[row, by_name.index[column]] / 1e9
        return f"runs at {rate:.0f} Gbit/s; the same port of most nodes at {most:.0f}", float(rates[row, column])

    yield from told(
        panel,
        panel.ports,
        lasting(slow, SLOW_ROWS),
        columns=columns,
        signal=Signal.LINK_ERRORS,
        describe=describe,
        signs=slow,
        sign_rows=SLOW_ROWS,
    )


# -- series that end --


MISSING_ROWS = 3
"""Assumption: three samples in a row with its neighbours there at each. One or two of one GPU are lost now and then (a
field that timed out), and nothing reports such a loss from a lost GPU before the third; NVSentinel gives NICs three
polls, too. An exporter that restarts takes all GPUs of its node along, and brings them back one after another."""
STALE_SECONDS = 120
"""Assumption, as for the live path: the restart of an exporter takes a minute at most."""
WAS_THERE_SECONDS = 1_800
"""Assumption: who reported within half an hour should."""


def detect_presence(panel: Panel, *, topology: Topology) -> Iterator[Detection]:
    """Yield GPU_MISSING and TELEMETRY_STALE.

    A part is expected while the panel has a column for it. A GPU that was exchanged has two columns with one address
    and is there; nobody is missing on a node that reports as many GPUs as cluster.yaml declares. While no GPU of any
    node reports, it is the store that is silent; then only a node is reported whose other metrics continue.
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
