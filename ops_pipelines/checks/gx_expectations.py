"""What Great Expectations is taught here, so that an hour of 3.9 million rows costs what it may.

Expectations make their configuration once: the originals make it again each of the fifty times that they are asked for
it. `expect_column_values_to_be_between` compares an Arrow column as a whole: the original asks Python of each
value unless the column is numpy's. Nobody changes an expectation between its being made and its verdict. Importing this
imports Great Expectations, which costs seconds: `suites` does it inside a function, after its analytics are off.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import new_class
from typing import cast

from great_expectations.compatibility.pydantic import PrivateAttr
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import Expectation
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
from great_expectations.expectations.metrics.column_map_metrics.column_values_between import ColumnValuesBetween
from great_expectations.expectations.metrics.map_metric_provider.column_condition_partial import (
    column_condition_partial,
)
from great_expectations.expectations.registry import get_expectation_impl


class _Remembering(Expectation):
    """Makes its configuration once. Abstract: what an expectation is asked for is another's."""

    _made: ExpectationConfiguration | None = PrivateAttr(default=None)

    @property
    def configuration(self) -> ExpectationConfiguration:
        if self._made is None:
            self._made = super().configuration
        return self._made


@contextmanager
def _in_place_of_the_original() -> Iterator[None]:
    """Keep its register from warning of what is meant."""
    registry = logging.getLogger("great_expectations.expectations.registry")
    was = registry.level
    registry.setLevel(logging.ERROR)
    try:
        yield
    finally:
        registry.setLevel(was)


@cache
def remembering(name: str) -> Callable[..., Expectation]:
    """Return the expectation of this type (`expect_...`), registered as one that makes its configuration once.

    Raises what Great Expectations does where it knows none.
    """
    original = get_expectation_impl(name)
    with _in_place_of_the_original():
        made = new_class(original.__name__, (_Remembering, original))
    return cast("Callable[..., Expectation]", made)


with _in_place_of_the_original():

    class ArrowValuesBetween(ColumnValuesBetween):
        """Whether each value of a column lies within bounds, compared as a whole; NaN lies within none."""

        @column_condition_partial(engine=PandasExecutionEngine)
        def _pandas(cls, column, min_value=None, max_value=None, strict_min=None, strict_max=None, **kwargs):  # type: ignore[no-untyped-def]  # noqa: N805 the decorator makes a class method of it
            return cls._pandas_vectorized(column, min_value, max_value, strict_min, strict_max)
