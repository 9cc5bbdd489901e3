"""Less is done than policy.yaml allows while a reason for it lasts, and never more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.policy import ActionClass, Consent, Fallback, Mode, Policy, under

RISING = [Mode.OBSERVE, Mode.APPROVE, Mode.AUTO]
modes = st.sampled_from(Mode)


def to(mode: Mode) -> Fallback:
    return Fallback(mode=mode, reason="a reason")


@pytest.mark.parametrize(
    ("stated", "fallbacks", "left"),
    [
        (Mode.AUTO, [], Mode.AUTO),
        (Mode.AUTO, [Mode.APPROVE], Mode.APPROVE),
        (Mode.AUTO, [Mode.APPROVE, Mode.OBSERVE], Mode.OBSERVE),
        (Mode.APPROVE, [Mode.AUTO], Mode.APPROVE),
        (Mode.OBSERVE, [Mode.APPROVE], Mode.OBSERVE),
    ],
)
def test_the_least_of_what_is_left_holds_and_never_more_than_the_file_says(
    stated: Mode, fallbacks: list[Mode], left: Mode
) -> None:
    assert under([to(each) for each in fallbacks], Policy(mode=stated)).mode is left


def test_class_that_needs_no_yes_needs_one_under_the_fallback_and_what_is_forbidden_stays_so() -> None:
    policy = Policy(mode=Mode.AUTO, consents={ActionClass.POWER: Consent.AUTO, ActionClass.RETURN_NODE: Consent.FORBID})

    lowered = under([to(Mode.APPROVE)], policy)

    assert lowered.consent_to(ActionClass.POWER) is Consent.APPROVE
    assert lowered.consent_to(ActionClass.RETURN_NODE) is Consent.FORBID
    assert under([], policy) == policy


@given(stated=modes, fallbacks=st.lists(modes, max_size=4))
def test_nothing_but_mode_and_consents_changes(stated: Mode, fallbacks: list[Mode]) -> None:
    lowered = under([to(each) for each in fallbacks], Policy(mode=stated))

    assert RISING.index(lowered.mode) == min(RISING.index(each) for each in [stated, *fallbacks])
    assert (lowered.drain_budget, lowered.untouchable_nodes) == (Policy().drain_budget, frozenset())
