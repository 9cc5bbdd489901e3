"""Hours of `application_telemetry` -> the worst 99th percentile of the latency of each service in each minute."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = ("time", "device", "job", "namespace", "latency_p99_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMinute:
    """One minute of one service, all its replicas together: the slowest of them counts."""

    service: str
    job: str
    """Empty where the service is no job. Untrusted, as the others are."""
    namespace: str
    at: datetime
    p99_seconds: float


def latency_minutes(hours: Iterable[pa.Table]) -> Iterable[LatencyMinute]:
    """Yield the minutes of which any replica told its latency. Values that are no number tell nothing."""
    for rows in hours:
        value = rows["latency_p99_seconds"]
        known = rows.filter(pc.fill_null(pc.and_(pc.is_valid(value), pc.is_finite(value)), False))
        if not known.num_rows:
            continue
        keys = pa.table(
            {
                "minute": pc.floor_temporal(known["time"], unit="minute"),
                **{name: pc.fill_null(known[name].cast(pa.string()), "") for name in ("device", "job", "namespace")},
                "p99": known["latency_p99_seconds"],
            }
        )
        worst = keys.group_by(["minute", "device", "job", "namespace"]).aggregate([("p99", "max")])
        for row in worst.to_pylist():
            yield LatencyMinute(
                service=row["device"],
                job=row["job"],
                namespace=row["namespace"],
                at=row["minute"].astimezone(UTC),
                p99_seconds=row["p99_max"],
            )
