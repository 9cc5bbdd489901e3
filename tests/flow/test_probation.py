"""A job that was moved is followed until it is seen to continue; a node on probation until that is over."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.incident import IncidentState, Recovery
from ops_pipelines.core.notes import Audience, Message
from ops_pipelines.core.observation import JobState, JobStatus
from ops_pipelines.core.policy import Durations
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.remediate.probation import follow, with_moved
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.domain.builders import NOW, action, after, ago, attempt, begun, ended, held_job, incident, job, xid
from tests.scenarios.ladder_stage import SMALL_TRAINING, WATCHFUL, Stage
from tests.scenarios.small_autopilot import MessagesInMemory

DURATIONS = Durations(progress_limit=timedelta(seconds=600))
MOVED = Recovery(attempt=attempt("42"), gpu_count=8, held_at=ago(900), checkpointed_at=ago(960))
RESUMED = replace(MOVED, resumed_at=ago(600))


def followed(recovery: Recovery, *jobs: JobStatus) -> Recovery:
    return follow(recovery, {each.job: each for each in jobs}, durations=DURATIONS, now=NOW)


def again(**changes: Any) -> JobStatus:
    """Return the job on the attempt that followed."""
    return job(**{"started_at": ago(600), "checkpointed_at": ago(960), **changes})


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        pytest.param(held_job(), {}, id="still held"),
        pytest.param(held_job(is_held=False), {}, id="in the queue"),
        pytest.param(job(state=JobState.COMPLETING), {}, id="its processes are ending"),
        pytest.param(job(state=JobState.CANCELLED, ended_at=ago(5)), {"ended_as": "cancelled"}, id="given up"),
        pytest.param(again(started_at=ago(5)), {"resumed_at": ago(5)}, id="runs again"),
        pytest.param(
            again(started_at=ago(5), checkpointed_at=ago(4)),
            {"resumed_at": ago(5), "progressed_at": ago(4)},
            id="runs again and has saved since",
        ),
    ],
)
def test_a_moved_job_is_followed_into_its_next_attempt(work: JobStatus, expected: dict[str, Any]) -> None:
    assert followed(MOVED, work) == replace(MOVED, **expected)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        pytest.param(again(checkpointed_at=ago(601)), {}, id="a checkpoint from before it began again"),
        pytest.param(again(checkpointed_at=ago(600)), {}, id="of that very moment"),
        pytest.param(again(checkpointed_at=ago(599)), {"progressed_at": ago(599)}, id="a newer one proves progress"),
        pytest.param(again(checkpointed_at=None), {}, id="none known"),
        pytest.param(
            again(state=JobState.COMPLETED, ended_at=ago(7)), {"progressed_at": ago(7)}, id="it came to its end"
        ),
        pytest.param(again(state=JobState.FAILED, ended_at=ago(7)), {"ended_as": "failed"}, id="it failed"),
    ],
)
def test_only_a_newer_checkpoint_or_its_end_proves_that_it_goes_on(work: JobStatus, expected: dict[str, Any]) -> None:
    assert followed(RESUMED, work) == replace(RESUMED, **expected)


@pytest.mark.parametrize(("seconds", "is_over"), [(599, False), (600, False), (601, True)])
def test_progress_is_waited_for_so_long(seconds: float, is_over: bool) -> None:
    found = followed(replace(MOVED, resumed_at=ago(seconds)), again(started_at=ago(seconds)))

    assert found.ended_as.startswith("no checkpoint was seen within") is is_over


def test_a_job_that_the_scheduler_forgot_is_followed_no_further() -> None:
    assert "gone from the scheduler" in followed(RESUMED).ended_as


@pytest.mark.parametrize("over", [{"progressed_at": ago(1)}, {"ended_as": "cancelled"}])
def test_what_is_known_of_a_job_is_not_looked_at_again(over: dict[str, Any]) -> None:
    known = replace(RESUMED, **over)

    assert followed(known, again(checkpointed_at=after(0))) == known


class NoWeights:
    """A scheduler that cannot make a node the last choice."""

    def __init__(self, scheduler: object) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def put_last(self, node: str) -> None:
        raise SourceRefused("weights may not be changed here")


def test_where_a_node_cannot_be_made_last_choice_it_is_watched_all_the_same(tmp_path: Path) -> None:
    stage = Stage(tmp_path, node_count=2, policy=WATCHFUL)
    stage.cluster = replace(stage.cluster, scheduler=NoWeights(stage.cluster.scheduler))  # type: ignore[arg-type]  # a fake
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=1)

    stage.run_until(IncidentState.PROBATION)
    (refused,) = stage.records_of(Verb.PUT_LAST)
    stage.let_pass(30)
    stage.run_until(IncidentState.RESOLVED)

    assert refused.outcome is not None
    assert refused.outcome.witness == "weights may not be changed here"
    assert len(stage.received(EntryKind.RESUME)) == 1
    assert stage.pages() == []


# -- what is followed -------------------------------------------------------------------------------------------------

HOLD, RELEASE = (action(verb, of=attempt("42")) for verb in (Verb.HOLD, Verb.RELEASE))
HELD = ended(HOLD, seconds_ago=900, gpu_count=8, checkpointed_at=ago(960))


@pytest.mark.parametrize(
    ("records", "is_followed"),
    [
        pytest.param([HELD], False, id="held"),
        pytest.param([HELD, begun(RELEASE)], False, id="its release is not seen yet"),
        pytest.param([HELD, ended(RELEASE)], True, id="released"),
        pytest.param([ended(RELEASE)], False, id="never held by us"),
    ],
)
@pytest.mark.parametrize("state", [IncidentState.OPEN, IncidentState.ACTING, IncidentState.ESCALATED])
def test_what_was_released_is_followed_whatever_became_of_its_plan(
    state: IncidentState, records: list[ActionRecord], is_followed: bool
) -> None:
    what = incident(xid(79), state=state)

    (*found,) = with_moved(what, records)

    assert [each.attempt for each in found] == [attempt("42")] * is_followed
    assert with_moved(replace(what, recoveries=tuple(found)), records) == tuple(found)


class OwnersCannotBeTold(MessagesInMemory):
    def send(self, message: Message) -> str:
        if message.audience is Audience.OWNER:
            raise SourceUnavailable("no channel took the message")
        return super().send(message)


def test_owner_who_cannot_be_told_that_a_job_stands_still_is_told_later(tmp_path: Path) -> None:
    durations = replace(WATCHFUL.durations, probation=timedelta(seconds=200), progress_limit=timedelta(seconds=20))
    stuck = replace(SMALL_TRAINING, checkpoint_interval_seconds=3600.0)
    stage = Stage(tmp_path, stuck, policy=replace(WATCHFUL, durations=durations))
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=1)
    stage.run_until(IncidentState.PROBATION)
    stage.cluster = replace(stage.cluster, notifier=OwnersCannotBeTold())

    stage.run_for(40)
    (while_silent,) = stage.incident().recoveries
    stage.cluster = replace(stage.cluster, notifier=stage.messages)
    stage.run_for(12)

    assert while_silent.ended_as == ""
    told = [message.body for message in stage.owners_told() if "Please look whether it makes progress" in message.body]
    assert len(told) == 1
    (recovery,) = stage.incident().recoveries
    assert recovery.ended_as.startswith("no checkpoint was seen within")
