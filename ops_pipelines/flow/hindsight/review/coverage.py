"""How far a review can be trusted: how much of the stretch each source was there, and how much of it is explained."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ops_pipelines.core.cluster import HOUR
from ops_pipelines.core.lake import Lake

if TYPE_CHECKING:
    from ops_pipelines.diagnose.trouble_rows import Presence
    from ops_pipelines.frames.history.job_runs import Break


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageLine:
    """How much of the week one source was there."""

    what: str
    known: float
    expected: float
    unit: str

    @property
    def ratio(self) -> float | None:
        return min(1.0, self.known / self.expected) if self.expected > 0 else None


def coverage_of(
    breaks: "Sequence[Break]",
    presence: "Presence",
    accounted: Collection[datetime],
    lake: Lake,
    *,
    since: datetime,
    until: datetime,
) -> Iterator[CoverageLine]:
    """Yield how much of [since, until) each source has; `accounted` are the hours of which accounting has anything."""
    hours = [since + number * HOUR for number in range(-(-(until - since) // HOUR))]
    yield CoverageLine(what="inventory", known=float(presence.hour_count), expected=float(len(hours)), unit="hours")
    yield CoverageLine(
        what="accounting and allocations", known=float(len(accounted)), expected=float(len(hours)), unit="hours"
    )
    seen = expected = 0.0
    rejected = 0
    for hour in hours:
        seen_here, expected_here, rejected_here = _watched(lake, hour)
        seen, expected, rejected = seen + seen_here, expected + expected_here, rejected + rejected_here
    yield CoverageLine(what="samples of metrics that should be there", known=seen, expected=expected, unit="samples")
    yield CoverageLine(
        what="interruptions with a known cause",
        known=float(sum(bool(each.incident) or each.cause.value == "preempted" for each in breaks)),
        expected=float(len(breaks)),
        unit="interruptions",
    )
    yield CoverageLine(
        what="interruptions whose lost work is known",
        known=float(sum(each.is_loss_known for each in breaks)),
        expected=float(len(breaks)),
        unit="interruptions",
    )
    if rejected:
        yield CoverageLine(what="records that were not believed", known=float(rejected), expected=0.0, unit="records")


def _watched(lake: Lake, hour: datetime) -> tuple[float, float, int]:
    from ops_pipelines.diagnose.trouble_rows import sums_of_coverage

    watched = lake.read("monitoring_coverage", start=hour, end=hour + HOUR, columns=("seen_count", "expected_count"))
    rejected = lake.read("rejected_rows", start=hour, end=hour + HOUR, columns=("source",))
    return (*sums_of_coverage(watched), rejected.num_rows)
