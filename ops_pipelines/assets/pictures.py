"""What the page of a lake table shows of the hours that a run closed: a picture of them all, and how many rows.

Dagster shows every hour of a run with what the run told, and in this order.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

import dagster as dg

from ops_pipelines.core.lake import Rows
from ops_pipelines.report.metadata import table


def describe_hours(
    name: str, hours: Mapping[datetime, Rows], counts: Mapping[datetime, int]
) -> Mapping[str, dg.MetadataValue]:
    """Return a picture, small enough to open at once, and the rows; of many hours, those with equally many together."""
    from ops_pipelines.report.pictures.hours import DRAWINGS, picture_of_hours

    shown: dict[str, dg.MetadataValue] = {}
    if name in DRAWINGS:
        shown["picture"] = dg.MetadataValue.md(picture_of_hours(name, hours))
    shown["row_count"] = dg.MetadataValue.int(sum(counts.values()))
    if len(counts) > 1:
        shown["hour_count"] = dg.MetadataValue.int(len(counts))
        shown["rows_by_hour"] = table(_stretches(dict(sorted(counts.items()))))
    return shown


def _stretches(counts: Mapping[datetime, int]) -> Iterator[Mapping[str, object]]:
    """Yield stretches of hours in a row that have equally many rows."""
    stretches: list[list[datetime]] = []
    for hour, number in counts.items():
        previous = stretches[-1][-1] if stretches else None
        if previous is not None and hour - previous == timedelta(hours=1) and counts[previous] == number:
            stretches[-1].append(hour)
        else:
            stretches.append([hour])
    for stretch in stretches:
        yield {
            "from": f"{stretch[0]:%Y-%m-%d %H:%M}",
            "to": f"{stretch[-1] + timedelta(hours=1):%Y-%m-%d %H:%M}",
            "hours": len(stretch),
            "rows_an_hour": counts[stretch[0]],
        }
