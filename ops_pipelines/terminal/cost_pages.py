"""The page of a month's costs for the web process, and its files: gathers what `pages.chargeback` shows.

Counting a month reads it day by day from the lake: the page is made once an hour at most, beside the answers to others.
"""

import csv
import io
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal

from ops_pipelines.core.cluster import hour_of
from ops_pipelines.core.money import Cents
from ops_pipelines.core.periods import CostMonth
from ops_pipelines.costs.focus_table import billed_cents
from ops_pipelines.costs.gather_usage import NothingYet
from ops_pipelines.costs.report import cost_document
from ops_pipelines.costs.statements import Charge, statement_of
from ops_pipelines.pages.index import Tile
from ops_pipelines.report.document import Document
from ops_pipelines.report.html import page_of
from ops_pipelines.report.numbers import money
from ops_pipelines.teams.desk import NoTeams, TeamsDesk
from ops_pipelines.terminal.pages_in_making import PagesInMaking
from ops_pipelines.terminal.teams_at_hand import NotThere

_MONTHS = 12
_KINDS = ("csv", "parquet")
_FILE = re.compile(r"[12][0-9]{3}-(0[1-9]|1[0-2])\.(csv|parquet)", re.ASCII)
_MOMENT = timedelta(microseconds=1)


class CostPages:
    """Pages of one cluster's costs, remembered for the hour in which they were made."""

    def __init__(self, *, patience_seconds: float = 10) -> None:
        self._making = PagesInMaking(patience_seconds=patience_seconds)

    def page(self, asked: str | None, desk: TeamsDesk) -> str:
        """Return the page of a month named as 2026-11; None: the running one.

        Raises NotThere, PageInMaking, LakeError, LedgerError, StatementFilesError.
        """
        now = desk.clock.now()
        months = _months(desk, now)
        if asked is None:
            # In its first hour nothing of a month is over.
            month = months[0] if now - months[0].begins_at >= timedelta(hours=1) else months[1]
        else:
            named = next((each for each in months if each.name == asked), None)
            if named is None:
                raise NotThere(
                    f"there is no page of the month {asked[:40]}; from {months[-1].name} to {months[0].name} there "
                    "are, and `ops-pipelines cost --month MONTH` counts older ones"
                )
            month = named
        return self._making.page(
            month.name,
            lambda: page_of(_document(month, months, desk, now=now)),
            title="the costs of",
            hour=hour_of(now),
            now=now,
        )


def cost_file(name: str, desk: TeamsDesk) -> bytes:
    """Return a kept file by its name, as 2026-11.csv. Raises NotThere, StatementFilesError."""
    kept = desk.statements.read(name) if desk.statements is not None and _FILE.fullmatch(name) else None
    if kept is None:
        raise NotThere(f"no statement {name[:40]} is kept; the asset chargeback writes 2026-11.csv and 2026-11.parquet")
    return kept


def cost_tile(desk: TeamsDesk) -> Tile:
    """Return what the newest kept statement says. Raises StatementFilesError."""
    for month in _months(desk, desk.clock.now())[:2]:
        kept = None if desk.statements is None else desk.statements.read(f"{month.name}.csv")
        if kept is not None:
            teams, total, currency = _sums(kept)
            about = f"{currency} of {money(total)} borne by teams in {month.name}, as last written"
            return Tile(path="chargeback", title="Costs", value=money(teams), about=about)
    about = "no statement is written yet" if desk.prices is not None else "no prices are stated: hours are counted"
    return Tile(path="chargeback", title="Costs", value="-", about=about)


def _sums(written: bytes) -> tuple[Cents, Cents, str]:
    """Return what teams pay in a written file, what it adds up to, and the currency."""
    rows = list(csv.DictReader(io.StringIO(written.decode("utf-8"), newline="")))
    currency = rows[0]["BillingCurrency"] if rows else ""
    return _cents(row for row in rows if row["SubAccountId"]), _cents(rows), currency


def _cents(rows: Iterable[dict[str, str]]) -> Cents:
    return Cents(int(sum((Decimal(row["BilledCost"]) for row in rows), Decimal(0)).scaleb(2)))


def _months(desk: TeamsDesk, now: datetime) -> list[CostMonth]:
    """Return the running month and those before, newest first."""
    from ops_pipelines.costs.usage import month_at

    found = [month_at(now, zone=desk.zone)]
    while len(found) < _MONTHS:
        found.append(month_at(found[-1].begins_at - _MOMENT, zone=desk.zone))
    return found


def _document(month: CostMonth, months: list[CostMonth], desk: TeamsDesk, *, now: datetime) -> Document:
    charge, why_not = _charge(month, desk, now=now)
    written = _kept(f"{month.name}.csv", desk)
    kinds = {
        each.name: tuple(kind for kind in _KINDS if _kept(f"{each.name}.{kind}", desk) is not None) for each in months
    }
    shown = [name for number, name in enumerate(kinds) if number < 2 or kinds[name] or name == month.name]
    return cost_document(
        charge,
        cluster=desk.cluster.name,
        month=month.name,
        why_not=why_not,
        months={name: kinds[name] for name in shown},
        filed_cents=None if written is None else Cents(billed_cents(written)),
        now=now,
    )


def _charge(month: CostMonth, desk: TeamsDesk, *, now: datetime) -> tuple[Charge | None, str]:
    try:
        return statement_of(month, desk, until=now), ""
    except (NothingYet, NoTeams) as problem:
        return None, str(problem)


def _kept(name: str, desk: TeamsDesk) -> bytes | None:
    return None if desk.statements is None else desk.statements.read(name)
