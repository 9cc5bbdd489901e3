"""The pages of rollouts: all of them, and each with what was done, what the gate sees, what a person can say."""

from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import NodeName, RolloutId
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
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
from ops_pipelines.report.document import clipped
from ops_pipelines.report.html import render
from ops_pipelines.report.pictures.rollouts import plan_png, progress_rows
from ops_pipelines.report.pictures.story import Mark, StoryLane, StoryPicture, StoryRow, Stretch, Tint, story_picture
from ops_pipelines.rollouts.course import ROLLOUT_TABLE, is_stopped_for_good
from ops_pipelines.rollouts.engine import words_of
from ops_pipelines.rollouts.gate.evidence import Verdict, VerdictKind

# -- the page that lists rollouts, under way and over --


MOST_ROLLOUTS, MOST_RELEASES = 30, 50
"""More than these nobody reads; `ops-pipelines rollout history` and the directory have them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LyingRelease:
    """One file of the directory of releases."""

    name: str
    release: Release | None
    """None: it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    rollout: Rollout
    state: str
    mood: str
    nodes: str
    why: str


def write_rollouts(
    *,
    cluster: str,
    rollouts: Sequence[Rollout],
    nodes: Mapping[RolloutId, Sequence[RolloutNode]],
    releases: Sequence[LyingRelease],
    policy: Policy,
    now: datetime,
) -> str:
    """Return the page: of `rollouts` the newest first, with the nodes of those that `nodes` names."""
    newest = list(reversed(rollouts))
    return render(
        "rollouts.html",
        {
            "cluster": cluster,
            "rows": [_rollout_row(each, nodes.get(each.rollout, ())) for each in newest[:MOST_ROLLOUTS]],
            "left_out_count": max(0, len(newest) - MOST_ROLLOUTS),
            "releases": releases[:MOST_RELEASES],
            "example": next((each.name for each in releases if each.release is not None), None),
            "left_out_release_count": max(0, len(releases) - MOST_RELEASES),
            "why_not": why_nothing_starts(policy),
            "now": now,
        },
    )


def why_nothing_starts(policy: Policy) -> str:
    """Return why no rollout can be begun under this policy; empty if one can."""
    if policy.mode is Mode.OBSERVE:
        return "policy.yaml says mode: observe: a plan is shown, and nothing starts."
    if policy.consent_to(ActionClass.UPDATE) is Consent.FORBID:
        return "policy.yaml says consents.update: forbid: a plan is shown, and nothing starts."
    return ""


def mood_of(state: RolloutState) -> str:
    """Return the class of base.html for a state: bad, warn or good; empty for neither."""
    if state in (RolloutState.STUCK, RolloutState.GOING_BACK):
        return "bad"
    if state in OF_PEOPLE or state is RolloutState.WENT_BACK:
        return "warn"
    return "good" if state is RolloutState.DONE else ""


def stage_counts(nodes: Sequence[RolloutNode]) -> str:
    """Return how many nodes stand where, in the order of their way."""
    counts = Counter(each.stage for each in nodes)
    return ", ".join(f"{counts[stage]} {stage.value}" for stage in NodeStage if counts[stage])


def _rollout_row(rollout: Rollout, nodes: Sequence[RolloutNode]) -> _Row:
    why = rollout.stopped_because if rollout.state in FINAL and rollout.stopped_because else rollout.reason
    return _Row(
        rollout=rollout,
        state=rollout.state.value.replace("_", " "),
        mood=mood_of(rollout.state),
        nodes=stage_counts(nodes),
        why=clipped(why),
    )


# -- what a rollout has done so far, node by node --


MOST_DRAWN = 30
_KEY: Mapping[Tint, str] = {
    Tint.GREY: "drained; its jobs go on",
    Tint.BLUE: "installs",
    Tint.PINK: "restarts",
    Tint.INK: "tested",
    Tint.YELLOW: "the same, on the way back",
    Tint.ORANGE: "failed",
    Tint.SKY: "works with the new version, and is watched",
    Tint.GREEN: "its wave was good",
}
_STEPS: Mapping[Verb, tuple[Tint, str]] = {
    Verb.INSTALL: (Tint.BLUE, "install"),
    Verb.RELOAD_DRIVER: (Tint.PINK, "reload"),
    Verb.REBOOT: (Tint.PINK, "reboot"),
    Verb.POWER_OFF: (Tint.PINK, "power off"),
    Verb.POWER_ON: (Tint.PINK, "power on"),
    Verb.CHECK: (Tint.INK, "tests"),
}
_LEAST_SPAN = timedelta(seconds=1)


def draw_course(
    rollout: Rollout, nodes: Sequence[RolloutNode], records: Sequence[ActionRecord], *, now: datetime
) -> StoryPicture | None:
    """Return the picture of the first nodes that were touched; None where none was."""
    of_node: defaultdict[NodeName, list[ActionRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda each: each.begun_at):
        if record.action.node is not None and record.action.verb in (Verb.DRAIN, Verb.RESUME, *_STEPS):
            of_node[record.action.node].append(record)
    end = rollout.since if rollout.state in FINAL else now
    touched = [each for each in nodes if of_node[each.node]]
    touched.sort(key=lambda each: (each.wave or 0, of_node[each.node][0].begun_at, each.node))
    if not touched:
        return None
    began = min(of_node[each.node][0].begun_at for each in touched)
    end = max(end, began + _LEAST_SPAN)
    return story_picture(
        [StoryLane(title=each.node, rows=(_row(each, of_node[each.node], end),)) for each in touched[:MOST_DRAWN]],
        milestones={each.wave: of_node[each.node][0].begun_at for each in reversed(touched) if each.wave is not None},
        key=_KEY,
        begins_at=began,
        ends_at=end,
    )


def _row(node: RolloutNode, records: Sequence[ActionRecord], end: datetime) -> StoryRow:
    failed_at = [
        record.outcome.finished_at
        for record in records
        if record.outcome is not None and record.outcome.kind is not OutcomeKind.DONE
    ]
    turned_at = _turned_at(records)
    if node.failure and turned_at is not None:
        failed_at.append(turned_at)  # Tests that are over, and found something, have not failed as an act.
    return StoryRow(
        name="",
        stretches=tuple(_stretches(node, records, end)),
        marks=tuple(Mark(at=at, tint=Tint.ORANGE) for at in failed_at),
    )


def _stretches(node: RolloutNode, records: Sequence[ActionRecord], end: datetime) -> Iterator[Stretch]:
    """Yield what stood between each act of a node and the next: a stage lasts until the act that begins another."""
    back_from = _turned_at(records)
    for number, record in enumerate(records):
        following = records[number + 1].begun_at if number + 1 < len(records) else end
        finished_at = following if record.outcome is None else record.outcome.finished_at
        verb, begun_at = record.action.verb, record.begun_at
        is_back = back_from is not None and begun_at >= back_from
        if verb is Verb.RESUME:
            yield from _at_work(node, finished_at, following, end, is_back=is_back)
            continue
        tint, word = _STEPS.get(verb, (Tint.GREY, "drained"))
        ends_at = following if node.stage in IN_HAND or number + 1 < len(records) else finished_at
        yield Stretch(begins_at=begun_at, ends_at=ends_at, tint=Tint.YELLOW if is_back else tint, word=word)


def _turned_at(records: Sequence[ActionRecord]) -> datetime | None:
    """Return when a node's way back began; None: it never did. All acts of one way carry the same number."""
    tries = [each.action.try_number for each in records if each.action.part.endswith(f" {Direction.BACK.value}")]
    return (
        min((each.begun_at for each in records if each.action.try_number >= min(tries)), default=None)
        if tries
        else None
    )


def _at_work(
    node: RolloutNode, returned_at: datetime, following: datetime, end: datetime, *, is_back: bool
) -> Iterator[Stretch]:
    """Yield the soak of a node, and what came after it."""
    if is_back or node.returned_at is None:
        return
    is_good = node.stage is NodeStage.UPDATED
    soaked_at = min(node.since, end) if is_good else following
    yield Stretch(begins_at=returned_at, ends_at=max(returned_at, soaked_at), tint=Tint.SKY, word="soaks")
    if is_good and end > soaked_at:
        yield Stretch(begins_at=soaked_at, ends_at=end, tint=Tint.GREEN, word="updated")


# -- the page of one rollout --


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
