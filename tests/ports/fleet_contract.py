"""What every fleet adapter must do: one suite, run on the simulator and on real machines.

A subclass provides the `world` fixture and nothing else. What only one adapter does is in its own tests.
"""

from collections.abc import Callable
from datetime import UTC
from typing import Protocol

import pytest

from ops_pipelines.core.cluster import Fleet
from ops_pipelines.core.identity import ActionKey, NodeName, PciAddress
from ops_pipelines.core.node_tests import NodeCheck, TestResult
from ops_pipelines.core.observation import PowerState, RecoveryAction
from ops_pipelines.core.release import Activation, Change, Component
from ops_pipelines.core.rollout import Direction, InstallOrder, InstallReport, InstallState
from ops_pipelines.core.sources import SourceError, SourceRefused, SourceUnavailable

UNKNOWN_NODE = NodeName("no-such-node")
UNKNOWN_GPU = PciAddress("0000:fe:00")
KEY, OTHER_KEY = ActionKey("0123456789abcdef" * 2), ActionKey("f" * 32)
SUITE, TESTS = "by_hand", ("nvml", "host")


def driver_order(version: str) -> InstallOrder:
    """Return the order of one driver version, as a release would give it."""
    change = Change(
        component=Component.DRIVER,
        version=version,
        install=("install-driver", "{version}"),
        rollback=("install-driver", "{version}"),
        activation=Activation.DRIVER_RELOAD,
    )
    return InstallOrder(changes=(change,), direction=Direction.FORWARD, versions={Component.DRIVER: version})


class FleetWorld(Protocol):
    """Machines to test on. Each test finds at least two, powered, answering, healthy and without work."""

    @property
    def fleet(self) -> Fleet: ...

    @property
    def node_names(self) -> tuple[NodeName, ...]: ...

    @property
    def gpus_per_node(self) -> int: ...

    def occupy(self, node: NodeName) -> None:
        """Start work that uses every GPU of the node; skip the test where that cannot be done."""
        ...

    def silence(self, node: NodeName) -> None:
        """Make the node stop answering while its power stays on; skip the test where that cannot be done."""
        ...

    def order(self) -> InstallOrder:
        """Return what can be installed on each node, does not run there yet, and runs once the driver is loaded again;
        skip the test where nothing is installed."""
        ...

    def failing_order(self) -> InstallOrder:
        """Return what can be ordered and then fails; skip the test where nothing does."""
        ...

    def wait_until(self, predicate: Callable[[], bool], timeout_seconds: float) -> None:
        """Let time pass (real or simulated) until `predicate` holds; raise TimeoutError after `timeout_seconds`."""
        ...


BOOT_SECONDS = 1200.0
"""Far above what a real boot, or a short check, needs; never asserted on."""


class FleetContract:
    """Subclass as `class TestX(FleetContract)` and define the fixture `world`."""

    @pytest.fixture
    def world(self) -> FleetWorld:
        raise NotImplementedError("a subclass of FleetContract provides the fixture `world`")

    # -- inspect --

    def test_healthy_node_shows_its_boot_and_every_gpu_once(self, world: FleetWorld) -> None:
        inspection = world.fleet.inspect(world.node_names[0])

        assert inspection.node == world.node_names[0]
        assert inspection.boot_id
        assert inspection.booted_at < inspection.inspected_at
        assert (inspection.booted_at.tzinfo, inspection.inspected_at.tzinfo) == (UTC, UTC)
        assert len({gpu.gpu for gpu in inspection.gpus}) == world.gpus_per_node
        assert len({gpu.gpu_uuid for gpu in inspection.gpus}) == world.gpus_per_node
        assert {gpu.recovery_action for gpu in inspection.gpus} == {RecoveryAction.NONE}
        assert {gpu.uncorrectable_ecc_count for gpu in inspection.gpus} == {0}
        assert inspection.failures == ()

    def test_inspecting_changes_nothing(self, world: FleetWorld) -> None:
        first = world.fleet.inspect(world.node_names[0])

        second = world.fleet.inspect(world.node_names[0])

        assert (second.boot_id, second.booted_at, second.gpus) == (first.boot_id, first.booted_at, first.gpus)

    def test_silent_node_cannot_be_inspected_but_has_power(self, world: FleetWorld) -> None:
        world.silence(world.node_names[0])

        with pytest.raises(SourceUnavailable):
            world.fleet.inspect(world.node_names[0])

        assert world.fleet.power_state(world.node_names[0]) is PowerState.ON

    # -- reboot --

    def test_reboot_gives_a_new_boot_id_and_a_later_boot_time(self, world: FleetWorld) -> None:
        node = world.node_names[0]
        before = world.fleet.inspect(node)

        world.fleet.reboot(node, reason="INC-7 Xid 79")

        world.wait_until(lambda: _boot_id(world, node) not in (None, before.boot_id), BOOT_SECONDS)
        after = world.fleet.inspect(node)
        assert after.booted_at > before.booted_at
        assert {gpu.gpu_uuid for gpu in after.gpus} == {gpu.gpu_uuid for gpu in before.gpus}

    def test_reboot_leaves_other_nodes_alone(self, world: FleetWorld) -> None:
        node, other = world.node_names[:2]
        before = world.fleet.inspect(other)
        boot_id = _boot_id(world, node)

        world.fleet.reboot(node, reason="INC-7 Xid 79")

        world.wait_until(lambda: _boot_id(world, node) not in (None, boot_id), BOOT_SECONDS)
        assert world.fleet.inspect(other).boot_id == before.boot_id

    def test_rebooting_a_node_at_work_is_refused_and_changes_nothing(self, world: FleetWorld) -> None:
        node = world.node_names[0]
        boot_id = _boot_id(world, node)
        world.occupy(node)

        with pytest.raises(SourceRefused):
            world.fleet.reboot(node, reason="INC-7 Xid 79")

        assert _boot_id(world, node) == boot_id

    def test_rebooting_a_silent_node_says_that_it_did_not_answer(self, world: FleetWorld) -> None:
        world.silence(world.node_names[0])

        with pytest.raises(SourceUnavailable):
            world.fleet.reboot(world.node_names[0], reason="INC-7 Xid 79")

    # -- GPU reset --

    def test_gpu_that_was_reset_is_there_again_and_clean(self, world: FleetWorld) -> None:
        node = world.node_names[0]
        gpu = world.fleet.inspect(node).gpus[0]

        world.fleet.reset_gpu(node, gpu.gpu)

        world.wait_until(lambda: gpu in world.fleet.inspect(node).gpus, BOOT_SECONDS)

    def test_resetting_a_gpu_at_work_is_refused(self, world: FleetWorld) -> None:
        node = world.node_names[0]
        gpu = world.fleet.inspect(node).gpus[0]
        world.occupy(node)

        with pytest.raises(SourceRefused):
            world.fleet.reset_gpu(node, gpu.gpu)

        assert gpu.gpu in {each.gpu for each in world.fleet.inspect(node).gpus}

    def test_resetting_a_gpu_that_the_node_has_not_is_refused(self, world: FleetWorld) -> None:
        with pytest.raises(SourceRefused):
            world.fleet.reset_gpu(world.node_names[0], UNKNOWN_GPU)

    # -- installing again --

    def test_node_that_was_installed_anew_has_booted(self, world: FleetWorld) -> None:
        node = world.node_names[0]
        before = world.fleet.inspect(node)

        try:
            world.fleet.reimage(node, reason="INC-7 Xid 79")
        except SourceRefused:
            pytest.skip("no command that installs a node again is configured here")

        world.wait_until(lambda: _boot_id(world, node) not in (None, before.boot_id), BOOT_SECONDS)
        assert world.fleet.inspect(node).booted_at > before.booted_at

    # -- tests on the node --

    def test_tests_end_by_themselves_and_are_read_under_their_key(self, world: FleetWorld) -> None:
        node = world.node_names[0]

        world.fleet.start_check(node, suite=SUITE, tests=TESTS, key=KEY)

        check = _result(world, node, KEY)
        assert (check.node, check.key, check.suite) == (node, KEY, SUITE)
        assert set(TESTS) <= {run.test for run in check.tests}
        assert check.started_at <= check.finished_at
        assert (check.started_at.tzinfo, check.finished_at.tzinfo) == (UTC, UTC)
        assert all(run.said for run in check.tests if run.result is not TestResult.PASSED)

    def test_no_tests_were_started_under_an_unknown_key(self, world: FleetWorld) -> None:
        node = world.node_names[0]
        world.fleet.start_check(node, suite=SUITE, tests=TESTS, key=KEY)

        assert world.fleet.read_check(node, key=OTHER_KEY) is None
        assert world.fleet.read_check(world.node_names[1], key=KEY) is None

    def test_starting_tests_again_under_their_key_starts_nothing(self, world: FleetWorld) -> None:
        node = world.node_names[0]
        world.fleet.start_check(node, suite=SUITE, tests=TESTS, key=KEY)
        first = _result(world, node, KEY)

        world.fleet.start_check(node, suite=SUITE, tests=TESTS, key=KEY)

        assert world.fleet.read_check(node, key=KEY) == first

    def test_silent_node_is_not_tested_and_tells_nothing(self, world: FleetWorld) -> None:
        node = world.node_names[0]
        world.silence(node)

        with pytest.raises(SourceUnavailable):
            world.fleet.start_check(node, suite=SUITE, tests=TESTS, key=KEY)
        with pytest.raises(SourceUnavailable):
            world.fleet.read_check(node, key=KEY)

    # -- versions --

    def test_versions_that_run_are_told_and_none_is_empty(self, world: FleetWorld) -> None:
        world.order()

        versions = world.fleet.read_versions(world.node_names[0])

        assert versions
        assert all(versions.values())
        assert world.fleet.read_versions(world.node_names[0]) == versions

    def test_silent_node_tells_no_version_and_takes_no_installation(self, world: FleetWorld) -> None:
        node, order = world.node_names[0], world.order()
        world.silence(node)

        with pytest.raises(SourceUnavailable):
            world.fleet.read_versions(node)
        with pytest.raises(SourceUnavailable):
            world.fleet.start_install(node, order, key=KEY)
        with pytest.raises(SourceUnavailable):
            world.fleet.read_install(node, key=KEY)
        with pytest.raises(SourceUnavailable):
            world.fleet.reload_driver(node)

    def test_installation_is_followed_under_its_key_and_runs_after_the_restart_only(self, world: FleetWorld) -> None:
        node, order = world.node_names[0], world.order()
        before = world.fleet.read_versions(node)

        world.fleet.start_install(node, order, key=KEY)
        report = _installed(world, node, KEY)
        staged = world.fleet.read_versions(node)
        world.fleet.reload_driver(node)

        assert (report.node, report.key, report.state) == (node, KEY, InstallState.INSTALLED)
        assert staged == before
        world.wait_until(lambda: _runs(world, node, order), BOOT_SECONDS)

    def test_no_installation_was_begun_under_an_unknown_key(self, world: FleetWorld) -> None:
        node, order = world.node_names[0], world.order()
        world.fleet.start_install(node, order, key=KEY)

        assert world.fleet.read_install(node, key=OTHER_KEY) is None
        assert world.fleet.read_install(world.node_names[1], key=KEY) is None

    def test_starting_an_installation_again_under_its_key_starts_nothing(self, world: FleetWorld) -> None:
        node, order = world.node_names[0], world.order()
        world.fleet.start_install(node, order, key=KEY)
        first = _installed(world, node, KEY)

        world.fleet.start_install(node, order, key=KEY)

        assert world.fleet.read_install(node, key=KEY) == first

    def test_second_installation_is_not_begun_beside_the_first(self, world: FleetWorld) -> None:
        node, order = world.node_names[0], world.order()
        world.fleet.start_install(node, order, key=KEY)

        with pytest.raises(SourceUnavailable):
            world.fleet.start_install(node, order, key=OTHER_KEY)

        assert world.fleet.read_install(node, key=OTHER_KEY) is None
        assert _installed(world, node, KEY).state is InstallState.INSTALLED

    def test_failed_installation_says_why_and_changes_nothing(self, world: FleetWorld) -> None:
        node, order = world.node_names[0], world.failing_order()
        before = world.fleet.read_versions(node)

        world.fleet.start_install(node, order, key=KEY)

        report = _installed(world, node, KEY)
        assert report.state is InstallState.FAILED
        assert report.said
        assert world.fleet.read_versions(node) == before

    def test_nothing_is_installed_or_loaded_under_a_job(self, world: FleetWorld) -> None:
        node, order = world.node_names[0], world.order()
        before = world.fleet.read_versions(node)
        world.occupy(node)

        with pytest.raises(SourceRefused):
            world.fleet.start_install(node, order, key=KEY)
        with pytest.raises(SourceRefused):
            world.fleet.reload_driver(node)

        assert world.fleet.read_install(node, key=KEY) is None
        assert world.fleet.read_versions(node) == before

    # -- power --

    def test_node_without_power_reads_off_and_answers_nobody(self, world: FleetWorld) -> None:
        node = world.node_names[0]

        world.fleet.power_off(node)

        world.wait_until(lambda: world.fleet.power_state(node) is PowerState.OFF, BOOT_SECONDS)
        with pytest.raises(SourceUnavailable):
            world.fleet.inspect(node)

    def test_power_can_be_cut_from_a_silent_node(self, world: FleetWorld) -> None:
        node = world.node_names[0]
        world.silence(node)

        world.fleet.power_off(node)

        world.wait_until(lambda: world.fleet.power_state(node) is PowerState.OFF, BOOT_SECONDS)

    def test_power_cycle_is_a_new_boot(self, world: FleetWorld) -> None:
        node = world.node_names[0]
        before = world.fleet.inspect(node)

        world.fleet.power_off(node)
        world.wait_until(lambda: world.fleet.power_state(node) is PowerState.OFF, BOOT_SECONDS)
        world.fleet.power_on(node)

        world.wait_until(lambda: _boot_id(world, node) not in (None, before.boot_id), BOOT_SECONDS)
        assert world.fleet.inspect(node).booted_at > before.booted_at
        assert world.fleet.power_state(node) is PowerState.ON

    def test_giving_power_to_a_node_that_is_on_does_not_boot_it(self, world: FleetWorld) -> None:
        before = world.fleet.inspect(world.node_names[0])

        world.fleet.power_on(world.node_names[0])

        assert world.fleet.inspect(world.node_names[0]).boot_id == before.boot_id

    def test_cutting_power_twice_leaves_it_off(self, world: FleetWorld) -> None:
        node = world.node_names[0]
        world.fleet.power_off(node)
        world.wait_until(lambda: world.fleet.power_state(node) is PowerState.OFF, BOOT_SECONDS)

        world.fleet.power_off(node)

        assert world.fleet.power_state(node) is PowerState.OFF

    @pytest.mark.parametrize(
        "command",
        [
            pytest.param(lambda fleet: fleet.inspect(UNKNOWN_NODE), id="inspect"),
            pytest.param(lambda fleet: fleet.reset_gpu(UNKNOWN_NODE, UNKNOWN_GPU), id="reset_gpu"),
            pytest.param(lambda fleet: fleet.reboot(UNKNOWN_NODE, reason="INC-7"), id="reboot"),
            pytest.param(lambda fleet: fleet.reimage(UNKNOWN_NODE, reason="INC-7"), id="reimage"),
            pytest.param(
                lambda fleet: fleet.start_check(UNKNOWN_NODE, suite=SUITE, tests=TESTS, key=KEY), id="start_check"
            ),
            pytest.param(lambda fleet: fleet.read_check(UNKNOWN_NODE, key=KEY), id="read_check"),
            pytest.param(lambda fleet: fleet.read_versions(UNKNOWN_NODE), id="read_versions"),
            pytest.param(
                lambda fleet: fleet.start_install(UNKNOWN_NODE, driver_order("1.0"), key=KEY), id="start_install"
            ),
            pytest.param(lambda fleet: fleet.read_install(UNKNOWN_NODE, key=KEY), id="read_install"),
            pytest.param(lambda fleet: fleet.reload_driver(UNKNOWN_NODE), id="reload_driver"),
            pytest.param(lambda fleet: fleet.power_off(UNKNOWN_NODE), id="power_off"),
            pytest.param(lambda fleet: fleet.power_on(UNKNOWN_NODE), id="power_on"),
            pytest.param(lambda fleet: fleet.power_state(UNKNOWN_NODE), id="power_state"),
        ],
    )
    def test_unknown_node_is_an_error_of_the_source(
        self, world: FleetWorld, command: Callable[[Fleet], object]
    ) -> None:
        with pytest.raises(SourceError):
            command(world.fleet)


def _result(world: FleetWorld, node: NodeName, key: ActionKey) -> NodeCheck:
    """Return what the tests found, once they are over."""
    world.wait_until(lambda: world.fleet.read_check(node, key=key) is not None, BOOT_SECONDS)
    check = world.fleet.read_check(node, key=key)
    assert check is not None
    return check


def _installed(world: FleetWorld, node: NodeName, key: ActionKey) -> InstallReport:
    """Return what became of an installation, once it is over."""
    found: list[InstallReport] = []

    def is_over() -> bool:
        report = world.fleet.read_install(node, key=key)
        if report is not None and report.state is not InstallState.RUNNING:
            found.append(report)
        return bool(found)

    world.wait_until(is_over, BOOT_SECONDS)
    return found[0]


def _runs(world: FleetWorld, node: NodeName, order: InstallOrder) -> bool:
    try:
        versions = world.fleet.read_versions(node)
    except SourceUnavailable:
        return False
    return all(versions.get(component) == version for component, version in order.versions.items())


def _boot_id(world: FleetWorld, node: NodeName) -> str | None:
    """Return the present boot id, or None while the node does not answer."""
    try:
        return world.fleet.inspect(node).boot_id
    except SourceUnavailable:
        return None
