"""Reads what advice rests on, states what a GPU-hour costs by type, and applies all rules of advice.

Prices are for the gain of advice alone: what was really paid, and who bears it, is `costs`'s. What is missing is
reported in sentences, and enters no rule.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING

from ops_pipelines.core.cluster import HOUR, hour_of
from ops_pipelines.core.money import to_cents
from ops_pipelines.core.observation import Workload
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.core.sources import Lake, Rows, SourceError
from ops_pipelines.efficiency.advice import Advice, AdviceKind, Finding, JobWork, NodeFailures
from ops_pipelines.efficiency.advice_on_holding import (
    idle_ratio,
    judge_gpu_type,
    judge_idle,
    judge_memory,
    judge_wall_time,
    light_ratio,
    unneeded_memory_ratio,
    unneeded_time_ratio,
)
from ops_pipelines.efficiency.advice_on_running import (
    COMMUNICATES,
    SMALL,
    STALLED,
    FileGroup,
    excess_ratio,
    judge_batch,
    judge_communication,
    judge_files,
    judge_input,
    judge_interval,
    judge_saving,
    judge_straggler,
    straggler_ratio,
    unsaved_ratio,
)
from ops_pipelines.teams.desk import AdviceSettings, TeamsDesk
from ops_pipelines.teams.price import BYTES_PER_TIB, PricedBy

# -- what a GPU-hour costs, by type --


_WEEK_SECONDS = int(timedelta(days=7).total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Cents, exact."""

    per_gpu_hour: Mapping[GpuType, Fraction]
    mean_per_gpu_hour: Fraction | None
    """Over all types; None: no GPU is there."""
    per_byte_week: Fraction


def find_rates(desk: TeamsDesk, *, at: datetime) -> Rates | None:
    """Return what stood there at a time by its prices of that month; None where no prices are stated."""
    from ops_pipelines.costs.usage import month_at

    prices = desk.prices
    if prices is None:
        return None
    month = month_at(at, zone=desk.zone)
    by_name = {each.asset: each for each in prices.assets}
    gpus: defaultdict[GpuType, int] = defaultdict(int)
    cents: defaultdict[GpuType, Fraction] = defaultdict(Fraction)
    for node in desk.installed:
        price = by_name.get(node.asset)
        if price is None or node.gpu_count == 0 or not (node.since <= at and (node.until is None or at < node.until)):
            continue
        count = 1 if price.priced_by is PricedBy.NODE else node.gpu_count
        gpus[node.gpu_type] += node.gpu_count
        cents[node.gpu_type] += count * (price.capex_of(month) + price.support_cents_per_month)
    total = sum(gpus.values())
    hours = Fraction(month.seconds, 3600)
    whole = Fraction(prices.support_cents_per_month + prices.space_cents_per_month + prices.network_cents_per_month)
    return Rates(
        per_gpu_hour={kind: (cents[kind] / count + whole / total) / hours for kind, count in gpus.items()},
        mean_per_gpu_hour=(sum(cents.values(), Fraction(0)) + whole) / total / hours if total else None,
        per_byte_week=Fraction(prices.cents_per_tib_month) / BYTES_PER_TIB * _WEEK_SECONDS / month.seconds,
    )


def with_cents(advice: Advice, rates: Rates | None, gpu_type: GpuType) -> Advice:
    """Return the advice with its expected gain of a week in money; unchanged where no rate is known."""
    if rates is None:
        return advice
    rate = rates.per_gpu_hour.get(gpu_type, rates.mean_per_gpu_hour)
    hours = Fraction(advice.gain.expected_gpu_hours).limit_denominator(3600)
    if rate is None and hours:
        return advice
    amount = hours * (rate or 0) + advice.gain.size_bytes * rates.per_byte_week
    return replace(advice, gain_cents=to_cents(amount))


# -- reads what advice rests on --


if TYPE_CHECKING:
    from ops_pipelines.efficiency.work_rows import LongRun, Subject

FAILURES_BACK = timedelta(days=28)
"""How long failures of nodes are counted for: in a week there may be none."""
LINES_OF_COUNT = 20
"""Of so many kinds of jobs, those that held most, lines are read: each costs a look into every hour of the longest."""
_INVENTORY_HOURS = 24
_READ_AT_ONCE = timedelta(days=1)
"""Bounds memory."""
OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of an interval of time."""

    works: tuple[JobWork, ...]
    failures: NodeFailures
    groups: tuple[FileGroup, ...] | None
    """None: there is no listing, or it cannot be read."""
    unknown: tuple[str, ...]


def silent(step: str) -> None:
    """Say nothing of the progress."""


def read_evidence(desk: TeamsDesk, *, since: datetime, until: datetime, on_step: OnStep = silent) -> Evidence:
    """Return what jobs did in [since, until), how often nodes failed, and what lies unread. Raises LakeError."""
    from ops_pipelines.efficiency.work_rows import ACCOUNTING, ALLOCATIONS, EFFICIENCY, STEPS, read_failures, read_works

    lake, unknown = desk.lake, list[str]()
    seen: dict[str, int] = {}
    on_step("jobs")
    found = read_works(
        _days(lake, "job_allocations", ALLOCATIONS, since=since, until=until, seen=seen),
        _days(lake, "gpu_efficiency", EFFICIENCY, since=since, until=until, seen=seen),
        _days(lake, "job_accounting", ACCOUNTING, since=since, until=until, seen=seen),
        _days(lake, "job_steps", STEPS, since=since, until=until, seen=seen),
        since=since,
        until=until,
        settings=desk.advice,
        hardware=_hardware(desk, until=until, unknown=unknown),
        read_comment=desk.observatory.read_comment,
        known=_known(desk, unknown),
    )
    unknown += _told_gaps(seen, hour_count=int((until - since) / HOUR))
    if found.unknown_gpu_hours >= 1:
        unknown.append(f"{found.unknown_gpu_hours:,.0f} measured GPU-hours are of jobs that no allocation names")
    on_step("failures of nodes")
    columns = ("time", "state", "elapsed_seconds", "node_count", "gpu_count")
    failures = read_failures(_days(lake, "job_accounting", columns, since=until - FAILURES_BACK, until=until, seen={}))
    on_step("lines of long jobs")
    works = _with_saves(found.works, found.longest, desk, unknown)
    on_step("files")
    return Evidence(works=works, failures=failures, groups=_groups(desk, unknown), unknown=tuple(unknown))


def _days(
    lake: Lake, table: str, columns: Sequence[str], *, since: datetime, until: datetime, seen: dict[str, int]
) -> Iterator[Rows]:
    """Yield the rows day by day, and count the hours that have any; the interval is of whole hours."""
    from ops_pipelines.efficiency.work_rows import count_hours

    seen.setdefault(table, 0)
    begin = since
    while begin < until:
        end = min(begin + _READ_AT_ONCE, until)
        rows = lake.read(table, start=begin, end=end, columns=columns)
        if rows.num_rows:
            seen[table] += count_hours(rows)
            yield rows
        begin = end


def _told_gaps(seen: Mapping[str, int], *, hour_count: int) -> list[str]:
    said = []
    for table, what in (
        ("job_allocations", "who held GPUs"),
        ("gpu_efficiency", "how GPUs were used"),
        ("job_steps", "how much host memory jobs used"),
    ):
        count = seen.get(table, 0)
        if table == "job_steps" and count:
            continue  # Steps are reported when they end: an hour without one is no gap.
        if count < hour_count:
            said.append(f"{what} is known of {count} of {hour_count} hours ({table})")
    return said


def _hardware(desk: TeamsDesk, *, until: datetime, unknown: list[str]) -> "Hardware":
    from ops_pipelines.efficiency.work_rows import INVENTORY, Hardware, read_hardware

    hour = hour_of(until - timedelta(microseconds=1))
    for _ in range(_INVENTORY_HOURS):
        rows = desk.lake.read("inventory", start=hour, end=hour + HOUR, columns=INVENTORY)
        if rows.num_rows:
            return read_hardware(rows, desk.gpu_type_of)
        hour -= HOUR
    unknown.append("how much memory GPUs and nodes have is not known: the inventory of the last day is empty")
    return Hardware(gpu_types=desk.gpu_type_of)


def _known(desk: TeamsDesk, unknown: list[str]) -> Mapping[str, Workload]:
    try:
        return {job.job: job.workload for job in desk.cluster.scheduler.read_jobs()}
    except SourceError as problem:
        unknown.append(f"what running jobs say of themselves is not known: {problem}")
        return {}


def _with_saves(
    works: Collection[JobWork], longest: "Mapping[Subject, LongRun]", desk: TeamsDesk, unknown: list[str]
) -> tuple[JobWork, ...]:
    """Return the work with what lines tell of checkpoints, of those that held most and ran long enough."""
    from ops_pipelines.efficiency.other_rows import read_saves
    from ops_pipelines.remediate.restart_costs import LOG_COLUMNS
    from ops_pipelines.review.job_runs import read_job_lines

    asked: dict[tuple[str, str], LongRun] = {}
    for work in sorted(works, key=lambda each: -each.held_gpu_hours):
        run = longest.get((work.team, work.subject))
        if run is None or work.is_service or work.is_interactive:
            continue
        if run.held_hours >= desk.advice.unsaved_least_hours and len(asked) < LINES_OF_COUNT:
            asked[work.team, work.subject] = run
    if not asked:
        return tuple(works)
    wanted: dict[datetime, set[str]] = {}
    for run in asked.values():
        for hour in run.hours:
            wanted.setdefault(hour, set()).add(run.job)
    lines = read_job_lines(
        lambda hour: desk.lake.read("job_logs", start=hour, end=hour + HOUR, columns=LOG_COLUMNS), wanted
    )
    if not lines.rows:
        unknown.append("whether jobs save their work is not known: no lines of jobs are at hand")
    return tuple(
        work if run is None else replace(work, saves=read_saves(lines, run))
        for work in works
        for run in (asked.get((work.team, work.subject)),)
    )


def _groups(desk: TeamsDesk, unknown: list[str]) -> tuple[FileGroup, ...] | None:
    from ops_pipelines.efficiency.other_rows import group_files, read_listing

    if desk.read_listing is None:
        unknown.append("old checkpoints and unused data are not known: policy.yaml names no advice.storage_listing")
        return None
    now = desk.clock.now()
    try:
        listing = read_listing(desk.read_listing(), name="the listing", now=now)
    except (OSError, ValueError) as problem:
        unknown.append(f"old checkpoints and unused data are not known: the listing cannot be read: {problem}")
        return None
    if listing.refused:
        first = listing.refused[0]
        unknown.append(
            f"{len(listing.refused)} of {listing.read} files of the listing are refused; the first, {first.record}: "
            f"{first.detail}"
        )
    return group_files(listing.files, desk.advice, now=now)


if TYPE_CHECKING:
    from ops_pipelines.efficiency.work_rows import Hardware


_OF_USE: Sequence[Callable[[JobWork, AdviceSettings], Finding | None]] = (
    judge_idle, judge_input, judge_communication, judge_batch, judge_gpu_type, judge_memory, judge_wall_time,
    judge_straggler,
)  # fmt: skip
_OF_SAVES: Sequence[Callable[[JobWork, AdviceSettings, NodeFailures], Finding | None]] = (judge_saving, judge_interval)
_VERDICTS = {
    AdviceKind.INPUT_STALL: STALLED,
    AdviceKind.COMMUNICATION_BOUND: COMMUNICATES,
    AdviceKind.SMALL_BATCH: SMALL,
}


def judge(works: Iterable[JobWork], settings: AdviceSettings, *, failures: NodeFailures) -> tuple[Finding, ...]:
    """Return what the rules find in jobs, by team and subject; jobs that held nothing are passed over."""
    found: list[Finding] = []
    for work in sorted(works, key=lambda each: (each.team, each.subject)):
        if work.held_gpu_hours <= 0:
            continue
        judged = [rule(work, settings) for rule in _OF_USE]
        judged += [rule(work, settings, failures) for rule in _OF_SAVES]
        found += [each for each in judged if each is not None]
    return tuple(found)


def judge_storage(
    groups: Iterable[FileGroup], settings: AdviceSettings, *, since: datetime, until: datetime
) -> tuple[Finding, ...]:
    """Return what the rules find in files."""
    ordered = sorted(groups, key=lambda each: (each.team, each.path, each.is_checkpoints))
    judged = (judge_files(each, settings, since=since, until=until) for each in ordered)
    return tuple(each for each in judged if each is not None)


def measure(kind: AdviceKind, work: JobWork, settings: AdviceSettings, *, failures: NodeFailures) -> float | None:
    """Return what advice of this kind is judged by (smaller is better); None where it is not known."""
    if work.held_gpu_hours <= 0:
        return None
    if kind is AdviceKind.WRONG_GPU_TYPE:
        return light_ratio(work, settings) if work.gpu_type in settings.lesser_types else 0.0
    if kind is AdviceKind.OVER_ASKED_MEMORY:
        return unneeded_memory_ratio(work)
    if kind is AdviceKind.WALL_TIME_FAR_ABOVE_NEED:
        return unneeded_time_ratio(work)
    if kind is AdviceKind.NO_CHECKPOINTS:
        return unsaved_ratio(work)
    if kind is AdviceKind.WRONG_CHECKPOINT_INTERVAL:
        return excess_ratio(work, failures)
    if work.seen_gpu_hours < settings.least_seen_ratio * work.held_gpu_hours:
        return None
    if kind is AdviceKind.IDLE_ALLOCATION:
        return idle_ratio(work)
    if kind is AdviceKind.STRAGGLER:
        return straggler_ratio(work)
    verdict = _VERDICTS.get(kind)
    return None if verdict is None else work.ratio_of(verdict)
