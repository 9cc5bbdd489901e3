"""Releases on a real Slurm: nodes are drained, installed by `ops-pipelines node-install`, rebooted by Slurm, returned.

And what the lab's act and its judge make of what Slurm wrote down (recorded, 22.05.8). The whole, with Dagster and jobs
on 16 nodes, is `make lab ONCE=1 ACTS=rollout`.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import JobState, JobStatus
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import FINAL, NodeStage, Rollout, RolloutState
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.remediate.snapshot import take_snapshot
from ops_pipelines.resources.config.cluster_config import RebootBy
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.release_file import find_release
from ops_pipelines.rollouts.cycle import advance_rollouts
from ops_pipelines.rollouts.orders import go_on, plan_release, start_release
from ops_pipelines.wiring import assemble
from ops_pipelines_lab.drills import lab, lab_hardware
from ops_pipelines_lab.drills.daemon_processes import wait_until
from ops_pipelines_lab.drills.lab_configuration import (
    BAD_RELEASE,
    GOOD_RELEASE,
    MODEL,
    cluster_settings,
    versioned_nodes,
    write_releases,
)
from ops_pipelines_lab.drills.lab_hardware import SERVE, SLURM_DIRECTORY, TWIN_DIRECTORY, socket_of
from ops_pipelines_lab.drills.lab_node import BAD_KERNEL, FIRST_KERNEL, GOOD_KERNEL, NodeDisk, main
from ops_pipelines_lab.drills.lab_rollout_judge import AccountedJob, find_lost_jobs, most_out, read_accounting
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster
from ops_pipelines_lab.simulator.adapters import SimulatedTelemetry
from ops_pipelines_lab.simulator.scenario import lab_scenario
from ops_pipelines_lab.simulator.twin import Twin
from tests.lab.slurm_server import start_cluster
from tests.lab.test_lab_alerts import started

NODE = NodeName("gpu003")

# -- the program of a node --


def disk_in(lab_directory: Path, *, version: str = FIRST_KERNEL) -> NodeDisk:
    disk = NodeDisk(lab_directory, NODE)
    disk.create(version)
    return disk


def test_what_is_installed_runs_after_the_next_boot_and_not_before(tmp_path: Path) -> None:
    disk = disk_in(tmp_path)

    disk.install(GOOD_KERNEL)
    before = disk.running
    disk.boot()

    assert (before, disk.running, disk.boots) == (FIRST_KERNEL, GOOD_KERNEL, (GOOD_KERNEL,))


def test_a_bad_kernel_lies_on_the_disk_and_never_runs(tmp_path: Path) -> None:
    disk = disk_in(tmp_path)

    disk.install(BAD_KERNEL)
    disk.boot()

    assert (disk.installed, disk.running) == (BAD_KERNEL, FIRST_KERNEL)


def test_a_node_tells_what_runs_as_the_fleet_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ops_pipelines.resources.fleet.documents import versions_from_json

    disk_in(tmp_path)

    assert main(["versions", str(tmp_path), NODE]) == 0
    assert versions_from_json(capsys.readouterr().out, node=NODE) == {Component.KERNEL: FIRST_KERNEL}


@pytest.mark.parametrize(("verb", "code"), [("booted", 0), ("versions", 255)])
def test_a_node_without_software_boots_and_answers_nothing(tmp_path: Path, verb: str, code: int) -> None:
    assert main([verb, str(tmp_path), NODE]) == code


# -- what the configuration says --


@pytest.mark.parametrize(("node_count", "first"), [(32, 17), (16, 1), (2, 1)])
def test_versions_move_on_the_last_two_racks_whole(node_count: int, first: int) -> None:
    nodes = versioned_nodes(lab_scenario(node_count))

    assert nodes == tuple(f"gpu{number:03d}" for number in range(first, node_count + 1))


@pytest.mark.parametrize(("name", "version"), [(GOOD_RELEASE, GOOD_KERNEL), (BAD_RELEASE, BAD_KERNEL)])
def test_the_labs_releases_are_releases(tmp_path: Path, name: str, version: str) -> None:
    write_releases(tmp_path)

    release = find_release(tmp_path / "releases", name)

    assert release.models == {MODEL}
    assert release.version_of(Component.KERNEL) == version


@pytest.mark.parametrize("reboot_by", list(RebootBy))
def test_the_labs_cluster_file_says_who_reboots(tmp_path: Path, reboot_by: RebootBy) -> None:
    settings = configured(tmp_path, node_count=32, reboot_by=reboot_by)

    read = read_cluster(settings)

    assert read.fleet.reboot_by is reboot_by
    assert ("reboot" in read.fleet.commands) is (reboot_by is RebootBy.COMMAND)
    assert read.topology.places[NodeName("gpu016")].model != MODEL
    assert read.topology.places[NodeName("gpu017")].model == MODEL


def configured(directory: Path, *, node_count: int, reboot_by: RebootBy, slurm_conf: Path | None = None) -> Path:
    """Write the lab's cluster.yaml with what it names, and return it."""
    if slurm_conf is None:
        slurm_conf = directory / "slurm.conf"
        slurm_conf.touch()
    (directory / "ledger.url").write_text(f"sqlite:///{directory}/ledger.sqlite")
    around = started(directory)
    settings = cluster_settings(
        directory,
        lab_scenario(node_count),
        around,
        slurm_conf=slurm_conf,
        prometheus_url="http://127.0.0.1:9",
        logs=(directory / "kernel.log",),
        checkpoints=directory,
        ledger_url_file="ledger.url",
        reboot_by=reboot_by,
    )
    (directory / "policy.yaml").write_text(lab.POLICY)
    file = directory / "cluster.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


# -- what the judge reads --

OUT_AND_BACK = """\
[2026-11-22T15:38:38.955] update_node: node gpu022 reason set to: ops_pipelines ROLL-0001: wave 1 of kernel-good
[2026-11-22T15:38:38.955] update_node: node gpu022 state set to DRAINING
[2026-11-22T15:39:44.516] reboot request queued for nodes gpu022
[2026-11-22T15:39:46.035] node gpu022 returned to service
[2026-11-22T15:40:01.100] update_node: node gpu030 reason set to: ops_pipelines ROLL-0001: wave 2 of kernel-good
[2026-11-22T15:42:11.500] update_node: node gpu022 state set to IDLE
[2026-11-22T15:42:12.500] update_node: node gpu031 reason set to: ops_pipelines ROLL-0001: wave 2 of kernel-good
"""


def test_a_node_is_out_from_our_drain_to_our_return_whatever_slurm_says_of_its_boot() -> None:
    assert most_out(OUT_AND_BACK) == ("gpu022", "gpu030")


def test_an_operators_drain_is_none_of_ours() -> None:
    theirs = OUT_AND_BACK.replace("ops_pipelines ROLL-0001: wave 2 of kernel-good", "OPS-21 fan tray")

    assert most_out(theirs) == ("gpu022",)


ACCOUNTED = """\
12_1|short|COMPLETED|0:0|9
13|gang|COMPLETED|0:0|24
12_16|short|CANCELLED by 0|0:0|0
"""


def test_jobs_that_ended_well_or_never_began_are_not_lost() -> None:
    assert [each.otherwise for each in find_lost_jobs(read_accounting(ACCOUNTED)) if not each.is_so] == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"state": "NODE_FAIL"}, "NODE_FAIL", id="its node failed"),
        pytest.param({"state": "CANCELLED", "ran_seconds": 1}, "after 1 s", id="ended while it ran"),
        pytest.param({"exit_code": "0:15"}, "0:15", id="ended by a signal"),
        pytest.param({"state": "REQUEUED"}, "REQUEUED", id="requeued"),
        pytest.param({"state": "RUNNING"}, "RUNNING", id="never ended"),
    ],
)
def test_each_job_that_did_not_end_well_is_lost(changed: dict[str, object], said: str) -> None:
    well = AccountedJob(job="13", name="gang", state="COMPLETED", exit_code="0:0", ran_seconds=24)

    lost = [each.otherwise for each in find_lost_jobs([replace(well, **changed)]) if not each.is_so]  # type: ignore[arg-type]

    assert len(lost) == 1
    assert said in lost[0]


def test_a_job_that_began_twice_is_lost() -> None:
    twice = read_accounting(ACCOUNTED + "13|gang|COMPLETED|0:0|24\n")

    assert [each.otherwise for each in find_lost_jobs(twice) if not each.is_so] == ["job 13 began 2 times"]


# -- a release on a real Slurm --

LIMIT_SECONDS = 240.0
"""Far above what it needs; never asserted on."""
QUICK = RolloutLimits(
    max_out_count=1,
    canary_counts=(1, 1),
    bounds=(),
    soak=timedelta(seconds=1),
    soak_limit=timedelta(seconds=2),
    good_read_count=2,
    good_read_every=timedelta(milliseconds=200),
    verify_limit=timedelta(seconds=60),
    install_limit=timedelta(seconds=60),
    job_end_limit=timedelta(seconds=120),
)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmCluster]:
    hook = (sys.executable, "-m", "ops_pipelines_lab.drills.lab_node", "booted", str(tmp_path))
    with start_cluster(node_count=2, on_reboot=hook) as cluster:
        yield cluster


@pytest.fixture
def hardware(tmp_path: Path) -> Iterator[None]:
    """The simulated machines of a lab in `tmp_path`, asked as they are there."""
    process = subprocess.Popen([sys.executable, "-m", lab_hardware.__name__, SERVE, str(tmp_path)])
    try:
        wait_until("the hardware", socket_of(tmp_path).is_socket, timeout_seconds=30.0)
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.mark.live
@pytest.mark.usefixtures("hardware")
def test_a_release_goes_over_a_real_slurm_and_the_job_there_ends_by_itself(slurm: SlurmCluster, tmp_path: Path) -> None:
    cluster = opened(tmp_path, slurm)
    checkpoint = tmp_path / "checkpoint"
    job = slurm.submit_training(
        name="saves",
        node_count=1,
        comment=f"workload=training ckpt={checkpoint}",
        checkpoint=checkpoint,
        step_seconds=0.2,
        steps_per_checkpoint=5,
        options=("--export=ALL,STEPS=50",),
    )
    wait_until("the job to run", lambda: bool(running(cluster)), timeout_seconds=LIMIT_SECONDS)

    ended = carry_out(cluster)

    assert ended.state is RolloutState.DONE, ended.reason
    for node in slurm.node_names:
        disk = NodeDisk(tmp_path, node)
        assert (disk.running, disk.boots) == (GOOD_KERNEL, (GOOD_KERNEL,))
    assert {each.stage for each in cluster.ledger.rollout_nodes(ended.rollout)} == {NodeStage.UPDATED}
    assert not any(each.is_drained for each in cluster.scheduler.read_nodes())
    assert most_out(slurm.read_controller_log()) != ()
    assert len(most_out(slurm.read_controller_log())) == 1
    found = next(each for each in cluster.scheduler.read_jobs() if each.job == job)
    assert (found.state, found.restart_count, checkpoint.read_text().strip()) == (JobState.COMPLETED, 0, "50")
    assert cluster.ledger.verify_chain().first_broken_seq is None


def opened(directory: Path, slurm: SlurmCluster) -> Cluster:
    """Return the production ports on a real Slurm; GPUs and their metrics are the twin's."""
    scenario = lab_scenario(2)
    clock = SystemClock()
    twin = Twin.create(directory / TWIN_DIRECTORY, scenario, seed=7, clock=clock)
    for node in slurm.node_names:
        NodeDisk(directory, node).create(FIRST_KERNEL)
    write_releases(directory)
    # The commands of machines look for their Slurm beside the twin.
    (directory / SLURM_DIRECTORY).symlink_to(slurm.settings.directory)
    conf = slurm.settings.slurm_conf
    file = configured(directory, node_count=2, reboot_by=RebootBy.SLURM, slurm_conf=conf)
    assembled = assemble(read_cluster(file), clock)
    policy = replace(assembled.rules.policy, rollouts=QUICK)
    return replace(
        assembled,
        telemetry=SimulatedTelemetry(twin),
        logs=(),
        silencer=None,
        rules=replace(assembled.rules, policy=policy),
    )


def running(cluster: Cluster) -> list[JobStatus]:
    return [each for each in cluster.scheduler.read_jobs() if each.state is JobState.RUNNING]


def carry_out(cluster: Cluster) -> Rollout:
    """Start the good release, answer where the gate asks, and return the rollout as it ended."""
    files = cluster.rollout_files
    assert files is not None
    opened_as = start_release(plan_release(files.release(GOOD_RELEASE), cluster), cluster, actor="test")
    lease = Lease(holder="test", given=None)

    def is_over() -> bool:
        take_snapshot(cluster)
        advance_rollouts(cluster, lease=lease)
        present = cluster.ledger.rollout(opened_as.rollout)
        assert present is not None
        if present.state is RolloutState.ASKING:
            go_on(present.rollout, cluster, actor="test", reason="nobody works here for days")
        return present.state in FINAL

    wait_until("the rollout to end", is_over, timeout_seconds=LIMIT_SECONDS, every_seconds=0.2)
    ended = cluster.ledger.rollout(opened_as.rollout)
    assert ended is not None
    return ended
