"""What was learned of jobs is read back whole, or not at all with the reason; a damaged file stops no decision."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.plan import RestartCosts
from ops_pipelines.core.sources import CheckpointSeen, JobFactsError, JobFactsReading
from ops_pipelines.resources.state_files import CHECKPOINTS_FILE, COSTS_FILE, JobFactsFile
from tests.domain.builders import ago

SEEN = {
    JobId("42"): CheckpointSeen(times=(ago(1200), ago(600)), saving_since=ago(10)),
    JobId("43_7"): CheckpointSeen(staged_at=ago(5)),
}
COSTS = RestartCosts(restart_seconds=412.5, queue_seconds=30.0, no_room_queue_seconds=7_200.0, measured_count=17)


def test_what_was_kept_is_read_by_another_process(tmp_path: Path) -> None:
    writer = JobFactsFile(tmp_path)
    writer.keep_checkpoints(SEEN)
    writer.keep_costs(COSTS)

    assert JobFactsFile(tmp_path).read() == JobFactsReading(costs=COSTS, checkpoints=SEEN)
    assert sorted(path.name for path in tmp_path.iterdir()) == [CHECKPOINTS_FILE, COSTS_FILE]


def test_nothing_was_learned_before_anything_was_kept(tmp_path: Path) -> None:
    assert JobFactsFile(tmp_path).read() == JobFactsReading()


def test_a_reader_sees_what_is_kept_later(tmp_path: Path) -> None:
    reader, writer = JobFactsFile(tmp_path), JobFactsFile(tmp_path)
    writer.keep_checkpoints(SEEN)
    before = reader.read().checkpoints
    writer.keep_checkpoints({JobId("42"): SEEN[JobId("42")]})

    assert (set(before), set(reader.read().checkpoints)) == ({"42", "43_7"}, {"42"})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param('{"version":1,"checkpoints":{"42":{"times":["2026-', id="cut off"),
        pytest.param("\x00\xff", id="no text"),
        pytest.param('{"version":2,"checkpoints":{}}', id="another version"),
        pytest.param('{"version":1,"checkpoints":{},"more":1}', id="an unknown field"),
        pytest.param('{"version":1,"checkpoints":{"42;rm":{}}}', id="no job id"),
        pytest.param(
            '{"version":1,"checkpoints":{"42":{"times":["2026-11-21T07:00:00"]}}}', id="a time without a zone"
        ),
        pytest.param(
            '{"version":1,"checkpoints":{"42":{"times":["2026-11-21T07:00:00Z","2026-11-21T06:00:00Z"]}}}',
            id="times out of order",
        ),
        pytest.param('{"version":1,"checkpoints":{"42":{"saving_since":"2026-11-21T07:00:00"}}}', id="a naive begin"),
    ],
)
def test_damaged_checkpoints_are_not_used_and_the_reason_is_told(tmp_path: Path, text: str) -> None:
    facts = JobFactsFile(tmp_path)
    facts.keep_costs(COSTS)
    (tmp_path / CHECKPOINTS_FILE).write_bytes(text.encode("latin-1"))

    reading, again = facts.read(), facts.read()

    assert (reading.checkpoints, reading.costs) == ({}, COSTS)
    assert len(reading.problems) == 1
    assert "job_checkpoints.json is damaged" in reading.problems[0]
    assert again == reading


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("restart_seconds", -0.1),
        ("queue_seconds", 604_801),
        ("no_room_queue_seconds", "Infinity"),
        ("restart_seconds", "12"),
        ("measured_count", -1),
    ],
)
def test_costs_beyond_all_bounds_are_not_used(tmp_path: Path, field: str, value: object) -> None:
    facts = JobFactsFile(tmp_path)
    facts.keep_costs(COSTS)
    kept = json.loads((tmp_path / COSTS_FILE).read_text())
    kept["costs"][field] = value
    (tmp_path / COSTS_FILE).write_text(json.dumps(kept))

    reading = facts.read()

    assert reading.costs == RestartCosts()
    assert "restart_costs.json is damaged" in reading.problems[0]


def test_a_damaged_file_is_replaced_by_what_is_learned_next(tmp_path: Path) -> None:
    facts = JobFactsFile(tmp_path)
    (tmp_path / CHECKPOINTS_FILE).write_text("{")
    facts.read()
    facts.keep_checkpoints(SEEN)

    assert facts.read() == JobFactsReading(checkpoints=SEEN)


def test_a_directory_that_is_gone_is_told_as_an_error_of_keeping(tmp_path: Path) -> None:
    facts = JobFactsFile(tmp_path / "gone")

    with pytest.raises(JobFactsError, match=r"job_checkpoints\.json cannot be written"):
        facts.keep_checkpoints(SEEN)
    assert facts.read() == JobFactsReading()


def test_the_median_gap_is_the_interval() -> None:
    seen = CheckpointSeen(times=(ago(9000), ago(1800), ago(1200), ago(600)))

    assert seen.every == timedelta(seconds=600)
    assert seen.checkpointed_at == ago(600)
    assert CheckpointSeen(times=(ago(600),)).every is None
    assert CheckpointSeen().checkpointed_at is None
