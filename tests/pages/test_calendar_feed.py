"""The calendar: a client reads it back, every text is a text, and the same thing keeps its UID."""

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta

import pytest
from icalendar import Calendar

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.policy import FreezeWindow, WeeklyWindow
from ops_pipelines.people.planned_work import PlannedKind, PlannedTime, planned_times
from ops_pipelines.terminal.served_pages import write_calendar
from tests.flow.fake_silencer import FakeSilencer
from tests.ports.ledger_samples import decide, incident
from tests.ports.rollout_samples import NODES, RELEASE, node, rollout, rollout_plan
from tests.ports.silencer_contract import wanted
from tests.shell.desk import Desk

DAY = timedelta(days=1)
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
    weekly = WeeklyWindow(
        name="night shift", days=frozenset({5, 6}), begins=time(22), ends=time(2), timezone="Europe/Berlin"
    )
    policy = replace(cluster.rules.policy, freeze_windows=(window, long_gone), maintenance_windows=(weekly,))
    silencer = FakeSilencer()
    silencer.silence(wanted("gpu002"), starts_at=now, ends_at=now + timedelta(hours=1))
    probation = replace(incident(1, state=IncidentState.PROBATION, at=now), returned_at=now)
    repair = replace(incident(2, state=IncidentState.IN_REPAIR, at=now), incident=IncidentId("INC-0002"))
    decide(cluster.ledger, probation, repair, at=now)
    _open_rollout(cluster, at=now)
    return replace(cluster, rules=replace(cluster.rules, policy=policy), silencer=silencer)


def _open_rollout(cluster: Cluster, *, at: datetime) -> None:
    """Open a rollout of three waves, a day each, of which the last has no time expected."""
    opened = rollout(1)
    first, second, third = opened.waves
    waves = (
        replace(first, planned_from=at, planned_until=at + DAY),
        replace(second, planned_from=at + DAY, planned_until=at + 2 * DAY),
        replace(third, planned_from=None, planned_until=None),
    )
    opened = replace(opened, waves=waves, created_at=at, since=at)
    nodes = [node(1, name) for name in NODES]
    cluster.ledger.open_rollout(opened, nodes, plan=rollout_plan(opened), release=RELEASE, actor="ada", now=at)


def test_everything_that_has_a_time_is_planned(cluster: Cluster) -> None:
    found = planned_times(cluster)

    assert {each.kind for each in found} == set(PlannedKind) - {PlannedKind.WAIT}
    assert [each.title for each in found if each.kind is PlannedKind.FREEZE] == ["Freeze: visit"]
    assert [each.title for each in found if each.kind is PlannedKind.ROLLOUT] == [
        "ROLL-0001 driver-580: wave 1 of 3, 1 node(s)",
        "ROLL-0001 driver-580: wave 2 of 3, 2 node(s)",
    ]
    assert all(each.begins_at < each.ends_at for each in found)
    Calendar.from_ical(write_calendar(found, cluster="lab", now=cluster.clock.now()))


def test_silent_alertmanager_costs_its_silences_only(cluster: Cluster) -> None:
    down = FakeSilencer()
    down.is_down = True

    found = planned_times(replace(cluster, silencer=down))

    assert {each.kind for each in found} == set(PlannedKind) - {PlannedKind.WAIT, PlannedKind.SILENCE}


class Later:
    """A clock that shows another time."""

    def __init__(self, cluster: Cluster, by: timedelta) -> None:
        self._at = cluster.clock.now() + by

    def now(self) -> datetime:
        return self._at

    def wait(self, seconds: float) -> None:
        raise AssertionError("nobody waits here")


def of_kind(kind: PlannedKind, cluster: Cluster, *, later: timedelta = timedelta(0)) -> list[PlannedTime]:
    found = planned_times(replace(cluster, clock=Later(cluster, later)))
    return [each for each in found if each.kind is kind]


def test_maintenance_windows_of_the_next_30_days_stand_in_it_less_freezes(cluster: Cluster) -> None:
    now = cluster.clock.now()

    windows = of_kind(PlannedKind.WINDOW, cluster)

    assert len(windows) == 9
    assert {each.title for each in windows} == {"Maintenance window: night shift"}
    assert all(now < each.ends_at and each.begins_at < now + timedelta(days=30) for each in windows)
    freeze_ends_at = now + DAY
    assert all(each.begins_at >= freeze_ends_at for each in windows)


def test_window_stays_the_same_event_while_it_comes_nearer_and_is_open(cluster: Cluster) -> None:
    coming = of_kind(PlannedKind.WINDOW, cluster)[0]
    midway = coming.begins_at + (coming.ends_at - coming.begins_at) / 2

    assert of_kind(PlannedKind.WINDOW, cluster, later=midway - cluster.clock.now())[0] == coming


def test_cluster_without_windows_has_none_in_its_calendar(cluster: Cluster) -> None:
    policy = replace(cluster.rules.policy, maintenance_windows=None)
    always = replace(cluster, rules=replace(cluster.rules, policy=policy))

    assert of_kind(PlannedKind.WINDOW, always) == []


@pytest.mark.parametrize(
    ("later", "moved"),
    [
        (timedelta(0), timedelta(0)),
        (DAY, timedelta(0)),
        (DAY + timedelta(hours=5), timedelta(hours=5)),
        (timedelta(days=9), timedelta(days=8)),
    ],
)
def test_waves_that_come_move_with_the_present_one_when_it_is_late(
    cluster: Cluster, later: timedelta, moved: timedelta
) -> None:
    began_at = cluster.clock.now()

    first, second = of_kind(PlannedKind.ROLLOUT, cluster, later=later)

    assert (first.begins_at, first.ends_at) == (began_at, began_at + DAY + moved)
    assert (second.begins_at, second.ends_at) == (began_at + DAY + moved, began_at + 2 * DAY + moved)
    assert (first.name, second.name) == ("ROLL-0001-w1", "ROLL-0001-w2")


def test_wave_that_is_early_begins_now(cluster: Cluster) -> None:
    early = timedelta(hours=-3)

    first, second = of_kind(PlannedKind.ROLLOUT, cluster, later=early)

    assert first.begins_at == cluster.clock.now() + early
    assert second.begins_at == first.begins_at + DAY
