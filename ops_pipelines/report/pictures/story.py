"""The picture of one incident: lanes of bars and marks over one time axis in which quiet days are short.

Between two cuts the axis is even, so that lengths that stand together may be compared. Knows times and pixels only.

Drawn twice, wide and narrow, so that its letters stay readable on a phone. Every bar that has room carries its word,
and colour only repeats it. Words are untrusted: whatever they hold stays text. Knows no incident.
"""

from base64 import b64encode
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from html import escape
from itertools import pairwise

# -- a time axis on which a quiet day takes no more room than the busy minute before it --


_LARGEST_SHARE = 0.22
"""No quiet interval takes more of the width than this; of so few that one must, no more than a fifth above its part."""
_ROUNDS = 80
_SHRINK = 0.85
_SHORTEST_SECONDS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A quiet interval that is drawn shorter than it was."""

    x: float
    """Its middle."""
    lasted: timedelta


class StoryAxis:
    """Places moments between `left` and `left + width`, in their order."""

    def __init__(self, times: Collection[datetime], *, left: float, width: float) -> None:
        """Raises ValueError without a time."""
        self._times = sorted(set(times))
        if not self._times:
            raise ValueError("an axis needs a time; empty never means all")
        self._left, self._width = left, width
        gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(self._times)]
        longest = _longest_drawn(gaps)
        drawn = [min(gap, longest) for gap in gaps]
        whole = sum(drawn) or 1.0
        self._places = [left]
        for gap in drawn:
            self._places.append(self._places[-1] + gap / whole * width)
        self.cuts = tuple(
            Cut(x=(before + after) / 2, lasted=timedelta(seconds=gap))
            for gap, short, (before, after) in zip(gaps, drawn, pairwise(self._places), strict=True)
            if short < gap
        )

    def across(self, at: datetime) -> float:
        """Return where a moment is; one before the first or after the last time is at the edge."""
        if at <= self._times[0]:
            return self._left
        if at >= self._times[-1]:
            return self._places[-1]
        place = bisect_right(self._times, at) - 1
        earlier, later = self._times[place], self._times[place + 1]
        share = (at - earlier) / (later - earlier)
        return self._places[place] + share * (self._places[place + 1] - self._places[place])


def _longest_drawn(gaps: Collection[float]) -> float:
    """Return the longest gap that is drawn whole, in seconds."""
    longest = max(gaps, default=0.0)
    busy = sum(gap > _SHORTEST_SECONDS for gap in gaps)
    share = max(_LARGEST_SHARE, 1.2 / busy if busy else 1.0)
    for _ in range(_ROUNDS):
        whole = sum(min(gap, longest) for gap in gaps)
        if longest <= share * whole or longest <= _SHORTEST_SECONDS:
            break
        longest *= _SHRINK
    return longest


# -- the picture of one incident --


_LETTER = 6.6
"""Pixels of a letter at 12 px, sans-serif; a little more than most are."""
_ROW, _BAR = 22, 14
_ROWS_OF_A_LANE = 5
_MARKS_OF_A_ROW = 60


class Tint(Enum):
    """What a bar or mark is drawn in: Okabe and Ito's colours, which colour-blind eyes tell apart."""

    GREY = "#9aa3ad"
    BLUE = "#0072b2"
    SKY = "#56b4e9"
    ORANGE = "#d55e00"
    YELLOW = "#e69f00"
    GREEN = "#009e73"
    PINK = "#cc79a7"
    INK = "#222222"


_DARK = frozenset({Tint.BLUE, Tint.ORANGE, Tint.GREEN, Tint.INK})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryBar:
    """Something that lasted."""

    begins_at: datetime
    ends_at: datetime
    tint: Tint
    word: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at a moment."""

    at: datetime
    tint: Tint


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryRow:
    """One line of a lane."""

    name: str
    """Empty where the lane has one row only."""
    bars: tuple[StoryBar, ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryLane:
    """Rows of one kind under one title."""

    title: str
    rows: tuple[StoryRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryPicture:
    """The same picture for a desk and for a phone, each a data URI of an SVG."""

    wide: str
    narrow: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sheet:
    width: int
    left: int
    """Where the axis begins; titles stand left of it, or above their lane where there is no room."""
    letters_of_titles: int


_WIDE = _Sheet(width=1040, left=150, letters_of_titles=21)
_NARROW = _Sheet(width=360, left=6, letters_of_titles=50)


def story_picture(
    lanes: Sequence[StoryLane],
    *,
    milestones: Mapping[int, datetime],
    key: Mapping[Tint, str],
    begins_at: datetime,
    ends_at: datetime,
) -> StoryPicture:
    """Return the picture of the lanes that have anything to show; `key` explains the colours, in its order."""
    shown = [lane for lane in lanes if any(row.bars or row.marks for row in lane.rows)]
    rows = [row for lane in shown for row in lane.rows]
    used = {each.tint for row in rows for each in row.bars} | {each.tint for row in rows for each in row.marks}
    key = {tint: words for tint, words in key.items() if tint in used}
    return StoryPicture(
        wide=_uri(_draw(shown, milestones, key, begins_at, max(begins_at, ends_at), _WIDE)),
        narrow=_uri(_draw(shown, milestones, key, begins_at, max(begins_at, ends_at), _NARROW)),
    )


def _draw(
    lanes: Sequence[StoryLane],
    milestones: Mapping[int, datetime],
    key: Mapping[Tint, str],
    begins_at: datetime,
    ends_at: datetime,
    sheet: _Sheet,
) -> str:
    times = [begins_at, ends_at, *milestones.values()]
    for row in (row for lane in lanes for row in lane.rows):
        times += [at for each in row.bars for at in (each.begins_at, each.ends_at)]
        times += [each.at for each in row.marks]
    inside = [min(max(at, begins_at), ends_at) for at in times]
    axis = StoryAxis(inside, left=sheet.left, width=sheet.width - sheet.left - 12)
    parts: list[str] = []
    y = 24.0
    for lane in lanes:
        y, drawn = _draw_lane(lane, axis, y, sheet)
        parts += drawn
    bottom = y
    under = [*_draw_milestones(milestones, axis, bottom, sheet), *_draw_cuts(axis, bottom)]
    labels, y = _draw_times(axis, [begins_at, *milestones.values(), ends_at], bottom + 14, sheet)
    legend, y = _draw_key(key, y + 14, sheet)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{sheet.width}" height="{y + 4:.0f}" '
        f'viewBox="0 0 {sheet.width} {y + 4:.0f}" font-family="Helvetica,Arial,sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(under)}{"".join(parts)}{"".join(labels)}'
        f"{''.join(legend)}</svg>"
    )


def _draw_lane(lane: StoryLane, axis: StoryAxis, y: float, sheet: _Sheet) -> tuple[float, list[str]]:
    parts: list[str] = []
    is_above = sheet.left < 60
    rows = lane.rows[:_ROWS_OF_A_LANE]
    rest = f" (and {len(lane.rows) - len(rows)} more)" if len(lane.rows) > len(rows) else ""
    parts.append(f'<path d="M0 {y:.0f}H{sheet.width}" stroke="#e3e7ec"/>')
    for place, row in enumerate(rows):
        title = (row.name or lane.title) + (rest if place == len(rows) - 1 else "")
        if is_above:
            parts.append(_text(2, y + 13, _clipped(title, sheet.letters_of_titles), fill="#5b6575"))
            y += 15
        else:
            parts.append(_text(2, y + 15, _clipped(title, sheet.letters_of_titles), fill="#1d2430"))
        parts += _draw_row(row, axis, y + (_ROW - _BAR) / 2)
        y += _ROW
    return y + 3, parts


def _draw_row(row: StoryRow, axis: StoryAxis, y: float) -> list[str]:
    parts = []
    for each in row.bars:
        first, last = axis.across(each.begins_at), axis.across(each.ends_at)
        wide = max(2.5, last - first)
        parts.append(
            f'<rect x="{first:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{_BAR}" rx="1.5" fill="{each.tint.value}"/>'
        )
        if each.word and len(each.word) * _LETTER + 6 <= wide:
            ink = "#fff" if each.tint in _DARK else "#111"
            parts.append(_text(first + 4, y + 11, each.word, fill=ink, size=11))
    for mark in row.marks[:_MARKS_OF_A_ROW]:
        x = axis.across(mark.at)
        parts.append(
            f'<path d="M{x:.1f} {y - 2:.1f}l5 {_BAR / 2 + 2:.1f}l-5 {_BAR / 2 + 2:.1f}l-5 -{_BAR / 2 + 2:.1f}z" '
            f'fill="{mark.tint.value}" stroke="#fff"/>'
        )
    return parts


def _draw_milestones(milestones: Mapping[int, datetime], axis: StoryAxis, bottom: float, sheet: _Sheet) -> list[str]:
    """Return a dotted line a milestone, and its number above; numbers that would overlap share one label."""
    groups: list[tuple[float, list[int]]] = []
    for number, at in sorted(milestones.items(), key=lambda each: (each[1], each[0])):
        x = axis.across(at)
        if groups and x - groups[-1][0] < 26:
            groups[-1][1].append(number)
        else:
            groups.append((x, [number]))
    parts = [
        f'<path d="M{axis.across(at):.1f} 18V{bottom:.0f}" stroke="#aab2bd" stroke-dasharray="2 3"/>'
        for at in milestones.values()
    ]
    for x, numbers in groups:
        words = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        is_inside = x + len(words) * _LETTER / 2 <= sheet.width
        anchor = "start" if x <= 20 else "middle" if is_inside else "end"
        parts.append(
            _text(x if is_inside else sheet.width - 1, 13, words, fill="#1d2430", anchor=anchor, weight="bold")
        )
    return parts


def _draw_cuts(axis: StoryAxis, bottom: float) -> list[str]:
    """Return a pale band where time is drawn short, with how long it was where there is room."""
    parts, taken = [], -1e9
    for cut in axis.cuts:
        parts.append(f'<rect x="{cut.x - 5:.1f}" y="18" width="10" height="{bottom - 18:.0f}" fill="#f1f3f6"/>')
        words = f"//{_span(cut.lasted.total_seconds())}//"
        half = len(words) * _LETTER / 2
        if cut.x - half > taken + 4:
            parts.append(_text(cut.x, bottom + 11, words, fill="#8a93a0", anchor="middle", size=10))
            taken = cut.x + half
    return parts


def _draw_times(axis: StoryAxis, times: Sequence[datetime], y: float, sheet: _Sheet) -> tuple[list[str], float]:
    """Return the times that have room, from left to right, and the height below them."""
    parts, taken, day = [], -1e9, None
    for at in sorted(at.astimezone(UTC) for at in times):
        words = f"{at:%d %b %H:%M:%S}" if at.date() != day else f"{at:%H:%M:%S}"
        half = len(words) * _LETTER / 2
        x = min(max(axis.across(at), half + 1), sheet.width - half - 1)
        if x - half < taken + 8:
            continue
        parts.append(_text(x, y + 12, words, fill="#5b6575", anchor="middle", size=11))
        taken, day = x + half, at.date()
    return parts, y + 16


def _draw_key(key: Mapping[Tint, str], y: float, sheet: _Sheet) -> tuple[list[str], float]:
    parts, x = [], 4.0
    for tint, words in key.items():
        wide = 18 + len(words) * _LETTER + 12
        if x + wide > sheet.width and x > 4:
            x, y = 4.0, y + 18
        parts.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="12" height="12" rx="1.5" fill="{tint.value}"/>')
        parts.append(_text(x + 17, y + 10.5, words, fill="#1d2430", size=11))
        x += wide
    return parts, y + 16


def _text(
    x: float, y: float, words: str, *, fill: str, anchor: str = "start", size: int = 12, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def _clipped(text: str, length: int) -> str:
    """Return a text on one line, with only what XML may carry, cut where it is too long."""
    flat = "".join(char if char.isprintable() else "?" for char in text)
    return flat if len(flat) <= length else f"{flat[: length - 2]}.."


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s"


def _uri(svg: str) -> str:
    return f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
