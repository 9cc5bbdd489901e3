"""Kernel log lines of the field -> observations; what another program could have written is not believed."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import Signal
from ops_pipelines.core.sources import LogLine
from ops_pipelines.lake.quantities import MAX_TEXT_LENGTH
from ops_pipelines.observe.logs.signals import observe_log_lines

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
FALLEN = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."

SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0)"


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
    ("text", "code", "part"),
    [
        pytest.param(
            "[   38.178720] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ",
            22013, "nvswitch3/link 44", id="not fatal, of a link",
        ),
        pytest.param(
            "[6781753.400584] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
            20034, "nvswitch1/link 48", id="fatal, of a link",
        ),
        pytest.param(
            "2026-11-21T07:25:29.136825+00:00 gpu003 kernel: [  123.456789] nvidia-nvswitch0: SXid "
            "(PCI:00000000:C1:00.0): 10003, Fatal, Host_unhandled_interrupt",
            10003, "nvswitch0", id="of the switch as a whole",
        ),
        pytest.param("nvidia-nvswitch12: SXid (PCI:0018:05:00): 12028", 12028, "nvswitch12", id="only a code"),
        pytest.param(
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 00042, Non-Fatal, Link 07 x", 42, "nvswitch0/link 7", id="zeros"
        ),
        pytest.param(
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 99999, Fatal, of tomorrow", 99999, "nvswitch0", id="unknown"
        ),
        pytest.param(
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, words of Link 48", 20034, "nvswitch0",
            id="a link within the words is not the place of the link",
        ),
    ],
)  # fmt: skip
def test_sxid_line_of_the_field_becomes_an_observation_of_the_switch(text: str, code: int, part: str) -> None:
    observations, rejected = observe_log_lines([line(text)], source="kernel_log", received_at=NOW)

    assert rejected == ()
    (observation,) = observations
    assert (observation.signal, observation.code, observation.gpu) == (Signal.SXID, code, None)
    assert observation.component == Component(kind=ComponentKind.LINK, name=part, node=NodeName("gpu003"))
    assert (observation.node, observation.observed_at, observation.text) == ("gpu003", NOW, text)


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
        pytest.param(line("nvidia-nvswitch3: SXid (PCI:...): 22013, Fatal"), "not a PCI address", id="switch nowhere"),
        pytest.param(line("nvidia-nvswitch3: SXid (PCI:...): 22013, Data {"), "not a PCI address", id="detail nowhere"),
        pytest.param(line("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): Fatal"), "shape that is not known", id="no SXid"),
        pytest.param(line(f"{SWITCH}: 220130, Fatal"), "shape that is not known", id="impossible SXid"),
        pytest.param(line(f"{SWITCH}: 22013.5, Fatal"), "shape that is not known", id="SXid with a fraction"),
        pytest.param(line("nvidia-nvswitch3: SXid"), "shape that is not known", id="SXid cut short"),
        pytest.param(line(f"{SWITCH}: 22013, Fatal, x", node=None), "does not say which node", id="SXid of no node"),
        pytest.param(
            line(f"Nov 21 07:25:29 gpu003 bob[42]: {SWITCH}: 22013, Fatal, x"),
            "another program",
            id="SXid of a program",
        ),
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
    text = f"{FALLEN} NVRM: Xid (PCI:0000:2b:00): 48, x\n{SWITCH}: 22013, Fatal, y"

    observations, rejected = observe_log_lines([line(text)], source="s", received_at=NOW)

    assert [(each.position, each.code) for each in observations] == [("p1", 79)]
    assert [each.position for each in rejected] == ["p1#1", "p1#2"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44 Sub-engine instance 00",
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x00000001, 0x00000001, 0x00000000, 0x00000000}",
        "nvidia-nvswitch3: Version: open-gpu-kernel-modules-570.86.15",
        "NVRM: GPU at PCI:0000:01:00: GPU-b30686fb-50e5-b296-a563-b7746cd0b24a",
        "NVRM: krcRcAndNotifyAllChannels_IMPL: RC all channels for critical error 79.",
        "mlx5_core 0000:0b:00.0: Port module event: module 0, Cable plugged",
    ],
)
def test_line_of_no_interest_is_neither_observed_nor_rejected(text: str) -> None:
    assert observe_log_lines([line(text)], source="s", received_at=NOW) == ((), ())


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
        pytest.param("GPU003", "gpu003", id="in capitals"),
        pytest.param("Gpu003.Cluster.Example", "gpu003", id="full name in capitals"),
        pytest.param("login", "login.cluster.example", id="short name of a node that is known in full"),
        pytest.param("GPU009", "GPU009", id="unknown node in capitals"),
        pytest.param("gpu009.cluster.example", "gpu009.cluster.example", id="unknown node is observed under its name"),
    ],
)
def test_host_name_becomes_the_known_node_that_it_means(name: str, node: str) -> None:
    known = frozenset({NodeName("gpu003"), NodeName("login.cluster.example")})

    observations, _ = observe_log_lines([line(FALLEN, node=name)], source="s", received_at=NOW, known_nodes=known)

    assert observations[0].node == node


def test_evidence_is_bounded_and_cannot_steer_a_terminal() -> None:
    text = f"{FALLEN}\x1b[2J\x07" + "x" * 5000

    observations, _ = observe_log_lines([line(text)], source="s", received_at=NOW)

    assert "\x1b" not in observations[0].text
    assert "\\x1b[2J\\x07" in observations[0].text
    assert len(observations[0].text) < MAX_TEXT_LENGTH + 100


PIECES = st.sampled_from(
    [
        *(
            "NVRM: Xid",
            "NVRM:",
            "nvidia-nvswitch0: SXid",
            "nvidia-nvswitch0:",
            " SXid",
            " (PCI:0000:1b:00)",
            " (PCI:x)",
        ),
        *(": 79", ": 22013", ", Fatal", ", Link 4", ", ", "kernel: ", "[ 1.5] ", "bob: ", "\n"),
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join), st.one_of(st.none(), st.text(max_size=8)))
def test_every_mention_of_an_xid_or_sxid_becomes_one_observation_or_one_rejection(text: str, node: str | None) -> None:
    observations, rejected = observe_log_lines([line(text, node=node)], source="s", received_at=NOW)

    assert len(observations) + len(rejected) == text.count("NVRM: Xid") + text.count("nvidia-nvswitch0: SXid")
    positions = [each.position for each in observations] + [each.position for each in rejected]
    assert len(set(positions)) == len(positions)


@given(
    st.sampled_from(["", "[ 1.5] ", "kernel: ", "Nov 21 07:25:29 gpu003 kernel: ", "<4>"]),
    st.integers(0, 9999),
    st.integers(0, 99_999),
    st.one_of(st.none(), st.integers(0, 9999)),
    st.sampled_from(["Fatal", "Non-fatal"]),
    st.text(st.characters(codec="ascii", exclude_characters="X"), max_size=40),
)
def test_event_of_a_switch_is_read_whatever_words_follow(
    prefix: str, switch: int, code: int, link: int | None, severity: str, words: str
) -> None:
    place = "" if link is None else f"Link {link:02d} "
    text = f"{prefix}nvidia-nvswitch{switch}: SXid (PCI:0000:04:00.0): {code:05d}, {severity}, {place}{words}"

    observations, rejected = observe_log_lines([line(text)], source="s", received_at=NOW)

    assert rejected == ()
    (observation,) = observations
    assert (observation.signal, observation.code) == (Signal.SXID, code)
    assert observation.component is not None
    if link is not None:
        assert observation.component.name == f"nvswitch{switch}/link {link}"


@given(
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12).filter(
        lambda tag: tag != "kernel"
    ),
    st.sampled_from([FALLEN, f"{SWITCH}: 20034, Fatal, Link 48 LTSSM Fault Up", f"{SWITCH}: 20034, Data {{0x1}}"]),
    st.sampled_from(["", "[  12.5] ", "kernel: "]),
)
def test_what_a_program_logs_under_its_own_tag_is_never_believed(tag: str, words: str, pretended: str) -> None:
    text = f"Nov 21 07:25:29 gpu003 {tag}: {pretended}{words}"

    observations, rejected = observe_log_lines([line(text)], source="s", received_at=NOW)

    assert observations == ()
    assert len(rejected) == 1
