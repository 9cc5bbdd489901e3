"""What a pretended building measures: power supplies and fans of each BMC, racks, coolant, and the power of the site.

A BMC answers whether its node does or not, and a node without power draws none. Names of the BMCs' series are those
of redfish_exporter; those of racks and site are ours, for every building calls them otherwise.
"""

import math
from collections.abc import Iterator
from datetime import datetime

from ops_pipelines_lab.simulator.exposition import Metric, Reading, joined
from ops_pipelines_lab.simulator.work import watts_of
from ops_pipelines_lab.simulator.world import World

_SITE = 'site="hall-1"'
_SUPPLY_COUNT = 6
_SUPPLY_WATTS = 3_300.0
_SUPPLY_EFFICIENCY = 0.94
_FAN_COUNT = 4
_RACK_SWITCH_WATTS = 900.0
_RACK_LIMIT_WATTS = 90_000.0
_COOLING_RATIO = 0.19
"""Assumption: power of chillers and pumps over IT power; with what follows, PUE is near 1.25."""
_OTHER_WATTS_PER_RACK = 400.0
_TRANSFORMER_RATIO = 0.03

_CONSUMED = Metric("redfish_chassis_power_average_consumed_watts", "gauge", "power wattage of the chassis", 1)
_CHASSIS_HEALTH = Metric("redfish_chassis_health", "gauge", "health of chassis, 1(OK),2(Warning),3(Critical)")
_TEMPERATURE = Metric(
    "redfish_chassis_temperature_celsius", "gauge", "celsius of temperature on this chassis component", 1
)
_FAN = Metric("redfish_chassis_fan_rpm", "gauge", "fan RPM or percentage on this chassis component")
_OUTPUT = Metric("redfish_chassis_power_powersupply_power_output_watts", "gauge", "measured output power, in Watts", 1)
_INPUT = Metric("redfish_chassis_power_powersupply_power_input_watts", "gauge", "measured input power, in Watts", 1)
_CAPACITY = Metric("redfish_chassis_power_powersupply_power_capacity_watts", "gauge", "capacity of the power supply")
_SUPPLY_HEALTH = Metric(
    "redfish_chassis_power_powersupply_health", "gauge", "powersupply health, 1(OK),2(Warning),3(Critical)"
)
_RACK_POWER = Metric("rack_power_watts", "gauge", "Power of the rack, all feeds.", 1)
_RACK_LIMIT = Metric("rack_power_limit_watts", "gauge", "Power that the rack's breakers allow.")
_RACK_INLET = Metric("rack_inlet_temperature_celsius", "gauge", "Air at the front of the rack.", 2)
_SUPPLY_COOLANT = Metric("facility_coolant_supply_celsius", "gauge", "Coolant to the racks.", 2)
_RETURN_COOLANT = Metric("facility_coolant_return_celsius", "gauge", "Coolant from the racks.", 2)
_COOLING_POWER = Metric("facility_cooling_power_watts", "gauge", "Power of chillers, pumps and fans.", 1)
_IT_POWER = Metric("facility_it_power_watts", "gauge", "Power of the IT equipment.", 1)
_SITE_POWER = Metric("facility_power_watts", "gauge", "Power of the whole site.", 1)
_PUE = Metric("facility_pue_ratio", "gauge", "Power of the site over power of the IT equipment.", 6)


def facility_readings(world: World, *, at: datetime) -> Iterator[Reading]:
    """Yield the metrics of every BMC, every rack and the site."""
    racks: dict[str, float] = {}
    for node in world.hardware.nodes.values():
        watts = watts_of(node, at=at)
        racks[node.rack] = racks.get(node.rack, _RACK_SWITCH_WATTS) + watts
        yield from _bmc(f'Hostname="{node.name}"', watts, inlet=_inlet(node.rack, at))
    for rack, watts in racks.items():
        labels = f'rack="{rack}"'
        yield _RACK_POWER, labels, watts
        yield _RACK_LIMIT, labels, _RACK_LIMIT_WATTS
        yield _RACK_INLET, labels, _inlet(rack, at)
    it_watts = sum(racks.values())
    cooling = _COOLING_RATIO * it_watts
    site_watts = (1 + _TRANSFORMER_RATIO) * it_watts + cooling + _OTHER_WATTS_PER_RACK * len(racks)
    supply = 19.0 + 0.5 * _wave(at, 0.4)
    yield _SUPPLY_COOLANT, 'loop="1"', supply
    yield _RETURN_COOLANT, 'loop="1"', supply + 9.0 * it_watts / (it_watts + 20_000.0 * len(racks))
    yield _COOLING_POWER, _SITE, cooling
    yield _IT_POWER, _SITE, it_watts
    yield _SITE_POWER, _SITE, site_watts
    yield _PUE, _SITE, site_watts / it_watts


def _bmc(own: str, watts: float, *, inlet: float) -> Iterator[Reading]:
    chassis = joined(own, 'resource="chassis",chassis_id="1"')
    yield _CHASSIS_HEALTH, chassis, 1
    yield _CONSUMED, chassis, watts
    yield _TEMPERATURE, joined(chassis, 'sensor="Inlet Temp",sensor_id="1"'), inlet
    yield _TEMPERATURE, joined(chassis, 'sensor="Exhaust Temp",sensor_id="2"'), inlet + 2.2e-3 * watts
    for number in range(_FAN_COUNT):
        labels = joined(chassis, f'fan="Fan {number + 1}",fan_id="{number + 1}",fan_unit="RPM"')
        yield _FAN, labels, 10 * round((0 if not watts else 520 + 0.07 * watts) + 3 * number * bool(watts))
    for number in range(_SUPPLY_COUNT):
        labels = joined(chassis, f'power_supply="PSU{number + 1}",power_supply_id="{number + 1}"')
        yield _OUTPUT, labels, watts / _SUPPLY_COUNT
        yield _INPUT, labels, watts / _SUPPLY_COUNT / _SUPPLY_EFFICIENCY
        yield _CAPACITY, labels, _SUPPLY_WATTS
        yield _SUPPLY_HEALTH, labels, 1


def _inlet(rack: str, at: datetime) -> float:
    place = sum(map(ord, rack)) % 10 / 10
    return 22.5 + 2.0 * place + 0.6 * _wave(at, place)


def _wave(at: datetime, phase: float) -> float:
    return math.sin(2 * math.pi * (at.timestamp() / 1_800.0 + phase))
