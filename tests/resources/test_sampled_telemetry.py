"""Telemetry from exporters without a store: one scrape a grid time, a short memory for a target that falls silent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from ops_pipelines.core.sources import BodyKind, Page, Query, Sample, SourceUnavailable
from ops_pipelines.resources.exporters import SampledTelemetry

AT = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
STEP = timedelta(seconds=15)
ODD = b"\x7fELF\x00\x01 no page at all"


@dataclass
class FakeExporters:
    """Targets of one name, as two paths of one host are; a page without a body is a scrape that failed."""

    bodies: list[bytes]
    asked: list[datetime] = field(default_factory=list)
    is_down: bool = False

    source = "exporters"
    has_history = False

    def read_range(
        self, queries: Sequence[Query], *, start: datetime, end: datetime, step_seconds: int
    ) -> Iterator[Page]:
        self.asked.append(start)
        for body in self.bodies:
            yield Page(kind=BodyKind.EXPOSITION, body=body, source="exporter racks:9400", start=start, end=end)
        if self.is_down:
            raise SourceUnavailable("none of 2 exporters answered")


def temperature(gpu: int, celsius: int) -> bytes:
    return f'DCGM_FI_DEV_GPU_TEMP{{gpu="{gpu}"}} {celsius}\nnode_load1 0.5\n'.encode()


def told(samples: Sequence[Sample]) -> list[tuple[str, float, datetime]]:
    return [(sample.labels["gpu"], sample.value, sample.sampled_at) for sample in samples]


@pytest.fixture
def exporters() -> FakeExporters:
    return FakeExporters([temperature(0, 40), temperature(1, 41)])


@pytest.fixture
def telemetry(exporters: FakeExporters) -> SampledTelemetry:
    return SampledTelemetry(lambda: exporters, step_seconds=15)


def test_watched_series_of_all_targets_are_read_at_the_grid_time(telemetry: SampledTelemetry) -> None:
    assert told(telemetry.read_samples(AT + timedelta(seconds=14))) == [("0", 40, AT), ("1", 41, AT)]


def test_a_grid_time_that_was_answered_is_not_scraped_again(
    telemetry: SampledTelemetry, exporters: FakeExporters
) -> None:
    first = telemetry.read_samples(AT)
    exporters.bodies[0] = temperature(0, 99)

    again = telemetry.read_samples(AT + timedelta(seconds=14))
    later = telemetry.read_samples(AT + STEP)

    assert again == first
    assert exporters.asked == [AT, AT + STEP]
    assert told(later)[0] == ("0", 99, AT + STEP)


def test_an_answer_that_failed_is_asked_for_again(telemetry: SampledTelemetry, exporters: FakeExporters) -> None:
    exporters.is_down = True
    with pytest.raises(SourceUnavailable):
        telemetry.read_samples(AT)
    exporters.is_down = False

    assert len(telemetry.read_samples(AT)) == 2


@pytest.mark.parametrize("silent", [pytest.param(b"", id="a scrape that failed"), pytest.param(ODD, id="no page")])
@pytest.mark.parametrize(
    ("age", "is_kept"),
    [(timedelta(seconds=15), True), (timedelta(seconds=60), True), (timedelta(seconds=75), False)],
)
def test_a_target_that_falls_silent_keeps_its_samples_and_their_times_for_a_while(
    telemetry: SampledTelemetry, exporters: FakeExporters, silent: bytes, age: timedelta, is_kept: bool
) -> None:
    telemetry.read_samples(AT)
    exporters.bodies = [silent, temperature(1, 50)]

    samples = telemetry.read_samples(AT + age)

    kept = [("0", 40.0, AT)] if is_kept else []
    assert told(samples) == [*kept, ("1", 50, AT + age)]


def test_how_long_is_chosen(exporters: FakeExporters) -> None:
    telemetry = SampledTelemetry(lambda: exporters, step_seconds=15, look_back=STEP)
    telemetry.read_samples(AT)
    exporters.bodies = [b"", b""]

    assert len(telemetry.read_samples(AT + STEP)) == 2
    assert telemetry.read_samples(AT + 2 * STEP) == ()


def test_a_target_that_answers_without_a_series_has_lost_it(
    telemetry: SampledTelemetry, exporters: FakeExporters
) -> None:
    telemetry.read_samples(AT)
    exporters.bodies[0] = b"node_load1 0.5\n"

    assert told(telemetry.read_samples(AT + STEP)) == [("1", 41, AT + STEP)]


def test_an_odd_target_costs_the_others_nothing(telemetry: SampledTelemetry, exporters: FakeExporters) -> None:
    exporters.bodies.insert(0, ODD)

    assert told(telemetry.read_samples(AT)) == [("0", 40, AT), ("1", 41, AT)]
