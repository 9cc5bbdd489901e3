"""Alerts become conditions: started once, ended by their end, by Alertmanager, or by a day of silence."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import ALERT_SOURCE, Observation, Signal
from ops_pipelines.observe import alerts
from ops_pipelines.observe.alerts import (
    AlertsRead,
    end_what_is_gone,
    fired,
    forget_untold,
    reject_delivery,
    take_in_alerts,
)
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from tests.shell.desk import Desk
from tests.simulator.fake_clock import FakeClock

HOUR = timedelta(hours=1)


@dataclass
class Bench:
    cluster: Cluster
    clock: FakeClock

    def tell(self, *firing: Observation, resolved: tuple[Observation, ...] = ()) -> int:
        read = AlertsRead(firing=firing, resolved=resolved, rejected=(), ignored_count=0)
        return take_in_alerts(read, self.cluster).new_count

    @property
    def positions(self) -> list[str]:
        return [each.position for each in fired(self.cluster)]

    @property
    def evidence_count(self) -> int:
        return len(self.cluster.ledger.evidence_after(0, limit=1_000))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.fixture
def bench(desk: Desk) -> Bench:
    return fresh(desk)


def fresh(desk: Desk) -> Bench:
    clock = FakeClock()
    return Bench(cluster=replace(desk.cluster, ledger=SqlLedger("sqlite://"), clock=clock), clock=clock)


def alert(labels: str = "a1", *, at: datetime, node: str = "gpu001") -> Observation:
    return Observation(
        signal=Signal.ALERT,
        node=NodeName(node),
        observed_at=at,
        source=ALERT_SOURCE,
        position=f"{labels}/{at.isoformat()}",
        signature="NodeRAIDDegraded",
        text="alert NodeRAIDDegraded",
    )


def test_alert_told_again_and_again_is_one_piece_of_evidence_until_its_end(bench: Bench) -> None:
    told = alert(at=bench.clock.now())

    counts = [bench.tell(told), bench.tell(told), bench.tell(resolved=(told,)), bench.tell(resolved=(told,))]

    assert counts == [1, 0, 0, 0]
    assert (bench.positions, bench.evidence_count) == ([], 1)


def test_alert_that_fires_anew_is_new_evidence_even_if_nobody_told_its_end(bench: Bench) -> None:
    first, second = alert(at=bench.clock.now()), alert(at=bench.clock.now() + HOUR)

    bench.tell(first)
    bench.tell(second)
    bench.tell(first)  # a delivery that was late

    assert (bench.positions, bench.evidence_count) == ([second.position], 2)


def test_end_of_an_earlier_firing_does_not_end_the_present_one(bench: Bench) -> None:
    first, second = alert(at=bench.clock.now()), alert(at=bench.clock.now() + HOUR)
    bench.tell(second)

    bench.tell(resolved=(first,))

    assert bench.positions == [second.position]


def test_alert_that_came_and_went_unheard_is_evidence_and_no_condition(bench: Bench) -> None:
    assert bench.tell(resolved=(alert(at=bench.clock.now()),)) == 1
    assert (bench.positions, bench.evidence_count) == ([], 1)


@pytest.mark.parametrize(("seconds", "is_forgotten"), [(-60, False), (0, True), (60, True)])
def test_alert_is_forgotten_a_day_after_it_was_last_told(bench: Bench, seconds: int, is_forgotten: bool) -> None:
    told = alert(at=bench.clock.now())
    bench.tell(told)
    bench.clock.wait(20 * 3600)
    bench.tell(told)

    bench.clock.wait(24 * 3600 + seconds)

    assert bool(forget_untold(bench.cluster)) is is_forgotten
    assert bench.positions == ([] if is_forgotten else [told.position])


def test_alert_that_alertmanager_shows_no_more_is_over(bench: Bench) -> None:
    bench.tell(alert("a1", at=bench.clock.now()), alert("b2", at=bench.clock.now(), node="gpu002"))

    gone = end_what_is_gone({"b2", "c3"}, bench.cluster)

    assert [each.position.partition("/")[0] for each in gone] == ["a1"]
    assert [each.partition("/")[0] for each in bench.positions] == ["b2"]
    assert end_what_is_gone({"b2"}, bench.cluster) == ()


def test_storm_is_bounded_and_told_of(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "MOST_REMEMBERED", 3)

    bench.tell(*(alert(f"{number:x}", at=bench.clock.now()) for number in range(5)))

    assert len(bench.positions) == 3
    assert len(bench.cluster.ledger.rejected(limit=10)) == 2


def test_body_that_could_not_be_read_is_kept_once(bench: Bench) -> None:
    reject_delivery("expected JSON", "rubbish", bench.cluster)
    reject_delivery("expected JSON", "rubbish", bench.cluster)

    assert [(each.source, each.reason) for each in bench.cluster.ledger.rejected(limit=10)] == [
        (ALERT_SOURCE, "expected JSON")
    ]


EVENTS = st.lists(
    st.tuples(st.sampled_from(["a1", "b2"]), st.integers(0, 2), st.sampled_from(["firing", "resolved"])), max_size=5
)


@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.generate), database=None)
@given(events=EVENTS, doubled=st.lists(st.booleans(), min_size=5, max_size=5))
def test_deliveries_told_twice_change_nothing(
    desk: Desk, events: list[tuple[str, int, str]], doubled: list[bool]
) -> None:
    once, twice = fresh(desk), fresh(desk)
    for (labels, hours, state), is_doubled in zip(events, doubled, strict=False):
        told = alert(labels, at=once.clock.now() + hours * HOUR)
        for bench, times in ((once, 1), (twice, 2 if is_doubled else 1)):
            for _ in range(times):
                bench.tell(told) if state == "firing" else bench.tell(resolved=(told,))

    assert once.positions == twice.positions
    assert once.evidence_count == twice.evidence_count == len({(labels, hours) for labels, hours, _ in events})
