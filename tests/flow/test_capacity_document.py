"""A report as JSON: the same values come back, the same bytes go out, and what is wrong is named by its place."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.capacity.answers import document_of, json_of, report_in, report_of, round_number
from tests.flow import capacity_samples as samples

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def told() -> dict[str, object]:
    """The sample as JSON has it."""
    return cast("dict[str, object]", json.loads(json_of(samples.report())))


def test_a_report_comes_back_as_it_was_told() -> None:
    report = samples.report()

    once = report_in(json_of(report))

    assert once.plan == report.plan
    assert once.hindsight == report.hindsight
    assert once.history == report.history
    assert once.headline == report.headline
    assert once.forecast.projects == report.forecast.projects
    assert once.forecast.supply == report.forecast.supply
    assert json_of(once) == json_of(report)


def test_numbers_are_told_with_nine_digits() -> None:
    week = samples.report().forecast.with_projects[0].weeks[2]

    kept = report_in(json_of(samples.report())).forecast.with_projects[0].weeks[2]

    assert week.quantiles[0] == pytest.approx(kept.quantiles[0], rel=1e-8)
    assert kept.quantiles[0] == float(f"{week.quantiles[0]:.9g}")
    assert kept.quantiles == tuple(sorted(kept.quantiles))


@given(FINITE)
def test_a_rounded_number_stays_as_it_is(number: float) -> None:
    assert round_number(round_number(number)) == round_number(number)
    assert str(round_number(-0.0)) == "0.0"


@given(FINITE, FINITE)
def test_rounding_keeps_the_order(one: float, other: float) -> None:
    low, high = sorted((one, other))

    assert round_number(low) <= round_number(high)


def test_the_same_report_gives_the_same_bytes_with_keys_in_order() -> None:
    content = json_of(samples.report())

    assert content == json_of(samples.report())
    assert content.endswith(b"}\n")
    assert list(json.loads(content)) == sorted(document_of(samples.report()))
    assert "Ünicode, <b>too</b>" in content.decode()


def test_whole_numbers_in_a_field_of_fractions_give_the_same_bytes() -> None:
    report = samples.report()
    whole = replace(report, forecast=replace(report.forecast, projects=(samples.project(gpus=64),)))

    assert json_of(whole) == json_of(report)


def test_a_report_without_a_quarter_before_is_kept_too() -> None:
    report = replace(samples.report(), hindsight=None, history=())

    assert report_of(document_of(report)).hindsight is None


def test_a_number_without_end_is_refused_by_its_place() -> None:
    broken = replace(samples.order(), cents=None)
    report = samples.report(broken)
    row = replace(report.plan.regret[0], idle_gpu_hours=float("nan"))

    with pytest.raises(ValueError, match=r"report\.plan\.regret\[0\]\.idle_gpu_hours is nan"):
        document_of(replace(report, plan=replace(report.plan, regret=(row,))))


def test_another_version_is_refused() -> None:
    for version in (0, 2, "1", None):
        with pytest.raises(ValueError, match="reads version 1"):
            report_of({**told(), "version": version})


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("plan", "orders", 0, "order_by"), "12 January", r"report\.plan\.orders\[0\]\.order_by is '12 January'"),
        (("plan", "orders", 0, "count"), "six", r"orders\[0\]\.count is 'six'; expected int"),
        (("plan", "orders", 0, "count"), True, r"count is 'True'; expected int"),
        (("plan", "orders", 0, "is_overdue"), 1, r"is_overdue is '1'; expected bool"),
        (("plan", "alternatives", 0, "way"), "pray", r"way is 'pray'; expected one of Way"),
        (("plan", "short_weeks", 0, "shortage_probability"), None, r"shortage_probability is 'None'; expected float"),
        (("plan", "orders"), {}, r"report\.plan\.orders is '\{\}'; expected a list"),
        (("plan",), [], r"report\.plan is '\[\]'; expected an object"),
        (("history", 0), ["x"], r"report\.history\[0\] has 1 values; expected 2"),
        (("plan", "surprise"), 1, r"report\.plan has surprise; expected only"),
    ],
)
def test_what_stands_there_instead_is_named_by_its_place(
    place: tuple[str | int, ...], value: object, says: str
) -> None:
    document = told()
    inner: object = document
    for each in place[:-1]:
        inner = cast("Mapping[object, object]", inner)[each]
    cast("dict[object, object]", inner)[place[-1]] = value

    with pytest.raises(ValueError, match=says):
        report_of(document)


def test_a_missing_field_is_named_and_one_with_a_default_is_not_missed() -> None:
    document = told()
    plan = cast("dict[str, object]", document["plan"])
    del plan["orders"]
    with pytest.raises(ValueError, match=r"report\.plan lacks orders"):
        report_of(document)

    other = told()
    project = cast("list[dict[str, object]]", cast("dict[str, object]", other["forecast"])["projects"])[0]
    del project["ramp_days"]
    assert report_of(other).forecast.projects[0].ramp_days == 0


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff"])
def test_what_is_no_document_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        report_in(content)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), True),
        (("version",), 1.0),
        (("forecast", "outlooks", 0, "weeks", 0, "quantiles", 0), float("nan")),
        (("forecast", "outlooks", 0, "weeks", 0, "quantiles", 0), float("inf")),
        (("forecast", "outlooks", 0, "weeks", 0, "quantiles", 0), 10**400),
        (("forecast", "outlooks", 0, "weeks", 0, "quantiles"), []),
        (("forecast", "outlooks", 0, "weeks", 0, "first_day"), "9999-12-31"),
        (("forecast", "outlooks", 0, "key", "resource"), "disks"),
        (("forecast", "as_of"), "0001-01-01"),
        (("forecast", "cluster"), "\ud800"),
        (("history", 0, 0, "resource"), "disks"),
        (("history", 0, 1, 0, 0), "9999-12-31"),
        (("history", 0, 1, 0, 1), -1e31),
        (("plan", "regret_ratios"), []),
    ],
)
def test_what_no_page_could_reckon_with_is_refused_when_it_is_read(path: tuple[str | int, ...], value: object) -> None:
    told: Any = json.loads(json_of(samples.report()))
    place = told
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value

    with pytest.raises(ValueError, match=r"."):
        report_in(json.dumps(told).encode())


def test_a_report_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        report_in(b"[" * 200_000)
