import math
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.sources import Query
from ops_pipelines.lake.metrics.pages import tabulate
from ops_pipelines.lake.metrics.series import Joined, RefusedPoints, SeriesBlock
from ops_pipelines.lake.node_names import NodeNames
from ops_pipelines.lake.quantities import Parsed
from ops_pipelines.lake.schema import TABLES

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NOW_MS = int(AT.timestamp() * 1000)
UUID = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"
OTHER = "GPU-d7cbb0cd-d4bd-c2f7-dfaf-221df5e958ea"
GPU = {"Hostname": "gpu001", "UUID": UUID, "gpu": "0", "pci_bus_id": "00000000:1B:00.0"}
TEMPERATURE, UTILISATION, XID = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_XID_ERRORS"

Points = Sequence[tuple[int, float]]
Series = tuple[str, Mapping[str, str], Points]


def block(*series: Series) -> SeriesBlock:
    points = [point for _, _, listed in series for point in listed]
    return SeriesBlock(
        names=[name for name, _, _ in series],
        labels=[labels for _, labels, _ in series],
        counts=np.array([len(listed) for _, _, listed in series], np.int64),
        times=np.array([time for time, _ in points], np.int64),
        values=np.array([value for _, value in points], np.float64),
    )


def now(name: str, labels: Mapping[str, str], value: float) -> Series:
    return name, labels, [(NOW_MS, value)]


def place(*series: Series, known: Sequence[str] | None = None, query: Query | None = None) -> Parsed:
    return tabulate(block(*series), source="test", names=NodeNames(known), at=AT, query=query)


def rows_of(parsed: Parsed, table: str) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if value is not None} for row in parsed.tables[table].to_pylist()]


def only_reason(parsed: Parsed) -> str | None:
    assert parsed.read == 1
    assert parsed.accepted + parsed.ignored + len(parsed.refused) == 1
    return parsed.refused[0].reason if parsed.refused else None


def test_a_series_becomes_a_cell_in_the_unit_of_its_column() -> None:
    parsed = place(now(UTILISATION, GPU, 91), now(TEMPERATURE, GPU, 74))

    assert (parsed.read, parsed.accepted, parsed.ignored) == (2, 2, 0)
    assert rows_of(parsed, "gpu_telemetry") == [
        {
            "node": "gpu001",
            "device": UUID,
            "time": AT,
            "gpu_uuid": UUID,
            "pci_address": "0000:1b:00",
            "gpu_index": 0,
            "utilisation_ratio": 0.91,
            "temperature_celsius": 74.0,
        }
    ]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (TEMPERATURE, -40.0, None),
        (TEMPERATURE, -40.1, "out_of_range"),
        (TEMPERATURE, 200.0, None),
        (TEMPERATURE, math.nextafter(200, 201), "out_of_range"),
        (UTILISATION, 100.0, None),
        (UTILISATION, 100.1, "out_of_range"),
        (UTILISATION, 0.0, None),
        (UTILISATION, -0.1, "out_of_range"),
        (TEMPERATURE, math.nan, "not_finite"),
        (TEMPERATURE, math.inf, "not_finite"),
        (TEMPERATURE, -math.inf, "not_finite"),
        (XID, 79.0, None),
        (XID, 79.5, "not_whole"),
        (XID, -1.0, "out_of_range"),
        # DCGM's blanks begin at 0x7ffffff0, 2**47 and 0x7ffffffffffffff0, which a float rounds to 2**63.
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", float(0x7FFFFFEF), None),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", float(0x7FFFFFF0), "blank_value"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", float(0x7FFFFFFF), "blank_value"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", float(0x80000000), None),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 2.0**47 - 1, None),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 2.0**47, "blank_value"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 2.0**47 + 15, "blank_value"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 2.0**47 + 16, None),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", float(0x7FFFFFFFFFFFFFF2), "blank_value"),
        (TEMPERATURE, 9223372036854775794.0, "blank_value"),
    ],
)
def test_a_value_that_cannot_be_is_refused(name: str, value: float, reason: str | None) -> None:
    parsed = place(now(name, GPU, value))

    assert only_reason(parsed) == reason


def test_the_largest_percentage_is_not_pushed_over_its_bound_by_the_conversion() -> None:
    parsed = place(now("smartctl_device_percentage_used", {"device": "nvme0", "instance": "gpu001:9633"}, 255))

    assert rows_of(parsed, "storage_telemetry")[0]["wear_ratio"] == 2.55


def test_a_product_too_large_for_a_number_is_out_of_range() -> None:
    assert only_reason(place(now("DCGM_FI_DEV_SM_CLOCK", GPU, 1e308))) == "out_of_range"


@pytest.mark.parametrize(
    ("ahead", "reason"), [(59_999, None), (60_000, None), (60_001, "in_future"), (10**15, "bad_time")]
)
def test_a_sample_from_the_future_is_refused(ahead: int, reason: str | None) -> None:
    parsed = place((TEMPERATURE, GPU, [(NOW_MS + ahead, 40)]))

    assert only_reason(parsed) == reason


@pytest.mark.parametrize(
    ("time", "reason"),
    [
        (946_684_799_999, "bad_time"),
        (946_684_800_000, None),
        (946_684_800_001, None),
        (-1, "bad_time"),
        (2**63 - 1, "bad_time"),
        (-(2**63), "bad_time"),
    ],
)
def test_a_time_that_no_clock_of_ours_had_is_refused(time: int, reason: str | None) -> None:
    parsed = place((TEMPERATURE, GPU, [(time, 40)]))

    assert only_reason(parsed) == reason


@pytest.mark.parametrize(
    ("time", "reason"),
    [
        (NOW_MS + 400 * 86_400_000, None),
        (253_402_300_799_998, None),
        (253_402_300_799_999, None),
        (253_402_300_800_000, "bad_time"),
    ],
)
def test_without_a_present_the_future_ends_with_the_calendar(time: int, reason: str | None) -> None:
    parsed = tabulate(block((TEMPERATURE, GPU, [(time, 40)])), source="test", names=NodeNames(None))

    assert only_reason(parsed) == reason


def test_the_marker_of_a_series_end_is_ignored() -> None:
    (marker,) = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))
    values = np.array([0x7FF0000000000002], np.int64).view(np.float64)
    assert math.isnan(marker)
    ended = SeriesBlock(
        names=[TEMPERATURE], labels=[GPU], counts=np.array([1]), times=np.array([NOW_MS]), values=values
    )

    parsed = tabulate(ended, source="test", names=NodeNames(None))

    assert (parsed.read, parsed.ignored, parsed.tables) == (1, 1, {})


def test_unknown_names_and_labels_that_fit_no_row_are_ignored() -> None:
    parsed = place(now("go_goroutines", {}, 7), now("node_cpu_seconds_total", {"cpu": "0", "mode": "dreaming"}, 1))

    assert (parsed.read, parsed.ignored, parsed.tables) == (2, 2, {})


def test_a_node_that_cluster_yaml_lacks_is_accepted_and_marked() -> None:
    stranger = {**GPU, "Hostname": "gpu999", "UUID": OTHER}

    parsed = place(now(TEMPERATURE, GPU, 40), now(TEMPERATURE, stranger, 41), known=["gpu001"])

    marks = {row["node"]: row["unknown_node"] for row in rows_of(parsed, "gpu_telemetry")}
    assert marks == {"gpu001": False, "gpu999": True}


def test_without_cluster_yaml_no_node_is_marked() -> None:
    parsed = place(now(TEMPERATURE, GPU, 40))

    assert parsed.tables["gpu_telemetry"].column("unknown_node").to_pylist() == [None]


def test_labels_that_name_two_nodes_are_refused() -> None:
    parsed = place(now(TEMPERATURE, {**GPU, "instance": "gpu002:9400"}, 40), known=["gpu001", "gpu002"])

    assert only_reason(parsed) == "two_nodes"
    assert "gpu001 and gpu002" in parsed.refused[0].detail


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({"Hostname": "gpu001"}, "no_device"),
        ({"Hostname": "gpu001", "UUID": ""}, "no_device"),
        ({"Hostname": "gpu001", "UUID": UUID, "pci_bus_id": "1B:00"}, "bad_pci_address"),
        ({"Hostname": "gpu001", "UUID": UUID, "pci_bus_id": "0000:1b:00.0"}, None),
    ],
)
def test_a_gpu_that_no_label_names_is_refused(labels: dict[str, str], reason: str | None) -> None:
    assert only_reason(place(now(TEMPERATURE, labels, 40))) == reason


def test_a_part_that_no_label_names_is_refused() -> None:
    parsed = place(now("node_filesystem_size_bytes", {"device": "/dev/sda1", "instance": "gpu001:9100"}, 1))

    assert only_reason(parsed) == "no_device"
    assert "mountpoint" in parsed.refused[0].detail


@pytest.mark.parametrize(
    ("labels", "device"),
    [
        ({"UUID": UUID, "gpu": "0"}, UUID),
        ({"uuid": UUID.removeprefix("GPU-").upper()}, UUID),
        ({"gpu_uuid": UUID}, UUID),
        ({"pci_bus_id": "0000:1B:00.0", "gpu": "3"}, "0000:1b:00"),
        ({"gpu": "3"}, "gpu3"),
        ({"gpu_id": "3"}, "gpu3"),
        ({"UUID": UUID, "gpu": "Teslav100-1"}, UUID),
        ({"UUID": UUID, "GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb"}, f"{UUID}/mig7"),
        ({"UUID": f"MIG-{UUID}/5/0"}, f"{UUID}/mig5"),
        ({"UUID": "MIG-41b3359c-e721-56e5-8009-12e5797ed514"}, "MIG-41b3359c-e721-56e5-8009-12e5797ed514"),
    ],
)
def test_a_gpu_is_named_by_uuid_then_address_then_index(labels: dict[str, str], device: str) -> None:
    parsed = place(now(TEMPERATURE, {"Hostname": "gpu001", **labels}, 40))

    assert [row["device"] for row in rows_of(parsed, "gpu_telemetry")] == [device]


def test_series_that_lack_the_uuid_join_the_gpu_that_has_it() -> None:
    parsed = place(
        now(TEMPERATURE, GPU, 40),
        now("DCGM_FI_DEV_POWER_USAGE", {"Hostname": "gpu001", "gpu": "0"}, 300),
        now(XID, {"Hostname": "gpu001", "pci_bus_id": "0000:1b:00.0"}, 0),
        now(UTILISATION, {"Hostname": "gpu002", "gpu": "0"}, 5),
    )

    rows = rows_of(parsed, "gpu_telemetry")
    assert [(row["node"], row["device"]) for row in rows] == [("gpu001", UUID), ("gpu002", "gpu0")]
    assert (rows[0]["temperature_celsius"], rows[0]["power_watts"], rows[0]["xid"]) == (40, 300, 0)


def test_an_index_that_two_gpus_had_joins_neither() -> None:
    parsed = place(
        now(TEMPERATURE, {**GPU}, 40),
        now(TEMPERATURE, {**GPU, "UUID": OTHER, "pci_bus_id": "0000:1c:00.0"}, 41),
        now(XID, {"Hostname": "gpu001", "gpu": "0"}, 0),
    )

    assert [row["device"] for row in rows_of(parsed, "gpu_telemetry")] == [UUID, OTHER, "gpu0"]


def test_an_info_series_tells_of_the_gpu_although_it_has_no_column() -> None:
    info = {
        "uuid": UUID,
        "name": "NVIDIA H100 80GB HBM3",
        "driver_version": "590.48.01",
        "index": "2",
        "serial": "16541",
    }

    parsed = place(
        now("nvidia_smi_gpu_info", {**info, "Hostname": "gpu001"}, 1),
        now(TEMPERATURE, {"UUID": UUID, "Hostname": "gpu001"}, 40),
    )

    assert (parsed.accepted, parsed.ignored) == (1, 1)
    (row,) = rows_of(parsed, "gpu_telemetry")
    assert (row["gpu_model"], row["driver_version"], row["gpu_index"]) == ("NVIDIA H100 80GB HBM3", "590.48.01", 2)
    assert row["gpu_serial"] == "16541"


def test_the_scrape_job_is_no_job_but_the_hpc_job_is() -> None:
    parsed = place(now(TEMPERATURE, {**GPU, "job": "dcgm", "hpc_job": "4711"}, 40), now(XID, {**GPU, "job": "dcgm"}, 0))

    (row,) = rows_of(parsed, "gpu_telemetry")
    assert row["job"] == "4711"
    assert "job" not in rows_of(place(now(XID, {**GPU, "job": "dcgm"}, 0)), "gpu_telemetry")[0]


@pytest.mark.parametrize(
    ("labels", "pod"),
    [
        ({"pod": "train-0", "namespace": "ml"}, "train-0"),
        ({"exported_pod": "train-0", "pod": "nvidia-dcgm-exporter-x7k2p"}, "train-0"),
        ({"pod": "nvidia-dcgm-exporter-x7k2p", "namespace": "gpu-operator"}, None),
        ({"pod": ""}, None),
    ],
)
def test_the_pod_that_holds_the_gpu_is_not_the_exporters(labels: dict[str, str], pod: str | None) -> None:
    parsed = place(now(TEMPERATURE, {**GPU, **labels}, 40))

    assert rows_of(parsed, "gpu_telemetry")[0].get("pod") == pod


def test_pods_that_share_a_gpu_are_one_cell_and_both_named() -> None:
    parsed = place(now(UTILISATION, {**GPU, "pod": "b"}, 50), now(UTILISATION, {**GPU, "pod": "a"}, 70))

    (row,) = rows_of(parsed, "gpu_telemetry")
    assert (row["utilisation_ratio"], row["pod"]) == (0.7, "a,b")


def test_counters_of_the_cores_are_added_up() -> None:
    cores = [now("node_cpu_seconds_total", {"cpu": str(core), "mode": "idle"}, 10.5) for core in range(4)]

    parsed = tabulate(block(*cores), source="test", names=NodeNames(None), node="gpu001")

    (row,) = rows_of(parsed, "node_telemetry")
    assert (row["node"], row["device"], row["cpu_idle_seconds"]) == ("gpu001", "", 42.0)


def test_the_old_and_the_new_name_of_a_field_are_not_added_up() -> None:
    parsed = place(now("slurm_queue_pending", {}, 7), now("slurm_jobs_pending", {}, 7))

    assert rows_of(parsed, "platform_telemetry")[0]["jobs_pending_count"] == 7


def test_equal_duplicates_count_once_and_conflicting_ones_are_refused() -> None:
    core = {"cpu": "0", "mode": "idle"}
    turned = dict(reversed(core.items()))
    idle = "node_cpu_seconds_total"

    parsed = place(now(idle, core, 5), now(idle, turned, 5), now(idle, core, 6))

    assert (parsed.accepted, parsed.reasons) == (2, {"conflicting_duplicate": 1})
    assert rows_of(parsed, "node_telemetry")[0]["cpu_idle_seconds"] == 5


def test_refused_records_have_different_names() -> None:
    parsed = place(
        *(now(TEMPERATURE, GPU, value) for value in (40, 41, 42)), now(TEMPERATURE, {**GPU, "UUID": OTHER}, 900)
    )

    assert len({refused.record for refused in parsed.refused}) == len(parsed.refused) == 3
    assert {refused.into for refused in parsed.refused} == {"gpu_telemetry"}


def test_the_answer_of_a_query_without_names_goes_where_the_query_says() -> None:
    query = Query(promql="x", table="application_telemetry", column="latency_p95_seconds")

    parsed = place(
        now("", {"model_name": "llama"}, 0.25),
        now("", {}, 0.5),
        now("vllm_latency", {"model_name": "b"}, 1),
        query=query,
    )

    cells = {row["device"]: row["latency_p95_seconds"] for row in rows_of(parsed, "application_telemetry")}
    assert cells == {"llama": 0.25, "": 0.5, "b": 1}


def test_a_query_that_had_nothing_to_compute_from_is_ignored() -> None:
    query = Query(promql="x", table="application_telemetry", column="latency_p95_seconds")

    parsed = place(now("", {"model_name": "llama"}, math.nan), now("", {"model_name": "b"}, math.inf), query=query)

    assert (parsed.ignored, parsed.reasons) == (1, {"not_finite": 1})


def test_a_query_for_a_column_that_does_not_exist_is_an_error_of_ours() -> None:
    with pytest.raises(ValueError, match="no column"):
        place(now("", {}, 1), query=Query(promql="x", table="gpu_telemetry", column="beauty"))


def test_where_a_service_listens_is_no_node_unless_it_is_a_known_one() -> None:
    series = now("vllm:num_requests_waiting", {"model_name": "llama", "instance": "10.0.0.7:8000"}, 3)
    near = now("vllm:num_requests_waiting", {"model_name": "llama", "instance": "gpu001:8000"}, 4)

    parsed = place(series, near, known=["gpu001"])

    rows = rows_of(parsed, "application_telemetry")
    assert [(row["node"], row["queue_depth_count"]) for row in rows] == [("", 3), ("gpu001", 4)]


def test_an_empty_block_is_no_error() -> None:
    parsed = place()

    assert (parsed.read, parsed.tables) == (0, {})


def test_a_series_without_points_makes_no_row() -> None:
    parsed = place((TEMPERATURE, GPU, []), now(TEMPERATURE, {**GPU, "UUID": OTHER}, 40))

    assert [row["device"] for row in rows_of(parsed, "gpu_telemetry")] == [OTHER]


def test_a_block_in_which_all_is_refused_is_counted_without_being_written_out() -> None:
    points = [(NOW_MS - 15_000 * number, 900.0) for number in range(20_000)]

    parsed = place((TEMPERATURE, GPU, points))

    assert (parsed.read, len(parsed.refused), parsed.tables) == (20_000, 20_000, {})
    assert parsed.refused[19_999].reason == parsed.refused[-1].reason == "out_of_range"
    assert "900" in parsed.refused[7].text
    assert isinstance(parsed.refused, RefusedPoints)
    assert parsed.refused.count_reasons() == parsed.reasons == {"out_of_range": 20_000}
    assert [refused.record for refused in parsed.refused[3:5]] == [parsed.refused[3].record, parsed.refused[4].record]


def test_series_with_very_long_labels_are_told_apart_when_refused() -> None:
    long = [{**GPU, "note": "x" * 2000 + end} for end in "ab"]

    parsed = place(*(now(TEMPERATURE, labels, 900) for labels in long))

    assert len({refused.record for refused in parsed.refused}) == 2
    assert all(len(refused.record) < 700 and len(refused.text) < 1100 for refused in parsed.refused)


def test_several_sequences_of_refused_points_read_as_one() -> None:
    first, second = (place(now(TEMPERATURE, GPU, value)).refused for value in (900, math.nan))

    joined = Joined(first, (), second)

    assert [refused.reason for refused in joined] == ["out_of_range", "not_finite"]
    assert (len(joined), joined[1], joined[-2]) == (2, second[0], first[0])
    assert joined[1:] == [second[0]]
    with pytest.raises(IndexError):
        joined[2]


def test_gpus_that_move_within_a_block_keep_the_labels_of_each_time() -> None:
    earlier = NOW_MS - 15_000
    moved = {**GPU, "gpu": "1"}

    parsed = place((TEMPERATURE, GPU, [(earlier, 40)]), (TEMPERATURE, moved, [(NOW_MS, 41)]))

    assert [(row["device"], row["gpu_index"]) for row in rows_of(parsed, "gpu_telemetry")] == [(UUID, 0), (UUID, 1)]


_NAMES = st.sampled_from(
    [
        TEMPERATURE,
        UTILISATION,
        XID,
        "node_cpu_seconds_total",
        "node_filesystem_size_bytes",
        "up",
        "nvidia_smi_gpu_info",
        "?",
    ]
)
_LABELS = st.dictionaries(
    st.sampled_from(
        ["Hostname", "instance", "UUID", "gpu", "pci_bus_id", "mode", "cpu", "mountpoint", "job", "pod", "GPU_I_ID"]
    ),
    st.sampled_from(["gpu001", "gpu002:1", UUID, OTHER, "0", "1", "0000:1b:00", "idle", "/", "", "\ud800\n"]),
)
_POINTS = st.lists(
    st.tuples(
        st.sampled_from([NOW_MS, NOW_MS - 15_000, NOW_MS + 10**6, 0, -(2**63)]),
        st.one_of(st.floats(width=64), st.integers(-1, 101).map(float)),
    ),
    max_size=4,
)
_SERIES = st.lists(st.tuples(_NAMES, _LABELS, _POINTS), max_size=8)


@settings(max_examples=50, deadline=None)
@given(_SERIES, st.sampled_from([None, ["gpu001"], ["gpu001", "gpu002"]]))
def test_whatever_comes_the_counts_close_and_rows_are_sorted_and_unique(
    series: list[Series], known: list[str] | None
) -> None:
    parsed = place(*series, known=known)

    assert parsed.read == sum(len(points) for _, _, points in series)
    for name, table in parsed.tables.items():
        assert table.schema == TABLES[name].arrow()
        table.validate(full=True)
        keys = list(zip(*(table.column(key).to_pylist() for key in TABLES[name].sort_order), strict=True))
        assert keys == sorted(set(keys))
        assert table.num_rows > 0
    assert parsed.accepted == 0 or parsed.tables
    assert len({refused.record for refused in parsed.refused}) <= len(parsed.refused)


@settings(max_examples=50, deadline=None)
@given(
    _SERIES.filter(lambda series: len({(name, *sorted(labels.items())) for name, labels, _ in series}) == len(series))
)
def test_the_order_of_the_series_does_not_matter(series: list[Series]) -> None:
    # Within a series the first of two points at one time counts, so each time is there once.
    listed: list[Series] = [(name, labels, list(dict(points).items())) for name, labels, points in series]

    forwards, backwards = place(*listed), place(*reversed(listed))

    assert (forwards.accepted, forwards.reasons) == (backwards.accepted, backwards.reasons)
    assert set(forwards.tables) == set(backwards.tables)
    for name, table in forwards.tables.items():
        assert isinstance(table, pa.Table)
        assert table.equals(backwards.tables[name])


_NAMED_GPUS = st.fixed_dictionaries(
    {"Hostname": st.sampled_from(["gpu001", "gpu002"]), "UUID": st.sampled_from([UUID, OTHER])},
    optional={"gpu": st.sampled_from(["0", "1"]), "pod": st.sampled_from(["a", "b"]), "hpc_job": st.just("7")},
)
_GRID = st.lists(st.integers(0, 3), unique=True, max_size=4).map(sorted)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([TEMPERATURE, UTILISATION, "nvidia_smi_gpu_info", "node_cpu_seconds_total"]),
            _NAMED_GPUS.map(lambda labels: {**labels, "mode": "idle"}),
            _GRID,
            st.floats(0, 100),
        ),
        max_size=8,
        unique_by=lambda series: (series[0], *sorted(series[1].items())),
    )
)
def test_a_stretch_of_time_at_once_gives_the_rows_of_its_moments_one_by_one(
    series: list[tuple[str, dict[str, str], list[int], float]],
) -> None:
    def points_of(steps: Sequence[int], value: float) -> Points:
        return [(NOW_MS - 60_000 + 15_000 * step, value) for step in steps]

    whole = place(*((name, labels, points_of(steps, value)) for name, labels, steps, value in series))
    moments = [
        place(*((name, labels, points_of([step], value)) for name, labels, steps, value in series if step in steps))
        for step in range(4)
    ]

    for name, table in whole.tables.items():
        parts = pa.concat_tables(moment.tables[name] for moment in moments if name in moment.tables)
        order = [(key, "ascending") for key in TABLES[name].sort_order]
        assert parts.sort_by(order).combine_chunks().equals(table.combine_chunks())
    assert whole.accepted == sum(moment.accepted for moment in moments)


def test_the_driver_is_read_under_its_old_and_its_new_label() -> None:
    old, new = ({**GPU, label: "590.48.01"} for label in ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION"))

    drivers = [rows_of(place(now(TEMPERATURE, each, 40)), "gpu_telemetry")[0]["driver_version"] for each in (old, new)]

    assert drivers == ["590.48.01", "590.48.01"]


def test_a_mig_slice_has_a_row_beside_its_gpu() -> None:
    slice_ = {**GPU, "GPU_I_ID": "3", "GPU_I_PROFILE": "1g.10gb"}

    parsed = place(now(TEMPERATURE, GPU, 40), now("DCGM_FI_PROF_SM_ACTIVE", slice_, 0.5))

    whole, part = rows_of(parsed, "gpu_telemetry")
    assert (whole["device"], part["device"]) == (UUID, f"{UUID}/mig3")
    assert (part["gpu_uuid"], part["mig_instance"], part["mig_profile"]) == (UUID, "3", "1g.10gb")
    assert "mig_instance" not in whole
