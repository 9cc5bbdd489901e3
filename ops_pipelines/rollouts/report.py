"""One rollout as a document: where it is, what was done, what the gate sees, what a person can say.

Shows values of the ledger and of the gate, and judges nothing. What people can say is read off the table of states.
"""

from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.identity import NodeName, listed
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.release import Release, activation_of
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
from ops_pipelines.report import document as doc
from ops_pipelines.report.document import Kind, clipped, code, link, soft, strong, toned
from ops_pipelines.report.numbers import moment
from ops_pipelines.rollouts.course import ROLLOUT_TABLE, is_stopped_for_good
from ops_pipelines.rollouts.engine import words_of
from ops_pipelines.rollouts.gate.evidence import GateVerdict, VerdictKind
from ops_pipelines.rollouts.pictures import MOST_DRAWN, draw_course

MOST_NODES = 200
"""Rows of one table; `ops-pipelines rollout status --json` has every node."""
_MOST_TEAMS = 50
_OPEN_AT_REST = 24
_WHY_AT_MOST = 240
_QUIET = frozenset({NodeStage.PENDING, NodeStage.UPDATED, NodeStage.SKIPPED, NodeStage.BACK})
_STOPPED = frozenset({RolloutState.GOING_BACK, RolloutState.WENT_BACK, RolloutState.STUCK})
_RESUMED = {
    RolloutState.RUNNING: RolloutEvent.RESUME_UPDATING,
    RolloutState.SOAKING: RolloutEvent.RESUME_SOAKING,
    RolloutState.GOING_BACK: RolloutEvent.RESUME_GOING_BACK,
}
_MOODS: Mapping[VerdictKind, doc.Mood] = {
    VerdictKind.GOOD: doc.Mood.GOOD,
    VerdictKind.UNDECIDED: doc.Mood.SOFT,
    VerdictKind.STOP: doc.Mood.BAD,
    VerdictKind.ASK: doc.Mood.WARN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMatter:
    """Everything that the report of one rollout is made of."""

    cluster: str
    rollout: Rollout
    nodes: Sequence[RolloutNode]
    release: Release
    verdict: GateVerdict | None
    """What the gate says now; None: nothing was updated yet, or there is nothing more to say."""
    now: datetime
    plan: RolloutPlan | None = None
    """None: it is not kept any more, or is not to be shown."""
    calendar: WorkCalendar | None = None
    """When nodes may be taken; None: it cannot be read, and then no plan is drawn."""
    racks: Mapping[NodeName, str] | None = None
    records: Sequence[ActionRecord] = ()
    """Every act of the rollout; none: what was done is not drawn."""
    waits_for: str = ""
    """Why no further node is started now, where that is the calendar's; empty: it is not, or is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleOrder:
    """One thing that a person can tell the rollout now."""

    command: str
    what: str


# -- one rollout --


def rollout_document(matter: RolloutMatter) -> doc.Document:
    """Return the report of one rollout."""
    rollout = matter.rollout
    return doc.Document(
        title=rollout.rollout,
        state=toned(state_words(rollout.state), mood_of(rollout.state)),
        cluster=matter.cluster,
        about=(link("rollouts", "../rollouts"), f" · {rollout.release}: {matter.release.about}"),
        home="..",
        command=f"ops-pipelines rollout status {rollout.rollout}",
        now=matter.now,
        blocks=doc.sections(
            _standing(matter),
            doc.Numbers(numbers=tuple(_numbers(matter))),
            _orders_block(matter),
            _waves(matter),
            _course(matter),
            _gate(matter),
            _nodes(matter),
            doc.Heading(text="What is installed"),
            change_table(matter.release),
            () if matter.plan is None else _planned(matter, matter.plan),
        ),
    )


def possible_orders(rollout: Rollout, nodes: Sequence[RolloutNode], release: Release) -> tuple[PossibleOrder, ...]:
    """Return what a person can tell a rollout in its present state; nothing of one that is over."""
    if rollout.state in FINAL:
        return ()
    return tuple(
        PossibleOrder(command=f"ops-pipelines rollout {words}", what=what)
        for words, what in _orders(rollout, nodes, release)
    )


def mood_of(state: RolloutState) -> doc.Mood | None:
    """Return how welcome a state is; None for neither."""
    if state in (RolloutState.STUCK, RolloutState.GOING_BACK):
        return doc.Mood.BAD
    if state in OF_PEOPLE or state is RolloutState.WENT_BACK:
        return doc.Mood.WARN
    return doc.Mood.GOOD if state is RolloutState.DONE else None


def stage_counts(nodes: Sequence[RolloutNode]) -> str:
    """Return how many nodes stand where, in the order of their way."""
    counts = Counter(each.stage for each in nodes)
    return ", ".join(f"{counts[stage]} {stage.value}" for stage in NodeStage if counts[stage])


def state_words(state: RolloutState) -> str:
    return state.value.replace("_", " ")


def _standing(matter: RolloutMatter) -> tuple[doc.Block, ...]:
    rollout = matter.rollout
    is_stopped = rollout.state in _STOPPED
    why = clipped(rollout.stopped_because, at_most=500 if is_stopped else 200)
    stopped = f"{'Stopped because' if is_stopped else 'It asked before'}: {why}"
    since = f"So since {moment(rollout.since)}; the {rollout.owner} continues by itself."
    if rollout.state in FINAL:
        since = f"Over since {moment(rollout.since)}."
    elif rollout.state in OF_PEOPLE:
        since = f"Waits for people since {moment(rollout.since)}."
    consent = f"; yes by {rollout.yes_by}" if rollout.yes_by else ""
    begun = f"Started by {rollout.created_by}, {moment(rollout.created_at)}{consent}."
    return doc.sections(
        doc.Note(words=strong(clipped(rollout.reason, at_most=500))),
        doc.Note(words=stopped, mood=doc.Mood.WARN if is_stopped else doc.Mood.SOFT)
        if why and why != clipped(rollout.reason, at_most=500) else None,
        doc.Note(words=f"Waits for {matter.waits_for}", mood=doc.Mood.WARN) if matter.waits_for else None,
        doc.Note(words=soft(f"{since} {begun}")),
    )  # fmt: skip


def _numbers(matter: RolloutMatter) -> Iterator[doc.Number]:
    rollout, nodes = matter.rollout, matter.nodes
    part = [each for each in nodes if each.stage is not NodeStage.SKIPPED]
    updated = sum(each.stage in (NodeStage.UPDATED, NodeStage.SOAKING) for each in part)
    failed = sum(bool(each.failure) for each in nodes)
    yield doc.Number(value=f"{rollout.wave} of {len(rollout.waves)}", about="wave")
    yield doc.Number(value=f"{updated} of {len(part)}", about="nodes work with the new version")
    yield doc.Number(value=sum(each.stage in IN_HAND for each in nodes), about="in hand: out of service, and ours")
    yield doc.Number(value=failed, about="failed", mood=doc.Mood.BAD if failed else None)
    if rollout.state in OF_PEOPLE and rollout.deadline is not None:
        mood = doc.Mood.BAD if matter.now >= rollout.deadline else doc.Mood.WARN
        yield doc.Number(value=f"{rollout.deadline:%d %b %H:%M}", about="UTC: an answer is due", mood=mood)
    elif rollout.state not in FINAL and rollout.finishes_at is not None:
        yield doc.Number(value=f"{rollout.finishes_at:%d %b %H:%M}", about="UTC: its end, as planned")


def _orders_block(matter: RolloutMatter) -> tuple[doc.Block, ...]:
    orders = possible_orders(matter.rollout, matter.nodes, matter.release)
    table = doc.Table(
        columns=(doc.Column(title="Command"), doc.Column(title="What it does", kind=Kind.WORDS)),
        rows=[(code(each.command), each.what) for each in orders],
        empty="Nothing: it is over.",
    )
    job = doc.Note(words=soft("In the Dagster UI: the job steer_rollout.")) if orders else None
    return doc.sections(doc.Heading(text="What you can do"), table, job)


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
        answers_for = "It continues, and you answer for what the gate could not decide."
        yield f"resume {name} {why}", answers_for if is_asked else "It continues where it was paused."
    if takes(RolloutEvent.PAUSE):
        yield (
            f"pause {name} {why}",
            "No other node is started; those in hand are finished, and the gate continues looking.",
        )
    if takes(RolloutEvent.GO_BACK) and not release.is_one_way:
        again = "What could not be restored is tried again."
        every = "Every touched node gets its old version."
        yield f"back {name} {why}", again if state is RolloutState.STUCK else every
    if takes(RolloutEvent.ABORT):
        yield f"abort {name} {why}", "It ends: nodes in hand are finished, the others keep what they have."
    if any(each.stage is NodeStage.PENDING for each in nodes) and state is not RolloutState.GOING_BACK:
        yield f"skip {name} NODE {why}", "One node that was not touched yet is left out; the others continue."


def _waves(matter: RolloutMatter) -> tuple[doc.Block, ...]:
    from ops_pipelines.report.pictures.rollouts import progress_rows

    rollout = matter.rollout
    rows: list[tuple[doc.Cell, ...]] = []
    for wave, drawn in zip(rollout.waves, progress_rows(rollout, matter.nodes), strict=True):
        whole = sum(length for length, _ in drawn.parts) or 1.0
        bar = doc.Bar(said=drawn.number, parts=tuple((length / whole, shade) for length, shade in drawn.parts))
        is_now = wave.number == rollout.wave and rollout.state not in FINAL
        number = strong(str(wave.number)) if is_now else str(wave.number)
        rows.append(((number, soft(f" {_kind(wave)}")), len(wave.nodes), bar, drawn.number, _when(wave)))
    return (
        doc.Heading(text="Waves"),
        doc.Table(
            columns=(
                doc.Column(title="Wave", kind=Kind.NAME),
                doc.Column(title="Nodes", kind=Kind.COUNT),
                doc.Column(title="", key="bar", kind=Kind.DRAWN),
                doc.Column(title="Where they are", kind=Kind.WORDS),
                doc.Column(title="Planned, soak included (UTC)"),
            ),
            rows=rows,
            at_most=max(1, len(rows)),
        ),
    )


def _kind(wave: Wave) -> str:
    return "canaries; decides" if wave.is_deciding else "canaries" if wave.is_canary else ""


def _when(wave: Wave) -> str | None:
    if wave.planned_from is None:
        return None
    until = "no end expected" if wave.planned_until is None else f"{wave.planned_until:%d %b %H:%M}"
    return f"{wave.planned_from:%d %b %H:%M} to {until}"


def _course(matter: RolloutMatter) -> tuple[doc.Block, ...]:
    course = draw_course(matter.rollout, matter.nodes, matter.records, now=matter.now)
    if course is None:
        return ()
    first = f" The first {MOST_DRAWN} nodes are drawn."
    about = (
        "A row is a node, a number above the beginning of a wave. A stage lasts until the act that begins the next one."
        + (first if matter.plan is not None and len(matter.plan.visits) > MOST_DRAWN else "")
    )
    title = f"Each touched node of {matter.rollout.rollout}: when it was drained, updated, tested and watched"
    return (
        doc.Heading(text="What was done"),
        doc.Chart(title=title, image=course.wide, narrow=course.narrow),
        doc.Note(words=soft(about)),
    )


def _gate(matter: RolloutMatter) -> tuple[doc.Block, ...]:
    verdict, heading = matter.verdict, doc.Heading(text="The gate")
    if verdict is None:
        return heading, doc.Note(words=_why_no_verdict(matter.rollout.state))
    by = f" (it decides by {moment(verdict.decides_by)}, or asks)" if verdict.decides_by else ""
    evidence = (
        "Evidence counts how many times likelier all this is if the release is as bad as it may be at worst, than if "
        "it is good; in natural logarithm."
    )
    return doc.sections(
        heading,
        doc.Note(words=(strong(verdict.kind.value, _MOODS[verdict.kind]), f": {verdict.reason}", soft(by))),
        (
            doc.Table(
                columns=doc.columns_of("Test:name|Verdict:name|What it saw:words"),
                rows=[(each.name, toned(each.state.value, _MOODS[each.state]), each.said) for each in verdict.tests],
            ),
            doc.Note(words=soft(evidence)),
        )
        if verdict.tests
        else None,
    )


def _why_no_verdict(state: RolloutState) -> str:
    if state in FINAL:
        return "It is over: the gate has given its verdict."
    if state in (RolloutState.GOING_BACK, RolloutState.STUCK):
        return "It has decided: the rollout rolls back."
    return "Nothing was updated yet, so that there is nothing to judge."


def _nodes(matter: RolloutMatter) -> tuple[doc.Block, ...]:
    moving = [each for each in matter.nodes if each.stage not in _QUIET or each.failure]
    others = [each for each in matter.nodes if each.stage in _QUIET and not each.failure]
    more = code(f"ops-pipelines rollout status {matter.rollout.rollout} --json"), " lists them all."
    none_moves = "None is on its way, and none has failed."
    at_rest = doc.Fold(
        summary=f"{len(others)} nodes at rest",
        blocks=(_node_table(others, matter.now, empty="", more=more),),
        is_open=not moving and len(others) <= _OPEN_AT_REST,
        is_printed=False,
    )
    return doc.sections(
        doc.Heading(text="Nodes"),
        doc.Note(words=stage_counts(matter.nodes)),
        _node_table(moving, matter.now, empty=none_moves, more=more),
        at_rest if others else None,
    )


def _node_table(nodes: Sequence[RolloutNode], now: datetime, *, empty: str, more: doc.Words) -> doc.Table:
    return doc.Table(
        columns=doc.columns_of("Node:name|Wave:count|Stage|Since:moment|Deadline:moment|Why:words"),
        rows=[_node_row(each, now) for each in nodes],
        at_most=MOST_NODES,
        empty=empty,
        more=more,
    )


def _node_row(node: RolloutNode, now: datetime) -> tuple[doc.Cell, ...]:
    way = ", while it rolls back" if node.direction is Direction.BACK and node.stage in IN_HAND else ""
    failed = f"failed {words_of(node.failure)}" if node.failure and node.failure not in node.reason else ""
    is_late = node.deadline is not None and now >= node.deadline
    return (
        node.node,
        node.wave,
        toned(f"{node.stage.value}{way}", doc.Mood.BAD if node.failure else None),
        node.since,
        strong(f"{moment(node.deadline)}, over", doc.Mood.BAD) if is_late else node.deadline,
        clipped("; ".join(each for each in (node.reason, failed) if each), at_most=_WHY_AT_MOST),
    )


def change_table(release: Release) -> doc.Table:
    return doc.Table(
        columns=doc.columns_of("Component|Version:name|Takes effect by|Rollback"),
        rows=[
            (
                change.component.value.replace("_", " "),
                change.version,
                activation_of(step).value.replace("_", " "),
                toned(
                    change.reversibility.value.replace("_", " ")
                    + (f": {change.conditions}" if change.conditions else ""),
                    doc.Mood.WARN if change.reversibility.value == "no" else None,
                ),
            )
            for step in release.steps
            for change in step
        ],
    )


def _planned(matter: RolloutMatter, plan: RolloutPlan) -> tuple[doc.Block, ...]:
    until = "an end that the known windows do not reach" if plan.finishes_at is None else moment(plan.finishes_at)
    title = f"The plan of {matter.rollout.rollout}: each node a row, by wave; when it is drained, updated and soaks"
    image = _plan_image(matter, plan)
    return doc.sections(
        doc.Heading(text="As it was planned"),
        doc.Note(
            words=f"{len(plan.visits)} visits, {plan.lost_gpu_hours:.1f} GPU-hours without work, from "
            f"{moment(plan.starts_at)} to {until}."
        ),
        doc.Chart(title=title, image=image) if image else None,
        team_table(plan) if plan.teams else None,
        *(doc.Note(words=each, mood=doc.Mood.WARN) for each in plan.warnings),
    )


def _plan_image(matter: RolloutMatter, plan: RolloutPlan) -> str:
    """Return the plan as an address that holds the picture itself; empty where there is nothing to draw."""
    from ops_pipelines.report.pictures.rollouts import plan_png

    if matter.calendar is None or not plan.visits:
        return ""
    drawn = replace(plan, waves=tuple(each for each in plan.waves if each.nodes))
    image = b64encode(plan_png(drawn, matter.calendar, racks=matter.racks or {})).decode()
    return f"data:image/png;base64,{image}"


def team_table(plan: RolloutPlan) -> doc.Table:
    return doc.Table(
        columns=doc.columns_of("Team:name|GPUs:count|Nodes|First:moment|Last:moment"),
        rows=[
            (
                each.team or "-", each.gpu_count, f"{len(each.nodes)}: {listed(each.nodes, at_most=6)}", each.first_at,
                each.last_at,
            )
            for each in plan.teams
        ],
        at_most=_MOST_TEAMS,
    )  # fmt: skip
