"""What the gate counts: whose times, which events, what is one event, and how long nodes worked."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import Verb
from ops_pipelines.core.fault import AtFault, Component, ComponentKind, Family, FirstAction, Hypothesis
from ops_pipelines.core.finding import Finding
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import ALERT_SOURCE, Signal
from ops_pipelines.core.periods import Interval, merged
from ops_pipelines.core.policy import Durations
from ops_pipelines.core.rollout import Direction, NodeStage, Rollout, RolloutNode
from ops_pipelines.rollouts.gate.evidence import EventCounts, EventKind
from ops_pipelines.rollouts.gate.seen_events import (
    AGAIN_WITHIN,
    PAST,
    ComparedTimes,
    SeenEvent,
    causes_of,
    compared_times,
    count_causes,
    count_events,
    events_of,
    joined,
    known_from,
    node_days,
    unconfirmed_on,
    worked_within,
)
from tests.domain import builders
from tests.domain.builders import NOW, action, begun, incident, unreachable, xid
from tests.ports import rollout_samples

SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
NEW, ALSO_NEW, OLD, OTHER = (NodeName(f"gpu00{number}") for number in range(1, 5))
SINCE = NOW - 2 * DAY
TIMES = ComparedTimes(
    treated={each: Interval(begins_at=SINCE, ends_at=NOW) for each in (NEW, ALSO_NEW)},
    control={each: Interval(begins_at=SINCE, ends_at=NOW) for each in (OLD, OTHER)},
    own={each: Interval(begins_at=SINCE - PAST, ends_at=SINCE) for each in (NEW, ALSO_NEW)},
    past={},
)
ALWAYS = {each: (Interval(begins_at=NOW - 30 * DAY, ends_at=NOW),) for each in (NEW, ALSO_NEW, OLD, OTHER)}


def event(node: NodeName, *, ago: timedelta, cause: str = "") -> SeenEvent:
    return SeenEvent(kind=EventKind.XID, node=node, at=NOW - ago, cause=cause)


def counted(*events: SeenEvent) -> EventCounts:
    return count_events(EventKind.XID, events, TIMES, ALWAYS)


class TestTimes:
    def rollout(self) -> Rollout:
        return replace(rollout_samples.rollout(1), created_at=NOW - 3 * DAY)

    def node(self, name: NodeName, stage: NodeStage, *, returned_at: datetime | None = None) -> RolloutNode:
        return replace(rollout_samples.node(1, name, stage=stage), since=NOW - DAY, returned_at=returned_at)

    def test_updated_node_counts_since_its_return_and_before_its_first_installation(self) -> None:
        installed = begun(action(Verb.INSTALL, on=NEW), seconds_ago=DAY.total_seconds() + 3600)
        again = begun(action(Verb.INSTALL, on=NEW, try_number=2), seconds_ago=DAY.total_seconds())

        times = compared_times(
            self.rollout(), [self.node(NEW, NodeStage.SOAKING, returned_at=NOW - HOUR)], [again, installed], now=NOW
        )

        assert times.treated == {NEW: Interval(begins_at=NOW - HOUR, ends_at=NOW)}
        assert times.own[NEW] == Interval(begins_at=NOW - DAY - HOUR - PAST, ends_at=NOW - DAY - HOUR)

    def test_nodes_are_compared_as_long_as_nothing_was_changed_on_them(self) -> None:
        nodes = [
            self.node(NEW, NodeStage.SOAKING, returned_at=NOW - 5 * HOUR),
            self.node(ALSO_NEW, NodeStage.INSTALLING),
            self.node(OLD, NodeStage.PENDING),
            self.node(OTHER, NodeStage.DRAINING),
            self.node(NodeName("gpu005"), NodeStage.SKIPPED),
        ]
        installs = [begun(action(Verb.INSTALL, on=ALSO_NEW), seconds_ago=7200)]

        times = compared_times(self.rollout(), nodes, installs, now=NOW)

        assert times.control == {
            ALSO_NEW: Interval(begins_at=NOW - 5 * HOUR, ends_at=NOW - 2 * HOUR),
            OLD: Interval(begins_at=NOW - 5 * HOUR, ends_at=NOW),
            OTHER: Interval(begins_at=NOW - 5 * HOUR, ends_at=NOW),
        }
        assert times.past.keys() == {NEW, ALSO_NEW, OLD, OTHER}

    @pytest.mark.parametrize("stage", [NodeStage.PULLED, NodeStage.LOST, NodeStage.BACK])
    def test_node_that_no_longer_works_with_the_new_version_is_on_neither_side(self, stage: NodeStage) -> None:
        gone = replace(self.node(NEW, stage, returned_at=NOW - HOUR), direction=Direction.BACK)
        installs = [begun(action(Verb.INSTALL, on=NEW), seconds_ago=7200)]

        times = compared_times(self.rollout(), [gone], installs, now=NOW)

        assert (times.treated, times.control, times.own) == ({}, {}, {})

    def test_past_that_nobody_knows_is_left_out_with_its_events(self) -> None:
        assert known_from(TIMES, None).own == {}
        assert known_from(TIMES, SINCE).own == {}
        assert known_from(TIMES, SINCE - HOUR).own[NEW].begins_at == SINCE - HOUR
        assert known_from(TIMES, SINCE - 99 * DAY) == TIMES

    def test_first_time_that_is_asked_about_is_that_of_any_side(self) -> None:
        assert TIMES.since == SINCE - PAST
        assert known_from(TIMES, None).since == SINCE


class TestCounting:
    def test_events_count_on_the_side_on_which_their_node_was_then(self) -> None:
        found = counted(
            event(NEW, ago=HOUR), event(ALSO_NEW, ago=3 * DAY), event(OLD, ago=HOUR), event(OLD, ago=9 * DAY)
        )

        assert (found.treated_count, found.control_count, found.own_count) == (1, 1, 1)
        assert found.treated_nodes == {NEW}
        assert found.treated_node_days == pytest.approx(4.0)
        assert found.own_node_days == pytest.approx(28.0)

    @pytest.mark.parametrize(
        ("apart", "count"),
        [(AGAIN_WITHIN - timedelta(seconds=1), 1), (AGAIN_WITHIN, 2), (AGAIN_WITHIN + timedelta(seconds=1), 2)],
    )
    def test_what_a_node_repeats_within_a_day_counts_once(self, apart: timedelta, count: int) -> None:
        first = event(NEW, ago=DAY + HOUR)

        assert counted(first, replace(first, at=first.at + apart)).treated_count == count

    def test_event_on_the_old_version_does_not_hide_the_one_after_the_return(self) -> None:
        found = counted(event(NEW, ago=2 * DAY + HOUR), event(NEW, ago=2 * DAY - HOUR))

        assert (found.own_count, found.treated_count) == (1, 1)

    def test_what_one_cause_did_to_nodes_of_both_sides_counts_once_in_all(self) -> None:
        found = counted(event(OLD, ago=2 * HOUR, cause="rack r1"), event(NEW, ago=HOUR, cause="rack r1"))

        assert (found.treated_count, found.control_count) == (0, 1)

    def test_beginning_of_a_side_is_in_it_and_its_end_is_not(self) -> None:
        assert counted(event(NEW, ago=2 * DAY)).treated_count == 1
        assert counted(event(NEW, ago=timedelta(0))).treated_count == 0

    @given(
        st.lists(
            st.tuples(
                st.sampled_from([NEW, ALSO_NEW, OLD, OTHER]),
                st.integers(min_value=0, max_value=20 * 24),
                st.sampled_from(["", "", "a", "b"]),
            ),
            max_size=30,
        ),
    )
    def test_order_of_events_does_not_matter_and_none_counts_twice(
        self, drawn: Sequence[tuple[NodeName, int, str]]
    ) -> None:
        events = [event(node, ago=hours * HOUR, cause=cause) for node, hours, cause in drawn]

        found = counted(*events)

        assert counted(*reversed(events)) == found
        assert counted(*events, *events) == found
        assert found.treated_count + found.control_count + found.own_count <= len(events)


class TestWork:
    def test_only_time_under_jobs_within_the_stretch_counts(self) -> None:
        worked = (
            Interval(begins_at=NOW - 10 * HOUR, ends_at=NOW - 7 * HOUR),
            Interval(begins_at=NOW - 5 * HOUR, ends_at=NOW - 4 * HOUR),
            Interval(begins_at=NOW - 2 * HOUR, ends_at=NOW),
        )

        assert worked_within(worked, Interval(begins_at=NOW - 8 * HOUR, ends_at=NOW - HOUR)) == 3 * HOUR

    def test_two_sources_that_tell_of_the_same_hour_tell_of_one_hour(self) -> None:
        one = {NEW: (Interval(begins_at=NOW - 3 * HOUR, ends_at=NOW - HOUR),)}
        other = {
            NEW: (Interval(begins_at=NOW - 2 * HOUR, ends_at=NOW),),
            OLD: (Interval(begins_at=SINCE, ends_at=NOW),),
        }

        both = joined(one, other)

        assert both[NEW] == (Interval(begins_at=NOW - 3 * HOUR, ends_at=NOW),)
        assert node_days(TIMES.treated, both) == pytest.approx(3 / 24)

    @given(
        st.lists(
            st.tuples(st.integers(min_value=0, max_value=100), st.integers(min_value=1, max_value=50)), max_size=12
        )
    )
    def test_no_node_works_longer_than_its_time(self, drawn: Sequence[tuple[int, int]]) -> None:
        worked = merged(Interval(begins_at=SINCE + b * HOUR, ends_at=SINCE + (b + n) * HOUR) for b, n in drawn)

        assert timedelta(0) <= worked_within(worked, TIMES.treated[NEW]) <= 2 * DAY


def seen_in(*incidents: Incident, now: datetime = NOW) -> list[SeenEvent]:
    return list(events_of(incidents, durations=Durations(), now=now))


class TestIncidents:
    def diagnosed(self, *findings: Finding, at_fault: AtFault = AtFault.GPU, **changes: Any) -> Incident:
        guess = Hypothesis(
            statement="GPU 0000:1b:00 of this very node fell off the bus",
            culprits=(),
            at_fault=at_fault,
            family=Family.GPU,
            first_action=FirstAction.REBOOT_NODE,
            confidence=0.9,
            affected_nodes=frozenset(),
            evidence_for=(),
            evidence_against=(),
            alternatives=(),
            settled_by="",
        )
        return incident(*findings, hypothesis=guess, **changes)

    def test_incident_that_takes_its_node_out_is_a_failure_beside_what_was_seen(self) -> None:
        kinds = {each.kind for each in seen_in(incident(xid(79)))}

        assert kinds == {EventKind.NODE_FAILURE, EventKind.XID}

    def test_what_a_program_does_wrong_is_no_event(self) -> None:
        assert seen_in(incident(xid(13))) == []

    def test_alert_of_somebody_else_and_what_follows_from_something_else_are_no_events(self) -> None:
        silent = unreachable()
        alert = replace(silent, evidence=(replace(silent.evidence[0], source=ALERT_SOURCE),))

        for finding in (alert, replace(silent, is_secondary=True)):
            seen = seen_in(incident(finding, response=builders.xid(13).response), now=NOW + HOUR)
            assert seen == []

    @pytest.mark.parametrize("missed", [unreachable, builders.gpu_missing])
    def test_what_is_missed_for_a_moment_is_no_event_and_what_stays_away_is(
        self, missed: Callable[..., Finding]
    ) -> None:
        confirm = Durations().confirm_after(is_silent=missed is unreachable)
        shown = missed(node=NEW)
        for lasted, is_event in ((SECOND, False), (confirm - SECOND, False), (confirm, True), (HOUR, True)):
            gone = incident(shown, state=IncidentState.RESOLVED, closed_at=NOW + lasted)

            assert bool(seen_in(incident(shown), now=NOW + lasted)) is is_event
            assert bool(seen_in(gone, now=NOW + DAY)) is is_event

    def test_what_was_acted_on_and_what_a_log_says_beside_is_an_event_however_short(self) -> None:
        silent = unreachable(node=NEW)

        assert seen_in(incident(silent, plan_count=1))
        assert {each.kind for each in seen_in(incident(silent, xid(79, node=NEW)))} == {
            EventKind.NODE_FAILURE,
            EventKind.XID,
        }

    def test_updated_node_that_has_just_fallen_silent_is_waited_for(self) -> None:
        silent, confirm = incident(unreachable(node=NEW)), Durations().confirm_unreachable_after

        def waited_for(*nodes: NodeName, at: datetime, of: Incident = silent) -> frozenset[NodeName]:
            return unconfirmed_on(nodes, [of], durations=Durations(), now=at)

        assert waited_for(NEW, OLD, at=NOW + SECOND) == {NEW}
        assert waited_for(OLD, at=NOW + SECOND) == frozenset()
        assert waited_for(NEW, at=NOW + confirm) == frozenset()
        answers = replace(silent, state=IncidentState.RESOLVED, closed_at=NOW + SECOND)
        assert waited_for(NEW, at=NOW + SECOND, of=answers) == frozenset()

    def test_part_of_another_incident_is_not_counted_beside_it(self) -> None:
        assert seen_in(incident(xid(79), state=IncidentState.MERGED)) == []
        assert list(causes_of([self.diagnosed(xid(79), state=IncidentState.MERGED)])) == []

    def test_broken_rack_is_one_event(self) -> None:
        rack = Component(kind=ComponentKind.RACK, name="r1")
        broken = self.diagnosed(unreachable(node=NEW), unreachable(node=OLD), suspect=rack)

        found = count_events(EventKind.NODE_FAILURE, seen_in(broken, now=NOW + HOUR), _reaching_now(), ALWAYS)

        assert found.treated_count + found.control_count == 1

    def test_same_cause_is_told_in_the_same_words_of_every_node(self) -> None:
        causes = list(causes_of([self.diagnosed(xid(79, node=NEW)), self.diagnosed(xid(79, node=ALSO_NEW))]))

        assert {each.cause for each in causes} == {"xid_79 (gpu)"}
        assert {each.node for each in causes} == {NEW, ALSO_NEW}

    def test_cause_is_counted_on_both_sides_where_updated_nodes_have_it(self) -> None:
        alike = tuple(causes_of([self.diagnosed(xid(79, node=name, seconds_ago=60)) for name in (NEW, ALSO_NEW, OLD)]))
        elsewhere = tuple(causes_of([self.diagnosed(xid(79, node=OLD, seconds_ago=60))]))

        (found,) = count_causes(alike, TIMES, ALWAYS)

        assert found.treated_nodes == {NEW, ALSO_NEW}
        assert found.control_count == 1
        assert count_causes(elsewhere, TIMES, ALWAYS) == ()

    def test_what_a_rack_did_to_its_nodes_is_one_piece_of_bad_luck_and_what_a_driver_did_is_not(self) -> None:
        rack, driver = (Component(kind=kind, name="x") for kind in (ComponentKind.RACK, ComponentKind.DRIVER))
        findings = (xid(79, node=NEW), xid(79, node=ALSO_NEW))

        assert len(list(causes_of([self.diagnosed(*findings, suspect=rack)]))) == 1
        assert len(list(causes_of([self.diagnosed(*findings, suspect=driver)]))) == 2

    def test_program_at_fault_is_no_cause_of_a_node(self) -> None:
        assert list(causes_of([self.diagnosed(xid(79), at_fault=AtFault.APPLICATION)])) == []

    def test_every_signal_that_speaks_of_a_part_has_its_kind(self) -> None:
        for signal in (Signal.ECC_UNCORRECTABLE, Signal.LINK_DOWN, Signal.NODE_UNREACHABLE):
            shown = replace(unreachable(), evidence=(builders.observation(signal, source="telemetry"),))
            assert seen_in(incident(shown), now=NOW + HOUR)


def _reaching_now() -> ComparedTimes:
    """The same sides, a moment longer: what happens at NOW is within."""
    later = NOW + HOUR
    sides = (TIMES.treated, TIMES.control)
    treated, control = ({node: replace(each, ends_at=later) for node, each in side.items()} for side in sides)
    return replace(TIMES, treated=treated, control=control)
