"""One day's placement: computed from the rows of the lake, and its sentences.

Gathers; what it means is decided beside it, by subject. What is not known is in `notes`, and in no number.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from ops_pipelines.core.periods import BilledPart, CostMonth
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.core.scheduler import ALL_TYPES
from ops_pipelines.core.sources import Rows, SourceError
from ops_pipelines.costs.gather_usage import NothingYet
from ops_pipelines.costs.states import Condition, NodeState, find_states
from ops_pipelines.efficiency.placement.fragmentation import (
    Alike,
    BrokenDomain,
    Fit,
    HourIndex,
    NodeHint,
    Within,
    find_broken_domains,
    find_fits,
    find_node_hints,
    index_by_hour,
)
from ops_pipelines.efficiency.placement.scheduler_policy import ClusterFacts, PolicyFindings, find_policy_faults
from ops_pipelines.efficiency.placement.spread import (
    Level,
    Straddle,
    StrandedGpus,
    StrandRules,
    Why,
    find_straddles,
    find_stranded,
)
from ops_pipelines.efficiency.placement.standing import Absence, Away, Machine, Stay, Waiting, stands_at
from ops_pipelines.efficiency.placement.waits import (
    LONG_SECONDS,
    BackfillHint,
    Hole,
    Need,
    QueueTimes,
    Reversal,
    find_backfill_hints,
    find_holes,
    find_queue_times,
    find_reversals,
    longest_queue,
    needs_of,
)
from ops_pipelines.lake.quantities import Refused
from ops_pipelines.report.numbers import counted
from ops_pipelines.teams.desk import TeamsDesk


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDay:
    """What was found of one interval of time."""

    start: datetime
    end: datetime
    node_count: int
    gpu_count: int
    started_count: int
    """Attempts with GPUs that started in it."""
    straddles: tuple[Straddle, ...] = ()
    broken: tuple[BrokenDomain, ...] = ()
    fits: tuple[Fit, ...] = ()
    """At its end."""
    hours: tuple[HourIndex, ...] = ()
    node_hints: tuple[NodeHint, ...] = ()
    stranded: StrandedGpus = field(default_factory=lambda: StrandedGpus(stranded=(), free_gpu_hours=0.0))
    backfill: tuple[BackfillHint, ...] = ()
    holes: tuple[Hole, ...] = ()
    queue_times: tuple[QueueTimes, ...] = ()
    reversals: tuple[Reversal, ...] = ()
    policy: PolicyFindings | None = None
    """None: nobody reports how the scheduler is set up."""


def describe(day: PlacementDay) -> tuple[str, ...]:
    """Return the day in sentences, what matters most first. Names in them are those of cluster.yaml and of teams."""
    return tuple(_sentences(day))


def _sentences(day: PlacementDay) -> Iterator[str]:
    if not day.started_count:
        yield "No job with GPUs started."
    yield from _of_straddles(day.straddles)
    if day.broken:
        yield (
            f"{counted(len(day.broken), 'small job')} broke up a whole NVLink domain although a broken one had room "
            "for it."
        )
    yield from _of_stranded(day.stranded)
    yield from _of_pieces(day)
    yield from _of_queues(day)
    if day.backfill:
        hours = sum(each.earlier_seconds for each in day.backfill) / 3600
        yield (
            f"{counted(len(day.backfill), 'job')} would have started earlier, {hours:.0f} hours together, with the "
            "time limit that such jobs need."
        )
    if day.holes:
        yield f"{sum(each.gpu_hours for each in day.holes):.0f} GPU-hours stood free right before reservations."
    if day.policy is None:
        yield "How the scheduler is set up is not known."
    elif day.policy.findings:
        works = "works" if len(day.policy.findings) == 1 else "work"
        yield f"{counted(len(day.policy.findings), 'setting')} of the scheduler {works} against fair waiting."


def _of_straddles(straddles: Sequence[Straddle]) -> Iterator[str]:
    """Yield a sentence for each way in which jobs stood apart; each start is in one, however many levels it left."""
    by_start: defaultdict[tuple[str, datetime], list[Straddle]] = defaultdict(list)
    for each in straddles:
        by_start[each.stay.job, each.stay.began_at].append(each)
    by_levels: defaultdict[tuple[Level, ...], list[Sequence[Straddle]]] = defaultdict(list)
    for ways in by_start.values():
        by_levels[tuple(level for level in Level if any(each.level is level for each in ways))].append(ways)
    for levels in sorted(by_levels, key=lambda each: [*map(list(Level).index, each)]):
        jobs = by_levels[levels]
        sizes = Counter(len(ways[0].stay.gpus) for ways in jobs)
        avoidable = sum(any(each.is_avoidable for each in ways) for ways in jobs)
        whose = f"of {min(sizes)} nodes" if len(sizes) == 1 else f"of {min(sizes)} to {max(sizes)} nodes"
        need = "none of them could have stood better" if not avoidable else f"{avoidable} of them need not have"
        where = " and ".join(_PLURALS[level] for level in levels)
        yield f"{counted(len(jobs), 'job')} {whose} stood in several {where}; {need}."


_PLURALS = {Level.NVLINK_DOMAIN: "NVLink domains", Level.LEAF_SWITCH: "leaf switches", Level.RACK: "racks"}


def _of_stranded(found: StrandedGpus) -> Iterator[str]:
    if not found.stranded:
        return
    by_why: defaultdict[Why, float] = defaultdict(float)
    for each in found.stranded:
        by_why[each.why] += each.gpu_hours
    most = max(by_why, key=lambda why: (by_why[why], why.value))
    total = sum(by_why.values())
    yield (
        f"{total:.0f} of {found.free_gpu_hours:.0f} free GPU-hours could not be had, most of them because: "
        f"{most.value} ({by_why[most]:.0f})."
    )


def _of_pieces(day: PlacementDay) -> Iterator[str]:
    if day.hours:
        worst = max(day.hours, key=lambda each: (each.index_ratio, each.hour))
        mean = sum(each.index_ratio for each in day.hours) / len(day.hours)
        if worst.index_ratio > 0:
            yield (
                f"{mean:.0%} of the whole nodes that the free GPUs would make were in pieces, at worst "
                f"{worst.index_ratio:.0%} in the hour from {worst.hour:%Y-%m-%d %H:%M} UTC on."
            )
    kept_out = [fit for fit in day.fits if fit.within is Within.ANYWHERE and fit.by_count > fit.could_start == 0]
    if kept_out:
        smallest = min(kept_out, key=lambda fit: (fit.node_count, fit.gpus_per_node))
        size = f"{smallest.node_count} nodes" if smallest.node_count > 1 else f"{smallest.gpus_per_node} GPUs"
        yield f"At the end no job of {size} could start, though so many GPUs were free."


def _of_queues(day: PlacementDay) -> Iterator[str]:
    every = [each for each in day.queue_times if each.team is None]
    count = sum(each.job_count for each in every)
    if count:
        long = sum(round(each.long_ratio * each.job_count) for each in every)
        worst = max(every, key=lambda each: (each.p90_seconds, each.job_count))
        yield (
            f"{long} of {counted(count, 'job')} waited longer than {LONG_SECONDS / 3600:.0f} h; of {worst.size.value} "
            f"one in ten waited {worst.p90_seconds / 3600:.1f} h or longer"
            f"{' (too few jobs to say more)' if worst.is_few else ''}."
        )
    for each in day.reversals:
        yield (
            f"Over all sizes {each.seems_better} waited less than {each.is_better}; within each size that both have "
            "it waited longer. Compare them by size."
        )


HISTORY = timedelta(days=28)
"""So far back runs tell what the next one needs."""
_LOOK_BACK = timedelta(days=1)
"""Assumption: a wait that began earlier would not have been ended by a hole before that."""
_ENDS_WITHIN = timedelta(days=30)
"""Accounting lists attempts by the hour of their end."""
_ASKED_WITHIN = timedelta(days=2)
"""The scheduler knows who waits now; of a day that ended longer ago that reports little."""
_AWAY = {
    Condition.INCIDENT: Away.DRAINED,
    Condition.ROLLOUT: Away.DRAINED,
    Condition.RESERVATION: Away.RESERVED,
    Condition.DOWN: Away.DOWN,
    Condition.DRAINED: Away.DRAINED,
}
"""A node on probation takes jobs; one that is tested was drained for it."""
_ROOT = TeamName("root")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementReport:
    """What is reported of one interval of time."""

    day: PlacementDay
    sentences: tuple[str, ...]
    notes: tuple[str, ...]
    """What is not known, in words."""
    refused: tuple[Refused, ...]
    """Rows that were not believed, each with its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathered:
    """What all parts of the report are made from."""

    machines: tuple[Machine, ...]
    stays: tuple[Stay, ...]
    absences: tuple[Absence, ...]
    waits: tuple[Waiting, ...]
    needs: dict[Alike, Need]
    efficiency: Rows


def report_of_day(day: date, desk: TeamsDesk) -> PlacementReport:
    """Return the report of a local day. Raises as `placement_report`."""
    from ops_pipelines.core.periods import day_begins

    start, end = (day_begins(each, zone=desk.zone) for each in (day, day + timedelta(days=1)))
    return placement_report(start, end, desk)


def placement_report(start: datetime, end: datetime, desk: TeamsDesk) -> PlacementReport:
    """Return the report of [start, end), usually a local day; of a running one as much as is over.

    Raises LakeError and LedgerError, and NothingYet for an interval of which nothing is over.
    """
    from ops_pipelines.efficiency.placement.rows import traffic_of

    end = min(end, desk.clock.now())
    if start >= end:
        raise NothingYet(
            f"nothing is over of what begins at {start:%Y-%m-%d %H:%M} UTC; ask for a day that has started"
        )
    notes: list[str] = []
    refused: list[Refused] = []
    found = _gather(desk, start=start, end=end, notes=notes, refused=refused)
    gpus_per_node = desk.observatory.topology.gpus_per_node
    machines, stays, absences, waits = found.machines, found.stays, found.absences, found.waits
    now = stands_at(end, machines, stays=stays, absences=absences)
    rules = StrandRules(most_by_team=_most_by_team(desk, notes))
    day = PlacementDay(
        start=start,
        end=end,
        node_count=len(machines),
        gpu_count=sum(each.gpu_count for each in machines),
        started_count=sum(start <= each.began_at < end and each.gpu_count > 0 for each in stays),
        straddles=find_straddles(
            machines, stays, absences=absences, start=start, end=end, traffic=traffic_of(found.efficiency)
        ),
        broken=find_broken_domains(machines, stays, absences=absences, start=start, end=end),
        fits=find_fits(now, gpus_per_node=gpus_per_node),
        hours=index_by_hour(machines, stays, absences=absences, start=start, end=end, gpus_per_node=gpus_per_node),
        node_hints=find_node_hints(
            now, now=end, needed_seconds={alike: need.seconds for alike, need in found.needs.items()}
        ),
        stranded=find_stranded(machines, stays, absences=absences, start=start, end=end, rules=rules),
        backfill=find_backfill_hints(
            machines, stays, waits, absences=absences, needs=found.needs, known_since=start - _LOOK_BACK, now=end
        ),
        holes=find_holes(machines, stays, absences=absences, start=start, end=end),
        queue_times=find_queue_times(waits, gpus_per_node=gpus_per_node, now=end),
        reversals=find_reversals(waits, gpus_per_node=gpus_per_node, now=end),
        policy=_policy(desk, waits, start=start, end=end, notes=notes),
    )
    return PlacementReport(
        day=day,
        sentences=describe(day),
        notes=tuple(dict.fromkeys(notes)),
        refused=tuple(sorted(refused, key=lambda each: (each.reason, each.record))),
    )


def _gather(desk: TeamsDesk, *, start: datetime, end: datetime, notes: list[str], refused: list[Refused]) -> _Gathered:
    from ops_pipelines.efficiency.placement.rows import (
        ACCOUNTING_COLUMNS,
        ALLOCATION_COLUMNS,
        EFFICIENCY_COLUMNS,
        INVENTORY_COLUMNS,
        elapsed_of,
        read_machines,
        read_stays,
        read_waits,
    )

    lake, topology, since = desk.lake, desk.observatory.topology, start - _LOOK_BACK
    ended = lake.read("job_accounting", start=start - HISTORY, end=end + _ENDS_WITHIN, columns=ACCOUNTING_COLUMNS)
    held = lake.read("job_allocations", start=since, end=end, columns=ALLOCATION_COLUMNS)
    inventory = lake.read("inventory", start=since, end=end, columns=INVENTORY_COLUMNS)
    efficiency = lake.read("gpu_efficiency", start=start, end=end, columns=EFFICIENCY_COLUMNS)
    machines = read_machines(inventory, topology=topology)
    stays = read_stays(ended, held, topology=topology, since=since, until=end)
    waits = read_waits(_with_waiting(ended, desk, end=end, notes=notes), start=start, end=end)
    notes += [*machines.notes, *stays.notes, *waits.notes]
    refused += [*stays.refused, *waits.refused]
    states = find_states(_part(since, end), desk)
    notes += states.notes
    return _Gathered(
        machines=machines.machines,
        stays=stays.stays,
        absences=absences_of(states.states, since=since),
        waits=waits.waits,
        needs=dict(needs_of(elapsed_of(ended, until=end))),
        efficiency=efficiency,
    )


def _with_waiting(ended: Rows, desk: TeamsDesk, *, end: datetime, notes: list[str]) -> Rows:
    """Return the rows with those of jobs that wait now, as the scheduler says."""
    from ops_pipelines.efficiency.placement.rows import with_told
    from ops_pipelines.lake.accounting import read_waiting

    accounting, now = desk.observatory.accounting, desk.clock.now()
    if accounting is None or now - end > _ASKED_WITHIN:
        notes.append("who waited at the end of the day and has not started since is not known")
        return ended
    try:
        pages = list(accounting.read_waiting(at=now))
        told = [read_waiting(page.body, source=page.source, at=page.start) for page in pages]
    except SourceError as exc:
        notes.append(f"who waits still is not known: {exc}")
        return ended
    rows: Rows = with_told(ended, told)
    return rows


def _part(since: datetime, until: datetime) -> BilledPart:
    """Return the interval as `find_states` asks for it; the month's name means nothing there."""
    first, last = since.replace(microsecond=0), until.replace(microsecond=0)
    month = CostMonth(year=first.year, month=first.month, begins_at=first, ends_at=last)
    return BilledPart(month=month, since=first, until=last)


def absences_of(states: Sequence[NodeState], *, since: datetime) -> tuple[Absence, ...]:
    """Return when nodes took no jobs; a single GPU that fell off its bus keeps its node in service."""
    return tuple(
        Absence(
            node=each.node,
            why=_AWAY[each.condition],
            since=max(each.since, since),
            until=each.until,
            cause=each.cause,
        )
        for each in states
        if each.condition in _AWAY and each.gpu_count is None and (each.until is None or each.until > since)
    )


def _most_by_team(desk: TeamsDesk, notes: list[str]) -> dict[TeamName, int] | None:
    """Return what each account may hold; None where one has no limit, or nobody reports."""
    if desk.quotas is None:
        return None
    try:
        accounts = desk.quotas.read().accounts
    except SourceError as exc:
        notes.append(f"whether limits of teams leave GPUs over is not known: {exc}")
        return None
    parents = {each.parent for each in accounts.values()}
    leaves = {name: each.limit_of(ALL_TYPES) for name, each in accounts.items() if name not in parents | {_ROOT}}
    most = {name: limit for name, limit in leaves.items() if limit is not None}
    if not most or len(most) < len(leaves):
        return None
    notes.append("limits of teams are those of now, also for hours that are over")
    return most


def _policy(
    desk: TeamsDesk, waits: Sequence[Waiting], *, start: datetime, end: datetime, notes: list[str]
) -> PolicyFindings | None:
    """Return what the settings mean; None where nobody reports them. They are those of now."""
    from ops_pipelines.efficiency.placement.rows import read_scheduler_policy

    if desk.settings is None:
        return None
    try:
        settings = desk.settings.read()
    except SourceError as exc:
        notes.append(f"how the scheduler is set up is not known: {exc}")
        return None
    notes += [f"settings not read: {each}" for each in settings.unread]
    places = desk.observatory.topology.places.values()
    facts = ClusterFacts(
        queue_length=longest_queue(waits, start=start, end=end),
        leaf_count=len({each.leaf_switch for each in places}),
    )
    findings = find_policy_faults(read_scheduler_policy(), settings, facts=facts)
    notes += [f"not judged, {each}" for each in findings.unknown]
    return findings
