"""What operators lay down in files for rollouts, beside the policy: releases, calendars, and the rules of versions."""

from dataclasses import dataclass
from typing import Protocol

from ops_pipelines.domain.lifecycle.release import Release
from ops_pipelines.domain.lifecycle.versions.compatibility_tables import CompatibilityTables


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarText:
    """One iCalendar file as it lies there. Untrusted: `frames.formats.maintenance_calendar` reads it."""

    name: str
    text: bytes


class RolloutFiles(Protocol):
    """Reads them anew each time: what an operator changes holds from the next look on."""

    def release_names(self) -> tuple[str, ...]:
        """Return the names of the releases that lie there, readable or not, in order."""
        ...

    def release(self, name: str) -> Release:
        """Return one release; raise PolicyError with every fault of its file, or the names that there are."""
        ...

    def check_artifacts(self, release: Release) -> None:
        """Return if the files that lie here are what the release says; raise PolicyError with each that is not."""
        ...

    def tables(self) -> CompatibilityTables:
        """Return which versions run with which, and in which order they are installed."""
        ...

    def calendars(self) -> tuple[CalendarText, ...]:
        """Return the calendars that the policy names. Raises SourceUnavailable if one cannot be read."""
        ...
