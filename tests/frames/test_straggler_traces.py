"""Operator traces: a worker that is slower than its stage is named, an uneven split is nobody's fault."""

from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.observe.detectors.stragglers import RankTimes, TraceVerdict, judge_ranks, read_rank_times

STEPS, STAGES, REPLICAS = 20, 4, 4


def seconds(*, stages: int = STAGES, replicas: int = REPLICAS, seed: int = 0) -> np.ndarray:
    """Return (steps, replicas, stages): half a second, give or take half a percent."""
    return 0.5 * (1 + 0.005 * np.random.default_rng(seed).standard_normal((STEPS, replicas, stages)))


def judged(values: np.ndarray) -> TraceVerdict:
    return judge_ranks(times(values))


def times(values: np.ndarray) -> RankTimes:
    steps, replicas, stages = values.shape
    return RankTimes(
        steps=tuple(range(steps)),
        ranks=tuple(range(replicas * stages)),
        stages=tuple(range(stages)) * replicas,
        seconds=values.reshape(steps, -1),
    )


def rank(replica: int, stage: int) -> int:
    return replica * STAGES + stage


def trace(values: np.ndarray) -> pa.Table:
    """Return a trace of two micro-batches a step; forward takes a third, and anyone who is fast waits in a receive."""
    rows = [
        (replica * values.shape[2] + stage, stage, step, optype, share * values[step, replica, stage])
        for step, replica, stage in np.ndindex(values.shape)
        for optype, share in (("forward-compute", 1 / 3), ("backward-compute", 2 / 3), ("forward-recv", 5.0))
        for _ in range(2)
    ]
    names = ("rank", "stage", "step", "optype", "duration")
    table = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
    return table.set_column(3, "optype", table["optype"].dictionary_encode())


def test_even_work_names_nobody() -> None:
    verdict = judged(seconds())

    assert (verdict.slow_ranks, verdict.uneven_stages, verdict.undecided_stages) == ((), (), ())
    assert verdict.explanation == "no rank and no stage is apart in 20 steps"


def test_a_slowed_worker_is_named_with_its_stage_and_how_much() -> None:
    values = seconds()
    values[:, 2, 1] *= 1.5

    (slow,) = judged(values).slow_ranks

    assert (slow.rank, slow.stage, slow.steps_ratio) == (rank(2, 1), 1, 1.0)
    assert slow.excess_ratio == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("excess", "named"), [(0.08, 0), (0.12, 1)])
def test_a_worker_is_named_from_a_tenth_on(excess: float, named: int) -> None:
    values = np.full((STEPS, REPLICAS, STAGES), 0.5)
    values[:, 0, 0] *= 1 + excess

    assert len(judged(values).slow_ranks) == named


@pytest.mark.parametrize(("slow_steps", "named"), [(9, 0), (10, 1), (11, 1)])
def test_only_who_is_slow_in_at_least_half_of_the_steps_is_named(slow_steps: int, named: int) -> None:
    values = np.full((STEPS, REPLICAS, STAGES), 0.5)
    values[:slow_steps, 0, 0] *= 1.5

    assert len(judged(values).slow_ranks) == named


def test_another_rank_in_each_step_is_the_data_and_nobody() -> None:
    values = seconds()
    for step in range(STEPS):
        values[step, step % REPLICAS, :] *= 1.6

    assert judged(values).slow_ranks == ()


def test_a_stage_with_more_layers_is_the_split_and_names_no_worker() -> None:
    values = seconds()
    values[:, :, 3] *= 1.6

    verdict = judged(values)

    assert verdict.slow_ranks == ()
    assert [each.stage for each in verdict.uneven_stages] == [3]
    assert verdict.uneven_stages[0].excess_ratio == pytest.approx(0.6, abs=0.03)
    assert "no worker" in verdict.explanation


def test_a_slow_worker_in_a_longer_stage_is_told_apart_from_the_split() -> None:
    values = seconds()
    values[:, :, 3] *= 1.6
    values[:, 1, 3] *= 1.4

    verdict = judged(values)

    assert [each.rank for each in verdict.slow_ranks] == [rank(1, 3)]
    assert [each.stage for each in verdict.uneven_stages] == [3]


def test_of_two_replicas_that_differ_nobody_is_named_and_the_split_is_not_blamed() -> None:
    values = seconds(replicas=2)
    values[:, 1, 2] *= 1.5

    verdict = judged(values)

    assert (verdict.slow_ranks, verdict.uneven_stages) == ((), ())
    assert [each.stage for each in verdict.undecided_stages] == [2]
    assert "too few" in verdict.explanation


def test_half_of_a_stage_against_the_other_half_is_undecided() -> None:
    values = seconds()
    values[:, :2, 0] *= 1.5

    verdict = judged(values)

    assert verdict.slow_ranks == ()
    assert [each.stage for each in verdict.undecided_stages] == [0]


def test_without_pipeline_stages_peers_still_name_the_worker() -> None:
    values = seconds(stages=1)
    values[:, 3, 0] *= 1.3

    verdict = judged(values)

    assert [each.rank for each in verdict.slow_ranks] == [3]
    assert verdict.uneven_stages == ()


def test_steps_that_were_not_traced_count_for_nobody() -> None:
    values = seconds()
    values[:, 0, 0] *= 1.5
    values[5:, 0, 0] = np.nan
    values[3, :, 2] = np.nan

    (slow,) = judged(values).slow_ranks

    assert (slow.rank, slow.steps_ratio) == (0, 1.0)


def test_a_trace_is_read_by_rank_and_step_and_waiting_is_no_work() -> None:
    values = seconds()
    values[:, 0, 3] *= 1.5

    read = read_rank_times(trace(values))

    assert (len(read.steps), len(read.ranks), set(read.stages)) == (STEPS, REPLICAS * STAGES, {0, 1, 2, 3})
    np.testing.assert_allclose(read.seconds, values.reshape(STEPS, -1))
    assert [each.rank for each in judge_ranks(read).slow_ranks] == [rank(0, 3)]


def test_a_trace_of_forward_alone_is_judged_too() -> None:
    values = seconds()
    rows = trace(values)

    read = read_rank_times(rows.filter(pc.equal(rows["optype"].cast(pa.string()), "forward-compute")))

    np.testing.assert_allclose(read.seconds, values.reshape(STEPS, -1) / 3)


def test_a_step_of_which_one_direction_is_missing_is_not_known() -> None:
    rows = trace(seconds())
    is_lost = pc.and_(
        pc.and_(pc.equal(rows["rank"], 2), pc.equal(rows["step"], 7)),
        pc.equal(rows["optype"].cast(pa.string()), "backward-compute"),
    )

    read = read_rank_times(rows.filter(pc.invert(is_lost)))

    assert np.argwhere(np.isnan(read.seconds)).tolist() == [[7, 2]]


def test_a_table_that_is_no_trace_is_refused_with_what_is_missing() -> None:
    rows = trace(seconds())
    moved = rows.set_column(1, "stage", pa.array(np.arange(rows.num_rows) % 3))

    with pytest.raises(ValueError, match="no column duration; expected rank, stage"):
        read_rank_times(rows.drop_columns(["duration"]))
    with pytest.raises(ValueError, match="no operator computes: found forward-recv"):
        read_rank_times(rows.filter(pc.equal(rows["optype"].cast(pa.string()), "forward-recv")))
    with pytest.raises(ValueError, match="one stage a rank"):
        read_rank_times(moved)


@given(
    replica=st.integers(0, 3), stage=st.integers(0, 3), excess=st.floats(0.2, 4.0), scale=st.floats(1e-3, 1e3),
    order=st.randoms(use_true_random=False),
)  # fmt: skip
def test_the_verdict_depends_neither_on_units_nor_on_the_order_of_rows(
    replica: int, stage: int, excess: float, scale: float, order: Random
) -> None:
    values = seconds()
    values[:, replica, stage] *= 1 + excess
    rows = trace(values[:4] * scale)
    places = list(range(rows.num_rows))
    order.shuffle(places)

    verdict = judge_ranks(read_rank_times(rows.take(places)))

    assert [each.rank for each in verdict.slow_ranks] == [rank(replica, stage)]
    assert verdict.uneven_stages == ()


@given(seed=st.integers(0, 10_000), split=st.lists(st.floats(1.0, 3.0), min_size=STAGES, max_size=STAGES))
def test_no_split_of_the_model_ever_names_a_worker(seed: int, split: list[float]) -> None:
    verdict = judged(seconds(seed=seed) * np.array(split))

    assert (verdict.slow_ranks, verdict.undecided_stages) == ((), ())
