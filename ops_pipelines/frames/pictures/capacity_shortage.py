"""How likely each week is short, as columns beside the limit that a site keeps. SVG.

Columns above the limit are filled and dark, the others pale with a rim: colour only repeats what the limit's line
shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from ops_pipelines.frames.pictures.capacity_axes import Frame, legend, line, sheet, text

_WEEK = timedelta(days=7)
_OVER, _UNDER, _RIM = "#b34700", "#dbe8f4", "#6b93b8"
_LIMIT = "#222222"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortColumn:
    """One week."""

    first_day: date
    probability: float
    is_measured: bool = True
    """False: the width that it rests on follows a rule; its column is half as wide."""


def shortage_svg(
    columns: Sequence[ShortColumn], *, limit: float, title: str, said: str, width: int = 720, height: int = 190
) -> str:
    """Return the picture, on one scale from 0 to 100 %. Raises ValueError where there is nothing to draw."""
    if not columns:
        raise ValueError("there are no weeks to draw")
    first, last = min(each.first_day for each in columns), max(each.first_day for each in columns) + _WEEK
    frame = Frame.around(days=(first, last), values=(0.0, 100.0), width=width, height=height, unit="% of a short week")
    body = frame.grid()
    for each in columns:
        left, right = frame.x(each.first_day), frame.x(each.first_day + _WEEK)
        wide = (right - left) * (0.8 if each.is_measured else 0.45)
        left += (right - left - wide) / 2
        top = frame.y(100.0 * each.probability)
        is_over = each.probability > limit
        colour, rim = (_OVER, _OVER) if is_over else (_UNDER, _RIM)
        body.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(wide, 1.0):.1f}" '
            f'height="{max(frame.bottom - top, 0.8):.1f}" fill="{colour}" stroke="{rim}" stroke-width="0.8"/>'
        )
    y = frame.y(100.0 * limit)
    body.append(line([(frame.x(first), y), (frame.x(last), y)], colour=_LIMIT, thick=1.6, dash="6 3"))
    words = f"limit {100 * limit:g} %"
    # On paper of its own: columns stand behind it.
    body.append(
        f'<rect x="{frame.x(first) + 1:.1f}" y="{y - 15:.1f}" width="{6 * len(words) + 5}" height="13" fill="#ffffff"/>'
    )
    body.append(text(frame.x(first) + 3, y - 5, words))
    key, total = legend(_key(columns, limit), width=width, top=height + 4)
    return sheet([*body, *key], title=title, said=said, width=width, height=total)


def _key(columns: Sequence[ShortColumn], limit: float) -> list[tuple[str, str]]:
    found = [
        (f'<rect x="3" width="12" height="10" fill="{_UNDER}" stroke="{_RIM}"/>', "within the limit"),
        (f'<rect x="3" width="12" height="10" fill="{_OVER}"/>', "above the limit"),
    ]
    found = [found[is_over] for is_over in (False, True) if any((c.probability > limit) is is_over for c in columns)]
    if any(not each.is_measured for each in columns):
        found.append((f'<rect x="6" width="5" height="10" fill="{_UNDER}" stroke="{_RIM}"/>', "narrow: width by rule"))
    return found
