"""Metrics of GPUs, as samples with their labels, unbelieved: `frames.telemetry` decides what is accepted."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of one series. Labels and value are as the source gave them; the value may be NaN."""

    metric: str
    labels: Mapping[str, str]
    value: float
    sampled_at: datetime
    """When the source took it; in a Prometheus range answer, the grid time."""


class Telemetry(Protocol):
    """Reads the newest samples."""

    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        """Return, for each series of the watched GPU metrics, its value at the grid time at or before `at`.

        A series without a value in the source's look-back (5 minutes in Prometheus) is not in the answer.
        Raises SourceUnavailable or SourceNonsense.
        """
        ...
