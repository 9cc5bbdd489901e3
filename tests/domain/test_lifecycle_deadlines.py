"""By when a stage of a node has failed: never because nobody let us act, and hands are given their time."""

from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.core.action import Verb
from ops_pipelines.core.policy import Durations, RolloutLimits
from ops_pipelines.core.release import Activation, Change, Component, Release, ReleaseName
from ops_pipelines.core.rollout import NodeStage
from ops_pipelines.rollouts.engine import Act, NodeFacts, Wait, Way, deadline_of, next_move
from tests.ports.ledger_samples import NOW
from tests.ports.rollout_samples import node

LIMITS = RolloutLimits()
WORDS = ("install", "{version}")


def release_of(*activations: Activation) -> Release:
    changes = tuple(
        Change(component=component, version="2", install=WORDS, rollback=WORDS, activation=activation)
        for component, activation in zip((Component.PSU, Component.KERNEL), activations, strict=False)
    )
    return Release(name=ReleaseName("r"), about="a test", models=frozenset({"hgx"}), changes=changes)


def way(stage: NodeStage, *, release: Release | None = None, step: int = 0, good_reads: int = 0) -> Way:
    """A node in a stage that should have been over a second ago."""
    late = replace(
        node(1, "gpu001", stage=stage), deadline=NOW - timedelta(seconds=1), step=step, good_reads=good_reads
    )
    facts = NodeFacts(now=NOW, jobs=(), outcomes={})
    return Way(
        node=late,
        release=release or release_of(Activation.REBOOT),
        opened_at=NOW,
        facts=facts,
        limits=LIMITS,
        is_canary=False,
    )


@pytest.mark.parametrize(
    ("stage", "verb"),
    [
        (NodeStage.INSTALLING, Verb.INSTALL),
        (NodeStage.ACTIVATING, Verb.REBOOT),
        (NodeStage.TESTING, Verb.CHECK),
        (NodeStage.RETURNING, Verb.RESUME),
    ],
)
def test_act_that_nobody_let_us_begin_in_time_has_not_failed(stage: NodeStage, verb: Verb) -> None:
    move = next_move(way(stage))

    assert isinstance(move, Act)
    assert move.action.verb is verb


def test_version_that_was_read_well_once_is_read_to_the_end() -> None:
    assert isinstance(next_move(way(NodeStage.VERIFYING, good_reads=1)), Wait)
    assert not isinstance(next_move(way(NodeStage.VERIFYING, good_reads=0)), Wait)


def test_person_is_told_which_node_to_take_all_power_off_for_each_step() -> None:
    release = release_of(Activation.AC_CYCLE, Activation.AC_CYCLE)

    first, second = (next_move(way(NodeStage.ACTIVATING, release=release, step=step)) for step in (0, 1))

    assert isinstance(first, Act)
    assert isinstance(second, Act)
    assert first.action.verb is Verb.PAGE_HUMAN
    assert first.action.text.startswith("Take all power off gpu001 and give it back (AC cycle): psu 2")
    assert first.action.key != second.action.key


@pytest.mark.parametrize(
    ("activation", "limit"),
    [
        (Activation.POWER_CYCLE, LIMITS.verify_limit),
        (Activation.AC_CYCLE, LIMITS.answer_limit + LIMITS.verify_limit),
    ],
)
def test_version_that_waits_for_hands_is_given_their_time(activation: Activation, limit: timedelta) -> None:
    step = release_of(activation).steps[0]

    deadline = deadline_of(NodeStage.VERIFYING, step, limits=LIMITS, durations=Durations(), now=NOW)

    assert deadline == NOW + limit
