"""Retracing recorded time: what was known when decides, and neither order nor repetition nor lateness."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.finding import Response
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import NO_NODE, Observation, Signal
from ops_pipelines.review.retrace import Event, Retrace, Spell, turns
from tests.domain.builders import NODE, NOW, ago, job, node_names, observation, topology
from tests.domain.test_diagnosis_of_incidents import RULES, link_down, said, seen

TICK = timedelta(seconds=5)
JOBS = [job("42", nodes=node_names(4))]


def retraced(events: list[Event], spells: list[Spell] | None = None, *, until: datetime = NOW) -> Retrace:
    retrace = Retrace(catalogue=RULES, topology=topology())
    for turn in turns(events, spells or [], tick=TICK, until=until):
        retrace.step(turn.at, events=turn.events, begun=turn.begun, ended=turn.ended, jobs=JOBS)
    return retrace


def verdicts(retrace: Retrace) -> set[tuple[str, frozenset[str], Response]]:
    """Return what was raised in the end: culprits, where, and how loud."""
    return {
        (
            ", ".join(map(str, incident.hypothesis.culprits if incident.hypothesis else ())),
            frozenset(incident.nodes),
            incident.response,
        )
        for incident in retrace.incidents.values()
        if incident.state is not IncidentState.MERGED and not incident.is_watched
    }


def logged(code: int, node: str = NODE, *, seconds_ago: float, known_ago: float | None = None) -> Event:
    return Event(
        observation=observation(code=code, node=node, seconds_ago=seconds_ago),
        known_at=ago(seconds_ago if known_ago is None else known_ago),
    )


def told(what: Observation, *, known_ago: float) -> Event:
    return Event(observation=what, known_at=ago(known_ago))


def test_an_event_is_known_at_the_first_look_after_it() -> None:
    (turn,) = turns([logged(79, seconds_ago=7)], [], tick=TICK, until=NOW)

    assert turn.at == ago(5)


def test_what_comes_after_the_end_is_not_known() -> None:
    assert turns([logged(79, seconds_ago=-1)], [], tick=TICK, until=NOW) == ()


def test_a_condition_that_ends_closes_its_incident_after_a_quiet_time() -> None:
    down = link_down(NODE, seconds_ago=1200).evidence[0]
    retrace = retraced([], [Spell(observation=down, known_at=ago(1200), gone_at=ago(900))])
    still_open = [incident.is_open for incident in retrace.incidents.values()]

    retrace.step(NOW, jobs=JOBS)

    assert still_open == [True]
    assert [incident.state for incident in retrace.incidents.values()] == [IncidentState.RESOLVED]


def test_a_node_that_is_given_back_starts_anew() -> None:
    retrace = retraced([logged(79, seconds_ago=600)])
    retrace.give_back(NODE, ago(300))
    retrace.step(NOW, events=[observation(code=79, seconds_ago=0)], jobs=JOBS)

    assert [incident.state for incident in retrace.incidents.values()] == [IncidentState.RESOLVED, IncidentState.OPEN]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_shuffled_doubled_and_late_evidence_gives_the_same_verdicts(data: st.DataObject) -> None:
    """Each line of a storm may come up to a minute late, twice, and in any order."""
    nodes = node_names(4)
    lines = [
        observation(code=79, node=nodes[0], seconds_ago=300),
        *(observation(code=45, node=node, seconds_ago=295) for node in nodes[1:]),
        *(said("nccl_watchdog_timeout", node, seconds_ago=290, job_id="42").evidence[0] for node in nodes),
    ]
    late = [data.draw(st.floats(0, 60)) for _ in lines]
    punctual = [told(line, known_ago=280) for line in lines]
    delayed = [told(line, known_ago=280 - delay) for line, delay in zip(lines, late, strict=True)]
    doubled = data.draw(st.permutations([*delayed, *delayed[:2]]))

    assert verdicts(retraced(doubled)) == verdicts(retraced(punctual))


@pytest.mark.parametrize("first", ["cause", "damage"])
def test_a_cause_that_is_noticed_after_its_damage_is_the_same_incident(first: str) -> None:
    hang = Spell(
        observation=seen(Signal.JOB_HUNG, NO_NODE, seconds_ago=200, job_id="42").evidence[0], known_at=ago(110)
    )
    known_ago = 190 if first == "cause" else 60

    retrace = retraced([logged(79, seconds_ago=200, known_ago=known_ago)], [hang])

    assert len(verdicts(retrace)) == 1
    assert {nodes for _, nodes, _ in verdicts(retrace)} == {frozenset({NODE})}


def test_the_driver_that_says_reset_and_then_nothing_took_nothing_back() -> None:
    """Contradiction: a later `no action` is no verdict on what happened."""
    wish = observation(Signal.RECOVERY_ACTION, code=1, seconds_ago=60)
    withdrawn = observation(Signal.RECOVERY_ACTION, code=0, seconds_ago=30)

    (only,) = verdicts(retraced([told(wish, known_ago=60), told(withdrawn, known_ago=30)]))

    assert only[2] is Response.RESET_GPU


def test_an_incident_counts_from_when_it_was_raised() -> None:
    weak = [said("lustre_timeout", node, seconds_ago=100).evidence[0] for node in node_names(2)]

    retrace = retraced([told(weak[0], known_ago=100), told(weak[1], known_ago=40)])

    assert list(retrace.raised_at.values()) == [ago(40)]


def test_metrics_that_stop_are_no_health_and_no_ground_for_a_repair() -> None:
    blind = replace(observation(Signal.TELEMETRY_STALE, seconds_ago=60), source="telemetry")

    retrace = retraced([], [Spell(observation=blind, known_at=ago(60))])

    assert [response for _, _, response in verdicts(retrace)] in ([Response.PAGE], [])
    assert all(incident.response <= Response.PAGE for incident in retrace.incidents.values())
    assert retrace.incidents
