"""Which of all advice is said: few, the largest gain first, one about a job, and not again while it is fresh.

Quiet on purpose: what is not chosen is kept with its reason, and may be chosen another week.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.domain.advice.advice import Advice, AdviceKind, Withheld, withhold
from ops_pipelines.teams.settings import AdviceSettings

_WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Advice that was given before."""

    kind: AdviceKind
    team: TeamName
    subject: str
    week_end: datetime
    measure: float

    @property
    def key(self) -> tuple[TeamName, AdviceKind, str]:
        return self.team, self.kind, self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is said, and what is not."""

    chosen: tuple[Advice, ...]
    """By team, the largest gain first."""
    withheld: tuple[Withheld, ...]


def choose(advices: Iterable[Advice], settings: AdviceSettings, *, said: Sequence[Said], week_end: datetime) -> Choice:
    """Return at most `per_team_count` for each team, never two about one subject, none that was said lately."""
    newest = _newest(said, before=week_end, since=week_end - settings.quiet_weeks * _WEEK)
    chosen: list[Advice] = []
    withheld: list[Withheld] = []
    count: Counter[TeamName] = Counter()
    subjects: set[tuple[TeamName, str]] = set()
    for advice in sorted(advices, key=_rank):
        before = newest.get(advice.key)
        if before is not None and advice.measure <= before.measure * settings.worse_ratio:
            withheld.append(withhold(advice, f"it was said in the week that ended on {before.week_end:%Y-%m-%d}"))
        elif (advice.team, advice.subject) in subjects:
            withheld.append(withhold(advice, "something that gains more is said of the same jobs"))
        elif count[advice.team] >= settings.per_team_count:
            withheld.append(withhold(advice, f"{settings.per_team_count} that gain more are said to the team"))
        else:
            chosen.append(advice)
            count[advice.team] += 1
            subjects.add((advice.team, advice.subject))
    return Choice(chosen=tuple(sorted(chosen, key=lambda each: (each.team, _rank(each)))), withheld=tuple(withheld))


def _newest(said: Sequence[Said], *, before: datetime, since: datetime) -> dict[tuple[TeamName, AdviceKind, str], Said]:
    """Return what was said of each lately; a week that is looked at again is not its own past."""
    within = [each for each in said if since <= each.week_end < before]
    return {each.key: each for each in sorted(within, key=lambda each: each.week_end)}


def _rank(advice: Advice) -> tuple[float, float, float, TeamName, str, str]:
    """Money first where it is known of both, which prices decide for all at once; else hours, then bytes."""
    gain = advice.gain
    return (
        -float(advice.gain_cents or 0),
        -gain.expected_gpu_hours,
        -float(gain.size_bytes),
        advice.team,
        advice.subject,
        advice.kind.value,
    )
