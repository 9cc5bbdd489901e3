"""What a proposal says beside its lines: who was carried, what was left out, what is not known. Pure.

Names of teams in it are others' words: whoever shows them escapes them.
"""

from collections.abc import Iterator

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.flow.quota.known_past import days_of, known_hours, of_type
from ops_pipelines.flow.quota.morning import Morning

_NAMED = 5


def notes_on_teams(morning: Morning, kind: GpuType, demanded: frozenset[TeamName]) -> Iterator[str]:
    agreed = morning.agreements
    for team in sorted(demanded - frozenset(agreed.parents)):
        yield (
            f"{team} is in demand{of_type(kind)} and nobody declared it: what others leave is its share, and no limit "
            "is set for it; declare it in teams.yaml"
        )
    for team in sorted(demanded & agreed.organisations):
        yield f"jobs are charged to {team} itself, which has teams of its own: what they want is left out"
    if any(any(day.hours.get(TeamName(""), ())) for day in days_of(morning.past[kind])):
        yield f"jobs without an account run or wait{of_type(kind)}: they are left out"
    if morning.in_force is not None:
        missing = sorted(agreed.askers - morning.in_force.accounts.keys())
        if missing:
            yield f"the scheduler has no account {', '.join(missing[:_NAMED])}: no limit can be set there; add it"
        for rejected in morning.in_force.rejected[:_NAMED]:
            yield f"a limit could not be believed: {rejected.reason}"


def notes_on_hours(morning: Morning) -> Iterator[str]:
    for kind, known in sorted(morning.past.items()):
        _, missing = known_hours(known, as_of=morning.as_of)
        if missing:
            first = f"{missing[0]:%Y-%m-%d %H:%M} UTC"
            yield f"{len(missing)} hours of demand{of_type(kind)} are missing, the first of {first}"
        days = days_of(known)
        wanted = morning.policy.rebalance.window_days
        if days and (morning.day - days[0].day).days < wanted:
            yield f"demand{of_type(kind)} is known since {days[0].day} only, and {wanted} days are looked at"
    if morning.untold is not None:
        days = (*morning.untold.days, *([] if morning.untold.today is None else [morning.untold.today]))
        hours = sum(sum(amounts) for day in days for amounts in day.hours.values())
        if hours >= 1:
            yield f"{hours:.0f} GPU-hours were wanted of which nobody can tell the type: they are left out"
