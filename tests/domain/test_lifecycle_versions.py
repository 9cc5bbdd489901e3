"""Which version is older: rows as they are met in the field, and what holds for all that can be compared."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.release import Component
from ops_pipelines.rollouts.versions import (
    VersionError,
    check_version,
    compare_versions,
    first_number,
    is_older,
    slurm_major,
)


@pytest.mark.parametrize(
    ("component", "older", "newer"),
    [
        (Component.DRIVER, "580.95.05", "580.95.06"),
        (Component.DRIVER, "580.95.05", "580.105.08"),
        (Component.DRIVER, "535.274.02", "580.65.06"),
        (Component.DRIVER, "580.95", "580.95.05"),
        (Component.CUDA, "12.8", "12.8.0"),
        (Component.CUDA, "12.9.1", "13.0"),
        (Component.GPU_VBIOS, "96.00.9F.00.01", "96.00.A5.00.01"),
        (Component.GPU_VBIOS, "96.00.10.00.01", "96.00.1A.00.01"),
        (Component.GPU_VBIOS, "96.00.a5.00.01", "96.00.A5.00.02"),
        (Component.NVSWITCH, "96.10.6D.00.01", "96.10.6E.00.01"),
        (Component.NIC_FIRMWARE, "28.39.3004", "28.39.3560"),
        (Component.NIC_FIRMWARE, "28.9.1000", "28.39.1000"),
        (Component.BMC, "25.06.27", "25.11.08"),
        (Component.BMC, "25.06-A", "25.06-B"),
        (Component.EROT, "00.04.0011.0000_n00", "00.04.0018.0000_n00"),
        (Component.CPLD, "0.2.1.6", "0.2.1.10"),
        (Component.CPLD, "CPLD000370_REV0600", "CPLD000370_REV1500"),
        (Component.KERNEL, "5.15.0-1050-generic", "5.15.0-1051-generic"),
        (Component.KERNEL, "5.15.0-999-generic", "5.15.0-1000-generic"),
        (Component.KERNEL, "6.8.0-1024-nvidia-64k", "6.8.0-1025-nvidia-64k"),
        (Component.KERNEL, "5.14.0-427.13.1.el9_4.x86_64", "5.14.0-503.11.1.el9_5.x86_64"),
        (Component.SLURM, "23.11.4-2", "23.11.10-1"),
        (Component.SLURM, "23.11.4", "23.11.4-2"),
        (Component.SLURM, "23.11.10", "24.05.0"),
        (Component.CONTAINER_RUNTIME, "1:2.3~rc1-4", "1:2.3-1"),
        (Component.CONTAINER_RUNTIME, "9.9-9", "1:2.3~rc1-4"),
        (Component.CONTAINER_RUNTIME, "1.7.24-0ubuntu1~22.04.1", "1.7.24-0ubuntu1"),
        (Component.KUBERNETES, "v1.31.9", "1.31.10"),
        (Component.DCGM, "1.0~~", "1.0~"),
        (Component.DCGM, "1.0~", "1.0"),
        (Component.DCGM, "1.0", "1.0a"),
        (Component.DCGM, "1.0a", "1.0+"),
        (Component.DCGM, "1.0-1", "1.0+b-1"),
        (Component.OS_SECURITY, "2026.11.01", "2026.11.15"),
    ],
)
def test_the_older_version_is_known(component: Component, older: str, newer: str) -> None:
    assert compare_versions(component, older, newer) == -1
    assert compare_versions(component, newer, older) == 1
    assert is_older(component, older, newer)
    assert not is_older(component, newer, older)


@pytest.mark.parametrize(
    ("component", "one", "other"),
    [
        (Component.DRIVER, "580.95.05", "580.95.5"),
        (Component.GPU_VBIOS, "96.00.a5.00.01", "96.00.A5.00.01"),
        (Component.KUBERNETES, "v1.31.2", "1.31.2"),
        (Component.DCGM, "0:4.4.1", "4.4.1"),
    ],
)
def test_other_ways_to_write_a_version_are_neither_older_nor_newer(component: Component, one: str, other: str) -> None:
    assert compare_versions(component, one, other) == 0


@pytest.mark.parametrize(
    ("component", "one", "other", "said"),
    [
        (Component.DRIVER, "580.95.05", "unknown", "driver is 'unknown'; expected numbers and dots"),
        (Component.DRIVER, "580.95.05-1", "580.95.05", "driver is '580.95.05-1'; expected numbers and dots"),
        (Component.DRIVER, "580..05", "580.95.05", "driver is '580..05'"),
        (Component.DRIVER, "", "580.95.05", "driver is ''; expected a version"),
        (Component.DRIVER, "580.95.05\n", "580.95.05", r"driver is '580.95.05\n'; expected a version"),
        (Component.DRIVER, "\u0665\u0668\u0660", "580.95.05", "expected a version"),
        (Component.DRIVER, "5" * 129, "580.95.05", "at most 128"),
        (Component.GPU_VBIOS, "96.00.G5", "96.00.A5", "gpu_vbios is '96.00.G5'; expected hex fields"),
        (Component.GPU_VBIOS, "96.00.A5.00.01", "97.00.B9.00.69", "generation 96 and generation 97"),
        (Component.NIC_FIRMWARE, "28.39.3004", "32.43.1014", "generation 28 and generation 32"),
        (Component.KERNEL, "6.8.0-1024-nvidia", "6.8.0-1024-generic", "nvidia and generic are no versions"),
        (Component.KERNEL, "6.8.0-1024-nvidia", "6.8.0-1024", "nvidia and a number"),
        (Component.CPLD, "CPLD000370_REV0600", "0.2.1.6", "CPLD and a number are no versions of the same"),
    ],
)
def test_what_cannot_be_compared_says_what_was_found(component: Component, one: str, other: str, said: str) -> None:
    for left, right in ((one, other), (other, one)):
        with pytest.raises(VersionError):
            compare_versions(component, left, right)
    with pytest.raises(VersionError, match=re.escape(said)):
        compare_versions(component, one, other)


def test_the_longest_version_is_one_and_a_longer_one_is_none() -> None:
    check_version(Component.DRIVER, "5" * 127)
    check_version(Component.DRIVER, "5" * 128)
    with pytest.raises(VersionError):
        check_version(Component.DRIVER, "5" * 129)


@pytest.mark.parametrize(
    ("text", "major"), [("23.11.4-2", "23.11"), ("24.05", "24.05"), ("1:25.11.0", "25.11"), ("22.05.8-1", "22.05")]
)
def test_the_major_release_of_slurm_is_year_and_month(text: str, major: str) -> None:
    assert slurm_major(text) == major


@pytest.mark.parametrize("text", ["", "slurm 23.11", "23", "23.1", "23.111", "master"])
def test_what_has_no_year_and_month_is_no_slurm(text: str) -> None:
    with pytest.raises(VersionError, match="expected year and month"):
        slurm_major(text)


def test_a_version_begins_with_its_branch() -> None:
    assert first_number(Component.DRIVER, "580.95.05") == 580
    with pytest.raises(VersionError, match="begins with a number"):
        first_number(Component.CPLD, "CPLD000370_REV0600")


PACKAGES = st.from_regex(r"([0-9]:)?[0-9][0-9.+~a-c]{0,6}(-[0-9.+~a-c]{1,4})?", fullmatch=True)
DOTTED = st.lists(st.integers(0, 20).map(str), min_size=1, max_size=4).map(".".join)
VBIOS = st.lists(st.integers(0, 255).map("{:02X}".format), min_size=1, max_size=4).map(
    lambda each: "96." + ".".join(each)
)
CARDS = DOTTED.map("28.{}".format)
KERNELS = st.tuples(DOTTED, st.integers(0, 2000)).map(lambda each: f"{each[0]}-{each[1]}-generic")
OF = {
    Component.DCGM: PACKAGES,
    Component.DRIVER: DOTTED,
    Component.GPU_VBIOS: VBIOS,
    Component.NIC_FIRMWARE: CARDS,
    Component.KERNEL: KERNELS,
}
THREE = st.sampled_from(list(OF)).flatmap(lambda each: st.tuples(st.just(each), OF[each], OF[each], OF[each]))


@given(THREE)
def test_versions_stand_in_one_order(versions: tuple[Component, str, str, str]) -> None:
    component, one, two, three = versions

    def order(left: str, right: str) -> int:
        return compare_versions(component, left, right)

    assert order(one, one) == 0
    assert order(one, two) == -order(two, one)
    if order(one, two) <= 0 and order(two, three) <= 0:
        assert order(one, three) <= 0
        assert (order(one, three) == 0) == (order(one, two) == 0 and order(two, three) == 0)


@given(st.sampled_from(list(OF)).flatmap(lambda each: st.tuples(st.just(each), OF[each])))
def test_a_version_that_goes_on_is_newer_and_a_tilde_comes_before(version: tuple[Component, str]) -> None:
    component, text = version
    if component is Component.KERNEL:
        text, end = text.removesuffix("-generic"), ".1"
    else:
        end = ".1"

    assert is_older(component, text, text + end)
    if component is Component.DCGM:
        assert is_older(component, text + "~", text)


@given(st.sampled_from(list(Component)), st.text(max_size=12), st.text(max_size=12))
def test_whatever_a_node_says_is_compared_or_refused(component: Component, one: str, other: str) -> None:
    try:
        found = compare_versions(component, one, other)
    except VersionError:
        return
    assert found in (-1, 0, 1)
