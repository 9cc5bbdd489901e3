"""What nobody else waits for: acts left behind, incidents that wait too long, silent sources, our own configuration.

An act without its witness, a job without its end and a proof that does not come have their limits where they are waited
for (`perform`, `carry_out`, `verify`), and are handed over there. Here a person is paged, once, of an incident that
waits for an approval, for budget, for metrics or for the end of a pause; of a source that is silent; of a file that
cannot be used; and that we are late. Each continues by itself when it may.

The beat of what watches is written once a tick, so that a dead process shows as an old beat; reading it writes nothing.
The rules themselves are read by `wiring`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from ops_pipelines.core.action import (
    MARKS,
    MESSAGES,
    SOFT,
    Action,
    ActionRecord,
    OutcomeKind,
    Verb,
    Witness,
    witness_limit,
)
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerConflict, LedgerState, Pause
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.health import WATCHER, VitalSigns
from ops_pipelines.core.identity import IncidentId, cause_of
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance, handed_to_people
from ops_pipelines.core.notes import Audience, Message, Severity
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES
from ops_pipelines.core.plan import IncidentPlan, Moment, Order
from ops_pipelines.core.policy import ConfigTrouble, Mode
from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.rollout import under_change
from ops_pipelines.core.sources import SourceError
from ops_pipelines.observe.intake import Intake
from ops_pipelines.remediate.due import acts_of_return, why_it_waits, why_untold
from ops_pipelines.remediate.guardrails.facts import ClusterFacts
from ops_pipelines.remediate.guardrails.judge import is_moot, judge
from ops_pipelines.remediate.judgement import Lease, authority_of, read_facts, words_of
from ops_pipelines.remediate.perform import Stage, finish, perform, send_once
from ops_pipelines.remediate.planning import plan_remediation
from ops_pipelines.remediate.timeliness import STEADY, in_force, read_lateness
from ops_pipelines.remediate.verbs import look, testify

_WAITING_STATES = frozenset({IncidentState.OPEN, IncidentState.ACTING, IncidentState.VERIFYING})
_OWN_LIMIT = "idle_node"
"""The refusal of a repair that waits for jobs to end: `job_end_limit` is for that."""


def settle_left_behind(cluster: Cluster) -> int:
    """Write down what came of acts that were started and are followed by nobody any more; return how many.

    Such as those of a superseded plan, or of a command by hand that was cut short. Nothing is sent: the witness is
    read, and where it does not show within twice its limit the act ends as unknown.
    """
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    incidents = {incident.incident: incident for incident in state.incidents}
    rollouts = {cause_of(each.rollout) for each in state.rollouts}
    settled_count = 0
    for record in state.records:
        if record.outcome is not None or record.action.incident in rollouts:
            continue  # A rollout follows its own acts until it is over.
        if not _is_left_behind(record, incidents.get(record.action.incident)):
            continue
        testimony = testify(record, look(record.action, cluster))
        # Who began it may still be at it, until the limit.
        patience = 2 * witness_limit(record.action.verb, cluster.rules.policy)
        if testimony.witness is not Witness.DONE and now - (record.sent_at or record.begun_at) <= patience:
            continue
        kind = OutcomeKind.DONE if testimony.witness is Witness.DONE else OutcomeKind.UNKNOWN
        with suppress(SourceError, LedgerConflict):  # One that cannot be settled now does not hold up the others.
            finish(record, cluster, kind, f"read afterwards: {testimony.seen}", actor=AUTOPILOT)
            settled_count += 1
    return settled_count


def _is_left_behind(record: ActionRecord, incident: Incident | None) -> bool:
    if record.action.verb in MARKS:
        return False  # The tick follows its marks until they are off.
    if incident is None:
        return True
    if record.action.verb in MESSAGES and record.plan is None:
        return False  # Who pages, or notifies an owner, tries again until a channel takes it.
    if incident.state is IncidentState.ESCALATED:
        return True
    return record.plan is not None and record.plan != incident.plan  # What has no plan is followed by its sender.


def remind_of_waiting(cluster: Cluster, *, lease: Lease) -> tuple[IncidentId, ...]:
    """Page once about each incident that has waited for somebody beyond `waiting_limit`; return those of this pass.

    A page that no channel takes goes out again with the next pass.
    """
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    limit = cluster.rules.policy.durations.waiting_limit
    changing = under_change(state.owned, state.records)
    late = [
        incident
        for incident in state.incidents
        if incident.state in _WAITING_STATES
        and not (incident.nodes and incident.nodes <= changing)  # The rollout has limits of its own.
        and incident.response > Response.NOTIFY_OWNER
        and now - _waits_since(incident, state.records) > limit
        and not _is_told(_reminder(incident, ""), state.records)
    ]
    if not late:
        return ()
    facts = read_facts({Verb.REBOOT}, cluster)  # The verb that asks for the most: it needs the metrics.
    told = []
    for incident in late:
        why = _why_it_waits(incident, facts, state, cluster)
        if why is None:
            continue
        minutes = (now - _waits_since(incident, state.records)).total_seconds() / 60
        text = (
            f"{incident.incident} has waited for {minutes:.0f} min: {incident.cause}. What it waits for: {why}. "
            "It continues by itself when it may; until then nothing is done."
        )
        if perform(Order(action=_reminder(incident, text)), cluster, lease=lease).stage is Stage.DONE:
            told.append(incident.incident)
    return tuple(told)


def _reminder(incident: Incident, text: str) -> Action:
    # Reminders count downwards: no plan's page and no escalation has the same key.
    return Action(verb=Verb.PAGE_HUMAN, incident=incident.incident, text=text, try_number=-1 - incident.plan_count)


def _is_told(page: Action, records: Sequence[ActionRecord]) -> bool:
    return any(record.action.key == page.key and record.outcome is not None for record in records)


def _waits_since(incident: Incident, records: Sequence[ActionRecord]) -> datetime:
    """Return when an incident last came forward. New evidence alone brings it nowhere: it could come without end."""
    times = [incident.opened_at, *([] if incident.mended_at is None else [incident.mended_at])]
    for record in records:
        if record.action.incident == incident.incident and record.action.verb not in MESSAGES:
            times += [record.begun_at, *([record.outcome.finished_at] if record.outcome is not None else [])]
    return max(times)


def _why_it_waits(incident: Incident, facts: ClusterFacts, state: LedgerState, cluster: Cluster) -> str | None:
    """Return what keeps an incident from its next act, None if that has a limit of its own, or if nothing does."""
    policy, topology = cluster.rules.policy, cluster.rules.topology
    known: IncidentPlan | None = None
    if incident.state is IncidentState.OPEN:
        planned = plan_remediation(incident, facts, policy=policy, topology=topology)
        if isinstance(planned, Refusal):
            return words_of(planned)
        plan, actions = planned.plan, planned.actions
    else:
        known = None if incident.plan is None else cluster.ledger.plan(incident.plan)
        if known is None:
            return "the plan in force is not in the ledger"
        plan, actions = known.plan, known.actions
    if incident.state is IncidentState.VERIFYING:
        authority = authority_of(plan, state, policy, actor=AUTOPILOT)
        refusals = [
            judge(each, facts, policy=policy, topology=topology, authority=authority, origin=incident.nodes)
            for each in acts_of_return(incident, state.records, policy)
        ]
        return next((words_of(each) for each in refusals if each is not None and each.guardrail != _OWN_LIMIT), None)
    for action in actions:
        record = next((each for each in state.records if each.action.key == action.key), None)
        if record is not None:
            if record.outcome is None and action.verb in MESSAGES and not _may_be_told_later(action, incident):
                return f"no channel has taken the message to {action.target} yet"
            continue
        if is_moot(action, facts) is not None or _may_be_told_later(action, incident) or action.verb in SOFT:
            continue
        if known is not None and _waits_for_its_moment(action, known, incident, facts):
            assert action.attempt is not None  # only a job has a moment
            return why_untold(known, action.attempt, facts)  # All else has a limit of its own.
        authority = authority_of(plan, state, policy, actor=AUTOPILOT)
        refusal = judge(action, facts, policy=policy, topology=topology, authority=authority, origin=incident.nodes)
        if refusal is not None and refusal.guardrail == _OWN_LIMIT and known is not None:
            return _why_a_replica_stays(known, facts)
        return None if refusal is None or refusal.guardrail == _OWN_LIMIT else words_of(refusal)
    return None


def _why_a_replica_stays(plan: IncidentPlan, facts: ClusterFacts) -> str | None:
    """Return why a service keeps a broken node busy: it ends by no limit of its own, and only people can add replicas.

    None where the repair waits for jobs that end.
    """
    for timing in plan.timings:
        job = facts.jobs.get(timing.attempt.job)
        is_left = timing.moment is Moment.JOB_END and job is not None and job.attempt == timing.attempt
        if is_left and job is not None and job.service and job.state in MAY_HAVE_PROCESSES:
            return f"job {job.job} of service {job.service} is left running: {timing.reason}"
    return None


def _waits_for_its_moment(action: Action, plan: IncidentPlan, incident: Incident, facts: ClusterFacts) -> bool:
    if action.attempt is None or action.verb is not Verb.HOLD:
        return False
    return why_it_waits(plan, incident, action.attempt, facts) is not None


def _may_be_told_later(action: Action, incident: Incident) -> bool:
    return action.verb is Verb.NOTIFY_OWNER and incident.response in REPAIRS


def page_if_blind(cluster: Cluster, seen: Intake, *, lease: Lease) -> None:
    """Page once, as an incident, about a source that has been silent beyond `waiting_limit`; close it when it answers.

    Since when it is silent is kept in the ledger as the cursor of that silence: it outlives this process.
    """
    silent = {"scheduler": seen.nodes is None, "metrics source": seen.gpu_telemetry is None}
    for source, is_silent in silent.items():
        try:
            _page_if_silent(source, cluster, lease=lease) if is_silent else _note_answer(source, cluster)
        except (LedgerConflict, SourceError):
            continue  # Somebody else opened an incident in this moment, or no answer: the next look tries again.


def _page_if_silent(source: str, cluster: Cluster, *, lease: Lease) -> None:
    now = cluster.clock.now()
    known = cluster.ledger.cursor(_silence_of(source))
    if not known:
        _note(_silence_of(source), now.isoformat(), cluster)
        return
    since = datetime.fromisoformat(known)
    if now - since <= cluster.rules.policy.durations.waiting_limit:
        return
    note = f"the {source} has not answered since {since:%Y-%m-%d %H:%M:%S} UTC"
    _page_once(note, f"{note}: faults go unseen until it does.", cluster, since=since, lease=lease)


def _page_once(note: str, text: str, cluster: Cluster, *, since: datetime, lease: Lease) -> None:
    """Page as an incident of its own that carries `note`, unless one since then does."""
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    # Also one that a person has closed: they know, and are not paged about the same again.
    incident = next((each for each in cluster.ledger.incidents_since(since) if each.note == note), None)
    if incident is None:
        incident = handed_to_people(number=state.incident_count + 1, note=note, now=now)
        cluster.ledger.change_incident(incident, actor=AUTOPILOT, now=now)
    send_once(Action(verb=Verb.PAGE_HUMAN, incident=incident.incident, text=text), cluster, lease=lease)


def page_if_late(cluster: Cluster, *, lease: Lease) -> None:
    """Page once, as an incident, that we cannot be relied on to be in time; close it when we have been for a while."""
    now = cluster.clock.now()
    lateness = read_lateness(cluster.ledger, now)
    with suppress(LedgerConflict, SourceError):  # The next look tries again.
        if lateness is None:
            _close_where(_LATE, "on time again: the mode of policy.yaml is in force", cluster)
        elif cluster.rules.policy.mode is Mode.AUTO:
            note = f"{_LATE} {lateness.since:%Y-%m-%d %H:%M:%S} UTC"
            minutes = STEADY.total_seconds() / 60
            text = (
                f"{note}, until we have been on time for {minutes:.0f} min: {lateness.why} Until then plans wait for a "
                "yes: `ops-pipelines incidents` lists them."
            )
            _page_once(note, text, cluster, since=lateness.since, lease=lease)


_LATE = "mode auto is approve since"


def _close_where(beginning: str, why: str, cluster: Cluster) -> None:
    now = cluster.clock.now()
    for incident in cluster.ledger.read_state(now).incidents:
        if not incident.findings and incident.note.startswith(beginning):
            closed = advance(incident, IncidentEvent.CLEARED, at=now, note=why)
            cluster.ledger.change_incident(closed, actor=AUTOPILOT, now=now)


def _note_answer(source: str, cluster: Cluster) -> None:
    if cluster.ledger.cursor(_silence_of(source)):
        _close_where(f"the {source} has not answered since", f"the {source} answers again", cluster)
        _note(_silence_of(source), "", cluster)


def _silence_of(source: str) -> str:
    return f"silence of the {source}"


RESTART_SOURCE = "what only a restart takes up"
"""The cursor under which the code server says so; empty: there is nothing."""


def beat(cluster: Cluster, *, name: str, holder: str, note: str, answers: Mapping[str, str | None]) -> None:
    """Record the tick of `name` by the process `holder`, in words, with what each source asked in it answered.

    A source that was not asked in this tick keeps what it answered this process last: most ticks ask only the logs.
    """
    before = next((each for each in cluster.ledger.heartbeats() if each.name == name), None)
    remembered: Mapping[str, str | None] = before.answers if before is not None and before.holder == holder else {}
    cluster.ledger.beat(
        name=name,
        holder=holder,
        note=note,
        mode=in_force(cluster.rules.policy, read_lateness(cluster.ledger, cluster.clock.now())).mode,
        answers={**remembered, **answers},
        now=cluster.clock.now(),
    )


def read_vital_signs(cluster: Cluster) -> VitalSigns:
    """Return what the ledger knows of the program itself now; raise LedgerError if it cannot be read."""
    now = cluster.clock.now()
    return vital_signs(cluster, cluster.ledger.read_state(now), now=now)


def vital_signs(cluster: Cluster, state: LedgerState, *, now: datetime) -> VitalSigns:
    """Return the vital signs where the state of the ledger at `now` is known already."""
    ledger = cluster.ledger
    restart_for = ledger.cursor(RESTART_SOURCE)
    newest = ledger.evidence_after(state.evidence_head - 1, limit=1)
    lateness = read_lateness(ledger, now)
    beats = ledger.heartbeats()
    refused = ledger.why_refused()
    acting = {each.holder for each in beats if each.name == WATCHER}
    unfinished = [record.begun_at for record in state.records if record.outcome is None]
    return VitalSigns(
        taken_at=now,
        mode=cluster.rules.policy.mode,
        heartbeats=tuple(each for each in beats if not each.is_beside),
        lateness=None if lateness is None else lateness.why,
        is_lease_held=ledger.current_lease(now) is not None,
        pause=None if state.pause is None else _explain(state.pause),
        head_seq=state.head_seq,
        refusal=None if refused is None else refused.words,
        newest_evidence_at=newest[0].observation.observed_at if newest else None,
        undecided_evidence_count=state.evidence_head - state.decided_through,
        open_incidents=Counter((incident.state, incident.response) for incident in state.incidents),
        unfinished_action_count=len(unfinished),
        oldest_unfinished_begun_at=min(unfinished, default=None),
        # Who waited and acts by now is no second one, nor is who was last seen a minute ago.
        bystanders=tuple(
            each for each in beats if each.is_beside and each.holder not in acting and not each.is_silent(now)
        ),
        troubles=(*(str(each) for each in cluster.troubles), *([restart_for] if restart_for else [])),
    )


def _explain(pause: Pause) -> str:
    return f"by {pause.actor} since {pause.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC: {pause.reason}"


_RULES_SOURCE = "rules in force"
_OVER = 2
"""The page that the hour is over is the second one about the same trouble."""
_SINCE = " cannot be used since "


def see_to_configuration(cluster: Cluster, *, lease: Lease) -> None:
    """Note what holds now, and page about what cannot be used; called by the process that holds the lease.

    Raises LedgerError.
    """
    _note_rules(cluster)
    _note(RESTART_SOURCE, _restart_words(cluster), cluster)
    state = cluster.ledger.read_state(cluster.clock.now())
    _close_what_is_mended(cluster, state)
    for trouble in cluster.troubles:
        with suppress(LedgerConflict, SourceError):  # Somebody opened an incident in this moment: the next tick pages.
            _page(trouble, cluster, state, lease=lease)


def tell_ledger_news(cluster: Cluster) -> None:
    """Page once that the ledger is refused, or was restored; a channel that does not answer is tried with each call.

    Past the ledger: one that is gone keeps no outbox, and in another's nothing of ours is written. Raises LedgerError.
    """
    for news in cluster.ledger.untold_news():
        message = Message(
            audience=Audience.ON_CALL,
            recipient="on-call",
            thread=f"{cluster.name}/ledger",
            title=f"{cluster.name}: " + ("nothing is started: the ledger" if news.is_refusal else "the ledger"),
            body=news.words,
            severity=Severity.CRITICAL,
            key=f"{cluster.name}/ledger/{news.key}",
        )
        with suppress(SourceError):
            cluster.notifier.send(message)
            cluster.ledger.mark_told(news)


def rules_changed_at(cluster: Cluster) -> datetime | None:
    """Return since when the rules in force hold; None if the ledger saw no others before."""
    noted = cluster.ledger.cursor(_RULES_SOURCE) or ""
    _, _, since = noted.partition(" ")
    return datetime.fromisoformat(since) if since else None


def _note_rules(cluster: Cluster) -> None:
    noted = cluster.ledger.cursor(_RULES_SOURCE) or ""
    digest, _, _ = noted.partition(" ")
    if digest != cluster.rules_digest:
        since = cluster.clock.now().isoformat() if digest else ""
        _note(_RULES_SOURCE, f"{cluster.rules_digest} {since}", cluster)


def _restart_words(cluster: Cluster) -> str:
    if not cluster.restart_for:
        return ""
    return (
        f"{cluster.restart_for} has changed since the code server read it; restart the code server to take that up "
        "(`systemctl restart ops-pipelines-code`)"
    )


def _note(source: str, words: str, cluster: Cluster) -> None:
    if (cluster.ledger.cursor(source) or "") != words:
        cluster.ledger.take_in(source=source, observations=(), rejected=(), cursor=words, now=cluster.clock.now())


def _page(trouble: ConfigTrouble, cluster: Cluster, state: LedgerState, *, lease: Lease) -> None:
    now = cluster.clock.now()
    # Also one that a person has closed: they know, and are not paged about the same trouble again.
    since, _, name = (cluster.ledger.cursor(_trouble_with(trouble)) or "").partition(" ")
    is_known = since == trouble.since.isoformat()
    incident = cluster.ledger.incident(IncidentId(name)) if is_known else None
    if incident is None:
        incident = handed_to_people(number=state.incident_count + 1, note=str(trouble), now=now)
        cluster.ledger.change_incident(incident, actor=AUTOPILOT, now=now)
        _note(_trouble_with(trouble), f"{trouble.since.isoformat()} {incident.incident}", cluster)
    page = Action(verb=Verb.PAGE_HUMAN, incident=incident.incident, text=str(trouble))
    send_once(page, cluster, lease=lease)
    if trouble.since < trouble.until <= now:
        text = (
            f"{_mark(trouble)}: what it stated before holds no longer. Mode observe: nothing is started until it can."
        )
        send_once(replace(page, text=text, try_number=_OVER), cluster, lease=lease)


def _close_what_is_mended(cluster: Cluster, state: LedgerState) -> None:
    now = cluster.clock.now()
    lasting = [_mark(trouble) for trouble in cluster.troubles]
    for incident in state.incidents:
        file, is_such, _ = incident.note.partition(_SINCE)
        if incident.findings or not is_such or any(incident.note.startswith(each) for each in lasting):
            continue
        closed = advance(incident, IncidentEvent.CLEARED, at=now, note=f"{file} can be used again")
        with suppress(LedgerConflict):
            cluster.ledger.change_incident(closed, actor=AUTOPILOT, now=now)


def _trouble_with(trouble: ConfigTrouble) -> str:
    return f"trouble with {trouble.file}"


def _mark(trouble: ConfigTrouble) -> str:
    """Return how the words about a trouble begin, whatever its fault is by now."""
    return f"{trouble.file}{_SINCE}{trouble.since:%Y-%m-%d %H:%M:%S} UTC"
