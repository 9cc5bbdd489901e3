"""What `check-config` says of the files of teams, capacity and projects: every fault of all of them, then cautions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from ops_pipelines.resources.config.capacity_file import read_capacity
from ops_pipelines.resources.config.cluster_config import ClusterConfig
from ops_pipelines.resources.config.projects_file import read_projects
from ops_pipelines.resources.config.strict_yaml import ConfigError
from ops_pipelines.resources.config.teams_file import read_teams
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.projects import CapacitySettings, PlannedProject

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What the files say that cluster.yaml names."""

    agreements: Agreements | None
    """None: no file is named, as for the next."""
    capacity: CapacitySettings | None
    projects: tuple[PlannedProject, ...] = ()


def read_stated(config: ClusterConfig) -> Stated:
    """Return what the files say; raise one ConfigError with the faults of all of them. No earlier copy counts here."""
    faults: list[str] = []

    def told(read: Callable[[], Content]) -> Content | None:
        try:
            return read()
        except ConfigError as problem:
            faults.append(str(problem))
            return None

    teams, capacity, projects = config.teams_path, config.capacity_path, config.projects_path
    agreements = None if teams is None else told(lambda: read_teams(teams))
    settings = None if capacity is None else told(lambda: read_capacity(capacity, config=config))
    planned = (
        None if projects is None else told(lambda: read_projects(projects, agreements=agreements, teams_path=teams))
    )
    if faults:
        raise ConfigError("\n".join(faults))
    return Stated(agreements=agreements, capacity=settings, projects=planned or ())


def find_capacity_cautions(config: ClusterConfig, stated: Stated) -> tuple[str, ...]:
    """Return what should be meant in capacity.yaml and projects.yaml, in words for the operator."""
    return (*_of_capacity(config, stated.capacity), *_of_projects(config, stated))


def _of_capacity(config: ClusterConfig, settings: CapacitySettings | None) -> Iterator[str]:
    if settings is None:
        return
    standing = {each.gpu_type for each in config.bought.values()}
    for sku in settings.skus:
        if sku.lead_time is None:
            yield f"capacity.yaml: {sku.sku} has no lead time, so no day can be named to order it by; state it"
        if sku.gpu_type not in standing:
            yield f"capacity.yaml: {sku.sku} has GPUs {sku.gpu_type!r}, and no rack of cluster.yaml has such"
    for gpu_type in settings.cloud_cents_per_gpu_hour:
        if gpu_type not in standing:
            yield f"capacity.yaml: cloud has a price for GPUs {gpu_type!r}, and no rack of cluster.yaml has such"
    if config.prices is None and (settings.skus or settings.expansions or settings.cloud_cents_per_gpu_hour):
        yield "capacity.yaml states amounts, and cluster.yaml no `prices`: they have no currency; state them"


def _of_projects(config: ClusterConfig, stated: Stated) -> Iterator[str]:
    if stated.projects and stated.agreements is None:
        yield "projects.yaml names teams, and cluster.yaml no file of `teams`: whether they exist is not checked"
    known = {each.gpu_type for each in config.bought.values()}
    known.update(each.gpu_type for each in (stated.capacity or CapacitySettings()).skus)
    for project in stated.projects:
        if project.gpu_type not in known:
            yield f"projects.yaml: {project.words} wants GPUs {project.gpu_type!r}, and no rack and no SKU has such"
