"""The output files of jobs: which job wrote a line, progress bars, many files at once."""

import os
import pwd
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.observe.logs.tables import tabulate_lines
from ops_pipelines.resources.log_files import JobLogFiles, parse_pattern
from tests.ports.logs_contract import LogsContract

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)


class StoppedClock:
    def now(self) -> datetime:
        return NOW

    def wait(self, seconds: float) -> None:
        raise AssertionError("nobody waits here")


class WrittenOutput:
    """The output of one job, to which two nodes write."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "slurm-4711.out"
        self._path.touch()
        self._logs = JobLogFiles([str(directory / "slurm-%j.out")], clock=StoppedClock())
        self._count = 0

    @property
    def logs(self) -> JobLogFiles:
        return self._logs

    @property
    def node_names(self) -> tuple[NodeName, ...]:
        return NodeName("gpu001"), NodeName("gpu002")

    def write(self, node: NodeName) -> str:
        self._count += 1
        written_at = NOW + timedelta(seconds=self._count)
        text = f"message number {self._count}."
        with self._path.open("a") as stream:
            stream.write(f"[{written_at:%Y-%m-%d %H:%M:%S}] {node}:4711:4712 [0] NCCL INFO {text}\n")
        return text


class TestJobLogFiles(LogsContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> WrittenOutput:
        return WrittenOutput(tmp_path)


@pytest.mark.parametrize(
    ("pattern", "path", "job", "node"),
    [
        pytest.param("/out/slurm-%j.out", "/out/slurm-4711.out", "4711", None, id="job"),
        pytest.param("/out/slurm-%j.out", "/out/slurm-4711_3.out", "4711_3", None, id="array written as one"),
        pytest.param("/out/%A_%a.log", "/out/30_17.log", "30_17", None, id="array and index"),
        pytest.param("/data/*/logs/%x-%j.%t.out", "/data/ann/logs/llama-7b-4711.12.out", "4711", None, id="task"),
        pytest.param("/out/%j/%N.err", "/out/4711/gpu001.err", "4711", "gpu001", id="node"),
        pytest.param("/out/%5j.out", "/out/04711.out", "04711", None, id="width"),
        pytest.param("/out/%j/%j.out", "/out/7/7.out", "7", None, id="twice"),
        pytest.param("/out/100%%-%j.out", "/out/100%-7.out", "7", None, id="percent sign"),
    ],
)
def test_path_names_the_job(pattern: str, path: str, job: str, node: str | None, tmp_path: Path) -> None:
    file = Path(f"{tmp_path}{path}")
    file.parent.mkdir(parents=True)
    file.write_text("hello\n")

    (line,) = JobLogFiles([f"{tmp_path}{pattern}"], clock=StoppedClock()).read_new(None, max_lines=9).lines

    assert (line.job, line.node, line.text) == (job, node, "hello")


def test_file_that_fits_the_glob_only_keeps_its_lines_without_a_job(tmp_path: Path) -> None:
    (tmp_path / "slurm-final.out").write_text("hello\n")

    (line,) = JobLogFiles([str(tmp_path / "slurm-%j.out")], clock=StoppedClock()).read_new(None, max_lines=9).lines

    assert (line.job, line.text) == (None, "hello")


def test_hostile_name_becomes_no_job(tmp_path: Path) -> None:
    (tmp_path / "slurm-1; reboot.out").write_text("hello\n")

    (line,) = JobLogFiles([str(tmp_path / "slurm-%j.out")], clock=StoppedClock()).read_new(None, max_lines=9).lines

    assert line.job is None


def test_line_is_the_word_of_the_files_owner(tmp_path: Path) -> None:
    (tmp_path / "slurm-0042.out").write_text("hello\n")
    owner = pwd.getpwuid(os.getuid()).pw_name

    (line,) = JobLogFiles([str(tmp_path / "slurm-%j.out")], clock=StoppedClock()).read_new(None, max_lines=9).lines

    assert (line.job, line.written_by) == ("0042", owner)


def test_link_to_the_output_of_another_job_is_nobodys_word(tmp_path: Path) -> None:
    (tmp_path / "of-ann").mkdir()
    (tmp_path / "of-ann" / "slurm-43.out").write_text("Saved checkpoint to /ckpt\n")
    (tmp_path / "slurm-42.out").symlink_to(tmp_path / "of-ann" / "slurm-43.out")

    (line,) = JobLogFiles([str(tmp_path / "slurm-%j.out")], clock=StoppedClock()).read_new(None, max_lines=9).lines

    assert (line.job, line.written_by) == ("42", "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_file_of_a_user_without_a_name_is_nobodys_word(tmp_path: Path) -> None:
    (tmp_path / "slurm-42.out").write_text("hello\n")
    os.chown(tmp_path / "slurm-42.out", 3_999_999_999, -1)

    (line,) = JobLogFiles([str(tmp_path / "slurm-%j.out")], clock=StoppedClock()).read_new(None, max_lines=9).lines

    assert line.written_by == ""


@pytest.mark.parametrize("pattern", ["slurm-%j.out", "/out/slurm.out", "/out/%A.out", "/out/%j-%q.out"])
def test_pattern_that_cannot_name_a_job_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_pattern(pattern)


def test_no_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="empty never means all"):
        JobLogFiles([], clock=StoppedClock())


def test_talkative_job_does_not_silence_the_others(tmp_path: Path) -> None:
    (tmp_path / "1.out").write_text("noise\n" * 1000)
    (tmp_path / "2.out").write_text("NCCL WARN help\n")

    batch = JobLogFiles([str(tmp_path / "%j.out")], clock=StoppedClock()).read_new(None, max_lines=10)

    assert {line.job for line in batch.lines} == {"1", "2"}
    assert len(batch.lines) == 10


def test_lines_of_a_job_become_rows_of_that_job_also_where_they_quote_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "4711.out").write_text(
        "[ 12.345678] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n"
        "  1%|          | 13/2436 [09:59<30:50:27, 45.82s/it]\r  1%|1         | 14/2436 [10:45<30:48:33, 45.79s/it]\n"
    )
    batch = JobLogFiles([str(tmp_path / "%j.out")], clock=StoppedClock()).read_new(None, max_lines=9)

    parsed = tabulate_lines(batch.lines, source="job_logs", at=NOW)

    assert set(parsed.tables) == {"job_logs"}
    quoted, progress = parsed.tables["job_logs"].to_pylist()
    assert (quoted["job"], quoted["signature"]) == ("4711", "xid_gpu_off_bus")
    assert (progress["job"], progress["step"], progress["step_seconds"]) == ("4711", 14, 45.79)


def test_no_output_yet_is_no_failure_and_the_first_line_is_not_missed(tmp_path: Path) -> None:
    logs = JobLogFiles([f"{tmp_path}/slurm-%j.out"], clock=StoppedClock())

    before = logs.read_new(None, max_lines=9)
    (tmp_path / "slurm-7.out").write_text("hello\n")
    after = logs.read_new(before.cursor, max_lines=9)

    assert (before.lines, [line.text for line in after.lines]) == ((), ["hello"])
