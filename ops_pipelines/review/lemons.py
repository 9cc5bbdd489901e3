"""Gathers what happened to every node and GPU of a fleet in a stretch of time, and has it judged: who is a lemon.

Reads the lake, the ledger and the jobs' own exclusions. What makes a lemon is `diagnose.lemons`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.cluster import HOUR
from ops_pipelines.core.finding import Catalogue
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.lake import Lake, Rows
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.diagnose.lemons import LemonScore, LemonSignal, Trouble, count_troubles, score_lemons

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetScores:
    """Who stands out."""

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
