"""What a week's look found, and what of it is said. Values."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ops_pipelines.core.periods import Week
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.domain.advice.advice import Advice, AdviceKind, Withheld
from ops_pipelines.domain.advice.following import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceReport:
    """One week's advice."""

    week: Week
    chosen: tuple[Advice, ...]
    """What is said, by team, the largest gain first."""
    withheld: tuple[Withheld, ...]
    """What was seen and is not said, with the reason."""
    unknown: tuple[str, ...]
    """What could not be looked at, in sentences."""
    currency: str | None = None
    """None: no prices are stated."""

    @property
    def found_count(self) -> int:
        return len(self.chosen) + len(self.withheld)

    @property
    def count_by_kind(self) -> Mapping[AdviceKind, int]:
        """Return how much is said of each kind; all kinds, 0 included."""
        counts = Counter(each.kind for each in self.chosen)
        return {kind: counts[kind] for kind in AdviceKind}

    @property
    def by_team(self) -> Mapping[TeamName, tuple[Advice, ...]]:
        """Return what is said to each team that has a name."""
        teams = sorted({each.team for each in self.chosen if each.team})
        return {team: tuple(each for each in self.chosen if each.team == team) for team in teams}


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedUp:
    """What became of one piece of advice that was told."""

    team: TeamName
    kind: AdviceKind
    subject: str
    measure_before: float
    outcome: Outcome
