"""`ops-pipelines quota replay`: one document on standard output, faults by name, and its promise on real demand."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from ops_pipelines.cli import app

HELIOS = Path(__file__).parents[3] / "shared" / "data" / "helios_earth" / "hourly_gpu_by_team.parquet"
FIRST_HOUR = 1_767_225_600
"""2026-01-01 00:00 UTC."""


@pytest.fixture
def run() -> Callable[..., Result]:
    runner = CliRunner()
    return lambda *words: runner.invoke(app, ["quota", "replay", *map(str, words)])


def demand_file(at: Path, *, days: int = 4, without: Sequence[int] = ()) -> Path:
    """Two teams of 16 GPUs: one wants nothing, the other 24."""
    hours = [hour for hour in range(24 * days) if hour not in without]
    rows = [
        {
            "hour_ts": FIRST_HOUR + 3600 * hour,
            "team": team,
            "capacity_gpus": 16.0,
            "gpus_running_avg": min(wanted, 16.0),
            "gpus_pending_avg": max(0.0, wanted - 16.0),
            "gpus_demand_avg": wanted,
        }
        for hour in hours
        for team, wanted in (("idle", 0.0), ("busy", 24.0))
    ]
    file = at / "demand.parquet"
    pd.DataFrame(rows).to_parquet(file)
    return file


def test_document_stands_alone_and_has_every_policy(tmp_path: Path, run: Callable[..., Result]) -> None:
    found = run("--demand", demand_file(tmp_path), "--json")

    assert found.exit_code == 0
    document = json.loads(found.stdout)
    assert sorted(document) == ["gain_ratio", "policies"]
    assert list(document["policies"]) == ["static", "rebalanced", "daily_optimum", "pooled"]
    static = document["policies"]["static"]
    assert static["unserved_gpu_hours"] == 4 * 24 * 8
    assert static["worst_team"] == {"team": "busy", "unserved_ratio": pytest.approx(1 / 3)}
    # A tenth of 32 GPUs a day moves, from the second day on: 0, 3.2, 6.4 and 8 of the 8 that lack.
    ours = document["policies"]["rebalanced"]
    assert ours["unserved_gpu_hours"] == pytest.approx(24 * (8 + 4.8 + 1.6 + 0), abs=0.5)
    assert ours["churn_ratio_max"] == pytest.approx(0.1)


def test_table_fits_a_narrow_terminal(
    tmp_path: Path, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    found = run("--demand", demand_file(tmp_path))

    assert found.exit_code == 0
    assert "daily_optimum" in found.stdout
    assert "…" not in found.stdout
    assert max(map(len, found.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["idle,4", "busy,17"], "line 3: busy is guaranteed '17' GPUs; expected a number from 0 to its capacity, 16"),
        (["idle,4", "busy,-1"], "busy is guaranteed '-1' GPUs"),
        (["idle,4", "busy,nan"], "busy is guaranteed 'nan' GPUs"),
        (["idle,4", "busy,many"], "busy is guaranteed 'many' GPUs"),
        (["idle,4"], "busy has no line; write 0 for none"),
        (["idle,4", "idle,4", "busy,4"], "line 3: idle is there twice"),
        (["idle,4", "busy,4", "other,4"], "line 4: 'other' is no team of the demand"),
    ],
)
def test_guarantees_with_a_fault_are_refused_by_line(
    tmp_path: Path, run: Callable[..., Result], lines: list[str], said: str
) -> None:
    owed = tmp_path / "owed.csv"
    owed.write_text("\n".join(["team,guarantee_gpus", *lines, ""]))

    found = run("--demand", demand_file(tmp_path), "--guarantees", owed, "--json")

    assert found.exit_code == 2
    assert found.stdout == ""
    assert said in found.stderr


def test_guarantees_of_a_file_are_kept(tmp_path: Path, run: Callable[..., Result]) -> None:
    owed = tmp_path / "owed.csv"
    owed.write_text("team,guarantee_gpus\nidle,16\nbusy,16\n")

    found = run("--demand", demand_file(tmp_path), "--guarantees", owed, "--json")

    document = json.loads(found.stdout)
    assert document["gain_ratio"] is None
    assert document["policies"]["rebalanced"]["churn_ratio_max"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--timezone", "Mars/Olympus"], "'Mars/Olympus' is no time zone"),
        (["--guarantees", "nowhere.csv"], "no CSV that can be read"),
        (["--demand", "nowhere.parquet"], "no Parquet file that can be read"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, run: Callable[..., Result], words: list[str], said: str) -> None:
    found = run("--demand", demand_file(tmp_path), *words)

    assert found.exit_code == 2
    assert said in found.stderr


def test_a_missing_day_is_refused_or_carried_and_named(tmp_path: Path, run: Callable[..., Result]) -> None:
    file = demand_file(tmp_path, days=5, without=range(24, 48))

    refused, carried = run("--demand", file, "--json"), run("--demand", file, "--carry", "--json")

    assert refused.exit_code == 2
    assert "24 hours from 2026-01-02T00:00Z" in refused.stderr
    assert carried.exit_code == 0
    assert "carried from the hour before" in carried.stderr
    assert json.loads(carried.stdout)["policies"]["static"]["unserved_gpu_hours"] == 5 * 24 * 8


@pytest.mark.skipif(not HELIOS.is_file(), reason="the public trace (../shared/data) is not here")
def test_real_demand_gains_what_is_promised(run: Callable[..., Result]) -> None:
    found = json.loads(run("--demand", HELIOS, "--timezone", "Asia/Shanghai", "--json").stdout)

    ours = found["policies"]["rebalanced"]
    assert found["gain_ratio"] >= 0.60
    assert ours["guarantee_violation_gpu_hours"] == 0
    assert ours["churn_ratio_max"] <= 0.10 + 1e-9
    assert ours["churn_ratio_per_day"] <= 0.05
