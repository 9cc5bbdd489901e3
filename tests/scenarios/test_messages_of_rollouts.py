"""What people hear of a release that goes over the nodes: the whole list each time, also after a restart in between."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ops_pipelines.core.notes import Audience, Message
from ops_pipelines.core.policy import ActionClass, Consent, Policy
from ops_pipelines.core.release import Component, Reversibility
from ops_pipelines.core.rollout import NodeStage, RolloutState
from ops_pipelines.people.compose import tell
from ops_pipelines.people.delivery import deliver
from ops_pipelines.people.planned_work import keep_silences
from ops_pipelines.rollouts import orders
from ops_pipelines_lab.simulator.versions import ReleaseTrouble
from tests.flow.fake_silencer import FakeSilencer
from tests.scenarios.rollout_stage import (
    KERNEL,
    LIMITS,
    NEW_KERNEL,
    PERSON,
    ROLLOUT_POLICY,
    RolloutStage,
    bad_kernel,
    change,
    release_of,
)
from tests.scenarios.telling_stage import BY_DAY, PAGES
from tests.simulator.small_cluster import TRAINING

WORK = replace(TRAINING, node_count=1, gpus_per_node=2, work_seconds=60.0, time_limit_seconds=90.0)
ONE_WAY = release_of(change(Component.KERNEL, NEW_KERNEL, reversibility=Reversibility.NO, rollback=()))


class Told(RolloutStage):
    """Reports after every pass, as a sensor of its own does; `restarts` has a new process for each."""

    restarts = False

    def _begin_on(self, directory: Path, twin: Any, policy: Policy) -> None:
        super()._begin_on(directory, twin, policy)
        self.cluster = replace(
            self.cluster,
            outbox=self.cluster.ledger,  # type: ignore[arg-type]  # SqlLedger is both
            tell_rules=BY_DAY,
            pages_url=PAGES,
        )

    def step(self, seconds: float = 3.0) -> None:
        super().step(seconds)
        self.look()

    def look(self) -> None:
        """Tell what is new; one process composes, another one sends, where processes do not live long."""
        tell(self.cluster)
        if self.restarts:
            self.restart()
        deliver(self.cluster, stop_at=self.clock.now() + timedelta(seconds=3))

    def look_after(self, **passed: float) -> None:
        self.let_pass(timedelta(**passed).total_seconds())
        self.look()
        self.let_pass(30)
        self.look()

    def told(self, audience: Audience = Audience.ON_CALL) -> list[tuple[str, str]]:
        """Return severity and title of what an audience got."""
        return [(each.severity.value, each.title) for each in self.of(audience)]

    def of(self, audience: Audience) -> list[Message]:
        return [each for each in self.messages.messages if each.audience is audience]


@pytest.mark.parametrize("restarts", [False, True])
def test_good_release_is_announced_begins_and_is_over(tmp_path: Path, restarts: bool) -> None:
    stage = Told(tmp_path, WORK, node_count=3)
    stage.restarts = restarts
    stage.let_pass(10)
    stage.start()

    stage.run_to()
    stage.look_after(seconds=30)
    stage.look_after(hours=24)

    assert stage.told() == [
        ("notice", "ROLL-0001: autumn begins, 3 nodes in 2 waves"),
        ("info", stage.told()[1][1]),
        ("info", "digest: 1 fact of 1 rollout"),
    ]
    assert stage.told()[1][1].startswith("ROLL-0001: done, 3 nodes on autumn, after")
    team = WORK.account
    assert [(each.recipient, each.title) for each in stage.of(Audience.TEAM)] == [
        (team, "autumn comes to 1 node that your jobs run on"),
        (team, "digest: 1 fact of 1 rollout"),
    ]
    (announced, _) = stage.of(Audience.TEAM)
    assert "no job is killed" in announced.body
    assert "save checkpoints" in announced.body
    assert announced.links == ()
    assert stage.of(Audience.ON_CALL)[1].closes == ("ROLL-0001",)
    assert [link.url for link in stage.of(Audience.ON_CALL)[1].links] == [f"{PAGES}/rollouts/ROLL-0001"]


def test_release_that_fails_is_told_to_go_back_with_why_and_to_be_over(tmp_path: Path) -> None:
    everywhere = replace(WORK, node_count=4, work_seconds=20.0)
    stage = Told(tmp_path, everywhere, node_count=4, release_faults=(bad_kernel(ReleaseTrouble.COMES_UP_OLD),))
    stage.restarts = True
    stage.let_pass(10)
    stage.start()

    stage.run_to()
    stage.look_after(seconds=30)

    titles = [title.partition(", after")[0].partition(", 2 nodes touched")[0] for _, title in stage.told()]
    assert titles[0] == "ROLL-0001: autumn begins, 4 nodes in 3 waves"
    assert titles[-1] == "ROLL-0001: autumn is back where it came from"
    assert [each for each in stage.told(Audience.TEAM) if "rolls back" in each[1]] == [
        ("notice", "autumn is stopped and rolls back")
    ]
    assert len(titles) == len(set(titles))


def test_yes_is_asked_for_at_once_and_again_each_time_that_nobody_answers(tmp_path: Path) -> None:
    policy = replace(ROLLOUT_POLICY, consents={ActionClass.UPDATE: Consent.APPROVE})
    stage = Told(tmp_path, policy=policy)
    stage.start()

    stage.look_after(seconds=1)
    first = stage.told()
    for _ in range(4):
        stage.look_after(hours=7)
    asked = stage.told()
    orders.say_yes(stage.rollout().rollout, stage.cluster, actor=PERSON)
    stage.look_after(hours=24)

    assert first == [("warning", "ROLL-0001: may autumn begin?")]
    assert asked == [*first, ("warning", "ROLL-0001: still: may autumn begin?")]
    assert "`ops-pipelines rollout approve ROLL-0001`" in stage.messages.messages[0].body
    assert stage.told()[2:] == [("notice", "ROLL-0001: autumn begins, 6 nodes in 3 waves")]


def test_question_that_is_answered_before_it_goes_out_is_put_to_nobody(tmp_path: Path) -> None:
    policy = replace(ROLLOUT_POLICY, consents={ActionClass.UPDATE: Consent.APPROVE})
    stage = Told(tmp_path, policy=policy)
    stage.start()
    stage.look()

    orders.say_yes(stage.rollout().rollout, stage.cluster, actor=PERSON)
    stage.look_after(seconds=30)

    assert stage.told() == [("notice", "ROLL-0001: autumn begins, 6 nodes in 3 waves")]


def test_what_cannot_go_back_is_asked_for_wave_by_wave(tmp_path: Path) -> None:
    stage = Told(tmp_path, policy=replace(ROLLOUT_POLICY, rollouts=replace(LIMITS, canary_counts=(1,))), node_count=3)
    stage.start(ONE_WAY)
    for _ in range(2):
        stage.run_to(RolloutState.AWAITING_YES)
        stage.look_after(seconds=1)
        orders.say_yes(stage.rollout().rollout, stage.cluster, actor=PERSON)

    asked = [each for each in stage.of(Audience.ON_CALL) if each.severity.value == "warning"]
    assert [each.title for each in asked] == [
        "ROLL-0001: may autumn begin?",
        "ROLL-0001: may wave 2 of autumn begin?",
    ]
    assert all("What cannot roll back: kernel" in each.body for each in asked)
    assert "1 node:" in asked[0].body


def test_pause_is_nobodys_news_until_it_is_forgotten(tmp_path: Path) -> None:
    stage = Told(tmp_path)
    name = stage.start()
    stage.look_after(seconds=30)
    orders.pause(name, stage.cluster, actor=PERSON, reason="the network is being worked on")

    stage.look_after(hours=23)
    before = len(stage.told())
    stage.look_after(hours=1)
    orders.abort(name, stage.cluster, actor=PERSON, reason="not this week")
    stage.step()
    stage.look_after(seconds=30)

    assert before == 1
    assert [severity for severity, _ in stage.told()[1:]] == ["warning", "info"]
    (_, reminder, over) = stage.of(Audience.ON_CALL)
    assert reminder.title.startswith(f"ROLL-0001: still: paused by {PERSON} since")
    assert "the network is being worked on" in reminder.body
    assert over.title.startswith("ROLL-0001: ended, 0 nodes on autumn")
    assert "not this week" in over.body or "ended by a person" in over.body


def test_node_that_cannot_be_brought_back_pages_and_stays_asked_for(tmp_path: Path) -> None:
    stage = Told(tmp_path, node_count=4, release_faults=(bad_kernel(ReleaseTrouble.NEVER_BOOTS),))
    stage.start()

    stage.run_to(RolloutState.STUCK)
    stage.look()
    paged = [each for each in stage.of(Audience.ON_CALL) if each.severity.value == "critical"]
    stage.look_after(hours=24)

    lost = [name for name, each in stage.nodes().items() if each.stage is NodeStage.LOST]
    assert paged
    assert all(any(name in each.title + each.body for each in paged) for name in lost)
    stuck = [each for each in stage.of(Audience.ON_CALL) if each.thread == "ROLL-0001" and "stuck" in each.title]
    assert [(each.severity.value, "still" in each.title) for each in stuck] == [("critical", False), ("critical", True)]
    assert "`ops-pipelines rollout back ROLL-0001" in stuck[0].body


def test_alerts_are_silenced_while_a_rollout_has_the_node_and_no_longer(tmp_path: Path) -> None:
    stage = Told(tmp_path, node_count=3)
    silencer = FakeSilencer()
    stage.start(KERNEL)
    while stage.rollout().state is RolloutState.RUNNING:
        stage.step()
        keep_silences(silencer, stage.cluster)
        owned = stage.cluster.ledger.read_state(stage.clock.now()).owned
        assert {each.node for each in silencer.ours()} == set(owned)
    assert silencer.ours() == ()
