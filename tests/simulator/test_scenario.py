"""Scenarios: what they refuse, and that plain data holds them whole."""

import json
from dataclasses import replace

import pytest
import yaml

from ops_pipelines.core.observation import Workload
from ops_pipelines_lab.simulator.scenario import (
    Scenario,
    SimulatedDurations,
    cluster_nodes,
    demo_scenario,
    lab_scenario,
    scenario_from_plain,
    scenario_to_plain,
)


@pytest.mark.parametrize("scenario", [demo_scenario(), lab_scenario(), lab_scenario(256)])
def test_scenario_survives_json_and_yaml(scenario: Scenario) -> None:
    plain = scenario_to_plain(scenario)

    assert scenario_from_plain(json.loads(json.dumps(plain))) == scenario
    assert scenario_from_plain(yaml.safe_load(yaml.safe_dump(plain))) == scenario


def test_demo_has_64_nodes_in_8_racks_on_4_leaf_switches_and_four_teams() -> None:
    scenario = demo_scenario()

    assert len(scenario.nodes) == 64
    assert {node.rack for node in scenario.nodes} == {f"r{number}" for number in range(1, 9)}
    assert {node.leaf_switch for node in scenario.nodes} == {"leaf1", "leaf2", "leaf3", "leaf4"}
    assert {job.account for job in scenario.initial_jobs} == {"research", "product", "platform", "science"}
    assert {job.workload for job in scenario.initial_jobs} == set(Workload) - {Workload.UNKNOWN}
    in_rack = {node for node, place in scenario.topology.places.items() if place.rack == "r2"}
    assert in_rack == {node.name for node in scenario.nodes[8:16]}


def test_demo_leaves_room_for_every_training_job_to_restart_without_one_node() -> None:
    scenario = demo_scenario()

    whole_node_count = sum(job.node_count for job in scenario.initial_jobs if job.gpus_per_node == 8)

    assert whole_node_count + 8 <= len(scenario.nodes)


def test_lab_has_no_jobs() -> None:
    scenario = lab_scenario(16)

    assert (len(scenario.nodes), scenario.initial_jobs, scenario.arrivals) == (16, (), ())


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        pytest.param({"nodes": []}, "at least one node", id="no nodes"),
        pytest.param({}, "nodes", id="nodes missing"),
        pytest.param({"nodes": [], "colour": "red"}, "no field colour", id="unknown field"),
        pytest.param({"nodes": {"gpu001": 1}}, "needs a list", id="mapping for a list"),
        pytest.param([], "needs a mapping", id="list for a mapping"),
        pytest.param(
            {"nodes": [{"name": 7, "rack": "r1", "leaf_switch": "s1"}]}, "needs str, found 7", id="number for text"
        ),
        pytest.param({"nodes": [], "gpus_per_node": True}, "needs int, found True", id="truth for a number"),
        pytest.param({"nodes": [], "durations": {"reboot_seconds": 0}}, "must be above 0", id="no time to reboot"),
        pytest.param({"nodes": [], "durations": {"reboot_seconds": "5s"}}, "needs float", id="text for a number"),
    ],
)
def test_plain_data_that_is_no_scenario_says_what_does_not_fit(data: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        scenario_from_plain(data)


def test_two_nodes_with_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        Scenario(nodes=cluster_nodes(2) + cluster_nodes(1))


@pytest.mark.parametrize("gpus_per_node", [0, 9])
def test_node_has_one_to_eight_gpus(gpus_per_node: int) -> None:
    with pytest.raises(ValueError, match="1 to 8"):
        Scenario(nodes=cluster_nodes(2), gpus_per_node=gpus_per_node)


def test_job_that_needs_more_gpus_than_a_node_has_is_refused() -> None:
    with pytest.raises(ValueError, match="asks for 8 GPUs a node"):
        replace(demo_scenario(), gpus_per_node=4)


@pytest.mark.parametrize(
    ("field", "value"),
    [("node_count", 0), ("gpus_per_node", 0), ("work_seconds", 0.0), ("checkpoint_interval_seconds", -1.0)],
)
def test_impossible_job_is_refused(field: str, value: float) -> None:
    job = demo_scenario().initial_jobs[0]

    with pytest.raises(ValueError):
        replace(job, **{field: value})


def test_durations_default_to_those_of_real_hardware() -> None:
    durations = SimulatedDurations()

    assert (durations.kill_wait_seconds, durations.slurmd_timeout_seconds) == (30.0, 300.0)
