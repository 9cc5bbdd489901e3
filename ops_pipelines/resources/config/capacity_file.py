"""Reads capacity.yaml: what can be bought, comes and goes, as domain values, or every fault with its line and remedy.

How YAML is read strictly is `strict_yaml`'s, the shape of the file `capacity_models`'. Nodes, racks and switches are
those of cluster.yaml; file systems are known by what is measured alone, and are not checked here.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction
from pathlib import Path
from statistics import median

from ops_pipelines.capacity.model import Resource
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.money import Cents, read_amount
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.resources.config.capacity_models import (
    MOST_ENTRIES,
    ArrivalModel,
    CapacityModel,
    ExpansionModel,
    LeadTimeModel,
    RackRoomModel,
    RetirementModel,
    SkuModel,
)
from ops_pipelines.resources.config.cluster_config import ClusterConfig
from ops_pipelines.resources.config.installed_nodes import gpu_types
from ops_pipelines.resources.config.strict_yaml import KeyPath, Model, YamlFile
from ops_pipelines.teams.projects import Arrival, CapacitySettings, LeadTime, RackRoom, Retirement, Sku, StoreExpansion

_CENTS = 100
_ENOUGH_DELIVERIES = 5
_WIDEST_RATIO = 20
"""# Assumption: no delivery is as uncertain. Far beyond it, a late order would come in after the year 9999."""


def read_capacity(path: Path, *, config: ClusterConfig) -> CapacitySettings:
    """Return what capacity.yaml says; raise ConfigError with every fault found in it."""
    file = YamlFile(path)
    if file.is_empty:
        # As it is while an editor writes it: what stood there before must not be forgotten for that.
        file.add_fault((), "nothing stands in it; write {} if nothing is to be stated")
    top = file.check(CapacityModel, file.values, at=())
    found = _Found(known_racks={each.rack for each in config.topology.places.values()})
    for at, section in _sections(file, "skus", SkuModel):
        _read_sku(file, section, found, at=at)
    # A SKU that has a fault is known by its name all the same: it is told once.
    named = {str(each.get("sku")) for each in _entries(file, "skus") if isinstance(each, dict)}
    for at, arrival in _sections(file, "arrivals", ArrivalModel):
        if arrival.sku not in named:
            expected = ", ".join(sorted(named)) or "one that stands under `skus`"
            file.add_fault((*at, "sku"), f"there is no SKU {arrival.sku}; expected {expected}")
        elif arrival.sku in found.skus:
            sku = found.skus[arrival.sku]
            found.arrivals.append(
                Arrival(
                    sku=sku.sku,
                    gpu_type=sku.gpu_type,
                    gpus=arrival.nodes * sku.gpus_per_node,
                    on=arrival.on,
                    probability=arrival.probability,
                )
            )
    for at, retirement in _sections(file, "retirements", RetirementModel):
        _read_retirement(file, retirement, found, config=config, at=at)
    for at, expansion in _sections(file, "expansions", ExpansionModel):
        _read_expansion(file, expansion, found, config=config, at=at)
    for at, room in _sections(file, "racks", RackRoomModel):
        _read_room(file, room, found, config=config, at=at)
    prices = {} if top is None else top.cloud
    cloud = {GpuType(each): _whole_cents(file, price, at=("cloud", each)) for each, price in prices.items()}
    _check_holidays(file, [] if top is None else top.holidays)
    file.finish()
    assert top is not None, "a file that could not be read leaves a fault"
    return CapacitySettings(
        skus=tuple(found.skus.values()),
        arrivals=tuple(found.arrivals),
        retirements=tuple(found.retirements),
        expansions=tuple(found.expansions),
        racks=tuple(found.racks.values()),
        room_limit_watts=top.room_limit_watts,
        cloud_cents_per_gpu_hour=cloud,
        holidays=tuple(top.holidays),
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
    """Where it stands how a series is enlarged."""
    racks: dict[str, RackRoom] = field(default_factory=dict)


def _entries(file: YamlFile, key: str) -> list[object]:
    """Return the entries of a list; what is no list, or endless, is refused by the model of the file."""
    value = file.values.get(key)
    return value if isinstance(value, list) and len(value) <= MOST_ENTRIES else []


def _sections(file: YamlFile, key: str, model: type[Model]) -> Iterator[tuple[KeyPath, Model]]:
    """Yield each entry of a list that has no fault of its own, with its place."""
    for index, each in enumerate(_entries(file, key)):
        checked = file.check(model, each, at=(key, index))
        if checked is not None:
            yield (key, index), checked


def _read_sku(file: YamlFile, section: SkuModel, found: _Found, *, at: KeyPath) -> None:
    if section.sku in found.skus:
        file.add_fault((*at, "sku"), f"{section.sku} stands there twice; keep one")
        return
    price = _whole_cents(file, section.node_price, at=(*at, "node_price"))
    support = _whole_cents(file, section.support_per_month, at=(*at, "support_per_month"))
    found.skus[section.sku] = Sku(
        sku=section.sku,
        gpu_type=GpuType(section.gpu_type),
        gpus_per_node=section.gpus_per_node,
        node_cents=price,
        watts_per_node=section.watts_per_node,
        nodes_per_rack=section.nodes_per_rack,
        lead_time=_read_lead_time(file, section.lead_time, at=(*at, "lead_time")),
        rack_days=section.rack_days,
        burn_in_days=section.burn_in_days,
        support_cents_per_month=support,
        work_ratio=section.work_ratio,
        amortized_months=section.amortized_months,
    )


def _read_lead_time(file: YamlFile, section: LeadTimeModel | None, *, at: KeyPath) -> LeadTime | None:
    if section is None:
        return None
    seen, middle, late = section.seen_days, section.median_days, section.p90_days
    if seen is not None:
        if middle is not None or late is not None:
            file.add_fault((*at, "seen_days"), "give past deliveries, or median_days and p90_days; not both")
            return None
        if len(seen) < _ENOUGH_DELIVERIES:
            file.add_fault(
                (*at, "seen_days"),
                f"found {len(seen)} deliveries; expected {_ENOUGH_DELIVERIES} or more, or median_days and p90_days",
            )
            return None
        # The deliveries themselves count; the curve is not asked where there are enough of them.
        ranked = sorted(seen)
        middle = median(ranked)
        return LeadTime(
            median_days=middle,
            p90_days=max(middle, ranked[min(len(ranked) - 1, len(ranked) * 9 // 10)]),
            seen_days=tuple(seen),
        )
    if middle is None or late is None:
        file.add_fault(at, "expected median_days and p90_days, or seen_days of past deliveries; or leave it out")
        return None
    if late > _WIDEST_RATIO * middle:
        file.add_fault(
            (*at, "p90_days"),
            f"found {late:g} days beside a median of {middle:g}; expected at most {_WIDEST_RATIO} times the median: "
            "state both anew",
        )
        return None
    try:
        return LeadTime(median_days=middle, p90_days=late)
    except ValueError as problem:
        file.add_fault((*at, "p90_days"), str(problem))
        return None


def _read_retirement(
    file: YamlFile, section: RetirementModel, found: _Found, *, config: ClusterConfig, at: KeyPath
) -> None:
    """Keep who retires, one entry for each type of GPU among the nodes."""
    place = (*at, "nodes")
    try:
        nodes = expand_host_list(section.nodes)
    except ValueError as problem:
        file.add_fault(place, str(problem))
        return
    types = gpu_types(config)
    going: dict[GpuType, list[NodeName]] = {}
    for node in nodes:
        if not config.topology.knows(node):
            file.add_fault(place, f"{node} is not a node of the cluster; check the name against cluster.yaml")
            return
        if node in found.retired:
            file.add_fault(place, f"{node} retires already, on {found.retired[node]}; name it once")
            return
        found.retired[node] = section.on
        going.setdefault(types.get(node, GpuType("")), []).append(node)
    for gpu_type, members in sorted(going.items()):
        gpus = len(members) * config.topology.gpus_per_node
        found.retirements.append(Retirement(nodes=tuple(members), gpu_type=gpu_type, gpus=gpus, on=section.on))


def _read_expansion(
    file: YamlFile, section: ExpansionModel, found: _Found, *, config: ClusterConfig, at: KeyPath
) -> None:
    if section.resource == Resource.NETWORK_RATIO.value and "usable_ratio" in section.model_fields_set:
        file.add_fault(
            (*at, "usable_ratio"),
            "of links as much may be used as `network_ratio_max` of policy.yaml says; take it out",
        )
    places = config.topology.places.values()
    known = {
        Resource.RACK_WATTS.value: {each.rack for each in places},
        Resource.NETWORK_RATIO.value: {"", *(each.leaf_switch for each in places)},
    }.get(section.resource)
    for index, name in enumerate(section.names):
        where = (*at, "names", index)
        if known is not None and name not in known:
            file.add_fault(where, f"cluster.yaml has no {name!r} in its racks; check the name")
        before = found.enlarged.setdefault((section.resource, name), where)
        if before != where:
            file.add_fault(where, f"how {name!r} is enlarged stands on line {file.line_of(before)} already; keep one")
    found.expansions.append(
        StoreExpansion(
            resource=section.resource,
            names=tuple(section.names),
            step=section.step,
            step_cents=_whole_cents(file, section.step_price, at=(*at, "step_price")),
            lead_time=_read_lead_time(file, section.lead_time, at=(*at, "lead_time")),
            usable_ratio=section.usable_ratio,
        )
    )


def _read_room(file: YamlFile, section: RackRoomModel, found: _Found, *, config: ClusterConfig, at: KeyPath) -> None:
    place = (*at, "rack")
    if section.rack in found.racks:
        file.add_fault(place, f"rack {section.rack} is listed twice; keep one")
    elif section.rack not in found.known_racks:
        file.add_fault(place, f"cluster.yaml has no rack {section.rack}; check the name, or list the rack there first")
    found.racks.setdefault(
        section.rack,
        RackRoom(rack=section.rack, free_nodes=section.free_nodes, limit_watts=section.limit_watts),
    )


def _check_holidays(file: YamlFile, days: list[date]) -> None:
    known: set[date] = set()
    for index, day in enumerate(days):
        if day in known:
            file.add_fault(("holidays", index), f"{day} is listed twice; keep one, or correct the other")
        known.add(day)


def _whole_cents(file: YamlFile, text: str, *, at: KeyPath) -> Cents:
    cents: Fraction = read_amount(text, what=str(at[-1])) * _CENTS
    if cents.denominator != 1:
        file.add_fault(at, f"found {text!r}; expected whole cents, such as '300000.00'")
    return Cents(int(cents))
