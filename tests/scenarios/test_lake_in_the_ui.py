"""Somebody fills some hours of the lake from Dagster's UI, and looks at what came of it in a browser.

Everything is real: VictoriaMetrics with the samples, code server, daemon and web server, DuckDB on the files,
Chromium on the pages. Only the cluster behind the scheduler's port is simulated.
"""

import hashlib
import html
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.definitions import defs as load_definitions
from ops_pipelines.resources.lake.query import query
from ops_pipelines_lab.drills.dagster_api import ENDED, RunState
from ops_pipelines_lab.drills.recorded_past import ASSETS
from tests.lab.browser import Browser
from tests.lab.metrics_servers import start_prometheus, start_victoria_metrics
from tests.scenarios import ui_stage as stage
from tests.scenarios.ui_stage import Day, Stage

pytestmark = pytest.mark.live

PROJECT = Path(__file__).parents[2]
LIMIT_SECONDS = 300.0
NOT_MEASURED = {"storage_telemetry", "facility_telemetry", "application_telemetry", "job_steps"}
"""Tables that the store and the simulated scheduler have nothing for."""
WITH_GAP = {"gpu_telemetry", "node_telemetry", "fabric_telemetry", "platform_telemetry"}
"""Tables in which the silent node leaves a hole."""


@dataclass(frozen=True, kw_only=True)
class Filled:
    """The stage after the back-fill."""

    stage: Stage
    runs: Sequence[RunState]

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in query(self.stage.lake, sql, limit=None).rows]


def fill(on: Stage, *, partitions: Sequence[str]) -> Sequence[RunState]:
    """Launch a back-fill of every asset as the UI does, and return its runs when they have ended."""
    backfill = on.api.launch_backfill(assets=ASSETS, partitions=partitions)
    until = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < until:
        on.stack.refuse_dead()
        runs = on.api.runs_of(backfill)
        if runs and all(run.status in ENDED for run in runs):
            return runs
        time.sleep(0.3)
    return pytest.fail(f"back-fill {backfill} did not end: {on.api.runs_of(backfill)}")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    home = tmp_path_factory.mktemp("ui")
    day = Day.before(SystemClock().now())
    with (
        start_victoria_metrics(home, list(stage.rows_of(day))) as url,
        stage.set_up(
            home / "cluster", metrics_url=url, day=day, instance_file=PROJECT / "deploy" / "dagster.yaml"
        ) as on,
    ):
        yield Filled(stage=on, runs=fill(on, partitions=day.partitions))


def hour_file(lake: Path, table: str, hour: datetime, name: str = "hour.parquet") -> Path:
    return lake / table / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}" / name


def test_a_back_fill_of_many_hours_is_one_run_that_ends_well(filled: Filled) -> None:
    assert [run.status for run in filled.runs] == ["SUCCESS"]


def test_every_hour_of_every_table_is_closed_and_has_its_page(filled: Filled) -> None:
    lacking = [
        (table, hour, name)
        for table in ASSETS
        for hour in filled.stage.day.hours
        for name in ("hour.parquet", "quality.html")
        if not hour_file(filled.stage.lake, table, hour, name).exists()
    ]

    assert lacking == []


def test_every_sample_of_the_store_stands_in_the_lake_and_nothing_else(filled: Filled) -> None:
    day = filled.stage.day
    begin, end = day.hours[0], day.hours[-1] + stage.HOUR

    rows = filled.ask(
        "SELECT node, gpu_uuid, time, temperature_celsius FROM gpu_telemetry "
        f"WHERE time >= TIMESTAMPTZ '{begin.isoformat()}' AND time < TIMESTAMPTZ '{end.isoformat()}'"
    )

    found = {(node, uuid, at): value for node, uuid, at, value in rows}
    assert len(found) == len(rows)
    assert found == expected_temperatures(day)


def expected_temperatures(day: Day) -> Mapping[tuple[str, str, datetime], float | None]:
    """Return every GPU's temperature at every grid time; None where it was refused. A value holds for one step more."""
    step = timedelta(seconds=stage.STEP_SECONDS)
    hot = {day.hours[stage.HOT_HOUR] + timedelta(minutes=minute) for minute in stage.HOT_MINUTES}
    found: dict[tuple[str, str, datetime], float | None] = {}
    for node in stage.NODES:
        for index in range(len(day.hours) * stage.STEPS):
            at = day.hours[0] + index * step
            scraped = at - step if day.is_silent(node, at) else at
            if day.is_silent(node, scraped):
                continue
            for gpu in range(stage.GPU_COUNT):
                is_hot = (node, gpu) == (stage.HOT_NODE, stage.HOT_GPU) and at in hot
                value = None if is_hot else stage.temperature_celsius(node, gpu, scraped)
                found[node, stage.uuid_of(node, gpu), at] = value
    return found


def test_units_are_those_of_the_catalogue(filled: Filled) -> None:
    at = filled.stage.day.hours[2] + timedelta(minutes=17)
    busy = stage.busy_ratio("gpu002", 5, at)

    rows = filled.ask(
        "SELECT utilisation_ratio, power_watts, memory_used_bytes, sm_clock_hertz, gpu_index, pci_address, gpu_model "
        f"FROM gpu_telemetry WHERE gpu_uuid = '{stage.uuid_of('gpu002', 5)}' AND time = TIMESTAMPTZ '{at.isoformat()}'"
    )

    power = stage.power_watts("gpu002", 5, at)
    memory, clock = round(600 + 60_000 * busy) * 2**20, round(345 + 1_635 * busy) * 10**6
    assert rows == [(busy, power, memory, clock, 5, "0000:45:00", "NVIDIA H100 80GB HBM3")]


def test_what_was_not_believed_is_kept_with_its_reason(filled: Filled) -> None:
    rows = filled.ask('SELECT "into", record, time, reason FROM rejected_rows ORDER BY time')

    day = filled.stage.day
    blank = [day.hours[stage.BLANK_HOUR] + timedelta(minutes=minute) for minute in stage.BLANK_MINUTES]
    hot = [day.hours[stage.HOT_HOUR] + timedelta(minutes=minute) for minute in stage.HOT_MINUTES]
    assert [row[2] for row in rows] == [*blank, *hot]
    assert {row[0] for row in rows} == {"gpu_telemetry"}
    assert all(stage.uuid_of(stage.BLANK_NODE, stage.BLANK_GPU) in str(row[1]) for row in rows[: len(blank)])
    assert all("DCGM_FI_DEV_GPU_TEMP" in str(row[1]) for row in rows[len(blank) :])
    assert {row[3] for row in rows[len(blank) :]} == {"out_of_range"}
    # VictoriaMetrics keeps about 15 digits, and gives DCGM's 64-bit blank back as a number beside it.
    assert {row[3] for row in rows[: len(blank)]} <= {"blank_value", "out_of_range"}


def test_the_silence_of_a_node_is_seen_with_its_beginning(filled: Filled) -> None:
    day = filled.stage.day
    silent_from = day.hours[stage.SILENT_FROM_HOUR] + timedelta(minutes=stage.SILENT_FROM_MINUTE)

    rows = filled.ask(
        "SELECT time, expected_count, seen_count, missing_since FROM monitoring_coverage "
        f"WHERE node = '{stage.SILENT_NODE}' AND device = '' AND quantity = '*' AND coverage_ratio < 1 ORDER BY time"
    )
    others = filled.ask("SELECT DISTINCT node FROM monitoring_coverage WHERE missing_since IS NOT NULL")

    # The last value before the silence holds for one step more.
    assert rows == [
        (day.hours[stage.SILENT_FROM_HOUR], 60, 21, silent_from),
        (day.hours[stage.SILENT_FROM_HOUR + 1], 60, 40, None),
    ]
    assert others == [(stage.SILENT_NODE,)]


def test_a_counter_that_began_again_is_no_fault(filled: Filled) -> None:
    hour = filled.stage.day.hours[stage.RESET_HOUR]
    uuid = stage.uuid_of(stage.RESET_NODE, stage.RESET_GPU)

    rows = filled.ask(
        "SELECT min(energy_joules), count(energy_joules) FROM gpu_telemetry "
        f"WHERE gpu_uuid = '{uuid}' AND date_trunc('hour', time) = TIMESTAMPTZ '{hour.isoformat()}'"
    )

    assert rows == [(0.0, stage.STEPS)]
    assert "As expected" in hour_file(filled.stage.lake, "gpu_telemetry", hour, "quality.html").read_text()


def test_the_use_of_gpus_is_read_with_the_jobs_that_held_them(filled: Filled) -> None:
    rows = filled.ask(
        "SELECT node, job, verdict, count(*) FROM gpu_efficiency WHERE node IN ('gpu001', 'gpu004') "
        "GROUP BY ALL ORDER BY ALL"
    )

    assert rows == [("gpu001", "1001", "tensor_bound", stage.HOUR_COUNT), ("gpu004", "", "idle", stage.HOUR_COUNT)]


def test_jobs_and_lines_fill_their_tables_too(filled: Filled) -> None:
    held = filled.ask(
        "SELECT node, count(*), sum(held_seconds) FROM job_allocations WHERE job = '1001' GROUP BY node ORDER BY node"
    )
    lines = filled.ask("SELECT count(*), count(DISTINCT job) FROM job_logs")
    kernel = filled.ask("SELECT count(DISTINCT node) FROM kernel_events")

    assert held == [(node, stage.HOUR_COUNT, stage.HOUR_COUNT * 3600.0) for node in ("gpu001", "gpu002")]
    assert lines == [(2 * stage.HOUR_COUNT, 1)]
    assert kernel == [(len(stage.NODES),)]


def test_the_checks_say_what_is_so(filled: Filled) -> None:
    states = {asset: dict(filled.stage.api.check_states(asset)) for asset in ASSETS}

    assert {asset for asset in ASSETS if states[asset]["hard_gates"] != "SUCCEEDED"} == set()
    assert {asset for asset in ASSETS if states[asset]["expected_data"] != "SUCCEEDED"} == WITH_GAP


# What a person sees. Before the hours are filled again below: pages show the last run.


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("browser"))


PICTURE = '<img src="data:image/'
TROUBLE = (
    "Show Markdown",
    "PYTHON_ERROR",
    "An error occurred",
    "Unexpected GraphQL error",
    "none with a value to draw",
)


def open_page(
    browser: Browser, filled: Filled, path: str, *, until: Sequence[str], window: tuple[int, int] = (1600, 1400)
) -> str:
    page = html.unescape(browser.open(f"{filled.stage.stack.url}{path}", until=[*until], window=window))
    assert [text for text in TROUBLE if text in page] == []
    return page


def test_the_page_of_an_asset_shows_a_picture_and_how_much_there_is(browser: Browser, filled: Filled) -> None:
    day = filled.stage.day

    page = open_page(
        browser,
        filled,
        "/assets/gpu_telemetry?view=overview",
        until=["gpu_telemetry", "rows_by_hour", PICTURE, str(len(expected_temperatures(day)))],
    )

    assert page.index(PICTURE) < page.index("rows_by_hour")
    assert "GPU temperature, hottest of the node" in page
    assert f"{day.hours[0]:%Y-%m-%d %H:%M} to {day.hours[-1] + stage.HOUR:%Y-%m-%d %H:%M} UTC" in page
    assert "out_of_range" in page


@pytest.mark.parametrize(
    ("asset", "words"),
    [
        ("monitoring_coverage", "Samples that are there, of those expected"),
        ("gpu_efficiency", "SM activity of the jobs of a node"),
        ("node_telemetry", "CPU time that was not idle"),
    ],
)
def test_the_pages_of_other_assets_show_their_own_pictures(
    browser: Browser, filled: Filled, asset: str, words: str
) -> None:
    page = open_page(browser, filled, f"/assets/{asset}?view=overview", until=[asset, "row_count", PICTURE])

    assert words in page


def test_a_partition_shows_what_its_run_told(browser: Browser, filled: Filled) -> None:
    key = filled.stage.day.partitions[stage.SILENT_FROM_HOUR]

    open_page(
        browser,
        filled,
        f"/assets/gpu_telemetry?view=partitions&partition={key}",
        until=[key, f"Materialized ({stage.HOUR_COUNT})", "row_count", PICTURE],
    )


def test_the_checks_of_an_asset_can_be_read_without_a_click(browser: Browser, filled: Filled) -> None:
    page = open_page(
        browser,
        filled,
        "/assets/gpu_telemetry?view=checks&checkDetail=expected_data",
        until=["hard_gates", "cell_share", "devices that report do so in every cycle", "quality.html"],
    )

    assert f"expectations failed in 1 of {stage.HOUR_COUNT} hours: cell_share." in page
    assert "at least 90 %" in page


def test_the_lineage_shows_what_stands_on_what(browser: Browser, filled: Filled) -> None:
    open_page(
        browser,
        filled,
        "/locations/ops_pipelines/asset-groups/telemetry_meaning",
        until=["inventory", "gpu_efficiency", "monitoring_coverage", "fabric_telemetry"],
        window=(4_000, 4_000),  # with all that is on it the graph is large
    )


def test_the_page_beside_an_hour_opens_in_a_browser(browser: Browser, filled: Filled) -> None:
    hour = filled.stage.day.hours[stage.SILENT_FROM_HOUR]
    path = hour_file(filled.stage.lake, "gpu_telemetry", hour, "quality.html")

    page = browser.open(path.as_uri(), until=["Usable, with gaps", "cell_share", "Column by column"])

    assert f"gpu_telemetry, {hour:%Y-%m-%d %H:%M} UTC" in page


# Again, and from another store


def digests(lake: Path, hours: Sequence[datetime]) -> Mapping[tuple[str, datetime], str]:
    return {
        (table, hour): hashlib.sha256(hour_file(lake, table, hour).read_bytes()).hexdigest()
        for table in ASSETS
        for hour in hours
    }


def fill_here(cluster_file: Path, *, partitions: Sequence[str]) -> bool:
    """Run the job of the lake over all hours from the first to the last, and return whether it ended well.

    It is the run that a back-fill launches, for which the daemon looks twice a minute only.
    """
    tags = {
        "dagster/asset_partition_range_start": partitions[0],
        "dagster/asset_partition_range_end": partitions[-1],
    }
    with pytest.MonkeyPatch.context() as environment, dg.DagsterInstance.ephemeral() as instance:
        environment.setenv("OPS_PIPELINES_CLUSTER", str(cluster_file))
        job = load_definitions().resolve_job_def("fill_hour")
        return job.execute_in_process(tags=tags, instance=instance).success


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")
def test_filling_hours_again_changes_not_a_byte(filled: Filled) -> None:
    chosen = slice(stage.RESET_HOUR, stage.SILENT_FROM_HOUR + 1)
    hours, keys = filled.stage.day.hours[chosen], filled.stage.day.partitions[chosen]
    before = digests(filled.stage.lake, hours)
    rejected = filled.ask("SELECT count(*) FROM rejected_rows")

    is_success = fill_here(filled.stage.lake.parent / "cluster.yaml", partitions=keys)

    assert is_success
    assert digests(filled.stage.lake, hours) == before
    assert filled.ask("SELECT count(*) FROM rejected_rows") == rejected


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")
def test_prometheus_fills_the_same_and_its_blanks_and_nans_are_named(tmp_path: Path) -> None:
    day = Day.before(SystemClock().now(), hour_count=2)
    with start_prometheus(tmp_path, list(stage.rows_of(day, lead_hours=0))) as url:
        cluster_file = stage.write_cluster(tmp_path / "cluster", metrics_url=url, day=day)
        is_success = fill_here(cluster_file, partitions=day.partitions)

    lake = tmp_path / "cluster" / "lake"
    counts = query(lake, "SELECT time_bucket(INTERVAL 1 HOUR, time), count(*) FROM gpu_telemetry GROUP BY 1 ORDER BY 1")
    refused = query(lake, "SELECT reason, count(*) FROM rejected_rows GROUP BY 1 ORDER BY 1")
    assert is_success
    assert [tuple(row) for row in counts.rows] == [(hour, 32 * stage.STEPS) for hour in day.hours]
    assert [tuple(row) for row in refused.rows] == [("blank_value", 5), ("not_finite", 2), ("out_of_range", 3)]
