"""The clock of a node against its reference: evidence of a node with a wrong clock carries wrong times."""

from collections.abc import Iterator

import numpy as np

from ops_pipelines.core.observation import Signal
from ops_pipelines.frames.detectors.windows import GAP_SECONDS, Told, newest, state_holds, told
from ops_pipelines.frames.panels.detection import Detection, lasting
from ops_pipelines.frames.panels.panel import Panel

OFFSET_LIMIT_SECONDS = 0.05
"""dcgm_fields, node_timex_offset_seconds: more breaks the order of events. An offset of exactly this much is well."""
OFFSET_ROWS = 4
"""Assumption: a minute; a reference that steps is followed within seconds."""
UNSYNCHRONISED_SECONDS = 1_800
"""Assumption: half an hour without a reference; most nodes must have theirs (who keeps time by other means than NTP
reads 0 for ever)."""


def detect_clocks(panel: Panel) -> Iterator[Detection]:
    """Yield CLOCK_SKEW."""
    yield from _detect_offset(panel)
    yield from _detect_unsynchronised(panel)


def _detect_offset(panel: Panel) -> Iterator[Detection]:
    column = "clock_offset_seconds"
    off, columns = state_holds(
        panel, panel.nodes, column, lambda offset: np.greater(np.abs(offset), np.float32(OFFSET_LIMIT_SECONDS))
    )

    def describe(row: int, place: int) -> Told:
        rows = panel.rows_in(GAP_SECONDS) + 1
        value = newest(panel.nodes.values[column], column=int(columns[place]), row=row, rows=rows)
        return f"has a clock {abs(value):.3g} s {'ahead of' if value < 0 else 'behind'} its reference", value

    yield from told(
        panel,
        panel.nodes,
        lasting(off, OFFSET_ROWS),
        columns=columns,
        signal=Signal.CLOCK_SKEW,
        describe=describe,
        signs=off,
        sign_rows=OFFSET_ROWS,
    )


def _detect_unsynchronised(panel: Panel) -> Iterator[Detection]:
    column = "clock_synchronised"
    lost, columns = state_holds(panel, panel.nodes, column, lambda held: np.equal(held, 0))
    if not len(columns):
        return
    held = panel.nodes.values[column]
    most_held = 2 * (held == 1).sum(axis=1) > (~np.isnan(held)).sum(axis=1)
    rows = panel.rows_in(UNSYNCHRONISED_SECONDS)
    yield from told(
        panel,
        panel.nodes,
        lasting(lost, rows) & most_held[:, None],
        columns=columns,
        signal=Signal.CLOCK_SKEW,
        describe=lambda *_: ("has had no reference for its clock for half an hour", None),
        signs=lost,
        sign_rows=rows,
    )
