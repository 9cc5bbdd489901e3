"""When a node is isolated: one node's own part needs eyes or hands, is believed to be at fault, and stands alone.

Isolation is drain, move, test: it takes a job off a bad part at once, where a page alone would leave it there until
somebody comes. Which acts it takes is `repair_steps`', which rung it is `steps.ladder`'s, whether the node is well
again `returning.verification`'s. Where any of this does not hold, a person is paged as before.
"""

from datetime import datetime, timedelta

from ops_pipelines.core.fault import AtFault, ComponentKind, Family, FirstAction
from ops_pipelines.core.finding import ISOLATED_FOR, Finding, Response
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import Signal
from ops_pipelines.core.policy import Policy
from ops_pipelines.diagnose.explanation import spreads_within
from ops_pipelines.diagnose.hypothesis import confidence_of
from ops_pipelines.diagnose.incidents import isolates
from ops_pipelines.domain.guardrails.judge import ClusterFacts, Patience, Refusal

ISOLATED_AT = 0.85
"""How sure we must be that it is this node's own part. Assumption: what a detector alone is sure of that compares a
part with its peers, and more than one line of one log is."""

_PARTS_OF_A_NODE = frozenset({ComponentKind.GPU, ComponentKind.LINK, ComponentKind.DISK, ComponentKind.NODE})
_OWN_FAULTS = frozenset({AtFault.GPU, AtFault.NODE, AtFault.FABRIC})
"""At fault where a node's own part is; a link of one node alone is its own, whatever the other end is called."""
_SECOND_HAND = frozenset({Signal.LOG_SIGNATURE, Signal.REPEATED, Signal.ALERT})
_SPREADING = frozenset({Family.FABRIC, Family.NVLINK, Family.HEAT, Family.POWER, Family.SILENCE})
"""Trouble that a switch, a rack or a feed gives many nodes one after the other. A part that lags behind its peers, or a
rank that differs from all others, was compared with them already."""


def isolation_for(incident: Incident) -> Response | None:
    """Return what takes the node of an incident out of service that calls for a page; None: a person is paged as ever.

    ISOLATE, or RETURN_TO_VENDOR where the part must be replaced: no test can prove that one well.
    """
    belief = incident.hypothesis
    if belief is None or belief.confidence < ISOLATED_AT or not is_of_own_part(incident):
        return None
    shown = seen_at_first_hand(incident)
    calling = [each for each in shown if isolates(each) and each.node in incident.nodes and not _is_of_domain(each)]
    # What anybody may write into a log adds to what is believed, and takes no node out of service.
    if not any(each.first_action is belief.first_action for each in calling):
        return None
    if round(confidence_of(shown), 3) < ISOLATED_AT:
        return None
    return Response.RETURN_TO_VENDOR if belief.first_action is FirstAction.RMA else Response.ISOLATE


def is_of_own_part(incident: Incident) -> bool:
    """Return whether an incident calls for a page about one node's own part, and for eyes or hands on it.

    Whether that is believed enough to take the node out is not asked here.
    """
    belief = incident.hypothesis
    if (
        incident.response is not Response.PAGE
        or belief is None
        or incident.suspect is not None
        or len(incident.nodes) != 1
        or belief.first_action not in ISOLATED_FOR
        or belief.at_fault not in _OWN_FAULTS
    ):
        return False
    is_own = all(part.kind in _PARTS_OF_A_NODE and part.node in incident.nodes for part in belief.culprits)
    return bool(belief.culprits) and is_own


def _is_of_domain(finding: Finding) -> bool:
    """Return whether the driver asks for the NVLink domain to be recovered (IMEX), which spans many nodes."""
    return finding.is_driver_verdict and finding.first_action is FirstAction.RESET_FABRIC


def seen_at_first_hand(incident: Incident) -> tuple[Finding, ...]:
    """Return the findings that speak for an isolation: neither damage, nor words, history or alerts."""
    return tuple(each for each in incident.findings if not each.is_secondary and not is_second_hand(each))


def is_second_hand(finding: Finding) -> bool:
    """Return whether a finding rests on words, on history or on an alert alone.

    Users choose what their programs write and how often they fail; that something came often is a person's to judge,
    since no test of today settles it; and an alert is what another's rules made of what we may not have seen.
    """
    return all(each.signal in _SECOND_HAND for each in finding.evidence)


def may_be_shared(incident: Incident, facts: ClusterFacts, *, policy: Policy) -> Refusal | None:
    """Return why an isolation waits: its neighbours may be about to show the same, and then it is no node's own.

    A link that is down may be the first of a whole switch, a hot GPU the first of a rack. What is touched is gathered
    no more, so nothing is touched before the others have had their time.
    """
    began_at: dict[Family, datetime] = {}
    for each in seen_at_first_hand(incident):
        # An alert that stands since yesterday, or another trouble of the node, says nothing of how new this one is.
        if isolates(each):
            began_at[each.family] = min(began_at.get(each.family, each.found_at), each.found_at)
    ages = [(facts.taken_at - at, _window_of(family, policy)) for family, at in began_at.items()]
    waits = [(stood, window) for stood, window in ages if stood < window]
    if not waits:
        return None
    stood, window = max(waits, key=lambda each: each[1] - each[0])
    return Refusal(
        guardrail="confirmation",
        reason=f"seen for {stood.total_seconds():.0f} s; its own after {window.total_seconds():.0f} s, if its "
        "neighbours stay well",
        patience=Patience.WAIT,
    )


def _window_of(family: Family, policy: Policy) -> timedelta:
    if family not in _SPREADING:
        return timedelta(0)
    return spreads_within(family, policy.mass_event)
