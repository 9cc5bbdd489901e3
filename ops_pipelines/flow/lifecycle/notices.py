"""What a notice of a rollout is made of: the situation that it follows from, and the note that says one fact. Pure.

Composed from what the ledger holds at a look, and known by a key: who looks again, also after a crash, says nothing
twice. What is told to whom is `operator_notices`', `operator_calls`' and `team_notices`'.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.identity import NodeName, digest_of
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
    next_time,
    quiet_end,
)
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import NodeStage, Rollout, RolloutNode, RolloutPlan

NEW_VERSION = frozenset({NodeStage.SOAKING, NodeStage.UPDATED})
_SHOWN_COUNT = 12
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSituation:
    """One rollout as it is now, with what was told of it."""

    rollout: Rollout
    nodes: Sequence[RolloutNode]
    release: Release
    plan: RolloutPlan | None
    told: Sequence[KeptNote]
    limits: RolloutLimits
    rules: TellRules
    now: datetime

    def is_news(self, at: datetime) -> bool:
        """Return whether what happened then may be told: of what is older the outbox no longer knows that it was."""
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
    audience: Audience,
    recipient: str,
    stage: str,
    title: str,
    parts: Iterable[tuple[str, str]],
    severity: Severity,
    when: When,
    lines_title: str = "",
    is_last: bool = False,
) -> Note:
    """Return one fact for one recipient; `stage` names the fact, and notes of one first word of it are alike."""
    rollout = situation.rollout
    whom = f"team/{digest_of(recipient)[:12]}" if audience is Audience.TEAM else audience.value
    return Note(
        key=f"{rollout.rollout}/{whom}/{stage}",
        audience=audience,
        recipient=recipient,
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


def to_on_call(
    situation: RolloutSituation,
    *,
    stage: str,
    title: str,
    parts: Iterable[tuple[str, str]],
    severity: Severity,
    when: When,
    lines_title: str = "",
    is_last: bool = False,
) -> Note:
    """Return one fact for the on-call."""
    return note_of(
        situation,
        audience=Audience.ON_CALL,
        recipient=ON_CALL,
        stage=stage,
        title=title,
        parts=parts,
        severity=severity,
        when=when,
        lines_title=lines_title,
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
    more = len(names) - _SHOWN_COUNT
    return ", ".join(names[:_SHOWN_COUNT]) + (f" and {more} more" if more > 0 else "") or "none"


def counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def short(reason: str) -> str:
    """Return why, as long as a message may quote it."""
    plain = " ".join(reason.split())
    return plain if len(plain) <= _LONGEST_REASON else f"{plain[:_LONGEST_REASON]}..."


def command(situation: RolloutSituation, order: str) -> str:
    """Return what a person types; each order but a yes wants its reason."""
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
