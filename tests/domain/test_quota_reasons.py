"""A team's lead reads one line and knows why its quota changed."""

from dataclasses import replace

import pytest

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.quotas.demand import queue_chance
from ops_pipelines.quotas.rebalance import counterfactual_of, moves_in_words, reason_of
from ops_pipelines.quotas.today import QuotaLine, Rebalanced


def line(
    before: float, after: float, *, wanted: tuple[float, float] = (0.0, 0.0), floor: float = 16.0, **more: object
) -> QuotaLine:
    values = {"is_agreed_too_large": True, **more}
    return QuotaLine(
        terms=Terms(team=TeamName("research"), guarantee=16, cap=96),
        before=before,
        after=after,
        floor=floor,
        wanted_before=wanted[0],
        wanted_after=wanted[1],
        **values,  # type: ignore[arg-type]  # fields of QuotaLine
    )


def day(*lines: QuotaLine, supply: float = 100.0, moved: float = 10.0) -> Rebalanced:
    return Rebalanced(lines=lines, supply=supply, moved=moved, step_cap=10.0)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            line(48, 56, wanted=(0.35, 0.12)),
            "more than 48 GPUs in 35 % of the time; more than 56 GPUs in 12 %",
        ),
        (line(48, 56, wanted=(0.35, 0.0)), "it wants more than 48 GPUs in 35 % of the time; more than 56 GPUs in none"),
        (line(8, 16, wanted=(0.5, 0.2)), "raised to its guarantee of 16 GPUs"),
        (line(48, 49), "1 GPU that no team is expected to want, shared out by weight"),
        (line(48, 40), "it wants more than 40 GPUs in none of the time, and others queue more often"),
        (line(48, 16), "in none of the time, and others queue more often; it keeps its guarantee"),
        (line(48, 30, floor=30), "and others queue more often; it keeps what ran in the last hour"),
        (
            line(96, 96, wanted=(0.4, 0.4)),
            "it has the most that was agreed, 96 GPUs; it wants more than 96",
        ),
        (line(16, 16), "it keeps its guarantee, 16 GPUs; it wants more than 16 GPUs in none of the time"),
        (line(30, 30, floor=30), "it keeps what ran in the last hour, 30 GPUs"),
        (line(48, 48, is_agreed_too_large=False), "too few days agree yet that it has too many"),
        (line(48, 48, wanted=(0.3, 0.3)), "the 10 GPUs that may move in a day went where GPUs are requested more"),
    ],
)
def test_each_line_gives_its_reason(found: QuotaLine, said: str) -> None:
    assert said in reason_of(found, of=day(found))


def test_who_could_gain_little_is_told_so() -> None:
    found = line(48, 48, wanted=(0.03, 0.03))

    assert reason_of(found, of=day(found, moved=2.0)).endswith("in 3 % of the time; no move gains enough")


def test_lost_nodes_are_the_reason_where_they_are() -> None:
    found = line(48, 40, wanted=(0.0, 0.1))

    words = "quotas were 48 GPUs together, and 40 are left to give out; it wants more"
    assert reason_of(found, of=day(found, supply=40)).startswith(words)


def test_what_would_be_without_the_change_stands_beside() -> None:
    chance = queue_chance([40.0, 60.0], weights=[1.0, 1.0])

    assert counterfactual_of(line(48, 56), chance=chance) == (
        "expected to wait: 48 GPU-hours a day; without the change 144 GPU-hours"
    )
    assert counterfactual_of(line(48, 48), chance=chance) == "expected to wait: 144 GPU-hours a day"


def test_the_day_is_told_in_one_sentence() -> None:
    changes = {TeamName("research"): 8.0, TeamName("product"): -8.0}

    assert moves_in_words(changes, moved=8, supply=100, step_cap=10) == (
        "8 of 100 GPUs move (by choice at most 10 a day): more for research (+8); less for product (-8)"
    )
    assert moves_in_words({TeamName(f"t{n}"): 1.0 for n in range(7)}, moved=7, supply=100, step_cap=10).endswith(
        "more for t0 (+1), t1 (+1), t2 (+1), t3 (+1), t4 (+1) and 2 others; nobody gets less"
    )


# --- what a lead reads -------------------------------------------------------------------------------------------


def test_guarantees_that_do_not_fit_are_told_with_what_is_left_of_one() -> None:
    assert reason_of(line(16, 10, owed=10.0), of=day(supply=40)) == (
        "not all guarantees fit into the 40 GPUs that may be shared out; they are kept by priority, then in "
        "proportion: 10 GPUs of its 16 GPUs"
    )


def test_a_freeze_is_told_with_its_cause_and_with_what_lost_nodes_mean() -> None:
    found = line(48, 48)

    assert reason_of(found, of=replace(day(found), frozen_because="the scheduler is down")) == (
        "quotas stand still: the scheduler is down"
    )
    assert reason_of(found, of=replace(day(found, supply=40), frozen_because="a move")) == (
        "quotas stand still: a move; together they are 48 GPUs, of 40 GPUs to give out: jobs may wait for nodes"
    )


def test_the_way_back_is_told_with_where_it_leads() -> None:
    found = line(48, 58, agreed=70.0)

    assert reason_of(found, of=replace(day(found), returns_to_contract="the freeze of December")) == (
        "back toward what was agreed, 70 GPUs by guarantee and weight, after the freeze of December; "
        "10 GPUs may move in a day, of all teams together"
    )


def test_gang_project_stranger_organisation_cap_and_turns_are_named() -> None:
    raised, kept = line(60, 64, wanted=(0.2, 0.1), gang=64), line(48, 48, wanted=(0.2, 0.2))

    assert reason_of(raised, of=day(raised)).startswith("its jobs take 64 GPUs, and with less none of them starts; it")
    assert reason_of(raised, of=day(raised), project="project gpt begins (64 GPUs)").startswith(
        "project gpt begins (64"
    )
    assert reason_of(kept, of=day(kept), is_stranger=True).startswith("no contract names research: it gets what nobody")
    assert reason_of(replace(kept, bound_by=TeamName("org")), of=day(kept)).startswith(
        "org has the most that was agreed"
    )
    assert "up and down by turns of late" in reason_of(replace(kept, is_held=True), of=day(kept))
    assert reason_of(line(120, 96), of=day()) == "cut to the most that was agreed, 96 GPUs"
