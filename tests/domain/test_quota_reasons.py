"""A team's lead reads one line and knows why its quota changed."""

import pytest

from ops_pipelines.domain.quota.queue_chance import queue_chance
from ops_pipelines.domain.quota.reasons import counterfactual_of, headline_of, reason_of
from ops_pipelines.domain.quota.rebalance import QuotaLine, Rebalanced
from ops_pipelines.domain.quota.terms import TeamName, Terms


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
        (line(48, 48, wanted=(0.3, 0.3)), "the 10 GPUs that may move in a day went where GPUs are wanted more"),
    ],
)
def test_each_line_gives_its_reason(found: QuotaLine, said: str) -> None:
    assert said in reason_of(found, of=day(found))


def test_who_could_gain_little_is_told_so() -> None:
    found = line(48, 48, wanted=(0.03, 0.03))

    assert reason_of(found, of=day(found, moved=2.0)).endswith("in 3 % of the time; no move gains enough")


def test_lost_nodes_are_the_reason_where_they_are() -> None:
    found = line(48, 40, wanted=(0.0, 0.1))

    assert reason_of(found, of=day(found, supply=40)).startswith("nodes are lost: 40 GPUs are healthy; it wants more")


def test_what_would_be_without_the_change_stands_beside() -> None:
    chance = queue_chance([40.0, 60.0], weights=[1.0, 1.0])

    assert counterfactual_of(line(48, 56), chance=chance) == (
        "expected to wait: 48 GPU-hours a day; without the change 144 GPU-hours"
    )
    assert counterfactual_of(line(48, 48), chance=chance) == "expected to wait: 144 GPU-hours a day"


def test_the_day_is_told_in_one_sentence() -> None:
    assert headline_of(day(line(48, 56), line(48, 40))) == (
        "10 GPUs of 100 GPUs move (10 GPUs may in a day): more for research (+8); less for research (-8)"
    )
    assert headline_of(day(line(48, 48))) == "no quota changes"
