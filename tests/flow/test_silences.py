"""Silences follow planned work: one for each node that we took out of service, renewed and ended; nobody else's."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.identity import IncidentId, NodeName, RolloutId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.notes import Message, Silence, Silencer, WantedSilence
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.people.planned_work import LIFE, changes_of, keep_silences, wanted_silences
from tests.flow.fake_silencer import FakeSilencer
from tests.ports.ledger_samples import NOW, drain, incident, outcome, record
from tests.ports.silencer_contract import SilencerContract, wanted
from tests.shell.desk import Desk


class TestFakeSilencer(SilencerContract):
    @pytest.fixture
    def silencer(self) -> Silencer:
        return FakeSilencer()

    @pytest.fixture
    def now(self) -> datetime:
        return NOW


def state_of(incident_state: IncidentState, *records: ActionRecord) -> LedgerState:
    return LedgerState(
        head_seq=0, decided_through=0, evidence_head=0, incidents=(incident(1, state=incident_state),),
        incident_count=1, last_change_seq={}, records=records, approvals=(), pause=None,
    )  # fmt: skip


def done(verb: Verb = Verb.DRAIN, *, kind: OutcomeKind = OutcomeKind.DONE, node: str = "gpu003") -> ActionRecord:
    return replace(record(replace(drain(1, node=node), verb=verb)), outcome=outcome(kind))


# -- what is required --


@pytest.mark.parametrize("state", list(IncidentState))
def test_node_is_silenced_while_it_is_out_of_service_for_us(state: IncidentState) -> None:
    is_ours = state in (IncidentState.ACTING, IncidentState.VERIFYING, IncidentState.IN_REPAIR)

    assert bool(wanted_silences(state_of(state, done()))) is is_ours


@pytest.mark.parametrize(
    ("records", "count"),
    [
        ((), 0),
        ((done(kind=OutcomeKind.FAILED),), 0),
        ((done(kind=OutcomeKind.UNKNOWN),), 0),
        ((record(drain(1)),), 0),
        ((done(),), 1),
        ((done(), done(Verb.RESUME)), 0),
        ((done(), done(Verb.RESUME), done()), 1),
        ((done(node="gpu009"),), 0),
    ],
)
def test_only_a_drain_that_is_done_and_not_taken_back_counts(records: tuple[ActionRecord, ...], count: int) -> None:
    assert len(wanted_silences(state_of(IncidentState.ACTING, *records))) == count


def test_node_that_a_rollout_has_in_hand_is_silenced_and_an_incident_that_drained_it_first_keeps_its_own() -> None:
    owned = {NodeName("gpu001"): RolloutId("ROLL-0001"), NodeName("gpu003"): RolloutId("ROLL-0001")}

    state = replace(state_of(IncidentState.ACTING, done()), owned=owned)

    assert [(each.node, each.incident) for each in wanted_silences(state)] == [
        ("gpu001", "ROLL-0001"),
        ("gpu003", "INC-0001"),
    ]


@pytest.mark.parametrize("node", ["", " ", ".*", "gpu001|gpu002", "gpu001\n", "gpu001,"])
def test_silence_of_no_node_or_of_many_cannot_be_wanted(node: str) -> None:
    with pytest.raises(ValueError, match="node name"):
        WantedSilence(node=NodeName(node), incident=IncidentId("INC-0001"))


# -- what has to change --


def running(node: str | None, *, minutes_left: float = 60, number: int = 1, name: str = "s") -> Silence:
    return Silence(
        silence_id=name, node=None if node is None else NodeName(node), comment=f"INC-{number:04d} {node}",
        starts_at=NOW - timedelta(hours=1), ends_at=NOW + timedelta(minutes=minutes_left),
    )  # fmt: skip


@pytest.mark.parametrize(("minutes_left", "is_renewed"), [(31, False), (30, False), (29, True), (0, True)])
def test_silence_is_renewed_in_its_second_half(minutes_left: int, is_renewed: bool) -> None:
    changes = changes_of([wanted("gpu001")], [running("gpu001", minutes_left=minutes_left)], now=NOW)

    assert (bool(changes.renew), changes.make, changes.expire) == (is_renewed, (), ())


def test_silence_tells_the_incident_for_which_the_node_is_out_now() -> None:
    assert changes_of([wanted("gpu001", 2)], [running("gpu001", number=1)], now=NOW).renew


def test_silence_of_ours_that_somebody_changed_is_ended_and_made_anew() -> None:
    changes = changes_of([wanted("gpu001")], [running(None)], now=NOW)

    assert [each.node for each in changes.make] == ["gpu001"]
    assert len(changes.expire) == 1


NODES = st.sampled_from(["gpu001", "gpu002", "gpu003"])


@given(
    wanted_nodes=st.sets(NODES),
    present=st.lists(st.tuples(st.one_of(st.none(), NODES), st.integers(-5, 90), st.integers(1, 2)), max_size=6),
)
def test_every_wanted_node_ends_up_with_one_silence_and_no_other_has_any(
    wanted_nodes: set[str], present: list[tuple[str | None, int, int]]
) -> None:
    shown = [
        running(node, minutes_left=left, number=number, name=f"s{index}")
        for index, (node, left, number) in enumerate(present)
    ]
    asked = [wanted(node) for node in sorted(wanted_nodes)]

    changes = changes_of(asked, shown, now=NOW)

    kept = [each for each in shown if each not in changes.expire]
    assert sorted([str(each.node) for each in kept] + [each.node for each in changes.make]) == sorted(wanted_nodes)
    assert {silence for silence, _ in changes.renew} <= set(kept)
    assert all(silence.node == each.node for silence, each in changes.renew)


# -- one turn --


class Post:
    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.is_down = False

    def send(self, message: Message) -> str:
        if self.is_down:
            raise SourceUnavailable("no channel took it")
        self.sent.append(message)
        return "sent"


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, post: Post) -> Cluster:
    return replace(Desk(tmp_path_factory.mktemp("desk")).cluster, notifier=post)


def test_turn_without_planned_work_ends_what_was_left(cluster: Cluster) -> None:
    silencer = FakeSilencer()
    silencer.silence(wanted("gpu001"), starts_at=NOW, ends_at=NOW + LIFE)

    assert keep_silences(silencer, cluster) == "ended 1 silence(s)"
    assert (silencer.running, keep_silences(silencer, cluster)) == ([], "nothing to silence")


def test_alertmanager_that_is_down_is_told_of_once_an_outage(cluster: Cluster, post: Post) -> None:
    silencer = FakeSilencer()
    told: list[int] = []
    for is_down, minutes in [(True, 0), (True, 4), (True, 2), (True, 60), (False, 1), (True, 1), (True, 6)]:
        cluster.clock.wait(60 * minutes)
        silencer.is_down = is_down
        keep_silences(silencer, cluster)
        told.append(len(post.sent))

    assert told == [0, 0, 1, 1, 1, 1, 2]
    assert "does not answer" in post.sent[0].title
    assert post.sent[0].key != post.sent[1].key


def test_message_that_no_channel_takes_is_sent_with_the_next_turn(cluster: Cluster, post: Post) -> None:
    silencer = FakeSilencer()
    silencer.is_down = post.is_down = True
    for _ in range(2):
        keep_silences(silencer, cluster)
        cluster.clock.wait(600)
    post.is_down = False

    keep_silences(silencer, cluster)

    assert len(post.sent) == 1
