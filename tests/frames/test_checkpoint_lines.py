"""catalogue/checkpoint_lines.csv: every line means what its row says, and a save that has started is not complete."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.sources import LogLine
from ops_pipelines.observe.logs.matching import (
    CheckpointLine,
    LineKind,
    LineRule,
    kind_of,
    read_checkpoint_lines,
    read_line_rules,
    stepping_jobs,
)
from ops_pipelines.observe.logs.tables import Writer, tabulate_lines

AT = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)


def line(text: str, *, job: str | None = "42", at: datetime | None = AT, position: str = "p1") -> LogLine:
    return LogLine(node="gpu001", written_at=at, position=position, text=text, job=job)


def rows_of(*lines: LogLine) -> pa.Table:
    return tabulate_lines(lines, source="job_logs", at=AT, writer=Writer.JOB).tables["job_logs"]


def told(*lines: LogLine) -> tuple[CheckpointLine, ...]:
    return read_checkpoint_lines(rows_of(*lines), lines=lines)


@pytest.mark.parametrize("rule", read_line_rules(), ids=lambda rule: rule.id)
def test_the_example_of_each_rule_means_what_its_row_says(rule: LineRule) -> None:
    assert kind_of(rule.example) is rule.kind
    assert rule.pattern.search(rule.example) is not None
    assert rule.holds in rule.example
    assert rule.source
    assert [each.kind for each in told(line(rule.example))] == [rule.kind]


def test_each_rule_has_a_name_of_its_own() -> None:
    names = [rule.id for rule in read_line_rules()]

    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        pytest.param("saving checkpoint at iteration   33241 to /gpfs/tr1-13B/checkpoints", None, id="Megatron begins"),
        pytest.param(
            "  successfully saved checkpoint at iteration   33241 to /gpfs/tr1-13B", LineKind.SAVED, id="Megatron ends"
        ),
        pytest.param(
            "Successfully saved checkpoint from iteration      49 to /ckpt/last.ckpt", LineKind.SAVED, id="NeMo ends"
        ),
        pytest.param("time (ms) | save-checkpoint: 57514.53", None, id="Megatron's timer"),
        pytest.param(
            "[NeMo I 2026-02-17 17:58:41] Scheduled async checkpoint save for /ckpt/step=24.ckpt",
            LineKind.SCHEDULED,
            id="NeMo begins beside the training",
        ),
        pytest.param(
            "[titan] 2026-05-18 16:07:39,051 - root - INFO - Saving the checkpoint.", None, id="torchtitan begins"
        ),
        pytest.param(
            "[2024-10-22 20:11:28,103] [INFO] [Torch] Checkpoint global_step500 is about to be saved!",
            None,
            id="DeepSpeed begins",
        ),
        pytest.param(
            "[INFO] [Rank 0] Saving model checkpoint: /c/global_step33241/mp_rank_00_model_states.pt",
            None,
            id="DeepSpeed begins a file",
        ),
        pytest.param(
            "# Model weights saved in out/checkpoint-1835/pytorch_model.bin", None, id="weights without the optimizer"
        ),
        pytest.param("Started an asynchronous checkpoint save for step 100", None, id="MaxText begins"),
        pytest.param("[process=0] [async] Started save checkpoint @ /dev/shm/checkpoints/19.", None, id="orbax begins"),
        pytest.param("Loading from the last saved checkpoint to continue", None, id="a checkpoint of before"),
        pytest.param("  --load LOAD   specify saved checkpoint to evaluate", None, id="a usage text"),
        pytest.param("WARNING: no checkpoint saved to /runs yet", None, id="none was saved"),
        pytest.param("RuntimeError: checkpoint not saved to /runs", None, id="it failed"),
        pytest.param(
            "Failed: checkpoint saved to /runs is corrupt", LineKind.SAVED, id="what begins a message is believed"
        ),
        pytest.param("[fsm_v1] saved checkpoint to runs/a.pt", LineKind.SAVED, id="a plain script"),
        pytest.param("", None, id="an empty line"),
    ],
)
def test_lines_of_real_programs_are_told_apart(text: str, kind: LineKind | None) -> None:
    assert kind_of(text) is kind


def test_a_line_is_a_jobs_only_where_its_source_says_so() -> None:
    words = "slurmstepd: error: *** JOB 7 ON gpu001 *** Saved checkpoint to /a"

    assert told(line("Saved checkpoint to /a", job=None), line(words, job=None, position="p2")) == ()
    assert [each.job for each in told(line(words, job="42"))] == [JobId("42")]


def test_a_line_of_json_is_its_files_not_that_of_the_job_it_names() -> None:
    text = '{"message": "Saved checkpoint to /a", "job": "7", "time": "2026-11-21T06:59:00Z"}'

    assert told(line(text, at=None)) == (
        CheckpointLine(job=JobId("42"), at=datetime(2026, 11, 21, 6, 59, tzinfo=UTC), kind=LineKind.SAVED),
    )
    assert told(line(text, job=None)) == ()


def test_a_step_shows_that_the_training_goes_on_and_a_bar_does_not() -> None:
    rows = rows_of(
        line(" iteration    12695/  115311 | consumed samples:  1 | lm loss: 2.1", job="1", position="a"),
        line("Loading shards:  66%|######    | 2/3 [00:10<00:05,  5.1s/it]", job="2", position="b"),
        line("it is well", job="3", position="c"),
    )

    assert stepping_jobs(rows, [JobId("1"), JobId("2"), JobId("3")]) == {JobId("1")}
    assert stepping_jobs(rows, [JobId("2")]) == frozenset()
    assert stepping_jobs(rows, []) == frozenset()
