"""The shape of capacity.yaml: one model a section, nothing but keys, types and bounds.

Amounts are text in quotes, as in `prices`: a number without them has no exact cents. What the sections become is
`capacity_file`'s.
"""

from typing import Annotated, Literal

from pydantic import Field

from ops_pipelines.resources.config.price_models import AmountText
from ops_pipelines.resources.config.shapes import GpuTypeName, PlannedDay
from ops_pipelines.resources.config.strict_yaml import StrictModel

SkuName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
PlaceName = Annotated[str, Field(max_length=253, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
# Assumption: nothing takes ten years to be delivered, and no site orders more at once; more is a slip.
DayCount = Annotated[int, Field(ge=0, le=3660)]
SomeDays = Annotated[float, Field(gt=0, le=3660)]
Some = Annotated[int, Field(ge=1, le=100_000)]
Entries = Annotated[list[object], Field(max_length=1000)]
"""# Assumption: no site states more of one kind; what is planned from this many is there within seconds."""
_MOST_DAYS_LISTED = 10_000
MOST_ENTRIES = 10_000
"""Racks; longer lists are not looked through for further faults."""
Watts = Annotated[float, Field(gt=0, le=1e10)]
Probability = Annotated[float, Field(gt=0, le=1)]


class LeadTimeModel(StrictModel):
    """Either the first two, or the days that past deliveries took: five or more."""

    median_days: SomeDays | None = None
    p90_days: SomeDays | None = None
    seen_days: Annotated[list[SomeDays], Field(max_length=_MOST_DAYS_LISTED)] | None = None


class SkuModel(StrictModel):
    sku: SkuName
    gpu_type: GpuTypeName = ""
    gpus_per_node: Annotated[int, Field(ge=1, le=128)]
    node_price: AmountText
    watts_per_node: Watts
    nodes_per_rack: Some
    lead_time: LeadTimeModel | None = None
    rack_days: DayCount = 0
    burn_in_days: DayCount = 0
    support_per_month: AmountText = "0"
    work_ratio: Annotated[float, Field(gt=0, le=1000)] = 1.0
    amortized_months: Annotated[int, Field(ge=1, le=600)] = 48


class ArrivalModel(StrictModel):
    sku: SkuName
    nodes: Some
    on: PlannedDay
    probability: Probability = 1.0


class RetirementModel(StrictModel):
    nodes: Annotated[str, Field(min_length=1)]
    """A host list, as in `racks` of cluster.yaml."""
    on: PlannedDay


class ExpansionModel(StrictModel):
    resource: Literal["storage_bytes", "network_ratio", "rack_watts", "cooling_watts"]
    names: Annotated[list[PlaceName], Field(min_length=1, max_length=10_000)]
    step: Annotated[float, Field(gt=0, le=1e20)]
    step_price: AmountText
    lead_time: LeadTimeModel | None = None
    usable_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0


class RackRoomModel(StrictModel):
    rack: Annotated[str, Field(min_length=1, max_length=253)]
    free_nodes: Annotated[int, Field(ge=0, le=100_000)]
    limit_watts: Watts | None = None


class CapacityModel(StrictModel):
    """capacity.yaml. The entries of lists are checked one by one, so that a slip in one hides nothing in another."""

    skus: Entries = Field(default_factory=list)
    arrivals: Entries = Field(default_factory=list)
    retirements: Entries = Field(default_factory=list)
    expansions: Entries = Field(default_factory=list)
    racks: Annotated[list[object], Field(max_length=MOST_ENTRIES)] = Field(default_factory=list)
    room_limit_watts: Watts | None = None
    cloud: dict[GpuTypeName, AmountText] = Field(default_factory=dict)
    holidays: Annotated[list[PlannedDay], Field(max_length=_MOST_DAYS_LISTED)] = Field(default_factory=list)
