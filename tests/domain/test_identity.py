"""Names from outside: what may reach a command line, and what is one and the same thing under two spellings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import digest_of, listed, parse_job_id, parse_node_name, parse_pci_address

HOSTILE = [
    pytest.param("", id="empty"),
    pytest.param("-n", id="option"),
    pytest.param("--all", id="long option"),
    pytest.param("../x", id="parent directory"),
    pytest.param("$(reboot)", id="command substitution"),
    pytest.param("`reboot`", id="backticks"),
    pytest.param("gpu001;reboot", id="second command"),
    pytest.param("gpu001\n", id="trailing newline"),
    pytest.param("gpu001\ngpu002", id="two lines"),
    pytest.param("gpu001 gpu002", id="two words"),
    pytest.param("gpu001,gpu002", id="list"),
    pytest.param("gpu[001-004]", id="host list"),
    pytest.param("ALL=", id="assignment"),
    pytest.param("gpu\u0660", id="digit of another script"),
    pytest.param("gpu\u0000", id="null"),
    pytest.param("*", id="pattern"),
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_no_node_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a node name"):
        parse_node_name(text)


@pytest.mark.parametrize(
    "text", [*HOSTILE, pytest.param("1/../x", id="climbs out"), pytest.param("a/..", id="ends above")]
)
def test_hostile_text_is_no_job_id(text: str) -> None:
    with pytest.raises(ValueError, match="is not a job id"):
        parse_job_id(text)


@pytest.mark.parametrize(
    ("length", "is_accepted"),
    [
        pytest.param(1, True, id="shortest"),
        pytest.param(252, True, id="just below"),
        pytest.param(253, True, id="longest DNS name"),
        pytest.param(254, False, id="just above"),
    ],
)
def test_names_are_bounded_in_length(length: int, is_accepted: bool) -> None:
    for parse in (parse_node_name, parse_job_id):
        if is_accepted:
            assert parse("1" * length) == "1" * length
        else:
            with pytest.raises(ValueError):
                parse("1" * length)


@pytest.mark.parametrize("text", ["gpu001", "gpu-1.rack_2.example.org", "7", "A"])
def test_node_name_of_the_field_is_kept_as_it_is(text: str) -> None:
    assert parse_node_name(text) == text


@pytest.mark.parametrize("text", ["123", "123_4", "30_waiting", "namespace/name-0", "a.b/c"])
def test_job_id_of_the_field_is_kept_as_it_is(text: str) -> None:
    assert parse_job_id(text) == text


@given(st.text())
def test_a_parsed_name_never_starts_like_an_option_and_holds_no_blank(text: str) -> None:
    for parse in (parse_node_name, parse_job_id):
        try:
            name = parse(text)
        except ValueError:
            continue
        assert name == text
        assert name[0].isalnum()
        assert name.isascii()
        assert not any(char.isspace() or char in "$`;&|<>'\"\\*?=,()[]{}" for char in name)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("PCI:0000:1b:00", id="kernel log"),
        pytest.param("0000:1b:00", id="old driver"),
        pytest.param("00000000:1B:00.0", id="NVML and DCGM"),
        pytest.param("0000:1B:00.0", id="lspci"),
        pytest.param("PCI:0000:1b:00.7", id="another function of the same device"),
        pytest.param("  00000000:1b:00.0\n", id="blanks around"),
    ],
)
def test_one_gpu_has_one_address_whatever_the_source(text: str) -> None:
    assert parse_pci_address(text) == "0000:1b:00"


@pytest.mark.parametrize(
    "text",
    ["", "1b:00.0", "0000:1b", "0000:1b:00.8", "0000:1g:00", "000:1b:00", "000000000:1b:00", "0000:1b:00:00", "GPU-1"],
)
def test_anything_else_is_no_pci_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not a PCI address"):
        parse_pci_address(text)


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F))
def test_pci_address_is_normal_whatever_its_case_and_width(domain: int, bus: int, device: int) -> None:
    wide = f"{domain:08X}:{bus:02X}:{device:02X}.0"
    narrow = f"PCI:{domain:04x}:{bus:02x}:{device:02x}"

    assert parse_pci_address(wide) == parse_pci_address(narrow)
    assert parse_pci_address(parse_pci_address(wide)) == parse_pci_address(wide)


@pytest.mark.parametrize(
    ("some", "others"),
    [
        pytest.param(("ab", "c"), ("a", "bc"), id="boundary moved"),
        pytest.param(("a", ""), ("", "a"), id="empty part moved"),
        pytest.param(("a",), ("a", ""), id="empty part added"),
        pytest.param((), ("",), id="nothing and an empty part"),
        pytest.param(("1:a",), ("1", "a"), id="looks like a length prefix"),
        pytest.param(("a1:b",), ("a", "b"), id="length prefix inside"),
    ],
)
def test_digest_tells_parts_apart(some: tuple[str, ...], others: tuple[str, ...]) -> None:
    assert digest_of(*some) != digest_of(*others)


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_digests_are_equal_only_for_equal_parts(some: list[str], others: list[str]) -> None:
    assert (digest_of(*some) == digest_of(*others)) is (some == others)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, ""), (1, "n1"), (2, "n1, n2"), (3, "n1, n2 and 1 more"), (12, "n1, n2 and 10 more")],
)
def test_first_of_many_names_are_shown_in_their_order_and_the_rest_is_counted(count: int, shown: str) -> None:
    assert listed([f"n{number}" for number in range(1, count + 1)], at_most=2) == shown
