"""Decides within the tick that noticed the evidence: drains, and marks jobs of silent nodes; nothing stronger.

No run, no plan, no confirmation: a mark costs nobody anything, and waiting may cost a checkpoint. It continues in a
storm, too. What an earlier process left marked is in the ledger, and is seen to by who looks next.

The same snapshot, decision, guardrails, executor and ledger as the run that follows, which records the assets and does
the rest. Runs as a pass of its own, so that a fault is out of service before a run has started.

When to decide: a decision covers everything undecided, and costs a reading of the scheduler and a snapshot on disk. So
a fault that calls for a repair, and has not done so in this tick, is decided on at once. What shows something else for
the first time in a tick (a page, a message to an owner), asks for the same repair again, or comes in bulk is decided on
twice a second, and in the tick's last look; a thousand observations wait for nothing. What only repeats waits for the
next tick, whose first look decides on whatever is there. So a storm is on record within a second, nothing waits longer
than a tick, and a GPU that chatters all day costs one snapshot a tick beside those of the runs that its evidence starts
anyway.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ops_pipelines.core.action import MARKS, Action, ActionRecord, Urgency, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import KEPT_ACTS, Evidence, LedgerConflict, LedgerState
from ops_pipelines.core.finding import REPAIRS, Catalogue, Finding, Response
from ops_pipelines.core.identity import ActionKey, IncidentId, NodeName, digest_of
from ops_pipelines.core.observation import Observation, Signal
from ops_pipelines.core.plan import Order
from ops_pipelines.core.policy import Mode
from ops_pipelines.observe.rules import find
from ops_pipelines.remediate.carry_out import carry_out_drains, carry_out_together, read_back
from ops_pipelines.remediate.decide import decide
from ops_pipelines.remediate.gate import PlanReport, prove_and_record
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, open_marks
from ops_pipelines.remediate.job_moves import find_marks, standing_marks
from ops_pipelines.remediate.judgement import FreshFacts, Lease, read_facts
from ops_pipelines.remediate.perform import Stage, perform
from ops_pipelines.remediate.snapshot import EVIDENCE_AT_ONCE, Reading, begin_reading, glance

_MOST_A_MINUTE = 500
"""# Assumption: bounds what a lying scheduler can make us write. 2,048 silent nodes of one job each take four minutes,
less than the usual SlurmdTimeout of 300 s."""
_FOLLOWED_FOR = timedelta(seconds=4)
_SHOWN_COUNT = 40
_PAGE = "marks"


def see_to_marks(cluster: Cluster, *, lease: Lease) -> str:
    """Set the marks that are lacking and take off those that have done their service; return what was done, in words.

    To be called with each look at the nodes, once what it saw has been decided on: a mark carries its incident. Raises
    SourceError if the scheduler does not list its nodes and jobs; then nothing was started.
    """
    policy, now = cluster.rules.policy, cluster.clock.now()
    state = cluster.ledger.read_state(now)
    if policy.mode is Mode.OBSERVE or state.pause is not None:
        return ""
    silent_since = {
        each.node: each.observed_at
        for each in cluster.ledger.conditions()
        if each.signal is Signal.NODE_UNREACHABLE and each.node not in policy.untouchable_nodes
    }
    if not silent_since and not open_marks(state.records):
        if any(each.action.verb in MARKS for each in state.records):
            _keep_in_sight((), cluster)
        return ""
    facts = read_facts(MARKS, cluster, state=state)
    found = find_marks(facts, silent_since=silent_since, causes=_causes(state))
    _keep_in_sight(found.in_sight, cluster)
    lately = now - timedelta(minutes=1)
    spent = sum(each.action.verb is Verb.MARK and each.begun_at > lately for each in facts.records)
    to_set = found.to_set[: max(0, _MOST_A_MINUTE - spent)]
    unfinished = _follow_unfinished(facts, cluster, lease=lease)
    orders = [Order(action=action) for action in (*found.to_lift, *to_set) if action.key not in unfinished]
    # What was seen to just now may look otherwise by now.
    fresh = None if unfinished else FreshFacts(facts=facts, verbs=MARKS)
    progress = carry_out_together(orders, cluster, lease=lease, fresh=fresh)
    done = Counter(each.action.verb for each in orders if progress[each.action.key].stage is Stage.DONE)
    if done[Verb.MARK]:
        _page_of_storm(read_facts({Verb.MARK}, cluster), cluster, lease=lease)
    words = [f"marked {done[Verb.MARK]} job(s) held"] if done[Verb.MARK] else []
    words += [f"let {done[Verb.UNMARK]} job(s) go"] if done[Verb.UNMARK] else []
    return ", ".join(words)


def _follow_unfinished(facts: ClusterFacts, cluster: Cluster, *, lease: Lease) -> frozenset[ActionKey]:
    """See to marks that got no answer, or whose process ended; return which were open.

    Their witnesses are read together; what does not show is sent again, one by one and for a moment only: a slow
    scheduler must not keep a tick from the next fault. The order is another in each look, so that each is reached.
    """
    unfinished = [each for each in facts.records if each.action.verb in MARKS and not each.outcome]
    if unfinished:
        done: set[ActionKey] = set()
        with suppress(LedgerConflict):  # Somebody else finished one in this moment: each by itself, then.
            told = read_back(unfinished, cluster, refused={})
            done = {key for key, progress in told.items() if progress.stage is Stage.DONE}
        left = [each.action for each in unfinished if each.action.key not in done]
        began_at = cluster.clock.now()
        for action in sorted(left, key=lambda action: digest_of(action.key, began_at.isoformat())):
            if cluster.clock.now() - began_at >= _FOLLOWED_FOR:
                break
            perform(Order(action=action), cluster, lease=lease)
    return frozenset(each.action.key for each in unfinished)


def _keep_in_sight(acts: Collection[ActionRecord], cluster: Cluster) -> None:
    """Let the ledger show standing marks for longer than it shows what is over: their incident may be closed by then.

    A node may come back after days, and who drained it for its repair knows nothing of the job that waits for it.
    """
    keys = " ".join(sorted(each.action.key for each in acts))
    if keys != (cluster.ledger.cursor(KEPT_ACTS) or ""):
        now = cluster.clock.now()
        cluster.ledger.take_in(source=KEPT_ACTS, observations=(), rejected=(), cursor=keys, now=now)


def _causes(state: LedgerState) -> dict[NodeName, IncidentId]:
    """Return for each node the open incident that its silence is in: the newest that shows it, else the oldest."""
    causes: dict[NodeName, IncidentId] = {}
    for incident in state.incidents:
        shows = {
            observation.node
            for finding in incident.findings
            for observation in finding.evidence
            if observation.signal is Signal.NODE_UNREACHABLE
        }
        for name in incident.nodes | shows:
            if name in shows or name not in causes:
                causes[name] = incident.incident
    return causes


def _page_of_storm(facts: ClusterFacts, cluster: Cluster, *, lease: Lease) -> None:
    """Page once where so many nodes fell silent that nobody moves their jobs by himself."""
    marks = standing_marks(facts.records, facts.jobs)
    nodes = {name for mark in marks for name in mark.attempt_nodes}
    if len(nodes) < cluster.rules.policy.mass_event.min_node_count:
        return
    counts = Counter(mark.action.incident for mark in marks)
    if any(each.action.part == _PAGE and each.action.incident in counts for each in facts.records):
        return
    jobs = [mark.action.attempt.job for mark in marks if mark.action.attempt is not None]
    more = f" and {len(jobs) - _SHOWN_COUNT} more" if len(jobs) > _SHOWN_COUNT else ""
    text = (
        f"Many nodes are silent; {len(jobs)} job(s) of {len(nodes)} nodes are marked held, so that none starts a "
        f"second time while its processes may still write: {', '.join(jobs[:_SHOWN_COUNT])}{more}. Each continues by "
        "itself when its nodes answer, or are without power by us; where you make sure of that yourself: `scontrol "
        "release JOB`. `ops-pipelines status` lists them."
    )
    (incident, _), *_ = counts.most_common(1)
    # The storm itself has its page: this list need wake nobody.
    page = Action(verb=Verb.PAGE_HUMAN, incident=incident, text=text, part=_PAGE, urgency=Urgency.WHEN_READ)
    perform(Order(action=page), cluster, lease=lease)


_TRY_COUNT = 8
"""Runs that act write a few lines a second; after this many misses the next look tries again."""
_SOON = timedelta(seconds=0.4)
"""Between two decisions on what calls for no repair, or for one that this tick decided on before: with four looks a
second, every other one decides."""
_BULK_COUNT = 100
"""Observations that are worth a snapshot by their number alone: it is then mostly made of them."""
_FLOOD_COUNT = 1_000
"""Observations that wait for nothing: by the next half second they would be too many to be decided on in time."""


@dataclass(slots=True, kw_only=True)
class Attention:
    """What one tick has decided on so far, so that it need not be done for each repetition."""

    ends_at: datetime | None = None
    """When the tick ends: what is not decided on before then waits for the next one. None: at once."""
    decided_at: datetime | None = None
    """When the tick last decided; None before it has."""
    responses: dict[Hashable, Response] = field(default_factory=dict)
    """What each kind of observation called for that the tick has decided on."""

    def is_drawn(self, evidence: Sequence[Evidence], catalogue: Catalogue, *, now: datetime) -> bool:
        """Return whether undecided `evidence` is to be decided on now."""
        if not evidence or self.decided_at is None or len(evidence) >= _FLOOD_COUNT:
            return bool(evidence)
        known: set[Response] = set()
        new: set[Response] = set()
        for each in evidence:
            response = self.responses.get(_kind_of(each.observation))
            if response is not None:
                known.add(response)
            else:
                new.add(find(each.observation, catalogue).response)
        if not new.isdisjoint(REPAIRS):
            return True
        if now - self.decided_at < _SOON and self.ends_at is not None and now + _SOON < self.ends_at:
            return False
        return len(evidence) >= _BULK_COUNT or not known.isdisjoint(REPAIRS) or bool(new - {Response.MONITOR})

    def take_note(self, findings: Sequence[Finding], *, now: datetime) -> None:
        """Remember that `findings`, of one observation each, were decided on."""
        self.decided_at = now
        self.responses.update((_kind_of(finding.evidence[0]), finding.response) for finding in findings)


def _kind_of(told: Observation) -> Hashable:
    """Return what observations have in common that mean the same, as a rule."""
    return told.signal, told.code, told.signature, told.node, told.gpu, told.component, told.job


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What one reflex did."""

    incident_count: int
    """Incidents opened or changed."""
    drains: tuple[PlanReport, ...]

    @property
    def is_worth_telling(self) -> bool:
        """Return whether it changed anything: most of a storm only adds to what is known."""
        return self.incident_count > 0 or bool(self.drains)

    def __str__(self) -> str:
        drained = [step.action.target for report in self.drains for step in report.steps]
        waiting = [report for report in self.drains if report.stage is not Stage.DONE and not report.steps]
        parts = [f"{self.incident_count} incident(s)"]
        parts += [f"drained {', '.join(drained[:8])}{' and more' if len(drained) > 8 else ''}"] if drained else []
        parts += [f"{waiting[0].plan.incident} waits: {waiting[0].reason}"] if waiting else []
        return "; ".join(parts)


def react(
    cluster: Cluster, *, lease: Lease, attention: Attention | None = None, reading: Reading | None = None
) -> Reaction | None:
    """Decide on new evidence where it is time to, and carry out the drains; None if nothing was decided.

    `attention` is the tick's, and is brought up to date; without one whatever is undecided is decided on. `reading` was
    started moments ago, so that its answer need not be waited for; without one the scheduler is asked when it matters.
    Raises SourceError if the scheduler does not answer: the evidence stays undecided, for the next tick or a run.
    """
    attention = Attention() if attention is None else attention
    for _ in range(_TRY_COUNT):
        now = cluster.clock.now()
        _, evidence = cluster.ledger.undecided(limit=EVIDENCE_AT_ONCE)
        if not attention.is_drawn(evidence, cluster.rules.catalogue, now=now):
            return None
        # Asked once: what makes us miss is a line of the ledger, and each act is judged on fresh state anyway.
        reading = reading or begin_reading(cluster)
        snapshot = glance(cluster, evidence, reading)
        decision = decide(snapshot, cluster.rules)
        with suppress(LedgerConflict):  # A run wrote in between: what is left is decided on again.
            plans = prove_and_record(
                decision,
                snapshot,
                inputs=cluster.ledger.store_snapshot(snapshot),
                cluster=cluster,
                expected_head=snapshot.ledger_head,
                incidents=decision.incidents,
            )
            drains = carry_out_drains(plans, cluster, lease=lease)
            attention.take_note(decision.findings, now=cluster.clock.now())
            return Reaction(incident_count=len(decision.incidents), drains=drains)
    return None
