"""Parts of the cluster, freeze windows, the ladder, storms and returns: each limit at its boundary."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, MESSAGES, Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import IncidentId, PciAddress, Topology
from ops_pipelines.core.observation import JobState, JobStatus, NodeState, NodeStatus
from ops_pipelines.core.policy import BlastCaps, DrainBudget, FreezeWindow, LadderLimits, MassEvent, Policy
from ops_pipelines.core.proof import Authority, Patience, Refusal
from ops_pipelines.remediate.guardrails.facts import ClusterFacts
from ops_pipelines.remediate.guardrails.judge import are_stale, is_moot, judge
from tests.domain.builders import (
    GPU,
    INCIDENT,
    NODE,
    NOW,
    OTHER_GPU,
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
    node_names,
    our_drain,
    our_node,
    policy,
    topology,
)

WIDE = DrainBudget(max_out_count=99, max_out_per_rack_count=99, max_new_per_hour_count=99, min_in_service_ratio=0.0)
DRAIN = action(Verb.DRAIN, on=NODE)
REBOOT = action(Verb.REBOOT, on=NODE)
OFF = action(Verb.POWER_OFF, on=NODE)
HOLD = action(Verb.HOLD, of=attempt())
KEEP = action(Verb.RESERVE, of=attempt())
GPUS = frozenset({"gpus"})


def judged(
    what: Action,
    known: ClusterFacts,
    *,
    by: Policy | None = None,
    places: Topology | None = None,
    authority: Authority = Authority.AUTOPILOT,
) -> Refusal | None:
    return judge(what, known, policy=by or policy(), topology=places or topology(), authority=authority)


def rule_of(refusal: Refusal | None) -> str | None:
    return None if refusal is None else refusal.guardrail


def on_node(
    verb: Verb, on: str = NODE, *, incident: str = INCIDENT, gpu: PciAddress = GPU, try_number: int = 1
) -> Action:
    needed_gpu = gpu if verb is Verb.RESET_GPU else None
    return action(verb, on=on, gpu=needed_gpu, incident=incident, try_number=try_number)


# -- parts of the cluster ---------------------------------------------------------------------------------------


def in_partition(*names: str, out: Iterable[str] = ()) -> list[NodeStatus]:
    gone = set(out)
    return [replace(foreign_node(name) if name in gone else node(name), partitions=GPUS) for name in names]


@pytest.mark.parametrize(
    ("node_count", "out_count", "rule"),
    [
        pytest.param(8, 2, None, id="one left"),
        pytest.param(8, 3, None, id="exactly half"),
        pytest.param(8, 4, "partition_cap", id="more than half"),
        pytest.param(1, 0, None, id="one node of one may be out"),
        pytest.param(3, 0, None, id="one of three"),
        pytest.param(3, 1, "partition_cap", id="two of three"),
    ],
)
def test_half_of_a_partition_stays(node_count: int, out_count: int, rule: str | None) -> None:
    names = node_names(node_count)
    members = in_partition(*names, out=names[1 : 1 + out_count])

    assert rule_of(judged(DRAIN, facts(nodes=members), by=policy(drain_budget=WIDE))) == rule


@pytest.mark.parametrize(
    ("cap", "out_count", "rule"),
    [(None, 7, None), (2, 0, None), (2, 1, None), (2, 2, "leaf_cap"), (0, 0, "leaf_cap")],
)
def test_a_leaf_switch_keeps_its_nodes(cap: int | None, out_count: int, rule: str | None) -> None:
    by = policy(drain_budget=WIDE, blast_caps=BlastCaps(max_out_per_leaf_count=cap))
    here = [foreign_node(name) for name in node_names(8)[1 : 1 + out_count]]
    elsewhere = [foreign_node(name) for name in node_names(40)[8:16]]

    assert rule_of(judged(DRAIN, facts(nodes=[*here, *elsewhere]), by=by)) == rule


@pytest.mark.parametrize(
    ("cap", "out_count", "rule"),
    [(None, 3, None), (2, 1, None), (2, 2, "nvlink_cap"), (1, 1, "nvlink_cap"), (0, 0, "nvlink_cap")],
)
def test_an_nvlink_domain_keeps_its_nodes(cap: int | None, out_count: int, rule: str | None) -> None:
    places = replace(
        topology(), places={name: replace(place, nvlink_domain=place.rack) for name, place in topology().places.items()}
    )
    by = policy(drain_budget=WIDE, blast_caps=BlastCaps(max_out_per_nvlink_domain_count=cap))
    here = [foreign_node(name) for name in node_names(4)[1 : 1 + out_count]]

    assert rule_of(judged(DRAIN, facts(nodes=here), by=by, places=places)) == rule


def test_an_nvlink_domain_of_one_node_is_not_limited() -> None:
    by = policy(drain_budget=WIDE, blast_caps=BlastCaps(max_out_per_nvlink_domain_count=0))

    assert judged(DRAIN, facts(), by=by) is None


def test_draining_again_what_is_out_passes_every_cap() -> None:
    by = policy(drain_budget=WIDE, blast_caps=BlastCaps(max_out_per_leaf_count=0))

    assert judged(DRAIN, facts(nodes=[our_node()], records=[our_drain()]), by=by) is None


# -- freeze windows ---------------------------------------------------------------------------------------------


def frozen(*, begins: float = -60, ends: float = 60, allows_drains: bool = False) -> Policy:
    window = FreezeWindow(name="visit", begins_at=after(begins), ends_at=after(ends), allows_drains=allows_drains)
    return policy(freeze_windows=(window,))


@pytest.mark.parametrize(
    ("begins", "ends", "rule"),
    [
        pytest.param(1, 60, None, id="a second before it begins"),
        pytest.param(0, 60, "freeze_window", id="as it begins"),
        pytest.param(-60, 1, "freeze_window", id="a second before it ends"),
        pytest.param(-60, 0, None, id="as it ends"),
        pytest.param(-60, -1, None, id="after it"),
    ],
)
def test_a_freeze_window_is_half_open(begins: float, ends: float, rule: str | None) -> None:
    refusal = judged(DRAIN, facts(), by=frozen(begins=begins, ends=ends))

    assert rule_of(refusal) == rule
    assert refusal is None or refusal.patience is Patience.WAIT


@pytest.mark.parametrize(("allows_drains", "rule"), [(True, None), (False, "freeze_window")])
def test_a_freeze_window_may_let_drains_pass(allows_drains: bool, rule: str | None) -> None:
    by = frozen(allows_drains=allows_drains)

    assert rule_of(judged(DRAIN, facts(), by=by)) == rule
    assert rule_of(judged(HOLD, facts(jobs=[job()]), by=by)) == "freeze_window"


MARKS = {Verb.MARK, Verb.UNMARK}  # Of running jobs: see test_marks.
GOES_ON = sorted(set(Verb) - (DESTRUCTIVE_VERBS - {Verb.CHECK}) - MESSAGES - MARKS, key=attrgetter("value"))


@pytest.mark.parametrize("verb", GOES_ON)
def test_what_takes_nothing_away_goes_on_in_a_freeze_window(verb: Verb) -> None:
    what = Action(verb=verb, incident=INCIDENT, node=NODE, attempt=attempt(), suite="general")
    held = ended(HOLD, attempt_nodes=frozenset({NODE}))
    known = facts(
        nodes=[our_node()], jobs=[held_job()], records=[our_drain(), held, ended(action(Verb.FENCE, of=attempt()))]
    )

    assert judged(what, known, by=frozen()) is None


@pytest.mark.parametrize("authority", list(Authority))
def test_nobody_acts_in_a_freeze_window(authority: Authority) -> None:
    assert rule_of(judged(DRAIN, facts(), by=frozen(), authority=authority)) == "freeze_window"


SILENT = our_node(is_responding=False)
HELD = ended(HOLD, seconds_ago=90, attempt_nodes=frozenset({NODE, OTHER_NODE}))


@pytest.mark.parametrize(
    ("what", "status", "records", "rule"),
    [
        pytest.param(OFF, SILENT, [HELD], None, id="the fence of a job that was held before"),
        pytest.param(
            OFF,
            SILENT,
            [replace(HELD, action=replace(HOLD, incident=IncidentId("INC-0002")))],
            None,
            id="the fence of a job that another incident holds",
        ),
        pytest.param(OFF, SILENT, [], "freeze_window", id="the fence of nothing"),
        pytest.param(
            OFF, SILENT, [HELD, ended(action(Verb.RELEASE, of=attempt()))], "freeze_window", id="released by now"
        ),
        pytest.param(
            OFF,
            SILENT,
            [ended(HOLD, OutcomeKind.FAILED, attempt_nodes=HELD.attempt_nodes)],
            "freeze_window",
            id="not held",
        ),
        pytest.param(
            OFF, SILENT, [replace(HELD, attempt_nodes=frozenset({OTHER_NODE}))], "freeze_window", id="held elsewhere"
        ),
        pytest.param(DRAIN, node(is_responding=False), [HELD], None, id="the drain of a silent node"),
        pytest.param(DRAIN, node(), [HELD], "freeze_window", id="the drain of a node that answers"),
        pytest.param(on_node(Verb.DECLARE_DOWN), SILENT, [ended(OFF)], None, id="down after the power is off"),
        pytest.param(REBOOT, our_node(), [HELD], "freeze_window", id="a reboot"),
    ],
)
def test_a_move_that_was_begun_before_the_window_is_finished(
    what: Action, status: NodeStatus, records: list[ActionRecord], rule: str | None
) -> None:
    """Otherwise the job would stay held until the window ends."""
    known = facts(nodes=[status], jobs=[held_job()], records=[our_drain(), *records])

    assert rule_of(judged(what, known, by=frozen())) == rule


@pytest.mark.parametrize(
    ("now_shown", "rule"),
    [
        pytest.param([held_job()], None, id="still held"),
        pytest.param([job(is_held=True)], None, id="marked on the silent node"),
        pytest.param([held_job(state=JobState.COMPLETING)], None, id="requeued, its processes end"),
        pytest.param([job(state=JobState.COMPLETING, ended_at=ago(5))], "freeze_window", id="ends for good"),
        pytest.param([job(state=JobState.CANCELLED, ended_at=ago(5))], "freeze_window", id="cancelled"),
        pytest.param([held_job(is_held=False)], "freeze_window", id="released by somebody else"),
        pytest.param([job(started_at=ago(30), nodes=(OTHER_NODE,))], "freeze_window", id="runs elsewhere"),
        pytest.param([], "freeze_window", id="gone from the scheduler"),
    ],
)
def test_a_hold_that_nothing_waits_behind_any_more_owes_no_fence(now_shown: list[JobStatus], rule: str | None) -> None:
    known = facts(nodes=[SILENT], jobs=now_shown, records=[our_drain(), HELD])

    assert rule_of(judged(OFF, known, by=frozen())) == rule


@pytest.mark.parametrize(("status", "rule"), [(SILENT, None), (our_node(), "freeze_window")])
def test_the_other_job_of_a_silent_node_is_held_too(status: NodeStatus, rule: str | None) -> None:
    second = action(Verb.HOLD, of=attempt("43"))
    known = facts(nodes=[status], jobs=[held_job(), job("43")], records=[our_drain(), HELD])

    assert rule_of(judged(second, known, by=frozen())) == rule


# -- the ladder -------------------------------------------------------------------------------------------------

MANY = LadderLimits(max_gpu_resets_count=9, max_reboots_count=9, max_power_cycles_count=9, max_reimages_count=9)
REPAIRS = [Verb.RESET_GPU, Verb.REBOOT, Verb.REIMAGE]


def idle(*records: ActionRecord, status: NodeStatus | None = None) -> ClusterFacts:
    return facts(nodes=[status or our_node()], records=[our_drain(), *records])


@pytest.mark.parametrize("verb", REPAIRS)
@pytest.mark.parametrize(("seconds_ago", "rule"), [(299, "cool_down"), (300, None), (301, None)])
def test_the_same_repair_of_a_node_waits_until_the_last_one_has_shown(
    verb: Verb, seconds_ago: float, rule: str | None
) -> None:
    tried = ended(on_node(Verb.REBOOT), seconds_ago=999)
    last = ended(on_node(verb, incident=IncidentId("INC-0009")), seconds_ago=seconds_ago)

    assert rule_of(judged(on_node(verb), idle(tried, last), by=policy(ladder=MANY))) == rule


@pytest.mark.parametrize(
    ("other", "rule"),
    [
        pytest.param(on_node(Verb.RESET_GPU), None, id="the same try"),
        pytest.param(on_node(Verb.RESET_GPU, gpu=OTHER_GPU, try_number=2), None, id="another GPU"),
        pytest.param(on_node(Verb.RESET_GPU, OTHER_NODE, try_number=2), None, id="another node"),
        pytest.param(on_node(Verb.REBOOT, try_number=2), None, id="another repair"),
        pytest.param(on_node(Verb.RESET_GPU, try_number=2), "cool_down", id="another try"),
    ],
)
def test_what_does_not_cool_down(other: Action, rule: str | None) -> None:
    known = idle(begun(other, seconds_ago=9))

    assert rule_of(judged(on_node(Verb.RESET_GPU), known, by=policy(ladder=MANY))) == rule


@pytest.mark.parametrize("verb", REPAIRS)
@pytest.mark.parametrize(
    ("allowed", "try_count", "rule"),
    [
        pytest.param(2, 1, None, id="one left"),
        pytest.param(2, 2, "rung_exhausted", id="used up"),
        pytest.param(0, 0, "rung_exhausted", id="never allowed"),
    ],
)
def test_a_repair_is_tried_so_often_and_no_more(verb: Verb, allowed: int, try_count: int, rule: str | None) -> None:
    key = {
        Verb.RESET_GPU: "max_gpu_resets_count",
        Verb.REBOOT: "max_reboots_count",
        Verb.REIMAGE: "max_reimages_count",
    }[verb]
    by = policy(ladder=replace(MANY, **{key: allowed}))  # type: ignore[arg-type]  # counts
    tries = [
        ended(on_node(verb, incident=IncidentId(f"INC-{number:04d}")), seconds_ago=3600.0)
        for number in range(10, 10 + try_count)
    ]

    refusal = judged(on_node(verb), idle(ended(on_node(Verb.REBOOT), seconds_ago=999), *tries), by=by)

    assert rule_of(refusal) == rule
    assert refusal is None or refusal.patience is Patience.NEVER


@pytest.mark.parametrize(("seconds_ago", "rule"), [(86_399, "rung_exhausted"), (86_400, None)])
def test_a_repair_of_yesterday_is_forgotten(seconds_ago: float, rule: str | None) -> None:
    last = ended(on_node(Verb.REBOOT, incident=IncidentId("INC-0009")), seconds_ago=seconds_ago)

    assert rule_of(judged(REBOOT, idle(last))) == rule


def test_all_gpus_of_one_plan_are_one_try() -> None:
    others = [begun(on_node(Verb.RESET_GPU, gpu=OTHER_GPU))]

    assert judged(on_node(Verb.RESET_GPU), idle(*others)) is None


def test_the_fence_of_held_jobs_is_no_repair_and_is_not_counted_out() -> None:
    last = ended(on_node(Verb.POWER_OFF, incident=IncidentId("INC-0009")), seconds_ago=9)

    known = facts(nodes=[SILENT], jobs=[held_job()], records=[our_drain(), last, HELD])

    assert judged(OFF, known) is None
    assert rule_of(judged(OFF, replace(known, records=(our_drain(), last)))) == "rung_exhausted"


@pytest.mark.parametrize(
    ("records", "rule", "patience"),
    [
        pytest.param([], "answers_again", Patience.NEVER, id="never rebooted"),
        pytest.param([begun(REBOOT, seconds_ago=1200)], "answers_again", Patience.WAIT, id="a reboot under way"),
        pytest.param([begun(REBOOT, seconds_ago=1201)], None, None, id="a reboot that is overdue"),
        pytest.param([ended(REBOOT)], None, None, id="a reboot that was done"),
        pytest.param([ended(REBOOT, OutcomeKind.FAILED)], None, None, id="a reboot that failed"),
        pytest.param([ended(REBOOT, OutcomeKind.UNKNOWN)], None, None, id="a reboot that nobody saw"),
        pytest.param(
            [ended(on_node(Verb.REBOOT, incident="INC-0009"))], "answers_again", Patience.NEVER, id="another incident"
        ),
        pytest.param([ended(on_node(Verb.REBOOT, OTHER_NODE))], "answers_again", Patience.NEVER, id="another node"),
    ],
)
def test_the_power_of_a_node_that_answers_is_cut_only_after_a_reboot_did_not_help(
    records: list[ActionRecord], rule: str | None, patience: Patience | None
) -> None:
    refusal = judged(OFF, idle(*records))

    assert rule_of(refusal) == rule
    assert (None if refusal is None else refusal.patience) is patience
    assert (is_moot(OFF, idle(*records)) is None) is (patience is not Patience.NEVER)


@pytest.mark.parametrize(
    ("status", "jobs", "rule"),
    [
        pytest.param(our_node(), [job()], "idle_node", id="a job runs"),
        pytest.param(our_node(gpu_in_use_count=1), [], "hidden_work", id="GPUs in use"),
        pytest.param(foreign_node(), [], "our_drain", id="drained by somebody else"),
    ],
)
def test_a_power_cycle_needs_an_idle_node_of_ours(status: NodeStatus, jobs: list[object], rule: str) -> None:
    known = facts(nodes=[status], jobs=jobs, records=[our_drain(), ended(REBOOT)])  # type: ignore[arg-type]  # jobs

    assert rule_of(judged(OFF, known)) == rule


@pytest.mark.parametrize(
    ("records", "rule"),
    [
        pytest.param([], "rung_order", id="nothing was tried"),
        pytest.param([ended(on_node(Verb.RESET_GPU))], "rung_order", id="only a reset"),
        pytest.param([ended(replace(REBOOT, incident=IncidentId("INC-0009")))], "rung_order", id="another incident's"),
        pytest.param([ended(REBOOT, OutcomeKind.FAILED)], None, id="a reboot that failed"),
        pytest.param([ended(OFF)], None, id="a power cycle"),
    ],
)
def test_a_node_is_installed_anew_only_after_a_restart_was_tried(records: list[ActionRecord], rule: str | None) -> None:
    refusal = judged(on_node(Verb.REIMAGE), idle(*records), by=policy(ladder=MANY))

    assert rule_of(refusal) == rule
    assert refusal is None or refusal.patience is Patience.NEVER


@pytest.mark.parametrize("verb", [Verb.CHECK, Verb.REIMAGE])
def test_what_loads_or_ends_a_node_waits_for_its_jobs(verb: Verb) -> None:
    known = facts(nodes=[our_node()], jobs=[job()], records=[our_drain(), ended(REBOOT)])

    assert rule_of(judged(on_node(verb), known, by=policy(ladder=MANY))) == "idle_node"


@pytest.mark.parametrize(
    ("status", "records", "rule"),
    [
        pytest.param(our_node(is_responding=False, state=NodeState.DOWN), [], "silent_node", id="given up"),
        pytest.param(our_node(is_responding=False), [], "silent_node", id="silent"),
        pytest.param(our_node(), [], None, id="answers"),
        pytest.param(our_node(is_responding=False), [ended(OFF)], None, id="its power was cut"),
        pytest.param(our_node(is_responding=False), [begun(REBOOT)], None, id="idle when it was rebooted"),
        pytest.param(
            our_node(is_responding=False),
            [begun(replace(REBOOT, incident=IncidentId("INC-0009")))],
            "silent_node",
            id="another incident's reboot",
        ),
    ],
)
def test_what_may_still_run_on_a_node_that_fell_silent_is_not_ended(
    status: NodeStatus, records: list[ActionRecord], rule: str | None
) -> None:
    """The scheduler that gave it up lists no job there any more."""
    known = idle(*records, status=status)

    assert rule_of(judged(on_node(Verb.CHECK), known, by=policy(ladder=MANY))) == rule


def test_a_check_only_reads_and_needs_no_eyes() -> None:
    assert judged(on_node(Verb.CHECK), replace(idle(), is_telemetry_available=False)) is None


@pytest.mark.parametrize("verb", [Verb.CHECK, Verb.REIMAGE, Verb.PUT_LAST])
def test_what_is_drained_by_somebody_else_is_neither_tested_nor_put_last(verb: Verb) -> None:
    assert rule_of(judged(on_node(verb), idle(status=foreign_node()), by=policy(ladder=MANY))) == "our_drain"


def test_a_node_in_service_is_put_back_among_the_others() -> None:
    assert judged(on_node(Verb.PUT_BACK), facts()) is None


# -- returns ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "rule"), [(1, None), (2, "probation_cap"), (3, "probation_cap")])
def test_a_return_waits_while_so_many_are_on_probation(others: int, rule: str | None) -> None:
    by = policy(blast_caps=BlastCaps(max_on_probation_count=2))
    watched = [node(name, is_last_choice=True) for name in node_names(40)[8 : 8 + others]]
    known = facts(nodes=[our_node(is_last_choice=True), *watched], records=[our_drain()])

    refusal = judged(on_node(Verb.RESUME), known, by=by)

    assert rule_of(refusal) == rule
    assert refusal is None or refusal.patience is Patience.WAIT


PUT_LAST = ended(on_node(Verb.PUT_LAST, OTHER_NODE))
RETURN = on_node(Verb.RESUME, OTHER_NODE)


@pytest.mark.parametrize(
    ("status", "records", "is_counted"),
    [
        pytest.param({"is_last_choice": True}, [], True, id="in service and marked"),
        pytest.param({"is_last_choice": True, "is_drained": True}, [], False, id="marked, and drained again"),
        pytest.param({}, [PUT_LAST], False, id="a mark that nothing followed"),
        pytest.param({"is_drained": True}, [PUT_LAST, begun(RETURN)], True, id="on its rollback"),
        pytest.param({}, [PUT_LAST, ended(RETURN)], True, id="back, and the mark was refused or forgot"),
        pytest.param({}, [ended(RETURN)], False, id="back without a probation"),
        pytest.param({}, [PUT_LAST, ended(RETURN, seconds_ago=8 * 86_400)], False, id="back for long"),
        pytest.param(
            {},
            [PUT_LAST, ended(RETURN, seconds_ago=60), ended(on_node(Verb.PUT_BACK, OTHER_NODE), seconds_ago=9)],
            False,
            id="put back",
        ),
    ],
)
def test_what_counts_as_on_probation_is_in_service_or_on_its_way(
    status: dict[str, Any], records: list[ActionRecord], is_counted: bool
) -> None:
    by = policy(blast_caps=BlastCaps(max_on_probation_count=1))
    known = facts(nodes=[our_node(), node(OTHER_NODE, **status)], records=[our_drain(), *records])

    assert rule_of(judged(on_node(Verb.RESUME), known, by=by)) == ("probation_cap" if is_counted else None)


# -- storms -----------------------------------------------------------------------------------------------------


def touched(count: int, *, seconds_ago: float = 9, verb: Verb = Verb.DRAIN) -> list[ActionRecord]:
    return [
        ended(on_node(verb, name, incident=IncidentId(f"INC-{number:04d}")), seconds_ago=seconds_ago)
        for number, name in enumerate(node_names(40)[8 : 8 + count], start=100)
    ]


STORMY = policy(drain_budget=WIDE, mass_event=MassEvent(min_node_count=3))


@pytest.mark.parametrize(
    ("records", "rule"),
    [
        pytest.param(touched(2), None, id="one less"),
        pytest.param(touched(3), "storm_brake", id="as many"),
        pytest.param(touched(4), "storm_brake", id="more"),
        pytest.param(touched(3, seconds_ago=599), "storm_brake", id="within ten minutes"),
        pytest.param(touched(3, seconds_ago=600), None, id="ten minutes ago"),
        pytest.param(touched(3, verb=Verb.RESUME), None, id="returns are no storm"),
        pytest.param(touched(3, verb=Verb.CHECK), None, id="nor are the tests that follow repairs"),
        pytest.param([*touched(2), ended(replace(HOLD, incident=IncidentId("INC-0300")))], "storm_brake", id="a job"),
        pytest.param([*touched(2), ended(replace(KEEP, incident=IncidentId("INC-0100")))], None, id="no spare node"),
        pytest.param([*touched(3), begun(replace(DRAIN, incident=IncidentId("INC-7")))], None, id="this very node"),
        pytest.param([*touched(3), ended(HOLD)], None, id="this very incident"),
    ],
)
def test_many_nodes_within_minutes_stop_the_next(records: list[ActionRecord], rule: str | None) -> None:
    refusal = judged(DRAIN, facts(records=records), by=STORMY)

    assert rule_of(refusal) == rule
    assert refusal is None or refusal.patience is Patience.WAIT


def test_a_person_is_not_taken_for_a_broken_sensor() -> None:
    assert judged(DRAIN, facts(records=touched(9)), by=STORMY, authority=Authority.PERSON) is None


def test_what_a_storm_began_is_finished() -> None:
    known = facts(nodes=[our_node()], records=[our_drain(), *touched(9)])

    assert judged(REBOOT, known, by=STORMY) is None


# -- old facts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "is_refused"), [(0, False), (30, False), (30.001, True), (-30.001, True)])
def test_nothing_is_judged_on_old_facts(seconds: float, is_refused: bool) -> None:
    refusal = are_stale(facts(), after(seconds))

    assert (refusal is not None) is is_refused
    assert refusal is None or (refusal.guardrail, refusal.patience) == ("stale_facts", Patience.WAIT)


@given(
    verb=st.sampled_from(sorted(DESTRUCTIVE_VERBS - {Verb.HOLD, Verb.RESERVE, Verb.CHECK}, key=attrgetter("value"))),
    minutes=st.integers(-3, 3),
    is_responding=st.booleans(),
    allows_drains=st.booleans(),
)
def test_in_a_window_only_a_fence_or_an_allowed_drain_is_begun(
    verb: Verb, minutes: int, is_responding: bool, allows_drains: bool
) -> None:
    by = frozen(begins=60.0 * minutes, ends=60.0 * minutes + 90, allows_drains=allows_drains)
    known = facts(nodes=[our_node(is_responding=is_responding)], records=[our_drain(), ended(REBOOT), HELD])
    is_inside = by.freeze_windows[0].begins_at <= NOW < by.freeze_windows[0].ends_at

    if judged(on_node(verb), known, by=by) is None and is_inside:
        assert (verb is Verb.DRAIN and allows_drains) or not is_responding


def test_a_window_of_the_past_changes_nothing() -> None:
    window = FreezeWindow(name="last year", begins_at=ago(9_000_000), ends_at=NOW - timedelta(days=1))

    assert judged(DRAIN, facts(), by=policy(freeze_windows=(window,))) is None
