"""What a vendor is given of a node that no repair of ours helped: the report, and its text.

What a log, a job or a test wrote is never markup: sentences are escaped, lines stand in a fence that they cannot end.

A value put together from what the ledger holds; nothing is asked here. What is not known is part of it, in words. How
it reads is `repair_text`'s.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.node_tests import HealthGate, NodeCheck, TestResult
from ops_pipelines.core.observation import NodeInspection
from ops_pipelines.remediate.repair_evidence import (
    NO_LIMIT,
    EarlierTrouble,
    MeasuredValue,
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
from ops_pipelines.report.numbers import counted, escape_markdown

# -- what a vendor is given of a node that no repair of ours helped --


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
    tried = f"{counted(useless_count, 'repair')} of ours did not help" if useless_count else ""
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
    return f"{counted(count, 'earlier incident')} named it" if count else ""


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
        yield "the serial of the chassis: nothing reported it"
    for each in parts:
        if not each.serial and each.part not in incident.nodes:
            yield f"the serial of {each.part}: nothing reported it; read it from the part"
    if all(each.part in incident.nodes for each in parts):
        yield "which part is at fault: nothing that was seen names one"
    if not is_asked_now:
        yield "how the node sees itself now: " + (
            "it did not answer; what is here is from its last tests" if is_seen else "it did not answer"
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


# -- how a repair report reads as Markdown, for a vendor's ticket --


_BACKTICKS = re.compile("`+")
_LONGEST_CELL = 160


def fence(lines: Iterable[str]) -> str:
    """Return lines as they are, each on one line, in a code block whose end none of them can be."""
    shown = ["".join(char if char.isprintable() else "\ufffd" for char in line) for line in lines]
    longest = max((len(run) for line in shown for run in _BACKTICKS.findall(line)), default=0)
    mark = "`" * max(3, longest + 1)
    return "\n".join([f"{mark}text", *shown, mark])


def as_markdown(report: RepairReport) -> str:
    """Return the report as Markdown: what is asked for first, then what it rests on, then what is not known."""
    sureness = "" if report.sureness is None else f" ({report.sureness:.0%} sure)"
    chassis = escape_markdown(report.chassis_serial) or "not known"
    head = [
        f"# Repair of {escape_markdown(report.node)}",
        f"Chassis serial: **{chassis}** · incident {escape_markdown(report.incident)}"
        f" · written {_time(report.written_at)}",
        f"**{escape_markdown(report.what_broke)}**{sureness}, since {_time(report.began_at)}",
    ]
    tried = [
        f"{_time(each.ended_at)}: {escape_markdown(each.repair.replace('_', ' '))} did not help: "
        f"{escape_markdown(each.why)}"
        for each in report.useless_repairs
    ]
    acts = [
        f"{_time(each.begun_at)}: {escape_markdown(each.act)}: {each.outcome}"
        + (f", {escape_markdown(each.witness)}" if each.witness else "")
        for each in report.repairs
    ]
    history = [
        f"{_time(each.began_at)}: {escape_markdown(each.incident)}, {each.state}: {escape_markdown(each.cause)}"
        + (f" (blamed {escape_markdown(', '.join(each.parts))})" if each.parts else "")
        for each in report.history
    ]
    evidence = f"sha256 of the kept evidence: `{report.evidence}`" if report.evidence.isalnum() else "None was kept."
    blocks = [
        *head,
        _section("What we ask for", map(escape_markdown, report.asks)),
        _parts(report.parts),
        _signs(report.signs, report.left_out_sign_count),
        _section("What was tried", [*tried, *acts]),
        _tests(report.tests),
        _section("Versions", map(escape_markdown, report.versions)),
        _section("Earlier trouble of this node", history),
        f"## Evidence\n\n{evidence}",
        _section("What is not known", map(escape_markdown, report.not_known)),
    ]
    return "\n\n".join(blocks) + "\n"


def _section(title: str, items: Iterable[str]) -> str:
    return f"## {title}\n\n" + ("\n".join(f"- {each}" for each in items) or "Nothing.")


def _parts(parts: Sequence[SuspectPart]) -> str:
    lines = [
        _row("part", "PCI address", "serial", "model", "firmware", "named earlier"),
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        _row(
            *(escape_markdown(text) or "not known" for text in (each.part, each.pci_address, each.serial, each.model)),
            escape_markdown(each.firmware) or "not known",
            f"{each.earlier_incident_count} times",
        )
        for each in parts
    ]
    reasons = [f"- {escape_markdown(each.part)}: {escape_markdown(why)}" for each in parts for why in each.reasons]
    return "## Suspect parts\n\n" + "\n".join(lines) + "\n\n" + "\n".join(reasons)


def _signs(signs: Sequence[Sign], left_out_count: int) -> str:
    blocks = ["## What failed"]
    for number, each in enumerate(signs):
        if left_out_count and number == len(signs) // 2:
            blocks.append(f"({left_out_count} more between these)")
        until = f" to {_time(each.last_at)}, {each.count} times" if each.count > 1 else ""
        blocks.append(f"{_time(each.first_at)}{until}, {escape_markdown(each.part)}: {escape_markdown(each.says)}")
        if each.lines:
            blocks.append(fence(each.lines))
    return "\n\n".join(blocks if signs else [*blocks, "Nothing was recorded."])


def _tests(tests: Sequence[ToldTest]) -> str:
    if not tests:
        return "## Tests\n\nNone was run."
    lines = [_row("at", "test", "result", "measured", "limit", "said"), "| --- | --- | --- | --- | --- | --- |"]
    for each in tests:
        name = f"{each.test} ({each.suite})"
        values: Sequence[MeasuredValue | None] = each.values or (None,)
        for value in values:
            lines.append(
                _row(
                    _time(each.finished_at),
                    escape_markdown(name),
                    each.result.replace("_", " "),
                    "" if value is None else _measured(value),
                    "" if value is None else _limit(value),
                    escape_markdown(each.said, at_most=_LONGEST_CELL),
                )
            )
    return "## Tests\n\n" + "\n".join(lines)


def _measured(value: MeasuredValue) -> str:
    where = f"{value.part}: " if value.part else ""
    return escape_markdown(f"{where}{value.name} {value.value:g} {value.unit}")


def _limit(value: MeasuredValue) -> str:
    bounds = [
        f"{words} {bound:g}" for words, bound in (("at least", value.low), ("at most", value.high)) if bound is not None
    ]
    limits = f" ({', '.join(bounds)} {value.unit})" if bounds else ""
    text = f"{value.verdict}{limits}"
    return escape_markdown(text + (f"; {value.source}" if value.source else ""), at_most=_LONGEST_CELL)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
