"""What a rollout owes when nodes have soaked or it is over: marks come off, jobs are let on, and for a day only."""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.action import Action, ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.identity import JobId, NodeName, RolloutId, cause_of
from ops_pipelines.core.observation import JobState, JobStatus
from ops_pipelines.core.rollout import NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.rollouts.rollout_pass import keep_wide_jobs_off, marked_canaries, owing, put_back_canaries
from tests.domain.builders import job
from tests.ports.proved_plans import allow
from tests.ports.rollout_samples import RELEASE, node, rollout, rollout_plan
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.small_cluster import GPU1, GPU2

FIRST = RolloutId("ROLL-0001")
DONE, FAILED = OutcomeKind.DONE, OutcomeKind.FAILED
WIDE = JobId("42")
DAY = timedelta(days=1)


class Exclusions:
    """Of a scheduler the nodes that each job is kept off; it may fail, or look at the ledger when it is reported."""

    def __init__(self, cluster: Cluster, *, is_silent: bool = False) -> None:
        self._cluster = cluster
        self._is_silent = is_silent
        self.of: dict[JobId, set[NodeName]] = {}
        self.kept_when_told: list[dict[JobId, tuple[NodeName, ...]]] = []

    def exclude(self, name: JobId, nodes: Collection[NodeName]) -> None:
        self._take()
        self.of.setdefault(name, set()).update(nodes)

    def readmit(self, name: JobId, nodes: Collection[NodeName]) -> None:
        self._take()
        self.of.setdefault(name, set()).difference_update(nodes)

    def _take(self) -> None:
        if self._is_silent:
            raise SourceUnavailable("slurmctld did not answer")
        found = self._cluster.ledger.rollout(FIRST)
        assert found is not None
        self.kept_when_told.append(dict(found.kept_off))


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, node_count=4)
    autopilot.let_pass(5)
    return autopilot


def opened(
    autopilot: SmallAutopilot, stage: NodeStage, *, state: RolloutState = RolloutState.RUNNING, **changes: object
) -> tuple[Rollout, tuple[RolloutNode, ...]]:
    """Return a rollout whose one canary is in a stage, beside a node of the second wave in the same."""
    now = autopilot.clock.now()
    present: Rollout = replace(
        rollout(1, nodes=(GPU1, GPU2), state=state),
        **{"since": now, **changes},  # type: ignore[arg-type]  # Fields of Rollout.
    )
    nodes = (node(1, GPU1, stage=stage), node(1, GPU2, stage=stage, wave=2))
    autopilot.cluster.ledger.open_rollout(
        present, nodes, plan=rollout_plan(present), release=RELEASE, actor="ada", now=now
    )
    return present, nodes


def record(
    autopilot: SmallAutopilot, verb: Verb, kind: OutcomeKind | None = DONE, *, on: NodeName = GPU1, try_number: int = 1
) -> None:
    """Write an act of the rollout with its outcome; None: it is under way."""
    ledger, now = autopilot.cluster.ledger, autopilot.clock.now()
    act = Action(verb=verb, incident=cause_of(FIRST), node=on, try_number=try_number)
    ledger.begin(
        ActionRecord(action=act, plan=None, begun_at=now),
        guard=allow,
        lease_token=None,
        actor=AUTOPILOT,
        now=now,
    )
    if kind is not None:
        ledger.finish(act.key, Outcome(kind=kind, witness="seen", finished_at=now), actor=AUTOPILOT)
    autopilot.let_pass(1)


def waiting(*excluded: NodeName) -> JobStatus:
    return job(
        WIDE, nodes=(), state=JobState.PENDING, started_at=None, gpu_count=512, excluded_nodes=frozenset(excluded)
    )


# -- marks --


@pytest.mark.parametrize(
    ("stage", "state", "is_owed"),
    [
        (NodeStage.UPDATED, RolloutState.RUNNING, True),
        (NodeStage.UPDATED, RolloutState.DONE, True),
        (NodeStage.SOAKING, RolloutState.SOAKING, False),
        (NodeStage.SOAKING, RolloutState.ENDING, False),
        (NodeStage.SOAKING, RolloutState.ABORTED, True),
        (NodeStage.BACK, RolloutState.WENT_BACK, False),
        (NodeStage.LOST, RolloutState.ABORTED, False),
    ],
)
def test_a_canary_keeps_its_mark_as_long_as_it_soaks(
    autopilot: SmallAutopilot, stage: NodeStage, state: RolloutState, is_owed: bool
) -> None:
    present, nodes = opened(autopilot, stage, state=state)
    record(autopilot, Verb.PUT_LAST)

    found = marked_canaries(present, nodes, autopilot.cluster)

    assert [each.node for each in found] == ([GPU1] if is_owed else [])


@pytest.mark.parametrize(
    ("acts", "is_owed"),
    [
        ([], False),
        ([(Verb.PUT_LAST, FAILED, 1)], False),
        ([(Verb.PUT_LAST, None, 1)], False),
        ([(Verb.PUT_LAST, DONE, 1)], True),
        ([(Verb.PUT_LAST, DONE, 1), (Verb.PUT_BACK, DONE, 1)], False),
        ([(Verb.PUT_LAST, DONE, 1), (Verb.PUT_BACK, FAILED, 1)], True),
        ([(Verb.PUT_LAST, DONE, 1), (Verb.DRAIN, DONE, 2), (Verb.RESUME, DONE, 2)], True),
        ([(Verb.PUT_LAST, DONE, 1), (Verb.PUT_BACK, DONE, 2), (Verb.PUT_LAST, DONE, 3)], True),
    ],
)
def test_a_mark_is_owed_until_it_was_taken_off_whichever_pass_set_it(
    autopilot: SmallAutopilot, acts: list[tuple[Verb, OutcomeKind | None, int]], is_owed: bool
) -> None:
    present, nodes = opened(autopilot, NodeStage.UPDATED)
    for verb, kind, number in acts:
        record(autopilot, verb, kind, try_number=number)
    last = [replace(each, try_number=max((number for *_, number in acts), default=1)) for each in nodes]

    assert bool(marked_canaries(present, last, autopilot.cluster)) is is_owed


def test_nodes_of_later_waves_were_never_marked(autopilot: SmallAutopilot) -> None:
    present, nodes = opened(autopilot, NodeStage.UPDATED)
    record(autopilot, Verb.PUT_LAST, on=GPU2)

    assert marked_canaries(present, nodes, autopilot.cluster) == ()


def test_a_mark_is_taken_off_once(autopilot: SmallAutopilot) -> None:
    present, nodes = opened(autopilot, NodeStage.UPDATED)
    autopilot.cluster.scheduler.put_last(GPU1)
    record(autopilot, Verb.PUT_LAST)

    for _ in range(3):
        put_back_canaries(present, nodes, autopilot.cluster, lease=autopilot.lease)
        autopilot.let_pass(1)

    assert not autopilot.node(GPU1).is_last_choice
    assert marked_canaries(present, nodes, autopilot.cluster) == ()


# -- wide jobs --


def keep_off(
    autopilot: SmallAutopilot, nodes: Collection[RolloutNode], exclusions: Exclusions, *jobs: JobStatus
) -> Rollout:
    present = autopilot.cluster.ledger.rollout(FIRST)
    assert present is not None
    cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", exclusions))
    return keep_wide_jobs_off(present, nodes, jobs, cluster, lease=autopilot.lease)


def test_who_is_kept_off_stands_in_the_ledger_before_the_scheduler_is_told_and_until_it_was_told_otherwise(
    autopilot: SmallAutopilot,
) -> None:
    _, nodes = opened(autopilot, NodeStage.SOAKING, state=RolloutState.SOAKING)
    exclusions = Exclusions(autopilot.cluster)

    soaks = keep_off(autopilot, nodes, exclusions, waiting())
    over = keep_off(autopilot, [replace(each, stage=NodeStage.UPDATED) for each in nodes], exclusions, waiting(GPU1))

    assert (soaks.kept_off, over.kept_off) == ({WIDE: (GPU1,)}, {})
    assert exclusions.kept_when_told == [{WIDE: (GPU1,)}, {WIDE: (GPU1,)}]
    assert exclusions.of == {WIDE: set()}
    assert autopilot.cluster.ledger.rollout(FIRST) == over


def test_a_scheduler_that_does_not_answer_leaves_a_trace_of_what_it_may_have_done(autopilot: SmallAutopilot) -> None:
    _, nodes = opened(autopilot, NodeStage.SOAKING, state=RolloutState.SOAKING)

    with pytest.raises(SourceUnavailable):
        keep_off(autopilot, nodes, Exclusions(autopilot.cluster, is_silent=True), waiting())

    known = autopilot.cluster.ledger.rollout(FIRST)
    assert known is not None
    assert known.kept_off == {WIDE: (GPU1,)}


def test_where_nothing_changes_nothing_is_written(autopilot: SmallAutopilot) -> None:
    present, nodes = opened(autopilot, NodeStage.UPDATED)
    head = autopilot.cluster.ledger.read_state(autopilot.clock.now()).head_seq

    assert keep_off(autopilot, nodes, Exclusions(autopilot.cluster), waiting()) == present
    assert autopilot.cluster.ledger.read_state(autopilot.clock.now()).head_seq == head


# -- who owes --


@pytest.mark.parametrize(
    ("ago", "is_owing"), [(DAY - timedelta(seconds=1), True), (DAY, True), (DAY + timedelta(seconds=1), False)]
)
def test_what_is_over_is_looked_after_for_a_day(autopilot: SmallAutopilot, ago: timedelta, is_owing: bool) -> None:
    since = autopilot.clock.now() - ago
    opened(autopilot, NodeStage.UPDATED, state=RolloutState.DONE, kept_off={WIDE: (GPU1,)}, since=since)

    assert bool(owing(autopilot.cluster)) is is_owing


@pytest.mark.parametrize(
    ("state", "changes", "is_owing"),
    [
        (RolloutState.DONE, {}, False),
        (RolloutState.DONE, {"kept_off": {WIDE: (GPU1,)}}, True),
        (RolloutState.ABORTED, {"kept_off": {WIDE: (GPU1,)}}, True),
        (RolloutState.RUNNING, {"kept_off": {WIDE: (GPU1,)}}, False),
    ],
)
def test_only_what_is_over_and_left_something_behind_owes(
    autopilot: SmallAutopilot, state: RolloutState, changes: dict[str, object], is_owing: bool
) -> None:
    opened(autopilot, NodeStage.UPDATED, state=state, **changes)

    assert bool(owing(autopilot.cluster)) is is_owing


def test_a_mark_that_was_left_is_owed_until_it_is_off(autopilot: SmallAutopilot) -> None:
    opened(autopilot, NodeStage.UPDATED, state=RolloutState.DONE)
    record(autopilot, Verb.PUT_LAST)
    before = owing(autopilot.cluster)
    record(autopilot, Verb.PUT_BACK)

    assert ([each.rollout for each in before], owing(autopilot.cluster)) == ([FIRST], ())
