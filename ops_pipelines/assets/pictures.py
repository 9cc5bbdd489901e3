"""What the page of a lake table shows of the hours that a run closed: how many rows, and a picture of the last one."""

from collections.abc import Mapping
from datetime import datetime

import dagster as dg

from ops_pipelines.assets.tables import table
from ops_pipelines.ports.lake import Rows


def describe_hours(name: str, hours: Mapping[datetime, Rows]) -> Mapping[str, dg.MetadataValue]:
    """Return rows by hour and a picture of the newest hour that has any: small enough to open at once."""
    from ops_pipelines.frames.pictures import picture_of

    shown: dict[str, dg.MetadataValue] = {
        "row_count": dg.MetadataValue.int(sum(rows.num_rows for rows in hours.values())),
        "rows_by_hour": table(
            {"hour": f"{hour:%Y-%m-%d %H:%M}", "rows": rows.num_rows} for hour, rows in sorted(hours.items())
        ),
    }
    filled = [hour for hour, rows in hours.items() if rows.num_rows]
    if filled:
        newest = max(filled)
        shown["picture"] = dg.MetadataValue.md(picture_of(name, hours[newest]))
        shown["picture_hour"] = dg.MetadataValue.text(f"{newest:%Y-%m-%d %H:%M} UTC")
    return shown
