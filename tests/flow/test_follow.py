"""Two readers of one log, each with a place of its own, which continues where the versions before left it."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.cluster import HOUR
from ops_pipelines.core.sources import LogBatch
from ops_pipelines.observe.intake import follow, take_in_logs
from ops_pipelines.observe.live_cycle import run_cycle
from tests.flow.fake_store import FakeLogs, FakeStore, observatory_on
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import BEGINNING

XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid={}, GPU has fallen off the bus."


@pytest.fixture
def log() -> FakeLogs:
    log = FakeLogs(source="kernel_log")
    for number in range(3):
        log.write(XID.format(number), at=BEGINNING + timedelta(seconds=number))
    return log


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, node_count=3)
    autopilot.let_pass(15)
    return autopilot


def put(autopilot: SmallAutopilot, **cursors: str) -> None:
    """Leave cursors behind as they stood in the ledger before there was `follow`."""
    for name, cursor in cursors.items():
        autopilot.cluster.ledger.take_in(
            source=name, observations=(), rejected=(), cursor=cursor, now=autopilot.clock.now()
        )


def positions(autopilot: SmallAutopilot) -> list[str]:
    kept = autopilot.cluster.ledger.evidence_after(0, limit=99)
    return [each.observation.position for each in kept if each.observation.source == "kernel_log"]


def test_the_sensor_goes_on_where_an_older_version_stopped(autopilot: SmallAutopilot, log: FakeLogs) -> None:
    autopilot.cluster = replace(autopilot.cluster, logs=(log,))
    put(autopilot, kernel_log="2")

    take_in_logs(autopilot.cluster)

    assert positions(autopilot) == ["line-2"]
    assert autopilot.cluster.ledger.cursor("kernel_log") == "3"


def test_the_lake_goes_on_where_an_older_version_stopped(
    autopilot: SmallAutopilot, log: FakeLogs, tmp_path: Path
) -> None:
    log.write("a line without a time")
    met_at = BEGINNING - HOUR
    put(autopilot, **{"lake/kernel_log": "3", "lake/kernel_log/met": f"{met_at.isoformat()} 3"})
    observatory = observatory_on(
        tmp_path / "lake",
        FakeStore(clock=autopilot.clock),
        clock=autopilot.clock,
        scheduler=autopilot.cluster.scheduler,
        kernel_logs=(log,),
    )

    report = run_cycle(observatory, autopilot.cluster, at=BEGINNING)

    assert report.line_count == 1
    assert autopilot.cluster.ledger.cursor("lake/kernel_log") == "4"
    assert autopilot.cluster.ledger.cursor("kernel_log") is None
    assert observatory.lake.read_hour("kernel_events", met_at).num_rows == 1, (
        "it has the time at which it was first met"
    )


def test_a_place_moves_only_once_what_was_read_is_kept(autopilot: SmallAutopilot, log: FakeLogs) -> None:
    def full_disk(batch: LogBatch, before: str | None) -> tuple[tuple[()], tuple[()]]:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        follow(log, autopilot.cluster, place="lake/x", max_lines=9, now=autopilot.clock.now(), observe=full_disk)

    assert autopilot.cluster.ledger.cursor("lake/x") is None


@pytest.mark.parametrize(("max_lines", "is_full"), [(2, True), (3, True), (4, False)])
def test_there_may_be_more_where_as_much_came_as_was_asked_for(
    autopilot: SmallAutopilot, log: FakeLogs, max_lines: int, is_full: bool
) -> None:
    def nothing(_batch: LogBatch, _before: str | None) -> tuple[tuple[()], tuple[()]]:
        return (), ()

    found = follow(log, autopilot.cluster, place="x", max_lines=max_lines, now=autopilot.clock.now(), observe=nothing)

    assert (found.is_full, found.line_count) == (is_full, min(3, max_lines))
