"""What the files of a site say by now; where one cannot be used, what it reported last, for how long, and where that is
kept.

A copy of the last good file lies in the state directory, so that a slip in a new one stops no morning, in whichever
process it is met. Beside the copies of cluster.yaml and policy.yaml is since when the file cannot be used: the copy is
valid for an hour at most, and no restart begins another one. A teams.yaml that was never right is refused: without
agreements nothing can be shared out. Of capacity.yaml and projects.yaml a plan can do without: then nothing of such a
file counts, and its trouble is reported. What `check-config` reads, it reads without copies.

Where the state directory is must be known also where cluster.yaml, which names it, is broken or gone: for orders that
must always work (`pause`) and for showing what is known. So every place counts that is known: what was named, what the
file says on the line of that key, broken or not, and what this user's last commands found.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
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
from ops_pipelines.resources.config.policy_file import read_policy
from ops_pipelines.resources.config.teams_file import all_projects, read_projects, read_teams
from ops_pipelines.resources.config.yaml_file import MOST_BYTES, ConfigError, expand_home
from ops_pipelines.resources.files import put_whole, put_whole_bytes
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.projects import CapacitySettings, PlannedProject

# -- what a file of a site says by now --


_HOLDS = (
    "cannot be used as it is, and what it reported before is in force; `ops-pipelines check-config` names the fault"
)
Content = TypeVar("Content")
Stamp = tuple[int, ...] | None
"""What distinguishes one content of a file from the next; None without a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Generic[Content]):
    """What a file says, and what is the matter with it."""

    content: Content
    trouble: str = ""
    """Why an earlier file counts; empty: the present one does."""


def read_kept(
    path: Path,
    *,
    kept: Path,
    read: Callable[[Path], Content],
    read_again: Callable[[Path], Content] | None = None,
) -> Kept[Content]:
    """Return what `path` says, or what `kept` holds of it from before. Raises ConfigError where neither can be used.

    `read_again` reads the copy where that is to be less strict: other files, which it was checked with, have changed.
    """
    before = content_of(path)
    try:
        content = read(path)
    except ConfigError:
        if content_of(kept) is None:
            raise
        return Kept(content=(read_again or read)(kept), trouble=f"{path.name} {_HOLDS}")
    return Kept(content=content, trouble=keep_copy(path, before, kept=kept))


def keep_copy(path: Path, before: bytes | None, *, kept: Path) -> str:
    """Keep what stood in `path` before it was read and found to be right; return why that cannot be, "" if it can."""
    # Changed while it was read: the next reading keeps it.
    if before is None or before != content_of(path) or before == content_of(kept):
        return ""
    try:
        put_whole_bytes(kept, before)
    except OSError as problem:
        why = problem.strerror or type(problem).__name__
        return f"no copy of {path.name} could be kept ({why}): make the state directory writable"
    return ""


def stamp_of(path: Path | None) -> Stamp:
    """Return what distinguishes one content of a file from the next; None without a file."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    # The other two tell a file that was put in place with an older time than the one before it.
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns


def stamps_of(paths: Iterable[Path | None]) -> tuple[Stamp, ...]:
    """Return the stamp of each, in their order."""
    return tuple(stamp_of(path) for path in paths)


def content_of(path: Path) -> bytes | None:
    """Return what is in a file; None where it cannot be read, is no file, or is longer than any configuration."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            read = file.read(MOST_BYTES + 1)
    except OSError:
        return None
    return read if len(read) <= MOST_BYTES else None


# -- where the state directory is, also where cluster.yaml, which says it, is broken or gone --


_LINE = re.compile(r"^state_directory[ \t]*:[ \t]*(\S.*?)[ \t]*(?:[ \t]#.*)?\r?$", re.MULTILINE)
_LONGEST_PATH = 4_096
_REMEMBERED = "ops_pipelines"
_MOST_REMEMBERED = 4
"""Who moves the state directory in cluster.yaml has a process that works in the one before until it is restarted."""


def state_directories(cluster_file: Path, *, named: Path | None = None) -> tuple[Path, ...]:
    """Return the state directories that are there, each once; empty where none is known."""
    places = [named, *_stated(cluster_file), *_remembered(cluster_file)]
    there = [place.resolve() for place in places if place is not None and _is_directory(place)]
    return tuple(dict.fromkeys(there))


def remember_state_directory(cluster_file: Path, state_directory: Path) -> None:
    """Note for this user where the state of a cluster lies. What cannot be noted is done without."""
    try:
        note = _note_of(cluster_file)
        known = _remembered(cluster_file)
        if known[:1] == (state_directory,):
            return
        note.parent.mkdir(parents=True, exist_ok=True)
        others = [place for place in known if place != state_directory and _is_directory(place)]
        put_whole(note, "".join(f"{place}\n" for place in [state_directory, *others][:_MOST_REMEMBERED]))
    except (OSError, RuntimeError):
        return


def _stated(cluster_file: Path) -> Iterator[Path]:
    text = (content_of(cluster_file) or b"").decode("utf-8", errors="replace")
    for found in _LINE.finditer(text):
        value = found[1]
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if not value or "\0" in value or len(value) > _LONGEST_PATH:
            continue
        try:
            yield cluster_file.resolve().parent / expand_home(value)
        except (ConfigError, OSError, RuntimeError):
            continue


def _remembered(cluster_file: Path) -> tuple[Path, ...]:
    """Return what is noted, the newest first."""
    try:
        said = (content_of(_note_of(cluster_file)) or b"").decode("utf-8").splitlines()
    except (RuntimeError, UnicodeDecodeError):
        return ()
    return tuple(Path(line) for line in said if line.startswith("/") and "\0" not in line)


def _note_of(cluster_file: Path) -> Path:
    """Return where this user keeps the note. Raises RuntimeError for a user without a home."""
    stated = os.environ.get("XDG_STATE_HOME", "")
    home = Path(stated) if stated.startswith("/") else Path.home() / ".local" / "state"
    name = hashlib.sha256(os.fsencode(cluster_file.absolute())).hexdigest()[:16]
    return home / _REMEMBERED / f"state_directory_{name}"


def _is_directory(place: Path) -> bool:
    try:
        return place.is_dir()
    except (OSError, ValueError):
        return False


# -- what cluster.yaml and policy.yaml say by now --


LAST_GOOD_CLUSTER_FILE = "last_good_cluster.yaml"
LAST_GOOD_POLICY_FILE = "last_good_policy.yaml"
_TROUBLE = ".trouble"
GRACE = timedelta(hours=1)
SETTLES = timedelta(seconds=2)
"""A file that was changed less than this ago may be half-written by an editor: half a policy can be a valid one."""
_MOST_SHOWN = 300


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
    """Return what cluster.yaml says, or reported last. Raises ConfigError where neither can be used.

    `named` is a state directory in which to look for what it had last, before those that are known.
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
    """Keep what cluster.yaml held when it was read and found to be right."""
    keep_copy(cluster_file, content, kept=state_directory / LAST_GOOD_CLUSTER_FILE)


def trouble_with_cluster(
    cluster_file: Path, config: ClusterConfig, *, is_same: bool, now: datetime
) -> ConfigTrouble | None:
    """Return what is the matter with a cluster.yaml that a process has read as `config`; None if it can be used.

    While it `is_same` as then it is not judged again: nothing of what it says will be read again.
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
    """Return the trouble that a file had before it was changed just now: its hour continues until it is read again."""
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
    """Return the first fault with its line, without the path of the file: its name is reported beside it."""
    head, *faults = str(problem).splitlines()
    said = " ".join((faults[0] if faults else head).split())
    more = f" (and {len(faults) - 1} more; `ops-pipelines check-config` names all)" if len(faults) > 1 else ""
    return f"{said[:_MOST_SHOWN]}{more}; correct the file"


# -- what teams.yaml, capacity.yaml and projects.yaml hold by now, or held last --


LAST_GOOD_FILE = "last_good_teams.yaml"
LAST_GOOD_CAPACITY_FILE = "last_good_capacity.yaml"
LAST_GOOD_PROJECTS_FILE = "last_good_projects.yaml"
_NOTHING = "cannot be used, so nothing of it counts; `ops-pipelines check-config` names the fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansInForce:
    """What is planned, and what is the matter with the files that say so."""

    capacity: CapacitySettings | None
    """None: cluster.yaml names no such file, or it was never right."""
    projects: tuple[PlannedProject, ...]
    trouble: str = ""


def read_kept_teams(path: Path, *, kept: Path) -> Kept[Agreements]:
    """Return what `path` says, or what `kept` holds of it from before. Raises ConfigError where neither can be used."""
    return read_kept(path, kept=kept, read=read_teams)


def read_kept_plans(config: ClusterConfig, agreements: Agreements | None) -> PlansInForce:
    """Return what capacity.yaml and projects.yaml hold, or held last. Raises nothing: their troubles are reported."""
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
    return PlansInForce(
        capacity=capacity,
        projects=all_projects(agreements, stated),
        trouble="; ".join(each for each in troubles if each),
    )


def stated_stamps(config: ClusterConfig) -> tuple[Stamp, ...]:
    """Return what shows whether a file that is read again when it changes has changed."""
    return stamps_of((config.teams_path, config.capacity_path, config.projects_path))
