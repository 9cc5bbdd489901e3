"""The hours of a month on a small cluster: each installed GPU-second in one line, each attempt once, bad rows named."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ops_pipelines.core.action import Verb
from ops_pipelines.core.cluster import HOUR
from ops_pipelines.core.entries import Entry, EntryKind
from ops_pipelines.core.identity import Digest, NodeName, PlanId, RolloutId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.periods import CostMonth
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.core.release import ReleaseName
from ops_pipelines.core.rollout import NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines.costs.charges import hours_by_fate
from ops_pipelines.costs.gather_usage import MonthUsage, NothingYet, part_of, usage_of
from ops_pipelines.costs.states import Condition, find_states
from ops_pipelines.costs.usage import NO_TEAM, Fate, Owner
from ops_pipelines.teams.desk import NoTeams
from tests.flow.cost_stage import BETA, GPUS, NODES, CostLedger, Stage, berlin
from tests.flow.review_stage import act, broken, checked, entry

NOVEMBER = berlin(2026, 11)


def used(stage: Stage, hours: float) -> MonthUsage:
    """The usage of the first hours of the stage's month."""
    now = stage.at(hours)
    return usage_of(part_of(stage.month, now=now), stage.desk(now=now))


def fates(usage: MonthUsage) -> dict[str, float]:
    return {fate.value: round(hours, 6) for fate, hours in hours_by_fate(usage.total).items() if hours}


def of_team(usage: MonthUsage, team: str, project: str = "") -> float:
    """GPU-hours of a team's project."""
    owner = Owner(team=TeamName(team), project=project)
    return sum(each.gpu_seconds for (bearer, _), each in usage.total.by_bearer.items() if bearer.owner == owner) / 3600


def assert_closes(usage: MonthUsage) -> None:
    assert usage.residual_gpu_seconds == 0
    assert usage.attempts.is_each_once, usage.attempts


def rollout_of(stage: Stage, name: str = "RO-0001") -> Rollout:
    return Rollout(
        rollout=RolloutId(name), release=ReleaseName("driver"), release_digest=Digest("d"), plan=PlanId("PLAN-1"),
        state=RolloutState.RUNNING, waves=(), since=stage.at(0), owner="autopilot", reason="", created_by="ann",
        created_at=stage.at(0),
    )  # fmt: skip


# -- whose hours --


def test_a_quiet_day_is_idle_and_closes() -> None:
    stage = Stage(month=NOVEMBER)
    stage.listed(range(24))

    usage = used(stage, 24)

    assert fates(usage) == {"idle": 24 * GPUS}
    assert usage.notes == ("of 576.0 of 576.0 GPU-hours nobody measured the power",)
    assert_closes(usage)


def test_a_day_with_a_fault_a_rollout_and_a_requeued_job_closes() -> None:
    stage = Stage(month=NOVEMBER)
    stage.listed(range(24))
    stage.ran("1", 1, 3.5, state="NODE_FAIL")
    stage.ran("1", 4, 10, nodes="gpu003")
    stage.ran("2", 0, 6, nodes="gpu002", gpus=4, account="vision")
    stage.ledger = CostLedger(
        incidents=(broken("INC-0001", stage.at(3.4), restored=stage.at(8)),),
        acts={
            "INC-0001": (
                act(Verb.DRAIN, "INC-0001", stage.at(3.4), stage.at(3.5), on="gpu001"),
                act(Verb.RESUME, "INC-0001", stage.at(7.9), stage.at(8), on="gpu001"),
            )
        },
        begun_rollouts=(rollout_of(stage),),
        nodes_of={
            "RO-0001": [
                RolloutNode(
                    rollout=RolloutId("RO-0001"), node=NodeName("gpu002"), wave=1, stage=NodeStage.UPDATED,
                    since=stage.at(9),
                )
            ]
        },
        acts_on={
            ("RO-0001", "gpu002"): (
                act(Verb.DRAIN, "RO-0001", stage.at(5), stage.at(5), on="gpu002"),
                act(Verb.RESUME, "RO-0001", stage.at(8.9), stage.at(9), on="gpu002"),
            )
        },
    )  # fmt: skip

    usage = used(stage, 24)

    # gpu001 is out from 3:30 to 8:00; of gpu002 four GPUs still work until 6:00 while it is drained.
    assert fates(usage) == {
        "allocated": 2.5 * 8 + 6 * 8 + 6 * 4,
        "broken": 4.5 * 8,
        "maintenance": 1 * 4 + 3 * 8,
        "idle": 24 * GPUS - 92 - 36 - 28,
    }
    assert of_team(usage, "alpha") == 68
    assert of_team(usage, "beta", "vision") == 24
    assert usage.attempts.count == 3
    assert usage.refused == ()
    assert_closes(usage)


@pytest.mark.parametrize("second", [-1, 0, 1])
def test_midnight_splits_a_job_between_days_and_loses_no_second(second: int) -> None:
    stage = Stage(month=NOVEMBER)
    end = 24 + second / 3600
    stage.ran("1", 22, end)

    usage = used(stage, 48)

    by_day = [
        sum(each.gpu_seconds for (bearer, _), each in day.usage.by_bearer.items() if bearer.owner) for day in usage.days
    ]
    assert by_day == [8 * (7200 + min(0, second)), 8 * max(0, second)]
    assert_closes(usage)


@pytest.mark.parametrize("second", [-1, 0, 1])
def test_a_month_border_splits_a_job_between_months(second: int) -> None:
    stage = Stage(month=NOVEMBER)
    stage.ran("1", -2, second / 3600)
    october = berlin(2026, 10)
    now = stage.at(24)

    before = usage_of(part_of(october, now=now), stage.desk(now=now))
    after = usage_of(part_of(NOVEMBER, now=now), stage.desk(now=now))

    held = 8 * (7200 + second)
    assert round(3600 * (of_team(before, "alpha") + of_team(after, "alpha"))) == held
    assert round(3600 * of_team(after, "alpha")) == 8 * max(0, second)
    assert_closes(before)
    assert_closes(after)


@pytest.mark.parametrize(("month", "hours"), [(berlin(2026, 3), 743), (berlin(2026, 10), 745), (berlin(2026, 11), 720)])
def test_a_month_has_the_hours_of_its_clock(month: CostMonth, hours: int) -> None:
    stage = Stage(month=month)
    stage.ran("1", 0, hours)

    usage = used(stage, hours)

    assert usage.total.installed == {"h100": hours * GPUS * 3600}
    assert of_team(usage, "alpha") == hours * 8
    assert_closes(usage)


def test_an_attempt_without_an_end_stays_over_on_the_day_after_its_requeue() -> None:
    stage = Stage(month=NOVEMBER)
    stage.ran("1", 1, None, through=48)  # accounting never learned that it ended
    stage.ran("1", 5, 10, nodes="gpu002")

    usage = used(stage, 48)

    assert of_team(usage, "alpha") == 4 * 8 + 5 * 8
    # One row an hour from the fifth to the last: the second day's are refused, too.
    assert usage.refused_by_reason == {"attempt_was_requeued": 43}
    assert_closes(usage)


@pytest.mark.parametrize(
    ("account", "owner"),
    [
        ("alpha", ("alpha", "")),
        ("vision", ("beta", "vision")),
        ("stranger", ("stranger", "")),
        (None, (NO_TEAM, "")),
    ],
)
def test_an_account_pays_for_itself_and_a_projects_name_for_its_team(
    account: str | None, owner: tuple[str, str]
) -> None:
    stage = Stage(month=NOVEMBER)
    stage.ran("1", 0, 1, account=account)

    usage = used(stage, 24)

    assert of_team(usage, *owner) == 8
    assert any("stranger" in note for note in usage.notes) is (account == "stranger")


# -- what took nodes from work --


def test_a_gpu_off_the_bus_is_broken_while_the_others_idle() -> None:
    stage = Stage(month=NOVEMBER)
    stage.ledger = CostLedger(incidents=(broken("INC-0001", stage.at(2), restored=stage.at(4)),))

    found = find_states(part_of(NOVEMBER, now=stage.at(24)), stage.desk(now=stage.at(24)))

    (state,) = found.states
    assert (state.condition, state.gpu_count, state.until) == (Condition.INCIDENT, 1, stage.at(4))


def test_probation_is_overhead_until_the_incident_is_closed() -> None:
    stage = Stage(month=NOVEMBER)
    incident = replace(broken("INC-0001", stage.at(2), restored=stage.at(10)), returned_at=stage.at(6))
    stage.ledger = CostLedger(incidents=(incident,))

    usage = used(stage, 24)

    gone = 1 / 60  # its finding is a minute older than the incident
    assert fates(usage)["overhead"] == 4 * 8
    assert fates(usage)["broken"] == pytest.approx(4 + gone)


def test_a_node_that_is_still_out_is_broken_until_the_end() -> None:
    stage = Stage(month=NOVEMBER)
    stage.ledger = CostLedger(
        incidents=(replace(broken("INC-0001", stage.at(2)), state=IncidentState.IN_REPAIR),),
        acts={"INC-0001": (act(Verb.DRAIN, "INC-0001", stage.at(2), stage.at(2), on="gpu001"),)},
    )

    usage = used(stage, 24)

    assert fates(usage)["broken"] == pytest.approx(22 * 8 + 1 / 60)


@pytest.mark.parametrize(
    ("told", "fate", "hours"),
    [
        ("IDLE", "broken", 0),
        ("IDLE+DRAIN", "broken", 3 * 8),
        ("DOWN", "broken", 3 * 8),
        ("IDLE+NOT_RESPONDING", "broken", 3 * 8),
        ("MIXED", "broken", 0),
    ],
)
def test_what_the_scheduler_says_counts_where_nothing_of_ours_explains_it(told: str, fate: str, hours: float) -> None:
    stage = Stage(month=NOVEMBER)
    stage.listed(range(5))
    stage.listed(range(5, 8), out={"gpu001": told})
    stage.listed(range(8, 24))

    assert fates(used(stage, 24)).get(fate, 0) == hours


def test_an_hour_that_our_own_drain_explains_is_not_broken_from_its_begin() -> None:
    stage = Stage(month=NOVEMBER)
    stage.listed(range(24), out={"gpu001": "IDLE+DRAIN"})
    stage.listed(range(3))
    stage.ledger = CostLedger(
        begun_rollouts=(rollout_of(stage),),
        nodes_of={
            "RO-0001": [
                RolloutNode(rollout=RolloutId("RO-0001"), node=NodeName("gpu001"), wave=1,
                            stage=NodeStage.INSTALLING, since=stage.at(3.5))
            ]
        },
        acts_on={
            ("RO-0001", "gpu001"): (act(Verb.DRAIN, "RO-0001", stage.at(3.5), stage.at(3.5), on="gpu001"),)
        },
    )  # fmt: skip
    del stage.tables["inventory"][: 3 * len(NODES)]

    usage = used(stage, 24)

    assert fates(usage) == {"maintenance": 20.5 * 8, "idle": 24 * GPUS - 20.5 * 8}


def test_hours_without_a_list_of_nodes_are_said() -> None:
    stage = Stage(month=NOVEMBER)
    stage.listed(range(20))

    assert any("in 4 of 24 hours" in note for note in used(stage, 24).notes)


def test_a_booking_is_maintenance_until_its_end_or_until_it_is_taken_back() -> None:
    stage = Stage(month=NOVEMBER)

    def line(seq: int, hour: float, booking: Mapping[str, object] | None) -> Entry:
        body = json.dumps({"rollout": {"booking": booking}, "nodes": []})
        return replace(entry(seq, stage.at(hour), EntryKind.ROLLOUT, "autopilot"), body=body)

    def booked(name: str, since: float, until: float, *, is_accepted: bool = True) -> Mapping[str, object]:
        times = {"begins_at": stage.at(since).isoformat(), "ends_at": stage.at(until).isoformat()}
        return {"name": name, "nodes": ["gpu001"], "is_accepted": is_accepted, **times}

    stage.ledger = CostLedger(
        begun_rollouts=(rollout_of(stage),),
        told={
            "RO-0001": [
                line(1, 0, booked("a", 1, 5)),
                line(2, 1, booked("a", 1, 5)),
                line(3, 3, None),
                line(4, 4, booked("b", 6, 8, is_accepted=False)),
                line(5, 5, booked("b", 6, 8)),
            ]
        },
    )

    usage = used(stage, 24)

    assert fates(usage)["maintenance"] == (2 + 2) * 8


def test_a_test_is_overhead_and_one_of_a_clock_that_was_set_is_not_believed() -> None:
    stage = Stage(month=NOVEMBER)
    key = act(Verb.CHECK, "INC-0001", stage.at(2), stage.at(3), on="gpu001").action.key
    stage.ledger = CostLedger(
        tests={
            "gpu001": ((checked(key, "gpu001", stage.at(2), stage.at(2.5)), True),),
            "gpu002": ((checked(key, "gpu002", datetime(2020, 1, 1, tzinfo=UTC), stage.at(3)), True),),
        }
    )

    assert fates(used(stage, 24))["overhead"] == 0.5 * 8


# -- bad rows --


def test_an_allocation_on_an_unknown_node_is_kept_with_its_reason_and_paid_by_nobody() -> None:
    stage = Stage(month=NOVEMBER)
    stage.ran("1", 0, 2, nodes="gpu099")

    usage = used(stage, 24)

    assert usage.refused_by_reason == {"node_not_installed": 2}
    assert of_team(usage, "alpha") == 0
    assert_closes(usage)


def test_two_attempts_that_claim_the_same_gpus_are_given_them_once() -> None:
    stage = Stage(month=NOVEMBER)
    stage.ran("1", 0, 2)
    stage.ran("2", 1, 3, account="beta")

    usage = used(stage, 24)

    assert (of_team(usage, "alpha"), of_team(usage, "beta")) == (8, 16)
    assert usage.refused_by_reason == {"taken_by_later_attempt": 1}
    assert_closes(usage)


def test_an_allocation_that_ends_before_it_begins_is_refused() -> None:
    stage = Stage(month=NOVEMBER)
    stage.ran("1", 2, 3)
    stage.tables["job_allocations"] = [{**row, "ended_at": stage.at(1)} for row in stage.tables["job_allocations"]]

    usage = used(stage, 24)

    assert usage.refused_by_reason == {"ends_before_it_begins": 1}
    assert of_team(usage, "alpha") == 0
    assert_closes(usage)


@pytest.mark.parametrize(("ratio", "used_hours", "refused"), [(1.0, 8, 0), (1.0001, 0, 1), (-0.1, 0, 1), (0.25, 2, 0)])
def test_a_utilisation_that_cannot_be_is_refused_and_nothing_is_said_of_use(
    ratio: float, used_hours: float, refused: int
) -> None:
    stage = Stage(month=NOVEMBER)
    stage.ran("1", 0, 1)
    stage.measured("gpu001", "1", 0, watts=500, utilisation=ratio)

    usage = used(stage, 24)

    assert sum(each.used_gpu_seconds for each in usage.total.by_bearer.values()) == used_hours * 3600
    assert usage.refused_by_reason.get("utilisation_impossible", 0) == refused


def test_of_a_flood_of_refused_rows_all_are_counted_and_the_first_are_shown() -> None:
    stage = Stage(month=NOVEMBER)
    stage.ran("1", 0, 300, nodes="gpu099")

    usage = used(stage, 300)

    assert usage.refused_by_reason == {"node_not_installed": 300}
    assert len(usage.refused) == 200


# -- what can be asked for --


@pytest.mark.parametrize(("minutes", "is_refused"), [(-1, True), (59, True), (60, False), (61, False)])
def test_a_month_can_be_asked_for_when_its_first_hour_is_over(minutes: int, is_refused: bool) -> None:
    now = NOVEMBER.begins_at + timedelta(minutes=minutes)

    if is_refused:
        with pytest.raises(NothingYet, match="2026-11"):
            part_of(NOVEMBER, now=now)
    else:
        assert part_of(NOVEMBER, now=now).until == NOVEMBER.begins_at + HOUR


def test_without_a_register_of_nodes_nothing_is_counted() -> None:
    stage = Stage(month=NOVEMBER)
    desk = stage.desk(now=stage.at(24), installed=())

    with pytest.raises(NoTeams, match="racks"):
        usage_of(part_of(NOVEMBER, now=stage.at(24)), desk)


def test_a_project_pays_with_its_team() -> None:
    stage = Stage(month=NOVEMBER)
    stage.ran("1", 0, 1, account="vision")

    (bearer,) = [bearer for (bearer, _) in used(stage, 24).total.by_bearer if bearer.fate is Fate.ALLOCATED]

    assert bearer.owner == Owner(team=BETA, project="vision")
