"""Users write comments: whatever makes no sense says nothing, and nothing that they write raises."""

from datetime import UTC, datetime

import pytest

from ops_pipelines.domain.observation import Workload
from ops_pipelines.resources.job_comment import JobComment, read_job_comment

NOW = datetime(2026, 11, 21, 7, 42, tzinfo=UTC)
SEVEN = datetime(2026, 11, 21, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        pytest.param("", JobComment(), id="empty"),
        pytest.param("please be gentle", JobComment(), id="prose"),
        pytest.param("workload=training", JobComment(workload=Workload.TRAINING), id="words"),
        pytest.param("team=a workload=Inference x=y=z", JobComment(workload=Workload.INFERENCE), id="among others"),
        pytest.param("workload=mining", JobComment(), id="no such workload"),
        pytest.param("ckpt=/a/b", JobComment(checkpoint_path="/a/b"), id="path"),
        pytest.param("ckpt=a/b", JobComment(), id="relative path"),
        pytest.param('{"workload": "batch"}', JobComment(workload=Workload.BATCH), id="JSON"),
        pytest.param('{"workload": ["batch"]}', JobComment(), id="wrong type"),
        pytest.param('{"workload": "batch"', JobComment(), id="cut off"),
        pytest.param('["workload"]', JobComment(), id="a list"),
        pytest.param('{"a":' * 800, JobComment(), id="deep"),
        pytest.param('{"checkpointed_at": "2026-11-21T07:00:00Z"}', JobComment(checkpointed_at=SEVEN), id="UTC"),
        pytest.param('{"checkpointed_at": "2026-11-21T09:00:00+02:00"}', JobComment(checkpointed_at=SEVEN), id="zone"),
        pytest.param('{"checkpointed_at": 1795244400}', JobComment(checkpointed_at=SEVEN), id="epoch"),
        pytest.param('{"checkpointed_at": "2026-11-21T07:00:00"}', JobComment(), id="local time"),
        pytest.param('{"checkpointed_at": "2026-11-21T07:42:01Z"}', JobComment(), id="future"),
        pytest.param('{"checkpointed_at": NaN}', JobComment(), id="no number"),
        pytest.param('{"checkpointed_at": 1e300}', JobComment(), id="beyond all years"),
        pytest.param('{"checkpointed_at": true}', JobComment(), id="truth"),
        pytest.param('{"checkpointed_at": 0}', JobComment(), id="never"),
        pytest.param("workload=training " + "x" * 5000, JobComment(), id="too long to be read"),
        pytest.param('{"ckpt": "/a\\u0000b"}', JobComment(), id="path with a NUL"),
    ],
)
def test_comment_says_what_makes_sense(comment: str, said: JobComment) -> None:
    assert read_job_comment(comment, now=NOW) == said
