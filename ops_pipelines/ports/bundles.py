"""Evidence bundles: what an incident rests on, kept apart from the ledger so that it can be read without us.

`Bundles` keeps them, `Recollection` tells what the lake still knows of a stretch of time. What goes into a bundle is
`flow.evidence.bundle`'s business.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ops_pipelines.domain.identity import Digest, IncidentId, JobId, NodeName
from ops_pipelines.ports.lake import Rows


class BundleError(RuntimeError):
    """A bundle cannot be kept or read: disk full, no right, too large. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBundle:
    """One bundle that is kept."""

    incident: IncidentId
    reason: str
    """`opened`, `changed`, or the plan before whose first act it was saved: one bundle of each."""
    saved_at: datetime
    place: str
    """Where a person finds it: a directory or URL."""
    digest: Digest
    """sha256 of `manifest`."""
    manifest: str
    """JSON: what the bundle holds, with the sha256 of every file."""
    files: tuple[str, ...]
    missing: tuple[str, ...]
    """What should be in it and is not, one sentence each."""


class Bundles(Protocol):
    """Keeps evidence bundles: each whole or not at all."""

    def save(
        self,
        incident: IncidentId,
        *,
        reason: str,
        at: datetime,
        documents: Mapping[str, object],
        files: Mapping[str, bytes],
        missing: Sequence[str],
    ) -> SavedBundle:
        """Keep a bundle in place of one of the same incident and reason.

        `documents` are values of the domain by file name (`incident.json`), `files` are kept as they are. Raises
        BundleError; then what was kept before is still there.
        """
        ...

    def of(self, incident: IncidentId) -> tuple[SavedBundle, ...]:
        """Return the bundles of an incident, oldest first; none if there is none. Raises BundleError."""
        ...

    def tidy(self, now: datetime, *, keep: Collection[IncidentId]) -> int:
        """Delete what has served its time, but never a bundle of an incident in `keep`; return how many incidents
        lost theirs. Raises BundleError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledLine:
    """One line that a kernel or a job wrote. Its text is untrusted."""

    written_at: datetime
    node: NodeName
    job: str
    source: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """What the lake knows of some nodes and jobs in a stretch of time."""

    lines: tuple[RecalledLine, ...]
    """In the order of their times."""
    telemetry: Rows | None
    """Rows of `gpu_telemetry`; None where there are none."""
    missing: tuple[str, ...]
    """What it was asked for and has not, one sentence each."""


class Recollection(Protocol):
    """What surrounded an event, as far as it was kept."""

    def recall(
        self,
        *,
        nodes: Collection[NodeName],
        jobs: Collection[JobId],
        start: datetime,
        end: datetime,
        nearest_to: datetime,
        max_lines: int,
    ) -> Recalled:
        """Return what is known of start <= time < end; of more lines than `max_lines` those nearest to the moment.

        No node and no job gives nothing. Raises LakeError.
        """
        ...
