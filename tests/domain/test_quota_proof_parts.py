"""Every part of every proof can fail alone: each case here is what one weakened line of a proof would let through."""

import math
from dataclasses import replace

import pytest

from ops_pipelines.domain.quota.proposal import QuotaProposal
from tests.domain.test_quota_proposal_proof import (
    GOOD,
    H100,
    INPUTS,
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
