"""The picture of what a rollout did: each touched node a row, its stages one after the other. Chooses what is drawn."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.rollout import FINAL, IN_HAND, Direction, NodeStage, Rollout, RolloutNode
from ops_pipelines.report.pictures.story import Mark, StoryLane, StoryPicture, StoryRow, Stretch, Tint, story_picture

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
