"""The calendar that people subscribe to, as iCalendar (RFC 5545): one event for each planned time, under a stable UID.

What stands in it is `people.planned_times`. Text of logs and users is one line in it and never a property of its
own.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from icalendar import Calendar, Event

from ops_pipelines.lake.quantities import readable
from ops_pipelines.people.planned_times import PlannedKind, PlannedTime

MEDIA_TYPE = "text/calendar; charset=utf-8"
_ASKED_AGAIN_AFTER = timedelta(minutes=15)
_MOST_TITLE_LENGTH = 200


def write_calendar(times: Iterable[PlannedTime], *, cluster: str, now: datetime) -> bytes:
    """Return the feed of one cluster."""
    calendar = Calendar()
    calendar.add("prodid", "-//ops-pipelines//planned work//EN")
    calendar.add("version", "2.0")
    calendar.add("method", "PUBLISH")
    calendar.add("x-wr-calname", f"{readable(cluster)}: planned work")
    calendar.add("refresh-interval", _ASKED_AGAIN_AFTER, parameters={"VALUE": "DURATION"})
    for each in times:
        calendar.add_component(_event(each, cluster=cluster, now=now))
    return bytes(calendar.to_ical())


def _event(planned: PlannedTime, *, cluster: str, now: datetime) -> Event:
    event = Event()
    event.add("uid", f"{planned.kind.value}-{planned.name}@{readable(cluster)}.ops-pipelines")
    event.add("dtstamp", now.astimezone(UTC).replace(microsecond=0))
    begins_at, ends_at = planned.begins_at.astimezone(UTC), planned.ends_at.astimezone(UTC)
    if planned.kind is PlannedKind.REPAIR:
        # It lasts until somebody comes: whole days, up to today.
        event.add("dtstart", begins_at.date())
        event.add("dtend", ends_at.date() + timedelta(days=1))
    else:
        event.add("dtstart", begins_at.replace(microsecond=0))
        event.add("dtend", ends_at.replace(microsecond=0))
    event.add("summary", readable(planned.title)[:_MOST_TITLE_LENGTH])
    event.add("description", readable(planned.about))
    event.add("categories", [planned.kind.value])
    event.add("transp", "TRANSPARENT")
    return event
