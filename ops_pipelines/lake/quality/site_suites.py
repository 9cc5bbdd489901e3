"""What a site expects of its tables beside what we ship: its suite files in, expectations and troubles out.

A suite is a file of JSON in Great Expectations' own format, named after its table. Reading files stands in `resources`.
"""

import json
from collections.abc import Sequence

from ops_pipelines.core.lake import SuiteFile
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.lake.quality.expectations import (
    Expectation,
    Kind,
    Severity,
    expectations_of,
    read_suite,
    with_site,
)
from ops_pipelines.lake.schema import TABLES

Trouble = tuple[Expectation, str]
"""What stands for a file that cannot be used, and why: the file, the key, what to do."""


def expected_at_site(suites: Sequence[SuiteFile], *, table: str) -> tuple[tuple[Expectation, ...], tuple[Trouble, ...]]:
    """Return what is expected of a table with the site's suite, and what is wrong with the site's files.

    A suite of this table that cannot be used is an error, so that nothing is built upon what the site meant to refuse;
    a file that is named after no table is a warning, at each table. Raises KeyError on an unknown table.
    """
    expected, troubles = expectations_of(table), list[Trouble]()
    for suite in suites:
        if suite.table not in TABLES:
            said = f"{suite.path}: there is no table {suite.table!r}; name the file after one of {', '.join(TABLES)}"
            troubles.append((_file(suite, table, Severity.WARNING), said))
        elif suite.table == table:
            try:
                expected = with_site(table, read_site_suite(suite))
            except PolicyError as error:
                troubles.append((_file(suite, table, Severity.ERROR), str(error)))
    return expected, tuple(troubles)


def read_site_suite(suite: SuiteFile) -> tuple[Expectation, ...]:
    """Return what a file declares. Raises PolicyError, naming the file, the key and what to do."""
    if suite.problem:
        raise PolicyError(f"{suite.path}: {suite.problem}; make it readable to this program")
    try:
        document = json.loads(suite.text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{suite.path}: no JSON: {error}; correct it there") from None
    return read_suite(document, table=suite.table, source=suite.path)


def find_suite_faults(suites: Sequence[SuiteFile]) -> tuple[str, ...]:
    """Return what is wrong with a site's suites, the first of each file, in words for the operator."""
    faults: dict[str, None] = {}
    for table in (*(suite.table for suite in suites if suite.table in TABLES), next(iter(TABLES))):
        faults |= dict.fromkeys(said for _, said in expected_at_site(suites, table=table)[1])
    return tuple(faults)


def _file(suite: SuiteFile, table: str, severity: Severity) -> Expectation:
    return Expectation(
        table=table,
        name=suite.path.rsplit("/", maxsplit=1)[-1],
        kind=Kind.SITE,
        severity=severity,
        meaning="the site's suites can be used",
        source=suite.path,
    )
