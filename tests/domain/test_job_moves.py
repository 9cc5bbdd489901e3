"""Jobs are moved in one order, each to a node that is really free, and never below what its service needs."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.fault import Family, FirstAction
from ops_pipelines.core.finding import Finding, Hazard, Response
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.incident import Try
from ops_pipelines.core.observation import (
    DETECTOR_SOURCE,
    Checkpointing,
    JobState,
    JobStatus,
    NodeState,
    NodeStatus,
    Signal,
    Workload,
)
from ops_pipelines.core.plan import Moment
from ops_pipelines.observe.rules import find
from ops_pipelines.remediate.job_moves import (
    ActionMaker,
    Move,
    count_moves,
    find_spare,
    has_surely_ended,
    hazard_for,
    is_leaving,
    is_still_serving,
    let_go_on,
    noticed_at,
    share_spares,
    take_off,
    time_jobs,
)
from tests.domain.builders import (
    CATALOGUE,
    NODE,
    OTHER_NODE,
    action,
    ago,
    attempt,
    begun,
    ended,
    facts,
    foreign_node,
    gpu_missing,
    held_job,
    incident,
    job,
    node,
    observation,
    policy,
    telemetry_stale,
    topology,
    unreachable,
    verdict,
    xid,
)

DEADLY = Hazard(family=Family.GPU, first_action=None, ends_job_per_hour=float("inf"), slowdown_ratio=0.0, source="test")
MILD = replace(DEADLY, ends_job_per_hour=0.05)
THIRD = "gpu003"
POLICY, TOPOLOGY = policy(), topology(4)
ORDER = (Verb.RESERVE, Verb.HOLD, Verb.FENCE, Verb.EXCLUDE, Verb.UNRESERVE, Verb.RELEASE)


def read(*jobs: JobStatus, **changes: Any) -> Any:
    return facts(jobs=jobs, node_count=4, **{"hazards": (DEADLY,)} | changes)


def spare(work: JobStatus | None = None, **changes: Any) -> NodeName | None:
    return find_spare(work or job(), read(work or job(), **changes), policy=POLICY, topology=TOPOLOGY)


# -- room -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param(foreign_node(OTHER_NODE), id="drained"),
        pytest.param(node(OTHER_NODE, is_responding=False), id="silent"),
        pytest.param(node(OTHER_NODE, state=NodeState.DOWN), id="down"),
        pytest.param(node(OTHER_NODE, state=NodeState.MIXED), id="in use"),
        pytest.param(node(OTHER_NODE, gpu_in_use_count=1), id="in use by what we cannot see"),
        pytest.param(node(OTHER_NODE, is_last_choice=True), id="on probation"),
        pytest.param(node(OTHER_NODE, reserved_as="somebody"), id="reserved"),
        pytest.param(node(OTHER_NODE, gpu_count=7), id="too small"),
        pytest.param(node(OTHER_NODE, partitions=frozenset({"debug"})), id="of another partition"),
    ],
)
def test_a_node_that_is_not_really_free_is_no_spare(taken: NodeStatus) -> None:
    assert spare(job(partition="batch"), nodes=[taken]) == THIRD


def test_the_nearest_free_node_is_taken_and_none_that_the_job_is_on_or_kept_off() -> None:
    assert spare() == OTHER_NODE
    assert spare(job(excluded_nodes=frozenset({NodeName(OTHER_NODE)}))) == THIRD
    assert spare(job(nodes=(NODE, OTHER_NODE), gpu_count=16)) == THIRD


def test_a_node_that_is_promised_to_another_job_is_no_spare() -> None:
    promised = begun(action(Verb.RESERVE, of=attempt("7")))  # It names the second node.

    assert spare(records=[promised]) == THIRD
    assert spare(records=[ended(action(Verb.RESERVE, of=attempt("7")))]) == OTHER_NODE


def test_an_untouchable_node_is_no_spare() -> None:
    hands_off = replace(POLICY, untouchable_nodes=frozenset({NodeName(OTHER_NODE)}))

    assert find_spare(job(), read(job()), policy=hands_off, topology=TOPOLOGY) == THIRD


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_no_node_is_kept_for_two_jobs(are_moved: list[bool]) -> None:
    jobs = [job(str(number), gpu_count=2) for number in range(len(are_moved))]
    timings = time_jobs(incident(xid(79)), jobs, read(*jobs), policy=POLICY, topology=TOPOLOGY)
    chosen = [
        replace(timing, moment=Moment.NOW if is_moved else Moment.JOB_END)
        for timing, is_moved in zip(timings, are_moved, strict=True)
    ]

    found = share_spares(jobs, chosen, read(*jobs), policy=POLICY, topology=TOPOLOGY)

    names = [name for names in found.values() for name in names]
    assert len(names) == len(set(names))
    assert len(names) == min(3, sum(are_moved))
    assert set(found) <= {JobId(str(number)) for number, is_moved in enumerate(are_moved) if is_moved}


# -- when -------------------------------------------------------------------------------------------------------------


LOST = incident(xid(79), gpu_missing())
"""A GPU that is gone by its log and by the metrics."""


def moment(work: JobStatus, *others: JobStatus, **changes: Any) -> Moment:
    timings = time_jobs(LOST, [work], read(work, *others, **changes), policy=POLICY, topology=TOPOLOGY)
    return timings[0].moment


def test_a_session_has_time_to_save_unless_its_node_is_silent() -> None:
    session = job(workload=Workload.INTERACTIVE)

    assert moment(session) is Moment.AFTER_NOTICE
    assert moment(session, nodes=[node(is_responding=False)]) is Moment.NOW


def replica(name: str, on: str, gpu_count: int = 8, **changes: Any) -> JobStatus:
    defaults = {"workload": Workload.INFERENCE, "service": "chat", "min_serving_count": 2, "checkpointed_at": None}
    return job(name, nodes=(on,), gpu_count=gpu_count, **defaults | changes)


@pytest.mark.parametrize(
    ("gpu_count", "expected"),
    [
        pytest.param(8, Moment.NOW, id="all GPUs of the node: it is dead, and serves nobody"),
        pytest.param(7, Moment.JOB_END, id="some: it may be on the others, and serve"),
    ],
)
def test_a_replica_that_may_still_serve_stays_while_its_service_needs_it(gpu_count: int, expected: Moment) -> None:
    assert moment(replica("1", NODE, gpu_count), replica("2", OTHER_NODE)) is expected


def test_a_replica_on_a_silent_node_is_moved_whatever_its_service_needs() -> None:
    assert moment(replica("1", NODE, 1), replica("2", OTHER_NODE), nodes=[node(is_responding=False)]) is Moment.NOW


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        pytest.param([replica("2", OTHER_NODE)], False, id="one other serves, two must"),
        pytest.param([replica("2", OTHER_NODE), replica("3", THIRD)], True, id="two others serve"),
        pytest.param(
            [replica("2", OTHER_NODE), replica("3", THIRD, is_held=True)], False, id="one of them is about to end"
        ),
        pytest.param(
            [replica("2", OTHER_NODE), replica("3", THIRD, account="other")], False, id="one is of another account"
        ),
    ],
)
def test_a_service_keeps_what_it_needs(others: list[JobStatus], expected: bool) -> None:
    mine = replica("1", NODE)

    assert is_still_serving(mine, read(mine, *others), policy=POLICY) is expected


@pytest.mark.parametrize(
    ("hazard", "work", "expected"),
    [
        pytest.param(DEADLY, job(gpu_count=8), True, id="it had every GPU"),
        pytest.param(DEADLY, job(gpu_count=7), False, id="it may have had the others"),
        pytest.param(DEADLY, job(nodes=(NODE, OTHER_NODE), gpu_count=16), True, id="every GPU of two nodes"),
        pytest.param(DEADLY, job(nodes=(NODE, OTHER_NODE), gpu_count=15), False, id="nearly every one"),
        pytest.param(MILD, job(gpu_count=8), False, id="the fault lets it continue"),
    ],
)
def test_only_what_had_the_broken_part_has_surely_ended(hazard: Hazard, work: JobStatus, expected: bool) -> None:
    assert has_surely_ended(work, LOST, read(work, hazards=(hazard,))) is expected


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        pytest.param([xid(79)], False, id="a line, while every GPU reports: it may be forged"),
        pytest.param([xid(79), verdict(2)], False, id="two lines of one log"),
        pytest.param([gpu_missing()], False, id="a series that is gone: the exporter may have lost it"),
        pytest.param([xid(79), telemetry_stale()], False, id="a line, and metrics that say nothing of the GPU"),
        pytest.param([xid(79), unreachable()], False, id="a line on a node that answers again"),
        pytest.param([xid(79), gpu_missing()], True, id="the log and the metrics"),
    ],
)
def test_replica_has_surely_ended_only_if_metrics_and_a_log_show_it(findings: list[Finding], expected: bool) -> None:
    mine = replica("1", NODE)

    assert has_surely_ended(mine, incident(*findings), read(mine)) is expected
    assert has_surely_ended(job(), incident(*findings), read(job()))
    assert has_surely_ended(mine, incident(*findings), read(mine, nodes=[node(is_responding=False)]))


def test_what_the_metrics_showed_before_a_repair_bears_no_witness_of_a_replica_that_began_after_it() -> None:
    found = incident(xid(79, seconds_ago=5), gpu_missing(seconds_ago=4000), tries=(TRIED,))
    mine = replica("1", NODE)

    assert has_surely_ended(mine, found, read(mine))
    assert not has_surely_ended(mine, found, read(mine, records=[RETURNED]))


def hung(job_name: str, *, seconds_ago: float) -> Finding:
    """Return the finding that a job has stopped, since so long ago."""
    seen = observation(Signal.JOB_HUNG, seconds_ago=seconds_ago, source=DETECTOR_SOURCE)
    return find(replace(seen, job=JobId(job_name)), CATALOGUE)


BEGAN_AGO = 3600
STALLS = replace(DEADLY, family=Family.STALL)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        pytest.param([xid(79, seconds_ago=BEGAN_AGO + 1)], False, id="logged before it began"),
        pytest.param([xid(79, seconds_ago=BEGAN_AGO)], True, id="logged as it began"),
        pytest.param([xid(79, seconds_ago=BEGAN_AGO - 1)], True, id="logged since it began"),
        pytest.param([gpu_missing(seconds_ago=BEGAN_AGO + 1)], True, id="a GPU that is gone is gone for it, too"),
        pytest.param([hung("42", seconds_ago=BEGAN_AGO + 1)], False, id="its attempt before this one hung"),
        pytest.param([hung("42", seconds_ago=BEGAN_AGO - 1)], True, id="it hangs"),
        pytest.param([hung("43", seconds_ago=BEGAN_AGO - 1)], False, id="another job hangs"),
    ],
)
def test_only_what_may_have_hit_this_attempt_has_surely_ended_it(findings: list[Finding], expected: bool) -> None:
    work = job(started_at=ago(BEGAN_AGO))

    assert has_surely_ended(work, incident(*findings), read(work, hazards=(DEADLY, STALLS))) is expected


def test_old_line_and_a_hang_of_an_earlier_attempt_bear_no_witness_of_a_replica() -> None:
    mine = replace(replica("1", NODE), started_at=ago(10))
    of_before = [xid(79, seconds_ago=11), hung(mine.job, seconds_ago=11)]
    of_now = [xid(79, seconds_ago=9), hung(mine.job, seconds_ago=9)]

    assert not has_surely_ended(mine, incident(*of_before), read(mine, hazards=(DEADLY, STALLS)))
    assert has_surely_ended(mine, incident(*of_now), read(mine, hazards=(DEADLY, STALLS)))


TRIED = Try(response=Response.REBOOT_NODE, ended_at=ago(1), why="a relapse")
RETURNED = ended(action(Verb.RESUME, on=NODE), seconds_ago=1000)


def test_after_a_relapse_only_what_was_seen_since_the_return_counts() -> None:
    """The jobs on the node began after its repair: what was repaired then has not ended them."""
    weak = replace(xid(48, seconds_ago=10), first_action=FirstAction.RESET_GPU_AT_JOB_END)
    strong_before, strong_after = xid(79, seconds_ago=4000), xid(79, seconds_ago=5)
    hazards = (
        replace(DEADLY, family=None, first_action=FirstAction.REBOOT_NODE),
        replace(MILD, family=None, first_action=FirstAction.RESET_GPU_AT_JOB_END),
    )
    known = read(hazards=hazards, records=[RETURNED])

    assert not hazard_for(incident(strong_before, weak, tries=(TRIED,)), known).has_ended_job
    assert hazard_for(incident(strong_before, strong_after, tries=(TRIED,)), known).has_ended_job
    assert hazard_for(incident(strong_before, weak, tries=(TRIED,)), read(hazards=hazards)).has_ended_job


@pytest.mark.parametrize(
    ("response", "is_responding", "expected"),
    [
        pytest.param(Response.POWER_CYCLE, True, False, id="a rung of the ladder: the node answers"),
        pytest.param(Response.POWER_CYCLE, False, True, id="silent"),
        pytest.param(Response.REBOOT_NODE, False, False, id="silent for a moment, and not for that"),
    ],
)
def test_after_a_relapse_a_silent_node_has_ended_its_jobs(
    response: Response, is_responding: bool, expected: bool
) -> None:
    weak = replace(xid(48, seconds_ago=10), first_action=FirstAction.RESET_GPU_AT_JOB_END)
    known = read(hazards=(MILD,), records=[RETURNED], nodes=[node(is_responding=is_responding)])

    assert hazard_for(incident(weak, response=response, tries=(TRIED,)), known).has_ended_job is expected


def test_without_a_return_or_without_rates_nothing_is_hoped_for() -> None:
    mild = incident(replace(xid(48), first_action=FirstAction.RESET_GPU_AT_JOB_END))

    assert not hazard_for(mild, read(hazards=(MILD,))).has_ended_job
    assert hazard_for(replace(mild, response=Response.POWER_CYCLE), read(hazards=(MILD,))).has_ended_job
    assert hazard_for(mild, read(hazards=())).has_ended_job


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, Moment.NOW, id="it died with its node"),
        pytest.param({"is_requeueable": False}, Moment.NEVER, id="nobody may start it again"),
    ],
)
def test_a_job_that_keeps_no_checkpoints_is_held_on_a_silent_node(changes: dict[str, Any], expected: Moment) -> None:
    unsaved = job(checkpointing=Checkpointing.NO, **changes)

    assert moment(unsaved) is Moment.NEVER
    assert moment(unsaved, nodes=[node(is_responding=False)]) is expected


# -- what is counted --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        pytest.param(begun(action(Verb.HOLD, of=attempt("42", started_at=ago(9000)))), 1, id="an earlier attempt"),
        pytest.param(begun(action(Verb.HOLD, of=attempt("42"))), 0, id="the present attempt"),
        pytest.param(begun(action(Verb.HOLD, of=attempt("7"))), 0, id="another job"),
        pytest.param(
            begun(action(Verb.HOLD, of=attempt("42", started_at=ago(90_000))), seconds_ago=86_400), 0, id="a day ago"
        ),
        pytest.param(
            begun(action(Verb.HOLD, of=attempt("42", started_at=ago(90_000))), seconds_ago=86_399), 1, id="just within"
        ),
    ],
)
def test_moves_of_a_job_are_counted_by_its_earlier_attempts(record: Any, expected: int) -> None:
    assert count_moves(job(), read(job(), records=[record]), policy=POLICY) == expected


def test_an_owner_was_told_when_the_first_message_of_this_attempt_went_out() -> None:
    told = [
        ended(action(Verb.NOTIFY_OWNER, of=attempt("42")), seconds_ago=20),
        ended(action(Verb.NOTIFY_OWNER, of=attempt("42"), try_number=2), seconds_ago=5),
        ended(action(Verb.NOTIFY_OWNER, of=attempt("42", started_at=ago(9000))), seconds_ago=900),
        begun(action(Verb.NOTIFY_OWNER, of=attempt("42"), try_number=3), seconds_ago=60),
    ]

    assert noticed_at(job(), read(job(), records=told)) == ago(20)
    assert noticed_at(job(), read(job(), records=told[2:])) is None


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        pytest.param(job(), False, id="running"),
        pytest.param(job(state=JobState.COMPLETING), False, id="completing, to be requeued"),
        pytest.param(job(state=JobState.COMPLETING, ended_at=ago(1)), True, id="completing, at its end"),
        pytest.param(held_job(state=JobState.COMPLETING), True, id="requeued by somebody already"),
    ],
)
def test_what_is_leaving_is_not_held(work: JobStatus, expected: bool) -> None:
    assert is_leaving(work) is expected


# -- the order --------------------------------------------------------------------------------------------------------


MOVES = st.lists(
    st.builds(
        Move,
        attempt=st.integers(1, 99).map(lambda number: attempt(str(number))),
        moment=st.just(Moment.NOW),
        is_held=st.booleans(),
        spares=st.sampled_from([(), (NodeName(OTHER_NODE),)]),
    ),
    max_size=5,
    unique_by=lambda move: move.attempt,
)


@given(MOVES)
def test_each_job_is_moved_in_one_order_and_no_other(moves: list[Move]) -> None:
    act = ActionMaker(incident(xid(79)))
    actions: list[Action] = [*take_off(act, moves), *let_go_on(act, moves, NodeName(NODE))]

    for move in moves:
        verbs = [each.verb for each in actions if each.attempt == move.attempt]
        left_out = ({Verb.HOLD} if move.is_held else set()) | (set() if move.spares else {Verb.RESERVE, Verb.UNRESERVE})
        assert verbs == [verb for verb in ORDER if verb not in left_out]
