"""A backup: one directory with the ledger, the configuration and by choice the lake, and a manifest with each sha256.

The cursors of all sources are in the ledger. Secrets are not copied: the manifest names what has to be restored
from elsewhere. Putting a backup back is `restoring`'s.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from hashlib import file_digest
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from secrets import token_hex

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from ops_pipelines.core.policy import RequestRefused
from ops_pipelines.resources.config.cluster_config import ClusterConfig
from ops_pipelines.resources.config.in_force import content_of
from ops_pipelines.resources.config.policy_file import read_policy
from ops_pipelines.resources.config.yaml_file import ConfigError
from ops_pipelines.resources.files import hand_over, make_directories, put_whole_bytes
from ops_pipelines.resources.ledger.copying import Copied, copy_out
from ops_pipelines.resources.ledger.database import has_secret_in_query

MANIFEST = "manifest.json"
LEDGER = "ledger.sqlite"
CONFIGURATION, LAKE = "configuration", "lake"
_OUTSIDE = "outside"
"""Below the configuration: files that stand elsewhere than beside cluster.yaml, each below its whole path."""
_DRAFT = ".draft"
_VERSION = 1
_FOR_US, _DIRECTORY_FOR_US = 0o600, 0o700
_MODES = {CONFIGURATION: (0o644, 0o755), LAKE: (_FOR_US, _DIRECTORY_FOR_US)}
"""Of files and directories put back. root puts the configuration there, the program's own user reads it."""
_NAMES_A_FILE, _FOR_ANYBODY = "_file", "ca_file"
"""A key that ends so names a secret, but for the one."""
_MOST_LAKE_PASSES = 5


class BackupError(RequestRefused):
    """A backup that cannot be made or used. Nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """One file of a backup."""

    path: str
    """Below the backup's directory."""
    sha256: str
    byte_count: int
    was_at: str
    """Where it stood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a backup holds."""

    format: int
    made_at: str
    program_version: str
    cluster: str
    schema_version: str
    ledger: str | None
    head_seq: int
    head_hash: str
    head_at: str | None
    has_lake: bool
    left_out: tuple[str, ...]
    """What has to come from elsewhere: secrets, and files that were not there."""
    files: tuple[KeptFile, ...]


def make_backup(
    directory: Path, config: ClusterConfig, *, cluster_file: Path, with_lake: bool, now: datetime
) -> Manifest:
    """Write a backup into a directory that is not there yet, whole or not at all. Raises BackupError, LedgerError."""
    if directory.exists():
        raise BackupError(f"{directory} is there already; name a directory that is not, a new one for each backup")
    if with_lake and "://" in config.lake.url:
        raise BackupError(f"the lake is not in a directory here ({config.lake.url}); copy it by the means of its store")
    for left in directory.parent.glob(f".{directory.name}.*{_DRAFT}"):
        shutil.rmtree(left, ignore_errors=True)  # By one that was killed.
    draft = directory.with_name(f".{directory.name}.{token_hex(4)}{_DRAFT}")
    try:
        draft.mkdir(mode=_DIRECTORY_FOR_US)
        draft.chmod(_DIRECTORY_FOR_US)
        copied = copy_out(config.ledger.url, draft / LEDGER)
        if copied is None:
            raise BackupError("there is no ledger yet, so there is nothing to back up")
        kept = [_kept(draft, LEDGER, was_at="")]
        left_out = list(_copy_configuration(draft, config, cluster_file=cluster_file, kept=kept))
        if with_lake:
            _copy_lake(Path(config.lake.url), draft, kept)
        manifest = _manifest(copied, config, kept=kept, left_out=left_out, with_lake=with_lake, now=now)
        put_whole_bytes(draft / MANIFEST, json.dumps(asdict(manifest), indent=1).encode(), mode=_FOR_US)
        try:
            verify_backup(draft)  # What could not be put back is reported now, and not on the day it is needed.
        except BackupError as problem:
            raise BackupError(f"no backup was made, for it could not be put back; do it again ({problem})") from problem
        draft.rename(directory)
    except OSError as problem:
        raise BackupError(f"{directory} cannot be written: {problem}") from problem
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


def verify_backup(directory: Path) -> Manifest:
    """Return the manifest of a backup, after every file was found to be what it says. Raises BackupError."""
    try:
        said = json.loads((directory / MANIFEST).read_bytes())
        if said["format"] != _VERSION:
            raise BackupError(f"{directory} is a backup of format {said['format']}; this program knows {_VERSION}")
        files = tuple(KeptFile(**each) for each in said["files"])
        values = {each.name: said[each.name] for each in fields(Manifest)}
        manifest = Manifest(**{**values, "files": files, "left_out": tuple(said["left_out"])})
    except FileNotFoundError as problem:
        raise BackupError(f"{directory} holds no backup: {MANIFEST} is not there") from problem
    except OSError as problem:
        raise BackupError(f"{directory} cannot be read: {problem}") from problem
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise BackupError(f"the manifest of {directory} cannot be read ({problem})") from problem
    root = directory.resolve()
    for each in manifest.files:
        file = root / each.path
        if Path(each.path).is_absolute() or ".." in Path(each.path).parts:
            raise BackupError(
                f"the manifest of {directory} names {each.path}, and a file of a backup is below it, without `..`; "
                "it was changed, use another backup"
            )
        if not file.resolve().is_relative_to(root) or file.is_symlink():
            raise BackupError(f"{each.path} is not a file of the backup {directory}; it was changed")
        if not file.is_file() or _sha256(file) != each.sha256:
            raise BackupError(f"{file} is not what was backed up; use another backup")
    if LEDGER not in {each.path for each in manifest.files}:
        raise BackupError(f"{directory} holds no ledger")
    return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """What became of the files of a part of a backup; those that were there as they are in it stand nowhere."""

    put: tuple[Path, ...] = ()
    differing: tuple[Path, ...] = ()
    """Another is there, and was left."""
    problems: tuple[str, ...] = ()
    """What could not be put back, and why."""


def put_where_missing(directory: Path, manifest: Manifest, part: str, *, into: Path) -> PutBack:
    """Put the files of a part below `into` where there are none.

    What stood elsewhere than beside cluster.yaml is left to a person: a backup must not write anywhere it likes.
    """
    put, differing, problems = [], [], []
    for each in manifest.files:
        below = Path(each.path)
        if below.parts[0] != part or below.parts[1] == _OUTSIDE:
            continue
        target = into.joinpath(*below.parts[1:])
        try:
            if target.exists():
                differing += [target] if _sha256(target) != each.sha256 else []
                continue
            mode, directory_mode = _MODES[part]
            make_directories(target.parent, mode=directory_mode)
            put_whole_bytes(target, (directory / each.path).read_bytes(), mode=mode)
            hand_over(target)
            put.append(target)
        except OSError as problem:
            problems.append(f"not put back: {target} ({problem.strerror or type(problem).__name__})")
    return PutBack(put=tuple(put), differing=tuple(differing), problems=tuple(problems))


def _manifest(
    copied: Copied,
    config: ClusterConfig,
    *,
    kept: list[KeptFile],
    left_out: list[str],
    with_lake: bool,
    now: datetime,
) -> Manifest:
    try:
        program = version("ops_pipelines")
    except PackageNotFoundError:
        program = "not installed"
    return Manifest(
        format=_VERSION,
        made_at=now.isoformat(),
        program_version=program,
        cluster=config.name,
        schema_version=copied.schema_version,
        ledger=copied.found.ledger,
        head_seq=copied.found.head_seq,
        head_hash=copied.found.head_hash,
        head_at=None if copied.head_at is None else copied.head_at.isoformat(),
        has_lake=with_lake,
        left_out=tuple(left_out),
        files=tuple(kept),
    )


def _copy_configuration(
    draft: Path, config: ClusterConfig, *, cluster_file: Path, kept: list[KeptFile]
) -> Iterator[str]:
    """Copy what is configured and no secret; yield what is left out."""
    here = cluster_file.resolve().parent
    named = [config.policy_path, config.teams_path, config.capacity_path, config.projects_path]
    for directory in (config.releases_directory, config.expectations_directory):
        if directory.is_dir():
            named += sorted(each for each in directory.rglob("*") if each.is_file())
    named += _calendars(config)
    # What two keys name is one file.
    for file in dict.fromkeys((cluster_file.resolve(), *(_without_dots(each) for each in named if each is not None))):
        content = content_of(file)
        if content is None:
            yield f"{file}: it is not there, or cannot be read"
            continue
        if file == cluster_file.resolve():
            whole, content = content, _without_password(content)
            if content is None:
                yield f"{file}: nobody can know where in it the password of ledger.url is; keep it by other means"
                continue
            yield from ("the password in ledger.url of cluster.yaml",) if content != whole else ()
        # Below its whole path, so that no two fall on one.
        below = file.relative_to(here) if file.is_relative_to(here) else Path(_OUTSIDE, *file.parts[1:])
        target = draft / CONFIGURATION / below
        for parent in reversed(target.relative_to(draft).parents[:-1]):
            (draft / parent).mkdir(exist_ok=True, mode=_DIRECTORY_FOR_US)
        put_whole_bytes(target, content, mode=_FOR_US)
        kept.append(_kept(draft, str(target.relative_to(draft)), was_at=str(file)))
    yield from _secrets(cluster_file)


def _without_dots(file: Path) -> Path:
    """Return where a file is. One without `..` keeps its name: below cluster.yaml's directory a symlink may lead on."""
    return file.resolve() if ".." in file.parts else file.absolute()


def _calendars(config: ClusterConfig) -> list[Path]:
    try:
        policy = read_policy(config.policy_path, topology=config.topology)
    except ConfigError:
        return []  # It is copied as it is; what it would name nobody can tell.
    return [config.policy_path.parent / each for each in policy.maintenance_calendars]


def _without_password(content: bytes) -> bytes | None:
    """Return cluster.yaml without the password of its ledger; None where nobody can tell how that is written there.

    As it says itself: it may have changed since what is in force was read.
    """
    import yaml

    try:
        stated = yaml.safe_load(content)
        ledger = stated.get("ledger") if isinstance(stated, Mapping) else None
        url = ledger.get("url") if isinstance(ledger, Mapping) else None
        if not isinstance(url, str):
            return content
        parsed = make_url(url)
    except (yaml.YAMLError, ArgumentError, ValueError):
        return None
    if parsed.password is None and not has_secret_in_query(url):
        return content
    if has_secret_in_query(url) or url.encode() not in content:
        return None
    return content.replace(url.encode(), parsed.render_as_string(hide_password=True).encode())


def _secrets(cluster_file: Path) -> Iterator[str]:
    import yaml

    try:
        stated = yaml.safe_load(content_of(cluster_file) or b"")
    except yaml.YAMLError:
        yield "the secret files that cluster.yaml names: it cannot be read"
        return
    yield from (f"the secret {file} ({key})" for key, file in _secret_files(stated, at=""))


def _secret_files(value: object, *, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            name = str(key)
            if isinstance(inner, str) and name.endswith(_NAMES_A_FILE) and name != _FOR_ANYBODY:
                yield f"{at}{name}", inner
            yield from _secret_files(inner, at=f"{at}{name}.")
    elif isinstance(value, list):
        for inner in value:
            yield from _secret_files(inner, at=at)


def _copy_lake(lake: Path, draft: Path, kept: list[KeptFile]) -> None:
    """Copy the lake as its files are: each appears whole; what is put together meanwhile a later pass finds."""
    copied: dict[str, KeptFile] = {}
    for _ in range(_MOST_LAKE_PASSES):
        new = [each for each in _lake_files(lake) if str(Path(LAKE) / each) not in copied]
        if not new:
            break
        for below in new:
            target = draft / LAKE / below
            target.parent.mkdir(parents=True, exist_ok=True, mode=_DIRECTORY_FOR_US)
            try:
                shutil.copyfile(lake / below, target)
            except FileNotFoundError:
                target.unlink(missing_ok=True)
                continue
            target.chmod(_FOR_US)
            path = str(Path(LAKE) / below)
            copied[path] = _kept(draft, path, was_at=str(lake / below))
    kept += copied.values()


def _lake_files(lake: Path) -> list[Path]:
    found = []
    for folder, _, names in os.walk(lake):
        found += [Path(folder, name).relative_to(lake) for name in names if not name.startswith(".")]
    return sorted(found)


def _kept(draft: Path, path: str, *, was_at: str) -> KeptFile:
    file = draft / path
    return KeptFile(path=path, sha256=_sha256(file), byte_count=file.stat().st_size, was_at=was_at)


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()
