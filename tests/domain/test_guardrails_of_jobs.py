"""What jobs and services may lose by us: how often, how much, and what must continue serving."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import Checkpointing, JobState, JobStatus, NodeState, NodeStatus, Workload
from ops_pipelines.core.plan import RestartCosts
from ops_pipelines.core.policy import BlastCaps, Policy, RecoveryLimits
from ops_pipelines.core.proof import Authority, Patience, Refusal
from ops_pipelines.remediate.guardrails.budgets import must_serve
from ops_pipelines.remediate.guardrails.facts import Blow, ClusterFacts, expected_loss, stricken_nodes
from ops_pipelines.remediate.guardrails.judge import judge
from ops_pipelines.resources.catalogue_files import read_hazards
from tests.domain.builders import (
    INCIDENT,
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
    incident,
    job,
    node,
    policy,
    topology,
    xid,
)

HOLD = action(Verb.HOLD, of=attempt())
DAY_SECONDS = 86_400


def judged(what: Action, known: ClusterFacts, *, by: Policy | None = None) -> Refusal | None:
    return judge(what, known, policy=by or policy(), topology=topology(), authority=Authority.AUTOPILOT)


def rule_of(refusal: Refusal | None) -> str | None:
    return None if refusal is None else refusal.guardrail


def hold_of(number: int, *, seconds_ago: float, **changes: object) -> ActionRecord:
    """Return a hold of the `number`th earlier attempt of job 42, for whatever incident."""
    earlier = attempt(started_at=ago(100_000 + number))
    return ended(action(Verb.HOLD, of=earlier, incident=f"INC-{number:04d}"), seconds_ago=seconds_ago, **changes)  # type: ignore[arg-type]  # a test's own changes


# -- how often --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "rule"),
    [
        pytest.param([], None, id="never"),
        pytest.param([hold_of(1, seconds_ago=9), hold_of(2, seconds_ago=8)], None, id="one left"),
        pytest.param([hold_of(n, seconds_ago=9) for n in (1, 2, 3)], "requeue_limit", id="as often as allowed"),
        pytest.param([hold_of(n, seconds_ago=9) for n in (1, 2, 3, 4)], "requeue_limit", id="more often"),
        pytest.param(
            [hold_of(1, seconds_ago=DAY_SECONDS), *(hold_of(n, seconds_ago=9) for n in (2, 3))], None, id="a day ago"
        ),
        pytest.param(
            [hold_of(1, seconds_ago=DAY_SECONDS - 1), *(hold_of(n, seconds_ago=9) for n in (2, 3))],
            "requeue_limit",
            id="within a day",
        ),
        pytest.param([replace(hold_of(1, seconds_ago=9)) for _ in range(4)], None, id="one attempt held again"),
        pytest.param([ended(HOLD) for _ in range(4)], None, id="this very attempt"),
        pytest.param(
            [ended(action(Verb.HOLD, of=attempt(started_at=ago(n))), OutcomeKind.FAILED) for n in (4000, 5000, 6000)],
            None,
            id="holds that failed",
        ),
    ],
)
def test_a_requeue_loop_is_stopped(records: list[ActionRecord], rule: str | None) -> None:
    refusal = judged(HOLD, facts(jobs=[job()], records=records))

    assert rule_of(refusal) == rule
    assert refusal is None or refusal.patience is Patience.NEVER


def test_a_limit_of_no_requeues_means_that_no_job_is_moved() -> None:
    by = policy(recovery=RecoveryLimits(max_requeues_count=0))

    assert rule_of(judged(HOLD, facts(jobs=[job()]), by=by)) == "requeue_limit"


@pytest.mark.parametrize(
    ("is_silent", "has_ended", "rule"),
    [
        pytest.param(True, True, None, id="it died with its node: the scheduler starts it again anyway"),
        pytest.param(False, True, "requeue_limit", id="its node answers again"),
        pytest.param(True, False, "requeue_limit", id="another fault, and the other node may come back"),
    ],
)
def test_no_limit_keeps_a_dead_job_from_its_fence(is_silent: bool, has_ended: bool, rule: str | None) -> None:
    often = [hold_of(number, seconds_ago=9) for number in (1, 2, 3)]
    known = facts(nodes=[node(is_responding=not is_silent)], jobs=[job()], records=often)
    unsaved = facts(nodes=[node(is_responding=not is_silent)], jobs=[job(checkpointing=Checkpointing.NO)])
    hold = replace(HOLD, has_ended=has_ended)

    assert rule_of(judged(hold, known)) == rule
    assert rule_of(judged(hold, unsaved)) == (rule and "requeueable")


@pytest.mark.parametrize(
    ("checkpointing", "rule"),
    [(Checkpointing.YES, None), (Checkpointing.UNKNOWN, None), (Checkpointing.NO, "requeueable")],
)
def test_a_job_that_keeps_no_checkpoint_is_left_running(checkpointing: Checkpointing, rule: str | None) -> None:
    refusal = judged(HOLD, facts(jobs=[job(checkpointing=checkpointing)]))

    assert rule_of(refusal) == rule
    assert refusal is None or refusal.patience is Patience.NEVER


# -- how much ---------------------------------------------------------------------------------------------------


def test_the_loss_is_the_recomputed_work_and_the_time_until_it_goes_on() -> None:
    known = facts(costs=RestartCosts(restart_seconds=300, queue_seconds=60))

    assert expected_loss(job(checkpointed_at=ago(1440)), known) == pytest.approx(8 * 0.5)
    assert expected_loss(job(checkpointed_at=None), known) is None


@pytest.mark.parametrize(
    ("lost_before", "seconds_ago", "rule"),
    [
        pytest.param(5.9, 10, None, id="room is left"),
        pytest.param(6.0, 10, None, id="exactly used up"),
        pytest.param(6.1, 10, "hourly_loss", id="passed"),
        pytest.param(6.1, 3599, "hourly_loss", id="within the hour"),
        pytest.param(6.1, 3600, None, id="an hour ago"),
        pytest.param(None, 10, "hourly_loss", id="a loss that nobody knew: the whole attempt"),
    ],
)
def test_the_holds_of_one_hour_may_cost_so_much(
    lost_before: float | None, seconds_ago: float, rule: str | None
) -> None:
    by = policy(blast_caps=BlastCaps(max_gpu_hours_per_hour=10.0))
    before = ended(action(Verb.HOLD, of=attempt("7")), seconds_ago=seconds_ago, lost_gpu_hours=lost_before, gpu_count=8)

    known = facts(jobs=[job(checkpointed_at=ago(1440))], records=[before])

    assert rule_of(judged(HOLD, known, by=by)) == rule


@pytest.mark.parametrize(
    ("cap", "workload", "rule"),
    [
        pytest.param(8.0, Workload.TRAINING, None, id="eight GPUs for an hour: just allowed"),
        pytest.param(7.9, Workload.TRAINING, "hourly_loss", id="more than allowed"),
        pytest.param(0.0, Workload.INFERENCE, None, id="a replica keeps no work that could be lost"),
    ],
)
def test_a_loss_that_nobody_knows_is_charged_as_the_whole_attempt(
    cap: float, workload: Workload, rule: str | None
) -> None:
    by = policy(blast_caps=BlastCaps(max_gpu_hours_per_hour=cap))
    unknown = job(checkpointed_at=None, workload=workload)

    assert rule_of(judged(HOLD, facts(jobs=[unknown]), by=by)) == rule
    other = job("7", workload=workload)
    held = ended(action(Verb.HOLD, of=other.attempt), gpu_count=8)
    fresh = job(checkpointed_at=NOW)
    free = RestartCosts(restart_seconds=0, queue_seconds=0)
    assert rule_of(judged(HOLD, facts(jobs=[fresh, other], records=[held], costs=free), by=by)) == rule


def test_what_the_fault_had_ended_is_charged_to_nobody() -> None:
    by = policy(blast_caps=BlastCaps(max_gpu_hours_per_hour=4.0))
    dead = ended(replace(action(Verb.HOLD, of=attempt("7")), has_ended=True), gpu_count=8)

    assert judged(HOLD, facts(jobs=[job(checkpointed_at=ago(1440))], records=[dead]), by=by) is None


def test_the_hold_itself_is_not_counted_twice_when_it_is_sent_again() -> None:
    by = policy(blast_caps=BlastCaps(max_gpu_hours_per_hour=4.0))
    known = facts(jobs=[job(checkpointed_at=ago(1440))], records=[begun(HOLD, lost_gpu_hours=4.0)])

    assert judged(HOLD, known, by=by) is None


# -- services ---------------------------------------------------------------------------------------------------


def replicas(count: int, **changes: object) -> list[JobStatus]:
    """Return job 42 on gpu001 and its fellows on the nodes after it, all of one service."""
    names = ["42", *(str(100 + number) for number in range(1, count))]
    return [
        job(name, **{"nodes": (f"gpu{number:03d}",), "service": "chat", **changes})  # type: ignore[arg-type]  # as above
        for number, name in enumerate(names, start=1)
    ]


@pytest.mark.parametrize(
    ("count", "declared", "rule"),
    [
        pytest.param(4, 2, None, id="more than enough others"),
        pytest.param(4, 3, None, id="just enough others"),
        pytest.param(4, 4, "min_serving", id="one too few"),
        pytest.param(4, 0, None, id="half of four, by policy"),
        pytest.param(2, 0, None, id="half of two"),
        pytest.param(1, 0, "min_serving", id="half of one is one"),
        pytest.param(3, 0, None, id="half of three is two"),
    ],
)
def test_a_replica_is_moved_only_while_enough_others_serve(count: int, declared: int, rule: str | None) -> None:
    refusal = judged(HOLD, facts(jobs=replicas(count, min_serving_count=declared)))

    assert rule_of(refusal) == rule
    assert refusal is None or refusal.patience is Patience.WAIT


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        pytest.param({}, None, id="serves"),
        pytest.param({"state": JobState.PENDING, "nodes": frozenset()}, "min_serving", id="waits"),
        pytest.param({"is_held": True}, "min_serving", id="is held"),
        pytest.param({"nodes": frozenset({NodeName("gpu009")})}, "min_serving", id="its node is silent"),
        pytest.param({"nodes": frozenset({NodeName("gpu010")})}, "min_serving", id="its node is down"),
        pytest.param({"nodes": frozenset({NodeName("gpu011")})}, None, id="its node is drained, and it serves"),
        pytest.param({"service": "search"}, "min_serving", id="another service"),
        pytest.param({"account": "rivals"}, "min_serving", id="a namesake of another account"),
    ],
)
def test_only_what_serves_counts(changes: dict[str, object], rule: str | None) -> None:
    mine, other = replicas(2, min_serving_count=1)
    nodes = [node("gpu009", is_responding=False), node("gpu010", state=NodeState.DOWN), foreign_node("gpu011")]

    known = facts(nodes=nodes, jobs=[mine, replace(other, **changes)])  # type: ignore[arg-type]  # as above

    assert rule_of(judged(HOLD, known)) == rule


def test_a_service_is_not_worn_down_one_replica_after_the_other() -> None:
    jobs = replicas(4)
    moved_count = 0
    for index, mine in enumerate(jobs):
        if judged(action(Verb.HOLD, of=mine.attempt), facts(jobs=jobs)) is None:
            jobs[index] = replace(mine, state=JobState.PENDING, nodes=frozenset())
            moved_count += 1

    assert moved_count == 2


def test_another_account_cannot_keep_a_service_from_being_moved() -> None:
    rival = job("900", nodes=(OTHER_NODE,), service="chat", account="rivals", min_serving_count=1000)

    assert judged(HOLD, facts(jobs=[*replicas(3), rival])) is None


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        pytest.param({"user": "mallory"}, None, id="another user's, where no account is known"),
        pytest.param({"user": "mallory", "state": JobState.PENDING, "nodes": frozenset()}, None, id="another's, waits"),
        pytest.param({"state": JobState.PENDING, "nodes": frozenset(), "is_held": True}, None, id="held, never ran"),
        pytest.param({}, "min_serving", id="the user's own, and runs"),
    ],
)
def test_only_running_replicas_of_the_same_owner_say_how_many_must_serve(
    changes: dict[str, object], rule: str | None
) -> None:
    loud = replicas(1, account="", min_serving_count=100_000)[0]
    loud = replace(loud, **{"job": JobId("900"), "nodes": frozenset({OTHER_NODE}), **changes})  # type: ignore[arg-type]

    refusal = judged(HOLD, facts(jobs=[*replicas(3, account="", min_serving_count=1), loud]))

    assert rule_of(refusal) == rule


def test_no_more_replicas_must_serve_than_run() -> None:
    jobs = replicas(3, min_serving_count=100_000)

    assert must_serve(jobs[0], facts(jobs=jobs), policy=policy()) == 3


def test_a_replica_on_a_silent_node_serves_nobody_and_is_moved_at_once() -> None:
    known = facts(nodes=[node(NODE, is_responding=False)], jobs=replicas(2, min_serving_count=2))

    assert judged(HOLD, known) is None


SILENCE = Blow(gpu_count=None, at=None, is_silence=True)
FELL_OFF = Blow(gpu_count=1, at=NOW)


@pytest.mark.parametrize(
    ("there", "blows", "expected"),
    [
        pytest.param(node(NODE, is_responding=False), (SILENCE,), None, id="still silent"),
        pytest.param(node(NODE, booted_at=ago(90_000)), (SILENCE,), "min_serving", id="answers again"),
        pytest.param(
            node(NODE, booted_at=None), (SILENCE,), "min_serving", id="answers again, nobody knows when it booted"
        ),
        pytest.param(node(NODE, booted_at=ago(60)), (SILENCE,), None, id="answers again after a boot"),
        pytest.param(node(NODE, booted_at=ago(90_000)), (SILENCE, FELL_OFF), None, id="another fault beside"),
        pytest.param(node(NODE), (Blow(gpu_count=1, at=ago(7200)),), "min_serving", id="another fault before it began"),
        pytest.param(node(NODE), (), "min_serving", id="nothing is known any more"),
    ],
)
def test_a_silence_that_is_over_has_ended_no_replica(
    there: NodeStatus, blows: tuple[Blow, ...], expected: str | None
) -> None:
    """A process that was suspended carries out what was true when it was planned (seed 4807 of the stories)."""
    jobs = replicas(2, min_serving_count=2, started_at=ago(3600))
    known = facts(nodes=[there], jobs=jobs, stricken={NODE: blows} if blows else {})

    assert rule_of(judged(replace(HOLD, has_ended=True), known)) == expected


ONE_GPU = Blow(gpu_count=1, at=NOW)


@pytest.mark.parametrize(
    ("blow", "expected"),
    [
        pytest.param(Blow(gpu_count=1, at=NOW), None, id="one GPU: two of three are left"),
        pytest.param(Blow(gpu_count=2, at=NOW), None, id="two GPUs: one is left"),
        pytest.param(Blow(gpu_count=3, at=NOW), "min_serving", id="as many GPUs as replicas"),
        pytest.param(Blow(gpu_count=None, at=NOW), "min_serving", id="the node as a whole"),
        pytest.param(Blow(gpu_count=None, at=ago(3600)), "min_serving", id="they began when it was last seen"),
        pytest.param(Blow(gpu_count=None, at=ago(3601)), None, id="they began after it"),
        pytest.param(Blow(gpu_count=None, at=None), "min_serving", id="it lasts"),
    ],
)
def test_as_many_replicas_are_in_doubt_as_a_fault_took_gpus(blow: Blow, expected: str | None) -> None:
    mine, *others = replicas(4, min_serving_count=1, started_at=ago(3600))
    there = [replace(each, nodes=frozenset({OTHER_NODE})) for each in others]

    assert rule_of(judged(HOLD, facts(jobs=[mine, *there], stricken={OTHER_NODE: (blow,)}))) == expected


def test_a_replica_over_two_stricken_nodes_is_in_doubt_once() -> None:
    mine, wide, other = replicas(3, min_serving_count=1)
    both = frozenset({OTHER_NODE, NodeName("gpu009")})
    jobs = [mine, replace(wide, nodes=both), replace(other, nodes=both)]
    known = facts(jobs=jobs, stricken=dict.fromkeys(both, (ONE_GPU,)))

    assert rule_of(judged(HOLD, known)) == "min_serving"


@pytest.mark.parametrize(
    ("on_the_other_node", "expected"), [(1, "min_serving"), (2, None), (3, None)], ids=["one", "two", "three"]
)
def test_of_the_replicas_on_a_stricken_node_one_is_not_counted_on(on_the_other_node: int, expected: str | None) -> None:
    """Which of them the fault has ended nobody knows, and it has ended one at most: each has GPUs of its own."""
    mine, *others = replicas(1 + on_the_other_node, min_serving_count=1)
    there = [replace(each, nodes=frozenset({OTHER_NODE})) for each in others]
    known = facts(jobs=[mine, *there], stricken={OTHER_NODE: (ONE_GPU,)})

    assert rule_of(judged(HOLD, known)) == expected


def test_a_replica_on_a_stricken_node_that_may_live_is_held_only_while_others_serve() -> None:
    mine, other = replicas(2, min_serving_count=1)
    alone = facts(jobs=[mine], stricken={NODE: (ONE_GPU,)})
    with_another = facts(jobs=[mine, replace(other, nodes=frozenset({OTHER_NODE}))], stricken={NODE: (ONE_GPU,)})

    assert rule_of(judged(HOLD, alone)) == "min_serving"
    assert judged(HOLD, with_another) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, {NODE}, id="open"),
        pytest.param({"state": IncidentState.ESCALATED}, {NODE}, id="left to people"),
        pytest.param({"state": IncidentState.RESOLVED}, set(), id="over"),
        pytest.param({"state": IncidentState.PROBATION, "returned_at": ago(1)}, set(), id="returned since"),
        pytest.param({"state": IncidentState.OPEN, "returned_at": ago(600)}, {NODE}, id="seen again since"),
    ],
)
def test_a_node_is_stricken_while_a_fault_that_ends_jobs_is_open_on_it(
    changes: dict[str, Any], expected: set[NodeName]
) -> None:
    lost = incident(xid(79, seconds_ago=60), **changes)
    mild = incident(xid(63, node=OTHER_NODE, seconds_ago=60), name="INC-0002")

    assert set(stricken_nodes([lost, mild], (), read_hazards())) == expected


def test_a_hold_under_way_counts_before_it_shows() -> None:
    jobs = replicas(3, min_serving_count=2)
    other = action(Verb.HOLD, of=jobs[1].attempt, incident="INC-0002")

    assert judged(HOLD, facts(jobs=jobs)) is None
    assert rule_of(judged(HOLD, facts(jobs=jobs, records=[begun(other, seconds_ago=600)]))) == "min_serving"
    assert judged(HOLD, facts(jobs=jobs, records=[begun(other, seconds_ago=601)])) is None


# -- spare nodes ------------------------------------------------------------------------------------------------


def reserve(*spares: str) -> Action:
    return Action(verb=Verb.RESERVE, incident=INCIDENT, attempt=attempt(), spares=tuple(map(NodeName, spares)))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        pytest.param({}, None, id="free"),
        pytest.param({"is_drained": True}, "free_spares", id="drained"),
        pytest.param({"state": NodeState.DOWN}, "free_spares", id="down"),
        pytest.param({"is_responding": False}, "free_spares", id="silent"),
        pytest.param({"gpu_in_use_count": 1}, "free_spares", id="in use by what is hidden from us"),
        pytest.param({"reserved_as": "maintenance"}, "free_spares", id="reserved by somebody"),
    ],
)
def test_only_free_nodes_are_kept_for_a_job(changes: dict[str, object], rule: str | None) -> None:
    refusal = judged(reserve("gpu008", "gpu009"), facts(nodes=[node("gpu009", **changes)], jobs=[job()]))

    assert rule_of(refusal) == rule
    assert refusal is None or refusal.patience is Patience.WAIT


def test_a_spare_with_a_job_on_it_is_none() -> None:
    busy = job("7", nodes=("gpu009",))

    assert rule_of(judged(reserve("gpu009"), facts(jobs=[job(), busy]))) == "free_spares"


@pytest.mark.parametrize(("spare", "rule"), [("gpu009", "untouchable"), ("stranger", "known_node")])
def test_a_node_that_is_not_ours_to_touch_is_no_spare(spare: str, rule: str) -> None:
    by = policy(untouchable_nodes=frozenset({NodeName("gpu009")}))

    refusal = judged(reserve("gpu008", spare), facts(nodes=[node("stranger")], jobs=[job()]), by=by)

    assert refusal is not None
    assert (refusal.guardrail, refusal.patience) == (rule, Patience.NEVER)


def test_a_reservation_is_given_back_although_its_job_is_gone() -> None:
    assert judged(action(Verb.UNRESERVE, of=attempt()), facts()) is None


def test_the_requeue_window_is_the_operators() -> None:
    by = policy(recovery=RecoveryLimits(max_requeues_count=1, requeue_window=timedelta(minutes=1)))

    assert judged(HOLD, facts(jobs=[job()], records=[hold_of(1, seconds_ago=60)]), by=by) is None
    assert rule_of(judged(HOLD, facts(jobs=[job()], records=[hold_of(1, seconds_ago=59)]), by=by)) == "requeue_limit"
