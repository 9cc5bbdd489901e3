"""An incident's findings -> one hypothesis and one response: what broke, how sure we are, what it calls for.

Pure and rebuilt from the incident alone, so that it never disagrees with its evidence. Which findings belong together
is `correlate`'s business.

What one finding calls for is its rule's business (`observe`); what is planned for it is `remediate`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.fault import (
    Alternative,
    AtFault,
    Component,
    ComponentKind,
    Family,
    FirstAction,
    Hypothesis,
    node_component,
)
from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.identity import NodeName, PciAddress, Topology
from ops_pipelines.core.incident import Incident, leading
from ops_pipelines.core.observation import CONDITION_SOURCES, HISTORY_SOURCE, NO_NODE
from ops_pipelines.diagnose.shared_cause import nodes_at, wide_suspect

# -- an incident's findings -> one hypothesis --


RAISED_AT = 0.6
"""Evidence that makes us less sure than this is watched and troubles nobody: one such line a day is normal.
Assumption; chosen so that two independent weak signs count, and one does not."""
_SUREST = 0.99
_DOUBT = 0.85
"""What each piece of evidence against leaves of the confidence. Assumption."""
_OF_DAMAGE = 0.5
"""What is left of the confidence where only damage is seen: something is wrong, and nothing shows what. Assumption."""
_SHOWN_COUNT = 8
_MAX_CULPRITS = 4


@dataclass(frozen=True, slots=True)
class _Doubt:
    """What else a family of trouble may come from, and how one would know."""

    alternative: str
    share: float
    why_less: str
    settled_by: str


_DOUBTS: Mapping[Family, _Doubt] = {
    Family.GPU: _Doubt(
        "the riser, board or PCIe switch that carries the GPU",
        0.2,
        "its neighbours on the same board are well",
        "the same GPU failing again in another slot, or another GPU in this one; DCGM diagnostics level 3",
    ),
    Family.MEMORY: _Doubt(
        "a bit flip without a defect",
        0.1,
        "an uncorrectable error is remapped once and then gone; a second one on this GPU would tell",
        "the GPU's remap counters after the reset; DCGM's memory test",
    ),
    Family.NVLINK: _Doubt(
        "the GPU or switch at the other end of the link",
        0.3,
        "the other end has reported nothing of its own",
        "the errors of the peer's port: the end that counts receive errors is the victim",
    ),
    Family.PCIE: _Doubt(
        "the slot or the CPU's root port",
        0.3,
        "the other devices below the same port are well",
        "lspci after a reseat: width and speed against the neighbours'",
    ),
    Family.FABRIC: _Doubt(
        "the switch port or the cable at the other end",
        0.35,
        "the switch's other ports are well",
        "the port counters of the switch, and the cable swapped with a neighbour's",
    ),
    Family.SILENCE: _Doubt(
        "the management network instead of the node",
        0.25,
        "other nodes behind the same switch answer",
        "the node's BMC: power, console and sensors do not pass through the operating system",
    ),
    Family.HEAT: _Doubt(
        "the room's cooling",
        0.2,
        "the neighbours in the rack are cool",
        "fan speeds and inlet temperature from the BMC",
    ),
    Family.POWER: _Doubt(
        "a limit that somebody set",
        0.2,
        "its neighbours run without it",
        "the power limit and clock reasons as nvidia-smi shows them, and the BMC's power supplies",
    ),
    Family.STORAGE: _Doubt(
        "the network between the nodes and the store",
        0.3,
        "no link of the nodes reports errors",
        "the state of the file system's servers; a read from a node on another switch",
    ),
    Family.DISK: _Doubt(
        "a controller or a backplane",
        0.15,
        "the other disks of the node are well",
        "the disk's own log (smartctl, nvme error-log)",
    ),
    Family.HOST: _Doubt(
        "the jobs that ran there",
        0.2,
        "they run elsewhere without this",
        "a node check under load with none of the users' programs",
    ),
    Family.SOFTWARE: _Doubt(
        "a change that is under way",
        0.2,
        "no rollout of ours is in progress there",
        "the versions on the node against the declared release",
    ),
    Family.SLOWNESS: _Doubt(
        "an uneven division of the work",
        0.25,
        "the part was level with its peers before",
        "the same job with this part left out, or a GEMM test of the part alone",
    ),
    Family.STALL: _Doubt(
        "the program itself: ranks that wait for one another",
        0.3,
        "the named ranks differ from all the others",
        "stack traces of all ranks (py-spy, NCCL flight recorder)",
    ),
    Family.COLLECTIVE: _Doubt(
        "a fault of a node or link that nothing has shown yet",
        0.4,
        "no node or link of the job reports anything",
        "whether the job fails again at the same step, or on the same node",
    ),
    Family.APPLICATION: _Doubt(
        "a defect of the hardware that it ran on",
        0.1,
        "no sensor of these nodes shows anything",
        "whether it fails on other nodes too, and others fail on these",
    ),
}
_NO_DOUBT = _Doubt(
    "something that this program has no rule for", 0.5, "the evidence names a part", "a look at the node"
)
_PLACE_WORDS = {
    ComponentKind.LEAF_SWITCH: ("leaf switch {name} failed", "the links of {count} of its {total} nodes are down"),
    ComponentKind.POWER_FEED: ("power feed {name} failed", "{count} of its {total} nodes fell silent together"),
    ComponentKind.RACK: ("rack {name} has a fault of its own", "{count} of its {total} nodes show the same"),
    ComponentKind.NVLINK_DOMAIN: ("NVLink domain {name} failed", "{count} of its {total} nodes report it"),
    ComponentKind.STORAGE: ("the {name} storage does not deliver", "{count} nodes wait for it or report it"),
    ComponentKind.FABRIC: ("the fabric {name} failed", "{count} nodes report it"),
    ComponentKind.DRIVER: ("driver {name} misbehaves", "{count} nodes that run it report the same"),
}
_WIDE_FIRST_ACTIONS = {
    ComponentKind.LEAF_SWITCH: FirstAction.INVESTIGATE_FABRIC,
    ComponentKind.FABRIC: FirstAction.INVESTIGATE_FABRIC,
    ComponentKind.NVLINK_DOMAIN: FirstAction.INVESTIGATE_FABRIC,
    ComponentKind.STORAGE: FirstAction.INVESTIGATE_STORAGE,
    ComponentKind.DRIVER: FirstAction.FIX_SOFTWARE,
}
_WIDE_AT_FAULT = {
    ComponentKind.LEAF_SWITCH: AtFault.FABRIC,
    ComponentKind.FABRIC: AtFault.FABRIC,
    ComponentKind.NVLINK_DOMAIN: AtFault.FABRIC,
    ComponentKind.RACK: AtFault.FACILITY,
    ComponentKind.POWER_FEED: AtFault.FACILITY,
    ComponentKind.STORAGE: AtFault.STORAGE,
    ComponentKind.DRIVER: AtFault.NODE,
}


def confidence_of(findings: Sequence[Finding]) -> float:
    """Return how sure findings make us together: each rule on each node is one independent sign."""
    signs: dict[tuple[str, str], float] = {}
    for finding in findings:
        if not finding.is_secondary:
            key = (finding.rule, finding.node)
            signs[key] = max(signs.get(key, 0.0), finding.confidence)
    doubt = 1.0
    for confidence in signs.values():
        doubt *= 1.0 - confidence
    return min(_SUREST, 1.0 - doubt)


def component_of(finding: Finding) -> Component | None:
    """Return the part that one finding suspects; None where it names neither a node nor a job."""
    if finding.component is not None:
        return finding.component
    if finding.at_fault in (AtFault.APPLICATION, AtFault.USER) and finding.job is not None:
        return Component(kind=ComponentKind.JOB, name=finding.job)
    if finding.node == NO_NODE:
        return None if finding.job is None else Component(kind=ComponentKind.JOB, name=finding.job)
    if finding.gpu is not None and finding.at_fault is AtFault.GPU:
        return Component(kind=ComponentKind.GPU, name=finding.gpu, node=finding.node)
    return node_component(finding.node)


def diagnose(incident: Incident, *, topology: Topology) -> Hypothesis | None:
    """Return what an incident's findings make us believe; None for one without findings (a person's own drain)."""
    first = leading(incident.findings)
    if first is None:
        return None
    against = _against(incident, first)
    sure = confidence_of(incident.findings) or _OF_DAMAGE * max(each.confidence for each in incident.findings)
    sure *= _DOUBT ** len(against)
    if incident.quiet_since is not None:
        # Stated, but no doubt: that a fault is over does not mean that it never was.
        against = (f"{_clock(incident.quiet_since)}: what showed it no longer does", *against)
    culprits = _culprits(incident, first)
    doubt = _DOUBTS.get(first.family, _NO_DOUBT)
    return Hypothesis(
        statement=_statement(incident, first, topology),
        culprits=culprits,
        at_fault=first.at_fault if incident.suspect is None else _WIDE_AT_FAULT[incident.suspect.kind],
        family=first.family,
        first_action=first.first_action if incident.suspect is None else _wide_action(incident.suspect),
        confidence=round(sure, 3),
        affected_nodes=_affected(incident, culprits),
        evidence_for=_for(incident, first),
        evidence_against=against,
        alternatives=_alternatives(incident, first, doubt, sure),
        settled_by=doubt.settled_by,
    )


def _wide_action(suspect: Component) -> FirstAction:
    return _WIDE_FIRST_ACTIONS.get(suspect.kind, FirstAction.MONITOR)


def _culprits(incident: Incident, first: Finding) -> tuple[Component, ...]:
    if incident.suspect is not None:
        return (incident.suspect,)
    if incident.is_mass_event:
        return ()
    if not incident.nodes:
        named = component_of(first)
        jobs = tuple(Component(kind=ComponentKind.JOB, name=victim.job) for victim in sorted(incident.victims))
        return jobs or (() if named is None else (named,))
    found = [component_of(first)]
    for finding in sorted(incident.findings, key=lambda each: (-each.response.rank, -each.confidence, each.found_at)):
        if finding.response >= first.response and not finding.is_secondary and finding.family is first.family:
            found.append(component_of(finding))
    named_parts = [part for part in dict.fromkeys(found) if part is not None and part.node in incident.nodes]
    by_part = {part.node for part in named_parts if part.kind is not ComponentKind.NODE}
    # A part says it all: its node is not blamed besides.
    parts = [part for part in named_parts if part.kind is not ComponentKind.NODE or part.node not in by_part]
    return tuple(parts[:_MAX_CULPRITS]) or tuple(
        node_component(node) for node in sorted(incident.nodes)[:_MAX_CULPRITS]
    )


def _affected(incident: Incident, culprits: tuple[Component, ...]) -> frozenset[NodeName]:
    guilty = {part.node for part in culprits}
    return frozenset(node for node in incident.seen_on if node not in guilty)


def _statement(incident: Incident, first: Finding, topology: Topology) -> str:
    suspect = incident.suspect
    if suspect is not None and suspect.kind in _PLACE_WORDS:
        what, how = _PLACE_WORDS[suspect.kind]
        count = len({finding.node for finding in incident.findings if finding.node != NO_NODE})
        total = len(nodes_at(suspect, topology))
        statement = what.format(name=suspect.name)
        if first.family is Family.HEAT and suspect.kind is ComponentKind.RACK:
            statement = f"the cooling of rack {suspect.name} fails"
        if first.family is Family.SILENCE and suspect.kind is ComponentKind.RACK:
            statement = f"rack {suspect.name} lost power or its network"
        if count == 0:
            return f"{statement}: {first.explanation}"
        return f"{statement}: {how.format(count=count, total=total)}"
    # What follows a semicolon is detail, and is with the evidence.
    return incident.cause.partition("; ")[0]


def _for(incident: Incident, first: Finding) -> tuple[str, ...]:
    rest = sorted(
        (finding for finding in incident.findings if finding is not first),
        key=lambda each: (each.is_secondary, each.found_at, each.rule, each.node),
    )
    by_rule: dict[tuple[str, str], list[Finding]] = {}
    for finding in (first, *rest):
        by_rule.setdefault((finding.rule, finding.explanation if incident.suspect is None else ""), []).append(finding)
    said = [_sentence(group) for group in by_rule.values()]
    more = len(said) - _SHOWN_COUNT
    return (*said[:_SHOWN_COUNT], f"and {more} more kinds of evidence") if more > 0 else tuple(said)


def _sentence(group: Sequence[Finding]) -> str:
    count = sum(finding.count for finding in group)
    began = min(finding.found_at for finding in group)
    newest = max(finding.last_at or finding.found_at for finding in group)
    nodes = sorted({finding.node for finding in group} - {NO_NODE})
    when = _clock(began) if _clock(began) == _clock(newest) else f"{_clock(began)} to {_clock(newest)}"
    where = "" if len(nodes) < 2 else f" on {len(nodes)} nodes ({nodes[0]} to {nodes[-1]})"
    times = "" if count == 1 else f"{count} times, "
    such = "such as: " if len({finding.explanation for finding in group}) > 1 else ""
    damage = "" if not group[0].is_secondary else "afterwards: " if group[0].family is Family.SILENCE else "damage: "
    return f"{when}: {times}{such}{damage}{group[0].explanation}{where}"


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}"


def _against(incident: Incident, first: Finding) -> tuple[str, ...]:
    said = []
    sources = {observation.source for finding in incident.findings for observation in finding.evidence}
    blamed = sorted(
        {
            finding.at_fault.value
            for finding in incident.findings
            if not finding.is_secondary
            and finding.at_fault not in (first.at_fault, AtFault.UNKNOWN, AtFault.NOTHING)
            and finding.family is not first.family
            and finding.response >= first.response
        }
    )
    if blamed:
        said.append(f"other evidence blames: {', '.join(blamed)}")
    if (
        len(incident.findings) == 1
        and first.count == 1
        and not sources & CONDITION_SOURCES
        and first.confidence < _SUREST
    ):
        said.append("a single log line says so; no sensor has shown it")
    return tuple(said)


def _alternatives(incident: Incident, first: Finding, doubt: _Doubt, sure: float) -> tuple[Alternative, ...]:
    if incident.suspect is not None:
        count = len(incident.seen_on)
        return (
            Alternative(
                statement=f"{count} separate faults at once",
                confidence=round(min(1.0 - sure, 0.05), 3),
                why_less_likely="independent faults do not begin together and stand at one place",
            ),
        )
    left = max(0.0, 1.0 - sure)
    return (
        Alternative(
            statement=doubt.alternative, confidence=round(min(left, doubt.share), 3), why_less_likely=doubt.why_less
        ),
    )


# -- what findings call for together --


def response_of(findings: Iterable[Finding]) -> Response:
    """Return the response that a set of findings calls for: the strongest over its GPUs.

    For one GPU the driver's newest own verdict outranks every table (NVML recovery action, Xid 154); what belongs
    to no GPU counts for itself. That the driver asks for nothing is no verdict on what happened: it says so just as
    well before a fault, and it takes no fault back.
    """
    return max((_response_of_gpu(group) for group in _by_gpu(findings).values()), default=Response.MONITOR)


def raised_response(findings: Collection[Finding]) -> Response:
    """Return the response that findings call for, MONITOR while they are too weak together to trouble anybody."""
    own = [finding for finding in findings if not finding.is_secondary]
    is_of_shared = bool(own) and all(wide_suspect(finding) is not None and not finding.is_lasting for finding in own)
    if is_of_shared and len({finding.node for finding in own}) < 2:
        return Response.MONITOR  # One node's own words are no verdict on what all share.
    return response_of(findings) if confidence_of(tuple(findings)) >= RAISED_AT else Response.MONITOR


def gpus_to_reset(findings: Iterable[Finding]) -> frozenset[PciAddress]:
    """Return the GPUs whose own findings call for a reset: a GPU that was only mentioned is left alone."""
    return frozenset(
        gpu
        for gpu, group in _by_gpu(findings).items()
        if gpu is not None and _response_of_gpu(group) is Response.RESET_GPU
    )


def is_repetition(findings: Iterable[Finding]) -> bool:
    """Return whether any finding is a verdict of history: no repair of today ends it."""
    return any(observation.source == HISTORY_SOURCE for finding in findings for observation in finding.evidence)


def by_urgency(finding: Finding) -> tuple[bool, datetime, bool, str, str, tuple[tuple[str, str], ...]]:
    """Return a sort key: repairs first, then by time, what happened before what the driver wishes of it.

    No two findings of different evidence are equal, so that the order in which they come does not matter.
    """
    return (
        finding.response not in REPAIRS,
        finding.found_at,
        finding.is_driver_verdict,
        finding.node,
        finding.rule,
        tuple((observation.source, observation.position) for observation in finding.evidence),
    )


def _by_gpu(findings: Iterable[Finding]) -> Mapping[PciAddress | None, list[Finding]]:
    by_gpu: dict[PciAddress | None, list[Finding]] = {}
    told = list(findings)
    # Damage calls for nothing where something of its own is there.
    for finding in [each for each in told if not each.is_secondary] or told:
        by_gpu.setdefault(finding.gpu, []).append(finding)
    return by_gpu


def _response_of_gpu(findings: list[Finding]) -> Response:
    verdicts = [
        finding
        for finding in findings
        if finding.is_driver_verdict and finding.gpu is not None and finding.response is not Response.MONITOR
    ]
    if verdicts:
        # Of two verdicts of one instant (log and metric) the stronger counts.
        return max(verdicts, key=lambda finding: (finding.found_at, finding.response)).response
    return max(finding.response for finding in findings)
