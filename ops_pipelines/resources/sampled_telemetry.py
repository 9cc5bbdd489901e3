"""The telemetry port on any source of metrics that knows now: exporters without a store, NVML on this node."""

from collections.abc import Callable
from datetime import UTC, datetime

from ops_pipelines.ports.metrics import MetricSource
from ops_pipelines.ports.telemetry import Sample


class SampledTelemetry:
    """Reads the watched GPU metrics from the pages of a source, on a grid of whole steps."""

    def __init__(self, open_source: Callable[[], MetricSource], *, step_seconds: int) -> None:
        """`open_source` is called at the first reading."""
        self._open_source = open_source
        self._source: MetricSource | None = None
        self._step_seconds = step_seconds

    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        """Return the watched series at the grid time at or before `at`; see `ports.telemetry.Telemetry`."""
        from ops_pipelines.frames.node_names import NodeNames
        from ops_pipelines.frames.pages import read_page, watched_samples

        source = self._source = self._source or self._open_source()
        seconds = int(at.timestamp())
        grid_time = datetime.fromtimestamp(seconds - seconds % self._step_seconds, UTC)
        samples: list[Sample] = []
        for page in source.read_range((), start=grid_time, end=grid_time, step_seconds=self._step_seconds):
            samples += watched_samples(page, read_page(page, names=NodeNames(None)).block)
        return tuple(sorted(samples, key=lambda sample: (sample.metric, sorted(sample.labels.items()))))
