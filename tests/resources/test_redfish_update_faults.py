"""Firmware over Redfish when the BMC fails as BMCs do: on the emulator of sushy-tools, and on a BMC whose tasks last.

Between us and either is the fault proxy. Whatever it does, an image is taken at most once, a lie is not believed,
and every call returns within its limit.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import InstallState
from ops_pipelines.core.sources import SourceError, SourceNonsense, SourceUnavailable
from ops_pipelines.resources.fleet.redfish_update import RedfishUpdates
from tests.resources.fake_bmc import ROOT, serve_bmc
from tests.resources.fake_firmware_bmc import INVENTORY, SERVICE, SIMPLE_UPDATE, TASKS, FirmwareBmc
from tests.resources.redfish_fault_proxy import FaultProxy, Kind, serve_proxy
from tests.resources.sushy_emulator import NEW, OLD, SYSTEM, run_emulator
from tests.resources.update_bench import KEY, NEW_BIOS, NODE, OTHER_KEY, change, order, settings_for, told, updates_for

RUNNING, INSTALLED, FAILED = InstallState.RUNNING, InstallState.INSTALLED, InstallState.FAILED
POST_SECONDS = 1.5
"""For calls whose image must have left before their time is over."""
SHORT_SECONDS = 0.4
"""For calls that are expected to run out of time: what holds them releases nothing before the test is over."""


@pytest.fixture
def bmc() -> Iterator[FirmwareBmc]:
    with serve_bmc(FirmwareBmc()) as fake:
        assert isinstance(fake, FirmwareBmc)
        yield fake


@pytest.fixture
def proxy(bmc: FirmwareBmc) -> Iterator[FaultProxy]:
    with serve_proxy(bmc.url) as found:
        yield found


@pytest.fixture
def updates(proxy: FaultProxy, tmp_path: Path) -> RedfishUpdates:
    return updates_for(proxy.url, tmp_path)


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[FaultProxy]:
    with run_emulator(tmp_path) as address, serve_proxy(address) as found:
        yield found


def emulated_order(version: str = NEW) -> object:
    """The emulator takes images for systems only."""
    return order(change(version=version, targets=(f"/redfish/v1/Systems/{SYSTEM}",)))


# -- the emulator --


def test_emulated_bmc_takes_an_image_and_runs_it(emulator: FaultProxy, tmp_path: Path) -> None:
    updates = updates_for(emulator.url, tmp_path)
    before = updates.active_versions(NODE)

    updates.start(NODE, emulated_order(), key=KEY)  # type: ignore[arg-type]  # an order
    updates.start(NODE, emulated_order(), key=KEY)  # type: ignore[arg-type]  # an order
    report = told(updates)

    assert before[Component.BIOS] == OLD
    assert (report.state, report.progress_ratio) == (INSTALLED, 1.0)
    assert updates.active_versions(NODE)[Component.BIOS] == NEW
    assert emulator.post_count() == 1


def test_emulated_bmc_that_fails_in_every_way_takes_one_image(emulator: FaultProxy, tmp_path: Path) -> None:
    def stuck(task: dict[str, object]) -> None:
        task.update({"TaskState": "Running", "PercentComplete": 50})

    def failed(task: dict[str, object]) -> None:
        task.update({"TaskState": "Exception", "TaskStatus": "Critical", "Messages": [{"Message": "verify failed"}]})

    updates = updates_for(emulator.url, tmp_path)
    busy = emulator.add(Kind.BUSY, "POST", "SimpleUpdate", retry_after="0")
    with pytest.raises(SourceUnavailable, match="HTTP 503"):
        updates.start(NODE, emulated_order(), key=KEY)  # type: ignore[arg-type]  # an order
    emulator.faults.remove(busy)
    emulator.add(Kind.LOST, "POST", "SimpleUpdate")

    with pytest.raises(SourceUnavailable, match="gave no answer to POST"):
        updates.start(NODE, emulated_order(), key=KEY)  # type: ignore[arg-type]  # an order
    updates.start(NODE, emulated_order(), key=KEY)  # type: ignore[arg-type]  # an order

    # Its answer was lost, and it keeps no list of tasks: the version decides.
    assert updates.active_versions(NODE)[Component.BIOS] == NEW
    assert told(updates).state is INSTALLED
    emulator.faults.clear()
    later = emulated_order("1.2.0")
    updates.start(NODE, later, key=OTHER_KEY)  # type: ignore[arg-type]  # an order
    for kind, lie, expected in (
        (Kind.LIE, stuck, (RUNNING, 0.5)),
        (Kind.LIE, stuck, (RUNNING, 0.5)),
        (Kind.LIE, failed, (FAILED, None)),
    ):
        emulator.faults.clear()
        emulator.add(kind, "GET", "/Tasks/42", lie=lie)
        report = told(updates, OTHER_KEY)
        assert (report.state, report.progress_ratio) == expected
    assert "verify failed" in report.said
    assert emulator.post_count() == 3


# -- before the image is taken: nothing is --

Begin = Callable[[RedfishUpdates], object]


@pytest.mark.parametrize("path", [f"{ROOT}$", f"{SERVICE}$", f"{TASKS}$"])
@pytest.mark.parametrize("kind", [Kind.AWAY, Kind.BUSY, Kind.CUT, Kind.TOO_LONG, Kind.TOO_SHORT])
def test_bmc_that_fails_before_the_image_takes_none_and_is_asked_again(
    proxy: FaultProxy, bmc: FirmwareBmc, tmp_path: Path, path: str, kind: Kind
) -> None:
    updates = updates_for(proxy.url, tmp_path)
    proxy.add(kind, "GET", path, retry_after="0")

    with pytest.raises(SourceError) as caught:
        updates.start(NODE, order(), key=KEY)

    assert isinstance(caught.value, SourceUnavailable | SourceNonsense)
    assert bmc.image_count == 0
    assert updates.report(NODE, key=KEY) is None
    proxy.faults.clear()
    updates.start(NODE, order(), key=KEY)
    assert bmc.image_count == 1


@pytest.mark.parametrize("kind", [Kind.BUSY, Kind.GONE])
def test_bmc_that_says_it_has_not_looked_at_the_image_is_asked_again(
    proxy: FaultProxy, bmc: FirmwareBmc, updates: RedfishUpdates, kind: Kind
) -> None:
    proxy.add(kind, "POST", SIMPLE_UPDATE, times=1, retry_after="0")

    with pytest.raises(SourceError):
        updates.start(NODE, order(), key=KEY)
    assert updates.report(NODE, key=KEY) is None
    updates.start(NODE, order(), key=KEY)

    assert bmc.image_count == 1


@pytest.mark.parametrize(("retry_after", "is_left_alone"), [("30", True), ("0", False), ("soon", False), ("-5", False)])
def test_bmc_that_asks_to_be_left_alone_is(
    proxy: FaultProxy, updates: RedfishUpdates, retry_after: str, is_left_alone: bool
) -> None:
    proxy.add(Kind.BUSY, "GET", f"{SERVICE}$", times=1, retry_after=retry_after)
    with pytest.raises(SourceUnavailable):
        updates.start(NODE, order(), key=KEY)
    asked_count = len(proxy.asked)

    if is_left_alone:
        with pytest.raises(SourceUnavailable, match="asked to be left alone for 30 s more"):
            updates.start(NODE, order(), key=KEY)
    else:
        updates.start(NODE, order(), key=KEY)

    assert (len(proxy.asked) == asked_count) is is_left_alone


@pytest.mark.parametrize("path", [f"{ROOT}$", f"{SERVICE}$", f"{TASKS}$"])
def test_bmc_that_is_too_slow_is_not_waited_for_and_gets_no_image(
    proxy: FaultProxy, bmc: FirmwareBmc, tmp_path: Path, path: str
) -> None:
    proxy.add(Kind.SLOW, "GET", path)
    updates = updates_for(proxy.url, tmp_path, limit_seconds=SHORT_SECONDS)

    with pytest.raises(SourceUnavailable):
        updates.start(NODE, order(), key=KEY)

    assert bmc.image_count == 0
    assert updates.report(NODE, key=KEY) is None


# -- after the image was asked for: it is never asked for again --


@pytest.mark.parametrize("kind", [Kind.LOST, Kind.CUT])
@pytest.mark.parametrize("dies", [False, True], ids=["same process", "new process"])
def test_task_whose_announcement_was_lost_is_found_again(
    proxy: FaultProxy, bmc: FirmwareBmc, tmp_path: Path, kind: Kind, dies: bool
) -> None:
    bmc.accept()
    bmc.tell("0", "Completed", 100)
    updates = updates_for(proxy.url, tmp_path)
    proxy.add(kind, "POST", SIMPLE_UPDATE)

    with pytest.raises(SourceUnavailable):
        updates.start(NODE, order(), key=KEY)
    if dies:
        updates = updates_for(proxy.url, tmp_path)
    updates.start(NODE, order(), key=KEY)
    bmc.tell("1", "Running", 30)
    seen = [told(updates).state]
    bmc.tell("1", "Completed", 100)
    seen.append(told(updates).state)

    assert seen == [RUNNING, INSTALLED]
    assert bmc.image_count == 1


def test_image_that_was_asked_for_and_lost_on_its_way_is_not_asked_for_again(
    proxy: FaultProxy, bmc: FirmwareBmc, tmp_path: Path
) -> None:
    proxy.add(Kind.AWAY, "POST", SIMPLE_UPDATE)
    with pytest.raises(SourceUnavailable):
        updates_for(proxy.url, tmp_path).start(NODE, order(), key=KEY)
    proxy.faults.clear()

    updates = updates_for(proxy.url, tmp_path)
    updates.start(NODE, order(), key=KEY)

    assert told(updates).state is RUNNING
    assert bmc.image_count == 0


def test_image_that_may_or_may_not_have_been_taken_is_unknown_until_the_inventory_tells(
    proxy: FaultProxy, bmc: FirmwareBmc, updates: RedfishUpdates
) -> None:
    proxy.add(Kind.LOST, "POST", SIMPLE_UPDATE)
    with pytest.raises(SourceUnavailable):
        updates.start(NODE, order(), key=KEY)
    bmc.restart()

    report = told(updates)
    updates.start(NODE, order(), key=KEY)
    bmc.firmware["HostBIOS_0"] = NEW_BIOS

    assert report.state is RUNNING
    assert report.said.startswith("unknown: ")
    assert told(updates).state is INSTALLED
    assert bmc.image_count == 1


def test_two_new_tasks_are_not_guessed_between(proxy: FaultProxy, bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    proxy.add(Kind.LOST, "POST", SIMPLE_UPDATE)
    with pytest.raises(SourceUnavailable):
        updates.start(NODE, order(), key=KEY)
    bmc.accept()
    bmc.tell("1", "Completed", 100)

    assert told(updates).said.startswith("unknown: ")


def test_bmc_that_takes_its_time_to_answer_is_not_waited_for_and_is_understood_later(
    proxy: FaultProxy, bmc: FirmwareBmc, tmp_path: Path
) -> None:
    proxy.add(Kind.SLOW_ANSWER, "POST", SIMPLE_UPDATE)
    updates = updates_for(proxy.url, tmp_path, limit_seconds=POST_SECONDS)

    updates.start(NODE, order(), key=KEY)

    assert told(updates).said == "the BMC has not answered yet whether it takes the image"
    updates.start(NODE, order(), key=KEY)
    proxy.let_go.set()
    for thread in threading.enumerate():
        if thread.name == f"redfish {NODE}":
            thread.join()
    bmc.tell("0", "Completed", 100)
    assert told(updates).state is INSTALLED
    assert bmc.image_count == 1


def test_process_that_died_while_the_bmc_thought_finds_the_task(
    proxy: FaultProxy, bmc: FirmwareBmc, tmp_path: Path
) -> None:
    proxy.add(Kind.SLOW_ANSWER, "POST", SIMPLE_UPDATE)
    updates_for(proxy.url, tmp_path, limit_seconds=POST_SECONDS).start(NODE, order(), key=KEY)

    updates = updates_for(proxy.url, tmp_path)
    updates.start(NODE, order(), key=KEY)
    bmc.tell("0", "Completed", 100)

    assert told(updates).state is INSTALLED
    assert bmc.image_count == 1


# -- while it runs --


@pytest.mark.parametrize("kind", [Kind.AWAY, Kind.BUSY, Kind.CUT, Kind.TOO_LONG, Kind.TOO_SHORT])
def test_bmc_that_is_away_for_a_while_goes_on_where_it_was(
    proxy: FaultProxy, bmc: FirmwareBmc, updates: RedfishUpdates, kind: Kind
) -> None:
    updates.start(NODE, order(), key=KEY)
    proxy.add(kind, "GET", "", retry_after="0")

    for _ in range(3):
        with pytest.raises(SourceError) as caught:
            updates.report(NODE, key=KEY)
        assert isinstance(caught.value, SourceUnavailable | SourceNonsense)
    proxy.faults.clear()
    bmc.tell("0", "Completed", 100)

    assert told(updates).state is INSTALLED


def test_bmc_that_is_away_for_good_is_unavailable_and_nothing_is_guessed(bmc: FirmwareBmc, tmp_path: Path) -> None:
    with serve_proxy(bmc.url) as proxy:
        updates = updates_for(proxy.url, tmp_path)
        updates.start(NODE, order(), key=KEY)

    for _ in range(2):
        with pytest.raises(SourceUnavailable):
            updates.report(NODE, key=KEY)
        with pytest.raises(SourceUnavailable):
            updates.active_versions(NODE)


def test_bmc_that_never_ends_its_answer_is_not_waited_for(proxy: FaultProxy, bmc: FirmwareBmc, tmp_path: Path) -> None:
    updates_for(proxy.url, tmp_path).start(NODE, order(), key=KEY)
    proxy.add(Kind.SLOW, "GET", f"{TASKS}/0$")
    updates = updates_for(proxy.url, tmp_path, limit_seconds=SHORT_SECONDS)

    with pytest.raises(SourceUnavailable):
        updates.report(NODE, key=KEY)


def test_task_that_stands_at_50_percent_runs_until_somebody_ends_it(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    updates.start(NODE, order(), key=KEY)
    bmc.tell("0", "Running", 50)

    reports = [told(updates) for _ in range(5)]

    assert {(each.state, each.progress_ratio) for each in reports} == {(RUNNING, 0.5)}


def test_task_that_lies_about_its_end_is_shown_up_by_what_runs(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    before = updates.active_versions(NODE)
    updates.start(NODE, order(), key=KEY)
    bmc.tell("0", "Completed", 100)

    assert told(updates).state is INSTALLED
    assert updates.active_versions(NODE) == before
    assert before[Component.BIOS] != NEW_BIOS


def test_task_that_vanished_is_not_believed_to_have_failed(
    proxy: FaultProxy, bmc: FirmwareBmc, updates: RedfishUpdates
) -> None:
    updates.start(NODE, order(), key=KEY)
    proxy.add(Kind.GONE, "GET", f"{TASKS}/0$")
    seen = [told(updates).state]

    bmc.firmware["HostBIOS_0"] = NEW_BIOS
    seen.append(told(updates).state)

    assert seen == [RUNNING, INSTALLED]


def test_inventory_that_is_cut_off_tells_nothing(proxy: FaultProxy, updates: RedfishUpdates) -> None:
    proxy.add(Kind.CUT, "GET", f"{INVENTORY}/HostBIOS_0$")

    with pytest.raises(SourceUnavailable, match="cut its answer off"):
        updates.active_versions(NODE)


def test_no_fault_puts_the_password_into_an_error_or_onto_the_screen(
    proxy: FaultProxy, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "hunter2"
    messages = []
    for kind in (Kind.AWAY, Kind.BUSY, Kind.CUT, Kind.GONE, Kind.TOO_LONG):
        updates = updates_for(proxy.url, tmp_path)
        settings_for(proxy.url, tmp_path).password_file.write_text(secret, encoding="utf-8")
        proxy.faults.clear()
        proxy.add(kind, "*", "", retry_after="0")
        with pytest.raises(SourceError) as caught:
            updates.start(NODE, order(), key=KEY)
        messages.append(str(caught.value))

    assert secret not in "".join([*messages, *capfd.readouterr()])
    assert all(message.isprintable() for message in messages)
