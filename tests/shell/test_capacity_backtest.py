"""`ops-pipelines capacity backtest`: one document on standard output, faults by name, its promises."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from ops_pipelines.cli import app

DATA = Path(__file__).parents[3] / "shared" / "data"
FIRST_HOUR = 1_767_225_600
"""2026-01-01 00:00 UTC."""
MEASURES = ["mase", "wql", "peak_coverage_90", "bound_to_peak_ratio", "origins"]


@pytest.fixture
def run() -> Callable[..., Result]:
    runner = CliRunner()
    return lambda *words: runner.invoke(app, ["capacity", "backtest", *map(str, words)])


def demand_file(at: Path, *, days: int = 40, teams: int = 3) -> Path:
    draw = np.random.default_rng(4)
    hours = np.arange(24 * days)
    file = at / "demand.parquet"
    pd.concat(
        pd.DataFrame(
            {
                "hour_ts": FIRST_HOUR + 3600 * hours,
                "team": f"team-{team}",
                "gpus_demand_avg": draw.uniform(0, 40 * (team + 1), len(hours)),
            }
        )
        for team in range(teams)
    ).to_parquet(file)
    return file


def test_document_stands_alone_and_has_every_method(tmp_path: Path, run: Callable[..., Result]) -> None:
    found = run("--demand", demand_file(tmp_path), "--json")

    assert found.exit_code == 0
    document = json.loads(found.stdout)
    assert sorted(document) == ["methods", "pooled", "rule", "series"]
    assert {"last_value", "seasonal_naive", "damped_trend", "theta", "exponential_smoothing", "combined"} <= set(
        document["methods"]
    )
    assert all(list(each) == MEASURES for each in (document["pooled"], *document["methods"].values()))
    assert [each["team"] for each in document["series"]] == ["team-0", "team-1", "team-2"]
    assert all([*each] == ["team", "treatment", *MEASURES] for each in document["series"])
    assert [each["origins"] for each in document["series"]] == [3, 3, 3]
    assert document["pooled"]["origins"] == 9
    assert document["pooled"] == document["methods"]["combined"]
    assert list(document["rule"]) == ["times", "bound_to_peak_ratio"]


def test_same_file_gives_the_same_bytes(tmp_path: Path, run: Callable[..., Result]) -> None:
    file = demand_file(tmp_path)

    one, two = (run("--demand", file, "--json").stdout_bytes for _ in range(2))

    assert one == two


def test_table_fits_a_narrow_terminal(
    tmp_path: Path, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    found = run("--demand", demand_file(tmp_path))

    assert found.exit_code == 0
    assert "combined" in found.stdout
    assert "…" not in found.stdout
    assert max(map(len, found.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--timezone", "Mars/Olympus"], "is no time zone"),
        (["--horizon-days", "30"], "40 days of 3 series are there; expected one series and 44 days"),
        (["--renamed", "old"], "expected OLD=NEW"),
        (["--renamed", "old=team-1"], "'old' was renamed, but is no team of the file"),
    ],
)
def test_fault_is_told_in_one_message_and_nothing_else(
    words: list[str], said: str, tmp_path: Path, run: Callable[..., Result]
) -> None:
    found = run("--demand", demand_file(tmp_path), "--json", *words)

    assert found.exit_code == 2
    assert found.stdout == ""
    assert said in found.stderr


def test_file_that_is_not_there_is_named(tmp_path: Path, run: Callable[..., Result]) -> None:
    found = run("--demand", tmp_path / "nothing.parquet", "--json")

    assert found.exit_code == 2
    assert "nothing.parquet is refused" in found.stderr
    assert "there is no such file; expected a Parquet file" in found.stderr


def test_forecast_path_imports_neither_pandas_nor_arrow() -> None:
    heavy = "('pandas', 'pyarrow')"
    program = f"import sys, ops_pipelines.capacity.forecast.backtest; print([m for m in {heavy} if m in sys.modules])"

    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert found.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "timezone"),
    [
        ("helios_earth", "UTC"),
        ("helios_earth", "Asia/Shanghai"),
        ("philly", "UTC"),
        ("philly", "America/Los_Angeles"),
    ],
)
def test_promises_hold_on_public_demand(name: str, timezone: str, run: Callable[..., Result]) -> None:
    file = DATA / name / "hourly_gpu_by_team.parquet"
    if not file.is_file():
        pytest.skip(f"{file} is not here: the public traces stand beside the repository in ../shared/data")

    found = json.loads(run("--demand", file, "--timezone", timezone, "--json").stdout)

    simple = [found["methods"][method] for method in ("last_value", "seasonal_naive")]
    assert found["pooled"]["wql"] <= 1.02 * min(each["wql"] for each in simple)
    assert found["pooled"]["bound_to_peak_ratio"] < simple[1]["bound_to_peak_ratio"]
    assert 0.8 <= found["pooled"]["peak_coverage_90"] <= 1
    assert found["pooled"]["origins"] == {"helios_earth": 16, "philly": 117}[name]
