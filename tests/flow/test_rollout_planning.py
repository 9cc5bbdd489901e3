"""What a plan is made of: every declared node as it is now, what runs on those concerned, calendars and rules."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import pytest

from ops_pipelines.core.cluster import Cluster, Fleet
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import IncidentId, NodeName, RolloutId
from ops_pipelines.core.observation import JobState, JobStatus, NodeState, NodeStatus
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.record import CalendarText
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import RolloutPlan
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.remediate.guardrails.facts import drain_reason
from ops_pipelines.rollouts.fleet import FleetNode, view_fleet
from ops_pipelines.rollouts.orders import files_of, plan_release, plan_releases
from tests.domain.builders import NODE, NOW, OTHER_NODE, after, incident, job, node, our_drain, our_node, rules
from tests.domain.lifecycle_fleet import HOUR
from tests.scenarios.rollout_stage import KERNEL, ROLLOUT_POLICY, RolloutStage, change, release_of

OLD_KERNEL = "6.8.0-60-generic"
SLURM = release_of(change(Component.SLURM, "26.05.1"))


class GivenScheduler:
    """Answers with what a test says."""

    def __init__(self, nodes: Iterable[NodeStatus], jobs: Iterable[JobStatus] = ()) -> None:
        self._nodes, self._jobs = tuple(nodes), tuple(jobs)

    def read_nodes(self) -> tuple[NodeStatus, ...]:
        return self._nodes

    def read_jobs(self) -> tuple[JobStatus, ...]:
        return self._jobs


class OtherVersions:
    """A fleet of which some nodes do not answer, and nobody else is to be asked."""

    def __init__(self, *silent: str, concerned: Iterable[str]) -> None:
        self._silent, self._concerned = silent, frozenset(concerned)

    def read_versions(self, name: NodeName) -> dict[Component, str]:
        assert name in self._concerned, f"{name} is of another model"
        if name in self._silent:
            raise SourceUnavailable(f"{name} does not answer")
        return {Component.KERNEL: OLD_KERNEL}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> RolloutStage:
    """Planning changes nothing, so that all may plan on one stage."""
    return RolloutStage(tmp_path_factory.mktemp("stage"), node_count=4)


def viewed(
    stage: RolloutStage, *nodes: NodeStatus, jobs: Iterable[JobStatus] = (), untouchable: bool = False, **state: Any
) -> FleetNode:
    """Return how NODE is where the scheduler and the ledger say this."""
    given_rules = rules(
        replace(ROLLOUT_POLICY, untouchable_nodes=frozenset({NODE} if untouchable else ())), node_count=2
    )
    scheduler = cast("Scheduler", GivenScheduler(nodes, jobs))
    cluster: Cluster = replace(stage.cluster, scheduler=scheduler, rules=given_rules)
    known = replace(cluster.ledger.read_state(NOW), **state)
    return view_fleet(cluster, known, versions={NODE: {Component.DRIVER: "2"}}).nodes[NODE]


# -- one node --


@pytest.mark.parametrize(
    ("status", "state", "why_not", "is_in_service"),
    [
        (node(), {}, "", True),
        (None, {}, "the scheduler does not know it", False),
        (node(is_drained=True, reason="cables"), {}, "drained by somebody else: cables", False),
        (our_node(), {"records": (our_drain(),)}, "drained by INC-0001", False),
        (our_node(incident="INC-0002"), {"records": (our_drain(),)}, None, False),
        (node(state=NodeState.DOWN), {}, "down or silent", False),
        (node(is_responding=False), {}, "down or silent", False),
        (node(), {"owned": {NODE: RolloutId("ROLL-0007")}}, "ROLL-0007 has it in hand", True),
        (node(), {"incidents": (incident(response=Response.MONITOR),)}, "", True),
    ],
)
def test_a_node_is_left_alone_for_a_reason_that_is_told(
    stage: RolloutStage, status: NodeStatus | None, state: dict[str, Any], why_not: str | None, is_in_service: bool
) -> None:
    found = viewed(stage, *([] if status is None else [status]), **state)

    said = (
        why_not
        if why_not is not None
        else f"drained by somebody else: {drain_reason(IncidentId('INC-0002'), 'Xid 79')}"
    )
    assert (found.why_not, found.is_in_service) == (said, is_in_service)
    assert found.is_in_hand is ("owned" in state)


def test_a_node_with_an_incident_is_in_trouble_and_one_that_is_untouchable_says_that_first(stage: RolloutStage) -> None:
    broken = incident()

    found = viewed(stage, node(), incidents=(broken,))
    untouchable = viewed(stage, node(), incidents=(broken,), untouchable=True)

    assert found.trouble == f"INC-0001: {broken.cause}"
    assert found.why_not == f"INC-0001 is about it: {broken.cause}"
    assert untouchable.why_not == "policy.yaml calls it untouchable"
    assert untouchable.trouble == found.trouble


@pytest.mark.parametrize(
    ("ends", "gpus_in_use", "free_at", "is_idle"),
    [
        ((), 0, None, True),
        ((), 1, None, False),
        ((2.0,), 8, after(2 * HOUR), False),
        ((2.0, 5.0), 8, after(5 * HOUR), False),
        ((2.0, None), 8, None, False),
    ],
)
def test_a_node_is_free_when_its_last_job_ends_by_its_limit(
    stage: RolloutStage, ends: tuple[float | None, ...], gpus_in_use: int, free_at: object, is_idle: bool
) -> None:
    jobs = [
        job(str(number), ends_by=None if hours is None else after(hours * HOUR)) for number, hours in enumerate(ends)
    ]

    found = viewed(stage, node(gpu_in_use_count=gpus_in_use), jobs=jobs)

    assert (found.free_at, found.is_idle) == (free_at, is_idle)


def test_only_jobs_that_may_have_processes_there_are_on_a_node(stage: RolloutStage) -> None:
    jobs = [
        job("2", account="ml", gpu_count=64, nodes=(NODE, OTHER_NODE)),
        job("1", account="hpc", gpu_count=8),
        job("3", state=JobState.PENDING, nodes=()),
        job("4", state=JobState.COMPLETED),
        job("5", nodes=(OTHER_NODE,)),
    ]

    found = viewed(stage, node(gpu_in_use_count=8, partitions=frozenset({"batch"})), jobs=jobs)

    assert found.jobs == ("1", "2")
    assert found.largest_job_gpu_count == 64
    assert found.teams == {"ml", "hpc"}
    assert found.partitions == {"batch"}
    assert found.versions == {Component.DRIVER: "2"}


# -- a release on all of them --


def test_nodes_of_other_models_are_not_asked_and_who_does_not_answer_is_left_out(stage: RolloutStage) -> None:
    topology = stage.cluster.rules.topology
    places = {
        name: replace(place, model="old" if name == "gpu004" else place.model)
        for name, place in topology.places.items()
    }
    fleet = cast("Fleet", OtherVersions("gpu002", concerned=("gpu001", "gpu002", "gpu003")))
    cluster = replace(
        stage.cluster, fleet=fleet, rules=replace(stage.cluster.rules, topology=replace(topology, places=places))
    )

    plan = plan_release(KERNEL, cluster).plan

    assert isinstance(plan, RolloutPlan)
    assert {name for wave in plan.waves for name in wave.nodes} == {"gpu001", "gpu003"}
    (left_out,) = plan.skipped
    assert left_out.node == "gpu002"
    assert "nobody knows which kernel it runs" in left_out.reason


def test_a_plan_is_made_at_this_moment_and_changes_nothing(stage: RolloutStage) -> None:
    head = stage.cluster.ledger.read_state(stage.clock.now()).head_seq

    planned = plan_release(KERNEL, stage.cluster)

    assert isinstance(planned.plan, RolloutPlan)
    assert planned.plan.made_at == planned.fleet.taken_at == stage.clock.now()
    assert (planned.contradictions, planned.rejected) == ((), ())
    assert stage.cluster.ledger.read_state(stage.clock.now()).head_seq == head


def test_entries_of_a_calendar_that_nobody_can_read_are_told(stage: RolloutStage) -> None:
    text = b"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nBEGIN:VEVENT\r\nSUMMARY:no time\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    files = replace(stage.files, texts=(CalendarText(name="holidays.ics", text=text),))

    planned = plan_release(KERNEL, replace(stage.cluster, rollout_files=files))

    assert [each.source for each in planned.rejected] == ["holidays.ics"]


def test_a_calendar_that_is_not_there_makes_no_plan(stage: RolloutStage) -> None:
    files = replace(stage.files, is_there=False)

    with pytest.raises(SourceUnavailable, match=r"holidays\.ics"):
        plan_release(KERNEL, replace(stage.cluster, rollout_files=files))


def test_a_newer_slurm_than_the_controller_is_refused(stage: RolloutStage) -> None:
    planned = plan_release(SLURM, stage.cluster)

    assert isinstance(planned.plan, Refusal)
    assert "slurm_order" in {each.rule for each in planned.contradictions}


def test_every_release_that_lies_there_is_planned_and_what_cannot_be_read_is_named(stage: RolloutStage) -> None:
    files = replace(stage.files, releases={"autumn": KERNEL, "winter": replace(KERNEL, name="winter")})
    cluster = replace(stage.cluster, rollout_files=files)

    plans, problems = plan_releases(cluster, ())
    some, missing = plan_releases(cluster, ("winter", "spring"))

    assert ([each.release.name for each in plans], problems) == (["autumn", "winter"], ())
    assert ([each.release.name for each in some], missing) == (["winter"], ("there is no release spring",))


def test_a_cluster_without_a_directory_of_releases_is_told_what_to_say(stage: RolloutStage) -> None:
    with pytest.raises(PolicyError, match="releases: releases"):
        files_of(replace(stage.cluster, rollout_files=None))


def test_a_release_that_runs_everywhere_has_no_plan(stage: RolloutStage) -> None:
    plan = plan_release(release_of(change(Component.KERNEL, OLD_KERNEL)), stage.cluster).plan

    assert isinstance(plan, Refusal)
    assert "runs these versions already" in plan.reason
