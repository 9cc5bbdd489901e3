"""Which open incident explains a finding or another incident, and what a finding makes of the one that it joins.

Pure: one incident and one finding in, the incident out. Which incident a finding joins is `correlate`.

Damage never blames: it joins what explains it. What belongs together and names a new cause is `gathering`.

Which part that is, is `shared_cause`. Only what is young and untouched is gathered; what a node or its GPU says of
itself stays its own.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from ops_pipelines.core.fault import Family
from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.identity import Topology
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance, climb, fold, joined_by
from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.core.policy import MassEvent
from ops_pipelines.diagnose.hypothesis import gpus_to_reset, raised_response, response_of
from ops_pipelines.diagnose.incidents import Board, Roster, is_relapse, is_shown, is_touched
from ops_pipelines.diagnose.shared_cause import (
    GATHERED_FAMILIES,
    MIN_EXPLAINED,
    SharedPlace,
    explains,
    find_shared_place,
    wide_suspect,
)

# -- what a finding that joins an incident makes of it --


def joined(incident: Incident, finding: Finding, *, roster: Roster, at: datetime) -> Incident:
    """Return the incident with one more finding; the same incident where it holds that evidence already."""
    if _is_silence_after_acting(incident, finding):
        finding = replace(finding, is_secondary=True)
    findings = joined_by(incident, finding)
    if findings is incident.findings:
        return incident
    with_evidence = replace(
        incident,
        victims=incident.victims | roster.victims_of(finding)
        if incident.state is IncidentState.OPEN
        else incident.victims,
        findings=findings,
        changed_at=at,
    )
    if finding.is_secondary or (incident.nodes and finding.node not in incident.nodes and not incident.is_mass_event):
        return with_evidence  # Damage elsewhere makes nobody a culprit: only its victims are added.
    is_owner_of_nodes = bool(incident.nodes) and finding.node != NO_NODE
    with_culprit = replace(
        with_evidence,
        nodes=incident.nodes | {finding.node} if is_owner_of_nodes else incident.nodes,
        gpus=incident.gpus | ({finding.gpu} if finding.gpu is not None and is_owner_of_nodes else frozenset()),
    )
    if incident.is_mass_event:
        return with_culprit
    return _with_response(with_culprit, finding, before=incident.findings, at=at)


def _with_response(incident: Incident, finding: Finding, *, before: tuple[Finding, ...], at: datetime) -> Incident:
    """Let a joined finding change the response; once we act, a node that vanishes is our own doing.

    The plan in force is superseded by what it does not cover: a stronger event, or one on another GPU.
    """
    if not is_touched(incident):
        return replace(incident, response=raised_response(incident.findings))
    if is_relapse(incident, finding):
        return climb(incident, IncidentEvent.RELAPSED, why=finding.explanation, at=at)
    if finding.is_lasting or incident.state in (IncidentState.PROBATION, IncidentState.IN_REPAIR):
        return incident
    response = response_of(each for each in incident.findings if not each.is_lasting)
    is_another_gpu = incident.response is Response.RESET_GPU and bool(
        gpus_to_reset(incident.findings) - gpus_to_reset(before)
    )
    if response <= incident.response and not is_another_gpu:
        return incident
    if incident.state in (IncidentState.ACTING, IncidentState.VERIFYING):
        incident = advance(
            incident,
            IncidentEvent.SUPERSEDED,
            at=at,
            note=f"new evidence asks for more: {finding.explanation}",
        )
    return replace(incident, response=max(response, incident.response))


def _is_silence_after_acting(incident: Incident, finding: Finding) -> bool:
    """Return whether a node fell silent once we had started with another fault of it: a reboot, and no second cause.

    One on probation is not being restarted by anybody: its silence is a fault.
    """
    return (
        finding.family is Family.SILENCE
        and is_touched(incident)
        and incident.state is not IncidentState.PROBATION
        and not incident.is_mass_event
        and all(each.family is not Family.SILENCE or each.is_secondary for each in incident.findings)
    )


# -- which open incident explains what a finding or another incident shows --


_SPREADS = timedelta(minutes=10)
"""How long after its newest evidence a wide fault still takes in what its nodes show again."""
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
    """Return whether an open incident of a wide part explains a finding: it names the part, or is there."""
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
    finding is in already: nothing is its own cause.
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


# -- what is close together fails together --


_SLOW_TO_SPREAD = {Family.HEAT: timedelta(minutes=15)}
"""Heat rises over minutes; links and power go within one sample."""


def spreads_within(family: Family, mass_event: MassEvent) -> timedelta:
    """Return how far apart the same trouble of a shared part begins on its nodes."""
    return _SLOW_TO_SPREAD.get(family, mass_event.window)


def gather_shared_causes(board: Board) -> None:
    """Turn young, untouched incidents of nodes that one switch, rack or feed explains into one of that part."""
    for family in GATHERED_FAMILIES:
        young = _young_of(family, board)
        wide = [each for each in board.incidents.values() if _is_spreading_wide(each, family, board)]
        nodes = [node for each in (*young, *wide) for node in each.nodes]
        shared = find_shared_place(family, nodes, board.world.topology)
        if shared is None or any(each.suspect == shared.suspect for each in wide):
            continue
        parts = [
            each
            for each in young
            if each.nodes <= shared.nodes and _is_all_explained(each, shared, family, board.world.topology)
        ]
        inner = [each for each in wide if len(each.nodes & shared.nodes) >= MIN_EXPLAINED * len(each.nodes)]
        if inner:
            _widen(inner, parts, shared, board)
            continue
        found = board.open_wide(
            fold(finding for each in parts for finding in each.findings),
            nodes=shared.nodes,
            victims=frozenset(victim for each in parts for victim in each.victims),
            note=_note(shared),
            suspect=shared.suspect,
        )
        for each in parts:
            board.merge(each, into=found)


def _widen(inner: list[Incident], parts: list[Incident], shared: SharedPlace, board: Board) -> None:
    """Blame the wider part in the incident that first blamed a narrower one: two dark racks are their feed."""
    first, *others = sorted(inner, key=lambda each: (each.state is IncidentState.OPEN, each.incident))
    absorbed = [*parts, *(each for each in others if each.state is IncidentState.OPEN)]
    board.put(
        replace(
            first,
            suspect=shared.suspect,
            nodes=first.nodes | shared.nodes,
            victims=first.victims | {victim for each in absorbed for victim in each.victims},
            findings=fold((*first.findings, *(finding for each in absorbed for finding in each.findings))),
            changed_at=board.world.now,
            note=_note(shared),
        )
    )
    for each in absorbed:
        board.merge(each, into=first)


def _note(shared: SharedPlace) -> str:
    return f"{len(shared.nodes)} of {shared.node_count} nodes of {shared.suspect} show the same trouble"


def _young_of(family: Family, board: Board) -> list[Incident]:
    """Return the untouched incidents of one node each whose trouble of a family began when the newest of them did."""
    onsets = {
        incident.incident: onset
        for incident in board.incidents.values()
        if not is_touched(incident)
        and incident.suspect is None
        and not incident.is_mass_event
        and len(incident.nodes) == 1
        and not any(board.world.is_changing(node) for node in incident.nodes)
        and (onset := _onset_of(incident, family)) is not None
    }
    newest = max(onsets.values(), default=board.world.now)
    window = spreads_within(family, board.world.mass_event)
    return [board.incidents[key] for key, onset in onsets.items() if newest - onset <= window]


def _onset_of(incident: Incident, family: Family) -> datetime | None:
    """Return when the newest trouble of a family began on an incident's node; None if it has none."""
    return max(
        (
            finding.found_at
            for finding in incident.findings
            if finding.family is family and not finding.is_secondary and _shows(finding, family)
        ),
        default=None,
    )


def _shows(finding: Finding, family: Family) -> bool:
    """Return whether a finding shows trouble of a family: metrics that stop may be the exporter's, and show no rack."""
    return finding.response in REPAIRS if family is Family.SILENCE else finding.response is not Response.MONITOR


def _is_spreading_wide(incident: Incident, family: Family, board: Board) -> bool:
    """Return whether much trouble of a family was blamed on a shared part, or on nobody yet, a moment ago."""
    return (
        incident.is_mass_event
        and (incident.state is IncidentState.OPEN or (incident.suspect is not None and incident.is_open))
        and any(finding.family is family and not finding.is_secondary for finding in incident.findings)
        and board.world.now - incident.last_seen_at <= spreads_within(family, board.world.mass_event)
    )


def _is_all_explained(incident: Incident, shared: SharedPlace, family: Family, topology: Topology) -> bool:
    """Return whether a shared part explains all that an incident rests on: what it does not stays its own."""
    return all(
        explains(shared.suspect, family, finding, topology)
        for finding in incident.findings
        if not finding.is_secondary and finding.response is not Response.MONITOR
    )
