"""Wide jobs stay off canaries that soak, and are let on again; what the owner of a job excluded stays excluded."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import JobState, JobStatus
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.rollout import Direction, NodeStage, Rollout, RolloutNode
from ops_pipelines.rollouts.course import GangCap, gang_cap
from tests.domain.builders import job
from tests.ports.rollout_samples import node, rollout

ONE, TWO, THREE = (NodeName(f"gpu00{number}") for number in (1, 2, 3))
GPUS = 8
LIMITS = RolloutLimits(gang_cap_node_count=2)
WIDE = 2 * GPUS + 1
STAGES = sorted(NodeStage, key=lambda each: each.value)


def waiting(name: str, *, gpus: int = WIDE, excluded: tuple[str, ...] = ()) -> JobStatus:
    return job(
        name,
        nodes=(),
        state=JobState.PENDING,
        started_at=None,
        gpu_count=gpus,
        excluded_nodes=frozenset(map(NodeName, excluded)),
    )


def canary(name: NodeName = ONE, stage: NodeStage = NodeStage.SOAKING) -> RolloutNode:
    return node(1, name, stage=stage)


def kept_off(**jobs: tuple[NodeName, ...]) -> Rollout:
    return replace(rollout(1), kept_off={JobId(name): nodes for name, nodes in jobs.items()})


def cap(present: Rollout, nodes: list[RolloutNode], *jobs: JobStatus) -> GangCap:
    return gang_cap(present, nodes, jobs, limits=LIMITS, gpus_per_node=GPUS)


@pytest.mark.parametrize(("gpus", "is_kept_off"), [(1, False), (16, False), (17, True), (512, True)])
def test_a_job_on_more_nodes_than_the_cap_is_kept_off(gpus: int, is_kept_off: bool) -> None:
    found = cap(rollout(1), [canary()], waiting("42", gpus=gpus))

    assert found.keep_off == ({"42": (ONE,)} if is_kept_off else {})
    assert found.kept_off == found.keep_off
    assert found.let_on == {}


@pytest.mark.parametrize("stage", STAGES)
def test_canaries_are_spared_from_their_return_to_the_end_of_their_soak(stage: NodeStage) -> None:
    found = cap(rollout(1), [canary(stage=stage)], waiting("42"))

    assert bool(found.keep_off) is (stage in (NodeStage.RETURNING, NodeStage.SOAKING))


def test_neither_later_waves_nor_nodes_on_their_way_back_are_spared() -> None:
    later = node(1, TWO, stage=NodeStage.SOAKING, wave=2)
    back = replace(canary(stage=NodeStage.RETURNING), direction=Direction.BACK)

    assert cap(rollout(1), [later, back], waiting("42")).keep_off == {}


def test_a_running_job_is_let_be_and_forgotten() -> None:
    started = job("42", nodes=(ONE,), gpu_count=WIDE, excluded_nodes=frozenset({ONE}))

    assert cap(kept_off(**{"42": (ONE,)}), [canary()], started) == GangCap(keep_off={}, let_on={}, kept_off={})


def test_a_node_that_the_owner_excluded_is_neither_asked_for_nor_given_back() -> None:
    own = waiting("42", excluded=(ONE,))

    soaks = cap(rollout(1), [canary()], own)
    is_over = cap(rollout(1), [canary(stage=NodeStage.UPDATED)], own)

    assert soaks == is_over == GangCap(keep_off={}, let_on={}, kept_off={})


def test_what_we_excluded_is_given_back_when_it_soaks_no_more_and_the_rest_is_kept() -> None:
    ours = waiting("42", excluded=(ONE, TWO, THREE))

    found = cap(kept_off(**{"42": (ONE, TWO)}), [canary(ONE, NodeStage.UPDATED), canary(TWO)], ours)

    assert found == GangCap(keep_off={}, let_on={"42": (ONE,)}, kept_off={"42": (TWO,)})


def test_what_somebody_let_on_meanwhile_is_not_given_back_twice() -> None:
    assert cap(kept_off(**{"42": (ONE,)}), [], waiting("42")) == GangCap(keep_off={}, let_on={}, kept_off={})


def test_a_job_that_was_made_narrow_stays_off_until_the_soak_is_over() -> None:
    narrow = waiting("42", gpus=8, excluded=(ONE,))

    assert cap(kept_off(**{"42": (ONE,)}), [canary()], narrow).kept_off == {"42": (ONE,)}


@pytest.mark.parametrize(("count", "asked"), [(49, 49), (50, 50), (51, 50)])
def test_only_the_first_of_very_many_wide_jobs_are_asked_for(count: int, asked: int) -> None:
    jobs = [waiting(str(number)) for number in range(count)]

    assert len(cap(rollout(1), [canary()], *jobs).keep_off) == asked


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([8, 16, 17, 64]),
            st.sets(st.sampled_from([ONE, TWO, THREE])),
            st.sets(st.sampled_from([ONE, TWO, THREE])),
        ),
        max_size=5,
    ),
    st.lists(st.sampled_from(STAGES), min_size=3, max_size=3),
)
def test_once_it_is_done_nothing_is_left_to_ask_for_and_nobody_is_kept_off_without_a_trace(jobs, stages) -> None:
    given_jobs = [waiting(str(number), gpus=gpus, excluded=tuple(off)) for number, (gpus, off, _) in enumerate(jobs)]
    before = kept_off(**{str(number): tuple(sorted(ours)) for number, (_, _, ours) in enumerate(jobs) if ours})
    nodes = [canary(name, stage) for name, stage in zip((ONE, TWO, THREE), stages, strict=True)]

    found = cap(before, nodes, *given_jobs)

    done = [
        replace(
            each,
            excluded_nodes=(each.excluded_nodes | set(found.keep_off.get(each.job, ())))
            - set(found.let_on.get(each.job, ())),
        )
        for each in given_jobs
    ]
    assert cap(replace(before, kept_off=found.kept_off), nodes, *done) == GangCap(
        keep_off={}, let_on={}, kept_off=found.kept_off
    )
    for each in given_jobs:
        ours = set(before.kept_off.get(each.job, ()))
        assert set(found.let_on.get(each.job, ())) <= ours & each.excluded_nodes
        assert set(found.keep_off.get(each.job, ())) <= set(found.kept_off.get(each.job, ())) - each.excluded_nodes
