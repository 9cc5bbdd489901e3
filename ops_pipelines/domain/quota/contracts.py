"""What was agreed with all teams of a cluster, and from which day until which: contracts, parents, projects, budgets.

Values that refuse what could not be true: two contracts for one day, a parent that there is not. Whether a cluster can
keep what was agreed is `quota_lint`'s. Reading the file is `resources.config.teams_file`'s.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime

from ops_pipelines.core.proposal import GpuType, TeamName, Terms
from ops_pipelines.domain.quota.hierarchy import Children, Parents, children_of, parent_faults
from ops_pipelines.domain.quota.project import Project


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What was agreed with one team for one type of GPU, for some days."""

    terms: Terms
    """Without a parent: what a team belongs to does not change with its contracts."""
    valid_from: date
    """The first day, in the time zone of the cluster."""
    valid_until: date | None = None
    """The first day on which it no longer holds; None: no end was agreed."""
    gpu_type: GpuType = GpuType("")

    def __post_init__(self) -> None:
        if self.terms.parent is not None:
            raise ValueError(f"{self.words} names the parent {self.terms.parent}; the parent belongs to the team")
        if isinstance(self.valid_from, datetime) or isinstance(self.valid_until, datetime):
            raise ValueError(f"{self.words} has a time of day; expected days")
        if self.valid_until is not None and self.valid_until <= self.valid_from:
            raise ValueError(f"{self.words} holds on no day; expected `until` later than `from`")

    @property
    def team(self) -> TeamName:
        return self.terms.team

    @property
    def words(self) -> str:
        """What it is called in messages: whose, for what, and when."""
        kind = f" for {self.gpu_type}" if self.gpu_type else ""
        until = "on" if self.valid_until is None else f"until {self.valid_until}"
        return f"the contract of {self.team}{kind} from {self.valid_from} {until}"

    def holds_on(self, day: date) -> bool:
        return self.valid_from <= day and (self.valid_until is None or day < self.valid_until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreements:
    """All that was agreed with the teams of one cluster."""

    parents: Parents
    contracts: tuple[Contract, ...] = ()
    projects: tuple[Project, ...] = ()
    monthly_budget_cents: Mapping[TeamName, int] = field(default_factory=dict)
    """What a team may spend in a month; who is not named has no budget."""
    timezone: str = "UTC"
    """A name of the IANA list: where days and months begin."""
    children: Children = field(init=False, repr=False, compare=False)
    _held: Mapping[tuple[TeamName, GpuType], tuple[tuple[Contract, Terms], ...]] = field(
        init=False, repr=False, compare=False
    )
    """Contracts in their order, each with its terms as an allocation takes them: with the parent."""
    _gaps: Mapping[TeamName, Terms] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise ValueError("; ".join(faults))
        held: dict[tuple[TeamName, GpuType], list[tuple[Contract, Terms]]] = defaultdict(list)
        for contract in sorted(self.contracts, key=lambda each: each.valid_from):
            terms = replace(contract.terms, parent=self.parents[contract.team])
            held[contract.team, contract.gpu_type].append((contract, terms))
        gaps = {team: Terms(team=team, guarantee=0.0, parent=self.parents[team]) for team in sorted(self.parents)}
        object.__setattr__(self, "children", children_of(self.parents))
        object.__setattr__(self, "_held", {key: tuple(each) for key, each in held.items()})
        object.__setattr__(self, "_gaps", gaps)

    @property
    def gpu_types(self) -> frozenset[GpuType]:
        """The types that contracts or projects name."""
        named: tuple[Contract | Project, ...] = (*self.contracts, *self.projects)
        return frozenset(each.gpu_type for each in named)

    @property
    def organisations(self) -> frozenset[TeamName]:
        """Who has teams of its own: it asks for what these ask for, and for nothing itself."""
        return frozenset(team for team in self.children if team is not None)

    @property
    def askers(self) -> frozenset[TeamName]:
        """Who may ask for GPUs: every declared team but the organisations."""
        return frozenset(self.parents) - self.organisations

    def contract_on(self, day: date, *, team: TeamName, gpu_type: GpuType) -> Contract | None:
        """Return the contract in force; None where there is none."""
        return next((each for each, _ in self._held.get((team, gpu_type), ()) if each.holds_on(day)), None)

    def terms_on(self, day: date, gpu_type: GpuType) -> tuple[Terms, ...]:
        """Return the terms of every declared team, by name; without a contract: guarantee 0, and a weight of 1."""
        return tuple(self._terms_of(team, gpu_type, day) for team in self._gaps)

    def _terms_of(self, team: TeamName, gpu_type: GpuType, day: date) -> Terms:
        held = self._held.get((team, gpu_type), ())
        return next((terms for contract, terms in held if contract.holds_on(day)), self._gaps[team])

    def _faults(self) -> Iterator[str]:
        yield from parent_faults(self.parents).values()
        for earlier, later in overlaps(self.contracts):
            yield overlap_fault(earlier, later)
        named: tuple[Contract | Project, ...] = (*self.contracts, *self.projects)
        for each in named:
            if each.team not in self.parents:
                yield f"{each.words} is of no declared team; declare {each.team}, or correct the name"
        for project in repeated_projects(self.projects):
            yield f"{project.words} stands there twice; give each a name of its own"
        for team, cents in self.monthly_budget_cents.items():
            if team not in self.parents:
                yield f"the budget of {team} is of no declared team; declare it, or correct the name"
            if cents < 0:
                yield f"the budget of {team} is {cents} cents a month; expected 0 or more"


def overlaps(contracts: Iterable[Contract]) -> tuple[tuple[Contract, Contract], ...]:
    """Return the contracts that begin while another of the same team and type still holds, each after that other."""
    found: list[tuple[Contract, Contract]] = []
    lasting: Contract | None = None
    for contract in sorted(contracts, key=_place):
        if lasting is None or (contract.team, contract.gpu_type) != (lasting.team, lasting.gpu_type):
            lasting = contract
            continue
        if lasting.holds_on(contract.valid_from):
            found.append((lasting, contract))
        if _end(contract) > _end(lasting):
            lasting = contract
    return tuple(found)


def overlap_fault(earlier: Contract, later: Contract) -> str:
    """Return what to say of two contracts that overlap, and what to do."""
    if earlier.valid_from == later.valid_from:
        return f"{later.words} begins with {earlier.words}; expected one for a day: keep one of them"
    return (
        f"{later.words} begins while {earlier.words} holds; expected one for a day: end the earlier on "
        f"{later.valid_from}, or begin the later when it ends"
    )


def repeated_projects(projects: Iterable[Project]) -> tuple[Project, ...]:
    """Return the projects whose team has one of the same name before them."""
    known: set[tuple[TeamName, str]] = set()
    repeated = []
    for each in projects:
        if (each.team, each.name) in known:
            repeated.append(each)
        known.add((each.team, each.name))
    return tuple(repeated)


def carry_undeclared(terms: Sequence[Terms], *, demanded: Collection[TeamName]) -> tuple[Terms, ...]:
    """Return the terms, and such for each team in demand that has none: no guarantee, no weight, served last."""
    known = {each.team for each in terms}
    last = min((each.priority for each in terms), default=0)
    strangers = sorted(set(demanded) - known)
    return (*terms, *(Terms(team=team, guarantee=0.0, weight=0.0, priority=last) for team in strangers))


def _place(contract: Contract) -> tuple[TeamName, GpuType, date, date, str]:
    return contract.team, contract.gpu_type, contract.valid_from, _end(contract), repr(contract.terms)


def _end(contract: Contract) -> date:
    return date.max if contract.valid_until is None else contract.valid_until
