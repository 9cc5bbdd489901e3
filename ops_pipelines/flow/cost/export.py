"""A statement as files for whoever bills: FOCUS rows as CSV and as Parquet, the same rows in both."""

import csv
import io
from dataclasses import dataclass
from decimal import Decimal

from ops_pipelines.domain.cost.focus import FocusValue, Issuer, focus_rows
from ops_pipelines.domain.cost.statement import Statement
from ops_pipelines.teams.desk import TeamsDesk


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFile:
    """One file, not yet written."""

    name: str
    """The month and the kind: `2026-11.csv`."""
    content: bytes


def export_statement(statement: Statement, desk: TeamsDesk) -> tuple[StatementFile, StatementFile]:
    """Return the statement as CSV and as Parquet."""
    from ops_pipelines.frames.usage.focus_table import focus_csv, focus_parquet

    rows = _rows(statement, desk)
    name = statement.part.month.name
    return (
        StatementFile(name=f"{name}.csv", content=focus_csv(rows)),
        StatementFile(name=f"{name}.parquet", content=focus_parquet(rows)),
    )


def keep_statement(statement: Statement, desk: TeamsDesk) -> tuple[str, ...]:
    """Keep the statement beside the state and return where; nothing where none are kept.

    Raises StatementFilesError; each file is whole.
    """
    if desk.statements is None:
        return ()
    return tuple(desk.statements.keep(each.name, each.content) for each in export_statement(statement, desk))


def _rows(statement: Statement, desk: TeamsDesk) -> tuple[dict[str, FocusValue], ...]:
    # Who runs a cluster states its cost: nobody else is known here.
    return focus_rows(statement, Issuer(provider=desk.cluster.name, cluster=desk.cluster.name))


def billed_cents(written: bytes) -> int:
    """Return the sum of BilledCost of a file that was written, for whoever compares it with the cost of the assets."""
    rows = csv.DictReader(io.StringIO(written.decode("utf-8"), newline=""))
    return int(sum((Decimal(row["BilledCost"]) for row in rows), Decimal(0)).scaleb(2))
