"""What every telemetry adapter must do: one suite, run on the simulator and on a real Prometheus.

A subclass provides the `world` fixture and nothing else. What only one adapter does is in its own tests.
"""

from datetime import UTC, datetime, timedelta
from typing import Protocol

import pytest

from ops_pipelines.core.identity import NodeName, parse_pci_address
from ops_pipelines.core.sources import Sample, Telemetry

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
LOOK_BACK_SECONDS = 300.0
"""For as long a Prometheus may still answer with the last value of a series that ended."""


class TelemetryWorld(Protocol):
    """GPUs to measure. Each test finds at least two nodes, all being scraped for some intervals already."""

    @property
    def telemetry(self) -> Telemetry: ...

    @property
    def node_names(self) -> tuple[NodeName, ...]: ...

    @property
    def gpus_per_node(self) -> int: ...

    @property
    def first_scrape_at(self) -> datetime: ...

    def now(self) -> datetime: ...

    def silence(self, node: NodeName) -> None:
        """Make the node's metrics stop; skip the test where that cannot be done."""
        ...

    def let_pass(self, seconds: float) -> None:
        """Let time pass (real or simulated)."""
        ...


class TelemetryContract:
    """Subclass as `class TestX(TelemetryContract)` and define the fixture `world`."""

    @pytest.fixture
    def world(self) -> TelemetryWorld:
        raise NotImplementedError("a subclass of TelemetryContract provides the fixture `world`")

    def test_every_gpu_of_every_node_has_one_temperature(self, world: TelemetryWorld) -> None:
        temperatures = _of(TEMPERATURE, world.telemetry.read_samples(world.now()))

        gpus = {(sample.labels["Hostname"], sample.labels["UUID"]) for sample in temperatures}
        assert len(temperatures) == len(gpus) == len(world.node_names) * world.gpus_per_node
        assert {host for host, _ in gpus} == set(world.node_names)

    def test_every_sample_names_node_gpu_and_pci_address(self, world: TelemetryWorld) -> None:
        for sample in world.telemetry.read_samples(world.now()):
            assert sample.labels["Hostname"] in world.node_names
            assert sample.labels["UUID"].startswith("GPU-")
            assert parse_pci_address(sample.labels["pci_bus_id"])

    def test_one_answer_holds_each_series_once(self, world: TelemetryWorld) -> None:
        samples = world.telemetry.read_samples(world.now())

        series = {(sample.metric, *sorted(sample.labels.items())) for sample in samples}
        assert len(series) == len(samples)

    def test_all_samples_of_an_answer_have_one_time_not_after_the_asked_one(self, world: TelemetryWorld) -> None:
        at = world.now()

        times = {sample.sampled_at for sample in world.telemetry.read_samples(at)}

        assert len(times) == 1
        (sampled_at,) = times
        assert sampled_at <= at
        assert sampled_at.tzinfo is UTC

    def test_asking_for_the_same_past_moment_again_gives_the_same_answer(self, world: TelemetryWorld) -> None:
        at = world.now()
        first = world.telemetry.read_samples(at)

        world.let_pass(5.0)
        world.telemetry.read_samples(world.now())

        assert _comparable(world.telemetry.read_samples(at)) == _comparable(first)

    def test_there_is_nothing_before_the_first_scrape(self, world: TelemetryWorld) -> None:
        assert world.telemetry.read_samples(world.first_scrape_at - timedelta(days=1)) == ()

    def test_silent_node_leaves_the_answer_and_the_others_stay(self, world: TelemetryWorld) -> None:
        silent, *others = world.node_names
        world.silence(silent)

        world.let_pass(LOOK_BACK_SECONDS + 60.0)

        samples = world.telemetry.read_samples(world.now())
        assert {sample.labels["Hostname"] for sample in samples} == set(others)


def _of(metric: str, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    return tuple(sample for sample in samples if sample.metric == metric)


def _comparable(samples: tuple[Sample, ...]) -> set[tuple[str, tuple[tuple[str, str], ...], float, datetime]]:
    return {
        (sample.metric, tuple(sorted(sample.labels.items())), sample.value, sample.sampled_at) for sample in samples
    }
