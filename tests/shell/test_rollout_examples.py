"""The shipped releases on the shipped cluster: anyone who tries them out sees plans, and one refusal with its
reason."""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.resources.config.release_file import release_names

ROOT = Path(__file__).parents[2]
REFUSED = "driver-580.126.20-nvl72"


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """Return the cluster.yaml of a fresh checkout; what it keeps does not lie in ours."""
    for name in ("cluster.yaml", "policy.yaml", "teams.yaml", "capacity.yaml", "projects.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "releases", tmp_path / "releases")
    return tmp_path / "cluster.yaml"


def plan(release: str, cluster_file: Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(
        cli.app, ["rollout", "plan", release, "--json", "--cluster", str(cluster_file)], catch_exceptions=False
    )
    return result.exit_code, cast("dict[str, Any]", json.loads(result.stdout))


@pytest.mark.parametrize("release", [each for each in release_names(ROOT / "releases") if each != REFUSED])
def test_a_shipped_release_plans_on_the_shipped_cluster(release: str, shipped: Path) -> None:
    exit_code, view = plan(release, shipped)

    assert (exit_code, view["refused"], view["contradictions"]) == (cli.ExitCode.OK, "", [])
    assert (view["node_count"], view["not_touched"]) == (64, [])


def test_the_one_for_racks_that_are_not_there_is_refused_with_rule_and_source(shipped: Path) -> None:
    exit_code, view = plan(REFUSED, shipped)

    assert (exit_code, view["plan"]) == (cli.ExitCode.REFUSED, None)
    assert [(each["rule"], each["source"]) for each in view["contradictions"]] == [("model", "racks of cluster.yaml")]
