"""Firmware over Redfish, on a BMC that takes it: what is asked for, how often, and what its task and inventory mean."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.release import Activation, Component
from ops_pipelines.core.rollout import Direction, InstallOrder, InstallState
from ops_pipelines.core.sources import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.config.redfish_settings import Authentication
from ops_pipelines.resources.fleet.redfish_update import RedfishUpdates
from tests.resources.fake_bmc import answer, extended_error, serve_bmc
from tests.resources.fake_firmware_bmc import INVENTORY, MANAGERS, SERVICE, SIMPLE_UPDATE, TASKS, FirmwareBmc
from tests.resources.update_bench import (
    ADDRESS,
    KEY,
    NEW_BIOS,
    NODE,
    OLD_BIOS,
    OTHER_KEY,
    artifact,
    change,
    order,
    settings_for,
    told,
    updates_for,
)
from tests.simulator.fake_clock import FakeClock

RUNNING, WAITING = InstallState.RUNNING, InstallState.WAITING
INSTALLED, FAILED = InstallState.INSTALLED, InstallState.FAILED


@pytest.fixture
def bmc() -> Iterator[FirmwareBmc]:
    with serve_bmc(FirmwareBmc()) as fake:
        assert isinstance(fake, FirmwareBmc)
        yield fake


@pytest.fixture
def updates(bmc: FirmwareBmc, tmp_path: Path) -> RedfishUpdates:
    return updates_for(bmc.url, tmp_path)


# -- what is asked for --


def test_image_is_asked_for_once_with_its_targets_and_nothing_is_activated(
    bmc: FirmwareBmc, updates: RedfishUpdates
) -> None:
    updates.start(NODE, order(), key=KEY)
    updates.start(NODE, order(), key=KEY)

    assert bmc.fetched == [{"ImageURI": ADDRESS, "TransferProtocol": "HTTPS", "Targets": [f"{INVENTORY}/HostBIOS_0"]}]
    assert (bmc.received, bmc.resets_received) == ([], [])


def test_key_that_has_another_order_is_refused(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    updates.start(NODE, order(), key=KEY)

    with pytest.raises(SourceRefused, match="another order was started under"):
        updates.start(NODE, order(change(location="https://images.example/other", image=b"other")), key=KEY)

    assert len(bmc.fetched) == 1


def test_image_without_targets_leaves_the_choice_to_the_bmc(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    updates.start(NODE, order(change(targets=())), key=KEY)

    assert "Targets" not in bmc.fetched[0]


@pytest.mark.parametrize(
    ("supported", "activation", "expected"),
    [
        (("Immediate", "OnReset"), Activation.POWER_CYCLE, "OnReset"),
        (("Immediate", "OnReset"), Activation.LIVE, "Immediate"),
        (("Immediate",), Activation.POWER_CYCLE, None),
        (("OnReset",), Activation.LIVE, None),
        ((), Activation.POWER_CYCLE, None),
    ],
)
def test_bmc_that_lets_one_choose_applies_the_image_when_the_release_activates_it(
    bmc: FirmwareBmc,
    updates: RedfishUpdates,
    supported: tuple[str, ...],
    activation: Activation,
    expected: str | None,
) -> None:
    bmc.apply_times = supported

    updates.start(NODE, order(change(activation=activation)), key=KEY)

    assert bmc.fetched[0].get("@Redfish.OperationApplyTime") == expected


def test_way_back_installs_the_image_of_the_version_that_the_node_had(
    bmc: FirmwareBmc, updates: RedfishUpdates
) -> None:
    old = artifact("https://images.example/old.fwpkg", b"old")
    back = order(change(rollback={OLD_BIOS: old}), direction=Direction.BACK, bios=OLD_BIOS)

    updates.start(NODE, back, key=KEY)

    assert bmc.fetched[0]["ImageURI"] == old.location
    assert bmc.fetched[0]["ForceUpdate"] is True


def test_bmc_that_knows_no_force_is_asked_for_the_way_back_without(
    bmc: FirmwareBmc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {OLD_BIOS: artifact("https://images.example/old.fwpkg", b"old")}
    serve = bmc.serve
    bodies: list[bytes] = []

    def strict(method: str, path: str, headers: dict[str, str], body: bytes) -> object:
        if path == SIMPLE_UPDATE:
            bodies.append(body)
            if b"ForceUpdate" in body:
                return extended_error(400, "The property ForceUpdate is not in the list of valid properties.")
        return serve(method, path, headers, body)

    monkeypatch.setattr(bmc, "serve", strict)

    updates = updates_for(bmc.url, tmp_path)
    updates.start(NODE, order(change(rollback=old), direction=Direction.BACK, bios=OLD_BIOS), key=KEY)

    assert len(bodies) == 2
    assert told(updates).state is RUNNING


def test_way_back_without_an_image_is_refused(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    with pytest.raises(SourceRefused, match=r"bios 1\.05\.03 has no image to roll back with.*rollback_artifacts"):
        updates.start(NODE, order(direction=Direction.BACK, bios=OLD_BIOS), key=KEY)

    assert bmc.asked == []


def test_order_that_names_no_version_is_refused(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    with pytest.raises(SourceRefused, match="empty never means"):
        updates.start(NODE, replace(order(), versions={}), key=KEY)

    assert bmc.asked == []


def test_changes_that_share_a_file_are_one_image(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    tray = (
        change(Component.GPU_VBIOS, "96.00.99", targets=("HGX_0",)),
        change(Component.NVSWITCH, "96.00.88", targets=("HGX_0",)),
    )

    updates.start(NODE, order(*tray), key=KEY)

    assert [each["Targets"] for each in bmc.fetched] == [[f"{INVENTORY}/HGX_0"]]


def test_images_of_one_order_follow_one_another_and_all_count(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    second = change(Component.CPLD, "0.3", location="https://images.example/cpld", image=b"2", targets=("CPLDMB_0",))
    updates.start(NODE, order(change(), second), key=KEY)
    asked = [len(bmc.fetched)]

    updates.start(NODE, order(change(), second), key=KEY)
    asked.append(len(bmc.fetched))
    bmc.tell("0", "Completed", 100)
    after_first = [told(updates).state, told(updates).state]
    asked.append(len(bmc.fetched))
    updates.start(NODE, order(change(), second), key=KEY)
    asked.append(len(bmc.fetched))
    again = told(updates)
    bmc.tell("1", "Completed", 100)

    assert asked == [1, 1, 1, 2]
    assert after_first == [WAITING, WAITING]
    assert (again.state, told(updates).state) == (RUNNING, INSTALLED)
    assert [each["ImageURI"] for each in bmc.fetched] == [ADDRESS, "https://images.example/cpld"]


def test_second_image_that_the_bmc_refuses_fails_the_whole(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    second = change(Component.CPLD, "0.3", location="https://images.example/cpld", image=b"2")
    updates.start(NODE, order(change(), second), key=KEY)
    bmc.tell("0", "Completed", 100)
    assert told(updates).state is WAITING
    bmc.answers["POST", SIMPLE_UPDATE] = extended_error(400, "The image is not for this board.")

    with pytest.raises(SourceRefused, match="not for this board"):
        updates.start(NODE, order(change(), second), key=KEY)

    report = told(updates)
    assert report.state is FAILED
    assert "not for this board" in report.said


def test_second_image_for_which_the_bmc_is_too_busy_is_asked_for_later(
    bmc: FirmwareBmc, updates: RedfishUpdates
) -> None:
    both = order(change(), change(Component.CPLD, "0.3", location="https://images.example/cpld", image=b"2"))
    updates.start(NODE, both, key=KEY)
    bmc.tell("0", "Completed", 100)
    assert told(updates).state is WAITING
    bmc.accept()

    with pytest.raises(SourceUnavailable, match="another update runs"):
        updates.start(NODE, both, key=KEY)
    state = told(updates).state
    bmc.tell("1", "Completed", 100)
    updates.start(NODE, both, key=KEY)

    assert state is WAITING
    assert len(bmc.fetched) == 2


def test_who_looked_before_another_went_on_changes_nothing(
    bmc: FirmwareBmc, updates: RedfishUpdates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = order(change(), change(Component.CPLD, "0.3", location="https://images.example/cpld", image=b"2"))
    updates.start(NODE, both, key=KEY)
    bmc.tell("0", "Completed", 100)
    other = updates_for(bmc.url, tmp_path)
    serve = bmc.serve

    def go_on_meanwhile(method: str, path: str, headers: dict[str, str], body: bytes) -> object:
        if path == f"{TASKS}/0":
            monkeypatch.setattr(bmc, "serve", serve)
            assert told(other).state is WAITING
            other.start(NODE, both, key=KEY)
        return serve(method, path, headers, body)

    monkeypatch.setattr(bmc, "serve", go_on_meanwhile)

    with pytest.raises(SourceUnavailable, match="another process continued"):
        updates.report(NODE, key=KEY)
    updates.start(NODE, both, key=KEY)

    assert told(updates).state is RUNNING
    assert len(bmc.fetched) == 2


# -- what a task means --


@pytest.mark.parametrize(
    ("state", "percent", "status", "expected"),
    [
        ("New", 0, "OK", RUNNING),
        ("Starting", None, "OK", RUNNING),
        ("Running", 50, "OK", RUNNING),
        ("Running", 100, "OK", RUNNING),
        ("Interrupted", 70, "Warning", RUNNING),
        ("Suspended", 70, "OK", RUNNING),
        ("Pending", 100, "OK", RUNNING),
        ("Stopping", 100, "OK", RUNNING),
        ("Cancelling", 10, "OK", RUNNING),
        ("NeverHeardOf", 100, "OK", RUNNING),
        ("Completed", 100, "OK", INSTALLED),
        ("Completed", 0, "Warning", INSTALLED),
        ("Completed", 100, "Critical", FAILED),
        ("Exception", 100, "Critical", FAILED),
        ("Cancelled", 100, "OK", FAILED),
        ("Killed", 100, "OK", FAILED),
    ],
)
@pytest.mark.parametrize("named_by", ["document", "location"])
def test_state_of_a_task_decides_and_its_percent_is_only_shown(
    bmc: FirmwareBmc,
    updates: RedfishUpdates,
    named_by: str,
    state: str,
    percent: int | None,
    status: str,
    expected: InstallState,
) -> None:
    bmc.names_task_by = named_by
    updates.start(NODE, order(), key=KEY)
    bmc.tell("0", state, percent, TaskStatus=status)

    report = told(updates)

    assert report.state is expected
    if expected is RUNNING:
        assert report.progress_ratio == (None if percent is None else percent / 100)


@pytest.mark.parametrize("percent", [-1, 101, "99", True, float("1e300"), None])
def test_percent_that_can_be_none_is_not_shown(bmc: FirmwareBmc, updates: RedfishUpdates, percent: object) -> None:
    updates.start(NODE, order(), key=KEY)
    bmc.tasks["0"]["PercentComplete"] = percent

    assert told(updates).progress_ratio is None


def test_task_that_waits_for_the_reset_it_was_asked_for_is_installed(bmc: FirmwareBmc, tmp_path: Path) -> None:
    bmc.apply_times = ("OnReset",)
    updates = updates_for(bmc.url, tmp_path)
    updates.start(NODE, order(), key=KEY)
    seen = [told(updates).state]

    bmc.tell("0", "Pending", 100)
    seen.append(told(updates).state)

    assert seen == [RUNNING, INSTALLED]


def test_monitor_is_followed_until_it_answers_as_the_command_would(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    bmc.names_task_by = "monitor"
    updates.start(NODE, order(), key=KEY)
    seen = [told(updates).state]

    bmc.tell("0", "Completed")
    seen.append(told(updates).state)

    assert seen == [RUNNING, INSTALLED]


def test_monitor_that_answers_with_a_refusal_is_a_failure(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    bmc.names_task_by = "monitor"
    updates.start(NODE, order(), key=KEY)
    bmc.answers["GET", f"{TASKS}/0/Monitor"] = extended_error(400, "The image's signature is wrong.")

    report = told(updates)

    assert report.state is FAILED
    assert "signature is wrong" in report.said


def test_image_that_is_taken_at_once_is_installed(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    bmc.names_task_by = "nothing"

    updates.start(NODE, order(), key=KEY)

    assert told(updates).state is INSTALLED


def test_last_message_of_a_task_is_told_on_one_line(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    updates.start(NODE, order(), key=KEY)
    bmc.tell("0", "Exception", Messages=[{"Message": "early"}, {"Message": "verify\nfailed \x1b[31m" + "!" * 500}])

    said = told(updates).said

    assert said.startswith("verify failed  [31m!")
    assert said.isprintable()
    assert len(said) <= 200


def test_what_is_over_is_never_asked_of_the_bmc_again(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    updates.start(NODE, order(), key=KEY)
    bmc.tell("0", "Completed", 100)
    first = told(updates)
    asked_count = len(bmc.asked)

    bmc.restart()

    assert told(updates) == replace(first, progress_ratio=None)
    assert len(bmc.asked) == asked_count


def test_key_under_which_nothing_was_started_is_told_nothing(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    updates.start(NODE, order(), key=KEY)

    assert updates.report(NODE, key=OTHER_KEY) is None
    assert updates.report(NodeName("gpu004"), key=KEY) is None


@pytest.mark.parametrize("key", ["", "../x", "0" * 31, "0" * 33, "G" * 32])
def test_what_is_no_key_names_no_file(bmc: FirmwareBmc, updates: RedfishUpdates, key: str) -> None:
    with pytest.raises(ValueError, match="is not a key"):
        updates.start(NODE, order(), key=ActionKey(key))
    with pytest.raises(ValueError, match="is not a key"):
        updates.report(NODE, key=ActionKey(key))

    assert bmc.asked == []


# -- tasks that vanish --


@pytest.mark.parametrize(("runs", "expected"), [(OLD_BIOS, RUNNING), (NEW_BIOS, INSTALLED)])
def test_task_that_vanished_is_decided_by_what_runs(
    bmc: FirmwareBmc, updates: RedfishUpdates, runs: str, expected: InstallState
) -> None:
    updates.start(NODE, order(), key=KEY)
    bmc.restart()
    bmc.firmware["HostBIOS_0"] = runs

    assert told(updates).state is expected


def test_task_that_vanished_is_decided_by_what_lies_staged(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    bmc.firmware = {"DPU_NIC": "32.38.1002"}
    updates.start(NODE, order(change(Component.NIC_FIRMWARE, "32.44.1036", targets=("DPU_NIC",))), key=KEY)
    bmc.restart()
    seen = [told(updates).state]

    bmc.firmware["DPU_NIC_pending"] = "32.44.1036"
    seen.append(told(updates).state)

    assert seen == [RUNNING, INSTALLED]
    assert updates.active_versions(NODE)[Component.NIC_FIRMWARE] == "32.38.1002"


def test_task_of_another_that_has_the_same_number_is_not_taken_for_ours(
    bmc: FirmwareBmc, updates: RedfishUpdates
) -> None:
    updates.start(NODE, order(), key=KEY)
    bmc.restart()
    bmc.begins = "1970-01-01T00:03:00+00:00"
    bmc.accept()
    bmc.tell("0", "Completed", 100)

    assert told(updates).state is RUNNING

    bmc.firmware["HostBIOS_0"] = NEW_BIOS
    assert told(updates).state is INSTALLED


def test_every_gpu_must_have_the_version_before_the_inventory_says_so(
    bmc: FirmwareBmc, updates: RedfishUpdates
) -> None:
    updates.start(NODE, order(change(Component.GPU_VBIOS, "96.00.99", targets=("HGX_0",))), key=KEY)
    bmc.restart()
    for number in range(1, 8):
        bmc.firmware[f"HGX_FW_GPU_SXM_{number}"] = "96.00.99"
    seen = [told(updates).state]

    bmc.firmware["HGX_FW_GPU_SXM_8"] = "96.00.99"
    seen.append(told(updates).state)

    assert seen == [RUNNING, INSTALLED]


# -- one at a time --


@pytest.mark.parametrize("state", ["New", "Running", "Suspended", "Pending"])
@pytest.mark.parametrize("expands", [True, False])
def test_another_update_that_runs_is_not_disturbed(
    bmc: FirmwareBmc, updates: RedfishUpdates, state: str, expands: bool
) -> None:
    bmc.expands = expands
    bmc.accept()
    bmc.tell("0", state, 10)

    with pytest.raises(SourceUnavailable, match="another update runs on the BMC"):
        updates.start(NODE, order(), key=KEY)

    assert bmc.fetched == []
    assert updates.report(NODE, key=KEY) is None


def test_task_that_is_over_or_of_something_else_is_in_nobodys_way(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    bmc.accept()
    bmc.tell("0", "Exception")
    bmc.accept()
    bmc.tell("1", "Running", Payload={"TargetUri": "/redfish/v1/Managers/BMC/LogServices/Dump/Actions/Collect"})

    updates.start(NODE, order(), key=KEY)

    assert len(bmc.fetched) == 1


def test_image_of_ours_that_only_waits_for_a_reset_is_in_nobodys_way(bmc: FirmwareBmc, tmp_path: Path) -> None:
    bmc.apply_times = ("OnReset",)
    updates = updates_for(bmc.url, tmp_path)
    updates.start(NODE, order(), key=KEY)
    bmc.tell("0", "Pending", 100)
    assert told(updates).state is INSTALLED

    updates_for(bmc.url, tmp_path).start(NODE, order(), key=OTHER_KEY)

    assert len(bmc.fetched) == 2


@pytest.mark.parametrize("message_id", ["Update.1.0.UpdateInProgress", "Base.1.8.ResourceInUse"])
def test_bmc_that_says_it_is_busy_is_asked_again_later(
    bmc: FirmwareBmc, updates: RedfishUpdates, message_id: str
) -> None:
    told_busy = {"error": {"@Message.ExtendedInfo": [{"MessageId": message_id, "Message": "An update is running."}]}}
    bmc.answers["POST", SIMPLE_UPDATE] = answer(told_busy, 400)

    with pytest.raises(SourceUnavailable, match="An update is running"):
        updates.start(NODE, order(), key=KEY)
    bmc.answers.clear()
    updates.start(NODE, order(), key=KEY)

    assert len(bmc.fetched) == 1


def test_bmc_that_several_nodes_share_is_left_alone(bmc: FirmwareBmc, tmp_path: Path) -> None:
    shared = {NODE: bmc.url, NodeName("gpu004"): bmc.url + "/"}
    both = replace(settings_for(bmc.url, tmp_path), addresses=shared, system_id="{node}")
    updates = RedfishUpdates(both, state_directory=tmp_path / "updates", clock=FakeClock())

    with pytest.raises(SourceRefused, match="is also that of gpu004"):
        updates.start(NODE, order(), key=KEY)

    assert updates.active_versions(NODE) == {}
    assert bmc.asked == []


# -- what it does not offer --


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"ServiceEnabled": False}, "is disabled"),
        ({"Actions": {}}, "fetches no images"),
        (
            {"Actions": {"#UpdateService.SimpleUpdate": {
                "target": SIMPLE_UPDATE, "TransferProtocol@Redfish.AllowableValues": [["SCP"]]}}},
            "by SCP only",
        ),
    ],
)  # fmt: skip
def test_bmc_that_does_not_offer_it_is_refused(
    bmc: FirmwareBmc, updates: RedfishUpdates, service: dict[str, object], message: str
) -> None:
    bmc.answers["GET", SERVICE] = answer(
        {"Id": "UpdateService", "FirmwareInventory": {"@odata.id": INVENTORY}, **service}
    )

    with pytest.raises(SourceRefused, match=message):
        updates.start(NODE, order(), key=KEY)

    assert bmc.image_count == 0
    assert updates.report(NODE, key=KEY) is None


def test_image_over_plain_http_is_refused(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    with pytest.raises(SourceRefused, match="https"):
        updates.start(NODE, order(change(location="http://images.example/bios")), key=KEY)

    assert bmc.asked == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 501])
def test_image_that_the_bmc_refuses_may_be_asked_for_again(
    bmc: FirmwareBmc, updates: RedfishUpdates, status: int
) -> None:
    bmc.answers["POST", SIMPLE_UPDATE] = extended_error(status, "no")

    with pytest.raises(SourceRefused):
        updates.start(NODE, order(), key=KEY)
    assert updates.report(NODE, key=KEY) is None
    bmc.answers.clear()
    updates.start(NODE, order(), key=KEY)

    assert len(bmc.fetched) == 1


def test_state_directory_that_cannot_be_written_keeps_anything_from_being_asked(
    bmc: FirmwareBmc, tmp_path: Path
) -> None:
    (tmp_path / "updates").write_text("a file, and no directory", encoding="utf-8")

    with pytest.raises((SourceRefused, SourceUnavailable)):
        updates_for(bmc.url, tmp_path).start(NODE, order(), key=KEY)

    assert bmc.fetched == []


@pytest.mark.parametrize("which", ["updates", f"updates/{NODE}"])
def test_state_directory_that_others_may_write_to_is_not_trusted(bmc: FirmwareBmc, tmp_path: Path, which: str) -> None:
    (tmp_path / which).mkdir(parents=True)
    (tmp_path / which).chmod(0o777)

    with pytest.raises(SourceRefused, match="nobody else may write"):
        updates_for(bmc.url, tmp_path).start(NODE, order(), key=KEY)

    assert bmc.fetched == []


def test_record_that_is_damaged_is_nonsense_and_nothing_is_asked_again(bmc: FirmwareBmc, tmp_path: Path) -> None:
    updates = updates_for(bmc.url, tmp_path)
    updates.start(NODE, order(), key=KEY)
    (tmp_path / "updates" / NODE / f"{KEY}.part").write_text('{"key": ', encoding="utf-8")

    with pytest.raises(SourceNonsense, match="move the file away"):
        updates.start(NODE, order(), key=KEY)
    with pytest.raises(SourceNonsense):
        updates.report(NODE, key=KEY)

    assert len(bmc.fetched) == 1


def test_answer_that_cannot_be_kept_is_unknown_and_found_again_later(bmc: FirmwareBmc, tmp_path: Path) -> None:
    updates = updates_for(bmc.url, tmp_path)
    directory = tmp_path / "updates"
    serve = bmc.serve

    def lose_the_disk(method: str, path: str, headers: dict[str, str], body: bytes) -> object:
        if path == SIMPLE_UPDATE:
            directory.rename(tmp_path / "elsewhere")
        return serve(method, path, headers, body)

    bmc.serve = lose_the_disk  # type: ignore[method-assign,assignment]  # for the time of one call
    with pytest.raises(SourceUnavailable, match="Look at the disk"):
        updates.start(NODE, order(), key=KEY)
    bmc.serve = serve  # type: ignore[method-assign]  # as it was
    (tmp_path / "elsewhere").rename(directory)
    bmc.tell("0", "Completed", 100)

    updates.start(NODE, order(), key=KEY)

    assert told(updates).state is INSTALLED
    assert len(bmc.fetched) == 1


def test_faults_of_the_settings_are_the_operators(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="in the clear"):
        RedfishUpdates(
            replace(settings_for("http://bmc", tmp_path), is_certificate_checked=True),
            state_directory=tmp_path,
            clock=FakeClock(),
        )


# -- firmware of the BMC itself --


def bmc_order(activation: Activation = Activation.LIVE) -> InstallOrder:
    return order(change(Component.BMC, "25.06.27", targets=("HostBMC_0",), activation=activation))


def ask_for_reset(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    """Order firmware of the BMC, and once it is there the reset that makes it run."""
    updates.start(NODE, bmc_order(), key=KEY)
    bmc.tell("0", "Completed", 100)
    assert told(updates).state is WAITING
    assert bmc.resets_received == []
    updates.start(NODE, bmc_order(), key=KEY)


def test_firmware_of_the_bmc_ends_with_its_reset_and_with_the_version_that_runs(
    bmc: FirmwareBmc, updates: RedfishUpdates
) -> None:
    bmc.on_manager_reset = bmc.restart
    ask_for_reset(bmc, updates)

    seen = [told(updates).state]
    updates.start(NODE, bmc_order(), key=KEY)
    seen.append(told(updates).state)
    bmc.firmware["HostBMC_0"] = "25.06.27"
    seen.append(told(updates).state)

    assert seen == [RUNNING, RUNNING, INSTALLED]
    assert bmc.resets_received == ["GracefulRestart"]


def test_firmware_of_the_bmc_that_a_power_cycle_activates_resets_nothing(
    bmc: FirmwareBmc, updates: RedfishUpdates
) -> None:
    updates.start(NODE, bmc_order(Activation.AC_CYCLE), key=KEY)
    bmc.tell("0", "Completed", 100)

    assert told(updates).state is INSTALLED
    assert bmc.resets_received == []


def test_package_of_bmc_and_bios_is_installed_when_the_bmc_runs_its_part(
    bmc: FirmwareBmc, updates: RedfishUpdates
) -> None:
    both = (change(Component.BMC, "25.06.27", targets=("HostBMC_0",), activation=Activation.LIVE), change())
    updates.start(NODE, order(*both), key=KEY)
    bmc.tell("0", "Completed", 100)

    seen = [told(updates).state]
    updates.start(NODE, order(*both), key=KEY)
    seen.append(told(updates).state)
    bmc.firmware["HostBMC_0"] = "25.06.27"
    seen.append(told(updates).state)

    assert seen == [WAITING, RUNNING, INSTALLED]
    assert bmc.fetched[0]["Targets"] == [f"{INVENTORY}/HostBMC_0", f"{INVENTORY}/HostBIOS_0"]
    assert bmc.firmware["HostBIOS_0"] == OLD_BIOS


def test_reset_that_kills_its_own_answer_is_not_sent_again(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    bmc.dropped.add(("POST", f"{MANAGERS}/BMC/Actions/Manager.Reset"))
    ask_for_reset(bmc, updates)

    for _ in range(3):
        assert told(updates).state is RUNNING
        updates.start(NODE, bmc_order(), key=KEY)

    assert bmc.resets_received == ["GracefulRestart"]


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [(["ForceRestart"], ["ForceRestart"]), (["GracefulRestart", "ForceRestart"], ["GracefulRestart"])],
)
def test_bmc_is_reset_as_gently_as_it_offers(
    bmc: FirmwareBmc, updates: RedfishUpdates, allowed: list[str], expected: list[str]
) -> None:
    reset = {"target": f"{MANAGERS}/BMC/Actions/Manager.Reset", "ResetType@Redfish.AllowableValues": allowed}
    bmc.answers["GET", f"{MANAGERS}/BMC"] = answer({"Id": "BMC", "Actions": {"#Manager.Reset": reset}})

    ask_for_reset(bmc, updates)

    assert bmc.resets_received == expected


def test_allowed_resets_of_a_bmc_are_read_from_an_action_info(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    info = f"{MANAGERS}/BMC/ResetActionInfo"
    reset = {"target": f"{MANAGERS}/BMC/Actions/Manager.Reset", "@Redfish.ActionInfo": info}
    bmc.answers["GET", f"{MANAGERS}/BMC"] = answer({"Id": "BMC", "Actions": {"#Manager.Reset": reset}})
    bmc.answers["GET", info] = answer({"Parameters": [{"Name": "ResetType", "AllowableValues": ["ForceRestart"]}]})

    ask_for_reset(bmc, updates)

    assert bmc.resets_received == ["ForceRestart"]


@pytest.mark.parametrize("actions", [{}, {"#Manager.Reset": {"target": "", "ResetType@Redfish.AllowableValues": []}}])
def test_bmc_that_offers_no_reset_is_refused(
    bmc: FirmwareBmc, updates: RedfishUpdates, actions: dict[str, object]
) -> None:
    bmc.answers["GET", f"{MANAGERS}/BMC"] = answer({"Id": "BMC", "Actions": actions})

    with pytest.raises(SourceRefused, match="does not offer to be reset"):
        ask_for_reset(bmc, updates)


def test_manager_that_is_named_is_the_one_that_is_reset(bmc: FirmwareBmc, tmp_path: Path) -> None:
    links = [{"@odata.id": f"{MANAGERS}/{each}"} for each in ("HGX_BMC_0", "BMC")]
    bmc.answers["GET", MANAGERS] = answer({"Members": links})

    with pytest.raises(SourceRefused, match=r"2 managers .*manager_id"):
        ask_for_reset(bmc, updates_for(bmc.url, tmp_path))
    updates_for(bmc.url, tmp_path, manager_id="BMC").start(NODE, bmc_order(), key=KEY)

    assert bmc.resets_received == ["GracefulRestart"]


# -- secrets, sessions, several who ask --


def test_password_stands_in_no_file_no_message_and_no_log(
    bmc: FirmwareBmc, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    updates = updates_for(bmc.url, tmp_path)
    (tmp_path / "bmc.password").write_text("hunter2", encoding="utf-8")

    with pytest.raises(SourceRefused, match=r"HTTP 401") as caught:
        updates.start(NODE, order(), key=KEY)

    kept = "".join(each.read_text() for each in (tmp_path / "updates").rglob("*") if each.is_file())
    assert "hunter2" not in "".join([str(caught.value), kept, *capfd.readouterr()])


def test_session_is_closed_after_each_call(bmc: FirmwareBmc, tmp_path: Path) -> None:
    bmc.takes_basic = False
    updates = updates_for(bmc.url, tmp_path, authentication=Authentication.SESSION)

    updates.start(NODE, order(), key=KEY)
    told(updates)
    updates.active_versions(NODE)

    assert len(bmc.fetched) == 1
    assert bmc.open_sessions == 0


@pytest.mark.parametrize("keys", [[KEY] * 4, [ActionKey(digit * 32) for digit in "abcd"]], ids=["one key", "four"])
def test_many_who_start_at_once_ask_once(bmc: FirmwareBmc, tmp_path: Path, keys: list[ActionKey]) -> None:
    all_ready = threading.Barrier(len(keys))
    problems: list[Exception] = []

    def begin(key: ActionKey) -> None:
        mine = updates_for(bmc.url, tmp_path)
        all_ready.wait()
        try:
            mine.start(NODE, order(), key=key)
        except SourceUnavailable as problem:
            problems.append(problem)  # it saw the one that was faster, on the BMC or here

    threads = [threading.Thread(target=begin, args=[key]) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(bmc.fetched) == 1
    assert len(problems) < len(keys)


@pytest.mark.parametrize(("seconds", "is_asked"), [(59, False), (60, True), (61, True)])
def test_image_that_another_key_asked_for_a_moment_ago_may_not_show_yet(
    bmc: FirmwareBmc, tmp_path: Path, seconds: float, is_asked: bool
) -> None:
    clock = FakeClock()
    updates = updates_for(bmc.url, tmp_path, clock=clock)
    bmc.dropped.add(("POST", SIMPLE_UPDATE))
    with pytest.raises(SourceUnavailable):
        updates.start(NODE, order(), key=KEY)
    bmc.dropped.clear()
    bmc.restart()
    clock.wait(seconds)

    if is_asked:
        updates.start(NODE, order(), key=OTHER_KEY)
    else:
        with pytest.raises(SourceUnavailable, match="at this moment"):
            updates.start(NODE, order(), key=OTHER_KEY)

    assert len(bmc.fetched) == 1 + is_asked


@settings(max_examples=12, deadline=None)
@given(
    steps=st.lists(
        st.sampled_from(["start", "report", "new process", "Running", "Completed", "Exception", "restart", "flashed"]),
        max_size=10,
    )
)
def test_whatever_happens_an_image_is_asked_for_at_most_once_and_an_end_stays_an_end(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("state")
    with serve_bmc(FirmwareBmc()) as bmc:
        assert isinstance(bmc, FirmwareBmc)
        updates = updates_for(bmc.url, directory)
        ends: list[InstallState] = []
        for step in steps:
            if step == "start":
                updates.start(NODE, order(), key=KEY)
            elif step == "report":
                report = updates.report(NODE, key=KEY)
                assert (report is None) == (bmc.fetched == [])
                if report is not None and (report.state is not RUNNING or ends):
                    ends.append(report.state)
            elif step == "new process":
                updates = updates_for(bmc.url, directory)
            elif step == "restart":
                bmc.restart()
            elif step == "flashed":
                bmc.firmware["HostBIOS_0"] = NEW_BIOS
            elif "0" in bmc.tasks:
                bmc.tell("0", step)

        assert len(bmc.fetched) <= 1
        assert len(set(ends)) <= 1
