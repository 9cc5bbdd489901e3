"""The pictures of rollouts: what a rollout did node by node, and which version each node runs.

Readable at a thousand nodes: a single node that drifts is drawn wide enough to be seen.
"""

from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import FINAL, IN_HAND, Direction, NodeStage, Rollout, RolloutNode
from ops_pipelines.lake.hours import natural_order
from ops_pipelines.report.numbers import escape_markdown
from ops_pipelines.report.pictures.bars import INLINE_AT_MOST, LETTER_HEIGHT, Canvas, Colour, text_width
from ops_pipelines.report.pictures.story import Mark, StoryBar, StoryLane, StoryPicture, StoryRow, Tint, story_picture
from ops_pipelines.rollouts.versions import Fit, VersionLine

_TITLE = "versions: components x nodes"
_PAPER, _INK, _LINE = 0, 1, 2
_COLOURS: Mapping[Fit, int] = {Fit.FITS: 3, Fit.DRIFTS: 4, Fit.UNKNOWN: 5, Fit.FREE: 6}
_WORDS: Mapping[Fit, str] = {
    Fit.FITS: "as it should be",
    Fit.DRIFTS: "another version",
    Fit.UNKNOWN: "not reported",
    Fit.FREE: "nobody says which",
}
_PALETTE: tuple[Colour, ...] = (
    (255, 255, 255), (34, 34, 34), (120, 124, 130), (0, 158, 115), (213, 94, 0), (200, 204, 210), (166, 206, 227),
)  # fmt: skip
"""Okabe and Ito's colours, which colour-blind eyes separate."""
_LOUDEST_LAST = (Fit.FREE, Fit.FITS, Fit.UNKNOWN, Fit.DRIFTS)
"""Where several nodes share a pixel, the last of these is seen."""
_WIDE, _LEAST_SEEN = 960, 3
_SMALL_WIDE = 360
_ROW, _SMALL_ROW = LETTER_HEIGHT + 8, 8
_COMPONENTS_IN_WORDS = 3


def picture_of_versions(lines: Sequence[VersionLine]) -> tuple[str, str]:
    """Return the picture as Markdown: small enough to be shown in place, and large. Without lines, words alone."""
    words = escape_markdown(_summary(lines))
    if not lines:
        return words, words
    nodes = _order(lines)
    components = tuple(dict.fromkeys(sorted((each.component for each in lines), key=list(Component).index)))
    fits = {(each.component, each.node): each.fit for each in lines}
    small = f"{_image(_strips(nodes, components, fits))}\n\n{words}"
    return small if len(
        small
    ) < INLINE_AT_MOST else words, f"{_image(_sheet(nodes, components, fits, lines))}\n\n{words}"


def _order(lines: Sequence[VersionLine]) -> tuple[NodeName, ...]:
    """Return the nodes, those of one model together, in the order of people."""
    models = {each.node: each.model for each in lines}
    names = natural_order(models)
    return tuple(NodeName(name) for name in sorted(names, key=lambda name: models[NodeName(name)]))


def _summary(lines: Sequence[VersionLine]) -> str:
    drifts = Counter(each.component for each in lines if each.fit is Fit.DRIFTS)
    nodes = {each.node for each in lines}
    if not drifts:
        silent = sum(each.fit is Fit.UNKNOWN for each in lines)
        return f"{len(nodes)} nodes, no drift" + (f", {silent} versions not reported" if silent else "")
    most = ", ".join(f"{each.value} on {count}" for each, count in drifts.most_common(_COMPONENTS_IN_WORDS))
    more = f" and {len(drifts) - _COMPONENTS_IN_WORDS} more" if len(drifts) > _COMPONENTS_IN_WORDS else ""
    return f"{len(nodes)} nodes; other versions than they should have: {most}{more}"


def _strips(
    nodes: Sequence[NodeName], components: Sequence[Component], fits: Mapping[tuple[Component, NodeName], Fit]
) -> bytes:
    """Return the cells alone, as few bytes as they can be: the words stand below."""
    canvas = Canvas(width=_SMALL_WIDE, height=_SMALL_ROW * len(components), palette=_PALETTE)
    for row, component in enumerate(components):
        _cells(canvas, nodes, component, fits, left=0, top=row * _SMALL_ROW, wide=_SMALL_WIDE, tall=_SMALL_ROW - 1)
    return canvas.png()


def _sheet(
    nodes: Sequence[NodeName],
    components: Sequence[Component],
    fits: Mapping[tuple[Component, NodeName], Fit],
    lines: Sequence[VersionLine],
) -> bytes:
    labels = [each.value for each in components]
    left = 16 + max(map(text_width, labels))
    key_width = sum(text_width(words) + 46 for words in _WORDS.values())
    width = max(left + _WIDE + 8, 16 + key_width)
    top = 34 + _ROW
    bottom = top + _ROW * len(components)
    canvas = Canvas(width=width, height=bottom + 2 * _ROW + 8, palette=_PALETTE)
    canvas.write(8, 8, f"{_TITLE}, {len(nodes)} nodes", colour=_INK)
    for row, (component, label) in enumerate(zip(components, labels, strict=True)):
        y = top + row * _ROW
        canvas.write(8, y + 2, label, colour=_INK)
        _cells(canvas, nodes, component, fits, left=left, top=y, wide=_WIDE, tall=_ROW - 4)
    _write_models(canvas, nodes, {each.node: each.model for each in lines}, left=left, top=top, bottom=bottom)
    first, last = _plain(nodes[0]), _plain(nodes[-1])
    canvas.write(left, bottom + 2, first, colour=_INK)
    if len(nodes) > 1:
        canvas.write(max(left + text_width(first) + 24, left + _WIDE - text_width(last)), bottom + 2, last, colour=_INK)
    x = 8
    for fit, words in _WORDS.items():
        canvas.box(x, bottom + _ROW + 4, width=16, height=LETTER_HEIGHT, colour=_COLOURS[fit])
        canvas.write(x + 22, bottom + _ROW + 4, words, colour=_INK)
        x += text_width(words) + 46
    return canvas.png()


def _write_models(
    canvas: Canvas, nodes: Sequence[NodeName], models: Mapping[NodeName, str], *, left: int, top: int, bottom: int
) -> None:
    """Write each model above its nodes where there is room, with a line where it begins."""
    begins = [place for place, node in enumerate(nodes) if place == 0 or models[node] != models[nodes[place - 1]]]
    for place, end in zip(begins, [*begins[1:], len(nodes)], strict=True):
        x, until = (left + round(number * _WIDE / len(nodes)) for number in (place, end))
        if place:
            canvas.box(x, top - _ROW, width=1, height=bottom - top + _ROW, colour=_LINE)
        name = _plain(models[nodes[place]])
        if text_width(name) + 6 <= until - x:
            canvas.write(x + 3, top - _ROW + 2, name, colour=_INK)


def _cells(
    canvas: Canvas,
    nodes: Sequence[NodeName],
    component: Component,
    fits: Mapping[tuple[Component, NodeName], Fit],
    *,
    left: int,
    top: int,
    wide: int,
    tall: int,
) -> None:
    by_fit: dict[Fit, list[int]] = {fit: [] for fit in _LOUDEST_LAST}
    for place, node in enumerate(nodes):
        by_fit[fits.get((component, node), Fit.FREE)].append(place)
    for fit in _LOUDEST_LAST:
        least = _LEAST_SEEN if fit in (Fit.DRIFTS, Fit.UNKNOWN) else 1
        for place in by_fit[fit]:
            first = round(place * wide / len(nodes))
            last = max(round((place + 1) * wide / len(nodes)), first + least)
            first, last = (first, last) if last <= wide else (max(0, wide - least), wide)
            canvas.box(left + first, top, width=last - first, height=tall, colour=_COLOURS[fit])


def _plain(name: str) -> str:
    """Return a name short enough to be written, cut in its middle: names differ at their ends."""
    return name if len(name) <= 24 else f"{name[:11]}..{name[-11:]}"


def _image(body: bytes) -> str:
    return f"![{_TITLE}](data:image/png;base64,{b64encode(body).decode()})"


MOST_DRAWN = 30
_KEY: Mapping[Tint, str] = {
    Tint.GREY: "drained; its jobs continue",
    Tint.BLUE: "installs",
    Tint.PINK: "restarts",
    Tint.INK: "tested",
    Tint.YELLOW: "the same, while it rolls back",
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
        bars=tuple(_stretches(node, records, end)),
        marks=tuple(Mark(at=at, tint=Tint.ORANGE) for at in failed_at),
    )


def _stretches(node: RolloutNode, records: Sequence[ActionRecord], end: datetime) -> Iterator[StoryBar]:
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
        yield StoryBar(begins_at=begun_at, ends_at=ends_at, tint=Tint.YELLOW if is_back else tint, word=word)


def _turned_at(records: Sequence[ActionRecord]) -> datetime | None:
    """Return when a node's rollback began; None: it never did. All acts of one way carry the same number."""
    tries = [each.action.try_number for each in records if each.action.part.endswith(f" {Direction.BACK.value}")]
    return (
        min((each.begun_at for each in records if each.action.try_number >= min(tries)), default=None)
        if tries
        else None
    )


def _at_work(
    node: RolloutNode, returned_at: datetime, following: datetime, end: datetime, *, is_back: bool
) -> Iterator[StoryBar]:
    """Yield the soak of a node, and what came after it."""
    if is_back or node.returned_at is None:
        return
    is_good = node.stage is NodeStage.UPDATED
    soaked_at = min(node.since, end) if is_good else following
    yield StoryBar(begins_at=returned_at, ends_at=max(returned_at, soaked_at), tint=Tint.SKY, word="soaks")
    if is_good and end > soaked_at:
        yield StoryBar(begins_at=soaked_at, ends_at=end, tint=Tint.GREEN, word="updated")
