"""What a release contradicts: every rule with its boundary and both neighbors, on the shipped tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.core.release import (
    Activation,
    Artifact,
    Change,
    Component,
    FloorKind,
    Means,
    Release,
    ReleaseName,
    Reversibility,
    VersionFloor,
)
from ops_pipelines.core.rollout import Contradiction
from ops_pipelines.resources.release_files import read_tables
from ops_pipelines.rollouts.compatibility import contradictions
from ops_pipelines.rollouts.fleet import FleetNode

TODAY = date(2026, 11, 22)
TABLES = read_tables()
MODEL = "hgx-h100"
OLD = {
    Component.DRIVER: "570.172.08",
    Component.FABRIC_MANAGER: "570.172.08",
    Component.CUDA: "12.8.1",
    Component.KERNEL: "6.8.0-1024-nvidia",
}
IMAGE = Artifact(name="an image", sha256="0" * 64, location="/srv/image")


def change(
    component: Component, version: str, *, activation: Activation = Activation.REBOOT, bundle: str = "gpu"
) -> Change:
    return Change(
        component=component,
        version=version,
        install=("install", "{version}"),
        rollback=("install", "{version}"),
        activation=activation,
        bundle=bundle,
    )


def one_way(component: Component, version: str) -> Change:
    return replace(change(component, version, bundle=""), reversibility=Reversibility.NO, rollback=())


def firmware(component: Component, version: str = "2.0", *, activation: Activation = Activation.AC_CYCLE) -> Change:
    return replace(
        change(component, version, activation=activation, bundle=""),
        reversibility=Reversibility.WITH_CONDITIONS,
        conditions="as the vendor says",
    )


def release(
    *changes: Change, models: frozenset[str] = frozenset({MODEL}), opted_out: frozenset[str] = frozenset()
) -> Release:
    return Release(
        name=ReleaseName("a-release"), about="for a test", models=models, changes=changes, opted_out=opted_out
    )


def bundle(driver: str, fabric_manager: str = "") -> tuple[Change, Change]:
    return change(Component.DRIVER, driver), change(Component.FABRIC_MANAGER, fabric_manager or driver)


def node(name: str = "gpu001", versions: Mapping[Component, str] | None = None, *, model: str = MODEL) -> FleetNode:
    return FleetNode(
        node=NodeName(name),
        model=model,
        place=Place(rack="r1", nvlink_domain=name, leaf_switch="leaf1"),
        gpu_count=8,
        versions=OLD if versions is None else versions,
        is_in_service=True,
    )


def judge(
    wanted: Release,
    *fleet: FleetNode,
    today: date = TODAY,
    controller: str | None = None,
) -> tuple[Contradiction, ...]:
    return contradictions(wanted, fleet or (node(),), TABLES, today=today, controller_version=controller)


def rules_of(found: Sequence[Contradiction]) -> list[tuple[str, tuple[str, ...]]]:
    return [(each.rule, each.nodes) for each in found]


def test_a_driver_with_its_fabric_manager_contradicts_nothing() -> None:
    assert judge(release(*bundle("580.95.05"))) == ()


def test_every_contradiction_says_what_was_found_and_names_its_source() -> None:
    (found,) = judge(release(*bundle("535.274.02")))

    assert found.said == (
        "driver 535.274.02 is of branch R535 (long term support), whose life ended on 2026-06-30; choose a live branch"
    )
    assert "docs.nvidia.com/datacenter/tesla/drivers/615" in found.source
    assert "catalogue/driver_branches.csv, checked 2026-" in found.source
    assert (found.component, found.nodes) == (Component.DRIVER, ())


@pytest.mark.parametrize(
    ("driver", "today", "is_refused"),
    [
        ("580.95.05", date(2028, 6, 29), False),
        ("580.95.05", date(2028, 6, 30), False),
        ("580.95.05", date(2028, 7, 1), True),
        ("550.54.15", date(2026, 11, 22), True),
        ("699.10.01", date(2026, 11, 22), True),
    ],
)
def test_a_branch_is_taken_until_its_last_day(driver: str, today: date, is_refused: bool) -> None:
    found = judge(release(*bundle(driver)), today=today)

    assert rules_of(found) == ([("driver_branch", ())] if is_refused else [])


@pytest.mark.parametrize(
    ("driver", "cuda", "is_refused"),
    [
        ("580.65.05", "13.0.0", True),
        ("580.65.06", "13.0.0", False),
        ("580.65.07", "13.0.0", False),
        ("580.65.06", "12.9.1", False),
        ("580.65.06", "11.4.4", False),
        ("580.65.06", "13.2.0", False),
        ("595.45.04", "14.0", True),
    ],
)
def test_a_driver_runs_the_cuda_of_the_node(driver: str, cuda: str, is_refused: bool) -> None:
    found = judge(release(*bundle(driver)), node(versions={**OLD, Component.CUDA: cuda}))

    assert rules_of(found) == ([("cuda_driver", ("gpu001",))] if is_refused else [])


def test_a_driver_that_goes_down_below_the_cuda_of_some_nodes_leaves_these_out() -> None:
    newer = {**OLD, Component.DRIVER: "595.45.04", Component.FABRIC_MANAGER: "595.45.04"}
    fleet = (
        node("gpu003", {**newer, Component.CUDA: "13.0.2"}),
        node("gpu001", {**newer, Component.CUDA: "13.0.2"}),
        node("gpu002", newer),
    )

    (found,) = judge(release(*bundle("580.65.05")), *fleet)

    assert (found.rule, found.nodes) == ("cuda_driver", ("gpu001", "gpu003"))
    assert found.said == "CUDA 13.0.2 needs driver 580.65.06 or newer, not 580.65.05; it was shipped with 580.95.05"


def test_a_cuda_that_the_release_brings_itself_refuses_the_release() -> None:
    wanted = release(*bundle("580.65.05"), change(Component.CUDA, "13.0.0", bundle=""))

    assert rules_of(judge(wanted)) == [("cuda_driver", ())]


def test_a_cuda_alone_is_judged_beside_the_driver_of_each_node() -> None:
    fleet = (node("gpu001"), node("gpu002", {**OLD, Component.DRIVER: "580.95.05"}))

    found = judge(release(change(Component.CUDA, "13.0.2")), *fleet)

    assert rules_of(found) == [("cuda_driver", ("gpu001",))]


@pytest.mark.parametrize(
    ("fabric_manager", "is_refused"),
    [("580.95.04", True), ("580.95.05", False), ("580.95.06", True), ("580.95.5", True), ("580.95", True)],
)
def test_fabric_manager_is_the_driver_to_the_last_digit(fabric_manager: str, is_refused: bool) -> None:
    found = judge(release(*bundle("580.95.05", fabric_manager)))

    assert [each.rule for each in found if not each.nodes] == (["exact_match"] if is_refused else [])


def test_a_driver_without_its_fabric_manager_is_refused_where_there_are_switches() -> None:
    found = judge(release(change(Component.DRIVER, "580.95.05")))

    assert rules_of(found) == [("exact_match", ()), ("exact_match", ("gpu001",))]
    assert "add fabric_manager, in the same bundle" in found[0].said
    assert found[1].said == (
        "fabric_manager would be 570.172.08 beside driver 580.95.05; it must be the same, to the last digit"
    )


@pytest.mark.parametrize("bundles", [("gpu", "other"), ("", ""), ("gpu", "")])
def test_driver_and_fabric_manager_move_together(bundles: tuple[str, str]) -> None:
    driver, manager = bundle("580.95.05")
    found = judge(release(replace(driver, bundle=bundles[0]), replace(manager, bundle=bundles[1])))

    assert rules_of(found) == [("exact_match", ())]
    assert "give both the same bundle" in found[0].said


def test_a_fabric_manager_that_drifted_is_brought_back_alone() -> None:
    drifted = node("gpu001", {**OLD, Component.FABRIC_MANAGER: "570.133.20"})
    other = node("gpu002", {**OLD, Component.FABRIC_MANAGER: "570.133.20", Component.DRIVER: "580.95.05"})

    found = judge(release(change(Component.FABRIC_MANAGER, "570.172.08", bundle="")), drifted, other)

    assert rules_of(found) == [("exact_match", ("gpu002",))]


def test_a_driver_moves_alone_where_nothing_must_match() -> None:
    card = {Component.DRIVER: "570.172.08"}

    found = judge(
        release(change(Component.DRIVER, "580.95.05"), models=frozenset({"h100-pcie"})),
        node(versions=card, model="h100-pcie"),
    )

    assert found == ()


def test_the_nodes_of_a_rack_of_nvlink_need_their_imex() -> None:
    rack = node(versions={Component.DRIVER: "570.172.08", Component.IMEX: "570.172.08"}, model="gb200-nvl72")
    models = frozenset({"gb200-nvl72"})
    driver, imex = change(Component.DRIVER, "580.126.20"), change(Component.IMEX, "580.126.20")

    assert judge(release(driver, imex, models=models), rack) == ()
    assert [each.component for each in judge(release(driver, models=models), rack)] == [Component.IMEX] * 2


@pytest.mark.parametrize(("driver", "is_refused"), [("570.133.19", True), ("570.133.20", False), ("570.133.21", False)])
def test_a_model_has_a_lowest_driver(driver: str, is_refused: bool) -> None:
    old = {Component.DRIVER: "570.124.06", Component.FABRIC_MANAGER: "570.124.06"}

    found = judge(
        release(*bundle(driver), models=frozenset({"hgx-b200"})),
        node(versions=old, model="hgx-b200"),
        today=date(2026, 1, 1),
    )

    assert rules_of(found) == ([("version_floor", ())] if is_refused else [])


@pytest.mark.parametrize(("driver", "is_refused"), [("450.80.01", True), ("450.80.02", False), ("450.80.03", False)])
def test_dcgm_needs_a_driver(driver: str, is_refused: bool) -> None:
    old = {Component.DRIVER: driver, Component.FABRIC_MANAGER: driver}

    found = judge(
        release(change(Component.DCGM, "4.4.1"), models=frozenset({"l40s"})), node(versions=old, model="l40s")
    )

    assert rules_of(found) == ([("version_floor", ("gpu001",))] if is_refused else [])


@pytest.mark.parametrize(
    ("current", "target", "is_refused"),
    [
        ("32.41.1000", "32.44.1036", True),
        ("32.42.999", "32.44.1036", True),
        ("32.42.1000", "32.44.1036", False),
        ("32.43.1014", "32.44.1036", False),
        ("32.41.1000", "32.43.1014", False),
        ("28.33.2028", "28.47.1026", False),
    ],
)
def test_firmware_of_a_card_does_not_jump_and_says_nothing_of_other_cards(
    current: str, target: str, is_refused: bool
) -> None:
    found = judge(release(firmware(Component.NIC_FIRMWARE, target)), node(versions={Component.NIC_FIRMWARE: current}))

    assert rules_of(found) == ([("starts_from", ("gpu001",))] if is_refused else [])


@pytest.mark.parametrize(
    ("current", "is_refused"),
    [("535.54.02", True), ("535.54.03", False), ("535.54.04", False), ("580.95.05", False), (None, True)],
)
def test_a_change_starts_from_where_it_can(current: str | None, is_refused: bool) -> None:
    wanted = replace(one_way(Component.DRIVER, "580.95.05"), starts_from="535.54.03")
    versions = {} if current is None else {Component.DRIVER: current}

    found = judge(release(wanted, models=frozenset({"l40s"})), node(versions=versions, model="l40s"))

    assert rules_of(found) == ([("starts_from", ("gpu001",))] if is_refused else [])


def test_a_node_whose_version_cannot_be_compared_is_left_out_alone() -> None:
    fleet = (
        node("gpu001", {**OLD, Component.CUDA: "see /opt"}),
        node("gpu002"),
        node("gpu003", {**OLD, Component.CUDA: ""}),
    )

    found = judge(release(*bundle("580.95.05")), *fleet)

    assert rules_of(found) == [("version", ("gpu001",)), ("version", ("gpu003",))]
    assert "cuda is 'see /opt'; expected a version" in found[0].said


@pytest.mark.parametrize(
    ("component", "current", "target", "is_left_out"),
    [
        (Component.NIC_FIRMWARE, "28.33.2028", "28.47.1026", False),
        (Component.NIC_FIRMWARE, "32.43.1014", "28.47.1026", True),
        (Component.GPU_VBIOS, "97.00.B9.00.69", "96.00.A5.00.01", True),
        (Component.GPU_VBIOS, "96.00.A5.00.01+96.00.9F.00.01", "96.00.A5.00.01", True),
        (Component.DCGM, "not here", "4.4.1", True),
        (Component.KERNEL, "6.8.0-1024-generic", "6.8.0-1040-nvidia", False),
        (Component.KERNEL, "Linux 6", "6.8.0-1040-nvidia", True),
    ],
)
def test_what_is_of_another_kind_or_unreadable_is_left_out(
    component: Component, current: str, target: str, is_left_out: bool
) -> None:
    found = judge(release(firmware(component, target)), node(versions={component: current}), node("gpu002", {}))

    assert rules_of(found) == ([("version", ("gpu001",))] if is_left_out else [])


def test_a_release_with_a_version_that_is_none_is_refused_as_such() -> None:
    found = judge(release(*bundle("latest")))

    assert {(each.rule, each.nodes) for each in found} == {("version", ())}
    assert "driver is 'latest'; expected numbers and dots" in found[0].said


SLURM = {Component.SLURM: "24.11.5"}


@pytest.mark.parametrize(
    ("current", "target", "controller", "rules"),
    [
        ("24.05.8", "25.11.2", "25.11.2", []),
        ("24.11.5", "25.11.2", "25.11.0", []),
        ("25.05.1", "25.11.2", "26.05.0", []),
        ("23.11.10", "25.11.2", "25.11.2", ["slurm_window"]),
        ("22.05.8", "24.05.0", "24.05.0", ["slurm_window"]),
        ("23.02.7", "24.05.0", "24.05.0", []),
        ("24.11.5", "25.11.2", "25.05.9", ["slurm_order"]),
        ("24.11.5", "25.11.2", None, ["slurm_order"]),
        ("24.11.5", "25.05.1", "26.05.0", []),
        ("23.11.10", "24.05.0", "26.05.0", ["slurm_window"]),
        ("25.11.2", "25.05.1", "25.11.2", ["downgrade"]),
        ("24.11.5", "27.11.0", "27.11.0", ["slurm_window"]),
    ],
)
def test_slurmd_follows_its_controller_within_the_window(
    current: str, target: str, controller: str | None, rules: list[str]
) -> None:
    wanted = release(one_way(Component.SLURM, target))

    found = judge(wanted, node(versions={Component.SLURM: current}), controller=controller)

    assert [each.rule for each in found] == rules


@pytest.mark.parametrize(
    ("current", "target", "rules"),
    [
        ("25.11.0", "25.11.2", []),
        ("25.11.2", "25.11.0", []),
        ("25.05.1", "25.11.2", [("way_back", ("gpu001",))]),
    ],
)
def test_slurm_goes_back_within_a_major_release_only(
    current: str, target: str, rules: list[tuple[str, tuple[str, ...]]]
) -> None:
    wanted = release(change(Component.SLURM, target))

    assert rules_of(judge(wanted, node(versions={Component.SLURM: current}), controller="25.11.2")) == rules


def test_a_controller_that_speaks_nonsense_refuses_the_release() -> None:
    found = judge(release(one_way(Component.SLURM, "25.11.2")), node(versions=SLURM), controller="slurm")

    assert rules_of(found) == [("version", ())]


TRAYS = (Component.BMC, Component.BIOS, Component.GPU_VBIOS)
NAMES = {Component.BMC: "25.06.27", Component.BIOS: "1.06.07", Component.GPU_VBIOS: "96.00.A5.00.01"}


@pytest.mark.parametrize("components", list(permutations(TRAYS)))
def test_firmware_is_installed_in_the_chosen_order(components: tuple[Component, ...]) -> None:
    found = judge(release(*(firmware(each, NAMES[each]) for each in components)))

    assert rules_of(found) == ([] if components == TRAYS else [("firmware_order", ())])


def test_the_other_order_is_refused_with_both_sources() -> None:
    (found,) = judge(release(firmware(Component.BIOS), firmware(Component.BMC)))

    assert found.said.startswith(
        "bios is installed before bmc on hgx-h100; the order chosen is bmc, then bios and cpld and psu, then erot and"
    )
    assert "NICo@a02fa34b, test data of a DGX H100" in found.said
    assert "which was not chosen" in found.said
    assert "runbook" in found.source


def test_another_model_may_have_another_order() -> None:
    tables = replace(
        TABLES,
        orders=(
            *(replace(each, is_chosen=False) for each in TABLES.orders if not each.models),
            *(replace(each, is_chosen=True) for each in TABLES.orders if not each.models and not each.is_chosen),
        ),
    )
    swapped = release(firmware(Component.BIOS), firmware(Component.BMC), models=frozenset({"l40s"}))
    fleet = (node(model="l40s", versions={}),)

    assert [each.rule for each in contradictions(swapped, fleet, TABLES, today=TODAY)] == ["firmware_order"]
    assert contradictions(swapped, fleet, tables, today=TODAY) == ()


def test_within_a_stage_any_order_will_do() -> None:
    for one, other in ((Component.BIOS, Component.PSU), (Component.PSU, Component.BIOS)):
        assert judge(release(firmware(one), firmware(other))) == ()


@pytest.mark.parametrize("activation", Activation)
def test_a_vbios_runs_after_a_power_cycle_at_the_least(activation: Activation) -> None:
    found = judge(release(firmware(Component.GPU_VBIOS, "96.00.A5.00.01", activation=activation)))

    is_enough = activation in (Activation.POWER_CYCLE, Activation.AC_CYCLE)
    assert rules_of(found) == ([] if is_enough else [("activation", ())])


def test_in_a_bundle_the_strongest_activation_counts() -> None:
    driver, manager = bundle("580.95.05")

    assert (
        judge(release(replace(driver, activation=Activation.REBOOT), replace(manager, activation=Activation.LIVE)))
        == ()
    )
    found = judge(release(replace(driver, activation=Activation.LIVE), replace(manager, activation=Activation.LIVE)))
    assert rules_of(found) == [("activation", ()), ("activation", ())]


def test_a_bmc_that_is_said_to_go_back_simply_is_refused() -> None:
    (found,) = judge(release(replace(firmware(Component.BMC), reversibility=Reversibility.YES)))

    assert (found.rule, found.nodes) == ("way_back", ())
    assert "with conditions only" in found.said
    assert "ForceUpdate" in found.said


def redfish(version: str, *back: str) -> Change:
    return Change(
        component=Component.BMC,
        version=version,
        means=Means.REDFISH,
        artifact=IMAGE,
        rollback_artifacts=dict.fromkeys(back, IMAGE),
        activation=Activation.LIVE,
        reversibility=Reversibility.WITH_CONDITIONS,
        conditions="ForceUpdate",
    )


@pytest.mark.parametrize(
    ("back", "nodes"), [((), ("gpu001", "gpu002")), (("24.09.17",), ("gpu002",)), (("24.09.17", "24.01.05"), ())]
)
def test_a_node_without_a_file_to_go_back_to_is_left_out(back: tuple[str, ...], nodes: tuple[str, ...]) -> None:
    fleet = (node("gpu001", {Component.BMC: "24.09.17"}), node("gpu002", {Component.BMC: "24.01.05"}))

    found = judge(release(redfish("25.06.27", *back)), *fleet)

    assert [name for each in found for name in each.nodes] == list(nodes)
    assert {each.rule for each in found} <= {"way_back"}


def test_what_cannot_go_back_needs_no_file() -> None:
    wanted = replace(redfish("25.06.27"), reversibility=Reversibility.NO)

    assert judge(release(wanted), node(versions={Component.BMC: "24.09.17"})) == ()


def test_a_model_that_no_node_has_is_refused() -> None:
    found = judge(release(*bundle("580.95.05"), models=frozenset({MODEL, "hgx-h200"})))

    assert rules_of(found) == [("model", ())]
    assert found[0].said == "no node is a hgx-h200; check the name against the racks of cluster.yaml"


def test_a_model_that_nobody_knows_takes_only_what_is_alike_on_all() -> None:
    odd = frozenset({"our-box"})
    kernel = change(Component.KERNEL, "6.8.0-1040-nvidia")

    assert judge(release(kernel, models=odd), node(model="our-box")) == ()
    found = judge(release(*bundle("580.95.05"), models=odd), node(model="our-box"))
    assert rules_of(found) == [("model", ())]
    assert "nobody knows what our-box needs beside driver, fabric_manager" in found[0].said


def test_a_misspelt_node_that_opts_out_refuses_the_release() -> None:
    wanted = release(*bundle("580.95.05"), opted_out=frozenset({"gpu001", "gpu01"}))

    found = judge(wanted, node("gpu001"), node("gpu002"))

    assert rules_of(found) == [("opted_out", ())]
    assert "gpu01, which is no node" in found[0].said


def test_nodes_that_opted_out_or_are_there_already_are_not_judged() -> None:
    there = {**OLD, Component.DRIVER: "580.95.05", Component.FABRIC_MANAGER: "580.95.05", Component.CUDA: "nonsense"}
    fleet = (node("gpu001", {Component.CUDA: "nonsense"}), node("gpu002", there), node("gpu003"))

    assert judge(release(*bundle("580.95.05"), opted_out=frozenset({"gpu001"})), *fleet) == ()


def test_a_thousand_alike_nodes_are_one_contradiction() -> None:
    fleet = [node(f"gpu{number:04}", {**OLD, Component.CUDA: "13.0.0"}) for number in range(1, 1001)]

    (found,) = judge(release(*bundle("580.65.05")), *fleet)

    assert len(found.nodes) == 1000


CUDAS = st.sampled_from(["12.8.1", "13.0.2", "13.2.0", "nonsense", ""])
DRIVERS = st.sampled_from(["450.80.02", "570.172.08", "580.65.05", "580.95.05", "595.45.04", "junk"])


@given(st.lists(st.tuples(DRIVERS, CUDAS), min_size=1, max_size=8), DRIVERS, st.randoms(use_true_random=False))
def test_a_node_is_judged_alike_whoever_stands_beside_it(
    known: list[tuple[str, str]], driver: str, shuffler: Random
) -> None:
    fleet = [
        node(f"gpu{number:03}", {Component.DRIVER: own, Component.FABRIC_MANAGER: own, Component.CUDA: cuda})
        for number, (own, cuda) in enumerate(known)
    ]
    wanted = release(*bundle("580.95.05", driver))
    together = judge(wanted, *fleet)
    shuffled = list(fleet)
    shuffler.shuffle(shuffled)

    assert set(judge(wanted, *shuffled)) == set(together)
    for each in fleet:
        alone = {(found.rule, found.said) for found in judge(wanted, each) if found.nodes}
        assert alone == {(found.rule, found.said) for found in together if each.node in found.nodes}
    assert all(set(found.nodes) <= {each.node for each in fleet} for found in together)


def test_a_floor_of_a_site_speaks_of_versions_from_its_own_on() -> None:
    row = VersionFloor(
        kind=FloorKind.NEEDS,
        component=Component.DCGM,
        from_version="4.5",
        models=frozenset(),
        needs=Component.DRIVER,
        floor="580.65.06",
        source="a page",
    )
    tables = replace(TABLES, floors=(row,))

    for version, rules in (("4.4.9", []), ("4.5", ["version_floor"]), ("4.6", ["version_floor"])):
        wanted = release(change(Component.DCGM, version))
        assert [each.rule for each in contradictions(wanted, (node(),), tables, today=TODAY)] == rules


def test_the_day_is_that_of_the_caller() -> None:
    wanted = release(*bundle("595.45.04"))
    last = date(2027, 3, 31)

    assert judge(wanted, today=last) == ()
    assert rules_of(judge(wanted, today=last + timedelta(days=1))) == [("driver_branch", ())]
