"""What each observation means: by its rule, with its source, and never more than the rule allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.fault import FirstAction
from ops_pipelines.core.finding import REPAIRS, Catalogue, Finding, Response
from ops_pipelines.core.observation import RecoveryAction, Signal
from ops_pipelines.observe.rules import find
from tests.domain.builders import (
    CATALOGUE,
    GPU,
    NODE,
    NOW,
    gpu_missing,
    observation,
    telemetry_stale,
    unreachable,
    verdict,
    xid,
)


@pytest.mark.parametrize(
    ("finding", "rule", "response", "is_lasting"),
    [
        pytest.param(xid(79), "xid_79", Response.REBOOT_NODE, False, id="off the bus"),
        pytest.param(xid(48), "xid_48", Response.RESET_GPU, False, id="uncorrectable memory error"),
        pytest.param(xid(13), "xid_13", Response.NOTIFY_OWNER, False, id="the job's own fault"),
        pytest.param(xid(43), "xid_43", Response.MONITOR, False, id="consequence only"),
        pytest.param(xid(54), "xid_54", Response.PAGE, False, id="hands are needed"),
        pytest.param(gpu_missing(), "gpu_missing", Response.REBOOT_NODE, True, id="GPU missing"),
        pytest.param(unreachable(), "node_unreachable", Response.POWER_CYCLE, True, id="unreachable"),
        pytest.param(telemetry_stale(), "telemetry_stale", Response.PAGE, True, id="metrics stopped"),
        pytest.param(
            find(observation(Signal.ECC_UNCORRECTABLE, code=2, gpu=GPU), CATALOGUE),
            "ecc_uncorrectable",
            Response.RESET_GPU,
            False,
            id="ECC count",
        ),
    ],
)
def test_each_observation_means_what_its_rule_says(
    finding: Finding, rule: str, response: Response, is_lasting: bool
) -> None:
    assert (finding.rule, finding.response, finding.is_lasting) == (rule, response, is_lasting)
    assert not finding.is_driver_verdict
    assert finding.source


@pytest.mark.parametrize("code", [None, 0, -1, 78, 80, 999_999])
def test_unknown_xid_pages_and_never_repairs(code: int | None) -> None:
    finding = find(observation(code=code, gpu=GPU), CATALOGUE)

    assert (finding.rule, finding.response) == ("xid_unknown", Response.PAGE)


@pytest.mark.parametrize(
    ("wanted", "response"),
    [
        (RecoveryAction.NONE, Response.MONITOR),
        (RecoveryAction.RESET_GPU, Response.RESET_GPU),
        (RecoveryAction.REBOOT_NODE, Response.REBOOT_NODE),
        (RecoveryAction.DRAIN_PEER_TO_PEER, Response.PAGE),
        (RecoveryAction.DRAIN_AND_RESET, Response.RESET_GPU),
        (RecoveryAction.RECOVER_IMEX_DOMAIN, Response.PAGE),
    ],
)
def test_the_driver_gets_what_it_asks_for(wanted: RecoveryAction, response: Response) -> None:
    finding = verdict(wanted.value)

    assert (finding.response, finding.is_driver_verdict) == (response, True)


def test_every_recovery_action_has_a_response() -> None:
    assert all(verdict(wanted.value).rule == "recovery_action" for wanted in RecoveryAction)


@pytest.mark.parametrize("number", [None, -1, 6, 255])
def test_unknown_recovery_action_pages_and_is_no_verdict(number: int | None) -> None:
    finding = find(observation(Signal.RECOVERY_ACTION, code=number, gpu=GPU), CATALOGUE)

    assert (finding.response, finding.is_driver_verdict) == (Response.PAGE, False)


@given(
    signal=st.sampled_from(Signal),
    code=st.none() | st.integers(-5, 300),
    gpu=st.sampled_from([None, GPU]),
)
def test_every_observation_means_something_and_keeps_its_evidence(signal: Signal, code: int | None, gpu: None) -> None:
    seen = observation(signal, code=code, gpu=gpu)

    finding = find(seen, CATALOGUE)

    assert finding.evidence == (seen,)
    assert (finding.node, finding.gpu, finding.found_at) == (NODE, gpu, NOW)
    assert finding.explanation
    assert finding.response is not Response.PAGE_MASS_EVENT
    if signal is Signal.XID and code not in CATALOGUE.xids:
        assert finding.response not in REPAIRS


@pytest.mark.parametrize(
    ("code", "first_action"),
    [
        pytest.param(1, FirstAction.RESET_GPU_AT_JOB_END, id="waits for a reset"),
        pytest.param(2, FirstAction.RMA, id="failed: no reset brings it back"),
        pytest.param(3, FirstAction.DRAIN_INSPECT, id="no spare row is left"),
    ],
)
def test_what_a_row_remap_calls_for_depends_on_how_it_stands(code: int, first_action: FirstAction) -> None:
    assert find(observation(Signal.ROW_REMAP, code=code), Catalogue()).first_action is first_action


RANKED = [
    Response.MONITOR,
    Response.NOTIFY_OWNER,
    Response.PAGE,
    Response.ISOLATE,
    Response.RESET_GPU,
    Response.REBOOT_NODE,
    Response.POWER_CYCLE,
    Response.REIMAGE,
    Response.RETURN_TO_VENDOR,
    Response.PAGE_MASS_EVENT,
]


def test_responses_are_compared_by_what_they_do_and_not_by_what_ledgers_hold() -> None:
    assert sorted(Response) == RANKED
    assert max(Response.ISOLATE, Response.RETURN_TO_VENDOR) is Response.RETURN_TO_VENDOR
    assert Response.PAGE < Response.ISOLATE < Response.RESET_GPU
    assert Response.ISOLATE >= Response.ISOLATE
    assert set(RANKED[3:9]) == REPAIRS


@given(st.sampled_from(Response), st.sampled_from(Response))
def test_of_two_responses_exactly_one_is_stronger(one: Response, other: Response) -> None:
    assert [one < other, one is other, one > other].count(True) == 1
    assert (one <= other) == (one.rank <= other.rank)


def test_a_response_is_no_number() -> None:
    with pytest.raises(TypeError):
        assert Response.PAGE < 3


@pytest.mark.parametrize(
    ("stored", "response"),
    [
        (0, Response.MONITOR), (1, Response.NOTIFY_OWNER), (2, Response.PAGE), (3, Response.RESET_GPU),
        (4, Response.REBOOT_NODE), (5, Response.POWER_CYCLE), (6, Response.REIMAGE), (7, Response.RETURN_TO_VENDOR),
        (8, Response.ISOLATE), (9, Response.PAGE_MASS_EVENT),
    ],
)  # fmt: skip
def test_what_ledgers_hold_means_for_ever_what_it_meant(stored: int, response: Response) -> None:
    assert Response(stored) is response
