"""A ledger that is gone under a running autopilot: nothing is started, people are paged at once, and reported what to
do."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines import server
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import HISTORY
from ops_pipelines.core.sources import LogBatch, LogLine
from ops_pipelines.definitions import ClusterPorts
from ops_pipelines.observe.intake import take_in_conditions, take_in_logs
from ops_pipelines.resources.ledger.watch import SEEN_FILE
from ops_pipelines.sensors.fault import fault_sensor
from ops_pipelines.sensors.runs import hold_lease, keep_seen_beside, seen_key
from ops_pipelines.wiring import forget_opened
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.shell.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path, policy="mode: auto\ndrain_budget: {min_in_service_ratio: 0.5}\n")
    desk.clock.wait(60)
    hold_lease(desk.cluster)
    return desk


def repair(desk: Desk) -> None:
    """Let a node break, be drained by the reflex, and be repaired by a person."""
    desk.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)
    desk.clock.wait(1)
    tick(desk)
    assert drains(desk) == 1
    desk.clock.wait(30)
    hold_lease(desk.cluster)
    desk.twin.repair_by_hand("gpu001")
    desk.cluster.scheduler.resume(NodeName("gpu001"))
    desk.clock.wait(600)


def lose_ledger(desk: Desk) -> None:
    for file in desk.ledger_file.parent.glob("ledger.sqlite*"):
        file.unlink()


def drains(desk: Desk) -> int:
    return sum(each.kind is EntryKind.DRAIN for each in desk.twin.entries())


def tick(desk: Desk) -> str:
    context = dg.build_sensor_context(resources={"cluster": desk.cluster})
    result = fault_sensor(context)
    assert isinstance(result, dg.SensorResult)
    assert result.skip_reason is not None
    return result.skip_reason.skip_message or ""


def pages(desk: Desk) -> list[str]:
    file = desk.ledger_file.parent / "messages.jsonl"
    sent = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [each["body"] for each in sent if each["thread"].endswith("/ledger")]


def test_deleted_ledger_stops_the_reflex_and_pages_once(desk: Desk) -> None:
    repair(desk)
    lose_ledger(desk)
    desk.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu002", gpu=1)
    desk.clock.wait(1)

    said = [tick(desk) for _ in range(3)]

    assert drains(desk) == 1
    assert all("The ledger is not there any more" in each for each in said)
    (page,) = pages(desk)
    assert "resume-autopilot --new-ledger" in page


def test_old_lines_are_no_cause_once_a_person_begins_anew(desk: Desk) -> None:
    repair(desk)
    lose_ledger(desk)
    tick(desk)
    refused = desk.run("resume-autopilot")
    without_why = desk.run("resume-autopilot", "--new-ledger")

    answer = desk.run("resume-autopilot", "--new-ledger", "--reason", "the disk is gone")
    said = tick(desk)

    assert (refused.exit_code, without_why.exit_code, answer.exit_code) == (4, 2, 0)
    assert "Nothing is started" in refused.stderr
    ledger = desk.cluster.ledger
    assert (said, ledger.evidence_after(0, limit=10), drains(desk)) == ("nothing new", (), 1)
    assert {each.reason for each in ledger.rejected(limit=100)} == {HISTORY}
    assert desk.run("resume-autopilot", "--new-ledger", "--reason", "again").exit_code == 4
    desk.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu002", gpu=1)
    desk.clock.wait(1)
    tick(desk)
    assert drains(desk) == 2  # What breaks from now on is cause.


def test_status_health_and_check_say_so_and_pause_works(desk: Desk) -> None:
    tick(desk)
    lose_ledger(desk)

    status, check, incidents = desk.run("status"), desk.run("check-config"), desk.run("incidents")
    health, _ = server._read_health(lambda: desk.cluster)
    pause = desk.run("pause", "--reason", "look first")

    assert (status.exit_code, check.exit_code, health.word.value, pause.exit_code) == (3, 3, "blind", 0)
    assert status.stdout.startswith("blind")
    assert (incidents.exit_code, "The ledger is not there any more" in incidents.stderr) == (3, True)
    assert "The ledger is not there any more" in health.reasons[0]
    assert "The ledger is not there any more" in check.stderr
    assert json.loads(desk.run("status", "--json").stdout)["paused"]["reason"] == "look first"


def test_page_is_sent_again_until_a_channel_takes_it(desk: Desk) -> None:
    lose_ledger(desk)
    messages = desk.ledger_file.parent / "messages.jsonl"
    messages.mkdir()
    tick(desk)
    messages.rmdir()

    tick(desk)

    assert len(pages(desk)) == 1


def test_run_takes_no_evidence_into_a_refused_ledger(desk: Desk) -> None:
    lose_ledger(desk)

    with pytest.raises(LedgerError, match="Nothing is started"):
        take_in_conditions(desk.cluster)


def test_dated_lines_of_before_the_birth_are_counted_as_rejected(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu002", gpu=1)
    desk.clock.wait(60)
    lose_ledger(desk)
    desk.reopen()

    taken = take_in_logs(desk.cluster)

    assert (taken.new_count, {each.reason for each in taken.rejected}) == (0, {HISTORY})
    assert len(taken.rejected) == len(desk.cluster.ledger.rejected(limit=100)) == 3  # Xid 48, 63, 154


class Undated:
    """A log whose lines say no time, of which more are old than are read at once."""

    source = "kernel_log"

    def __init__(self, old_count: int) -> None:
        self.lines = [self._line(number) for number in range(old_count)]

    def _line(self, number: int) -> LogLine:
        text = f"NVRM: Xid (PCI:0000:1b:00): 79, pid={number}, GPU has fallen off the bus."
        return LogLine(node="gpu001", written_at=None, position=f"{number:06d}", text=text)

    def grow(self) -> None:
        self.lines.append(self._line(len(self.lines)))

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        begin = int(cursor or 0)
        lines = tuple(self.lines[begin : begin + max_lines])
        return LogBatch(lines=lines, cursor=str(begin + len(lines)))


@pytest.mark.parametrize("old_count", [3, 2_000, 2_001, 5_000])
def test_undated_lines_that_were_there_at_the_first_reading_are_history(desk: Desk, old_count: int) -> None:
    logs = Undated(old_count)
    cluster = replace(desk.cluster, logs=(logs,))

    first = [take_in_logs(cluster) for _ in range(4)]
    logs.grow()
    then = take_in_logs(cluster)

    assert ([each.new_count for each in first], then.new_count) == ([0, 0, 0, 0], 1)
    assert sum(len(each.rejected) for each in first) == old_count
    assert {each.reason for each in first[0].rejected} == {HISTORY}


def opened_under(desk: Desk, instance: dg.DagsterInstance) -> Cluster:
    """Open the cluster as each tick does."""
    keep_seen_beside(desk.cluster, instance)
    return desk.cluster


def test_mark_in_dagsters_storage_outlives_the_state_directory(desk: Desk) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        opened_under(desk, instance)
        assert seen_key(desk.cluster) in instance.daemon_cursor_storage.get_cursor_values({seen_key(desk.cluster)})
        shutil.rmtree(desk.ledger_file.parent)
        desk = Desk(desk.cluster_file.parent)

        cluster = opened_under(desk, instance)

        assert hold_lease(cluster) is None
        assert (desk.ledger_file.parent / SEEN_FILE).exists()  # So that every other process is stopped too.
        assert "resume-autopilot" in tick(desk)


def test_each_tick_and_run_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path)
    monkeypatch.setenv("OPS_PIPELINES_CLUSTER", str(desk.cluster_file))
    hold_lease(desk.cluster)
    forget_opened()
    with dg.DagsterInstance.ephemeral() as instance:

        @dg.op(required_resource_keys={"cluster"})
        def look(context: dg.OpExecutionContext) -> str:
            return str(context.resources.cluster.name)

        @dg.job(resource_defs={"cluster": ClusterPorts()})
        def one() -> None:
            look()

        one.execute_in_process(instance=instance)

        assert instance.daemon_cursor_storage.get_cursor_values({seen_key(desk.cluster)}) != {}
    forget_opened()


def test_backup_and_restore_by_command(desk: Desk, tmp_path: Path) -> None:
    repair(desk)
    backup = tmp_path / "kept"
    made = desk.run("backup", str(backup), "--json")
    again = desk.run("backup", str(backup))
    living = desk.run("restore", str(backup))
    lose_ledger(desk)

    answer = desk.run("restore", str(backup), "--json")

    assert (made.exit_code, again.exit_code, living.exit_code, answer.exit_code) == (0, 4, 4, 0)
    assert json.loads(made.stdout)["head_seq"] > 0
    said = json.loads(answer.stdout)
    assert (said["is_paused"], said["is_as_it_was"], said["differing"]) == (True, False, [])
    desk.reopen()
    assert desk.cluster.ledger.why_refused() is None
    assert desk.run("audit", "verify").exit_code == 0
    (incident,) = desk.cluster.ledger.read_state(desk.clock.now()).incidents
    assert incident.state is not IncidentState.RESOLVED


def test_configuration_is_put_back_where_it_is_missing_only(desk: Desk, tmp_path: Path) -> None:
    desk.run("backup", str(tmp_path / "kept"))
    (tmp_path / "policy.yaml").write_text("mode: observe\n")
    desk.cluster_file.unlink()

    answer = desk.run("restore", str(tmp_path / "kept"), "--overwrite", "--json")

    said = json.loads(answer.stdout)
    assert ([Path(each).name for each in said["put_back"]], said["differing"]) == (
        ["cluster.yaml"],
        [str(tmp_path / "policy.yaml")],
    )
    assert (tmp_path / "policy.yaml").read_text() == "mode: observe\n"


def test_file_that_cannot_be_put_back_ends_in_an_exit_code_after_the_whole_report(desk: Desk, tmp_path: Path) -> None:
    repair(desk)
    desk.run("backup", str(tmp_path / "kept"))
    (tmp_path / "policy.yaml").unlink()
    (tmp_path / "policy.yaml").mkdir()

    answer = desk.run("restore", str(tmp_path / "kept"), "--overwrite", "--json")

    said = json.loads(answer.stdout)
    assert (answer.exit_code, len(said["open_incidents"]), len(said["problems"])) == (3, 1, 1)
    assert "not put back" in answer.stderr
