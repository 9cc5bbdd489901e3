"""The gate: what must hold of any evidence, whatever it is."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.rollouts.gate.evidence import ControlShift, EventKind, LevelKind, VerdictKind
from ops_pipelines.rollouts.gate.judge_wave import judge_wave
from tests.domain.lifecycle_evidence import (
    DECIDING,
    FIRST,
    LATER,
    LIMITS,
    cause,
    evidence,
    failures,
    names,
    steps,
    tries,
)

GOOD, STOP, ASK = VerdictKind.GOOD, VerdictKind.STOP, VerdictKind.ASK


def kind_of(looking=DECIDING, **evidence_in):
    return judge_wave(evidence(**evidence_in), looking).kind


count = st.integers(0, 40)
node_days = st.floats(0.0, 500.0)
hours = st.floats(0.0, 400.0)
looking = st.sampled_from([DECIDING, FIRST, LATER])


@settings(max_examples=60, deadline=None)
@given(count, st.integers(0, 20), node_days, st.integers(0, 200), hours, looking)
def test_more_failures_never_turn_a_stop_into_anything_else(seen, more, exposure, control, at, how):
    fewer = failures(seen, exposure, control_count=control)
    after = replace(fewer, treated_count=seen + more)

    if kind_of(how, hours=at, counts=[fewer]) is STOP:
        assert kind_of(how, hours=at, counts=[after]) is STOP
    if kind_of(how, hours=at, counts=[after]) is GOOD:
        assert kind_of(how, hours=at, counts=[fewer]) is not STOP


@settings(max_examples=40, deadline=None)
@given(st.floats(-0.1, 0.3), st.floats(0.0, 0.3), hours, looking)
def test_slower_steps_never_turn_a_stop_into_anything_else(slow, more, at, how):
    if kind_of(how, hours=at, levels=steps(slow, node_count=6)) is STOP:
        assert kind_of(how, hours=at, levels=steps(slow + more, node_count=6)) is STOP


@settings(max_examples=40, deadline=None)
@given(st.floats(-0.3, 0.5), st.floats(-0.1, 0.1), hours, looking, st.integers(0, 1_000))
def test_what_moves_all_nodes_alike_changes_nothing(common, slow, at, how, seed):
    levels = steps(slow, node_count=5, rng=random.Random(seed))
    moved = [replace(each, after=tuple(value * (1 + common) for value in each.after)) for each in levels]
    calm, stormy = (ControlShift(kind=LevelKind.STEP_TIME, shift_ratio=each, node_count=200) for each in (0.0, common))

    alone = judge_wave(evidence(at, levels=levels, shifts=[calm]), how).tests[-1]
    with_all = judge_wave(evidence(at, levels=moved, shifts=[stormy]), how).tests[-1]

    assert with_all.evidence_ratio == pytest.approx(alone.evidence_ratio, rel=1e-6, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0.0, 0.08), hours, looking)
def test_the_order_of_the_evidence_does_not_matter(rng, slow, at, how):
    tried = [replace(each, model="ab"[place % 2]) for place, each in enumerate(tries(2, 20, signature="testing: r1"))]
    counts = [failures(3, 30.0, kind=kind) for kind in EventKind]
    levels = list(steps(slow, node_count=20, rng=random.Random(7)))
    causes = [replace(cause(number, 50.0), cause=f"cause {number}") for number in range(2, 5)]
    soaks = dict.fromkeys(names(20), timedelta(hours=at))
    first = evidence(at, tried=tried, counts=counts, levels=levels, causes=causes, soaks=soaks)

    for each in (tried, counts, levels, causes):
        rng.shuffle(each)
    shuffled = list(soaks.items())
    rng.shuffle(shuffled)
    second = evidence(at, tried=tried, counts=counts, levels=levels, causes=causes, soaks=dict(shuffled))

    one, other = judge_wave(first, how), judge_wave(second, how)
    assert one.kind is other.kind
    assert sorted((line.name, line.said, line.evidence_ratio) for line in one.tests) == sorted(
        (line.name, line.said, line.evidence_ratio) for line in other.tests
    )


@settings(max_examples=60, deadline=None)
@given(count, st.integers(0, 6), node_days, st.floats(-0.1, 0.3), hours, looking, st.booleans())
def test_a_verdict_agrees_with_its_lines(seen, failed, exposure, slow, at, how, is_updated):
    verdict = judge_wave(
        evidence(at, tried=tries(failed, 8), counts=[failures(seen, exposure)], levels=steps(slow, node_count=3)),
        replace(how, is_updated=is_updated),
    )

    states = {line.state for line in verdict.tests}
    assert (verdict.kind is STOP) == (STOP in states)
    assert verdict.kind is not GOOD or (states == {GOOD} and is_updated)
    assert verdict.kind is not ASK or timedelta(hours=at) >= LIMITS.soak_limit
    assert verdict.reason
