"""Two copies of one job at once: a restart began while an earlier attempt may still have run on a silent node.

What was seen of attempts and their nodes goes in, overlaps come out; remembering and reporting are
`remediate.overlaps`'.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.identity import JobAttempt, NodeName, listed
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobState, JobStatus, NodeState, NodeStatus, has_moved_on

_WHOLE_SECONDS = timedelta(seconds=1)
"""Schedulers tell starts in whole seconds: what was clear within the second of the start was clear before it."""
_BOOT_JITTER = timedelta(seconds=3)
"""A boot time moves by a second or so without a boot (`testimony.BOOT_TIME_JITTER`)."""
_LONGEST_PLACE = 200


class Certainty(Enum):
    """How sure it is that both copies ran."""

    CERTAIN = "certain"
    """What ran on the silent node is known to have gone on."""
    POSSIBLE = "possible"
    """Nobody can know: the node was neither seen without power nor heard without the job."""
    EXCLUDED = "excluded"
    """It turned out afterwards that nothing of the earlier attempt was left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """One attempt of a job began before the nodes of an earlier one were witnessed clear of it."""

    earlier: JobAttempt
    later: JobAttempt
    """It overlaps since its start."""
    earlier_nodes: frozenset[NodeName]
    """Those that were not clear then."""
    later_nodes: frozenset[NodeName]
    user: str
    """Whose job it is; as the next one the user's text."""
    checkpoint: str
    """Where it saves, as its comment declares; empty: it does not say."""
    checkpointed_at: datetime | None
    """Its newest checkpoint when the earlier attempt was last seen; None: unknown."""
    seen_at: datetime
    certainty: Certainty
    why: str
    """What the certainty rests on, or what ended it."""
    ended_at: datetime | None = None
    """When the earlier nodes were witnessed clear, or the later attempt ended; None: it may continue."""

    @property
    def name(self) -> str:
        """The pair of attempts in short: it is notified once."""
        return f"{self.later.job}@{self.earlier.started_at:%Y%m%dT%H%M%S}+{self.later.started_at:%Y%m%dT%H%M%S}"

    def lasted(self, now: datetime) -> timedelta:
        """Return how long it lasted, or has by now."""
        return max(timedelta(0), (self.ended_at or now) - self.later.started_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One attempt as it was last seen at work, and what became of the nodes that fell silent under it."""

    attempt: JobAttempt
    nodes: frozenset[NodeName]
    checkpointed_at: datetime | None = None
    silent: Mapping[NodeName, datetime] = field(default_factory=dict)
    """Since when each was seen not to answer with the attempt on it."""
    clear: Mapping[NodeName, tuple[datetime, str]] = field(default_factory=dict)
    """When each of those was witnessed clear afterwards, and how."""
    is_over: bool = False
    """The scheduler does not run it any more."""

    @property
    def unclear(self) -> frozenset[NodeName]:
        return frozenset(self.silent.keys() - self.clear.keys())

    def is_at_work(self, job: JobStatus | None) -> bool:
        """Return whether this is what the scheduler runs now of its job; None: it knows no such job."""
        return job is not None and job.attempt == self.attempt and job.state in MAY_HAVE_PROCESSES


def watch(
    before: Watched,
    job: JobStatus | None,
    nodes: Mapping[NodeName, NodeStatus],
    *,
    cut: Mapping[NodeName, Collection[datetime]],
    now: datetime,
) -> Watched:
    """Return an attempt as it is seen now. `cut`: when nodes were seen without power, that we had cut."""
    if job is not None and before.is_at_work(job):
        silent = {name: before.silent.get(name, now) for name in job.nodes if _is_silent(name, nodes)}
        return replace(before, nodes=job.nodes, checkpointed_at=job.checkpointed_at, silent=silent)
    silent = dict(before.silent)
    ended_by = now if job is None or not has_moved_on(job, before.attempt) else (job.started_at or now)
    for name in before.nodes - silent.keys() if not before.is_over else ():
        # It fell silent and was given up between two looks of ours.
        given_up_at = _given_up_at(nodes.get(name), ended_by=ended_by)
        if given_up_at is not None and before.attempt.started_at < given_up_at <= ended_by + _WHOLE_SECONDS:
            silent[name] = given_up_at
    clear = dict(before.clear)
    for name in silent.keys() - clear.keys():
        found = _clearing(before.attempt, nodes.get(name), cut.get(name, ()), now=now)
        if found is not None:
            clear[name] = found
    return replace(before, silent=silent, clear=clear, is_over=True)


def find_overlap(watched: Watched, job: JobStatus, *, now: datetime) -> Overlap | None:
    """Return how the job's present attempt overlaps with an earlier one; None if it does not, or has not started."""
    later = job.attempt
    if later is None or not has_moved_on(job, watched.attempt):
        return None
    left = {name for name in watched.silent if _is_left(watched, name, later.started_at)}
    if not left:
        return None
    cleared = [watched.clear[name] for name in left if name in watched.clear]
    ended_at, why = max(cleared) if len(cleared) == len(left) else (None, "")
    return Overlap(
        earlier=watched.attempt,
        later=later,
        earlier_nodes=frozenset(left),
        later_nodes=job.nodes,
        user=job.user,
        checkpoint=job.checkpoint[:_LONGEST_PLACE],
        checkpointed_at=watched.checkpointed_at,
        seen_at=now,
        certainty=Certainty.POSSIBLE,
        why=why,
        ended_at=ended_at,
    )


def brought_up_to_date(known: Overlap, watched: Watched, job: JobStatus | None, *, now: datetime) -> Overlap:
    """Return a known overlap with what was learnt of its end: its nodes are clear, or the later attempt has ended."""
    if known.ended_at is not None:
        return known
    if not any(_is_left(watched, name, known.later.started_at) for name in known.earlier_nodes):
        _, why = max(watched.clear[name] for name in known.earlier_nodes)
        return replace(known, certainty=Certainty.EXCLUDED, why=f"{why}, before", ended_at=known.later.started_at)
    if known.earlier_nodes <= watched.clear.keys():
        ended_at, why = max(watched.clear[name] for name in known.earlier_nodes)
        return replace(known, ended_at=ended_at, why=known.why or why)
    if job is None or job.attempt != known.later or job.state not in MAY_HAVE_PROCESSES:
        ended_at = job.ended_at if job is not None and job.attempt == known.later and job.ended_at else now
        return replace(known, ended_at=ended_at, why=known.why or "the second copy has ended")
    return known


def tell(overlap: Overlap, *, now: datetime) -> str:
    """Return an overlap in one sentence."""
    job, lasted = overlap.later.job, f"{overlap.lasted(now).total_seconds():.0f} s"
    earlier, later = _names(overlap.earlier_nodes), _names(overlap.later_nodes)
    began = f"{overlap.later.started_at:%Y-%m-%d %H:%M:%S} UTC"
    if overlap.certainty is Certainty.EXCLUDED:
        return f"job {job}: no two copies after all, {earlier} was clear before {began}: {overlap.why}"
    ran = "ran" if overlap.certainty is Certainty.CERTAIN else "may have run"
    until = (
        f"for {lasted} until {overlap.ended_at:%H:%M:%S} UTC"
        if overlap.ended_at is not None
        else f"for {lasted} so far, and may still"
    )
    why = f" ({overlap.why})" if overlap.why else ""
    return (
        f"two copies of job {job} of {overlap.user} {ran} at once, {until}: the scheduler began one on {later} at "
        f"{began}, and {earlier}, silent under the one before, was not seen to be clear of it{why}"
    )


def what_to_do(overlap: Overlap) -> str:
    """Return what a person is asked for."""
    where = overlap.checkpoint or "its checkpoints (its comment names no ckpt=)"
    safe = (
        "the newest of before"
        if overlap.checkpointed_at is None
        else f"the one of {overlap.checkpointed_at:%Y-%m-%d %H:%M:%S} UTC"
    )
    stop = (
        ""
        if overlap.ended_at is not None
        else f"Cut the power of {_names(overlap.earlier_nodes)}, or hold job {overlap.later.job} until it is clear. "
    )
    return (
        f"{stop}Check what was saved in {where} from {overlap.later.started_at:%Y-%m-%d %H:%M:%S} UTC on, or discard "
        f"it and roll back to {safe}."
    )


def _is_left(watched: Watched, name: NodeName, began_at: datetime) -> bool:
    """Return whether a node was not clear when another attempt began."""
    if name not in watched.silent:
        return False
    return name not in watched.clear or watched.clear[name][0] >= began_at + _WHOLE_SECONDS


def _is_silent(name: NodeName, nodes: Mapping[NodeName, NodeStatus]) -> bool:
    return name in nodes and not nodes[name].is_responding


def _given_up_at(node: NodeStatus | None, *, ended_by: datetime) -> datetime | None:
    """Return when the scheduler gave a silent node up; a drain since has dated the reason again, so that nobody knows.

    Then it is taken for the reason why the attempt ended: an overlap too many costs a look at a checkpoint.
    """
    if node is None or node.is_responding or node.state is not NodeState.DOWN or node.reason_set_at is None:
        return None
    return min(node.reason_set_at, ended_by) if node.is_drained else node.reason_set_at


def _clearing(
    attempt: JobAttempt, node: NodeStatus | None, cut: Collection[datetime], *, now: datetime
) -> tuple[datetime, str] | None:
    """Return when and how a node is witnessed clear of an attempt that is over; None if it is not."""
    cut_at = min((at for at in cut if at > attempt.started_at), default=None)
    if cut_at is not None:
        return cut_at, "its power was seen off"
    if node is None or not node.is_responding:
        return None
    if node.booted_at is not None and node.booted_at > attempt.started_at + _BOOT_JITTER:
        return min(node.booted_at, now), f"{node.node} was booted again"
    return now, f"{node.node} answers again, without the job"


def _names(nodes: frozenset[NodeName]) -> str:
    return listed(sorted(nodes))


def is_worth_watching(job: JobStatus) -> bool:
    """Return whether the scheduler may start another attempt of a job by itself."""
    return job.is_requeueable and job.attempt is not None and job.state in MAY_HAVE_PROCESSES - {JobState.UNKNOWN}
