"""Which open incident explains what a finding or another incident shows: a part that all share, a node below a job.

Damage never blames: it joins what explains it. What stands together and names a new cause is `gathering`.
"""

from dataclasses import replace
from datetime import timedelta

from ops_pipelines.core.fault import Family
from ops_pipelines.core.finding import Finding, Response
from ops_pipelines.core.incident import Incident, IncidentState, fold
from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.domain.diagnosis.board import Board, is_touched
from ops_pipelines.domain.diagnosis.joining import joined
from ops_pipelines.domain.diagnosis.shared_cause import explains, wide_suspect
from ops_pipelines.domain.diagnosis.standing import is_shown

_SPREADS = timedelta(minutes=10)
"""How long after its newest evidence a wide fault still takes in what its nodes show anew."""
_DAMAGE_BEFORE = timedelta(minutes=5)
"""Damage may be noticed before its cause: a job's error is logged at once, a link is sampled."""
_DAMAGE_AFTER = timedelta(minutes=30)
"""Source: NCCL's default timeout is 10 minutes (PyTorch; 30 in older releases)."""
DAMAGE_FAMILIES = frozenset({Family.STALL, Family.COLLECTIVE})
"""What ranks and jobs show when something else broke."""
JOB_SIGNALS = frozenset(
    {Signal.JOB_CRASH_LOOP, Signal.GPUS_IDLE, Signal.LOSS_NOT_FINITE, Signal.LOSS_SPIKE, Signal.NODE_FAILS_JOBS}
)
"""Verdicts over many attempts, or on the program's own numbers: no fault of a node explains them away."""


# -- a wide part --


def is_explained_by(incident: Incident, finding: Finding, board: Board) -> bool:
    """Return whether an open incident of a wide part explains a finding: it names the part, or stands there."""
    suspect = incident.suspect
    if suspect is None or not incident.is_open:
        return False
    is_over = finding.found_at - incident.last_seen_at > _SPREADS and not _still_lasts(incident, board)
    if wide_suspect(finding) == suspect and (not is_over or incident.is_watched):
        return True
    if incident.is_watched:
        return False  # What is not believed itself explains nothing.
    if is_over or incident.began_at - finding.found_at > _SPREADS:
        return False
    families = {each.family for each in incident.findings if not each.is_secondary}
    return any(explains(suspect, family, finding, board.world.topology) for family in families)


def _still_lasts(incident: Incident, board: Board) -> bool:
    return is_shown((finding for finding in incident.findings if finding.is_lasting), board.present)


def _wide_cause_of(incident: Incident, board: Board) -> Incident | None:
    """Return the open incident of a wide part that explains all that a young incident of one node rests on."""
    if incident.state is not IncidentState.OPEN or is_touched(incident) or incident.suspect is not None:
        return None
    own = [finding for finding in incident.findings if not finding.is_secondary]
    if len(incident.nodes) != 1 or not own:
        return None
    wide = [
        each
        for each in board.incidents.values()
        if each.suspect is not None
        and abs(each.began_at - incident.began_at) <= _SPREADS
        and all(is_explained_by(each, finding, board) for finding in own)
    ]
    return wide[0] if wide else None


# -- damage --


def cause_of(finding: Finding, board: Board, *, but: Incident | None) -> Incident | None:
    """Return the open incident of a part whose failure explains what a job on its nodes says, None if none does.

    The cause lies on a node of the job, a little after the damage at the latest. `but` is the incident that the
    finding stands in already: nothing is its own cause.
    """
    if finding.evidence and finding.evidence[0].signal in JOB_SIGNALS:
        return None
    jobs = board.roster.jobs_of(finding)
    nodes = {node for job in jobs for node in job.nodes} | ({finding.node} - {NO_NODE})
    attempts = {job.attempt for job in jobs if job.attempt is not None}
    is_application = finding.family is Family.APPLICATION and not finding.is_secondary
    causes = [
        incident
        for incident in board.incidents.values()
        if incident.is_open
        and (but is None or incident.incident != but.incident)
        and incident.response > Response.NOTIFY_OWNER
        and not _is_damage(incident)
        and -_DAMAGE_BEFORE <= finding.found_at - incident.began_at <= _DAMAGE_AFTER
        # A program's own error is damage only where the broken part is its own.
        and (
            (bool(attempts & incident.victims) and finding.found_at >= incident.began_at)
            if is_application
            else bool(nodes & incident.seen_on) or bool(attempts & incident.victims)
        )
    ]
    return min(
        causes,
        key=lambda each: (each.suspect is None, -each.response.rank, each.began_at, each.incident),
        default=None,
    )


def incident_of_job(finding: Finding, board: Board) -> Incident | None:
    """Return the open incident of a job that a finding is about, too."""
    if finding.response is Response.MONITOR or finding.job is None:
        return None
    same = [
        incident
        for incident in board.incidents.values()
        if incident.is_open
        and not incident.nodes
        and incident.suspect is None
        and finding.found_at - incident.last_seen_at <= _DAMAGE_AFTER
        and any(each.job == finding.job for each in incident.findings)
    ]
    return same[0] if same else None


def _is_damage(incident: Incident) -> bool:
    """Return whether an incident is only what something else may have done: no part of a node is named."""
    return (
        not incident.nodes
        and incident.suspect is None
        and bool(incident.findings)
        and all(finding.family in DAMAGE_FAMILIES or finding.is_secondary for finding in incident.findings)
    )


def absorb_what_is_explained(board: Board) -> None:
    """Take incidents that are only damage into the one that explains them: a hung job, ranks that lost a peer.

    So, too, a node that showed first what turns out to be the trouble of its rack.
    """
    for incident in list(board.incidents.values()):
        wide = _wide_cause_of(incident, board)
        if wide is not None:
            board.put(
                replace(
                    wide,
                    nodes=wide.nodes | incident.nodes if wide.is_mass_event else wide.nodes,
                    victims=wide.victims | incident.victims,
                    findings=fold((*wide.findings, *incident.findings)),
                    changed_at=board.world.now,
                )
            )
            board.merge(incident, into=wide)
            continue
        if incident.state is not IncidentState.OPEN or incident.plan_count > 0 or not _is_damage(incident):
            continue
        cause = cause_of(incident.findings[0], board, but=incident)
        if cause is None:
            continue
        for finding in incident.findings:
            damage = replace(finding, is_secondary=True)
            board.put(joined(board.incidents[cause.incident], damage, roster=board.roster, at=board.world.now))
        board.merge(incident, into=cause)
