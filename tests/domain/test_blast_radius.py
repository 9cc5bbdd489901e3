"""The proof of a plan: what it touches, what remains, and each limit that it would break."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import Action, ActionRecord, Verb
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.plan import BlastRadius, JobTiming, Moment, Option, Remaining, RestartCosts, TouchedJob
from ops_pipelines.core.policy import BlastCaps, DrainBudget, Policy
from ops_pipelines.core.proof import Authority, Patience
from ops_pipelines.remediate.guardrails.blast_radius import judge_proof, prove
from ops_pipelines.remediate.guardrails.facts import ClusterFacts
from ops_pipelines.remediate.guardrails.judge import judge
from tests.domain.builders import (
    NODE,
    NOW,
    OTHER_NODE,
    action,
    ago,
    attempt,
    begun,
    ended,
    facts,
    foreign_node,
    job,
    node,
    node_names,
    our_drain,
    our_node,
    policy,
    topology,
)

DRAIN = action(Verb.DRAIN, on=NODE)
HOLD = action(Verb.HOLD, of=attempt())
RELEASE = action(Verb.RELEASE, of=attempt())
COSTS = RestartCosts(restart_seconds=300, queue_seconds=60)


def proof_of(
    *actions: Action,
    known: ClusterFacts | None = None,
    timings: Sequence[JobTiming] = (),
    by: Policy | None = None,
) -> BlastRadius:
    return prove(actions, timings, known or facts(), policy=by or policy(), topology=topology())


def part(proof: BlastRadius, kind: str) -> Remaining:
    return next(each for each in proof.remaining if each.kind == kind)


def test_a_job_that_is_held_is_interrupted_and_one_on_the_node_is_waited_for() -> None:
    known = facts(jobs=[job(checkpointed_at=ago(1440)), job("43"), job("44", nodes=(OTHER_NODE,))], costs=COSTS)

    proof = proof_of(DRAIN, HOLD, known=known)

    assert proof.jobs == (
        TouchedJob(job="42", account="research", gpu_count=8, lost_gpu_hours=4.0, is_interrupted=True),
        TouchedJob(job="43", account="research", gpu_count=8, lost_gpu_hours=0.0, is_interrupted=False),
    )
    assert proof.lost_gpu_hours == pytest.approx(4.0)
    assert proof.teams == ("research: 16 of 24 running GPUs",)


def test_a_loss_that_nobody_knows_is_unknown_and_not_nothing() -> None:
    proof = proof_of(DRAIN, HOLD, known=facts(jobs=[job(checkpointed_at=None)]))

    assert (proof.jobs[0].lost_gpu_hours, proof.lost_gpu_hours, proof.unknown_loss_count) == (None, 0.0, 1)


def test_the_loss_is_that_of_the_chosen_moment() -> None:
    timing = JobTiming(
        attempt=attempt(),
        moment=Moment.NEXT_CHECKPOINT,
        options=(
            Option(moment=Moment.NEXT_CHECKPOINT, lost_gpu_hours=1.5, why=""),
            Option(moment=Moment.NOW, lost_gpu_hours=9.0, why=""),
        ),
        decided_at=NOW,
        checkpointed_at=None,
        until=None,
        reason="",
    )

    assert proof_of(HOLD, known=facts(jobs=[job()]), timings=[timing]).lost_gpu_hours == 1.5


def test_a_plan_that_only_tells_people_touches_nothing() -> None:
    proof = proof_of(action(Verb.PAGE_HUMAN), action(Verb.NOTIFY_OWNER, of=attempt()), known=facts(jobs=[job()]))

    assert proof == BlastRadius(
        jobs=(), teams=(), lost_gpu_hours=0.0, unknown_loss_count=0, remaining=(), violations=()
    )


def test_what_remains_is_counted_for_every_part_of_the_node() -> None:
    gpus = frozenset({"gpus"})
    nodes = [node(name, partitions=gpus) for name in node_names(8)]
    known = facts(nodes=[*nodes[:3], replace(foreign_node("gpu004"), partitions=gpus), *nodes[4:]])

    proof = proof_of(DRAIN, known=known)

    counts = {
        each.kind: (each.name, each.total_count, each.out_before_count, each.out_after_count)
        for each in proof.remaining
    }
    assert counts == {
        "cluster": ("", 40, 1, 2),
        "partition": ("gpus", 8, 1, 2),
        "rack": ("r00", 4, 1, 2),
        "leaf_switch": ("s0", 8, 1, 2),
        "nvlink_domain": (NODE, 1, 0, 1),
    }
    assert part(proof, "rack").limit == "max_out_per_rack_count is 2"
    assert part(proof, "nvlink_domain").limit == ""


@pytest.mark.parametrize(
    ("out_count", "is_broken"),
    [
        pytest.param(2, False, id="one left"),
        pytest.param(3, False, id="the last one"),
        pytest.param(4, True, id="one too many"),
    ],
)
def test_a_broken_limit_is_told_and_the_plan_waits(out_count: int, is_broken: bool) -> None:
    known = facts(nodes=[foreign_node(name) for name in node_names(40)[20 : 20 + out_count]])
    by = policy(drain_budget=DrainBudget(max_out_count=4, max_out_per_rack_count=9))

    proof = proof_of(DRAIN, known=known, by=by)
    refusal = judge_proof(proof)

    assert bool(proof.violations) is is_broken
    assert (refusal is not None) is is_broken
    if refusal is not None:
        assert (refusal.guardrail, refusal.patience) == ("blast_radius", Patience.WAIT)
        assert refusal.reason == "5 of 40 nodes of the cluster would be out; max_out_count is 4"


def test_what_others_broke_already_does_not_hold_a_plan_back_that_takes_nothing_more() -> None:
    out = [our_node(), *(foreign_node(name) for name in node_names(40)[8:14])]

    assert proof_of(DRAIN, known=facts(nodes=out, records=[our_drain()])).violations == ()


def test_a_plan_without_a_proof_needs_none() -> None:
    assert judge_proof(None) is None


@pytest.mark.parametrize(("cap", "is_broken"), [(1, True), (2, False), (3, False)])
def test_one_plan_interrupts_so_many_jobs(cap: int, is_broken: bool) -> None:
    by = policy(blast_caps=BlastCaps(max_jobs_per_plan_count=cap))
    known = facts(jobs=[job(), job("43")])

    assert bool(proof_of(HOLD, action(Verb.HOLD, of=attempt("43")), known=known, by=by).violations) is is_broken


@pytest.mark.parametrize(("cap", "is_broken"), [(3.9, True), (4.0, False), (4.1, False)])
def test_one_plan_loses_so_many_gpu_hours(cap: float, is_broken: bool) -> None:
    by = policy(blast_caps=BlastCaps(max_gpu_hours_per_plan=cap))
    known = facts(jobs=[job(checkpointed_at=ago(1440))], costs=COSTS)

    assert bool(proof_of(HOLD, known=known, by=by).violations) is is_broken


@pytest.mark.parametrize(
    ("before", "is_broken"),
    [
        pytest.param(ended(action(Verb.HOLD, of=attempt("7")), seconds_ago=9, lost_gpu_hours=6.0), False, id="used up"),
        pytest.param(ended(action(Verb.HOLD, of=attempt("7")), seconds_ago=9, lost_gpu_hours=6.1), True, id="passed"),
        pytest.param(
            ended(action(Verb.HOLD, of=attempt("7")), seconds_ago=3600, lost_gpu_hours=6.1), False, id="an hour ago"
        ),
        pytest.param(begun(HOLD, lost_gpu_hours=6.1), False, id="of the same attempt"),
    ],
)
def test_one_hour_loses_so_many_gpu_hours(before: ActionRecord, is_broken: bool) -> None:
    by = policy(blast_caps=BlastCaps(max_gpu_hours_per_hour=10.0))
    known = facts(jobs=[job(checkpointed_at=ago(1440))], records=[before], costs=COSTS)

    assert bool(proof_of(HOLD, known=known, by=by).violations) is is_broken


def replicas(count: int) -> list[JobStatus]:
    return [
        job(str(42 + index), nodes=(name,), service="chat", min_serving_count=2)
        for index, name in enumerate(node_names(count))
    ]


@pytest.mark.parametrize(
    ("actions", "count", "is_broken"),
    [
        pytest.param((HOLD,), 2, False, id="one at a time waits by itself"),
        pytest.param((HOLD, action(Verb.HOLD, of=attempt("43"))), 4, False, id="two at once where two are left"),
        pytest.param((HOLD, action(Verb.HOLD, of=attempt("43"))), 3, True, id="two at once where one is left"),
        pytest.param((HOLD, RELEASE, action(Verb.HOLD, of=attempt("43"))), 3, False, id="one after the other"),
    ],
)
def test_replicas_are_moved_one_after_the_other(actions: tuple[Action, ...], count: int, is_broken: bool) -> None:
    proof = proof_of(*actions, known=facts(jobs=replicas(count)))

    assert bool(proof.violations) is is_broken
    assert part(proof, "service").name == "chat of research"
    assert part(proof, "service").limit == "2 must serve"


@given(
    out=st.sets(st.sampled_from(node_names(40)[1:]), max_size=12),
    max_out=st.integers(0, 12),
    in_rack=st.integers(0, 4),
    ratio=st.sampled_from([0.0, 0.5, 0.8, 0.9]),
    per_leaf=st.sampled_from([None, 1, 2, 8]),
    per_partition=st.sampled_from([0.1, 0.5, 1.0]),
)
def test_proof_and_guardrail_agree_on_a_drain(
    out: set[str], max_out: int, in_rack: int, ratio: float, per_leaf: int | None, per_partition: float
) -> None:
    """They count by different means; where they differ one of them is wrong."""
    by = policy(
        drain_budget=DrainBudget(
            max_out_count=max_out, max_out_per_rack_count=in_rack, min_in_service_ratio=ratio, max_new_per_hour_count=99
        ),
        blast_caps=BlastCaps(max_out_per_leaf_count=per_leaf, max_out_per_partition_ratio=per_partition),
    )
    halves = [frozenset({"left"}), frozenset({"right"})]
    nodes = [
        replace(foreign_node(name) if name in out else node(name), partitions=halves[index % 2])
        for index, name in enumerate(node_names(40))
    ]
    known = facts(nodes=nodes)

    refusal = judge(DRAIN, known, policy=by, topology=topology(), authority=Authority.AUTOPILOT)

    assert (refusal is None) is (proof_of(DRAIN, known=known, by=by).violations == ())
