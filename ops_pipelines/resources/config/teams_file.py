"""Reads teams.yaml: what was agreed with teams, as domain values, or every fault of the file with its line and remedy.

How YAML is read strictly is `strict_yaml`'s, the shape of the file `team_models`'. Whether the cluster can keep what
was agreed depends on the day and on its GPUs: `quotas.lint`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ops_pipelines.core.proposal import GpuType, TeamName, Terms
from ops_pipelines.resources.config.strict_yaml import KeyPath, Model, YamlFile
from ops_pipelines.resources.config.team_models import (
    LONGEST_ACCOUNT,
    ContractModel,
    ProjectModel,
    TeamModel,
    TeamsModel,
)
from ops_pipelines.teams.contracts import (
    Agreements,
    Contract,
    overlap_fault,
    overlaps,
    parent_faults,
    repeated_projects,
)
from ops_pipelines.teams.projects import Project


def read_teams(path: Path) -> Agreements:
    """Return what was agreed with teams; raise ConfigError with every fault found in the file."""
    file = YamlFile(path)
    top = file.check(TeamsModel, file.values, at=())
    if top is not None:
        _check_timezone(file, top.timezone)
    found = _Found()
    for at, told, team in _sections(file, file.values.get("teams"), TeamModel, at=("teams",)):
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
    """What was read so far, and where it stands. What could not be read is missing; its faults are kept."""

    parents: dict[TeamName, TeamName | None] = field(default_factory=dict)
    contracts: list[Contract] = field(default_factory=list)
    projects: list[Project] = field(default_factory=list)
    budgets: dict[TeamName, int] = field(default_factory=dict)
    teams_at: dict[TeamName, KeyPath] = field(default_factory=dict)
    parts_at: dict[int, KeyPath] = field(default_factory=dict)
    """By identity: two contracts may be equal, and that is the fault to tell."""


def _sections(
    file: YamlFile, value: object, model: type[Model], *, at: KeyPath
) -> Iterator[tuple[KeyPath, Mapping[str, object], Model | None]]:
    """Yield each section of a list: its place, what it says, and that as its model, None where it has faults.

    What is no list is refused by the model of what holds it.
    """
    for index, each in enumerate(value if isinstance(value, list) else ()):
        checked = file.check(model, each, at=(*at, index))
        yield (*at, index), each if isinstance(each, dict) else {}, checked


def _check_timezone(file: YamlFile, name: str) -> None:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        file.add_fault(("timezone",), f"found {name!r}; expected a zone of the IANA list such as Europe/Berlin")


def _read_team(
    file: YamlFile, team: TeamModel | None, found: _Found, *, told: Mapping[str, object], at: KeyPath
) -> None:
    """Read one team; of one that has faults its contracts and projects are checked all the same."""
    name = _name_of(told, at=at)
    if name in found.teams_at:
        file.add_fault((*at, "team"), f"{name} is declared twice; keep one entry, with the contracts of both")
    else:
        found.teams_at[name] = at
        found.parents[name] = None if team is None or team.parent is None else TeamName(team.parent)
    if team is not None and team.budget is not None:
        found.budgets[name] = round(team.budget.monthly * 100)
    for place, _, section in _sections(file, told.get("contracts"), ContractModel, at=(*at, "contracts")):
        contract = None if section is None else _read_contract(file, section, team=name, at=place)
        if contract is not None:
            found.contracts.append(contract)
            found.parts_at[id(contract)] = place
    for place, _, entry in _sections(file, told.get("projects"), ProjectModel, at=(*at, "projects")):
        project = None if entry is None else _read_project(file, entry, team=name, at=place)
        if project is not None:
            found.projects.append(project)
            found.parts_at[id(project)] = place


def _name_of(told: Mapping[str, object], *, at: KeyPath) -> TeamName:
    """Return the name that a team is given, good or not; where it has none, its place stands for it in messages."""
    name = told.get("team")
    return TeamName(name[:LONGEST_ACCOUNT] if isinstance(name, str) and name else f"teams[{at[-1]}]")


def _read_contract(file: YamlFile, section: ContractModel, *, team: TeamName, at: KeyPath) -> Contract | None:
    try:
        terms = Terms(
            team=team,
            guarantee=section.guarantee,
            weight=section.weight,
            borrow_limit=_limit(section.borrow_limit),
            lend_limit=_limit(section.lend_limit),
            reserved=section.reserved,
            cap=_limit(section.cap),
            priority=section.priority,
            unit=section.unit,
        )
    except ValueError as problem:
        file.add_fault(at, str(problem))
        terms = Terms(team=team, guarantee=0.0)  # a stand-in: its days are checked all the same
    try:
        return Contract(
            terms=terms,
            valid_from=section.valid_from,
            valid_until=section.until,
            gpu_type=GpuType(section.gpu_type),
        )
    except ValueError as problem:
        file.add_fault((*at, "until"), str(problem))
        return None


def _limit(gpus: float | None) -> float:
    return math.inf if gpus is None else gpus


def _read_project(file: YamlFile, section: ProjectModel, *, team: TeamName, at: KeyPath) -> Project | None:
    try:
        return Project(
            name=section.name,
            team=team,
            gpus=section.gpus,
            begins_on=section.begins,
            ends_on=section.ends,
            gpu_type=GpuType(section.gpu_type),
            probability=section.probability,
        )
    except ValueError as problem:
        file.add_fault(at, str(problem))
        return None


def _check_together(file: YamlFile, found: _Found) -> None:
    """Keep what is wrong between entries that are each right."""
    for team, sentence in parent_faults(found.parents).items():
        file.add_fault((*found.teams_at[team], "parent"), sentence)
    for earlier, later in overlaps(found.contracts):
        file.add_fault(found.parts_at[id(later)], overlap_fault(earlier, later))
    for project in repeated_projects(found.projects):
        file.add_fault((*found.parts_at[id(project)], "name"), f"{project.words} stands there twice; rename one")
