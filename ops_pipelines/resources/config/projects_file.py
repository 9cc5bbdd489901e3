"""Reads projects.yaml: planned demand as domain values, or every fault of the file with its line and remedy.

teams.yaml has projects too, for quotas; they are planned demand as well (`all_projects`), and none may stand in both.
"""

from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.resources.config.binding import KeyPath, Section, list_of, needed, section_of
from ops_pipelines.resources.config.shapes import Account, Gpus, GpuTypeName, Line, PlannedDay, Probability
from ops_pipelines.resources.config.strict_yaml import ConfigError, YamlFile
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.projects import PlannedProject

_AT = "projects"
# Assumption: nobody ramps up for longer than ten years; more is a slip.
_MOST_RAMP_DAYS = 3660
# Assumption: no site plans more at once; a forecast with this many takes seconds, and one with far more does not end.
_MOST_PROJECTS = 1000
PROJECTS: Section[dict[str, object]] = Section(dict, needed(projects=list_of(object, most=_MOST_PROJECTS)))
PROJECT = section_of(
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
        project = file.read(PROJECT, each, at=at)
        if project is None:
            continue
        key = (project.team, project.name, project.gpu_type)
        if key in lines:
            file.add_fault((*at, "name"), f"{project.words} stands on line {lines[key]}, too; rename one")
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
        file.add_fault((*at, "name"), f"{project.words} stands in {where}, too; keep one of them")


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
