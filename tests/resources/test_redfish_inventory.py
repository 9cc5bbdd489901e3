"""Firmware inventories as versions of components: recorded ones, ones that lie, and the table of what an id means."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.release import Component
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.fleet.redfish_inventory import Standing, parse_rules, read_rules, rule_of, sight_of
from ops_pipelines.resources.fleet.redfish_update import RedfishUpdates
from tests.frames.formats.hardware_invariants import PUBLIC
from tests.resources.fake_bmc import SYSTEMS, answer, serve_bmc
from tests.resources.fake_firmware_bmc import INVENTORY, MANAGERS, SERVICE, FirmwareBmc
from tests.resources.redfish_fault_proxy import Kind, serve_proxy
from tests.resources.update_bench import NODE, updates_for

HEAD = "id_pattern,component,standing,says,source,checked_on\n"


@pytest.fixture
def bmc() -> Iterator[FirmwareBmc]:
    with serve_bmc(FirmwareBmc()) as fake:
        assert isinstance(fake, FirmwareBmc)
        yield fake


@pytest.fixture
def updates(bmc: FirmwareBmc, tmp_path: Path) -> RedfishUpdates:
    return updates_for(bmc.url, tmp_path)


# -- what runs --


@pytest.mark.parametrize("expands", [True, False])
def test_inventory_of_a_dgx_is_read_as_components(bmc: FirmwareBmc, updates: RedfishUpdates, expands: bool) -> None:
    bmc.expands = expands

    assert updates.active_versions(NODE) == {
        Component.BMC: "25.05.01",
        Component.BIOS: "1.05.03",
        Component.CPLD: "0.2.0.7+0.2.1.6",
        Component.EROT: "00.04.0018.0000_n00",
        Component.GPU_VBIOS: "96.00.70.00.01",
        Component.NVSWITCH: "96.00.3F.00.01",
    }
    single = [path for _, path in bmc.asked if path.startswith(f"{INVENTORY}/")]
    assert len(single) == (0 if expands else 17)
    assert not any("FPGA" in path for path in single)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("96.00.99.00.01", "96.00.70.00.01+96.00.99.00.01"),
        (" 96.00.70.00.01 ", "96.00.70.00.01"),
        (None, None),
        ("", None),
        ("no valid image!!!!", None),
        ("1\n2", None),
        ("9" * 64, f"96.00.70.00.01+{'9' * 64}"),
        ("9" * 65, None),
    ],
)
def test_gpu_that_was_left_behind_or_does_not_tell_is_not_outvoted(
    bmc: FirmwareBmc, updates: RedfishUpdates, version: str | None, expected: str | None
) -> None:
    bmc.firmware["HGX_FW_GPU_SXM_4"] = version

    assert updates.active_versions(NODE).get(Component.GPU_VBIOS) == expected


def test_entry_that_cannot_be_read_is_not_outvoted_either(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    bmc.answers["GET", f"{INVENTORY}/HGX_FW_GPU_SXM_4"] = answer({}, 404)

    seen = updates.active_versions(NODE)

    assert Component.GPU_VBIOS not in seen
    assert seen[Component.BIOS] == "1.05.03"


def test_spare_image_does_not_run(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    bmc.firmware["PSU_0"], bmc.firmware["PSU_1"] = "0202.0200.0200", "0303.0000.0000"
    bmc.states_of_firmware["PSU_1"] = "StandbySpare"

    assert updates.active_versions(NODE)[Component.PSU] == "0202.0200.0200"


def test_bmc_without_an_inventory_tells_what_its_system_and_its_manager_say(
    bmc: FirmwareBmc, updates: RedfishUpdates
) -> None:
    bmc.answers["GET", SERVICE] = answer({"Id": "UpdateService"})
    bmc.answers["GET", f"{SYSTEMS}/System.Embedded.1"] = answer({"Id": "1", "BiosVersion": "1.8.2"})

    assert updates.active_versions(NODE) == {Component.BIOS: "1.8.2", Component.BMC: "25.05.01"}


def test_what_cannot_be_told_which_system_is_the_nodes_is_missing(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    bmc.firmware = {"PSU_0": "1.0"}
    bmc.states = {"DGX": "On", "HGX": "On"}
    bmc.answers["GET", MANAGERS] = answer({"Members": [{"@odata.id": f"{MANAGERS}/{each}"} for each in "ab"]})

    assert updates.active_versions(NODE) == {Component.PSU: "1.0"}


def test_list_that_goes_on_elsewhere_is_read_to_its_end(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    names = list(bmc.firmware)
    links = [{"@odata.id": f"{INVENTORY}/{each}"} for each in names]
    bmc.answers["GET", INVENTORY] = answer({"Members": links[:3], "Members@odata.nextLink": f"{INVENTORY}?$skip=3"})
    bmc.answers["GET", f"{INVENTORY}?$skip=3"] = answer({"Members": links[3:]})

    assert len(updates.active_versions(NODE)) == 6


def test_list_that_leads_to_another_host_is_not_followed(bmc: FirmwareBmc, updates: RedfishUpdates) -> None:
    with serve_bmc(FirmwareBmc()) as other:
        bmc.answers["GET", INVENTORY] = answer({"Members": [{"@odata.id": f"{other.url}{INVENTORY}/HostBIOS_0"}]})

        with pytest.raises(SourceRefused, match="points to another host"):
            updates.active_versions(NODE)

        assert other.asked == []


def test_inventory_that_takes_longer_than_one_call_is_read_in_several(bmc: FirmwareBmc, tmp_path: Path) -> None:
    with serve_proxy(bmc.url) as proxy:
        updates = updates_for(proxy.url, tmp_path)
        proxy.add(Kind.AWAY, "GET", f"{INVENTORY}/HGX_FW_GPU_SXM_3$")
        with pytest.raises(SourceUnavailable, match=r"\d+ of 17 entries .* the next call continues"):
            updates.active_versions(NODE)
        before = sum("HostBIOS_0" in path for _, path in proxy.asked)
        proxy.faults.clear()

        seen = updates.active_versions(NODE)
        again = updates.active_versions(NODE)

    assert (before, len(seen), seen) == (1, 6, again)
    assert sum("HostBIOS_0" in path for _, path in bmc.asked) == 2


def test_whole_list_that_does_not_come_in_time_is_asked_for_once(bmc: FirmwareBmc, tmp_path: Path) -> None:
    bmc.expands = True
    bmc.held.add(("GET", f"{INVENTORY}?$expand=.($levels=1)"))
    updates = updates_for(bmc.url, tmp_path, limit_seconds=1.5)

    with pytest.raises(SourceUnavailable):
        updates.active_versions(NODE)

    assert len(updates.active_versions(NODE)) == 6


# -- recorded BMCs --


@pytest.mark.skipif(not PUBLIC.exists(), reason="the public files are not beside this checkout")
@pytest.mark.parametrize(
    ("archive", "expected"),
    [
        (
            "dell_poweredge_r750",
            {
                Component.BMC: "6.00.30.00",
                Component.BIOS: "1.8.2",
                Component.CPLD: "1.0.5",
                Component.PSU: "00.2A.2B",
                Component.NIC_FIRMWARE: "20.31.10.14",
            },
        ),
        (
            "nvidia_dpu",
            {Component.BMC: "BF-24.07-14", Component.NIC_FIRMWARE: "32.38.1002"},
        ),
    ],
)
def test_recorded_inventory_is_understood(archive: str, expected: dict[Component, str]) -> None:
    entries = []
    with tarfile.open(PUBLIC / "redfish" / f"{archive}.tar.gz") as tree:
        for member in tree:
            parts = member.name.split("/")
            content = tree.extractfile(member) if parts[-1] == "index.json" and len(parts) == 6 else None
            if content is not None and parts[2:4] == ["UpdateService", "FirmwareInventory"]:
                rule = rule_of(parts[4], read_rules())
                if rule is not None:
                    entries.append((rule, json.load(content)))

    assert sight_of(entries).active == expected


# -- the table --


@pytest.mark.parametrize(
    ("identity", "component", "standing"),
    [
        ("HostBMC_0", Component.BMC, Standing.RUNNING),
        ("HGX_FW_BMC_0", None, Standing.OTHER),
        ("EROT_BIOS_0", Component.EROT, Standing.RUNNING),
        ("HGX_FW_ERoT_GPU_SXM_1", Component.EROT, Standing.RUNNING),
        ("HGX_FW_GPU_SXM_8", Component.GPU_VBIOS, Standing.RUNNING),
        ("CX7NIC_1", Component.NIC_FIRMWARE, Standing.RUNNING),
        ("DPU_NIC_pending", Component.NIC_FIRMWARE, Standing.STAGED),
        ("DPU_UEFI_pending", None, Standing.OTHER),
        ("Previous-159-1.2.4__BIOS.Setup.1-1", None, Standing.OTHER),
        ("Installed-159-1.8.2__BIOS.Setup.1-1", Component.BIOS, Standing.INSTALLED),
        ("Current-159-1.8.2__BIOS.Setup.1-1", Component.BIOS, Standing.RUNNING),
    ],
)
def test_id_is_the_component_that_the_table_says(
    identity: str, component: Component | None, standing: Standing
) -> None:
    rule = rule_of(identity, read_rules())

    assert rule is not None
    assert (rule.component, rule.standing) == (component, standing)


@pytest.mark.parametrize("identity", ["", "HGX_FW_FPGA_0", "hostbmc_0", "Disk.Bay.0", "XHostBMC_0"])
def test_id_that_nobody_knows_is_no_component(identity: str) -> None:
    assert rule_of(identity, read_rules()) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "expected the columns"),
        (HEAD + "X_*,bmc,running,,,2026-11-22\n", "source and checked_on must say something"),
        (HEAD + ",bmc,running,,somewhere,2026-11-22\n", "id_pattern, source"),
        (HEAD + "X_*,toaster,running,,somewhere,2026-11-22\n", "toaster"),
        (HEAD + "X_*,bmc,asleep,,somewhere,2026-11-22\n", "asleep"),
        (HEAD + "X,bmc,running,,somewhere,2026-11-22\n" * 2, "more than one row for X"),
    ],
)
def test_table_that_says_nonsense_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_rules(text)


_IDS = ["HostBIOS_0", "HGX_FW_GPU_SXM_1", "HGX_FW_GPU_SXM_2", "DPU_NIC", "DPU_NIC_pending", "PSU_0"]
_VERSIONS = st.one_of(st.sampled_from(["1.0", "2.0", ""]), st.none(), st.integers(), st.text(max_size=9))
_STATUS = st.one_of(st.none(), st.fixed_dictionaries({"State": st.sampled_from(["Enabled", "StandbySpare"])}))
_ENTRIES = st.fixed_dictionaries({}, optional={"Version": _VERSIONS, "Status": _STATUS})


@given(entries=st.lists(st.tuples(st.sampled_from(_IDS), _ENTRIES), max_size=8))
def test_order_of_an_inventory_means_nothing_and_nothing_empty_is_told(
    entries: list[tuple[str, dict[str, object]]],
) -> None:
    found = [(rule, entry) for identity, entry in entries if (rule := rule_of(identity, read_rules())) is not None]

    sight = sight_of(found)

    assert sight == sight_of(found[::-1])
    assert all(version and version == version.strip() for version in sight.active.values())
    assert all(sight.has(component, version) for component, version in sight.active.items())
