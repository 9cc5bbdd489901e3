"""The telemetry port on any source of metrics that knows now: exporters without a store, NVML on this node."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.sources import MetricSource, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    read_at: datetime
    """The grid time."""
    samples: tuple[Sample, ...]


class SampledTelemetry:
    """Reads the watched GPU metrics from the pages of a source, on a grid of whole steps. Safe for threads."""

    def __init__(
        self,
        open_source: Callable[[], MetricSource],
        *,
        step_seconds: int,
        look_back: timedelta = timedelta(seconds=60),
    ) -> None:
        """`open_source` is called at the first reading. A target that falls silent keeps its samples for `look_back`.

        Those keep their own times, so how stale they are is judged truthfully.
        """
        self._open_source = open_source
        self._source: MetricSource | None = None
        self._step_seconds = step_seconds
        self._look_back = look_back
        self._lock = threading.Lock()
        self._last: _Reading | None = None
        self._by_target: dict[tuple[int, str], _Reading] = {}

    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        """Return the watched series at the grid time at or before `at`; see `core.sources.Telemetry`.

        A grid time that was just answered is answered from memory: callers at one time see one truth.
        """
        seconds = int(at.timestamp())
        grid_time = datetime.fromtimestamp(seconds - seconds % self._step_seconds, UTC)
        with self._lock:
            if self._last is None or self._last.read_at != grid_time:
                self._last = _Reading(read_at=grid_time, samples=self._read(grid_time))
            return self._last.samples

    def _read(self, grid_time: datetime) -> tuple[Sample, ...]:
        from ops_pipelines.lake.metrics.pages import read_block, watched_samples

        source = self._source = self._source or self._open_source()
        samples: list[Sample] = []
        pages = source.read_range((), start=grid_time, end=grid_time, step_seconds=self._step_seconds)
        for place, page in enumerate(pages):
            # Two pages of one host have one name; the place, which is that of the configuration, tells them apart.
            target = (place, page.source)
            block = read_block(page)
            if block.names:
                self._by_target[target] = _Reading(read_at=grid_time, samples=watched_samples(page, block))
            known = self._by_target.get(target)
            if known is not None and timedelta(0) <= grid_time - known.read_at <= self._look_back:
                samples += known.samples
        return tuple(sorted(samples, key=lambda sample: (sample.metric, sorted(sample.labels.items()))))
