"""Great Expectations behind one function: profiles in, verdicts out. Only this and `gx_expectations` know it.

It is imported when the first hour is judged (it costs seconds), with its analytics off and nothing written anywhere.
An expectation costs it milliseconds however few rows there are, so the hours of a run are judged together; only what
does not hold for all of them is judged hour by hour, and what has no value anywhere is not asked at all.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from ops_pipelines.checks.verdict import Outcome, Verdict
from ops_pipelines.lake.quality.expectations import Expectation, Measure, expectations_of

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation as GxExpectation

    from ops_pipelines.lake.quality.profile import Profile


def judge_profiles(profiles: Sequence["Profile"]) -> tuple[tuple[Verdict, ...], ...]:
    """Return the verdicts on each of some hours of one table: those that it would get alone."""
    if not profiles:
        return ()
    hours = [_Hour(profile=profile, numbers=profile.values()) for profile in profiles]
    asked = [
        each for each in expectations_of(profiles[0].table) if any(not hour.says_nothing_of(each) for hour in hours)
    ]
    together = _validate(hours, asked)
    doubtful = [each for each in asked if len(hours) > 1 and not together[each.name].success]
    return tuple(_verdicts(hour, {**together, **_validate([hour], doubtful)}) for hour in hours)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Hour:
    """A profile and its numbers, which are looked up often."""

    profile: "Profile"
    numbers: Mapping[tuple[str, Measure], float | None]

    def says_nothing_of(self, each: Expectation) -> bool:
        if each.measure is None:
            return bool(self.profile.sample.column(each.column).null_count == self.profile.sample.num_rows)
        return self.numbers[each.column, each.measure] is None


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


def _validate(hours: Sequence[_Hour], asked: Sequence[Expectation]) -> dict[str, _Answer]:
    """Return the answer to each expectation by its name: bounds over the numbers, a row an hour; forms over samples."""
    import pyarrow as pa

    if not asked:
        return {}
    batches = _batches()
    counted = [each for each in asked if each.measure is not None]
    forms = [each for each in asked if each.measure is None]
    numbers = pa.table({_cell(each): [_number(hour.numbers, each) for hour in hours] for each in counted})
    found: dict[str, _Answer] = {}
    if counted:
        found |= _ask(batches, numbers.to_pandas(), [_bound(each) for each in counted])
    if forms:
        columns = list(dict.fromkeys(each.column for each in forms))
        texts = pa.concat_tables([hour.profile.sample.select(columns) for hour in hours])
        found |= _ask(batches, texts.to_pandas().astype(object), [_form(each) for each in forms])
    return found


def _bound(each: Expectation) -> "GxExpectation":
    from ops_pipelines.checks.gx_expectations import ExpectMaxWithin, ExpectMinWithin

    if each.at_least is None:
        return ExpectMaxWithin(column=_cell(each), max_value=each.at_most, meta={"name": each.name})
    assert each.at_most is None, "a bound on both sides would need two answers"
    return ExpectMinWithin(column=_cell(each), min_value=each.at_least, meta={"name": each.name})


def _form(each: Expectation) -> "GxExpectation":
    from ops_pipelines.checks.gx_expectations import ExpectForm

    return ExpectForm(column=each.column, regex=rf"\A(?:{each.pattern})\Z", meta={"name": each.name})


def _ask(batches: _Batches, frame: object, expectations: Sequence["GxExpectation"]) -> dict[str, _Answer]:
    from great_expectations import ExpectationSuite

    suite = ExpectationSuite(name="hours", expectations=list(expectations))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = batches.get_batch({"dataframe": frame}).validate(suite, result_format="BASIC")
    return {answer.expectation_config.meta["name"]: answer for answer in answers.results}


def _verdicts(hour: _Hour, answers: Mapping[str, _Answer]) -> tuple[Verdict, ...]:
    return tuple(_verdict(each, answers.get(each.name), hour) for each in expectations_of(hour.profile.table))


def _verdict(each: Expectation, answer: _Answer | None, hour: _Hour) -> Verdict:
    trouble = "" if answer is None else _trouble(answer)
    observed = 0.0 if each.measure is None else hour.numbers[each.column, each.measure]
    if answer is None or (hour.says_nothing_of(each) and not trouble):
        return Verdict(expectation=each, outcome=Outcome.NOT_JUDGED, observed=observed)
    examples = () if each.measure is None else hour.profile.examples.get((each.column, each.measure), ())
    if each.measure is None and not answer.success:
        observed = float(cast("int", answer.result.get("unexpected_count", 0)))
        texts = cast("Sequence[object]", answer.result.get("partial_unexpected_list", ()))
        examples = tuple(str(text)[:80] for text in texts[:3])
    return Verdict(
        expectation=each,
        outcome=Outcome.PASSED if answer.success else Outcome.FAILED,
        observed=observed,
        examples=examples,
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
