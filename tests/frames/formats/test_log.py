"""Logs in every dialect met: times, nodes, levels, ranks, numbers; what is no log is refused, and no byte crashes."""

import gzip
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.sources import LogLine
from ops_pipelines.lake.quantities import Parsed, WrongKind
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.logs.matching import read_rules
from ops_pipelines.observe.logs.tables import Writer, parse, tabulate_lines

AT = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
DATA = Path(__file__).parents[4] / "shared" / "data"
Row = dict[str, object]


def read(text: str | bytes, *, node: str | None = None) -> Parsed:
    return parse(text.encode() if isinstance(text, str) else text, source="f", at=AT, node=node)


def row_of(text: str | bytes, table: str = "job_logs") -> Row:
    parsed = read(text)
    assert (parsed.read, parsed.accepted) == (1, 1)
    assert list(parsed.tables) == [table]
    (row,) = parsed.tables[table].to_pylist()
    return dict(row)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type] -- year, month, ... in order


@pytest.mark.parametrize(
    ("text", "time", "node", "level"),
    [
        pytest.param(f"[  130.456250] {XID}", AT, None, "crit", id="seconds since boot"),
        pytest.param(f"[ 130.456250] [ T1946] {XID}", AT, None, "crit", id="with a thread"),
        pytest.param(f"[111111111.111] {XID}", AT, None, "crit", id="three digits"),
        pytest.param(f"[Fri Aug 30 11:43:09 2024] {XID}", utc(2024, 8, 30, 11, 43, 9), None, "crit", id="dmesg -T"),
        pytest.param(f"[Sun Nov  1 01:02:03 2026] {XID}", utc(2026, 11, 1, 1, 2, 3), None, "crit", id="one-digit day"),
        pytest.param(
            f"2025-01-21T04:41:44,283302+00:00 {XID}", utc(2025, 1, 21, 4, 41, 44, 283302), None, "crit", id="iso",
        ),
        pytest.param(f"4,3964,206764307,-;{XID}", AT, None, "warning", id="kmsg"),
        pytest.param(
            f"kern  :warn  : 2025-01-21T04:41:44,283302+00:00 {XID}", utc(2025, 1, 21, 4, 41, 44, 283302), None,
            "warning", id="decoded, iso",
        ),
        pytest.param(f"kern  :err   : [  130.456250] {XID}", AT, None, "err", id="decoded, relative"),
        pytest.param(
            f"Nov 20 07:25:29 gpu003 kernel: {XID}", utc(2026, 11, 20, 7, 25, 29), "gpu003", "crit", id="RFC 3164",
        ),
        pytest.param(
            f"<3>Nov 20 07:25:29 gpu003 kernel: [ 12.345678] {XID}", utc(2026, 11, 20, 7, 25, 29), "gpu003", "err",
            id="with a priority",
        ),
        pytest.param(
            f"<4>1 2026-11-21T07:25:29.5Z gpu003 kernel - - - {XID}", utc(2026, 11, 21, 7, 25, 29, 500_000), "gpu003",
            "warning", id="RFC 5424",
        ),
        pytest.param(
            f"2026-11-21T07:25:29.136825+01:00 gpu003 kernel: [  123.456789] {XID}",
            utc(2026, 11, 21, 6, 25, 29, 136825), "gpu003", "crit", id="rsyslog with a zone",
        ),
        pytest.param(
            f"jan. 29 20:50:17 kevin kernel: {XID}", utc(2026, 1, 29, 20, 50, 17), "kevin", "crit", id="French month",
        ),
        pytest.param(XID, AT, None, "crit", id="bare"),
        pytest.param(f"kernel: {XID}", AT, None, "crit", id="tag only"),
        pytest.param(
            "[Feb 25 2025 13:59:45] [ERROR] [tid 1803] detected NVSwitch fatal error 20034 on fid 0",
            utc(2025, 2, 25, 13, 59, 45), None, "err", id="fabricmanager.log",
        ),
        pytest.param(
            " 1 | 04/21/2023 | 10:22:31 | Power Supply #0x51 | Failure detected | Asserted",
            utc(2023, 4, 21, 10, 22, 31), None, "err", id="ipmitool sel list",
        ),
        pytest.param(
            "1a | 04/21/23 | 10:22:31 PM UTC | Power Supply #0x51 | Failure detected | Asserted",
            utc(2023, 4, 21, 22, 22, 31), None, "err", id="ipmitool sel elist",
        ),
        pytest.param(
            "Nov 21 07:25:29 gpu003 nv-fabricmanager[4177]: failed to train NVLink",
            utc(2026, 11, 21, 7, 25, 29), "gpu003", "err", id="fabric manager by syslog",
        ),
    ],
)  # fmt: skip
def test_line_of_kernel_or_hardware_goes_to_kernel_events(
    text: str, time: datetime, node: str | None, level: str
) -> None:
    row = row_of(text, "kernel_events")

    assert (row["time"], row["node"], row["level"], row["text"]) == (time, node, level, text)


@pytest.mark.parametrize(
    ("text", "time", "node", "level", "rank"),
    [
        pytest.param("hello", AT, None, None, None, id="bare"),
        pytest.param(
            "[2024-04-29 06:15:07,505] [INFO] [comm.py:637:init] cdb=None", utc(2024, 4, 29, 6, 15, 7, 505_000), None,
            "info", None, id="DeepSpeed",
        ),
        pytest.param(
            "2024-04-29 06:15:28,746 - trainer - WARNING - slow", utc(2024, 4, 29, 6, 15, 28, 746_000), None,
            "warning", None, id="Python logging",
        ),
        pytest.param("ERROR:root:no data", AT, None, "error", None, id="Python logging, basic"),
        pytest.param(
            "2024-04-29 06:15:28.746 | DEBUG    | a.b:c:12 - x", utc(2024, 4, 29, 6, 15, 28, 746_000), None, "debug",
            None, id="loguru",
        ),
        pytest.param(
            "[INFO|configuration_utils.py:792] 2024-04-29 06:15:28,746 >> x", utc(2024, 4, 29, 6, 15, 28, 746_000),
            None, "info", None, id="transformers",
        ),
        pytest.param(
            "[rank3]:[E1121 07:25:29.123456789 ProcessGroupNCCL.cpp:607] x", utc(2026, 11, 21, 7, 25, 29, 123456), None,
            "error", 3, id="torchrun",
        ),
        pytest.param(
            "[rank7]:[E816 01:45:40.183009389 ProcessGroupNCCL.cpp:607] [Rank 7] x",
            utc(2026, 8, 16, 1, 45, 40, 183009), None, "error", 7, id="torch, month of one digit",
        ),
        pytest.param("[E ProcessGroupNCCL.cpp:737] [Rank 6] x", AT, None, "error", 6, id="old torch"),
        pytest.param("[W socket.cpp:601] [c10d] x", AT, None, "warning", None, id="c10d"),
        pytest.param(
            "I1121 07:25:29.123456 1234 file.go:12] x", utc(2026, 11, 21, 7, 25, 29, 123456), None, "info", None,
            id="glog",
        ),
        pytest.param(
            "gpu-1:100:200 [5] NCCL INFO comm 0x5e rank 5 nranks 32 - done", AT, "gpu-1", "info", 5, id="NCCL",
        ),
        pytest.param(
            "12: [2026-03-13 22:26:02] host-01.example:10:11 [5] init.cc:12 NCCL WARN x",
            utc(2026, 3, 13, 22, 26, 2), "host-01.example", "warning", 12, id="Slurm task, NCCL with a time",
        ),
        pytest.param("180: [rank180]: RuntimeError: x", AT, None, "error", 180, id="Slurm task and torchrun"),
        pytest.param(
            "[2015-07-01T12:05:29.971] error: Node c001 has low cpu count (1 < 20)",
            utc(2015, 7, 1, 12, 5, 29, 971_000), None, "error", None, id="slurmctld",
        ),
        pytest.param("slurmstepd: error: x", AT, None, "error", None, id="slurmstepd"),
        pytest.param(
            "2025-11-24T03:20:21.001125857Z stdout F [rank1]: hi", utc(2025, 11, 24, 3, 20, 21, 1125), None, None, 1,
            id="container runtime",
        ),
        pytest.param(
            "Nov 20 07:25:29 gpu003 sshd[42]: hi", utc(2026, 11, 20, 7, 25, 29), "gpu003", None, None, id="syslog",
        ),
        pytest.param(
            'time="2026-11-21T07:25:29Z" level=error msg="x"', utc(2026, 11, 21, 7, 25, 29), None, "error", None,
            id="logfmt",
        ),
        pytest.param(
            "2026/11/21 07:25:29 [error] 12#12: x", utc(2026, 11, 21, 7, 25, 29), None, "error", None, id="slashes",
        ),
        pytest.param(
            "17/06/09 20:10:40 INFO executor: x", utc(2017, 6, 9, 20, 10, 40), None, "info", None, id="Spark",
        ),
        pytest.param(
            "- 1131566461 2005.11.09 dn228 Nov 9 12:01:01 dn228/dn228 crond[2915]: x",
            utc(2005, 11, 9, 20, 1, 1), "dn228", None, None, id="Thunderbird",
        ),
        pytest.param("[default7]: hi", AT, None, None, None, id="local rank is no rank"),
        pytest.param("[1,3]<stdout>:hi", AT, None, None, 3, id="Open MPI"),
        pytest.param("Nov 20 25:61:61 gpu003 sshd[42]: hi", AT, "gpu003", None, None, id="impossible time"),
        pytest.param("2026-13-45 07:25:29 hi", AT, None, None, None, id="impossible day"),
    ],
)  # fmt: skip
def test_line_of_a_program_goes_to_job_logs(
    text: str, time: datetime, node: str | None, level: str | None, rank: int | None
) -> None:
    row = row_of(text)

    assert (row["time"], row["node"], row["level"], row["rank"]) == (time, node, level, rank)


@pytest.mark.parametrize(
    ("day", "year"),
    [("Nov 21", 2026), ("Nov 22", 2026), ("Nov 23", 2025), ("Dec 31", 2025), ("Jan  1", 2026), ("Feb 29", 2024)],
)
def test_time_without_a_year_is_the_newest_that_is_at_most_a_day_ahead(day: str, year: int) -> None:
    row = row_of(f"{day} 00:00:00 gpu003 sshd[1]: x")

    assert row["time"] == datetime.strptime(f"{year} {day} +0000", "%Y %b %d %z")


def test_relative_clock_becomes_a_time_once_the_kernel_has_set_its_clock() -> None:
    text = (
        "[    1.000000] rtc_cmos rtc_cmos: setting system clock to 2026-11-21T07:00:01 UTC (1795244401)\n"
        f"[   61.500000] {XID}\n"
    )

    rows = read(text).tables["kernel_events"].to_pylist()

    assert [row["time"] for row in rows] == [utc(2026, 11, 21, 7, 0, 1), utc(2026, 11, 21, 7, 1, 1, 500_000)]


def test_words_of_the_kernel_from_another_program_are_no_kernel_event() -> None:
    row = row_of(f"Nov 20 07:25:29 gpu003 bob[42]: {XID}")

    assert row["signature"] == "xid_gpu_off_bus"


@pytest.mark.parametrize(
    ("text", "code", "address", "device"),
    [
        pytest.param(XID, 79, "0000:1b:00", None, id="Xid"),
        pytest.param("NVRM: Xid (PCI:00000000:1B:00.0): 48, x", 48, "0000:1b:00", None, id="wide address"),
        pytest.param("NVRM: Xid (PCI:...): 137, hit on link 11 on GPU0", 137, None, "GPU0/link 11", id="no address"),
        pytest.param(
            "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 x",
            22013,
            "0000:04:00",
            "nvidia-nvswitch3/link 44",
            id="SXid",
        ),
        pytest.param("kernel: nvme nvme2: Device not ready; aborting reset", None, None, "nvme2", id="NVMe"),
        pytest.param("mlx5_core 0000:01:00.1 eth1: Link up", None, "0000:01:00", "eth1", id="port"),
        pytest.param("EXT4-fs (dm-0): I/O error while writing superblock", None, None, "dm-0", id="disk"),
    ],
)
def test_parts_that_a_fault_names_stand_in_columns(
    text: str, code: int | None, address: str | None, device: str | None
) -> None:
    row = row_of(text, "kernel_events")

    assert (row["code"], row["pci_address"], row["device"]) == (code, address, device)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            " [default7]: iteration    12695/  115311 | consumed samples:      9841584 | consumed tokens:  20155564032 "
            "| elapsed time per iteration (s): 105.22 | lm loss: 2.463556E+00 | TFLOPs: 149.02 |",
            (12695, 105.22, 2.463556, None, 149.02e12), id="Megatron-DeepSpeed",
        ),
        pytest.param(
            " iteration      100/ 5000 | elapsed time per iteration (ms): 10522.1 | throughput per GPU (TFLOP/s/GPU): "
            "412.3 | lm loss: 1.5E+00 | loss scale: 1.0 |",
            (100, 10.5221, 1.5, None, 412.3e12), id="Megatron-LM",
        ),
        pytest.param(
            "[2024-04-29 06:18:02,707] [INFO] [hf_trainer.py:53:on_log] loss: 1.1465, learning_rate: 2.04e-06, "
            "epoch: 0.0, iter: 1/2436,  00:50 < 34:04:04,  50.37s/it",
            (1, 50.37, 1.1465, None, None), id="trainer",
        ),
        pytest.param(
            "  0%|          | 5/2436 [03:53<31:10:32, 46.17s/it]{'loss': 1.1395, 'learning_rate': 1.0e-05}",
            (5, 46.17, 1.1395, None, None), id="progress bar with a dict",
        ),
        pytest.param(
            " 50%|#####     | 10/20 [00:05<00:05,  2.00it/s]", (10, 0.5, None, None, None), id="iterations per second",
        ),
        pytest.param(
            "step 120 | loss: 2.3145 | tok/s: 15,234.2 | tflops: 312.4", (120, None, 2.3145, 15234.2, 312.4e12),
            id="script",
        ),
        pytest.param(
            "step: 12 loss: nan tokens per second: 10", (12, None, None, 10.0, None), id="loss that is no number",
        ),
    ],
)  # fmt: skip
def test_numbers_of_a_training_step_are_in_base_units(text: str, expected: tuple[float | None, ...]) -> None:
    row = row_of(text)

    found = [row[name] for name in ("step", "step_seconds", "loss", "tokens_per_second", "flops_per_second")]
    assert found == [None if value is None else pytest.approx(value) for value in expected]


def test_progress_bar_is_one_line_and_its_last_picture_is_kept() -> None:
    row = row_of("  1%| | 1/100 [00:01<01:39, 1.0s/it]\r  2%| | 2/100 [00:02<01:38, 1.0s/it]\r\n")

    assert (row["text"], row["step"]) == ("  2%| | 2/100 [00:02<01:38, 1.0s/it]", 2)


def test_error_between_two_pictures_of_a_progress_bar_is_what_is_kept() -> None:
    row = row_of("  1%| | 1/100 [00:01<01:39, 1.0s/it]\rCUDA out of memory.\r  2%| | 2/100 [00:02<01:38, 1.0s/it]")

    assert (row["signature"], row["text"]) == ("cuda_out_of_memory", "CUDA out of memory.")


def test_colours_are_taken_off_and_do_not_hide_a_signature() -> None:
    row = row_of("\x1b[31mgpu-1:1:2 [0] NCCL\x1b[0m WARN Cuda failure\x1b]0;title\x07")

    assert (row["text"], row["signature"]) == ("gpu-1:1:2 [0] NCCL WARN Cuda failure", "nccl_warn")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(b"caf\xe9 is here\n", "caf\\xe9 is here", id="not UTF-8"),
        pytest.param(b"\x00\x00hello\x00\n", "hello", id="hole left by a truncation"),
        pytest.param(b"hello\r\n", "hello", id="CRLF"),
        pytest.param(b"a\tb", "a b", id="tab"),
        pytest.param(b"a\x07b\x1bc", "ab\\x1bc", id="bell and a bare escape"),
        pytest.param(b"\xef\xbb\xbfhello", "hello", id="UTF-8 mark"),
        pytest.param("hello\n".encode("utf-16"), "hello", id="UTF-16"),
        pytest.param("hello, this is a line\n".encode("utf-16-le"), "hello, this is a line", id="UTF-16, no mark"),
        pytest.param(b"x" * 5000, "x" * 1000, id="long line is cut, not lost"),
    ],
)
def test_line_is_made_readable(body: bytes, text: str) -> None:
    assert row_of(body)["text"] == text


def test_blank_lines_are_ignored_and_counts_close() -> None:
    parsed = read(f"\n   \n\t\r\n{XID}\n\x1b[0m\nhello\n")

    assert (parsed.read, parsed.accepted, parsed.ignored, parsed.reasons) == (6, 2, 4, {})


def test_empty_file_is_an_empty_log() -> None:
    parsed = read(b"")

    assert (parsed.read, dict(parsed.tables)) == (0, {})


def test_garbage_between_lines_is_refused_and_the_lines_are_kept() -> None:
    garbage = bytes(range(1, 10)) * 20 + bytes(range(128, 255))

    parsed = read(b"hello\n" + garbage + b"\nworld\n\x00\x00\x00\n")

    assert parsed.reasons == {"binary_line": 2}
    assert [each.record for each in parsed.refused] == ["000000002", "000000004"]
    assert parsed.tables["job_logs"].column("text").to_pylist() == ["hello", "world"]


def test_positions_keep_the_order_of_the_file() -> None:
    text = "\n".join(f"line {number}" for number in range(120))

    positions = read(text).tables["job_logs"].column("position").to_pylist()

    assert positions == sorted(positions)


def test_node_of_the_caller_is_for_lines_that_name_none() -> None:
    parsed = read("hello\nNov 20 07:25:29 gpu003 sshd[42]: hi\n", node="gpu009")

    assert parsed.tables["job_logs"].column("node").to_pylist() == ["gpu009", "gpu003"]


def test_line_that_tells_nothing_goes_on_with_the_record_before_it() -> None:
    parsed = read("[Feb 25 2025 13:59:45] [INFO] [tid 1803] Received an inband message:\nMessage payload details: x\n")

    assert parsed.tables["kernel_events"].num_rows == 2


@pytest.mark.parametrize(
    ("record", "table", "expected"),
    [
        pytest.param(
            {"__REALTIME_TIMESTAMP": "1795240356848344", "_HOSTNAME": "gpu007", "PRIORITY": "3",
             "_TRANSPORT": "kernel", "MESSAGE": XID},
            "kernel_events",
            {"time": utc(2026, 11, 21, 5, 52, 36, 848344), "node": "gpu007", "level": "err", "text": XID},
            id="journald",
        ),
        pytest.param(
            {"MESSAGE": [104, 105, 255], "_TRANSPORT": "kernel"}, "kernel_events", {"text": "hi\\xff"},
            id="journald, not UTF-8",
        ),
        pytest.param(
            {"ts": "2026-11-21T05:52:39.136825+00:00", "host": "vm", "tag": "kernel", "severity": "err", "msg": XID},
            "kernel_events", {"node": "vm", "level": "err", "code": 79}, id="rsyslog",
        ),
        pytest.param(
            {"_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "kernel", "MESSAGE": XID}, "job_logs",
            {"signature": "xid_gpu_off_bus"}, id="a program that calls itself kernel",
        ),
        pytest.param(
            {"log": "[rank3]: hi\n", "stream": "stderr", "time": "2026-11-21T07:25:29.123456789Z"}, "job_logs",
            {"text": "[rank3]: hi", "rank": 3, "time": utc(2026, 11, 21, 7, 25, 29, 123456)}, id="docker",
        ),
        pytest.param(
            {"level": "warn", "ts": 1795240356.848, "msg": "slow", "rank": 4, "job_id": 4711}, "job_logs",
            {"level": "warning", "rank": 4, "job": "4711"}, id="structured logger",
        ),
        pytest.param({"step": 12, "loss": 1.5}, "job_logs", {"step": 12, "loss": 1.5}, id="metrics of a training"),
    ],
)  # fmt: skip
def test_line_of_json_is_read_by_its_keys(record: Row, table: str, expected: Row) -> None:
    row = row_of(json.dumps(record), table)

    assert {name: row[name] for name in expected} == expected


def test_record_that_holds_several_lines_becomes_several_rows() -> None:
    parsed = read(json.dumps({"id": "x", "lines": [f"[ 1.000000] {XID}", "[ 2.000000] y"]}))

    assert (parsed.read, parsed.accepted) == (1, 1)
    assert parsed.tables["kernel_events"].column("position").to_pylist() == ["000000001", "000000001#2"]


def test_broken_record_of_a_json_log_is_refused() -> None:
    good = json.dumps({"msg": "hi", "ts": 1795240356})

    parsed = read(f'{good}\n{good[:20]}\n{{"msg": "a", "msg": "b"}}\n{{"other": 1}}\n{good}\n')

    assert parsed.reasons == {"broken_json": 1, "json_without_message": 1, "repeated_json_key": 1}
    assert parsed.accepted == 2


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(gzip.compress(b"hello\n"), id="gzip"),
        pytest.param(b"\x7fELF" + bytes(100), id="program"),
        pytest.param(bytes(range(256)) * 40, id="binary"),
        pytest.param(b'{\n  "nodes": []\n}\n', id="JSON over lines"),
        pytest.param(b'{"nodes": [], "meta": {}}', id="JSON in one line"),
        pytest.param(b'[{"a": 1}]', id="JSON list"),
        pytest.param(b'{"jobs": [{"a": 1}, ', id="JSON cut short"),
        pytest.param(b"<?xml version='1.0'?>\n<a/>\n", id="XML"),
        pytest.param(b"<html><body>502</body></html>", id="HTML"),
        pytest.param(b"# HELP up x\n# TYPE up gauge\nup 1\n", id="exposition"),
        pytest.param(b'up{a="b"} 1\nup{a="c"} 0\n', id="exposition without comments"),
        pytest.param(b"JobID|State|Start\n1|COMPLETED|x\n2|FAILED|y\n", id="sacct"),
        pytest.param(b"a,b,c\n1,2,3\n4,5,6\n", id="CSV"),
        pytest.param(b"NodeName=gpu1 Arch=x86_64\n   CPUAlloc=1 CPUTot=2\n   State=IDLE\n", id="scontrol"),
        pytest.param(b"PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\ngpu up infinite 2 idle gpu1\n", id="sinfo"),
        pytest.param(b"# Port counters: Lid 1 port 1\nPortSelect:......1\nSymbolErrorCounter:....0\n", id="perfquery"),
    ],
)
def test_file_of_another_kind_is_refused_as_a_whole(body: bytes) -> None:
    with pytest.raises(WrongKind, match=r"\w"):
        read(body)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[ 1.000000] up\n[ 2.000000] down\n", id="looks like a list"),
        pytest.param("{'loss': 1.5, 'epoch': 0.1}\n", id="Python dict"),
        pytest.param("<13>Nov 21 07:25:29 gpu003 bob: hi\n", id="priority is no XML"),
        pytest.param("starting\n{\n  \"a\": 1\n}\ndone\n", id="JSON printed by a job"),
        pytest.param("Loading, please wait\ndone\n", id="a comma is no table"),
        pytest.param("GPU 0: NVIDIA H100 (UUID: GPU-1)\nstep 1 loss: 2.0\nstep 2 loss: 1.9\n", id="GPUs listed first"),
    ],
)  # fmt: skip
def test_log_that_looks_like_another_kind_is_a_log(text: str) -> None:
    parsed = read(text)

    assert (parsed.accepted, parsed.reasons) == (text.count("\n"), {})


def test_lines_of_an_adapter_become_rows() -> None:
    lines = [
        LogLine(node="gpu003", written_at=AT - timedelta(hours=1), position="p1", text=f"kernel: {XID}"),
        LogLine(node=None, written_at=None, position="p2", text="docker0: port 3 entered forwarding state"),
        LogLine(node="gpu003", written_at=None, position="p3", text="two\nlines \ud800", job="4711"),
        LogLine(node="gpu003", written_at=None, position="p4", text=""),
    ]

    parsed = tabulate_lines(lines, source="kernel_log", at=AT, writer=Writer.KERNEL)

    assert (parsed.read, parsed.accepted, parsed.ignored) == (4, 3, 1)
    kernel = parsed.tables["kernel_events"].to_pylist()
    assert [(row["position"], row["node"], row["time"]) for row in kernel] == [
        ("p1", "gpu003", AT - timedelta(hours=1)),
        ("p2", None, AT),
    ]
    (job,) = parsed.tables["job_logs"].to_pylist()
    assert (job["job"], job["text"]) == ("4711", "two lines \\xd800")


EXAMPLES = [rule.example for rule in read_rules()]
PREFIXES = [
    "", "[  130.456250] ", "Nov 21 07:25:29 gpu003 kernel: ", "<4>1 2026-11-21T07:25:29Z h kernel - - - ", "3: ",
    "[rank3]:", "6,1,2,-;", "kern  :warn  : ", "[2024-04-29 06:15:07,505] [INFO] ", "- 1131566461 2005.11.09 dn228 ",
    "I1121 07:25:29.123456 1 f.go:1] ", "[E816 01:45:40.1 f.cpp:1] ", '{"msg": "', "\x1b[31m", "\r", "\x00",
    "Feb 30 00:00:00 h a: ",
]  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.builds(
                lambda prefixes, text: ("".join(prefixes) + text).encode(),
                st.lists(st.sampled_from(PREFIXES), max_size=4),
                st.sampled_from(EXAMPLES),
            ),
            st.text(max_size=60).map(str.encode),
        ),
        max_size=10,
    )
)
def test_any_bytes_give_rows_of_the_schema_and_counts_that_close_or_are_refused_as_a_whole(lines: list[bytes]) -> None:
    try:
        parsed = read(b"\n".join(lines))
    except WrongKind:
        return

    assert parsed.read == parsed.accepted + parsed.ignored + len(parsed.refused)
    for name, table in parsed.tables.items():
        assert table.schema == TABLES[name].arrow()
        table.validate(full=True)
        assert len(set(table.column("position").to_pylist())) == table.num_rows
        assert all(text.isprintable() and len(text) <= 1000 for text in table.column("text").to_pylist())
    assert len({each.record for each in parsed.refused}) == len(parsed.refused)
    for table in parsed.tables.values():
        for column in ("loss", "step_seconds"):
            if column in table.column_names:
                assert all(value is None or math.isfinite(value) for value in table.column(column).to_pylist())


@settings(deadline=None)
@given(st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_lines_of_adapters_never_crash(text: bytes) -> None:
    line = LogLine(node=None, written_at=None, position="p", text=text.decode("utf-8", "surrogatepass"))

    parsed = tabulate_lines([line], source="s", at=AT)

    assert parsed.read == 1


KINDS = ("kernel_logs/**/*", "loghub/*", "zhejianglab_2024A100/taskinfo/*")


@pytest.mark.skipif(not DATA.is_dir(), reason="the public logs (../shared/data) are not here")
@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.name) for kind in KINDS for p in sorted(DATA.glob(kind)) if p.is_file()]
)
def test_public_file_is_read_or_refused_with_a_reason(path: Path) -> None:
    body = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    is_log = path.name.removesuffix(".gz").endswith((".log", ".jsonl"))

    if not is_log:
        with pytest.raises(WrongKind, match="expected"):
            read(body)
        return
    parsed = read(body)

    assert parsed.read == body.count(b"\n") + (not body.endswith(b"\n"))
    assert parsed.reasons == {}
    assert parsed.read == parsed.accepted + parsed.ignored


@pytest.mark.skipif(not DATA.is_dir(), reason="the public logs (../shared/data) are not here")
def test_public_training_log_gives_every_step() -> None:
    path = DATA / "zhejianglab_2024A100" / "taskinfo" / "llama2-7b-new-5b-2b1ef-master.log.gz"

    rows = read(gzip.decompress(path.read_bytes())).tables["job_logs"].to_pylist()
    steps = {
        row["step"]: row["loss"] for row in rows if row["signature"] == "train_step_hf" and row["step"] is not None
    }

    assert set(steps) == set(range(1, 2437))
    assert steps[1] == 1.1465


@pytest.mark.parametrize(
    "text",
    [
        "7|alice|gpu|RUNNING|n1\n8|bob|gpu|PENDING|\n",
        "99 (null) gpu:0\n3 gpu:2 gpu:2\n",
        "123|n|gpu|acc|4|COMPLETED|0:0\n124|n|gpu|acc|4|FAILED|1:0\n",
        "*****\nsdiag output at Fri Nov 20 10:00:00 2026 (1795168800)\n*****\nServer thread count:  3\n",
        "# PortRcvErrorDetails counters: Lid 7 port 1\nPortSelect:......................1\n",
        "+-----------------------------+\n"
        "| NVIDIA-SMI 550.54.15  Driver Version: 550.54.15  |\n+-----------------------------+\n",
        "CA    12  1 0xb83fd20300da1138 4x HDR - SW     3  7 0xb83fd20300aa0001 ( 'gpu-20 mlx5_3' - 'leaf 1' )\n"
        "SW     3  7 0xb83fd20300aa0001 4x HDR - CA    12  1 0xb83fd20300da1138 ( 'leaf 1' - 'gpu-20 mlx5_3' )\n",
    ],
    ids=["squeue", "gres", "sacct", "sdiag", "perfquery", "nvidia-smi", "ibnetdiscover"],
)
def test_what_tools_print_is_no_log(text: str) -> None:
    with pytest.raises(WrongKind, match="expected a log in plain text"):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "+------+\n| NVIDIA-SMI 550 |\n+------+\nstarting\nepoch 1 loss 2.0\nepoch 2 loss 1.9\n",
        "JobId=5 JobName=x\n   UserId=u(1)\nstarting\nepoch 1 loss 2.0\n",
        "hello\nworld\n",
        "1 2\n3 4\n",
        "+--------------------------+\n| name | value | rank | ms |\n+--------------------------+\n",
        "==========================\nallreduce | 3.2\n==========================\n",
    ],
)
def test_a_job_that_prints_such_rows_among_others_writes_a_log(text: str) -> None:
    assert read(text).accepted == len(text.splitlines())


def test_the_level_stands_behind_the_name_of_the_logger_in_older_torch() -> None:
    row = row_of("[2026-11-20 05:18:55,123] torch.distributed.elastic.agent.server.api: [WARNING] Received 15 signal")

    assert (row["level"], row["time"]) == ("warning", utc(2026, 11, 20, 5, 18, 55, 123_000))


def test_the_fabric_manager_names_the_number_of_an_error() -> None:
    said = "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci 00000000:86:00.0"

    row = row_of(f"[Nov 20 2026 05:18:55] [ERROR] [tid 9] {said}", "kernel_events")

    assert (row["code"], row["pci_address"]) == (20034, "0000:86:00")


@pytest.mark.parametrize(
    ("text", "job", "node"),
    [
        ("[2026-11-20T05:18:55.123] [1234.batch] error: *** JOB 1234 CANCELLED ***", "1234", None),
        ("slurmstepd-n3: error: Detected 1 oom_kill event in StepId=77.extern.", "77", "n3"),
        ("slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2026-11-20T05:18:55 ***", "9", None),
        ("error: *** JOBS ARE CHEAP ***", None, None),
    ],
)
def test_a_line_of_a_step_names_its_job_and_level(text: str, job: str | None, node: str | None) -> None:
    row = row_of(text)

    assert (row["job"], row["node"], row["level"]) == (job, node, "error")
