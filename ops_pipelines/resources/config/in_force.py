"""What the files of a site say by now; where one cannot be used, what it said last, and for how long.

Since when cluster.yaml or policy.yaml cannot be used stands in the state directory beside the copy of the last good
one, which holds for an hour at most: no restart begins another one. A teams.yaml that was never right is refused:
without agreements nothing can be shared out. Of capacity.yaml and projects.yaml a plan can do without: then nothing of
such a file counts, and what is the matter is told. How copies are kept is `kept_files`; what `check-config` reads, it
reads without copies.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from ops_pipelines.core.identity import Topology
from ops_pipelines.core.policy import ConfigTrouble, Fallback, Mode, Policy
from ops_pipelines.resources.config.capacity_file import read_capacity
from ops_pipelines.resources.config.cluster_config import ClusterConfig
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.kept_files import (
    Stamp,
    Told,
    content_of,
    keep_copy,
    read_kept,
    stamps_of,
    state_directories,
)
from ops_pipelines.resources.config.policy_file import read_policy
from ops_pipelines.resources.config.projects_file import all_projects, read_projects
from ops_pipelines.resources.config.strict_yaml import ConfigError
from ops_pipelines.resources.config.teams_file import read_teams
from ops_pipelines.resources.whole_file import put_whole
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.projects import CapacitySettings, PlannedProject

# -- what cluster.yaml and policy.yaml say by now --


LAST_GOOD_CLUSTER_FILE = "last_good_cluster.yaml"
LAST_GOOD_POLICY_FILE = "last_good_policy.yaml"
_TROUBLE = ".trouble"
GRACE = timedelta(hours=1)
SETTLES = timedelta(seconds=2)
"""A file that was changed less than this ago may be half-written by an editor: half a policy can be a valid one."""
_MOST_SHOWN = 300
Content = TypeVar("Content")


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce(Generic[Content]):
    """What counts, where it was read, and what is the matter with the file that ought to say it."""

    content: Content
    read_from: Path | None = None
    """The copy that it was read from; None: the file itself."""
    trouble: ConfigTrouble | None = None
    again_at: datetime | None = None
    """When it is to be read again, though the file has not changed; None: not before it does."""


def read_cluster_in_force(cluster_file: Path, *, now: datetime, named: Path | None = None) -> InForce[ClusterConfig]:
    """Return what cluster.yaml says, or said last. Raises ConfigError where neither can be used.

    `named` is a state directory in which to look for what it said last, before those that are known.
    """
    try:
        config = read_cluster(cluster_file)
    except ConfigError as problem:
        fault = problem
    else:
        _forget_trouble(config.state_directory / LAST_GOOD_CLUSTER_FILE)
        return InForce(content=config)
    for place in state_directories(cluster_file, named=named):
        kept = place / LAST_GOOD_CLUSTER_FILE
        try:
            config = read_cluster(cluster_file, read_from=kept)
        except ConfigError:
            continue
        if config.state_directory.resolve() != place:
            continue  # The copy of another cluster, or of another time.
        trouble = _note_trouble(cluster_file, fault, kept=kept, now=now, grace=GRACE)
        return InForce(content=config, read_from=kept, trouble=trouble)
    raise fault


def keep_cluster_file(cluster_file: Path, content: bytes | None, *, state_directory: Path) -> None:
    """Keep what cluster.yaml said when it was read and found to be right."""
    keep_copy(cluster_file, content, kept=state_directory / LAST_GOOD_CLUSTER_FILE)


def trouble_with_cluster(
    cluster_file: Path, config: ClusterConfig, *, is_same: bool, now: datetime
) -> ConfigTrouble | None:
    """Return what is the matter with a cluster.yaml that a process has read as `config`; None if it can be used.

    While it `is_same` as then it is not judged again: nothing of what it says will be read anew.
    """
    kept = config.state_directory / LAST_GOOD_CLUSTER_FILE
    try:
        if not is_same:
            read_cluster(cluster_file)
    except ConfigError as fault:
        return _note_trouble(cluster_file, fault, kept=kept, now=now, grace=GRACE)
    _forget_trouble(kept)
    return None


def read_policy_in_force(path: Path, *, topology: Topology, state_directory: Path, now: datetime) -> InForce[Policy]:
    """Return what policy.yaml allows, or allowed last; one that was never right allows nothing, and is no error."""
    kept = state_directory / LAST_GOOD_POLICY_FILE
    if _is_settling(path, now=now):
        try:
            policy = read_policy(path, topology=topology, read_from=kept)
        except ConfigError:
            pass
        else:
            trouble = _standing_trouble(path, kept=kept, now=now)
            return InForce(content=policy, read_from=kept, trouble=trouble, again_at=now + SETTLES)
    before = content_of(path)
    try:
        policy = read_policy(path, topology=topology)
    except ConfigError as problem:
        fault = problem
    else:
        keep_copy(path, before, kept=kept)
        _forget_trouble(kept)
        return InForce(content=policy, again_at=now + SETTLES if before != content_of(path) else None)
    try:
        policy = read_policy(path, topology=topology, read_from=kept)
    except ConfigError:
        trouble = _note_trouble(path, fault, kept=kept, now=now, grace=timedelta(0))
        return InForce(content=Policy(), trouble=trouble)
    trouble = _note_trouble(path, fault, kept=kept, now=now, grace=GRACE)
    return InForce(content=policy, read_from=kept, trouble=trouble)


def fallbacks_of(troubles: Iterable[ConfigTrouble], *, now: datetime) -> tuple[Fallback, ...]:
    """Return what is left to do under a configuration that cannot be used: nothing, once its hour is over."""
    return tuple(Fallback(mode=Mode.OBSERVE, reason=str(each)) for each in troubles if each.is_over(now))


def _is_settling(path: Path, *, now: datetime) -> bool:
    try:
        changed_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (OSError, ValueError, OverflowError):
        return False
    return timedelta(0) <= now - changed_at < SETTLES


def _note_trouble(path: Path, fault: ConfigError, *, kept: Path, now: datetime, grace: timedelta) -> ConfigTrouble:
    """Return the trouble with a file, counted from when any process met it first, which is written down.

    Where it cannot be written there is no grace: each process would begin an hour of its own.
    """
    note = kept.with_name(f"{kept.name}{_TROUBLE}")
    since = _noted_since(note, now=now)
    if since is None:
        since = now
        try:
            put_whole(note, json.dumps({"since": since.isoformat()}) + "\n")
        except OSError:
            grace = timedelta(0)
    return ConfigTrouble(file=path.name, fault=_first_fault(fault), since=since, until=since + grace)


def _standing_trouble(path: Path, *, kept: Path, now: datetime) -> ConfigTrouble | None:
    """Return the trouble that a file had before it was changed just now: its hour goes on until it is read again."""
    since = _noted_since(kept.with_name(f"{kept.name}{_TROUBLE}"), now=now)
    fault = "it was saved a moment ago and is read again at once"
    return None if since is None else ConfigTrouble(file=path.name, fault=fault, since=since, until=since + GRACE)


def _noted_since(note: Path, *, now: datetime) -> datetime | None:
    """Return what is noted; of a note that nobody can read, when it was written. None without one."""
    content = content_of(note)
    if content is None:
        return None
    try:
        since = datetime.fromisoformat(str(json.loads(content)["since"]))
        return min(since.astimezone(UTC), now) if since.tzinfo is not None else _written_at(note, now=now)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return _written_at(note, now=now)


def _written_at(note: Path, *, now: datetime) -> datetime:
    try:
        return min(datetime.fromtimestamp(note.stat().st_mtime, UTC), now)
    except (OSError, ValueError, OverflowError):
        return now


def _forget_trouble(kept: Path) -> None:
    try:
        kept.with_name(f"{kept.name}{_TROUBLE}").unlink(missing_ok=True)
    except OSError:
        return


def _first_fault(problem: ConfigError) -> str:
    """Return the first fault with its line, without the path of the file: its name is told beside it."""
    head, *faults = str(problem).splitlines()
    said = " ".join((faults[0] if faults else head).split())
    more = f" (and {len(faults) - 1} more; `ops-pipelines check-config` names all)" if len(faults) > 1 else ""
    return f"{said[:_MOST_SHOWN]}{more}; correct the file"


# -- what teams.yaml, capacity.yaml and projects.yaml say by now, or said last --


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
