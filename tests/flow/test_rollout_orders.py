"""Orders of people: each is one event of the table in the name of who gave it, and refused in words anywhere else."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, EntryKind
from ops_pipelines.core.identity import NodeName, RolloutId
from ops_pipelines.core.rollout import FINAL, OF_PEOPLE, NodeStage, Rollout, RolloutEvent, RolloutNode, RolloutState
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.rollouts import orders
from ops_pipelines.rollouts.course import ROLLOUT_TABLE
from tests.domain.lifecycle_fleet import change, one_way
from tests.ports.rollout_samples import RELEASE, node, rollout, rollout_plan
from tests.scenarios.small_autopilot import SmallAutopilot

ME = "day-shift"
ORDERS: dict[str, tuple[RolloutEvent, Callable[[RolloutId, Cluster], Rollout]]] = {
    "yes": (RolloutEvent.YES, lambda name, cluster: orders.say_yes(name, cluster, actor=ME)),
    "pause": (RolloutEvent.PAUSE, lambda name, cluster: orders.pause(name, cluster, actor=ME, reason="a visit")),
    "abort": (RolloutEvent.ABORT, lambda name, cluster: orders.abort(name, cluster, actor=ME, reason="a visit")),
    "back": (RolloutEvent.GO_BACK, lambda name, cluster: orders.send_back(name, cluster, actor=ME, reason="a visit")),
}
FIRST = RolloutId("ROLL-0001")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    autopilot = SmallAutopilot(tmp_path, node_count=4)
    autopilot.let_pass(5)
    return autopilot.cluster


def opened(
    cluster: Cluster,
    state: RolloutState,
    *stages: NodeStage,
    number: int = 1,
    is_one_way: bool = False,
    failures: tuple[str, ...] = (),
    **changes: object,
) -> Rollout:
    """Return a rollout that is in a state, with nodes of its own in these stages."""
    names = [f"n{number}-{place}" for place in range(max(1, len(stages)))]
    release = replace(RELEASE, changes=(one_way(change().component),)) if is_one_way else RELEASE
    present: Rollout = replace(
        rollout(number, nodes=names, state=state),
        release_digest=cluster.ledger.store_release(release),
        **changes,  # type: ignore[arg-type]  # Fields of Rollout.
    )
    nodes = [
        replace(node(number, name, stage=stage), failure=failure)
        for name, stage, failure in zip(
            names, stages or (NodeStage.PENDING,), (*failures, *[""] * len(names)), strict=False
        )
    ]
    cluster.ledger.open_rollout(
        present, nodes, plan=rollout_plan(present), release=release, actor="ada", now=cluster.clock.now()
    )
    return present


def kept(cluster: Cluster, name: RolloutId = FIRST) -> Rollout:
    found = cluster.ledger.rollout(name)
    assert found is not None
    return found


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_is_taken_where_the_table_has_it_and_refused_in_words_elsewhere(cluster: Cluster, order: str) -> None:
    event, give = ORDERS[order]
    for number, state in enumerate(RolloutState, start=1):
        before = opened(cluster, state, number=number)
        to = ROLLOUT_TABLE.get((state, event))
        if to is not None:
            after = give(before.rollout, cluster)
            assert (after.state, after.owner, after == kept(cluster, before.rollout)) == (
                to,
                ME if to in OF_PEOPLE else AUTOPILOT,
                True,
            )
            continue
        with pytest.raises(ByHandRefused, match="is over" if state in FINAL else "cannot take"):
            give(before.rollout, cluster)
        assert kept(cluster, before.rollout) == before


@pytest.mark.parametrize("order", ORDERS)
def test_what_nobody_knows_takes_no_order(cluster: Cluster, order: str) -> None:
    with pytest.raises(ByHandRefused, match="there is no rollout ROLL-0009"):
        ORDERS[order][1](RolloutId("ROLL-0009"), cluster)


def test_an_order_stands_in_the_ledger_under_the_name_of_who_gave_it(cluster: Cluster) -> None:
    opened(cluster, RolloutState.RUNNING)

    orders.pause(FIRST, cluster, actor=ME, reason="a visit")

    entry = cluster.ledger.entries(after=0, limit=100)[-1]
    assert (entry.kind, entry.actor) == (EntryKind.ROLLOUT, ME)
    assert kept(cluster).reason == f"{ME}: a visit"


@pytest.mark.parametrize(
    ("state", "paused_from", "to"),
    [
        (RolloutState.PAUSED, RolloutState.RUNNING, RolloutState.RUNNING),
        (RolloutState.PAUSED, RolloutState.SOAKING, RolloutState.SOAKING),
        (RolloutState.PAUSED, RolloutState.GOING_BACK, RolloutState.GOING_BACK),
        (RolloutState.ASKING, RolloutState.RUNNING, RolloutState.RUNNING),
        (RolloutState.ASKING, RolloutState.SOAKING, RolloutState.SOAKING),
        (RolloutState.RUNNING, None, None),
        (RolloutState.STUCK, None, None),
        (RolloutState.ENDING, None, None),
    ],
)
def test_what_stands_still_goes_on_where_it_stopped(
    cluster: Cluster, state: RolloutState, paused_from: RolloutState | None, to: RolloutState | None
) -> None:
    opened(cluster, state, paused_from=paused_from)

    if to is None:
        with pytest.raises(ByHandRefused, match="only a rollout that is paused or asks"):
            orders.go_on(FIRST, cluster, actor=ME, reason="seen to")
        return
    after = orders.go_on(FIRST, cluster, actor=ME, reason="seen to")
    assert (after.state, after.paused_from, after.deadline) == (to, None, None)


def test_whoever_lets_it_go_on_answers_for_what_failed_so_far(cluster: Cluster) -> None:
    opened(
        cluster,
        RolloutState.ASKING,
        NodeStage.BACK,
        NodeStage.LOST,
        NodeStage.SOAKING,
        failures=("install: no", "activate: no"),
        paused_from=RolloutState.RUNNING,
    )

    after = orders.go_on(FIRST, cluster, actor=ME, reason="seen to")

    assert (after.excused_count, after.resumed_at) == (2, cluster.clock.now())


def test_the_end_of_a_pause_excuses_nothing(cluster: Cluster) -> None:
    opened(cluster, RolloutState.PAUSED, NodeStage.BACK, failures=("no",), paused_from=RolloutState.RUNNING)

    after = orders.go_on(FIRST, cluster, actor=ME, reason="seen to")

    assert (after.excused_count, after.resumed_at) == (0, None)


@pytest.mark.parametrize(("is_one_way", "wave", "through"), [(False, 1, 3), (True, 1, 1), (True, 2, 2), (True, 3, 3)])
def test_a_yes_covers_everything_or_one_wave_of_what_cannot_go_back(
    cluster: Cluster, is_one_way: bool, wave: int, through: int
) -> None:
    opened(cluster, RolloutState.AWAITING_YES, is_one_way=is_one_way, wave=wave, yes_through=wave - 1)

    after = orders.say_yes(FIRST, cluster, actor=ME)

    assert (after.yes_by, after.yes_through) == (ME, through)


def test_who_waits_for_people_has_a_time_to_answer(cluster: Cluster) -> None:
    opened(cluster, RolloutState.RUNNING)

    paused = orders.pause(FIRST, cluster, actor=ME, reason="a visit")

    assert paused.deadline == cluster.clock.now() + timedelta(hours=24)


def test_what_cannot_go_back_is_ended_instead(cluster: Cluster) -> None:
    opened(cluster, RolloutState.RUNNING, is_one_way=True)

    with pytest.raises(ByHandRefused, match="abort it"):
        orders.send_back(FIRST, cluster, actor=ME, reason="a bug")
    assert orders.abort(FIRST, cluster, actor=ME, reason="a bug").state is RolloutState.ENDING


def test_why_it_was_stopped_first_is_kept(cluster: Cluster) -> None:
    opened(cluster, RolloutState.ASKING, stopped_because="2 nodes failed", paused_from=RolloutState.RUNNING)

    after = orders.send_back(FIRST, cluster, actor=ME, reason="enough")

    assert (after.stopped_because, after.reason) == ("2 nodes failed", f"{ME}: enough")


def left_out(cluster: Cluster, place: int = 0) -> RolloutNode:
    return orders.skip(FIRST, NodeName(f"n1-{place}"), cluster, actor=ME, reason="a paper")


def test_only_who_was_not_touched_is_left_out(cluster: Cluster) -> None:
    opened(cluster, RolloutState.RUNNING, *NodeStage)

    for place, stage in enumerate(NodeStage):
        if stage is NodeStage.PENDING:
            assert left_out(cluster, place).reason == f"left out by {ME}: a paper"
            continue
        with pytest.raises(ByHandRefused, match=f"n1-{place} is {stage.value} in ROLL-0001"):
            left_out(cluster, place)

    stages = [each.stage for each in cluster.ledger.rollout_nodes(FIRST)]
    assert NodeStage.PENDING not in stages


def test_a_node_of_nobody_and_one_of_a_rollout_that_is_over_are_not_left_out(cluster: Cluster) -> None:
    opened(cluster, RolloutState.RUNNING)
    over = opened(cluster, RolloutState.DONE, number=2)

    with pytest.raises(ByHandRefused, match="n1-7 is not part of ROLL-0001"):
        left_out(cluster, 7)
    with pytest.raises(ByHandRefused, match="ROLL-0002 is over: done"):
        orders.skip(over.rollout, NodeName("n2-0"), cluster, actor=ME, reason="a paper")
