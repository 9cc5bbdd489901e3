"""Recorded reservations are read; what is over or planned reserves nothing now."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.sources import SourceNonsense
from ops_pipelines.resources.slurm.answers import (
    Reservation,
    booking_words,
    can_be_changed,
    read_reservations_answer,
    reserved_nodes,
)

RECORDED = Path(__file__).parents[1] / "data" / "slurm" / "scontrol-reservations-22.05-ours-over-planned.txt"
RECORDED_AT = datetime(2026, 11, 22, 2, 51, 55, tzinfo=UTC)


def test_every_record_is_read_with_its_nodes_and_times() -> None:
    answer = read_reservations_answer(RECORDED.read_text(), source="scontrol")

    assert answer.rejected == ()
    assert [each.name for each in answer.reservations] == ["old", "INC-7_job-12", "upgrade-2026", "lic only", "a|b"]
    assert answer.reservations[1] == Reservation(
        name="INC-7_job-12",
        nodes=frozenset({NodeName("gpu001"), NodeName("gpu004")}),
        starts_at=datetime(2026, 11, 22, 2, 51, 50, tzinfo=UTC),
        ends_at=datetime(2026, 11, 22, 3, 1, 50, tzinfo=UTC),
    )


def test_reservation_that_is_over_or_planned_reserves_nothing_now() -> None:
    reservations = read_reservations_answer(RECORDED.read_text(), source="scontrol").reservations

    assert reserved_nodes(reservations, now=RECORDED_AT) == {
        "gpu001": "INC-7_job-12",
        "gpu004": "INC-7_job-12",
        "gpu005": "lic only",
        "gpu006": "a|b",
    }


@pytest.mark.parametrize(("offset", "is_reserved"), [(-1, False), (0, True), (599, True), (600, False)])
def test_reservation_is_half_open(offset: int, is_reserved: bool) -> None:
    starts_at = datetime(2026, 11, 22, 2, tzinfo=UTC)
    one = Reservation(
        name="INC-7", nodes=frozenset({NodeName("a")}), starts_at=starts_at, ends_at=starts_at + timedelta(minutes=10)
    )

    assert bool(reserved_nodes([one], now=starts_at + timedelta(seconds=offset))) is is_reserved


def test_cluster_without_reservations_is_an_answer_and_silence_is_none() -> None:
    assert read_reservations_answer("No reservations in the system\n", source="scontrol").reservations == ()
    with pytest.raises(SourceNonsense):
        read_reservations_answer("\n", source="scontrol")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("JobId=1 JobName=x", id="another record"),
        pytest.param(
            "ReservationName=x StartTime=Unknown EndTime=2026-11-22T03:00:00 Duration=1 Nodes=gpu001 NodeCnt=1",
            id="no time",
        ),
        pytest.param(
            "ReservationName=x StartTime=2026-11-22T02:00:00 EndTime=2026-11-22T03:00:00 Duration=1 Nodes=gpu[1- X=1",
            id="no host list",
        ),
    ],
)
def test_line_that_cannot_be_believed_is_left_out_and_kept_with_its_reason(line: str) -> None:
    answer = read_reservations_answer(f"{line}\n{RECORDED.read_text()}", source="scontrol")

    assert len(answer.reservations) == 5
    assert [(row.position, row.text) for row in answer.rejected] == [("line 1", line)]


def test_reservation_of_licences_alone_has_no_nodes() -> None:
    line = RECORDED.read_text().splitlines()[0].replace("Nodes=gpu003 ", "Nodes=(null) ")

    assert read_reservations_answer(line, source="scontrol").reservations[0].nodes == frozenset()


# -- bookings --

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def booked(begins_at: datetime, ends_at: datetime, *, known: Reservation | None = None) -> tuple[str, ...]:
    return booking_words(
        (NodeName("gpu001"), NodeName("gpu002")),
        name="ROLL-0001_wave-2",
        begins_at=begins_at,
        ends_at=ends_at,
        now=NOW,
        user_id=64030,
        known=known,
    )


def known_from(starts_at: datetime, ends_at: datetime) -> Reservation:
    nodes = frozenset({NodeName("gpu001")})
    return Reservation(name="ROLL-0001_wave-2", nodes=nodes, starts_at=starts_at, ends_at=ends_at)


def test_booking_is_maintenance_of_our_user_that_lets_jobs_be() -> None:
    assert booked(NOW + HOUR, NOW + 2 * HOUR) == (
        "scontrol",
        "create",
        "reservation",
        "ReservationName=ROLL-0001_wave-2",
        "Nodes=gpu001,gpu002",
        "Users=64030",
        "StartTime=2026-11-22T13:00:00",
        "EndTime=2026-11-22T14:00:00",
        "Flags=MAINT,IGNORE_JOBS",
    )


@pytest.mark.parametrize(("offset", "start"), [(-1, "now"), (0, "now"), (1, "2026-11-22T12:00:01")])
def test_booking_whose_time_has_come_begins_now(offset: int, start: str) -> None:
    assert f"StartTime={start}" in booked(NOW + timedelta(seconds=offset), NOW + HOUR)


def test_times_are_sent_in_utc_wherever_they_were_made() -> None:
    berlin = timezone(timedelta(hours=1))

    assert "StartTime=2026-11-22T13:00:00" in booked((NOW + HOUR).astimezone(berlin), NOW + 2 * HOUR)


@pytest.mark.parametrize(
    ("offset", "has_start"), [pytest.param(0, False, id="in force"), pytest.param(1, True, id="to come")]
)
def test_beginning_is_changed_only_until_it_has_come(offset: int, has_start: bool) -> None:
    known = known_from(NOW + timedelta(seconds=offset), NOW + HOUR)

    words = booked(NOW, NOW + 2 * HOUR, known=known)

    assert words[:2] == ("scontrol", "update")
    assert any(word.startswith("StartTime=") for word in words) is has_start


@pytest.mark.parametrize(
    ("starts", "ends", "begins", "can_be"),
    [
        pytest.param(1, 2, 3, True, id="to come, later yet"),
        pytest.param(-1, 1, 0, True, id="in force, now"),
        pytest.param(-1, 1, 1, False, id="in force, postponed"),
        pytest.param(-2, 0, 0, False, id="over in this moment"),
    ],
)
def test_what_is_over_or_put_off_while_in_force_is_made_anew(starts: int, ends: int, begins: int, can_be: bool) -> None:
    known = known_from(NOW + starts * HOUR, NOW + ends * HOUR)

    assert can_be_changed(known, begins_at=NOW + begins * HOUR, now=NOW) is can_be


@pytest.mark.parametrize(
    ("begins_at", "ends_at"),
    [
        pytest.param(NOW - HOUR, NOW, id="over already"),
        pytest.param(NOW + HOUR, NOW + HOUR, id="ends as it begins"),
        pytest.param(NOW + HOUR, NOW + HOUR + timedelta(microseconds=900_000), id="shorter than a second"),
        pytest.param(NOW.replace(tzinfo=None), NOW + HOUR, id="no zone"),
    ],
)
def test_booking_that_makes_no_sense_is_refused(begins_at: datetime, ends_at: datetime) -> None:
    with pytest.raises(ValueError):
        booked(begins_at, ends_at)
