"""What a repair costs whom, and what else was thought of, as the sentences that a person reads in a plan.

The plan itself is `remediation`'s; what the owner of a job is told is `repair_steps`'.
"""

from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.plan import JobTiming, Moment
from ops_pipelines.domain.guardrails.judge import ClusterFacts
from ops_pipelines.domain.repair.job_moves import MOVED, is_leaving
from ops_pipelines.domain.repair.repair_steps import Situation


def effects_of(situation: Situation, facts: ClusterFacts) -> tuple[str, ...]:
    """Return what the repair costs whom, one sentence a job; losses in GPU-hours, as if it were moved now."""
    effects = [f"job {attempt.job}, held by an earlier plan, is released" for attempt in situation.held]
    for job in situation.jobs:
        timing = situation.timing_of(job)
        if is_leaving(job) or timing is None:
            effects.append(f"job {job.job} is ending already; the repair waits until it is gone")
        elif timing.moment not in MOVED:
            effects.append(
                f"job {job.job} ({job.gpu_count} GPUs) is not touched; the repair waits until it ends: {timing.reason}"
            )
        elif job.checkpointed_at is None:
            effects.append(
                f"job {job.job} ({job.gpu_count} GPUs) is requeued; the age of its checkpoint is unknown"
                f"{_later(timing)}"
            )
        else:
            lost_seconds = max(0.0, (facts.taken_at - job.checkpointed_at).total_seconds())
            lost = lost_seconds * job.gpu_count / 3600
            effects.append(
                f"job {job.job} ({job.gpu_count} GPUs) goes back {lost_seconds:.0f} s to its last checkpoint: "
                f"{lost:.2f} GPU-hours{_later(timing)}"
            )
    return tuple(effects) or ("no job runs on it",)


def alternatives_to(situation: Situation, *, called_for: Response) -> tuple[str, ...]:
    """Return what else could be done, and why it is not: other repairs, other moments, and acts that may never be.

    `called_for` is what the findings ask for; the repair in `situation` may stand above it on the ladder.
    """
    incident = situation.incident
    rejected = [f"{_words(each.response)}: tried, {each.why}" for each in incident.tries]
    if called_for is Response.PAGE:
        rejected.append("page alone: until somebody came, its jobs would stay on a part that is believed to be bad")
    elif incident.response is not called_for and not incident.tries:
        rejected.append(f"{_words(called_for)}: tried on this node as often as policy.yaml allows")
    driver = [finding for finding in incident.findings if finding.is_driver_verdict]
    tables = {finding.response for finding in incident.findings if not finding.is_driver_verdict} & REPAIRS
    for other in sorted(tables - {incident.response} - {each.response for each in incident.tries}):
        by = "the driver itself asks for it" if driver else "a stronger finding asks for it"
        rejected.append(f"{_words(other)}: {_words(incident.response)} instead, because {by}")
    for timing in situation.timings:
        rejected += [
            f"job {timing.attempt.job}, {_words_of_moment(option.moment)}: "
            f"{option.lost_gpu_hours:.2f} GPU-hours expected; {option.why}"
            for option in timing.options
            if option.moment is not timing.moment
        ]
    if situation.is_fenced_by_power:
        rejected.append(
            "declaring the node down first: that starts a second copy of its jobs while the first still writes"
        )
    if situation.is_foreign:
        rejected.append("repairing the node: its drain is somebody else's")
    return tuple(rejected)


def _later(timing: JobTiming) -> str:
    """Return why a job is not moved at once, and until when at the latest."""
    if timing.moment is Moment.NOW:
        return ""
    until = "" if timing.until is None else f", at {timing.until:%H:%M} UTC at the latest"
    return f" if moved now; it is moved {_words_of_moment(timing.moment)}{until}: {timing.reason}"


def _words_of_moment(moment: Moment) -> str:
    return moment.value.replace("_", " ")


def _words(response: Response) -> str:
    return response.name.lower().replace("_", " ")
