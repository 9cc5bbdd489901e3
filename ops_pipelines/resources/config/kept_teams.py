"""What teams.yaml, capacity.yaml and projects.yaml say by now, or said last: one `kept_files` for each.

Without agreements nothing can be shared out, so a teams.yaml that was never right is refused. Of the other two a plan
can do without: then nothing of such a file counts, and what is the matter is told.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ops_pipelines.resources.config.capacity_file import read_capacity
from ops_pipelines.resources.config.cluster_config import ClusterConfig
from ops_pipelines.resources.config.kept_files import Stamp, Told, read_kept, stamps_of
from ops_pipelines.resources.config.projects_file import all_projects, read_projects
from ops_pipelines.resources.config.strict_yaml import ConfigError
from ops_pipelines.resources.config.teams_file import read_teams
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.projects import CapacitySettings, PlannedProject

LAST_GOOD_FILE = "last_good_teams.yaml"
LAST_GOOD_CAPACITY_FILE = "last_good_capacity.yaml"
LAST_GOOD_PROJECTS_FILE = "last_good_projects.yaml"
_NOTHING = "cannot be used, so nothing of it counts; `ops-pipelines check-config` names the fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldOfPlans:
    """What is planned, and what is the matter with the files that say so."""

    capacity: CapacitySettings | None
    """None: cluster.yaml names no such file, or it was never right."""
    projects: tuple[PlannedProject, ...]
    trouble: str = ""


def read_kept_teams(path: Path, *, kept: Path) -> Told[Agreements]:
    """Return what `path` says, or what `kept` holds of it from before. Raises ConfigError where neither can be used."""
    return read_kept(path, kept=kept, read=read_teams)


def read_kept_plans(config: ClusterConfig, agreements: Agreements | None) -> ToldOfPlans:
    """Return what capacity.yaml and projects.yaml say, or said last. Raises nothing: their troubles are told."""
    troubles = []
    capacity: CapacitySettings | None = None
    stated: tuple[PlannedProject, ...] = ()
    if config.capacity_path is not None:
        kept = config.state_directory / LAST_GOOD_CAPACITY_FILE
        try:
            settings = read_kept(config.capacity_path, kept=kept, read=partial(read_capacity, config=config))
        except ConfigError:
            troubles.append(f"{config.capacity_path.name} {_NOTHING}")
        else:
            capacity = settings.content
            troubles.append(settings.trouble)
    if config.projects_path is not None:
        try:
            projects = read_kept(
                config.projects_path,
                kept=config.state_directory / LAST_GOOD_PROJECTS_FILE,
                read=partial(read_projects, agreements=agreements, teams_path=config.teams_path),
                # teams.yaml may have changed since: what was planned then is planned still.
                read_again=partial(read_projects, agreements=None, teams_path=None),
            )
        except ConfigError:
            troubles.append(f"{config.projects_path.name} {_NOTHING}")
        else:
            stated = projects.content
            troubles.append(projects.trouble)
    return ToldOfPlans(
        capacity=capacity,
        projects=all_projects(agreements, stated),
        trouble="; ".join(each for each in troubles if each),
    )


def stated_stamps(config: ClusterConfig) -> tuple[Stamp, ...]:
    """Return what tells whether a file that is read anew when it changes has changed."""
    return stamps_of((config.teams_path, config.capacity_path, config.projects_path))
