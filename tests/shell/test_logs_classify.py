"""`logs classify` and `logs explain`: JSON alone on standard output, one for each line; what is stated of mistakes."""

import gzip
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.core.fault import FirstAction
from ops_pipelines.terminal.edge import ExitCode

XID = "kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
LOG = f"all is well\n\n{XID}\r\n\udcff\udcfe\ncrash and burn failed"
MANY = 50
PACKED = gzip.compress(f"{XID}\n".encode() * MANY)
KEYS = ["line", "signature", "category", "component", "actions", "confidence"]


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli.app, ["logs", *arguments], input=stdin)


def told(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == ExitCode.OK, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "kern.log"
    file.write_bytes(LOG.encode("utf-8", errors="surrogateescape"))
    return file


def test_each_line_has_one_object_in_order(log: Path) -> None:
    objects = told(run("classify", str(log), "--json"))

    assert [each["line"] for each in objects] == [1, 2, 3, 4, 5]
    assert [list(each) for each in objects] == [KEYS] * 5
    assert [each["signature"] for each in objects] == [None, None, "xid_79", None, None]
    assert [each["actions"][0] for each in objects] == ["NONE", "NONE", "REBOOT_NODE", "MONITOR", "MONITOR"]
    assert {word for each in objects for word in each["actions"]} <= {action.value for action in FirstAction}


def test_standard_input_and_gzip_say_the_same_as_the_file(log: Path, tmp_path: Path) -> None:
    packed = tmp_path / "kern.log.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))

    expected = run("classify", str(log), "--json").stdout

    assert run("classify", "-", "--json", stdin=log.read_bytes()).stdout == expected
    assert run("classify", str(packed), "--json").stdout == expected


def test_labelled_table_is_read_by_its_fifth_column(tmp_path: Path) -> None:
    file = tmp_path / "lines.tsv"
    file.write_text(f"# id\tsource\tlabel\n# note\nRL1\there\tgpu_off_bus\tREBOOT_NODE\t{XID}\n")

    assert [(each["line"], each["category"]) for each in told(run("classify", str(file), "--json"))] == [
        (3, "gpu_off_bus")
    ]


def test_comment_of_a_raw_log_is_a_line(tmp_path: Path) -> None:
    file = tmp_path / "raw.log"
    file.write_text(f"# id source\n# {XID}\n")

    assert [each["line"] for each in told(run("classify", str(file), "--json"))] == [1, 2]


def test_empty_log_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.log").touch()

    assert told(run("classify", str(tmp_path / "empty.log"), "--json")) == []


def test_people_get_a_table_with_a_sum(log: Path) -> None:
    shown = run("classify", str(log)).stdout

    assert "xid_79" in shown
    assert "5 lines, 1 of them known: REBOOT_NODE 1" in shown


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"\x7fELF\x02\x01", "is a program", id="program"),
        pytest.param(b"PAR1abcd", "is Parquet", id="Parquet"),
        pytest.param(gzip.compress(b"x" * 100_000)[:40], "end-of-stream", id="cut gzip"),
        pytest.param(b"\x1f\x8b\x08garbage, and nothing but garbage", "", id="damaged gzip"),
    ],
)
def test_file_that_is_no_log_is_refused_in_words(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "odd"
    file.write_bytes(content)

    result = run("classify", str(file), "--json")

    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.startswith(f"{file}: ")
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("way", ["file", "standard input"])
@pytest.mark.parametrize(
    ("packed", "answered_count"),
    [
        pytest.param(PACKED, MANY, id="whole"),
        pytest.param(PACKED[:-1], MANY, id="without its last byte"),
        pytest.param(PACKED[:-8], MANY, id="without its check sum"),
        pytest.param(PACKED + b"junk", MANY, id="junk behind"),
        pytest.param(PACKED + b"j", MANY, id="one byte of junk behind"),
        pytest.param(PACKED + PACKED, 2 * MANY, id="two members, nothing wrong"),
        pytest.param(PACKED + PACKED[:-1], 2 * MANY, id="second member cut"),
        pytest.param(PACKED[:-8] + b"\0" * 8, MANY, id="wrong check sum"),
    ],
)
def test_what_could_be_read_of_a_damaged_gzip_is_answered_before_the_complaint(
    way: str, packed: bytes, answered_count: int, tmp_path: Path
) -> None:
    file = tmp_path / "kern.log.gz"
    file.write_bytes(packed)
    is_whole = packed in (PACKED, PACKED + PACKED)

    result = run("classify", str(file), "--json") if way == "file" else run("classify", "-", "--json", stdin=packed)

    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["line"] for each in answers] == list(range(1, answered_count + 1))
    assert {each["signature"] for each in answers} == {"xid_79"}
    assert result.exit_code == (ExitCode.OK if is_whole else ExitCode.USAGE)
    assert bool(result.stderr) is not is_whole


def test_gzip_cut_in_its_middle_answers_the_lines_before(tmp_path: Path) -> None:
    text = b"".join(b"%d %s\n" % (number * 7919 % 100_003, XID.encode()) for number in range(50_000))
    packed = gzip.compress(text)
    file = tmp_path / "kern.log.gz"
    file.write_bytes(packed[: len(packed) // 2])

    result = run("classify", str(file), "--json")
    people = run("classify", str(file))

    assert result.exit_code == people.exit_code == ExitCode.USAGE
    answered_count = len(result.stdout.splitlines())
    assert 20_000 < answered_count < 30_000
    assert f"{answered_count} lines, " in people.stdout


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_gzip_that_comes_through_a_pipe_in_small_pieces_is_known(size: int, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("wb", buffering=0) as end:
            for start in range(0, len(PACKED), size):
                end.write(PACKED[start : start + size])

    writer = threading.Thread(target=write)
    writer.start()
    answers = told(run("classify", str(pipe), "--json"))
    writer.join()

    assert [each["signature"] for each in answers] == ["xid_79"] * MANY


@pytest.mark.parametrize("text", ["", "x", "ab", "abc", "abcd"])
def test_input_shorter_than_what_tells_a_kind_is_a_log(text: str) -> None:
    assert len(told(run("classify", "-", "--json", stdin=text.encode()))) == bool(text)


def test_missing_file_and_directory_are_named(tmp_path: Path) -> None:
    missing = run("classify", str(tmp_path / "none.log"), "--json")
    directory = run("classify", str(tmp_path), "--json")

    assert (missing.exit_code, directory.exit_code) == (ExitCode.USAGE, ExitCode.USAGE)
    assert "No such file" in missing.stderr
    assert "is a directory" in directory.stderr
    assert missing.stdout == directory.stdout == ""


def test_disputed_code_is_explained_with_every_answer() -> None:
    shown = run("explain", "xid", "64").stdout

    assert "RESET_GPU" in shown
    assert "they disagree" in shown
    for source in ("NVIDIA Xid catalogue", "gpud", "awslabs health check"):
        assert source in shown


@pytest.mark.parametrize(
    ("arguments", "name", "action"),
    [
        pytest.param(["xid", "79"], "xid_79", "REBOOT_NODE", id="xid"),
        pytest.param(["XID", "79"], "xid_79", "REBOOT_NODE", id="capitals"),
        pytest.param(["xid_79"], "xid_79", "REBOOT_NODE", id="as the verdict names it"),
        pytest.param(["sxid", "20034"], "sxid_20034", "RESET_GPU", id="sxid"),
        pytest.param(["mlx5_health"], "mlx5_health", "DRAIN_INSPECT", id="signature"),
    ],
)
def test_explanation_as_json(arguments: list[str], name: str, action: str) -> None:
    (explained,) = told(run("explain", *arguments, "--json"))

    assert (explained["name"], explained["actions"][0], explained["is_destructive"]) == (name, action, True)
    assert explained["meaning"]
    assert explained["source"]


@pytest.mark.parametrize("arguments", [["xid", "9999"], ["sxid", "1"], ["no_such_signature"], ["xid"]])
def test_what_is_not_in_the_catalogue_is_said_so(arguments: list[str]) -> None:
    result = run("explain", *arguments)

    assert result.exit_code == ExitCode.REFUSED
    assert "is not in the catalogue" in result.stderr
