"""Releases: what is refused and in which words, which changes are installed together, and what activates them."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.release import (
    Activation,
    Artifact,
    Claims,
    Component,
    Means,
    Release,
    Reversibility,
    activation_of,
)
from tests.domain.lifecycle_fleet import change, one_way, release

IMAGE = Artifact(name="image", sha256="a" * 64, location="/srv/image.fwpkg")


@pytest.mark.parametrize("sha256", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n"])
def test_an_artifact_is_known_by_a_whole_sha256(sha256: str) -> None:
    with pytest.raises(PolicyError, match="expected 64 digits"):
        replace(IMAGE, sha256=sha256)


def test_an_artifact_lies_somewhere() -> None:
    with pytest.raises(PolicyError, match="has no location"):
        replace(IMAGE, location="")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"version": ""}, "version is ''"),
        ({"version": "2; reboot"}, "version is"),
        ({"version": "-2"}, "version is"),
        ({"version": "2" * 65}, "version is"),
        ({"starts_from": "1 or so"}, "starts_from is"),
        ({"install": ()}, "empty never means whatever is newest"),
        ({"means": Means.ANSIBLE, "install": ()}, "empty never means whatever is newest"),
        ({"means": Means.REDFISH}, "name it under artifact"),
        ({"rollback": ()}, "rollback is empty"),
        ({"reversibility": Reversibility.WITH_CONDITIONS}, "needs the conditions in words"),
        ({"reversibility": Reversibility.NO, "bundle": "all"}, "alone in its wave"),
    ],
)
def test_a_change_that_nobody_could_carry_out_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        change(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"version": "2" * 64},
        {"version": "580.95.05-0ubuntu1~24.04+b1:1_2"},
        {"means": Means.REDFISH, "artifact": IMAGE, "install": (), "rollback": ()},
        {"reversibility": Reversibility.NO, "rollback": ()},
        {"reversibility": Reversibility.WITH_CONDITIONS, "conditions": "once"},
    ],
)
def test_a_change_with_all_that_its_means_needs_is_taken(values: dict[str, Any]) -> None:
    assert change(**values).component is Component.DRIVER


@pytest.mark.parametrize(
    ("values", "is_taken"),
    [
        ({"event_rate_ratio": 1.99}, False),
        ({"event_rate_ratio": 2.0}, True),
        ({"slowdown_ratio": 0.0049}, False),
        ({"slowdown_ratio": 0.005}, True),
        ({"slowdown_ratio": 0.5}, True),
        ({"slowdown_ratio": 0.51}, False),
        ({"slowest_failure": timedelta(0)}, False),
        ({"slowest_failure": timedelta(seconds=1)}, True),
        ({"slowest_failure": timedelta(days=7)}, True),
        ({"slowest_failure": timedelta(days=7, seconds=1)}, False),
    ],
)
def test_claims_stay_within_what_can_be_looked_for(values: dict[str, Any], is_taken: bool) -> None:
    if is_taken:
        assert Claims(**values) is not None
        return
    with pytest.raises(PolicyError, match=r"claims\."):
        Claims(**values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "Driver"}, "the name of a release"),
        ({"name": "-driver"}, "the name of a release"),
        ({"name": "driver."}, "the name of a release"),
        ({"name": "../driver"}, "the name of a release"),
        ({"name": "d" * 65}, "the name of a release"),
        ({"models": frozenset()}, "empty never means all"),
        ({"changes": ()}, "nothing to roll out"),
        ({"changes": (change(), change(version="3"))}, "lists driver twice"),
    ],
)
def test_a_release_without_a_name_or_without_aim_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        Release(**{"name": "driver-2", "about": "", "models": frozenset({"big"}), "changes": (change(),)} | values)


@pytest.mark.parametrize("name", ["d", "d" * 64, "driver-580.95_r2"])
def test_a_release_is_named_like_its_file(name: str) -> None:
    assert release(name=name).name == name


def test_a_release_is_one_way_if_any_part_of_it_is() -> None:
    assert not release(change()).is_one_way
    assert release(change(), one_way(Component.CPLD)).is_one_way


def test_a_release_knows_the_version_of_what_it_changes_alone() -> None:
    assert release(change(version="7")).version_of(Component.DRIVER) == "7"
    assert release(change()).version_of(Component.BIOS) is None


def test_a_bundle_is_one_step_and_what_stands_alone_is_another() -> None:
    parts = (
        change(Component.DRIVER, bundle="gpu"),
        change(Component.KERNEL),
        change(Component.FABRIC_MANAGER, bundle="gpu"),
    )

    steps = release(*parts).steps

    assert steps == ((parts[0], parts[2]), (parts[1],))


def test_no_name_of_a_bundle_draws_a_change_in_that_stands_alone() -> None:
    parts = (change(Component.DRIVER, bundle="#1"), one_way(Component.CPLD))

    assert release(*parts).steps == ((parts[0],), (parts[1],))


@pytest.mark.parametrize(("weaker", "stronger"), list(pairwise(Activation)))
def test_a_step_is_activated_by_the_strongest_that_any_of_it_needs(weaker: Activation, stronger: Activation) -> None:
    step = (change(activation=stronger), change(Component.KERNEL, activation=weaker))

    assert activation_of(step) is stronger
    assert activation_of(step[1:]) is weaker


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(Component), st.sampled_from(["", "a", "b"])),
        min_size=1,
        unique_by=lambda part: part[0],
    )
)
def test_every_change_stands_in_one_step_in_its_order(parts: list[tuple[Component, str]]) -> None:
    found = release(*(change(component, bundle=bundle) for component, bundle in parts))

    assert sorted((each.component.value for step in found.steps for each in step), key=str) == sorted(
        component.value for component, _ in parts
    )
    for step in found.steps:
        places = [found.changes.index(each) for each in step]
        assert places == sorted(places)
        assert len(step) == 1 or len({each.bundle for each in step} - {""}) == 1
    firsts = [found.changes.index(step[0]) for step in found.steps]
    assert firsts == sorted(firsts)
