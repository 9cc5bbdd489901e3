"""What the chosen moments saved against interrupting every job at once, and what became of the jobs that were moved.

Savings are expected ones, as computed when each plan was made (`IncidentPlan.timings`): what NOW was expected to cost
less what the chosen moment was. Proof that a moved job goes on is its incident's (`Incident.recoveries`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import JobAttempt, PlanId
from ops_pipelines.core.incident import Incident, Recovery
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.plan import IncidentPlan, JobTiming, Moment

NO_TEAM = "unknown team"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """One job whose moment was chosen, and what that was expected to save."""

    attempt: JobAttempt
    team: str
    """The account of the job. Untrusted."""
    moment: Moment
    decided_at: datetime
    saved_gpu_hours: float
    """Below 0 where policy forbade a cheaper moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentRemediation:
    """What was done in a stretch of time, as the pages show it."""

    savings: tuple[Saving, ...]
    """In the order of their times."""
    uncounted_job_count: int
    """Jobs whose loss at either moment was not computed: they are in no sum."""
    recoveries: tuple[Recovery, ...]
    plans: tuple[tuple[Incident, IncidentPlan], ...]
    """Plans of which something was begun, newest first."""
    uncounted_at: tuple[datetime, ...] = ()
    """When the moment of each job of `uncounted_job_count` was decided, in order."""


def recent_remediation(ledger: Ledger, *, now: datetime, back: timedelta) -> RecentRemediation:
    """Return what was decided and done about the incidents that changed in the time `back` before `now`."""
    return remediation_of(ledger.incidents_since(now - back), ledger)


def remediation_of(incidents: Iterable[Incident], ledger: Ledger) -> RecentRemediation:
    """Return what was decided and done about these incidents; about none, nothing."""
    savings: dict[JobAttempt, Saving] = {}
    uncounted: dict[JobAttempt, datetime] = {}
    recoveries: list[Recovery] = []
    plans: list[tuple[datetime, Incident, IncidentPlan]] = []
    for incident in incidents:
        recoveries += incident.recoveries
        if not incident.plan_count and incident.plan is None:
            continue
        records = ledger.records(incident.incident)
        for plan, begun_at in _plans_begun(records, ledger):
            plans.append((begun_at, incident, plan))
            of_plan = [each for each in records if each.plan == plan.plan]
            for timing in plan.timings:
                if not _is_carried_out(timing, of_plan):
                    continue
                saving = _saving_of(timing, plan)
                if saving is None:
                    uncounted[timing.attempt] = timing.decided_at
                else:  # A later plan that counts the same job takes the place of the earlier one.
                    savings[timing.attempt] = saving
    untold = sorted(at for attempt, at in uncounted.items() if attempt not in savings)
    plans.sort(key=lambda each: (each[0], each[2].plan), reverse=True)
    return RecentRemediation(
        savings=tuple(sorted(savings.values(), key=lambda each: (each.decided_at, each.attempt))),
        uncounted_job_count=len(untold),
        uncounted_at=tuple(untold),
        recoveries=tuple(sorted(recoveries, key=lambda each: each.held_at)),
        plans=tuple((incident, plan) for _, incident, plan in plans),
    )


def sum_by_day_and_team(savings: Sequence[Saving]) -> Mapping[str, Mapping[str, float]]:
    """Return GPU-hours by day (UTC, `2026-11-21`) and team."""
    sums: dict[str, dict[str, float]] = {}
    for each in savings:
        teams = sums.setdefault(f"{each.decided_at:%Y-%m-%d}", {})
        teams[each.team] = teams.get(each.team, 0.0) + each.saved_gpu_hours
    return sums


def _plans_begun(records: Sequence[ActionRecord], ledger: Ledger) -> Sequence[tuple[IncidentPlan, datetime]]:
    begun: dict[PlanId, datetime] = {}
    for record in sorted(records, key=lambda each: each.begun_at):
        if record.plan is not None:
            begun.setdefault(record.plan, record.begun_at)
    found = []
    for name, at in begun.items():
        plan = ledger.plan(name)
        if plan is not None:
            found.append((plan, at))
    return found


def _is_carried_out(timing: JobTiming, records: Sequence[ActionRecord]) -> bool:
    """Return whether the moment came to pass: the hold that it chose was witnessed, or none was ever to be."""
    if timing.moment in (Moment.JOB_END, Moment.NEVER):
        return any(each.outcome is not None and each.outcome.kind is OutcomeKind.DONE for each in records)
    return any(
        each.action.verb is Verb.HOLD
        and each.action.attempt == timing.attempt
        and each.outcome is not None
        and each.outcome.kind is OutcomeKind.DONE
        for each in records
    )


def _saving_of(timing: JobTiming, plan: IncidentPlan) -> Saving | None:
    costs = {option.moment: option.lost_gpu_hours for option in timing.options}
    if Moment.NOW not in costs or timing.moment not in costs:
        return None
    touched = () if plan.proof is None else plan.proof.jobs
    account = next((each.account for each in touched if each.job == timing.attempt.job), "")
    return Saving(
        attempt=timing.attempt,
        team=account or NO_TEAM,
        moment=timing.moment,
        decided_at=timing.decided_at,
        saved_gpu_hours=costs[Moment.NOW] - costs[timing.moment],
    )
