"""Quotas: what the daily rebalancing gains on recorded demand, with settings chosen on other teams, and how fast it is.

Demand is Helios Earth's, eight virtual clusters in May 2020 (`../shared/data`); without it only speed is measured. For
each way to halve the teams, settings are chosen on one half and scored on the other, beside the defaults: a rule that
fits eight teams and no others would show here. Speed is beside scipy's linear program (HiGHS), which finds the
first level of the same allocation and no more.
"""

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from random import Random

from rich.console import Console
from scipy.optimize import linprog
from scipy.sparse import coo_array

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.quotas.allocation import allocate
from ops_pipelines.quotas.demand import DemandDay, fair_demand, remember
from ops_pipelines.quotas.rebalance import rebalance, wished_quotas
from ops_pipelines.quotas.recorded import RecordedDemand, read_recorded
from ops_pipelines.quotas.replay import Replay, replay
from ops_pipelines.quotas.today import Today
from ops_pipelines.teams.desk import RebalanceSettings

HELIOS = Path(__file__).parents[2] / "shared" / "data" / "helios_earth" / "hourly_gpu_by_team.parquet"
DEFAULTS = RebalanceSettings()
CHOICE = tuple(
    replace(DEFAULTS, half_life_hours=half_life, spread_ratio=spread, least_gain_ratio=least)
    for half_life in (6.0, 9.0, 12.0, 18.0, 24.0)
    for spread in (0.0, 0.15)
    for least in (0.05, 0.1)
)
_MOST_CHURN = 0.05
_LEAST_GAIN = 0.60
_STAKES = 5_000.0
"""GPU-hours that the static quotas leave unserved: halves with less have hardly anything to gain."""


def _say(words: str) -> None:
    Console(highlight=False).print(words, markup=False, soft_wrap=True)


def main() -> int:
    kept = [_speed()]
    if HELIOS.is_file():
        recorded = read_recorded(HELIOS, timezone="Asia/Shanghai")
        kept += [_gain(recorded)]
        _halves(recorded)
    else:
        _say(f"no gain is measured: {HELIOS.name} of the public trace is not here")
    return 0 if all(kept) else 1


def _gain(recorded: RecordedDemand) -> bool:
    found = _replayed(recorded, DEFAULTS, list(recorded.capacity))
    ours = found.policies["rebalanced"]
    _say(
        f"\ngain on all teams: {found.gain_ratio:.3f} (promised {_LEAST_GAIN}); guarantee broken by "
        f"{ours.guarantee_violation_gpu_hours:.1f} GPU-hours; moved {ours.churn_ratio_per_day:.3f} of capacity a day, "
        f"{ours.churn_ratio_max:.3f} at most"
    )
    return (
        found.gain_ratio is not None
        and found.gain_ratio >= _LEAST_GAIN
        and not ours.guarantee_violation_gpu_hours
        and ours.churn_ratio_per_day <= _MOST_CHURN
        and ours.churn_ratio_max <= DEFAULTS.step_cap_ratio + 1e-9
    )


def _halves(recorded: RecordedDemand) -> None:
    """Print what settings chosen on one half gain on the other, and what the defaults gain there."""
    teams = sorted(recorded.capacity)
    chosen: list[float] = []
    defaults: list[float] = []
    for half in itertools.combinations(teams, len(teams) // 2):
        other = [team for team in teams if team not in half]
        scored = _replayed(recorded, DEFAULTS, other)
        if scored.policies["static"].unserved_gpu_hours < _STAKES or scored.gain_ratio is None:
            continue
        best = max(CHOICE, key=lambda settings: _worth(_replayed(recorded, settings, list(half))))
        found = _replayed(recorded, best, other).gain_ratio
        chosen.append(found if found is not None else 0.0)
        defaults.append(scored.gain_ratio)
    _say(f"\nsettings chosen on one half of the teams, scored on the other ({len(chosen)} halves):")
    _say(f"| | median gain | lowest | highest | below {_LEAST_GAIN} |")
    _say("| --- | --- | --- | --- | --- |")
    for name, gains in (("chosen on the other half", chosen), ("the defaults", defaults)):
        below = sum(gain < _LEAST_GAIN for gain in gains)
        _say(f"| {name} | {statistics.median(gains):.3f} | {min(gains):.3f} | {max(gains):.3f} | {below} |")


def _worth(found: Replay) -> float:
    is_calm = found.policies["rebalanced"].churn_ratio_per_day <= _MOST_CHURN
    return found.gain_ratio if is_calm and found.gain_ratio is not None else -1.0


def _replayed(recorded: RecordedDemand, settings: RebalanceSettings, teams: Sequence[TeamName]) -> Replay:
    days = [
        DemandDay(day=day.day, hours={team: day.hours[team] for team in teams}, ran_last={}) for day in recorded.days
    ]
    capacity = {team: recorded.capacity[team] for team in teams}
    terms = [Terms(team=team, guarantee=gpus / 2) for team, gpus in capacity.items()]
    return replay(days, terms=terms, capacity=capacity, settings=settings)


# --- speed --------------------------------------------------------------------------------------------------------


def _speed() -> bool:
    _say("| what | CPU seconds | promised | the same by HiGHS, one level | ratio |")
    _say("| --- | --- | --- | --- | --- |")
    return all(
        [
            _timed(
                "allocation, 200 teams x 8 types",
                _allocations(200, types=8),
                promised=1.0,
                peer=_programs(200, types=8),
            ),
            _timed(
                "allocation, 5,000 teams", _allocations(5_000, types=1), promised=20.0, peer=_programs(5_000, types=1)
            ),
            _timed("quotas of a day, 200 teams x 8 types", _days_quotas(200, types=8), promised=1.0),
            _timed("quotas of a day, 5,000 teams", _days_quotas(5_000, types=1), promised=20.0),
            _timed("replay of a year, 200 teams", _year(200), promised=60.0),
        ]
    )


def _timed(what: str, work: Callable[[], object], *, promised: float, peer: Callable[[], object] | None = None) -> bool:
    seconds = _seconds(work)
    theirs = None if peer is None else _seconds(peer)
    beside = "| | |" if theirs is None else f"| {theirs:.2f} | {theirs / seconds:.1f}x |"
    _say(f"| {what} | {seconds:.2f} | {promised:g} {beside}")
    return seconds <= promised


def _seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()  # Machines are shared: what others take is no time of ours.
    work()
    return time.process_time() - begun


def _teams(count: int, *, seed: int = 1) -> tuple[list[Terms], Mapping[TeamName, float], float]:
    random = Random(seed)
    terms = [
        Terms(
            team=TeamName(f"t{number}"), guarantee=float(random.randint(0, 16)), weight=random.choice((0.5, 1.0, 2.0))
        )
        for number in range(count)
    ]
    return terms, {each.team: float(random.randint(0, 64)) for each in terms}, 24.0 * count


def _allocations(count: int, *, types: int) -> Callable[[], object]:
    terms, asked, supply = _teams(count)
    return lambda: [allocate(terms, asked=asked, supply=supply) for _ in range(types)]


def _programs(count: int, *, types: int) -> Callable[[], object]:
    terms, asked, supply = _teams(count)
    needs = [max(0.0, asked[each.team] - each.guarantee) for each in terms]

    def solve() -> None:
        rows = [*range(count), *range(count), *([count] * count)]
        columns = [*range(count), *([count] * count), *range(count)]
        values = [
            *([-1.0] * count),
            *(min(each.weight, need) for each, need in zip(terms, needs, strict=True)),
            *([1.0] * count),
        ]
        matrix = coo_array((values, (rows, columns)), shape=(count + 1, count + 1))
        bounds = [*((0.0, need) for need in needs), (0.0, None)]
        for _ in range(types):
            linprog([0.0] * count + [-1.0], A_ub=matrix, b_ub=[0.0] * count + [supply], bounds=bounds, method="highs")

    return solve


def _year_of_demand(terms: Sequence[Terms], *, days: int) -> Iterator[DemandDay]:
    random = Random(2)
    level = {each.team: 2.0 * each.guarantee for each in terms}
    for number in range(days):
        hours: dict[TeamName, list[float]] = {}
        for each in terms:
            level[each.team] = max(0.0, level[each.team] + random.uniform(-4, 4))
            hours[each.team] = [max(0.0, level[each.team] + random.uniform(-3, 3)) for _ in range(24)]
        yield DemandDay(day=date(2026, 1, 1) + timedelta(days=number), hours=hours, ran_last={})


def _days_quotas(count: int, *, types: int) -> Callable[[], object]:
    terms, _, supply = _teams(count)
    days = list(_year_of_demand(terms, days=DEFAULTS.window_days))
    quotas = {each.team: supply / count for each in terms}
    teams = [each.team for each in terms]
    # Of the days before the last the fair demand is kept.
    known = [fair_demand(day, terms=terms, supply=supply) for day in days[:-1]]

    def one_type() -> None:
        remembered = [*known, fair_demand(days[-1], terms=terms, supply=supply)]
        chances = remember(remembered, teams=teams, settings=DEFAULTS)
        wished = [wished_quotas(terms, chances, supply=supply)] * DEFAULTS.looked_at_days
        rebalance(
            Today(terms=terms, quotas=quotas, chances=chances, too_large=wished, supply=supply), settings=DEFAULTS
        )

    def all_types() -> None:
        for _ in range(types):
            one_type()

    return all_types


def _year(count: int) -> Callable[[], object]:
    terms, _, supply = _teams(count)
    days = list(_year_of_demand(terms, days=365))
    capacity = {each.team: supply / count for each in terms}
    return lambda: replay(days, terms=terms, capacity=capacity, settings=DEFAULTS)


if __name__ == "__main__":
    sys.exit(main())
