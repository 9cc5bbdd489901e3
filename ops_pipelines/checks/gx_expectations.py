"""What Great Expectations is taught here, so that an hour of 3.9 million rows costs what it may.

The bounds on measures make their configuration once: the originals make it again each of the fifty times that they are
asked for it. `expect_column_values_to_be_between` compares an Arrow column as a whole: the original asks Python of each
value unless the column is numpy's. Nobody changes an expectation between its being made and its verdict. Importing this
imports Great Expectations, which costs seconds: `suites` does it inside a function, after its analytics are off.
"""

import logging

from great_expectations.compatibility.pydantic import PrivateAttr
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
from great_expectations.expectations.core.expect_column_max_to_be_between import ExpectColumnMaxToBeBetween
from great_expectations.expectations.core.expect_column_min_to_be_between import ExpectColumnMinToBeBetween
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
from great_expectations.expectations.metrics.column_map_metrics.column_values_between import ColumnValuesBetween
from great_expectations.expectations.metrics.map_metric_provider.column_condition_partial import (
    column_condition_partial,
)


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


_registry = logging.getLogger("great_expectations.expectations.registry")
_was = _registry.level
_registry.setLevel(logging.ERROR)  # it warns of what is meant: the metric below takes the place of the original


class ArrowValuesBetween(ColumnValuesBetween):
    """Whether each value of a column lies within bounds, compared as a whole; NaN lies within none."""

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column, min_value=None, max_value=None, strict_min=None, strict_max=None, **kwargs):  # type: ignore[no-untyped-def]  # noqa: N805 the decorator makes a class method of it
        return cls._pandas_vectorized(column, min_value, max_value, strict_min, strict_max)


_registry.setLevel(_was)
