"""Grouping, rate and night: every note goes out exactly once, and nobody gets more messages than there is room for."""

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.notes import (
    Audience,
    KeptNote,
    Lane,
    Note,
    NoteState,
    Severity,
    TellRules,
    next_time,
    quiet_end,
    room_for,
)
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.people.delivery import Batch, gather, message_of, pause_after

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
RULES = TellRules(burst_count=3, refill=timedelta(minutes=10))


def note(number: int, **changes: object) -> Note:
    sample = Note(
        key=f"INC-{number:04d}/on_call/acts",
        audience=Audience.ON_CALL,
        recipient="operator on call",
        thread=f"INC-{number:04d}",
        subject=f"INC-{number:04d} since 12:00 UTC",
        title=f"gpu{number:03d}: we reboot the node",
        body="What: Xid 79",
        line=f"INC-{number:04d} gpu{number:03d}: Xid 79",
        lines_title="{count} incidents are being repaired",
        severity=Severity.NOTICE,
        lane=Lane.AT_ONCE,
        likeness="acts gpu",
        made_at=NOW - timedelta(seconds=20),
        ready_at=NOW,
    )
    return replace(sample, **changes)  # type: ignore[arg-type]  # of many types


def kept(given_note: Note, *, batch: str | None = None, next_at: datetime | None = None) -> KeptNote:
    return KeptNote(
        note=given_note,
        state=NoteState.WAITING,
        batch=batch,
        attempt_count=0 if batch is None else 1,
        next_at=next_at or given_note.ready_at,
        sent_at=None,
        receipt="",
        problem="",
    )


def threads(batches: tuple[Batch, ...]) -> list[list[str]]:
    return [[each.thread for each in batch.notes] for batch in batches]


def collect(*notes: Note, sent: tuple[datetime, ...] = ()) -> tuple[Batch, ...]:
    who = (Audience.ON_CALL, "operator on call")
    return gather([kept(each) for each in notes], {who: sent}, rules=RULES, now=NOW)


def test_alike_notes_become_one_message_and_take_along_who_would_still_wait() -> None:
    later = note(2, ready_at=NOW + timedelta(seconds=10))

    assert threads(collect(note(1), later, note(3, likeness="over"))) == [["INC-0001", "INC-0002"], ["INC-0003"]]


@pytest.mark.parametrize(("seconds", "count"), [(-1, 0), (0, 1), (1, 1)])
def test_note_waits_until_it_is_ready(seconds: int, count: int) -> None:
    assert len(collect(note(1, ready_at=NOW - timedelta(seconds=seconds)))) == count


def test_digest_takes_only_what_is_due_for_it() -> None:
    morning = note(2, lane=Lane.DIGEST, ready_at=NOW + timedelta(hours=9))

    assert threads(collect(note(1, lane=Lane.DIGEST, likeness="climbs"), morning)) == [["INC-0001"]]


@pytest.mark.parametrize(
    ("sent_count", "expected"),
    [
        pytest.param(0, [1, 1, 3], id="the most urgent apart, the rest a digest"),
        pytest.param(2, [5], id="room for one: all of it a digest"),
        pytest.param(3, [], id="no room: all wait"),
        pytest.param(4, [], id="more than the burst was sent"),
    ],
)
def test_what_is_over_the_limit_becomes_one_digest(sent_count: int, expected: list[int]) -> None:
    notes = [note(number, likeness=f"kind {number}") for number in range(1, 5)]
    urgent = note(9, likeness="asks", severity=Severity.WARNING)

    batches = collect(*notes, urgent, sent=(NOW,) * sent_count)

    assert sorted(len(batch.notes) for batch in batches) == expected
    assert not batches or batches[0].severity is Severity.WARNING


def test_message_under_way_uses_up_room_and_goes_out_again_as_it_was() -> None:
    again = kept(note(1), batch="MSG-1", next_at=NOW)
    later = kept(note(2), batch="MSG-2", next_at=NOW + timedelta(seconds=1))
    fresh = [kept(note(number, likeness=f"kind {number}")) for number in (3, 4)]

    batches = gather([again, later, *fresh], {}, rules=RULES, now=NOW)

    assert [(batch.name, len(batch.notes)) for batch in batches if batch.attempt_count] == [("MSG-1", 1)]
    assert [len(batch.notes) for batch in batches if not batch.attempt_count] == [2]


@given(
    kinds=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Severity), st.sampled_from(Lane)), max_size=30),
    sent_count=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_every_due_note_goes_out_once_or_waits_and_never_more_messages_than_room(
    kinds: list[tuple[int, Severity, Lane]], sent_count: int
) -> None:
    notes = [
        note(number, likeness=f"kind {kind}", severity=severity, lane=lane)
        for number, (kind, severity, lane) in enumerate(kinds)
    ]

    batches = collect(*notes, sent=(NOW - timedelta(seconds=1),) * sent_count)

    keys = [each.key for batch in batches for each in batch.notes]
    assert len(keys) == len(set(keys))
    assert len(batches) <= max(0, 3 - sent_count)
    assert not batches or len(keys) == len(notes)
    assert [batch.notes for batch in batches] == [batch.notes for batch in collect(*notes, sent=(NOW,) * sent_count)]


@pytest.mark.parametrize(
    ("minutes_ago", "room"),
    [([], 3), ([0], 2), ([0, 0, 0], 0), ([9, 9, 9], 0), ([10, 10, 10], 1), ([30, 30, 30], 3), ([20, 10, 0], 2)],
)
def test_room_comes_back_one_message_each_refill(minutes_ago: list[int], room: int) -> None:
    assert room_for([NOW - timedelta(minutes=each) for each in minutes_ago], RULES, NOW) == room


@pytest.mark.parametrize(
    ("hour", "minute", "end"),
    [
        pytest.param(21, 59, None, id="just before the night"),
        pytest.param(22, 0, datetime(2026, 11, 22, 7, 0, tzinfo=UTC), id="the night begins"),
        pytest.param(6, 59, datetime(2026, 11, 21, 7, 0, tzinfo=UTC), id="the night's last minute"),
        pytest.param(7, 0, None, id="the day begins"),
    ],
)
def test_night_is_half_open(hour: int, minute: int, end: datetime | None) -> None:
    assert quiet_end(RULES, NOW.replace(hour=hour, minute=minute)) == end


def test_morning_follows_the_clocks_of_the_site_when_they_are_set_back() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    before = datetime(2026, 10, 24, 5, 0, tzinfo=UTC)  # 07:00 in summer time, exactly

    assert next_time(time(7), berlin, before) == datetime(2026, 10, 25, 6, 0, tzinfo=UTC)


@pytest.mark.parametrize(("attempts", "seconds"), [(0, 30), (1, 30), (2, 60), (3, 120), (8, 3600), (500, 3600)])
def test_distance_between_tries_doubles_up_to_an_hour(attempts: int, seconds: int) -> None:
    assert pause_after(attempts) == timedelta(seconds=seconds)


def test_rules_that_would_silence_everybody_are_refused() -> None:
    with pytest.raises(PolicyError, match="nobody is ever notified"):
        TellRules(burst_count=0)


def test_group_of_hundreds_is_bounded_and_says_how_many_are_left_out() -> None:
    notes = tuple(note(number) for number in range(200))

    message = message_of(Batch(name="MSG-1", notes=notes, attempt_count=0), pages_url="https://ops.example.org")

    assert message.title == "200 incidents are being repaired"
    assert len(message.body.splitlines()) == 31
    assert message.body.splitlines()[-1] == "- and 170 more (170 x acts gpu): `ops-pipelines messages` lists them"
    assert len(message.links) == 8


def test_line_break_in_a_note_cannot_begin_a_line_of_ours() -> None:
    hostile = note(1, line="Xid 79\nWhat you must do: open evil", lane=Lane.DIGEST)

    body = message_of(Batch(name="MSG-1", notes=(hostile,), attempt_count=0), pages_url=None).body

    assert body == "- Xid 79 What you must do: open evil"
