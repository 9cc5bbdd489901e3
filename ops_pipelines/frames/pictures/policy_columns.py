"""Acts over time under two policies, mirrored: the proposed one above the line, the one of then below it. SVG.

Knows columns, colours and words. Each column carries its counts as words, so that colour only repeats them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from html import escape

_WIDE, _HALF, _LEFT, _BOTTOM = 480, 78, 34, 20
_STEPS = tuple(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440, 10080))
_COLUMNS_AT_MOST = 48
_LABELS = 4


class Part(Enum):
    """What a part of a column stands for, with its colour (Okabe and Ito's)."""

    SAME = "#9aa3ad"
    ONLY_THEN = "#d55e00"
    ONLY_NEW = "#0072b2"
    OTHER_MOMENT = "#e69f00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One act at one time on one or both sides."""

    at: datetime
    part: Part
    is_above: bool
    """Whether the proposed policy does it."""
    is_below: bool
    """Whether the policy of then did."""


def policy_columns(marks: Sequence[Mark], *, since: datetime, until: datetime) -> str:
    """Return the picture as SVG; empty without marks. Raises ValueError for a stretch that is empty."""
    if until <= since:
        raise ValueError("the stretch to draw is empty")
    if not marks:
        return ""
    step = next((each for each in _STEPS if (until - since) / each <= _COLUMNS_AT_MOST), _STEPS[-1])
    count = max(1, -(-(until - since) // step))
    columns: list[dict[tuple[bool, Part], int]] = [{} for _ in range(count)]
    for mark in marks:
        place = min(count - 1, max(0, int((mark.at - since) / step)))
        for is_above in [side for side, is_there in ((True, mark.is_above), (False, mark.is_below)) if is_there]:
            columns[place][is_above, mark.part] = columns[place].get((is_above, mark.part), 0) + 1
    highest = max(_height(column, is_above=side) for column in columns for side in (True, False)) or 1
    wide = (_WIDE - _LEFT) / count
    middle = _HALF + 4
    body = "".join(
        _column(
            column, x=_LEFT + number * wide, wide=wide, middle=middle, scale=_HALF / highest, at=since + number * step
        )
        for number, column in enumerate(columns)
        if column
    )
    height = 2 * middle + _BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {height}" role="img" width="100%" '
        f'font-family="Arial, sans-serif" font-size="11"><title>Acts over time: the proposed policy above the '
        "line, the policy of then below it</title>"
        f'<text x="0" y="12">new</text><text x="0" y="{2 * middle - 2}">then</text>'
        f'<text x="{_LEFT - 6}" y="{middle - _HALF + 26}" text-anchor="end" fill="#666">{highest}</text>'
        f'<path d="M{_LEFT} {middle}H{_WIDE}" stroke="#222"/>{body}'
        f"{_labels(since, until, y=height - 5)}</svg>"
    )


def _height(column: Mapping[tuple[bool, Part], int], *, is_above: bool) -> int:
    return sum(count for (side, _), count in column.items() if side is is_above)


def _column(
    column: Mapping[tuple[bool, Part], int], *, x: float, wide: float, middle: int, scale: float, at: datetime
) -> str:
    drawn = ""
    for is_above in (True, False):
        base = 0.0
        for part in Part:
            count = column.get((is_above, part), 0)
            if not count:
                continue
            tall = count * scale
            y = middle - 1 - base - tall if is_above else middle + 1 + base
            side = "new" if is_above else "then"
            words = escape(f"{at:%Y-%m-%d %H:%M} {side}: {count} {part.name.lower().replace('_', ' ')}")
            drawn += (
                f'<rect x="{x + 0.5:.1f}" y="{y:.1f}" width="{max(1.5, wide - 1):.1f}" height="{tall:.1f}" '
                f'fill="{part.value}"><title>{words}</title></rect>'
            )
            base += tall
    return drawn


def _labels(since: datetime, until: datetime, *, y: int) -> str:
    span = until - since
    shape = "%H:%M:%S" if span < timedelta(minutes=10) else "%H:%M" if span < timedelta(hours=36) else "%d %b"
    places = [(since + span * number / (_LABELS - 1), number) for number in range(_LABELS)]
    anchors = {0: "start", _LABELS - 1: "end"}
    return "".join(
        f'<text x="{_LEFT + (_WIDE - _LEFT) * number / (_LABELS - 1):.0f}" y="{y}" '
        f'text-anchor="{anchors.get(number, "middle")}">{at.strftime(shape)}</text>'
        for at, number in places
    )
