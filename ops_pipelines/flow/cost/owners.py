"""Who pays for a job: the account that ran it, and the project where the account is one's name.

An account that was agreed on pays for itself. One that has the name of a project of a team is that team's, with the
project. Every other account is a team of its own, and named.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.domain.cost.usage import NO_TEAM, Owner
from ops_pipelines.teams.contracts import Agreements


@dataclass(slots=True, kw_only=True)
class OwnerReader:
    """Reads who pays from a row of job_allocations, and remembers the accounts that no agreement names."""

    agreements: Agreements | None
    strangers: set[str] = field(default_factory=set)
    _project_of: Mapping[str, Owner] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        projects = () if self.agreements is None else self.agreements.projects
        teams: dict[str, set[TeamName]] = {}
        for each in projects:
            teams.setdefault(each.name, set()).add(each.team)
        # A name that two teams use tells nothing.
        self._project_of = {name: Owner(team=min(of), project=name) for name, of in teams.items() if len(of) == 1}

    def __call__(self, row: Mapping[str, object]) -> Owner:
        return self.owner_of(row.get("account"))

    def owner_of(self, account: object) -> Owner:
        """Return who pays for jobs of this account; without one, `NO_TEAM`."""
        if not account or account == NO_TEAM:
            return Owner(team=NO_TEAM)
        name = str(account)
        if self.agreements is None or name in self.agreements.parents:
            return Owner(team=TeamName(name))
        if name in self._project_of:
            return self._project_of[name]
        self.strangers.add(name)
        return Owner(team=TeamName(name))
