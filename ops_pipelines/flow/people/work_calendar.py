"""When rollouts may take nodes: windows and freezes of policy.yaml and of the calendars that it names, put together."""

from datetime import datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.periods import Stretch, WorkCalendar
from ops_pipelines.domain.lifecycle.planning.planner import HORIZON
from ops_pipelines.lake.formats.calendar import work_calendar

_LOOKED_BACK = timedelta(days=1)
"""A window that is open now may have opened yesterday."""


def calendar_of(cluster: Cluster, *, now: datetime) -> tuple[WorkCalendar, tuple[Rejected, ...]]:
    """Return when rollouts may take nodes, and the entries of calendars that nobody could read.

    Raises SourceUnavailable where a calendar that the policy names is not there: it may hold a freeze.
    """
    policy = cluster.rules.policy
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)  # The same all day: calendars are read once for it.
    freezes = [
        Stretch(begins_at=each.begins_at, ends_at=each.ends_at, name=each.name) for each in policy.freeze_windows
    ]
    files = () if cluster.rollout_files is None else cluster.rollout_files.calendars()
    return work_calendar(
        policy.maintenance_windows,
        {each.name: each.text for each in files},
        freezes=freezes,
        since=today - _LOOKED_BACK,
        until=today + HORIZON + timedelta(days=1),
    )
