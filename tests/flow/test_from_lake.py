"""What the lake remembers is reported as it was known then: detectors, lines and states, and what is missing is
reported."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.identity import NodeName, PciAddress
from ops_pipelines.core.observation import JobState, Signal
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.panels.panel import LOOKBACK_SECONDS, Detection, Panel, runs_of
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.review.retrace import READ_AT_ONCE, RecordedInterval, evidence_from_lake, turns
from tests.flow.fake_store import topology_of
from tests.simulator.fake_clock import BEGINNING as AT

TOPOLOGY = topology_of("gpu001", "gpu002")
MINUTE = timedelta(minutes=1)
PCI = PciAddress("0000:18:00")


@pytest.fixture
def lake(tmp_path: Path) -> ParquetLake:
    return ParquetLake(tmp_path)


def warm(lake: ParquetLake, *minutes: tuple[int, int], start: int = -300, end: int = 0, step: int = 60) -> None:
    """Keep samples of a GPU, hot in the given minutes (both included), minutes counted from AT."""
    spans = [(AT + first * MINUTE, AT + last * MINUTE) for first, last in minutes]
    times = [AT + timedelta(seconds=seconds) for seconds in range(start * 60, end * 60 + 1, step)]
    lake.add(
        "gpu_telemetry",
        TABLES["gpu_telemetry"].from_rows(
            {
                "node": "gpu001", "device": "GPU-a", "time": at, "pci_address": PCI,
                "temperature_celsius": 90.0 if any(first <= at <= last for first, last in spans) else 40.0,
            }
            for at in times
        ),
    )  # fmt: skip


def hot(panel: Panel) -> Sequence[Detection]:
    matrix = panel.gpus.value("temperature_celsius") > 80
    return [
        Detection(
            signal=Signal.GPU_HOT, node=NodeName("gpu001"), gpu=PCI, began_at=panel.time(each.first),
            first_seen_at=panel.time(each.first), last_seen_at=panel.time(each.last), text="hot",
        )
        for each in runs_of(matrix)
    ]  # fmt: skip


def read(lake: ParquetLake, *, back: timedelta, at: datetime = AT) -> RecordedInterval:
    return evidence_from_lake(lake, at=at, back=back, topology=TOPOLOGY, detect=hot)


def spells(found: RecordedInterval) -> list[tuple[float, float | None]]:
    """Return when each was known and gone, in minutes from AT."""
    return [
        ((each.known_at - AT) / MINUTE, None if each.gone_at is None else (each.gone_at - AT) / MINUTE)
        for each in found.spells
    ]


@pytest.mark.parametrize(
    ("minutes", "known"),
    [
        pytest.param((-20, -10), (-20, -9), id="within"),
        pytest.param((-40, -10), (-30, -9), id="since before it"),
        pytest.param((-30, -30), (-30, -29), id="at its first moment"),
        pytest.param((-20, 0), (-20, None), id="still there"),
        pytest.param((0, 0), (0, None), id="at its last moment"),
    ],
)
def test_what_the_detectors_saw_is_known_from_when_to_when(
    lake: ParquetLake, minutes: tuple[int, int], known: tuple[float, float | None]
) -> None:
    warm(lake, minutes)

    assert spells(read(lake, back=30 * MINUTE)) == [known]


@pytest.mark.parametrize("minutes", [(-60, -31), (1, 5)])
def test_what_was_gone_before_or_came_later_is_not_told(lake: ParquetLake, minutes: tuple[int, int]) -> None:
    warm(lake, minutes, end=10)

    assert spells(read(lake, back=30 * MINUTE)) == []


def test_a_long_stretch_is_read_in_parts_and_what_lasts_is_one(lake: ParquetLake) -> None:
    border = -280 + READ_AT_ONCE // MINUTE
    warm(lake, (border - 3, border + 4), (border + 10, border + 12), start=-400)

    found = read(lake, back=280 * MINUTE)

    assert spells(found) == [(border - 3, border + 5), (border + 10, border + 13)]


def test_detectors_see_what_was_before_the_stretch(lake: ParquetLake) -> None:
    warm(lake, start=-300)
    panels: list[Panel] = []

    def look(panel: Panel) -> Sequence[Detection]:
        panels.append(panel)
        return ()

    evidence_from_lake(lake, at=AT, back=10 * MINUTE, topology=TOPOLOGY, detect=look)

    (panel,) = panels
    assert panel.step_seconds == 60
    assert panel.time(-1) == AT
    assert panel.time(0) <= AT - 10 * MINUTE - timedelta(seconds=LOOKBACK_SECONDS)


def test_lines_are_known_when_they_were_written(lake: ParquetLake) -> None:
    def line(number: int, minutes: float, text: str, signature: str | None = None) -> dict[str, object]:
        return {
            "source": "kernel_log", "position": str(number), "time": AT + minutes * MINUTE,
            "node": "gpu001.site.example", "text": text, "signature": signature,
        }  # fmt: skip

    lake.add(
        "kernel_events",
        TABLES["kernel_events"].from_rows(
            [
                line(1, -31, "kernel: NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."),
                line(2, -30, "kernel: NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."),
                line(3, -5, "kernel: NVRM: Xid (PCI:0000:18:00): 48, DBE", "xid_double_bit_error"),
                line(4, -4, "EXT4-fs error (device nvme0n1)", "of_a_newer_version"),
                line(5, 0, "kernel: NVRM: Xid (PCI:0000:18:00): 45, Ch 1"),
                line(6, 0.1, "kernel: NVRM: Xid (PCI:0000:18:00): 45, Ch 1"),
            ]
        ),
    )
    lake.add(
        "job_logs",
        TABLES["job_logs"].from_rows(
            [
                {
                    "source": "job_logs", "position": "1", "time": AT - MINUTE, "job": "7", "text": "it prints",
                    "signature": "of_a_newer_version",
                }
            ]
        ),
    )  # fmt: skip

    found = read(lake, back=30 * MINUTE)

    assert [
        (each.observation.signal, each.observation.code, (each.known_at - AT) / MINUTE) for each in found.events
    ] == [
        (Signal.XID, 79, -30), (Signal.XID, 48, -5), (Signal.LOG_SIGNATURE, None, -4),
        (Signal.LOG_SIGNATURE, None, -1), (Signal.XID, 45, 0),
    ]  # fmt: skip
    assert {each.observation.node for each in found.events[:2]} == {"gpu001"}


def test_jobs_are_told_as_they_stood_and_failures_over_many_of_them(lake: ParquetLake) -> None:
    def attempt(number: int, started: int, ended: int, state: str) -> dict[str, object]:
        return {
            "job": "7", "attempt": str(number), "time": AT + ended * MINUTE, "name": "train", "user": "ada",
            "state": state, "started_at": AT + started * MINUTE, "ended_at": AT + ended * MINUTE,
            "nodes": f"gpu00{number % 2 + 1}", "gpu_count": 8,
        }  # fmt: skip

    lake.add(
        "job_accounting",
        TABLES["job_accounting"].from_rows(
            [
                *(attempt(number, -50 + 10 * number, -48 + 10 * number, "FAILED") for number in range(4)),
                attempt(9, -12, 600, "NODE_FAIL"),
            ]
        ),
    )

    found = read(lake, back=30 * MINUTE)

    assert [((at - AT) / MINUTE, [job.state for job in jobs]) for at, jobs in found.jobs][-2:] == [
        (-12, [JobState.FAILED, JobState.RUNNING]),
        (-8, [JobState.RUNNING]),
    ]
    (loop,) = found.spells
    assert (loop.observation.signal, (loop.known_at - AT) / MINUTE, loop.gone_at) == (Signal.JOB_CRASH_LOOP, -28, None)


def test_an_empty_lake_says_what_is_missing_and_nothing_is_well(lake: ParquetLake) -> None:
    found = evidence_from_lake(lake, at=AT, back=30 * MINUTE, topology=TOPOLOGY)

    assert (found.events, found.spells, found.is_blind) == ((), (), True)
    assert found.gaps[0] == "gpu_telemetry: no sample from 2026-11-21 06:30 to 07:00"
    assert found.gaps[-1] == "job_allocations: no row of 2026-11-21 06:00: which jobs ran in that hour is not known"
    assert len(found.gaps) == 7 + 1


def test_an_empty_stretch_is_refused(lake: ParquetLake) -> None:
    with pytest.raises(ValueError, match="expected more than nothing"):
        read(lake, back=timedelta(0))


def test_what_was_read_is_what_a_loop_learns_turn_by_turn(lake: ParquetLake) -> None:
    warm(lake, (-20, -10))

    found = read(lake, back=30 * MINUTE)
    learnt = turns(found.events, found.spells, tick=timedelta(seconds=5), until=found.end)

    assert [((turn.at - AT) / MINUTE, len(turn.begun), len(turn.ended)) for turn in learnt] == [(-20, 1, 0), (-9, 0, 1)]
