"""When quotas stand still, and for how long they roll back to what was agreed after a freeze."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import IncidentId, NodeName, Place, Topology
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.proposal import GpuType, ProposalRecord, ProposalState
from ops_pipelines.quotas.morning import is_of_whole_cluster, returns_to_contract, standstill
from ops_pipelines.teams.desk import QuotaFreeze, QuotaPolicy, RebalanceSettings
from tests.domain.builders import incident
from tests.ports.quota_samples import line, proposal

NOW = datetime(2026, 11, 21, 7, tzinfo=UTC)
NODES = tuple(NodeName(f"n{number}") for number in range(8))
TOPOLOGY = Topology(
    places={
        name: Place(
            rack="r1" if place < 6 else "r2",
            nvlink_domain=name,
            leaf_switch="leaf",
            power_feed="large" if place < 4 else "small" if place < 7 else "tiny",
        )
        for place, name in enumerate(NODES)
    },
    gpus_per_node=8,
)
MINUTE = timedelta(minutes=1)


def wide(kind: ComponentKind, name: str = "shared", **changes: Any) -> Incident:
    """Return an incident about a part that nodes share."""
    values: dict[str, Any] = {
        "suspect": Component(kind=kind, name=name),
        "response": Response.PAGE_MASS_EVENT,
        "nodes": frozenset(),
        **changes,
    }
    return incident(**values)


def mass(count: int) -> Incident:
    return incident(response=Response.PAGE_MASS_EVENT, nodes=frozenset(NODES[:count]))


@pytest.mark.parametrize(
    ("found", "stops"),
    [
        pytest.param(wide(ComponentKind.STORAGE), True, id="shared storage"),
        pytest.param(wide(ComponentKind.FABRIC), True, id="the fabric"),
        pytest.param(wide(ComponentKind.POWER_FEED, "large"), True, id="a feed of half the nodes"),
        pytest.param(wide(ComponentKind.POWER_FEED, "small"), False, id="a feed of fewer"),
        pytest.param(mass(4), True, id="half of the nodes at once"),
        pytest.param(mass(3), False, id="fewer at once"),
        pytest.param(wide(ComponentKind.RACK, "r1"), False, id="a rack, however many nodes stand in it"),
        pytest.param(wide(ComponentKind.LEAF_SWITCH, "leaf"), False, id="a switch"),
        pytest.param(wide(ComponentKind.NVLINK_DOMAIN, "n1"), False, id="an NVLink domain"),
        pytest.param(wide(ComponentKind.DRIVER, "580"), False, id="a driver, which rollouts bring"),
        pytest.param(incident(), False, id="a node"),
        pytest.param(wide(ComponentKind.STORAGE, response=Response.MONITOR), False, id="storage, only watched"),
        pytest.param(wide(ComponentKind.STORAGE, response=Response.NOTIFY_OWNER), False, id="the owner's doing"),
        pytest.param(wide(ComponentKind.STORAGE, response=Response.PAGE), True, id="storage that pages"),
        pytest.param(wide(ComponentKind.STORAGE, state=IncidentState.ESCALATED), True, id="storage, with a person"),
        pytest.param(wide(ComponentKind.STORAGE, state=IncidentState.RESOLVED), False, id="storage, well again"),
    ],
)
def test_only_trouble_of_the_whole_cluster_stops_quotas(found: Incident, stops: bool) -> None:
    assert is_of_whole_cluster(found, TOPOLOGY) is stops

    said = standstill([found], topology=TOPOLOGY, policy=QuotaPolicy(), now=NOW)

    assert bool(said) is stops
    assert not stops or found.incident in said


def test_the_oldest_of_several_is_named_and_the_others_are_counted() -> None:
    older = wide(ComponentKind.FABRIC, name="fabric")
    newer = replace(wide(ComponentKind.STORAGE), opened_at=older.opened_at + MINUTE, incident=IncidentId("INC-0009"))

    said = standstill([newer, older], topology=TOPOLOGY, policy=QuotaPolicy(), now=NOW)

    assert said.startswith(older.incident)
    assert said.endswith(", and 1 more")


@pytest.mark.parametrize(
    ("after", "holds"), [(-MINUTE, False), (timedelta(0), True), (59 * MINUTE, True), (60 * MINUTE, False)]
)
def test_an_operators_freeze_holds_from_its_begin_to_its_end(after: timedelta, holds: bool) -> None:
    freeze = QuotaFreeze(name="audit", begins_at=NOW, ends_at=NOW + 60 * MINUTE)

    said = standstill([], topology=TOPOLOGY, policy=QuotaPolicy(freezes=(freeze,)), now=NOW + after)

    assert ("audit" in said) is holds


def test_a_freeze_without_end_says_so() -> None:
    freeze = QuotaFreeze(name="audit", begins_at=NOW, ends_at=None)

    said = standstill([], topology=TOPOLOGY, policy=QuotaPolicy(freezes=(freeze,)), now=NOW)

    assert said == "the freeze audit holds until it is taken back"


def test_a_cluster_without_nodes_is_never_broken_as_a_whole() -> None:
    nothing = Topology(places={}, gpus_per_node=8)

    assert not is_of_whole_cluster(mass(4), nothing)


# -- after a freeze --

ENDED = QuotaFreeze(name="audit", begins_at=NOW - timedelta(days=3), ends_at=NOW)
TENTHS = QuotaPolicy(freezes=(ENDED,), rebalance=RebalanceSettings(step_cap_ratio=0.10))


def applied(
    *, at: datetime, moved: int, cap: float = 10.0, state: ProposalState = ProposalState.APPLIED, frozen: str = ""
) -> ProposalRecord:
    """Return a proposal that moved so many GPUs from one team to another, of at most `cap`."""
    made = replace(
        proposal(line("a", 50, 50 + moved), line("b", 50, 50 - moved)),
        made_at=at,
        step_caps=((GpuType(""), cap),),
        frozen_because=frozen,
    )
    return ProposalRecord(proposal=made, state=state, since=at, actor="autopilot")


@pytest.mark.parametrize(("days", "returns"), [(-0.01, False), (0.0, True), (9.99, True), (10.0, False)])
def test_quotas_go_back_from_the_freezes_end_for_as_long_as_a_full_way_takes(days: float, returns: bool) -> None:
    said = returns_to_contract([], policy=TENTHS, now=NOW + timedelta(days=days))

    assert bool(said) is returns


@pytest.mark.parametrize(
    ("record", "returns"),
    [
        pytest.param(applied(at=NOW, moved=10), True, id="its step was used up"),
        pytest.param(applied(at=NOW, moved=9), False, id="it had a step to spare"),
        pytest.param(applied(at=NOW, moved=0), False, id="nothing was left to move"),
        pytest.param(applied(at=NOW - MINUTE, moved=0), True, id="made before the end"),
        pytest.param(applied(at=NOW, moved=1, state=ProposalState.PROPOSED), True, id="never applied"),
        pytest.param(applied(at=NOW, moved=0, state=ProposalState.PROPOSED), False, id="nothing to set"),
        pytest.param(applied(at=NOW, moved=0, state=ProposalState.SUPERSEDED), False, id="nothing to set, overtaken"),
        pytest.param(applied(at=NOW, moved=0, state=ProposalState.REFUSED), True, id="refused"),
        pytest.param(applied(at=NOW, moved=0, state=ProposalState.UNDONE), True, id="undone"),
        pytest.param(applied(at=NOW, moved=0, frozen="storage is down"), True, id="frozen again"),
    ],
)
def test_quotas_have_arrived_when_an_applied_proposal_had_steps_to_spare(record: ProposalRecord, returns: bool) -> None:
    said = returns_to_contract([record], policy=TENTHS, now=NOW + timedelta(days=1))

    assert bool(said) is returns


def test_a_freeze_that_never_ends_or_never_was_sends_nothing_back() -> None:
    lasting = QuotaFreeze(name="audit", begins_at=NOW - timedelta(days=3), ends_at=None)

    assert not returns_to_contract([], policy=QuotaPolicy(), now=NOW)
    assert not returns_to_contract([], policy=QuotaPolicy(freezes=(lasting,)), now=NOW)
