"""What an update does to its own node is the rollout's: it opens nothing that acts or pages, and ends with it."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.identity import NodeName, RolloutId
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import Observation, Signal
from ops_pipelines.core.plan import Snapshot
from ops_pipelines.core.policy import MassEvent
from ops_pipelines.remediate.decide import Decision, decide
from ops_pipelines.resources.documents import decode, encode
from tests.domain.builders import (
    NODE,
    OTHER_NODE,
    action,
    after,
    conditions_of,
    ended,
    gpu_missing,
    incident,
    node_names,
    observation,
    our_drain,
    our_node,
    policy,
    rules,
    snapshot,
    unreachable,
    xid,
)

ROLLOUT = RolloutId("ROLL-0001")


def of_rollout(verb: Verb, *, on: str = NODE, seconds_ago: float = 300) -> ActionRecord:
    return ended(action(verb, on=on, incident=ROLLOUT), seconds_ago=seconds_ago)


def drained(*names: str) -> list[ActionRecord]:
    return [our_drain(each, incident=ROLLOUT, seconds_ago=600) for each in names]


def installed(*names: str) -> list[ActionRecord]:
    return [*drained(*names), *(of_rollout(Verb.INSTALL, on=each) for each in names)]


def seen(
    *observations: Observation, records: Iterable[ActionRecord], names: Iterable[str] = (NODE,), **changes: object
) -> Snapshot:
    """Return a snapshot of nodes that a rollout has in hand."""
    owned = {NodeName(each): ROLLOUT for each in names}
    nodes = [our_node(each, incident=ROLLOUT) for each in names]
    return replace(snapshot(*observations, nodes=nodes, records=tuple(records), owned=owned), **changes)  # type: ignore[arg-type]


def silent(name: str = NODE, *, seconds_ago: float = 120) -> Observation:
    (found,) = conditions_of(unreachable(node=name, seconds_ago=seconds_ago))
    return found


def why(decision: Decision) -> list[str]:
    return [refusal.guardrail for _, refusal in decision.refusals]


@pytest.mark.parametrize(
    ("what", "records"),
    [
        pytest.param(incident(unreachable(seconds_ago=900)), installed(NODE), id="silent for long while it restarts"),
        pytest.param(incident(gpu_missing(seconds_ago=900)), installed(NODE), id="a GPU is away"),
        pytest.param(incident(xid(54)), drained(NODE), id="what calls for a person"),
        pytest.param(incident(xid(79)), drained(NODE), id="what calls for a repair"),
    ],
)
def test_an_incident_on_a_node_that_a_rollout_has_waits_and_pages_nobody(
    what: Incident, records: list[ActionRecord]
) -> None:
    present = conditions_of(*what.findings)

    decision = decide(seen(records=records, incidents=(what,), incident_count=1, conditions=present), rules())

    assert decision.plans == ()
    assert why(decision) == ["owned"]
    assert "gpu001 is being updated by ROLL-0001" in decision.refusals[0][1].reason


def test_an_incident_on_a_node_whose_drain_waits_is_seen_to_first() -> None:
    known = seen(records=[], incidents=(incident(),), incident_count=1)
    known = replace(known, nodes=snapshot().nodes)

    (plan,) = decide(known, rules()).plans

    assert plan.actions[0].verb is Verb.DRAIN


def test_an_incident_of_one_node_of_a_rollout_and_one_of_nobody_is_told() -> None:
    wide = incident(xid(54), nodes=frozenset({NODE, OTHER_NODE}))

    (plan,) = decide(seen(records=installed(NODE), incidents=(wide,), incident_count=1), rules()).plans

    assert [each.verb for each in plan.actions] == [Verb.PAGE_HUMAN]


# -- what is seen during a change --


@pytest.mark.parametrize(
    ("seconds_ago", "opens"),
    [(301, True), (300, False), (0, False)],
    ids=["before the installation", "as it begins", "during it"],
)
def test_an_event_of_a_node_that_is_being_changed_opens_nothing(seconds_ago: float, opens: bool) -> None:
    line = observation(code=79, seconds_ago=seconds_ago)

    decision = decide(seen(line, records=installed(NODE)), rules())

    assert bool(decision.incidents) is opens
    assert decision.plans == ()


def test_a_line_of_the_change_that_is_read_after_the_return_opens_nothing() -> None:
    records = [*installed(NODE), of_rollout(Verb.RESUME, seconds_ago=60)]
    read_late, new = observation(code=79, seconds_ago=61), observation(code=79, seconds_ago=59)

    assert decide(snapshot(read_late, records=tuple(records)), rules()).incidents == ()
    assert decide(snapshot(new, records=tuple(records)), rules()).incidents != ()


def test_a_node_that_is_only_drained_for_an_update_breaks_like_any_other() -> None:
    """Its jobs still run: that the update waits for them must not hide what ends them."""
    (found,) = decide(seen(observation(code=79), records=drained(NODE)), rules()).incidents

    assert found.nodes == {NODE}


def test_a_condition_of_the_change_waits_and_closes_when_it_is_gone() -> None:
    records = installed(NODE)
    (opened,) = decide(seen(silent(), records=records, conditions=(silent(),)), rules()).incidents

    later = seen(records=records, incidents=(opened,), incident_count=1, taken_at=after(60))
    (closed,) = decide(later, rules()).incidents

    assert opened.state is IncidentState.OPEN
    assert opened.nodes == {NODE}
    assert closed.state is IncidentState.RESOLVED


def test_a_condition_that_stays_after_the_return_is_seen_to() -> None:
    (missing,) = conditions_of(gpu_missing(seconds_ago=120))
    (opened,) = decide(seen(missing, records=installed(NODE), conditions=(missing,)), rules()).incidents
    records = (*installed(NODE), of_rollout(Verb.RESUME, seconds_ago=1))
    after_return = snapshot(records=records, incidents=(opened,), incident_count=1, conditions=(missing,))

    (plan,) = decide(after_return, rules()).plans

    assert plan.actions[0].verb is Verb.DRAIN


def test_an_event_is_not_hidden_in_the_condition_that_closes_with_the_change() -> None:
    (opened,) = decide(seen(silent(), records=installed(NODE), conditions=(silent(),)), rules()).incidents
    with_line = seen(observation(code=79), records=installed(NODE), incidents=(opened,), incident_count=1)

    (closed,) = decide(with_line, rules()).incidents

    assert closed.state is IncidentState.RESOLVED


@pytest.mark.parametrize(("own_count", "is_mass"), [(3, False), (4, True), (5, True)])
def test_nodes_that_restart_for_an_update_make_no_mass_event(own_count: int, is_mass: bool) -> None:
    restarting = [*node_names(40)[1::8], *node_names(40)[5::8]]
    broken = node_names(40)[: own_count * 8 : 8]  # Of different racks and switches.
    present = tuple(silent(each) for each in (*restarting, *broken))
    known = seen(*present, records=installed(*restarting), names=restarting, conditions=present)

    decision = decide(known, rules(policy(mass_event=MassEvent(min_node_count=4))))

    wide = [each for each in decision.incidents if each.is_mass_event]
    assert bool(wide) is is_mass
    assert all(each.nodes == set(broken) for each in wide)


def test_a_rack_that_is_updated_is_no_broken_rack() -> None:
    rack = node_names(4)
    present = tuple(silent(each) for each in rack)

    decision = decide(seen(*present, records=installed(*rack), names=rack, conditions=present), rules())

    assert [(each.suspect, len(each.nodes)) for each in decision.incidents] == [(None, 1)] * 4
    assert set(why(decision)) == {"owned"}


# -- what was written before --


def test_a_snapshot_of_before_rollouts_is_read_as_one_without_any() -> None:
    known = snapshot(observation(Signal.XID, code=79))
    old = encode(known).replace(',"owned":{}', "")

    assert '"owned"' not in old
    assert decode(Snapshot, old) == known
    assert decide(decode(Snapshot, old), rules()) == decide(known, rules())


def test_a_snapshot_keeps_what_rollouts_had_in_hand() -> None:
    known = seen(records=installed(NODE))

    assert decode(Snapshot, encode(known)) == known
