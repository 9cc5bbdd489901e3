"""Which run waits for which: every run is in exactly one lane, each lane has a limit of its own, and there is no total.
Beside it what each job is for, as people look for it in the web interface; that says nothing about waiting.

What fences nodes and moves jobs has a lane to itself, so that no number of other runs can keep it queued: neither the
lake's, nor back-fills, nor what people launch. The lane is read from the job, never from a form. dagster.yaml names the
coordinator that does this, and the limits; it also seals who launched a run, as the web gateway knows it. Dagster's
webserver and daemon import this module: it imports little.
"""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from dagster._core.run_coordinator import QueuedRunCoordinator, SubmitRunContext
from dagster._core.storage.dagster_run import DagsterRun

from ops_pipelines.clock import SystemClock
from ops_pipelines.login_tag import LOGIN_SCOPE, LOGIN_TAG, login_key, seal_login

LANE_TAG = "lane"
KIND_TAG = "ops_pipelines/kind"
PRIORITY_TAG = "dagster/priority"


class RunLane(Enum):
    """Who waits for whom."""

    ACT = "act"
    """Understands, drains, holds, fences, moves: waits for nothing but for its like, where both need the same."""
    VERIFY = "verify"
    """Tests and returns repaired nodes: nobody's job is in danger while it waits."""
    ROLLOUT = "rollout"
    """An installation takes minutes, and no repair waits for it."""
    PERSON = "person"
    """What a person launches to steer us: a kill switch must not wait for a report."""
    ROUTINE = "routine"
    """The lake, reports, bills, back-fills, and whatever else there is."""


ACTING_SIDE_BY_SIDE = 3
"""So many runs of the acting lane go on beside each other, each with plans of its own (`run_share`)."""

_LANES: Mapping[str, RunLane] = {
    "remediate": RunLane.ACT,
    "verify_nodes": RunLane.VERIFY,
    "advance_rollouts": RunLane.ROLLOUT,
    **dict.fromkeys(
        (
            *("pause_autopilot", "resume_autopilot", "approve_plan", "drain_node", "return_node"),
            *("start_rollout", "steer_rollout"),
        ),
        RunLane.PERSON,
    ),
}


def lane_of(job_name: str) -> RunLane:
    """Return the lane of the runs of a job."""
    return _LANES.get(job_name, RunLane.ROUTINE)


def tags_of(lane: RunLane) -> dict[str, str]:
    """Return the tags of runs in a lane, by which they are found."""
    return {LANE_TAG: lane.value}


class JobKind(Enum):
    """What a job is for; its runs carry it in the tag `ops_pipelines/kind`, by which the web interface finds them."""

    ACT = "act"
    """Changes the cluster: nodes, jobs, versions or limits."""
    ASK = "ask"
    """A person's order to the autopilot: changes what it may do, and nothing in the cluster by itself."""
    INSPECT = "inspect"
    """Looks, computes and reports: no node, job or limit is touched."""
    MAINTAIN = "maintain"
    """Keeps our own data: fills the lake, sums it, keeps it small."""

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags of the jobs of this kind."""
        return {KIND_TAG: self.value}


# Dagster's run retries stay off for jobs that act: a retry is the sensor's decision, under a raised launch number.
NO_RETRIES = {"dagster/max_retries": "0"}
ACTING_TAGS = tags_of(RunLane.ACT)
VERIFYING_TAGS = tags_of(RunLane.VERIFY)
ROLLOUT_TAGS = {**tags_of(RunLane.ROLLOUT), **NO_RETRIES}


class LaneCoordinator(QueuedRunCoordinator):
    """Dagster's queue, in which each run is put into the lane of its job as it is handed in."""

    def submit_run(self, context: SubmitRunContext) -> DagsterRun:
        """Put the run into its lane, whatever lane it says it is in; then queue it."""
        run = context.dagster_run
        lane = lane_of(run.job_name)
        tags = tags_of(lane)
        if lane is RunLane.ACT:
            tags[PRIORITY_TAG] = "10"  # Of those that may start in one turn of the queue it is launched first.
        scope = getattr(getattr(context.workspace, "source", None), "scope", None) or {}
        if name := scope.get(LOGIN_SCOPE):
            key = login_key(Path(self._instance.root_directory))
            now = SystemClock().now()
            tags[LOGIN_TAG] = seal_login(key, name=name, job=run.job_name, run=run.run_id, now=now)
        if not tags.items() <= run.tags.items():
            self._instance.add_run_tags(run.run_id, tags)
            run = run.with_tags({**run.tags, **tags})
        return super().submit_run(context._replace(dagster_run=run))
