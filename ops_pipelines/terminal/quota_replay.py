"""`ops-pipelines quota replay`: how the daily rebalancing would have served recorded demand, beside other policies.

Reads files; touches no cluster. The policies are `quotas.replay`'s, the file is read by `quotas.wanted.recorded`.
"""

import csv
import json as documents
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.caller import AsJson
from ops_pipelines.terminal.edge import ExitCode, at_the_edge, complain

if TYPE_CHECKING:
    from ops_pipelines.core.proposal import TeamName
    from ops_pipelines.quotas.replay import Replay

_GUARANTEE_RATIO = 0.5
_WORDS = {
    "static": "the quotas that were",
    "rebalanced": "ours: each day from the days before it",
    "daily_optimum": "each day's best, its demand known",
    "pooled": "no quotas: each hour shared out above the guarantees",
}


@at_the_edge
def quota_replay(
    demand: Annotated[
        Path, typer.Option("--demand", help="Parquet: hour_ts, team, capacity_gpus, gpus_running_avg, gpus_demand_avg.")
    ],
    timezone: Annotated[str, typer.Option("--timezone", help="Whose days they are, such as Asia/Shanghai.")] = "UTC",
    guarantees: Annotated[
        Path | None, typer.Option("--guarantees", help="CSV: team, guarantee_gpus; half of capacity unless given.")
    ] = None,
    carry: Annotated[
        bool, typer.Option("--carry", help="Carry hours that are missing from the hour before; named, not refused.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Replay recorded demand under four policies of quotas: what each would have left unserved, and how fairly.

    The rebalancing is the production code, and each day's quotas see only the days before it. Served in an hour is the
    smaller of demand and quota; what was not served is not asked for again.

    \b
    JSON: policies {static, rebalanced, daily_optimum, pooled}, each with unserved_gpu_hours,
    guarantee_violation_gpu_hours, churn_ratio_per_day, churn_ratio_max, reversals, jain,
    worst_team {team, unserved_ratio}; gain_ratio (null where nothing could be gained).
    """
    from ops_pipelines.quotas.wanted.recorded import RefusedDemand

    try:
        found = _replayed(demand, guarantees, timezone=timezone, is_carried=carry)
    except RefusedDemand as refused:
        complain(str(refused))
        raise typer.Exit(ExitCode.USAGE) from refused
    if json:
        typer.echo(documents.dumps(asdict(found)))
    else:
        _print(found)


def _replayed(demand: Path, guarantees: Path | None, *, timezone: str, is_carried: bool) -> "Replay":
    from ops_pipelines.core.proposal import Terms
    from ops_pipelines.quotas.replay import replay
    from ops_pipelines.quotas.wanted.recorded import MissingHours, read_recorded
    from ops_pipelines.teams.settings import RebalanceSettings

    missing = MissingHours.CARRY if is_carried else MissingHours.REFUSE
    recorded = read_recorded(demand, timezone=timezone, missing=missing)
    for note in recorded.notes:
        complain(f"{demand.name}: {note}")
    owed = _guarantees(guarantees, recorded.capacity)
    terms = [Terms(team=team, guarantee=owed[team]) for team in recorded.capacity]
    return replay(recorded.days, terms=terms, capacity=recorded.capacity, settings=RebalanceSettings())


def _guarantees(file: Path | None, capacity: "Mapping[TeamName, float]") -> "Mapping[TeamName, float]":
    """Return what each team is owed. Raises RefusedDemand with every fault of the file."""
    from ops_pipelines.core.proposal import TeamName
    from ops_pipelines.quotas.wanted.recorded import RefusedDemand

    if file is None:
        return {team: gpus * _GUARANTEE_RATIO for team, gpus in capacity.items()}
    faults: list[str] = []
    owed: dict[TeamName, float] = {}
    for number, row in enumerate(_rows(file), start=2):
        team = TeamName((row.get("team") or "").strip())
        amount = _number(row.get("guarantee_gpus"))
        if None in row:
            faults.append(f"line {number}: more cells than columns; expected an amount without commas, as 1000")
        elif team not in capacity:
            faults.append(f"line {number}: {team or 'no team'!r} is no team of the demand")
        elif team in owed:
            faults.append(f"line {number}: {team} stands there twice")
        elif amount is None or not 0 <= amount <= capacity[team]:
            faults.append(
                f"line {number}: {team} is guaranteed {row.get('guarantee_gpus')!r} GPUs; expected a number from 0 to "
                f"its capacity, {capacity[team]:g}"
            )
        else:
            owed[team] = amount
    faults.extend(f"{team} has no line; write 0 for none" for team in capacity if team not in owed)
    if faults:
        raise RefusedDemand(file.name, faults)
    return owed


def _rows(file: Path) -> list[dict[str, str]]:
    from ops_pipelines.quotas.wanted.recorded import RefusedDemand

    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:  # Spreadsheets write a byte order mark.
            reader = csv.DictReader(stream, strict=True)
            named = set(reader.fieldnames or ())
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise RefusedDemand(file.name, [f"no CSV that can be read: {problem}"]) from problem
    missing = {"team", "guarantee_gpus"} - named
    if missing:
        raise RefusedDemand(file.name, [f"column {name} is missing" for name in sorted(missing)])
    return rows


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _print(found: "Replay") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from ops_pipelines.report.terminal import printable

    gain = "nothing could be gained" if found.gain_ratio is None else f"{found.gain_ratio:.0%} of what could be gained"
    table = Table(title=f"unserved demand; ours gains {gain}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("policy", "unserved", "owed", "moved", "most", "turns", "Jain", "worst team"):
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for name, score in found.policies.items():
        worst = score.worst_team
        table.add_row(
            name,
            f"{score.unserved_gpu_hours:,.0f}",
            f"{score.guarantee_violation_gpu_hours:,.0f}",
            f"{score.churn_ratio_per_day:.1%}",
            f"{score.churn_ratio_max:.1%}",
            str(score.reversals),
            f"{score.jain:.4f}",
            "" if worst is None else f"{printable(worst.team)} {worst.unserved_ratio:.1%}",
        )
    out = Console()
    out.print(table)
    for name, words in _WORDS.items():
        out.print(f"{name}: {words}", style="dim", highlight=False)
    out.print(
        "unserved: GPU-hours, of which owed within a guarantee; moved: GPUs a day over capacity, mean and most",
        style="dim",
    )
