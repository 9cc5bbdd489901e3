"""Runs of the acting lane side by side: what each leaves to the others, and what waits for its turn."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines import run_share
from ops_pipelines.clock import SystemClock
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobState, Workload
from ops_pipelines.core.plan import Rules
from ops_pipelines.remediate.bundle import OPENED
from ops_pipelines.remediate.judgement import TTL
from ops_pipelines.resources.page_files import BundleFiles
from ops_pipelines.run_lanes import ACTING_TAGS, VERIFYING_TAGS
from ops_pipelines.run_share import PLANS_TAG, is_left_to_another, shares_under_way
from ops_pipelines.sensors import due_runs as sensor_module
from ops_pipelines.sensors.due_runs import remediation_sensor
from ops_pipelines.sensors.fault import fault_sensor
from ops_pipelines.sensors.runs import POLL_FOR
from ops_pipelines.sensors.this_process import this_process
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from ops_pipelines_lab.simulator.scenario import JobSpec
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.shell.definitions_on import definitions_on
from tests.shell.job_origin import origin_of

A, B = "gpu001", "gpu002"
PAGES = {"incident_reports", "remediation_page", "shift_report"}
UNDER_WAY = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    return beginning(tmp_path)


def beginning(directory: Path, *jobs: JobSpec) -> SmallAutopilot:
    autopilot = SmallAutopilot(directory, *jobs, node_count=6, has_start_guard=True)
    autopilot.let_pass(5)
    autopilot.cluster.ledger.take_lease(holder=this_process(), ttl=TTL, now=autopilot.clock.now())
    return autopilot


def break_node(autopilot: SmallAutopilot, node: str, instance: dg.DagsterInstance) -> Incident:
    """Break a GPU; the fault sensor's tick opens its incident and drains the node."""
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, node, gpu=2)
    tick(fault_sensor, autopilot, instance)
    return incident_of(autopilot, node)


def incident_of(autopilot: SmallAutopilot, node: str) -> Incident:
    (found,) = [each for each in present(autopilot) if node in each.nodes]
    return found


def present(autopilot: SmallAutopilot) -> tuple[Incident, ...]:
    return autopilot.cluster.ledger.read_state(autopilot.clock.now()).incidents


def tick(
    sensor: dg.SensorDefinition, autopilot: SmallAutopilot, instance: dg.DagsterInstance, cursor: str | None = None
) -> dg.SensorResult:
    context = dg.build_sensor_context(
        instance=instance, cursor=cursor, resources={"cluster": autopilot.cluster}, sensor_name=sensor.name
    )
    result = sensor(context)
    assert isinstance(result, dg.SensorResult)
    return result


def run_under_way(
    instance: dg.DagsterInstance,
    *incidents: Incident,
    has_looked: bool = True,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
) -> dg.DagsterRun:
    """Return a run that another process is at, with the plans in force of some incidents as its share."""
    named = {PLANS_TAG: ",".join(str(each.plan) for each in incidents) or "none"} if has_looked else {}
    run = dg.DagsterRun(
        job_name="remediate",
        status=status,
        tags={**ACTING_TAGS, **named},
        remote_job_origin=origin_of("remediate"),
    )
    instance.add_run(run)
    return run


def remediate(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance, request: dg.RunRequest | None = None
) -> dict[str, str]:
    """Play a run, and return its tags at its end."""
    tags = {} if request is None else dict(request.tags)
    job = definitions_on(autopilot.cluster).resolve_job_def("remediate")
    result = job.execute_in_process(instance=instance, tags=tags)
    assert result.success
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    return dict(run.tags)


def with_soak(autopilot: SmallAutopilot, *, seconds: float) -> Rules:
    rules = autopilot.cluster.rules
    durations = replace(rules.policy.durations, soak=timedelta(seconds=seconds))
    return replace(rules, policy=replace(rules.policy, durations=durations))


def resets(autopilot: SmallAutopilot) -> int:
    return autopilot.commands().count(EntryKind.RESET_GPU)


# -- what a run takes --


def test_run_names_what_it_carries_out(autopilot: SmallAutopilot, instance: dg.DagsterInstance) -> None:
    broken = break_node(autopilot, A, instance)

    tags = remediate(autopilot, instance)

    assert tags[PLANS_TAG] == broken.plan


def test_run_that_has_nothing_to_carry_out_says_so_and_never_all(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    run = run_under_way(instance)

    assert remediate(autopilot, instance)[PLANS_TAG] == "none"
    assert {each.run: each.plans for each in shares_under_way(instance)}[run.run_id] == ()


def test_run_leaves_to_another_what_that_has_named(autopilot: SmallAutopilot, instance: dg.DagsterInstance) -> None:
    theirs = break_node(autopilot, A, instance)
    run_under_way(instance, theirs)
    mine = break_node(autopilot, B, instance)

    tags = remediate(autopilot, instance)

    assert tags[PLANS_TAG] == mine.plan
    assert resets(autopilot) == 1
    assert incident_of(autopilot, A) == theirs


def test_run_that_is_over_leaves_everything(autopilot: SmallAutopilot, instance: dg.DagsterInstance) -> None:
    broken = break_node(autopilot, A, instance)
    run_under_way(instance, broken, status=dg.DagsterRunStatus.FAILURE)

    assert remediate(autopilot, instance)[PLANS_TAG] == broken.plan
    assert resets(autopilot) == 1


def test_plan_that_needs_the_same_job_waits_for_the_run_that_looked_first(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    autopilot = beginning(
        tmp_path,
        JobSpec(
            name="training",
            user="research",
            account="research",
            workload=Workload.TRAINING,
            node_count=6,
            checkpoint_interval_seconds=2.0,
        ),
    )
    (job,) = autopilot.cluster.scheduler.read_jobs()
    assert job.state is JobState.RUNNING
    theirs = break_node(autopilot, A, instance)
    other = run_under_way(instance, theirs)
    mine = break_node(autopilot, B, instance)
    began_at = autopilot.clock.now()

    remediate(autopilot, instance)

    assert autopilot.node(B).is_drained  # Who is broken is taken out, no matter who is at work.
    assert EntryKind.HOLD not in autopilot.commands()
    assert autopilot.clock.now() - began_at >= autopilot.cluster.rules.policy.durations.run_patience

    instance.report_run_failed(other, "it is over")
    remediate(autopilot, instance)

    assert EntryKind.HOLD in autopilot.commands()
    assert incident_of(autopilot, B).plan_count >= mine.plan_count


@pytest.mark.parametrize(
    ("lane", "state"),
    [(None, IncidentState.RESOLVED), (VERIFYING_TAGS, IncidentState.VERIFYING)],
    ids=["alone", "beside"],
)
def test_repaired_node_is_looked_at_by_the_run_whose_plan_it_was_and_by_others_that_are_alone(
    autopilot: SmallAutopilot,
    instance: dg.DagsterInstance,
    lane: dict[str, str] | None,
    state: IncidentState,
) -> None:
    broken = break_node(autopilot, A, instance)
    autopilot.cluster = replace(autopilot.cluster, rules=with_soak(autopilot, seconds=60))
    remediate(autopilot, instance)
    assert incident_of(autopilot, A).state is IncidentState.VERIFYING
    autopilot.let_pass(61)
    if lane is not None:
        instance.add_run(dg.DagsterRun(job_name="verify_nodes", status=dg.DagsterRunStatus.STARTED, tags=lane))

    remediate(autopilot, instance)

    known = autopilot.cluster.ledger.incident(broken.incident)
    assert known is not None
    assert known.state is state


@pytest.mark.parametrize(("most", "is_named"), [(1, True), (0, False)])
def test_run_with_more_plans_than_a_tag_holds_names_none(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, most: int, is_named: bool
) -> None:
    monkeypatch.setattr(run_share, "_NAMED_AT_MOST", most)
    break_node(autopilot, A, instance)

    tags = remediate(autopilot, instance)

    assert (PLANS_TAG in tags) is is_named
    assert resets(autopilot) == 1


def test_tag_of_as_many_plans_as_are_named_fits_into_an_index_of_postgres() -> None:
    assert run_share._NAMED_AT_MOST * len("PLAN-a50e5e130721,") < 2_700


# -- when another is asked for --


def ask(autopilot: SmallAutopilot, instance: dg.DagsterInstance, cursor: str | None) -> dg.SensorResult:
    return tick(remediation_sensor, autopilot, instance, cursor)


def test_fault_on_another_node_gets_a_run_of_its_own_at_once(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    theirs = break_node(autopilot, A, instance)
    first = ask(autopilot, instance, None)
    run_under_way(instance, theirs)
    break_node(autopilot, B, instance)

    second = ask(autopilot, instance, first.cursor)

    (request,) = second.run_requests or []
    assert "new observations" in request.tags["reason"]
    remediate(autopilot, instance, request)
    assert resets(autopilot) == 1
    assert not ask(autopilot, instance, second.cursor).run_requests


def test_run_that_has_yet_to_look_will_see_it_itself(autopilot: SmallAutopilot, instance: dg.DagsterInstance) -> None:
    break_node(autopilot, A, instance)
    first = ask(autopilot, instance, None)
    run_under_way(instance, has_looked=False, status=dg.DagsterRunStatus.STARTING)
    break_node(autopilot, B, instance)

    assert not ask(autopilot, instance, first.cursor).run_requests


@pytest.mark.parametrize("status", UNDER_WAY)
def test_news_of_a_node_that_a_run_is_at_waits_for_its_end(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance, status: dg.DagsterRunStatus
) -> None:
    theirs = break_node(autopilot, A, instance)
    first = ask(autopilot, instance, None)
    other = run_under_way(instance, theirs, status=status)
    autopilot.let_pass(1)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, A, gpu=5)
    tick(fault_sensor, autopilot, instance)

    assert not ask(autopilot, instance, first.cursor).run_requests

    instance.report_run_failed(other, "it is over")
    assert ask(autopilot, instance, first.cursor).run_requests


def test_news_that_were_left_to_a_run_are_asked_for_when_all_are_over(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    theirs = break_node(autopilot, A, instance)
    first = ask(autopilot, instance, None)
    other = run_under_way(instance, theirs)
    autopilot.let_pass(1)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, A, gpu=5)
    break_node(autopilot, B, instance)

    second = ask(autopilot, instance, first.cursor)
    (request,) = second.run_requests or []
    remediate(autopilot, instance, request)
    while_it_runs = ask(autopilot, instance, second.cursor)
    instance.report_run_failed(other, "it is over")
    third = ask(autopilot, instance, while_it_runs.cursor)

    assert not while_it_runs.run_requests
    (left,) = third.run_requests or []
    assert left.run_key != request.run_key
    remediate(autopilot, instance, left)
    assert resets(autopilot) == 3  # GPU 2 on both nodes, and GPU 5 of the first.
    definitions_on(autopilot.cluster).resolve_job_def("verify_nodes").execute_in_process(instance=instance)
    assert present(autopilot) == ()
    assert not ask(autopilot, instance, third.cursor).run_requests


def test_scheduler_is_asked_no_more_often_because_a_run_is_under_way(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would hear from us four times a second, for as long as a job waits for its moment."""
    autopilot = beginning(tmp_path)
    theirs = break_node(autopilot, A, instance)
    first = ask(autopilot, instance, None)
    run_under_way(instance, theirs)
    asked: list[None] = []
    monkeypatch.setattr(sensor_module, "due_moment", lambda *_: asked.append(None))
    autopilot.let_pass(1)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, A, gpu=5)  # Due, and left to the run at every look.
    tick(fault_sensor, autopilot, instance)
    autopilot.cluster = replace(autopilot.cluster, clock=autopilot.clock)

    assert not ask(autopilot, instance, first.cursor).run_requests

    assert 1 <= len(asked) <= POLL_FOR / timedelta(seconds=2) + 1


def test_no_more_runs_than_the_lane_takes(autopilot: SmallAutopilot, instance: dg.DagsterInstance) -> None:
    theirs = break_node(autopilot, A, instance)
    first = ask(autopilot, instance, None)
    run_under_way(instance, theirs)
    run_under_way(instance)
    run_under_way(instance)
    break_node(autopilot, B, instance)

    assert not ask(autopilot, instance, first.cursor).run_requests


def shown_by(autopilot: SmallAutopilot, instance: dg.DagsterInstance) -> set[str]:
    """Play a run, and return the pages of the whole fleet that it made."""
    result = definitions_on(autopilot.cluster).resolve_job_def("remediate").execute_in_process(instance=instance)
    made = {each.asset_key.to_user_string() for each in result.get_asset_materialization_events() if each.asset_key}
    return made & PAGES


def test_pages_of_the_whole_fleet_are_made_by_the_last_of_those_side_by_side(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    alone = shown_by(autopilot, instance)
    other = run_under_way(instance)
    beside = shown_by(autopilot, instance)
    instance.report_run_failed(other, "it is over")

    assert (alone, beside) == (PAGES, set())
    assert shown_by(autopilot, instance) == PAGES


@pytest.mark.parametrize(("age", "is_left"), [(timedelta(seconds=29), True), (timedelta(seconds=31), False)])
def test_page_that_has_grown_old_is_made_beside_others_too(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance, age: timedelta, is_left: bool
) -> None:
    run_under_way(instance)
    mine = run_under_way(instance)

    was_none_left = not is_left_to_another(instance, mine.run_id, "shift_report", now=SystemClock().now())
    shown_by(autopilot, instance)

    assert was_none_left
    assert is_left_to_another(instance, mine.run_id, "shift_report", now=SystemClock().now() + age) is is_left


def test_of_two_runs_that_end_together_one_makes_the_pages(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    shown_by(autopilot, instance)
    first, second = run_under_way(instance), run_under_way(instance)

    left = [
        is_left_to_another(instance, each.run_id, "shift_report", now=SystemClock().now()) for each in (first, second)
    ]

    assert left == [True, False]  # Neither has ended.


def test_evidence_of_an_incident_is_kept_by_the_run_that_carries_out_its_plan(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    bundles = BundleFiles(tmp_path / "evidence")
    autopilot.cluster = replace(autopilot.cluster, bundles=bundles)
    theirs = break_node(autopilot, A, instance)
    mine = break_node(autopilot, B, instance)
    run_under_way(instance, theirs)

    remediate(autopilot, instance)

    opened = [[each.reason for each in bundles.of(incident.incident)].count(OPENED) for incident in (theirs, mine)]
    assert opened == [0, 1]
