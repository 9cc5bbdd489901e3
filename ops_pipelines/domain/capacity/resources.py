"""What is counted for capacity: GPUs that teams want, what is missing of them, bytes, links, watts. One treatment."""

from dataclasses import dataclass
from enum import Enum

from ops_pipelines.core.proposal import GpuType


class Resource(Enum):
    """What a series is of. Its unit is the base unit; what stands behind `name` of a series is said at each."""

    GPUS = "gpus"
    """Wanted: running and pending. Name: the team; empty: all teams together."""
    GPUS_OUT = "gpus_out"
    """Installed and not in service, as the mean of a day. Name: `broken`, `maintenance`; empty: both."""
    GPUS_STRANDED = "gpus_stranded"
    """In service and free, but not to be had by jobs of whole nodes, as the mean of a day. Name: empty."""
    STORAGE_BYTES = "storage_bytes"
    """In use. Name: the file system; limit: its size."""
    NETWORK_RATIO = "network_ratio"
    """Of the links' rate, of the busiest tenth of them. Name: the leaf switch, or empty: the whole fabric; limit: 1."""
    RACK_WATTS = "rack_watts"
    """Drawn. Name: the rack; limit: what it may draw."""
    COOLING_WATTS = "cooling_watts"
    """Heat that is carried off. Name: what cools, or empty: the whole room; limit: what it can carry."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SeriesKey:
    """Which series: text alone, so that series have an order."""

    resource: str
    """A value of `Resource`."""
    gpu_type: GpuType = GpuType("")
    name: str = ""

    @property
    def kind(self) -> Resource:
        return Resource(self.resource)
