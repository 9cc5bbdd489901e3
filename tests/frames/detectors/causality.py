"""The promise of every detector: what it says of a grid time comes from the LOOKBACK_SECONDS before it."""

from collections.abc import Iterable
from dataclasses import replace

from ops_pipelines.observe.panels.panel import LOOKBACK_SECONDS, Detection, Detector, Panel
from tests.frames.detectors.panels import rows_of


def said_at(found: Iterable[Detection], panel: Panel, row: int) -> set[str]:
    """Return the positions of the conditions that hold at a grid time."""
    at = panel.time(row)
    return {detection.position for detection in found if detection.first_seen_at <= at <= detection.last_seen_at}


def assert_needs_no_other_rows(detect: Detector, whole: Panel, *, rows: Iterable[int]) -> None:
    """Assert that at each of `rows` the detector says the same, whether it sees all of `whole` or the window that ends
    there; and where something is new there, that it says it in the same words."""
    found = list(detect(whole))
    for row in rows:
        window = rows_of(whole, max(0, row - whole.rows_in(LOOKBACK_SECONDS)), row + 1)
        now = list(detect(window))
        at = whole.time(row)

        assert said_at(now, window, len(window.times) - 1) == said_at(found, whole, row), f"at row {row}"
        new = [replace(detection, last_seen_at=at) for detection in found if detection.first_seen_at == at]
        for detection in new:
            assert detection in now, f"at row {row}: {detection}"
