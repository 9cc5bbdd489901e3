"""The age of a checkpoint is learned from a job's lines, joins what the scheduler says, and is never invented."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.action import Verb
from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import Checkpointing, JobState, Workload
from ops_pipelines.core.plan import RestartCosts
from ops_pipelines.core.sources import TIMES_KEPT, CheckpointSeen, JobFactsReading, LogLine
from ops_pipelines.observe.job_facts import (
    CLOCK_SKEW,
    PARTS_WITHIN,
    REMEMBERED,
    SAME_SAVE,
    learn_checkpoints,
    merge_job,
    merge_jobs,
    note_lines,
)
from ops_pipelines.observe.live_cycle import run_cycle
from ops_pipelines.observe.logs.matching import CheckpointLine, LineKind
from ops_pipelines.observe.logs.tables import Writer, tabulate_lines
from ops_pipelines.remediate.judgement import read_facts
from ops_pipelines.remediate.snapshot import take_snapshot
from ops_pipelines_lab.simulator.scenario import JobSpec
from tests.domain.builders import NOW, after, ago, job
from tests.flow.fake_job_facts import FakeJobFacts
from tests.flow.fake_store import FakeLogs, observatory_on
from tests.scenarios.small_autopilot import SmallAutopilot

JOB = JobId("42")
SECOND, YESTERDAY = timedelta(seconds=1), ago(86_400)
SAVED = "  successfully saved checkpoint at iteration   33241 to /checkpoints"
SAVING = "[INFO|trainer.py:3503] 2024-10-22 20:11:27,501 >> Saving model checkpoint to /saves/checkpoint-500"
STEP = " iteration    12695/  115311 | consumed samples:  1 | lm loss: 2.1"
TIMES = st.integers(min_value=-100_000, max_value=100_000).map(after)
SEEN = st.builds(
    CheckpointSeen,
    times=st.lists(TIMES, max_size=TIMES_KEPT).map(lambda times: tuple(sorted(set(times)))),
    saving_since=st.none() | TIMES,
    staged_at=st.none() | TIMES,
)


def line(kind: LineKind, at: datetime) -> CheckpointLine:
    return CheckpointLine(job=JOB, at=at, kind=kind)


def learn(
    facts: FakeJobFacts,
    *texts: tuple[str, datetime],
    job: str = JOB,
    now: datetime = NOW,
    started_at: datetime = YESTERDAY,
    written_by: str | None = "ann",
) -> None:
    lines = [
        LogLine(node="gpu001", written_at=at, position=f"{text[:9]}{at}", text=text, job=job, written_by=written_by)
        for text, at in texts
    ]
    parsed = tabulate_lines(lines, source="job_logs", at=now, writer=Writer.JOB)
    started = {JobId(job): started_at}
    users = {JobId("77"): ""} if job == "77" else {JobId(job): "ann"}
    learn_checkpoints(facts, parsed.tables["job_logs"], lines=lines, started=started, users=users, now=now)


# -- what the scheduler says and what lines say --


@pytest.mark.parametrize(
    ("told", "seen", "newest"),
    [
        pytest.param(ago(600), (ago(60),), ago(60), id="a line is newer than the file"),
        pytest.param(ago(60), (ago(600),), ago(60), id="the file is newer than the line"),
        pytest.param(None, (ago(60),), ago(60), id="only a line"),
        pytest.param(ago(60), (), ago(60), id="only the file"),
        pytest.param(None, (), None, id="neither"),
        pytest.param(ago(60), (after(0.000001),), ago(60), id="a line from just after now"),
        pytest.param(ago(60), (NOW,), NOW, id="a line from now"),
        pytest.param(ago(60), (ago(0.000001),), ago(0.000001), id="a line from just before now"),
        pytest.param(after(1), (ago(600),), ago(600), id="a file from the future"),
        pytest.param(after(1), (after(2),), None, id="both from the future"),
        pytest.param(None, (ago(7200),), ago(7200), id="from before the attempt, which was resumed from it"),
        pytest.param(None, (ago(600), after(5)), ago(600), id="the one before the one from the future"),
    ],
)
def test_the_newest_credible_checkpoint_counts(
    told: datetime | None, seen: tuple[datetime, ...], newest: datetime | None
) -> None:
    merged = merge_job(job(checkpointed_at=told), CheckpointSeen(times=seen), now=NOW)

    assert merged.checkpointed_at == newest
    assert merged.checkpointing is (Checkpointing.UNKNOWN if newest is None else Checkpointing.YES)


def test_the_declared_interval_goes_before_the_seen_one() -> None:
    seen = CheckpointSeen(times=(ago(1200), ago(600)))
    declared = timedelta(seconds=1800)

    assert merge_job(job(), seen, now=NOW).checkpoint_every == timedelta(seconds=600)
    assert merge_job(job(checkpoint_every=declared), seen, now=NOW).checkpoint_every == declared


def test_a_job_that_says_it_keeps_none_is_believed() -> None:
    honest = job(checkpointing=Checkpointing.NO, checkpointed_at=None)

    assert merge_job(honest, CheckpointSeen(times=(ago(60),)), now=NOW) == honest


def test_a_job_of_which_nothing_was_learned_stays_as_it_is() -> None:
    jobs = (job("1", checkpointed_at=None), job("2", checkpointing=Checkpointing.YES))

    assert merge_jobs(jobs, JobFactsReading(checkpoints={JobId("3"): CheckpointSeen(times=(NOW,))}), now=NOW) == jobs


@settings(max_examples=150, deadline=None)
@given(told=st.none() | TIMES, seen=st.none() | SEEN, declared=st.sampled_from(Checkpointing))
def test_merging_invents_no_checkpoint_and_none_in_the_future(
    told: datetime | None, seen: CheckpointSeen | None, declared: Checkpointing
) -> None:
    merged = merge_job(job(checkpointed_at=told, checkpointing=declared), seen, now=NOW)

    assert merged.checkpointed_at is None or merged.checkpointed_at <= NOW
    assert merged.checkpointed_at in {None, told, *(seen.times if seen is not None else ())}
    assert merge_job(merged, seen, now=NOW) == merged
    if told is not None and told <= NOW:
        assert merged.checkpointed_at is not None
        assert merged.checkpointed_at >= told


@settings(max_examples=150, deadline=None)
@given(
    seen=SEEN,
    kinds=st.lists(st.tuples(st.sampled_from(LineKind), TIMES), max_size=8),
    is_going_on=st.booleans(),
    started_at=st.none() | TIMES,
)
def test_more_lines_never_make_a_checkpoint_older_nor_put_one_where_no_line_was(
    seen: CheckpointSeen, kinds: list[tuple[LineKind, datetime]], is_going_on: bool, started_at: datetime | None
) -> None:
    lines = [line(kind, at) for kind, at in kinds]
    later = note_lines(seen, lines, is_going_on=is_going_on, started_at=started_at)

    assert len(later.times) <= TIMES_KEPT
    assert list(later.times) == sorted(set(later.times))
    assert set(later.times) <= {*seen.times, seen.saving_since, seen.staged_at, *(at for _, at in kinds)}
    assert seen.checkpointed_at is None or later.checkpointed_at is not None
    assert (later.checkpointed_at or NOW) >= (seen.checkpointed_at or later.checkpointed_at or NOW)


# -- what lines say --


def test_each_completed_save_is_one_more_time_and_only_the_newest_are_kept() -> None:
    times = [ago(600 * number) for number in reversed(range(TIMES_KEPT + 3))]

    seen = note_lines(CheckpointSeen(), [line(LineKind.SAVED, at) for at in times])

    assert seen.times == tuple(times[-TIMES_KEPT:])
    assert seen.every == timedelta(seconds=600)


@pytest.mark.parametrize(
    ("apart", "count"),
    [(SAME_SAVE - SECOND, 1), (SAME_SAVE, 1), (SAME_SAVE + SECOND, 2)],
    ids=["just within one save", "at its border", "just beyond"],
)
def test_ranks_that_tell_of_one_save_count_once(apart: timedelta, count: int) -> None:
    seen = note_lines(CheckpointSeen(), [line(LineKind.SAVED, NOW - apart), line(LineKind.SAVED, NOW)])

    assert len(seen.times) == count
    assert seen.checkpointed_at == NOW


def test_a_save_that_has_begun_is_no_checkpoint_until_the_training_goes_on() -> None:
    begun = note_lines(CheckpointSeen(times=(ago(900),)), [line(LineKind.SAVING, ago(60))])

    assert begun.checkpointed_at == ago(900)
    assert note_lines(begun, [], is_going_on=True) == CheckpointSeen(times=(ago(900), ago(60)))


def test_a_save_that_goes_on_beside_the_training_counts_when_its_end_is_told() -> None:
    begun = note_lines(CheckpointSeen(), [line(LineKind.SAVING, ago(60)), line(LineKind.SCHEDULED, ago(59))])

    assert note_lines(begun, [], is_going_on=True).checkpointed_at is None
    assert note_lines(begun, [line(LineKind.SAVED, ago(5))]).checkpointed_at == ago(5)


def test_a_staged_save_counts_when_the_next_one_is_told() -> None:
    first = note_lines(CheckpointSeen(), [line(LineKind.STAGED, ago(600))])
    again = note_lines(first, [line(LineKind.STAGED, ago(600) + SAME_SAVE)])
    second = note_lines(first, [line(LineKind.STAGED, ago(60))])

    assert (first.checkpointed_at, again.checkpointed_at) == (None, None)
    assert second == CheckpointSeen(times=(ago(600),), staged_at=ago(60))


@pytest.mark.parametrize(
    ("apart", "times"),
    [(PARTS_WITHIN, ()), (PARTS_WITHIN + SECOND, (NOW - PARTS_WITHIN - SECOND,))],
    ids=["a part of the same save", "another save: the first is complete"],
)
def test_the_files_of_one_save_are_one_save(apart: timedelta, times: tuple[datetime, ...]) -> None:
    seen = note_lines(CheckpointSeen(), [line(LineKind.SAVING, NOW - apart), line(LineKind.SAVING, NOW)])

    assert seen == CheckpointSeen(times=times, saving_since=NOW)


def test_the_end_of_a_save_ends_its_beginning() -> None:
    seen = note_lines(CheckpointSeen(), [line(LineKind.SAVING, ago(90)), line(LineKind.SAVED, ago(5))])

    assert seen == CheckpointSeen(times=(ago(5),))


@pytest.mark.parametrize(
    ("started_at", "times"),
    [
        pytest.param(ago(61), (ago(60),), id="it began in this attempt"),
        pytest.param(ago(60), (ago(60),), id="it began with this attempt"),
        pytest.param(ago(59), (), id="the attempt that began it is over"),
        pytest.param(None, (ago(60),), id="nobody knows when this attempt began"),
    ],
)
def test_a_save_that_was_cut_off_by_the_end_of_its_attempt_never_counts(
    started_at: datetime | None, times: tuple[datetime, ...]
) -> None:
    for kind in (LineKind.SAVING, LineKind.STAGED):
        begun = note_lines(CheckpointSeen(), [line(kind, ago(60))])

        later = note_lines(begun, [line(LineKind.STAGED, ago(5))], is_going_on=True, started_at=started_at)

        assert later.times == times


def test_a_checkpoint_that_is_loaded_ends_whatever_was_being_saved() -> None:
    begun = note_lines(CheckpointSeen(), [line(LineKind.SAVING, ago(60)), line(LineKind.RESUMED, ago(10))])

    assert note_lines(begun, [], is_going_on=True) == CheckpointSeen()


# -- kept --


def test_lines_are_kept_by_job_and_the_same_lines_change_nothing() -> None:
    facts = FakeJobFacts()
    learn(facts, (SAVED, ago(900)), (SAVED, ago(300)))
    learn(facts, (SAVED, ago(100)), job="43")
    learn(facts, (SAVED, ago(900)), (SAVED, ago(300)))

    assert facts.keep_count == 2
    assert facts.reading.checkpoints == {
        JOB: CheckpointSeen(times=(ago(900), ago(300))),
        JobId("43"): CheckpointSeen(times=(ago(100),)),
    }


def test_a_step_in_the_batch_of_the_save_proves_nothing_and_one_in_a_later_batch_does() -> None:
    facts = FakeJobFacts()
    learn(facts, (SAVING, ago(60)), (STEP, ago(59)))
    before = facts.reading.checkpoints[JOB].checkpointed_at
    learn(facts, (STEP, ago(10)), job="43")
    learn(facts, (STEP, ago(5)))

    assert before is None
    assert facts.reading.checkpoints[JOB] == CheckpointSeen(times=(ago(60),))


@pytest.mark.parametrize(
    ("ahead", "at"),
    [(CLOCK_SKEW, NOW), (CLOCK_SKEW + SECOND, None), (-SECOND, NOW - SECOND)],
    ids=["as far ahead as clocks go", "further ahead", "in the past"],
)
def test_a_line_from_the_future_is_not_believed(ahead: timedelta, at: datetime | None) -> None:
    facts = FakeJobFacts()
    learn(facts, (SAVED, NOW + ahead))

    seen = facts.reading.checkpoints.get(JOB, CheckpointSeen())
    assert seen.checkpointed_at == at


@pytest.mark.parametrize(
    ("written_by", "job", "is_believed"),
    [
        pytest.param("ann", JOB, True, id="the job's user"),
        pytest.param("root", JOB, True, id="root"),
        pytest.param(None, JOB, True, id="a collector, which labels lines itself"),
        pytest.param("mallory", JOB, False, id="another user, who named a file after the job"),
        pytest.param("", JOB, False, id="nobody that is known"),
        pytest.param("", "77", False, id="nobody that is known, for a job of nobody"),
    ],
)
def test_only_the_jobs_own_user_says_that_it_saved(written_by: str | None, job: str, is_believed: bool) -> None:
    facts = FakeJobFacts()

    learn(facts, (SAVED, ago(60)), job=job, written_by=written_by)

    assert (job in facts.reading.checkpoints) is is_believed


def test_steps_that_another_user_writes_complete_no_save() -> None:
    facts = FakeJobFacts()
    learn(facts, (SAVING, ago(60)))

    learn(facts, (STEP, ago(5)), written_by="mallory")

    assert facts.reading.checkpoints[JOB].times == ()


def test_a_job_is_forgotten_when_its_checkpoint_is_older_than_anybody_waits() -> None:
    facts = FakeJobFacts()
    learn(facts, (SAVED, NOW - REMEMBERED), job="1")
    learn(facts, (SAVED, NOW - REMEMBERED - SECOND), job="2")

    assert set(facts.reading.checkpoints) == {"1"}


def test_a_save_that_an_earlier_attempt_began_is_not_completed_by_the_steps_of_the_next() -> None:
    facts = FakeJobFacts()
    learn(facts, (SAVING, ago(600)))
    learn(facts, (STEP, ago(5)), started_at=ago(300))

    assert facts.reading.checkpoints == {}


# -- in the loop --


def test_a_snapshot_and_the_facts_of_an_act_hold_what_was_learned(tmp_path: Path) -> None:
    spec = JobSpec(name="train", user="ada", account="research", workload=Workload.TRAINING)
    autopilot = SmallAutopilot(tmp_path, spec, node_count=2)
    autopilot.let_pass(60)
    now = autopilot.clock.now()
    (number,) = (each.job for each in autopilot.cluster.scheduler.read_jobs())
    costs = RestartCosts(restart_seconds=222.0, measured_count=9)
    seen = CheckpointSeen(times=(now - timedelta(seconds=40), now - timedelta(seconds=20)))
    facts = FakeJobFacts(reading=JobFactsReading(costs=costs, checkpoints={number: seen}, problems=("it is damaged",)))
    cluster = replace(autopilot.cluster, job_facts=facts)

    observed = take_snapshot(cluster)
    facts.reading = JobFactsReading()
    kept = cluster.ledger.load_snapshot(cluster.ledger.store_snapshot(observed.snapshot))
    facts.reading = JobFactsReading(costs=costs, checkpoints={number: seen})
    judged_on = read_facts({Verb.DRAIN}, cluster)

    (running,) = observed.snapshot.jobs
    assert running.state is JobState.RUNNING
    assert (running.checkpointed_at, running.checkpoint_every) == (seen.checkpointed_at, timedelta(seconds=20))
    assert (kept.jobs, kept.costs) == (observed.snapshot.jobs, costs)
    assert judged_on.jobs[number].checkpointed_at == seen.checkpointed_at
    assert (judged_on.costs, judged_on.hazards) == (costs, cluster.rules.catalogue.hazards)
    assert "it is damaged" in observed.failures


def test_the_live_cycle_learns_from_the_lines_that_it_keeps(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=2)
    facts = FakeJobFacts()
    cluster = replace(autopilot.cluster, job_facts=facts)
    log = FakeLogs(source="job_logs")
    at = autopilot.clock.now()
    log.lines.append(LogLine(node=None, written_at=at - SECOND, position="a", text=SAVED, job="42"))
    observatory = observatory_on(tmp_path / "lake", clock=autopilot.clock, scheduler=cluster.scheduler, job_logs=(log,))

    run_cycle(observatory, cluster, at=at)

    assert facts.reading.checkpoints == {JOB: CheckpointSeen(times=(at - SECOND,))}


def test_what_cannot_be_kept_costs_the_cycle_nothing_else(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=2)
    cluster = replace(autopilot.cluster, job_facts=FakeJobFacts(is_full=True))
    log = FakeLogs(source="job_logs")
    at = autopilot.clock.now()
    log.lines.append(LogLine(node=None, written_at=at - SECOND, position="a", text=SAVED, job="42"))
    observatory = observatory_on(tmp_path / "lake", clock=autopilot.clock, scheduler=cluster.scheduler, job_logs=(log,))

    report = run_cycle(observatory, cluster, at=at)

    assert "job_checkpoints.json cannot be written: the disk is full" in report.problems
    assert report.line_count == 1
    assert cluster.ledger.cursor("lake/job_logs") == "1"
