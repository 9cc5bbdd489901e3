"""gpu_efficiency: what bounds each job on each node, and why we say so."""

import math
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.efficiency.verdict_rules import VERDICTS, find_stragglers, peer_features, read_rules, slice_share
from ops_pipelines.efficiency.verdicts import count_verdicts, read_efficiency
from ops_pipelines.lake.schema import TABLES
from tests.frames.gpu_hours import (
    GIB,
    HOUR,
    RESTING,
    SPINNING,
    STEP,
    TUNED,
    Reading,
    allocation_rows,
    gpu_rows,
    held,
    no_rows,
    node_of,
    samples,
)

DATA = Path(__file__).parents[2].parent / "shared" / "data"
Row = Mapping[str, object]


def read(gpu: pa.Table, allocations: pa.Table | None = None, *, fabric: pa.Table | None = None) -> list[Row]:
    found = read_efficiency(
        gpu,
        fabric=no_rows("fabric_telemetry") if fabric is None else fabric,
        allocations=no_rows("job_allocations") if allocations is None else allocations,
        hour=HOUR,
    )
    assert found.schema == TABLES["gpu_efficiency"].arrow()
    assert found.num_rows == len({(row["node"], row["job"]) for row in found.to_pylist()})
    rows: list[Row] = found.to_pylist()
    return rows


def verdict_of(readings: Mapping[str, Reading], *, gpus: int = 8) -> tuple[object, object]:
    (row,) = read(gpu_rows(node_of("n1", readings, count=gpus)), allocation_rows(held("7", "n1")))
    return row["verdict"], row["rule"]


QUIET = {**TUNED, "tensor_active_ratio": 0.05, "dram_active_ratio": 0.1, "power_watts": 250.0}


@pytest.mark.parametrize(
    ("readings", "verdict"),
    [
        (TUNED, "tensor_bound"),
        ({**TUNED, "tensor_active_ratio": 0.05, "dram_active_ratio": 0.75}, "memory_bound"),
        ({**TUNED, "tensor_active_ratio": 0.05, "dram_active_ratio": 0.2}, "compute_bound"),
        (SPINNING, "communication_bound"),
        # A collective's kernel has few blocks: whether SM activity reads 1.0 or 0.2 then, it is the same thing.
        ({**SPINNING, "sm_active_ratio": 0.18}, "communication_bound"),
        ({**QUIET, "nvlink_bandwidth_bytes": lambda step: step * 60 * 2e11}, "communication_bound"),
        (QUIET, "small_kernels"),
        ({**QUIET, "sm_active_ratio": 0.1}, "small_kernels"),
        ({**QUIET, "utilisation_ratio": 0.3, "sm_active_ratio": 0.2}, "input_stalled"),
        ({**TUNED, "utilisation_ratio": lambda step: 0.05 if step % 3 == 0 else 0.99}, "input_stalled"),
        (RESTING, "idle"),
        ({**RESTING, "memory_used_bytes": 60 * GIB, "memory_free_bytes": 19 * GIB}, "idle"),
    ],
)
def test_each_way_of_working_has_its_verdict(readings: Mapping[str, Reading], verdict: str) -> None:
    assert verdict_of(readings)[0] == verdict


def test_one_gpu_alone_waits_for_no_collective() -> None:
    assert verdict_of(SPINNING, gpus=1)[0] == "small_kernels"


@pytest.mark.parametrize(
    ("known", "verdict", "rule"),
    [
        ({"utilisation_ratio": 1.0, "power_watts": 640.0, "power_limit_watts": 700.0},
         "compute_bound", "coarse_high_power"),
        ({"utilisation_ratio": 1.0, "memory_copy_ratio": 0.8, "power_watts": 400.0, "power_limit_watts": 700.0},
         "memory_bound", "coarse_memory_copy"),
        ({"utilisation_ratio": 0.2}, "input_stalled", "starved"),
        ({"utilisation_ratio": 0.0}, "idle", "idle_nothing_runs"),
        ({"power_watts": 70.0, "power_limit_watts": 700.0}, "idle", "idle_by_power"),
        ({"utilisation_ratio": 1.0}, "unknown", "no_rule_holds"),
        ({"utilisation_ratio": 1.0, "power_watts": 250.0, "power_limit_watts": 700.0}, "unknown", "no_rule_holds"),
        ({}, "unknown", "no_rule_holds"),
    ],
)  # fmt: skip
def test_without_profiling_coarser_rules_decide_or_nobody(
    known: Mapping[str, Reading], verdict: str, rule: str
) -> None:
    assert verdict_of(known) == (verdict, rule)


def test_what_is_missing_for_a_verdict_is_named() -> None:
    (row,) = read(gpu_rows(node_of("n1", {"utilisation_ratio": 1.0})), allocation_rows(held("7", "n1")))

    assert row["evidence"] == (
        "missing: SM active, tensor active, DRAM active, power over its limit; seen: utilisation 1.00"
    )


@pytest.mark.parametrize(("steps", "rule"), [(3, "too_few_samples"), (4, "tensor_pipes"), (5, "tensor_pipes")])
def test_a_moment_is_not_judged(steps: int, rule: str) -> None:
    (row,) = read(gpu_rows(samples("n1", "GPU-1", TUNED, steps=range(steps))), allocation_rows(held("7", "n1")))

    assert row["rule"] == rule


def test_a_job_has_the_samples_of_its_own_time_only() -> None:
    first = held("1", "n1", ended_at=HOUR + 20 * STEP)
    second = held("2", "n1", started_at=HOUR + 30 * STEP)
    readings = {
        **TUNED,
        "tensor_active_ratio": lambda step: 0.45 if step < 20 else 0.0 if step < 30 else 0.05,
        "dram_active_ratio": lambda step: 0.3 if step < 20 else 0.0 if step < 30 else 0.7,
        "utilisation_ratio": lambda step: 0.0 if 20 <= step < 30 else 0.99,
    }

    rows = read(gpu_rows(node_of("n1", readings, count=2)), allocation_rows(first, second))

    assert [(row["job"], row["verdict"], row["sample_count"], row["held_seconds"]) for row in rows] == [
        ("", "idle", 20, 600.0),
        ("1", "tensor_bound", 40, 1200.0),
        ("2", "memory_bound", 60, 1800.0),
    ]


def test_rows_carry_who_pays_and_the_means_of_all_gpus() -> None:
    (row,) = read(gpu_rows(node_of("n1", TUNED)), allocation_rows(held("7", "n1")))

    assert (row["user"], row["account"], row["gpu_count"], row["sample_count"]) == ("ada", "physics", 8, 480)
    assert row["tensor_active_ratio"] == pytest.approx(0.45)
    assert row["memory_used_ratio"] == pytest.approx(70 / 79)
    assert row["spread_ratio"] == 0.0


def test_a_job_of_one_gpu_is_found_by_the_memory_that_it_holds() -> None:
    gpu = gpu_rows(samples("n1", "GPU-a", RESTING), samples("n1", "GPU-b", TUNED), samples("n1", "GPU-c", RESTING))

    rows = read(gpu, allocation_rows(held("7", "n1", gpu_count=1.0)))

    assert [(row["job"], row["verdict"], row["gpu_count"]) for row in rows] == [
        ("", "idle", 2),
        ("7", "tensor_bound", 1),
    ]
    assert "read from memory in use" in str(rows[1]["evidence"])


def test_jobs_that_cannot_be_told_apart_are_marked_as_shared() -> None:
    gpu = gpu_rows(node_of("n1", TUNED, count=4))

    rows = read(gpu, allocation_rows(held("1", "n1", gpu_count=2.0), held("2", "n1", gpu_count=2.0)))

    assert [(row["job"], row["gpu_count"]) for row in rows] == [("1", 4), ("2", 4)]
    assert all("shared" in str(row["evidence"]) for row in rows)


def test_shared_gpus_that_work_differently_speak_for_no_job() -> None:
    gpu = gpu_rows(samples("n1", "GPU-a", TUNED), samples("n1", "GPU-b", {**QUIET, "dram_active_ratio": 0.8}))

    rows = read(gpu, allocation_rows(held("1", "n1", gpu_count=1.0), held("2", "n1", gpu_count=1.0)))

    assert [(row["verdict"], row["rule"]) for row in rows] == [("unknown", "shared_gpus_differ")] * 2
    assert str(rows[0]["evidence"]).startswith("the GPUs differ: 1 memory_bound, 1 tensor_bound; shared")


def test_the_exporters_word_tells_jobs_of_one_node_apart() -> None:
    gpu = gpu_rows(
        samples("n1", "GPU-a", {**TUNED, "job": "1"}),
        samples("n1", "GPU-b", {**SPINNING, "job": "2"}),
        samples("n1", "GPU-c", RESTING),
    )

    rows = read(gpu, allocation_rows(held("1", "n1", gpu_count=1.0), held("2", "n1", gpu_count=1.0)))

    assert [(row["job"], row["verdict"]) for row in rows] == [
        ("", "idle"),
        ("1", "tensor_bound"),
        ("2", "small_kernels"),
    ]
    assert not any("shared" in str(row["evidence"]) for row in rows)


def test_a_pod_holds_its_gpu_as_a_job_does() -> None:
    gpu = gpu_rows(samples("n1", "GPU-a", {**TUNED, "namespace": "search", "pod": "rank-0"}))

    assert [row["job"] for row in read(gpu)] == ["search/rank-0"]


def test_a_gpu_at_work_that_nobody_holds_is_named() -> None:
    (row,) = read(gpu_rows(node_of("n1", TUNED)))

    assert (row["job"], row["verdict"]) == ("", "tensor_bound")
    assert "no job is known to hold them" in str(row["evidence"])


def test_slices_count_as_their_share_and_their_gpu_does_not() -> None:
    big = samples("n1", "GPU-a/mig1", {**TUNED, "utilisation_ratio": None, "graphics_active_ratio": 0.9,
                                       "mig_profile": "3g.40gb", "mig_instance": "1"})  # fmt: skip
    small = samples("n1", "GPU-a/mig7", {**RESTING, "mig_profile": "1g.10gb", "mig_instance": "7"})
    whole = samples("n1", "GPU-a", {"power_watts": 500.0})

    (row,) = read(gpu_rows(big, small, whole), allocation_rows(held("7", "n1")))

    assert row["tensor_active_ratio"] == pytest.approx(0.45 * 3 / 4)
    assert row["sample_count"] == 120


@pytest.mark.parametrize(
    ("profile", "model", "share"),
    [
        ("1g.10gb", "NVIDIA H100", 1 / 7),
        ("3g.40gb", "NVIDIA H100", 3 / 7),
        ("1c.3g.40gb", "NVIDIA H100", 1 / 7),
        ("7g.80gb", "NVIDIA H100", 1.0),
        ("2g.12gb", "NVIDIA A30", 1 / 2),
        ("", "NVIDIA H100", 1 / 7),
    ],
)
def test_a_profile_says_which_share_of_the_gpu_a_slice_is(profile: str, model: str, share: float) -> None:
    assert slice_share(profile, model) == pytest.approx(share)


def test_a_slow_clock_makes_a_straggler_of_one_gpu() -> None:
    slow = {**TUNED, "sm_clock_hertz": 1.2e9, "temperature_celsius": 88.0,
            "thermal_throttle_seconds": lambda step: 12.0 * step}  # fmt: skip
    gpu = gpu_rows(node_of("n1", TUNED), node_of("n2", TUNED, count=7), samples("n2", "GPU-slow", slow))

    first, second = read(gpu, allocation_rows(held("7", "n1", "n2")))

    assert (first["verdict"], first["straggler"]) == ("tensor_bound", None)
    assert (second["verdict"], second["rule"], second["straggler"]) == (
        "straggler",
        "straggler_slow_clock",
        "GPU-slow",
    )
    assert second["evidence"] == (
        "GPU-slow: its clock is held down while its peers' are not: SM clock 1200 MHz, 31% below the median of its 15 "
        "peers (robust z -31.0), at 88 degrees, held down by heat for 20% of the time"
    )


@pytest.mark.parametrize(
    ("share", "is_straggler"), [(0.895, True), (0.905, False), (1.0, False), (1.2, False)]
)  # fmt: skip
def test_clocks_differ_by_ten_percent_before_anyone_is_called_slow(share: float, is_straggler: bool) -> None:
    gpu = gpu_rows(node_of("n1", TUNED, count=7), samples("n1", "GPU-odd", {**TUNED, "sm_clock_hertz": share * 1.74e9}))

    (row,) = read(gpu, allocation_rows(held("7", "n1")))

    assert (row["verdict"] == "straggler") is is_straggler


def test_a_rank_that_never_joins_the_collective_is_the_straggler() -> None:
    stuck = {**SPINNING, "utilisation_ratio": 0.0, "sm_active_ratio": 0.0, "power_watts": 110.0}
    peers = {**SPINNING, "sm_active_ratio": 0.99}
    gpu = gpu_rows(node_of("n1", peers, count=7), samples("n1", "GPU-stuck", stuck))

    (row,) = read(gpu, allocation_rows(held("7", "n1")))

    assert (row["rule"], row["straggler"]) == ("straggler_stuck", "GPU-stuck")


def test_gpus_without_a_common_pace_have_no_straggler() -> None:
    unused = {**RESTING, "memory_used_bytes": 40 * GIB, "memory_free_bytes": 39 * GIB}
    gpu = gpu_rows(node_of("n1", TUNED, count=7), samples("n1", "GPU-unused", unused))

    (row,) = read(gpu, allocation_rows(held("7", "n1")))

    assert (row["verdict"], row["straggler"]) == ("tensor_bound", None)
    assert "1 of 8 GPUs do nothing" in str(row["evidence"])


def test_a_job_that_uses_half_of_its_gpus_is_idle_and_one_less_is_not() -> None:
    verdicts = []
    for idle in (3, 4, 5):
        parts = [samples("n1", f"GPU-{index}", RESTING if index < idle else TUNED) for index in range(8)]
        (row,) = read(gpu_rows(*parts), allocation_rows(held("7", "n1")))
        verdicts.append(row["verdict"])

    assert verdicts == ["tensor_bound", "idle", "idle"]


def test_a_full_network_shows_as_communication() -> None:
    fabric = TABLES["fabric_telemetry"].from_rows(
        row
        for port in range(8)
        for row in samples(
            "n1",
            f"mlx5_{port}/1",
            {
                "receive_bytes": lambda step: step * 60 * 4.2e10,
                "transmit_bytes": lambda step: step * 60 * 4.2e10,
                "rate_bits_per_second": 4e11,
            },
        )
    )

    (row,) = read(gpu_rows(node_of("n1", QUIET)), allocation_rows(held("7", "n1")), fabric=fabric)

    assert (row["verdict"], row["rule"]) == ("communication_bound", "fabric_full")
    assert row["fabric_bytes_per_second"] == pytest.approx(8 * 2 * 4.2e10)


def test_gpu_hours_are_counted_by_verdict() -> None:
    gpu = gpu_rows(node_of("n1", TUNED), node_of("n2", RESTING))
    found = read_efficiency(
        gpu,
        fabric=no_rows("fabric_telemetry"),
        allocations=allocation_rows(held("7", "n1")),
        hour=HOUR,
    )

    assert count_verdicts([found, found]) == {"idle": 16.0, "tensor_bound": 16.0}
    assert count_verdicts([]) == {}


def test_an_empty_hour_has_no_rows() -> None:
    assert read(no_rows("gpu_telemetry")) == []


def test_the_order_of_rows_changes_nothing() -> None:
    gpu = gpu_rows(node_of("n1", TUNED), node_of("n2", SPINNING))
    mixed = gpu.take(np.random.default_rng(3).permutation(gpu.num_rows))
    allocations = allocation_rows(held("7", "n1", "n2"))

    assert read(mixed, allocations) == read(gpu, allocations)


_ratios = st.one_of(st.none(), st.floats(0, 1))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "utilisation_ratio": _ratios,
                "sm_active_ratio": _ratios,
                "tensor_active_ratio": _ratios,
                "dram_active_ratio": _ratios,
                "power_watts": st.one_of(st.none(), st.floats(0, 10_000)),
                "power_limit_watts": st.sampled_from([None, 0.0, 700.0]),
                "memory_used_bytes": st.one_of(st.none(), st.floats(0, 1e12)),
                "nvlink_bandwidth_bytes": st.one_of(st.none(), st.floats(0, 1e15)),
                "job": st.sampled_from([None, "", "1", "1,2"]),
            }
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 9),
)
def test_whatever_is_measured_gets_one_verdict_with_a_reason(readings: list[dict[str, Reading]], count: int) -> None:
    gpu = gpu_rows(
        *(samples("n1", f"GPU-{place}", reading, steps=range(1 + place)) for place, reading in enumerate(readings))
    )

    rows = read(gpu, allocation_rows(held("7", "n1", gpu_count=float(count))))

    assert sum(float(str(row["sample_count"])) for row in rows) >= gpu.num_rows
    assert all(row["verdict"] in VERDICTS and row["rule"] and row["evidence"] for row in rows)


def trace(name: str) -> tuple[list[int], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return ranks and the share of each step in which each computes, of a labelled training trace."""
    path = DATA / "bytedance_straggler" / f"trace-{name}.parquet"
    if not path.is_file():
        pytest.skip(f"no trace in {path}")
    rows = pq.read_table(path, columns=["rank", "step", "optype", "start_ts", "duration"])  # noqa: F841
    found = duckdb.sql(
        "SELECT rank, median(busy / span) FROM (SELECT rank, step,"
        " sum(duration) FILTER (WHERE optype LIKE '%compute%') AS busy,"
        " max(start_ts + duration) - min(start_ts) AS span FROM rows GROUP BY rank, step) GROUP BY rank ORDER BY rank"
    ).fetchall()
    return [rank for rank, _ in found], np.array([share for _, share in found])


@pytest.mark.parametrize(("name", "expected"), [("AR", [0]), ("ST", [])])
def test_labelled_traces_name_the_slowed_worker_and_not_the_heavier_stage(name: str, expected: list[int]) -> None:
    ranks, share = trace(name)
    unknown = np.full(len(ranks), math.nan)
    groups = np.zeros(len(ranks), np.int64)
    features = peer_features(
        clock_hertz=unknown, activity=share, tensor=unknown, traffic=np.full(len(ranks), 1e10), groups=groups
    )

    found = find_stragglers([rule for rule in read_rules() if rule.is_about_peers], features, groups=groups)

    assert [ranks[straggler.place] for straggler in found] == expected


def test_real_duty_cycles_alone_never_say_that_a_gpu_computes() -> None:
    path = DATA / "alibaba_genai_2026" / "pod_gpu_duty_cycle_anon.parquet"
    if not path.is_file():
        pytest.skip(f"no duty cycles in {path}")
    rows = pq.read_table(path).to_pandas()
    start = rows["timestamp_anon"].min() + 6 * 3600
    within = rows[(rows["timestamp_anon"] >= start) & (rows["timestamp_anon"] < start + 3600)]
    gpu = TABLES["gpu_telemetry"].from_rows(
        {
            "node": "n1",
            "device": f"GPU-{pod}",
            "pod": pod,
            "time": HOUR + timedelta(seconds=float(at - start)),
            "utilisation_ratio": min(1.0, float(value) / 100),
        }
        for pod, at, value in zip(within["container_ip"], within["timestamp_anon"], within["value"], strict=True)
    )

    found = read(gpu)

    assert len(found) > 20
    assert {row["verdict"] for row in found} <= {"idle", "input_stalled", "unknown"}
    assert {"idle", "input_stalled"} <= {row["verdict"] for row in found}
