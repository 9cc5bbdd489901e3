"""Pictures of rollouts: what is planned, nodes x time, and how far each wave is.

Knows the plan, not how it came about. Drawing the large one is `rollout_plan_png`'s.

With names while they can be read, else lines of pixels under the names of their waves. What is beside it in words,
and the small picture, is `rollout_plan`'s.

Says what the bars are of; drawing them is `bars`'.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum
from itertools import groupby

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.rollout import (
    IN_HAND,
    Direction,
    NodeStage,
    PlannedVisit,
    Rollout,
    RolloutNode,
    RolloutPlan,
    Wave,
)
from ops_pipelines.report.document import Shade
from ops_pipelines.report.numbers import counted, escape_markdown
from ops_pipelines.report.pictures.bars import (
    LETTER_HEIGHT,
    LETTER_WIDTH,
    BarRow,
    Canvas,
    Colour,
    Sheet,
    large_rows,
    small_rows,
    text_width,
)
from ops_pipelines.report.pictures.story import StoryAxis

# -- the large picture of a rollout's plan --


WIDE = 900
_ROW = LETTER_HEIGHT + 4
_NAMED_AT_MOST = 40
"""More rows than this are read as blocks, not by their names."""
_TALL = 1_000
"""Pixels of the rows together where they have no names; of more nodes than this several share a line."""
_TOP = 78
_NAME_LENGTH, _RACK_LENGTH = 20, 10
_WAVE = "wave 12 "


class _Tint(IntEnum):
    PAPER = 0
    INK = 1
    WINDOW = 2
    FREEZE = 3
    WAITS = 4
    WORKED_ON = 5
    SOAKS = 6
    RACK = 7
    CUT = 8


_PALETTE: tuple[Colour, ...] = (
    (255, 255, 255), (34, 34, 34), (255, 243, 205), (244, 204, 214), (142, 203, 240),
    (0, 90, 160), (205, 232, 214), (150, 156, 164), (226, 229, 233),
)  # fmt: skip
_KEY = {
    _Tint.WAITS: "drained, jobs continue",
    _Tint.WORKED_ON: "updated",
    _Tint.SOAKS: "soaks",
    _Tint.WINDOW: "window",
    _Tint.FREEZE: "freeze",
    _Tint.CUT: "time cut short",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One node, where it is drawn."""

    node: NodeName
    rack: str
    visit: PlannedVisit | None
    y: int
    tall: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """The rows of one wave."""

    wave: Wave
    rows: tuple[_Row, ...]
    y: int
    tall: int


def plan_png(plan: RolloutPlan, calendar: WorkCalendar, *, racks: Mapping[NodeName, str]) -> bytes:
    """Return nodes x time as a PNG file. Raises ValueError of a plan without a visit."""
    if not plan.visits:
        raise ValueError("the plan foresees no visit: there is nothing to draw")
    blocks = _blocks(plan, racks)
    has_names = sum(len(block.rows) for block in blocks) <= _NAMED_AT_MOST
    labels = _labels(blocks) if has_names else {}
    left = 8 + text_width(_WAVE) + (max(map(text_width, labels.values())) + LETTER_WIDTH if has_names else 120)
    axis = plan_axis(plan, left=left)
    bottom = blocks[-1].y + blocks[-1].tall
    canvas = Canvas(width=left + WIDE + 16, height=bottom + 3 * _ROW + 14, palette=_PALETTE)
    title = f"{plan.release}: {sum(len(block.rows) for block in blocks)} nodes, {len(plan.waves)} waves"
    canvas.write(8, 8, title, colour=_Tint.INK)
    _draw_bands(canvas, calendar, axis, bottom=bottom)
    for block in blocks:
        _draw_block(canvas, block, axis, left=left, labels=labels)
    _draw_times(canvas, plan, axis, bottom=bottom, left=left)
    x = 8
    for tint, words in _KEY.items():
        canvas.box(x, bottom + 2 * _ROW + 4, width=16, height=LETTER_HEIGHT, colour=tint)
        canvas.write(x + 22, bottom + 2 * _ROW + 4, words, colour=_Tint.INK)
        x += text_width(words) + 46
    return canvas.png()


def plan_axis(plan: RolloutPlan, *, left: int = 0) -> StoryAxis:
    """Return the times of a plan from left to right: where nothing happens for long, time is cut short."""
    times = [plan.starts_at, *(at for each in plan.visits for at in (each.drained_at, each.begins_at, each.ends_at))]
    visited = {each.wave for each in plan.visits}
    times += [wave.planned_until for wave in plan.waves if wave.planned_until is not None and wave.number in visited]
    return StoryAxis(times, left=left, width=WIDE)


def _blocks(plan: RolloutPlan, racks: Mapping[NodeName, str]) -> tuple[_Block, ...]:
    """Return the rows of each wave, by rack and then by time; every block is as tall as its name at least."""
    visits = {each.node: each for each in plan.visits}
    count = sum(len(wave.nodes) for wave in plan.waves)
    has_names = count <= _NAMED_AT_MOST
    blocks: list[_Block] = []
    y = _TOP
    for wave in plan.waves:
        nodes = sorted(wave.nodes, key=lambda name: (racks.get(name, ""), _place(visits.get(name)), name))
        tall = len(nodes) * _ROW if has_names else max(_ROW, round(len(nodes) * min(1.0, _TALL / count)))
        edges = [y + round(place * tall / len(nodes)) for place in range(len(nodes) + 1)]
        rows = tuple(
            _Row(
                node=name,
                rack=racks.get(name, ""),
                visit=visits.get(name),
                y=edges[place],
                tall=max(1, edges[place + 1] - edges[place]),
            )
            for place, name in enumerate(nodes)
        )
        blocks.append(_Block(wave=wave, rows=rows, y=y, tall=tall))
        y += tall + 4
    return tuple(blocks)


def _place(visit: PlannedVisit | None) -> float:
    return float("inf") if visit is None else visit.begins_at.timestamp()


def _draw_bands(canvas: Canvas, calendar: WorkCalendar, axis: StoryAxis, *, bottom: int) -> None:
    """Draw when work may be started and when not, behind the rows and in a strip above them."""
    bands = [(each, _Tint.WINDOW) for each in calendar.windows or ()]
    bands += [(each, _Tint.FREEZE) for each in calendar.freezes]
    for interval, tint in bands:
        first, last = round(axis.across(interval.begins_at)), round(axis.across(interval.ends_at))
        if last > first:
            canvas.box(first, _TOP - 22, width=last - first, height=bottom - _TOP + 22, colour=tint)
            named = interval.name if tint is _Tint.FREEZE else ""
            if text_width(named) + 4 <= last - first:
                canvas.write(first + 2, _TOP - 20, named, colour=_Tint.INK)
    for cut in axis.cuts:
        canvas.box(round(cut.x) - 3, _TOP - 26, width=6, height=bottom - _TOP + 26, colour=_Tint.CUT)


def _labels(blocks: Sequence[_Block]) -> Mapping[NodeName, str]:
    """Return rack and name of each node, in columns."""
    rows = [row for block in blocks for row in block.rows]
    wide = min(_RACK_LENGTH, max(len(row.rack) for row in rows))
    return {row.node: f"{_clipped(row.rack, wide):<{wide}} {_clipped(row.node, _NAME_LENGTH)}".strip() for row in rows}


def _draw_block(canvas: Canvas, block: _Block, axis: StoryAxis, *, left: int, labels: Mapping[NodeName, str]) -> None:
    """Draw one wave; without `labels` under its own name alone, its racks distinguished at its left."""
    wave = block.wave
    canvas.box(8, block.y - 3, width=left + WIDE - 8, height=1, colour=_Tint.RACK)
    for row in block.rows:
        _draw_row(canvas, row, axis, soaks_until=wave.planned_until, gap=2 if labels else 0)
        canvas.write(8 + text_width(_WAVE), row.y, labels.get(row.node, ""), colour=_Tint.INK)
    if labels:
        canvas.write(8, block.y, f"wave {wave.number}", colour=_Tint.INK)
        return
    canvas.write(
        8, block.y + (block.tall - LETTER_HEIGHT) // 2, f"wave {wave.number}: {len(wave.nodes)}", colour=_Tint.INK
    )
    for number, (_, rows) in enumerate(groupby(block.rows, key=lambda row: row.rack)):
        of_rack = list(rows)
        height = of_rack[-1].y + of_rack[-1].tall - of_rack[0].y
        canvas.box(left - 8, of_rack[0].y, width=5, height=height, colour=_Tint.RACK if number % 2 else _Tint.INK)


def _draw_row(canvas: Canvas, row: _Row, axis: StoryAxis, *, soaks_until: datetime | None, gap: int) -> None:
    if row.visit is None:
        return
    tall = max(1, row.tall - gap)
    drained, begins, ends = (
        round(axis.across(at)) for at in (row.visit.drained_at, row.visit.begins_at, row.visit.ends_at)
    )
    if soaks_until is not None:
        last = round(axis.across(soaks_until))
        if last > ends:
            canvas.box(ends, row.y, width=last - ends, height=tall, colour=_Tint.SOAKS)
    if begins > drained:
        canvas.box(drained, row.y, width=begins - drained, height=tall, colour=_Tint.WAITS)
    canvas.box(begins, row.y, width=max(2, ends - begins), height=tall, colour=_Tint.WORKED_ON)


def _draw_times(canvas: Canvas, plan: RolloutPlan, axis: StoryAxis, *, bottom: int, left: int) -> None:
    """Write the times that have room below, and how long each cut lasts above."""
    taken = 0
    firsts = {each.wave: each.drained_at for each in reversed(plan.visits)}
    ends = [plan.finishes_at or max(each.ends_at for each in plan.visits)]
    for at in sorted([*firsts.values(), *ends]):
        words = f"{at:%d %b %H:%M}"
        place = round(axis.across(at))
        x = min(place, left + WIDE + 8 - text_width(words))
        canvas.dotted_line(place, _TOP - 22, height=bottom - _TOP + 26, colour=_Tint.RACK)
        if x >= taken:
            canvas.write(x, bottom + 8, words, colour=_Tint.INK)
            taken = x + text_width(words) + LETTER_WIDTH
    taken = 0
    for cut in axis.cuts:
        words = _span(cut.lasted)
        x = round(cut.x) - text_width(words) // 2
        if x >= taken:
            canvas.write(x, _TOP - 42, words, colour=_Tint.INK)
            taken = x + text_width(words) + LETTER_WIDTH


def _span(span: timedelta) -> str:
    hours = span.total_seconds() / 3600
    return f"{hours / 24:.1f} d" if hours >= 48 else f"{hours:.1f} h"


def _clipped(text: str, length: int) -> str:
    """Return a text cut in its middle: names differ at their ends."""
    half = (length - 2) // 2
    return text if len(text) <= length else f"{text[: length - 2 - half]}..{text[-half:]}"


# -- a picture of a rollout's plan as Markdown --


_TITLE = "plan: nodes x time"
_SMALL = Sheet(title="plan: waves x time", key={Shade.BLUE: "updated", Shade.PALE: "soaks"})


def picture_of_plan(plan: RolloutPlan, calendar: WorkCalendar, *, racks: Mapping[NodeName, str]) -> tuple[str, str]:
    """Return the picture of a plan as Markdown: small enough to be shown in place, and large."""
    words = _words(plan)
    if not plan.visits:
        return words, words
    image = b64encode(plan_png(plan, calendar, racks=racks)).decode()
    return small_rows(_wave_rows(plan), sheet=_SMALL, words=words), (
        f"![{_TITLE}](data:image/png;base64,{image})\n\n{words}"
    )


def _wave_rows(plan: RolloutPlan) -> tuple[BarRow, ...]:
    """Return a bar a wave: from its first drain to its last return, and its soak."""
    axis, rows = plan_axis(plan), []
    for wave in plan.waves:
        visits = [each for each in plan.visits if each.wave == wave.number]
        parts: tuple[tuple[float, Shade], ...] = ()
        if visits:
            first = axis.across(min(each.drained_at for each in visits))
            last = axis.across(max(each.ends_at for each in visits))
            until = last if wave.planned_until is None else axis.across(wave.planned_until)
            parts = ((first, Shade.NONE), (last - first, Shade.BLUE), (until - last, Shade.PALE))
        rows.append(BarRow(label=f"wave {wave.number}:", parts=parts, number=f"{len(wave.nodes):,}"))
    return tuple(rows)


def _words(plan: RolloutPlan) -> str:
    count = sum(len(wave.nodes) for wave in plan.waves)
    ends = "no end expected" if plan.finishes_at is None else f"ends {plan.finishes_at:%Y-%m-%d %H:%M} UTC"
    left = count - len(plan.visits)
    return " · ".join(
        [
            f"{escape_markdown(plan.release)}: {counted(count, 'node')} in {counted(len(plan.waves), 'wave')}",
            f"begins {plan.starts_at:%Y-%m-%d %H:%M} UTC, {ends}",
            f"{plan.lost_gpu_hours:,.0f} GPU-hours lost",
            *(["dark: updated, pale: soaks"] if plan.visits else []),
            *([f"{left:,} without an expected time"] if left else []),
            *([f"{len(plan.skipped):,} left out"] if plan.skipped else []),
        ]
    )


# -- a picture of rollouts --


_SHEET = Sheet(
    title="rollout: waves, and where their nodes stand",
    key={
        Shade.GREEN: "updated",
        Shade.SKY: "soaks",
        Shade.BLUE: "in hand",
        Shade.YELLOW: "back",
        Shade.ORANGE: "failed",
        Shade.PINK: "left out",
        Shade.GREY: "to come",
    },
)
_ORDER = tuple(_SHEET.key)
_SMALL_LETTERS = 16
"""Of a number that is beside a small bar and its wave's name; a longer one says how many are updated."""
_AT_WORK = frozenset({Shade.GREEN, Shade.SKY})


def progress_rows(rollout: Rollout, nodes: Sequence[RolloutNode]) -> tuple[BarRow, ...]:
    """Return a bar a wave, as long as it has nodes."""
    rows = []
    for wave in rollout.waves:
        shades = [_shade_of(each) for each in nodes if each.wave == wave.number]
        counts = {shade: shades.count(shade) for shade in _ORDER}
        kind = "deciding" if wave.is_deciding else "canary" if wave.is_canary else ""
        rows.append(
            BarRow(
                label=f"wave {wave.number} {kind}".rstrip(),
                parts=tuple((float(count), shade) for shade, count in counts.items()),
                number=", ".join(f"{count} {_SHEET.key[shade]}" for shade, count in counts.items() if count),
            )
        )
    return tuple(rows)


def picture_of_progress(rollout: Rollout, nodes: Sequence[RolloutNode]) -> tuple[str, str]:
    """Return the picture of one rollout as Markdown: small enough to be shown in place, and large."""
    rows = progress_rows(rollout, nodes)
    words = escape_markdown(f"{rollout.rollout} {rollout.release}: {rollout.state.value.replace('_', ' ')}")
    small = tuple(_small(wave.number, row) for wave, row in zip(rollout.waves, rows, strict=True))
    return small_rows(small, sheet=_SHEET, words=words), large_rows(rows, sheet=_SHEET, words=words)


def _small(wave: int, row: BarRow) -> BarRow:
    """Return the same row with few enough letters to stand beside a small bar."""
    at_work = sum(count for count, shade in row.parts if shade in _AT_WORK)
    short = f"{at_work:g} of {sum(count for count, _ in row.parts):g}"
    return replace(row, label=f"wave {wave}", number=row.number if len(row.number) <= _SMALL_LETTERS else short)


def _shade_of(node: RolloutNode) -> Shade:
    if node.stage in (NodeStage.PULLED, NodeStage.LOST):
        return Shade.ORANGE
    if node.stage is NodeStage.BACK or (node.stage in IN_HAND and node.direction is Direction.BACK):
        return Shade.YELLOW
    return {
        NodeStage.UPDATED: Shade.GREEN,
        NodeStage.SOAKING: Shade.SKY,
        NodeStage.PENDING: Shade.GREY,
        NodeStage.SKIPPED: Shade.PINK,
    }.get(node.stage, Shade.BLUE)
