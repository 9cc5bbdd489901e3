"""Where the state directory is, also where cluster.yaml, which says it, is broken or gone.

For orders that must always work (`pause`) and for showing what is known. So every place counts that is known: what was
named, what the file says on the line of that key, broken or not, and what this user's last commands found.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ops_pipelines.resources.config.kept_files import content_of
from ops_pipelines.resources.config.strict_yaml import ConfigError, expand_home
from ops_pipelines.resources.whole_file import put_whole

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
