"""Every part of every proof can fail alone: each case here is what one weakened line of a proof would let through."""

import math
from dataclasses import replace

import pytest

from ops_pipelines.core.proposal import QuotaProposal, TeamName, Terms
from tests.domain.test_quota_proposal_proof import (
    GOOD,
    H100,
    INPUTS,
    ORG,
    A,
    B,
    C,
    contradicted,
    days_before,
    line,
    of,
    proposal,
)

FROZEN = proposal(line(A, 30, 30), line(B, 30, 30), line(C, 40, 44), supply=60, frozen_because="a mass event")


@pytest.mark.parametrize(
    ("broken", "proof", "said"),
    [
        pytest.param(FROZEN, "sum_within_supply", "rises to 44 though quotas already", id="a rise in a freeze"),
        pytest.param(
            of(GOOD, line(A, 46, 49, most=math.inf), line(B, 16, 16)), "caps_kept", "48 at most", id="cap of the terms"
        ),
        pytest.param(of(GOOD, line(B, 30, 28, most=20.0)), "caps_kept", "20 at most", id="cap of the line"),
        pytest.param(
            replace(of(GOOD, line(A, 25, 36), line(B, 35, 28)), step_caps=((H100, 50.0),)),
            "step_within_cap",
            "11 GPUs move by choice, and 10 may",
            id="a step that is larger than the policy's",
        ),
        pytest.param(
            replace(GOOD, step_caps=((H100, 5.0),)),
            "step_within_cap",
            "6 GPUs move by choice, and 5 may",
            id="a step that is smaller than the policy's",
        ),
        pytest.param(
            proposal(line(A, 28, 28), line(B, 36, 28), line(C, 36, 28)),
            "step_within_cap",
            "GPUs move by choice",
            id="taken and given to nobody",
        ),
        pytest.param(
            proposal(line(A, 30, 42), line(B, 30, 30), line(C, 40, 32)),
            "step_within_cap",
            "12 GPUs move by choice",
            id="given and taken from nobody",
        ),
        pytest.param(of(GOOD, line(A, 30, 36, most=math.nan)), "inputs_fresh", "a h100 has an amount", id="no cap"),
        pytest.param(
            replace(GOOD, supplies=(replace(GOOD.supplies[0], supply=math.nan),)),
            "inputs_fresh",
            "the supply is nan",
            id="no supply",
        ),
        pytest.param(
            replace(GOOD, supplies=(replace(GOOD.supplies[0], supply=-1.0),)),
            "inputs_fresh",
            "the supply is -1.0",
            id="less than no supply",
        ),
    ],
)
def test_each_part_of_a_proof_finds_its_own(broken: QuotaProposal, proof: str, said: str) -> None:
    assert any(said in problem for problem in contradicted(broken)[proof])


def test_what_must_be_given_may_turn_a_quota_for_the_third_time() -> None:
    turned = days_before((36, 30), (30, 36), (36, 30))
    free = proposal(line(A, 30, 36), line(B, 24, 24), line(C, 36, 36))
    chosen = proposal(line(A, 30, 36), line(B, 30, 24), line(C, 40, 40))

    assert "no_flip_flop" not in contradicted(free, replace(INPUTS, earlier=turned))
    assert "no_flip_flop" in contradicted(chosen, replace(INPUTS, earlier=turned))


def test_turns_of_weeks_ago_hold_nobody_though_nothing_was_applied_since() -> None:
    turned = days_before((36, 30), (30, 36), (36, 30))
    long_ago = tuple(replace(each, day=each.day.replace(month=1)) for each in turned)

    assert "no_flip_flop" not in contradicted(GOOD, replace(INPUTS, earlier=long_ago))


INNER = TeamName("inner")


@pytest.mark.parametrize(("after", "is_kept"), [(5, True), (6, True), (7, False)])
def test_a_share_of_what_an_organisation_is_guaranteed_turns_a_quota_where_its_cap_does_not_allow_all(
    after: int, is_kept: bool
) -> None:
    # Of the 20 that the inner one is guaranteed the cap of the outer one allows 12: 6 for each.
    terms = (
        Terms(team=ORG, guarantee=0, cap=12),
        Terms(team=INNER, guarantee=20, parent=ORG),
        Terms(team=A, guarantee=1, parent=INNER),
        Terms(team=B, guarantee=1, parent=INNER),
    )
    turned = days_before((6, 2), (2, 6), (6, 2))
    shared = proposal(
        line(A, 2, after, guarantee=1.0, most=math.inf),
        line(B, 18, 12 - after, guarantee=1.0, most=math.inf),
        supply=12,
    )
    inputs = replace(INPUTS, terms={H100: terms}, earlier=turned)

    assert ("no_flip_flop" not in contradicted(shared, inputs)) is is_kept


@pytest.mark.parametrize(("rises", "is_kept"), [(6, True), (7, True), (8, False)])
def test_what_is_left_of_a_guarantee_within_the_cap_above_it_is_no_move_by_choice(rises: int, is_kept: bool) -> None:
    terms = (
        Terms(team=ORG, guarantee=4, cap=12),
        Terms(team=INNER, guarantee=20, parent=ORG),
        Terms(team=A, guarantee=1, parent=INNER),
        Terms(team=B, guarantee=1, parent=INNER),
    )
    shared = proposal(
        line(A, 0, rises, guarantee=1.0, most=math.inf),
        line(B, 18, 12 - rises, guarantee=1.0, most=math.inf),
        supply=15,
    )

    assert ("step_within_cap" not in contradicted(shared, replace(INPUTS, terms={H100: terms}))) is is_kept


@pytest.mark.parametrize(("supply", "is_kept"), [(39, True), (40, False)])
def test_a_whole_unit_is_taken_where_those_of_an_organisation_do_not_fit_otherwise(supply: int, is_kept: bool) -> None:
    # A is given its fourth unit, as 13 are guaranteed above it; with 24 of B that makes 40.
    terms = (
        Terms(team=ORG, guarantee=13, cap=21),
        Terms(team=A, guarantee=4, unit=4, parent=ORG),
        Terms(team=B, guarantee=8, cap=24, unit=8),
    )
    given = proposal(
        line(A, 12, 16, guarantee=4.0, most=math.inf), line(B, 40, 16, guarantee=8.0, most=24.0), supply=supply
    )

    assert ("step_within_cap" not in contradicted(given, replace(INPUTS, terms={H100: terms}))) is is_kept


@pytest.mark.parametrize(("falls_to", "is_kept"), [(29, True), (27, True), (26, False)])
def test_in_a_freeze_an_inner_organisation_gives_what_its_sibling_is_owed_beyond_the_cap_above(
    falls_to: int, is_kept: bool
) -> None:
    # Of 15 GPUs, 3.3 are left to C of what the outer one is guaranteed: 7 that are beyond its cap, and these.
    terms = (
        Terms(team=ORG, guarantee=25, cap=33),
        Terms(team=INNER, guarantee=10, parent=ORG),
        Terms(team=A, guarantee=0, cap=40, parent=INNER),
        Terms(team=C, guarantee=0, weight=2, parent=ORG),
    )
    still = proposal(
        line(A, 39, falls_to, guarantee=0.0, most=40.0),
        line(C, 1, 4, guarantee=0.0, most=math.inf),
        supply=15,
        frozen_because="a mass event",
    )

    assert ("freeze_kept" not in contradicted(still, replace(INPUTS, terms={H100: terms}))) is is_kept


@pytest.mark.parametrize(("guaranteed", "is_kept"), [(7, False), (8, True), (10, True)])
def test_what_ran_gives_way_to_what_is_guaranteed_above_in_whole_units(guaranteed: int, is_kept: bool) -> None:
    # With 3 for A, B may have one unit within the cap of 10: that makes 7.
    terms = (
        Terms(team=ORG, guarantee=guaranteed, cap=33),
        Terms(team=INNER, guarantee=6, cap=10, parent=ORG),
        Terms(team=A, guarantee=1, cap=3, parent=INNER),
        Terms(team=B, guarantee=4, unit=4, parent=INNER),
    )
    cut = proposal(
        line(A, 11, 2, guarantee=1.0, most=3.0, ran_last=34.0),
        line(B, 40, 8, guarantee=4.0, most=math.inf, ran_last=1.0),
        supply=20,
    )

    assert ("floors_kept" not in contradicted(cut, replace(INPUTS, terms={H100: terms}))) is is_kept
