"""What observations mean: one rule, one function; each finding names its evidence and the source of the rule.

The meaning of codes is data (`Catalogue`), that of conditions a table (`condition_rules`), never an `if` in a rule.
What a finding is made of is in `finding`; what several of them mean together is `diagnose`.
"""

from dataclasses import replace

from ops_pipelines.core.fault import AtFault, Family, FirstAction
from ops_pipelines.core.finding import RESPONSES, Catalogue, CodeRule, Finding, LogRule, Response
from ops_pipelines.core.observation import NO_NODE, Observation, RecoveryAction, Signal
from ops_pipelines.observe.condition_rules import (
    CONDITION_RULES,
    NVLINK_CODES,
    judge_nvlink,
    judge_sxid,
    rule_of_condition,
)


def find(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return what one observation means. Every observation means something: an unknown code is a finding too."""
    rule = _RULES[observation.signal]
    return rule(observation, catalogue)


_NOT_A_PART = frozenset({AtFault.APPLICATION, AtFault.USER, AtFault.NOTHING, AtFault.UNKNOWN})
_NO_PART = frozenset({Family.APPLICATION, Family.NORMAL, Family.UNKNOWN})
"""Who and what is at fault the first time; once it repeats on one part, the part is."""
_DRIVER_RESPONSES = {
    RecoveryAction.NONE: Response.MONITOR,
    RecoveryAction.RESET_GPU: Response.RESET_GPU,
    RecoveryAction.REBOOT_NODE: Response.REBOOT_NODE,
    RecoveryAction.DRAIN_PEER_TO_PEER: Response.PAGE,
    RecoveryAction.DRAIN_AND_RESET: Response.RESET_GPU,
    RecoveryAction.RECOVER_IMEX_DOMAIN: Response.PAGE,
}
_DRIVER_ACTIONS = {
    RecoveryAction.NONE: FirstAction.MONITOR,
    RecoveryAction.RESET_GPU: FirstAction.RESET_GPU,
    RecoveryAction.REBOOT_NODE: FirstAction.REBOOT_NODE,
    RecoveryAction.DRAIN_PEER_TO_PEER: FirstAction.DRAIN_INSPECT,
    RecoveryAction.DRAIN_AND_RESET: FirstAction.RESET_GPU_AT_JOB_END,
    RecoveryAction.RECOVER_IMEX_DOMAIN: FirstAction.RESET_FABRIC,
}
_OF_UNKNOWN_ALERT = 0.3
"""Assumption: an alert of a name that nobody wrote down may mean anything."""
_DRIVER_SOURCE = "NVML nvmlDeviceGpuRecoveryAction_t; DCGM field 1523; Xid 154"


def find_xid(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return what a logged Xid means by the catalogue; an unknown code calls for a page, never for an act."""
    code = observation.code
    rule = catalogue.xids.get(code) if code is not None else None
    if rule is None:
        return _unknown_code(observation, "Xid", "xid")
    where = f" on GPU {observation.gpu}" if observation.gpu else ""
    told = f"Xid {rule.code} ({rule.mnemonic}){where}"
    if rule.code in NVLINK_CODES and observation.text:
        verdict = judge_nvlink(rule.code, observation.text, catalogue.nvlink_subcodes)
        rule = replace(rule, first_action=verdict.first_action, meaning=f"{rule.meaning}; {verdict.explanation}")
    return _find_code(observation, rule, rule_name=f"xid_{rule.code}", told=told)


def find_sxid(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return what an event of an NVSwitch means by the catalogue; an unknown code calls for a page."""
    code = observation.code
    rule = catalogue.sxids.get(code) if code is not None else None
    if rule is None:
        return _unknown_code(observation, "SXid", "sxid")
    where = f" on {observation.component}" if observation.component else ""
    rule = replace(rule, first_action=judge_sxid(rule, observation.text))
    return _find_code(
        observation, rule, rule_name=f"sxid_{rule.code}", told=f"SXid {rule.code} ({rule.mnemonic}){where}"
    )


def find_signature(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return what a line means by the signature that it matched; a signature without a rule is only kept.

    Words alone repair nothing: users choose what their programs and processes are called, and both stand in logs. What
    calls for a repair there calls for a person; the driver's own codes and the conditions of the node do the rest.
    """
    rule = catalogue.signatures.get(observation.signature or "")
    if rule is None:
        return _finding(
            observation,
            rule="signature_unknown",
            response=Response.MONITOR,
            explanation=f"a line matched {observation.signature}, which this catalogue does not have",
            source="catalogue/log_signatures.csv has no such row",
        )
    return _finding(
        observation,
        rule=rule.signature,
        response=min(RESPONSES[rule.actions[0]], Response.PAGE),
        explanation=f"{rule.meaning}",
        source=rule.source,
        family=rule.family,
        at_fault=rule.at_fault,
        first_action=rule.actions[0],
        is_secondary=rule.is_secondary,
        confidence=rule.confidence,
    )


def find_alert(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return what an alert means by its name; one without a row joins its node's incident and opens none.

    An alert repairs nothing: at the most it calls for a person. What it says of no node calls for nobody, because
    Alertmanager itself has reported people already.
    """
    rule = catalogue.alerts.get(observation.signature or "")
    response = Response.MONITOR if rule is None else min(RESPONSES[rule.first_action], Response.PAGE)
    if observation.node == NO_NODE:
        response = Response.MONITOR
    finding = _finding(
        observation,
        rule=f"alert_{observation.signature}",
        response=response,
        explanation=observation.text,
        source="catalogue/alerts.csv has no such row" if rule is None else rule.source,
        family=Family.UNKNOWN if rule is None else rule.family,
        at_fault=AtFault.UNKNOWN if rule is None else rule.at_fault,
        first_action=FirstAction.MONITOR if rule is None else rule.first_action,
        confidence=_OF_UNKNOWN_ALERT if rule is None else rule.confidence,
        is_secondary=response is Response.MONITOR,
    )
    # What only accompanies an incident must not hold it open either.
    return replace(finding, is_lasting=not finding.is_secondary)


def find_condition(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return what a condition means that a detector sees in the samples; its text says what was measured."""
    rule = rule_of_condition(observation)
    return _finding(
        observation,
        rule=observation.signal.value,
        response=RESPONSES[rule.first_action],
        explanation=observation.text,
        source=rule.source,
        family=rule.family,
        at_fault=rule.at_fault,
        first_action=rule.first_action,
        is_secondary=rule.is_secondary,
        confidence=rule.confidence,
    )


def find_hang(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return that a job makes no progress: its program's doing, unless one node differs from all the others."""
    finding = find_condition(observation, catalogue)
    if observation.node == NO_NODE:
        return finding
    return replace(
        finding, response=Response.PAGE, at_fault=AtFault.NODE, first_action=FirstAction.DRAIN_INSPECT, component=None
    )


def find_repetition(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return that the same happened too often on one part: then the part is suspect, whatever one time of it means."""
    named = rule_named(observation.signature or "", catalogue)
    if named is None or named.repeat is None:
        return _finding(
            observation,
            rule="repeated_unknown",
            response=Response.MONITOR,
            explanation=f"{observation.signature} came often, and this catalogue does not say how often is too often",
            source="catalogue: no repeat rule",
        )
    own = AtFault.NODE if observation.gpu is None else AtFault.GPU
    return _finding(
        observation,
        rule=f"repeated_{observation.signature}",
        response=RESPONSES[named.repeat.then],
        explanation=observation.text,
        source=named.repeat.source,
        family=Family.GPU if named.family in _NO_PART else named.family,
        at_fault=own if named.at_fault in _NOT_A_PART else named.at_fault,
        first_action=named.repeat.then,
    )


def rule_named(name: str, catalogue: Catalogue) -> CodeRule | LogRule | None:
    """Return the rule whose findings bear this name (`Finding.rule`): `xid_31`, `sxid_12028`, a log signature."""
    kind, _, code = name.rpartition("_")
    table = {"xid": catalogue.xids, "sxid": catalogue.sxids}.get(kind)
    if table is not None and code.isdecimal():
        return table.get(int(code))
    return catalogue.signatures.get(name)


def _find_code(observation: Observation, rule: CodeRule, *, rule_name: str, told: str) -> Finding:
    disputed = "; sources disagree, the milder step is taken" if rule.is_disputed else ""
    response = RESPONSES[rule.first_action]
    if response is Response.NOTIFY_OWNER and rule.family is Family.MEMORY and rule.at_fault is AtFault.GPU:
        response = Response.PAGE  # The owner can restart the job, but not plan the reset that the GPU needs after it.
    return _finding(
        observation,
        rule=rule_name,
        response=response,
        explanation=f"{told}: {rule.meaning}{disputed}",
        source=rule.source,
        family=rule.family,
        at_fault=rule.at_fault,
        first_action=rule.first_action,
        is_secondary=rule.is_secondary,
    )


def _unknown_code(observation: Observation, kind: str, table: str) -> Finding:
    return _finding(
        observation,
        rule=f"{table}_unknown",
        response=Response.PAGE,
        explanation=f"{kind} {observation.code} is not in the catalogue; unknown codes are reported and never acted on",
        source=f"catalogue/{table}.csv has no such row",
        confidence=0.7,
    )


def find_recovery_action(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return the driver's own verdict; a number that this program does not know calls for a page."""
    try:
        wanted = RecoveryAction(observation.code)
    except ValueError:
        return _finding(
            observation,
            rule="recovery_action_unknown",
            response=Response.PAGE,
            explanation=f"the driver asks for recovery action {observation.code}, which is not known here",
            source=_DRIVER_SOURCE,
        )
    return _finding(
        observation,
        rule="recovery_action",
        response=_DRIVER_RESPONSES[wanted],
        explanation=f"the driver asks for {wanted.name.lower().replace('_', ' ')} on GPU {observation.gpu}",
        source=_DRIVER_SOURCE,
        is_driver_verdict=True,
        family=Family.GPU,
        at_fault=AtFault.GPU,
        first_action=_DRIVER_ACTIONS[wanted],
        confidence=0.98,
    )


def find_uncorrectable_ecc(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return that GPU memory was lost: the page of memory is only replaced by a reset."""
    return _finding(
        observation,
        rule="ecc_uncorrectable",
        response=Response.RESET_GPU,
        explanation=f"{observation.code} uncorrectable ECC error(s) on GPU {observation.gpu} since the last reset",
        source="NVIDIA GPU memory error management: an uncorrectable error is remapped at the next reset",
        family=Family.MEMORY,
        at_fault=AtFault.GPU,
        first_action=FirstAction.RESET_GPU,
        confidence=0.98,
    )


def find_gpu_missing(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return that a GPU vanished while its neighbours report: it fell off the bus, with or without an Xid."""
    return _finding(
        observation,
        rule="gpu_missing",
        response=Response.REBOOT_NODE,
        explanation=f"{observation.code} GPU(s) of {observation.node} vanished from the metrics; the others report",
        source="dcgm-exporter issue 348, gpud PR 1209: a fallen GPU may vanish without any Xid",
        family=Family.GPU,
        at_fault=AtFault.GPU,
        first_action=FirstAction.REBOOT_NODE,
    )


def find_node_unreachable(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return that the node's daemon is silent; unreachable is not dead, so it is fenced by power before a restart."""
    return _finding(
        observation,
        rule="node_unreachable",
        response=Response.POWER_CYCLE,
        explanation=f"the scheduler gets no answer from {observation.node}",
        source="Slurm NOT_RESPONDING flag",
        family=Family.SILENCE,
        at_fault=AtFault.NODE,
        first_action=FirstAction.REBOOT_NODE,
    )


def find_telemetry_stale(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return that a node's metrics stopped: never health, and no ground for a destructive act either."""
    return _finding(
        observation,
        rule="telemetry_stale",
        response=Response.PAGE,
        explanation=f"no metrics from {observation.node} although they are expected",
        source="absence of data is a finding",
        family=Family.SILENCE,
        at_fault=AtFault.UNKNOWN,
        first_action=FirstAction.MONITOR,
        confidence=0.7,
    )


_RULES = {
    Signal.XID: find_xid,
    Signal.RECOVERY_ACTION: find_recovery_action,
    Signal.ECC_UNCORRECTABLE: find_uncorrectable_ecc,
    Signal.GPU_MISSING: find_gpu_missing,
    Signal.NODE_UNREACHABLE: find_node_unreachable,
    Signal.TELEMETRY_STALE: find_telemetry_stale,
    Signal.SXID: find_sxid,
    Signal.LOG_SIGNATURE: find_signature,
    **dict.fromkeys(CONDITION_RULES, find_condition),
    Signal.JOB_HUNG: find_hang,
    Signal.REPEATED: find_repetition,
    Signal.ALERT: find_alert,
}
_LASTING = frozenset({Signal.GPU_MISSING, Signal.NODE_UNREACHABLE, Signal.TELEMETRY_STALE, *CONDITION_RULES})
"""Conditions that must still hold when we act: they may clear by themselves. ECC counts and driver's wishes do not."""


def _finding(
    observation: Observation,
    *,
    rule: str,
    response: Response,
    explanation: str,
    source: str,
    is_driver_verdict: bool = False,
    family: Family = Family.UNKNOWN,
    at_fault: AtFault = AtFault.UNKNOWN,
    first_action: FirstAction = FirstAction.MONITOR,
    is_secondary: bool = False,
    confidence: float = 0.9,
) -> Finding:
    return Finding(
        rule=rule,
        response=response,
        node=observation.node,
        gpu=observation.gpu,
        found_at=observation.observed_at,
        is_lasting=observation.signal in _LASTING,
        is_driver_verdict=is_driver_verdict,
        evidence=(observation,),
        explanation=explanation,
        source=source,
        family=family,
        at_fault=at_fault,
        first_action=first_action,
        component=observation.component,
        job=observation.job,
        is_secondary=is_secondary,
        confidence=confidence,
    )
