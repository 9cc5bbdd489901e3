"""Versions on simulated nodes: what a restart brings, what an installation leaves, and what bad versions do."""

from pathlib import Path

import pytest

from ops_pipelines.core.cluster import NOT_OFFERED
from ops_pipelines.core.identity import ActionKey
from ops_pipelines.core.node_tests import NodeCheck, TestResult
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.release import Activation, Artifact, Change, Component, Means
from ops_pipelines.core.rollout import Direction, InstallOrder, InstallState
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines_lab.simulator.adapters import simulated_ports
from ops_pipelines_lab.simulator.exporter import readings_of_node
from ops_pipelines_lab.simulator.scenario import Scenario, cluster_nodes, scenario_from_plain, scenario_to_plain
from ops_pipelines_lab.simulator.twin import Twin
from ops_pipelines_lab.simulator.versions import ComponentVersion, ReleaseFault, ReleaseTrouble
from tests.simulator.small_cluster import GPU1, GPU2, GPU3, TRAINING, SmallCluster

KEY, OTHER_KEY = ActionKey("a" * 32), ActionKey("b" * 32)
NEW = "590.44.01"
RESTARTS = {
    Activation.LIVE: lambda _: None,
    Activation.DRIVER_RELOAD: lambda cluster: cluster.fleet.reload_driver(GPU3),
    Activation.REBOOT: lambda cluster: cluster.fleet.reboot(GPU3, reason="update"),
    Activation.POWER_CYCLE: lambda cluster: power_cycle(cluster),
    Activation.AC_CYCLE: lambda cluster: cluster.twin.repair_by_hand(GPU3),
}


def power_cycle(cluster: SmallCluster) -> None:
    cluster.fleet.power_off(GPU3)
    cluster.fleet.power_on(GPU3)


def order(
    version: str = NEW,
    *,
    component: Component = Component.DRIVER,
    activation: Activation = Activation.REBOOT,
    means: Means = Means.COMMAND,
) -> InstallOrder:
    image = Artifact(name="image", sha256="a" * 64, location="/srv/image") if means is Means.REDFISH else None
    change = Change(
        component=component,
        version=version,
        means=means,
        artifact=image,
        install=("install",),
        rollback=("install",),
        activation=activation,
    )
    return InstallOrder(changes=(change,), direction=Direction.FORWARD, versions={component: version})


def bad(trouble: ReleaseTrouble, **changes: object) -> ReleaseFault:
    told = {"component": Component.DRIVER, "version": NEW, "trouble": trouble, **changes}
    return ReleaseFault(**told)  # type: ignore[arg-type]  # keywords of one call


def install(cluster: SmallCluster, what: InstallOrder, *, key: ActionKey = KEY) -> None:
    """Install on gpu003, and wait until it is over."""
    cluster.fleet.start_install(GPU3, what, key=key)
    cluster.clock.wait(4)


def update(cluster: SmallCluster, what: InstallOrder | None = None) -> None:
    """Install on gpu003, and reboot it."""
    install(cluster, what or order())
    cluster.fleet.reboot(GPU3, reason="update")
    cluster.clock.wait(7)


def running(cluster: SmallCluster, component: Component = Component.DRIVER) -> str:
    return cluster.fleet.read_versions(GPU3)[component]


def state_of(cluster: SmallCluster, key: ActionKey = KEY) -> InstallState:
    report = cluster.fleet.read_install(GPU3, key=key)
    assert report is not None
    return report.state


# -- what runs --


@pytest.mark.parametrize("needed", Activation)
@pytest.mark.parametrize("done", Activation)
def test_version_runs_after_the_restart_that_it_needs_or_a_stronger_one(
    tmp_path: Path, needed: Activation, done: Activation
) -> None:
    cluster = SmallCluster(tmp_path)
    install(cluster, order(activation=needed))

    RESTARTS[done](cluster)
    cluster.clock.wait(8)

    assert (running(cluster) == NEW) is (done.rank >= needed.rank)


def test_boot_line_and_label_tell_the_driver_that_runs(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)

    update(cluster)
    cluster.clock.wait(2)

    labels = {
        sample.labels["Hostname"]: sample.labels["DCGM_FI_DRIVER_VERSION"]
        for sample in cluster.telemetry.read_samples(cluster.clock.now())
    }
    assert (labels[GPU1], labels[GPU3]) == (cluster.twin.scenario.driver_version, NEW)
    assert any(NEW in line for line in cluster.log_texts())


def test_node_tells_no_driver_while_it_is_loaded_anew(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)

    cluster.fleet.reload_driver(GPU3)

    assert Component.DRIVER not in cluster.fleet.read_versions(GPU3)
    assert Component.BIOS in cluster.fleet.read_versions(GPU3)
    assert cluster.fleet.inspect(GPU3).gpus == ()
    cluster.clock.wait(2)
    assert running(cluster) == cluster.twin.scenario.driver_version
    assert len(cluster.fleet.inspect(GPU3).gpus) == 8


def test_image_brings_the_sites_software_and_leaves_firmware(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    update(cluster)
    install(cluster, order("9.9.9", component=Component.BIOS), key=OTHER_KEY)

    cluster.fleet.reimage(GPU3, reason="anew")
    cluster.clock.wait(10)

    assert running(cluster) == cluster.twin.scenario.driver_version
    assert running(cluster, Component.BIOS) == "9.9.9"
    assert cluster.fleet.read_install(GPU3, key=KEY) is None


def test_node_that_differs_at_the_beginning_tells_so(tmp_path: Path) -> None:
    first, *others = cluster_nodes(2)
    old = type(first)(
        name=first.name,
        rack=first.rack,
        leaf_switch=first.leaf_switch,
        versions=(ComponentVersion(component=Component.BIOS, version="0.1"),),
    )
    scenario = scenario_from_plain(scenario_to_plain(Scenario(nodes=(old, *others))))
    fleet = simulated_ports(Twin.create(tmp_path / "other", scenario, 7, SmallCluster(tmp_path).clock)).fleet

    assert fleet.read_versions(GPU1)[Component.BIOS] == "0.1"
    assert fleet.read_versions(GPU2)[Component.BIOS] != "0.1"


# -- installations --


def test_installation_says_how_far_it_is(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.fleet.start_install(GPU3, order(), key=KEY)
    cluster.clock.wait(1.5)

    report = cluster.fleet.read_install(GPU3, key=KEY)

    assert report is not None
    assert (report.state, report.progress_ratio) == (InstallState.RUNNING, 0.5)


def test_installation_is_cut_short_by_a_reboot_and_nothing_was_changed(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.fleet.start_install(GPU3, order(), key=KEY)

    cluster.fleet.reboot(GPU3, reason="too soon")
    cluster.clock.wait(10)

    assert state_of(cluster) is InstallState.FAILED
    assert running(cluster) == cluster.twin.scenario.driver_version


def test_bmc_installs_on_a_node_that_does_not_answer(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.fleet.power_off(GPU3)
    firmware = order("9.9.9", component=Component.BIOS, activation=Activation.POWER_CYCLE, means=Means.REDFISH)

    with pytest.raises(SourceUnavailable):
        cluster.fleet.start_install(GPU3, order(), key=OTHER_KEY)
    install(cluster, firmware)
    state = state_of(cluster)
    cluster.fleet.power_on(GPU3)
    cluster.clock.wait(7)

    assert state is InstallState.INSTALLED
    assert running(cluster, Component.BIOS) == "9.9.9"


def test_means_that_the_site_has_not_are_not_offered(tmp_path: Path) -> None:
    scenario = Scenario(nodes=cluster_nodes(3), offered_means=(Means.REDFISH,))
    fleet = simulated_ports(Twin.create(tmp_path / "other", scenario, 7, SmallCluster(tmp_path).clock)).fleet

    with pytest.raises(SourceRefused, match=NOT_OFFERED):
        fleet.start_install(GPU3, order(), key=KEY)


def test_twin_that_is_attached_later_folds_to_the_same_versions(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, release_faults=(bad(ReleaseTrouble.LOSES_GPU),))
    update(cluster)
    before = cluster.snapshot()

    cluster.use(Twin.attach(tmp_path, cluster.clock))

    assert cluster.snapshot() == before
    assert running(cluster) == NEW


# -- bad versions --


def test_failed_installation_leaves_the_old_version(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, release_faults=(bad(ReleaseTrouble.INSTALL_FAILS),))

    update(cluster)

    assert state_of(cluster) is InstallState.FAILED
    assert running(cluster) == cluster.twin.scenario.driver_version


def test_version_that_comes_up_old_was_installed_and_does_not_run(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, release_faults=(bad(ReleaseTrouble.COMES_UP_OLD),))

    update(cluster)

    assert state_of(cluster) is InstallState.INSTALLED
    assert running(cluster) == cluster.twin.scenario.driver_version


def test_version_that_never_boots_is_cured_by_the_old_one_through_the_bmc(tmp_path: Path) -> None:
    worse = bad(ReleaseTrouble.NEVER_BOOTS, component=Component.BIOS, version="9.9.9")
    cluster = SmallCluster(tmp_path, release_faults=(worse,))
    before = running(cluster, Component.BIOS)
    by_bmc = {"component": Component.BIOS, "activation": Activation.REBOOT, "means": Means.REDFISH}

    update(cluster, order("9.9.9", **by_bmc))  # type: ignore[arg-type]  # keywords of one call
    cluster.clock.wait(60)
    is_dead = not cluster.truth(GPU3).is_up
    power_cycle(cluster)
    cluster.clock.wait(60)
    is_still_dead = not cluster.truth(GPU3).is_up
    install(cluster, order(before, **by_bmc), key=OTHER_KEY)  # type: ignore[arg-type]  # keywords of one call
    power_cycle(cluster)
    cluster.clock.wait(7)

    assert (is_dead, is_still_dead) == (True, True)
    assert running(cluster, Component.BIOS) == before


def test_version_that_loses_a_gpu_is_found_by_the_nodes_own_check(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, release_faults=(bad(ReleaseTrouble.LOSES_GPU),))

    update(cluster)

    assert len(cluster.fleet.inspect(GPU3).gpus) == 7
    assert check(cluster, "nvml").tests[0].result is TestResult.FAILED
    cluster.fleet.reboot(GPU3, reason="again")
    cluster.clock.wait(6)
    assert len(cluster.fleet.inspect(GPU3).gpus) == 7


def test_slower_version_shows_in_the_steps_of_jobs_on_it_alone(tmp_path: Path) -> None:
    faults = (bad(ReleaseTrouble.SLOWER, slowdown_ratio=0.2),)
    cluster = SmallCluster(tmp_path, TRAINING, release_faults=faults)
    update(cluster)
    cluster.scheduler.drain([GPU1, GPU2], reason="the job is to run elsewhere")
    other = cluster.twin.submit(TRAINING)
    cluster.clock.wait(5)

    usual, slow = (_step_seconds(cluster, job) for job in (cluster.jobs[0], other))

    assert usual == pytest.approx(0.5, rel=0.031)
    assert slow == pytest.approx(0.6, rel=0.031)


def test_slower_version_lowers_the_numbers_of_the_test_that_finds_it(tmp_path: Path) -> None:
    found = bad(ReleaseTrouble.SLOWER, slowdown_ratio=0.1, found_by=("nccl_loopback",))
    cluster = SmallCluster(tmp_path, release_faults=(found,))
    before = check(cluster, "nccl_loopback").tests[0].measurements[0].value

    update(cluster)
    after = check(cluster, "nccl_loopback", key=OTHER_KEY).tests[0].measurements[0].value

    assert after / before == pytest.approx(0.9, abs=0.01)


def test_xid_prone_version_ends_jobs_until_it_is_gone(tmp_path: Path) -> None:
    faults = (bad(ReleaseTrouble.XID_PRONE, after_seconds=20.0),)
    cluster = SmallCluster(tmp_path, release_faults=faults)
    cluster.scheduler.drain([GPU1, GPU2], reason="the job is to run elsewhere")
    update(cluster)

    job = cluster.twin.submit(TRAINING)
    cluster.clock.wait(300)

    assert cluster.is_in(job, JobState.FAILED)
    assert any("Xid" in line and " 119, " in line for line in cluster.log_texts())


def test_version_that_hangs_does_so_after_its_time_under_load(tmp_path: Path) -> None:
    faults = (bad(ReleaseTrouble.HANGS, after_seconds=50.0),)
    cluster = SmallCluster(tmp_path, release_faults=faults)
    cluster.scheduler.drain([GPU1, GPU2], reason="the job is to run elsewhere")
    update(cluster)
    cluster.clock.wait(100)
    is_well_idle = cluster.truth(GPU3).answers

    cluster.twin.submit(TRAINING)
    cluster.clock.wait(49)
    is_well_before = cluster.truth(GPU3).answers
    cluster.clock.wait(2)

    assert (is_well_idle, is_well_before, cluster.truth(GPU3).answers) == (True, True, False)


def test_share_of_the_nodes_is_always_the_same_ones(tmp_path: Path) -> None:
    faults = (bad(ReleaseTrouble.INSTALL_FAILS, node_ratio=0.5),)
    cluster = SmallCluster(tmp_path, release_faults=faults, node_count=40)
    names = [node.node for node in cluster.scheduler.read_nodes()]

    for key in (KEY, OTHER_KEY):
        for name in names:
            cluster.fleet.start_install(name, order(), key=key)
        cluster.clock.wait(4)

    first, second = ({name for name in names if _failed(cluster, name, key)} for key in (KEY, OTHER_KEY))
    assert first == second
    assert 10 <= len(first) <= 30


@pytest.mark.parametrize(
    "changes",
    [{"nodes": ()}, {"node_ratio": 0.0}, {"node_ratio": 1.01}, {"after_seconds": 0.0}, {"slowdown_ratio": 1.0}],
)
def test_release_fault_that_says_nothing_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        bad(ReleaseTrouble.SLOWER, **changes)


def check(cluster: SmallCluster, test: str, *, key: ActionKey = KEY) -> NodeCheck:
    cluster.fleet.start_check(GPU3, suite="by_hand", tests=[test], key=key)
    cluster.clock.wait(5)
    found = cluster.fleet.read_check(GPU3, key=key)
    assert found is not None
    return found


def _failed(cluster: SmallCluster, name: object, key: ActionKey) -> bool:
    report = cluster.fleet.read_install(name, key=key)  # type: ignore[arg-type]  # a name of a node, as read
    return report is not None and report.state is InstallState.FAILED


def _step_seconds(cluster: SmallCluster, job: object) -> float:
    with cluster.twin.present() as world:
        found = [
            float(value)
            for node in world.hardware.nodes.values()
            for metric, labels, value in readings_of_node(world, node)
            if metric.name == "training_step_seconds" and f'job_id="{job}"' in labels
        ]
    return found[0]
