"""What a notice of a rollout is made of, and what a team is sent of one that touches nodes of its jobs.

Composed from what the ledger holds at a look, and known by a key: who looks again, also after a crash, says nothing
twice. What is reported to whom is `notices`' and `operator_notices`'.

A team is who had jobs on the nodes when the rollout was planned; no job is killed, so nobody else need do anything.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.identity import NodeName, digest_of, listed
from ops_pipelines.core.notes import (
    ON_CALL,
    Audience,
    KeptNote,
    Lane,
    Note,
    Severity,
    TellRules,
    body_of,
    clock_time,
    minutes,
    next_time,
    quiet_end,
)
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import (
    FINAL,
    IN_HAND,
    NodeStage,
    Rollout,
    RolloutNode,
    RolloutPlan,
    RolloutState,
    TeamTouched,
)
from ops_pipelines.report.numbers import counted

# -- what a notice of a rollout is made of --


NEW_VERSION = frozenset({NodeStage.SOAKING, NodeStage.UPDATED})
_SHOWN_COUNT = 12
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSituation:
    """One rollout as it is now, with what was reported of it."""

    rollout: Rollout
    nodes: Sequence[RolloutNode]
    release: Release
    plan: RolloutPlan | None
    told: Sequence[KeptNote]
    limits: RolloutLimits
    rules: TellRules
    now: datetime

    def is_news(self, at: datetime) -> bool:
        """Return whether what happened then may be reported: of what is older the outbox no longer knows."""
        return self.now - at < self.rules.kept_for

    def nodes_in(self, stages: Collection[NodeStage]) -> tuple[NodeName, ...]:
        return tuple(sorted(each.node for each in self.nodes if each.stage in stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """How a note travels, and when it is ready."""

    lane: Lane
    ready_at: datetime


def at_once(situation: RolloutSituation) -> When:
    """Return the way of what does not wait: alike notes have a moment to join it."""
    return When(lane=Lane.AT_ONCE, ready_at=situation.now + situation.rules.group_window)


def when_read(situation: RolloutSituation) -> When:
    """Return the way of what needs nobody: by day it goes out at once, by night it waits for the morning."""
    morning = quiet_end(situation.rules, situation.now)
    return at_once(situation) if morning is None else When(lane=Lane.DIGEST, ready_at=morning)


def as_page(situation: RolloutSituation) -> When:
    """Return the way of what somebody must act on now: it waits for no company."""
    return When(lane=Lane.AT_ONCE, ready_at=situation.now)


def in_digest(situation: RolloutSituation) -> When:
    rules = situation.rules
    return When(lane=Lane.DIGEST, ready_at=next_time(rules.digest_at, rules.zone, situation.now))


def note_of(
    situation: RolloutSituation,
    *,
    stage: str,
    title: str,
    parts: Iterable[tuple[str, str]],
    severity: Severity,
    when: When,
    lines_title: str = "",
    is_last: bool = False,
    team: str | None = None,
) -> Note:
    """Return one fact for a team, or for the on-call; `stage` names it: notes of one first word of it are alike."""
    rollout = situation.rollout
    audience = Audience.ON_CALL if team is None else Audience.TEAM
    whom = audience.value if team is None else f"team/{digest_of(team)[:12]}"
    return Note(
        key=f"{rollout.rollout}/{whom}/{stage}",
        audience=audience,
        recipient=ON_CALL if team is None else team,
        thread=rollout.rollout,
        subject=f"{rollout.rollout} {rollout.release} since {clock_time(rollout.created_at)}",
        title=title,
        body=body_of(parts),
        line=title,
        lines_title=lines_title,
        severity=severity,
        lane=when.lane,
        likeness=f"rollout {stage.partition('-')[0]}",
        made_at=situation.now,
        ready_at=when.ready_at,
        is_last=is_last,
    )


def question_stage(rollout: Rollout, *, time: int) -> str:
    """Return what names a question: this stay in this state, asked for the first time (0), or again."""
    return f"{_question(rollout)}{time}"


def is_still_asked(note: Note, rollouts: Mapping[str, Rollout | None]) -> bool:
    """Return whether a note says what still holds: a question that was answered before it went out is put to nobody.

    `rollouts` by their names as they are now; notes of anything else, and those that ask nothing, always hold.
    """
    if note.thread not in rollouts or "/asks-" not in note.key:
        return True
    rollout = rollouts[note.thread]
    return rollout is not None and f"/{_question(rollout)}" in note.key


def _question(rollout: Rollout) -> str:
    return f"asks-{rollout.state.value}-{rollout.since.isoformat()}-"


def versions_of(release: Release) -> str:
    """Return what is installed: `driver 580.126.20, dcgm 4.2.3`."""
    return ", ".join(f"{each.component.value.replace('_', ' ')} {each.version}" for each in release.changes)


def names_of_nodes(names: Sequence[NodeName]) -> str:
    """Return the first of many nodes, and how many more."""
    return listed(names, at_most=_SHOWN_COUNT) or "none"


def short(reason: str) -> str:
    """Return why, as long as a message may quote it."""
    plain = " ".join(reason.split())
    return plain if len(plain) <= _LONGEST_REASON else f"{plain[:_LONGEST_REASON]}..."


def command(situation: RolloutSituation, order: str) -> str:
    """Return what a person types; each order but an approval wants its reason."""
    reason = "" if order in ("approve", "status") else ' --reason "..."'
    return f"`ops-pipelines rollout {order} {situation.rollout.rollout}{reason}`"


def standing(situation: RolloutSituation) -> str:
    """Return how many nodes stand where."""
    counts = Counter(each.stage for each in situation.nodes)
    return ", ".join(f"{counts[stage]} {stage.value}" for stage in NodeStage if stage in counts)


def times_over(situation: RolloutSituation) -> int:
    """Return how often a rollout has waited for people beyond its deadline, an `answer_limit` each time."""
    deadline = situation.rollout.deadline
    if deadline is None or situation.now < deadline:
        return 0
    each = max(situation.limits.answer_limit, timedelta(minutes=5))
    return 1 + (situation.now - deadline) // each


# -- what a team is sent of a rollout that touches nodes of its jobs --


_BEFORE = timedelta(days=1)
"""So long before its first node is taken a team is reminded, and no reminder follows on an announcement younger."""
_FORWARD = frozenset({RolloutState.RUNNING, RolloutState.SOAKING})
_AHEAD = _FORWARD | {RolloutState.AWAITING_YES, RolloutState.PAUSED, RolloutState.ASKING}
_UNTOUCHED = frozenset({NodeStage.PENDING, NodeStage.SKIPPED})


def tell_teams(situation: RolloutSituation) -> tuple[Note, ...]:
    """Return the notes for the teams that are true now; who has no account has no team to be notified."""
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
    waits = " It waits for approval first." if rollout.state is RolloutState.AWAITING_YES else ""
    return note_of(
        situation,
        team=team.team,
        stage="announced",
        title=f"{rollout.release} comes to {counted(len(team.nodes), 'node')} that your jobs run on",
        lines_title="{count} rollouts come to nodes that your jobs run on",
        parts=[
            ("What moves", f"{situation.release.about} ({versions_of(situation.release)})"),
            ("When", f"{clock_time(team.first_at)} to {clock_time(team.last_at)}, as expected now.{waits}"),
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
    return note_of(
        situation,
        team=team.team,
        stage="reminder",
        title=f"{rollout.release} comes within a day to nodes that your jobs run on",
        lines_title="{count} rollouts come within a day to nodes that your jobs run on",
        parts=[
            ("Where", names_of_nodes(waiting)),
            ("When", f"expected from {clock_time(max(team.first_at, situation.now))}"),
            ("What we do", _done_with_jobs(situation)),
            ("What you must do", "save checkpoints"),
        ],
        severity=Severity.NOTICE,
        when=_in_time(situation, team),
    )


def _goes_back(situation: RolloutSituation, team: TeamTouched, touched: tuple[NodeName, ...]) -> Note:
    rollout = situation.rollout
    return note_of(
        situation,
        team=team.team,
        stage="back",
        title=f"{rollout.release} is stopped and rolls back",
        lines_title="{count} rollouts roll back",
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
        RolloutState.WENT_BACK: f"{rollout.release} rolled back: your nodes run what they ran before",
    }.get(rollout.state, f"{rollout.release} is called off, {where}")
    return note_of(
        situation,
        team=team.team,
        stage="over",
        title=said,
        parts=[("How it ended", short(rollout.reason)), ("What you must do", "nothing")],
        severity=Severity.INFO,
        when=in_digest(situation),
        is_last=True,
    )


def _is_reminded(situation: RolloutSituation, team: TeamTouched) -> bool:
    """Return whether the team's first node is due within a day, or its wave has come sooner than expected."""
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
        f"A job that lasts more than {minutes(situation.limits.job_end_limit)} longer postpones its node"
    )
