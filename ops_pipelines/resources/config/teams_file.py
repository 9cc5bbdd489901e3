"""Reads teams.yaml and projects.yaml: what was agreed with teams, and planned demand, as domain values, or every fault
of the file with its line and remedy.

Teams, contracts and projects are read one by one, so that a slip in one hides nothing in another. Whether the cluster
can keep what was agreed depends on the day and on its GPUs: `quotas.lint`. teams.yaml has projects too, for quotas;
they are planned demand as well (`all_projects`), and none may be in both.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from ops_pipelines.core.proposal import GpuType, TeamName, Terms
from ops_pipelines.resources.config.binding import (
    Fault,
    FaultsFound,
    KeyPath,
    Made,
    Section,
    keys_of,
    list_of,
    needed,
    section_of,
)
from ops_pipelines.resources.config.yaml_file import (
    LONGEST_ACCOUNT,
    MOST_GPUS,
    Account,
    ConfigError,
    Day,
    Gpus,
    GpuTypeName,
    Line,
    MoneyNumber,
    PlannedDay,
    Probability,
    Weight,
    YamlFile,
    ZoneName,
)
from ops_pipelines.teams.contracts import (
    Agreements,
    Contract,
    overlap_fault,
    overlaps,
    parent_faults,
    repeated_projects,
)
from ops_pipelines.teams.projects import PlannedProject, Project

_ANY = GpuType("")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Top:
    timezone: str = "UTC"
    teams: list[object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Team:
    """One entry; its contracts and projects are read one by one."""

    team: TeamName
    parent: TeamName | None = None
    contracts: list[object] = field(default_factory=list)
    projects: list[object] = field(default_factory=list)
    budget: int | None = None
    """Cents a month."""


def _budget(*, monthly: float) -> int:
    """Return it in cents."""
    return round(monthly * 100)


def _contract(
    *, team: TeamName, valid_from: date, valid_until: date | None = None, gpu_type: GpuType = _ANY, **stated: float
) -> Contract:
    """Return one contract; where its terms are wrong its days are checked all the same."""
    faults: list[Fault] = []
    terms = Terms(team=team, guarantee=0.0)
    try:
        terms = Terms(team=team, **stated)  # type: ignore[arg-type]  # each was read as its field
    except ValueError as problem:
        faults.append(((), str(problem)))
    try:
        contract = Contract(terms=terms, valid_from=valid_from, valid_until=valid_until, gpu_type=gpu_type)
    except ValueError as problem:
        faults.append((("until",), str(problem)))
    if faults:
        raise FaultsFound(*faults)
    return contract


_LIMIT = Annotated[Gpus | None, AfterValidator(lambda gpus: math.inf if gpus is None else gpus)]
"""null: not limited."""
_TYPES: Mapping[object, object] = {date: Day, GpuType: GpuTypeName, TeamName: Account}
TEAMS = section_of(_Top, shapes={"timezone": ZoneName, "teams": list_of(object, least=1)})
BUDGET = Section(lambda monthly: round(monthly * 100), needed(monthly=MoneyNumber))
TEAM = section_of(_Team, shapes={"budget": BUDGET}, by_type=_TYPES)
CONTRACT = Section(
    _contract,
    keys_of(
        Contract,
        names={"valid_from": "from", "valid_until": "until"},
        by_type=_TYPES,
        without=("terms",),
    )
    | keys_of(
        Terms,
        shapes={
            "guarantee": Gpus,
            "weight": Weight,
            "borrow_limit": _LIMIT,
            "lend_limit": _LIMIT,
            "reserved": Gpus,
            "cap": _LIMIT,
            "priority": Annotated[int, Field(ge=-1_000_000, le=1_000_000)],
            "unit": Annotated[int, Field(ge=1, le=MOST_GPUS)],
        },
        without=("team", "parent"),
    ),
    given=("team",),
)
PROJECT = Section(
    Project,
    keys_of(
        Project,
        names={"begins_on": "begins", "ends_on": "ends"},
        shapes={"name": Line, "gpus": Gpus},
        by_type=_TYPES,
        without=("team",),
    ),
    given=("team",),
)


def read_teams(path: Path) -> Agreements:
    """Return what was agreed with teams; raise ConfigError with every fault found in the file."""
    file = YamlFile(path)
    top = file.read(TEAMS, file.values, at=())
    found = _Found()
    for at, told, team in _sections(file, file.values.get("teams"), TEAM, at=("teams",)):
        _read_team(file, team, found, told=told, at=at)
    _check_together(file, found)
    file.finish()
    assert top is not None, "a file that could not be read leaves a fault"
    return Agreements(
        parents=found.parents,
        contracts=tuple(found.contracts),
        projects=tuple(found.projects),
        monthly_budget_cents=found.budgets,
        timezone=top.timezone,
    )


@dataclass(slots=True, kw_only=True)
class _Found:
    """What was read so far, and where it is. What could not be read is missing; its faults are kept."""

    parents: dict[TeamName, TeamName | None] = field(default_factory=dict)
    contracts: list[Contract] = field(default_factory=list)
    projects: list[Project] = field(default_factory=list)
    budgets: dict[TeamName, int] = field(default_factory=dict)
    teams_at: dict[TeamName, KeyPath] = field(default_factory=dict)
    parts_at: dict[int, KeyPath] = field(default_factory=dict)
    """By identity: two contracts may be equal, and that is the fault to tell."""


def _sections(
    file: YamlFile, value: object, section: Section[Made], *, at: KeyPath, **given: object
) -> Iterator[tuple[KeyPath, Mapping[str, object], Made | None]]:
    """Yield each section of a list: its place, what is there, and what is made of it, None where it has faults.

    What is no list is refused by the section that holds it.
    """
    for index, each in enumerate(value if isinstance(value, list) else ()):
        made = file.read(section, each, at=(*at, index), **given)
        yield (*at, index), each if isinstance(each, dict) else {}, made


def _read_team(file: YamlFile, team: _Team | None, found: _Found, *, told: Mapping[str, object], at: KeyPath) -> None:
    """Read one team; of one that has faults its contracts and projects are checked all the same."""
    name = _name_of(told, at=at)
    if name in found.teams_at:
        file.add_fault((*at, "team"), f"{name} is declared twice; keep one entry, with the contracts of both")
    else:
        found.teams_at[name] = at
        found.parents[name] = None if team is None else team.parent
    if team is not None and team.budget is not None:
        found.budgets[name] = team.budget
    for place, _, contract in _sections(file, told.get("contracts"), CONTRACT, at=(*at, "contracts"), team=name):
        if contract is not None:
            found.contracts.append(contract)
            found.parts_at[id(contract)] = place
    for place, _, project in _sections(file, told.get("projects"), PROJECT, at=(*at, "projects"), team=name):
        if project is not None:
            found.projects.append(project)
            found.parts_at[id(project)] = place


def _name_of(told: Mapping[str, object], *, at: KeyPath) -> TeamName:
    """Return the name that a team is given, good or not; where it has none, messages name its place."""
    name = told.get("team")
    return TeamName(name[:LONGEST_ACCOUNT] if isinstance(name, str) and name else f"teams[{at[-1]}]")


def _check_together(file: YamlFile, found: _Found) -> None:
    """Keep what is wrong between entries that are each right."""
    for team, sentence in parent_faults(found.parents).items():
        file.add_fault((*found.teams_at[team], "parent"), sentence)
    for earlier, later in overlaps(found.contracts):
        file.add_fault(found.parts_at[id(later)], overlap_fault(earlier, later))
    for project in repeated_projects(found.projects):
        file.add_fault((*found.parts_at[id(project)], "name"), f"{project.words} is there twice; rename one")


_AT = "projects"
# Assumption: nobody ramps up for longer than ten years; more is a slip.
_MOST_RAMP_DAYS = 3660
# Assumption: no site plans more at once; a forecast with this many takes seconds, and one with far more does not end.
_MOST_PROJECTS = 1000
PROJECTS: Section[dict[str, object]] = Section(dict, needed(projects=list_of(object, most=_MOST_PROJECTS)))
PLANNED_PROJECT = section_of(
    PlannedProject,
    names={"starts_on": "starts", "ends_on": "ends"},
    shapes={
        "name": Line,
        "gpus": Gpus,
        "ramp_days": Annotated[int, Field(ge=0, le=_MOST_RAMP_DAYS)],
        "probability": Probability,
    },
    by_type={date: PlannedDay, GpuType: GpuTypeName, TeamName: Account},
)
_SHOWN_TEAM_COUNT = 6


def read_projects(path: Path, *, agreements: Agreements | None, teams_path: Path | None) -> tuple[PlannedProject, ...]:
    """Return the projects of the file; raise ConfigError with every fault found in it.

    Teams and names are compared with `agreements`, what `teams_path` says; None: with nothing.
    """
    file = YamlFile(path)
    file.read(PROJECTS, file.values, at=())
    listed = file.values.get(_AT)
    found: list[PlannedProject] = []
    lines: dict[tuple[TeamName, str, GpuType], int] = {}
    for index, each in enumerate(listed if isinstance(listed, list) and len(listed) <= _MOST_PROJECTS else ()):
        at: KeyPath = (_AT, index)
        project = file.read(PLANNED_PROJECT, each, at=at)
        if project is None:
            continue
        key = (project.team, project.name, project.gpu_type)
        if key in lines:
            file.add_fault((*at, "name"), f"{project.words} is on line {lines[key]}, too; rename one")
        lines.setdefault(key, file.line_of(at))
        if agreements is not None:
            _check_with_teams(file, project, agreements, teams_path=teams_path, at=at)
        found.append(project)
    file.finish()
    return tuple(found)


def all_projects(agreements: Agreements | None, stated: Iterable[PlannedProject]) -> tuple[PlannedProject, ...]:
    """Return all planned demand: what teams.yaml has, and what is stated beside it; one in both counts once."""
    agreed = tuple(
        PlannedProject(
            name=each.name,
            team=each.team,
            gpu_type=each.gpu_type,
            gpus=each.gpus,
            starts_on=each.begins_on,
            ends_on=each.ends_on,
            probability=each.probability,
        )
        for each in (() if agreements is None else agreements.projects)
    )
    known = {(each.team, each.name) for each in agreed}
    return (*agreed, *(each for each in stated if (each.team, each.name) not in known))


def _check_with_teams(
    file: YamlFile, project: PlannedProject, agreements: Agreements, *, teams_path: Path | None, at: KeyPath
) -> None:
    if project.team not in agreements.parents:
        teams = sorted(agreements.parents)
        some = ", ".join(teams[:_SHOWN_TEAM_COUNT]) + (" ..." if len(teams) > _SHOWN_TEAM_COUNT else "")
        file.add_fault(
            (*at, "team"),
            f"{project.team} is not declared in teams.yaml; declare it there, or name one of {some}",
        )
    if any((each.team, each.name) == (project.team, project.name) for each in agreements.projects):
        where = _place_in_teams(teams_path, project)
        file.add_fault((*at, "name"), f"{project.words} is in {where}, too; keep one of them")


def _place_in_teams(path: Path | None, project: PlannedProject) -> str:
    """Return where teams.yaml has the project; without the line where an earlier teams.yaml holds."""
    if path is None:
        return "teams.yaml"
    try:
        file = YamlFile(path)
    except ConfigError:
        return path.name
    for number, team in enumerate(_list_in(file.values, "teams")):
        if not isinstance(team, dict) or team.get("team") != project.team:
            continue
        for index, each in enumerate(_list_in(team, _AT)):
            if isinstance(each, dict) and each.get("name") == project.name:
                return f"{path.name} on line {file.line_of(('teams', number, _AT, index))}"
    return path.name


def _list_in(section: object, key: str) -> list[object]:
    value = section.get(key) if isinstance(section, dict) else None
    return value if isinstance(value, list) else []
