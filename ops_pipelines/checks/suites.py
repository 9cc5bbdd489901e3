"""Great Expectations behind two functions: rows in, verdicts out. Only this and `gx_expectations` know it.

It is imported when the first hour is judged (it costs seconds), with its analytics off and nothing written anywhere.
What is expected of columns is judged over the columns of the hour, as Arrow-backed pandas frames without copies: one
frame for the columns that an expectation names, since Great Expectations copies whatever is beside them; in a small
hour one for all. What is expected of the hour as a whole is judged over its measures, a row an hour, for many hours at
once: an expectation costs milliseconds however few rows there are. What has no value anywhere is not asked at all.
"""

import gc
import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from ops_pipelines.checks.quality_page import Result, Status
from ops_pipelines.lake.expectations import Expectation, Measure, Severity, expectations_of
from ops_pipelines.report.numbers import counted

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from great_expectations.datasource.fluent.pandas_datasource import PandasDatasource
    from great_expectations.expectations.expectation import Expectation as GxExpectation

    from ops_pipelines.lake.profile import Profile

_EXAMPLES_AT_MOST = 3
_LARGE = 500_000
"""Rows above which a column's remains are cleared away before the next."""
_FEW_CELLS = 500_000
"""Up to which all columns are one frame: copies of what is beside a column cost less than a frame of its own."""
_NOT_NULL = "expect_column_values_to_not_be_null"
_OF_SINGLE_VALUES = frozenset(
    {
        _NOT_NULL,
        "expect_column_value_lengths_to_be_between",
        "expect_column_values_to_be_in_set",
        "expect_column_values_to_match_regex",
        "expect_column_values_to_not_be_in_set",
        "expect_column_values_to_not_match_regex",
    }
)
"""What holds for all rows if it holds for each distinct value: then each value is looked at once, but for numbers with
a fraction, of which nearly each is another. Great Expectations takes a fingerprint of every frame, which for millions
of texts and times costs more than all else."""
_BEYOND = "beyond"
_OF_NO_COLUMN = frozenset({"regex", "regex_list", "value_set"})
"""Arguments that name no column, whatever words they hold."""


def judge_rows(rows: "pa.Table", expectations: Sequence[Expectation]) -> tuple[Result, ...]:
    """Return the verdicts on what is expected of the columns of one hour (`profile.conform_rows`), in that order.

    What Great Expectations does not know, or cannot judge, has failed, and says why.
    """
    verdicts: dict[str, Result] = {}
    everything = tuple(rows.column_names)
    is_small = rows.num_rows * len(everything) <= _FEW_CELLS
    asked: dict[tuple[tuple[str, ...], bool], list[tuple[Expectation, GxExpectation]]] = {}
    for each in expectations:
        if each.measure is not None:
            continue
        if _has_nothing_to_judge(each, rows):
            verdicts[each.name] = Result(expectation=each, outcome=Status.NOT_JUDGED)
            continue
        try:
            made = _made(each)
        except Exception as error:  # theirs are of many kinds, pydantic's among them
            verdicts[each.name] = _misdeclared(each, error)
            continue
        is_distinct = _is_of_distinct(each, rows)
        columns = everything if is_small and not is_distinct else _columns(each, rows)
        asked.setdefault((columns, is_distinct), []).append((each, made))
    batches = _batches() if asked else None
    for (columns, is_distinct), some in asked.items():
        assert batches is not None
        frame = _frame(rows, columns, is_distinct=is_distinct)
        answers = _ask(batches, frame, [made for _, made in some])
        what = "distinct value" if is_distinct else "row"
        for each, _ in some:
            verdicts[each.name] = _verdict_on_rows(each, answers[each.name], rows, what=what, count=len(frame))
        if len(frame) > _LARGE:
            del frame, answers
            batches = _batches()
            gc.collect()  # what it made of the column is in circles of its objects
    return tuple(verdicts[each.name] for each in expectations if each.measure is None)


def judge_profiles(
    profiles: Sequence["Profile"], expectations: Sequence[Expectation] | None = None
) -> tuple[tuple[Result, ...], ...]:
    """Return the verdicts on what is expected of some hours of one table as a whole: those that it would get alone.

    None: what we ship of the table.
    """
    if not profiles:
        return ()
    if expectations is None:
        expectations = expectations_of(profiles[0].table)
    of_hour = [each for each in expectations if each.measure is not None]
    hours = [_Hour(profile=profile, numbers=profile.values()) for profile in profiles]
    asked = [each for each in of_hour if any(not hour.says_nothing_of(each) for hour in hours)]
    together = _validate(hours, asked)
    doubtful = [each for each in asked if len(hours) > 1 and not together[each.name].success]
    return tuple(_verdicts(hour, of_hour, {**together, **_validate([hour], doubtful)}) for hour in hours)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Hour:
    """A profile and its numbers, which are looked up often."""

    profile: "Profile"
    numbers: Mapping[tuple[str, Measure], float | None]

    def says_nothing_of(self, each: Expectation) -> bool:
        assert each.measure is not None
        return self.numbers.get((each.column, each.measure)) is None


class _Batches(Protocol):
    def get_batch(self, batch_parameters: dict[str, object]) -> "_Batch": ...


class _Batch(Protocol):
    def validate(self, expect: object, *, result_format: str) -> "_Answers": ...


class _Answers(Protocol):
    results: Sequence["_SuiteResult"]


class _SuiteResult(Protocol):
    success: bool | None
    result: Mapping[str, object]
    exception_info: Mapping[str, object]
    expectation_config: "_Config"


class _Config(Protocol):
    meta: Mapping[str, str]


class _Sources(Protocol):
    def add_or_update_pandas(self, name: str) -> "PandasDatasource": ...


@cache
def _sources() -> _Sources:
    """Return an ephemeral context's sources of data: without files, network, analytics and progress bars."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        # its own imports warn of what Python and pandas will drop; that is for its authors
        warnings.simplefilter("ignore")
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        import ops_pipelines.checks.gx_expectations  # noqa: F401 it teaches Great Expectations about Arrow columns

        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        return cast("_Sources", context.data_sources)


def _batches() -> _Batches:
    """Return where frames become batches. It keeps all that it computes of them: a new one releases that."""
    frames = _sources().add_or_update_pandas("lake").add_dataframe_asset("frame")
    return cast("_Batches", frames.add_batch_definition_whole_dataframe("whole"))


# -- over the columns --


def _has_nothing_to_judge(each: Expectation, rows: "pa.Table") -> bool:
    """Whether a column that it names has no value; that there is none is what `not_be_null` is asked for."""
    named = [cast("str", each.kwargs[key]) for key in ("column", "column_A", "column_B") if key in each.kwargs]
    if not named:
        return False
    return not rows.num_rows or (
        each.type != _NOT_NULL and any(rows.column(name).null_count == rows.num_rows for name in named)
    )


def _columns(each: Expectation, rows: "pa.Table") -> tuple[str, ...]:
    """Return the columns that it names anywhere, also in a `row_condition`; all of them if it names none."""
    given = {key: value for key, value in each.kwargs.items() if key not in _OF_NO_COLUMN}
    words = set(re.findall(r"\w+", repr(given)))
    return tuple(name for name in rows.column_names if name in words) or tuple(rows.column_names)


def _is_of_distinct(each: Expectation, rows: "pa.Table") -> bool:
    import pyarrow as pa

    return (
        each.type in _OF_SINGLE_VALUES
        and not {"mostly", "row_condition"} & each.kwargs.keys()
        and not pa.types.is_floating(rows.schema.field(each.column).type)
        and len(_columns(each, rows)) == 1
    )


def _frame(rows: "pa.Table", columns: Sequence[str], *, is_distinct: bool) -> "pd.DataFrame":
    import pandas as pd
    import pyarrow as pa

    if is_distinct:
        (column,) = columns
        rows = pa.table({column: rows.column(column).unique()})
    return rows.select(columns).to_pandas(types_mapper=pd.ArrowDtype)


def _made(each: Expectation) -> "GxExpectation":
    _sources()  # imports it, without its warnings
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    from ops_pipelines.checks.gx_expectations import remembering

    remembering(each.type)
    given = ExpectationConfiguration(type=each.type, kwargs=dict(each.kwargs), meta={"name": each.name})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forms that it still reads, and will drop
        return given.to_domain_obj()


def _misdeclared(each: Expectation, error: Exception) -> Result:
    said = " ".join(str(error).split())[:300]
    trouble = f"{each.source}: {each.name}: {each.type}: {said}; correct its type and kwargs"
    return Result(
        expectation=replace(each, severity=Severity.ERROR),
        outcome=Status.FAILED,
        observed=None,
        trouble=trouble,
    )


def _verdict_on_rows(each: Expectation, answer: _SuiteResult, rows: "pa.Table", *, what: str, count: int) -> Result:
    if answer.success:
        return Result(expectation=each, outcome=Status.PASSED, observed=0.0)
    trouble = _trouble(answer)
    if trouble:
        return Result(expectation=each, outcome=Status.FAILED, trouble=trouble)
    unexpected = cast("int | None", answer.result.get("unexpected_count"))
    if unexpected is None:
        found = str(answer.result.get("observed_value", "not as expected"))[:80]
        return Result(expectation=each, outcome=Status.FAILED, found=found)
    of = cast("int", answer.result.get("element_count", count))
    return Result(
        expectation=each,
        outcome=Status.FAILED,
        observed=float(unexpected),
        found=f"{unexpected:,} of {counted(of, what)}",
        examples=_examples(each, answer, rows),
    )


def _examples(each: Expectation, answer: _SuiteResult, rows: "pa.Table") -> tuple[str, ...]:
    from ops_pipelines.lake.profile import rows_with

    values = cast("Sequence[object]", answer.result.get("partial_unexpected_list") or ())
    if each.column in rows.column_names and "row_condition" not in each.kwargs:
        try:
            return rows_with(rows, table=each.table, column=each.column, values=values)
        except (TypeError, ValueError, NotImplementedError):  # a value that is not as the column keeps it
            pass
    return tuple(str(value)[:80] for value in values[:_EXAMPLES_AT_MOST])


# -- over the measures of hours --


def _validate(hours: Sequence[_Hour], asked: Sequence[Expectation]) -> dict[str, _SuiteResult]:
    """Return the answer to each expectation by its name, over the measures, a row an hour.

    All are asked as one first, whether any measure lies beyond its bound: an expectation costs milliseconds, and mostly
    none does. Where one does, or cannot be compared, each is asked for itself.
    """
    if not asked:
        return {}
    import pandas as pd

    if len(asked) > 1:
        beyond = pd.DataFrame({_BEYOND: [_beyond(hour.numbers, each) for hour in hours for each in asked]})
        (answer,) = _ask(_batches(), beyond, [_at_most(_BEYOND, 0.0, name=_BEYOND)]).values()
        if answer.success:
            return {each.name: answer for each in asked}
    numbers = pd.DataFrame({_cell(each): [_number(hour.numbers, each) for hour in hours] for each in asked})
    return _ask(_batches(), numbers, [_bound(each) for each in asked])


def _beyond(numbers: Mapping[tuple[str, Measure], float | None], each: Expectation) -> float:
    """Return by how much a measure lies beyond its bound: at most 0 where it does not, infinite for no number."""
    value = _number(numbers, each)
    beyond = value - each.at_most if each.at_most is not None else cast("float", each.at_least) - value
    return math.inf if math.isnan(beyond) else beyond


def _at_most(column: str, most: float, *, name: str) -> "GxExpectation":
    from ops_pipelines.checks.gx_expectations import remembering

    largest = remembering("expect_column_max_to_be_between")
    return largest(column=column, max_value=most, meta={"name": name})


def _bound(each: Expectation) -> "GxExpectation":
    from ops_pipelines.checks.gx_expectations import remembering

    if each.at_least is None:
        return _at_most(_cell(each), cast("float", each.at_most), name=each.name)
    assert each.at_most is None, "a bound on both sides would need two answers"
    smallest = remembering("expect_column_min_to_be_between")
    return smallest(column=_cell(each), min_value=each.at_least, meta={"name": each.name})


def _ask(batches: _Batches, frame: "pd.DataFrame", expectations: Sequence["GxExpectation"]) -> dict[str, _SuiteResult]:
    from great_expectations import ExpectationSuite

    suite = ExpectationSuite(name="hours", expectations=list(expectations))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = batches.get_batch({"dataframe": frame}).validate(suite, result_format="BASIC")
    return {answer.expectation_config.meta["name"]: answer for answer in answers.results}


def _verdicts(
    hour: _Hour, expectations: Sequence[Expectation], answers: Mapping[str, _SuiteResult]
) -> tuple[Result, ...]:
    return tuple(_verdict(each, answers.get(each.name), hour) for each in expectations)


def _verdict(each: Expectation, answer: _SuiteResult | None, hour: _Hour) -> Result:
    assert each.measure is not None
    cannot = hour.profile.troubles.get(each.name, "")
    if cannot:
        return Result(expectation=replace(each, severity=Severity.ERROR), outcome=Status.FAILED, trouble=cannot)
    trouble = "" if answer is None else _trouble(answer)
    observed = hour.numbers.get((each.column, each.measure))
    if answer is None or (observed is None and not trouble):
        return Result(expectation=each, outcome=Status.NOT_JUDGED, observed=observed)
    return Result(
        expectation=each,
        outcome=Status.PASSED if answer.success else Status.FAILED,
        observed=observed,
        examples=hour.profile.examples.get((each.column, each.measure), ()),
        trouble=trouble,
    )


def _trouble(answer: _SuiteResult) -> str:
    info = answer.exception_info
    if not info or info.get("raised_exception") is False:
        return ""
    # of some it is one, of some one for each metric that could not be had
    told = (
        info if "exception_message" in info else next(iter(cast("Mapping[str, Mapping[str, object]]", info).values()))
    )
    return f"could not be judged: {told.get('exception_message')}"


def _cell(each: Expectation) -> str:
    assert each.measure is not None
    return f"{each.column}|{each.measure.value}"


def _number(numbers: Mapping[tuple[str, Measure], float | None], each: Expectation) -> float:
    """Return the measure; what does not apply is at its bound, and its verdict is passed over."""
    assert each.measure is not None
    value = numbers.get((each.column, each.measure))
    bound = each.at_most if each.at_least is None else each.at_least
    return cast("float", bound) if value is None else value
