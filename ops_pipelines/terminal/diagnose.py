"""`ops-pipelines diagnose`: what was wrong at a moment of the past, by what the lake holds.

Finds again what there was; what was believed and done then is `incidents` and `explain`.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    ClusterFile,
    ExitCode,
    at_the_edge,
    complain,
    end_with,
    print_answer,
)

if TYPE_CHECKING:
    from ops_pipelines.resources.config.cluster_config import ClusterConfig
    from ops_pipelines.resources.lake.parquet_lake import ParquetLake
    from ops_pipelines.terminal.explain import DiagnosedTime

NOW = "now"
_LONGEST_BACK_MINUTES = 7 * 24 * 60
"""A day of a large cluster is read in minutes; whoever wants more asks the lake in SQL."""


class NoSuchTime(ValueError):
    """The time cannot be diagnosed. The message says why, and what to give instead."""


@at_the_edge
def diagnose(
    from_lake: Annotated[
        bool, typer.Option("--from-lake", help="Read what the lake recorded: the one source so far, so always given.")
    ] = False,
    at: Annotated[
        str, typer.Option(metavar="TIME", help="The moment: ISO 8601, UTC where it names no zone; or `now`.")
    ] = NOW,
    back: Annotated[
        int,
        typer.Option(metavar="MINUTES", min=1, max=_LONGEST_BACK_MINUTES, help="How long before it to begin."),
    ] = 60,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Say what was wrong at a time, by what was recorded until then.

    The rules are those of the live loop. Nothing is asked but the lake, and nothing is written. Incidents are named
    PAST-1 and so on, as they are found anew each time; what was done about them is in the ledger: `incidents --all`.
    What the lake does not hold is said. Ends with 3 where it holds no sample at all of that time.

    \b
    JSON: cluster, since, at, incidents [incident, state, nodes, victims, began_at, closed_at, diagnosis (as in
    `incidents`), sightings (as in `explain`)], gaps [text], problems [text].
    """
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.terminal.explain import diagnosed_document, diagnosed_json

    if not from_lake:
        complain("say --from-lake: it reads what was recorded. What is wrong now, `incidents` and `explain` tell")
        raise typer.Exit(ExitCode.USAGE)
    try:
        now = SystemClock().now()
        found = look_back(
            read_cluster(cluster_file.absolute()), at=parse_time(at, now=now), back=timedelta(minutes=back), now=now
        )
    except NoSuchTime as problem:
        complain(str(problem))
        raise typer.Exit(ExitCode.USAGE) from problem
    print_answer(lambda: diagnosed_json(found), lambda: diagnosed_document(found), as_json=json)
    end_with(found.problems)


def parse_time(text: str, *, now: datetime) -> datetime:
    """Return the time that a person gave, in UTC. Raises NoSuchTime."""
    if text.strip().lower() == NOW:
        return now
    try:
        time = datetime.fromisoformat(text.strip())
        # A zone may carry the first or the last day of the calendar beyond it.
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError) as problem:
        raise NoSuchTime(
            f"{text!r} is no time; expected ISO 8601, such as {now:%Y-%m-%dT%H:%M} (UTC) or "
            f"{now:%Y-%m-%dT%H:%M}+02:00, or `now`"
        ) from problem


def look_back(config: "ClusterConfig", *, at: datetime, back: timedelta, now: datetime) -> "DiagnosedTime":
    """Return what the lake of `config` shows of [at - back, at]. Raises NoSuchTime, LakeError, PolicyError."""
    from ops_pipelines.review.retrace import find_past_incidents
    from ops_pipelines.terminal.explain import DiagnosedTime
    from ops_pipelines.wiring import open_lake, read_rules

    if at > now:
        raise NoSuchTime(f"{at:%Y-%m-%d %H:%M:%S} UTC is in the future: it is {now:%Y-%m-%d %H:%M:%S} UTC")
    rules = read_rules(config)
    lake = open_lake(config)
    first = _first_hour(lake)
    if first is None:
        raise NoSuchTime(f"the lake {config.lake.url} is empty: nothing was recorded yet")
    if at < first:
        raise NoSuchTime(
            f"{at:%Y-%m-%d %H:%M} UTC is before the first hour of the lake {config.lake.url}, {first:%Y-%m-%d %H:%M}; "
            "`ops-pipelines telemetry tables` shows what it holds"
        )
    found = find_past_incidents(
        lake,
        at=at,
        back=back,
        rules=rules,
        release=config.release,
        step_seconds=int(config.lake.step.total_seconds()),
    )
    return DiagnosedTime(
        cluster=config.name,
        since=found.start,
        at=found.end,
        incidents=tuple(found.incidents),
        gaps=found.gaps,
        problems=("no sample of this time is recorded: nobody knows how the cluster was",) if found.is_blind else (),
    )


def _first_hour(lake: "ParquetLake") -> datetime | None:
    from ops_pipelines.lake.schema import TELEMETRY_TABLES

    hours = [hour for table in (*TELEMETRY_TABLES, "kernel_events", "job_logs") for hour in lake.hours(table)[:1]]
    return min(hours, default=None)
