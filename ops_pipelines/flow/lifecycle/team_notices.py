"""What a team is told of a rollout that touches nodes of its jobs: before, when it goes back, when it is over. Pure.

A team is who had jobs on the nodes when the rollout was planned; no job is killed, so nobody else need do anything.
"""

from datetime import timedelta

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.notes import Audience, Note, Severity, clock_time, minutes, quiet_end
from ops_pipelines.core.rollout import FINAL, IN_HAND, NodeStage, RolloutState, TeamTouched
from ops_pipelines.flow.lifecycle.notices import (
    NEW_VERSION,
    RolloutSituation,
    When,
    at_once,
    counted,
    in_digest,
    names_of_nodes,
    note_of,
    short,
    versions_of,
)

_BEFORE = timedelta(days=1)
"""So long before its first node is taken a team is reminded, and no reminder follows on an announcement younger."""
_FORWARD = frozenset({RolloutState.RUNNING, RolloutState.SOAKING})
_AHEAD = _FORWARD | {RolloutState.AWAITING_YES, RolloutState.PAUSED, RolloutState.ASKING}
_UNTOUCHED = frozenset({NodeStage.PENDING, NodeStage.SKIPPED})


def tell_teams(situation: RolloutSituation) -> tuple[Note, ...]:
    """Return the notes for the teams that are true now; who has no account has no team to be told."""
    if situation.plan is None:
        return ()
    return tuple(note for team in situation.plan.teams if team.team for note in _of_team(situation, team))


def _of_team(situation: RolloutSituation, team: TeamTouched) -> list[Note]:
    rollout = situation.rollout
    if rollout.state in FINAL:
        heard = any(each.note.audience is Audience.TEAM and each.note.recipient == team.team for each in situation.told)
        return [_closing(situation, team)] if heard else []
    touched = tuple(node for node in situation.nodes_in(IN_HAND | NEW_VERSION) if node in team.nodes)
    if rollout.state is RolloutState.GOING_BACK and touched and situation.is_news(rollout.since):
        return [_goes_back(situation, team, touched)]
    notes: list[Note] = []
    if rollout.state in _AHEAD and situation.is_news(rollout.created_at):
        notes.append(_announced(situation, team))
    if _is_reminded(situation, team):
        notes.append(_reminder(situation, team))
    return notes


def _announced(situation: RolloutSituation, team: TeamTouched) -> Note:
    rollout = situation.rollout
    waits = " It waits for a yes first." if rollout.state is RolloutState.AWAITING_YES else ""
    return _note(
        situation,
        team,
        stage="announced",
        title=f"{rollout.release} comes to {counted(len(team.nodes), 'node')} that your jobs run on",
        lines_title="{count} rollouts come to nodes that your jobs run on",
        parts=[
            ("What moves", f"{situation.release.about} ({versions_of(situation.release)})"),
            ("When", f"{clock_time(team.first_at)} to {clock_time(team.last_at)}, as foreseen now.{waits}"),
            ("Where", f"{names_of_nodes(team.nodes)}; {counted(team.gpu_count, 'GPU')}, a few at a time"),
            ("What we do", _done_with_jobs(situation)),
            ("What you must do", "save checkpoints; give jobs a time limit, so that the node is free when it is due"),
        ],
        severity=Severity.NOTICE,
        when=_in_time(situation, team),
    )


def _reminder(situation: RolloutSituation, team: TeamTouched) -> Note:
    rollout = situation.rollout
    waiting = _waiting(situation, team)
    return _note(
        situation,
        team,
        stage="reminder",
        title=f"{rollout.release} comes within a day to nodes that your jobs run on",
        lines_title="{count} rollouts come within a day to nodes that your jobs run on",
        parts=[
            ("Where", names_of_nodes(waiting)),
            ("When", f"foreseen from {clock_time(max(team.first_at, situation.now))}"),
            ("What we do", _done_with_jobs(situation)),
            ("What you must do", "save checkpoints"),
        ],
        severity=Severity.NOTICE,
        when=_in_time(situation, team),
    )


def _goes_back(situation: RolloutSituation, team: TeamTouched, touched: tuple[NodeName, ...]) -> Note:
    rollout = situation.rollout
    return _note(
        situation,
        team,
        stage="back",
        title=f"{rollout.release} is stopped and goes back",
        lines_title="{count} rollouts go back",
        parts=[
            ("Why", short(rollout.reason)),
            ("Where", f"of your nodes: {names_of_nodes(touched)}"),
            ("What we do", "touched nodes get their old version when their jobs have ended; no job is killed"),
            ("What you must do", "save checkpoints; a job that failed on these nodes may have failed by this"),
        ],
        severity=Severity.NOTICE,
        when=at_once(situation),
    )


def _closing(situation: RolloutSituation, team: TeamTouched) -> Note:
    rollout = situation.rollout
    new = sorted(set(situation.nodes_in(NEW_VERSION)) & set(team.nodes))
    where = f"on {len(new)} of {counted(len(team.nodes), 'node')} that your jobs ran on"
    said = {
        RolloutState.DONE: f"{rollout.release} is done, {where}",
        RolloutState.WENT_BACK: f"{rollout.release} went back: your nodes run what they ran before",
    }.get(rollout.state, f"{rollout.release} is called off, {where}")
    return _note(
        situation,
        team,
        stage="over",
        title=said,
        parts=[("How it ended", short(rollout.reason)), ("What you must do", "nothing")],
        severity=Severity.INFO,
        when=in_digest(situation),
        is_last=True,
    )


def _is_reminded(situation: RolloutSituation, team: TeamTouched) -> bool:
    """Return whether the team's first node is due within a day, or its wave has come sooner than foreseen."""
    rollout, now = situation.rollout, situation.now
    if rollout.state not in _FORWARD or now - rollout.created_at < _BEFORE or not _waiting(situation, team):
        return False
    if any(each.node in team.nodes and each.stage not in _UNTOUCHED for each in situation.nodes):
        return False
    first_wave = min(
        (each.wave for each in situation.nodes if each.node in team.nodes and each.wave is not None), default=0
    )
    is_soon = team.first_at - _BEFORE <= now and rollout.wave >= first_wave - 1
    return situation.is_news(rollout.created_at) and (is_soon or rollout.wave >= first_wave)


def _waiting(situation: RolloutSituation, team: TeamTouched) -> tuple[NodeName, ...]:
    return tuple(node for node in situation.nodes_in({NodeStage.PENDING}) if node in team.nodes)


def _in_time(situation: RolloutSituation, team: TeamTouched) -> When:
    """Return when a team hears of what is ahead: by day, unless its first node would be taken before the morning."""
    morning = quiet_end(situation.rules, situation.now)
    now = at_once(situation)
    return now if morning is None or team.first_at <= morning else When(lane=now.lane, ready_at=morning)


def _done_with_jobs(situation: RolloutSituation) -> str:
    return (
        "no job is killed: a node takes no new job and is updated when its last one has ended. "
        f"A job that lasts more than {minutes(situation.limits.job_end_limit)} longer puts its node off"
    )


def _note(
    situation: RolloutSituation,
    team: TeamTouched,
    *,
    stage: str,
    title: str,
    parts: list[tuple[str, str]],
    severity: Severity,
    when: When,
    lines_title: str = "",
    is_last: bool = False,
) -> Note:
    return note_of(
        situation,
        audience=Audience.TEAM,
        recipient=team.team,
        stage=stage,
        title=title,
        parts=parts,
        severity=severity,
        when=when,
        lines_title=lines_title,
        is_last=is_last,
    )
