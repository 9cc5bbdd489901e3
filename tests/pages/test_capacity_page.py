"""The page of capacity: what a director must know on top, what an engineer audits below, and nothing that runs."""

import re
from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from ops_pipelines.capacity.model import CapacityPlan, CapacityReport, Resource, SeriesKey, SupplyPoint, SupplyWeek
from ops_pipelines.capacity.report import capacity_document, kept_document, next_order
from ops_pipelines.capacity.tables import ROWS, amount, scale_of, series_name, type_name, usable_at
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.report.html import page_of
from tests.pages.capacity_sample import ALL_H100, LUSTRE, ORDERS, order, whole_report

EVIL = '"><script>alert(1)</script>\u202e'
NOW = datetime(2026, 11, 22, 8, tzinfo=UTC)


@pytest.fixture(scope="module")
def report() -> CapacityReport:
    return whole_report()


def page(report: CapacityReport | None, **changed: object) -> str:
    given: dict[str, object] = {"cluster": "small", "quarter": "2026Q4", "report": report, "now": NOW}
    return page_of(capacity_document(**{**given, **changed}))  # type: ignore[arg-type]  # fields by name


def section(shown: str, title: str) -> str:
    return shown.split(f"<h2>{title}</h2>")[1].split("<h2>")[0]


def words(shown: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", shown))


def with_plan(report: CapacityReport, **changed: object) -> CapacityReport:
    return replace(report, plan=replace(report.plan, **changed))  # type: ignore[arg-type]  # fields by name


# -- on top --


def test_headline_and_tiles_stand_before_everything_else(report: CapacityReport) -> None:
    top = words(page(report).split("<h2>")[0])

    assert "Of 26 bounds of 90 % from 2026Q3, 25 held: 96 %." in top
    assert "96 % chance of too few h100 in the worst week, from 2027-09-23" in top
    assert "2026-09-14 overdue since then: order 2 of lustre, 200 TiB, and 1 more" in top
    assert "1,900,000 EUR for all that is to be ordered; 1 of 3 have no price and are not in it" in top
    assert "96 % of 26 bounds of 2026Q3 held; 90 % should" in top


@pytest.mark.parametrize(
    ("orders", "value"),
    [
        ((order("a", ALL_H100),), "2027-01-12"),
        ((order("a", ALL_H100), order("b", LUSTRE, order_by=date(2027, 1, 11))), "2027-01-11"),
        ((order("a", ALL_H100, order_by=None),), "no date"),
        ((order("a", ALL_H100, count=0, order_by=None, short_from=None),), "nothing"),
        ((), "nothing"),
    ],
    ids=["one", "the earlier", "undated", "not short", "none"],
)
def test_the_tile_names_the_first_day_to_order(report: CapacityReport, orders: tuple[object, ...], value: str) -> None:
    plan: CapacityPlan = with_plan(report, orders=orders).plan

    assert next_order(plan).value == value


def test_what_has_no_price_is_not_called_free(report: CapacityReport) -> None:
    shown = page(with_plan(report, orders=(order("a", ALL_H100, cents=None),)))

    assert "not known what the orders cost: no price is stated" in words(shown)


# -- below --


def test_an_order_that_is_late_says_so_in_words(report: CapacityReport) -> None:
    shown = words(section(page(report), "What to order"))

    assert "2026-09-14: OVERDUE" in shown
    assert "no lead time of gb200-nvl is stated in capacity.yaml" in shown
    assert "no date known" in shown
    assert "not expected" in shown


def test_each_type_has_its_picture_with_the_numbers_beside_it(report: CapacityReport) -> None:
    shown = section(page(report), "GPUs: what will be requested and what will be usable")

    assert re.findall(r"<h3>(\w+): <span", shown) == ["h100", "b200", "l40s", "a100"]
    assert shown.count("<svg") == 3 * 4
    assert shown.count("<desc>") == shown.count("<svg")
    assert "Week 52, from 2027-09-23: peak 496 (median), at most 553 with 90 %; usable 510 of 528 installed" in shown
    assert "26 of 52 weeks are striped" in shown
    assert "whether it runs short is not known" in shown


def test_ways_regret_resources_refresh_and_projects_are_shown(report: CapacityReport) -> None:
    shown = page(report)

    assert "burst to cloud" in section(shown, "What else could be done")
    assert words(section(shown, "Ordering too much or too little")).count("10,000: best") == 3
    assert "850 TiB, 85 % of its limit, are passed from 2026-12-03 on" in section(
        shown, "Storage, power, cooling, network"
    )
    assert "240 / 249 kW" in section(shown, "Storage, power, cooling, network")
    assert words(section(shown, "Hardware that is due")).index("DUE: ") < section(shown, "Hardware that is due").index(
        "hgx-h100 of 2024"
    )
    assert "60 %" in section(shown, "Planned projects")
    assert "censored: at its cap in 31 hours" in section(shown, "How series were treated")
    assert "demand and supply are taken as independent" in section(shown, "What it rests on")


def test_the_last_forecast_is_judged_with_the_week_that_it_missed(report: CapacityReport) -> None:
    shown = section(page(report), "How the last forecast did")

    assert "25 of 26 bounds of 90 % that 2026Q3 stated as of 2026-07-01 held" in words(shown)
    assert "Week from 2026-08-27: 437 came, the bound was 406" in shown
    assert "the plan before stated 2027-02-20" in shown


def test_a_forecast_made_afterwards_is_called_so(report: CapacityReport) -> None:
    assert report.hindsight is not None
    afterwards = replace(report, hindsight=replace(report.hindsight, is_kept=False))

    assert "Nothing was kept then" in page(afterwards)
    assert "Nothing was kept then" not in page(report)


def test_a_report_with_nothing_in_it_says_what_is_missing(report: CapacityReport) -> None:
    empty = replace(
        report,
        forecast=replace(report.forecast, outlooks=(), with_projects=(), supply=(), projects=(), notes=()),
        plan=replace(report.plan, short_weeks=(), orders=(), alternatives=(), regret=(), refresh=(), notes=()),
        hindsight=None, history=(), headline=(), assumptions=(),
    )  # fmt: skip

    shown = words(page(empty))

    assert "No type of GPU is known." in shown
    assert "Too little was known a quarter ago for a forecast." in shown
    assert "None is stated in projects.yaml" in shown


def test_without_a_report_the_page_says_what_makes_one() -> None:
    shown = page(None, why_not="No quarter was planned yet.")

    assert "No quarter was planned yet." in shown
    assert "<code>plan_capacity</code>" in shown
    assert "<code>ops-pipelines capacity report</code>" in shown


# -- kept, hostile, large --


def test_the_kept_page_is_the_same_each_time_and_leads_nowhere(report: CapacityReport) -> None:
    kept = page_of(kept_document(report, name="2026Q4-check-2026-11"))

    assert kept == page_of(kept_document(whole_report(), name="2026Q4-check-2026-11"))
    assert "href" not in kept.split("</style>")[1]
    assert "Capacity plan 2026Q4-check-2026-11" in kept


def test_reports_to_choose_are_linked_but_the_shown_one(report: CapacityReport) -> None:
    shown = page(report, quarters=("2026Q4", "2026Q3"))

    assert '<b>2026Q4</b><a href="capacity?quarter=2026Q3">2026Q3</a>' in shown
    assert 'href="capacity.json?quarter=2026Q4"' in shown


def test_names_of_strangers_stay_text(report: CapacityReport) -> None:
    evil_key = SeriesKey(resource=Resource.STORAGE_BYTES.value, name=EVIL)
    forecast, plan = report.forecast, report.plan
    hostile = replace(
        report,
        forecast=replace(
            forecast,
            timezone=EVIL,
            outlooks=tuple(
                replace(each, notes=(EVIL,), treatment=EVIL, key=replace(each.key, name=EVIL))
                for each in forecast.outlooks
            ),
            with_projects=tuple(
                replace(each, key=replace(each.key, gpu_type=GpuType(EVIL))) for each in forecast.with_projects
            ),
            projects=tuple(replace(each, name=EVIL, team=EVIL) for each in forecast.projects),  # type: ignore[arg-type]
        ),
        plan=replace(
            plan,
            currency=EVIL,
            orders=tuple(replace(each, what=EVIL, why=EVIL, series=evil_key) for each in plan.orders),
            short_weeks=tuple(replace(each, gpu_type=GpuType(EVIL)) for each in plan.short_weeks),
            alternatives=tuple(replace(each, gpu_type=GpuType(EVIL), said=EVIL) for each in plan.alternatives),
            refresh=tuple(replace(each, asset=EVIL, said=EVIL) for each in plan.refresh),
        ),
        headline=(EVIL,), assumptions=(EVIL,),
    )  # fmt: skip

    shown = page(hostile, cluster=EVIL, quarters=(EVIL,))

    assert "<script" not in shown
    assert "\u202e" not in shown


def test_long_names_and_words_are_cut(report: CapacityReport) -> None:
    endless = "x" * 5_000
    shown = page(
        replace(with_plan(report, orders=(order(endless, ALL_H100, why=endless),)), headline=(endless,)),
        cluster=endless,
    )

    assert "x" * 600 not in shown


@pytest.mark.parametrize(("length", "is_whole"), [(599, True), (600, True), (601, False)])
def test_what_decides_an_order_stands_last_in_its_reasons_and_is_still_told(
    report: CapacityReport, length: int, is_whole: bool
) -> None:
    why = "fits 6 of 20 nodes".rjust(length, "y")

    shown = page(with_plan(report, orders=(order("hgx", ALL_H100, why=why),)))

    assert ("fits 6 of 20 nodes" in shown) is is_whole


def test_no_backtick_is_left_on_the_page(report: CapacityReport) -> None:
    said = "see `expansions` of capacity.yaml"

    shown = page(
        replace(with_plan(report, orders=(order("hgx", ALL_H100, why=said),)), headline=(said,), assumptions=(said,))
    )

    assert shown.count("see expansions of capacity.yaml") == 3
    assert "`" not in shown


def test_where_types_are_not_told_apart_gpus_are_called_gpus() -> None:
    nameless, named = GpuType(""), GpuType("h100")

    assert (type_name(nameless), type_name(named)) == ("GPUs", "h100")
    assert series_name(SeriesKey(resource="gpus", gpu_type=nameless)) == "GPUs of all teams"
    assert series_name(SeriesKey(resource="gpus", gpu_type=nameless, name="vision")) == "GPUs of vision"


@pytest.mark.parametrize(("count", "left"), [(ROWS, None), (ROWS + 1, "and 1 more")])
def test_a_long_table_says_how_much_it_leaves_out(report: CapacityReport, count: int, left: str | None) -> None:
    shown = section(page(with_plan(report, orders=(ORDERS[1],) * count)), "What to order")

    assert shown.count('<tr class="plain">') == ROWS
    assert (left in shown) if left else ("more" not in words(shown).split("What")[-1].replace("10 more", ""))


def test_nothing_runs_and_nothing_is_fetched(report: CapacityReport) -> None:
    shown = page(report)

    assert "default-src &#39;none&#39;" in shown
    assert not re.search(r"<script|<img|<link|url\(|@import|\son\w+=", shown)


def test_it_prints_and_fits_a_phone(report: CapacityReport) -> None:
    style = page(report).split("</style>")[0]

    for rule in ("@page { size: A4", "break-inside: avoid", 'content: " (" attr(href)', "@media (max-width: 40rem)"):
        assert rule in style


def drawings(report: CapacityReport, title: str) -> str:
    shown = section(page(report), "Storage, power, cooling, network")
    return next(each for each in shown.split("<figure") if title in each)


def test_a_limit_is_drawn_with_the_part_of_it_that_may_be_used(report: CapacityReport) -> None:
    storage, rack = drawings(report, "Storage: "), drawings(report, "Power: ")

    assert storage.count(">may be used</text>") == storage.count(">limit</text>") == storage.count("<svg")
    assert rack.count(">may be used</text>") == rack.count("<svg")
    assert ">limit</text>" not in rack
    assert "40 kW are not passed" in rack


def test_a_limit_far_above_all_that_is_foreseen_is_told_and_not_drawn(report: CapacityReport) -> None:
    leaf = drawings(report, "Network: ")

    assert "800 % used, 80 % of its limit, are not passed" in leaf
    assert ">may be used</text>" not in leaf


def test_what_has_no_known_limit_is_called_so(report: CapacityReport) -> None:
    assert "No limit of it is known" in drawings(report, "Cooling: ")


# -- words --


def test_units_fit_their_size() -> None:
    tib = 2.0**40

    assert scale_of(LUSTRE, [4_095 * tib]).said(900 * tib) == "900 TiB"
    assert scale_of(LUSTRE, [4_096 * tib]).said(5_120 * tib) == "5 PiB"
    assert scale_of(SeriesKey(resource="rack_watts"), [1.0]).said(31_400.0) == "31.4 kW"
    assert scale_of(SeriesKey(resource="network_ratio"), [1.0]).said(0.5) == "50 % used"


@pytest.mark.parametrize("resource", list(Resource))
def test_every_series_has_a_name(resource: Resource) -> None:
    assert series_name(SeriesKey(resource=resource.value))
    assert "a" * 41 not in series_name(SeriesKey(resource=resource.value, name="a" * 100))


def test_money_is_whole_and_unknown_money_is_no_price() -> None:
    assert (amount(None, "EUR"), amount(123_456_78, "EUR"), amount(0, "")) == ("no price", "123,457 EUR", "0")


@pytest.mark.parametrize(("level", "gpus"), [(0.05, 10.0), (0.25, 10.0), (0.26, 20.0), (1.0, 20.0)])
def test_what_is_usable_at_least_is_read_from_its_points(level: float, gpus: float) -> None:
    points = (SupplyPoint(gpus=10.0, probability=0.25), SupplyPoint(gpus=20.0, probability=0.75))
    week = SupplyWeek(gpu_type=GpuType("h100"), first_day=date(2026, 10, 1), installed=24.0, points=points)

    assert usable_at(week, level) == gpus
