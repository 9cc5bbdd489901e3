"""Two copies of one job at once, where the scheduler guards no restart: seen, reported at once, once, and kept."""

from dataclasses import replace
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.notes import Message, Severity
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.overlap import Certainty, Overlap
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.sources import Sample, SourceUnavailable, Telemetry
from ops_pipelines.observe.intake import take_in_conditions
from ops_pipelines.remediate.overlaps import see_to_overlaps
from ops_pipelines.report.terminal import print_document
from ops_pipelines.review.incident_report import report_on
from ops_pipelines.review.timeline import EventKind
from ops_pipelines.review.week_incidents import overlaps_in
from ops_pipelines.terminal.explain import explain_incident, explanation_document
from ops_pipelines_lab.simulator import ground_truth
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.small_cluster import TRAINING

CHECKPOINT = "/ckpt/run7/last"
SAVING = replace(TRAINING, checkpoint=CHECKPOINT)
OBSERVING = replace(POLICY, mode=Mode.OBSERVE)
LATE = replace(POLICY, durations=replace(POLICY.durations, confirm_unreachable_after=timedelta(seconds=60)))


def begin(tmp_path: Path, *, has_start_guard: bool = False, seconds: float = 10.0) -> SmallAutopilot:
    """Return an autopilot that is too slow for its scheduler: silence counts after a minute, given up it is at once."""
    autopilot = SmallAutopilot(
        tmp_path,
        SAVING,
        node_count=5,
        policy=LATE,
        durations=replace(SHORT_DURATIONS, slurmd_timeout_seconds=seconds),
        has_start_guard=has_start_guard,
    )
    autopilot.let_pass(15)
    look(autopilot)
    return autopilot


def look(autopilot: SmallAutopilot) -> None:
    """Do what the sensor does in each look at the conditions."""
    see_to_overlaps(autopilot.cluster, take_in_conditions(autopilot.cluster), lease=autopilot.lease)


def look_for(autopilot: SmallAutopilot, seconds: float) -> None:
    until = autopilot.clock.now() + timedelta(seconds=seconds)
    while autopilot.clock.now() < until:
        autopilot.let_pass(3)
        look(autopilot)


def fall_silent(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")


def told_of(autopilot: SmallAutopilot) -> list[Message]:
    return [each for each in autopilot.pages() if "wo copies" in each.body]


def overlaps(autopilot: SmallAutopilot) -> list[tuple[Incident, Overlap]]:
    return [(incident, each) for incident in autopilot.incidents() for each in incident.overlaps]


def test_two_copies_are_paged_at_once_with_all_that_a_person_needs(tmp_path: Path) -> None:
    autopilot = begin(tmp_path)
    saved_at = autopilot.job().checkpointed_at
    fall_silent(autopilot)

    look_for(autopilot, 30)

    (page,) = told_of(autopilot)
    ((_, overlap),) = overlaps(autopilot)
    assert len(ground_truth.read_split_brains(autopilot.twin)) == 1
    assert page.severity is Severity.CRITICAL
    assert "two copies" in page.title
    for said in ("job 1001", "gpu001", "gpu002, gpu003", " s so far", CHECKPOINT, "Cut the power of gpu001"):
        assert said in page.body
    assert f"{overlap.later.started_at:%H:%M:%S} UTC on, or discard it" in page.body
    assert saved_at is not None
    assert overlap.checkpointed_at is not None
    assert saved_at <= overlap.checkpointed_at < overlap.later.started_at
    assert overlap.certainty is Certainty.POSSIBLE
    assert overlap.ended_at is None
    assert autopilot.clock.now() - overlap.later.started_at < timedelta(seconds=20)


def test_owner_is_told_to_look_at_the_checkpoints(tmp_path: Path) -> None:
    autopilot = begin(tmp_path)
    fall_silent(autopilot)

    look_for(autopilot, 30)

    (notice,) = autopilot.owners_told()
    assert (notice.recipient, notice.severity) == (SAVING.user, Severity.WARNING)
    assert CHECKPOINT in notice.body


def test_nobody_is_told_twice_over_looks_and_restarts(tmp_path: Path) -> None:
    autopilot = begin(tmp_path)
    fall_silent(autopilot)
    look_for(autopilot, 30)
    told = list(autopilot.messages.messages)

    autopilot.restart()
    look_for(autopilot, 20)
    autopilot.restart()
    look(autopilot)

    assert autopilot.messages.messages == told
    assert len(overlaps(autopilot)) == 1


def test_page_that_no_channel_took_goes_out_with_a_later_look_of_another_process(tmp_path: Path) -> None:
    class Deaf:
        def send(self, message: Message) -> str:
            raise SourceUnavailable("no channel took the message")

    autopilot = begin(tmp_path)
    taking = autopilot.cluster.notifier
    autopilot.cluster = replace(autopilot.cluster, notifier=Deaf())
    fall_silent(autopilot)
    look_for(autopilot, 30)
    assert told_of(autopilot) == []

    autopilot.restart()
    autopilot.cluster = replace(autopilot.cluster, notifier=taking)
    look_for(autopilot, 9)

    assert len(told_of(autopilot)) == 1


def test_fence_ends_the_overlap_and_the_report_has_it(tmp_path: Path) -> None:
    autopilot = begin(tmp_path)
    fall_silent(autopilot)
    look_for(autopilot, 30)
    ((_, before),) = overlaps(autopilot)

    for _ in range(40):
        autopilot.run_once()
        look_for(autopilot, 3)

    ((incident, overlap),) = overlaps(autopilot)
    power_off = autopilot.received(EntryKind.POWER_OFF)[0]
    assert before.ended_at is None
    assert overlap.ended_at is not None
    assert timedelta(0) <= overlap.ended_at - power_off.at <= timedelta(seconds=10)
    assert len(told_of(autopilot)) == 1
    report = report_on(incident, autopilot.cluster)
    (event,) = [each for each in report.events if each.kind is EventKind.OVERLAPPED]
    assert (event.at, event.until) == (overlap.later.started_at, overlap.ended_at)
    assert "1001" in event.what
    assert any(CHECKPOINT in each.what for each in report.follow_ups)
    assert "two copies" in report.headline


def test_node_that_answers_again_ends_it(tmp_path: Path) -> None:
    autopilot = begin(tmp_path)
    autopilot.twin.inject(FaultKind.NETWORK_PARTITION, "gpu001", seconds=60.0)
    look_for(autopilot, 30)

    look_for(autopilot, 50)

    ((_, overlap),) = overlaps(autopilot)
    assert overlap.ended_at is not None
    assert timedelta(seconds=35) < overlap.lasted(autopilot.clock.now()) < timedelta(seconds=60)
    assert "answers again" in overlap.why


def test_overlap_that_turns_out_to_be_none_is_taken_back_in_the_record(tmp_path: Path) -> None:
    """A node that was booted again before the restart had nothing left; that shows only when it answers."""
    autopilot = begin(tmp_path)
    fall_silent(autopilot)
    look_for(autopilot, 6)
    autopilot.cluster.fleet.power_off(autopilot.node("gpu001").node)
    autopilot.cluster.fleet.power_on(autopilot.node("gpu001").node)

    look_for(autopilot, 60)

    found = [each.certainty for _, each in overlaps(autopilot)]
    assert found in ([], [Certainty.EXCLUDED])
    assert ground_truth.read_split_brains(autopilot.twin) == ()


def test_overlap_is_certain_where_gpus_of_the_silent_node_are_seen_at_work(tmp_path: Path) -> None:
    class Living:
        """Its exporter answers though its scheduler's daemon does not."""

        def __init__(self, others: Telemetry, last: tuple[Sample, ...]) -> None:
            self._others = others
            self._last = last

        def read_samples(self, at):  # type: ignore[no-untyped-def]
            return (*self._others.read_samples(at), *(replace(each, sampled_at=at) for each in self._last))

    autopilot = begin(tmp_path, seconds=70.0)
    telemetry = autopilot.cluster.telemetry
    last = [each for each in telemetry.read_samples(autopilot.clock.now()) if each.labels.get("Hostname") == "gpu001"]
    fall_silent(autopilot)
    autopilot.cluster = replace(autopilot.cluster, telemetry=Living(telemetry, tuple(last)))

    look_for(autopilot, 100)

    ((_, overlap),) = overlaps(autopilot)
    assert overlap.certainty is Certainty.CERTAIN
    assert "GPUs of gpu001 were at work" in overlap.why
    assert "ran at once" in told_of(autopilot)[0].body


def test_job_that_was_held_and_fenced_in_time_is_no_overlap(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, SAVING, node_count=5)
    autopilot.let_pass(15)
    look(autopilot)
    fall_silent(autopilot)

    for _ in range(60):
        look(autopilot)
        autopilot.run_once()
        autopilot.let_pass(1)

    assert autopilot.job().restart_count == 1
    assert autopilot.job().state is JobState.RUNNING
    assert overlaps(autopilot) == []
    assert told_of(autopilot) == []


def test_guard_that_held_makes_no_overlap(tmp_path: Path) -> None:
    autopilot = begin(tmp_path, has_start_guard=True)
    fall_silent(autopilot)

    look_for(autopilot, 60)
    autopilot.cluster.fleet.power_off(autopilot.node("gpu001").node)
    look_for(autopilot, 30)

    assert autopilot.job().restart_count == 1
    assert autopilot.job().state is JobState.RUNNING
    assert overlaps(autopilot) == []
    assert told_of(autopilot) == []


@pytest.mark.parametrize("away_seconds", [30.0, 300.0])
def test_overlap_that_began_while_we_were_stopped_is_told_when_we_go_on(tmp_path: Path, away_seconds: float) -> None:
    autopilot = begin(tmp_path)
    fall_silent(autopilot)
    autopilot.let_pass(away_seconds)

    look(autopilot)

    (page,) = told_of(autopilot)
    assert "gpu001" in page.body
    assert len(overlaps(autopilot)) == 1


def test_overlap_is_told_where_somebody_drained_the_silent_node_before_we_looked(tmp_path: Path) -> None:
    """The drain dates the reason again: when the scheduler gave the node up nobody can read any more."""
    autopilot = begin(tmp_path)
    fall_silent(autopilot)
    autopilot.let_pass(120)
    autopilot.cluster.scheduler.drain([NodeName("gpu001")], reason="ops_pipelines INC-0009: no answer")

    look_for(autopilot, 10)

    assert len(told_of(autopilot)) == 1


def test_without_an_incident_on_the_node_one_is_opened_for_it(tmp_path: Path) -> None:
    autopilot = begin(tmp_path)
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason="somebody's maintenance")
    fall_silent(autopilot)

    look_for(autopilot, 30)

    ((incident, _),) = overlaps(autopilot)
    assert incident.state is IncidentState.ESCALATED
    assert incident.nodes == frozenset()
    assert len(told_of(autopilot)) == 1


def test_who_only_observes_pages_and_tells_no_owner(tmp_path: Path) -> None:
    autopilot = begin(tmp_path)
    autopilot.use_policy(replace(LATE, mode=Mode.OBSERVE))
    fall_silent(autopilot)

    look_for(autopilot, 30)

    assert len(told_of(autopilot)) == 1
    assert autopilot.owners_told() == []


def test_quiet_jobs_cost_a_reading_a_minute(tmp_path: Path) -> None:
    autopilot = begin(tmp_path)
    asked = 0
    scheduler = autopilot.cluster.scheduler

    class Counting:
        def __getattr__(self, name: str) -> object:
            nonlocal asked
            asked += name == "read_jobs"
            return getattr(scheduler, name)

    autopilot.cluster = replace(autopilot.cluster, scheduler=Counting())  # type: ignore[arg-type]  # it is one

    look_for(autopilot, 100)

    assert asked == 1


def test_incident_of_the_silent_node_has_it_and_every_view_shows_it(tmp_path: Path) -> None:
    autopilot = begin(tmp_path)
    autopilot.use_policy(OBSERVING)
    fall_silent(autopilot)
    for _ in range(10):
        autopilot.let_pass(3)
        autopilot.observe_and_decide()
        look(autopilot)

    ((incident, overlap),) = overlaps(autopilot)
    out = StringIO()
    found = explain_incident(incident, autopilot.cluster)
    print_document(Console(file=out, width=200), explanation_document(found))

    assert incident.nodes == {"gpu001"}
    (told,) = found.shown.overlaps
    assert all(said in told for said in ("job 1001", "gpu001", CHECKPOINT))
    assert "two copies of job 1001" in out.getvalue()
    since = overlap.later.started_at
    second = timedelta(seconds=1)
    assert overlaps_in([incident], since=since, until=since + second) == (overlap,)
    assert overlaps_in([incident], since=since + second, until=since + 2 * second) == ()
    assert overlaps_in([incident], since=since - second, until=since) == ()
