"""Which version a node should run, who says so first, and when another one is drift."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import Direction, NodeStage
from ops_pipelines.rollouts.versions import (
    ExpectedVersion,
    Fit,
    SeenVersion,
    VersionLine,
    given_by_rollouts,
    is_same,
    judge_versions,
)
from tests.domain.builders import NOW, node_names
from tests.ports.rollout_samples import RELEASE, back, node, rollout

ONE, TWO = NodeName("gpu001"), NodeName("gpu002")
DRIVER = Component.DRIVER


def judged(
    versions: Mapping[NodeName, str], *, given: Mapping[NodeName, str] | None = None, declared: str | None = None
) -> Mapping[NodeName, VersionLine]:
    said = {
        (name, DRIVER): ExpectedVersion(version=version, said_by="ROLL-0001") for name, version in (given or {}).items()
    }
    lines = judge_versions(
        {(name, DRIVER): SeenVersion(version=version, seen_at=NOW, is_live=True) for name, version in versions.items()},
        models=dict.fromkeys({*versions, *(given or {})}, "h100"),
        given=said,
        declared={(name, DRIVER): ExpectedVersion(version=declared, said_by="cluster.yaml") for name in versions}
        if declared
        else {},
    )
    return {each.node: each for each in lines}


def test_rollout_says_it_before_cluster_yaml_and_that_before_the_others() -> None:
    names = node_names(5)
    most = dict.fromkeys(names, "570.1")

    of_rollout = judged(most, given={names[0]: "580.2"}, declared="575.3")[names[0]].wanted
    of_file = judged(most, declared="575.3")[names[0]].wanted
    of_others = judged(most)[names[0]].wanted

    assert of_rollout == ExpectedVersion(version="580.2", said_by="ROLL-0001")
    assert of_file == ExpectedVersion(version="575.3", said_by="cluster.yaml")
    assert of_others == ExpectedVersion(version="570.1", said_by="5 of 5 of its model")


def test_node_that_runs_another_version_drifts_and_one_that_does_not_tell_is_not_known_to_fit() -> None:
    found = judged({ONE: "570.1"}, given={ONE: "580.2", TWO: "580.2"})

    assert (found[ONE].fit, found[TWO].fit) == (Fit.DRIFTS, Fit.UNKNOWN)
    assert judged({ONE: "580.2"}, given={ONE: "580.2"})[ONE].fit is Fit.FITS


@pytest.mark.parametrize(("alike", "fit"), [(2, Fit.FREE), (3, Fit.DRIFTS), (4, Fit.DRIFTS)])
def test_of_few_nodes_nobody_knows_what_is_usual(alike: int, fit: Fit) -> None:
    apart, *others = node_names(alike + 1)

    assert judged({apart: "565.9", **dict.fromkeys(others, "570.1")})[apart].fit is fit


@pytest.mark.parametrize(("apart", "fit"), [(3, Fit.DRIFTS), (4, Fit.DRIFTS), (5, Fit.FREE)])
def test_many_that_stand_apart_are_a_rollout_and_no_drift(apart: int, fit: Fit) -> None:
    names = node_names(40)
    versions = {name: "580.2" if place < apart else "570.1" for place, name in enumerate(names)}

    assert judged(versions)[names[0]].fit is fit


def test_newest_rollout_that_updated_a_node_holds() -> None:
    older, newer = replace(rollout(1), release=RELEASE.name), rollout(2)
    next_release = replace(RELEASE, changes=(replace(RELEASE.changes[0], version="590.1"),))

    given = given_by_rollouts(
        [
            (older, RELEASE, [node(1, ONE, stage=NodeStage.UPDATED), node(1, TWO, stage=NodeStage.UPDATED)]),
            (newer, next_release, [node(2, ONE, stage=NodeStage.SOAKING), node(2, TWO, stage=NodeStage.PENDING)]),
        ]
    )

    assert given[ONE, DRIVER] == ExpectedVersion(version="590.1", said_by="ROLL-0002 (driver-580)")
    assert given[TWO, DRIVER].version == RELEASE.changes[0].version
    assert given[ONE, Component.GPU_VBIOS].said_by == "ROLL-0001 (driver-580)"


def test_node_that_went_back_was_given_what_it_had() -> None:
    given = given_by_rollouts([(rollout(1), RELEASE, [back(1, ONE, stage=NodeStage.BACK)])])

    assert given[ONE, DRIVER] == ExpectedVersion(version="570.12", said_by="ROLL-0001 (rolled back)")


@pytest.mark.parametrize(
    "stage", [NodeStage.PENDING, NodeStage.SKIPPED, NodeStage.INSTALLING, NodeStage.PULLED, NodeStage.LOST]
)
def test_node_in_hand_or_left_alone_was_given_nothing(stage: NodeStage) -> None:
    assert given_by_rollouts([(rollout(1), RELEASE, [node(1, ONE, stage=stage)])]) == {}


def test_node_on_its_way_back_is_no_longer_given_the_new_version() -> None:
    turning = replace(node(1, ONE, stage=NodeStage.SOAKING), direction=Direction.BACK)

    assert given_by_rollouts([(rollout(1), RELEASE, [turning])]) == {}


def test_spelling_makes_no_other_version_and_what_cannot_be_compared_is_compared_as_words() -> None:
    assert is_same(Component.GPU_VBIOS, "96.00.A5", "96.00.a5")
    assert not is_same(DRIVER, "580.10", "580.1")
    assert is_same(DRIVER, "no version", "no version")
    assert not is_same(DRIVER, "no version", "580.1")
