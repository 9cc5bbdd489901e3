"""capacity.yaml and the section `capacity` of policy.yaml: what they become, and how every fault is reported."""

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.resources.config import capacity_file
from ops_pipelines.resources.config.capacity_file import read_capacity
from ops_pipelines.resources.config.cluster_config import ClusterConfig
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.policy_file import CAPACITY_POLICY, read_capacity_policy
from ops_pipelines.resources.config.yaml_file import ConfigError
from ops_pipelines.teams.projects import (
    Arrival,
    CapacityPolicy,
    CapacitySettings,
    LeadTime,
    RackRoom,
    Retirement,
    Sku,
    StoreExpansion,
)

ROOT = Path(__file__).parents[2]
CLUSTER = """
name: test
state_directory: state
policy: policy.yaml
capacity: capacity.yaml
gpus_per_node: 8
racks:
  - {name: r1, nodes: "gpu[001-004]", gpu_type: h100, leaf_switch: leaf1}
  - {name: r2, nodes: "gpu[005-006]", gpu_type: a100}
scheduler: {kind: simulator}
telemetry: {kind: simulator}
logs: {kind: simulator}
fleet: {kind: simulator}
notifier: {kind: file}
"""
SKU = 'sku: n, gpus_per_node: 8, node_price: "1.00", watts_per_node: 9, nodes_per_rack: 4'
FULL = """
skus:
  - sku: hgx
    gpu_type: h100
    gpus_per_node: 8
    node_price: "300000.01"
    watts_per_node: 10200.5
    nodes_per_rack: 4
    lead_time: {median_days: 112, p90_days: 168}
    rack_days: 5
    burn_in_days: 3
    support_per_month: "2500.00"
    work_ratio: 1.5
    amortized_months: 60
  - {sku: bare, gpus_per_node: 4, node_price: "1", watts_per_node: 5, nodes_per_rack: 1}
  - {sku: seen, gpus_per_node: 8, node_price: "1", watts_per_node: 5, nodes_per_rack: 1,
     lead_time: {seen_days: [90, 70, 80, 110, 100]}}
arrivals:
  - {sku: hgx, nodes: 4, on: 2027-02-01, probability: 0.9}
retirements:
  - {nodes: "gpu[004-005]", on: 2028-01-01}
expansions:
  - {resource: storage_bytes, names: [scratch, home], step: 1000000000000000, step_price: "180000.00",
     usable_ratio: 0.85, lead_time: {median_days: 60, p90_days: 90}}
racks:
  - {rack: r1, free_nodes: 2, limit_watts: 90000}
  - {rack: r2, free_nodes: 0}
room_limit_watts: 700000
cloud: {h100: "2.49", "": "1"}
holidays: [2026-12-25, 2027-01-01]
"""
H100, A100 = GpuType("h100"), GpuType("a100")


def config_in(directory: Path) -> ClusterConfig:
    path = directory / "cluster.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    return read_cluster(path)


def read(directory: Path, text: str) -> CapacitySettings:
    path = directory / "capacity.yaml"
    path.write_text(text, encoding="utf-8")
    return read_capacity(path, config=config_in(directory))


def faults_of(directory: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        read(directory, text)
    return str(refused.value).split("\n  ")[1:]


def sku(more: str) -> str:
    return f"skus: [{{{SKU}, {more}}}]"


# --- capacity.yaml ------------------------------------------------------------------------------------------------


def test_every_key_becomes_what_it_says(tmp_path: Path) -> None:
    found = read(tmp_path, FULL)

    assert found.skus[0] == Sku(
        sku="hgx", gpu_type=H100, gpus_per_node=8, node_cents=Cents(30_000_001), watts_per_node=10_200.5,
        nodes_per_rack=4, lead_time=LeadTime(median_days=112.0, p90_days=168.0), rack_days=5, burn_in_days=3,
        support_cents_per_month=Cents(250_000), work_ratio=1.5, amortized_months=60,
    )  # fmt: skip
    assert found.skus[1] == Sku(
        sku="bare", gpu_type=GpuType(""), gpus_per_node=4, node_cents=Cents(100), watts_per_node=5.0,
        nodes_per_rack=1, lead_time=None,
    )  # fmt: skip
    assert found.skus[2].lead_time == LeadTime(
        median_days=90.0, p90_days=110.0, seen_days=(90.0, 70.0, 80.0, 110.0, 100.0)
    )
    assert found.arrivals == (Arrival(sku="hgx", gpu_type=H100, gpus=32, on=date(2027, 2, 1), probability=0.9),)
    assert found.retirements == (
        Retirement(nodes=(NodeName("gpu005"),), gpu_type=A100, gpus=8, on=date(2028, 1, 1)),
        Retirement(nodes=(NodeName("gpu004"),), gpu_type=H100, gpus=8, on=date(2028, 1, 1)),
    )
    assert found.expansions == (
        StoreExpansion(
            resource="storage_bytes", names=("scratch", "home"), step=1e15, step_cents=Cents(18_000_000),
            lead_time=LeadTime(median_days=60.0, p90_days=90.0), usable_ratio=0.85,
        ),
    )  # fmt: skip
    assert found.racks == (
        RackRoom(rack="r1", free_nodes=2, limit_watts=90_000.0),
        RackRoom(rack="r2", free_nodes=0, limit_watts=None),
    )
    assert found.room_limit_watts == 700_000.0
    assert found.cloud_cents_per_gpu_hour == {H100: 249, "": 100}
    assert found.holidays == (date(2026, 12, 25), date(2027, 1, 1))


def test_a_file_that_states_nothing_states_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "{}") == CapacitySettings()


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_is_refused_as_it_may_be_half_written(tmp_path: Path, text: str) -> None:
    assert faults_of(tmp_path, text) == ["line 1: nothing is in it; write {} if nothing is to be stated"]


def days_listed(count: int) -> str:
    return f"holidays: [{', '.join(str(date(2000, 1, 1) + timedelta(days=number)) for number in range(count))}]"


def deliveries(count: int) -> str:
    return sku(f"lead_time: {{seen_days: [{', '.join(['5'] * count)}]}}")


def arrivals(count: int) -> str:
    return f"{sku('rack_days: 1')}\narrivals: [{', '.join(['{sku: n, nodes: 1, on: 2027-01-01}'] * count)}]"


@pytest.mark.parametrize(
    ("text_of", "most"),
    [(days_listed, 10_000), (deliveries, 10_000), (arrivals, 1_000)],
    ids=["days", "deliveries", "arrivals"],
)
def test_lists_have_an_end(tmp_path: Path, text_of: Callable[[int], str], most: int) -> None:
    for few in (most - 1, most):
        read(tmp_path, text_of(few))

    (fault,) = faults_of(tmp_path, text_of(most + 1))

    assert f"list should have at most {most} items after validation, not {most + 1}" in fault


@pytest.mark.parametrize("key", ["arrivals: [{sku: n, nodes: 1, on: %s}]", "holidays: [%s]"])
def test_days_are_of_this_century(tmp_path: Path, key: str) -> None:
    for good in ("2000-01-01", "2099-12-31"):
        read(tmp_path, f"{sku('rack_days: 1')}\n{key % good}")
    for bad in ("1999-12-31", "2100-01-01", "0206-12-01", "9999-12-31"):
        (fault,) = faults_of(tmp_path, f"{sku('rack_days: 1')}\n{key % bad}")
        assert f"found {bad}; expected a day from 2000 to 2099" in fault


def test_a_lead_time_as_wide_as_no_delivery_is_refused(tmp_path: Path) -> None:
    for good in (199, 200):
        read(tmp_path, sku(f"lead_time: {{median_days: 10, p90_days: {good}}}"))

    (fault,) = faults_of(tmp_path, sku("lead_time: {median_days: 10, p90_days: 200.5}"))

    assert "lead_time.p90_days: found 200.5 days beside a median of 10; expected at most 20 times the median" in fault


def test_the_shipped_file_fits_the_shipped_cluster() -> None:
    config = read_cluster(ROOT / "cluster.yaml")
    assert config.capacity_path == ROOT / "capacity.yaml"

    found = read_capacity(ROOT / "capacity.yaml", config=config)

    types = {each.gpu_type for each in config.bought.values()}
    assert {each.gpu_type for each in found.skus} == types == found.cloud_cents_per_gpu_hour.keys()
    assert all(each.lead_time is not None for each in found.skus)
    assert {each.rack for each in found.racks} <= {each.rack for each in config.topology.places.values()}


def test_the_comments_of_the_shipped_file_tell_every_key() -> None:
    text = (ROOT / "capacity.yaml").read_text(encoding="utf-8")

    for section in (
        capacity_file.CAPACITY,
        capacity_file.SKU,
        capacity_file.LEAD_TIME,
        capacity_file.ARRIVAL,
        capacity_file.RETIREMENT,
        capacity_file.EXPANSION,
        capacity_file.RACK_ROOM,
    ):
        for key in section.keys:
            assert key in text, key


def test_every_fault_of_a_file_is_told_at_once_with_its_line_and_key(tmp_path: Path) -> None:
    found = faults_of(
        tmp_path,
        f"""skus:
  - {{{SKU}, lead_time: {{median_days: 20, p90_days: 10}}}}
  - {{{SKU}, lead_tine: 3}}
  - {{{SKU.replace("sku: n", "sku: m").replace("watts_per_node: 9", "watts_per_node: -9")}}}
arrivals:
  - {{sku: m, nodes: 1, on: 2027-02-30}}
  - {{sku: x, nodes: 1, on: 2027-02-01}}
retirements:
  - {{nodes: "gpu[003-004]", on: 2028-01-01}}
  - {{nodes: "gpu004", on: 2028-02-01}}
  - {{nodes: gpu009, on: 2028-02-01}}
racks:
  - {{rack: r9, free_nodes: 1}}
room_limit_watts: .nan
holidays: [2026-13-45, 2026-12-25, 2026-12-25]
""",
    )

    assert found == [
        "line 2: skus[0].lead_time.p90_days: a lead time has median 20 and 90 % point 10 days; expected more than 0, "
        "and the second no smaller",
        "line 3: skus[1].lead_tine: unknown key; did you mean lead_time?",
        "line 4: skus[2].watts_per_node: found -9; input should be greater than 0",
        "line 6: arrivals[0].on: 2027-02-30 is no day of the calendar; write one that is, such as 2026-01-31",
        "line 7: arrivals[1].sku: there is no SKU x; expected m, n",
        "line 10: retirements[1].nodes: gpu004 retires already, on 2028-01-01; name it once",
        "line 11: retirements[2].nodes: gpu009 is not a node of the cluster; check the name against cluster.yaml",
        "line 13: racks[0].rack: cluster.yaml has no rack r9; check the name, or list the rack there first",
        "line 14: room_limit_watts: found nan; input should be a finite number",
        "line 15: holidays[0]: 2026-13-45 is no day of the calendar; write one that is, such as 2026-01-31",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (sku("lead_time: {median_days: 0, p90_days: 5}"), "median_days: found 0"),
        (sku("lead_time: {median_days: .nan, p90_days: 5}"), "median_days: found nan"),
        (sku("lead_time: {median_days: 5}"), "lead_time: expected median_days and p90_days, or seen_days"),
        (sku("lead_time: {}"), "lead_time: expected median_days and p90_days, or seen_days"),
        (sku("lead_time: {seen_days: [1, 2, 3, 4]}"), "seen_days: found 4 deliveries; expected 5 or more"),
        (sku("lead_time: {seen_days: [1, 2, 3, 4, -5]}"), "seen_days[4]: found -5"),
        (sku("lead_time: {seen_days: [1, 2, 3, 4, 5], p90_days: 9}"), "not both"),
        (sku("rack_days: -1"), "rack_days: found -1"),
        (sku("burn_in_days: 1.5"), "burn_in_days: found 1.5"),
        (sku("work_ratio: 0"), "work_ratio: found 0"),
        (sku("work_ratio: .inf"), "work_ratio: found inf"),
        (sku("amortized_months: 0"), "amortized_months: found 0"),
        (sku('support_per_month: "0.001"'), "support_per_month: found '0.001'; expected whole cents"),
        (sku("support_per_month: 5.00"), "support_per_month: found 5.0"),
        (sku("gpu_type: H100"), "gpu_type: found 'H100'; expected lower case"),
        ('skus: [{sku: n}]', "skus[0].node_price: this key is missing"),
        (f"skus: [{{{SKU}}}, {{{SKU}}}]", "skus[1].sku: n is there twice; keep one"),
        ("skus: [[1]]", "skus[0]: found [1]"),
        ("skus: {a: 1}", "skus: found {'a': 1}"),
        ("sku: []", "sku: unknown key; did you mean skus?"),
        ("skus: [{sku: [a]}]\narrivals: [{sku: b, nodes: 1, on: 2027-01-01}]", "there is no SKU b"),
        ("arrivals: [{sku: b, nodes: 1, on: 2027-01-01}]", "there is no SKU b; expected one that is under `skus`"),
        (f"skus: [{{{SKU}}}]\narrivals: [{{sku: n, nodes: 0, on: 2027-01-01}}]", "nodes: found 0"),
        (f"skus: [{{{SKU}}}]\narrivals: [{{sku: n, nodes: 1, on: '2027-01-01'}}]", "expected a day without quotes"),
        (f"skus: [{{{SKU}}}]\narrivals: [{{sku: n, nodes: 1, on: 2027-01-01, probability: 0}}]", "found 0; input"),
        ("retirements: [{nodes: 'gpu[001-', on: 2028-01-01}]", "retirements[0].nodes: "),
        ("retirements: [{nodes: 'gpu001,gpu001', on: 2028-01-01}]", "gpu001 retires already, on 2028-01-01"),
        ("expansions: [{resource: disks, names: [a], step: 1, step_price: '1'}]", "resource: found 'disks'"),
        ("expansions: [{resource: storage_bytes, names: [], step: 1, step_price: '1'}]", "names: found []"),
        ("expansions: [{resource: storage_bytes, names: [a, a], step: 1, step_price: '1'}]", "'a' is enlarged is"),
        (
            "expansions: [{resource: cooling_watts, names: [a], step: 1, step_price: '1'}, "
            "{resource: cooling_watts, names: [b, a], step: 1, step_price: '1'}]",
            "expansions[1].names[1]: how 'a' is enlarged is stated on line 1 already",
        ),
        ("expansions: [{resource: storage_bytes, names: [a], step: 0, step_price: '1'}]", "step: found 0"),
        ("expansions: [{resource: rack_watts, names: [r9], step: 1, step_price: '1'}]", "no 'r9' in its racks"),
        ("expansions: [{resource: network_ratio, names: [leaf9], step: 1, step_price: '1'}]", "no 'leaf9' in its"),
        (
            "expansions: [{resource: network_ratio, names: [''], step: 1, step_price: '1', usable_ratio: 1.0}]",
            "`network_ratio_max` of policy.yaml says; take it out",
        ),
        ("racks: [{rack: r1, free_nodes: 1}, {rack: r1, free_nodes: 1}]", "rack r1 is listed twice"),
        ("racks: [{rack: r1, free_nodes: -1}]", "free_nodes: found -1"),
        ("cloud: {h100: 2.49}", "cloud.h100: found 2.49"),
        ("cloud: {h100: '2.495'}", "cloud.h100: found '2.495'; expected whole cents"),
        ("cloud: {h100: '-1'}", "cloud.h100: found '-1'"),
        ("holidays: [2026-12-25, 2026-12-25]", "holidays[1]: 2026-12-25 is listed twice"),
        ("holidays: ['2026-12-25']", "holidays[0]: found '2026-12-25'; expected a day"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_with_what_was_expected(tmp_path: Path, text: str, fault: str) -> None:
    found = faults_of(tmp_path, text)

    assert any(fault in each for each in found), found
    assert all(each.startswith("line ") for each in found)


def test_a_sku_that_has_a_fault_is_known_to_arrivals_all_the_same(tmp_path: Path) -> None:
    text = f"skus: [{{{SKU}, work_ratio: 0}}]\narrivals: [{{sku: n, nodes: 1, on: 2027-01-01}}]"

    assert len(faults_of(tmp_path, text)) == 1


@pytest.mark.parametrize("name", ["r1", "r2"])
def test_racks_and_switches_of_the_cluster_are_known(tmp_path: Path, name: str) -> None:
    text = f"expansions: [{{resource: rack_watts, names: [{name}], step: 1, step_price: '1'}}]"

    assert read(tmp_path, text).expansions[0].names == (name,)


VALUES = st.recursive(
    st.sampled_from(["null", "yes", "1", "-1", ".nan", "1e400", "2026-02-30", "2026-01-01", "a", "'1.00'", "~"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]"),
    max_leaves=4,
)
KEYS = st.sampled_from(["sku", "nodes", "on", "names", "resource", "step", "rack", "free_nodes", "lead_time", "x"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    top=st.sampled_from(["skus", "arrivals", "retirements", "expansions", "racks", "cloud", "holidays"]),
    entries=st.lists(st.lists(st.tuples(KEYS, VALUES), max_size=4), max_size=3),
)
def test_whatever_the_file_says_it_is_read_or_refused_as_a_file(
    tmp_path: Path, top: str, entries: list[list[tuple[str, str]]]
) -> None:
    lines = [", ".join(f"{key}: {value}" for key, value in each) for each in entries]
    try:
        found = read(tmp_path, f"{top}: [{', '.join(f'{{{each}}}' for each in lines)}]")
    except ConfigError:
        return

    assert isinstance(found, CapacitySettings)


# --- policy.yaml --------------------------------------------------------------------------------------------------


def policy_of(directory: Path, section: str) -> CapacityPolicy:
    path = directory / "policy.yaml"
    path.write_text(f"capacity: {section}\n", encoding="utf-8")
    return read_capacity_policy(path)


def test_every_key_of_the_policy_becomes_what_it_says(tmp_path: Path) -> None:
    section = (
        "{shortage_probability_max: 0.2, horizon_weeks: 26, lead_time_quantile: 0.8, least_short_weeks: 3, "
        "regret_ratios: [2, 4.5], refresh_after_months: 48, network_ratio_max: 0.7}"
    )

    assert policy_of(tmp_path, section) == CapacityPolicy(
        shortage_probability_max=0.2, horizon_weeks=26, lead_time_quantile=0.8, least_short_weeks=3,
        regret_ratios=(2.0, 4.5), refresh_after_months=48, network_ratio_max=0.7,
    )  # fmt: skip


def test_the_shipped_policy_states_the_defaults_and_every_key() -> None:
    text = (ROOT / "policy.yaml").read_text(encoding="utf-8")

    assert read_capacity_policy(ROOT / "policy.yaml") == CapacityPolicy()
    for name in CAPACITY_POLICY.keys:
        assert f"  {name}: " in text, name


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("shortage_probability_max", ("0.001", "0.5"), ("0", "0.501", "-0.1", ".nan", "'0.1'")),
        ("horizon_weeks", ("4", "104"), ("3", "105", "5.5")),
        ("lead_time_quantile", ("0.5", "0.99"), ("0.499", "0.991", "1")),
        ("least_short_weeks", ("1", "4"), ("0", "5")),
        ("regret_ratios", ("[0.1]", "[1, 2, 3, 4, 5, 6, 7, 8]"), ("[]", "[1, 2, 3, 4, 5, 6, 7, 8, 9]", "[0, 1]")),
        ("regret_ratios", ("[3, 3.01]",), ("[3, 3]", "[5, 3]", "3", "[.nan]")),
        ("refresh_after_months", ("1", "600"), ("0", "601")),
        ("network_ratio_max", ("0.01", "1"), ("0", "1.01")),
    ],
)
def test_a_policy_has_bounds(tmp_path: Path, key: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    for value in good:
        policy_of(tmp_path, f"{{{key}: {value}}}")
    for value in bad:
        with pytest.raises(ConfigError, match=f"line 1: capacity.{key}"):
            policy_of(tmp_path, f"{{{key}: {value}}}")
