"""Kernel log lines of the field -> observations; what another program could have written is not believed."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.domain.identity import NodeName
from ops_pipelines.domain.observation import Signal
from ops_pipelines.frames.signals import MAX_TEXT_LENGTH, observe_log_lines
from ops_pipelines.ports.logs import LogLine

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
FALLEN = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def line(text: str, *, node: str | None = "gpu003", written_at: datetime | None = NOW, position: str = "p1") -> LogLine:
    return LogLine(node=node, written_at=written_at, position=position, text=text)


@pytest.mark.parametrize(
    ("text", "code", "gpu"),
    [
        pytest.param(FALLEN, 79, "0000:1b:00", id="bare"),
        pytest.param("NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.", 79, "0000:06:00", id="without pid"),
        pytest.param(
            "kernel: NVRM: Xid (PCI:0000:c1:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error on link 1",
            74, "0000:c1:00", id="tag only",
        ),
        pytest.param(
            "[2397166.983093] NVRM: Xid (PCI:0000:0f:00): 94, pid=2503421, name=python3, Ch 00000008",
            94, "0000:0f:00", id="seconds since boot",
        ),
        pytest.param(
            "May 29 01:37:38 ip-26-0-147-135 kernel: [257087.812628] NVRM: Xid (PCI:0000:90:1c): 64, ...",
            64, "0000:90:1c", id="classic syslog",
        ),
        pytest.param(
            "[Sat Oct 12 18:35:32 2024] NVRM: Xid (PCI:0000:61:00): 45, pid=1496200, name=distprovers-gpu, Ch 0000000a",
            45, "0000:61:00", id="dmesg with a date",
        ),
        pytest.param(
            "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 NVRM: Xid (PCI:0000:38:00): 13, pid='<unknown>', name=x",
            13, "0000:38:00", id="dmesg decoded",
        ),
        pytest.param(
            "april 24 16:22:15 robin-linux-x3d kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=6755, name=vivaldi-bin, GPU",
            79, "0000:01:00", id="journal in another language",
        ),
        pytest.param(
            "[ 130.456250] [ T1946] NVRM: Xid (PCI:0000:2b:00): 31, pid=1942, name=llama-bench, channel 0x00000002",
            31, "0000:2b:00", id="thread id",
        ),
        pytest.param(
            "2026-11-21T07:25:29.136825+00:00 gpu003 kernel: [  123.456789] NVRM: Xid (PCI:0000:6b:00): 48, pid=12345",
            48, "0000:6b:00", id="rsyslog",
        ),
        pytest.param(f"<4>Nov 21 07:25:29 gpu003 kernel: {FALLEN}", 79, "0000:1b:00", id="priority"),
        pytest.param(f"<4>1 2026-11-21T07:25:29Z gpu003 kernel - - - {FALLEN}", 79, "0000:1b:00", id="RFC 5424"),
        pytest.param(f"4,3964,206764307,-;{FALLEN}", 79, "0000:1b:00", id="kmsg"),
        pytest.param("NVRM: Xid (0000:03:00): 13, 0001 00000000", 13, "0000:03:00", id="old driver without PCI:"),
        pytest.param("NVRM: Xid (PCI:00000000:1B:00.0): 79, GPU", 79, "0000:1b:00", id="wide domain and function"),
        pytest.param("NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray, RLW", 145, "0018:01:00", id="domain"),
        pytest.param("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained", 94, "0000:01:00", id="MIG"),
        pytest.param("NVRM: Xid (PCI:0000:01:00): 79", 79, "0000:01:00", id="nothing after the code"),
        pytest.param("\x00\x00NVRM: Xid (PCI:0000:01:00): 79, GPU", 79, "0000:01:00", id="hole left by a truncation"),
    ],
)  # fmt: skip
def test_xid_line_of_the_field_becomes_an_observation(text: str, code: int, gpu: str) -> None:
    observations, rejected = observe_log_lines([line(text)], source="kernel_log", received_at=NOW)

    assert rejected == ()
    (observation,) = observations
    assert (observation.signal, observation.code, observation.gpu) == (Signal.XID, code, gpu)
    assert (observation.node, observation.observed_at) == ("gpu003", NOW)
    assert (observation.source, observation.position) == ("kernel_log", "p1")


@pytest.mark.parametrize(
    ("words", "action"),
    [
        pytest.param("changed from 0x0 (None) to 0x4 (Drain and Reset)", 4, id="drain and reset"),
        pytest.param("changed from 0x0 (None) to 0x1 (PF FLR)", 1, id="the number counts, not the words"),
        pytest.param("changed from 0x0 (None) to 0x1 (GPU Reset Required)", 1, id="reset"),
        pytest.param("changed from 0x0 (None) to 0x2 (Node Reboot Required)", 2, id="reboot"),
        pytest.param("changed from 0x2 (Node Reboot Required) to 0x0 (None)", 0, id="cleared"),
        pytest.param("changed from 0x0 (None) to 0x1f (Something new)", 31, id="a number of tomorrow"),
    ],
)
def test_xid_154_becomes_the_drivers_new_recovery_action(words: str, action: int) -> None:
    text = f"NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action {words}"

    observations, rejected = observe_log_lines([line(text)], source="s", received_at=NOW)

    assert rejected == ()
    assert (observations[0].signal, observations[0].code) == (Signal.RECOVERY_ACTION, action)


def test_process_name_cannot_pretend_a_recovery_action() -> None:
    text = (
        "NVRM: Xid (PCI:0009:01:00): 154, pid=1, name=a to 0x2 (b), "
        "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    )

    observations, _ = observe_log_lines([line(text)], source="s", received_at=NOW)

    assert observations[0].code == 1


@pytest.mark.parametrize(
    ("given_line", "reason"),
    [
        pytest.param(line("NVRM: Xid (PCI:...): 137, RLW_RXPIPE interrupt"), "not a PCI address", id="no PCI address"),
        pytest.param(line("NVRM: Xid (PCI:0000:1b:00): unknown"), "shape that is not known", id="no code"),
        pytest.param(line("NVRM: Xid (PCI:0000:1b:00): 99999, x"), "shape that is not known", id="impossible code"),
        pytest.param(line("NVRM: Xid"), "shape that is not known", id="cut short"),
        pytest.param(line("NVRM: Xid (PCI:0000:1b:00): 154, changed"), "the new action is unknown", id="154 cut short"),
        pytest.param(line(FALLEN, node=None), "does not say which node", id="no node"),
        pytest.param(line(FALLEN, node="gpu003; reboot"), "not a node name", id="hostile node"),
        pytest.param(line(FALLEN, node="-oProxyCommand=x"), "not a node name", id="node that reads as an option"),
        pytest.param(line(FALLEN, node=""), "not a node name", id="empty node"),
        pytest.param(line(FALLEN, written_at=datetime(2026, 11, 21)), "names no zone", id="naive time"),
        pytest.param(line(f"Nov 21 07:25:29 gpu003 bob[42]: {FALLEN}"), "another program", id="a user's program"),
        pytest.param(line(f"Nov 21 07:25:29 gpu003 bob: kernel: {FALLEN}"), "another program", id="tag in the words"),
        pytest.param(line(f"Nov 21 07:25:29 gpu003 sshd[1]: kernel\u2028{FALLEN}"), "another program", id="separator"),
        pytest.param(line(f"(continued) {FALLEN}"), "another program", id="the rest of a line that was cut"),
    ],
)
def test_line_that_mentions_an_xid_and_is_not_believed_is_kept_with_the_reason(
    given_line: LogLine, reason: str
) -> None:
    observations, rejected = observe_log_lines([given_line], source="s", received_at=NOW)

    assert observations == ()
    (refused,) = rejected
    assert reason in refused.reason
    assert (refused.source, refused.position) == ("s", "p1")


def test_second_xid_on_one_line_is_rejected_and_the_first_kept() -> None:
    text = f"{FALLEN} NVRM: Xid (PCI:0000:2b:00): 48, x\nNVRM: Xid (PCI:0000:3b:00): 79, y"

    observations, rejected = observe_log_lines([line(text)], source="s", received_at=NOW)

    assert [(each.position, each.code) for each in observations] == [("p1", 79)]
    assert [each.position for each in rejected] == ["p1#1", "p1#2"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt",
        "NVRM: GPU at PCI:0000:01:00: GPU-b30686fb-50e5-b296-a563-b7746cd0b24a",
        "NVRM: krcRcAndNotifyAllChannels_IMPL: RC all channels for critical error 79.",
        "mlx5_core 0000:0b:00.0: Port module event: module 0, Cable plugged",
    ],
)
def test_line_of_no_interest_is_neither_observed_nor_rejected(text: str) -> None:
    assert observe_log_lines([line(text, node=None)], source="s", received_at=NOW) == ((), ())


def test_line_without_a_time_takes_the_time_of_its_arrival() -> None:
    observations, _ = observe_log_lines([line(FALLEN, written_at=None)], source="s", received_at=NOW)

    assert observations[0].observed_at == NOW


@pytest.mark.parametrize(
    ("seconds_ahead", "is_believed"),
    [
        pytest.param(-86_400, True, id="yesterday"),
        pytest.param(299, True, id="just before the limit"),
        pytest.param(300, True, id="exactly at the limit"),
        pytest.param(301, False, id="just after the limit"),
    ],
)
def test_line_dated_in_the_future_keeps_the_time_of_its_arrival_and_says_so(
    seconds_ahead: int, is_believed: bool
) -> None:
    written_at = NOW + timedelta(seconds=seconds_ahead)

    observations, rejected = observe_log_lines([line(FALLEN, written_at=written_at)], source="s", received_at=NOW)

    assert rejected == ()
    assert observations[0].observed_at == (written_at if is_believed else NOW)
    assert ("in the future" in observations[0].text) is not is_believed


@pytest.mark.parametrize(
    ("name", "node"),
    [
        pytest.param("gpu003.cluster.example", "gpu003", id="full name of a known node"),
        pytest.param("gpu003", "gpu003", id="short name"),
        pytest.param("gpu009.cluster.example", "gpu009.cluster.example", id="unknown node is observed under its name"),
    ],
)
def test_full_host_name_becomes_the_known_node(name: str, node: str) -> None:
    known = frozenset({NodeName("gpu003")})

    observations, _ = observe_log_lines([line(FALLEN, node=name)], source="s", received_at=NOW, known_nodes=known)

    assert observations[0].node == node


def test_evidence_is_bounded_and_cannot_steer_a_terminal() -> None:
    text = f"{FALLEN}\x1b[2J\x07" + "x" * 5000

    observations, _ = observe_log_lines([line(text)], source="s", received_at=NOW)

    assert "\x1b" not in observations[0].text
    assert "\\x1b[2J\\x07" in observations[0].text
    assert len(observations[0].text) < MAX_TEXT_LENGTH + 100


PIECES = st.sampled_from(["NVRM: Xid", "NVRM:", " (PCI:0000:1b:00)", ": 79", ", ", "kernel: ", "[ 1.5] ", "x", "\n"])


@given(st.lists(PIECES, max_size=12).map("".join), st.one_of(st.none(), st.text(max_size=8)))
def test_every_mention_of_an_xid_becomes_one_observation_or_one_rejection(text: str, node: str | None) -> None:
    observations, rejected = observe_log_lines([line(text, node=node)], source="s", received_at=NOW)

    assert len(observations) + len(rejected) == text.count("NVRM: Xid")
    positions = [each.position for each in observations] + [each.position for each in rejected]
    assert len(set(positions)) == len(positions)
