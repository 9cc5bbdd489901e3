"""From the recorded past to the forecast and the plan of a quarter: projects and supply added.

Projects come about independently of each other and of the past's peaks. The mixture is exact at `LEVELS`: what is less
likely than the outermost level is not seen there. A project that had started by `as_of` is in the past with what it had
ramped up to; only the rest is added, and after its end that part is taken off.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.capacity.chances import Point, SupplyInputs, Tail, sum_of_chances, supply_weeks
from ops_pipelines.capacity.model import (
    LEVELS,
    CapacityForecast,
    CapacityPlan,
    Resource,
    SeriesKey,
    SeriesOutlook,
    WeekPeak,
    quarter_of,
)
from ops_pipelines.capacity.order import Places, drawn_watts, find_room
from ops_pipelines.capacity.past import Completeness, NoHistory, Past, gather_batches, read_past
from ops_pipelines.capacity.planning import PlanInputs, judge_batches, make_plan
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.core.rollout import NodeStage, RolloutState
from ops_pipelines.efficiency.kept import followed_ratio
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import InstalledNode
from ops_pipelines.teams.projects import Arrival, CapacitySettings, PlannedProject, Retirement

_FUZZ = 1e-12
_LEAN_RATIO = 1e-12
"""Sums of amounts are off by a rounding: a lump of probability is looked for this much around its place."""


def mix_projects(
    outlooks: Iterable[SeriesOutlook], projects: Sequence[PlannedProject], *, as_of: date
) -> tuple[tuple[SeriesOutlook, ...], tuple[str, ...]]:
    """Return the outlooks of all teams' GPUs with planned projects, by type, and notes on what was done.

    Other outlooks are left out. A project without a type is for the only type, if there is one. A type that only
    projects want begins at 0.
    """
    bases = {
        each.key.gpu_type: each for each in outlooks if each.key.resource == Resource.GPUS.value and not each.key.name
    }
    notes: list[str] = []
    by_type: dict[GpuType, list[PlannedProject]] = {}
    for project in sorted(projects, key=_rank):
        gpu_type = project.gpu_type
        if gpu_type not in bases and not gpu_type and len(bases) == 1:
            (gpu_type,) = bases
            notes.append(f"{project.words} names no type of GPU; counted for {gpu_type}, the only one")
        by_type.setdefault(gpu_type, []).append(project)
        notes.extend(_notes_on(project, as_of))
    weeks = max((each.weeks for each in bases.values()), key=len, default=())
    for gpu_type in sorted(by_type.keys() - bases.keys()):
        wanted = ", ".join(each.name for each in by_type[gpu_type])
        if not weeks:
            notes.append(
                f"projects for {gpu_type or 'no type'} are not counted, nothing is known of the past: {wanted}"
            )
            continue
        notes.append(
            f"nothing of the past is known of {gpu_type or 'no type'}; what it wants are projects alone: {wanted}"
        )
        bases[gpu_type] = _empty(gpu_type, weeks)
    found = tuple(
        replace(
            base,
            weeks=tuple(mix_week(week, by_type.get(gpu_type, ()), as_of=as_of) for week in base.weeks),
        )
        for gpu_type, base in sorted(bases.items())
    )
    return found, tuple(notes)


def mix_week(base: WeekPeak, projects: Sequence[PlannedProject], *, as_of: date) -> WeekPeak:
    """Return one week's peak with all projects, whatever their type; never below 0."""
    added = sum_of_chances((change_in_week(each, base.first_day, as_of=as_of), each.probability) for each in projects)
    if added == ((0.0, 1.0),):
        return base
    shift = added[0][0]
    quantiles = [each + shift for each in base.quantiles] if len(added) == 1 else _mixed(base, added)
    if shift >= 0:
        quantiles = [max(each, past) for each, past in zip(quantiles, base.quantiles, strict=True)]
    risen: list[float] = []
    for each in quantiles:
        risen.append(max(0.0, each, *risen[-1:]))
    return replace(base, quantiles=tuple(risen))


def change_in_week(project: PlannedProject, first_day: date, *, as_of: date) -> float:
    """Return what the project changes of the week's peak, if it comes about; below 0 where it has ended since."""
    return project.most_in_week(first_day) - _in_the_past(project, as_of)


def _in_the_past(project: PlannedProject, as_of: date) -> float:
    """Return what the past's last day had of it: so much is in the peaks already."""
    return project.gpus_on(as_of - timedelta(days=1))


def _notes_on(project: PlannedProject, as_of: date) -> Iterable[str]:
    if project.ends_on is not None and project.ends_on <= as_of:
        yield f"{project.words} ended on {project.ends_on}, before the forecast; it changes nothing"
    elif known := _in_the_past(project, as_of):
        then = (
            f"from {project.ends_on} on that is taken off again with probability {project.probability:g}"
            if project.ends_on is not None
            else "no end is known"
        )
        yield (
            f"{project.words} began on {project.starts_on}: {known:g} of its {project.gpus:g} GPUs are taken to be in "
            f"the past's peaks, only the rest is added; {then}"
        )


def _rank(project: PlannedProject) -> tuple[GpuType, date, str, str, float, float]:
    return (
        project.gpu_type, project.starts_on, project.team, project.name, project.gpus, project.probability,
    )  # fmt: skip


def _empty(gpu_type: GpuType, weeks: Sequence[WeekPeak]) -> SeriesOutlook:
    nothing = (0.0,) * len(LEVELS)
    return SeriesOutlook(
        key=SeriesKey(resource=Resource.GPUS.value, gpu_type=gpu_type),
        treatment="no_days",
        weeks=tuple(WeekPeak(first_day=each.first_day, quantiles=nothing, is_vouched=False) for each in weeks),
        notes=("nothing of its past is known; begins at 0",),
    )


def _mixed(base: WeekPeak, added: Sequence[Point]) -> list[float]:
    """Return the quantiles of the sum: the smallest amount whose probability of not being exceeded is the level."""
    tail = Tail(base)
    knots = sorted({each + amount for each in base.quantiles for amount, _ in added})
    lean = _LEAN_RATIO * max(abs(knots[0]), abs(knots[-1]), *(abs(amount) for amount, _ in added))
    reached = tail.share_of_sum_at_most(added)
    known: dict[int, float] = {}

    def reached_at(place: int) -> float:
        if place not in known:
            known[place] = reached(knots[place] + lean)
        return known[place]

    def crossing(place: int, level: float) -> float:
        if place == 0:
            return knots[0]
        before = reached_at(place - 1)
        # What is left of the step is the lump at the knot itself: there, or where nothing rises, the knot answers.
        rising = reached(knots[place] - lean) - before
        share = min(1.0, (level - before) / rising) if rising > _FUZZ else 1.0
        return knots[place - 1] + (knots[place] - knots[place - 1]) * share

    found = [0.0] * len(LEVELS)
    # The middle level first: it bounds where the others are looked for.
    open_spans = [(0, len(LEVELS), 0, len(knots) - 1)]
    while open_spans:
        first, end, low, high = open_spans.pop()
        if first == end:
            continue
        middle = (first + end) // 2
        place = bisect_left(range(high), LEVELS[middle], lo=low, key=reached_at)
        found[middle] = crossing(place, LEVELS[middle])
        open_spans += [(first, middle, low, place), (middle + 1, end, place, high)]
    return found


_COMES = frozenset({RolloutState.RUNNING, RolloutState.SOAKING, RolloutState.AWAITING_YES})
"""States of rollouts whose planned waves are still to come."""
_WEEK = timedelta(days=7)


def gather_supply(desk: TeamsDesk, past: Past, *, weeks: int) -> tuple[SupplyInputs, tuple[str, ...]]:
    """Return what supply follows from, and notes on what is not known. Raises LedgerError."""
    from ops_pipelines.core.periods import day_begins

    as_of = past.as_of
    begins_at = day_begins(as_of, zone=desk.zone)
    stated = () if desk.capacity is None else desk.capacity.retirements
    gone = {node for each in stated if each.on < as_of for node in each.nodes}
    there = [each for each in desk.installed if _stands(each, begins_at) and each.node not in gone]
    notes = [] if desk.installed else ["cluster.yaml names no nodes under `racks`: what is installed is not known"]
    arrivals, retirements = _coming(desk, begins_at), _going(desk, there)
    if desk.capacity is not None:
        notes += _perhaps_twice(arrivals, desk.capacity.arrivals)
        arrivals += desk.capacity.arrivals
        retirements += _not_in_register(desk.capacity.retirements, retirements, notes)
    return (
        SupplyInputs(
            installed=_by_type(there),
            arrivals=tuple(arrivals),
            retirements=tuple(retirements),
            out_ratios=_ratios(Resource.GPUS_OUT, past, desk),
            stranded_ratios=_ratios(Resource.GPUS_STRANDED, past, desk),
            rollout_gpus=_rollouts(desk, begins_at=begins_at, weeks=weeks),
        ),
        tuple(notes),
    )


def _stands(node: InstalledNode, at: datetime) -> bool:
    return node.since <= at and (node.until is None or at < node.until)


def _by_type(nodes: Iterable[InstalledNode]) -> dict[GpuType, float]:
    found: defaultdict[GpuType, float] = defaultdict(float)
    for each in nodes:
        found[each.gpu_type] += each.gpu_count
    return dict(sorted(found.items()))


def _coming(desk: TeamsDesk, begins_at: datetime) -> list[Arrival]:
    """Return what the register has from a later day on."""
    found: defaultdict[tuple[date, str, GpuType], int] = defaultdict(int)
    for each in desk.installed:
        if each.since > begins_at:
            found[each.since.astimezone(desk.zone).date(), each.asset, each.gpu_type] += each.gpu_count
    return [
        Arrival(sku=asset, gpu_type=gpu_type, gpus=gpus, on=on) for (on, asset, gpu_type), gpus in sorted(found.items())
    ]


def _perhaps_twice(registered: Sequence[Arrival], stated: Sequence[Arrival]) -> list[str]:
    """Return a note for each type that comes by both files in one month: who counts a rack twice orders too little."""
    months = {(each.gpu_type, each.on.year, each.on.month): each.on for each in registered}
    return [
        f"{each.gpus} GPUs of {each.sku} arrive on {each.on} in capacity.yaml, and racks of cluster.yaml with the same "
        f"type on {on}: both are counted; if they are the same, take them out of capacity.yaml"
        for each in stated
        if (on := months.get((each.gpu_type, each.on.year, each.on.month))) is not None
    ]


def _going(desk: TeamsDesk, there: Iterable[InstalledNode]) -> list[Retirement]:
    """Return what the register has until a later day."""
    found: defaultdict[tuple[date, GpuType], list[InstalledNode]] = defaultdict(list)
    for each in there:
        if each.until is not None:
            found[each.until.astimezone(desk.zone).date(), each.gpu_type].append(each)
    return [
        Retirement(
            nodes=tuple(sorted(each.node for each in nodes)),
            gpu_type=gpu_type,
            gpus=sum(each.gpu_count for each in nodes),
            on=on,
        )
        for (on, gpu_type), nodes in sorted(found.items())
    ]


def _not_in_register(
    stated: Sequence[Retirement], known: Sequence[Retirement], notes: list[str]
) -> Sequence[Retirement]:
    """Return what capacity.yaml retires and the register does not: a node goes once."""
    twice: set[NodeName] = {node for each in known for node in each.nodes}
    found = []
    for each in stated:
        both = twice & set(each.nodes)
        if both:
            notes.append(
                f"{', '.join(sorted(both))} retire in capacity.yaml on {each.on} and have an end in cluster.yaml, too: "
                "the end of cluster.yaml counts"
            )
        left = tuple(node for node in each.nodes if node not in both)
        if left:
            gpus = each.gpus * len(left) // len(each.nodes)
            found.append(Retirement(nodes=left, gpu_type=each.gpu_type, gpus=gpus, on=each.on))
    return found


def _ratios(resource: Resource, past: Past, desk: TeamsDesk) -> Mapping[GpuType, Sequence[float]]:
    """Return daily means over what was installed on that day, oldest first; by type."""
    from ops_pipelines.core.periods import day_begins

    history = past.history.of(resource)
    found: dict[GpuType, tuple[float, ...]] = {}
    for key, means in () if history is None else history.means.items():
        if key.name:
            continue  # The parts of what is out: their sum has no name.
        ratios = []
        for number, mean in enumerate(means):
            # The means are those of the last days that are known; a day that is missing shifts them a little.
            day = past.as_of - timedelta(days=len(means) - number)
            at = day_begins(day, zone=desk.zone)
            held = sum(each.gpu_count for each in desk.installed if each.gpu_type == key.gpu_type and _stands(each, at))
            if held:
                ratios.append(min(1.0, mean / held))
        found[key.gpu_type] = tuple(ratios)
    return found


def _rollouts(desk: TeamsDesk, *, begins_at: datetime, weeks: int) -> Mapping[GpuType, Sequence[float]]:
    """Return the GPUs that planned waves take at once, by week: no more nodes than rollouts may have out."""
    cluster = desk.cluster
    gpus_of = {each.node: each for each in desk.installed}
    most = cluster.rules.policy.rollouts.max_out_count
    wanted: defaultdict[int, set[NodeName]] = defaultdict(set)
    for rollout in cluster.ledger.rollouts(final_since=None):
        if rollout.state not in _COMES:
            continue
        pending = {
            each.node: each.wave
            for each in cluster.ledger.rollout_nodes(rollout.rollout)
            if each.stage is NodeStage.PENDING
        }
        for wave in rollout.waves:
            if wave.planned_from is None:
                continue
            # One that should have been taken already still comes: in the first week.
            first = max(0, (wave.planned_from - begins_at) // _WEEK)
            last = max(first, ((wave.planned_until or wave.planned_from) - begins_at) // _WEEK)
            for week in range(first, min(last, weeks - 1) + 1):
                wanted[week] |= {node for node in wave.nodes if pending.get(node) == wave.number}
    found: dict[GpuType, list[float]] = {}
    for week, nodes in wanted.items():
        # Which of them are out at once is not known: the largest are taken to be.
        largest = sorted(
            (gpus_of[each] for each in nodes if each in gpus_of), key=lambda each: (-each.gpu_count, each.node)
        )
        for each in largest[:most]:
            found.setdefault(each.gpu_type, [0.0] * weeks)[week] += each.gpu_count
    return found


# -- what will be requested and what will be usable, week by week --


__all__ = ["NoHistory", "forecast_from", "forecast_quarter"]


def forecast_quarter(desk: TeamsDesk, *, as_of: date) -> CapacityForecast:
    """Return the forecast from the days before `as_of`.

    Raises NoHistory where fewer than 14 days are known, none of the last 14, or sums alone; LakeError, LedgerError;
    ValueError where the day lies ahead.
    """
    return forecast_from(desk, read_past(desk, as_of=as_of))


def forecast_from(desk: TeamsDesk, past: Past) -> CapacityForecast:
    """Return the forecast from a past that is read already. Raises LedgerError."""
    from ops_pipelines.capacity.peak_history import outlooks_of

    weeks = desk.capacity_policy.horizon_weeks
    outlooks, vouched_weeks, outlook_notes = outlooks_of(past.history, weeks=weeks, first_day=past.as_of)
    with_projects, project_notes = mix_projects(outlooks, desk.projects, as_of=past.as_of)
    inputs, input_notes = gather_supply(desk, past, weeks=weeks)
    supply, supply_notes = supply_weeks(inputs, first_day=past.as_of, weeks=weeks)
    return CapacityForecast(
        cluster=desk.cluster.name,
        quarter=quarter_of(past.as_of),
        as_of=past.as_of,
        timezone=desk.zone.key,
        outlooks=tuple(sorted(outlooks, key=lambda each: each.key)),
        with_projects=with_projects,
        supply=supply,
        projects=tuple(desk.projects),
        vouched_weeks=vouched_weeks,
        notes=tuple(
            dict.fromkeys(
                (
                    *_stated_notes(desk),
                    *_missing_words(past.completeness),
                    *past.history.notes,
                    *outlook_notes,
                    *project_notes,
                    *input_notes,
                    *supply_notes,
                )
            )
        ),
    )


def _stated_notes(desk: TeamsDesk) -> list[str]:
    notes = []
    if desk.capacity is None:
        why = (
            "the `capacity` file cannot be used" if desk.is_capacity_named else "cluster.yaml names no `capacity` file"
        )
        notes.append(f"{why}: nothing comes, nothing goes")
    if desk.projects_trouble:
        notes.append(desk.projects_trouble)
    return notes


def _missing_words(found: Completeness) -> list[str]:
    if not found.missing:
        return []
    return [
        f"{len(found.missing)} of the last {found.expected} days are not known, the first is {found.missing[0]}: "
        "materialise daily_peaks there"
    ]


# -- what follows from a forecast --


if TYPE_CHECKING:
    from ops_pipelines.capacity.peak_history import PeakHistory

_NOT_GPUS = (Resource.STORAGE_BYTES, Resource.NETWORK_RATIO, Resource.RACK_WATTS, Resource.COOLING_WATTS)


def plan_quarter(desk: TeamsDesk, forecast: CapacityForecast) -> CapacityPlan:
    """Return the plan. Raises NoHistory where the days of the forecast are no longer known, LakeError, LedgerError."""
    return plan_from(desk, forecast, read_past(desk, as_of=forecast.as_of))


def plan_from(desk: TeamsDesk, forecast: CapacityForecast, past: Past) -> CapacityPlan:
    """Return the plan from a past that is read already. Raises LakeError, LedgerError."""
    from ops_pipelines.core.periods import day_begins

    settings = desk.capacity or CapacitySettings()
    shapes = past.recorded.week_shapes()
    return make_plan(
        forecast,
        PlanInputs(
            settings=settings,
            policy=desk.capacity_policy,
            currency="" if desk.prices is None else desk.prices.currency,
            profiles={kind: shape.profile for kind, shape in shapes.items() if shape.profile is not None},
            idle_ratio=_idle(past),
            # What may wait is not recorded; what did wait is, and is taken for it.
            movable_ratio={
                kind: shape.waited_ratio for kind, shape in shapes.items() if shape.waited_ratio is not None
            },
            followed_ratio=followed_ratio(desk, before=day_begins(forecast.as_of, zone=desk.zone)),
            limits=limits_of(past.history, settings),
            refresh=judge_batches(
                gather_batches(desk, past),
                skus=settings.skus,
                prices=desk.prices,
                policy=desk.capacity_policy,
                as_of=forecast.as_of,
            ),
            room=_room(settings, forecast),
        ),
    )


def _room(settings: CapacitySettings, forecast: CapacityForecast) -> Mapping[str, Places]:
    """Return what fits of each SKU; of what nobody stated any room, nothing is reported."""
    drawn = drawn_watts(forecast.outlooks, weeks=forecast.vouched_weeks or len(forecast.supply))
    rooms = (
        find_room(sku, racks=settings.racks, drawn=drawn, room_limit_watts=settings.room_limit_watts)
        for sku in settings.skus
    )
    return {
        each.sku: Places(
            nodes=each.nodes, bound_by=each.binds.value, nodes_in_room=each.nodes_in_room, doubts=each.doubts
        )
        for each in rooms
        if each.nodes is not None
    }


def _idle(past: Past) -> Mapping[GpuType, float]:
    history = past.history.of(Resource.GPUS)
    return {} if history is None else {key.gpu_type: each for key, each in history.idle_ratio.items() if not key.name}


def limits_of(past: "PeakHistory", settings: CapacitySettings) -> Mapping[SeriesKey, float]:
    """Return the limits of further resources that are known and can be held: 0 is no limit.

    What capacity.yaml states of a rack goes before what was metered.
    All that is drawn is heat: where cooling has no limit of its own, that of the room's power holds it.
    """
    room = settings.room_limit_watts
    found: dict[SeriesKey, float] = {}
    for resource in _NOT_GPUS:
        history = past.of(resource)
        if history is None:
            continue
        found |= {key: limit for key, limit in history.limits.items() if limit > 0}
        if resource is Resource.RACK_WATTS:
            stated = {each.rack: each.limit_watts for each in settings.racks if each.limit_watts}
            found |= {key: stated[key.name] for key in history.keys if key.name in stated}
        if resource is Resource.COOLING_WATTS and room is not None:
            found |= {key: room for key in history.keys if not key.name and key not in found}
    return found
