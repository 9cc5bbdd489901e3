"""A week's advice from the lake: exactly what is wrong is reported, once, and later it is known what came of it."""

from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.notes import Audience, KeptNote
from ops_pipelines.core.periods import Week
from ops_pipelines.efficiency.advice import AdviceKind, Followed
from ops_pipelines.efficiency.kept import follow_up, keep, told_in
from ops_pipelines.efficiency.week import find_advice, send
from ops_pipelines.teams.desk import AdviceSettings, TeamsDesk
from tests.flow.advice_stage import HOUR, WEEK, AdviceStage, Job

STALLED = Job(job="1", name="train_1", verdict="input_stalled", node="gpu001")
IDLE = Job(job="2", name="forgotten", verdict="idle", rule="idle_nothing_runs", node="gpu002", user="bob", hours=30)
WELL = Job(job="3", name="good", verdict="compute_bound", node="gpu003", user="eve", account="language")
DAY = timedelta(days=1)


@pytest.fixture
def bench(tmp_path: Path) -> AdviceStage:
    made = AdviceStage(tmp_path)
    made.run(STALLED, IDLE, WELL)
    return made


def tell(desk: TeamsDesk, week: Week = WEEK) -> frozenset[str]:
    report = find_advice(week, desk)
    told = send(report, desk)
    keep(report, desk, told=told)
    return frozenset(told)


def notes(bench: AdviceStage) -> tuple[KeptNote, ...]:
    return bench.ledger.recent_notes(limit=50)


def test_exactly_the_stalled_job_and_the_idle_allocation_are_found(bench: AdviceStage) -> None:
    report = find_advice(WEEK, bench.desk())

    assert [(each.subject, each.kind) for each in report.chosen] == [
        ("ada/train_#", AdviceKind.INPUT_STALL),
        ("bob/forgotten", AdviceKind.IDLE_ALLOCATION),
    ]
    stalled, idle = report.chosen
    # 60 hours on 8 GPUs less the first, and 60 % of that without a kernel
    assert stalled.gain.expected_gpu_hours == pytest.approx(59 * 8 * 0.6)
    assert idle.gain.expected_gpu_hours == pytest.approx(29 * 8)
    assert report.withheld == ()


def test_what_is_not_known_is_said(bench: AdviceStage) -> None:
    unknown = " | ".join(find_advice(WEEK, bench.desk()).unknown)

    assert "60 of 168 hours (gpu_efficiency)" in unknown
    assert "names no advice.storage_listing" in unknown
    assert "no `prices`" in unknown
    assert "no lines of jobs are at hand" in unknown


def test_each_team_gets_one_message_a_week_however_often_it_is_looked_at(bench: AdviceStage) -> None:
    assert tell(bench.desk()) == {"vision"}
    assert tell(bench.desk()) == {"vision"}

    (kept,) = notes(bench)
    assert (kept.note.audience, kept.note.recipient) == (Audience.TEAM, "vision")
    assert kept.note.body.count("seen:") == 2
    assert "1. ada/train_#" in kept.note.body


def test_a_message_waits_for_the_end_of_the_night(bench: AdviceStage) -> None:
    bench.clock.time = WEEK.end + 5 * HOUR

    tell(bench.desk())

    assert notes(bench)[0].note.ready_at == WEEK.end + 7 * HOUR


@pytest.mark.parametrize(
    ("late", "is_told"), [(7 * DAY - HOUR, True), (7 * DAY, False), (7 * DAY + HOUR, False), (400 * DAY, False)]
)
def test_a_week_that_is_looked_at_late_tells_nobody(bench: AdviceStage, late: timedelta, is_told: bool) -> None:
    bench.clock.time = WEEK.end + late

    assert bool(tell(bench.desk())) is is_told


def test_a_week_that_is_not_over_is_looked_at_and_told_to_nobody(bench: AdviceStage) -> None:
    bench.clock.time = WEEK.end - 2 * DAY
    report = find_advice(WEEK, bench.desk())

    assert report.chosen
    assert send(report, bench.desk()) == frozenset()
    assert any("is not over" in each for each in report.unknown)


def test_a_week_that_has_not_begun_is_refused(bench: AdviceStage) -> None:
    bench.clock.time = WEEK.start

    with pytest.raises(ValueError, match="no hour that is over"):
        find_advice(WEEK, bench.desk())


def test_with_messages_turned_off_advice_is_kept_and_nobody_is_told(bench: AdviceStage) -> None:
    desk = bench.desk(advice=AdviceSettings(tells_teams=False))

    assert tell(desk) == frozenset()
    assert notes(bench) == ()
    assert told_in(WEEK, desk) == ()
    assert bench.lake.read_hour("efficiency_advice", WEEK.end).num_rows == 2


def test_the_same_is_not_said_in_the_next_week(bench: AdviceStage) -> None:
    tell(bench.desk())
    following = Week(start=WEEK.end)
    bench.run(Job(job="9", name="train_9", verdict="input_stalled", begins=following.start))
    bench.clock.time = following.end + 7 * HOUR

    report = find_advice(following, bench.desk())

    assert report.chosen == ()
    assert [each.why for each in report.withheld] == ["it was sent in the week that ended on 2026-11-09"]


def test_two_weeks_later_it_is_known_what_came_of_it(bench: AdviceStage) -> None:
    tell(bench.desk())
    bench.run(Job(job="9", name="train_9", verdict="compute_bound", begins=WEEK.end, hours=100))
    bench.clock.time = WEEK.end + 14 * DAY

    stalled, idle = sorted(follow_up(WEEK, bench.desk()), key=lambda each: each.subject)

    assert (stalled.subject, stalled.outcome.followed) == ("ada/train_#", Followed.FOLLOWED)
    assert stalled.outcome.saved_gpu_hours == pytest.approx(800 * (59 * 8 * 0.6) / 480)
    assert (idle.subject, idle.outcome.followed) == ("bob/forgotten", Followed.NOT_RUN_AGAIN)
    rows = bench.lake.read_hour("efficiency_advice", WEEK.end).to_pylist()
    assert {row["subject"]: row["followed"] for row in rows} == {
        "ada/train_#": "followed",
        "bob/forgotten": "not_run_again",
    }


def test_who_goes_on_as_before_has_not_followed(bench: AdviceStage) -> None:
    tell(bench.desk())
    bench.run(Job(job="9", name="train_9", verdict="input_stalled", begins=WEEK.end, hours=100))
    bench.clock.time = WEEK.end + 14 * DAY

    found = {each.subject: each.outcome for each in follow_up(WEEK, bench.desk())}

    assert found["ada/train_#"].followed is Followed.NOT_FOLLOWED
    assert found["ada/train_#"].saved_gpu_hours == 0.0


def test_what_ran_unmeasured_is_not_known_to_be_followed(bench: AdviceStage) -> None:
    tell(bench.desk())
    bench.run(Job(job="9", name="train_9", verdict="unknown", begins=WEEK.end, hours=100))
    bench.clock.time = WEEK.end + 14 * DAY

    found = {each.subject: each.outcome.followed for each in follow_up(WEEK, bench.desk())}

    assert found["ada/train_#"] is Followed.UNKNOWN


def test_nothing_is_followed_up_before_two_weeks_are_over(bench: AdviceStage) -> None:
    bench.clock.time = WEEK.end + 14 * DAY - HOUR

    with pytest.raises(ValueError, match="ask again then"):
        follow_up(WEEK, bench.desk())


def test_what_was_told_stays_when_the_week_is_looked_at_again(bench: AdviceStage) -> None:
    tell(bench.desk())
    bench.clock.time = WEEK.end + 14 * DAY
    follow_up(WEEK, bench.desk())

    tell(bench.desk(advice=AdviceSettings(least_gain_gpu_hours=4_000.0)))

    rows = bench.lake.read_hour("efficiency_advice", WEEK.end).to_pylist()
    assert {row["followed"] for row in rows} == {"not_run_again"}
    assert all(row["told_at"] is not None for row in rows)


def test_jobs_without_an_account_are_found_and_told_to_nobody(tmp_path: Path) -> None:
    bench = AdviceStage(tmp_path)
    bench.run(Job(job="1", name="train", verdict="input_stalled", account=""))

    report = find_advice(WEEK, bench.desk())

    assert len(report.chosen) == 1
    assert send(report, bench.desk()) == frozenset()


HOSTILE = "x](http://evil) <script>alert(1)</script> | `#` @everyone\n\x1b[2J\u202e" + "y" * 10_000


def test_a_hostile_job_name_is_one_short_printable_line_of_a_message(tmp_path: Path) -> None:
    bench = AdviceStage(tmp_path)
    bench.run(Job(job="1", name=HOSTILE, verdict="input_stalled", user="e\nve", account="vi\nsion"))

    tell(bench.desk())

    (kept,) = notes(bench)
    assert all(line.isprintable() for line in kept.note.body.split("\n"))
    assert kept.note.title.isprintable()
    assert kept.note.line.isprintable()
    assert len(kept.note.body) < 2_000


def listing(*rows: str) -> bytes:
    return "\n".join(["path,team,bytes,last_read_at,last_written_at", *rows]).encode()


def test_unused_data_is_told_from_the_listing_and_followed_once_it_is_gone(tmp_path: Path) -> None:
    bench = AdviceStage(tmp_path)
    old = listing(f"/data/old/a.tar,vision,{20 * 2**40},2025-01-01T00:00:00Z,2025-01-01T00:00:00Z", "x,,1,,")
    desk = bench.desk(read_listing=lambda: old)

    report = find_advice(WEEK, desk)
    keep(report, desk, told=send(report, desk))
    bench.clock.time = WEEK.end + 14 * DAY
    kept = follow_up(WEEK, desk)
    gone = follow_up(WEEK, bench.desk(read_listing=listing))
    dark = follow_up(WEEK, bench.desk())

    assert [(each.kind, each.subject) for each in report.chosen] == [(AdviceKind.UNUSED_DATASETS, "/data/old")]
    assert any("1 of 2 files of the listing are refused" in each for each in report.unknown)
    assert [each.outcome.followed for each in (*kept, *gone, *dark)] == [
        Followed.NOT_FOLLOWED,
        Followed.FOLLOWED,
        Followed.UNKNOWN,
    ]


def test_a_listing_that_cannot_be_read_is_said_and_stops_nothing(bench: AdviceStage) -> None:
    def missing() -> bytes:
        raise FileNotFoundError("no such file")

    report = find_advice(WEEK, bench.desk(read_listing=missing))

    assert len(report.chosen) == 2
    assert any("the listing cannot be read: no such file" in each for each in report.unknown)
