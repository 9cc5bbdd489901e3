"""The verbs: no action without a target, and one key for one intention."""

from datetime import timedelta
from operator import attrgetter

import pytest

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, JOB_VERBS, MESSAGES, NODE_VERBS, Action, Verb, witness_limit
from ops_pipelines.core.policy import Policy
from tests.domain.builders import GPU, NODE, OTHER_GPU, OTHER_NODE, action, after, attempt


@pytest.mark.parametrize("verb", sorted(NODE_VERBS, key=attrgetter("value")))
def test_a_node_verb_without_a_node_must_not_exist(verb: Verb) -> None:
    with pytest.raises(ValueError, match="needs a node"):
        action(verb, gpu=GPU)


@pytest.mark.parametrize("verb", sorted(JOB_VERBS, key=attrgetter("value")))
def test_a_job_verb_without_an_attempt_must_not_exist(verb: Verb) -> None:
    with pytest.raises(ValueError, match="needs a job attempt"):
        action(verb, on=NODE)


def test_a_reset_without_a_gpu_must_not_exist() -> None:
    with pytest.raises(ValueError, match="needs a GPU"):
        action(Verb.RESET_GPU, on=NODE)


def test_an_exclusion_without_a_node_must_not_exist() -> None:
    with pytest.raises(ValueError, match="needs the node"):
        action(Verb.EXCLUDE, of=attempt())


def test_every_verb_has_one_kind_of_target() -> None:
    assert NODE_VERBS.isdisjoint(JOB_VERBS)
    assert {*NODE_VERBS, *JOB_VERBS, Verb.PAGE_HUMAN} == set(Verb)
    assert MESSAGES.isdisjoint(DESTRUCTIVE_VERBS)


RESET = action(Verb.RESET_GPU, on=NODE, gpu=GPU)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(action(Verb.RESET_GPU, on=OTHER_NODE, gpu=GPU), id="another node"),
        pytest.param(action(Verb.RESET_GPU, on=NODE, gpu=OTHER_GPU), id="another GPU"),
        pytest.param(action(Verb.RESET_GPU, on=NODE, gpu=GPU, incident="INC-0002"), id="another cause"),
        pytest.param(action(Verb.RESET_GPU, on=NODE, gpu=GPU, try_number=2), id="another try"),
        pytest.param(action(Verb.REBOOT, on=NODE, gpu=GPU), id="another verb"),
    ],
)
def test_another_intention_has_another_key(other: Action) -> None:
    assert other.key != RESET.key


def test_another_attempt_of_the_job_has_another_key() -> None:
    first = action(Verb.HOLD, of=attempt("42"))
    second = action(Verb.HOLD, of=attempt("42", started_at=after(1)))

    assert first.key != second.key


def test_rewording_is_not_another_action() -> None:
    assert action(Verb.DRAIN, on=NODE, text="one").key == action(Verb.DRAIN, on=NODE, text="two").key


@pytest.mark.parametrize(
    ("what", "target"),
    [
        (action(Verb.DRAIN, on=NODE), "gpu001"),
        (RESET, "gpu001 GPU 0000:1b:00"),
        (action(Verb.HOLD, of=attempt("42")), "job 42"),
        (action(Verb.EXCLUDE, of=attempt("42"), on=NODE), "job 42 off gpu001"),
        (action(Verb.PAGE_HUMAN), "people"),
    ],
)
def test_the_target_reads_as_a_person_says_it(what: Action, target: str) -> None:
    assert what.target == target


@pytest.mark.parametrize("verb", list(Verb))
def test_every_verb_has_a_time_limit_for_its_witness(verb: Verb) -> None:
    policy = Policy()
    durations = policy.durations
    slow = {
        Verb.INSTALL: policy.rollouts.install_limit,
        Verb.RELOAD_DRIVER: durations.reset_limit,
        Verb.FENCE: durations.fence_limit,
        Verb.POWER_OFF: durations.fence_limit,
        Verb.RESET_GPU: durations.reset_limit,
        Verb.REBOOT: durations.reboot_limit,
        Verb.POWER_ON: durations.reboot_limit,
        Verb.REIMAGE: durations.reimage_limit,
        Verb.CHECK: durations.check_limit,
    }

    assert witness_limit(verb, policy) == slow.get(verb, durations.command_limit)
    assert witness_limit(verb, policy) > timedelta(0)
