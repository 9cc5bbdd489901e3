"""One morning's proposal: what it is made from, what refuses it, what is carried and named, and that it is causal."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.proposal import GpuType, ProposalState, ProposedQuota, TeamName, Terms
from ops_pipelines.core.scheduler import QuotaChange
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.quotas.daily import ATTEMPT_COLUMNS, JobSize, regular_sizes
from ops_pipelines.quotas.daily_work import DailyResult, carry_out_proposal, make_proposal, prove_day
from ops_pipelines.quotas.morning import NoProposal
from ops_pipelines.quotas.propose import TABLE, Proposed, keep, propose
from ops_pipelines.quotas.spans import GpuTypes
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.teams.contracts import Agreements, Contract
from ops_pipelines.teams.desk import NoTeams, QuotaFreeze, QuotaPolicy, RebalanceSettings
from ops_pipelines.teams.projects import Project
from tests.flow.quota_mornings import (
    BY_ITSELF,
    GUARANTEES,
    HOUR,
    LIMITS,
    MORNING,
    NO_TYPE,
    ON_YES,
    PRODUCT,
    RESEARCH,
    SCIENCE,
    TODAY,
    Past,
    QuotaStage,
    agreements,
    installed,
    row_of,
)

DAY = timedelta(days=1)


@pytest.fixture
def stage(tmp_path: Path) -> QuotaStage:
    return QuotaStage(tmp_path)


def proposed(stage: QuotaStage, day: date = TODAY) -> Proposed:
    return propose(day, stage.desk, now=stage.now)


def line(found: Proposed, team: str) -> ProposedQuota:
    (only,) = [each for each in found.proposal.lines if each.team == team]
    return only


# -- what it says --


def test_a_starving_team_gets_what_another_is_not_expected_to_want(stage: QuotaStage) -> None:
    found = proposed(stage)

    assert found.contradictions == ()
    assert line(found, SCIENCE).after > LIMITS[SCIENCE]
    assert sum(each.after for each in found.proposal.lines) <= found.proposal.supplies[0].supply
    assert all(each.after >= GUARANTEES[each.team] for each in found.proposal.lines)
    assert {each.team: each.limit for each in found.proposal.lines} == LIMITS
    assert (line(found, SCIENCE).wanted_mean, found.used[SCIENCE, NO_TYPE]) == (20.0, 8.0)
    assert line(found, SCIENCE).debt < 0


def test_the_same_inputs_give_the_same_proposal(stage: QuotaStage) -> None:
    assert proposed(stage).proposal == proposed(stage).proposal


def test_without_limits_in_the_scheduler_a_change_counts_from_what_was_agreed(stage: QuotaStage) -> None:
    stage.change(quotas=None)

    found = proposed(stage)

    assert {each.limit for each in found.proposal.lines} == {None}
    # Guarantees of 16, 8 and 8, and the 16 left by equal weights.
    assert line(found, RESEARCH).before == pytest.approx(16 + 16 / 3)
    assert line(found, SCIENCE).before == pytest.approx(8 + 16 / 3)


def test_a_team_that_nobody_declared_is_carried_without_a_guarantee_and_named(stage: QuotaStage) -> None:
    stage.add([row_of("visitors", MORNING - number * HOUR, 30.0, limit=2) for number in range(48)])

    found = proposed(stage)

    assert line(found, "visitors").guarantee == 0
    assert any("visitors is in demand" in each for each in found.proposal.notes)
    assert found.contradictions == ()


def test_an_organisation_gets_no_quota_and_jobs_charged_to_it_are_named(stage: QuotaStage) -> None:
    lab = TeamName("lab")
    stage.change(agreements=Agreements(parents={lab: None, RESEARCH: lab, SCIENCE: lab, PRODUCT: None}))
    stage.add([row_of(lab, MORNING - number * HOUR, 5.0, limit=5) for number in range(30)])

    found = proposed(stage)

    assert {each.team for each in found.proposal.lines} == {RESEARCH, SCIENCE, PRODUCT}
    assert any("charged to lab itself" in each for each in found.proposal.notes)


def test_jobs_without_an_account_get_no_line(stage: QuotaStage) -> None:
    stage.add([row_of("", MORNING - number * HOUR, 5.0, limit=5) for number in range(30)])

    found = proposed(stage)

    assert "" not in {each.team for each in found.proposal.lines}
    assert any("without an account" in each for each in found.proposal.notes)


def test_an_account_that_the_scheduler_lacks_is_named(stage: QuotaStage) -> None:
    stage.change(agreements=agreements({**GUARANTEES, TeamName("late"): 0.0}))

    assert any("no account late" in each for each in proposed(stage).proposal.notes)


def test_broken_nodes_are_taken_off_the_supply_and_named(stage: QuotaStage) -> None:
    stage.desk.cluster.scheduler.drain([NodeName("gpu001"), NodeName("gpu002")], reason="a person")

    found = proposed(stage)

    assert found.proposal.supplies[0].supply == 32
    assert sum(each.after for each in found.proposal.lines) <= 32
    assert any(each == "counted out, drained: gpu001, gpu002" for each in found.proposal.notes)


def test_a_project_that_begins_today_is_in_the_reason(stage: QuotaStage) -> None:
    launch = Project(name="vision", team=SCIENCE, gpus=12, begins_on=TODAY)
    without = proposed(stage)
    stage.change(agreements=agreements(projects=[launch]))

    found = proposed(stage)

    assert "vision" in line(found, SCIENCE).reason
    assert line(found, SCIENCE).after >= line(without, SCIENCE).after


def test_while_an_operator_freezes_quotas_nobody_moves(stage: QuotaStage) -> None:
    freeze = QuotaFreeze(name="audit", begins_at=MORNING - DAY, ends_at=None)
    stage.change(policy=QuotaPolicy(freezes=(freeze,)))

    found = proposed(stage)

    assert "audit" in found.proposal.frozen_because
    assert {each.team: each.after for each in found.proposal.lines} == LIMITS
    assert found.contradictions == ()


def test_after_a_freeze_quotas_go_back_toward_what_was_agreed(stage: QuotaStage) -> None:
    ended = QuotaFreeze(name="audit", begins_at=MORNING - 3 * DAY, ends_at=MORNING - HOUR)
    stage.change(policy=QuotaPolicy(freezes=(ended,)))

    found = proposed(stage)

    assert line(found, RESEARCH).after < LIMITS[RESEARCH]
    assert "audit" in line(found, RESEARCH).reason
    assert found.contradictions == ()


def test_types_are_proposed_apart_and_a_total_limit_is_split_as_it_was_applied(tmp_path: Path) -> None:
    stage = QuotaStage(tmp_path, past=Past(days=0))
    nodes = stage.desk.installed
    h100, a100 = GpuType("h100"), GpuType("a100")
    kinds = {each.node: h100 if place < 4 else a100 for place, each in enumerate(nodes)}
    stage.change(installed=tuple(installed(each.node, gpu_type=kinds[each.node]) for each in nodes), gpu_type_of=kinds)
    stage.add(
        [
            row_of(team, MORNING - number * HOUR, 6.0, limit=6, gpu_type=kind)
            for number in range(60)
            for team in LIMITS
            for kind in (h100, a100)
        ]
    )

    found = proposed(stage)

    assert [(each.gpu_type, each.supply) for each in found.proposal.supplies] == [(a100, 16), (h100, 32)]
    assert len(found.proposal.lines) == 6
    assert {each.limit for each in found.proposal.lines} == {None}


# -- what refuses it --


def test_without_any_demand_nothing_is_proposed(tmp_path: Path) -> None:
    stage = QuotaStage(tmp_path, past=Past(days=0))

    with pytest.raises(NoProposal, match="no demand is known in the last 14 days"):
        proposed(stage)


def test_hours_of_today_alone_are_too_little(tmp_path: Path) -> None:
    stage = QuotaStage(tmp_path, past=Past(days=0))
    stage.add([row_of(RESEARCH, MORNING - number * HOUR, 5.0, limit=24) for number in range(1, 5)])

    with pytest.raises(NoProposal, match="of any day before 2026-11-21"):
        proposed(stage)


@pytest.mark.parametrize(("lost_hours", "refused"), [(2, False), (3, False), (4, True)])
def test_demand_older_than_the_policy_allows_is_stale(stage: QuotaStage, lost_hours: int, refused: bool) -> None:
    stage.drop(stage.now - lost_hours * HOUR, stage.now)

    if refused:
        with pytest.raises(NoProposal, match=r"older than 3 h.*demand_max_age_hours"):
            proposed(stage)
    else:
        assert proposed(stage).proposal.demand_until == stage.now - lost_hours * HOUR


@pytest.mark.parametrize(("lost_hours", "refused"), [(31, False), (32, False), (36, True)])
def test_too_many_missing_hours_refuse_and_their_days_are_named(tmp_path: Path, lost_hours: int, refused: bool) -> None:
    stage = QuotaStage(tmp_path, past=Past(days=14))
    # Of 14 days and 7 hours, those before the past begins are no holes: 336 should be known.
    stage.drop(MORNING - 5 * DAY, MORNING - 5 * DAY + lost_hours * HOUR)

    if refused:
        with pytest.raises(NoProposal, match=r"2026-11-16, 2026-11-17 \(UTC\)"):
            proposed(stage)
    else:
        found = proposed(stage)
        assert found.proposal.known_hour_ratio == pytest.approx(1 - lost_hours / 336)
        assert any("hours of demand are missing" in each for each in found.proposal.notes)


def test_a_young_lake_is_no_lake_with_holes(tmp_path: Path) -> None:
    stage = QuotaStage(tmp_path, past=Past(days=3))

    found = proposed(stage)

    assert found.proposal.known_hour_ratio == 1
    assert any("known since 2026-11-18 only, and 14 days are looked at" in each for each in found.proposal.notes)


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf")])
def test_what_is_no_amount_of_gpus_refuses_and_is_named(stage: QuotaStage, amount: float) -> None:
    row = row_of(SCIENCE, MORNING - 2 * DAY, 1.0, limit=8)
    stage.observatory.lake.replace_hour(
        "gpu_demand",
        MORNING - 2 * DAY,
        TABLES["gpu_demand"].from_rows([{**row, "gpus_demand_avg": amount}]),
    )

    with pytest.raises(NoProposal, match=rf"science.*(want|requested) {amount}"):
        proposed(stage)


def test_a_day_that_has_not_begun_is_refused(stage: QuotaStage) -> None:
    with pytest.raises(NoProposal, match="2026-11-22 has not started in UTC"):
        proposed(stage, TODAY + DAY)


def test_without_agreements_or_nodes_it_says_what_to_write(stage: QuotaStage) -> None:
    stage.change(installed=())
    with pytest.raises(NoProposal, match="no node is in the cluster"):
        proposed(stage)

    stage.change(agreements=None)
    with pytest.raises(NoTeams, match=r"teams\.yaml"):
        proposed(stage)


# -- causality --


def test_what_comes_after_the_morning_of_a_past_day_changes_nothing(stage: QuotaStage) -> None:
    yesterday = TODAY - DAY
    before = proposed(stage, yesterday)
    stage.add([row_of(RESEARCH, MORNING - DAY + number * HOUR, 48.0, limit=24) for number in range(24)])

    after = proposed(stage, yesterday)

    assert after.proposal.lines == before.proposal.lines
    assert after.proposal.demand_until == MORNING - DAY


def test_the_running_day_counts_up_to_now(stage: QuotaStage) -> None:
    before = proposed(stage)
    stage.add([row_of(PRODUCT, stage.now - number * HOUR, 40.0, limit=16) for number in range(1, 6)])

    after = proposed(stage)

    assert line(after, PRODUCT).after > line(before, PRODUCT).after


@pytest.mark.parametrize(
    ("timezone", "day"), [("Asia/Tokyo", date(2026, 11, 21)), ("Pacific/Honolulu", date(2026, 11, 20))]
)
def test_a_day_is_one_of_the_clusters_zone(stage: QuotaStage, timezone: str, day: date) -> None:
    stage.change(agreements=agreements(timezone=timezone))

    assert proposed(stage, day).proposal.day == day
    with pytest.raises(NoProposal, match="has not started"):
        proposed(stage, day + DAY)


# -- keeping, proving, carrying out --


def test_todays_proposal_is_kept_and_its_lines_stand_in_the_lake(stage: QuotaStage) -> None:
    made = make_proposal(TODAY, stage.desk, now=stage.now)

    assert made.record is not None
    assert made.record.state is ProposalState.PROPOSED
    rows = cast("pa.Table", stage.desk.lake.read_hour(TABLE, datetime(2026, 11, 21, tzinfo=UTC))).to_pylist()
    assert {row["team"]: row["after_gpus"] for row in rows} == {
        each.team: each.after for each in made.proposed.proposal.lines
    }
    assert {row["state"] for row in rows} == {"proposed"}
    assert {row["used_mean_gpus"] for row in rows if row["team"] == "science"} == {8.0}


def test_the_proposal_of_a_past_day_is_computed_and_overtakes_nothing(stage: QuotaStage) -> None:
    today = make_proposal(TODAY, stage.desk, now=stage.now)

    past = make_proposal(TODAY - DAY, stage.desk, now=stage.now)

    assert past.record is None
    assert today.record is not None
    assert stage.desk.cluster.ledger.proposals(limit=9) == (today.record,)


def test_a_contradicted_proposal_is_kept_as_refused_and_never_carried_out(stage: QuotaStage) -> None:
    found = proposed(stage)
    greedy = replace(found.proposal.lines[0], after=48)
    broken = replace(found, proposal=replace(found.proposal, lines=(greedy, *found.proposal.lines[1:])))

    record = keep(broken, stage.desk, actor="autopilot", now=stage.now)
    done = carry_out_proposal(TODAY, stage.desk, lease=Lease(holder="test", given=None))

    assert record.state is ProposalState.REFUSED
    assert "sum_within_supply" in record.reason
    assert done.outcome is DailyResult.NOTHING_TO_DO
    assert stage.limits() == {str(team): limit for team, limit in LIMITS.items()}


def test_proving_again_refuses_what_is_contradicted_by_now(stage: QuotaStage) -> None:
    make_proposal(TODAY, stage.desk, now=stage.now)
    assert not any(prove_day(TODAY, stage.desk).contradictions.values())
    capped = Contract(terms=Terms(team=RESEARCH, guarantee=8.0, cap=16.0), valid_from=date(2025, 1, 1))
    stage.change(agreements=Agreements(parents=dict.fromkeys(LIMITS), contracts=(capped,)))

    proved = prove_day(TODAY, stage.desk)

    assert proved.record is not None
    assert proved.record.state is ProposalState.REFUSED
    assert proved.contradictions["caps_kept"]


@pytest.mark.parametrize(
    ("policy", "outcome", "is_set"),
    [
        pytest.param(replace(BY_ITSELF, mode=Mode.OBSERVE), DailyResult.SHOWN, False, id="observe"),
        pytest.param(ON_YES, DailyResult.WAITS, False, id="approve"),
        pytest.param(BY_ITSELF, DailyResult.APPLIED, True, id="auto"),
    ],
)
def test_the_policys_consent_decides_how_far_a_morning_goes(
    tmp_path: Path, policy: object, outcome: DailyResult, is_set: bool
) -> None:
    stage = QuotaStage(tmp_path, policy=policy)  # type: ignore[arg-type]  # Parametrised.
    made = make_proposal(TODAY, stage.desk, now=stage.now)

    done = carry_out_proposal(TODAY, stage.desk, lease=Lease(holder="test", given=None))

    assert done.outcome is outcome
    assert done.changes
    wanted = {str(each.team): each.after for each in made.proposed.proposal.lines}
    assert stage.limits() == (wanted if is_set else {str(team): limit for team, limit in LIMITS.items()})
    assert (f"quota apply {made.proposed.proposal.proposal}" in done.said) is (outcome is DailyResult.WAITS)


def test_without_the_lease_the_autopilot_sets_nothing(tmp_path: Path) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)
    make_proposal(TODAY, stage.desk, now=stage.now)
    stage.desk.cluster.ledger.take_lease(holder="another", ttl=HOUR, now=stage.now)

    done = carry_out_proposal(TODAY, stage.desk, lease=Lease(holder="test", given="outdated"))

    assert done.outcome is DailyResult.NOT_APPLIED
    assert stage.limits() == {str(team): limit for team, limit in LIMITS.items()}


def test_a_second_run_of_the_same_morning_changes_nothing(tmp_path: Path) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)
    lease = Lease(holder="test", given=None)
    make_proposal(TODAY, stage.desk, now=stage.now)
    carry_out_proposal(TODAY, stage.desk, lease=lease)
    limits = stage.limits()

    again = carry_out_proposal(TODAY, stage.desk, lease=lease)

    assert again.outcome is DailyResult.APPLIED
    assert stage.limits() == limits


def test_the_next_morning_counts_from_what_was_applied(tmp_path: Path) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)
    first = make_proposal(TODAY, stage.desk, now=stage.now)
    carry_out_proposal(TODAY, stage.desk, lease=Lease(holder="test", given=None))
    stage.clock.wait(DAY.total_seconds())
    stage.add(Past(days=2, until=MORNING + DAY + 2 * HOUR).rows())

    second = proposed(stage, TODAY + DAY)

    assert {each.team: each.limit for each in second.proposal.lines} == {
        each.team: each.after for each in first.proposed.proposal.lines
    }
    assert [each.day for each in second.inputs.earlier] == [TODAY]
    assert second.contradictions == ()


def test_limits_that_somebody_set_by_hand_are_what_the_next_proposal_counts_from(stage: QuotaStage) -> None:
    stage.port.apply([QuotaChange(account=SCIENCE, before=8, after=30)])

    assert line(proposed(stage), SCIENCE).limit == 30


def test_a_step_cap_bounds_what_moves_in_a_morning(stage: QuotaStage) -> None:
    for ratio in (0.05, 0.10, 0.25):
        stage.change(policy=QuotaPolicy(rebalance=RebalanceSettings(step_cap_ratio=ratio)))

        found = proposed(stage)

        moved = sum(abs(each.after - each.before) for each in found.proposal.lines) / 2
        assert moved <= ratio * 48
        assert found.contradictions == ()


# -- job sizes --


@pytest.mark.parametrize(("days", "counts"), [(2, False), (3, True), (4, True)])
def test_a_job_size_counts_when_it_is_seen_on_enough_days(days: int, counts: bool) -> None:
    rows = TABLES["job_accounting"].from_rows(
        {
            "job": str(number),
            "attempt": "1",
            "time": MORNING - number * DAY,
            "account": "research",
            "gpu_count": 32,
            "nodes": "gpu[001-004]",
            "started_at": MORNING - number * DAY - HOUR,
        }
        for number in range(days)
    )

    found = regular_sizes(rows.select(ATTEMPT_COLUMNS), types=GpuTypes())

    assert found == ({(RESEARCH, NO_TYPE): 32} if counts else {})


def test_who_runs_now_adds_a_day_and_who_never_started_adds_none() -> None:
    rows = TABLES["job_accounting"].from_rows(
        {
            "job": str(number),
            "attempt": "1",
            "time": MORNING - number * DAY,
            "account": "research",
            "gpu_count": 16,
            "started_at": None if number == 3 else MORNING - number * DAY,
        }
        for number in (1, 2, 3)
    )
    present = JobSize(team=RESEARCH, gpu_type=NO_TYPE, gpu_count=16, day=TODAY)

    assert regular_sizes(rows.select(ATTEMPT_COLUMNS), types=GpuTypes()) == {}
    assert regular_sizes(rows.select(ATTEMPT_COLUMNS), now=[present], types=GpuTypes()) == {(RESEARCH, NO_TYPE): 16}
    assert regular_sizes(rows.select(ATTEMPT_COLUMNS).slice(0, 0), types=GpuTypes()) == {}


def test_a_contract_that_begins_today_holds_today(stage: QuotaStage) -> None:
    begins = Contract(terms=Terms(team=SCIENCE, guarantee=24.0), valid_from=TODAY)
    old = Contract(terms=Terms(team=SCIENCE, guarantee=8.0), valid_from=date(2025, 1, 1), valid_until=TODAY)
    stage.change(agreements=Agreements(parents=dict.fromkeys(LIMITS), contracts=(old, begins)))

    assert line(proposed(stage), SCIENCE).after >= 24
    assert line(proposed(stage, TODAY - DAY), SCIENCE).guarantee == 8
