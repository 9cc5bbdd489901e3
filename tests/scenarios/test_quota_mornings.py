"""Four weeks of mornings: what must hold on each of them, whatever breaks, ends, begins or falls silent."""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from ops_pipelines.core.proposal import ProposalState, ProposedQuota, QuotaProposal, TeamName, Terms
from tests.scenarios import quota_story as story
from tests.scenarios.quota_story import (
    ASKERS,
    BIOLOGY,
    CHEMISTRY,
    CLOCK_CHANGES,
    DAYS,
    DEAF,
    FREEZE,
    INSTALLED,
    LABS,
    LAUNCH,
    NEW_CONTRACT,
    PLATFORM,
    PRODUCT,
    RACK_BREAKS,
    RACK_GPUS,
    RACKS_BACK,
    RACKS_BREAK,
    RESEARCH,
    SCIENCE,
    STRANGER,
    THAW,
    VISITORS,
    Played,
    QuotaStory,
    terms_on,
)

STEP_RATIO = 0.10
GPUS_TOLD = re.compile(r"([0-9][0-9.,]*) GPUs?\b(?!-)")
_FEW_DAYS = 4
"""Today, and the three days before it."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Played]:
    return QuotaStory(directory=tmp_path_factory.mktemp("story")).play().days


def proposals(played: Mapping[int, Played]) -> Iterator[tuple[Played, QuotaProposal]]:
    for each in played.values():
        if each.proposal is not None:
            yield each, each.proposal


def line(played: Played, team: TeamName) -> ProposedQuota:
    assert played.proposal is not None
    (only,) = [each for each in played.proposal.lines if each.team == team]
    return only


def healthy(number: int) -> int:
    """Return the GPUs that are not broken on a day, by the story alone."""
    broken = 0 if number < RACK_BREAKS or number >= RACKS_BACK else 1 if number < RACKS_BREAK else 3
    return INSTALLED - broken * RACK_GPUS


def supply_on(number: int) -> int:
    """Return what quotas may add up to: one rack is kept back while all of them are well."""
    return min(healthy(number), INSTALLED - RACK_GPUS)


def of_team(number: int) -> Mapping[TeamName, Terms]:
    return {each.team: each for each in terms_on(number)}


# -- on every morning --


def test_every_morning_but_the_silent_one_has_a_proposal_that_no_proof_contradicts(
    played: Mapping[int, Played],
) -> None:
    assert [number for number, each in played.items() if each.proposal is None] == [DEAF]
    assert {number: each.contradictions for number, each in played.items() if each.contradictions} == {}
    states = {each.record.state for each in played.values() if each.record is not None}
    assert states <= {ProposalState.APPLIED, ProposalState.PROPOSED}


def test_limits_are_as_proposed_and_add_up_to_no_more_than_what_is_healthy(played: Mapping[int, Played]) -> None:
    for each, proposal in proposals(played):
        assert each.after == {line.team: line.after for line in proposal.lines if line.team != VISITORS}
        assert proposal.supplies[0].supply == supply_on(each.number)
        assert sum(each.after.values()) <= supply_on(each.number)


def test_guarantees_and_caps_of_teams_and_organisations_are_kept_while_they_fit(played: Mapping[int, Played]) -> None:
    for each, _ in proposals(played):
        agreed = of_team(each.number)
        labs = each.after[BIOLOGY] + each.after[CHEMISTRY]
        fits = sum(agreed[team].guarantee for team in (RESEARCH, SCIENCE, PRODUCT, PLATFORM, LABS))
        assert all(each.after[team] <= agreed[team].most for team in ASKERS)
        assert labs <= agreed[LABS].cap
        assert each.after[CHEMISTRY] % 4 == 0
        if fits <= supply_on(each.number):
            assert all(each.after[team] >= agreed[team].guarantee for team in ASKERS)
            assert labs >= agreed[LABS].guarantee


def test_what_ran_is_kept_unless_nodes_are_lost(played: Mapping[int, Played]) -> None:
    for each, proposal in proposals(played):
        if sum(each.before.values()) <= supply_on(each.number):
            for found in proposal.lines:
                assert found.after >= min(found.ran_last, found.before, found.most), (each.number, found)


def test_no_more_moves_in_a_day_than_the_step_and_what_nobody_held(played: Mapping[int, Played]) -> None:
    for each, proposal in proposals(played):
        supply = supply_on(each.number)
        due = {found.team: max(found.before, found.guarantee) for found in proposal.lines}
        free = max(0.0, supply - sum(due.values()))
        lost = max(0.0, sum(due.values()) - supply)
        up = sum(max(0.0, found.after - due[found.team]) for found in proposal.lines)
        down = sum(max(0.0, due[found.team] - found.after) for found in proposal.lines)
        # What is in a team's quota beyond whole units is taken with the rest: at most three of chemistry.
        assert up <= STEP_RATIO * supply + free + 3, each.number
        assert down <= STEP_RATIO * supply + lost + 3, each.number


def test_no_team_turns_three_times_within_four_days(played: Mapping[int, Played]) -> None:
    for team in ASKERS:
        unit = of_team(1)[team].unit
        quotas = [played[1].before[team], *(each.after[team] for each in played.values())]
        ways = [
            math.copysign(1, after - before) if abs(after - before) > max(unit, 0.05 * before) else 0
            for before, after in pairwise(quotas)
        ]
        for first in range(len(ways) - _FEW_DAYS + 1):
            moved = [each for each in ways[first : first + _FEW_DAYS] if each]
            assert sum(one != two for one, two in pairwise(moved)) < 3, (team, first + 1)


def test_each_line_has_a_reason_whose_gpus_are_numbers_of_the_line(played: Mapping[int, Played]) -> None:
    for each, proposal in proposals(played):
        ((_, step),) = proposal.step_caps
        ours = {found.after for found in proposal.lines}
        together = math.fsum(found.before for found in proposal.lines)
        for found in proposal.lines:
            amounts = {found.before, found.after, found.guarantee, found.most, found.floor, found.ran_last}
            known = {
                f"{amount:.4g}" for amount in (*amounts, step, proposal.supplies[0].supply, sum(ours), together, 20)
            }
            assert found.reason
            assert found.counterfactual
            told = GPUS_TOLD.findall(found.reason)
            if "back toward what was agreed" in found.reason:
                told = told[1:]  # The goal itself, which is a day's and no number of the line.
            assert set(told) <= known, (each.number, found)


def test_the_same_four_weeks_give_the_same_proposals(played: Mapping[int, Played], tmp_path: Path) -> None:
    again = QuotaStory(directory=tmp_path).play(RACKS_BREAK).days

    assert {number: each.proposal for number, each in again.items()} == {
        number: played[number].proposal for number in again
    }


# -- what happens on some of them --


def test_a_hoarder_gives_within_days_what_a_starving_team_wants(played: Mapping[int, Played]) -> None:
    before, after = played[1].before, played[RACK_BREAKS - 1].after

    assert after[SCIENCE] >= 2 * before[SCIENCE]
    assert of_team(1)[RESEARCH].guarantee <= after[RESEARCH] < before[RESEARCH] / 2 + 1


def test_one_broken_rack_is_absorbed_by_what_was_kept_back(played: Mapping[int, Played]) -> None:
    for number in range(RACK_BREAKS, RACKS_BREAK):
        assert sum(played[number].after.values()) == sum(played[RACK_BREAKS].before.values())
        proposal = played[number].proposal
        assert proposal is not None
        assert "counted out, drained: gpu001, gpu002, gpu003, gpu004" in proposal.notes


def test_two_more_cut_all_by_priority_and_each_is_told_why(played: Mapping[int, Played]) -> None:
    day = played[RACKS_BREAK]
    agreed = of_team(RACKS_BREAK)

    assert (day.after[RESEARCH], day.after[SCIENCE]) == (agreed[RESEARCH].guarantee, agreed[SCIENCE].guarantee)
    for team in (PRODUCT, PLATFORM):
        assert agreed[team].guarantee * 0.5 < day.after[team] < agreed[team].guarantee
        assert "not all guarantees fit into the 96 GPUs" in line(day, team).reason
    assert "are left to give out" in line(day, SCIENCE).reason
    # Nothing moves by choice on such a day, and nobody is notified that it did.
    proposal = day.proposal
    assert proposal is not None
    assert not [each for each in proposal.lines if "went where GPUs are requested more" in each.reason]


def test_when_racks_are_back_so_are_quotas(played: Mapping[int, Played]) -> None:
    assert sum(played[RACKS_BACK].after.values()) == supply_on(RACKS_BACK) == INSTALLED - RACK_GPUS
    assert played[RACKS_BACK].after[SCIENCE] > 2 * played[RACKS_BREAK].after[SCIENCE]


def test_a_freeze_moves_nothing_and_says_until_when(played: Mapping[int, Played]) -> None:
    for number in range(FREEZE, THAW):
        assert played[number].after == played[number].before
        proposal = played[number].proposal
        assert proposal is not None
        assert "the freeze audit holds until" in proposal.headline


def test_after_the_freeze_quotas_go_back_toward_the_contract_until_they_are_there(played: Mapping[int, Played]) -> None:
    agreed = of_team(THAW)
    free = supply_on(THAW) - sum(agreed[team].guarantee for team in (RESEARCH, SCIENCE, PRODUCT, PLATFORM, LABS))
    assert "back toward what was agreed" in line(played[THAW], SCIENCE).reason
    assert played[THAW].after[SCIENCE] < played[THAW].before[SCIENCE]
    # It was a day's step and no more, so that the day after continues.
    assert "back toward what was agreed" in line(played[THAW + 1], RESEARCH).reason
    assert abs(played[THAW + 1].after[RESEARCH] - (agreed[RESEARCH].guarantee + free / 6)) < 6


def test_a_new_contract_holds_from_its_first_morning(played: Mapping[int, Played]) -> None:
    assert line(played[NEW_CONTRACT - 1], SCIENCE).guarantee == 24
    assert line(played[NEW_CONTRACT], SCIENCE).guarantee == 40
    assert all(played[number].after[SCIENCE] >= 40 for number in range(NEW_CONTRACT, DAYS + 1))


def test_a_launch_is_served_on_its_first_morning_and_named(played: Mapping[int, Played]) -> None:
    assert "project vision begins" in line(played[LAUNCH], PRODUCT).reason
    assert played[LAUNCH].after[PRODUCT] >= played[LAUNCH].before[PRODUCT] + 8


def test_a_stranger_is_named_and_its_account_is_never_limited(
    played: Mapping[int, Played],
) -> None:
    day = played[STRANGER]
    proposal = day.proposal
    assert proposal is not None
    assert line(day, VISITORS).limit is None
    assert any(str(VISITORS) in each and "nobody declared it" in each for each in proposal.notes)
    assert str(VISITORS) not in proposal.headline
    assert VISITORS not in day.after
    assert all(day.after[team] >= of_team(STRANGER)[team].guarantee for team in ASKERS)


def test_without_accounting_nothing_is_proposed_and_limits_stay(played: Mapping[int, Played]) -> None:
    day = played[DEAF]

    assert day.after == day.before
    assert "the newest demand is of 2027-04-09" in day.said
    assert "materialise gpu_demand" in day.said
    back = played[DEAF + 1].proposal
    assert back is not None
    assert any("24 hours of demand are missing" in each for each in back.notes)


def test_the_morning_after_the_clocks_are_changed_has_a_day_of_23_hours(played: Mapping[int, Played]) -> None:
    days = [story.day(number) for number in (CLOCK_CHANGES, CLOCK_CHANGES + 1)]
    made = [each.made_at for number in (CLOCK_CHANGES - 1, CLOCK_CHANGES) if (each := played[number].proposal)]

    assert [each.day for _, each in proposals(played) if each.day in days] == days
    assert (made[1] - made[0]).total_seconds() == 23 * 3600
    assert all(each.known_hour_ratio == 1 for _, each in proposals(played) if each.day < story.day(DEAF))
