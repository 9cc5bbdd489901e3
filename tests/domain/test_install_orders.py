"""What is ordered of a release on one node, what bears witness of it, and whose a drain is after a reboot."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb, Witness
from ops_pipelines.core.identity import ActionKey, IncidentId, NodeName, RolloutId, cause_of
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Change, Component, Release, ReleaseName, Reversibility
from ops_pipelines.core.rollout import (
    Direction,
    InstallReport,
    InstallState,
    RolloutNode,
    UnorderableError,
    order_for,
    step_of,
)
from ops_pipelines.remediate.guardrails.facts import drain_owner, drain_reason
from ops_pipelines.remediate.verbs import Scene
from ops_pipelines.remediate.verbs import testify as hear
from ops_pipelines.rollouts.engine import NodeFacts, Way
from tests.domain.builders import NODE, NOW, ago, begun, ended, node

FORWARD, BACK = Direction.FORWARD, Direction.BACK
CAUSE = cause_of(RolloutId("ROLL-0001"))


def change(component: Component, *, bundle: str = "", **changes: object) -> Change:
    told = {"install": ("install",), "rollback": ("install",), "version": f"new-{component.value}", **changes}
    return Change(component=component, bundle=bundle, **told)  # type: ignore[arg-type]  # keywords of one call


DRIVER = change(Component.DRIVER, bundle="gpu")
FABRIC = change(Component.FABRIC_MANAGER, bundle="gpu")
KERNEL = change(Component.KERNEL)
CPLD = change(Component.CPLD, reversibility=Reversibility.NO, rollback=())
RELEASE = Release(name=ReleaseName("r1"), about="", models=frozenset({"h100"}), changes=(DRIVER, FABRIC, KERNEL, CPLD))
VISITED = RolloutNode(
    rollout=RolloutId("ROLL-0001"),
    node=NodeName(NODE),
    wave=1,
    since=NOW,
    versions_before={each.component: f"old-{each.component.value}" for each in RELEASE.changes},
)


# -- orders --


def test_step_forward_is_the_releases_own_order_and_versions() -> None:
    order = order_for(RELEASE, VISITED, step=0, direction=FORWARD)

    assert order.changes == (DRIVER, FABRIC)
    assert order.versions == {Component.DRIVER: "new-driver", Component.FABRIC_MANAGER: "new-fabric_manager"}


def test_way_back_takes_steps_and_changes_from_the_end_to_what_ran_before() -> None:
    order = order_for(RELEASE, VISITED, step=2, direction=BACK)

    assert (order.direction, order.changes) == (BACK, (FABRIC, DRIVER))
    assert order.versions == {Component.DRIVER: "old-driver", Component.FABRIC_MANAGER: "old-fabric_manager"}


def test_which_way_the_node_itself_goes_by_now_changes_no_order() -> None:
    turned = replace(VISITED, direction=BACK)

    assert order_for(RELEASE, turned, step=1, direction=FORWARD) == order_for(
        RELEASE, VISITED, step=1, direction=FORWARD
    )


@pytest.mark.parametrize(("step", "is_one"), [(-1, False), (0, True), (2, True), (3, False)])
def test_step_that_the_release_has_not_is_no_order(step: int, is_one: bool) -> None:
    if is_one:
        assert order_for(RELEASE, VISITED, step=step, direction=FORWARD).changes
        return
    with pytest.raises(UnorderableError):
        order_for(RELEASE, VISITED, step=step, direction=FORWARD)


def test_what_cannot_go_back_is_not_ordered_back() -> None:
    with pytest.raises(UnorderableError, match="cpld"):
        order_for(RELEASE, VISITED, step=0, direction=BACK)


def test_half_of_a_bundle_is_not_ordered_back() -> None:
    half = replace(VISITED, versions_before={Component.DRIVER: "old-driver"})

    with pytest.raises(UnorderableError, match="fabric_manager"):
        order_for(RELEASE, half, step=2, direction=BACK)


@given(step=st.integers(min_value=0, max_value=2), direction=st.sampled_from(Direction))
def test_step_of_an_act_is_read_as_the_engine_writes_it(step: int, direction: Direction) -> None:
    facts = NodeFacts(now=NOW, jobs=(), outcomes={})
    visited = replace(VISITED, step=step, direction=direction)
    way = Way(node=visited, release=RELEASE, opened_at=NOW, facts=facts, limits=RolloutLimits(), is_canary=False)

    assert step_of(way.act(Verb.INSTALL).part) == (step, direction)


@given(text=st.text(max_size=12))
def test_any_other_words_are_refused_and_nothing_else_is_raised(text: str) -> None:
    try:
        step, direction = step_of(text)
    except UnorderableError:
        return
    assert text.split()[-1] == direction.value
    assert int(text.split()[-2]) == step
    assert int(text.split()[0]) == step


# -- witnesses --


def install_act(verb: Verb = Verb.INSTALL) -> ActionRecord:
    return begun(Action(verb=verb, incident=CAUSE, node=NodeName(NODE), part="0 forward"))


def report(state: InstallState, said: str = "") -> InstallReport:
    return InstallReport(key=ActionKey("k"), node=NodeName(NODE), state=state, said=said)


@pytest.mark.parametrize(
    ("scene", "testimony"),
    [
        (Scene(install=report(InstallState.INSTALLED, "ok")), (Witness.DONE, "installed: ok")),
        (Scene(install=report(InstallState.FAILED, "E: x")), (Witness.FAILED, "the installation failed: E: x")),
        (Scene(install=report(InstallState.RUNNING)), (Witness.UNKNOWN, "the installation runs")),
        (Scene(install=report(InstallState.WAITING, "ok")), (Witness.PARTLY_DONE, "a part is installed: ok")),
        (Scene(is_install_unknown=True), (Witness.NOT_DONE, "no installation was started under our key")),
        (Scene(), (Witness.UNKNOWN, "who installs does not answer")),
    ],
)
def test_installation_is_witnessed_by_its_report_alone(scene: Scene, testimony: tuple[Witness, str]) -> None:
    found = hear(install_act(), scene)

    assert (found.witness, found.seen) == testimony


@pytest.mark.parametrize(
    ("running", "witness"),
    [
        ({Component.DRIVER: "2", Component.FABRIC_MANAGER: "2", Component.BIOS: "9"}, Witness.DONE),
        ({Component.DRIVER: "2", Component.FABRIC_MANAGER: "1"}, Witness.NOT_DONE),
        ({Component.DRIVER: "2"}, Witness.UNKNOWN),
        ({}, Witness.UNKNOWN),
        (None, Witness.UNKNOWN),
    ],
)
def test_new_start_of_a_driver_is_witnessed_by_every_version_of_its_step(
    running: dict[Component, str] | None, witness: Witness
) -> None:
    wanted = {Component.DRIVER: "2", Component.FABRIC_MANAGER: "2"}

    found = hear(install_act(Verb.RELOAD_DRIVER), Scene(versions=running, wanted_versions=wanted))

    assert found.witness is witness


def test_new_start_of_a_driver_without_a_known_order_is_unknown() -> None:
    found = hear(install_act(Verb.RELOAD_DRIVER), Scene(versions={Component.DRIVER: "2"}))

    assert found.witness is Witness.UNKNOWN


# -- whose a drain is after a reboot --

DRAIN = Action(verb=Verb.DRAIN, incident=CAUSE, node=NodeName(NODE), text=drain_reason(CAUSE, "wave 1"))
REBOOT = Action(verb=Verb.REBOOT, incident=CAUSE, node=NodeName(NODE), part="0 forward")
DRAINED = ended(DRAIN, OutcomeKind.DONE, witnessed_at=ago(600))


def owner(*records: ActionRecord, dated: datetime, reason: str = f"{DRAIN.text} : reboot issued") -> IncidentId | None:
    return drain_owner(node(is_drained=True, reason=reason, reason_set_at=dated), (DRAINED, *records))


@pytest.mark.parametrize(("seconds", "is_ours"), [(-1, False), (0, True), (1, False)])
def test_drain_that_a_reboot_of_ours_dated_anew_is_ours_by_that_date_alone(seconds: int, is_ours: bool) -> None:
    rebooted = ended(REBOOT, OutcomeKind.DONE, witnessed_at=ago(300))

    assert (owner(rebooted, dated=ago(300) + timedelta(seconds=seconds)) == CAUSE) is is_ours


def test_drain_is_ours_while_our_reboot_is_under_way() -> None:
    assert owner(begun(REBOOT), dated=ago(300)) == CAUSE
    assert owner(dated=ago(300)) is None


def test_drain_of_a_reboot_that_failed_is_still_ours() -> None:
    failed = ended(REBOOT, OutcomeKind.FAILED, witnessed_at=ago(300))

    assert owner(failed, dated=ago(300)) == CAUSE


def test_reboot_of_which_no_date_was_kept_makes_no_drain_ours() -> None:
    assert owner(ended(REBOOT, OutcomeKind.DONE), dated=ago(300)) is None


def test_reboot_under_way_makes_nobody_elses_drain_ours() -> None:
    assert owner(begun(REBOOT), dated=ago(300), reason="ada: broken fan") is None
