"""The page of placement: what is reported is on top, tables are short, and a day without data says what fills it."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.efficiency.placement.day import PlacementReport, placement_report
from ops_pipelines.efficiency.placement.document import placement_document
from ops_pipelines.efficiency.placement.fragmentation import HourIndex
from ops_pipelines.efficiency.placement.spread import Stranded, StrandedGpus, Why
from ops_pipelines.report.html import page_of
from tests.flow.placement_stage import DAY, END, GANG, SMALL, desk_of

EVIL = '"><script>alert(1)</script> \u202e'


@pytest.fixture(scope="module")
def report() -> PlacementReport:
    return placement_report(DAY, END, desk_of(SMALL, GANG))


def page(report: PlacementReport | None, *, why_not: str = "") -> str:
    return page_of(
        placement_document(
            report, cluster="small", day=DAY.date(), why_not=why_not, days=[DAY.date()], now=END
        )
    )  # fmt: skip


def stranded(report: PlacementReport, count: int, *, cause: str = "") -> PlacementReport:
    found = tuple(
        Stranded(node=NodeName(f"a{number}"), why=Why.DRAINED, gpu_hours=2.0, at_the_end=1, cause=cause)
        for number in range(count)
    )
    return replace(report, day=replace(report.day, stranded=StrandedGpus(stranded=found, free_gpu_hours=500.0)))


def test_sentences_queues_and_jobs_that_stood_apart_are_shown(report: PlacementReport) -> None:
    shown = page(report)

    assert report.sentences[0] in shown
    assert "2-4 nodes" in shown
    assert "2, could be 1" in shown


def test_the_strip_has_an_hour_a_cell_darker_where_more_is_in_pieces(report: PlacementReport) -> None:
    ratios = (0.0, 0.05, 0.15, 0.3, 0.5, 1.0)
    hours = tuple(
        HourIndex(hour=DAY + timedelta(hours=number), index_ratio=ratio, free_gpus=8.0)
        for number, ratio in enumerate(ratios)
    )

    shown = page(replace(report, day=replace(report.day, hours=hours)))

    assert re.findall(r'<rect class="s(\d)" x="[\d.]+%"', shown) == ["0", "1", "2", "3", "4", "4"]


@pytest.mark.parametrize(("count", "left"), [(0, None), (14, None), (15, None), (16, 1), (400, 385)])
def test_tables_show_fifteen_rows_and_count_the_others(report: PlacementReport, count: int, left: int | None) -> None:
    shown = page(stranded(report, count))

    assert shown.count("drained with free GPUs") >= min(count, 15)
    assert (f"and {left} more;" in shown) is (left is not None)


def test_settings_that_nobody_tells_are_not_called_good(report: PlacementReport) -> None:
    shown = page(replace(report, day=replace(report.day, policy=None)))

    assert "Nobody reports how the scheduler is set up." in shown
    assert "Nothing was found" not in shown


def test_few_jobs_are_said_to_be_few(report: PlacementReport) -> None:
    assert "too few jobs to compare" in page(report)


def test_a_day_without_a_report_says_why_and_what_fills_it() -> None:
    shown = page(None, why_not="nothing is over of what begins then")

    assert "nothing is over" in shown
    assert "ops-pipelines placement --day 2026-" in shown


def test_words_of_others_stay_short_text(report: PlacementReport) -> None:
    evil = stranded(report, 3, cause=EVIL + "x" * 10_000)

    shown = page(replace(evil, sentences=(EVIL * 500,), notes=(EVIL * 500,)))

    assert "<script>" not in shown
    assert "\u202e" not in shown
    assert "x" * 200 not in shown
