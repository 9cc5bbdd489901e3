"""A process that has stopped between its before-entry and its command, while others of the same lease continue."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.plan import Order
from ops_pipelines.people import orders
from ops_pipelines.remediate.carry_out import carry_out_together
from ops_pipelines.remediate.guardrails.facts import drain_reason
from ops_pipelines.remediate.perform import Progress, Stage, perform
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.small_cluster import GPU1

INCIDENT = IncidentId("INC-0001")
DRAIN = Action(verb=Verb.DRAIN, incident=INCIDENT, node=GPU1, text=drain_reason(INCIDENT, "a test"))


class Interrupted:
    """A ledger after whose first before-entry something happens, before its caller continues."""

    def __init__(self, ledger: object, meanwhile: Callable[[], None]) -> None:
        self._ledger, self._meanwhile = ledger, meanwhile

    def __getattr__(self, name: str) -> Any:
        call = cast("Callable[..., object]", getattr(self._ledger, name))
        if name not in ("begin", "begin_all"):
            return call

        def begin(*args: object, **options: object) -> object:
            answer = call(*args, **options)
            meanwhile, self._meanwhile = self._meanwhile, lambda: None
            meanwhile()
            return answer

        return begin


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, node_count=5)
    autopilot.let_pass(5)
    return autopilot


def act(autopilot: SmallAutopilot, meanwhile: Callable[[], None], *, together: bool) -> Progress:
    ledger = cast("Any", Interrupted(autopilot.cluster.ledger, meanwhile))
    cluster: Cluster = replace(autopilot.cluster, ledger=ledger)
    if together:
        return carry_out_together([Order(action=DRAIN)], cluster, lease=autopilot.lease)[DRAIN.key]
    return perform(Order(action=DRAIN), cluster, lease=autopilot.lease)


def pause(autopilot: SmallAutopilot) -> None:
    orders.pause(autopilot.cluster, actor="day-shift", reason="moving racks")


@pytest.mark.parametrize("together", [False, True])
def test_what_another_process_of_the_lease_has_ended_is_not_sent_again(
    autopilot: SmallAutopilot, together: bool
) -> None:
    def go_on() -> None:
        while perform(Order(action=DRAIN), autopilot.cluster, lease=autopilot.lease).stage is not Stage.DONE:
            autopilot.let_pass(0.5)
        autopilot.let_pass(3)

    progress = act(autopilot, go_on, together=together)

    assert progress.stage is Stage.WAITING
    assert len(autopilot.commands()) == 1


@pytest.mark.parametrize("together", [False, True])
def test_what_another_process_of_the_lease_has_begun_again_is_left_to_it(
    autopilot: SmallAutopilot, together: bool
) -> None:
    def begin_again() -> None:
        autopilot.let_pass(3)
        perform(Order(action=DRAIN), autopilot.cluster, lease=autopilot.lease)

    progress = act(autopilot, begin_again, together=together)

    assert "another process continued" in progress.reason
    assert len(autopilot.commands()) == 1


@pytest.mark.parametrize("together", [False, True])
def test_pause_holds_for_what_was_begun_before_it_and_not_sent(autopilot: SmallAutopilot, together: bool) -> None:
    def stand_still_and_pause() -> None:
        autopilot.let_pass(3)
        pause(autopilot)

    progress = act(autopilot, stand_still_and_pause, together=together)

    assert progress.stage is Stage.WAITING
    assert "paused" in progress.reason
    assert autopilot.commands() == []
    assert autopilot.cluster.ledger.withheld(DRAIN.key) == {0}


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 1.0, 1.5, 14.0])
def test_verdict_that_is_given_again_counts_no_act_as_a_second_one_of_itself(
    autopilot: SmallAutopilot, seconds: float, together: bool
) -> None:
    autopilot.use_policy(replace(autopilot.cluster.rules.policy, drain_budget=_one_at_a_time(autopilot)))

    act(autopilot, lambda: autopilot.let_pass(seconds), together=together)

    assert len(autopilot.commands()) == 1


@pytest.mark.parametrize(("age", "stage"), [(30, Stage.UNDER_WAY), (31, Stage.WAITING)])
def test_act_that_rests_on_an_old_look_is_not_begun(autopilot: SmallAutopilot, age: int, stage: Stage) -> None:
    looked_at = autopilot.clock.now() - timedelta(seconds=age)

    progress = perform(Order(action=DRAIN), autopilot.cluster, lease=autopilot.lease, looked_at=looked_at)

    assert progress.stage is stage
    assert len(autopilot.cluster.ledger.records(INCIDENT)) == (stage is Stage.UNDER_WAY)


def _one_at_a_time(autopilot: SmallAutopilot) -> Any:
    budget = autopilot.cluster.rules.policy.drain_budget
    return replace(budget, max_out_count=1, max_out_per_rack_count=1, max_new_per_hour_count=1)
