"""NVLink 5 subcodes: both register layouts, the words of the line, and that the unknown is never destructive."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, AtFault, Family, FirstAction
from ops_pipelines.core.finding import Catalogue, CodeRule, Response
from ops_pipelines.core.observation import Signal
from ops_pipelines.observe.condition_rules import (
    find_severity,
    judge_nvlink,
    judge_sxid,
    match_subcodes,
    parse_nvlink_event,
)
from ops_pipelines.observe.rules import find
from ops_pipelines.resources.catalogue_files import read_catalogue
from tests.domain.builders import observation

SUBCODES = read_catalogue().nvlink_subcodes
RXPIPE = "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)"
LINK_DOWN = "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"


def sxid_rule(action: FirstAction, *, family: Family = Family.NVLINK) -> CodeRule:
    return CodeRule(
        code=20034, mnemonic="M", meaning="m", at_fault=AtFault.FABRIC, family=family, first_action=action
    )  # fmt: skip


def words(mask: str) -> int:
    """Return a register word that fits `mask`."""
    return int(mask.replace("-", "0"), 2)


def test_line_is_taken_apart() -> None:
    event = parse_nvlink_event(f"pid=876767, name=ray::WorkerDict, {RXPIPE}")

    assert event is not None
    assert (event.unit, event.is_fatal, event.link) == ("RLW_RXPIPE", False, 13)
    assert event.registers == (0x0409A0C2, 8, 1, 0, 0x100000, 4)


@pytest.mark.parametrize(
    "text",
    ["", "NVLINK: RLW Error", "(0x0409a0c2 0x00000008)", "rlw_rxpipe nonfatal", "GPU has fallen off the bus"],
)
def test_line_without_unit_and_word_says_nothing(text: str) -> None:
    assert parse_nvlink_event(text) is None


@pytest.mark.parametrize("layout", ["mask_before_r575", "mask_from_r575"])
def test_every_row_is_found_by_its_own_registers_in_both_layouts(layout: str) -> None:
    for row in SUBCODES:
        mask = row.mask_before_r575 if layout == "mask_before_r575" else row.mask_from_r575
        status = 0 if row.error_status is None else row.error_status
        word = "Fatal" if row.is_fatal else "Nonfatal"
        text = f"{row.unit} {word} XC0 i0 Link 03 ({words(mask):#010x} {status:#010x})"
        event = parse_nvlink_event(text)

        assert event is not None, row
        assert row in match_subcodes(row.code, event, SUBCODES)
        action = judge_nvlink(row.code, text, SUBCODES).first_action
        assert (action in DESTRUCTIVE_ACTIONS) is (row.first_action in DESTRUCTIVE_ACTIONS), row


@pytest.mark.parametrize(
    ("code", "text", "action", "is_known"),
    [
        pytest.param(145, RXPIPE, FirstAction.MONITOR, True, id="harmless by table and word"),
        pytest.param(149, LINK_DOWN, FirstAction.RESET_GPU, True, id="link down by table and word"),
        pytest.param(
            145, RXPIPE.replace("Nonfatal", "Fatal"), FirstAction.MONITOR, True, id="the table is milder than the word"
        ),
        pytest.param(
            149, LINK_DOWN.replace("Fatal", "Nonfatal"), FirstAction.MONITOR, True, id="the word is milder"
        ),
        pytest.param(145, "NEW_UNIT Fatal XC0 i0 Link 1 (0x1 0x2)", FirstAction.RESET_GPU, False, id="word: fatal"),
        pytest.param(145, "NEW_UNIT Nonfatal XC0 i0 Link 1 (0x1 0x2)", FirstAction.MONITOR, False, id="word: not"),
        pytest.param(145, "RLW_RXPIPE Nonfatal XC0 i0", FirstAction.MONITOR, False, id="no registers"),
        pytest.param(145, "RLW_RXPIPE Fatal (0x0409a0c2)", FirstAction.RESET_GPU, False, id="one register only"),
        pytest.param(145, "NVLINK: RLW Error", FirstAction.INVESTIGATE_FABRIC, False, id="neither word nor unit"),
        pytest.param(144, RXPIPE, FirstAction.MONITOR, False, id="the unit of another code"),
    ],
)  # fmt: skip
def test_table_and_word_decide(code: int, text: str, action: FirstAction, is_known: bool) -> None:
    verdict = judge_nvlink(code, text, SUBCODES)

    assert verdict.first_action is action
    assert (verdict.subcode is not None) is is_known


@given(st.integers(144, 150), st.text(max_size=200))
def test_only_a_line_that_says_fatal_is_ever_destructive(code: int, text: str) -> None:
    verdict = judge_nvlink(code, text, SUBCODES)

    if verdict.first_action in DESTRUCTIVE_ACTIONS:
        assert verdict.is_fatal is True


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("20034, Fatal, Link 48", True),
        ("22013, Non-fatal, Link 44", False),
        ("22013, Nonfatal", False),
        ("detected NVSwitch non-fatal error", False),
        ("detected NVSwitch fatal error", True),
        ("Severity 1 Engine instance 48", None),
        ("Data {0x00000001}", None),
        ("fatality", None),
        ("", None),
    ],
)
def test_word_of_severity_is_read(text: str, severity: bool | None) -> None:
    assert find_severity(text) is severity


@pytest.mark.parametrize(
    ("action", "text", "expected"),
    [
        pytest.param(FirstAction.RESET_GPU, "20034, Fatal, Link 4", FirstAction.RESET_GPU, id="fatal"),
        pytest.param(FirstAction.RESET_FABRIC, "22003, Fatal", FirstAction.RESET_FABRIC, id="fatal to the fabric"),
        pytest.param(FirstAction.RESET_FABRIC, "22003, Non-fatal", FirstAction.MONITOR, id="the driver says harmless"),
        pytest.param(FirstAction.MONITOR, "22013, Fatal", FirstAction.RESET_GPU, id="the driver says fatal"),
        pytest.param(FirstAction.RESTART_JOB, "12028, Non-fatal", FirstAction.RESTART_JOB, id="the job ends"),
        pytest.param(FirstAction.RESET_GPU, "20034, Severity 1", FirstAction.INVESTIGATE_FABRIC, id="registers only"),
        pytest.param(FirstAction.RESET_GPU, "", FirstAction.RESET_GPU, id="no line: the table"),
    ],
)
def test_word_of_the_driver_outranks_the_table_of_sxids(action: FirstAction, text: str, expected: FirstAction) -> None:
    assert judge_sxid(sxid_rule(action), text) is expected


def test_heat_of_a_switch_is_no_reason_to_reset_a_gpu() -> None:
    assert judge_sxid(sxid_rule(FirstAction.MONITOR, family=Family.HEAT), "10004, Fatal") is FirstAction.MONITOR


@pytest.mark.parametrize(
    ("text", "response"),
    [
        pytest.param(f"NVRM: Xid (PCI:0000:1b:00): 149, {LINK_DOWN}", Response.RESET_GPU, id="fatal"),
        pytest.param("NVRM: Xid (PCI:0000:1b:00): 149, words", Response.PAGE, id="a person must look"),
        pytest.param("", Response.PAGE, id="the code alone"),
    ],
)
def test_finding_of_an_nvlink_code_follows_its_line(text: str, response: Response) -> None:
    finding = find(replace(observation(code=149), text=text), read_catalogue())

    assert finding.response is response
    assert finding.rule == "xid_149"


def test_finding_of_an_sxid_follows_its_word() -> None:
    catalogue = Catalogue(sxids={20034: sxid_rule(FirstAction.RESET_GPU)})

    event = observation(Signal.SXID, code=20034)

    fatal = find(replace(event, text="20034, Fatal, Link 1"), catalogue)
    mild = find(replace(event, text="20034, Non-fatal, Link 1"), catalogue)

    assert (fatal.response, mild.response) == (Response.RESET_GPU, Response.MONITOR)
