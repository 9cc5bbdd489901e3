"""Journals written before faults had courses: read as they are, written as they were, and folded to the same end."""

import json
from datetime import timedelta
from pathlib import Path

from ops_pipelines.core.observation import JobState, NodeState
from ops_pipelines_lab.simulator.journal import Entry, Journal
from ops_pipelines_lab.simulator.plain import to_plain
from ops_pipelines_lab.simulator.scenario import PARTITION, scenario_from_plain
from ops_pipelines_lab.simulator.twin import Twin
from tests.simulator.fake_clock import BEGINNING
from tests.simulator.small_cluster import GPU1, GPU2, GPU3, SmallCluster

OLD_BEGINNING = {
    "seed": 7,
    "began_at": "2026-11-21T07:00:00.000000+00:00",
    "scenario": {
        "nodes": [{"name": name, "rack": "r1", "leaf_switch": "leaf1"} for name in (GPU1, GPU2, GPU3)],
        "durations": {"reboot_seconds": 5.0, "kill_wait_seconds": 1.0, "requeue_delay_seconds": 3.0,
                      "ping_interval_seconds": 2.0, "gpu_reset_seconds": 2.0},
        "initial_jobs": [{"name": "pretrain", "user": "u", "account": "a", "workload": "training", "node_count": 2,
                          "checkpoint_interval_seconds": 10.0, "step_seconds": 0.5}],
    },
}  # fmt: skip
OLD_LINES = (
    '{"at":"2026-11-21T07:00:15.000000+00:00","kind":"fault","nodes":["gpu001"],"gpu":"0000:1b:00",'
    '"fault":"gpu_fell_off_bus"}',
    '{"at":"2026-11-21T07:00:16.000000+00:00","kind":"drain","nodes":["gpu001"],"reason":"INC-7"}',
    '{"at":"2026-11-21T07:00:17.000000+00:00","kind":"hold","job":"1001"}',
    '{"at":"2026-11-21T07:00:18.000000+00:00","kind":"reboot","nodes":["gpu001"],"reason":"INC-7","refusal":"busy"}',
    '{"at":"2026-11-21T07:00:20.000000+00:00","kind":"release","job":"1001"}',
    '{"at":"2026-11-21T07:00:21.000000+00:00","kind":"fault","nodes":["gpu001"],"gpu":"0000:43:00",'
    '"fault":"uncorrectable_ecc"}',
    '{"at":"2026-11-21T07:00:22.000000+00:00","kind":"reboot","nodes":["gpu001"],"reason":"INC-7"}',
)


def old_directory(directory: Path) -> Path:
    directory.mkdir()
    (directory / "twin.json").write_text(json.dumps(OLD_BEGINNING), encoding="utf-8")
    (directory / "journal.jsonl").write_text("".join(f"{line}\n" for line in OLD_LINES), encoding="utf-8")
    return directory


def entries_of(directory: Path) -> tuple[Entry, ...]:
    journal = Journal(directory / "journal.jsonl")
    with journal.reading():
        return journal.read_new()


def test_old_entry_is_written_again_as_it_was(tmp_path: Path) -> None:
    entries = entries_of(old_directory(tmp_path / "old"))

    assert tuple(json.dumps(to_plain(entry), separators=(",", ":")) for entry in entries) == OLD_LINES


def test_old_journal_folds_to_its_old_end(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path / "unused")
    cluster.use(Twin.attach(old_directory(tmp_path / "old"), cluster.clock))
    cluster.clock.wait(60.0)

    (job,) = cluster.scheduler.read_jobs()
    node = cluster.node(GPU1)

    assert (job.state, job.restart_count, job.nodes) == (JobState.RUNNING, 1, {GPU2, GPU3})
    # Held at 17 s, gone at 18 s, eligible 3 s later, and it continues from its checkpoint at 10 s.
    assert job.started_at == BEGINNING + timedelta(seconds=21)
    assert cluster.progress(job.job).step_count == 20 + 78
    assert (node.state, node.is_drained, node.reason) == (NodeState.IDLE, True, "INC-7")
    assert (cluster.truth(GPU1).is_well, cluster.truth(GPU1).boot_count) == (True, 2)


def test_old_node_and_job_are_in_the_one_partition() -> None:
    scenario = scenario_from_plain(OLD_BEGINNING["scenario"])

    assert scenario.partitions == {PARTITION}
    assert {job.partition for job in scenario.initial_jobs} == {PARTITION}
