"""`diagnose --from-lake`: what was recorded of a time becomes incidents again, and what was not recorded is
reported."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.terminal.edge import ExitCode
from ops_pipelines.terminal.past_commands import NoSuchTime, parse_time
from tests.shell.desk import Answer, Desk

AT = datetime(2025, 3, 1, 7, 30, tzinfo=UTC)
MINUTE, STEP = timedelta(minutes=1), timedelta(seconds=15)
NODES = ("gpu001", "gpu002", "gpu003", "gpu004")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def lake(desk: Desk) -> ParquetLake:
    return ParquetLake(desk.cluster_file.parent / "state" / "lake")


def diagnose(desk: Desk, *options: str, at: str = "2025-03-01T07:30", columns: int = 80) -> Answer:
    return desk.run("diagnose", "--from-lake", "--at", at, *options, columns=columns)


def keep(lake: ParquetLake, table: str, rows: Iterable[dict[str, object]]) -> None:
    lake.add(table, TABLES[table].from_rows(rows))


def times(*, minutes: int = 20, until: datetime = AT) -> list[datetime]:
    return [until - minutes * MINUTE + number * STEP for number in range(minutes * 4 + 1)]


def run_well(lake: ParquetLake) -> None:
    """Keep 20 minutes of eight GPUs on each of four nodes, and the job that holds them."""
    keep(
        lake,
        "gpu_telemetry",
        (
            {
                "node": node, "device": f"GPU-{node}-{gpu}", "time": at, "pci_address": f"0000:1{gpu}:00",
                "temperature_celsius": 60.0, "power_watts": 500.0,
            }
            for node in NODES for gpu in range(8) for at in times()
        ),
    )  # fmt: skip
    keep(
        lake,
        "job_allocations",
        (
            {
                "job": "42", "attempt": "1", "node": node, "time": AT.replace(minute=0), "name": "train", "user": "ada",
                "state": "RUNNING", "started_at": AT - timedelta(hours=3), "gpu_count": 8,
            }
            for node in NODES
        ),
    )  # fmt: skip


def lose_gpu(lake: ParquetLake, *, at: datetime) -> None:
    """Keep the line in which the driver says that a GPU of gpu002 fell off the bus."""
    text = "NVRM: Xid (PCI:0000:13:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    keep(
        lake,
        "kernel_events",
        [
            {
                "source": "kernel_log", "position": "line:1", "time": at, "node": "gpu002",
                "text": f"{at:%Y-%m-%dT%H:%M:%S}.000000+00:00 gpu002 kernel: [123.456789] {text}",
            }
        ],
    )  # fmt: skip


def test_a_fault_that_was_recorded_is_found_with_culprit_and_victims(desk: Desk, lake: ParquetLake) -> None:
    run_well(lake)
    lose_gpu(lake, at=AT - 5 * MINUTE)

    answer = diagnose(desk, "--json")

    assert answer.exit_code == ExitCode.OK
    told = json.loads(answer.stdout)
    (found,) = told["incidents"]
    assert (found["incident"], found["nodes"], found["victims"]) == ("PAST-1", ["gpu002"], ["42"])
    assert found["diagnosis"]["culprits"] == ["gpu 0000:13:00 of gpu002"]
    assert found["began_at"].startswith("2025-03-01T07:25:00")
    assert told["problems"] == []


@pytest.mark.parametrize(
    ("minutes_ago", "is_found"),
    [
        pytest.param(31, False, id="before the interval"),
        pytest.param(30, True, id="at its beginning"),
        pytest.param(0, True, id="at the moment itself"),
        pytest.param(-1, False, id="after it"),
    ],
)
def test_only_what_was_known_then_counts(desk: Desk, lake: ParquetLake, minutes_ago: int, is_found: bool) -> None:
    run_well(lake)
    lose_gpu(lake, at=AT - minutes_ago * MINUTE)

    told = json.loads(diagnose(desk, "--back", "30", "--json").stdout)

    assert bool(told["incidents"]) is is_found


def test_the_page_for_people_fits_and_says_what_is_not_recorded(desk: Desk, lake: ParquetLake) -> None:
    run_well(lake)
    lose_gpu(lake, at=AT - 5 * MINUTE)

    answer = diagnose(desk)

    assert max(len(line) for line in answer.stdout.splitlines()) <= 80
    page = " ".join(answer.stdout.split())
    assert "PAST-1 since 01 Mar 07:25:00" in page
    assert "culprit gpu 0000:13:00 of gpu002" in page
    assert "Not recorded - node_telemetry: no sample from 2025-03-01 06:30 to 07:30" in page
    assert "- job_allocations: no row of 2025-03-01 06:00: which jobs ran in that hour is not known" in page


def test_a_quiet_time_has_no_incident_and_one_without_samples_is_no_health(desk: Desk, lake: ParquetLake) -> None:
    run_well(lake)

    quiet = diagnose(desk)
    blind = diagnose(desk, at="2025-03-01T10:30")

    assert (quiet.exit_code, blind.exit_code) == (ExitCode.OK, ExitCode.NO_ANSWER)
    assert "no incident in what was recorded" in quiet.stdout
    assert blind.stderr == "no sample of this time is recorded: nobody knows how the cluster was\n"


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        ("yesterday", "'yesterday' is no time; expected ISO 8601"),
        ("2025-03-01T06:59:59", "2025-03-01 06:59 UTC is before the first hour of the lake"),
        ("2999-01-01T00:00", "2999-01-01 00:00:00 UTC is in the future"),
        ("0001-01-01T00:00+05:00", "'0001-01-01T00:00+05:00' is no time; expected ISO 8601"),
        ("9999-12-31T23:59-05:00", "'9999-12-31T23:59-05:00' is no time; expected ISO 8601"),
    ],
)
def test_a_time_that_cannot_be_diagnosed_is_refused_with_the_reason(
    desk: Desk, lake: ParquetLake, at: str, reason: str
) -> None:
    run_well(lake)

    answer = diagnose(desk, at=at)

    assert (answer.exit_code, answer.stdout) == (ExitCode.USAGE, "")
    assert reason in answer.stderr


def test_the_first_recorded_hour_itself_can_be_diagnosed(desk: Desk, lake: ParquetLake) -> None:
    run_well(lake)

    assert diagnose(desk, at="2025-03-01T07:00").exit_code == ExitCode.NO_ANSWER  # before its first sample: blind
    assert diagnose(desk, at="2025-03-01T07:10").exit_code == ExitCode.OK


def test_an_empty_lake_is_said_and_not_made(desk: Desk) -> None:
    answer = diagnose(desk)

    assert (answer.exit_code, answer.stdout) == (ExitCode.USAGE, "")
    assert "is empty: nothing was recorded yet" in answer.stderr
    assert not (desk.cluster_file.parent / "state" / "lake").exists()


def test_without_from_lake_the_other_commands_are_named(desk: Desk) -> None:
    answer = desk.run("diagnose", "--at", "now")

    assert answer.exit_code == ExitCode.USAGE
    assert "say --from-lake" in answer.stderr


def test_a_lake_that_cannot_be_read_is_no_answer(desk: Desk, lake: ParquetLake) -> None:
    run_well(lake)
    (file,) = (desk.cluster_file.parent / "state" / "lake" / "gpu_telemetry").rglob("*.parquet")
    file.write_bytes(b"PAR1 torn")

    answer = diagnose(desk)

    assert (answer.exit_code, answer.stdout) == (ExitCode.NO_ANSWER, "")
    assert str(file) in answer.stderr


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("now", AT),
        (" NOW ", AT),
        ("2025-03-01T07:00", AT - 30 * MINUTE),
        ("2025-03-01 07:00:15", AT - 30 * MINUTE + STEP),
        ("2025-03-01T07:00Z", AT - 30 * MINUTE),
        ("2025-03-01T09:00+02:00", AT - 30 * MINUTE),
        ("2025-03-01", AT.replace(hour=0, minute=0)),
        ("0001-01-01T05:00+05:00", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T18:59-05:00", datetime(9999, 12, 31, 23, 59, tzinfo=UTC)),
    ],
)
def test_a_time_is_utc_unless_it_names_a_zone(text: str, time: datetime) -> None:
    assert parse_time(text, now=AT) == time


@pytest.mark.parametrize(
    "text",
    ["", "07:00", "1740812400", "2025-02-30T00:00", "0001-01-01T04:59+05:00", "9999-12-31T19:00-05:00"],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(NoSuchTime, match="expected ISO 8601"):
        parse_time(text, now=AT)
