"""Images that are sent to a BMC: which bytes, by which process, and what an upload that was cut short means."""

import io
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.rollout import InstallState
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.fleet.redfish_order import push
from ops_pipelines.resources.fleet.redfish_records import Image, ImageBody, UpdateRecord, UpdateRecords
from tests.resources.fake_bmc import answer, extended_error, serve_bmc
from tests.resources.fake_firmware_bmc import INVENTORY, PUSH, SERVICE, FirmwareBmc
from tests.resources.redfish_fault_proxy import FaultProxy, Kind, serve_proxy
from tests.resources.update_bench import (
    IMAGE,
    KEY,
    NEW_BIOS,
    NODE,
    OTHER_KEY,
    change,
    order,
    settings_for,
    told,
    updates_for,
)
from tests.simulator.fake_clock import BEGINNING, FakeClock

RUNNING, INSTALLED, FAILED = InstallState.RUNNING, InstallState.INSTALLED, InstallState.FAILED


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
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bios.fwpkg"
    path.write_bytes(IMAGE)
    return path


@pytest.fixture
def records(tmp_path: Path) -> UpdateRecords:
    """The records of one node, with an image that is to be sent."""
    found = UpdateRecords(tmp_path / "updates", NODE, clock=FakeClock())
    assert found.claim(record_for(tmp_path / "bios.fwpkg"), after=None, looked_at=BEGINNING)
    return found


def record_for(file: Path) -> UpdateRecord:
    known = change(location=str(file)).artifact
    assert known is not None
    image = Image(
        name=known.name,
        sha256=known.sha256,
        location=known.location,
        targets=("HostBIOS_0",),
        versions={change().component: NEW_BIOS},
        live=frozenset(),
    )
    return UpdateRecord(
        key=KEY,
        node=NODE,
        images=(image,),
        is_back=False,
        resets_bmc=False,
        asked_at=BEGINNING,
        changed_at=BEGINNING,
        push_path=PUSH,
        push_parameters="{}",
    )


def wait_for_the_process(directory: Path) -> None:
    os.waitpid(json.loads((directory / "updates" / NODE / f"{KEY}.lock").read_text())["pid"], 0)


# -- a process of its own --


def test_image_is_sent_by_a_process_of_its_own_and_its_task_is_followed(
    bmc: FirmwareBmc, file: Path, tmp_path: Path
) -> None:
    bmc.apply_times = ("OnReset",)
    updates = updates_for(bmc.url, tmp_path, clock=SystemClock())

    updates.start(NODE, order(change(location=str(file))), key=KEY)
    updates.start(NODE, order(change(location=str(file))), key=KEY)
    wait_for_the_process(tmp_path)
    updates = updates_for(bmc.url, tmp_path, clock=SystemClock())
    seen = [told(updates).state]
    bmc.tell("0", "Completed", 100)
    seen.append(told(updates).state)

    assert bmc.sent == [({"Targets": [f"{INVENTORY}/HostBIOS_0"], "@Redfish.OperationApplyTime": "OnReset"}, IMAGE)]
    assert seen == [RUNNING, INSTALLED]


def test_image_that_is_being_sent_runs_and_keeps_every_other_away(
    proxy: FaultProxy, bmc: FirmwareBmc, file: Path, tmp_path: Path
) -> None:
    proxy.add(Kind.SLOW_ANSWER, "POST", PUSH)
    updates = updates_for(proxy.url, tmp_path, clock=SystemClock())
    updates.start(NODE, order(change(location=str(file))), key=KEY)

    report = told(updates)
    with pytest.raises(SourceUnavailable, match="is being sent to the BMC already"):
        updates.start(NODE, order(), key=OTHER_KEY)
    proxy.let_go.set()
    wait_for_the_process(tmp_path)

    assert (report.state, report.said) == (RUNNING, "image bios.fwpkg is being sent")
    assert told(updates).state is RUNNING
    assert bmc.image_count == 1


def test_password_is_not_told_to_the_process_that_sends(bmc: FirmwareBmc, file: Path, tmp_path: Path) -> None:
    password = settings_for(bmc.url, tmp_path).password_file.read_text().strip()
    updates = updates_for(bmc.url, tmp_path, clock=SystemClock())

    updates.start(NODE, order(change(location=str(file))), key=KEY)
    wait_for_the_process(tmp_path)

    kept = "".join(each.read_text() for each in (tmp_path / "updates" / NODE).iterdir())
    assert password not in kept
    assert json.dumps(password) not in kept
    assert len(bmc.sent) == 1


# -- files that are refused --


@pytest.mark.parametrize("content", [IMAGE + b".", IMAGE[:-1], b""])
def test_file_that_is_not_the_releases_is_refused(bmc: FirmwareBmc, file: Path, tmp_path: Path, content: bytes) -> None:
    file.write_bytes(content)

    with pytest.raises(SourceRefused, match=r"has the sha256 .*; the release says"):
        updates_for(bmc.url, tmp_path).start(NODE, order(change(location=str(file))), key=KEY)

    assert bmc.asked == []


def test_file_that_is_not_there_is_refused(bmc: FirmwareBmc, tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match="image gone cannot be read"):
        updates_for(bmc.url, tmp_path).start(NODE, order(change(location=str(tmp_path / "gone"))), key=KEY)

    assert bmc.asked == []


@pytest.mark.parametrize(("limit", "is_refused"), [(len(IMAGE) - 1, True), (len(IMAGE), False), (None, False)])
def test_file_that_is_larger_than_the_bmc_takes_is_refused(
    bmc: FirmwareBmc, file: Path, tmp_path: Path, limit: int | None, is_refused: bool
) -> None:
    service = {"MultipartHttpPushUri": PUSH, "MaxImageSizeBytes": limit, "FirmwareInventory": {"@odata.id": INVENTORY}}
    bmc.answers["GET", SERVICE] = answer(service)
    updates = updates_for(bmc.url, tmp_path, clock=SystemClock())

    if is_refused:
        with pytest.raises(SourceRefused, match=f"has {len(IMAGE)} bytes; the BMC takes {limit}"):
            updates.start(NODE, order(change(location=str(file))), key=KEY)
    else:
        updates.start(NODE, order(change(location=str(file))), key=KEY)
        wait_for_the_process(tmp_path)

    assert len(bmc.sent) == (not is_refused)


def test_bmc_that_cannot_be_sent_images_is_refused(bmc: FirmwareBmc, file: Path, tmp_path: Path) -> None:
    bmc.answers["GET", SERVICE] = answer({"Id": "UpdateService", "HttpPushUri": "/redfish/v1/UpdateService/update"})

    with pytest.raises(SourceRefused, match="no MultipartHttpPushUri"):
        updates_for(bmc.url, tmp_path).start(NODE, order(change(location=str(file))), key=KEY)


# -- what the process that sends finds, and leaves behind --


def test_file_that_changed_after_it_was_ordered_is_not_sent(
    bmc: FirmwareBmc, file: Path, records: UpdateRecords, tmp_path: Path
) -> None:
    file.write_bytes(b"another")

    push(records, KEY, settings_for(bmc.url, tmp_path), clock=FakeClock())

    report = told(updates_for(bmc.url, tmp_path))
    assert report.state is FAILED
    assert "the release says" in report.said
    assert bmc.sent == []


@pytest.mark.parametrize("status", [400, 404, 413, 429, 503])
def test_image_that_the_bmc_does_not_take_has_failed(
    bmc: FirmwareBmc, file: Path, records: UpdateRecords, tmp_path: Path, status: int
) -> None:
    bmc.answers["POST", PUSH] = extended_error(status, "no")

    push(records, KEY, settings_for(bmc.url, tmp_path), clock=FakeClock())

    assert told(updates_for(bmc.url, tmp_path)).state is FAILED


def test_image_whose_answer_was_lost_is_found_by_its_task_and_not_sent_again(
    proxy: FaultProxy, bmc: FirmwareBmc, file: Path, records: UpdateRecords, tmp_path: Path
) -> None:
    proxy.add(Kind.LOST, "POST", PUSH)

    for _ in range(2):
        push(records, KEY, settings_for(proxy.url, tmp_path), clock=FakeClock())
    bmc.tell("0", "Completed", 100)

    assert told(updates_for(proxy.url, tmp_path)).state is INSTALLED
    assert bmc.image_count == 1


@pytest.mark.parametrize(("seconds", "expected"), [(29, RUNNING), (30, FAILED), (31, FAILED)])
def test_process_that_ended_before_the_last_byte_has_sent_no_image(
    bmc: FirmwareBmc, file: Path, records: UpdateRecords, tmp_path: Path, seconds: float, expected: InstallState
) -> None:
    clock = FakeClock()
    clock.wait(seconds)

    report = told(updates_for(bmc.url, tmp_path, clock=clock))

    assert report.state is expected
    assert bmc.asked == []


def test_process_that_ended_after_the_last_byte_leaves_it_to_the_bmc(
    bmc: FirmwareBmc, file: Path, records: UpdateRecords, tmp_path: Path
) -> None:
    records.write(replace(record_for(file), is_sent=True))

    report = told(updates_for(bmc.url, tmp_path))
    bmc.firmware["HostBIOS_0"] = NEW_BIOS

    assert report.said.startswith("unknown: ")
    assert told(updates_for(bmc.url, tmp_path)).state is INSTALLED


def test_bmc_that_is_away_is_sent_no_image(
    proxy: FaultProxy, bmc: FirmwareBmc, file: Path, records: UpdateRecords, tmp_path: Path
) -> None:
    proxy.add(Kind.AWAY, "GET")

    push(records, KEY, settings_for(proxy.url, tmp_path), clock=FakeClock())

    assert told(updates_for(proxy.url, tmp_path)).state is FAILED
    assert bmc.sent == []


# -- the body --


@given(content=st.binary(max_size=300), sizes=st.lists(st.integers(1, 90), min_size=1, max_size=9))
def test_body_is_the_same_however_it_is_read_and_says_its_length(content: bytes, sizes: list[int]) -> None:
    with tempfile.TemporaryFile() as whole, tempfile.TemporaryFile() as parted:
        for each in (whole, parted):
            each.write(content)
            each.seek(0)
        expected = b"".join(ImageBody("{}", whole, name="a"))
        body = ImageBody("{}", parted, name="a")
        read = io.BytesIO()
        turn = 0
        while block := body.read(sizes[turn % len(sizes)]):
            read.write(block)
            turn += 1
            assert (body.left_bytes == 0) is (read.tell() == len(body))

    assert read.getvalue() == expected
    assert len(expected) == len(body)
    assert content in expected


def test_name_of_a_file_ends_no_header(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"x")

    with path.open("rb") as file:
        head = b"".join(ImageBody("{}", file, name='a"\r\nX-Evil: 1\r\n"ü'))

    assert b'filename="a___X-Evil__1___' in head
