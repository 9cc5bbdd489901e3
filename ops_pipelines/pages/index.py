"""The first page: whether the autopilot is well, what is open, what ended lately, and which other pages there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.health import Health
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.rollout import OF_PEOPLE, Rollout
from ops_pipelines.report.html import render

_SHOWN_COUNT = 100
"""More open incidents than this are no list that a person reads."""
_CLOSED_COUNT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One page that the index names."""

    path: str
    """Relative to the index."""
    title: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One page's headline number."""

    path: str
    """Relative to the index."""
    title: str
    value: str
    about: str


def write_index(
    *,
    cluster: str,
    health: Health,
    incidents: Sequence[Incident],
    lately: Sequence[Incident] = (),
    rollouts: Sequence[Rollout] = (),
    tiles: Sequence[Tile] = (),
    listed: Sequence[Listed],
    has_reports: bool,
    now: datetime,
) -> str:
    """Return the page; of the open incidents the newest, with links where `has_reports` says that each has a page.

    `lately` are the incidents of the last hours, open or not: those that ended are shown, merged ones left out.
    `rollouts` are those that are not over, `tiles` the headline numbers of pages.
    """
    newest = sorted(incidents, key=lambda incident: incident.incident, reverse=True)
    ended = [each for each in lately if each.closed_at is not None and each.state is not IncidentState.MERGED]
    ended.sort(key=lambda incident: (incident.closed_at or incident.changed_at, incident.incident), reverse=True)
    return render(
        "index.html",
        {
            "cluster": cluster,
            "health": health,
            "incidents": newest[:_SHOWN_COUNT],
            "ended": ended[:_CLOSED_COUNT],
            "left_out_count": max(0, len(newest) - _SHOWN_COUNT),
            "rollouts": rollouts,
            "waits_for_people": OF_PEOPLE,
            "tiles": tiles,
            "listed": listed,
            "has_reports": has_reports,
            "now": now,
        },
    )
