"""Memory of the host: what its memory controllers count."""

from collections.abc import Iterator

from ops_pipelines.core.observation import Signal
from ops_pipelines.frames.detectors.windows import growth, told_counts
from ops_pipelines.frames.panels.detection import Detection, counted, held_lately
from ops_pipelines.frames.panels.panel import Panel

UNCORRECTED_HOLD_SECONDS = 1_800
"""dcgm_fields, node_edac_uncorrectable_errors_total: any increase drains. Assumption: it is told for half an hour."""
CORRECTED_PER_MINUTE_LIMIT, CORRECTED_WINDOW_SECONDS, CORRECTED_SAMPLES = 10, 600, 5
"""dcgm_fields: more than 10 an hour is a DIMM for the next maintenance, and never kills a job. Assumption: ten a minute
for ten minutes, at five samples or more, is a DIMM that cannot wait."""


def detect_host(panel: Panel) -> Iterator[Detection]:
    """Yield HOST_MEMORY; an uncorrected error at its first sample."""
    for column in ("edac_uncorrectable_count", "edac_dimm_uncorrectable_count"):
        yield from _detect_uncorrected(panel, column)
    for column in ("edac_correctable_count", "edac_dimm_correctable_count"):
        yield from _detect_corrected(panel, column)


def _detect_uncorrected(panel: Panel, column: str) -> Iterator[Detection]:
    grown = growth(panel, panel.nodes, column)
    rows = panel.rows_in(UNCORRECTED_HOLD_SECONDS)
    yield from told_counts(
        panel,
        panel.nodes,
        grown,
        said=held_lately(grown.grew, rows),
        values=grown.within(rows),
        signal=Signal.HOST_MEMORY,
        words="counts {0:.0f} uncorrected error(s) of host memory",
        sign_rows=rows,
    )


def _detect_corrected(panel: Panel, column: str) -> Iterator[Detection]:
    limit = CORRECTED_PER_MINUTE_LIMIT * CORRECTED_WINDOW_SECONDS / 60
    grown = growth(panel, panel.nodes, column, least=limit)
    rows = panel.rows_in(CORRECTED_WINDOW_SECONDS)
    within = grown.within(rows)
    yield from told_counts(
        panel,
        panel.nodes,
        grown,
        said=(within >= limit) & (counted(grown.grew, rows) >= CORRECTED_SAMPLES),
        values=within,
        signal=Signal.HOST_MEMORY,
        words="corrected {0:.0f} errors of host memory within ten minutes",
        sign_rows=rows,
    )
