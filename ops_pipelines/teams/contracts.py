"""What was agreed with all teams of a cluster, from when until when; who belongs to whom; what cannot be kept.

The rules are `quotas.lint`'s. A remark says what was found, what was expected and what to do.

Names only. What was agreed with each is `contracts`, what it gets `allocation`.

Values that refuse what could not be true: two contracts for one day, a parent that there is not. Whether a cluster can
keep what was agreed is `quotas.lint`'s. Reading the file is `resources.config.teams_file`'s.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from enum import Enum

from ops_pipelines.core.proposal import GpuType, TeamName, Terms
from ops_pipelines.teams.projects import Project

# -- what is reported of agreements that a cluster cannot keep, or that somebody should have meant --


_NAMED = 3
"""So many are named; of the rest their number is reported."""


class RemarkKind(Enum):
    """What a remark is about."""

    BEYOND_INSTALLED = "beyond_installed"
    """More is guaranteed than there is, with every GPU healthy."""
    BEYOND_HEALTHY = "beyond_healthy"
    """More is guaranteed than is healthy now."""
    BEYOND_PARENT = "beyond_parent"
    """The teams of an organisation are guaranteed more than it may ever have."""
    BEYOND_AGREED = "beyond_agreed"
    """They are guaranteed more than was agreed with the organisation, and not more than it may have."""
    NO_WEIGHT = "no_weight"
    """Nobody of those who may borrow has a weight: what is left lies idle while they queue."""
    UNKNOWN_GPU_TYPE = "unknown_gpu_type"
    """A contract is for GPUs that the cluster does not have."""
    ENDS_SOON = "ends_soon"
    """A guarantee runs out, and nothing follows."""
    PROJECT_OF_ORGANISATION = "project_of_organisation"
    """A project is written down for an organisation, and not for one of its teams."""
    PROJECT_WITHOUT_GPUS = "project_without_gpus"
    """A project wants GPUs that neither the cluster nor a contract has."""
    PROJECT_BEYOND_TERMS = "project_beyond_terms"
    """A project wants more than its team may ever have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One thing that was found."""

    kind: RemarkKind
    text: str
    team: TeamName | None = None
    """Whose it is; None: it is about all."""
    gpu_type: GpuType | None = None
    """None: it is about every type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """What was found, apart: errors are what quotas must not be made from; warnings are only stated."""

    errors: tuple[Remark, ...] = ()
    warnings: tuple[Remark, ...] = ()


def joined(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{rest}"


def type_prefix(gpu_type: GpuType) -> str:
    """Return what a sentence opens with that is about one type of GPU; nothing where none is reported."""
    return f"{gpu_type}: " if gpu_type else ""


# -- who belongs to whom --


Parents = Mapping[TeamName, TeamName | None]
"""Every declared team, and what it belongs to; None: to the cluster itself."""
Children = Mapping[TeamName | None, tuple[TeamName, ...]]
"""Who has teams of its own, and these in the order of their names; under None, the teams of the cluster itself."""


def children_of(parents: Parents) -> Children:
    """Return who is below whom."""
    children: dict[TeamName | None, list[TeamName]] = defaultdict(list)
    for team in sorted(parents):
        children[parents[team]].append(team)
    return {parent: tuple(below) for parent, below in children.items()}


def from_the_top(children: Children) -> tuple[TeamName, ...]:
    """Return all that belong to the cluster in the end, each after its parent; who is in a circle does not."""
    ordered = list(children.get(None, ()))
    for team in ordered:
        ordered.extend(children.get(team, ()))
    return tuple(ordered)


def parent_faults(parents: Parents) -> Mapping[TeamName, str]:
    """Return what is wrong with the parent of a team, and what to do; a circle once, of its first by name."""
    faults = {
        team: f"{team} belongs to {parent}, which is not declared; declare it as a team, or leave the parent out"
        for team, parent in parents.items()
        if parent is not None and parent not in parents
    }
    for circle in _circles(parents):
        first, *others = circle
        way = f" by way of {', '.join(others)}" if others else ""
        faults[first] = f"{first} belongs to itself{way}; leave the parent of one of them out"
    return faults


def _circles(parents: Parents) -> list[list[TeamName]]:
    """Return each circle, from its first by name on, upwards."""
    circles: list[list[TeamName]] = []
    settled: set[TeamName] = set()
    for team in sorted(parents):
        path: dict[TeamName, int] = {}
        at: TeamName | None = team
        while at is not None and at in parents and at not in settled and at not in path:
            path[at] = len(path)
            at = parents[at]
        if at is not None and at in path:
            ring = list(path)[path[at] :]
            first = ring.index(min(ring))
            circles.append(ring[first:] + ring[:first])
        settled.update(path)
    return circles


# -- what was agreed with all teams of a cluster --


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
            yield f"{project.words} is there twice; give each a name of its own"
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
