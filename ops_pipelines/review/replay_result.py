"""What a replay of another policy found, as values: intervals, acts on both sides, refusals, what was learned later.

"Then" is what was decided when it happened, "new" is what the proposed policy decides on the same state of the world.
Learned later is what the ledger holds: a person's word when closing it, tests on its node, repairs that did not help,
people who repaired it, the same trouble again. That a node is well after a repair proves neither.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.identity import IncidentId, NodeName, PlanId
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.plan import Rules
from ops_pipelines.core.record import Chronicle
from ops_pipelines.core.sources import Lake

# -- what a replay reads of one cluster, in one hand --


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that a replay reads."""

    cluster: str
    chronicle: Chronicle
    lake: Lake | None
    """None: only what the ledger holds is replayed."""
    present: Rules
    """The rules of today's files."""
    release: Mapping[str, str]
    """Versions that nodes should have, as cluster.yaml says."""
    step_seconds: int


# -- what a replay found --


class Source(Enum):
    """Where the history of an interval was read."""

    LEDGER = "ledger"
    """Decisions that were made then, each on its own snapshot."""
    LAKE = "lake"
    """Recorded metrics, lines and accounting, understood again."""


class Difference(Enum):
    """How one act is on the two sides."""

    SAME = "same"
    ONLY_THEN = "only_then"
    """It would not be done under the new policy at that moment. Later ones are not known: history continued with it."""
    ONLY_NEW = "only_new"
    OTHER_MOMENT = "other_moment"
    """Started at another decision, or the job on the node is interrupted at another moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedAct:
    """One act that at least one side begins."""

    at: datetime
    """When it is decided; where both do, the earlier of the two."""
    source: Source
    difference: Difference
    incident: IncidentId
    verb: Verb
    target: str
    nodes: frozenset[NodeName]
    """Of its incident."""
    cause: str
    """What broke, in one sentence. Untrusted: it may quote a log."""
    plan_then: PlanId | None
    plan_new: PlanId | None
    then_at: datetime | None
    new_at: datetime | None
    done_at: datetime | None
    """When it was really started; None: it was not, though it was decided or only one side decides it."""
    outcome: str
    """What came of it then: done, failed, unknown; empty where nothing did."""
    why: str
    """Why the other side does not do it, or when it does; empty where both do the same."""
    team: str
    """The account whose job a hold interrupts; empty for other acts, and where nobody knows. Untrusted."""
    lost_gpu_hours: float | None
    """What its plan is expected to throw away; None: nobody knows, or it throws nothing away by itself (no hold)."""
    is_counterfactual: bool
    """It follows the first divergence of its node: the state that it was decided on would have been another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCounts:
    """What one policy does with the interval."""

    act_count: int
    node_act_count: int
    """Acts that take a node or a job away; messages and what gives back are not among them."""
    plan_count: int
    lost_gpu_hours: float
    unknown_loss_count: int
    """Jobs that its plans interrupt and whose loss nobody knows: in no sum."""
    page_count: int
    owner_message_count: int
    approval_count: int
    """Plans that wait for a person's yes."""
    refusals: Mapping[str, int]
    """By guardrail: incidents that it kept waiting at least once."""
    false_count: int
    """Incidents acted on that turned out to be false alarms."""
    missed_count: int
    """Incidents that turned out to be real, of which nobody was notified and nothing was done."""


class Assessment(Enum):
    """What was learned later about an incident."""

    REAL = "real"
    FALSE_ALARM = "false_alarm"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What was learned later about one incident, and how."""

    incident: IncidentId
    verdict: Assessment
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedInterval:
    """A part of the span with one source."""

    source: Source
    since: datetime
    until: datetime
    decision_count: int
    then: str
    """Where the side "then" comes from, in words."""
    unknown: tuple[str, ...]
    """What could not be known of it, one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Whether the same rules on the same snapshots decide what was decided."""

    decision_count: int
    same_count: int
    """Decisions whose recorded incidents, plans and refusals came out again, byte for byte."""
    different: tuple[str, ...]
    """The first of those that did not, in words."""
    without_rules_count: int
    """Decisions whose rules were not kept: nobody can make them again."""
    unreadable_count: int
    """Lines and snapshots that this version cannot read."""
    unreadable: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDifference:
    """One key of policy.yaml that the two policies set differently."""

    key: str
    then: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Recorded history under another policy."""

    cluster: str
    proposed: str
    """How the proposed policy was named by who asked."""
    since: datetime
    until: datetime
    stretches: tuple[ReplayedInterval, ...]
    policy_differences: tuple[KeyDifference, ...]
    policies_then_count: int
    """How many different rules decided within the interval."""
    reproduction: Reproduction
    acts: tuple[ComparedAct, ...]
    then: SideCounts
    new: SideCounts
    understanding_difference_count: int
    """Decisions at which the new policy sees other incidents."""
    plan_difference_count: int
    """Decisions at which it plans, or holds back, something else."""
    refused_when_due: Mapping[str, int]
    """By guardrail: acts that were refused then when their turn came."""
    follow_up_count: int
    """Acts started then that no decision of the interval planned: tests, returns, reminders, and what was left of plans
    made before it. They follow the course of things, and are not replayed."""
    by_hand_count: int
    """Acts that a person launched."""
    lessons: tuple[Lesson, ...]
    cautions: tuple[str, ...]

    def count(self, difference: Difference) -> int:
        """Return how many acts stand so on the two sides."""
        return sum(act.difference is difference for act in self.acts)


# -- what was learned later about an incident --


RECURS_WITHIN = timedelta(hours=24)
_CHECKS_READ = 50
_REPAIR_VERBS = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.POWER_ON, Verb.REIMAGE})
_CLOSED_BY = re.compile(r"closed by [^:]*: ")
_FALSE = re.compile(r"\bfalse[ -](alarm|positive)\b|\bnothing (was )?wrong\b|\bnot broken\b", re.IGNORECASE)


def learn(incidents: Iterable[Incident], chronicle: Chronicle) -> tuple[Lesson, ...]:
    """Return what was learned of each incident that is not part of another, in their order."""
    known = tuple(each for each in incidents if each.state is not IncidentState.MERGED)
    return tuple(_lesson(each, known, chronicle) for each in known)


def _lesson(incident: Incident, all_known: Sequence[Incident], chronicle: Chronicle) -> Lesson:
    verdict, how = (
        _by_person(incident)
        or _by_course(incident)
        or _by_tests(incident, chronicle)
        or _by_recurrence(incident, all_known)
        or (Assessment.UNKNOWN, _nothing_learned(incident))
    )
    return Lesson(incident=incident.incident, verdict=verdict, how=how)


def _by_person(incident: Incident) -> tuple[Assessment, str] | None:
    said = _CLOSED_BY.match(incident.note)
    if said is None or _FALSE.search(incident.note[said.end() :]) is None:
        return None
    return Assessment.FALSE_ALARM, f"a person reported so: {incident.note}"


def _by_course(incident: Incident) -> tuple[Assessment, str] | None:
    if incident.mended_at is not None:
        return Assessment.REAL, "it was repaired by hand"
    if incident.state is IncidentState.IN_REPAIR:
        return Assessment.REAL, "it waits for repair by hands"
    if incident.tries:
        return Assessment.REAL, f"a repair did not help: {incident.tries[-1].why}"
    return None


def _by_tests(incident: Incident, chronicle: Chronicle) -> tuple[Assessment, str] | None:
    records = chronicle.records(incident.incident)
    repaired_at = min((each.begun_at for each in records if each.action.verb in _REPAIR_VERBS), default=None)
    well_unrepaired: NodeName | None = None
    for node in sorted(incident.nodes):
        for check, is_well in chronicle.checks(node, limit=_CHECKS_READ):
            if not _belongs(check.key, records):
                continue
            if not is_well:  # Faults come and go: one test that saw it outweighs those that did not.
                return Assessment.REAL, f"tests found {node} unwell"
            if repaired_at is None or check.finished_at < repaired_at:
                well_unrepaired = well_unrepaired or node
    if well_unrepaired is None:
        return None
    return Assessment.FALSE_ALARM, f"tests found {well_unrepaired} well before anything was repaired"


def _belongs(key: str, records: Sequence[ActionRecord]) -> bool:
    """Return whether a test was asked for by this incident: a node's own clock may say anything."""
    return any(each.action.verb is Verb.CHECK and each.action.key == key for each in records)


def _by_recurrence(incident: Incident, all_known: Sequence[Incident]) -> tuple[Assessment, str] | None:
    if incident.closed_at is None or not incident.nodes:
        return None
    rules = {finding.rule for finding in incident.findings}
    for other in all_known:
        if (
            other.incident != incident.incident
            and incident.closed_at < other.opened_at <= incident.closed_at + RECURS_WITHIN
            and not incident.nodes.isdisjoint(other.nodes)
            and not rules.isdisjoint(finding.rule for finding in other.findings)
        ):
            return Assessment.REAL, f"it came again as {other.incident}"
    return None


def _nothing_learned(incident: Incident) -> str:
    if incident.is_open:
        return f"it is {incident.state.value}: nothing is proven yet"
    return "it ended well, which proves neither"
