"""A week's incidents by component, how far its review can be trusted, and which nodes and GPUs are lemons.

An incident belongs to the week in which it was opened, a repair or a phase to that in which it ended: so nothing counts
in two weeks, and what is open at the end is counted apart. What makes a lemon is `diagnose.lemons`.

Rates and means stand with 95 % intervals, from a few events and the time that could show them. Zero events bound a rate
from above; they never make it zero.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.core.action import MESSAGES, ActionRecord, Verb
from ops_pipelines.core.cluster import HOUR
from ops_pipelines.core.fault import AtFault, Family
from ops_pipelines.core.finding import Catalogue
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.overlap import Certainty, Overlap
from ops_pipelines.core.sources import Lake, Rows
from ops_pipelines.diagnose.lemons import LemonScore, LemonSignal, Trouble, count_troubles, score_lemons
from ops_pipelines.review.cost import REPAIRS_OF_NODES, done_at

if TYPE_CHECKING:
    from ops_pipelines.diagnose.trouble_rows import Presence
    from ops_pipelines.review.job_runs import Break

_TAIL = 0.025
"""Each side of a 95 % interval."""
_ONE_TAIL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Events over exposure, in events an hour."""

    event_count: int
    exposure_hours: float
    low: float
    high: float
    """95 % interval (Garwood); with no event `low` is 0 and `high` the one-sided bound, 3.0 over the exposure."""

    @property
    def mean_hours_between(self) -> float | None:
        """Exposure over events; None without events or exposure: then only `mean_hours_at_least` is known."""
        return self.exposure_hours / self.event_count if self.event_count and self.exposure_hours > 0 else None

    @property
    def mean_hours_at_least(self) -> float | None:
        """The lower end of the mean time between events; None without exposure."""
        return 1.0 / self.high if self.exposure_hours > 0 else None

    @property
    def mean_hours_at_most(self) -> float | None:
        """The upper end; None without events or exposure: nothing bounds it."""
        return 1.0 / self.low if self.low > 0 else None


def rate_of(event_count: int, *, exposure_hours: float) -> Rate:
    """Return the rate of a Poisson process with its exact interval; without exposure nothing is known, 0..inf.

    Raises ValueError for negative numbers.
    """
    if event_count < 0 or exposure_hours < 0 or not math.isfinite(exposure_hours):
        raise ValueError(f"found {event_count} events in {exposure_hours} hours; expected neither below 0")
    if exposure_hours <= 0:
        return Rate(event_count=event_count, exposure_hours=0.0, low=0.0, high=math.inf)
    low, high = count_bounds(event_count)
    return Rate(
        event_count=event_count,
        exposure_hours=exposure_hours,
        low=low / exposure_hours,
        high=high / exposure_hours,
    )


def count_bounds(event_count: int) -> tuple[float, float]:
    """Return between which means a Poisson count lies with 95 % (Garwood); of none, 0 and the one-sided 3.0."""
    if event_count == 0:
        return 0.0, -math.log(_ONE_TAIL)
    return _lower(event_count), _upper(event_count)


def _lower(event_count: int) -> float:
    """Return the mean of which so many events or more come with 2.5 %."""
    from scipy.special import gammaincinv

    return float(gammaincinv(event_count, _TAIL))


def _upper(event_count: int) -> float:
    """Return the mean of which so many events or fewer come with 2.5 %."""
    from scipy.special import gammainccinv

    return float(gammainccinv(event_count + 1, _TAIL))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanTime:
    """How long something took on average."""

    count: int
    mean: timedelta
    low: timedelta
    high: timedelta
    """95 % interval of the mean. # Assumption: times to repair are exponential, as MTBF and MTTR models take them."""
    median: timedelta
    longest: timedelta


def mean_time_of(times: Sequence[timedelta]) -> MeanTime | None:
    """Return the mean of some times; None of none."""
    if not times:
        return None
    ordered = sorted(times)
    total = sum(ordered, timedelta())
    mean = total / len(ordered)
    # A sum of n exponential times passes x means just when a Poisson process of mean x has seen fewer than n events.
    low, high = _lower(len(ordered)), _upper(len(ordered) - 1)
    return MeanTime(
        count=len(ordered),
        mean=mean,
        low=total / high,
        high=total / low,
        median=(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2,
        longest=ordered[-1],
    )


# -- how far a review can be trusted --


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


# -- what the ledger says of a week's incidents --


Records = Mapping[IncidentId, Sequence[ActionRecord]]
_NO_PART = frozenset({AtFault.APPLICATION, AtFault.USER, AtFault.NOTHING})
_SYMPTOMS = frozenset({Family.STALL, Family.COLLECTIVE, Family.APPLICATION, Family.NORMAL})
"""What jobs show: with nobody at fault it is no failure of a part."""
_OF_GPUS = frozenset({Family.GPU, Family.MEMORY, Family.NVLINK, Family.PCIE})
"""Families whose exposure is GPU-hours; of all others it is node-hours."""
_ALWAYS = (
    Family.GPU, Family.MEMORY, Family.NVLINK, Family.PCIE, Family.FABRIC, Family.DISK, Family.HOST, Family.SILENCE,
)  # fmt: skip
"""Shown without any failure too: that there was none is news, with how much it proves."""
COMPONENTS: Mapping[Family, str] = {
    Family.GPU: "GPU",
    Family.MEMORY: "GPU memory",
    Family.NVLINK: "NVLink",
    Family.PCIE: "PCIe",
    Family.FABRIC: "network links and NICs",
    Family.SILENCE: "nodes gone silent",
    Family.HEAT: "cooling",
    Family.POWER: "power",
    Family.STORAGE: "shared storage",
    Family.DISK: "local disks",
    Family.HOST: "host (CPU, memory, kernel)",
    Family.SOFTWARE: "node software",
    Family.SLOWNESS: "slow parts",
    Family.STALL: "parts that let jobs hang",
    Family.COLLECTIVE: "parts seen by collectives",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentLine:
    """One kind of component: how often it failed, and how long it was out."""

    component: str
    unit: str
    """`GPU` or `node`: what the exposure counts."""
    failures: Rate
    repairs: MeanTime | None
    """Of the repairs that ended in the week, from the opening of the incident to service; None without any."""
    open_count: int
    """Not in service again at the week's end."""
    oldest_open: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseLine:
    """One phase of the incidents of the week."""

    phase: str
    count: int
    median: timedelta
    longest: timedelta
    incident: IncidentId
    """Of the longest."""


def overlaps_in(incidents: Iterable[Incident], *, since: datetime, until: datetime) -> tuple[Overlap, ...]:
    """Return where two copies of a job began to run at once in [since, until), or may have, by their times."""
    found = {
        each.name: each
        for incident in incidents
        for each in incident.overlaps
        if since <= each.later.started_at < until and each.certainty is not Certainty.EXCLUDED
    }
    return tuple(sorted(found.values(), key=lambda each: (each.later.started_at, each.later.job)))


# -- components --


def failures_in(incidents: Iterable[Incident], *, since: datetime, until: datetime) -> tuple[Incident, ...]:
    """Return the incidents opened in [since, until) that a part of the cluster is to blame for."""
    return tuple(each for each in incidents if since <= each.opened_at < until and is_failure(each))


def is_failure(incident: Incident) -> bool:
    """Return whether a part failed: no program's fault, not merely watched, not part of another, not a person's."""
    if incident.state is IncidentState.MERGED or incident.is_watched or not incident.findings:
        return False
    at_fault = at_fault_of(incident)
    is_located = at_fault is not AtFault.UNKNOWN or family_of(incident) not in _SYMPTOMS
    return at_fault not in _NO_PART and is_located


def at_fault_of(incident: Incident) -> AtFault:
    """Return who is at fault; what the first finding says where no hypothesis was made."""
    if incident.hypothesis is not None:
        return incident.hypothesis.at_fault
    return incident.findings[0].at_fault if incident.findings else AtFault.UNKNOWN


def family_of(incident: Incident) -> Family:
    if incident.hypothesis is not None:
        return incident.hypothesis.family
    return incident.findings[0].family if incident.findings else Family.UNKNOWN


def restored_at(incident: Incident) -> datetime | None:
    """Return since when its part is in service again; None while it is not."""
    if incident.state is IncidentState.PROBATION:
        return incident.returned_at
    return (incident.returned_at or incident.closed_at) if incident.state is IncidentState.RESOLVED else None


def repairs_in(incidents: Iterable[Incident], *, since: datetime, until: datetime) -> MeanTime | None:
    """Return how long the repairs took that ended in [since, until), of whatever part; None of none."""
    back = [(each, restored_at(each)) for each in incidents if is_failure(each)]
    return mean_time_of([at - each.opened_at for each, at in back if at is not None and since <= at < until])


def components_of(
    incidents: Collection[Incident], *, since: datetime, until: datetime, node_hours: float, gpu_hours: float
) -> tuple[ComponentLine, ...]:
    """Return a line for each kind of component, those that failed most often first."""
    failures = [each for each in incidents if is_failure(each)]
    families = {*_ALWAYS, *(family_of(each) for each in failures if each.opened_at < until)}
    lines = [
        _component(
            family,
            [each for each in failures if family_of(each) is family and each.opened_at < until],
            since=since,
            until=until,
            exposure_hours=gpu_hours if family in _OF_GPUS else node_hours,
        )
        for family in sorted(families, key=lambda each: each.value)
    ]
    known = [each for each in lines if each is not None]
    return tuple(sorted(known, key=lambda each: (-each.failures.event_count, -each.open_count, each.component)))


def _component(
    family: Family, incidents: Sequence[Incident], *, since: datetime, until: datetime, exposure_hours: float
) -> ComponentLine | None:
    opened = [each for each in incidents if each.opened_at >= since]
    back = [(each, restored_at(each)) for each in incidents]
    ended = [at - each.opened_at for each, at in back if at is not None and since <= at < until]
    still = [until - each.opened_at for each, at in back if at is None or at >= until]
    if not opened and not ended and not still and family not in _ALWAYS:
        return None
    return ComponentLine(
        component=COMPONENTS.get(family, family.value),
        unit="GPU" if family in _OF_GPUS else "node",
        failures=rate_of(len(opened), exposure_hours=exposure_hours),
        repairs=mean_time_of(ended),
        open_count=len(still),
        oldest_open=max(still, default=None),
    )


# -- phases --


def phases_of(
    incidents: Iterable[Incident], records: Records, *, since: datetime, until: datetime
) -> tuple[PhaseLine, ...]:
    """Return how long each phase took that ended in [since, until), the slowest median first."""
    times: dict[str, list[tuple[timedelta, IncidentId]]] = {}
    for incident in incidents:
        if incident.state is IncidentState.MERGED or incident.is_watched:
            continue
        for phase, begin, end in _phases(incident, records.get(incident.incident, ())):
            if since <= end < until and begin <= end:
                times.setdefault(phase, []).append((end - begin, incident.incident))
    lines = []
    for phase, listed in times.items():
        listed.sort()
        middle = (listed[(len(listed) - 1) // 2][0] + listed[len(listed) // 2][0]) / 2
        lines.append(
            PhaseLine(phase=phase, count=len(listed), median=middle, longest=listed[-1][0], incident=listed[-1][1])
        )
    return tuple(sorted(lines, key=lambda each: (-each.median, each.phase)))


def _phases(incident: Incident, records: Sequence[ActionRecord]) -> Iterator[tuple[str, datetime, datetime]]:
    acts = [each for each in records if each.action.verb not in MESSAGES]
    yield "noticing (first evidence to incident)", min(incident.began_at, incident.opened_at), incident.opened_at
    if acts:
        yield "deciding (incident to first act)", incident.opened_at, min(each.begun_at for each in acts)
    spans = (
        ("draining", {Verb.DRAIN}, {Verb.DRAIN}),
        ("moving jobs (hold to release)", {Verb.HOLD}, {Verb.RELEASE}),
        ("repairing", REPAIRS_OF_NODES, REPAIRS_OF_NODES),
        ("testing", {Verb.CHECK}, {Verb.CHECK}),
    )
    for name, first, last in spans:
        begun = [each.begun_at for each in acts if each.action.verb in first]
        done = done_at(acts, last)
        if begun and done:
            yield name, min(begun), done[-1]
    for recovery in incident.recoveries:
        if recovery.progressed_at is not None:
            yield "moved job beyond its checkpoint (from its hold)", recovery.held_at, recovery.progressed_at
    back = restored_at(incident)
    if back is not None and acts:
        yield "out of order (incident to service)", incident.opened_at, back


_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetScores:
    """Who is out."""

    scores: tuple[LemonScore, ...]
    """Those with a reason, nodes before GPUs, each the worst first."""
    judged_count: int

    @property
    def lemons(self) -> tuple[LemonScore, ...]:
        return tuple(each for each in self.scores if each.is_lemon)


def score_fleet(
    lake: Lake, ledger: Ledger, jobs: Iterable[JobStatus], catalogue: Catalogue, *, since: datetime, until: datetime
) -> FleetScores:
    """Return the scores over [since, until); `until` is the end of an hour. Raises LakeError and LedgerError."""
    from ops_pipelines.diagnose.trouble_rows import (
        count_single_node_jobs,
        failed_job_troubles,
        incident_troubles,
        read_attendance,
        xid_troubles,
    )

    attendance = read_attendance({hour: lake.read_hour("inventory", hour) for hour in once_a_day(since, until)})
    incidents = [each for each in ledger.incidents_since(since) if each.opened_at < until]
    records = {each.incident: ledger.records(each.incident) for each in incidents}
    troubles: list[Trouble] = list(incident_troubles(incidents, records, attendance.lineage))
    for rows in _hours(lake, "kernel_events", since, until):
        troubles += xid_troubles(rows, attendance.lineage, catalogue)
    own = tuple(troubles)
    single_node_jobs: dict[NodeName, int] = {}
    for rows in _hours(lake, "job_accounting", since, until):
        troubles += failed_job_troubles(rows, own)
        for node, count in count_single_node_jobs(rows).items():
            single_node_jobs[node] = single_node_jobs.get(node, 0) + count
    excluded = {
        Trouble(signal=LemonSignal.EXCLUDED_BY_JOBS, node=node, at=until - HOUR, job=job.job)
        for job in jobs
        for node in job.excluded_nodes
    }
    counts = count_troubles(
        [*troubles, *excluded],
        attendance.stays,
        measured=set(LemonSignal),
        since=since,
        until=until,
        single_node_jobs=single_node_jobs,
    )
    scores = tuple(
        score
        for kind in ("node", "gpu")
        for score in score_lemons(each for each in counts if each.part.kind == kind)
        if score.reasons
    )
    return FleetScores(scores=scores, judged_count=len(counts))


def once_a_day(since: datetime, until: datetime) -> list[datetime]:
    """Return the last hour of each day, oldest first: one reading a day shows what changes over weeks."""
    return [until - HOUR - number * _DAY for number in reversed(range((until - since) // _DAY))]


def _hours(lake: Lake, table: str, since: datetime, until: datetime) -> Iterator[Rows]:
    """Yield the hours of a table that have rows, one at a time."""
    for number in range((until - since) // HOUR):
        rows = lake.read_hour(table, since + number * HOUR)
        if rows.num_rows:
            yield rows
