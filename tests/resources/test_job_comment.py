"""Users write comments: whatever makes no sense says nothing, and nothing that they write raises."""

from datetime import UTC, datetime, timedelta

import pytest

from ops_pipelines.core.observation import Checkpointing, Workload
from ops_pipelines.resources.slurm.jobs import JobComment, read_job_comment

NOW = datetime(2026, 11, 21, 7, 42, tzinfo=UTC)
SEVEN = datetime(2026, 11, 21, 7, tzinfo=UTC)
SAVED = JobComment(checkpointed_at=SEVEN, checkpointing=Checkpointing.YES)


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
        pytest.param('{"checkpointed_at": "2026-11-21T07:00:00Z"}', SAVED, id="UTC"),
        pytest.param('{"checkpointed_at": "2026-11-21T09:00:00+02:00"}', SAVED, id="zone"),
        pytest.param('{"checkpointed_at": 1795244400}', SAVED, id="epoch"),
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


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        pytest.param(
            "service=chat min_serving=3 ckpt=none ckpt_every=1800",
            JobComment(
                service="chat",
                min_serving_count=3,
                checkpointing=Checkpointing.NO,
                checkpoint_every=timedelta(minutes=30),
            ),
            id="words",
        ),
        pytest.param(
            '{"service": "chat", "min_serving": 3, "ckpt": "none", "ckpt_every": 1800}',
            JobComment(
                service="chat",
                min_serving_count=3,
                checkpointing=Checkpointing.NO,
                checkpoint_every=timedelta(minutes=30),
            ),
            id="JSON",
        ),
        pytest.param(
            "ckpt=none checkpointed_at=2026-11-21T07:00:00Z",
            SAVED,
            id="who says when it saved does save, whatever else",
        ),
        pytest.param("ckpt=None", JobComment(checkpointing=Checkpointing.NO), id="upper case"),
        pytest.param('{"ckpt": null}', JobComment(), id="null is not reported"),
        pytest.param("service=", JobComment(), id="service without a name"),
        pytest.param("service=" + "x" * 63, JobComment(service="x" * 63), id="service of 63"),
        pytest.param("service=" + "x" * 64, JobComment(), id="service of 64"),
        pytest.param("service=<script>", JobComment(), id="markup"),
        pytest.param('{"service": 7}', JobComment(), id="service is a number"),
        pytest.param("min_serving=0", JobComment(), id="none must serve"),
        pytest.param("min_serving=100000", JobComment(min_serving_count=100_000), id="most"),
        pytest.param("min_serving=100001", JobComment(), id="more than most"),
        pytest.param("min_serving=-1", JobComment(), id="below none"),
        pytest.param("min_serving=٣", JobComment(), id="digits of another script"),
        pytest.param('{"min_serving": true}', JobComment(), id="truth is no number"),
        pytest.param('{"min_serving": 2.5}', JobComment(), id="a fraction"),
        pytest.param("min_serving=" + "9" * 4000, JobComment(), id="a number without end"),
        pytest.param("ckpt_every=9", JobComment(), id="too often"),
        pytest.param("ckpt_every=10", JobComment(checkpoint_every=timedelta(seconds=10)), id="most often"),
        pytest.param("ckpt_every=604800", JobComment(checkpoint_every=timedelta(days=7)), id="most seldom"),
        pytest.param("ckpt_every=604801", JobComment(), id="too seldom"),
        pytest.param("ckpt_every=30m", JobComment(), id="with a unit"),
    ],
)
def test_comment_declares_a_service_and_how_often_work_is_saved(comment: str, said: JobComment) -> None:
    assert read_job_comment(comment, now=NOW) == said
