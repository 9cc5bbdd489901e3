"""What the rest of a plan needs for itself, and which plans continue side by side."""

from dataclasses import replace

import pytest

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import IncidentId, NodeName, PlanId
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.run_share import Budget, Footprint, footprint_of
from tests.domain.builders import action, attempt, begun

ONE, TWO = IncidentId("INC-0001"), IncidentId("INC-0002")
N1, N2, N3 = (NodeName(f"gpu00{number}") for number in (1, 2, 3))


def plan(*actions: Action, of: IncidentId = ONE) -> IncidentPlan:
    return IncidentPlan(
        plan=PlanId(f"plan-{of}"),
        incident=of,
        response=Response.RESET_GPU,
        actions=actions,
        reason="",
        effects=(),
        rejected_alternatives=(),
    )


HOLD, DRAIN = action(Verb.HOLD, of=attempt("42"), incident=ONE), action(Verb.DRAIN, on=N1, incident=ONE)


def needs(of: IncidentId = ONE, **changes: object) -> Footprint:
    nothing = Footprint(incident=of, nodes=frozenset(), jobs=frozenset(), budgets=frozenset())
    return replace(nothing, **changes)  # type: ignore[arg-type]  # fields of Footprint


def test_plan_needs_its_nodes_its_spares_its_jobs_and_every_node_of_the_jobs_it_holds() -> None:
    reserve = replace(action(Verb.RESERVE, of=attempt("42"), incident=ONE), spares=(N3,))
    held = replace(begun(HOLD), attempt_nodes=frozenset({N1, N2}))

    found = footprint_of(plan(DRAIN, reserve, HOLD), [N1], [held])

    assert found.nodes == {N1, N2, N3}
    assert found.jobs == {"42"}


@pytest.mark.parametrize(
    ("what", "budget"), [(DRAIN, Budget.NODES_OUT), (HOLD, Budget.LOST_WORK)], ids=["drain", "hold"]
)
def test_budget_is_needed_until_the_act_that_draws_on_it_is_begun(what: Action, budget: Budget) -> None:
    assert footprint_of(plan(what), [], []).budgets == {budget}
    assert footprint_of(plan(what), [], [begun(what)]).budgets == frozenset()


def test_hold_of_what_the_fault_has_ended_costs_nobody_work() -> None:
    assert footprint_of(plan(replace(HOLD, has_ended=True)), [], []).budgets == frozenset()


def test_what_was_begun_for_another_incident_is_none_of_this_plan() -> None:
    theirs = replace(begun(replace(HOLD, incident=TWO)), attempt_nodes=frozenset({N2}))

    found = footprint_of(plan(DRAIN), [N1], [theirs])

    assert found.nodes == {N1}


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (needs(nodes=frozenset({N1, N2})), needs(TWO, nodes=frozenset({N2, N3})), "gpu002 is also INC-0002's"),
        (needs(jobs=frozenset({"42"})), needs(TWO, jobs=frozenset({"42"})), "job 42 is also INC-0002's"),
        (
            needs(budgets=frozenset({Budget.LOST_WORK})),
            needs(TWO, budgets=frozenset({Budget.LOST_WORK, Budget.NODES_OUT})),
            "GPU-hours lost by holds is also INC-0002's",
        ),
        (needs(), needs(), "both are of INC-0001"),
    ],
    ids=["node", "job", "budget", "incident"],
)
def test_plans_that_need_the_same_meet(mine: Footprint, theirs: Footprint, words: str) -> None:
    assert mine.why_it_meets(theirs) == words
    assert theirs.why_it_meets(mine) is not None


def test_plans_that_need_nothing_of_each_other_go_on_side_by_side() -> None:
    mine = needs(nodes=frozenset({N1}), jobs=frozenset({"42"}), budgets=frozenset({Budget.NODES_OUT}))
    theirs = needs(TWO, nodes=frozenset({N2}), jobs=frozenset({"43"}), budgets=frozenset({Budget.LOST_WORK}))

    assert mine.why_it_meets(theirs) is None
