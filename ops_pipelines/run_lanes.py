"""Which run waits for which, what each job is for, and who launched a run. Dagster's webserver and daemon import this.

Every run is in exactly one lane, each lane has a limit of its own, and there is no total. What fences nodes and moves
jobs has a lane to itself, so that no number of other runs can keep it queued: neither the lake's, nor back-fills, nor
what people launch. The lane is read from the job, never from a form. dagster.yaml names the coordinator that does this,
and the limits.

Who launched a run is a tag that only the web gateway's login can put there, and only on this one run: an HMAC over
name, job, run and time, so that a form, a re-execution, a back-fill or a copied tag says nothing. Its key is in
Dagster's home, readable by its owner alone. This module imports little.
"""

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from dagster._core.run_coordinator import QueuedRunCoordinator, SubmitRunContext
from dagster._core.storage.dagster_run import DagsterRun

from ops_pipelines.clock import SystemClock

LOGIN_TAG = "ops_pipelines/login"
LOGIN_SCOPE = "ops_pipelines.login"
"""Where the gateway leaves the login's name in the request's scope: no header reaches it."""
LOGIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
TAG_LIFE = timedelta(minutes=15)
"""A launch waits for seconds in its queue; a run that begins later than this is asked for again."""
_KEY_FILE = "login.key"
_KEY_BYTES = 32
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class LoginKeyError(RuntimeError):
    """The key cannot be used. The message says why, and what to do."""


def login_key(home: Path) -> bytes:
    """Return the key in Dagster's home, made if there is none; raise LoginKeyError if others may read it."""
    path = home / _KEY_FILE
    try:
        fresh = home / f".{_KEY_FILE}.{os.getpid()}"
        if not path.exists():
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(os.urandom(_KEY_BYTES))
            try:
                os.link(fresh, path)  # whole or not at all; who comes second takes the first one's
            except FileExistsError:
                pass
            finally:
                fresh.unlink()
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(_KEY_BYTES + 1)
    except OSError as problem:
        raise LoginKeyError(f"{path} cannot be used: {problem}; Dagster's home must be ours to write") from problem
    if mode & _OTHERS or len(key) != _KEY_BYTES:
        raise LoginKeyError(
            f"{path} has mode {stat.S_IMODE(mode):04o} and {len(key)} bytes; expected 0600 and {_KEY_BYTES} bytes; "
            "delete it, and a new one is made"
        )
    return key


def seal_login(key: bytes, *, name: str, job: str, run: str, now: datetime) -> str:
    """Return the tag's text: when, whose, and the seal over them, the job and the run."""
    second = int(now.timestamp())
    return f"{second}:{name}:{_seal(key, name=name, job=job, run=run, second=second)}"


def read_login(key: bytes, text: str, *, job: str, run: str, now: datetime) -> str | None:
    """Return whose login the tag reports; None if it is not ours, of another run, or too old."""
    second, _, rest = text.partition(":")
    name, _, seal = rest.rpartition(":")
    if not (second.isascii() and second.isdecimal() and len(second) <= 12 and LOGIN_NAME.fullmatch(name)):
        return None
    expected = _seal(key, name=name, job=job, run=run, second=int(second))
    if not hmac.compare_digest(seal.encode(), expected.encode()):
        return None
    sealed_at = datetime.fromtimestamp(int(second), UTC)
    return name if abs(now - sealed_at) <= TAG_LIFE else None


def _seal(key: bytes, *, name: str, job: str, run: str, second: int) -> str:
    said = "\n".join(("ops_pipelines login 1", str(second), name, job, run))
    return hmac.new(key, said.encode(), hashlib.sha256).hexdigest()


if TYPE_CHECKING:
    import dagster as dg

    from ops_pipelines.core.cluster import Cluster


WITHOUT_LOGIN = "somebody without a login"


def login_behind(context: "dg.OpExecutionContext | dg.AssetExecutionContext") -> str | None:
    """Return the name of the login that launched this run; None if nobody's login is behind it, or not any more."""
    said = context.run.tags.get(LOGIN_TAG, "")
    if not said:
        return None
    key = login_key(Path(context.instance.root_directory))
    # The wall clock, as the seal was made by it; the cluster's may be a simulated one.
    return read_login(key, said, job=context.run.job_name, run=context.run.run_id, now=SystemClock().now())


def launched_by(context: "dg.OpExecutionContext", cluster: "Cluster", *, instead: str) -> str:
    """Return the name of the login that launched this run.

    Raise ByHandRefused in `auto` and `approve` if there is none, naming what to do `instead`.
    In `observe` nothing is acted upon.
    """
    from ops_pipelines.core.policy import Mode
    from ops_pipelines.remediate.by_hand import ByHandRefused

    name = login_behind(context)
    if name is not None:
        return name
    if cluster.rules.policy.mode is Mode.OBSERVE:
        return WITHOUT_LOGIN
    too_old = ", or it is older than a quarter of an hour" if context.run.tags.get(LOGIN_TAG) else ""
    raise ByHandRefused(
        f"nobody's login is behind this run{too_old}; "
        "launch it from the web page of `ops-pipelines webserver` after a login, not by running an old one again, "
        f"or instead: {instead}"
    )


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
"""So many runs of the acting lane continue beside each other, each with plans of its own (`run_share`)."""
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
