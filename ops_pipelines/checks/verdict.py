"""What came of judging one hour of one table, as values: the checks make them, the page and the metadata show them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.lake.quality.expectations import Expectation, Kind, Measure, Severity


class Outcome(Enum):
    FAILED = "failed"
    PASSED = "passed"
    NOT_JUDGED = "not judged"
    """There was nothing to judge: a column without any value, an inventory that says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One expectation and what was found."""

    expectation: Expectation
    outcome: Outcome
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


def counted(number: float, word: str) -> str:
    """Return a number of things: 1 row, 2 rows."""
    return f"{number:,.0f} {word}{'' if number == 1 else 's'}"


def share_text(share: float) -> str:
    """Return a share in percent, never rounded to all or to none."""
    percent = 100 * share
    if 0 < percent < 0.01:
        return "below 0.01 %"
    if 99.99 < percent < 100:
        return "above 99.99 %"
    return f"{percent:.4g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class HourVerdict:
    """All verdicts on one hour of one table, with the numbers that the page shows beside them."""

    table: str
    hour: datetime
    row_count: int
    verdicts: Sequence[Verdict]
    numbers: Mapping[tuple[str, Measure], float | None]

    def failed(self, severity: Severity) -> tuple[Verdict, ...]:
        """Return what failed with a severity."""
        return tuple(
            each for each in self.verdicts if each.outcome is Outcome.FAILED and each.expectation.severity is severity
        )
