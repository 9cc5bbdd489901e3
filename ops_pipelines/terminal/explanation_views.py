"""What `explain` answers, as values in the shape of its JSON: who suffers, what was kept, what is related.

Field names are the JSON keys. Reading and printing the page is `explain`'s.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.record import SavedBundle
from ops_pipelines.terminal.diagnosis_views import SightingView
from ops_pipelines.terminal.incident_views import IncidentView
from ops_pipelines.terminal.ledger_views import ActionView
from ops_pipelines.terminal.tables import first_of

_NAMES_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimView:
    """One job that suffers. Null is what the scheduler no longer tells."""

    job: str
    state: str | None
    gpu_count: int | None
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleView:
    """Where the evidence of one moment is kept. `is_in_ledger`: the chain holds the sha256 of its manifest."""

    reason: str
    saved_at: datetime
    place: str
    sha256: str
    is_in_ledger: bool
    files: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedView:
    incident: str
    state: str
    why: str
    """What the two have to do with each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationView:
    """The answer of `explain`: what broke, why we believe so, and what will be done."""

    cluster: str
    taken_at: datetime
    incident: IncidentView
    began_at: datetime
    """When the first evidence was seen, which may be before the incident was opened."""
    victims: tuple[VictimView, ...]
    sightings: tuple[SightingView, ...]
    actions: tuple[ActionView, ...]
    bundles: tuple[BundleView, ...]
    related: tuple[RelatedView, ...]
    problems: tuple[str, ...]


def view_victims(incident: Incident, jobs: Iterable[JobStatus]) -> tuple[VictimView, ...]:
    """Return the jobs that suffer, with what the scheduler says of the same attempt."""
    known = {job.job: job for job in jobs}
    found = []
    for attempt in sorted(incident.victims):
        job = known.get(attempt.job)
        found.append(
            VictimView(
                job=attempt.job,
                state=None if job is None else job.state.value,
                gpu_count=None if job is None else job.gpu_count,
                nodes=() if job is None else tuple(sorted(job.nodes)),
            )
        )
    return tuple(found)


def view_related(incident: Incident, others: Iterable[Incident]) -> tuple[RelatedView, ...]:
    """Return what was merged into this incident or it into, and what is open on the same nodes."""
    found = []
    for other in others:
        if other.incident == incident.incident:
            continue
        shared = sorted(incident.nodes & other.nodes)
        if _names(other.note, incident):
            why = other.note
        elif _names(incident.note, other):
            why = f"this one is {incident.note}"
        elif shared and other.is_open:
            why = f"open on the same node: {first_of(shared, _NAMES_SHOWN)}"
        else:
            continue
        found.append(RelatedView(incident=other.incident, state=other.state.value, why=why))
    return tuple(found)


def _names(note: str, incident: Incident) -> bool:
    return incident.incident in note.replace(",", " ").replace(".", " ").replace(";", " ").split()


def view_bundle(bundle: SavedBundle, *, incident: Incident) -> BundleView:
    """Return a bundle as it is shown."""
    return BundleView(
        reason=bundle.reason,
        saved_at=bundle.saved_at,
        place=bundle.place,
        sha256=bundle.digest,
        is_in_ledger=bundle.digest == incident.bundle,
        files=bundle.files,
        missing=bundle.missing,
    )
