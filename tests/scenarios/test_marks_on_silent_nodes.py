"""The hold in the reflex: the tick that first sees a node silent marks its jobs, and takes the marks off in time."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.action import OutcomeKind, Verb
from ops_pipelines.core.cluster import Fleet
from ops_pipelines.core.entries import KEPT_ACTS
from ops_pipelines.core.identity import JobAttempt, JobId, NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import JobState, NodeStatus, PowerState
from ops_pipelines.core.policy import ActionClass, Consent, Mode
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.observe.intake import take_in_conditions
from ops_pipelines.people import orders
from ops_pipelines.remediate.judgement import read_facts
from ops_pipelines.remediate.oversight import settle_left_behind
from ops_pipelines.remediate.reflex import react, see_to_marks
from ops_pipelines.remediate.timeliness import read_lateness
from ops_pipelines_lab.simulator.ground_truth import read_split_brains
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.small_cluster import TRAINING

HASTY = replace(SHORT_DURATIONS, slurmd_timeout_seconds=8.0)
"""The scheduler gives a silent node up before anybody has believed its silence."""
PATIENT = replace(
    POLICY, durations=replace(POLICY.durations, confirm_unreachable_after=timedelta(seconds=20), probation=timedelta(0))
)
ALONE = tuple(replace(TRAINING, name=f"alone-{number}", node_count=1) for number in range(9))


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5, policy=PATIENT)
    autopilot.let_pass(15)
    return autopilot


def tick(autopilot: SmallAutopilot) -> str:
    """Do what one tick of `fault_sensor` does about conditions."""
    take_in_conditions(autopilot.cluster)
    react(autopilot.cluster, lease=autopilot.lease)
    return see_to_marks(autopilot.cluster, lease=autopilot.lease)


def cut_off(autopilot: SmallAutopilot, *nodes: str, seconds: float) -> None:
    autopilot.twin.inject(FaultKind.NETWORK_PARTITION, *nodes, seconds=seconds)
    autopilot.let_pass(2.5)  # until the scheduler's next ping


def marks(autopilot: SmallAutopilot) -> list[tuple[Verb, str, OutcomeKind | None]]:
    return [
        (each.action.verb, each.action.target, None if each.outcome is None else each.outcome.kind)
        for each in autopilot.cluster.ledger.read_state(autopilot.clock.now()).records
        if each.action.verb in (Verb.MARK, Verb.UNMARK)
    ]


def test_first_tick_that_sees_the_silence_marks_the_job_and_does_no_more(autopilot: SmallAutopilot) -> None:
    cut_off(autopilot, "gpu001", seconds=60)

    said = tick(autopilot)

    assert said == "marked 1 job(s) held"
    assert autopilot.commands() == [EntryKind.MARK]
    assert (autopilot.job().state, autopilot.job().is_held) == (JobState.RUNNING, True)
    assert marks(autopilot) == [(Verb.MARK, "job 1001", OutcomeKind.DONE)]
    assert autopilot.incident().state is IncidentState.OPEN
    assert autopilot.messages.messages == []


def test_mark_is_taken_off_when_the_node_answers_and_the_job_was_never_touched(autopilot: SmallAutopilot) -> None:
    attempt = autopilot.job().attempt
    cut_off(autopilot, "gpu001", seconds=6)
    tick(autopilot)
    autopilot.let_pass(8)

    said = tick(autopilot)

    assert said == "let 1 job(s) go"
    assert autopilot.commands() == [EntryKind.MARK, EntryKind.RELEASE]
    assert (autopilot.job().attempt, autopilot.job().is_held) == (attempt, False)
    assert tick(autopilot) == ""


def test_every_silence_is_marked_anew(autopilot: SmallAutopilot) -> None:
    for _ in range(2):
        cut_off(autopilot, "gpu001", seconds=4)
        tick(autopilot)
        autopilot.let_pass(6)
        tick(autopilot)

    assert autopilot.commands() == [EntryKind.MARK, EntryKind.RELEASE] * 2


def test_job_that_the_scheduler_gives_up_before_the_silence_is_believed_starts_after_the_power_is_off(
    tmp_path: Path,
) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5, policy=PATIENT, durations=HASTY)
    autopilot.let_pass(15)
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")
    autopilot.let_pass(2.5)
    tick(autopilot)
    autopilot.let_pass(9)

    given_up = autopilot.job()
    for _ in range(40):
        autopilot.run_once()
        tick(autopilot)
        autopilot.let_pass(3)

    assert (given_up.state, given_up.is_held) == (JobState.PENDING, True)
    kinds = [each.kind for each in autopilot.received(EntryKind.MARK, EntryKind.POWER_OFF, EntryKind.RELEASE)]
    assert kinds == [EntryKind.MARK, EntryKind.POWER_OFF, EntryKind.RELEASE]
    assert (autopilot.job().state, autopilot.job().restart_count) == (JobState.RUNNING, 1)
    assert read_split_brains(autopilot.twin) == ()


def test_without_the_tick_the_same_story_has_two_writers(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5, policy=PATIENT, durations=HASTY)
    autopilot.let_pass(15)
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")
    autopilot.let_pass(30)

    autopilot.run_for(60)

    assert read_split_brains(autopilot.twin) != ()


def test_plan_takes_the_mark_over_and_lets_the_job_go_itself(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")
    autopilot.let_pass(2.5)

    for _ in range(40):
        tick(autopilot)
        autopilot.run_once()
        autopilot.let_pass(3)

    assert autopilot.incident().state is IncidentState.RESOLVED
    assert marks(autopilot) == [(Verb.MARK, "job 1001", OutcomeKind.DONE)]
    done = [each.action.verb for each in autopilot.cluster.ledger.records(autopilot.incident().incident)]
    assert [verb for verb in done if verb in (Verb.MARK, Verb.HOLD, Verb.POWER_OFF, Verb.RELEASE)] == [
        Verb.MARK,
        Verb.HOLD,
        Verb.POWER_OFF,
        Verb.RELEASE,
    ]
    assert read_split_brains(autopilot.twin) == ()


def test_storm_is_marked_too_with_one_page_and_released_in_bulk(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, *ALONE, node_count=12, policy=PATIENT)
    autopilot.let_pass(15)
    nodes = [f"gpu{number:03}" for number in range(1, 10)]
    cut_off(autopilot, *nodes, seconds=40)

    tick(autopilot)
    marked, pages = autopilot.commands(), [page for page in autopilot.pages() if "marked held" in page.body]
    autopilot.run_for(20)
    tick(autopilot)
    autopilot.let_pass(40)
    tick(autopilot)

    assert marked == [EntryKind.MARK] * 9
    (page,) = pages
    assert "9 job(s) of 9 nodes" in page.body
    assert len([page for page in autopilot.pages() if "marked held" in page.body]) == 1
    assert autopilot.commands() == [EntryKind.MARK] * 9 + [EntryKind.RELEASE] * 9
    assert not any(each.is_held for each in autopilot.cluster.scheduler.read_jobs())


@pytest.mark.parametrize(
    "mode",
    [
        replace(PATIENT, mode=Mode.OBSERVE),
        replace(PATIENT, mode=Mode.APPROVE),
        replace(PATIENT, consents={ActionClass.MOVE_JOBS: Consent.FORBID}),
        replace(PATIENT, consents={ActionClass.POWER: Consent.FORBID}),
        replace(PATIENT, untouchable_nodes=frozenset({NodeName("gpu001")})),
    ],
    ids=["observe", "approve", "move_jobs: forbid", "power: forbid", "untouchable"],
)
def test_nothing_is_marked_where_nothing_may_be_held(autopilot: SmallAutopilot, mode: object) -> None:
    autopilot.use_policy(mode)  # type: ignore[arg-type]  # policies, one a case
    cut_off(autopilot, "gpu001", seconds=60)

    tick(autopilot)

    assert autopilot.commands() == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_nothing_is_written_under_a_pause(autopilot: SmallAutopilot, when: str) -> None:
    cut_off(autopilot, "gpu001", seconds=6)
    if when == "after":
        tick(autopilot)
    before = autopilot.commands()
    orders.pause(autopilot.cluster, actor="day-shift", reason="a test")
    autopilot.let_pass(0 if when == "before" else 8)

    said = tick(autopilot)

    assert (said, autopilot.commands()) == ("", before)


def test_being_late_does_not_keep_a_mark_from_being_set(autopilot: SmallAutopilot) -> None:
    late = '{"since": "%s", "last_at": "%s", "why": "a test"}'
    now = autopilot.clock.now().isoformat()
    autopilot.cluster.ledger.take_in(
        source="lateness", observations=(), rejected=(), cursor=late % (now, now), now=autopilot.clock.now()
    )
    cut_off(autopilot, "gpu001", seconds=60)

    tick(autopilot)

    assert read_lateness(autopilot.cluster.ledger, autopilot.clock.now()) is not None
    assert autopilot.commands() == [EntryKind.MARK]


def test_job_that_must_not_be_requeued_is_let_be(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, replace(TRAINING, is_requeueable=False), node_count=5, policy=PATIENT)
    autopilot.let_pass(15)
    cut_off(autopilot, "gpu001", seconds=60)

    tick(autopilot)

    assert autopilot.commands() == []


def test_hold_of_somebody_else_is_neither_marked_nor_released(autopilot: SmallAutopilot) -> None:
    attempt = autopilot.job().attempt
    assert attempt is not None
    autopilot.cluster.scheduler.mark([attempt])  # an administrator's own hold of the running job
    cut_off(autopilot, "gpu001", seconds=6)
    tick(autopilot)
    autopilot.let_pass(8)
    tick(autopilot)

    assert autopilot.commands() == [EntryKind.MARK]
    assert autopilot.job().is_held
    assert marks(autopilot) == []


def test_who_releases_a_marked_job_has_decided(autopilot: SmallAutopilot) -> None:
    cut_off(autopilot, "gpu001", seconds=60)
    tick(autopilot)
    autopilot.cluster.scheduler.release(autopilot.job().job)

    tick(autopilot)

    assert autopilot.commands() == [EntryKind.MARK, EntryKind.RELEASE]
    assert not autopilot.job().is_held


def test_job_that_ends_meanwhile_is_let_be(autopilot: SmallAutopilot) -> None:
    cut_off(autopilot, "gpu001", seconds=8)
    tick(autopilot)
    autopilot.twin.command(EntryKind.CANCEL, job=autopilot.job().job)
    autopilot.let_pass(12)

    tick(autopilot)

    assert EntryKind.RELEASE not in autopilot.commands()


def test_next_process_takes_off_what_a_dead_one_has_marked(autopilot: SmallAutopilot) -> None:
    cut_off(autopilot, "gpu001", seconds=6)
    tick(autopilot)
    autopilot.restart()
    autopilot.let_pass(8)

    tick(autopilot)

    assert autopilot.commands() == [EntryKind.MARK, EntryKind.RELEASE]


class _Mute:
    """A scheduler that takes a command, or not, and does not say so."""

    def __init__(self, inner: Scheduler, *, is_taken: bool) -> None:
        self._inner, self._is_taken = inner, is_taken

    def __getattr__(self, name: str) -> Callable[..., object]:
        found: Callable[..., object] = getattr(self._inner, name)
        return found

    def mark(self, attempts: list[JobAttempt]) -> None:
        if self._is_taken:
            self._inner.mark(attempts)
        raise SourceUnavailable("no answer")

    def unmark(self, jobs: Mapping[JobId, int | None]) -> None:
        if self._is_taken:
            self._inner.unmark(jobs)
        raise SourceUnavailable("no answer")


def put_between(autopilot: SmallAutopilot, scheduler: _Mute) -> None:
    autopilot.cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", scheduler))


@pytest.mark.parametrize("is_taken", [True, False], ids=["taken", "lost"])
def test_release_without_an_answer_is_read_back_and_sent_once(autopilot: SmallAutopilot, is_taken: bool) -> None:
    inner = autopilot.cluster
    cut_off(autopilot, "gpu001", seconds=6)
    tick(autopilot)
    autopilot.let_pass(8)
    mute = _Mute(inner.scheduler, is_taken=is_taken)
    put_between(autopilot, mute)
    tick(autopilot)
    autopilot.cluster = inner

    for _ in range(3):
        tick(autopilot)

    assert autopilot.commands() == [EntryKind.MARK, EntryKind.RELEASE]
    assert not autopilot.job().is_held
    assert marks(autopilot)[1:] == [(Verb.UNMARK, "job 1001", OutcomeKind.DONE)]


@pytest.mark.parametrize("is_taken", [True, False], ids=["taken", "lost"])
def test_mark_without_an_answer_is_read_back_and_set_once(autopilot: SmallAutopilot, is_taken: bool) -> None:
    inner = autopilot.cluster
    cut_off(autopilot, "gpu001", seconds=60)
    mute = _Mute(inner.scheduler, is_taken=is_taken)
    put_between(autopilot, mute)
    tick(autopilot)
    autopilot.cluster = inner

    for _ in range(3):
        tick(autopilot)

    assert autopilot.commands() == [EntryKind.MARK]
    assert marks(autopilot) == [(Verb.MARK, "job 1001", OutcomeKind.DONE)]


class _Slow(_Mute):
    """A scheduler that answers every question after a second, and takes what it is reported."""

    def __init__(self, autopilot: SmallAutopilot) -> None:
        super().__init__(autopilot.cluster.scheduler, is_taken=True)
        self._autopilot = autopilot

    def read_nodes(self) -> tuple[NodeStatus, ...]:
        self._autopilot.clock.wait(1.0)
        return self._inner.read_nodes()

    def mark(self, attempts: list[JobAttempt]) -> None:
        self._inner.mark(attempts)


def test_marks_without_an_answer_cost_a_slow_scheduler_s_look_little_and_are_all_set_in_the_end(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, *ALONE, node_count=12, policy=PATIENT)
    autopilot.let_pass(15)
    inner = autopilot.cluster
    cut_off(autopilot, *(f"gpu{number:03}" for number in range(1, 10)), seconds=300)
    put_between(autopilot, _Mute(inner.scheduler, is_taken=False))
    tick(autopilot)
    autopilot.cluster = inner
    put_between(autopilot, _Slow(autopilot))

    looks = []
    for _ in range(8):
        began_at = autopilot.clock.now()
        see_to_marks(autopilot.cluster, lease=autopilot.lease)
        looks.append(autopilot.clock.now() - began_at)

    # Its own reading, one of all witnesses, four seconds for the rest, and a last one that was started in time.
    assert max(looks) <= timedelta(seconds=1 + 1 + 4 + 3)
    assert {kind for _, _, kind in marks(autopilot)} == {OutcomeKind.DONE}
    assert autopilot.commands() == [EntryKind.MARK] * 9


def test_given_up_job_is_let_go_when_a_person_has_cut_the_power(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5, policy=PATIENT, durations=HASTY)
    autopilot.let_pass(15)
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")
    autopilot.let_pass(2.5)
    tick(autopilot)
    autopilot.let_pass(12)

    before = tick(autopilot)
    autopilot.twin.command(EntryKind.POWER_OFF, nodes=("gpu001",))
    after = tick(autopilot)
    autopilot.let_pass(10)

    assert (before, after) == ("", "let 1 job(s) go")
    assert autopilot.job().state is JobState.RUNNING
    assert read_split_brains(autopilot.twin) == ()


class _SlowSwitches:
    """A fleet whose power switches answer one after the other, each after a while."""

    def __init__(self, autopilot: SmallAutopilot) -> None:
        self._autopilot, self._inner = autopilot, autopilot.cluster.fleet
        self.asked: list[NodeName] = []

    def power_state(self, node: NodeName) -> PowerState:
        self.asked.append(node)
        self._autopilot.clock.wait(2.0)
        return self._inner.power_state(node)


def test_switches_that_answer_slowly_cost_a_look_little_and_are_all_asked_in_the_end(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, *ALONE, node_count=12, policy=PATIENT, durations=HASTY)
    autopilot.let_pass(15)
    nodes = [f"gpu{number:03}" for number in range(1, 10)]
    for node in nodes:
        autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, node)
    autopilot.let_pass(2.5)
    tick(autopilot)
    autopilot.let_pass(12)
    autopilot.twin.command(EntryKind.POWER_OFF, nodes=tuple(nodes))
    switches = _SlowSwitches(autopilot)
    cluster = replace(autopilot.cluster, fleet=cast("Fleet", switches))

    looks = []
    for _ in range(20):
        began_at = autopilot.clock.now()
        facts = read_facts({Verb.UNMARK}, cluster)
        looks.append((autopilot.clock.now() - began_at, facts.without_power))
        autopilot.let_pass(10)

    assert max(took for took, _ in looks) <= timedelta(seconds=4 + 4 * 2)  # Four that were asked in the last moment.
    assert frozenset().union(*(off for _, off in looks)) == set(nodes)


def test_release_is_tried_until_it_is_taken_however_long_there_is_no_answer(autopilot: SmallAutopilot) -> None:
    inner = autopilot.cluster
    cut_off(autopilot, "gpu001", seconds=6)
    tick(autopilot)
    autopilot.let_pass(8)
    mute = _Mute(inner.scheduler, is_taken=False)
    put_between(autopilot, mute)
    for _ in range(4):
        tick(autopilot)
        settle_left_behind(autopilot.cluster)
        autopilot.let_pass(60)
    autopilot.cluster = inner

    tick(autopilot)
    tick(autopilot)

    assert not autopilot.job().is_held
    assert marks(autopilot)[1:] == [(Verb.UNMARK, "job 1001", OutcomeKind.DONE)]


class _Refusing(_Mute):
    """A scheduler that says no."""

    def unmark(self, jobs: Mapping[JobId, int | None]) -> None:
        raise SourceRefused("access denied")


def test_release_that_was_refused_is_tried_again_after_a_while_and_not_at_once(autopilot: SmallAutopilot) -> None:
    inner = autopilot.cluster
    cut_off(autopilot, "gpu001", seconds=6)
    tick(autopilot)
    autopilot.let_pass(8)
    refusing = _Refusing(inner.scheduler, is_taken=False)
    put_between(autopilot, refusing)
    tick(autopilot)
    autopilot.cluster = inner
    tick(autopilot)
    at_once = autopilot.job().is_held

    autopilot.let_pass(600)
    tick(autopilot)

    assert at_once
    assert not autopilot.job().is_held
    assert [kind for _, _, kind in marks(autopilot)[1:]] == [OutcomeKind.FAILED, OutcomeKind.DONE]


class _Behind(_Mute):
    """A scheduler that is so far behind that it carries a command out long after its client was killed."""

    def mark(self, attempts: list[JobAttempt]) -> None:
        self.waiting = attempts
        raise SourceUnavailable("no answer")


def test_mark_that_lands_after_the_node_answers_is_taken_off(autopilot: SmallAutopilot) -> None:
    inner = autopilot.cluster
    cut_off(autopilot, "gpu001", seconds=6)
    behind = _Behind(inner.scheduler, is_taken=False)
    put_between(autopilot, behind)
    tick(autopilot)
    autopilot.cluster = inner
    autopilot.let_pass(30)  # the node answers again
    tick(autopilot)
    inner.scheduler.mark(behind.waiting)

    for _ in range(3):
        tick(autopilot)

    assert not autopilot.job().is_held


def test_mark_outlives_its_incident_and_the_day_that_a_ledger_shows(tmp_path: Path) -> None:
    """Somebody drained the node for its repair: it is theirs, so its silence is no incident of ours any more."""
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5, policy=PATIENT, durations=HASTY)
    autopilot.let_pass(15)
    cut_off(autopilot, "gpu001", seconds=2 * 86_400)
    tick(autopilot)
    autopilot.let_pass(12)
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason="RMA 4711")
    incident = autopilot.incident()
    tick(autopilot)
    autopilot.cluster.ledger.change_incident(
        replace(incident, state=IncidentState.RESOLVED), actor="day-shift", now=autopilot.clock.now()
    )

    autopilot.let_pass(86_400 + 60)
    tick(autopilot)
    shown = marks(autopilot)
    autopilot.let_pass(86_400)
    tick(autopilot)

    assert [verb for verb, _, _ in shown] == [Verb.MARK]
    assert not autopilot.job().is_held
    tick(autopilot)
    assert autopilot.cluster.ledger.cursor(KEPT_ACTS) == ""
