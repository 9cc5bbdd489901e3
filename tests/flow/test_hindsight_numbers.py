"""Numbers of reports, reviews and replays against sums made in another way: by ticks, by hand, by counting."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.entries import EntryKind
from ops_pipelines.core.identity import ActionKey, IncidentId
from ops_pipelines.core.objectives import Objective, ObjectiveKind, WorkloadClass
from ops_pipelines.core.record import Chronicle
from ops_pipelines.review.cost import RecentRemediation, cost_of, spans_out
from ops_pipelines.review.job_runs import Break, Cause, Stint
from ops_pipelines.review.replay_result import Assessment, learn
from ops_pipelines.review.week_acts import people_of, sum_work, wrong_acts
from ops_pipelines.review.weekly_review import review_week
from tests.flow.review_stage import (
    MINUTE,
    WEEK,
    LakeOfRows,
    LedgerOfValues,
    accounted,
    act,
    at,
    broken,
    checked,
    entry,
    stage,
)

HOUR = timedelta(hours=1)
TICK = timedelta(minutes=10)
"""As long as a restart that nobody saw may have taken."""
NO_SAVINGS = RecentRemediation(savings=(), uncounted_job_count=0, recoveries=(), plans=())


# -- effective training time --------------------------------------------------------------------------------------


@st.composite
def life(draw: st.DrawFn) -> tuple[list[Stint], list[Break], int, int]:
    """Draw one job of attempts in ticks with what is known of its interruptions, and the interval that is summed."""
    stints, breaks, now = [], [], draw(st.integers(0, 10))
    gpus = draw(st.integers(1, 8))
    for number in range(draw(st.integers(1, 4))):
        end = now + draw(st.integers(1, 12))
        start_at = WEEK.start + now * TICK
        stint = Stint(job="1", team="a", started_at=start_at, ended_at=WEEK.start + end * TICK, gpu_count=gpus)
        if number:
            restart = draw(st.none() | st.integers(0, 4))
            breaks[-1] = replace(breaks[-1], resumed_at=start_at, restart=None if restart is None else restart * TICK)
        saved = draw(st.none() | st.integers(now - 2, end))
        breaks.append(
            Break(
                stint=stint,
                ended_at=WEEK.start + end * TICK,
                cause=Cause.HARDWARE,
                saved_nothing=saved is None and draw(st.booleans()),
                checkpointed_at=None if saved is None else WEEK.start + saved * TICK,
            )
        )
        stints.append(stint)
        now = end + draw(st.integers(0, 5))
    since = draw(st.integers(0, 20))
    return stints, breaks, since, since + draw(st.integers(1, 60))


@given(life())
@settings(max_examples=80, deadline=None)
def test_work_sums_are_what_counting_tick_by_tick_gives(drawn: tuple[list[Stint], list[Break], int, int]) -> None:
    stints, breaks, since, until = drawn
    counts: dict[str, int] = dict.fromkeys(("productive", "lost", "restart", "queue", "unknown"), 0)
    for tick in range(since, until):
        now = WEEK.start + tick * TICK
        for place, (stint, own) in enumerate(zip(stints, breaks, strict=True)):
            before = breaks[place - 1] if place else None
            if stint.started_at <= now < own.ended_at:
                counts[_what_it_is(now, stint, own, before)] += 1
            elif own.resumed_at is not None and own.ended_at <= now < own.resumed_at:
                counts["queue"] += 1

    found = sum_work(stints, breaks, since=WEEK.start + since * TICK, until=WEEK.start + until * TICK).total

    per_tick = stints[0].gpu_count * (TICK / HOUR)
    assert {name: pytest.approx(count * per_tick) for name, count in counts.items()} == {
        name: getattr(found, name) for name in counts
    }


def _what_it_is(now: object, stint: Stint, own: Break, before: Break | None) -> str:
    """Say what one tick of an attempt was, by what is known of its end and of the interruption before it."""
    is_early = before is not None and now < stint.started_at + (TICK if before.restart is None else before.restart)  # type: ignore[operator]  # a time
    if own.saved_nothing or (own.checkpointed_at is not None and now >= own.checkpointed_at):  # type: ignore[operator]  # a time
        return "lost"
    if before is not None and before.restart is not None and is_early:
        return "restart"
    if not own.is_loss_known or is_early:
        return "unknown"
    return "productive"


# -- capacity out of service ----------------------------------------------------------------------------------------


def test_a_node_that_relapsed_was_in_service_between_and_nodes_are_out_each_from_their_own_drain() -> None:
    known = broken("INC-1", at(17, 0))
    records = (
        act(Verb.DRAIN, "INC-1", at(17, 0), at(17, 1), on="gpu001"),
        act(Verb.RESUME, "INC-1", at(17, 2), at(17, 3), on="gpu001"),
        act(Verb.DRAIN, "INC-1", at(17, 5), at(17, 6), on="gpu001"),
        act(Verb.DRAIN, "INC-1", at(17, 7), at(17, 8), on="gpu002"),
    )

    spans = [(node, begin.hour, end.hour) for node, begin, end in spans_out(known, records, now=at(17, 10))]
    cost = cost_of(known, records, (), (), NO_SAVINGS, gpus_per_node=8, now=at(17, 10))

    assert spans == [("gpu001", 1, 3), ("gpu001", 6, 10), ("gpu002", 8, 10)]
    assert cost.out_of_service == pytest.approx(8 * (2 + 4 + 2))


# -- wrong acts and lessons -----------------------------------------------------------------------------------------

DRAINED = act(Verb.DRAIN, "INC-1", at(17, 1), at(17, 1), on="gpu001")
RETURNED = act(Verb.RESUME, "INC-1", at(17, 8), at(17, 8), on="gpu001")
REBOOTED = act(Verb.REBOOT, "INC-1", at(17, 4), at(17, 4), on="gpu001")


def proof_of(hour: int, number: int) -> ActionRecord:
    test = act(Verb.CHECK, "INC-1", at(17, hour), at(17, hour), on="gpu001")
    return replace(test, action=replace(test.action, try_number=number))


FIRST, SECOND = proof_of(2, 1), proof_of(6, 2)


@pytest.mark.parametrize(
    ("records", "verdicts", "mended", "is_wrong"),
    [
        pytest.param((FIRST,), {FIRST: True}, False, True, id="well at once"),
        pytest.param((FIRST, SECOND), {FIRST: True, SECOND: False}, False, False, id="ill at the second test"),
        pytest.param((FIRST, REBOOTED, SECOND), {FIRST: True, SECOND: False}, False, True, id="ill after the repair"),
        pytest.param((REBOOTED, SECOND), {SECOND: True}, False, False, id="tested after the repair only"),
        pytest.param((SECOND,), {SECOND: True}, True, False, id="tested after hands had repaired it"),
        pytest.param((), {}, False, True, id="returned with nothing done"),
        pytest.param((), {}, True, False, id="returned after hands had repaired it"),
    ],
)
def test_a_node_was_taken_out_for_nothing_only_if_nothing_says_that_something_was_wrong(
    records: tuple[ActionRecord, ...], verdicts: Mapping[ActionRecord, bool], mended: bool, is_wrong: bool
) -> None:
    known = broken("INC-1", at(17, 0), restored=at(17, 8), mended_at=at(17, 5) if mended else None)

    found = wrong_acts(
        [known],
        {known.incident: (DRAINED, *records, RETURNED)},
        {ActionKey(each.action.key): is_well for each, is_well in verdicts.items()},
        gpus_of_node={"gpu001": 8},
        since=WEEK.start,
        until=WEEK.end,
    )

    assert bool(found) is is_wrong


def test_one_test_that_saw_the_fault_outweighs_a_later_one_that_did_not() -> None:
    known = broken("INC-1", at(17, 0), restored=at(17, 8))
    ill = (checked(FIRST.action.key, "gpu001", at(17, 2), at(17, 2)), False)
    well = (checked(SECOND.action.key, "gpu001", at(17, 6), at(17, 6)), True)

    def verdict(*tests: object) -> Assessment:
        ledger = LedgerOfValues(acts={"INC-1": (DRAINED, FIRST, SECOND, RETURNED)}, tests={"gpu001": tests})  # type: ignore[dict-item]  # tests with their verdicts
        (lesson,) = learn([known], cast("Chronicle", ledger))
        return lesson.verdict

    assert verdict(well, ill) is Assessment.REAL
    assert verdict(well) is Assessment.FALSE_ALARM


# -- people -----------------------------------------------------------------------------------------------------------


def test_a_drain_by_hand_is_one_thing_that_a_person_did() -> None:
    lines = [
        replace(entry(1, at(17, 1), EntryKind.INCIDENT, "ann"), incident=IncidentId("INC-1")),
        replace(entry(2, at(17, 1), EntryKind.ACTION_BEGUN, "ann"), incident=IncidentId("INC-1")),
        replace(entry(3, at(17, 9), EntryKind.INCIDENT, "ann"), incident=IncidentId("INC-1")),
        replace(entry(4, at(17, 1), EntryKind.INCIDENT, "bob"), incident=IncidentId("INC-1")),
    ]

    found = people_of(lines, {}, since=WEEK.start, until=WEEK.end)

    assert {each.what.split(" (")[0]: (each.count, each.who) for each in found} == {
        "acted by hand": (1, ("ann",)),
        "changed an incident": (2, ("ann", "bob")),
    }


# -- inference --------------------------------------------------------------------------------------------------------


def latency(day: int, minute: int, seconds: float | None, *, replica: str = "gpu001", job: str | None = "7") -> object:
    return {
        "node": replica, "device": "llama", "time": at(day, 5) + minute * MINUTE, "job": job, "namespace": "chat",
        "latency_p99_seconds": seconds,
    }  # fmt: skip


def test_inference_p99_is_judged_by_the_slowest_replica_of_each_minute_that_told_anything() -> None:
    rows = [latency(day, minute, 0.2) for day in (17, 18, 19) for minute in range(4)]
    rows += [
        latency(17, 0, 0.9, replica="gpu002"),  # the other replica is slow: the minute is bad
        latency(17, 1, 0.5, replica="gpu002"),  # exactly the limit: good
        latency(18, 10, None),  # reports nothing
        latency(18, 11, float("nan")),  # reports nothing
        latency(19, 20, 3.0, job=None),  # no job: it belongs to its namespace
        latency(24, 0, 9.0),  # after the week
    ]
    lake = LakeOfRows(
        application_telemetry=cast("list[Mapping[str, object]]", rows),
        job_accounting=[accounted("7", at(17, 0), at(20, 0), "COMPLETED", team="beta")],
    )
    promise = Objective(
        team="beta",
        workload=WorkloadClass.INFERENCE,
        kind=ObjectiveKind.INFERENCE_P99,
        target_ratio=0.5,
        limit=timedelta(seconds=0.5),
    )
    objectives = (promise, replace(promise, team="chat"), replace(promise, workload=WorkloadClass.TRAINING))

    found = review_week(WEEK, *stage(lake, LedgerOfValues(), now=at(23, 6), objectives=objectives))

    beta, chat, training = (budget.over_window for budget in found.budgets)
    assert (beta.good, beta.bad, beta.days) == (11, 1, 3)
    assert (chat.good, chat.bad) == (0, 1)
    assert training.total == 0
    assert found.budgets[0].spent_ratio == pytest.approx((1 / 12) / 0.5)
    assert found.budgets[0].burn_rate == pytest.approx((1 / 12) / 0.5)
    assert found.budgets[1].good_ratio is None
