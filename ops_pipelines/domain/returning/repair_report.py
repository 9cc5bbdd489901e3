"""What a vendor is told of a node that no repair of ours helped: which parts, what failed, what was tried and tested.

A value put together from what the ledger holds; nothing is asked here. What is not known is part of it, in words.
How it reads is `repair_text`'s.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.node_tests import HealthGate, NodeCheck, TestResult
from ops_pipelines.core.observation import NodeInspection
from ops_pipelines.domain.returning.repair_evidence import (
    NO_LIMIT,
    EarlierTrouble,
    Sign,
    SuspectPart,
    ToldTest,
    TriedRepair,
    UselessRepair,
    is_repair,
    parts_of,
    serial_of,
    sign_of,
    tell_act,
    tell_earlier,
    tell_test,
    tell_try,
)

_SIGNS_AT_EACH_END = 15
"""Assumption: how it began and how it ended is what a vendor reads; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """Everything that a vendor needs; field names are the keys of its JSON."""

    incident: IncidentId
    node: str
    chassis_serial: str
    written_at: datetime
    began_at: datetime
    what_broke: str
    sureness: float | None
    """0..1; None where nothing judged it."""
    asks: tuple[str, ...]
    parts: tuple[SuspectPart, ...]
    signs: tuple[Sign, ...]
    """In the order of their times; of many the earliest and the latest."""
    left_out_sign_count: int
    useless_repairs: tuple[UselessRepair, ...]
    repairs: tuple[TriedRepair, ...]
    tests: tuple[ToldTest, ...]
    """Oldest first."""
    versions: tuple[str, ...]
    history: tuple[EarlierTrouble, ...]
    evidence: str
    """sha256 of the evidence bundle that the ledger names; empty if there is none."""
    not_known: tuple[str, ...]


def write_report(
    incident: Incident,
    *,
    records: Collection[ActionRecord],
    checks: Sequence[NodeCheck],
    inspection: NodeInspection | None,
    earlier: Collection[Incident],
    gates: Collection[HealthGate],
    driver_versions: Collection[str],
    is_evidence_kept: bool,
    now: datetime,
) -> RepairReport:
    """Return the report on the one node of an incident; raise ValueError for one that has none or several.

    `checks` are the node's, newest first; `inspection` is what the node says now, None: it was not asked or is silent;
    then the newest of its checks speaks.
    """
    if len(incident.nodes) != 1:
        raise ValueError(f"{incident.incident} is about {len(incident.nodes)} nodes; a report is about one node")
    (node,) = incident.nodes
    before = sorted((each for each in earlier if _is_earlier(each, incident, node)), key=lambda each: each.began_at)
    seen = inspection or next((each.inspection for each in checks if each.inspection is not None), None)
    tests = tuple(tell_test(check, run, gates) for check in reversed(checks) for run in check.tests)
    parts = parts_of(incident, node, checks, seen, before)
    signs = [sign_of(each) for each in sorted(incident.findings, key=lambda each: each.found_at)]
    shown = signs if len(signs) <= 2 * _SIGNS_AT_EACH_END else signs[:_SIGNS_AT_EACH_END] + signs[-_SIGNS_AT_EACH_END:]
    chassis = (seen.chassis_serial if seen is not None else "") or serial_of("chassis", checks)[0]
    versions = _versions(driver_versions, checks)
    useless = tuple(tell_try(each) for each in incident.tries)
    return RepairReport(
        incident=incident.incident,
        node=node,
        chassis_serial=chassis,
        written_at=now,
        began_at=incident.began_at,
        what_broke=incident.cause if incident.hypothesis is None else incident.hypothesis.statement,
        sureness=None if incident.hypothesis is None else incident.hypothesis.confidence,
        asks=_asks(incident, node, parts, useless_count=len(useless)),
        parts=parts,
        signs=tuple(shown),
        left_out_sign_count=len(signs) - len(shown),
        useless_repairs=useless,
        repairs=tuple(tell_act(each) for each in sorted(records, key=lambda each: each.begun_at) if is_repair(each)),
        tests=tests,
        versions=versions,
        history=tuple(tell_earlier(each) for each in before),
        evidence=incident.bundle or "",
        not_known=tuple(
            _unknowns(
                incident,
                chassis=chassis,
                parts=parts,
                tests=tests,
                is_seen=seen is not None,
                is_asked_now=inspection is not None,
                has_driver=bool(driver_versions),
                is_evidence_kept=is_evidence_kept,
            )
        ),
    )


def queued_at(incident: Incident) -> datetime:
    """Return since when a node waits for hands: when the last repair failed, else when the incident last changed."""
    return max((each.ended_at for each in incident.tries), default=incident.changed_at)


def _is_earlier(other: Incident, incident: Incident, node: NodeName) -> bool:
    return other.incident != incident.incident and node in other.nodes and other.began_at <= incident.began_at


def _versions(driver_versions: Collection[str], checks: Sequence[NodeCheck]) -> tuple[str, ...]:
    drivers = [f"driver {each}" for each in sorted(driver_versions)]
    models = [
        f"GPU model {each}" for each in dict.fromkeys(model for check in checks[:1] for model in check.gpu_models)
    ]
    firmware = [f"firmware of {each.part}: {each.firmware}" for check in checks[:1] for each in check.serials]
    return (*drivers, *models, *(each for each in firmware if not each.endswith(": ")))


def _asks(incident: Incident, node: NodeName, parts: Sequence[SuspectPart], *, useless_count: int) -> tuple[str, ...]:
    if incident.state is IncidentState.RESOLVED:
        return (f"Nothing: {node} has healed since {incident.changed_at:%Y-%m-%d %H:%M} UTC; this is for the record",)
    tried = f"{useless_count} repair{'' if useless_count == 1 else 's'} of ours did not help" if useless_count else ""
    asked = []
    for each in parts:
        repeated = _repeated(each.earlier_incident_count)
        why = "; ".join(text for text in (each.reasons[0] if each.reasons else "", tried, repeated) if text)
        serial = f", serial {each.serial}" if each.serial else ", serial not known"
        if each.part == node:
            asked.append(f"Find and replace the broken part of {node}: which one it is was not shown. Why: {why}")
        else:
            asked.append(f"Replace {each.part} of {node} (RMA{serial}). Why: {why}")
    return tuple(asked)


def _repeated(count: int) -> str:
    return f"{count} earlier incident{'' if count == 1 else 's'} named it" if count else ""


def _unknowns(
    incident: Incident,
    *,
    chassis: str,
    parts: Sequence[SuspectPart],
    tests: Sequence[ToldTest],
    is_seen: bool,
    is_asked_now: bool,
    has_driver: bool,
    is_evidence_kept: bool,
) -> Iterable[str]:
    if not chassis:
        yield "the serial of the chassis: nothing told it"
    for each in parts:
        if not each.serial and each.part not in incident.nodes:
            yield f"the serial of {each.part}: nothing told it; read it from the part"
    if all(each.part in incident.nodes for each in parts):
        yield "which part is at fault: nothing that was seen names one"
    if not is_asked_now:
        yield "how the node sees itself now: " + (
            "it did not answer; what stands here is from its last tests" if is_seen else "it did not answer"
        )
    if not tests:
        yield "how the node tests: no test was run on it"
    for test, said in sorted({(each.test, each.said) for each in tests if each.result == TestResult.NOT_RUN.value}):
        yield f"test {test} was not run: {said}"
    unlimited = sorted(
        {f"{test.test} {value.name}" for test in tests for value in test.values if value.verdict == NO_LIMIT}
    )
    if unlimited:
        yield f"what is good enough of {', '.join(unlimited)}: no limit is known for this GPU model"
    if not has_driver:
        yield "the version of the driver: nothing kept names it"
    if not is_evidence_kept:
        yield "what surrounded the fault: no evidence bundle was kept"
    if incident.hypothesis is not None:
        for other in incident.hypothesis.alternatives:
            yield f"whether it was not rather this ({other.confidence:.0%}): {other.statement}"
