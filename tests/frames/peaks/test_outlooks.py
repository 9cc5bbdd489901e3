"""What is forecast of which series, in its own unit; and of which nothing is, with the reason."""

from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import pytest

from ops_pipelines.capacity.forecast.windows import Floats
from ops_pipelines.capacity.model import LEVELS, Resource, SeriesKey, SeriesOutlook, by_key
from ops_pipelines.capacity.peak_history import PeakHistory, ResourceHistory, outlooks_of
from ops_pipelines.core.proposal import GpuType
from tests.frames.forecast.made_up import FIRST_DAY, named, steady

DAYS = 200
NEXT = FIRST_DAY + timedelta(days=DAYS)
MEDIAN = LEVELS.index(0.5)
TiB = 2.0**40


def history(
    resource: Resource, gpus: Floats, names: list[str], *, sums: bool = False, first: date = FIRST_DAY
) -> ResourceHistory:
    series = replace(named(gpus), first_day=first)
    return ResourceHistory(
        resource=resource,
        keys=tuple(SeriesKey(resource=resource.value, gpu_type=GpuType("h100"), name=name) for name in names),
        series=series,
        sums=(SeriesKey(resource=resource.value, gpu_type=GpuType("h100")),) if sums else (),
        members=(tuple(range(len(names))),) if sums else (),
        summed=gpus.sum(axis=1, keepdims=True) if sums else None,
        limits={},
        near_peak_hours={},
        idle_ratio={},
        means={},
        notes={SeriesKey(resource=resource.value, gpu_type=GpuType("h100"), name=names[0]): ("3 days carried",)},
    )


def told(*resources: ResourceHistory, first_day: date = NEXT) -> tuple[tuple[SeriesOutlook, ...], int, tuple[str, ...]]:
    return outlooks_of(PeakHistory(resources=resources, notes=()), weeks=26, first_day=first_day)


def gpus(names: list[str], *, days: int = DAYS) -> ResourceHistory:
    return history(Resource.GPUS, steady(day_count=days, series_count=len(names)), names, sums=True)


def test_teams_and_all_of_them_are_told_week_by_week_with_their_notes() -> None:
    outlooks, vouched, notes = told(gpus(["a", "b", "c", "d"]))
    found = by_key(outlooks)

    assert [key.name for key in found] == ["", "a", "b", "c", "d"]
    whole = found[SeriesKey(resource="gpus", gpu_type=GpuType("h100"))]
    assert [week.first_day for week in whole.weeks[:2]] == [NEXT, NEXT + timedelta(days=7)]
    assert [week.is_vouched for week in whole.weeks] == [number < vouched for number in range(26)]
    assert 0 < vouched < 26
    assert all(list(week.quantiles) == sorted(week.quantiles) for each in outlooks for week in each.weeks)
    assert found[SeriesKey(resource="gpus", gpu_type=GpuType("h100"), name="a")].notes == ("3 days carried",)
    assert notes == ()


def test_bytes_are_foretold_in_bytes_and_as_well_as_counts() -> None:
    counts = steady(day_count=DAYS, series_count=3)
    scale = np.array([1.0, 400 * TiB, 1e-3])
    plain, _, _ = told(history(Resource.STORAGE_BYTES, counts, ["x", "y", "z"]))
    scaled, _, _ = told(history(Resource.STORAGE_BYTES, counts * scale, ["x", "y", "z"]))

    for one, other, factor in zip(plain, scaled, scale.tolist(), strict=True):
        assert other.treatment == one.treatment == "ordinary"
        expected = [quantile * factor for quantile in one.weeks[3].quantiles]
        assert list(other.weeks[3].quantiles) == pytest.approx(expected, rel=1e-6)


def test_a_file_system_that_fills_steadily_is_foretold_to_go_on() -> None:
    filled = np.asarray((100 + 0.5 * np.arange(DAYS))[:, None] * TiB, dtype=np.float64)
    (outlook,), _, _ = told(history(Resource.STORAGE_BYTES, filled, ["/home"]))

    assert outlook.weeks[0].quantiles[MEDIAN] == pytest.approx(filled[-1, 0] + 3.5 * TiB, rel=0.02)
    assert outlook.weeks[8].quantiles[MEDIAN] > outlook.weeks[0].quantiles[MEDIAN] + 10 * TiB


@pytest.mark.parametrize("left_share", [1.0, 0.1, 0.05, 0.001])
def test_a_file_system_that_was_emptied_is_foretold_from_what_is_left(left_share: float) -> None:
    used = steady(day_count=DAYS, series_count=3) * TiB
    used[100:, 0] *= left_share
    outlooks, _, _ = told(history(Resource.STORAGE_BYTES, used, ["/home", "/scratch", "/work"]))
    emptied = outlooks[0]

    assert emptied.treatment == "ordinary"
    assert any("20 times" in note for note in emptied.notes) is (left_share < 0.1)
    assert 0.6 <= emptied.weeks[0].quantiles[MEDIAN] / used[-28:, 0].max() <= 1.3


@pytest.mark.parametrize(
    ("used", "treatment", "words"),
    [(0.0, "zero", "nothing was ever used"), (TiB, "near_idle", "nothing for four weeks")],
)
def test_a_file_system_without_use_is_told_as_such(used: float, treatment: str, words: str) -> None:
    filled = steady(day_count=DAYS, series_count=3) * TiB
    filled[:, 0] = np.where(np.arange(DAYS) < DAYS - 28, used, 0.0)
    outlooks, _, _ = told(history(Resource.STORAGE_BYTES, filled, ["/a", "/b", "/c"]))

    assert outlooks[0].treatment == treatment
    assert words in outlooks[0].notes[-1]


def test_what_is_out_of_service_is_drawn_from_and_not_foretold() -> None:
    out = history(Resource.GPUS_OUT, steady(day_count=DAYS, series_count=1), ["broken"])

    assert told(out) == ((), 0, ())


def test_days_that_end_before_the_forecast_begins_are_told_of_and_nothing_is_foretold() -> None:
    outlooks, vouched, (note,) = told(gpus(["a", "b"]), first_day=NEXT + timedelta(days=1))

    assert all(each.weeks == () for each in outlooks)
    assert vouched == 0
    assert f"end before {NEXT}" in note
    assert "materialise daily_peaks" in note


@pytest.mark.parametrize(("days", "is_told"), [(27, False), (28, True)])
def test_fewer_than_four_weeks_foretell_nothing_and_say_so(days: int, is_told: bool) -> None:
    outlooks, _, notes = told(gpus(["a", "b", "c"], days=days), first_day=FIRST_DAY + timedelta(days=days))

    assert all(bool(each.weeks) is is_told for each in outlooks)
    assert bool(notes) is not is_told


def test_a_team_that_never_asked_is_told_as_such() -> None:
    asked = steady(day_count=DAYS, series_count=3)
    asked[:, 1] = 0.0
    outlooks, _, _ = told(history(Resource.GPUS, asked, ["a", "b", "c"]))
    quiet = by_key(outlooks)[SeriesKey(resource="gpus", gpu_type=GpuType("h100"), name="b")]

    assert quiet.treatment == "zero"
    assert quiet.notes == ("nothing was ever requested",)
    assert quiet.weeks[0].quantiles[MEDIAN] == 0.0


def test_without_any_series_nothing_is_told() -> None:
    assert told() == ((), 0, ())
