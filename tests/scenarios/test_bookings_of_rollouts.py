"""Nodes that come next take no job that would outlast their turn: booked, given back, also by a process that died."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.entries import AUTOPILOT, Pause
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.rollout import Booking, NodeStage, RolloutState
from ops_pipelines.core.sources import SourceRefused
from ops_pipelines.rollouts import orders
from ops_pipelines_lab.simulator.adapters import SimulatedScheduler
from ops_pipelines_lab.simulator.journal import EntryKind
from ops_pipelines_lab.simulator.reservations import Booking as HeldBooking
from ops_pipelines_lab.simulator.scenario import JobSpec
from tests.scenarios.rollout_stage import LIMITS, PERSON, ROLLOUT_POLICY, RolloutStage
from tests.simulator.small_cluster import TRAINING

NAME = "ops-ROLL-0001-w1"
HOUR = timedelta(hours=1)
ONE_BY_ONE = replace(ROLLOUT_POLICY, rollouts=replace(LIMITS, max_out_count=1, canary_counts=(2,)))
LONG = replace(TRAINING, name="long", node_count=1, gpus_per_node=2, time_limit_seconds=6 * 3600.0)
SHORT = replace(LONG, name="short", time_limit_seconds=60.0, work_seconds=6.0)


class Refusing(SimulatedScheduler):
    """A scheduler that makes no reservation for us."""

    def book(self, nodes: Collection[NodeName], *, name: str, begins_at: datetime, ends_at: datetime) -> None:
        raise SourceRefused("scontrol: Access denied")


class Died(BaseException):
    """What a process dies of: nothing catches it."""


class Killed(SimulatedScheduler):
    """A scheduler whose caller dies, before the booking or after it."""

    is_before = True

    def book(self, nodes: Collection[NodeName], *, name: str, begins_at: datetime, ends_at: datetime) -> None:
        if not self.is_before:
            super().book(nodes, name=name, begins_at=begins_at, ends_at=ends_at)
        raise Died


def begun(directory: Path) -> RolloutStage:
    """Return a rollout that has its first node in hand, and its second booked."""
    stage = RolloutStage(directory, policy=ONE_BY_ONE, node_count=2)
    stage.start()
    stage.step()
    return stage


def bookings(stage: RolloutStage) -> tuple[HeldBooking, ...]:
    with stage.twin.present() as world:
        return world.controller.reservations.bookings()


def is_pending(stage: RolloutStage, spec: JobSpec) -> bool:
    return stage.job(spec.name).state is JobState.PENDING


def test_long_job_does_not_start_on_the_node_that_comes_next_and_a_short_one_does(tmp_path: Path) -> None:
    stage = begun(tmp_path)
    (booking,) = bookings(stage)

    stage.twin.submit(LONG)
    stage.twin.submit(SHORT)
    stage.let_pass(1)

    assert (booking.name, *booking.nodes) == (NAME, "gpu002")
    assert is_pending(stage, LONG)
    assert not is_pending(stage, SHORT)

    stage.run_to()

    assert stage.rollout().state is RolloutState.DONE
    assert stage.rollout().booking is None
    assert bookings(stage) == ()
    assert not is_pending(stage, LONG)


def test_booking_is_asked_for_once_and_given_back_once(tmp_path: Path) -> None:
    stage = begun(tmp_path)
    stage.run_to()

    assert [each.reservation for each in stage.received(EntryKind.BOOK, EntryKind.UNRESERVE)] == [NAME] * 2


def test_node_leaves_its_booking_only_when_it_is_drained(tmp_path: Path) -> None:
    """Else a waiting job would start on it in between, and keep it for hours."""
    stage = begun(tmp_path)
    stage.twin.submit(LONG)

    while stage.stage_of("gpu002") is NodeStage.PENDING:
        assert "gpu002" not in stage.job(LONG.name).nodes
        assert {node for each in bookings(stage) for node in each.nodes} == {"gpu002"}
        stage.step()

    assert "gpu002" in stage.drained()
    assert stage.job(LONG.name).nodes <= {"gpu001"}


@pytest.mark.parametrize("order", [orders.pause, orders.abort])
def test_rollout_that_people_stop_gives_its_booking_back(tmp_path: Path, order: object) -> None:
    stage = begun(tmp_path)

    order(stage.rollout().rollout, stage.cluster, actor=PERSON, reason="not today")  # type: ignore[operator]  # one of two
    stage.step()

    assert bookings(stage) == ()
    assert stage.rollout().booking is None


def test_while_the_autopilot_is_paused_nothing_is_said_of_bookings(tmp_path: Path) -> None:
    stage = begun(tmp_path)
    booked = bookings(stage)
    stage.cluster.ledger.pause(Pause(actor=PERSON, since=stage.clock.now(), reason="the network is being worked on"))
    orders.abort(stage.rollout().rollout, stage.cluster, actor=PERSON, reason="not today")
    stage.step()
    in_the_pause = bookings(stage)
    stage.cluster.ledger.resume_autopilot(actor=PERSON, now=stage.clock.now())
    stage.step()

    assert in_the_pause == booked != ()
    assert bookings(stage) == ()


def test_scheduler_that_refuses_costs_the_booking_and_is_named(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, policy=ONE_BY_ONE, node_count=2)
    stage.cluster = replace(stage.cluster, scheduler=Refusing(stage.twin))
    stage.start()

    stage.run_to()

    assert stage.rollout().state is RolloutState.DONE
    assert stage.rollout().booking is None
    assert "maintenance is not booked as it should be: scontrol: Access denied" in stage.reports[0].passes[0].problems


@pytest.mark.parametrize("is_before", [True, False])
def test_booking_that_a_process_died_at_is_made_or_given_back_by_the_next(tmp_path: Path, is_before: bool) -> None:
    stage = RolloutStage(tmp_path, policy=ONE_BY_ONE, node_count=2)
    killed = Killed(stage.twin)
    killed.is_before = is_before
    stage.cluster = replace(stage.cluster, scheduler=killed)
    stage.start()
    with pytest.raises(Died):
        stage.step()

    stage.restart()
    stage.step()
    made = bookings(stage)
    stage.run_to()

    assert [each.nodes for each in made] == [{"gpu002"}]
    assert bookings(stage) == ()


def test_what_is_still_booked_when_a_rollout_is_over_is_given_back_later(tmp_path: Path) -> None:
    stage = begun(tmp_path)
    stage.run_to()
    over = stage.rollout()
    now = stage.clock.now()
    stage.cluster.scheduler.book([NodeName("gpu001")], name=NAME, begins_at=now, ends_at=now + HOUR)
    kept = Booking(name=NAME, nodes=(NodeName("gpu001"),), begins_at=now, ends_at=now + HOUR, is_accepted=True)
    stage.cluster.ledger.change_rollout(replace(over, booking=kept), (), actor=AUTOPILOT, now=now)

    stage.step()

    assert bookings(stage) == ()
    assert stage.rollout() == over
    assert stage.cluster.ledger.verify_chain().first_broken_seq is None
