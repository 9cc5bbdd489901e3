"""The words that all notes share: how a place, a sureness, a time, a loss and a repair are said."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from ops_pipelines.domain.identity import NodeName
from ops_pipelines.domain.incident import Incident
from ops_pipelines.domain.meaning.finding import Response
from ops_pipelines.domain.topology import Topology

_SHOWN_COUNT = 8
_LONGEST_CAUSE = 160

ON_CALL = "operator on call"
"""The one recipient of that audience: who that is tonight, the channels know."""
REPAIR_WORDS = {
    Response.ISOLATE: "take the node out of service and test it",
    Response.RESET_GPU: "reset the GPU",
    Response.REBOOT_NODE: "reboot the node",
    Response.POWER_CYCLE: "fence the node by its power and start it again",
    Response.REIMAGE: "install the node anew",
    Response.RETURN_TO_VENDOR: "hand the node over for repair by hands",
}


def places(incident: Incident, topology: Topology) -> str:
    """Return where an incident is: `gpu003 (rack r1)`, or the first of many nodes and how many more."""
    names = sorted(incident.nodes or incident.seen_on)
    if not names:
        return "no node"
    shown = [_place(name, topology) for name in names[:_SHOWN_COUNT]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def names_of(incident: Incident) -> str:
    """Return the same without racks, for a title."""
    names = sorted(incident.nodes or incident.seen_on)
    return "the cluster" if not names else f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def _place(name: NodeName, topology: Topology) -> str:
    place = topology.places.get(name)
    return name if place is None else f"{name} (rack {place.rack})"


def sureness(incident: Incident) -> str:
    """Return how sure the diagnosis is, and what speaks against it."""
    if incident.hypothesis is None:
        return "not estimated"
    against = incident.hypothesis.evidence_against
    return f"{incident.hypothesis.confidence:.0%}" + (f"; against it: {against[0]}" if against else "")


def short_cause(incident: Incident) -> str:
    """Return what is wrong in one line of a digest."""
    cause = " ".join(incident.cause.split())
    return cause if len(cause) <= _LONGEST_CAUSE else f"{cause[:_LONGEST_CAUSE]}..."


def subject_of(incident: Incident) -> str:
    """Return the subject of the incident's thread: it never changes, so that mail programs keep the thread together."""
    return f"{incident.incident} since {clock_time(incident.opened_at)}"


def clock_time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def minutes(duration: timedelta) -> str:
    """Return a duration as people say it: `40 s`, `6 min`, `3.5 h`."""
    seconds = max(0.0, duration.total_seconds())
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def body_of(parts: Iterable[tuple[str, str]]) -> str:
    """Return labelled sentences, one a line, without those that have nothing to say."""
    # On one line each: a line break in what a log said would begin a line that looks like ours.
    return "\n".join(f"{label}: {' '.join(said.split())}" for label, said in parts if said)


def gpu_hours(hours: float) -> str:
    """Return GPU-hours with as many digits as mean something."""
    return f"{hours:.2f} GPU-hours" if hours < 10 else f"{hours:,.0f} GPU-hours"
