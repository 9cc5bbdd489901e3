"""Marks on jobs of silent nodes: which are lacking, which have done their service, and what must hold before each."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import JobState, JobStatus, NodeStatus
from ops_pipelines.core.policy import FreezeWindow, Mode, Policy
from ops_pipelines.core.proof import Authority
from ops_pipelines.remediate.guardrails.judge import is_moot, judge
from ops_pipelines.remediate.job_moves import Marks, find_marks, standing_marks
from tests.domain.builders import (
    INCIDENT,
    NODE,
    NOW,
    OTHER_NODE,
    action,
    after,
    ago,
    attempt,
    begun,
    ended,
    facts,
    foreign_node,
    held_job,
    job,
    node,
    our_node,
    policy,
    topology,
)

SINCE = ago(5)
MARK = Action(verb=Verb.MARK, incident=INCIDENT, attempt=attempt(), part=SINCE.isoformat())
UNMARK = replace(MARK, verb=Verb.UNMARK)
SILENT = node(is_responding=False)
ANSWERS = node()
MARKED = job(is_held=True)


def mark(*nodes: str, kind: OutcomeKind = OutcomeKind.DONE, seconds_ago: float = 4) -> ActionRecord:
    on = frozenset(NodeName(name) for name in nodes or (NODE,))
    return ended(MARK, kind, seconds_ago=seconds_ago, attempt_nodes=on)


def found(
    *,
    nodes: Iterable[NodeStatus],
    jobs: Iterable[JobStatus],
    records: Iterable[ActionRecord] = (),
    since: datetime = SINCE,
) -> Marks:
    known = facts(nodes=list(nodes), jobs=list(jobs), records=list(records))
    silent = {each.node: since for each in known.nodes.values() if not each.is_responding}
    return find_marks(known, silent_since=silent, causes=dict.fromkeys(silent, INCIDENT))


@pytest.mark.parametrize(
    ("of", "is_marked"),
    [
        pytest.param(job(), True, id="a running one"),
        pytest.param(job(state=JobState.SUSPENDED), True, id="a suspended one"),
        pytest.param(job(state=JobState.COMPLETING), False, id="one that ends"),
        pytest.param(held_job(), False, id="one that waits"),
        pytest.param(job(is_requeueable=False), False, id="one that is started nowhere else"),
        pytest.param(job(is_held=True), False, id="one that is held"),
        pytest.param(job(nodes=(OTHER_NODE,)), False, id="one elsewhere"),
        pytest.param(job(nodes=(NODE, OTHER_NODE)), True, id="one of which another node answers"),
    ],
)
def test_running_job_of_a_silent_node_is_marked(of: JobStatus, is_marked: bool) -> None:
    marks = found(nodes=[SILENT, node(OTHER_NODE)], jobs=[of])

    assert marks.to_set == ((MARK,) if is_marked else ())
    assert marks.to_lift == ()


def test_one_silence_marks_an_attempt_once_and_the_next_anew() -> None:
    released = found(nodes=[SILENT], jobs=[job()], records=[mark()])
    later = found(nodes=[SILENT], jobs=[job()], records=[mark()], since=ago(1))

    assert released.to_set == ()
    assert [each.part for each in later.to_set] == [ago(1).isoformat()]


def test_attempt_on_two_silent_nodes_is_marked_once_for_the_first_silence() -> None:
    known = facts(nodes=[SILENT, node(OTHER_NODE, is_responding=False)], jobs=[job(nodes=(NODE, OTHER_NODE))])

    marks = find_marks(
        known,
        silent_since={NODE: ago(3), OTHER_NODE: SINCE},
        causes={NODE: INCIDENT, OTHER_NODE: INCIDENT},
    )

    assert marks.to_set == (MARK,)


CUT = ended(action(Verb.POWER_OFF, on=NODE), seconds_ago=2)


@pytest.mark.parametrize(
    ("state", "records", "is_lifted"),
    [
        pytest.param(SILENT, [mark()], False, id="its node is silent"),
        pytest.param(ANSWERS, [mark()], True, id="its node answers"),
        pytest.param(SILENT, [mark(), CUT], True, id="its node has lost its power since"),
        pytest.param(
            SILENT, [ended(CUT.action, seconds_ago=5), mark()], False, id="its node had lost its power before"
        ),
        pytest.param(SILENT, [mark(), ended(CUT.action, OutcomeKind.FAILED)], False, id="its power could not be cut"),
        pytest.param(SILENT, [mark(), ended(CUT.action, OutcomeKind.UNKNOWN)], False, id="nobody knows of its power"),
        pytest.param(ANSWERS, [mark(NODE, "gpu999")], False, id="another node of it is not known"),
        pytest.param(ANSWERS, [mark(kind=OutcomeKind.FAILED)], False, id="the mark was never set"),
        pytest.param(ANSWERS, [mark(), ended(UNMARK)], False, id="the mark was taken off"),
        pytest.param(ANSWERS, [mark(), ended(action(Verb.HOLD, of=attempt()))], False, id="a plan holds it"),
        pytest.param(ANSWERS, [], False, id="we never marked it"),
    ],
)
@pytest.mark.parametrize("of", [MARKED, held_job()], ids=["running", "given up"])
def test_mark_is_taken_off_when_every_node_is_answered_for(
    of: JobStatus, state: NodeStatus, records: list[ActionRecord], is_lifted: bool
) -> None:
    assert found(nodes=[state], jobs=[of], records=records).to_lift == ((UNMARK,) if is_lifted else ())


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(job(), id="released"),
        pytest.param(job(is_held=True, is_held_by_user=True), id="held by its user"),
        pytest.param(job(is_held=True, started_at=NOW), id="on another attempt"),
        pytest.param(job(state=JobState.CANCELLED, ended_at=NOW), id="cancelled"),
    ],
)
def test_job_that_is_not_held_by_our_mark_any_more_is_let_be(of: JobStatus) -> None:
    marks = found(nodes=[ANSWERS], jobs=[of], records=[mark()])

    assert marks.to_lift == ()
    assert standing_marks([mark()], {of.job: of}) == ()


def rule(what: Action, *, by: Policy | None = None, **known: Any) -> str | None:
    refusal = judge(what, facts(**known), policy=by or policy(), topology=topology(), authority=Authority.AUTOPILOT)
    return None if refusal is None else refusal.guardrail


FROZEN = policy(freeze_windows=(FreezeWindow(name="visit", begins_at=after(-60), ends_at=after(60)),))


@pytest.mark.parametrize(
    ("state", "by", "expected"),
    [
        pytest.param(SILENT, policy(), None, id="silent"),
        pytest.param(SILENT, FROZEN, None, id="in a freeze window"),
        pytest.param(ANSWERS, policy(), "silent_node", id="answers"),
        pytest.param(foreign_node(is_responding=False), policy(), "silent_node", id="drained by others"),
        pytest.param(SILENT, policy(untouchable_nodes=frozenset({NODE})), "silent_node", id="untouchable"),
        pytest.param(SILENT, policy(Mode.OBSERVE), "mode", id="observe"),
        pytest.param(SILENT, policy(Mode.APPROVE), "approval", id="approve"),
    ],
)
def test_what_must_hold_before_a_mark(state: NodeStatus, by: Policy, expected: str | None) -> None:
    assert rule(MARK, by=by, nodes=[state], jobs=[job()]) == expected


def test_mark_needs_no_metrics_and_no_budget() -> None:
    assert rule(MARK, nodes=[SILENT], jobs=[job()], is_telemetry_available=False) is None


@pytest.mark.parametrize(
    ("state", "of", "records", "expected"),
    [
        pytest.param(ANSWERS, MARKED, [mark()], None, id="answers"),
        pytest.param(our_node(), MARKED, [mark()], None, id="answers, and is drained by us"),
        pytest.param(SILENT, held_job(), [mark(), CUT], None, id="without power"),
        pytest.param(SILENT, MARKED, [mark()], "silent_node", id="silent"),
        pytest.param(SILENT, held_job(), [mark()], "silent_node", id="given up and silent"),
        pytest.param(ANSWERS, job(state=JobState.COMPLETING, is_held=True), [mark()], "silent_node", id="still ending"),
        pytest.param(ANSWERS, MARKED, [], "our_mark", id="not marked"),
        pytest.param(ANSWERS, MARKED, [mark(), ended(action(Verb.HOLD, of=attempt()))], "our_mark", id="moved"),
        pytest.param(ANSWERS, job(is_held=True, started_at=NOW), [mark()], "same_attempt", id="another attempt"),
    ],
)
def test_what_must_hold_before_a_mark_is_taken_off(
    state: NodeStatus, of: JobStatus, records: list[ActionRecord], expected: str | None
) -> None:
    assert rule(UNMARK, nodes=[state], jobs=[of], records=records) == expected


def test_mark_is_let_go_without_a_yes_but_not_while_only_observing() -> None:
    known = {"nodes": [ANSWERS], "jobs": [MARKED], "records": [mark()]}

    assert rule(UNMARK, by=policy(Mode.APPROVE), **known) is None
    assert rule(UNMARK, by=policy(Mode.OBSERVE), **known) == "mode"


def test_hold_of_a_plan_takes_a_mark_of_ours_over_and_nobody_elses() -> None:
    hold = action(Verb.HOLD, of=attempt())
    ours = facts(nodes=[SILENT], jobs=[MARKED], records=[mark()])
    others = facts(nodes=[SILENT], jobs=[MARKED], records=[])

    assert is_moot(hold, ours) is None
    assert is_moot(hold, others) == "job 42 waits already; who held it releases it"


def test_mark_on_its_way_counts_and_one_that_lost_its_object_does_not() -> None:
    needless = replace(mark(), outcome=replace(mark().outcome, witness="not needed: job 42 has ended"))  # type: ignore[type-var]  # DONE
    known = {MARKED.job: MARKED}

    assert standing_marks([begun(MARK)], known) == (begun(MARK),)
    assert standing_marks([needless], known) == ()
