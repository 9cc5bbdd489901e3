"""Recorded reservations are read; what is over or planned reserves nothing now."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.domain.identity import NodeName
from ops_pipelines.ports.source_error import SourceNonsense
from ops_pipelines.resources.slurm.reservations import Reservation, read_reservations_answer, reserved_nodes

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
