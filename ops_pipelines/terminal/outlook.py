"""What is told of the cluster, of its incidents and of the ledger, also where the cluster cannot be opened."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.action import Action
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import Approval, Entry, EntryKind, LedgerDamaged, LedgerError, LedgerState, Pause
from ops_pipelines.core.health import Health, HealthWord, judge_health
from ops_pipelines.core.identity import IncidentId, PlanId
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.plan import IncidentPlan, Snapshot
from ops_pipelines.core.policy import Mode, PolicyError
from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.decide import plan_all
from ops_pipelines.remediate.guardrails.consents import needs_yes
from ops_pipelines.remediate.job_fate import standing_marks
from ops_pipelines.remediate.plans.configuration import vital_signs
from ops_pipelines.remediate.plans.gate import first_act
from ops_pipelines.remediate.plans.moments import awaited_act, waiting_moment
from ops_pipelines.remediate.testimony import count_outcomes, explain_action
from ops_pipelines.resources.config.kept_files import state_directories
from ops_pipelines.resources.state_files import PauseFile
from ops_pipelines.review.shift import node_word
from ops_pipelines.terminal.edge import ExitCode, complain
from ops_pipelines.terminal.tables import AuditView, StoryView, view_action, view_audit, view_entry, view_findings
from ops_pipelines.terminal.views import (
    IncidentsView,
    IncidentView,
    PlanStanding,
    PlanView,
    StatusView,
    count_words,
    view_health,
    view_incident,
    view_marks,
    view_plan,
)

# -- a person's word to stop and to go on --


if TYPE_CHECKING:
    from ops_pipelines.core.cluster import Cluster

LEDGER_LIMIT_SECONDS = 1.0
"""Of the three seconds in which a pause has to stand, the start of the program takes the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What came of the files."""

    places: tuple[Path, ...]
    """Files that were written, or taken away."""
    problems: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Recorded:
    """What came of telling the ledger."""

    cluster: str = ""
    problem: str | None = "it has not answered yet"
    """Why it does not know; None: it does."""
    fault: Exception | None = field(default=None, repr=False)
    """What nobody thought of."""


def pause_beside(order: Pause, cluster_file: Path, *, state: Path | None) -> Beside:
    """Write the pause file into every state directory that is known."""
    directories = state_directories(cluster_file, named=state)
    written, problems = [], []
    for directory in directories:
        file = PauseFile(directory)
        try:
            file.put(order)
        except OSError as problem:
            problems.append(f"{file.path} cannot be written: {problem.strerror}; run this as a user who may")
        else:
            written.append(file.path)
    if not directories:
        problems.append(f"no state directory is known: {cluster_file} does not name one that is there")
    return Beside(places=tuple(written), problems=tuple(problems))


def lift_beside(cluster_file: Path, *, state: Path | None) -> Beside:
    """Take the pause file out of every state directory that is known."""
    lifted, problems = [], []
    for directory in state_directories(cluster_file, named=state):
        file = PauseFile(directory)
        try:
            was = file.remove()
        except OSError as problem:
            problems.append(f"STILL paused: {file.path} cannot be taken away ({problem.strerror}); do it as who may")
        else:
            lifted += [file.path] if was is not None else []
    return Beside(places=tuple(lifted), problems=tuple(problems))


def pause_in_ledger(order: Pause, open_cluster: Callable[[], "Cluster"], *, is_paused: bool) -> Recorded:
    """Write the pause into the ledger; where a file `is_paused` already, wait no longer than the limit for it."""
    recorded = Recorded()

    def tell() -> None:
        from ops_pipelines.people import orders

        try:
            cluster = open_cluster()
            recorded.cluster = cluster.name
            orders.pause(cluster, actor=order.actor, reason=order.reason)
            recorded.problem = None
        except (PolicyError, LedgerError, OSError) as problem:
            recorded.problem = str(problem)
        except Exception as problem:  # Carried over to the thread that waits, which raises it.
            recorded.fault = problem

    teller = threading.Thread(target=tell, daemon=True, name="ledger")
    teller.start()
    teller.join(LEDGER_LIMIT_SECONDS if is_paused else None)
    if recorded.fault is not None and not is_paused:
        raise recorded.fault
    if recorded.fault is not None:
        recorded.problem = str(recorded.fault) or type(recorded.fault).__name__
    return recorded


# -- how the cluster stands, what would be done now for each open incident --


_LATELY = timedelta(hours=24)
_ENTRIES_AT_ONCE = 1000


class Outlook:
    """The ledger's state and, for each incident that waits, the plan that would be made now or why there is none."""

    def __init__(self, cluster: Cluster) -> None:
        """Read it. A scheduler that does not answer is named in `problems`; then no plan is known to hold."""
        self._cluster = cluster
        self.problems: tuple[str, ...] = ()
        self._present: Mapping[IncidentId, IncidentPlan | Refusal] = {}
        self.state: LedgerState = cluster.ledger.read_state(cluster.clock.now())
        if any(incident.state is IncidentState.OPEN for incident in self.state.incidents):
            try:
                self._present = _plan_now(cluster, self.state)
            except SourceError as problem:
                self.problems = (str(problem),)

    def present(self, incident: IncidentId) -> IncidentPlan | Refusal | None:
        """Return what would be done now, or why not; None if that is not known."""
        return self._present.get(incident)

    def approval(self, plan: PlanId) -> Approval | None:
        """Return the approval of a plan that lasts longest, None if none holds now."""
        given = [approval for approval in self.state.approvals if approval.plan == plan]
        return max(given, key=lambda approval: approval.expires_at, default=None)

    def awaited(self, incident: IncidentId) -> Action | None:
        """Return the act with which a plan in force waits for a yes; None if none does."""
        known = next((each for each in self.state.incidents if each.incident == incident), None)
        plan = None if known is None or known.plan is None else self._cluster.ledger.plan(known.plan)
        if known is None or plan is None:
            return None
        return awaited_act(known, plan, self.state, self._cluster.rules.policy)

    def view(self, incident: Incident, *, entries: tuple[Entry, ...] = ()) -> IncidentView:
        """Return an incident with its plan.

        Without a plan that would be made now, the newest one recorded in `entries` is shown, with its standing.
        """
        now = self._cluster.clock.now()
        if incident.state is not IncidentState.OPEN:
            awaited = self.awaited(incident.incident)
            if awaited is not None:
                asked = self._view_plan(incident.plan, PlanStanding.WAITS_FOR_APPROVAL)
                return view_incident(incident, plan=asked, waits_for=f"approval of {explain_action(awaited)}", now=now)
            standing = PlanStanding.IN_FORCE if incident.state is IncidentState.ACTING else PlanStanding.ENDED
            waits_for = waiting_moment(incident, self._cluster) if incident.state is IncidentState.ACTING else None
            return view_incident(incident, plan=self._view_plan(incident.plan, standing), waits_for=waits_for, now=now)
        present = self.present(incident.incident)
        newest = _newest_plan(entries)
        if isinstance(present, Refusal):
            reason = f"{present.guardrail}: {present.reason}"
            held = self._view_plan(newest, PlanStanding.HELD_BACK)
            return view_incident(incident, plan=held, waits_for=reason, now=now)
        if present is None:
            return view_incident(incident, plan=self._view_plan(newest, PlanStanding.RECORDED), waits_for=None, now=now)
        plan = self._view_plan(present.plan, self._standing_of(present))
        return view_incident(incident, plan=plan, waits_for=self._why_not_begun(plan), now=now)

    def _standing_of(self, plan: IncidentPlan) -> PlanStanding:
        policy = self._cluster.rules.policy
        if policy.mode is Mode.OBSERVE:
            return PlanStanding.WOULD_BE_DONE
        if self.approval(plan.plan) is not None:
            return PlanStanding.APPROVED
        is_asked_for = needs_yes(first_act(plan), policy, among=plan.actions)
        return PlanStanding.WAITS_FOR_APPROVAL if is_asked_for else PlanStanding.NEXT

    def _why_not_begun(self, plan: PlanView | None) -> str | None:
        if plan is None:
            return "the next run, which records its plan"
        if plan.standing is PlanStanding.WAITS_FOR_APPROVAL:
            return "approval"
        if plan.standing is not PlanStanding.WOULD_BE_DONE and self.state.pause is not None:
            return "the end of the pause"
        return None

    def _view_plan(self, plan: PlanId | None, standing: PlanStanding) -> PlanView | None:
        """Return a recorded plan; a plan that is not in the ledger yet cannot be approved and is not shown."""
        recorded = None if plan is None else self._cluster.ledger.plan(plan)
        if recorded is None:
            return None
        return view_plan(recorded, standing=standing, approval=self.approval(recorded.plan))


def read_incidents(cluster: Cluster, *, closed_within: timedelta | None) -> IncidentsView:
    """Return the open incidents, each with its plan; those that changed so lately too, or None: no closed ones."""
    now = cluster.clock.now()
    outlook = Outlook(cluster)
    refused = cluster.ledger.why_refused()
    missing = () if refused is None else (refused.words,)
    listed = outlook.state.incidents if closed_within is None else cluster.ledger.incidents_since(now - closed_within)
    return IncidentsView(
        cluster=cluster.name,
        taken_at=now,
        incidents=tuple(outlook.view(incident) for incident in listed),
        problems=(*missing, *outlook.problems, *(str(each) for each in cluster.troubles)),
    )


def read_story(incident: Incident, cluster: Cluster) -> StoryView:
    """Return one incident from its findings to its last line in the ledger."""
    outlook = Outlook(cluster)
    entries = entries_of(incident, cluster.ledger)
    return StoryView(
        cluster=cluster.name,
        taken_at=cluster.clock.now(),
        incident=outlook.view(incident, entries=entries),
        findings=view_findings(incident),
        actions=tuple(view_action(record) for record in cluster.ledger.records(incident.incident)),
        entries=tuple(view_entry(entry) for entry in entries),
        problems=outlook.problems,
    )


def read_status(cluster: Cluster) -> StatusView:
    """Return the state of the cluster and of the autopilot; what the scheduler does not tell is None and a problem."""
    problems, nodes_by_state, jobs_by_state, jobs = [], None, None, None
    try:
        nodes_by_state = count_words(node_word(node) for node in cluster.scheduler.read_nodes())
        jobs = cluster.scheduler.read_jobs()
        present = (job.state.value for job in jobs if job.state in (JobState.PENDING, JobState.RUNNING))
        jobs_by_state = count_words(present)
    except SourceError as problem:
        problems.append(str(problem))
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    recent = tuple(record for record in state.records if record.begun_at > now - _LATELY)
    signs = vital_signs(cluster, state, now=now)
    return StatusView(
        cluster=cluster.name,
        taken_at=now,
        health=view_health(judge_health(signs), signs),
        mode=cluster.rules.policy.mode.value,
        paused=state.pause,
        is_autopilot_alive=signs.is_lease_held,
        nodes_by_state=nodes_by_state,
        jobs_by_state=jobs_by_state,
        marked_jobs=None if jobs is None else view_marks(standing_marks(state.records, {job.job: job for job in jobs})),
        open_incidents_by_state=count_words(incident.state.value for incident in state.incidents),
        actions_by_outcome=count_outcomes(recent),
        waiting_evidence_count=signs.undecided_evidence_count,
        problems=(*problems, *(str(each) for each in cluster.troubles)),
    )


def entries_of(incident: Incident, ledger: Ledger) -> tuple[Entry, ...]:
    """Return the lines of the chain about one incident, in order; the decisions that they followed are left out."""
    return tuple(each for each in ledger.entries_about(incident.incident) if each.incident == incident.incident)


def _newest_plan(entries: tuple[Entry, ...]) -> PlanId | None:
    for entry in reversed(entries):
        if entry.kind is EntryKind.PLAN:
            return PlanId(str(json.loads(entry.body)["plan"]))
    return None


def _plan_now(cluster: Cluster, state: LedgerState) -> Mapping[IncidentId, IncidentPlan | Refusal]:
    """Return what the domain would plan now.

    A pause is left out, because it hides which plan would be next, and so are the metrics: no plan that begins with a
    drain depends on them, and both are judged again before each act.
    """
    nodes = cluster.scheduler.read_nodes()
    jobs = cluster.scheduler.read_jobs()
    snapshot = Snapshot(
        taken_at=cluster.clock.now(),
        rules_digest=cluster.rules_digest,
        ledger_head=state.head_seq,
        evidence_through=state.decided_through,
        observations=(),
        conditions=(),
        nodes=nodes,
        jobs=jobs,
        telemetry=(),
        is_telemetry_available=True,
        incidents=state.incidents,
        incident_count=state.incident_count,
        records=state.records,
        is_paused=False,
        owned=state.owned,
    )
    plans, refusals = plan_all((), snapshot, cluster.rules)
    return {plan.incident: plan for plan in plans} | dict(refusals)


def audit(cluster: Cluster, *, expect_head: str | None) -> AuditView:
    """Return whether the ledger is whole and, if a head hash was noted down earlier, still contains that line."""
    verdict = cluster.ledger.verify_chain()
    if expect_head is not None and not verdict.problem and not _has_entry(cluster.ledger, expect_head):
        verdict = replace(verdict, problem=f"no line has the hash {expect_head}: the chain was cut or replaced")
    return view_audit(verdict, cluster=cluster.name)


def _has_entry(ledger: Ledger, entry_hash: str) -> bool:
    """Return whether the chain contains a line with this hash."""
    after = 0
    while lines := ledger.entries(after=after, limit=_ENTRIES_AT_ONCE):
        if any(line.entry_hash == entry_hash for line in lines):
            return True
        after = lines[-1].seq
    return False


# -- what `status` and `incidents` show where the cluster cannot be opened --


CANNOT_OPEN = (PolicyError, LedgerError)
"""What stands in the way of opening a cluster, and is no fault of ours."""
_NOT_KNOWN = "whether the autopilot runs, and when it last beat, is not known"


def status_without(problem: Exception, cluster_file: Path, *, state: Path | None) -> StatusView:
    """Return what is known all the same."""
    pause = found_pause(cluster_file, state=state)
    since = "" if pause is None else f"{pause.since:%Y-%m-%d %H:%M:%S} UTC"
    paused = "" if pause is None else f"paused by {pause.actor} since {since}: {pause.reason}"
    reasons = tuple(each for each in (_what(problem), paused, _NOT_KNOWN) if each)
    health = Health(word=HealthWord.BLIND, reasons=reasons)
    return StatusView(
        cluster=str(cluster_file),
        taken_at=SystemClock().now(),
        health=view_health(health, None),
        mode=None,
        paused=pause,
        is_autopilot_alive=None,
        nodes_by_state=None,
        jobs_by_state=None,
        marked_jobs=None,
        open_incidents_by_state=None,
        actions_by_outcome=None,
        waiting_evidence_count=None,
        problems=(str(problem),),
    )


def incidents_without(problem: Exception, cluster_file: Path) -> IncidentsView:
    """Return that the incidents are not known, and why."""
    return IncidentsView(
        cluster=str(cluster_file), taken_at=SystemClock().now(), incidents=None, problems=(str(problem),)
    )


def found_pause(cluster_file: Path, *, state: Path | None) -> Pause | None:
    """Return the pause in the first state directory that holds one."""
    found = (PauseFile(place).read() for place in state_directories(cluster_file, named=state))
    return next((pause for pause in found if pause is not None), None)


def end_without(problem: Exception) -> NoReturn:
    """Name what is broken, and end with the exit code for it."""
    complain(str(problem))
    raise typer.Exit(ExitCode.DAMAGED if isinstance(problem, LedgerDamaged) else ExitCode.NO_ANSWER) from problem


def _what(problem: Exception) -> str:
    what = "the ledger" if isinstance(problem, LedgerError) else "the configuration"
    return f"{what} cannot be read; why is on standard error"
