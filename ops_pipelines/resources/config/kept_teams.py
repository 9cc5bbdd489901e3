"""What teams.yaml says by now, and where it cannot be read any more, what it said last.

A copy of the last good file lies in the state directory, so that a slip in a new one stops no morning, in whichever
process it is met. What the file means is `teams_file`'s; `check-config` reads it without the copy, and names faults.
"""

from dataclasses import dataclass
from pathlib import Path

from ops_pipelines.domain.quota.contracts import Agreements
from ops_pipelines.resources.config.strict_yaml import ConfigError
from ops_pipelines.resources.config.teams_file import read_teams
from ops_pipelines.resources.whole_file import put_whole_bytes

LAST_GOOD_FILE = "last_good_teams.yaml"
_HOLDS = "cannot be used as it stands, and what it said before holds; `ops-pipelines check-config` names the fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldOfTeams:
    """What was agreed, and what is the matter with the file that says so."""

    agreements: Agreements
    trouble: str = ""
    """Why an earlier file counts; empty: the present one does."""


def read_kept_teams(path: Path, *, kept: Path) -> ToldOfTeams:
    """Return what `path` says, or what `kept` holds of it from before. Raises ConfigError where neither can be used."""
    before = _content(path)
    try:
        agreements = read_teams(path)
    except ConfigError:
        if not kept.exists():
            raise
        return ToldOfTeams(agreements=read_teams(kept), trouble=f"{path.name} {_HOLDS}")
    # Changed while it was read: the next reading keeps it.
    if before is not None and before == _content(path) and before != _content(kept):
        try:
            put_whole_bytes(kept, before)
        except OSError as problem:
            why = problem.strerror or type(problem).__name__
            return ToldOfTeams(
                agreements=agreements,
                trouble=f"no copy of {path.name} could be kept ({why}): make the state directory writable",
            )
    return ToldOfTeams(agreements=agreements)


def stamp_of(path: Path | None) -> tuple[int, int] | None:
    """Return what tells one content of a file from the next; None without a file."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
