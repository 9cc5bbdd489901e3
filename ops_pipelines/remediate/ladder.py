"""The ladder: every step from watching to returning a node to its vendor, when the next is taken, what the site lacks.

One table says of each rung what must hold before, how long it may take, what proves it and what takes it back. The acts
of a rung are `repair_steps`', their limits the guardrails', their proof `verification`'s. Which commands a site names
is read by adapters (`resources.config.cluster_config`): a rung without its command, or without a proof, is left out.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.cluster import SiteMeans
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.identity import IncidentId, NodeName, is_rollout
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.policy import ActionClass, Consent, Durations, LadderLimits, Mode, Policy, Risk


class Rung(IntEnum):
    """The steps, from the least to the most invasive. A higher one covers what a lower one was to do."""

    MONITOR = 0
    NOTIFY_OWNER = 1
    REQUEUE_JOB = 2
    EXCLUDE_NODE = 3
    DRAIN = 4
    FENCE = 5
    ISOLATE = 6
    GPU_RESET = 7
    REBOOT = 8
    POWER_CYCLE = 9
    REIMAGE = 10
    RETURN_TO_VENDOR = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRule:
    """What holds for one rung, in words that the documentation prints and tests compare."""

    verbs: tuple[Verb, ...]
    """Its own acts; empty where it has none beyond those of the rungs below."""
    precondition: str
    witness: str
    compensation: str
    """What takes it back, by whom."""
    limit: str
    """The field of `Durations` that bounds it; empty: it has no end of its own."""


RUNGS: Mapping[Rung, RungRule] = {
    Rung.MONITOR: RungRule(
        verbs=(),
        precondition="none",
        witness="none: nothing is done",
        compensation="none needed; forgotten after half an hour without new evidence",
        limit="",
    ),
    Rung.NOTIFY_OWNER: RungRule(
        verbs=(Verb.NOTIFY_OWNER,),
        precondition="an attempt that it is about; not in observe mode",
        witness="the notifier's receipt",
        compensation="none: a message cannot be taken back",
        limit="command_limit",
    ),
    Rung.REQUEUE_JOB: RungRule(
        verbs=(Verb.RESERVE, Verb.HOLD, Verb.UNRESERVE, Verb.RELEASE),
        precondition="the job may be requeued, keeps checkpoints, was not moved too often; its moment has come",
        witness="a hold read back on the same attempt; after the release a start later than before",
        compensation="the release; a reservation runs out by itself",
        limit="command_limit",
    ),
    Rung.EXCLUDE_NODE: RungRule(
        verbs=(Verb.EXCLUDE,),
        precondition="the job is held",
        witness="the exclusion read back",
        compensation="none: the scheduler changes exclusions of pending jobs only",
        limit="command_limit",
    ),
    Rung.DRAIN: RungRule(
        verbs=(Verb.DRAIN,),
        precondition="declared, not untouchable, not drained by others, within every budget, no freeze window",
        witness="the flag read back with our reason",
        compensation="resume, once proven well",
        limit="command_limit",
    ),
    Rung.FENCE: RungRule(
        verbs=(Verb.FENCE, Verb.POWER_OFF, Verb.DECLARE_DOWN),
        precondition="its jobs are held; power is cut only from a silent node, or an idle one that no reboot helped",
        witness="no step of the attempt is left; the power switch reads off",
        compensation="power on",
        limit="fence_limit",
    ),
    Rung.ISOLATE: RungRule(
        verbs=(),
        precondition="one node's own part is to be looked at or replaced, believed to at least 0.85, and its "
        "neighbours stayed well meanwhile",
        witness="drained by us, no job left on it; then its tests, one of which can show the fault",
        compensation="resume, once proven well; unproven it goes to the repair queue",
        limit="check_limit",
    ),
    Rung.GPU_RESET: RungRule(
        verbs=(Verb.RESET_GPU,),
        precondition="drained by us, no job on the node, fresh metrics",
        witness="the GPU is present, asks for nothing, its volatile error counts are 0",
        compensation="none needed",
        limit="reset_limit",
    ),
    Rung.REBOOT: RungRule(
        verbs=(Verb.REBOOT,),
        precondition="drained by us, no job on the node, fresh metrics",
        witness="the boot id changed, or the boot time is later than before",
        compensation="none needed",
        limit="reboot_limit",
    ),
    Rung.POWER_CYCLE: RungRule(
        verbs=(Verb.POWER_OFF, Verb.POWER_ON),
        precondition="drained by us; silent with its jobs held, or idle after a reboot that did not help",
        witness="off read at the switch, then a boot time later than before",
        compensation="power on",
        limit="reboot_limit",
    ),
    Rung.REIMAGE: RungRule(
        verbs=(Verb.REIMAGE,),
        precondition="drained by us, no job on the node, a command for it in cluster.yaml",
        witness="the boot id changed",
        compensation="none: the node is new",
        limit="reimage_limit",
    ),
    Rung.RETURN_TO_VENDOR: RungRule(
        verbs=(Verb.PAGE_HUMAN,),
        precondition="every rung below was tried or does not apply",
        witness="the report is in the ledger, and the page was taken",
        compensation="`ops-pipelines repair done`: the node must prove itself",
        limit="",
    ),
}
_RUNG_OF: Mapping[Response, Rung] = {
    Response.MONITOR: Rung.MONITOR,
    Response.NOTIFY_OWNER: Rung.NOTIFY_OWNER,
    Response.PAGE: Rung.MONITOR,
    Response.PAGE_MASS_EVENT: Rung.MONITOR,
    Response.ISOLATE: Rung.ISOLATE,
    Response.RESET_GPU: Rung.GPU_RESET,
    Response.REBOOT_NODE: Rung.REBOOT,
    Response.POWER_CYCLE: Rung.POWER_CYCLE,
    Response.REIMAGE: Rung.REIMAGE,
    Response.RETURN_TO_VENDOR: Rung.RETURN_TO_VENDOR,
}
_CLIMB = (
    Response.RESET_GPU,
    Response.REBOOT_NODE,
    Response.POWER_CYCLE,
    Response.REIMAGE,
    Response.RETURN_TO_VENDOR,
)
_AFTER_REBOOT = frozenset({Response.POWER_CYCLE, Response.REIMAGE})
_MARK: Mapping[Response, Verb] = {
    Response.RESET_GPU: Verb.RESET_GPU,
    Response.REBOOT_NODE: Verb.REBOOT,
    Response.POWER_CYCLE: Verb.POWER_OFF,
    Response.REIMAGE: Verb.REIMAGE,
}
"""The act by which a try of each repair is counted."""
_REPAIRING = frozenset({*_MARK.values(), Verb.POWER_ON})
_ISOLATING = frozenset({Verb.DRAIN, Verb.CHECK, Verb.RESUME})
MAX_ISOLATIONS_COUNT = 2
"""So often within the ladder's memory tests may find nothing on an isolated node: the next time hands are asked for.
Assumption: what comes a third time in a day is there, and the tests do not see it."""


def rung_of(response: Response) -> Rung:
    """Return the rung of a response."""
    return _RUNG_OF[response]


def position_of(incident: Incident, records: Collection[ActionRecord]) -> Rung:
    """Return the highest rung that an incident has reached: what was started for it, else nothing beyond watching."""
    if incident.state is IncidentState.IN_REPAIR:
        return Rung.RETURN_TO_VENDOR
    begun = {record.action.verb for record in records if record.action.incident == incident.incident}
    reached = [rung for rung, rule in RUNGS.items() if begun & set(rule.verbs) and rung is not Rung.RETURN_TO_VENDOR]
    if incident.response is Response.ISOLATE and Verb.DRAIN in begun:
        reached.append(Rung.ISOLATE)  # It has no act of its own: what is done below it is what it does.
    return max(reached, default=Rung.MONITOR)


def max_tries(response: Response, limits: LadderLimits) -> int:
    """Return how often a repair is tried on one node within the ladder's memory; the last rung has no end."""
    match response:
        case Response.ISOLATE:
            return MAX_ISOLATIONS_COUNT
        case Response.RESET_GPU:
            return limits.max_gpu_resets_count
        case Response.REBOOT_NODE:
            return limits.max_reboots_count
        case Response.POWER_CYCLE:
            return limits.max_power_cycles_count
        case Response.REIMAGE:
            return limits.max_reimages_count
    return 1


def count_tries(
    response: Response, node: NodeName, records: Collection[ActionRecord], *, limits: LadderLimits, now: datetime
) -> int:
    """Return how often a repair was started on a node within the ladder's memory, for whatever cause.

    All GPUs that one plan resets are one try. An isolation counts once its node was tested and returned. What a
    rollout restarts it repairs nothing by.
    """
    records = [each for each in records if not is_rollout(each.action.incident)]
    if response is Response.ISOLATE:
        return len(_isolated_for(node, records, limits=limits, now=now))
    verb = _MARK.get(response)
    begun = {
        (record.action.incident, record.action.try_number)
        for record in records
        if record.action.verb is verb and record.action.node == node and record.begun_at > now - limits.memory
    }
    return len(begun)


def _isolated_for(
    node: NodeName, records: Collection[ActionRecord], *, limits: LadderLimits, now: datetime
) -> frozenset[IncidentId]:
    """Return the incidents for which a node was drained, tested and returned, and nothing on it was repaired."""
    done: dict[IncidentId, set[Verb]] = {}
    for each in records:
        if each.action.node == node and each.begun_at > now - limits.memory:
            done.setdefault(each.action.incident, set()).add(each.action.verb)
    return frozenset(
        incident for incident, verbs in done.items() if verbs >= _ISOLATING and verbs.isdisjoint(_REPAIRING)
    )


def next_repair(
    incident: Incident,
    records: Collection[ActionRecord],
    *,
    limits: LadderLimits,
    now: datetime,
) -> Response:
    """Return the least repair that is still open to an incident of one node: what it calls for, or what is above.

    A repair that did not help is not tried again for the same incident; one that was tried on the node as often as
    allowed is passed over, whatever the cause was then. Above an isolation stand hands: nothing has asked for a reset
    or a restart, and none would help what only eyes can find.
    """
    if incident.response not in REPAIRS or len(incident.nodes) != 1:
        return incident.response
    (node,) = incident.nodes
    if incident.response is Response.ISOLATE:
        is_open = not incident.tries and _is_open(Response.ISOLATE, node, records, limits=limits, now=now)
        return Response.ISOLATE if is_open else Response.RETURN_TO_VENDOR
    useless = max((each.response for each in incident.tries), default=Response.MONITOR)
    for response in _CLIMB:
        if response < incident.response or response <= useless:
            continue
        if response is Response.RETURN_TO_VENDOR:
            return response
        if response in _AFTER_REBOOT and response is not incident.response and useless < Response.REBOOT_NODE:
            continue  # Without a reboot of its own that did not help, nothing speaks for more of the same kind.
        if _is_open(response, node, records, limits=limits, now=now):
            return response
    return Response.RETURN_TO_VENDOR


def _is_open(
    response: Response, node: NodeName, records: Collection[ActionRecord], *, limits: LadderLimits, now: datetime
) -> bool:
    return count_tries(response, node, records, limits=limits, now=now) < max_tries(response, limits)


def limit_of(rung: Rung, durations: Durations) -> timedelta | None:
    """Return how long a rung may take; None if it has no end of its own."""
    name = RUNGS[rung].limit
    return getattr(durations, name) if name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """A reason not to act on this scheduler. A refusal is in the way of the mode; others are to be known."""

    reason: str
    is_refusal: bool


_VITAL: Mapping[SiteMeans, tuple[ActionClass, Risk, str]] = {
    SiteMeans.INSPECT: (
        ActionClass.RETURN_NODE,
        Risk.NO_INSPECTION,
        "no repaired node can be looked at, so none is proven well: repairs are not started, and no node is returned",
    ),
    SiteMeans.CHECK: (
        ActionClass.CHECK,
        Risk.NO_NODE_TESTS,
        "no repaired node can be tested, so none is proven well: repairs are not started",
    ),
    SiteMeans.POWER: (
        ActionClass.POWER,
        Risk.NO_POWER_SWITCH,
        "a silent node cannot be fenced, so its jobs are not moved, and it is left to you",
    ),
}
"""Without which a node never comes back: the class whose `forbid` says that this is meant, the risk by name, what
follows."""
_REPAIRS: Mapping[SiteMeans, tuple[ActionClass, str]] = {
    SiteMeans.RESET_GPU: (ActionClass.RESET_GPU, "the node is rebooted instead"),
    SiteMeans.REBOOT: (ActionClass.REBOOT, "the node goes to the repair queue instead"),
    SiteMeans.POWER: (ActionClass.POWER, "the node goes to the repair queue instead"),
    SiteMeans.REIMAGE: (ActionClass.REIMAGE, "the node goes to the repair queue instead"),
}
"""What is tried on the ladder, in its order: its class, and what comes in its place."""
_PROOFS = (SiteMeans.INSPECT, SiteMeans.CHECK)


def find_gaps(offered: frozenset[SiteMeans], policy: Policy) -> tuple[Objection, ...]:
    """Return what plans would need and the site does not offer. Only `mode: auto` is refused, and only for what keeps
    nodes from ever coming back."""
    is_auto = policy.mode is Mode.AUTO
    verdict = "mode: auto is refused" if is_auto else "mode: auto would be refused"
    found = []
    for means, (kind, risk, what_follows) in _VITAL.items():
        if means in offered or _is_forbidden(kind, policy):
            continue
        missing = f"{_names_no(means)}: {what_follows}"
        taken = policy.accepted_risks.get(risk)
        if taken is not None:
            found.append(Objection(reason=f"{missing}; the risk is taken: {taken}", is_refusal=False))
            continue
        ways = (
            f"Name it, or say in policy.yaml that this is meant: consents: {{{kind.value}: forbid}}, or "
            f"accepted_risks: {{{risk.value}: who, and why}}"
        )
        found.append(Objection(reason=f"{verdict}: {missing}. {ways}", is_refusal=is_auto))
    for means, (kind, instead) in _REPAIRS.items():
        is_planned = kind in policy.lacking or _without(means, policy.ladder) != policy.ladder
        if means not in offered and means not in _VITAL and is_planned and not _is_forbidden(kind, policy):
            what = means.name.lower().replace("_", " ")
            found.append(
                Objection(reason=f"{_names_no(means)}: where a {what} is called for, {instead}", is_refusal=False)
            )
    return tuple(found)


def within_means(policy: Policy, offered: frozenset[SiteMeans]) -> Policy:
    """Return the policy with everything left out that cannot be done here, or whose proof cannot be had.

    A repair that could never be proven is not started: the node is drained, its jobs are moved, and a person is
    notified. Fencing a silent node continues where there is a power switch: that is for its jobs.
    """
    unproven = next(_unproven(offered, policy), None)
    lacking: dict[ActionClass, str] = {}
    ladder = policy.ladder
    for means, (kind, _) in _REPAIRS.items():
        if means in offered and unproven is None:
            continue
        if means in (SiteMeans.RESET_GPU, SiteMeans.REIMAGE) and _without(means, ladder) == ladder:
            continue  # Never planned; a reboot also replaces a reset, and the power switch fences.
        ladder = _without(means, ladder)
        if means not in offered or kind is not ActionClass.POWER:
            lacking[kind] = _names_no(means) if means not in offered else unproven or ""
    return replace(policy, ladder=ladder, lacking=lacking)


def _without(means: SiteMeans, ladder: LadderLimits) -> LadderLimits:
    """Return the ladder without the rung that needs this means."""
    match means:
        case SiteMeans.RESET_GPU:
            return replace(ladder, max_gpu_resets_count=0)
        case SiteMeans.REBOOT:
            return replace(ladder, max_reboots_count=0)
        case SiteMeans.POWER:
            return replace(ladder, max_power_cycles_count=0)
        case SiteMeans.REIMAGE:
            return replace(ladder, max_reimages_count=0)
    return ladder


def _unproven(offered: frozenset[SiteMeans], policy: Policy) -> Iterator[str]:
    for means in _PROOFS:
        kind, risk, _ = _VITAL[means]
        if means not in offered and not _is_forbidden(kind, policy) and risk not in policy.accepted_risks:
            yield f"{_names_no(means)}, so that no repair could be proven"


def _names_no(means: SiteMeans) -> str:
    return f"cluster.yaml names no {means.value} under fleet"


def _is_forbidden(kind: ActionClass, policy: Policy) -> bool:
    return policy.consents.get(kind) is Consent.FORBID
