"""How a past forecast is judged, what is reported changes, what a check warns of, and the sentences on top."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from ops_pipelines.capacity.model import CapacityPlan, OrderLine, Resource, SeriesKey
from ops_pipelines.capacity.past import Completeness, Past
from ops_pipelines.capacity.peak_history import RecordedDays, read_history
from ops_pipelines.capacity.reporting import assumptions_of, headline_of, judge_bounds, tell_changes, warn_of_changes
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.teams.projects import CapacityPolicy
from tests.flow import capacity_samples as samples
from tests.flow.capacity_samples import ALL_H100, AS_OF, H100

POLICY = CapacityPolicy()
TEAM = SeriesKey(resource=Resource.GPUS.value, gpu_type=H100, name="research")


def past_of(peaks: dict[date, float], *, as_of: date) -> Past:
    """A past in which one team wants all that is required."""
    rows = TABLES["daily_peaks"].from_rows(
        {
            "resource": "gpus", "gpu_type": "h100", "name": name, "zone": "UTC", "unit": "1", "hour_count": 24,
            "time": datetime(day.year, day.month, day.day, tzinfo=UTC), "peak": peak, "mean": peak,
            "near_peak_hours": 24.0,
        }
        for day, peak in peaks.items()
        for name in ("", "research")
    )  # fmt: skip
    zone = ZoneInfo("UTC")
    return Past(
        as_of=as_of,
        history=read_history(rows, until=as_of, zone=zone),
        recorded=RecordedDays(rows, until=as_of, zone=zone),
        completeness=Completeness(known=28, expected=28, missing=()),
    )


def days_from(first: date, *peaks: float) -> dict[date, float]:
    return {first + timedelta(days=number): peak for number, peak in enumerate(peaks)}


# -- bounds --


def test_each_week_that_is_over_is_judged_at_its_lead() -> None:
    before = samples.forecast(peaks=(100.0, 200.0, 300.0))
    came = days_from(AS_OF, *([90.0] * 6), 105.0, *([195.0] * 6), 217.0, 500.0)

    found = judge_bounds(before, past_of(came, as_of=AS_OF + timedelta(days=15)))

    # A week from 90 to 110 with 1 % at each end: its bound of 90 % is 108.
    assert [(each.lead_weeks, each.first_day, each.median, each.peak) for each in found] == [
        (1, AS_OF, 100.0, 105.0),
        (2, AS_OF + timedelta(days=7), 200.0, 217.0),
    ]
    assert [each.bound_90 for each in found] == pytest.approx([108.0, 216.0])
    assert [each.is_held for each in found] == [True, False]


def test_a_week_with_a_day_that_nobody_knows_is_not_judged() -> None:
    before = samples.forecast(peaks=(100.0, 200.0))
    came = days_from(AS_OF, *([90.0] * 14))
    del came[AS_OF + timedelta(days=3)]

    found = judge_bounds(before, past_of(came, as_of=AS_OF + timedelta(days=14)))

    assert [each.lead_weeks for each in found] == [2]


def test_no_week_over_is_nothing_to_judge() -> None:
    before = samples.forecast(peaks=(100.0,))
    past = past_of(days_from(AS_OF - timedelta(days=20), *([90.0] * 26)), as_of=AS_OF + timedelta(days=6))

    assert judge_bounds(before, past) == ()


def test_of_all_teams_the_fan_with_projects_is_judged_and_teams_as_they_are() -> None:
    told = samples.forecast(peaks=(100.0,))
    fan = samples.outlook_of(ALL_H100, (150.0,))
    team = samples.outlook_of(TEAM, (100.0,))
    before = replace(told, with_projects=(fan,), outlooks=(*told.outlooks, team))

    found = judge_bounds(before, past_of(days_from(AS_OF, *([90.0] * 7)), as_of=AS_OF + timedelta(days=7)))

    assert [(each.key, each.median) for each in found] == [(ALL_H100, 150.0), (TEAM, 100.0)]


# -- changes --


def changes(*, old: CapacityPlan | None = None, new: CapacityPlan | None = None) -> tuple[str, ...]:
    told = samples.forecast()
    return tell_changes(told, old or samples.plan(), forecast=told, plan=new or samples.plan())


def test_the_same_plan_has_no_changes() -> None:
    assert changes() == ()


def test_a_date_a_number_and_a_first_week_that_changed_are_told() -> None:
    new = samples.plan(samples.order(order_by=date(2027, 2, 1), short_from=date(2027, 6, 10), count=7))

    assert changes(new=new) == (
        "hgx-h100: order by 2027-02-01; the plan before stated 2027-01-12",
        "hgx-h100 is short from 2027-06-10; the plan before stated 2027-06-03",
        "hgx-h100: 7 are needed; the plan before stated 6",
    )


def test_what_became_short_or_is_no_longer_is_told() -> None:
    calm = samples.plan(samples.order(order_by=None, short_from=None, count=0))

    assert changes(old=calm) == (
        "hgx-h100 runs short from 2027-06-03 on; the plan before had it enough within its horizon",
    )
    assert changes(new=calm) == (
        "hgx-h100 is no longer short within the horizon; the plan before stated from 2027-06-03 on",
    )


def test_projects_that_came_went_or_moved_are_told() -> None:
    told = samples.forecast()
    moved = samples.project(gpus=96.0, starts_on=date(2027, 3, 1), ends_on=None, ramp_days=7, probability=0.8)
    added = samples.project(name="speech")

    assert tell_changes(
        told,
        samples.plan(),
        forecast=samples.forecast(projects=(moved, added)),
        plan=samples.plan(),
    ) == (
        "project speech of research is new: 64 GPUs from 2027-02-01 with 60 %",
        "project vision-2 of research is planned otherwise: 96 GPUs, before 64; from 2027-03-01, before from "
        "2027-02-01; until no known end, before until 2027-09-01; in 7 days, before in 30; with 80 %, before 60 %",
    )
    assert tell_changes(told, samples.plan(), forecast=samples.forecast(projects=()), plan=samples.plan()) == (
        "project vision-2 of research is no longer planned: it requested 64 GPUs from 2027-02-01",
    )


def test_gpus_that_were_expected_and_are_not_there_are_told() -> None:
    before = samples.forecast(as_of=AS_OF - timedelta(days=14), installed=576.0)

    assert tell_changes(before, samples.plan(), forecast=samples.forecast(), plan=samples.plan()) == (
        "h100: 512 GPUs are installed; the forecast before expected 576",
    )


def test_a_forecast_that_ends_before_today_expected_nothing_of_it() -> None:
    before = samples.forecast(as_of=AS_OF - timedelta(days=14))

    assert tell_changes(before, samples.plan(), forecast=samples.forecast(), plan=samples.plan()) == ()


# -- a check --


def warned(new: OrderLine, *, old: OrderLine | None = None) -> tuple[str, ...]:
    first = samples.report(*(() if old is None else (old,)))
    return warn_of_changes(first, samples.report(new, as_of=date(2026, 11, 1)))


@pytest.mark.parametrize(
    ("order_by", "words"),
    [
        (date(2026, 12, 28), "15 days earlier"),
        (date(2026, 12, 29), None),
        (date(2027, 1, 12), None),
        (date(2027, 1, 26), None),
        (date(2027, 1, 27), "15 days later"),
    ],
)
def test_a_date_that_moved_by_more_than_two_weeks_is_warned_of(order_by: date, words: str | None) -> None:
    found = warned(samples.order(order_by=order_by))

    assert found == (() if words is None else (f"hgx-h100: order by {order_by}, {words} than stated on 2026-10-01",))


def test_an_order_that_became_overdue_is_warned_of_once() -> None:
    late = samples.order(order_by=date(2026, 10, 30), is_overdue=True)

    assert warned(late) == (
        "hgx-h100 is overdue: it had to be ordered by 2026-10-30; ordered today it helps from 2027-03-04 on",
    )
    assert warned(late, old=late) == ()


def test_what_became_short_is_warned_of_and_what_is_no_longer_too() -> None:
    calm = samples.order(order_by=None, short_from=None, count=0)

    assert warned(samples.order(), old=calm) == (
        "hgx-h100 runs short from 2027-06-03 on; on 2026-10-01 it did not within the horizon",
    )
    assert warned(calm) == ("hgx-h100 is no longer short within the horizon; on 2026-10-01 it was, from 2027-06-03 on",)
    assert warned(calm, old=calm) == ()


def test_a_date_that_can_no_longer_be_named_is_warned_of() -> None:
    assert warned(samples.order(order_by=None)) == ("hgx-h100: order by no date; on 2026-10-01 it was 2027-01-12",)


# -- the sentences on top --


def test_four_sentences_say_what_to_order_how_sure_how_it_did_and_what_is_unknown() -> None:
    report = samples.report()

    found = headline_of(report.forecast, report.plan, report.hindsight, policy=POLICY)

    assert found == (
        "Order 6 nodes of hgx-h100 by 2027-01-12: it runs short from 2027-06-03 on.",
        "Dates keep the risk of a short week at 10 % or less; how wide peaks spread is measured on the past for 2 "
        "weeks ahead, for the 1 week after that it is drawn on.",
        "Of 2 bounds of 90 % from 2026Q3, 1 held: 50 %.",
        "Not known: what 2 series at a cap would have requested; "
        "2 notes in the report tell what was assumed or treated.",
    )


def test_an_overdue_order_says_when_it_helps() -> None:
    late = samples.order(order_by=date(2026, 9, 1), is_overdue=True)
    undated = samples.order(order_by=None, what="hgx-b200", key=SeriesKey(resource="gpus", gpu_type=H100, name=""))
    third = samples.order(what="lustre")

    (first, *_) = headline_of(samples.forecast(), samples.plan(late, undated, third), None, policy=POLICY)

    assert first == (
        "Order 6 nodes of hgx-h100 at once, which helps from 2027-03-04 on: it runs short from 2027-06-03 on, and the "
        "day for it was 2026-09-01; hgx-b200 runs short from 2027-06-03 on, and no date to order can be named; 1 more "
        "in the table."
    )


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (0, "at 10 % or less; how"),
        (1, "at 10 % or less where they are met, and 1 of 2 has passed; how"),
        (2, "at 10 % or less where they are met, and 2 of 2 have passed; how"),
    ],
)
def test_dates_that_have_passed_keep_no_risk_down_and_that_is_said(late: int, said: str) -> None:
    orders = [samples.order(is_overdue=number < late) for number in range(2)]
    undated = samples.order(order_by=None)

    (_, sureness, *_) = headline_of(samples.forecast(), samples.plan(*orders, undated), None, policy=POLICY)

    assert sureness.startswith(f"Dates keep the risk of a short week {said}")


def test_what_is_no_node_is_ordered_in_steps() -> None:
    one = samples.order(what="file system lustre", key=samples.LUSTRE, count=1)

    (first, *_) = headline_of(samples.forecast(), samples.plan(one), None, policy=POLICY)

    assert first == "Order 1 step of file system lustre by 2027-01-12: it runs short from 2027-06-03 on."


def test_what_comes_anyway_is_not_ordered_again() -> None:
    none = samples.order(count=0)

    (first, *_) = headline_of(samples.forecast(), samples.plan(none), None, policy=POLICY)

    assert first == "hgx-h100 runs short from 2027-06-03 on, and what comes anyway is enough after it."


def test_nothing_short_is_said_plainly() -> None:
    calm = samples.plan(samples.order(order_by=None, short_from=None, count=0))

    found = headline_of(samples.forecast(), calm, None, policy=POLICY)

    assert found[0] == "Nothing has to be ordered: no limit is passed within 3 weeks."
    assert found[2] == "How the last forecast did is not known: too little was known then."


def test_a_forecast_of_which_no_week_is_over_is_not_praised() -> None:
    found = headline_of(samples.forecast(), samples.plan(), samples.hindsight(), policy=POLICY)

    assert found[2] == "How the forecast of 2026Q3 did is not known yet: no week of it is over."


def test_assumptions_name_the_policy_and_each_note_once() -> None:
    found = assumptions_of(samples.forecast(), samples.plan(), policy=POLICY, notes=("no report of 2026Q3 was kept",))

    assert len(set(found)) == len(found)
    assert "more than 10 %" in found[0]
    assert {"no report of 2026Q3 was kept", "no limit is known of lustre"} < set(found)
    assert "2 of the last 28 days are not known" in found


def test_a_number_that_was_not_found_is_not_told_as_enough() -> None:
    endless = replace(samples.order(count=0), cents=None)

    (first, *_) = headline_of(samples.forecast(), samples.plan(endless), None, policy=POLICY)

    assert first == "hgx-h100 runs short from 2027-06-03 on, and no number that could be ordered is enough."
