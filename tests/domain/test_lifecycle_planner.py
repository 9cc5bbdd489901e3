"""The planner: who is skipped and why, budgets and windows at every instant, and the same plan from the same input."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import Interval, WorkCalendar
from ops_pipelines.core.policy import DrainBudget, Policy, RolloutLimits
from ops_pipelines.core.proof import Patience, Refusal
from ops_pipelines.core.release import Activation, Claims, Component, Release
from ops_pipelines.core.rollout import Contradiction, RolloutPlan
from ops_pipelines.rollouts.fleet import FleetNode
from ops_pipelines.rollouts.planner import VisitTimes, choose_candidates, plan_rollout
from tests.domain.builders import NOW, after
from tests.domain.lifecycle_fleet import (
    ALWAYS,
    HOUR,
    TIMES,
    WIDE,
    calendars,
    change,
    fleet_node,
    fleet_of,
    fleets,
    one_way,
    policies,
    release,
)

thoroughly = settings(max_examples=80, deadline=None)
DAY = 24 * HOUR
VISIT = timedelta(minutes=20)
CANARY = timedelta(minutes=90)
NARROW = replace(WIDE, rollouts=RolloutLimits(max_out_count=2))


def planned(
    nodes: Sequence[FleetNode],
    *,
    of: Release | None = None,
    policy: Policy = WIDE,
    calendar: WorkCalendar = ALWAYS,
    times: VisitTimes = TIMES,
    contradictions: Sequence[Contradiction] = (),
) -> RolloutPlan | Refusal:
    return plan_rollout(
        of or release(),
        nodes,
        policy=policy,
        calendar=calendar,
        times=times,
        contradictions=contradictions,
        now=NOW,
    )


def plan_of(nodes: Sequence[FleetNode], **values: Any) -> RolloutPlan:
    plan = planned(nodes, **values)
    assert isinstance(plan, RolloutPlan), plan
    return plan


def refusal_of(nodes: Sequence[FleetNode], **values: Any) -> Refusal:
    refusal = planned(nodes, **values)
    assert isinstance(refusal, Refusal)
    return refusal


def window(since: float, until: float) -> Interval:
    return Interval(begins_at=after(since), ends_at=after(until), name="night")


def reasons(nodes: Sequence[FleetNode], **values: Any) -> dict[str, str]:
    found = choose_candidates(values.pop("of", release()), nodes, values.pop("contradictions", ()))
    return {each.node: each.reason for each in found.skipped}


# -- who -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"versions": {Component.DRIVER: "2"}}, "runs these versions already"),
        ({"versions": {}}, "nobody knows which driver it runs, so that there would be no rollback"),
        ({"why_not": "INC-0007 is about it: Xid 79"}, "INC-0007 is about it: Xid 79"),
        ({"is_in_service": False}, "out of service"),
        ({"is_in_hand": True}, "another rollout has it in hand"),
        ({}, None),
    ],
)
def test_whoever_is_left_out_is_told_why(changes: dict[str, Any], reason: str | None) -> None:
    assert reasons([fleet_node(1, **changes)]).get("gpu001") == reason


def test_opted_out_nodes_keep_what_they_have_and_others_go_on() -> None:
    plan = plan_of(fleet_of(3), of=release(opted_out=frozenset({"gpu001"})))

    assert [(each.node, each.reason) for each in plan.skipped] == [("gpu001", "opted out")]
    assert sorted(name for wave in plan.waves for name in wave.nodes) == ["gpu000", "gpu002"]


def test_nodes_of_other_models_are_not_even_named() -> None:
    nodes = [fleet_node(0), fleet_node(1, model="old"), fleet_node(2, model="")]

    assert reasons(nodes) == {}
    assert [wave.nodes for wave in plan_of(nodes).waves] == [("gpu000",)]


def test_every_contradiction_of_a_node_is_told_each_once() -> None:
    names = (NodeName("gpu001"), NodeName("gpu002"))
    against = [
        Contradiction(rule="floor", said="needs firmware 7", source="a", nodes=names),
        Contradiction(rule="floor", said="needs firmware 7", source="b", nodes=names[:1]),
        Contradiction(rule="downgrade", said="goes down from 3", source="c", nodes=names[:1]),
    ]

    assert reasons(fleet_of(3), contradictions=against) == {
        "gpu001": "floor: needs firmware 7; downgrade: goes down from 3",
        "gpu002": "floor: needs firmware 7",
    }


def test_what_cannot_go_back_needs_no_known_version_to_go_back_to() -> None:
    nodes = [fleet_node(1, versions={Component.DRIVER: "1"})]

    assert reasons(nodes, of=release(one_way(Component.EROT))) == {}
    assert reasons(nodes, of=release(change(Component.BIOS))) != {}


@pytest.mark.parametrize(
    ("changes", "is_held"),
    [
        ({"why_not": "drained by somebody else: cables"}, True),
        ({"model": "old"}, True),
        ({"model": ""}, True),
        ({"versions": {Component.DRIVER: "2"}}, False),
        ({}, False),
    ],
)
def test_a_domain_runs_one_version_or_keeps_what_it_has(changes: dict[str, Any], is_held: bool) -> None:
    nodes = [
        fleet_node(0, nvlink_domain="d0", **changes),
        fleet_node(1, nvlink_domain="d0"),
        fleet_node(2, nvlink_domain="d1"),
    ]

    found = reasons(nodes)

    assert "gpu002" not in found
    assert ("gpu001" in found) is is_held
    if is_held:
        assert found["gpu001"].startswith("NVLink domain d0 runs one version, and gpu000 cannot come along: ")


# -- whether ---------------------------------------------------------------------------------------------------------


def test_a_contradiction_of_the_release_itself_refuses_it_for_good() -> None:
    refusal = refusal_of(fleet_of(3), contradictions=[Contradiction(rule="branch", said="it is over", source="table")])

    assert (refusal.guardrail, refusal.patience) == ("compatibility", Patience.NEVER)
    assert refusal.reason == "branch: it is over (table)"


def test_without_a_node_there_is_no_plan_but_the_reasons() -> None:
    refusal = refusal_of(fleet_of(3, versions={Component.DRIVER: "2"}))

    assert (refusal.guardrail, refusal.patience) == ("no_node", Patience.WAIT)
    assert refusal.reason == "driver-2 would touch no node: 3 x runs these versions already"
    assert refusal_of(()).reason == "driver-2 would touch no node: none is of its models"


@pytest.mark.parametrize(
    ("most", "broken", "patience"), [(0, 0, Patience.NEVER), (0, 2, Patience.NEVER), (2, 2, Patience.WAIT)]
)
def test_without_a_place_it_is_refused_for_good_by_policy_and_for_now_by_faults(
    most: int, broken: int, patience: Patience
) -> None:
    nodes = [fleet_node(number, is_in_service=number >= broken) for number in range(12)]
    tight = replace(WIDE, drain_budget=DrainBudget(max_out_count=most, min_in_service_ratio=0.0))

    refusal = refusal_of(nodes, policy=tight)

    assert (refusal.guardrail, refusal.patience) == ("rollout_budget", patience)


# -- when ------------------------------------------------------------------------------------------------------------


def test_waves_come_one_after_the_other_each_after_the_soak_of_the_one_before() -> None:
    plan = plan_of(fleet_of(10), policy=replace(WIDE, rollouts=RolloutLimits(max_out_count=99, canary_counts=(1, 4))))
    first, deciding, last = plan.waves
    soak = timedelta(hours=8)

    assert (first.planned_from, first.planned_until) == (NOW, NOW + CANARY + soak)
    assert (deciding.planned_from, deciding.planned_until) == (
        first.planned_until,
        NOW + 2 * CANARY + soak + TIMES.deciding_soak,
    )
    assert last.planned_until == plan.finishes_at == NOW + 2 * CANARY + VISIT + 2 * soak + TIMES.deciding_soak


@pytest.mark.parametrize(("hours", "soak_hours"), [(6, 8), (7, 8), (8, 9), (48, 49)])
def test_a_wave_soaks_until_the_slowest_failure_that_is_claimed_has_been_seen(hours: int, soak_hours: int) -> None:
    claims = Claims(slowest_failure=timedelta(hours=hours))

    plan = plan_of(fleet_of(5), of=release(claims=claims))

    assert plan.waves[0].planned_until == NOW + CANARY + timedelta(hours=soak_hours)


def test_idle_nodes_come_first_then_whoever_is_free_soonest() -> None:
    free = {0: 5, 1: 3, 2: None, 3: 4}
    nodes = [fleet_node(number, free_at=hours and after(hours * HOUR)) for number, hours in free.items()]
    once = replace(WIDE, rollouts=RolloutLimits(max_out_count=1, canary_counts=(4,)))

    plan = plan_of(nodes, policy=once)

    assert [each.node for each in plan.visits][:2] == ["gpu002", "gpu001"]
    assert plan.visits[1].begins_at == after(3 * HOUR)


def test_no_more_are_out_at_once_than_the_rollouts_may_take() -> None:
    plan = plan_of(fleet_of(4), policy=replace(NARROW, rollouts=RolloutLimits(max_out_count=2, canary_counts=(4,))))

    assert [each.drained_at for each in plan.visits] == [NOW, NOW, NOW + CANARY, NOW + CANARY]


@pytest.mark.parametrize(("minutes", "begins"), [(89, 86_400), (90, 0), (91, 0)])
def test_a_node_is_begun_only_if_its_visit_ends_before_the_window_closes(minutes: int, begins: float) -> None:
    calendar = WorkCalendar(windows=(window(0, minutes * 60), window(DAY, 2 * DAY)))

    (visit,) = plan_of(fleet_of(1), calendar=calendar).visits

    assert visit.drained_at == after(begins)


def test_a_freeze_is_waited_for_like_the_end_of_a_window() -> None:
    calendar = WorkCalendar(windows=None, freezes=(window(HOUR, DAY),))

    (visit,) = plan_of(fleet_of(1), calendar=calendar).visits

    assert visit.drained_at == after(DAY)


def test_a_job_that_outlasts_the_window_is_waited_for_until_another() -> None:
    nodes = [fleet_node(0, free_at=after(5 * HOUR))]
    calendar = WorkCalendar(windows=(window(0, 5 * HOUR), window(DAY, 2 * DAY)))

    (visit,) = plan_of(nodes, calendar=calendar).visits

    assert visit.drained_at >= after(DAY)


def test_nodes_without_a_window_are_counted_and_the_end_is_not_foreseen() -> None:
    calendar = WorkCalendar(windows=(window(0, 2 * HOUR),))

    plan = plan_of(fleet_of(6), calendar=calendar)

    assert plan.finishes_at is None
    assert [wave.planned_until for wave in plan.waves[1:]] == [None, None]
    assert plan.warnings == (
        "no time for 5 of 6 nodes: no window that is known, up to 90 days ahead, is long enough "
        "behind the end of their jobs",
    )


def test_a_rack_that_faults_have_filled_is_named() -> None:
    nodes = [fleet_node(number, is_in_service=number != 2) for number in range(4)]
    tight = replace(WIDE, drain_budget=DrainBudget(max_out_count=9, max_out_per_rack_count=1, min_in_service_ratio=0.0))

    plan = plan_of(nodes, policy=tight)

    assert plan.visits == ()
    assert plan.warnings == ("no time for 3 of 3 nodes: no room in rack r00: too many nodes are out there already",)


def test_jobs_without_a_time_limit_are_a_warning() -> None:
    plan = plan_of([fleet_node(0, is_idle=False), fleet_node(1)])

    assert plan.warnings == ("jobs without a time limit on 1 of 2 nodes: nobody foresees their end",)


# -- what it costs ---------------------------------------------------------------------------------------------------


def test_lost_gpu_hours_are_those_between_the_end_of_jobs_and_the_return() -> None:
    nodes = [fleet_node(0, free_at=after(10 * HOUR)), fleet_node(1)]

    plan = plan_of(nodes, policy=replace(WIDE, rollouts=RolloutLimits(max_out_count=9, canary_counts=(1,))))

    assert plan.lost_gpu_hours == pytest.approx(8 * (1.5 + 1 / 3))


def test_teams_are_told_which_of_their_nodes_are_taken_and_when() -> None:
    both = frozenset({"research", "product"})
    nodes = [
        fleet_node(0, free_at=after(HOUR), teams=both),
        fleet_node(1, free_at=after(2 * HOUR), teams=frozenset({"research"})),
    ]

    plan = plan_of(nodes, policy=replace(WIDE, rollouts=RolloutLimits(max_out_count=9, canary_counts=(2,))))

    product, research = plan.teams
    assert (product.team, product.nodes, product.gpu_count) == ("product", ("gpu000",), 8)
    assert (research.team, research.nodes, research.gpu_count) == ("research", ("gpu000", "gpu001"), 16)
    assert (research.first_at, research.last_at) == (NOW, after(2 * HOUR) + CANARY)


def test_a_node_that_is_tried_again_counts_once_for_its_team() -> None:
    never = NOW + 9 * NARROW.rollouts.job_end_limit
    nodes = [
        fleet_node(0, is_idle=False, free_at=never, teams=frozenset({"research"})),
        fleet_node(1, free_at=after(HOUR), teams=frozenset({"research"})),
    ]

    plan = plan_of(nodes, policy=NARROW)

    (team,) = plan.teams
    assert plan.left_out == ("gpu000",)
    assert (team.nodes, team.gpu_count) == (("gpu000", "gpu001"), 16)


def test_what_cannot_go_back_stands_in_the_plan() -> None:
    plan = plan_of(fleet_of(2), of=release(one_way(Component.EROT)))

    assert [each.component for each in plan.one_way] == [Component.EROT]
    assert plan.warnings == ("erot cannot roll back: every wave waits for approval of its own",)


@pytest.mark.parametrize(
    "other",
    [
        release(change(version="3")),
        release(change(install=("install", "--force", "{version}"))),
        release(change(activation=Activation.POWER_CYCLE)),
        release(change(), gate_suite="other"),
        release(change(), claims=Claims(slowdown_ratio=0.1)),
    ],
    ids=["version", "command", "activation", "tests", "claims"],
)
def test_a_yes_to_one_release_is_none_to_another_of_the_same_name(other: Release) -> None:
    assert plan_of(fleet_of(4)).plan == plan_of(fleet_of(4), of=release()).plan
    assert plan_of(fleet_of(4)).plan != plan_of(fleet_of(4), of=other).plan
    assert plan_of(fleet_of(4)).plan != plan_of(fleet_of(5)).plan


# -- always ----------------------------------------------------------------------------------------------------------


@thoroughly
@given(fleets(), policies(), calendars(), st.randoms(use_true_random=False))
def test_every_node_of_the_release_stands_in_one_wave_or_is_skipped(nodes, policy, calendar, random) -> None:
    plan = planned(nodes, policy=policy, calendar=calendar)

    assert planned(random.sample(nodes, k=len(nodes)), policy=policy, calendar=calendar) == plan
    if isinstance(plan, RolloutPlan):
        named = [name for wave in plan.waves for name in wave.nodes] + [each.node for each in plan.skipped]
        assert sorted(named) == sorted(each.node for each in nodes)
        visited = [each.node for each in plan.visits]
        assert len(visited) == len(set(visited))
        assert not {*visited} & {*plan.left_out}
        wanted = sum(len(wave.nodes) for wave in plan.waves)
        assert (plan.finishes_at is not None) is (len(visited) + len(plan.left_out) == wanted)


@thoroughly
@given(fleets(), policies(), calendars())
def test_nobody_is_begun_outside_a_window_or_when_it_closes_too_soon(nodes, policy, calendar) -> None:
    plan = planned(nodes, policy=policy, calendar=calendar)

    for visit in plan.visits if isinstance(plan, RolloutPlan) else ():
        closes_at = calendar.closes_at(visit.drained_at)
        assert calendar.is_open(visit.drained_at)
        assert closes_at is None or visit.ends_at <= closes_at
        assert NOW <= visit.drained_at <= visit.begins_at < visit.ends_at


@thoroughly
@given(fleets(), policies(), calendars())
def test_no_wave_begins_before_the_one_before_has_soaked(nodes, policy, calendar) -> None:
    plan = planned(nodes, policy=policy, calendar=calendar)

    if isinstance(plan, RolloutPlan):
        until = {wave.number + 1: wave.planned_until for wave in plan.waves}
        for visit in plan.visits:
            before = until.get(visit.wave, NOW)
            assert before is not None
            assert visit.drained_at >= before


@thoroughly
@given(fleets(), policies(), calendars())
def test_at_no_instant_more_are_out_than_any_cap_allows(nodes, policy, calendar) -> None:
    plan = planned(nodes, policy=policy, calendar=calendar)

    for visit in plan.visits if isinstance(plan, RolloutPlan) else ():
        breached = caps_breached(plan, nodes, policy, at=visit.drained_at, but_for=visit.node)
        assert breached == []


def caps_breached(
    plan: RolloutPlan, nodes: Sequence[FleetNode], policy: Policy, *, at: datetime, but_for: str
) -> list[str]:
    """Return the caps that are exceeded at an instant, counted again from the visits; parts without `but_for` rest."""
    ours = {each.node for each in plan.visits if each.drained_at <= at < each.ends_at}
    gone = [each for each in nodes if each.node in ours or not each.is_in_service or each.is_in_hand]
    in_hand = len(ours) + sum(each.is_in_hand for each in nodes)
    here = next(each for each in nodes if each.node == but_for)
    budget, caps = policy.drain_budget, policy.blast_caps
    rack = sum(each.place.rack == here.place.rack for each in gone)
    leaf = sum(each.place.leaf_switch == here.place.leaf_switch for each in gone)
    domain = [each for each in nodes if each.place.nvlink_domain == here.place.nvlink_domain]
    in_domain = sum(each in domain for each in gone)
    found = {
        "rollouts": in_hand > policy.rollouts.max_out_count,
        "budget": len(gone) > budget.max_out_count,
        "ratio": (len(nodes) - len(gone)) / len(nodes) < budget.min_in_service_ratio,
        "rack": rack > budget.max_out_per_rack_count,
        "leaf": caps.max_out_per_leaf_count is not None and leaf > caps.max_out_per_leaf_count,
        "domain": caps.max_out_per_nvlink_domain_count is not None
        and len(domain) > 1
        and in_domain > caps.max_out_per_nvlink_domain_count,
    }
    for name in here.partitions:
        whole = [each for each in nodes if name in each.partitions]
        out = sum(each in whole for each in gone)
        found[name] = out > 1 and (out == len(whole) or out > caps.max_out_per_partition_ratio * len(whole) + 1e-9)
    return [cap for cap, is_breached in found.items() if is_breached]


@pytest.mark.parametrize(("over_seconds", "is_left_out"), [(-1, False), (0, False), (1, True)])
def test_node_whose_job_outlasts_the_limit_is_tried_again_last_and_then_left_out(over_seconds, is_left_out) -> None:
    limit = NARROW.rollouts.job_end_limit
    long = fleet_node(0, is_idle=False, free_at=NOW + limit + timedelta(seconds=over_seconds))

    plan = plan_of([long], policy=NARROW)

    assert (plan.left_out == (long.node,)) is is_left_out
    assert bool(plan.visits) is not is_left_out
    assert plan.finishes_at is not None


@pytest.mark.parametrize(("hours", "is_warned"), [(6.9, True), (7.0, False), (7.1, False)])
def test_limit_that_is_over_before_the_slowest_failure_shows_is_told(hours, is_warned) -> None:
    limits = RolloutLimits(soak=timedelta(0), soak_limit=timedelta(hours=hours))

    plan = plan_of(fleet_of(2), policy=replace(WIDE, rollouts=limits))

    assert any("every wave would ask" in each for each in plan.warnings) is is_warned
