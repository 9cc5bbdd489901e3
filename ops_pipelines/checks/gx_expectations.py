"""The three expectations of Great Expectations that ours are put as, each making its configuration once.

The originals make it anew each of the fifty times that they are asked for it: more than half of a validation. Nobody
changes an expectation between its being made and its verdict. Importing this imports Great Expectations, which costs
seconds: `suites` does it inside a function, after its analytics are off.
"""

from great_expectations.compatibility.pydantic import PrivateAttr
from great_expectations.expectations.core.expect_column_max_to_be_between import ExpectColumnMaxToBeBetween
from great_expectations.expectations.core.expect_column_min_to_be_between import ExpectColumnMinToBeBetween
from great_expectations.expectations.core.expect_column_values_to_match_regex import ExpectColumnValuesToMatchRegex
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration


class ExpectMaxWithin(ExpectColumnMaxToBeBetween):
    """The largest value of a column is within a bound."""

    _made: ExpectationConfiguration | None = PrivateAttr(default=None)

    @property
    def configuration(self) -> ExpectationConfiguration:
        if self._made is None:
            self._made = super().configuration
        return self._made


class ExpectMinWithin(ExpectColumnMinToBeBetween):
    """The smallest value of a column is within a bound."""

    _made: ExpectationConfiguration | None = PrivateAttr(default=None)

    @property
    def configuration(self) -> ExpectationConfiguration:
        if self._made is None:
            self._made = super().configuration
        return self._made


class ExpectForm(ExpectColumnValuesToMatchRegex):
    """Each text of a column matches a pattern."""

    _made: ExpectationConfiguration | None = PrivateAttr(default=None)

    @property
    def configuration(self) -> ExpectationConfiguration:
        if self._made is None:
            self._made = super().configuration
        return self._made
