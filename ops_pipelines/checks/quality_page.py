"""What came of judging one hour of one table, as values; one HTML page of it that needs nothing else; rows for the UI.

Shows, judges nothing. The page is the template `quality.html`, which escapes everything.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.lake.expectations import Expectation, Kind, Measure, Severity
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.report.numbers import counted


class Status(Enum):
    FAILED = "failed"
    PASSED = "passed"
    NOT_JUDGED = "not judged"
    """There was nothing to judge: a column without any value, an inventory that says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One expectation and what was found."""

    expectation: Expectation
    outcome: Status
    observed: float | None = None
    """The measure's value; of columns, how many rows are not as expected."""
    found: str = ""
    """What was found of a column, in words."""
    examples: tuple[str, ...] = ()
    """First rows or texts that broke it."""
    trouble: str = ""
    """Why it could not be judged although it should have been; it has then failed."""

    @property
    def observed_text(self) -> str:
        """Return what was found in words."""
        if self.trouble:
            return self.trouble
        if self.found:
            return self.found
        if self.observed is None:
            return "-"
        what = self.expectation
        if what.measure is Measure.TYPE_DIFFERS:
            return "another type" if self.observed else "this type"
        if what.measure is Measure.NEWEST_AGE:
            return f"{self.observed:,.0f} s"
        if what.measure is not None and (what.kind is Kind.COMPLETENESS or what.measure is Measure.BROKEN_SHARE):
            return share_text(self.observed)
        what_is_counted = "column" if what.measure is Measure.STRANGE_COLUMNS else "row"
        return counted(self.observed, what_is_counted) if self.observed else "none"

    @property
    def expected_text(self) -> str:
        """Return the bound in words."""
        what = self.expectation
        if what.measure is None:
            return what.expected
        if what.measure is Measure.TYPE_DIFFERS:
            return "this type"
        if what.measure is Measure.NEWEST_AGE:
            return f"at most {what.at_most:,.0f} s"
        if what.at_least is not None:
            return f"at least {share_text(what.at_least)}"
        if what.at_most:
            return f"at most {share_text(what.at_most)}"
        return "none"


def share_text(share: float) -> str:
    """Return a share in percent, never rounded to all or to none."""
    percent = 100 * share
    if 0 < percent < 0.01:
        return "below 0.01 %"
    if 99.99 < percent < 100:
        return "above 99.99 %"
    return f"{percent:.4g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class HourResult:
    """All verdicts on one hour of one table, with the numbers that the page shows beside them."""

    table: str
    hour: datetime
    row_count: int
    verdicts: Sequence[Result]
    numbers: Mapping[tuple[str, Measure], float | None]

    def failed(self, severity: Severity) -> tuple[Result, ...]:
        """Return what failed with a severity."""
        return tuple(
            each for each in self.verdicts if each.outcome is Status.FAILED and each.expectation.severity is severity
        )


def render_page(verdict: HourResult) -> str:
    """Return the page: the verdict, then what failed, then every column. No links, no scripts, nothing from outside."""
    from ops_pipelines.report.html import render

    errors, warnings = verdict.failed(Severity.ERROR), verdict.failed(Severity.WARNING)
    tone, word, said = _summary(len(errors), len(warnings))
    names = TABLES[verdict.table].by_name
    whole = sorted((each for each in verdict.verdicts if each.expectation.column not in names), key=_failing_first)
    return render(
        "quality.html",
        {
            "table": verdict.table,
            "hour": verdict.hour,
            "meaning": TABLES[verdict.table].meaning,
            "tone": tone,
            "word": word,
            "said": said,
            "judged": sum(each.outcome is not Status.NOT_JUDGED for each in verdict.verdicts),
            "asked": len(verdict.verdicts),
            "row_count": verdict.row_count,
            "failed": [{**_shown(each), "mark": each.expectation.severity.value} for each in (*errors, *warnings)],
            "kinds": kind_rows(verdict.verdicts),
            "whole": [_shown(each) for each in whole],
            "columns": sorted(_columns(verdict), key=lambda each: (not each["failed"], not each["filled"])),
        },
    )


def _summary(errors: int, warnings: int) -> tuple[str, str, str]:
    also = f" {counted(warnings, 'warning')} as well." if warnings else ""
    if errors:
        return "error", "Not to be built upon", f"{counted(errors, 'error')}: what is downstream waits.{also}"
    if warnings:
        return "warning", "Usable, with gaps", f"No errors, {counted(warnings, 'warning')}."
    return "passed", "As expected", "No errors, no warnings."


def _shown(each: Result) -> Mapping[str, object]:
    return {
        "tone": each.expectation.severity.value if each.outcome is Status.FAILED else "passed",
        "mark": each.outcome.value,
        "name": each.expectation.name,
        "meaning": each.expectation.meaning,
        "observed": each.observed_text,
        "expected": each.expected_text,
        "examples": each.examples,
    }


def _columns(verdict: HourResult) -> Iterable[Mapping[str, object]]:
    for column in TABLES[verdict.table].columns:
        about = sorted(
            (each for each in verdict.verdicts if each.expectation.column == column.name), key=_failing_first
        )
        missing = verdict.numbers.get((column.name, Measure.NULL_COUNT)) or 0.0
        least, most = (verdict.numbers.get((column.name, each)) for each in (Measure.MIN, Measure.MAX))
        yield {
            "name": column.name,
            "meaning": column.meaning,
            "filled": verdict.row_count - int(missing),
            "span": "" if least is None or most is None else f", {least:.6g} to {most:.6g} {column.unit}",
            "failed": sum(each.outcome is Status.FAILED for each in about),
            "tone": _shown(about[0])["tone"] if about else "passed",
            "verdicts": [_shown(each) for each in about],
        }


def _failing_first(each: Result) -> tuple[int, int]:
    return list(Status).index(each.outcome), list(Severity).index(each.expectation.severity)


def failed_rows(judged: Sequence[HourResult], *, severity: Severity) -> list[Mapping[str, object]]:
    """Return what failed, an expectation a row, with the first hour in which it did; for the Dagster UI."""
    several = len({each.table for each in judged}) > 1
    found: dict[tuple[str, str], list[tuple[HourResult, Result]]] = {}
    for hour in judged:
        for each in hour.failed(severity):
            found.setdefault((hour.table, each.expectation.name), []).append((hour, each))
    rows: list[Mapping[str, object]] = []
    for (table, name), failures in found.items():
        first, verdict = failures[0]
        rows.append(
            {
                **({"table": table} if several else {}),
                "expectation": name,
                "meaning": verdict.expectation.meaning,
                "hours": len(failures),
                "first_in": f"{first.hour:%Y-%m-%d %H:%M}",
                "observed": verdict.observed_text,
                "expected": verdict.expected_text,
                "example": _readable(" ".join(verdict.examples[:1]))[:160],
            }
        )
    return rows


def _readable(text: str) -> str:
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def kind_rows(verdicts: Sequence[Result]) -> list[Mapping[str, object]]:
    """Return how many expectations of each kind failed, passed or were not judged."""
    rows: list[Mapping[str, object]] = []
    for kind in Kind:
        outcomes = [each.outcome for each in verdicts if each.expectation.kind is kind]
        if outcomes:
            failed, passed, left = (outcomes.count(outcome) for outcome in Status)
            row = {"kind": kind.value.replace("_", " "), "failed": failed, "passed": passed, "not_judged": left}
            rows.append(row)
    return rows
