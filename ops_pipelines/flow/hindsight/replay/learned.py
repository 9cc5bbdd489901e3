"""What was learned later about an incident: real, a false alarm, or nothing that would tell the two apart.

Told by what the ledger holds: a person's word when closing it, tests on its node, repairs that did not help, hands that
mended it, the same trouble again. That a node is well after a repair proves neither.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.record import Chronicle
from ops_pipelines.flow.hindsight.replay.result import Lesson, Verdict

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
        or (Verdict.UNKNOWN, _nothing_learned(incident))
    )
    return Lesson(incident=incident.incident, verdict=verdict, how=how)


def _by_person(incident: Incident) -> tuple[Verdict, str] | None:
    said = _CLOSED_BY.match(incident.note)
    if said is None or _FALSE.search(incident.note[said.end() :]) is None:
        return None
    return Verdict.FALSE_ALARM, f"a person said so: {incident.note}"


def _by_course(incident: Incident) -> tuple[Verdict, str] | None:
    if incident.mended_at is not None:
        return Verdict.REAL, "it was mended by hands"
    if incident.state is IncidentState.IN_REPAIR:
        return Verdict.REAL, "it waits for repair by hands"
    if incident.tries:
        return Verdict.REAL, f"a repair did not help: {incident.tries[-1].why}"
    return None


def _by_tests(incident: Incident, chronicle: Chronicle) -> tuple[Verdict, str] | None:
    records = chronicle.records(incident.incident)
    repaired_at = min((each.begun_at for each in records if each.action.verb in _REPAIR_VERBS), default=None)
    well_unrepaired: NodeName | None = None
    for node in sorted(incident.nodes):
        for check, is_well in chronicle.checks(node, limit=_CHECKS_READ):
            if not _belongs(check.key, records):
                continue
            if not is_well:  # Faults come and go: one test that saw it outweighs those that did not.
                return Verdict.REAL, f"tests found {node} unwell"
            if repaired_at is None or check.finished_at < repaired_at:
                well_unrepaired = well_unrepaired or node
    if well_unrepaired is None:
        return None
    return Verdict.FALSE_ALARM, f"tests found {well_unrepaired} well before anything was repaired"


def _belongs(key: str, records: Sequence[ActionRecord]) -> bool:
    """Return whether a test was asked for by this incident: a node's own clock may say anything."""
    return any(each.action.verb is Verb.CHECK and each.action.key == key for each in records)


def _by_recurrence(incident: Incident, all_known: Sequence[Incident]) -> tuple[Verdict, str] | None:
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
            return Verdict.REAL, f"it came again as {other.incident}"
    return None


def _nothing_learned(incident: Incident) -> str:
    if incident.is_open:
        return f"it is {incident.state.value}: nothing is proven yet"
    return "it ended well, which proves neither"
