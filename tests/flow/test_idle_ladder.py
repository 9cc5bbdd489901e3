"""Owners of idle GPUs are warned twice and asked once, operators with them at the end; nothing is ever ended."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ops_pipelines.core.notes import Audience
from ops_pipelines.core.observation import JobState, Workload
from ops_pipelines.efficiency.advice_on_holding import walk_ladder
from ops_pipelines.teams.desk import AdviceSettings, LadderSettings
from tests.flow.advice_stage import HOUR, WEEK, AdviceStage, Job

BEGAN = WEEK.start + 100 * HOUR
IDLE = Job(job="7", name="left", verdict="idle", rule="idle_nothing_runs", begins=BEGAN, hours=4)


def walk(bench: AdviceStage, *, workload: Workload = Workload.TRAINING, is_on: bool = True) -> int:
    desk = bench.desk(advice=AdviceSettings(ladder=LadderSettings(is_on=is_on)))
    job = SimpleNamespace(job="7", user="ada", state=JobState.RUNNING, started_at=BEGAN, workload=workload)
    scheduler = cast("Any", SimpleNamespace(read_jobs=lambda: (job,)))
    return walk_ladder(replace(desk, cluster=replace(desk.cluster, scheduler=scheduler)))


@pytest.fixture
def bench(tmp_path: Path) -> AdviceStage:
    made = AdviceStage(tmp_path)
    made.run(IDLE)
    return made


def hour_by_hour(bench: AdviceStage, *, workload: Workload = Workload.TRAINING) -> list[int]:
    counts = []
    for hours in (1, 1, 2, 3, 4):
        bench.clock.time = BEGAN + hours * HOUR + timedelta(minutes=12)
        counts.append(walk(bench, workload=workload))
    return counts


def test_the_steps_come_hour_by_hour_and_each_once(bench: AdviceStage) -> None:
    assert hour_by_hour(bench) == [1, 0, 1, 2, 0]

    told = [(each.note.audience, each.note.key.rpartition("/")[2]) for each in bench.ledger.recent_notes(limit=9)]
    assert sorted((audience.value, step) for audience, step in told) == [
        (Audience.ON_CALL.value, "ask_to_release"),
        (Audience.OWNER.value, "ask_to_release"),
        (Audience.OWNER.value, "first_warning"),
        (Audience.OWNER.value, "second_warning"),
    ]
    last = next(each.note for each in bench.ledger.recent_notes(limit=9) if each.note.audience is Audience.ON_CALL)
    assert "scancel 7" in last.body
    assert "Nothing is ended for you" in last.body


def test_services_are_never_warned_and_sessions_only_warned(tmp_path: Path, bench: AdviceStage) -> None:
    assert hour_by_hour(bench, workload=Workload.INFERENCE) == [0, 0, 0, 0, 0]
    assert hour_by_hour(bench, workload=Workload.INTERACTIVE) == [1, 0, 1, 0, 0]


def test_the_ladder_is_off_by_default(bench: AdviceStage) -> None:
    bench.clock.time = BEGAN + 4 * HOUR

    assert walk(bench, is_on=False) == 0


def test_an_hour_that_was_not_measured_is_not_idle(bench: AdviceStage) -> None:
    bench.clock.time = BEGAN + 5 * HOUR + timedelta(minutes=12)

    assert walk(bench) == 0
