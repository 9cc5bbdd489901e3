"""Findings -> incidents, one a cause, culprit apart from victims; and when an incident is over without our doing.

The guard against acting on a cluster whose trouble is elsewhere. Where its nodes stand is only a suspicion here; a part
that explains them is blamed by `explanation`. What breaks on its nodes once a person was paged is no part of it: such
nodes are drained within the budget, and the page is renewed (`remediate.repair_steps`).

Pure and independent of the order in which findings come: a finding gets its place, what belongs together is blamed on
what it shares (`explanation`), damage goes to its cause, what cleared, was put right by others or was never more than a
word is closed. An owner is notified once for each attempt, a person once for each fault. What our own repairs come to
is `remediate`'s.
"""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from ops_pipelines.core.fault import Family
from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.identity import JobAttempt
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance, fold, joined_by
from ops_pipelines.core.observation import DETECTOR_SOURCE, NO_NODE, Observation
from ops_pipelines.diagnose.explanation import (
    DAMAGE_FAMILIES,
    JOB_SIGNALS,
    absorb_what_is_explained,
    cause_of,
    gather_shared_causes,
    incident_of_job,
    is_explained_by,
    joined,
)
from ops_pipelines.diagnose.hypothesis import by_urgency, is_repetition, raised_response
from ops_pipelines.diagnose.incidents import (
    Board,
    Standing,
    World,
    has_cleared,
    is_mostly_over,
    is_over,
    is_shown,
    is_shown_again,
    is_touched,
    standing_of,
    still_broken,
)
from ops_pipelines.diagnose.shared_cause import MIN_EXPLAINED, wide_suspect

_QUIET = timedelta(minutes=10)
"""What detectors saw must stay away for so long before its incident closes: what flaps is one incident."""
_QUIET_OF_VERDICTS = timedelta(hours=6)
"""So, and longer, what is judged over hours of attempts: one more success tips it for a while."""
_SAID_ONLY = timedelta(hours=1)
"""Log lines that blame a shared part end with nothing: when none came for so long, it is over."""
WATCHED = timedelta(minutes=30)
"""Evidence too weak to act on is forgotten after this long."""
_SETTLES = timedelta(minutes=30)
"""How much longer than the others' recovery a node may take before it counts as broken by itself. Assumption: a boot
with a file system check takes a quarter of an hour."""
_WITH_NOBODY_OR_A_PERSON = (IncidentState.OPEN, IncidentState.ESCALATED)
"""States in which silence may end an incident: we have nothing under way."""


def is_clearing_due(incident: Incident, conditions: Collection[Observation], *, now: datetime) -> bool:
    """Return whether a decision would change an incident because its conditions are gone, or back.

    Mirrors `close_what_cleared`, `split_what_stays` and `close_what_was_only_watched`: what is due and changes nothing
    would be due for ever.
    """
    present = {standing_of(condition) for condition in conditions}
    is_gone, is_nearly_gone = has_cleared(incident, present), is_mostly_over(incident, present)
    if _is_forgotten(incident, present, now=now):
        return True
    if incident.quiet_since is not None:
        if is_gone:
            return now - incident.quiet_since >= quiet_of(incident)
        return not is_nearly_gone or now - incident.quiet_since >= _SETTLES
    return is_gone or is_nearly_gone


def quiet_of(incident: Incident) -> timedelta:
    """Return how long what an incident rests on must stay away before it closes; verdicts over many hours waver."""
    signals = {observation.signal for finding in incident.findings for observation in finding.evidence}
    return _QUIET_OF_VERDICTS if signals & JOB_SIGNALS else _QUIET


def close_what_was_returned(board: Board) -> None:
    """Close what a person has ended by returning the node, before new faults there are placed."""
    for key in sorted(board.world.returned & board.incidents.keys()):
        incident = board.incidents[key]
        if incident.state in (IncidentState.ESCALATED, IncidentState.IN_REPAIR):
            board.clear(incident, note="a person took the node back into service")


def close_what_was_restarted(board: Board) -> None:
    """Close what we only watched being put right: the node was restarted after the last evidence, and is well."""
    by_name = {node.node: node for node in board.world.nodes}
    for incident in list(board.incidents.values()):
        if incident.state is not IncidentState.OPEN or incident.plan_count > 0 or len(incident.nodes) != 1:
            continue
        if incident.response not in REPAIRS or is_repetition(incident.findings):
            continue  # A restart is not what these call for.
        (name,) = incident.nodes
        node = by_name.get(name)
        if node is None or node.booted_at is None or node.is_drained or not node.is_responding:
            continue
        is_over = node.booted_at > incident.last_seen_at and board.world.now - node.booted_at >= _QUIET
        if is_over and not is_shown(incident.findings, board.present):
            board.clear(incident, note="the node was restarted since, and nothing was seen after it")


def close_what_nobody_was_told(board: Board) -> None:
    """Close application errors whose owner could not be notified in time: the job is gone, or we only observe."""
    for incident in list(board.incidents.values()):
        is_waiting = incident.state is IncidentState.OPEN and incident.response is Response.NOTIFY_OWNER
        if is_waiting and board.world.now - incident.opened_at > board.world.waiting_limit:
            board.clear(incident, note="its owner was not notified in time; no node is at fault")


def close_what_cleared(board: Board) -> None:
    """Close incidents that rest on lasting conditions alone once none of these holds any more.

    What detectors saw must stay away for a while first: a condition that comes and goes is one incident.
    """
    for incident in list(board.incidents.values()):
        if incident.state not in _WITH_NOBODY_OR_A_PERSON or not incident.findings:
            continue
        is_gone = has_cleared(incident, board.present)
        if is_gone and _may_flap(incident) and not _is_quiet(incident, now=board.world.now):
            if incident.quiet_since is None:
                board.put(replace(incident, quiet_since=board.world.now))
        elif is_gone:
            board.clear(incident, note="cleared by itself: the condition no longer holds")
        elif incident.quiet_since is not None and not is_mostly_over(incident, board.present):
            board.put(replace(incident, quiet_since=None))


def split_what_stays(board: Board) -> None:
    """Give the few nodes that stay broken incidents of their own once the wide fault is over for all others."""
    for incident in list(board.incidents.values()):
        if (
            incident.suspect is None
            or not incident.is_mass_event
            or incident.state not in _WITH_NOBODY_OR_A_PERSON
            or not is_mostly_over(incident, board.present)
        ):
            continue
        if incident.quiet_since is None:
            board.put(replace(incident, quiet_since=board.world.now))
            continue
        if board.world.now - incident.quiet_since < _SETTLES:
            continue
        stays = still_broken(incident, board.present)
        board.clear(incident, note=f"over for all but {', '.join(sorted(stays))}")
        for node in sorted(stays):
            board.open(stays[node], nodes=frozenset({node}), victims=board.roster.attempts_on(node))


def _may_flap(incident: Incident) -> bool:
    return any(
        observation.source == DETECTOR_SOURCE for finding in incident.findings for observation in finding.evidence
    )


def _is_quiet(incident: Incident, *, now: datetime) -> bool:
    return incident.quiet_since is not None and now - incident.quiet_since >= quiet_of(incident)


def close_what_was_only_watched(board: Board) -> None:
    """Close what was too weak to trouble anybody, and was not seen again."""
    for incident in list(board.incidents.values()):
        if _is_forgotten(incident, board.present, now=board.world.now):
            note = "too weak to act on, and not seen again" if incident.is_watched else "not reported again for an hour"
            board.clear(incident, note=note)


def _is_forgotten(incident: Incident, present: set[Standing], *, now: datetime) -> bool:
    """Return whether what was only ever reported was not reported again for long: too weak, or of a shared part."""
    if incident.state not in _WITH_NOBODY_OR_A_PERSON:
        return False
    is_said_only = incident.suspect is not None and not any(finding.is_lasting for finding in incident.findings)
    is_weak = incident.state is IncidentState.OPEN and incident.is_watched
    if not (is_weak or is_said_only) or is_shown(incident.findings, present):
        return False
    return now - max(incident.last_seen_at, incident.opened_at) > (WATCHED if is_weak else _SAID_ONLY)


RENEWED_EVERY = timedelta(minutes=2)
"""A mass event pages again this often at most, and not before. Assumption: who has it reads no faster."""


def merge_mass_event(board: Board) -> None:
    """Turn many young, untouched node incidents into one that only pages."""
    world = board.world
    young = [incident for incident in board.incidents.values() if _is_young(incident, world)]
    apart = frozenset(node for incident in young for node in incident.nodes)
    wide = [incident for incident in board.incidents.values() if _is_young_wide(incident, world)]
    nodes = apart | {node for incident in wide for node in incident.nodes}
    is_another_story = len(apart) > (1 - MIN_EXPLAINED) * len(nodes)
    if len(nodes if is_another_story else apart) < world.mass_event.min_node_count:
        return
    merged = (*young, *wide) if is_another_story else young
    untouched = [incident for incident in merged if not is_touched(incident)]
    if not untouched:
        return
    place = world.topology.shared_place(nodes)
    suspicion = f"all stand at {place}" if place else "they share neither rack nor leaf switch"
    seconds = world.mass_event.window.total_seconds()
    mass = board.open_wide(
        fold(finding for incident in untouched for finding in incident.findings),
        nodes=frozenset(node for incident in untouched for node in incident.nodes),
        victims=frozenset(victim for incident in untouched for victim in incident.victims),
        note=f"{len(nodes)} nodes look broken within {seconds:.0f} s; {suspicion}",
    )
    for incident in untouched:
        board.merge(incident, into=mass)


def with_struck(incident: Incident, finding: Finding, world: World) -> Incident:
    """Return a mass event that a finding has joined, with the node noted if its fault is new, and hard.

    Whatever comes before its page, within the window of its first evidence, is the storm itself, which touches nothing.
    """
    is_over = finding.found_at - incident.opened_at > world.mass_event.window
    is_new = is_over or incident.state is IncidentState.ESCALATED
    if not (incident.is_mass_event and incident.suspect is None and is_new and is_hard(finding)):
        return incident
    return replace(incident, struck=incident.struck | {finding.node})


def is_hard(finding: Finding) -> bool:
    """Return whether a finding is an event of a node's own part that calls for a repair, by itself.

    Conditions come and go with the network and with our own eyes: of these a mass event is mostly made.
    """
    return (
        finding.response in REPAIRS
        and not finding.is_lasting
        and not finding.is_secondary
        and finding.node != NO_NODE
        and wide_suspect(finding) is None
    )


def renew_mass_events(board: Board) -> None:
    """Open again what a person has, where nodes that still take jobs broke again: at most once in two minutes."""
    drained = {node.node for node in board.world.nodes if node.is_drained}
    for incident in list(board.incidents.values()):
        if not is_renewal_due(incident, now=board.world.now):
            continue
        renewed = incident.struck - drained
        if not renewed:
            board.put(replace(incident, struck=frozenset()))  # Out of service: who drained them has them in hand.
            continue
        note = f"{len(renewed)} of its nodes broke again after the storm"
        opened = advance(incident, IncidentEvent.STRUCK_ANEW, at=board.world.now, note=note)
        board.put(replace(opened, struck=frozenset(), renewed=renewed, renewed_at=board.world.now))


def is_renewal_due(incident: Incident, *, now: datetime) -> bool:
    """Return whether a decision would open a mass event again, or release what it was struck by."""
    is_early = now - (incident.renewed_at or incident.opened_at) < RENEWED_EVERY
    return incident.state is IncidentState.ESCALATED and bool(incident.struck) and not is_early


def is_still_spreading(incident: Incident, world: World) -> bool:
    """Return whether an open mass event got a finding within the window; later faults stand for themselves."""
    if not incident.is_open or not incident.is_mass_event or incident.suspect is not None:
        return False
    last_found_at = max(finding.found_at for finding in incident.findings)
    return world.now - last_found_at <= world.mass_event.window


def _is_young(incident: Incident, world: World) -> bool:
    """Return whether a node of the cluster began to look broken within the window; being repaired counts, too.

    One whose versions are being changed does not: it restarts because we had it restarted.
    """
    return (
        not any(world.is_changing(node) for node in incident.nodes)
        and incident.state in (IncidentState.OPEN, IncidentState.ACTING)
        and incident.suspect is None
        and any(world.topology.knows(node) for node in incident.nodes)
        and incident.response in (*REPAIRS, Response.PAGE)
        and bool(incident.findings)
        and world.now - min(finding.found_at for finding in incident.findings) <= world.mass_event.window
    )


def _is_young_wide(incident: Incident, world: World) -> bool:
    """Return whether a part that nodes share was blamed moments ago: more of them may tell another story."""
    return (
        incident.suspect is not None
        and incident.is_mass_event
        and incident.state is IncidentState.OPEN
        and world.now - incident.began_at <= world.mass_event.window
    )


_SAME_TROUBLE = timedelta(minutes=30)
"""Evidence on one node this close together is one incident: two faults at once are rare (Meta RSC: 3 to 5 %)."""
_APART_FAMILIES = frozenset({Family.SOFTWARE, Family.DISK})
"""Trouble that lasts for weeks beside everything else: it joins only its own kind."""


def home_of(finding: Finding, board: Board) -> Incident | None:
    """Return the open incident that a finding belongs to, None if it starts its own."""
    on_node = [incident for incident in board.incidents.values() if incident.is_open and finding.node in incident.nodes]
    repairs = [
        incident
        for incident in on_node
        if (incident.response in REPAIRS or (incident.is_mass_event and incident.suspect is None))
        # A node on probation works: what a program there does wrong is a story of its own.
        and (
            incident.state is not IncidentState.PROBATION
            or _speaks_of_node(finding)
            or is_shown_again(incident, finding)
        )
    ]
    wide = [incident for incident in board.incidents.values() if is_explained_by(incident, finding, board)]
    if wide and all(each.state is IncidentState.PROBATION for each in repairs):
        return wide[0]  # What a whole switch does to it says nothing against a node on probation.
    if repairs and finding.family not in _APART_FAMILIES and not is_repetition([finding]):
        return repairs[0]
    if wide:
        return wide[0]
    # What lasts on a node on probation, and is no repair, is a story of its own: else nobody would hear of it.
    on_node = [incident for incident in on_node if incident.state is not IncidentState.PROBATION]
    if finding.is_secondary or (finding.family in DAMAGE_FAMILIES and finding.node == NO_NODE):
        return cause_of(finding, board, but=None) or incident_of_job(finding, board)
    if finding.response in REPAIRS:
        return _home_of_repair(finding, on_node, board)
    if finding.response is Response.NOTIFY_OWNER:
        return cause_of(finding, board, but=None)
    return _same_trouble(finding, on_node)


def _home_of_repair(finding: Finding, on_node: list[Incident], board: Board) -> Incident | None:
    """Return where a call for a repair belongs: what spreads over many nodes, else what waits on this one."""
    mass = [incident for incident in board.incidents.values() if is_still_spreading(incident, board.world)]
    if mass:
        return mass[0]  # The cause is likely the same: nothing new is acted on while it spreads.
    waiting = [
        incident
        for incident in on_node
        if incident.state is IncidentState.OPEN and incident.suspect is None and _may_be_one(incident, finding)
    ]
    return waiting[0] if waiting else None


def _same_trouble(finding: Finding, on_node: list[Incident]) -> Incident | None:
    """Return the incident of a node that has the same trouble: by its rule, by its time or by its kind."""
    own = [incident for incident in on_node if incident.suspect is None]
    same_rule = [incident for incident in own if any(each.rule == finding.rule for each in incident.findings)]
    if same_rule:
        return same_rule[0]
    close = [
        incident
        for incident in own
        if incident.state is IncidentState.OPEN  # A person who was paged once must hear of other trouble, too.
        and _may_be_one(incident, finding)
        and (
            abs(finding.found_at - incident.last_seen_at) <= _SAME_TROUBLE
            or any(each.family is finding.family and not each.is_secondary for each in incident.findings)
        )
    ]
    return close[0] if close else None


def _speaks_of_node(finding: Finding) -> bool:
    """Return whether a finding is about the node and its parts, and not about what runs there."""
    is_event = finding.response is Response.PAGE and (not finding.is_lasting or finding.family is Family.SILENCE)
    return not finding.is_secondary and (finding.response in REPAIRS or is_event)


def _may_be_one(incident: Incident, finding: Finding) -> bool:
    """Return whether trouble of these kinds on one node can be one: what lasts for weeks joins its own kind only."""
    families = {each.family for each in incident.findings}
    if finding.family in _APART_FAMILIES or families <= _APART_FAMILIES:
        return finding.family in families
    return True


def place(finding: Finding, board: Board) -> None:
    """Join a finding to the incident where it belongs, or open one for it if it calls for anything.

    What a node shows while a rollout changes it is the rollout's own: it tests the node before it returns it.
    """
    if board.world.is_made_by_change(finding):
        return
    if board.world.is_changing(finding.node):
        _place_on_changing(finding, board)
        return
    home = home_of(finding, board)
    if home is not None:
        after = joined(home, finding, roster=board.roster, at=board.world.now)
        board.put(after if after is home else with_struck(after, finding, board.world))
    elif is_over(finding, board.present):
        return  # A condition that came and went before anybody decided: evidence, but no problem to own.
    elif finding.response is Response.NOTIFY_OWNER or finding.is_secondary:
        _place_application_error(finding, board)
    elif finding.response is not Response.MONITOR:
        suspect = wide_suspect(finding)
        nodes = frozenset() if suspect is not None or finding.node == NO_NODE else frozenset({finding.node})
        board.open(finding, nodes=nodes, victims=board.roster.victims_of(finding), suspect=suspect)


def _place_on_changing(finding: Finding, board: Board) -> None:
    """Keep a condition of a node that is being changed apart: it waits, and ends with the change or is seen to then."""
    if finding.response is Response.MONITOR or is_over(finding, board.present):
        return
    nodes = frozenset({finding.node})
    home = next(
        (each for each in board.incidents.values() if each.state is IncidentState.OPEN and each.nodes == nodes), None
    )
    if home is None:
        board.open(finding, nodes=nodes, victims=frozenset())
    else:
        board.put(joined(home, finding, roster=board.roster, at=board.world.now))


def _place_application_error(finding: Finding, board: Board) -> None:
    if finding.response is Response.MONITOR:
        return
    victims = board.roster.victims_of(finding)
    if not victims:
        # Without an attempt there is nobody to tell: it stays evidence, unless it names the job over many attempts.
        if finding.job is not None and finding.evidence[0].signal in JOB_SIGNALS:
            _join_or_open_job(finding, victims, board)
        return
    for attempt in sorted(victims - board.world.told):
        _join_or_open_job(finding, frozenset({attempt}), board)


def _join_or_open_job(finding: Finding, victims: frozenset[JobAttempt], board: Board) -> None:
    """Join what a program does wrong to the open incident of the same attempt, of its job where none is known."""
    same = [
        incident
        for incident in board.incidents.values()
        if incident.is_open
        and not incident.nodes
        and incident.suspect is None
        and (
            bool(victims & incident.victims)
            or (not victims and any(each.job == finding.job for each in incident.findings))
        )
    ]
    if not same:
        board.open(finding, nodes=frozenset(), victims=victims)
        return
    findings = joined_by(same[0], finding)
    if findings is not same[0].findings:
        board.put(
            replace(
                same[0],
                findings=findings,
                response=max(same[0].response, raised_response(findings)),
                changed_at=board.world.now,
            )
        )


def correlate(findings: Collection[Finding], incidents: Collection[Incident], world: World) -> tuple[Incident, ...]:
    """Return every incident that is new or changed. The same findings in another order give the same incidents.

    Repairs are placed first, so that an application error on a node that just lost a GPU counts as its victim and
    not as somebody's bug. Shared parts are blamed before many nodes are called a mass event, which knows no cause, and
    both before damage looks for what explains it; only then is it clear what each incident rests on, and what is over.
    """
    board = Board(incidents, world)
    close_what_was_returned(board)
    for finding in sorted(fold(findings), key=by_urgency):
        place(finding, board)
    gather_shared_causes(board)
    merge_mass_event(board)
    renew_mass_events(board)
    absorb_what_is_explained(board)
    split_what_stays(board)
    close_what_cleared(board)
    close_what_was_restarted(board)
    close_what_nobody_was_told(board)
    close_what_was_only_watched(board)
    return board.changed()
