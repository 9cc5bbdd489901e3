"""Choosing the moment by its cost pays: on a few made-up histories, and as docs/REMEDIATION.md records it for many."""

from datetime import timedelta

import numpy as np
import pytest

from bench.timing import (
    DOCS,
    OURS,
    Comparison,
    bootstrap_interval,
    compare,
    crossovers,
    moments_by_age,
    result_rows,
    table_lines,
    timing_rows,
    with_table,
)
from bench.timing_histories import LOADS, Fit, draw_history
from ops_pipelines.core.finding import UNKNOWN_HAZARD
from ops_pipelines.resources.catalogue_files import read_hazards

FEW = 40


@pytest.mark.parametrize("fit", Fit)
@pytest.mark.parametrize("load", [load for load in LOADS if load != "mixed"])
def test_timing_by_cost_is_no_worse_than_the_best_fixed_rule(load: str, fit: Fit) -> None:
    assert compare(load, fit, histories=FEW).worse_ratio <= 0.01


@pytest.mark.parametrize("fit", Fit)
def test_timing_by_cost_is_better_than_every_fixed_rule_on_the_mixed_load(fit: Fit) -> None:
    assert compare("mixed", fit, histories=200).high < 0


def test_the_recorded_results_hold_for_every_load() -> None:
    recorded = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.endswith("| yes |")]

    assert [line.split(" | ")[:2] for line in recorded] == [[f"| {load}", fit.value] for load in LOADS for fit in Fit]


def test_the_recorded_timing_table_is_what_the_program_does() -> None:
    text = DOCS.read_text(encoding="utf-8")

    assert with_table(text, "timing table", table_lines(timing_rows(read_hazards()))) == text


def test_the_same_seed_gives_the_same_jobs_whatever_the_faults_truly_do() -> None:
    fits, is_off = (draw_history("mixed", fit, read_hazards(), seed=5) for fit in Fit)

    assert [fault.job for fault in fits] == [fault.job for fault in is_off]
    assert [fault.saves_in for fault in fits] == [fault.saves_in for fault in is_off]
    assert [fault.strikes_in for fault in fits] != [fault.strikes_in for fault in is_off]


def test_the_moment_by_age_crosses_over_once() -> None:
    assert crossovers(moments_by_age(UNKNOWN_HAZARD)) == "1-13 min now; 14-55 min next checkpoint"
    assert crossovers(moments_by_age(UNKNOWN_HAZARD, ends_in=timedelta(minutes=1))) == "job end"


@pytest.mark.parametrize(
    ("load", "difference", "high", "holds"),
    [("mixed", -1.0, -0.1, True), ("mixed", -1.0, 0.0, False), ("x", 1.0, 2.0, True), ("x", 1.1, 2.0, False)],
)
def test_the_bench_says_no_where_the_claim_does_not_hold(
    load: str, difference: float, high: float, holds: bool
) -> None:
    found = Comparison(
        load=load,
        fit=Fit.FITS,
        history_count=FEW,
        means={OURS: 100 + difference, "always now": 100.0, "always at checkpoint": 200.0, "always at job end": 200.0},
        best_fixed="always now",
        difference=difference,
        low=-2.0,
        high=high,
    )

    assert found.holds is holds
    assert result_rows([found])[1][-1] == ("yes" if holds else "NO")


def test_the_interval_holds_the_mean_and_narrows_with_more_histories() -> None:
    random = np.random.default_rng(3)
    few, many = (bootstrap_interval(random.normal(5.0, 1.0, count)) for count in (20, 2_000))

    assert few[0] < 5.0 < few[1]
    assert many[1] - many[0] < few[1] - few[0]
