"""What findings call for together: which response, which GPUs to reset, and whether it is enough to trouble anybody.

What one finding calls for is its rule's business (`domain.meaning`); what is planned for it is `domain.repair`.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.identity import PciAddress
from ops_pipelines.core.observation import HISTORY_SOURCE
from ops_pipelines.domain.diagnosis.diagnose import RAISED_AT, confidence_of
from ops_pipelines.domain.diagnosis.shared_cause import wide_suspect


def response_of(findings: Iterable[Finding]) -> Response:
    """Return the response that a set of findings calls for: the strongest over its GPUs.

    For one GPU the driver's newest own verdict outranks every table (NVML recovery action, Xid 154); what belongs
    to no GPU stands for itself. That the driver asks for nothing is no verdict on what happened: it says so just as
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
