"""monitoring_coverage: what should be there, what is there, and since when it is not."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.coverage import GONE_AFTER, list_missing, measure_coverage
from tests.frames.gpu_hours import HOUR, no_rows, samples

STEP_SECONDS = 60
AN_HOUR = timedelta(hours=1)
END = HOUR + AN_HOUR
NODES = ("n1", "n2", "n3")
GPUS = ("GPU-a", "GPU-b")
READINGS = {"power_watts": 300.0, "sm_active_ratio": 0.5, "dram_active_ratio": 0.2, "gpu_model": "H100"}
Tables = Mapping[str, pa.Table]
Row = Mapping[str, object]
Key = tuple[str, str, str]


def topology_of(*nodes: str, gpus: int = 2) -> Topology:
    return Topology(
        places={NodeName(node): Place(rack="r1", nvlink_domain=node, leaf_switch="s1") for node in nodes},
        gpus_per_node=gpus,
    )


TOPOLOGY = topology_of(*NODES)


def cluster(
    *,
    hour: datetime = HOUR,
    nodes: Sequence[str] = NODES,
    keep: Callable[[str, str, int], bool] = lambda *_: True,
    readings: Mapping[str, float | str | None] = READINGS,
) -> dict[str, pa.Table]:
    """Return the hour of three nodes with two GPUs and one port each; `keep` says which samples are there."""
    gpu, node_rows, fabric = [], [], []
    for node in nodes:
        names = [f"{name}-{node}" for name in GPUS]
        for parts, device, known in (
            *((gpu, name, readings) for name in names),
            (node_rows, "", {"load_1m": 1.0, "memory_available_bytes": 1e12}),
            (fabric, "mlx5_0/1", {"link_state": 4.0, "receive_bytes": 1.0}),
        ):
            parts += samples(node, device, known, steps=[s for s in range(60) if keep(node, device, s)], hour=hour)
    return {
        "gpu_telemetry": TABLES["gpu_telemetry"].from_rows(gpu),
        "node_telemetry": TABLES["node_telemetry"].from_rows(node_rows),
        "fabric_telemetry": TABLES["fabric_telemetry"].from_rows(fabric),
    }


def measure(
    tables: Tables,
    *,
    before: pa.Table | None = None,
    hour: datetime = HOUR,
    topology: Topology = TOPOLOGY,
    inventory: pa.Table | None = None,
) -> pa.Table:
    found = measure_coverage(
        tables,
        inventory=no_rows("inventory") if inventory is None else inventory,
        before=no_rows("monitoring_coverage") if before is None else before,
        hour=hour,
        step_seconds=STEP_SECONDS,
        topology=topology,
    )
    assert found.schema == TABLES["monitoring_coverage"].arrow()
    return found


def by_key(coverage: pa.Table) -> dict[Key, Row]:
    rows: dict[Key, Row] = {(row["node"], row["device"], row["quantity"]): row for row in coverage.to_pylist()}
    assert len(rows) == coverage.num_rows
    return rows


def missing(coverage: pa.Table) -> set[Key]:
    return {key for key, row in by_key(coverage).items() if row["missing_since"] is not None}


def later(count: int = 1, **known: object) -> dict[str, pa.Table]:
    return cluster(hour=HOUR + count * AN_HOUR, **known)  # type: ignore[arg-type]  # passed on as given


def test_a_complete_hour_misses_nothing() -> None:
    found = measure(cluster())

    assert missing(found) == set()
    assert list_missing(found) == []
    assert {row["coverage_ratio"] for row in by_key(found).values()} == {1.0}
    assert by_key(found)["n1", "GPU-a-n1", "gpu_telemetry.*"]["expected_count"] == 60


def test_a_silent_node_stays_expected_and_is_one_line() -> None:
    before = measure(cluster())

    found = measure(later(nodes=("n1", "n2")), before=before, hour=END)

    assert by_key(found)["n3", "", "*"]["because"] == "node silent: nothing comes"
    assert ("n3", "GPU-a-n3", "gpu_telemetry.*") in missing(found)
    assert list_missing(found) == [
        {
            "what": "everything",
            "where": "n3",
            "count": 1,
            "missing_since": "2026-11-21 13:00Z",
            "because": "node silent: nothing comes",
        }
    ]


def test_a_node_of_cluster_yaml_that_was_never_seen_is_missing() -> None:
    found = measure(cluster(), topology=topology_of(*NODES, "n4"))

    assert [(line["where"], line["what"]) for line in list_missing(found)] == [("n4", "everything")]


def test_a_dead_exporter_is_one_line_and_not_one_for_each_series() -> None:
    before = measure(cluster())

    found = measure(
        later(keep=lambda node, device, step: not (node == "n2" and device.startswith("GPU") and step >= 30)),
        before=before,
        hour=END,
    )

    (line,) = list_missing(found)
    assert line == {
        "what": "all of gpu_telemetry",
        "where": "n2",
        "count": 1,
        "missing_since": "2026-11-21 13:29Z",
        "because": "exporter silent: no gpu_telemetry while other layers come",
    }


def test_one_missing_gpu_is_named_with_its_newest_sample() -> None:
    found = measure(cluster(keep=lambda _, device, step: device != "GPU-b-n1" or step < 20))

    row = by_key(found)["n1", "GPU-b-n1", "gpu_telemetry.*"]
    assert (row["seen_count"], row["missing_since"]) == (20, HOUR + timedelta(minutes=19))
    assert row["because"] == "GPU missing: 1 others of the node report"
    assert missing(found) == {("n1", "GPU-b-n1", "gpu_telemetry.*")}


@pytest.mark.parametrize(("last_step", "is_missing"), [(57, True), (58, True), (59, False)])
def test_missing_at_the_end_means_none_in_the_last_minute(last_step: int, is_missing: bool) -> None:
    found = measure(cluster(keep=lambda _, device, step: device != "GPU-b-n1" or step <= last_step))

    assert (("n1", "GPU-b-n1", "gpu_telemetry.*") in missing(found)) is is_missing


@pytest.mark.parametrize(("lost", "because"), [(3, None), (4, "gaps: 56 of 60 samples"), (5, "gaps: 55 of 60 samples")])
def test_gaps_are_named_below_ninety_five_percent(lost: int, because: str | None) -> None:
    found = measure(cluster(keep=lambda _, device, step: device != "GPU-b-n1" or step >= lost))

    row = by_key(found)["n1", "GPU-b-n1", "gpu_telemetry.*"]
    assert (row["because"], row["missing_since"]) == (because, None)


def test_missing_since_is_carried_over_and_a_return_ends_it() -> None:
    key = ("n1", "GPU-b-n1", "gpu_telemetry.*")
    first = measure(cluster(keep=lambda _, device, step: device != "GPU-b-n1" or step < 20))
    second = measure(later(keep=lambda _, device, __: device != "GPU-b-n1"), before=first, hour=END)
    third = measure(later(2), before=second, hour=END + AN_HOUR)

    assert by_key(second)[key]["missing_since"] == HOUR + timedelta(minutes=19)
    assert by_key(second)[key]["seen_count"] == 0
    assert by_key(third)[key]["missing_since"] is None


@pytest.mark.parametrize(
    ("gone_for", "is_expected"),
    [(GONE_AFTER - AN_HOUR, True), (GONE_AFTER, False), (GONE_AFTER + AN_HOUR, False)],
)
def test_a_device_that_is_gone_for_a_week_is_no_longer_expected(gone_for: timedelta, is_expected: bool) -> None:
    key = {"node": "n1", "device": "mlx5_7/1", "quantity": "fabric_telemetry.*", "time": HOUR - AN_HOUR}
    before = TABLES["monitoring_coverage"].from_rows([{**key, "missing_since": HOUR - gone_for}])

    found = measure(cluster(), before=before)

    assert (("n1", "mlx5_7/1", "fabric_telemetry.*") in by_key(found)) is is_expected


def test_a_gpu_in_the_place_of_another_ends_its_absence() -> None:
    before = measure(cluster())
    tables = later()
    renamed = pc.replace_substring(tables["gpu_telemetry"]["device"], "GPU-b-n1", "GPU-new")
    where = tables["gpu_telemetry"].schema.get_field_index("device")
    field = tables["gpu_telemetry"].schema.field("device")
    tables["gpu_telemetry"] = tables["gpu_telemetry"].set_column(where, field, renamed)

    found = measure(tables, before=before, hour=END)

    assert missing(found) == set()
    assert ("n1", "GPU-b-n1", "gpu_telemetry.*") not in by_key(found)


def test_gpus_that_cluster_yaml_promises_are_expected_though_never_seen() -> None:
    found = measure(cluster(), topology=topology_of(*NODES, gpus=8))

    row = by_key(found)["n1", "unseen", "gpu_telemetry.*"]
    assert (row["because"], row["expected_count"]) == ("6 of 8 GPUs were never seen", 360)
    (line,) = list_missing(found)
    assert line["count"] == 3


def test_a_gpu_of_the_inventory_is_expected_before_it_ever_reports() -> None:
    inventory = TABLES["inventory"].from_rows([{"node": "n1", "device": "GPU-dead", "time": HOUR, "kind": "gpu"}])

    found = measure(cluster(), topology=topology_of(*NODES, gpus=3), inventory=inventory)

    assert ("n1", "GPU-dead", "gpu_telemetry.*") in missing(found)
    assert ("n1", "unseen", "gpu_telemetry.*") not in by_key(found)


def test_a_slice_that_its_gpu_was_cut_anew_without_is_not_missing() -> None:
    slices = [row for name in ("mig1", "mig2") for row in samples("n1", f"GPU-a/{name}", {"sm_active_ratio": 0.5})]
    topology = topology_of("n1", gpus=1)
    before = measure({"gpu_telemetry": TABLES["gpu_telemetry"].from_rows(slices)}, topology=topology)
    anew = samples("n1", "GPU-a/mig5", {"sm_active_ratio": 0.5}, hour=END)

    found = measure(
        {"gpu_telemetry": TABLES["gpu_telemetry"].from_rows(anew)}, before=before, hour=END, topology=topology
    )

    assert missing(found) == set()


def test_profiling_metrics_that_are_off_everywhere_are_one_line() -> None:
    before = measure(cluster())

    off = {name: value for name, value in READINGS.items() if name in ("power_watts", "gpu_model")}
    found = measure(later(readings=off), before=before, hour=END)

    (line,) = list_missing(found)
    assert line == {
        "what": "gpu_telemetry: dram_active_ratio, sm_active_ratio",
        "where": "all H100",
        "count": 1,
        "missing_since": "2026-11-21 13:00Z",
        "because": "profiling metrics are off, or another profiler holds them",
    }


def test_profiling_that_is_off_on_one_node_names_the_node() -> None:
    tables = cluster()
    gpu = tables["gpu_telemetry"]
    for name in ("sm_active_ratio", "dram_active_ratio"):
        lost = pc.if_else(pc.equal(gpu["node"], "n3"), pa.scalar(None, pa.float64()), gpu[name])
        gpu = gpu.set_column(gpu.schema.get_field_index(name), gpu.schema.field(name), lost)

    found = measure({**tables, "gpu_telemetry": gpu})

    assert missing(found) == {
        ("n3", "", "gpu_telemetry.sm_active_ratio"),
        ("n3", "", "gpu_telemetry.dram_active_ratio"),
    }
    (line,) = list_missing(found)
    assert (line["where"], line["because"]) == ("n3", "profiling metrics are off, or another profiler holds them")


def test_a_quantity_that_one_device_alone_lost_is_named_with_its_peers_as_the_measure() -> None:
    tables = cluster()
    gpu = tables["gpu_telemetry"]
    lost = pc.if_else(pc.equal(gpu["device"], "GPU-a-n2"), pa.scalar(None, pa.float64()), gpu["power_watts"])
    gpu = gpu.set_column(gpu.schema.get_field_index("power_watts"), gpu.schema.field("power_watts"), lost)

    found = measure({**tables, "gpu_telemetry": gpu})

    assert missing(found) == {("n2", "GPU-a-n2", "gpu_telemetry.power_watts")}
    assert by_key(found)["n2", "GPU-a-n2", "gpu_telemetry.power_watts"]["because"] == (
        "no power_watts while other quantities come"
    )


def test_what_the_cluster_never_gave_is_not_expected() -> None:
    found = measure(cluster())

    assert not any(quantity.startswith("storage_telemetry") for _, _, quantity in by_key(found))
    assert not any(quantity.endswith("xid") for _, _, quantity in by_key(found))


def test_series_of_jobs_are_not_expected_to_stay() -> None:
    ended = TABLES["application_telemetry"].from_rows(samples("n1", "train", {}, steps=range(10)))

    assert missing(measure({**cluster(), "application_telemetry": ended})) == set()


def test_an_hour_without_any_data_is_one_line_and_forgets_nothing() -> None:
    before = measure(cluster())

    silent = measure({}, before=before, hour=END)
    back = measure(later(2), before=silent, hour=END + AN_HOUR)

    (line,) = list_missing(silent)
    assert (line["count"], line["where"], line["missing_since"]) == (3, "n1, n2, n3", "2026-11-21 13:00Z")
    assert by_key(silent).keys() == by_key(before).keys() == by_key(back).keys()
    assert missing(back) == set()


def test_the_longest_absence_comes_first() -> None:
    found = measure(
        cluster(keep=lambda node, device, step: (node != "n1" or step < 40) and (device != "GPU-b-n2" or step < 10))
    )

    assert [line["where"] for line in list_missing(found)] == ["n2 GPU-b-n2", "n1"]


_DEVICES = ("", *GPUS, "mlx5_0/1")
_gaps = st.sets(st.tuples(st.sampled_from(NODES), st.sampled_from(_DEVICES), st.integers(0, 59)), max_size=120)
_silent = st.sets(st.tuples(st.sampled_from(NODES), st.sampled_from(_DEVICES)), max_size=6)


def there(gaps: set[tuple[str, str, int]], silent: set[tuple[str, str]]) -> Callable[[str, str, int], bool]:
    def keep(node: str, device: str, step: int) -> bool:
        name = device.removesuffix(f"-{node}")
        return (node, name, step) not in gaps and not ((node, name) in silent and step > 5)

    return keep


@settings(max_examples=25, deadline=None)
@given(_gaps, _silent, _gaps)
def test_coverage_is_a_share_and_losing_samples_never_raises_it(
    gaps: set[tuple[str, str, int]], silent: set[tuple[str, str]], more: set[tuple[str, str, int]]
) -> None:
    before = measure(cluster(hour=HOUR - AN_HOUR), hour=HOUR - AN_HOUR)

    some = by_key(measure(cluster(keep=there(gaps, silent)), before=before))
    fewer = by_key(measure(cluster(keep=there(gaps | more, silent)), before=before))

    for key, row in fewer.items():
        assert 0 <= float(str(row["coverage_ratio"])) <= 1
        if key in some:
            assert float(str(row["coverage_ratio"])) <= float(str(some[key]["coverage_ratio"]))
        if key[2].endswith("*"):
            assert key in some


@settings(max_examples=25, deadline=None)
@given(_gaps, _silent, _silent)
def test_what_reports_at_every_step_is_never_missing_and_absence_never_begins_earlier_than_it_did(
    gaps: set[tuple[str, str, int]], silent: set[tuple[str, str]], then: set[tuple[str, str]]
) -> None:
    first = measure(cluster(keep=there(gaps, silent)))
    second = measure(later(keep=there(set(), silent | then)), before=first, hour=END)

    for coverage, end in ((by_key(first), END), (by_key(second), END + AN_HOUR)):
        for row in coverage.values():
            since = row["missing_since"]
            assert since is None or (isinstance(since, datetime) and since <= end)
            assert row["seen_count"] != row["expected_count"] or since is None
    for key, row in by_key(second).items():
        earlier = by_key(first).get(key, {}).get("missing_since")
        if isinstance(earlier, datetime) and isinstance(since := row["missing_since"], datetime):
            assert since >= earlier


def test_the_order_of_rows_changes_nothing() -> None:
    tables = cluster(keep=lambda _, device, step: device != "GPU-b-n1" or step % 2 == 0)
    order = np.random.default_rng(5)
    mixed = {name: rows.take(order.permutation(rows.num_rows)) for name, rows in tables.items()}

    assert measure(mixed).equals(measure(tables))


@pytest.mark.parametrize("step_seconds", [0, 3601])
def test_a_step_that_fits_no_hour_is_refused(step_seconds: int) -> None:
    with pytest.raises(ValueError, match="expected 1 to 3600"):
        measure_coverage(
            {},
            inventory=no_rows("inventory"),
            before=no_rows("monitoring_coverage"),
            hour=HOUR,
            step_seconds=step_seconds,
            topology=TOPOLOGY,
        )
