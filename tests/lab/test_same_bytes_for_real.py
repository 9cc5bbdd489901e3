"""An hour of a real store has the same bytes, watched live or filled in later."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.cluster import HOUR, Observatory, hour_of
from ops_pipelines.core.sources import WholeHour
from ops_pipelines.lake.schema import TELEMETRY_TABLES
from ops_pipelines.observe.hours import fill_metrics
from ops_pipelines.observe.live_cycle import next_grid_time, run_cycle
from ops_pipelines.resources.config.cluster_config import TelemetryConfig, TelemetryKind
from ops_pipelines.resources.lake.io_manager import store_hour
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.prometheus import PrometheusMetrics, RangeLimits, all_queries
from tests.flow.fake_store import observatory_on, topology_of
from tests.lab.metrics_servers import Row, start_prometheus, start_victoria_metrics
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import BEGINNING, FakeClock

pytestmark = pytest.mark.live
STEP = timedelta(seconds=15)
WATCHED_CYCLES = 16
"""Four minutes of the hour, longer than the look-back: what is watched longer is the same again."""
Start = Callable[[Path, Sequence[Row]], AbstractContextManager[str]]


def rows_until(end: datetime, *, scrapes: int) -> list[Row]:
    """Return what eight GPUs and two nodes showed every 15 s, off the grid by some seconds, until `end`."""
    found: list[Row] = []
    for gpu in range(8):
        labels = f'UUID="GPU-{gpu}",Hostname="gpu00{gpu // 4 + 1}",gpu="{gpu % 4}"'
        for name, base in (("DCGM_FI_DEV_GPU_TEMP", 40.0), ("DCGM_FI_DEV_POWER_USAGE", 300.0)):
            for number in range(scrapes):
                at = end.timestamp() - 15.0 * (scrapes - number) + 3.25
                found.append((f"{name}{{{labels}}}", base + gpu + number / 16, at))
    for node in ("gpu001", "gpu002"):
        for number in range(0, scrapes, 3):  # one that is scraped too seldom: gaps
            at = end.timestamp() - 15.0 * (scrapes - number) + 1.5
            found.append((f'node_load1{{instance="{node}:9100",job="node"}}', number / 4, at))
    return found


@pytest.fixture(params=[start_prometheus, start_victoria_metrics], ids=["prometheus", "victoria-metrics"])
def start(request: pytest.FixtureRequest) -> Start:
    given: Start = request.param
    return given


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    return SmallAutopilot(tmp_path / "autopilot", node_count=2)


def observatory_at(url: str, lake: Path, *, clock: FakeClock, autopilot: SmallAutopilot) -> Observatory:
    metrics = PrometheusMetrics(TelemetryConfig(kind=TelemetryKind.PROMETHEUS, url=url), limits=RangeLimits())
    base = observatory_on(
        lake,
        metrics,
        clock=clock,
        scheduler=autopilot.cluster.scheduler,
        step_seconds=int(STEP.total_seconds()),
        topology=topology_of("gpu001", "gpu002"),
    )
    return replace(base, queries=all_queries({}, look_back_seconds=30))


def close(observatory: Observatory) -> dict[str, bytes]:
    """Fill the hour as its partition does; return its files."""
    lake = observatory.lake
    assert isinstance(lake, ParquetLake)
    filled = fill_metrics(observatory, tables=TELEMETRY_TABLES, start=BEGINNING, end=BEGINNING + HOUR)
    for name in TELEMETRY_TABLES:
        told = WholeHour(rows=filled.tables.get(name), retold=filled.retold)
        store_hour(lake, name, BEGINNING, told=told, now=observatory.clock.now())
    return {name: lake.path_of_hour(name, BEGINNING).read_bytes() for name in TELEMETRY_TABLES}


def test_an_hour_of_a_real_store_has_the_same_bytes_watched_or_filled_later(
    tmp_path: Path, start: Start, autopilot: SmallAutopilot
) -> None:
    (tmp_path / "store").mkdir()
    with start(tmp_path / "store", rows_until(BEGINNING + HOUR, scrapes=242)) as url:
        clock = FakeClock()
        watched, half, later = (
            observatory_at(url, tmp_path / name, clock=clock, autopilot=autopilot)
            for name in ("watched", "half", "later")
        )
        for number in range(WATCHED_CYCLES):
            at = BEGINNING + number * STEP
            assert not run_cycle(watched, autopilot.cluster, at=at).problems
            if number % 2:
                run_cycle(half, autopilot.cluster, at=at)
        clock.wait(2 * 3600)

        reference = close(later)

        assert later.lake.read_hour("gpu_telemetry", BEGINNING).num_rows == 8 * 240
        assert close(watched) == reference
        assert close(half) == reference
        assert close(watched) == reference


@pytest.fixture
def fresh(tmp_path: Path, start: Start) -> Iterator[str]:
    """Yield a store whose newest samples are a few seconds old."""
    (tmp_path / "store").mkdir()
    with start(tmp_path / "store", rows_until(datetime.now(UTC), scrapes=40)) as url:
        yield url


def test_a_real_store_shows_the_live_cycle_what_is_seconds_old(
    tmp_path: Path, fresh: str, autopilot: SmallAutopilot
) -> None:
    clock = FakeClock()
    clock.wait((datetime.now(UTC) - clock.now()).total_seconds())
    observatory = observatory_at(fresh, tmp_path / "lake", clock=clock, autopilot=autopilot)
    at = next_grid_time(observatory, after=None)

    report = run_cycle(observatory, autopilot.cluster, at=at)

    assert report.row_count >= 8, report
    assert observatory.lake.read_hour("gpu_telemetry", hour_of(at)).num_rows == 8
