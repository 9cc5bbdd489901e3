"""What a policy's plans need of the machines and the site does not offer: told before anything begins, and not begun.

Which commands a site names is read by adapters (`resources.config.fleet`). Whether each one works shows when it is
asked; here counts only that it is there at all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ops_pipelines.core.machines import SiteMeans
from ops_pipelines.core.policy import ActionClass, Consent, LadderLimits, Mode, Policy, Risk
from ops_pipelines.domain.guardrails.fencing_room import Objection

_VITAL: Mapping[SiteMeans, tuple[ActionClass, Risk, str]] = {
    SiteMeans.INSPECT: (
        ActionClass.RETURN_NODE,
        Risk.NO_INSPECTION,
        "no repaired node can be looked at, so none is proven well: repairs are not begun, and no node is returned",
    ),
    SiteMeans.CHECK: (
        ActionClass.CHECK,
        Risk.NO_NODE_TESTS,
        "no repaired node can be tested, so none is proven well: repairs are not begun",
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

    A repair that could never be proven is not begun: the node is drained, its jobs are moved, and a person is told.
    Fencing a silent node goes on where there is a power switch: that is for its jobs.
    """
    unproven = next(_unproven(offered, policy), None)
    lacking: dict[ActionClass, str] = {}
    ladder = policy.ladder
    for means, (kind, _) in _REPAIRS.items():
        if means in offered and unproven is None:
            continue
        if means in (SiteMeans.RESET_GPU, SiteMeans.REIMAGE) and _without(means, ladder) == ladder:
            continue  # Never planned; a reboot also stands in for a reset, and the power switch fences.
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
