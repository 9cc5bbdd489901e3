"""The bench of rollouts names every promise that is not kept, and no other."""

from dataclasses import replace

import pytest

from bench.rollout import Result, promises_broken, table_of_bounded, table_of_ours, table_of_peers, within
from ops_pipelines_lab.whatif.lifecycle.scenario import Scenario, read_site
from ops_pipelines_lab.whatif.lifecycle.trials import OURS, Trial

GOOD, BAD = Scenario(name="good", is_good=True), Scenario(name="bad")
SITE = read_site()


def good(*, cost: float = 3.0, is_stopped: bool = False) -> Trial:
    return Trial(
        is_done=not is_stopped, is_stopped=is_stopped, has_asked=False, is_back=False, touched_ratio=1.0,
        upgraded_count=1_000, lost_gpu_hours=cost * 1_000, days=9.0, decided_days=5.0, deciding_days=4.0, reason="",
    )  # fmt: skip


def bad(*, touched: int = 30, is_back: bool = True, is_stopped: bool = True, days: float = 7.0) -> Trial:
    return Trial(
        is_done=not is_stopped, is_stopped=is_stopped, has_asked=False, is_back=is_back and is_stopped,
        touched_ratio=touched / 1_000 if is_stopped else 1.0, upgraded_count=0, lost_gpu_hours=None, days=9.0,
        decided_days=9.0, deciding_days=days, reason="",
    )  # fmt: skip


def broken(scenario: Scenario, *trials: Trial) -> list[str]:
    return list(promises_broken(Result(scenario=scenario, trials={OURS: trials}), site=SITE))


@pytest.mark.parametrize(("cost", "is_kept"), [(3.19, True), (3.2, True), (3.21, False)])
def test_the_cost_of_a_good_release_is_promised(cost: float, is_kept: bool) -> None:
    assert (not broken(GOOD, good(cost=cost), good(cost=cost))) is is_kept


@pytest.mark.parametrize(("seeds", "is_kept"), [(499, False), (500, True), (501, True)])
def test_one_false_stop_of_five_hundred_is_within_the_promise(seeds: int, is_kept: bool) -> None:
    trials = [good(is_stopped=True), *[good()] * (seeds - 1)]

    assert (not broken(GOOD, *trials)) is is_kept


@pytest.mark.parametrize(("touched", "is_kept"), [(29, True), (30, True), (31, False)])
def test_no_more_than_the_canaries_are_touched(touched: int, is_kept: bool) -> None:
    assert (not broken(BAD, bad(touched=touched))) is is_kept


@pytest.mark.parametrize(
    ("trial", "said"),
    [
        (bad(is_back=False), "rolled back"),
        (bad(is_stopped=False), "never stopped"),
        (bad(days=7.01), "days to decide"),
    ],
)
def test_one_bad_release_of_twenty_that_gets_through_or_stays_is_named(trial: Trial, said: str) -> None:
    found = broken(BAD, *[trial] * 2, *[bad()] * 18)

    assert any(said in each for each in found)
    assert broken(BAD, *[bad()] * 20) == []


def test_the_tables_have_a_row_for_each_release_and_each_way() -> None:
    results = [
        Result(scenario=GOOD, trials={OURS: [good()], "all_at_once": [good(cost=2.9)]}),
        Result(scenario=BAD, trials={OURS: [bad()], "all_at_once": [bad(is_stopped=False)]}),
    ]

    ours, peers = table_of_ours(results, site=SITE), table_of_peers(results, site=SITE)

    assert [line.split(" | ")[0] for line in ours.splitlines()[2:]] == ["| good", "| bad"]
    assert "| all_at_once | 1 | 2.90 (2.90 to 2.90) | 1,000 |" in peers
    assert "30, back" in peers


@pytest.mark.parametrize(("touched", "expected"), [(99, 1.0), (100, 1.0), (101, 0.0)])
def test_a_release_counts_as_stopped_before_a_share_up_to_its_last_node(touched: int, expected: float) -> None:
    assert within(Result(scenario=BAD, trials={OURS: [bad(touched=touched)]}), 0.1) == expected


def test_who_asked_or_never_stopped_was_not_stopped_by_the_gate() -> None:
    trials = [bad(), bad(is_stopped=False), replace(bad(), has_asked=True), bad()]

    found = Result(scenario=BAD, trials={OURS: trials})

    assert within(found, 0.1) == 0.5
    assert "| failures x5 | 4 | 10% | 50.0% | 25.0% | 75.0% | 9.0 |" in table_of_bounded({"failures x5": (found, 0.1)})
