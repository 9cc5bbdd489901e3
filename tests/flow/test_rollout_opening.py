"""Rollouts are opened as the policy says: at once, after an approval, or not at all; and one node is in one of them
only."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops_pipelines.core.entries import AUTOPILOT, LedgerConflict
from ops_pipelines.core.policy import ActionClass, Consent, Mode, PolicyError
from ops_pipelines.core.proof import Patience, Refusal
from ops_pipelines.core.release import Component, Release, Reversibility
from ops_pipelines.core.rollout import NodeStage, Rollout, RolloutPlan, RolloutState
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.rollouts import orders
from ops_pipelines.rollouts.orders import open_rollout, plan_release, start_release
from ops_pipelines.rollouts.rollout_pass import PEOPLE
from tests.scenarios.rollout_stage import (
    FIRST,
    KERNEL,
    LIMITS,
    NEW_KERNEL,
    PERSON,
    ROLLOUT_POLICY,
    FilesInMemory,
    RolloutStage,
    change,
    release_of,
)

ONE_WAY = release_of(change(Component.KERNEL, NEW_KERNEL, reversibility=Reversibility.NO, rollback=()))


class OtherFiles(FilesInMemory):
    """A directory in which an artifact is not what its release says."""

    def check_artifacts(self, release: Release) -> None:
        raise PolicyError("artifact image: sha256 differs")


@pytest.fixture
def stage_of(tmp_path: Path) -> Callable[..., RolloutStage]:
    """Return what makes a stage of three nodes under a policy."""

    def make(**policy: Any) -> RolloutStage:
        return RolloutStage(tmp_path, node_count=3, policy=replace(ROLLOUT_POLICY, **policy))

    return make


def started(stage: RolloutStage, release: Release = KERNEL) -> Rollout:
    return start_release(plan_release(release, stage.cluster), stage.cluster, actor=PERSON)


def consent(kind: Consent) -> dict[str, Any]:
    return {"consents": {ActionClass.UPDATE: kind}}


@pytest.mark.parametrize(
    ("policy", "release", "state"),
    [
        ({}, KERNEL, RolloutState.RUNNING),
        ({}, ONE_WAY, RolloutState.AWAITING_YES),
        ({"mode": Mode.APPROVE}, KERNEL, RolloutState.AWAITING_YES),
        ({"mode": Mode.APPROVE, **consent(Consent.AUTO)}, KERNEL, RolloutState.RUNNING),
        (consent(Consent.APPROVE), KERNEL, RolloutState.AWAITING_YES),
    ],
)
def test_a_rollout_begins_by_itself_only_where_policy_and_release_let_it(
    stage_of: Callable[..., RolloutStage], policy: dict[str, Any], release: Release, state: RolloutState
) -> None:
    stage = stage_of(**policy)

    opened = started(stage, release)

    now = stage.clock.now()
    waits = state is RolloutState.AWAITING_YES
    assert (opened.state, opened.owner, opened.created_by) == (state, PEOPLE if waits else AUTOPILOT, PERSON)
    assert opened.yes_through == (0 if waits else len(opened.waves))
    assert opened.deadline == (now + LIMITS.answer_limit if waits else None)
    assert stage.cluster.ledger.rollout(FIRST) == opened
    assert stage.cluster.ledger.release(opened.release_digest) == release


@pytest.mark.parametrize(
    ("policy", "said"),
    [({"mode": Mode.OBSERVE}, "mode: observe"), (consent(Consent.FORBID), "consents.update: forbid")],
)
def test_a_policy_that_installs_nothing_opens_nothing(
    stage_of: Callable[..., RolloutStage], policy: dict[str, Any], said: str
) -> None:
    stage = stage_of(**policy)

    with pytest.raises(ByHandRefused, match=said):
        started(stage)
    assert stage.cluster.ledger.rollout_count() == 0


def test_without_a_plan_nothing_is_opened_and_the_reason_is_told(stage_of: Callable[..., RolloutStage]) -> None:
    stage = stage_of()
    planned = plan_release(KERNEL, stage.cluster)
    refused = replace(
        planned, plan=Refusal(guardrail="no_node", reason="it runs there already", patience=Patience.WAIT)
    )

    with pytest.raises(ByHandRefused, match="autumn is not rolled out"):
        start_release(refused, stage.cluster, actor=PERSON)
    assert stage.cluster.ledger.rollout_count() == 0


def test_a_plan_without_waves_opens_nothing(stage_of: Callable[..., RolloutStage]) -> None:
    stage = stage_of()
    plan = plan_release(KERNEL, stage.cluster).plan
    assert isinstance(plan, RolloutPlan)

    with pytest.raises(ByHandRefused, match="would touch no node"):
        open_rollout(KERNEL, replace(plan, waves=()), stage.cluster, actor=PERSON)


def test_a_file_that_is_not_what_the_release_says_opens_nothing(stage_of: Callable[..., RolloutStage]) -> None:
    stage = stage_of()
    stage.cluster = replace(stage.cluster, rollout_files=OtherFiles())

    with pytest.raises(PolicyError, match="sha256 differs"):
        started(stage)
    assert stage.cluster.ledger.rollout_count() == 0


def test_every_node_of_the_plan_is_kept_those_that_are_left_out_with_the_reason(
    stage_of: Callable[..., RolloutStage],
) -> None:
    stage = stage_of()

    started(stage, replace(KERNEL, opted_out=frozenset({"gpu002"})))

    found = {name: (each.stage, each.reason) for name, each in stage.nodes().items()}
    assert found == {
        "gpu001": (NodeStage.PENDING, ""),
        "gpu002": (NodeStage.SKIPPED, "opted out"),
        "gpu003": (NodeStage.PENDING, ""),
    }
    assert {name for name, each in stage.nodes().items() if each.wave is None} == {"gpu002"}


def test_nodes_of_a_rollout_that_is_not_over_are_in_no_other_and_the_next_has_a_number_of_its_own(
    stage_of: Callable[..., RolloutStage],
) -> None:
    stage = stage_of()
    other = release_of(change(Component.DCGM, "4.4.2"), name="winter")
    started(stage)

    with pytest.raises(LedgerConflict):
        started(stage, other)
    orders.abort(FIRST, stage.cluster, actor=PERSON, reason="not today")
    stage.run_to()

    assert started(stage, other).rollout == "ROLL-0002"
