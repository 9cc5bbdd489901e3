"""Small fleets and releases for the planner's tests: a test names only what it is about."""

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.core.periods import Interval, WorkCalendar
from ops_pipelines.core.policy import BlastCaps, DrainBudget, Policy, RolloutLimits
from ops_pipelines.core.release import Change, Component, Release, ReleaseName, Reversibility
from ops_pipelines.rollouts.fleet import FleetNode
from ops_pipelines.rollouts.planner import VisitTimes
from tests.domain.builders import NOW, after

HOUR = 3600.0
ALWAYS = WorkCalendar(windows=None)
TIMES = VisitTimes(visit=timedelta(minutes=20), canary_extra=timedelta(minutes=70), deciding_soak=timedelta(days=7))
WIDE = Policy(
    rollouts=RolloutLimits(max_out_count=1_000),
    drain_budget=DrainBudget(max_out_count=1_000, max_out_per_rack_count=1_000, min_in_service_ratio=0.0),
    blast_caps=BlastCaps(max_out_per_partition_ratio=1.0),
)


def fleet_node(number: int, **changes: Any) -> FleetNode:
    """Return an idle node that runs driver 1: four to a rack, two racks to a leaf switch."""
    place = {
        "rack": f"r{number // 4:02d}",
        "nvlink_domain": f"gpu{number:03d}",
        "leaf_switch": f"s{number // 8}",
        **{key: changes.pop(key) for key in ("rack", "nvlink_domain", "leaf_switch") if key in changes},
    }
    values: dict[str, Any] = {
        "node": NodeName(f"gpu{number:03d}"),
        "model": "big",
        "place": Place(**place),
        "gpu_count": 8,
        "versions": {Component.DRIVER: "1"},
        "is_in_service": True,
        "is_idle": changes.get("free_at") is None,
        **changes,
    }
    return FleetNode(**values)


def fleet_of(count: int, **changes: Any) -> tuple[FleetNode, ...]:
    return tuple(fleet_node(number, **changes) for number in range(count))


def change(component: Component = Component.DRIVER, **changes: Any) -> Change:
    values: dict[str, Any] = {
        "component": component,
        "version": "2",
        "install": ("install", "{version}"),
        "rollback": ("install", "{version}"),
        **changes,
    }
    return Change(**values)


def one_way(component: Component) -> Change:
    return change(component, reversibility=Reversibility.NO, rollback=())


def release(*changes: Change, **values: Any) -> Release:
    filled: dict[str, Any] = {
        "name": ReleaseName("driver-2"),
        "about": "a newer driver",
        "models": frozenset({"big", "small"}),
        "changes": changes or (change(),),
        **values,
    }
    return Release(**filled)


@st.composite
def fleets(draw: st.DrawFn, *, most: int = 24) -> tuple[FleetNode, ...]:
    """Return nodes of two models, in racks of any size, some in NVLink domains of three, some broken, some busy."""
    count = draw(st.integers(min_value=1, max_value=most))
    rack_size = draw(st.integers(min_value=1, max_value=6))
    domain_size = draw(st.sampled_from([1, 1, 3]))
    kinds = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["in service"] * 6 + ["out", "in hand", "untouchable", "no version"]),
                st.one_of(st.none(), st.integers(min_value=1, max_value=60)),
                st.booleans(),
                st.sampled_from(["batch", "batch", "serve", "both"]),
            ),
            min_size=count,
            max_size=count,
        )
    )
    return tuple(
        fleet_node(
            number,
            rack=f"r{number // rack_size:02d}",
            leaf_switch=f"s{number // (2 * rack_size)}",
            nvlink_domain=f"d{number // domain_size}",
            model="small" if (number // domain_size) % 4 == 0 else "big",
            is_in_service=kind != "out",
            is_in_hand=kind == "in hand",
            why_not="policy.yaml calls it untouchable" if kind == "untouchable" else "",
            versions={} if kind == "no version" else {Component.DRIVER: "1"},
            is_idle=hours is None and knows_end,
            free_at=None if hours is None else after(hours * HOUR),
            partitions=frozenset({"batch", "serve"} if partition == "both" else {partition}),
        )
        for number, (kind, hours, knows_end, partition) in enumerate(kinds)
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    cap = st.one_of(st.none(), st.integers(min_value=1, max_value=3))
    return Policy(
        rollouts=RolloutLimits(
            max_out_count=draw(st.integers(min_value=1, max_value=5)),
            canary_counts=draw(st.sampled_from([(1, 4, 25), (1,), (2, 3), (1, 2, 4)])),
            growth_ratio=draw(st.sampled_from([0.5, 1.0, 3.0])),
            soak=timedelta(hours=draw(st.integers(min_value=0, max_value=10))),
        ),
        drain_budget=DrainBudget(
            max_out_count=draw(st.integers(min_value=1, max_value=8)),
            max_out_per_rack_count=draw(st.integers(min_value=1, max_value=3)),
            min_in_service_ratio=draw(st.sampled_from([0.0, 0.5, 0.8])),
        ),
        blast_caps=BlastCaps(
            max_out_per_partition_ratio=draw(st.sampled_from([0.1, 0.5, 1.0])),
            max_out_per_leaf_count=draw(cap),
            max_out_per_nvlink_domain_count=draw(cap),
        ),
    )


@st.composite
def stretches(draw: st.DrawFn, *, days: int = 20) -> Interval:
    """Return an interval of an hour to two days, at any hour around NOW."""
    begins = draw(st.integers(min_value=-48, max_value=24 * days))
    return Interval(
        begins_at=NOW + timedelta(hours=begins),
        ends_at=NOW + timedelta(hours=begins + draw(st.integers(min_value=1, max_value=48))),
        name=draw(st.sampled_from(["night", "deadline", ""])),
    )


@st.composite
def calendars(draw: st.DrawFn) -> WorkCalendar:
    windows = draw(st.one_of(st.none(), st.lists(stretches(), max_size=12)))
    return WorkCalendar(
        windows=None if windows is None else tuple(windows), freezes=tuple(draw(st.lists(stretches(), max_size=3)))
    )
