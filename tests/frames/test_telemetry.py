"""GPU samples of real exporters -> readings, statuses and conditions; what cannot be is rejected with its reason."""

import math
import random
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName, PciAddress, Place, Topology
from ops_pipelines.core.observation import Signal
from ops_pipelines.core.sources import Sample
from ops_pipelines.lake.telemetry import GpuTelemetry, observe_gpus, watched_metrics

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
STALE_AFTER = timedelta(seconds=120)
NODE = NodeName("gpu003")
GPUS = tuple(PciAddress(f"0000:{bus}:00") for bus in ("1b", "2b"))


def topology_of(*nodes: str) -> Topology:
    places = {NodeName(node): Place(rack="r1", nvlink_domain=node, leaf_switch="leaf1") for node in nodes}
    return Topology(places=places, gpus_per_node=2)


def labels_of(gpu: str = GPUS[0], *, node: str = NODE, **more: str) -> dict[str, str]:
    bus = gpu.split(":", 1)[1].upper()
    pci_bus_id = f"00000000:{bus}.0"
    return {"Hostname": node, "pci_bus_id": pci_bus_id, "UUID": f"GPU-{gpu}", "instance": "10.0.0.3:9400"} | more


def sample(
    metric: str = "DCGM_FI_DEV_GPU_TEMP",
    value: float = 41.0,
    *,
    labels: Mapping[str, str] | None = None,
    age_seconds: float = 0,
) -> Sample:
    return Sample(
        metric=metric,
        labels=labels_of() if labels is None else labels,
        value=value,
        sampled_at=NOW - timedelta(seconds=age_seconds),
    )


def observe(
    *samples: Sample, topology: Topology | None = None, expected: Mapping[str, frozenset[PciAddress]] | None = None
) -> GpuTelemetry:
    return observe_gpus(
        samples,
        at=NOW,
        topology=topology or topology_of(NODE),
        stale_after=STALE_AFTER,
        expected_gpus={NodeName(node): gpus for node, gpus in (expected or {}).items()},
    )


def both_gpus(**more: str) -> list[Sample]:
    return [sample(labels=labels_of(gpu, **more)) for gpu in GPUS]


def test_every_watched_metric_becomes_a_reading_in_base_units() -> None:
    telemetry = observe(
        sample("DCGM_FI_DEV_GPU_TEMP", 41),
        sample("DCGM_FI_DEV_POWER_USAGE", 312.5),
        sample("DCGM_FI_DEV_GPU_UTIL", 97),
        sample("DCGM_FI_DEV_FB_USED", 20480),
        sample("DCGM_FI_DEV_XID_ERRORS", 31),
        sample("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 0),
        sample("DCGM_FI_DEV_ROW_REMAP_PENDING", 1),
        sample("DCGM_FI_DEV_GPU_RECOVERY_ACTION", 0),
    )

    (reading,) = telemetry.readings
    assert (reading.node, reading.gpu, reading.gpu_uuid) == (NODE, GPUS[0], f"GPU-{GPUS[0]}")
    assert reading.temperature_celsius == 41.0
    assert reading.power_watts == 312.5
    assert reading.utilisation_ratio == pytest.approx(0.97)
    assert reading.memory_used_bytes == 20 * 1024**3
    assert reading.xid == 31
    assert reading.uncorrectable_ecc_count == 0
    assert reading.recovery_action == 0
    assert reading.is_row_remap_pending is True
    assert telemetry.rejected == ()


def test_new_metric_names_mean_the_same_as_the_old_ones() -> None:
    telemetry = observe(
        sample("DCGM_FI_DEV_GPU_TEMP_CELSIUS", 41),
        sample("DCGM_FI_DEV_BOARD_POWER_WATTS", 312.5),
        sample("DCGM_FI_DEV_GPU_UTIL_RATIO", 0.97),
        sample("DCGM_FI_DEV_XID_ERROR", 0),
    )

    (reading,) = telemetry.readings
    assert (reading.temperature_celsius, reading.power_watts, reading.utilisation_ratio) == (41.0, 312.5, 0.97)
    assert reading.xid is None


def test_recorded_scrape_of_a_healthy_t4_is_believed_without_a_rejection() -> None:
    # Public conformance results of Ericsson CCD (cncf/k8s-ai-conformance, Apache-2.0): dcgm-exporter, driver 590.48.
    recorded = (Path(__file__).parents[1] / "data/dcgm-exporter-one-t4.prom").read_text(encoding="utf-8")
    samples = [
        sample(match["metric"], float(match["value"]), labels=dict(re.findall(r'(\w+)="([^"]*)"', match["labels"])))
        for match in re.finditer(r"(?P<metric>\w+)\{(?P<labels>.*)\} (?P<value>\S+)", recorded)
    ]

    telemetry = observe(*samples, topology=topology_of("cp-bm14r7"))

    (reading,) = telemetry.readings
    assert len(samples) == 20
    assert (reading.node, reading.gpu) == ("cp-bm14r7", "0000:37:00")
    assert reading.gpu_uuid == "GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a"
    assert (reading.temperature_celsius, reading.power_watts) == (74.0, 68.244)
    assert reading.recovery_action is None
    assert telemetry.rejected == ()
    assert [each.signal for each in telemetry.conditions] == [Signal.GPU_MISSING]  # the test declares two GPUs


def test_metric_that_is_absent_is_none() -> None:
    (reading,) = observe(sample()).readings

    assert reading.power_watts is None
    assert reading.recovery_action is None
    assert reading.is_row_remap_pending is None


def test_metrics_that_are_watched_come_from_the_catalogue_with_the_bounds_of_what_is_sent() -> None:
    found = {
        name: (each.field, each.low, each.high, each.factor, each.is_whole) for name, each in watched_metrics().items()
    }

    temperature, power = ("temperature_celsius", -40, 200, 1, False), ("power_watts", 0, 10_000, 1, False)
    xid = ("xid", 0, 9_999, 1, True)
    assert found == {
        "DCGM_FI_DEV_GPU_TEMP": temperature,
        "DCGM_FI_DEV_GPU_TEMP_CELSIUS": temperature,
        "DCGM_FI_DEV_POWER_USAGE": power,
        "DCGM_FI_DEV_BOARD_POWER_WATTS": power,
        "DCGM_FI_DEV_GPU_UTIL": ("utilisation_ratio", 0, 100, 0.01, False),
        "DCGM_FI_DEV_GPU_UTIL_RATIO": ("utilisation_ratio", 0, 1, 1, False),
        "DCGM_FI_DEV_FB_USED": ("memory_used_bytes", 0, 4 * 1024 * 1024, 1024 * 1024, False),
        "DCGM_FI_DEV_XID_ERRORS": xid,
        "DCGM_FI_DEV_XID_ERROR": xid,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("uncorrectable_ecc_count", 0, 1e9, 1, True),
        "DCGM_FI_DEV_ROW_REMAP_PENDING": ("is_row_remap_pending", 0, 1, 1, True),
        "DCGM_FI_DEV_GPU_RECOVERY_ACTION": ("recovery_action", 0, 255, 1, True),
    }


def test_metric_that_is_not_watched_is_passed_over() -> None:
    telemetry = observe(sample("DCGM_FI_DEV_SM_CLOCK", 1410))

    assert (telemetry.readings, telemetry.statuses, telemetry.rejected) == ((), (), ())


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param({"Hostname": "gpu003"}, id="Hostname"),
        pytest.param({"hostname": "gpu003"}, id="hostname"),
        pytest.param({"node": "gpu003", "Hostname": "dcgm-exporter-x7k2p"}, id="Hostname is a pod's name"),
        pytest.param({"instance": "gpu003:9400"}, id="instance with its port"),
        pytest.param({"instance": "gpu003"}, id="instance without a port"),
        pytest.param({"instance": "gpu003.cluster.example:9400"}, id="full name"),
        pytest.param({"Hostname": "gpu003", "instance": "[fd00::3]:9400"}, id="instance is an IPv6 address"),
        pytest.param({"Hostname": "GPU003"}, id="in capitals"),
        pytest.param({"kubernetes_node": "gpu003", "Hostname": "dcgm-exporter-x7k2p"}, id="kubernetes_node"),
        pytest.param({"exported_instance": "gpu003:9400", "instance": "gateway:9091"}, id="exported_instance"),
        pytest.param({"nodename": "gpu003"}, id="nodename"),
        pytest.param({"host": "gpu003"}, id="host"),
    ],
)
def test_node_is_found_under_the_label_that_names_a_declared_node(labels: dict[str, str]) -> None:
    telemetry = observe(sample(labels={"pci_bus_id": "00000000:1B:00.0", **labels}))

    assert [(each.node, each.gpu) for each in telemetry.readings] == [(NODE, GPUS[0])]


def test_series_without_an_address_is_placed_by_the_uuid_that_another_series_explains() -> None:
    bare = {"Hostname": NODE, "UUID": f"GPU-{GPUS[0]}"}

    telemetry = observe(sample(), sample("DCGM_FI_DEV_POWER_USAGE", 300, labels=bare))

    (reading,) = telemetry.readings
    assert reading.power_watts == 300


@pytest.mark.parametrize(
    ("given_sample", "reason"),
    [
        pytest.param(sample(labels={"pci_bus_id": "00000000:1B:00.0"}), "which node", id="no node"),
        pytest.param(sample(labels={"Hostname": NODE}), "which GPU", id="no GPU"),
        pytest.param(sample(labels={"Hostname": NODE, "gpu": "0"}), "which GPU", id="an index that nothing explains"),
        pytest.param(sample(labels=labels_of(pci_bus_id="N/A")), "not a PCI address", id="no address"),
        pytest.param(sample(labels=labels_of(node="gpu999")), "no node of the cluster", id="unknown node"),
        pytest.param(sample(labels=labels_of(node="$(reboot)")), "no node of the cluster", id="hostile node"),
        pytest.param(sample(labels=labels_of(instance="gpu004:9400")), "two nodes", id="labels contradict each other"),
        pytest.param(sample(value=math.nan), "no measurement", id="NaN"),
        pytest.param(sample(value=math.inf), "no measurement", id="infinite"),
        pytest.param(sample(value=9223372036854775794.0), "blank", id="64-bit blank: not supported"),
        pytest.param(sample(value=9223372036854775792.0), "blank", id="64-bit blank"),
        pytest.param(sample(value=0x7FFFFFF0), "blank", id="32-bit blank"),
        pytest.param(sample(value=0x7FFFFFF2), "blank", id="32-bit blank: not supported"),
        pytest.param(sample(value=140737488355328.0), "blank", id="floating-point blank"),
        pytest.param(sample("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 9223372036854775794.0), "blank", id="blank count"),
        pytest.param(sample(value=-41), "impossible", id="colder than the hall can be"),
        pytest.param(sample(value=201), "impossible", id="hotter than solder holds"),
        pytest.param(sample("DCGM_FI_DEV_GPU_UTIL", 101), "impossible", id="more than all"),
        pytest.param(sample("DCGM_FI_DEV_GPU_UTIL_RATIO", 97), "impossible", id="percent under the name of a ratio"),
        pytest.param(sample("DCGM_FI_DEV_XID_ERRORS", 31.5), "whole number", id="half an Xid"),
        pytest.param(sample("DCGM_FI_DEV_GPU_RECOVERY_ACTION", -1), "impossible", id="negative action"),
        pytest.param(sample(age_seconds=121), "121 s old", id="old"),
        pytest.param(sample(age_seconds=-61), "in the future", id="future"),
    ],
)
def test_sample_that_cannot_be_believed_is_rejected_with_its_reason(given_sample: Sample, reason: str) -> None:
    telemetry = observe(given_sample, topology=topology_of(NODE, "gpu004"))

    (refused,) = telemetry.rejected
    assert reason in refused.reason
    assert refused.source == "telemetry"
    assert given_sample.metric in refused.position
    assert all(reading.temperature_celsius is None for reading in telemetry.readings)
    assert {condition.signal for condition in telemetry.conditions} <= {Signal.TELEMETRY_STALE, Signal.GPU_MISSING}


@pytest.mark.parametrize(
    ("age_seconds", "is_stale"),
    [
        pytest.param(119, False, id="just before"),
        pytest.param(120, False, id="exactly at the limit"),
        pytest.param(121, True, id="just after"),
    ],
)
def test_node_is_stale_only_after_the_limit(age_seconds: int, is_stale: bool) -> None:
    samples = [sample(labels=labels_of(gpu), age_seconds=age_seconds) for gpu in GPUS]

    telemetry = observe(*samples)

    assert [condition.signal for condition in telemetry.conditions] == [Signal.TELEMETRY_STALE] * is_stale
    (status,) = telemetry.statuses
    assert status.newest_sample_at == NOW - timedelta(seconds=age_seconds)
    assert status.gpus_seen == (frozenset() if is_stale else frozenset(GPUS))


def test_declared_node_without_any_sample_is_stale_and_not_missing_gpus() -> None:
    telemetry = observe(*both_gpus(), topology=topology_of(NODE, "gpu004"))

    (condition,) = telemetry.conditions
    assert (condition.signal, condition.node, condition.code) == (Signal.TELEMETRY_STALE, "gpu004", None)
    assert condition.position == "telemetry_stale/gpu004"
    assert condition.observed_at == NOW


def test_no_samples_at_all_makes_every_declared_node_stale() -> None:
    telemetry = observe(topology=topology_of("gpu001", "gpu002"))

    assert [condition.position for condition in telemetry.conditions] == [
        "telemetry_stale/gpu001",
        "telemetry_stale/gpu002",
    ]


def test_missing_gpu_is_named_where_the_inventory_knows_it() -> None:
    telemetry = observe(sample(), expected={"gpu003": frozenset(GPUS)})

    (condition,) = telemetry.conditions
    assert (condition.signal, condition.code, condition.gpu) == (Signal.GPU_MISSING, 1, GPUS[1])
    assert condition.position == "gpu_missing/gpu003/0000:2b:00"


@pytest.mark.parametrize(
    "expected",
    [
        pytest.param({}, id="no inventory"),
        pytest.param({"gpu003": frozenset({GPUS[0]})}, id="inventory that does not explain it"),
        pytest.param(
            {"gpu003": frozenset({GPUS[0], PciAddress("0000:3b:00"), PciAddress("0000:4b:00")})},
            id="inventory of before a swap",
        ),
    ],
)
def test_missing_gpu_is_only_counted_where_the_inventory_cannot_name_it(
    expected: dict[str, frozenset[PciAddress]],
) -> None:
    telemetry = observe(sample(), expected=expected)

    (condition,) = telemetry.conditions
    assert (condition.signal, condition.code, condition.gpu) == (Signal.GPU_MISSING, 1, None)
    assert condition.position == "gpu_missing/gpu003"


def test_gpu_whose_values_are_all_blank_is_seen_and_not_missing() -> None:
    blank = sample(value=9223372036854775794.0, labels=labels_of(GPUS[1]))

    telemetry = observe(sample(), blank, expected={"gpu003": frozenset(GPUS)})

    assert telemetry.conditions == ()
    assert telemetry.readings[1].temperature_celsius is None
    assert len(telemetry.rejected) == 1


def test_more_gpus_than_declared_is_no_missing_gpu() -> None:
    telemetry = observe(*both_gpus(), sample(labels=labels_of("0000:3b:00")))

    assert telemetry.conditions == ()


def test_conditions_of_a_gpu_keep_their_position_over_time() -> None:
    samples = [
        *both_gpus(),
        sample("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 3),
        sample("DCGM_FI_DEV_GPU_RECOVERY_ACTION", 2),
    ]

    conditions = observe(*samples).conditions

    assert [(each.signal, each.code, each.gpu, each.position) for each in conditions] == [
        (Signal.ECC_UNCORRECTABLE, 3, GPUS[0], "ecc_uncorrectable/gpu003/0000:1b:00"),
        (Signal.RECOVERY_ACTION, 2, GPUS[0], "recovery_action/gpu003/0000:1b:00/2"),
    ]


def test_newest_of_several_samples_counts_and_then_the_largest() -> None:
    samples = [
        *both_gpus(),
        sample("DCGM_FI_DEV_POWER_USAGE", 900, age_seconds=30),
        sample("DCGM_FI_DEV_POWER_USAGE", 300, labels=labels_of(pod="a")),
        sample("DCGM_FI_DEV_POWER_USAGE", 310, labels=labels_of(pod="b")),
        sample("DCGM_FI_DEV_GPU_UTIL", 50),
        sample("DCGM_FI_DEV_GPU_UTIL", 40),
    ]

    reading = observe(*samples).readings[0]

    assert reading.power_watts == 310
    assert reading.utilisation_ratio == pytest.approx(0.5)


ANY_SAMPLE = st.builds(
    sample,
    st.sampled_from([*watched_metrics(), "OTHER"]),
    st.one_of(st.floats(), st.sampled_from([0.0, 1.0, 2.0, 50.0, 9223372036854775794.0])),
    labels=st.dictionaries(
        st.sampled_from(["Hostname", "instance", "pci_bus_id", "UUID", "gpu"]),
        st.sampled_from(["gpu003", "gpu003:9400", "00000000:1B:00.0", "00000000:2B:00.0", "GPU-a", "0", "", "x\ny"]),
    ),
    age_seconds=st.sampled_from([-3600, 0, 60, 3600]),
)


@given(st.lists(ANY_SAMPLE, max_size=12), st.randoms(use_true_random=False))
def test_shuffled_samples_give_the_same_telemetry_and_none_is_lost(
    samples: list[Sample], shuffler: random.Random
) -> None:
    shuffled = list(samples)
    shuffler.shuffle(shuffled)

    telemetry = observe(*samples)

    assert repr(observe(*shuffled)) == repr(telemetry)
    watched_count = sum(each.metric in watched_metrics() for each in samples)
    assert len(telemetry.rejected) <= watched_count
    assert all(reading.gpu for reading in telemetry.readings)
