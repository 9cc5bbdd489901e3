"""Who turned too often of late: quotas that go up and down by turns. Pure.

A quota turns when it goes up after it went down, or the other way round; what is no more than the dead band is no
change. In `looked_at_days` it may turn twice; then it holds its direction, or stands still.
"""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from itertools import pairwise

from ops_pipelines.core.proposal import GpuType, QuotaProposal, TeamName
from ops_pipelines.teams.settings import RebalanceSettings

_MOST_TURNS = 2


def direction_of(before: float, after: float, *, unit: float, settings: RebalanceSettings) -> int:
    """Return 1 where a quota rises, -1 where it falls, 0 within the dead band: a unit, or the least gain's share."""
    band = max(unit, settings.least_gain_ratio * before) + 1e-9
    return (after - before > band) - (before - after > band)


def last_direction(directions: Sequence[int]) -> int:
    """Return the newest direction that is none of 0; 0 where there is none."""
    return next((each for each in reversed(directions) if each), 0)


def turn_count(directions: Sequence[int]) -> int:
    """Return how often it turned; days without a change are passed over."""
    return sum(one != two for one, two in pairwise([each for each in directions if each]))


def quotas_lately(
    day: date,
    earlier: Sequence[QuotaProposal],
    *,
    gpu_type: GpuType,
    now: Mapping[TeamName, float],
    settings: RebalanceSettings,
) -> tuple[Mapping[TeamName, float], ...]:
    """Return the quotas before the change of each of the last days, the newest last; `now` is what holds today.

    `earlier`: what was applied, at most one proposal a day. A day without one changed nothing: most days set nothing.
    """
    by_day = {each.day: each for each in earlier}
    held = dict(now)
    found: list[Mapping[TeamName, float]] = []
    for back in range(1, settings.looked_at_days + 1):
        applied = by_day.get(day - timedelta(days=back))
        lines = () if applied is None else applied.lines
        held |= {line.team: line.before for line in lines if line.gpu_type == gpu_type and line.team in held}
        found.append(dict(held))
    return tuple(reversed(found))


def held_direction(
    team: TeamName, quotas: Sequence[Mapping[TeamName, float]], *, unit: float, settings: RebalanceSettings
) -> int:
    """Return the one direction in which a team may still go; 0: it may go either way.

    `quotas` are those before each of the last days (`quotas_lately`), and last of all what holds now.
    """
    known = [each[team] for each in quotas if team in each]
    directions = [direction_of(before, after, unit=unit, settings=settings) for before, after in pairwise(known)][
        -settings.looked_at_days :
    ]
    return last_direction(directions) if turn_count(directions) >= _MOST_TURNS else 0
