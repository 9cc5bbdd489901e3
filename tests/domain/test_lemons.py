"""Lemons: in trouble more often than the others, with the reasons, and never by bad luck or somebody else's past."""

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.diagnose.lemons import (
    LemonScore,
    LemonSignal,
    Stay,
    Trouble,
    TroubleCounts,
    benjamini_hochberg,
    count_troubles,
    poisson_tail,
    score_lemons,
)
from ops_pipelines.observe.repeated import PartKey
from tests.domain.builders import NODE, NOW, OTHER_NODE

DAY = timedelta(days=1)
SINCE = NOW - 28 * DAY
XIDS, TICKETS = LemonSignal.XIDS, LemonSignal.TICKETS


def node_key(name: str) -> PartKey:
    return PartKey(kind="node", name=name)


def gpu_key(name: str) -> PartKey:
    return PartKey(kind="gpu", name=name)


def counted(name: str, *, days: float = 28.0, jobs: int = 0, **counts: int) -> TroubleCounts:
    by_signal = {LemonSignal[signal.upper()]: count for signal, count in counts.items()}
    return TroubleCounts(part=node_key(name), days=days, counts=by_signal, single_node_job_count=jobs)


def fleet(size: int = 100, **counts: int) -> list[TroubleCounts]:
    """Return a fleet in which every tenth node has seen one of everything."""
    quiet = dict.fromkeys(counts, 0)
    return [counted(f"n{place:03}", **(counts if place % 10 == 0 else quiet)) for place in range(size)]


def by_name(scores: tuple[LemonScore, ...]) -> Mapping[str, LemonScore]:
    return {each.part.name: each for each in scores}


def test_a_node_far_above_the_others_is_a_lemon_and_says_why() -> None:
    scores = score_lemons([*fleet(xids=1, tickets=1), counted("bad", xids=9, tickets=4)])

    assert scores[0].part.name == "bad"
    assert scores[0].is_lemon
    assert scores[0].reasons[0].startswith("9 Xid event(s) in 28 days; the others' rate gives 0.1")
    assert scores[0].reasons[1].startswith("culprit of 4 incident(s)")
    assert scores[0].confidence > 0.999
    assert [each.part.name for each in scores if each.is_lemon] == ["bad"]


def test_bad_luck_is_no_lemon() -> None:
    scores = score_lemons([*fleet(xids=1), counted("unlucky", xids=2)])

    assert not any(each.is_lemon for each in scores)


@pytest.mark.parametrize(("count", "is_lemon"), [(2, False), (3, True), (4, True)])
def test_a_few_events_are_never_enough(count: int, is_lemon: bool) -> None:
    scores = score_lemons([*fleet(400, xids=0), counted("bad", xids=count)])

    assert by_name(scores)["bad"].is_lemon is is_lemon


def test_a_part_that_was_hardly_there_scores_low_and_with_less_confidence() -> None:
    scores = by_name(score_lemons([*fleet(xids=3), counted("old", xids=6), counted("new", days=0.5, xids=1)]))

    assert scores["new"].score < scores["old"].score
    assert scores["new"].confidence < scores["old"].confidence


def test_a_part_without_exposure_says_nothing() -> None:
    score = by_name(score_lemons([*fleet(xids=1), counted("absent", days=0.0, xids=5)]))["absent"]

    assert (score.score, score.confidence, score.is_lemon, score.reasons) == (0.0, 0.0, False, ())


def test_two_nodes_are_no_fleet() -> None:
    scores = score_lemons([counted("a", xids=0), counted("b", xids=50)])

    assert not any(each.is_lemon for each in scores)
    assert score_lemons([]) == ()


def test_a_signal_that_nobody_measures_counts_for_nothing() -> None:
    with_it = score_lemons([*fleet(xids=1), counted("bad", xids=9)])
    only_one_has_it = score_lemons([*fleet(xids=1), counted("bad", xids=9, tickets=9)])

    assert by_name(only_one_has_it)["bad"].score == by_name(with_it)["bad"].score


def test_the_failure_rate_is_per_job_not_per_day() -> None:
    """Busy nodes see more failures of jobs; only the share of its jobs reports."""
    others = [counted(f"n{place}", jobs=100, failure_rate=1) for place in range(50)]

    scores = by_name(
        score_lemons([*others, counted("busy", jobs=1000, failure_rate=10), counted("bad", jobs=100, failure_rate=10)])
    )

    assert not scores["busy"].is_lemon
    assert scores["bad"].is_lemon
    assert "10 of its 100 single-node jobs" in scores["bad"].reasons[0]


def test_a_part_counted_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="counted twice"):
        score_lemons([counted("a", xids=0), counted("a", xids=1)])


# -- counting -----------------------------------------------------------------------------------------------------

OLD, NEW = gpu_key("old"), gpu_key("new")
SWAPPED_AT = NOW - 10 * DAY
STAYS = (
    Stay(part=node_key(NODE), node=NODE, since=SINCE - DAY, until=None),
    Stay(part=node_key(OTHER_NODE), node=OTHER_NODE, since=SINCE - DAY, until=None),
    Stay(part=OLD, node=NODE, since=SINCE - DAY, until=SWAPPED_AT),
    Stay(part=NEW, node=NODE, since=SWAPPED_AT, until=None),
)


def trouble(days_ago: float, *, gpu: PartKey | None = None, node: NodeName = NODE) -> Trouble:
    return Trouble(signal=XIDS, node=node, at=NOW - days_ago * DAY, gpu=gpu)


def counts_of(*troubles: Trouble, stays: tuple[Stay, ...] = STAYS) -> dict[PartKey, tuple[float, int]]:
    found = count_troubles(troubles, stays, measured={XIDS}, since=SINCE, until=NOW)
    return {each.part: (each.days, each.counts[XIDS]) for each in found}


def test_a_replaced_gpu_takes_its_past_out_of_the_node() -> None:
    counts = counts_of(*(trouble(days, gpu=OLD) for days in (11, 12, 13)), trouble(2, gpu=NEW))

    assert counts == {node_key(NODE): (28.0, 1), node_key(OTHER_NODE): (28.0, 0), NEW: (10.0, 1)}


def test_a_moved_gpu_brings_its_past_but_not_to_the_new_node() -> None:
    moved = (*STAYS, Stay(part=OLD, node=OTHER_NODE, since=SWAPPED_AT, until=None))

    counts = counts_of(trouble(11, gpu=OLD), trouble(1, gpu=OLD, node=OTHER_NODE), stays=moved)

    assert counts[OLD] == (28.0, 2)
    assert counts[node_key(NODE)][1] == 0
    assert counts[node_key(OTHER_NODE)][1] == 1


def test_a_nodes_own_trouble_stays_when_a_gpu_was_replaced() -> None:
    assert counts_of(trouble(11))[node_key(NODE)] == (28.0, 1)


@pytest.mark.parametrize(("days_ago", "count"), [(0, 0), (1 / 86_400, 1), (28, 1), (28 + 1 / 86_400, 0)])
def test_only_the_window_counts(days_ago: float, count: int) -> None:
    assert counts_of(trouble(days_ago))[node_key(NODE)][1] == count


def test_a_signal_that_was_measured_and_did_not_occur_is_nought() -> None:
    (found, *_) = count_troubles([], STAYS, measured={XIDS, TICKETS}, since=SINCE, until=NOW)

    assert found.counts == {XIDS: 0, TICKETS: 0}


TROUBLES = st.lists(
    st.builds(
        Trouble,
        signal=st.just(XIDS),
        node=st.sampled_from([NODE, OTHER_NODE]),
        at=st.integers(0, 40 * 24).map(lambda hours: NOW - timedelta(hours=hours)),
        gpu=st.sampled_from([None, OLD, NEW]),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(TROUBLES, st.permutations(list(range(20))))
def test_order_and_duplicates_of_events_change_nothing(troubles: list[Trouble], order: list[int]) -> None:
    shuffled = [troubles[place % len(troubles)] for place in order] + troubles if troubles else []

    assert counts_of(*shuffled) == counts_of(*troubles)


# -- invariants ---------------------------------------------------------------------------------------------------

FLEETS = st.lists(st.tuples(st.integers(0, 12), st.floats(0.1, 28)), min_size=3, max_size=12)


@settings(deadline=None)
@given(FLEETS)
def test_one_more_event_never_makes_a_part_look_better(listed: list[tuple[int, float]]) -> None:
    parts = [counted(f"n{place}", days=days, xids=count) for place, (count, days) in enumerate(listed)]
    worse = replace(parts[0], counts={XIDS: parts[0].counts[XIDS] + 1})

    before, after = (by_name(score_lemons(each))["n0"] for each in (parts, [worse, *parts[1:]]))

    assert after.score >= before.score
    assert after.excesses[0].p_value <= before.excesses[0].p_value


@settings(deadline=None)
@given(FLEETS, st.randoms(use_true_random=False))
def test_order_of_the_fleet_changes_nothing(listed: list[tuple[int, float]], random: Random) -> None:
    parts = [counted(f"n{place}", days=days, xids=count) for place, (count, days) in enumerate(listed)]

    shuffled = list(parts)
    random.shuffle(shuffled)

    assert score_lemons(shuffled) == score_lemons(parts)


@settings(deadline=None)
@given(st.integers(0, 60), st.fractions(Fraction(1, 100), 40, max_denominator=100))
def test_the_poisson_tail_is_what_the_sum_says(count: int, expected: Fraction) -> None:
    below = sum((expected**each / math.factorial(each) for each in range(count)), Fraction(0))
    all_terms = sum((expected**each / math.factorial(each) for each in range(count, count + 250)), Fraction(0))

    assert poisson_tail(count, float(expected)) == pytest.approx(
        float(all_terms / (all_terms + below)), rel=1e-9, abs=1e-14
    )


def test_the_poisson_tail_at_its_ends() -> None:
    assert poisson_tail(0, 0.0) == 1.0
    assert poisson_tail(1, 0.0) == 0.0
    assert poisson_tail(500, 1.0) == 0.0
    assert poisson_tail(5000, 5000.0) == pytest.approx(0.5, abs=0.01)


def test_benjamini_hochberg_as_published() -> None:
    """The first five of the worked example of Benjamini and Hochberg (1995), 15 tests."""
    p_values = [
        *(0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344),
        *(0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0),
    ]

    q_values = benjamini_hochberg(p_values)

    assert [q <= 0.05 for q in q_values] == [True] * 4 + [False] * 11
    assert q_values[0] == pytest.approx(0.0015)
    assert q_values[-1] == 1.0
    assert benjamini_hochberg([]) == ()
