"""The calendar: a client reads it back, every text is a text, and the same thing keeps its UID."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from icalendar import Calendar

from ops_pipelines.domain.identity import IncidentId
from ops_pipelines.domain.incident import IncidentState
from ops_pipelines.domain.policy import FreezeWindow
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.people.planned_times import PlannedKind, PlannedTime, planned_times
from ops_pipelines.pages.calendar_feed import write_calendar
from tests.flow.fake_silencer import FakeSilencer
from tests.ports.ledger_samples import decide, incident
from tests.ports.silencer_contract import wanted
from tests.shell.desk import Desk

NOW = datetime(2026, 11, 22, 9, 40, 1, 5, tzinfo=UTC)
HOSTILE = "a;b,c\\d\r\nEND:VEVENT\r\nBEGIN:VEVENT\nSUMMARY:forged \u2028 \x07 <b> größer"


def planned(kind: PlannedKind = PlannedKind.PROBATION, **changed: object) -> PlannedTime:
    plain = PlannedTime(
        kind=kind, name="INC-0001", begins_at=NOW, ends_at=NOW + timedelta(hours=24), title="Probation of gpu001"
    )  # fmt: skip
    return replace(plain, **changed)  # type: ignore[arg-type]  # names of its own fields


def test_client_reads_every_event_back() -> None:
    feed = write_calendar([planned(kind) for kind in PlannedKind], cluster="lab", now=NOW)

    calendar = Calendar.from_ical(feed)
    assert calendar.errors == []
    assert [str(event["uid"]) for event in calendar.events] == [
        f"{kind.value}-INC-0001@lab.ops-pipelines" for kind in PlannedKind
    ]
    first = calendar.events[1]
    assert (first.start, first.end) == (NOW.replace(microsecond=0), NOW.replace(microsecond=0) + timedelta(hours=24))
    assert calendar.events[-1].start == date(2026, 11, 22)
    assert calendar.events[-1].end == date(2026, 11, 24)
    assert b"\r\n" in feed
    assert all(len(line) <= 75 for line in feed.split(b"\r\n"))


def test_text_of_logs_is_text_and_no_event_of_its_own() -> None:
    feed = write_calendar([planned(title=HOSTILE, about=HOSTILE)], cluster="lab", now=NOW)

    (event,) = Calendar.from_ical(feed).events
    assert str(event["summary"]).startswith("a;b,c\\d\\x0d\\x0aEND:VEVENT")
    assert "größer" in str(event["description"])
    assert feed.count(b"BEGIN:VEVENT") - feed.count(b"\\x0aBEGIN:VEVENT") == 1


def test_uid_stays_while_the_times_move() -> None:
    feeds = [
        write_calendar([planned(ends_at=NOW + timedelta(hours=hours))], cluster="lab", now=NOW + timedelta(hours=hours))
        for hours in (1, 2)
    ]

    uids = {str(Calendar.from_ical(feed).events[0]["uid"]) for feed in feeds}
    assert len(uids) == 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    cluster = Desk(tmp_path_factory.mktemp("desk")).cluster
    now = cluster.clock.now()
    window = FreezeWindow(name="visit", begins_at=now, ends_at=now + timedelta(days=1))
    long_gone = FreezeWindow(name="old", begins_at=now - timedelta(days=60), ends_at=now - timedelta(days=59))
    policy = replace(cluster.rules.policy, freeze_windows=(window, long_gone))
    silencer = FakeSilencer()
    silencer.silence(wanted("gpu002"), starts_at=now, ends_at=now + timedelta(hours=1))
    probation = replace(incident(1, state=IncidentState.PROBATION, at=now), returned_at=now)
    repair = replace(incident(2, state=IncidentState.IN_REPAIR, at=now), incident=IncidentId("INC-0002"))
    decide(cluster.ledger, probation, repair, at=now)
    return replace(cluster, rules=replace(cluster.rules, policy=policy), silencer=silencer)


def test_everything_that_has_a_time_is_planned(cluster: Cluster) -> None:
    found = planned_times(cluster)

    assert {each.kind for each in found} == set(PlannedKind) - {PlannedKind.WAIT}
    assert [each.title for each in found if each.kind is PlannedKind.FREEZE] == ["Freeze: visit"]
    assert all(each.begins_at < each.ends_at for each in found)
    Calendar.from_ical(write_calendar(found, cluster="lab", now=cluster.clock.now()))


def test_silent_alertmanager_costs_its_silences_only(cluster: Cluster) -> None:
    down = FakeSilencer()
    down.is_down = True

    found = planned_times(replace(cluster, silencer=down))

    assert {each.kind for each in found} == {PlannedKind.FREEZE, PlannedKind.PROBATION, PlannedKind.REPAIR}
