"""What the lifecycle assets show: plans and refusals, one pass with what the gate saw, and where every node is."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ops_pipelines.acting_jobs import advance_rollouts
from ops_pipelines.assets.rollouts import rollout_plan, rollout_progress
from ops_pipelines.core.release import Component, Reversibility
from ops_pipelines.core.rollout import NodeStage, RolloutState
from ops_pipelines.rollouts import orders
from ops_pipelines_lab.simulator.versions import ReleaseTrouble
from tests.scenarios.rollout_stage import (
    FIRST,
    KERNEL,
    NEW_KERNEL,
    PERSON,
    RolloutStage,
    bad_kernel,
    change,
    release_of,
)

NO_WAY_BACK = change(Component.KERNEL, NEW_KERNEL, reversibility=Reversibility.NO, rollback=())


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def stage(tmp_path: Path) -> RolloutStage:
    return RolloutStage(tmp_path, node_count=3)


def shown(
    stage: RolloutStage, asset: dg.AssetsDefinition, instance: dg.DagsterInstance, **config: str
) -> dict[str, Any]:
    """Return what an asset shows: tables as rows, `none` as no row, everything else as its value."""
    result = dg.materialize(
        [asset],
        resources={"cluster": stage.cluster},
        instance=instance,
        run_config={"ops": {asset.key.to_python_identifier(): {"config": config}}} if config else None,
        selection=[asset],
    )
    (event,) = result.asset_materializations_for_node(asset.key.to_python_identifier())
    return {name: _plain(value) for name, value in event.metadata.items()}


def shown_by_pass(stage: RolloutStage, instance: dg.DagsterInstance) -> dict[str, Any]:
    """Return what the page of `rollout_pass` shows after a run of the job that makes a pass."""
    result = advance_rollouts.execute_in_process(resources={"cluster": stage.cluster}, instance=instance)
    (event,) = result.asset_materializations_for_node("rollout_pass")
    assert [each.asset_key.to_user_string() for each in result.asset_materializations_for_node("show_rollouts")] == [
        "rollout_progress"
    ]
    return {name: _plain(value) for name, value in event.metadata.items()}


def _plain(value: dg.MetadataValue) -> Any:
    if isinstance(value, dg.TableMetadataValue):
        return [dict(row.data) for row in value.records]
    return [] if value.value == "none" else value.value


def test_every_release_is_planned_refused_or_named_as_unreadable(
    stage: RolloutStage, instance: dg.DagsterInstance
) -> None:
    there = release_of(change(Component.KERNEL, "6.8.0-60-generic"), name="old")
    stage.files.releases |= {"autumn": replace(KERNEL, opted_out=frozenset({"gpu003"})), "old": there}

    found = shown(stage, rollout_plan, instance)

    (plan,) = found["plans"]
    assert (plan["release"], plan["nodes"], plan["waves"], plan["cannot be rolled back"]) == ("autumn", 2, 2, "")
    assert [(each["release"], each["rule"]) for each in found["refused"]] == [("old", "no_node")]
    assert found["not_touched"] == [{"release": "autumn", "node": "gpu003", "why": "opted out"}]
    assert found["problems"] == []
    assert "base64" in found["plan_of_autumn"]
    assert "base64" in found["plan_of_autumn_large"]
    assert "plan_of_old" not in found
    assert stage.cluster.ledger.rollout_count() == 0


def test_one_release_is_planned_by_its_name(stage: RolloutStage, instance: dg.DagsterInstance) -> None:
    stage.files.releases |= {"autumn": KERNEL, "winter-2.1": release_of(NO_WAY_BACK, name="winter-2.1")}

    found = shown(stage, rollout_plan, instance, release="winter-2.1")
    missing = shown(stage, rollout_plan, instance, release="spring")

    assert [(each["release"], each["cannot be rolled back"]) for each in found["plans"]] == [("winter-2.1", "kernel")]
    assert "plan_of_winter_2_1" in found
    assert (missing["plans"], missing["problems"]) == ([], [{"problem": "there is no release spring"}])


def test_a_pass_shows_what_it_moved_and_what_the_gate_sees(stage: RolloutStage, instance: dg.DagsterInstance) -> None:
    stage.start()
    stage.run_to(RolloutState.SOAKING)

    found = shown_by_pass(stage, instance)

    assert found["rollout_count"] == 1
    (row,) = found["rollouts"]
    assert (row["rollout"], row["state"], row["wave"]) == ("ROLL-0001", "soaking", "1 of 2")
    assert row["nodes"] == "1 soaking, 2 pending"
    assert found["gate"]
    assert {each["rollout"] for each in found["gate"]} == {"ROLL-0001"}
    assert found["problems"] == []


def test_a_pass_really_begins_nodes_and_tells_what_was_in_the_way(
    stage: RolloutStage, instance: dg.DagsterInstance
) -> None:
    stage.start()
    stage.files.is_there = False
    closed = shown_by_pass(stage, instance)
    stage.files.is_there = True

    shown_by_pass(stage, instance)

    assert any("calendar" in each["problem"] for each in closed["problems"])
    assert stage.stage_of("gpu001") is not NodeStage.PENDING


def test_without_a_rollout_a_pass_shows_nothing(stage: RolloutStage, instance: dg.DagsterInstance) -> None:
    found = shown_by_pass(stage, instance)

    assert (found["rollout_count"], found["rollouts"], found["gate"], found["problems"]) == (0, [], [], [])


def test_progress_shows_who_is_on_its_way_and_pictures(stage: RolloutStage, instance: dg.DagsterInstance) -> None:
    stage.start()
    stage.run_to(RolloutState.SOAKING)

    found = shown(stage, rollout_progress, instance)

    (row,) = found["rollouts"]
    assert (row["release"], row["state"], row["owner"], row["wave"]) == ("autumn", "soaking", "autopilot", "1 of 2")
    assert [(each["node"], each["stage"]) for each in found["nodes"]] == [("gpu001", "soaking")]
    assert "base64" in found["ROLL_0001_large"]
    assert "ROLL-0001" in found["ROLL_0001"]


def test_progress_shows_a_failure_in_its_own_words(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    fault = bad_kernel(ReleaseTrouble.INSTALL_FAILS)
    stage = RolloutStage(tmp_path, node_count=2, release_faults=(fault,))
    stage.start()
    stage.run_while(lambda: not stage.nodes()["gpu001"].failure)  # type: ignore[index]  # a name is text

    found = shown(stage, rollout_progress, instance)

    (row,) = [each for each in found["nodes"] if each["node"] == "gpu001"]
    assert row["why"].startswith("while installing: ")


@pytest.mark.parametrize(("days", "is_shown"), [(6.9, True), (7.1, False)])
def test_what_is_over_is_shown_for_a_week_and_owned_by_nobody(
    stage: RolloutStage, instance: dg.DagsterInstance, days: float, is_shown: bool
) -> None:
    stage.start()
    orders.abort(FIRST, stage.cluster, actor=PERSON, reason="not today")
    stage.run_to()
    stage.let_pass(days * 86_400)

    found = shown(stage, rollout_progress, instance)

    assert [(each["state"], each["owner"]) for each in found["rollouts"]] == ([("aborted", "")] if is_shown else [])
    assert ("ROLL_0001" in found) is is_shown
