"""Each change goes to its means; what a step of several means comes to; and which version is believed."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.cluster import NOT_OFFERED, Fleet
from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.release import Change, Component, Means
from ops_pipelines.core.rollout import InstallOrder, InstallReport, InstallState
from ops_pipelines.core.sources import SourceError, SourceRefused, SourceUnavailable
from ops_pipelines.resources.fleet.command_fleet import CommandFleet, ComposedFleet
from ops_pipelines.resources.fleet.installs import InstallNotes
from tests.resources.install_orders import KEY, NODE, OTHER_KEY, change, image, order

COMMAND = change("true")
PLAYBOOK = change("nic.yml", component=Component.NIC_DRIVER, means=Means.ANSIBLE)
FIRMWARE = change("x", component=Component.BMC, means=Means.REDFISH, artifact=image("/fw"))
BIOS = change("x", component=Component.BIOS, means=Means.REDFISH, artifact=image("/bios"))


class FakeInstaller:
    """Installs in memory. `refuses` is raised when something is started, `silent` when something is asked."""

    def __init__(self) -> None:
        self.orders: dict[ActionKey, InstallOrder] = {}
        self.asked_count = 0
        self.state = InstallState.RUNNING
        self.refuses: SourceError | None = None
        self.silent: SourceError | None = None
        self.versions: Mapping[Component, str] = {}

    def start(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        self.asked_count += 1
        if self.refuses is not None:
            raise self.refuses
        self.orders.setdefault(key, order)

    def report(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        if self.silent is not None:
            raise self.silent
        if key not in self.orders:
            return None
        said = ", ".join(each.component.value for each in self.orders[key].changes)
        return InstallReport(key=key, node=node, state=self.state, said=said)

    def active_versions(self, node: NodeName) -> Mapping[Component, str]:
        if self.silent is not None:
            raise self.silent
        return self.versions


class FakeCommands(CommandFleet):
    """A site with every command for installations, behind which is a fake."""

    def __init__(self, *acts: str) -> None:
        super().__init__({}, clock=SystemClock())
        self.behind = FakeInstaller()
        self._acts = acts or ("start_install", "read_install", "read_versions")

    def offers(self, act: str) -> bool:
        return act in self._acts

    def start_install(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        self.behind.start(node, order, key=key)

    def read_install(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        return self.behind.report(node, key=key)

    def read_versions(self, node: NodeName) -> Mapping[Component, str]:
        return self.behind.active_versions(node)


class Site:
    """A fleet of everything, and a view of each part."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.commands, self.playbooks, self.bmc = FakeCommands(), FakeInstaller(), FakeInstaller()
        self.fleet = self.opened()

    def opened(self) -> ComposedFleet:
        notes = InstallNotes(self.place / "means", clock=SystemClock())
        return ComposedFleet(self.commands, notes=notes, ansible=self.playbooks, firmware=self.bmc)

    @property
    def parts(self) -> tuple[FakeInstaller, ...]:
        return (self.commands.behind, self.playbooks, self.bmc)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_it_is_a_fleet(site: Site) -> None:
    fleet: Fleet = site.fleet

    with pytest.raises(SourceRefused, match=NOT_OFFERED):
        fleet.inspect(NODE)


@pytest.mark.parametrize(("part", "given"), [(0, COMMAND), (1, PLAYBOOK), (2, FIRMWARE)])
def test_a_change_goes_to_its_means_and_to_nobody_else(site: Site, part: int, given: Change) -> None:
    site.fleet.start_install(NODE, order(given), key=KEY)

    assert [list(each.orders.values()) for each in site.parts] == [
        [order(given)] if number == part else [] for number in range(3)
    ]


def test_each_means_of_a_step_gets_its_own_changes_in_their_order(site: Site) -> None:
    site.fleet.start_install(NODE, order(FIRMWARE, COMMAND, BIOS), key=KEY)
    site.bmc.state = InstallState.INSTALLED
    read(site)
    site.fleet.start_install(NODE, order(FIRMWARE, COMMAND, BIOS), key=KEY)

    assert site.bmc.orders[KEY].changes == (FIRMWARE, BIOS)
    assert site.commands.behind.orders[KEY].changes == (COMMAND,)
    assert site.playbooks.orders == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (COMMAND, "installing by command; set fleet.start_install and fleet.read_install in cluster.yaml"),
        (PLAYBOOK, "installing by ansible; set fleet.ansible in cluster.yaml"),
        (FIRMWARE, "installing by redfish; set fleet.redfish in cluster.yaml"),
    ],
)
def test_a_means_that_is_not_configured_is_not_offered(tmp_path: Path, given: Change, said: str) -> None:
    bare = ComposedFleet(CommandFleet({}, clock=SystemClock()), notes=InstallNotes(tmp_path, clock=SystemClock()))

    with pytest.raises(SourceRefused) as caught:
        bare.start_install(NODE, order(given), key=KEY)

    assert str(caught.value) == f"{NOT_OFFERED} {said}"


def test_of_a_step_with_one_means_that_is_missing_nothing_is_started(tmp_path: Path) -> None:
    commands = FakeCommands()
    fleet = ComposedFleet(commands, notes=InstallNotes(tmp_path, clock=SystemClock()))

    with pytest.raises(SourceRefused, match=NOT_OFFERED):
        fleet.start_install(NODE, order(COMMAND, FIRMWARE), key=KEY)

    assert commands.behind.orders == {}


def test_an_order_of_nothing_is_refused(site: Site) -> None:
    with pytest.raises(SourceRefused, match="empty never means all"):
        site.fleet.start_install(NODE, order(), key=KEY)


def test_means_of_a_step_follow_one_another_each_when_it_is_asked_for(site: Site) -> None:
    step = order(COMMAND, FIRMWARE)
    site.fleet.start_install(NODE, step, key=KEY)
    site.fleet.start_install(NODE, step, key=KEY)
    running = read(site)
    site.commands.behind.state = InstallState.INSTALLED

    waiting = [read(site), read(site)]
    before = dict(site.bmc.orders)
    site.opened().start_install(NODE, step, key=KEY)
    started = read(site)
    site.bmc.state = InstallState.INSTALLED

    assert running.state is InstallState.RUNNING
    assert [(each.state, each.said) for each in waiting] == [
        (InstallState.WAITING, "driver; by redfish it continues"),
        (InstallState.WAITING, "by redfish nothing is started yet"),
    ]
    assert before == {}
    assert (started.state, started.said) == (InstallState.RUNNING, "bmc")
    assert read(site).state is InstallState.INSTALLED


def test_a_part_that_failed_keeps_the_next_from_beginning(site: Site) -> None:
    site.fleet.start_install(NODE, order(COMMAND, FIRMWARE), key=KEY)
    site.commands.behind.state = InstallState.FAILED

    site.fleet.start_install(NODE, order(COMMAND, FIRMWARE), key=KEY)

    assert read(site).state is InstallState.FAILED
    assert site.bmc.orders == {}


def test_a_part_that_waits_itself_is_asked_to_go_on(site: Site) -> None:
    site.fleet.start_install(NODE, order(FIRMWARE, COMMAND), key=KEY)
    site.bmc.state = InstallState.WAITING

    assert read(site).state is InstallState.WAITING
    site.fleet.start_install(NODE, order(FIRMWARE, COMMAND), key=KEY)

    assert site.bmc.asked_count == 2
    assert site.commands.behind.orders == {}


def test_a_part_that_is_refused_is_begun_when_it_is_asked_for_again(site: Site) -> None:
    site.bmc.refuses = SourceUnavailable("another update runs")
    site.fleet.start_install(NODE, order(COMMAND, FIRMWARE), key=KEY)
    site.commands.behind.state = InstallState.INSTALLED
    assert read(site).state is InstallState.WAITING

    with pytest.raises(SourceUnavailable, match="another update runs"):
        site.fleet.start_install(NODE, order(COMMAND, FIRMWARE), key=KEY)
    state = read(site).state
    site.bmc.refuses = None
    site.fleet.start_install(NODE, order(COMMAND, FIRMWARE), key=KEY)

    assert state is InstallState.WAITING
    assert [len(each.orders) for each in site.parts] == [1, 0, 1]


def test_a_means_that_is_configured_no_more_is_not_taken_for_done(site: Site, tmp_path: Path) -> None:
    site.fleet.start_install(NODE, order(FIRMWARE), key=KEY)
    notes = InstallNotes(tmp_path / "means", clock=SystemClock())

    with pytest.raises(SourceRefused, match=r"set fleet\.redfish"):
        ComposedFleet(site.commands, notes=notes).read_install(NODE, key=KEY)


def read(site: Site) -> InstallReport:
    """What a process that has just started is reported."""
    report = site.opened().read_install(NODE, key=KEY)
    assert report is not None
    return report


def test_a_report_asks_only_who_was_told_to_install(site: Site) -> None:
    site.fleet.start_install(NODE, order(FIRMWARE), key=KEY)
    site.commands.behind.silent = SourceUnavailable("the node is silent")

    report = site.fleet.read_install(NODE, key=KEY)

    assert report is not None
    assert report.said == "bmc"


def test_without_a_note_everybody_is_asked(site: Site) -> None:
    site.bmc.start(NODE, order(FIRMWARE), key=KEY)

    report = site.fleet.read_install(NODE, key=KEY)

    assert report is not None
    assert report.said == "bmc"
    assert site.fleet.read_install(NODE, key=OTHER_KEY) is None


def test_without_a_note_what_is_installed_is_all_of_it_only_when_the_order_says_so(site: Site) -> None:
    site.bmc.start(NODE, order(FIRMWARE), key=KEY)
    site.bmc.state = InstallState.INSTALLED

    before = read(site)
    site.fleet.start_install(NODE, order(FIRMWARE), key=KEY)

    assert (before.state, read(site).state) == (InstallState.WAITING, InstallState.INSTALLED)


@pytest.mark.parametrize(("state", "is_told"), [(InstallState.FAILED, True), (InstallState.INSTALLED, False)])
def test_without_a_note_who_does_not_answer_hides_no_failure_and_is_no_success(
    site: Site, state: InstallState, is_told: bool
) -> None:
    site.bmc.start(NODE, order(FIRMWARE), key=KEY)
    site.bmc.state, site.commands.behind.silent = state, SourceUnavailable("the node is silent")

    if is_told:
        report = site.fleet.read_install(NODE, key=KEY)
        assert report is not None
        assert report.state is InstallState.FAILED
    else:
        with pytest.raises(SourceUnavailable, match="the node is silent"):
            site.fleet.read_install(NODE, key=KEY)


# -- versions --


def test_the_node_is_believed_before_its_bmc_and_each_tells_what_the_other_cannot(site: Site) -> None:
    site.commands.behind.versions = {Component.DRIVER: "580.126.20", Component.BIOS: "1.06.07"}
    site.bmc.versions = {Component.BIOS: "1.07.01", Component.BMC: "25.06.27"}

    assert site.fleet.read_versions(NODE) == {
        Component.DRIVER: "580.126.20",
        Component.BIOS: "1.06.07",
        Component.BMC: "25.06.27",
    }


def test_one_of_them_that_answers_is_enough(site: Site) -> None:
    site.commands.behind.silent = SourceUnavailable("the node is silent")
    site.bmc.versions = {Component.BMC: "25.06.27"}

    assert site.fleet.read_versions(NODE) == {Component.BMC: "25.06.27"}


def test_where_neither_answers_nothing_is_told(site: Site) -> None:
    site.commands.behind.silent = site.bmc.silent = SourceUnavailable("silence")

    with pytest.raises(SourceUnavailable, match="silence"):
        site.fleet.read_versions(NODE)


def test_where_nobody_is_configured_it_is_said_which_key_to_set(tmp_path: Path) -> None:
    bare = ComposedFleet(CommandFleet({}, clock=SystemClock()), notes=InstallNotes(tmp_path, clock=SystemClock()))

    with pytest.raises(SourceRefused, match="read_versions; name one under fleet in"):
        bare.read_versions(NODE)


# -- reboots --


def test_who_restarts_nodes_is_the_sites_choice(tmp_path: Path) -> None:
    class FakeReboots:
        def __init__(self) -> None:
            self.rebooted: list[NodeName] = []

        def reboot(self, node: NodeName) -> None:
            self.rebooted.append(node)

    reboots = FakeReboots()
    commands = CommandFleet({}, clock=SystemClock())

    ComposedFleet(commands, notes=InstallNotes(tmp_path, clock=SystemClock()), reboots=reboots).reboot(
        NODE, reason="ROLL-0001"
    )

    assert reboots.rebooted == [NODE]
    with pytest.raises(SourceRefused, match="no command is configured for reboot"):
        ComposedFleet(commands, notes=InstallNotes(tmp_path, clock=SystemClock())).reboot(NODE, reason="ROLL-0001")
