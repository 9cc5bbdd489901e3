"""The page of one rollout: where it stands and who has it, what the gate sees, every node, and what a person can say.

Shows values of the ledger and of the gate, and judges nothing. What people can say is read off the table of states.
"""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.release import Change, Release, activation_of
from ops_pipelines.core.rollout import (
    FINAL,
    IN_HAND,
    OF_PEOPLE,
    Direction,
    NodeStage,
    Rollout,
    RolloutEvent,
    RolloutNode,
    RolloutPlan,
    RolloutState,
    Wave,
)
from ops_pipelines.pages.rollout_picture import MOST_DRAWN, draw_course
from ops_pipelines.pages.rollouts import mood_of, stage_counts
from ops_pipelines.report.document import clipped
from ops_pipelines.report.html import render
from ops_pipelines.report.pictures.rollouts import plan_png, progress_rows
from ops_pipelines.rollouts.course import ROLLOUT_TABLE, is_stopped_for_good
from ops_pipelines.rollouts.engine import words_of
from ops_pipelines.rollouts.gate.evidence import Verdict, VerdictKind

MOST_NODES = 200
"""Rows of one table; `ops-pipelines rollout status --json` has every node."""
_WHY_AT_MOST = 240
_QUIET = frozenset({NodeStage.PENDING, NodeStage.UPDATED, NodeStage.SKIPPED, NodeStage.BACK})
_STOPPED = frozenset({RolloutState.GOING_BACK, RolloutState.WENT_BACK, RolloutState.STUCK})
_RESUMED = {
    RolloutState.RUNNING: RolloutEvent.RESUME_UPDATING,
    RolloutState.SOAKING: RolloutEvent.RESUME_SOAKING,
    RolloutState.GOING_BACK: RolloutEvent.RESUME_GOING_BACK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMatter:
    """Everything that the page is made of."""

    cluster: str
    rollout: Rollout
    nodes: Sequence[RolloutNode]
    release: Release
    plan: RolloutPlan | None
    """None: it is not kept any more."""
    calendar: WorkCalendar | None
    """When nodes may be taken; None: it cannot be read, and then no plan is drawn."""
    racks: Mapping[NodeName, str]
    records: Sequence[ActionRecord]
    """Every act of the rollout."""
    verdict: Verdict | None
    """What the gate says now; None: nothing was updated yet, or there is nothing more to say."""
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleOrder:
    """One thing that a person can tell the rollout now."""

    command: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    number: str
    words: str
    mood: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wave:
    wave: Wave
    kind: str
    parts: tuple[tuple[float, str], ...]
    """How many nodes, and the class of their colour."""
    number: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    node: RolloutNode
    where: str
    is_late: bool
    why: str


def write_rollout(matter: RolloutMatter) -> str:
    """Return the whole HTML page of one rollout."""
    rollout = matter.rollout
    moving = [each for each in matter.nodes if each.stage not in _QUIET or each.failure]
    others = [each for each in matter.nodes if each.stage in _QUIET and not each.failure]
    is_stopped = rollout.state in _STOPPED
    return render(
        "rollout.html",
        {
            "cluster": matter.cluster,
            "rollout": rollout,
            "release": matter.release,
            "state": rollout.state.value.replace("_", " "),
            "mood": mood_of(rollout.state),
            "is_over": rollout.state in FINAL,
            "is_for_people": rollout.state in OF_PEOPLE,
            "reason": clipped(rollout.reason, at_most=500),
            "stopped_because": clipped(rollout.stopped_because, at_most=500 if is_stopped else 200),
            "is_stopped": is_stopped,
            "tiles": list(_tiles(matter)),
            "orders": possible_orders(rollout, matter.nodes, matter.release),
            "verdict": matter.verdict,
            "why_no_verdict": _why_no_verdict(matter),
            "moods": _MOODS,
            "waves": [_wave(each, label) for each, label in zip(rollout.waves, _bars(matter), strict=True)],
            "course": draw_course(rollout, matter.nodes, matter.records, now=matter.now),
            "most_drawn": MOST_DRAWN,
            "picture": _picture(matter),
            "moving": [_node(each, matter.now) for each in moving[:MOST_NODES]],
            "moving_left_out_count": max(0, len(moving) - MOST_NODES),
            "others": [_node(each, matter.now) for each in others[:MOST_NODES]],
            "other_count": len(others),
            "others_left_out_count": max(0, len(others) - MOST_NODES),
            "stages": stage_counts(matter.nodes),
            "changes": _changes(matter.release),
            "plan": matter.plan,
            "now": matter.now,
        },
    )


def possible_orders(rollout: Rollout, nodes: Sequence[RolloutNode], release: Release) -> tuple[PossibleOrder, ...]:
    """Return what a person can tell a rollout in its present state; nothing of one that is over."""
    if rollout.state in FINAL:
        return ()
    return tuple(
        PossibleOrder(command=f"ops-pipelines rollout {words}", what=what)
        for words, what in _orders(rollout, nodes, release)
    )


def _orders(rollout: Rollout, nodes: Sequence[RolloutNode], release: Release) -> Iterator[tuple[str, str]]:
    name, state = rollout.rollout, rollout.state
    why = '--reason "..."'

    def takes(event: RolloutEvent | None) -> bool:
        return event is not None and (state, event) in ROLLOUT_TABLE

    if takes(RolloutEvent.YES):
        yield f"approve {name}", f"Yes, to wave {rollout.wave}." if release.is_one_way else "Yes: it begins."
    resumed = None if rollout.paused_from is None else _RESUMED.get(rollout.paused_from)
    if takes(resumed) and not is_stopped_for_good(rollout):
        is_asked = state is RolloutState.ASKING
        answers_for = "It goes on, and you answer for what the gate could not decide."
        yield f"resume {name} {why}", answers_for if is_asked else "It goes on where it was paused."
    if takes(RolloutEvent.PAUSE):
        yield f"pause {name} {why}", "No other node is begun; those in hand are finished, and the gate goes on looking."
    if takes(RolloutEvent.GO_BACK) and not release.is_one_way:
        again = "What could not be brought back is tried again."
        every = "Every touched node gets its old version."
        yield f"back {name} {why}", again if state is RolloutState.STUCK else every
    if takes(RolloutEvent.ABORT):
        yield f"abort {name} {why}", "It ends: nodes in hand are finished, the others keep what they have."
    if any(each.stage is NodeStage.PENDING for each in nodes) and state is not RolloutState.GOING_BACK:
        yield f"skip {name} NODE {why}", "One node that was not touched yet is left out; the others go on."


_MOODS: Mapping[VerdictKind, str] = {
    VerdictKind.GOOD: "good",
    VerdictKind.UNDECIDED: "soft",
    VerdictKind.STOP: "bad",
    VerdictKind.ASK: "warn",
}


def _tiles(matter: RolloutMatter) -> Iterator[_Tile]:
    rollout, nodes = matter.rollout, matter.nodes
    part = [each for each in nodes if each.stage is not NodeStage.SKIPPED]
    updated = sum(each.stage in (NodeStage.UPDATED, NodeStage.SOAKING) for each in part)
    in_hand = sum(each.stage in IN_HAND for each in nodes)
    failed = sum(bool(each.failure) for each in nodes)
    yield _Tile(number=f"{rollout.wave} of {len(rollout.waves)}", words="wave")
    yield _Tile(number=f"{updated} of {len(part)}", words="nodes work with the new version")
    yield _Tile(number=str(in_hand), words="in hand: out of service, and ours")
    yield _Tile(number=str(failed), words="failed", mood="bad" if failed else "")
    if rollout.state in OF_PEOPLE and rollout.deadline is not None:
        is_late = matter.now >= rollout.deadline
        yield _Tile(
            number=f"{rollout.deadline:%d %b %H:%M}", words="UTC: an answer is due", mood="bad" if is_late else "warn"
        )
    elif rollout.state not in FINAL and rollout.finishes_at is not None:
        yield _Tile(number=f"{rollout.finishes_at:%d %b %H:%M}", words="UTC: its end, as planned")


def _why_no_verdict(matter: RolloutMatter) -> str:
    if matter.verdict is not None:
        return ""
    if matter.rollout.state in FINAL:
        return "It is over: the gate has said what it had to say."
    if matter.rollout.state in (RolloutState.GOING_BACK, RolloutState.STUCK):
        return "It has decided: the rollout goes back."
    return "Nothing was updated yet, so that there is nothing to judge."


def _bars(matter: RolloutMatter) -> Iterator[tuple[tuple[tuple[float, str], ...], str]]:
    for row in progress_rows(matter.rollout, matter.nodes):
        yield tuple((length, shade.name.lower()) for length, shade in row.parts if length > 0), row.number


def _wave(wave: Wave, bar: tuple[tuple[tuple[float, str], ...], str]) -> _Wave:
    kind = "canaries; decides" if wave.is_deciding else "canaries" if wave.is_canary else ""
    return _Wave(wave=wave, kind=kind, parts=bar[0], number=bar[1])


def _picture(matter: RolloutMatter) -> str:
    """Return the plan as an address that holds the picture itself; empty where there is nothing to draw."""
    plan = matter.plan
    if plan is None or matter.calendar is None or not plan.visits:
        return ""
    drawn = replace(plan, waves=tuple(each for each in plan.waves if each.nodes))
    image = b64encode(plan_png(drawn, matter.calendar, racks=matter.racks)).decode()
    return f"data:image/png;base64,{image}"


def _node(node: RolloutNode, now: datetime) -> _Node:
    way = ", on its way back" if node.direction is Direction.BACK and node.stage in IN_HAND else ""
    failed = f"failed {words_of(node.failure)}" if node.failure and node.failure not in node.reason else ""
    return _Node(
        node=node,
        where=f"{node.stage.value}{way}",
        is_late=node.deadline is not None and now >= node.deadline,
        why=clipped("; ".join(each for each in (node.reason, failed) if each), at_most=_WHY_AT_MOST),
    )


def _changes(release: Release) -> list[tuple[Change, str]]:
    return [(change, activation_of(step).value.replace("_", " ")) for step in release.steps for change in step]
