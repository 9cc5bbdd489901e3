"""`ops-pipelines rollout simulate`: one document alone on standard output, and plain words for bad input."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from ops_pipelines_lab.whatif.lifecycle.scenario import altered, read_scenarios, read_site
from ops_pipelines_lab.whatif.lifecycle.simulate import ScenarioName, rollout_simulate
from ops_pipelines_lab.whatif.lifecycle.trials import PEERS

RATIOS = ("touched_ratio_when_stopped", "false_stop_ratio", "rolled_back_ratio")


def simulate(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(rollout_simulate)
    return CliRunner().invoke(app, ["--workers", "1", *arguments])


def test_the_scenarios_on_offer_are_those_of_the_table() -> None:
    assert [each.value for each in ScenarioName] == list(read_scenarios())


def test_the_document_of_a_bad_release_stands_alone_on_standard_output() -> None:
    found = simulate("--scenario", "hard-failure", "--nodes", "120", "--seeds", "2", "--json")

    document = json.loads(found.stdout)
    assert found.exit_code == 0
    assert document["gpu_hours_per_upgraded_node"] is None
    assert document["false_stop_ratio"] is None
    assert 0 < document["touched_ratio_when_stopped"] <= 0.25
    assert document["rolled_back_ratio"] == 1.0
    assert document["peers"].keys() == PEERS.keys()
    assert document["peers"]["all_at_once"]["touched_ratio_when_stopped"] == 1.0
    assert document["peers"]["all_at_once"]["rolled_back_ratio"] is None
    assert document["peers"]["one_at_a_time"]["rolled_back_ratio"] == 0.0


def test_a_fleet_too_small_to_see_what_is_bounded_asks_and_that_is_no_false_stop() -> None:
    found = simulate("--scenario", "good", "--nodes", "60", "--seeds", "1", "--json")

    document = json.loads(found.stdout)
    assert (document["asked_ratio"], document["stopped_ratio"], document["false_stop_ratio"]) == (1.0, 1.0, 0.0)


def test_the_document_of_a_good_release_says_what_it_costs(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("mode: observe\nrollouts: {bounds: []}\n")

    found = simulate("--scenario", "good", "--nodes", "60", "--seeds", "1", "--policy", str(policy), "--json")

    document = json.loads(found.stdout)
    assert document["touched_ratio_when_stopped"] is None
    assert document["rolled_back_ratio"] is None
    assert document["false_stop_ratio"] == 0.0
    for each in (document, *document["peers"].values()):
        assert isinstance(each["gpu_hours_per_upgraded_node"], float)
        assert all(each[name] is None or 0.0 <= each[name] <= 1.0 for name in RATIOS)


def test_the_table_names_every_peer() -> None:
    found = simulate("--scenario", "hard-failure", "--nodes", "120", "--seeds", "1")

    assert found.exit_code == 0
    assert "simulated, parameters sourced" in found.stdout
    assert all(name in found.stdout for name in PEERS)


def test_a_policy_that_takes_no_node_comes_to_no_end_and_says_so(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("mode: observe\nrollouts: {max_out_count: 0}\n")

    found = simulate("--scenario", "hard-failure", "--nodes", "60", "--seeds", "1", "--policy", str(policy), "--json")

    assert found.exit_code == 0, found.output
    assert "max_out_count" in found.stderr
    assert json.loads(found.stdout)["touched_ratio_when_stopped"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scenario", "ugly"], "one-model"),
        (["--scenario", "good", "--nodes", "39"], "--nodes"),
        (["--scenario", "good", "--nodes", "20001"], "--nodes"),
        (["--scenario", "good", "--seeds", "0"], "--seeds"),
        ([], "--scenario"),
    ],
)
def test_bad_input_is_named(arguments: list[str], said: str) -> None:
    found = simulate(*arguments)

    assert found.exit_code == 2
    assert said in found.stderr


def test_a_policy_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = simulate("--scenario", "good", "--policy", str(tmp_path / "none.yaml"))

    assert found.exit_code == 2
    assert "none.yaml" in found.stderr


def test_a_good_release_made_worse_is_no_good_one_and_as_ever_it_stays_one() -> None:
    good, site = read_scenarios()["good"], read_site(120)

    worse = altered(good, site, failure_factor=5.0, slowdown_ratio=None)
    assert not worse.is_good
    assert worse.extra_failures_per_node_day == pytest.approx(4 * site.failures_per_node_day)
    assert not altered(good, site, failure_factor=None, slowdown_ratio=0.03).is_good
    assert altered(good, site, failure_factor=1.0, slowdown_ratio=0.0) == good
    assert altered(good, site, failure_factor=None, slowdown_ratio=None) == good


def test_another_seed_is_another_world_and_the_same_seed_the_same() -> None:
    words = ("--scenario", "hard-failure", "--nodes", "60", "--seeds", "1", "--json", "--first-seed")
    first, again, other = (simulate(*words, seed).stdout for seed in ("7", "7", "8"))

    assert first == again
    assert first != other


@pytest.mark.parametrize("words", [("--failure-factor", "0.5"), ("--slowdown", "1"), ("--base-rate", "0")])
def test_what_no_release_does_is_refused(words: tuple[str, str]) -> None:
    assert simulate("--scenario", "good", *words).exit_code == 2
