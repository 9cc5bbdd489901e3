"""Dagster's own command `dg`, as somebody types it who has just cloned the project: no cluster, no setting."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DG = Path(sys.executable).with_name("dg")


def dg(*words: str, clone: Path, home: Path, **also: str) -> subprocess.CompletedProcess[str]:
    """Run `dg` in a clone, with nothing in the environment but a home of its own and what is given."""
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], **also}
    return subprocess.run([DG, *words], cwd=clone, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a directory that holds what git holds, without a cluster file that anybody could read."""
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("pyproject.toml", "README.md", "ops_pipelines"):
        (clone / name).symlink_to(ROOT / name)
    (clone / "cluster.yaml").mkdir()
    return clone


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text((ROOT / "deploy" / "dagster.yaml").read_text())
    return home


def test_definitions_are_valid_where_nothing_is_set(clone: Path, home: Path) -> None:
    done = dg("check", "defs", clone=clone, home=home)

    assert done.returncode == 0, done.stdout + done.stderr


def test_definitions_are_listed_under_the_shipped_instance(clone: Path, home: Path) -> None:
    done = dg("list", "defs", "--json", clone=clone, home=home, DAGSTER_HOME=str(home))

    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    assert "remediate" in {job["name"] for job in listed["jobs"]}
    assert "incident_reports" in {asset["asset_key"] for asset in listed["assets"]}


def test_no_instance_file_stands_where_dg_would_take_it_for_its_own() -> None:
    assert not (ROOT / "dagster.yaml").exists()


def test_make_defs_runs_both() -> None:
    recipe = subprocess.run(["make", "-n", "defs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "dg check defs" in recipe
    assert "dg list defs" in recipe
