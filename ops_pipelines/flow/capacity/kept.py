"""Reports of quarters as they are kept: one a quarter, the first that was made, with its checks beside it.

A forecast is judged later by what it said then, so the first is never written over; what is made of the quarter again
is kept beside it under the month of its day, as 2026Q4-check-2026-11. JSON, as `document` has it.
"""

from datetime import date

from ops_pipelines.core.record import StatementFiles, StatementFilesError
from ops_pipelines.domain.capacity.plan import CapacityReport
from ops_pipelines.domain.capacity.quarters import first_day_of
from ops_pipelines.flow.capacity.document import json_of, report_in
from ops_pipelines.teams.desk import TeamsDesk


def keep_report(desk: TeamsDesk, report: CapacityReport) -> str:
    """Keep a report, as the quarter's if it is the first, and return where it lies; empty: nothing is kept here.

    Raises StatementFilesError.
    """
    if desk.plan_files is None:
        return ""
    return desk.plan_files.keep(f"{kept_as(desk, report)}.json", json_of(report))


def keep_page(desk: TeamsDesk, page: bytes, *, name: str) -> str:
    """Keep a report's page under the name of the report, and return where it lies; empty: nothing is kept here.

    Raises StatementFilesError.
    """
    return "" if desk.plan_files is None else desk.plan_files.keep(f"{name}.html", page)


def kept_as(desk: TeamsDesk, report: CapacityReport) -> str:
    """Return the name that a report gets, without its kind: that of the quarter if it is the first one, or the same.

    Raises StatementFilesError.
    """
    quarter = report.forecast.quarter
    content = None if desk.plan_files is None else desk.plan_files.read(f"{quarter}.json")
    if content is None or content == json_of(report):
        return quarter
    return f"{quarter}-check-{report.forecast.as_of:%Y-%m}"


def kept_report(desk: TeamsDesk, quarter: str) -> CapacityReport | None:
    """Return the report that was kept of a quarter; None: none was.

    Raises StatementFilesError, also where it cannot be read; ValueError where the name is of no quarter.
    """
    first_day_of(quarter)
    return None if desk.plan_files is None else _read(desk.plan_files, f"{quarter}.json")


def kept_check(desk: TeamsDesk, quarter: str, *, month: date) -> CapacityReport | None:
    """Return the check of a quarter that was made as of a day of that month; None: none was. Raises as above."""
    first_day_of(quarter)
    return None if desk.plan_files is None else _read(desk.plan_files, f"{quarter}-check-{month:%Y-%m}.json")


def _read(files: StatementFiles, name: str) -> CapacityReport | None:
    content = files.read(name)
    if content is None:
        return None
    try:
        return report_in(content)
    except ValueError as problem:
        raise StatementFilesError(
            f"the capacity report {name} cannot be read: {problem}. Move it away, and make the quarter anew."
        ) from problem
