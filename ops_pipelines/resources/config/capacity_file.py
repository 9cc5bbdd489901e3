"""Reads capacity.yaml: what can be bought, comes and goes, as domain values, or every fault with its line and remedy.

The entries of lists are read one by one, so that a slip in one hides nothing in another. Nodes, racks and switches are
those of cluster.yaml; file systems are known by what is measured alone, and are not checked here. Amounts are text in
quotes, as in `prices`.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

from pydantic import Field

from ops_pipelines.capacity.model import Resource
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.resources.config.binding import (
    FaultsFound,
    KeyPath,
    Made,
    Section,
    dict_of,
    list_of,
    needed,
    nullable,
    optional,
    section_of,
)
from ops_pipelines.resources.config.cluster_config import ClusterConfig, gpu_types
from ops_pipelines.resources.config.yaml_file import (
    GpuTypeName,
    HostList,
    Name,
    PlannedDay,
    Probability,
    Watts,
    WholeCents,
    YamlFile,
)
from ops_pipelines.teams.projects import Arrival, CapacitySettings, LeadTime, RackRoom, Retirement, Sku, StoreExpansion

_ENOUGH_DELIVERIES = 5
_WIDEST_RATIO = 20
"""# Assumption: no delivery is as uncertain. Far beyond it, a late order would come in after the year 9999."""
_MOST_RACKS = 10_000
"""Longer lists are not looked through for further faults."""
_MOST_DAYS_LISTED = 10_000
# Assumption: nothing takes ten years to be delivered, and no site orders more at once; more is a slip.
_DayCount = Annotated[int, Field(ge=0, le=3660)]
_SomeDays = Annotated[float, Field(gt=0, le=3660)]
_Some = Annotated[int, Field(ge=1, le=100_000)]
_PlaceName = Annotated[str, Field(max_length=253, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
_ENTRIES = list_of(object, most=1000)
"""# Assumption: no site states more of one kind; what is planned from this many is there within seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Top:
    skus: list[object] = field(default_factory=list)
    arrivals: list[object] = field(default_factory=list)
    retirements: list[object] = field(default_factory=list)
    expansions: list[object] = field(default_factory=list)
    racks: list[object] = field(default_factory=list)
    room_limit_watts: float | None = None
    cloud: Mapping[GpuType, Cents] = field(default_factory=dict)
    holidays: tuple[date, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaving:
    """Nodes that retire together, of whatever types."""

    nodes: tuple[NodeName, ...]
    on: date


def _lead_time(
    *, median_days: float | None = None, p90_days: float | None = None, seen_days: list[float] | None = None
) -> LeadTime:
    """Return it from the median and the 90 % point, or from the days that five or more past deliveries took."""
    if seen_days is not None:
        if median_days is not None or p90_days is not None:
            raise FaultsFound((("seen_days",), "give past deliveries, or median_days and p90_days; not both"))
        if len(seen_days) < _ENOUGH_DELIVERIES:
            expected = f"expected {_ENOUGH_DELIVERIES} or more, or median_days and p90_days"
            raise FaultsFound((("seen_days",), f"found {len(seen_days)} deliveries; {expected}"))
        # The deliveries themselves count; the curve is not asked where there are enough of them.
        ranked = sorted(seen_days)
        middle = median(ranked)
        late = max(middle, ranked[min(len(ranked) - 1, len(ranked) * 9 // 10)])
        return LeadTime(median_days=middle, p90_days=late, seen_days=tuple(seen_days))
    if median_days is None or p90_days is None:
        raise ValueError("expected median_days and p90_days, or seen_days of past deliveries; or leave it out")
    if p90_days > _WIDEST_RATIO * median_days:
        found = f"found {p90_days:g} days beside a median of {median_days:g}"
        expected = f"expected at most {_WIDEST_RATIO} times the median: state both again"
        raise FaultsFound((("p90_days",), f"{found}; {expected}"))
    try:
        return LeadTime(median_days=median_days, p90_days=p90_days)
    except ValueError as problem:
        raise FaultsFound((("p90_days",), str(problem))) from problem


def _arrival(
    *, skus: Mapping[str, Sku | None], sku: str, nodes: int, on: date, probability: float = 1.0
) -> Arrival | None:
    """Return what comes; None where its SKU has faults, which are reported there. `skus`: by the names that stand
    there.
    """
    if sku not in skus:
        expected = ", ".join(sorted(skus)) or "one that is under `skus`"
        raise FaultsFound((("sku",), f"there is no SKU {sku}; expected {expected}"))
    bought = skus[sku]
    if bought is None:
        return None
    gpus = nodes * bought.gpus_per_node
    return Arrival(sku=sku, gpu_type=bought.gpu_type, gpus=gpus, on=on, probability=probability)


CAPACITY = section_of(
    _Top,
    shapes={
        "skus": _ENTRIES,
        "arrivals": _ENTRIES,
        "retirements": _ENTRIES,
        "expansions": _ENTRIES,
        "racks": list_of(object, most=_MOST_RACKS),
        "room_limit_watts": Watts,
        "cloud": dict_of(GpuTypeName, WholeCents),
        "holidays": list_of(PlannedDay, most=_MOST_DAYS_LISTED),
    },
)
LEAD_TIME = Section(
    _lead_time,
    nullable(median_days=_SomeDays, p90_days=_SomeDays, seen_days=list_of(_SomeDays, most=_MOST_DAYS_LISTED)),
)
SKU = section_of(
    partial(Sku, gpu_type=GpuType(""), lead_time=None),
    names={"node_cents": "node_price", "support_cents_per_month": "support_per_month"},
    shapes={
        "sku": Name,
        "gpus_per_node": Annotated[int, Field(ge=1, le=128)],
        "watts_per_node": Watts,
        "nodes_per_rack": _Some,
        "lead_time": LEAD_TIME,
        "rack_days": _DayCount,
        "burn_in_days": _DayCount,
        "work_ratio": Annotated[float, Field(gt=0, le=1000)],
        "amortized_months": Annotated[int, Field(ge=1, le=600)],
    },
    by_type={GpuType: GpuTypeName, Cents: WholeCents},
)
ARRIVAL = Section(
    _arrival,
    needed(sku=Name, nodes=_Some, on=PlannedDay) | optional(probability=Probability),
    given=("skus",),
)
RETIREMENT = section_of(_Leaving, shapes={"nodes": HostList, "on": PlannedDay})
EXPANSION = section_of(
    partial(StoreExpansion, lead_time=None),
    names={"step_cents": "step_price"},
    shapes={
        "resource": Literal["storage_bytes", "network_ratio", "rack_watts", "cooling_watts"],
        "names": list_of(_PlaceName, least=1, most=10_000),
        "step": Annotated[float, Field(gt=0, le=1e20)],
        "step_cents": WholeCents,
        "lead_time": LEAD_TIME,
        "usable_ratio": Probability,
    },
)
RACK_ROOM = section_of(
    partial(RackRoom, limit_watts=None),
    shapes={
        "rack": Annotated[str, Field(min_length=1, max_length=253)],
        "free_nodes": Annotated[int, Field(ge=0, le=100_000)],
        "limit_watts": Watts,
    },
)


def read_capacity(path: Path, *, config: ClusterConfig) -> CapacitySettings:
    """Return what capacity.yaml says; raise ConfigError with every fault found in it."""
    file = YamlFile(path)
    if file.is_empty:
        # As it is while an editor writes it: what stood there before must not be forgotten for that.
        file.add_fault((), "nothing is in it; write {} if nothing is to be stated")
    top = file.read(CAPACITY, file.values, at=())
    found = _Found(known_racks={each.rack for each in config.topology.places.values()})
    for at, _, sku in _sections(file, "skus", SKU):
        if found.skus.setdefault(sku.sku, sku) is not sku:
            file.add_fault((*at, "sku"), f"{sku.sku} is there twice; keep one")
    # A SKU that has a fault is known by its name all the same: it is reported once.
    named = {str(each.get("sku")) for each in _entries(file, "skus") if isinstance(each, dict)}
    skus = {name: found.skus.get(name) for name in named}
    found.arrivals = [arrival for _, _, arrival in _sections(file, "arrivals", ARRIVAL, skus=skus) if arrival]
    for at, _, leaving in _sections(file, "retirements", RETIREMENT):
        _read_retirement(file, leaving, found, config=config, at=at)
    for at, stated, expansion in _sections(file, "expansions", EXPANSION):
        _read_expansion(file, expansion, found, config=config, states_ratio="usable_ratio" in stated, at=at)
    for at, _, room in _sections(file, "racks", RACK_ROOM):
        _read_room(file, room, found, at=at)
    _check_holidays(file, () if top is None else top.holidays)
    file.finish()
    assert top is not None, "a file that could not be read leaves a fault"
    return CapacitySettings(
        skus=tuple(found.skus.values()),
        arrivals=tuple(found.arrivals),
        retirements=tuple(found.retirements),
        expansions=tuple(found.expansions),
        racks=tuple(found.racks.values()),
        room_limit_watts=top.room_limit_watts,
        cloud_cents_per_gpu_hour=top.cloud,
        holidays=top.holidays,
    )


@dataclass(slots=True, kw_only=True)
class _Found:
    """What was read so far. What could not be read is missing; its faults are kept."""

    known_racks: Set[str]
    """Of cluster.yaml."""
    skus: dict[str, Sku] = field(default_factory=dict)
    arrivals: list[Arrival] = field(default_factory=list)
    retirements: list[Retirement] = field(default_factory=list)
    retired: dict[NodeName, date] = field(default_factory=dict)
    expansions: list[StoreExpansion] = field(default_factory=list)
    enlarged: dict[tuple[str, str], KeyPath] = field(default_factory=dict)
    """Where it is how a series is enlarged."""
    racks: dict[str, RackRoom] = field(default_factory=dict)


def _entries(file: YamlFile, key: str) -> list[object]:
    """Return the entries of a list; what is no list, or endless, is refused with what holds it."""
    value = file.values.get(key)
    return value if isinstance(value, list) and len(value) <= _MOST_RACKS else []


def _sections(
    file: YamlFile, key: str, section: Section[Made], **given: object
) -> Iterator[tuple[KeyPath, Mapping[str, object], Made]]:
    """Yield of each entry of a list that has no fault of its own its place, what is there, what is made of it."""
    for index, each in enumerate(_entries(file, key)):
        made = file.read(section, each, at=(key, index), **given)
        if made is not None and isinstance(each, dict):
            yield (key, index), each, made


def _read_retirement(file: YamlFile, leaving: _Leaving, found: _Found, *, config: ClusterConfig, at: KeyPath) -> None:
    """Keep who retires, one entry for each type of GPU among the nodes."""
    place = (*at, "nodes")
    types = gpu_types(config)
    going: dict[GpuType, list[NodeName]] = {}
    for node in leaving.nodes:
        if not config.topology.knows(node):
            file.add_fault(place, f"{node} is not a node of the cluster; check the name against cluster.yaml")
            return
        if node in found.retired:
            file.add_fault(place, f"{node} retires already, on {found.retired[node]}; name it once")
            return
        found.retired[node] = leaving.on
        going.setdefault(types.get(node, GpuType("")), []).append(node)
    for gpu_type, members in sorted(going.items()):
        gpus = len(members) * config.topology.gpus_per_node
        found.retirements.append(Retirement(nodes=tuple(members), gpu_type=gpu_type, gpus=gpus, on=leaving.on))


def _read_expansion(
    file: YamlFile, expansion: StoreExpansion, found: _Found, *, config: ClusterConfig, states_ratio: bool, at: KeyPath
) -> None:
    if expansion.resource == Resource.NETWORK_RATIO.value and states_ratio:
        file.add_fault(
            (*at, "usable_ratio"),
            "of links as much may be used as `network_ratio_max` of policy.yaml says; take it out",
        )
    places = config.topology.places.values()
    known = {
        Resource.RACK_WATTS.value: {each.rack for each in places},
        Resource.NETWORK_RATIO.value: {"", *(each.leaf_switch for each in places)},
    }.get(expansion.resource)
    for index, name in enumerate(expansion.names):
        where = (*at, "names", index)
        if known is not None and name not in known:
            file.add_fault(where, f"cluster.yaml has no {name!r} in its racks; check the name")
        before = found.enlarged.setdefault((expansion.resource, name), where)
        if before != where:
            file.add_fault(
                where, f"how {name!r} is enlarged is stated on line {file.line_of(before)} already; keep one"
            )
    found.expansions.append(expansion)


def _read_room(file: YamlFile, room: RackRoom, found: _Found, *, at: KeyPath) -> None:
    place = (*at, "rack")
    if room.rack in found.racks:
        file.add_fault(place, f"rack {room.rack} is listed twice; keep one")
    elif room.rack not in found.known_racks:
        file.add_fault(place, f"cluster.yaml has no rack {room.rack}; check the name, or list the rack there first")
    found.racks.setdefault(room.rack, room)


def _check_holidays(file: YamlFile, days: Iterable[date]) -> None:
    known: set[date] = set()
    for index, day in enumerate(days):
        if day in known:
            file.add_fault(("holidays", index), f"{day} is listed twice; keep one, or correct the other")
        known.add(day)
