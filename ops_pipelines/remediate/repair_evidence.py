"""What a repair report is made of: suspect parts, signs, repairs, tests beside their limits, earlier trouble.

Each value with the function that takes it from what the ledger holds. Putting them together is `repair_report`'s.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.finding import Finding
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident, Try
from ops_pipelines.core.node_tests import (
    HealthGate,
    Measurement,
    NodeCheck,
    TestResult,
    TestRun,
    count_gpus_used,
    gate_for,
)
from ops_pipelines.core.observation import NodeInspection
from ops_pipelines.remediate.ladder import RUNGS, Rung, rung_of
from ops_pipelines.remediate.verbs import explain_action

NO_LIMIT = "no limit known"
_REASONS_AT_MOST = 15
_LINES_OF_A_SIGN = 3
_LINE_LENGTH = 500
_REPAIR_VERBS = frozenset(verb for rung, rule in RUNGS.items() if rung >= Rung.DRAIN for verb in rule.verbs)
_PARTS_OF_A_NODE = {ComponentKind.GPU: "gpu", ComponentKind.LINK: "link", ComponentKind.DISK: "disk"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectPart:
    """One part that we believe to be broken. Serial, model and firmware are empty where nothing reported them."""

    part: str
    """`gpu 0000:1b:00`, `link mlx5_0`, ...; the node's name where no part is known."""
    pci_address: str
    serial: str
    model: str
    firmware: str
    reasons: tuple[str, ...]
    earlier_incident_count: int
    """How many earlier incidents of this node named the same part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One thing that showed that something is wrong, with what was written where it was seen."""

    first_at: datetime
    last_at: datetime
    count: int
    part: str
    rule: str
    says: str
    lines: tuple[str, ...]
    """As written by the machine, cut to 500 characters each. Untrusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedRepair:
    """One act on the node and what its witness stated."""

    begun_at: datetime
    act: str
    outcome: str
    """`done`, `failed`, `unknown`, or `under way`."""
    witness: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UselessRepair:
    """One repair that did not help, and how that showed."""

    repair: str
    ended_at: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredValue:
    """One number beside what it must reach."""

    name: str
    value: float
    unit: str
    part: str
    low: float | None
    high: float | None
    verdict: str
    """`ok`, `below the floor`, `above the ceiling`, or `no limit known`."""
    source: str
    """Of the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldTest:
    """One test of one run."""

    finished_at: datetime
    suite: str
    test: str
    result: str
    said: str
    values: tuple[MeasuredValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTrouble:
    """One earlier incident of the same node."""

    incident: str
    began_at: datetime
    state: str
    cause: str
    parts: tuple[str, ...]
    note: str


def is_repair(record: ActionRecord) -> bool:
    """Return whether a record is of an act on a node itself."""
    return record.action.node is not None and record.action.verb in _REPAIR_VERBS


def _parts_named(incident: Incident) -> tuple[str, ...]:
    """Return the parts of a node that an incident blames, without their node."""
    culprits: tuple[Component, ...] = () if incident.hypothesis is None else incident.hypothesis.culprits
    named = [f"{_PARTS_OF_A_NODE[each.kind]} {each.name}" for each in culprits if each.kind in _PARTS_OF_A_NODE]
    return tuple(dict.fromkeys([f"gpu {gpu}" for gpu in sorted(incident.gpus)] + named))


def parts_of(
    incident: Incident,
    node: NodeName,
    checks: Sequence[NodeCheck],
    seen: NodeInspection | None,
    earlier: Sequence[Incident],
) -> tuple[SuspectPart, ...]:
    """Return the parts that an incident blames, each with why; the node itself where none is named."""
    reasons: dict[str, list[str]] = {part: [] for part in _parts_named(incident)}
    for finding in sorted(incident.findings, key=lambda each: each.found_at):
        part = _part_of(finding)
        if part in reasons:
            reasons[part].append(finding.explanation)
    for run in _failed_newest(checks):
        for value in run.measurements:
            if value.gpu is not None and f"gpu {value.gpu}" in reasons:
                reasons[f"gpu {value.gpu}"].append(f"test {run.test} failed on it: {run.said}")
    if not reasons:
        reasons[node] = [finding.explanation for finding in incident.findings] or [incident.note]
    found = []
    for part, why in reasons.items():
        serial, model, firmware = serial_of(part, checks)
        gpu = next((each for each in (seen.gpus if seen is not None else ()) if f"gpu {each.gpu}" == part), None)
        found.append(
            SuspectPart(
                part=part,
                pci_address=part.removeprefix("gpu ") if part.startswith("gpu ") else "",
                serial=serial or (gpu.serial if gpu is not None else ""),
                model=model or (gpu.model if gpu is not None else ""),
                firmware=firmware,
                reasons=tuple(dict.fromkeys(why or [incident.cause]))[:_REASONS_AT_MOST],
                earlier_incident_count=sum(part in _parts_named(each) or part == node for each in earlier),
            )
        )
    return tuple(found)


def _failed_newest(checks: Sequence[NodeCheck]) -> Iterable[TestRun]:
    return (run for run in (checks[0].tests if checks else ()) if run.result is TestResult.FAILED)


def serial_of(part: str, checks: Sequence[NodeCheck]) -> tuple[str, str, str]:
    """Return serial, model and firmware of a part, by the newest tests that name it."""
    name = part.partition(" ")[2] or part
    for check in checks:
        for each in check.serials:
            if each.part == part or (name != part and each.part.partition(" ")[2] == name):
                return each.serial, each.model, each.firmware
    return "", "", ""


def _part_of(finding: Finding) -> str:
    component = finding.component
    if component is not None and component.kind in _PARTS_OF_A_NODE:
        return f"{_PARTS_OF_A_NODE[component.kind]} {component.name}"
    return str(finding.node) if finding.gpu is None else f"gpu {finding.gpu}"


def sign_of(finding: Finding) -> Sign:
    """Return a finding with the lines that it rests on."""
    lines = [each.text[:_LINE_LENGTH] for each in finding.evidence if each.text]
    return Sign(
        first_at=finding.found_at,
        last_at=finding.last_at or finding.found_at,
        count=finding.count,
        part=_part_of(finding),
        rule=finding.rule,
        says=finding.explanation,
        lines=tuple(dict.fromkeys(lines))[:_LINES_OF_A_SIGN],
    )


def tell_act(record: ActionRecord) -> TriedRepair:
    """Return an act with what its witness stated."""
    outcome = record.outcome
    return TriedRepair(
        begun_at=record.begun_at,
        act=explain_action(record.action),
        outcome="under way" if outcome is None else outcome.kind.value,
        witness="" if outcome is None else outcome.witness,
    )


def tell_test(check: NodeCheck, run: TestRun, gates: Collection[HealthGate]) -> ToldTest:
    """Return a test with each number beside its limit."""
    return ToldTest(
        finished_at=check.finished_at,
        suite=check.suite,
        test=run.test,
        result=run.result.value,
        said=run.said,
        values=tuple(_beside_limit(each, run, check.gpu_models, gates) for each in run.measurements),
    )


def _beside_limit(
    value: Measurement, run: TestRun, gpu_models: Collection[str], gates: Collection[HealthGate]
) -> MeasuredValue:
    """Return a number beside the limit by which it was judged; of a limit in another unit nothing is stated."""
    gate = gate_for(gates, test=run.test, measurement=value.name, models=gpu_models, gpu_count=count_gpus_used(run))
    if gate is not None and gate.unit != value.unit:
        gate = None
    low, high = (None, None) if gate is None else (gate.low, gate.high)
    verdict = NO_LIMIT if low is None and high is None else "ok"
    if low is not None and value.value < low:
        verdict = "below the floor"
    if high is not None and value.value > high:
        verdict = "above the ceiling"
    return MeasuredValue(
        name=value.name,
        value=value.value,
        unit=value.unit,
        part="" if value.gpu is None else f"gpu {value.gpu}",
        low=low,
        high=high,
        verdict=verdict,
        source="" if gate is None else gate.source,
    )


def tell_try(tried: Try) -> UselessRepair:
    """Return a repair that did not help."""
    return UselessRepair(repair=rung_of(tried.response).name.lower(), ended_at=tried.ended_at, why=tried.why)


def tell_earlier(other: Incident) -> EarlierTrouble:
    """Return an earlier incident in short."""
    return EarlierTrouble(
        incident=other.incident,
        began_at=other.began_at,
        state=other.state.value,
        cause=other.cause,
        parts=_parts_named(other),
        note=other.note,
    )
