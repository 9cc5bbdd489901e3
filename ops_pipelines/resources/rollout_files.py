"""The directory of releases beside cluster.yaml, and the calendars that policy.yaml names."""

from collections.abc import Sequence
from pathlib import Path

from ops_pipelines.core.record import CalendarText
from ops_pipelines.core.release import CompatibilityTables, Release
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.resources.catalogue_releases import read_tables
from ops_pipelines.resources.config.release_file import find_release, hash_artifacts, read_here, release_names

_LONGEST_CALENDAR = 10_000_000


class ReleaseDirectory:
    """Reads everything anew each time (`core.record.RolloutFiles`)."""

    def __init__(self, directory: Path, *, calendars: Sequence[Path]) -> None:
        self._directory = directory
        self._calendars = tuple(calendars)

    def release_names(self) -> tuple[str, ...]:
        return release_names(self._directory)

    def release(self, name: str) -> Release:
        return find_release(self._directory, name)

    def check_artifacts(self, release: Release) -> None:
        hash_artifacts(release, read_here)

    def tables(self) -> CompatibilityTables:
        return read_tables(self._directory / "catalogue")

    def calendars(self) -> tuple[CalendarText, ...]:
        return tuple(_read(path) for path in self._calendars)


def _read(path: Path) -> CalendarText:
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_CALENDAR + 1)
    except OSError as problem:
        raise SourceUnavailable(f"calendar {path}: {problem.strerror or problem}") from problem
    if len(text) > _LONGEST_CALENDAR:
        raise SourceUnavailable(f"calendar {path} is longer than {_LONGEST_CALENDAR} bytes; that is no calendar")
    return CalendarText(name=path.name, text=text)
