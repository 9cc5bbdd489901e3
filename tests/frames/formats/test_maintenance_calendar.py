"""Windows and freezes from weekly rules and iCalendar files: clocks put forward and back, entries nobody can read."""

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.periods import Interval, WorkCalendar, instant_of
from ops_pipelines.core.policy import PolicyError, WeeklyWindow
from ops_pipelines.lake.formats import calendar as calendar_entries
from ops_pipelines.lake.formats.calendar import weekly_intervals, work_calendar


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    calendar_entries.read_calendar.cache_clear()


BERLIN = ZoneInfo("Europe/Berlin")
EVERY_DAY = frozenset(range(7))
SINCE, UNTIL = datetime(2026, 3, 20, tzinfo=UTC), datetime(2026, 4, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
WINDOW = ("DTSTART:20260321T220000Z", "DTEND:20260322T040000Z")


def weekly(begins: str, ends: str, zone: str = "Europe/Berlin", days: frozenset[int] = EVERY_DAY) -> WeeklyWindow:
    return WeeklyWindow(
        name="night", days=days, begins=time.fromisoformat(begins), ends=time.fromisoformat(ends), timezone=zone
    )


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def event(*lines: str, uid: str = "a") -> str:
    return "\r\n".join(("BEGIN:VEVENT", f"UID:{uid}", "DTSTAMP:20260101T000000Z", *lines, "END:VEVENT", ""))


def file_of(*parts: str) -> bytes:
    return ("BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:test\r\n" + "".join(parts) + "END:VCALENDAR\r\n").encode()


def read(*files: bytes, windows: Sequence[WeeklyWindow] | None = None, zone: str = "UTC") -> WorkCalendar:
    calendar, rejected = work_calendar(
        windows,
        {f"{number}.ics": text for number, text in enumerate(files)},
        freezes=(),
        since=SINCE,
        until=UNTIL,
        zone=zone,
    )
    assert rejected == ()
    return calendar


def rejected_of(*files: bytes) -> tuple[WorkCalendar, tuple[Rejected, ...]]:
    texts = {f"{number}.ics": text for number, text in enumerate(files)}
    return work_calendar(None, texts, freezes=(), since=SINCE, until=UNTIL)


def spans(found: Sequence[Interval] | None) -> list[tuple[str, str]]:
    return [(f"{each.begins_at:%m-%dT%H:%M}", f"{each.ends_at:%m-%dT%H:%M}") for each in found or ()]


def windows_of(*lines: str, zone: str = "UTC") -> list[tuple[str, str]]:
    return spans(read(file_of(event(*lines)), zone=zone).windows)


# -- weekly windows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evening", "hours"),
    [("2026-03-27", 6), ("2026-03-28", 5), ("2026-03-29", 6), ("2026-10-23", 6), ("2026-10-24", 7), ("2026-10-25", 6)],
)
def test_a_night_is_an_hour_shorter_or_longer_when_clocks_are_put_forward_or_back(evening: str, hours: int) -> None:
    noon = at(f"{evening}T12:00")

    (found,) = weekly_intervals(weekly("22:00", "04:00"), since=noon, until=noon + 12 * HOUR)

    assert found.ends_at - found.begins_at == hours * HOUR
    assert found.begins_at.astimezone(BERLIN).hour == 22
    assert found.ends_at.astimezone(BERLIN).hour == 4


@pytest.mark.parametrize(
    ("local", "zone", "expected"),
    [
        ("2026-03-29T01:59", "Europe/Berlin", "2026-03-29T00:59"),
        ("2026-03-29T02:00", "Europe/Berlin", "2026-03-29T01:00"),
        ("2026-03-29T02:30", "Europe/Berlin", "2026-03-29T01:00"),
        ("2026-03-29T02:59:59", "Europe/Berlin", "2026-03-29T01:00"),
        ("2026-03-29T03:00", "Europe/Berlin", "2026-03-29T01:00"),
        ("2026-10-25T01:59", "Europe/Berlin", "2026-10-24T23:59"),
        ("2026-10-25T02:00", "Europe/Berlin", "2026-10-25T00:00"),
        ("2026-10-25T02:59", "Europe/Berlin", "2026-10-25T00:59"),
        ("2026-10-25T03:00", "Europe/Berlin", "2026-10-25T02:00"),
        ("2026-10-04T02:15", "Australia/Lord_Howe", "2026-10-03T15:30"),
        ("2011-12-30T12:00", "Pacific/Apia", "2011-12-30T10:00"),
    ],
)
def test_a_time_that_is_skipped_is_the_next_that_comes_and_a_repeated_one_the_first(
    local: str, zone: str, expected: str
) -> None:
    assert instant_of(datetime.fromisoformat(local), ZoneInfo(zone)) == at(expected)


@pytest.mark.parametrize(
    ("begins", "ends", "hours"), [("02:30", "04:00", 1), ("01:00", "02:30", 1), ("02:10", "02:50", None)]
)
def test_a_window_of_a_skipped_hour_begins_behind_it_or_not_at_all(begins: str, ends: str, hours: int | None) -> None:
    found = list(weekly_intervals(weekly(begins, ends), since=at("2026-03-29T00:00"), until=at("2026-03-29T12:00")))

    assert [each.ends_at - each.begins_at for each in found] == ([] if hours is None else [hours * HOUR])


@pytest.mark.parametrize(("ends", "hours"), [("21:59", 24 - 1 / 60), ("22:00", 24), ("22:01", 1 / 60)])
def test_what_ends_at_or_before_its_begin_ends_the_next_day(ends: str, hours: float) -> None:
    window = weekly("22:00", ends, zone="UTC", days=frozenset({0}))

    (found,) = weekly_intervals(window, since=at("2026-03-23T12:00"), until=at("2026-03-24T00:00"))

    assert found.ends_at - found.begins_at == timedelta(hours=hours)


@pytest.mark.parametrize(
    ("since", "until", "count"),
    [
        ("2026-03-24T04:00", "2026-03-24T21:59", 0),
        ("2026-03-24T03:59", "2026-03-24T22:00", 1),
        ("2026-03-24T04:00", "2026-03-24T22:01", 1),
    ],
)
def test_a_window_is_given_whole_if_any_part_of_it_was_asked_for(since: str, until: str, count: int) -> None:
    found = list(weekly_intervals(weekly("22:00", "04:00", zone="UTC"), since=at(since), until=at(until)))

    assert [each.ends_at - each.begins_at for each in found] == [6 * HOUR] * count


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["UTC", "Asia/Kolkata", "Pacific/Kiritimati", "Pacific/Pago_Pago"]),
    st.frozensets(st.integers(0, 6), min_size=1),
    st.times().map(lambda each: each.replace(second=0, microsecond=0)),
    st.times().map(lambda each: each.replace(second=0, microsecond=0)),
    st.integers(0, 30 * 24 * 60),
)
def test_where_clocks_stay_a_window_is_open_as_the_clock_on_the_wall_says(
    zone: str, days: frozenset[int], begins: time, ends: time, minute: int
) -> None:
    moment = SINCE + timedelta(minutes=minute)
    window = WeeklyWindow(name="w", days=days, begins=begins, ends=ends, timezone=zone)
    local = moment.astimezone(ZoneInfo(zone))
    clock, yesterday = local.time(), (local.weekday() - 1) % 7
    if ends > begins:
        is_open = local.weekday() in days and begins <= clock < ends
    else:
        is_open = (local.weekday() in days and clock >= begins) or (yesterday in days and clock < ends)

    found = weekly_intervals(window, since=SINCE, until=UNTIL)

    assert any(each.holds(moment) for each in found) is is_open


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]), st.times(), st.times())
def test_windows_of_a_year_never_overlap_themselves_and_begin_as_written(zone: str, begins: time, ends: time) -> None:
    begins, ends = (each.replace(second=0, microsecond=0, tzinfo=None) for each in (begins, ends))
    window = WeeklyWindow(name="w", days=EVERY_DAY, begins=begins, ends=ends, timezone=zone)

    found = list(weekly_intervals(window, since=at("2026-01-01T00:00"), until=at("2027-01-01T00:00")))

    assert 364 <= len(found) <= 368
    for one, other in pairwise(found):
        assert one.ends_at <= other.begins_at
    late = [each for each in found if each.begins_at.astimezone(ZoneInfo(zone)).time() != begins]
    assert len(late) <= 1


def test_a_zone_that_nobody_knows_is_the_operators_mistake() -> None:
    with pytest.raises(PolicyError, match="maintenance window 'night': the time zone is 'Mars/Base'"):
        read(windows=[weekly("22:00", "04:00", zone="Mars/Base")])


# -- what is declared -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("windows", "files", "expected"),
    [
        (None, [], None),
        ((), [], ()),
        (None, [file_of()], None),
        (None, [file_of(event(*WINDOW, "X-OPS-KIND:freeze"))], None),
        (None, [file_of(event("DTSTART:20200101T000000Z", "DURATION:PT1H"))], ()),
        (None, [file_of(event(*WINDOW, "STATUS:CANCELLED"))], ()),
    ],
    ids=["nothing", "empty in the policy", "empty file", "freezes alone", "window long ago", "cancelled window"],
)
def test_any_time_will_do_only_where_nobody_declares_a_window(windows, files, expected) -> None:
    assert read(*files, windows=windows).windows == expected


def test_weekly_windows_files_and_freezes_come_together() -> None:
    kept = Interval(begins_at=at("2026-03-25T00:00"), ends_at=at("2026-03-26T00:00"), name="policy")
    files = {"a.ics": file_of(event(*WINDOW)), "b.ics": file_of(event(*WINDOW, "X-OPS-KIND:FREEZE", "SUMMARY:visit"))}

    calendar, rejected = work_calendar(
        [weekly("22:00", "04:00", zone="UTC", days=frozenset({0}))], files, freezes=[kept], since=SINCE, until=UNTIL
    )

    assert rejected == ()
    assert [each.name for each in calendar.freezes] == ["policy", "visit"]
    assert spans(calendar.windows)[-1] == ("03-21T22:00", "03-22T04:00")
    assert len(calendar.windows or ()) == 5
    assert calendar.known_until == UNTIL
    assert not calendar.is_open(at("2026-03-21T23:00"))


@pytest.mark.parametrize(
    ("lines", "is_freeze"),
    [
        ((), False),
        (("X-OPS-KIND:window", "CATEGORIES:FREEZE"), False),
        (("X-OPS-KIND:Freeze",), True),
        (("CATEGORIES:FREEZE",), True),
        (("CATEGORIES:works,freeze",), True),
        (("CATEGORIES:works", "CATEGORIES:Freeze"), True),
        (("CATEGORIES:freezer",), False),
        (("SUMMARY:freeze",), False),
    ],
)
def test_an_entry_is_a_window_unless_it_calls_itself_a_freeze(lines: tuple[str, ...], is_freeze: bool) -> None:
    calendar = read(file_of(event(*WINDOW, *lines)))

    assert (len(calendar.freezes), len(calendar.windows or ())) == ((1, 0) if is_freeze else (0, 1))


# -- times of files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("DTSTART:20260328T220000Z", "DTEND:20260329T040000Z"), ("03-28T22:00", "03-29T04:00")),
        (("DTSTART:20260328T220000", "DTEND:20260329T040000"), ("03-28T21:00", "03-29T02:00")),
        (
            ("DTSTART;TZID=America/New_York:20260328T220000", "DURATION:PT6H"),
            ("03-29T02:00", "03-29T08:00"),
        ),
        (
            ("DTSTART;TZID=W. Europe Standard Time:20260328T220000", "DURATION:PT6H"),
            ("03-28T21:00", "03-29T03:00"),
        ),
        (("DTSTART;VALUE=DATE:20260329", "DTEND;VALUE=DATE:20260330"), ("03-28T23:00", "03-29T22:00")),
        (("DTSTART;VALUE=DATE:20260329",), ("03-28T23:00", "03-29T22:00")),
        (("DTSTART;VALUE=DATE:20260328", "DURATION:P2D"), ("03-27T23:00", "03-29T22:00")),
        (("DTSTART;TZID=Europe/Berlin:20260328T220000", "DURATION:P1D"), ("03-28T21:00", "03-29T20:00")),
        (("DTSTART;TZID=Europe/Berlin:20260329T023000", "DURATION:PT1H"), ("03-29T01:00", "03-29T02:00")),
    ],
    ids=["UTC", "floating", "zone", "Windows zone", "day", "day alone", "days", "P1D is a day", "skipped"],
)
def test_times_are_of_the_zone_that_they_name_else_of_the_given_one(
    lines: tuple[str, ...], expected: tuple[str, str]
) -> None:
    assert windows_of(*lines, zone="Europe/Berlin") == [expected]


def test_an_end_is_a_time_on_the_clock_and_a_duration_is_as_long_as_it_says() -> None:
    begin = "DTSTART;TZID=Europe/Berlin:20260327T220000"
    rule = "RRULE:FREQ=DAILY;COUNT=3"

    by_end = windows_of(begin, "DTEND;TZID=Europe/Berlin:20260328T040000", rule)
    by_length = windows_of(begin, "DURATION:PT6H", rule)

    assert by_end == [("03-27T21:00", "03-28T03:00"), ("03-28T21:00", "03-29T02:00"), ("03-29T20:00", "03-30T02:00")]
    assert by_length == [("03-27T21:00", "03-28T03:00"), ("03-28T21:00", "03-29T03:00"), ("03-29T20:00", "03-30T02:00")]


def test_a_calendar_with_a_zone_of_its_own_keeps_it() -> None:
    text = file_of("X-WR-TIMEZONE:America/New_York\r\n", event("DTSTART:20260321T220000", "DURATION:PT1H"))

    assert spans(read(text, zone="Europe/Berlin").windows) == [("03-22T02:00", "03-22T03:00")]


OFFICE = (
    "BEGIN:VTIMEZONE\r\nTZID:Office\r\nBEGIN:STANDARD\r\nDTSTART:19700101T000000\r\nTZOFFSETFROM:+0330\r\n"
    "TZOFFSETTO:+0330\r\nEND:STANDARD\r\nEND:VTIMEZONE\r\n"
)
IN_OFFICE = event("DTSTART;TZID=Office:20260321T220000", "DTEND;TZID=Office:20260321T230000")


def test_a_zone_that_a_file_defines_is_known_in_that_file_alone() -> None:
    calendar, rejected = rejected_of(file_of(OFFICE, IN_OFFICE), file_of(IN_OFFICE))

    assert spans(calendar.windows) == [("03-21T18:30", "03-21T19:30")]
    assert [(each.source, each.reason) for each in rejected] == [
        ("1.ics", "DTSTART has the zone 'Office', which nobody knows")
    ]


# -- repetition -------------------------------------------------------------------------------------------------------


def test_rules_exceptions_and_additions_are_followed() -> None:
    found = windows_of(
        "DTSTART;TZID=Europe/Berlin:20260105T220000",
        "DTEND;TZID=Europe/Berlin:20260106T040000",
        "RRULE:FREQ=WEEKLY;BYDAY=MO;UNTIL=20260406T235959Z",
        "EXDATE;TZID=Europe/Berlin:20260330T220000",
        "RDATE;TZID=Europe/Berlin:20260401T220000",
    )

    assert found == [("03-23T21:00", "03-24T03:00"), ("04-01T20:00", "04-02T02:00"), ("04-06T20:00", "04-07T02:00")]


def test_single_dates_may_be_moved_cancelled_or_frozen() -> None:
    text = file_of(
        event("DTSTART:20260323T220000Z", "DURATION:PT6H", "RRULE:FREQ=WEEKLY;COUNT=4"),
        event("RECURRENCE-ID:20260330T220000Z", "DTSTART:20260331T200000Z", "DURATION:PT1H"),
        event("RECURRENCE-ID:20260406T220000Z", *("DTSTART:20260406T220000Z", "DURATION:PT6H"), "STATUS:CANCELLED"),
        event("RECURRENCE-ID:20260413T220000Z", "DTSTART:20260413T220000Z", "DURATION:PT6H", "X-OPS-KIND:freeze"),
    )

    calendar = read(text)

    assert spans(calendar.windows) == [("03-23T22:00", "03-24T04:00"), ("03-31T20:00", "03-31T21:00")]
    assert spans(calendar.freezes) == [("04-13T22:00", "04-14T04:00")]


def test_the_third_saturday_of_a_month_comes_once_a_month() -> None:
    found = windows_of("DTSTART:20250118T060000Z", "DURATION:PT4H", "RRULE:FREQ=MONTHLY;BYDAY=3SA")

    assert found == [("03-21T06:00", "03-21T10:00"), ("04-18T06:00", "04-18T10:00")]


@pytest.mark.parametrize(("length", "count"), [("PT1H", 0), ("PT2H", 0), ("PT2H1S", 1)])
def test_what_began_before_counts_if_it_lasts_until_then(length: str, count: int) -> None:
    assert len(windows_of("DTSTART:20260319T220000Z", f"DURATION:{length}")) == count


@pytest.mark.parametrize(("begins", "count"), [("20260419T235959Z", 1), ("20260420T000000Z", 0)])
def test_what_begins_when_it_is_over_does_not_count(begins: str, count: int) -> None:
    assert len(windows_of(f"DTSTART:{begins}", "DURATION:PT1H")) == count


def test_other_things_of_a_calendar_are_passed_over() -> None:
    text = file_of("BEGIN:VTODO\r\nUID:t\r\nDUE:20260322T000000Z\r\nEND:VTODO\r\n", event(*WINDOW, uid="b"))

    assert len(read(text).windows or ()) == 1


# -- what nobody can read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("SUMMARY:x",), "it has no DTSTART"),
        (("DTSTART:tomorrow", "DURATION:PT1H"), "DTSTART is unreadable: "),
        (("DTSTART:20260321T220000Z",), "it has neither DTEND nor DURATION, and so no length"),
        (("DTSTART:20260321T220000Z", "DTEND:20260321T220000Z"), "it ends when it begins or before"),
        (("DTSTART:20260321T220000Z", "DTEND:20260320T220000Z"), "it ends when it begins or before"),
        (("DTSTART:20260321T220000Z", "DURATION:PT0S"), "its DURATION is not above 0"),
        (("DTSTART:20260321T220000Z", "DURATION:-PT1H"), "its DURATION is not above 0"),
        ((*WINDOW, "DURATION:PT1H"), "it has both DTEND and DURATION; expected one of them"),
        ((*WINDOW, "DTSTART:20260322T220000Z"), "DTSTART is there more than once"),
        (
            ("DTSTART:20260321T220000Z", "DTEND;VALUE=DATE:20260323"),
            "one of DTSTART and DTEND is a day, the other a time",
        ),
        (
            ("DTSTART:20260321T220000Z", "DTEND:20260322T040000"),
            "one of DTSTART and DTEND has a zone, the other has none",
        ),
        (("DTSTART:19691231T220000Z", "DURATION:PT1H"), "DTSTART is of the year 1969; expected 1970 or later"),
        ((*WINDOW, "X-OPS-KIND:freez"), "X-OPS-KIND is 'freez'; expected window or freeze"),
        ((*WINDOW, "RRULE:FREQ=SOMETIMES"), "RRULE is unreadable: "),
        ((*WINDOW, "RRULE:FREQ=HOURLY"), "it repeats HOURLY; expected DAILY, WEEKLY, MONTHLY or YEARLY"),
        ((*WINDOW, "RRULE:FREQ=DAILY;BYSETPOS=5"), "its DAILY rule has BYSETPOS, which does not go with it"),
        ((*WINDOW, "RRULE:FREQ=YEARLY;BYSECOND=1,2"), "its YEARLY rule has BYSECOND, which does not go with it"),
        (
            (*WINDOW, "RRULE:FREQ=DAILY;BYHOUR=1,2,3,4,5;BYMINUTE=1,2,3,4,5"),
            "it comes 25 times a day; at most 24 are believed",
        ),
        (
            (*WINDOW, "RRULE:FREQ=DAILY;BYMONTH=2,4;BYMONTHDAY=31"),
            "it never comes: none of its months has any of its days",
        ),
        (
            (*WINDOW, "EXDATE;TZID=Mars/Base:20260322T220000"),
            "EXDATE has the zone 'Mars/Base', which nobody knows",
        ),
    ],
)
def test_an_entry_that_makes_no_sense_is_rejected_and_the_others_are_used(lines: tuple[str, ...], reason: str) -> None:
    good = event("DTSTART:20260401T220000Z", "DURATION:PT1H", "X-OPS-KIND:window", uid="good")

    calendar, rejected = rejected_of(file_of(event(*lines), good))

    assert [(each.source, each.position) for each in rejected] == [("0.ics", "entry 1")]
    assert rejected[0].reason.startswith(reason)
    assert "BEGIN:VEVENT" in rejected[0].text
    assert spans(calendar.windows) == [("04-01T22:00", "04-01T23:00")]


@pytest.mark.parametrize(
    ("lines", "is_open"),
    [(("X-OPS-KIND:window",), True), ((), True), (("X-OPS-KIND:freeze",), False), (("X-OPS-KIND:freez",), False)],
)
def test_what_may_be_a_freeze_and_cannot_be_read_holds_until_it_is_mended(
    lines: tuple[str, ...], is_open: bool
) -> None:
    calendar, _ = rejected_of(file_of(event("DTSTART:tomorrow", *lines), event(*WINDOW, uid="b")))

    assert calendar.is_open(at("2026-03-21T23:00")) is is_open
    if not is_open:
        assert calendar.why_closed(SINCE) == (
            "freeze '0.ics: an entry that may be a freeze cannot be read' holds until 2026-04-20 00:00 UTC"
        )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "it is no iCalendar file: no VCALENDAR is in it"),
        (b"\xff\xfe\x00", "it is no iCalendar file: "),
        (b"hello", "it is no iCalendar file: "),
        (file_of("X-WR-TIMEZONE:Mars/Base\r\n", event(*WINDOW)), "X-WR-TIMEZONE is 'Mars/Base', which nobody knows"),
        (file_of("BEGIN:VEVENT\r\n" * 1_500 + "END:VEVENT\r\n" * 1_500), "entry 1 holds another entry"),
    ],
    ids=["empty", "binary", "words", "zone", "entries in entries"],
)
def test_a_file_that_is_no_calendar_opens_nothing_and_may_be_all_freezes(text: bytes, reason: str) -> None:
    calendar, rejected = rejected_of(text, file_of(event(*WINDOW)))

    assert [(each.source, each.position) for each in rejected] == [("0.ics", "file")]
    assert rejected[0].reason.startswith(reason)
    assert not calendar.is_open(at("2026-03-21T23:00"))


def test_a_hostile_name_is_one_readable_line() -> None:
    (found,) = read(file_of(event(*WINDOW, "SUMMARY:\x1b[31mred\\nand more " + "x" * 200))).windows or ()

    assert found.name.startswith("\\x1b[31mred")
    assert found.name.isprintable()
    assert len(found.name) == 100


# -- how much -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spare", "is_read"), [(-1, False), (0, True), (1, True)])
def test_a_file_is_read_up_to_its_limit_of_bytes(monkeypatch: pytest.MonkeyPatch, spare: int, is_read: bool) -> None:
    text = file_of(event(*WINDOW))
    monkeypatch.setattr(calendar_entries, "MOST_BYTES", len(text) + spare)

    assert (rejected_of(text)[1] == ()) is is_read


@pytest.mark.parametrize(("most", "is_read"), [(2, False), (3, True), (4, True)])
def test_a_file_is_read_up_to_its_limit_of_entries(monkeypatch: pytest.MonkeyPatch, most: int, is_read: bool) -> None:
    monkeypatch.setattr(calendar_entries, "MOST_ENTRIES", most)

    _, rejected = rejected_of(file_of(*(event(*WINDOW, uid=str(number)) for number in range(3))))

    assert (rejected == ()) is is_read


@pytest.mark.parametrize(("most", "kept"), [(5, 0), (6, 0), (7, 6)])
def test_an_entry_that_comes_too_often_is_rejected_whole(monkeypatch: pytest.MonkeyPatch, most: int, kept: int) -> None:
    # Two days on either side are looked at as well: a time without a zone may lie a day off.
    monkeypatch.setattr(calendar_entries, "MOST_OCCURRENCES", most)
    text = file_of(event("DTSTART:20260321T220000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=7"))

    calendar, rejected = rejected_of(text)

    assert (len(calendar.windows or ()), len(rejected)) == ((7, 0) if kept else (0, 1))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_text_breaks_the_reader(data: st.DataObject) -> None:
    text = file_of(
        OFFICE, event(*WINDOW, "RRULE:FREQ=WEEKLY;BYDAY=MO,TU", "EXDATE:20260323T220000Z", "X-OPS-KIND:freeze")
    )
    place = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 12))
    broken = text[:place] + data.draw(st.binary(max_size=8)) + text[place + length :]

    calendar, rejected = rejected_of(broken)

    assert calendar.known_until == UNTIL
    assert all(each.reason.isprintable() and each.text.isprintable() for each in rejected)
