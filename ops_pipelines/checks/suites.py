"""Great Expectations behind one function: a profile in, verdicts out. The only module that knows it.

It is imported when the first hour is judged (it costs seconds), with its analytics off and nothing written anywhere.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from ops_pipelines.checks.verdict import Outcome, Verdict
from ops_pipelines.frames.expectations import Expectation, Measure, expectations_of

if TYPE_CHECKING:
    from ops_pipelines.frames.profile import Profile


def judge_profile(profile: "Profile") -> tuple[Verdict, ...]:
    """Return Great Expectations' verdict on each expectation of the profile's table, in their order."""
    import pyarrow as pa

    expectations = expectations_of(profile.table)
    numbers = profile.values()
    counted = [each for each in expectations if each.measure is not None]
    forms = [each for each in expectations if each.measure is None]
    wide = pa.table({_cell(each): [_number(numbers, each)] for each in counted}).to_pandas()
    texts = profile.sample.select([each.column for each in forms]).to_pandas().astype(object)
    suites = _suites(profile.table)
    answers = {**_validate(wide, suites.profile), **_validate(texts, suites.sample)}
    return tuple(_verdict(each, answers[each.name], profile, numbers) for each in expectations)


class _Frame(Protocol):
    """A pandas DataFrame."""

    @property
    def columns(self) -> Sequence[str]: ...


class _Batches(Protocol):
    def get_batch(self, batch_parameters: dict[str, object]) -> "_Batch": ...


class _Batch(Protocol):
    def validate(self, expect: object, *, result_format: str) -> "_Answers": ...


class _Answers(Protocol):
    results: Sequence["_Answer"]


class _Answer(Protocol):
    success: bool | None
    result: Mapping[str, object]
    exception_info: Mapping[str, object]
    expectation_config: "_Config"


class _Config(Protocol):
    meta: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suites:
    profile: object
    sample: object


@cache
def _batches() -> _Batches:
    """Return where frames become batches: an ephemeral context, without files, network, analytics and progress bars."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        # its own imports warn of what Python and pandas will drop; that is for its authors
        warnings.simplefilter("ignore")
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        frames = context.data_sources.add_pandas("lake").add_dataframe_asset("frame")
        return cast("_Batches", frames.add_batch_definition_whole_dataframe("whole"))


@cache
def _suites(table: str) -> _Suites:
    """Return the suites of a table: bounds over its profile, forms over its sample."""
    _batches()
    from great_expectations import ExpectationSuite
    from great_expectations.expectations.core.expect_column_max_to_be_between import ExpectColumnMaxToBeBetween
    from great_expectations.expectations.core.expect_column_values_to_match_regex import (
        ExpectColumnValuesToMatchRegex,
    )

    counted = [
        ExpectColumnMaxToBeBetween(
            column=_cell(each), min_value=each.at_least, max_value=each.at_most, meta={"name": each.name}
        )
        for each in expectations_of(table)
        if each.measure is not None
    ]
    forms = [
        ExpectColumnValuesToMatchRegex(column=each.column, regex=rf"\A(?:{each.pattern})\Z", meta={"name": each.name})
        for each in expectations_of(table)
        if each.measure is None
    ]
    return _Suites(
        profile=ExpectationSuite(name=f"{table} profile", expectations=counted),
        sample=ExpectationSuite(name=f"{table} sample", expectations=forms),
    )


def _validate(frame: _Frame, suite: object) -> dict[str, _Answer]:
    if not len(frame.columns):
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = _batches().get_batch({"dataframe": frame}).validate(suite, result_format="BASIC")
    return {answer.expectation_config.meta["name"]: answer for answer in answers.results}


def _verdict(
    each: Expectation,
    answer: _Answer,
    profile: "Profile",
    numbers: Mapping[tuple[str, Measure], float | None],
) -> Verdict:
    trouble = _trouble(answer)
    if each.measure is None:
        count = cast("int", answer.result.get("unexpected_count", 0))
        texts = cast("Sequence[object]", answer.result.get("partial_unexpected_list", ()))
        is_empty = profile.sample.column(each.column).null_count == profile.sample.num_rows
        outcome = Outcome.PASSED if answer.success else Outcome.FAILED
        return Verdict(
            expectation=each,
            outcome=Outcome.NOT_JUDGED if is_empty and not trouble else outcome,
            observed=float(count),
            examples=tuple(str(text)[:80] for text in texts[:3]),
            trouble=trouble,
        )
    observed = numbers[each.column, each.measure]
    if observed is None and not trouble:
        return Verdict(expectation=each, outcome=Outcome.NOT_JUDGED)
    return Verdict(
        expectation=each,
        outcome=Outcome.PASSED if answer.success else Outcome.FAILED,
        observed=observed,
        examples=profile.examples.get((each.column, each.measure), ()),
        trouble=trouble,
    )


def _trouble(answer: _Answer) -> str:
    if not answer.exception_info.get("raised_exception", False):
        return ""
    return f"could not be judged: {answer.exception_info.get('exception_message')}"


def _cell(each: Expectation) -> str:
    assert each.measure is not None
    return f"{each.column}|{each.measure.value}"


def _number(numbers: Mapping[tuple[str, Measure], float | None], each: Expectation) -> float:
    """Return the measure; what does not apply stands at its bound, and its verdict is passed over."""
    assert each.measure is not None
    value = numbers[each.column, each.measure]
    bound = each.at_most if each.at_least is None else each.at_least
    return cast("float", bound) if value is None else value
