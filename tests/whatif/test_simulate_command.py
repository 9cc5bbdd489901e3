"""`ops-pipelines simulate`: one document alone on standard output, and plain words for bad input."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ops_pipelines.cli import app

POLICY = "mode: observe\nuntouchable_nodes: [login1]\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return file


def simulate(policy: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", "--policy", str(policy), "--workers", "1", *arguments])


def test_the_document_stands_alone_on_standard_output(policy: Path) -> None:
    found = simulate(policy, "--gpus", "64", "--days", "2", "--seeds", "2", "--json")

    document = json.loads(found.stdout)
    assert found.exit_code == 0
    assert "login1" in found.stderr
    assert 0.0 <= document["ettr_ci95"][0] <= document["ettr_mean"] <= document["ettr_ci95"][1] <= 1.0
    assert document.keys() >= {
        "ettr_mean", "ettr_ci95", "interruptions_per_day", "minutes_lost_per_interruption", "lost_minutes_by_cause",
        "wrong_drains", "human_interventions", "inputs", "peers",
    }  # fmt: skip
    assert document["peers"].keys() == {
        "manual_ops", "slurm_requeue", "nvsentinel_like", "llama3_ref", "byterobust_like", "oracle",
    }  # fmt: skip
    assert all("ettr_mean" in peer for peer in document["peers"].values())
    tables = [each.split()[0] for each in document["inputs"]]
    assert {"catalogue/diagnosis_confusion.csv", "catalogue/lab_latencies.csv"} <= set(tables)
    assert document["said"] == "simulated, parameters sourced"


def test_the_tables_say_interruptions_beside_every_ratio(policy: Path) -> None:
    found = simulate(policy, "--gpus", "64", "--days", "0.5", "--seeds", "1", "--sensitivity")

    assert found.exit_code == 0
    assert "simulated, parameters sourced" in found.stdout
    assert found.stdout.count("stops/day") == 2
    assert "half of it seen" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scenario", "llama9"], "llama3"),
        (["--gpus", "7"], "--gpus"),
        (["--gpus", "63"], "multiple"),
        (["--gpus", "10000000"], "--gpus"),
        (["--days", "0"], "--days"),
        (["--days", "1000"], "--days"),
        (["--seeds", "0"], "--seeds"),
    ],
)
def test_bad_input_is_named(arguments: list[str], said: str, policy: Path) -> None:
    found = simulate(policy, *arguments)

    assert found.exit_code == 2
    assert said in found.stderr


def test_a_policy_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = simulate(tmp_path / "none.yaml")

    assert found.exit_code == 2
    assert "none.yaml" in found.stderr
