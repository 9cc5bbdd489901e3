"""Planned projects on top of what the past expects: the fan. A distribution of each week's peak, not one number.

Projects come about independently of each other and of the past's peaks; how sums are kept is `spread`'s. The mixture is
exact at `LEVELS`: what is less likely than the outermost level is not seen there. A project that had begun by `as_of`
is in the past with what it had ramped up to; only the rest is added, and after its end that part is taken off.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date, timedelta

from ops_pipelines.capacity.chances import Point, Tail, sum_of_chances
from ops_pipelines.capacity.model import LEVELS, Resource, SeriesKey, SeriesOutlook, WeekPeak
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.teams.projects import PlannedProject

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
