"""Hours of `gpu_demand` -> what teams wanted in a local day, by type of GPU, and all teams together.

In an hour that was computed a team without a row wanted nothing; an hour of which no team has a row is not known.
"""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

import pyarrow as pa

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.costs.usage import NO_TEAM
from ops_pipelines.domain.capacity.resources import Resource
from ops_pipelines.frames.peaks.day_book import DayBook

COLUMNS = (*("team", "gpu_type", "time", "gpus_running_avg", "gpus_pending_avg", "gpus_demand_avg", "gpus_wasted_avg"),)
AT_CAP_RATIO = 0.98
"""Who ran so much of its hard cap in an hour stood at it: jobs come and go within the hour."""
ALL_TEAMS = ""
_NUMBERS = ("gpus_demand_avg", "gpus_running_avg", "gpus_wasted_avg", "gpus_pending_avg")
Caps = Mapping[tuple[TeamName, GpuType], float]
"""What a team never gets more of, by contract; who is not named has no cap."""


def put_gpus(book: DayBook, hourly: pa.Table, *, caps: Caps) -> None:
    """Put the hours of a day into its book."""
    hours: dict[tuple[TeamName, GpuType], dict[int, tuple[float, ...]]] = defaultdict(dict)
    known: set[int] = set()
    for team, kind, at, *numbers in _rows(hourly):
        place = book.place_of(at)
        if place is None:
            continue
        known.add(place)
        # Jobs without an account are somebody's; the name of nobody is that of all teams together.
        hours[TeamName(team) or NO_TEAM, GpuType(kind)][place] = tuple(numbers)
    if not known:
        book.notes.append("gpus: no hour of gpu_demand is known; materialise it there")
        return
    missing = len(book.hours) - len(known)
    if missing:
        book.notes.append(f"gpus: {missing} of {len(book.hours)} hours of gpu_demand are not known")
    nothing = (0.0,) * len(_NUMBERS)
    sums: dict[GpuType, dict[int, list[float]]] = {}
    at_cap: dict[GpuType, set[int]] = defaultdict(set)
    for team, kind in sorted(hours):
        own = {place: hours[team, kind].get(place, nothing) for place in sorted(known)}
        cap = caps.get((team, kind))
        stood = set() if cap is None else {place for place, each in own.items() if _is_at(cap, ran=each[1])}
        _put(book, team, kind, own, censored=len(stood))
        if cap is not None:
            book.limit(Resource.GPUS, {team: cap}, gpu_type=kind)
        at_cap[kind] |= stood
        of_type = sums.setdefault(kind, {place: [0.0] * len(_NUMBERS) for place in sorted(known)})
        for place, added in own.items():
            of_type[place] = [one + other for one, other in zip(of_type[place], added, strict=True)]
    for kind, summed in sums.items():
        _put(book, ALL_TEAMS, kind, {place: tuple(each) for place, each in summed.items()}, censored=len(at_cap[kind]))


def _rows(hourly: pa.Table) -> list[tuple[str, str, datetime, float, float, float, float]]:
    columns = [hourly[name].to_pylist() for name in ("team", "gpu_type", "time")]
    numbers = [[0.0 if each is None else each for each in hourly[name].to_pylist()] for name in _NUMBERS]
    return list(zip(*columns, *numbers, strict=True))


def _put(book: DayBook, name: str, kind: GpuType, own: Mapping[int, tuple[float, ...]], *, censored: int) -> None:
    for place, (wanted, _, _, _) in own.items():
        book.put(Resource.GPUS, {name: wanted}, hour=place, gpu_type=kind)
    ran, idle, waited = (sum(each[number] for each in own.values()) / len(own) for number in (1, 2, 3))
    book.add_cells(
        Resource.GPUS,
        name,
        {"running_mean": ran, "idle_mean": idle, "waiting_mean": waited, "censored_hours": censored},
        gpu_type=kind,
    )


def _is_at(cap: float, *, ran: float) -> bool:
    return ran >= AT_CAP_RATIO * cap
