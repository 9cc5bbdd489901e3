"""What every source of metrics must do: one suite, run on the simulator and on real Prometheus-compatible servers.

A subclass provides the `world` fixture and nothing else. Bodies are read here by plain means, not by `lake`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

import pytest

from ops_pipelines.core.sources import BodyKind, MetricSource, Page, Query

STEP_SECONDS = 15
STEP = timedelta(seconds=STEP_SECONDS)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LINE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)(?: (?P<milliseconds>\d+))?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Point(NamedTuple):
    """One value of one series at one time."""

    series: tuple[tuple[str, str], ...]
    at: datetime
    value: str


class MetricsWorld(Protocol):
    """Something that is measured. Each test finds at least one series, sampled for some steps already."""

    @property
    def metrics(self) -> MetricSource: ...

    @property
    def queries(self) -> Sequence[Query]:
        """What to ask; a source that passes queries over may have none."""
        ...

    @property
    def history_begins_at(self) -> datetime:
        """Before it there is no sample."""
        ...

    def now(self) -> datetime: ...

    def let_pass(self, seconds: float) -> None:
        """Let time pass (real or simulated)."""
        ...


class MetricsContract:
    """Subclass as `class TestX(MetricsContract)` and define the fixture `world`."""

    @pytest.fixture
    def world(self) -> MetricsWorld:
        raise NotImplementedError("a subclass of MetricsContract provides the fixture `world`")

    def test_one_grid_time_gives_that_time_only(self, world: MetricsWorld) -> None:
        at = newest(world)

        points = read(world, at, at)

        assert points
        assert {point.at for point in points} == {at}

    def test_a_range_gives_samples_at_each_grid_time_and_at_no_other(self, world: MetricsWorld) -> None:
        start, end = newest(world) - 2 * STEP, newest(world)
        require_history(world)

        points = read(world, start, end)

        assert {point.at for point in points} == {start, start + STEP, end}

    def test_a_page_states_the_times_that_it_covers(self, world: MetricsWorld) -> None:
        require_history(world)

        for page in ask(world, newest(world) - 2 * STEP, newest(world)):
            times = {point.at for point in points_of(page)}
            assert all(page.start <= at <= page.end for at in times)
            assert not (page.start - _EPOCH) % STEP
            assert not (page.end - _EPOCH) % STEP

    def test_each_series_has_one_value_at_a_time_over_all_pages(self, world: MetricsWorld) -> None:
        points = read(world, newest(world), newest(world))

        assert len({(point.series, point.at) for point in points}) == len(points)

    def test_a_range_is_its_grid_times_one_by_one(self, world: MetricsWorld) -> None:
        require_history(world)
        start, end = newest(world) - STEP, newest(world)

        apart = [*read(world, start, start), *read(world, end, end)]

        assert sorted(apart) == sorted(read(world, start, end))

    def test_the_past_does_not_change(self, world: MetricsWorld) -> None:
        require_history(world)
        at = newest(world)
        first = sorted(read(world, at, at))

        world.let_pass(3.0 * STEP_SECONDS)
        read(world, newest(world), newest(world))

        assert sorted(read(world, at, at)) == first

    def test_an_empty_range_is_nothing_and_not_everything(self, world: MetricsWorld) -> None:
        assert list(ask(world, newest(world), newest(world) - STEP)) == []

    def test_before_its_history_there_is_nothing(self, world: MetricsWorld) -> None:
        require_history(world)
        long_ago = on_grid(world.history_begins_at) - timedelta(days=400)

        assert read(world, long_ago, long_ago + 2 * STEP) == []

    def test_a_page_has_a_source_that_people_know(self, world: MetricsWorld) -> None:
        pages = list(ask(world, newest(world), newest(world)))

        assert world.metrics.source
        assert all(page.source.startswith(world.metrics.source) or page.node for page in pages)


def require_history(world: MetricsWorld) -> None:
    if not world.metrics.has_history:
        pytest.skip(f"{world.metrics.source} knows only now")


def on_grid(at: datetime) -> datetime:
    """Return the grid time at or before `at`."""
    return at - (at - _EPOCH) % STEP


def newest(world: MetricsWorld) -> datetime:
    """Return the newest grid time."""
    return on_grid(world.now())


def ask(world: MetricsWorld, start: datetime, end: datetime) -> Iterable[Page]:
    return world.metrics.read_range(world.queries, start=start, end=end, step_seconds=STEP_SECONDS)


def read(world: MetricsWorld, start: datetime, end: datetime) -> list[Point]:
    return [point for page in ask(world, start, end) for point in points_of(page)]


def points_of(page: Page) -> list[Point]:
    """Return what a page says, by plain means."""
    if page.kind is BodyKind.RANGE_ANSWER:
        return [
            Point(tuple(sorted(series["metric"].items())), datetime.fromtimestamp(seconds, UTC), value)
            for series in json.loads(page.body)["data"]["result"]
            for seconds, value in series["values"]
        ]
    return [
        point_of(line, page) for line in page.body.decode().splitlines() if line.strip() and not line.startswith("#")
    ]


def point_of(line: str, page: Page) -> Point:
    match = _LINE.fullmatch(line)
    assert match is not None, f"no sample: {line!r}"
    named = {"__name__": match["name"], **dict(_LABEL.findall(match["labels"] or ""))}
    milliseconds = match["milliseconds"]
    at = page.end if milliseconds is None else _EPOCH + timedelta(milliseconds=int(milliseconds))
    return Point(tuple(sorted(named.items())), at, match["value"])
