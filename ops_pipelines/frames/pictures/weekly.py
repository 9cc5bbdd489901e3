"""Drawings of a weekly review: bars of parts, and columns by day, as SVG that a phone shows as readably as a desk.

Drawn 360 units wide, with each row's words above its bar, so that nothing shrinks below reading size. Knows lengths and
colours, not what they mean. Words are untrusted: they are escaped, and cut to one line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ops_pipelines.frames.pictures.bar_rows import BarRow, Shade

_WIDE = 360
_SHOWN = 540
"""Pixels on a wide screen; a phone shrinks it to its own width."""
_ROW = 34
_BAR = 12
_LETTER = 5.9
"""Units that a letter of 11 units takes on average."""
_ROWS_AT_MOST = 24
_INK, _SOFT, _GRID = "#222", "#555", "#d9dee6"
_COLOURS: Mapping[Shade, str] = {
    Shade.NONE: "#ffffff",
    Shade.GREY: "#c8ccd2",
    Shade.PALE: "#a6cee3",
    Shade.BLUE: "#0072b2",
    Shade.ORANGE: "#d55e00",
    Shade.GREEN: "#009e73",
    Shade.YELLOW: "#e69f00",
    Shade.PINK: "#cc79a7",
    Shade.SKY: "#56b4e9",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DayColumn:
    """One column: what it is of, and its parts from the bottom up."""

    label: str
    parts: tuple[tuple[float, Shade], ...]
    is_known: bool
    """False: nobody looked, which is not nothing: it is drawn as a grey band."""


def bars_svg(rows: Sequence[BarRow], *, title: str, key: Mapping[Shade, str]) -> str:
    """Return bars one below the other, each the whole width for its own sum; at most 24. Raises ValueError for none."""
    if not rows:
        raise ValueError("there are no rows to draw")
    shown = rows[:_ROWS_AT_MOST]
    body = []
    for place, row in enumerate(shown):
        top = place * _ROW
        number = _fitted(row.number, 40)
        label = _fitted(row.label, int((_WIDE - len(number) * _LETTER) / _LETTER) - 2)
        body.append(_text(0, top + 12, label))
        body.append(_text(_WIDE, top + 12, number, anchor="end", colour=_SOFT))
        total = sum(max(0.0, length) for length, _ in row.parts)
        x = 0.0
        body.append(_box(0, top + 17, _WIDE, _BAR, "#eef1f5"))
        for length, shade in row.parts:
            wide = max(0.0, length) / total * _WIDE if total > 0 else 0.0
            if wide > 0 and shade is not Shade.NONE:
                body.append(_box(x, top + 17, max(wide, 1.0), _BAR, _COLOURS[shade]))
            x += wide
    bottom = len(shown) * _ROW + 4
    if len(rows) > len(shown):
        body.append(_text(0, bottom + 12, f"{len(rows) - len(shown)} more not drawn", colour=_SOFT))
        bottom += 18
    legend, height = _legend(key, bottom)
    return _svg([*body, *legend], title=title, height=height)


def columns_svg(columns: Sequence[DayColumn], *, title: str, key: Mapping[Shade, str]) -> str:
    """Return columns side by side on one scale that begins at 0, the sum above each. Raises ValueError for none."""
    if not columns:
        raise ValueError("there are no columns to draw")
    tall, top = 110, 18
    step = _WIDE / len(columns)
    highest = max((sum(length for length, _ in each.parts) for each in columns), default=0.0)
    body = [_box(0, top + tall, _WIDE, 1, _GRID)]
    for place, column in enumerate(columns):
        left = place * step + step * 0.15
        wide = step * 0.7
        middle = place * step + step / 2
        body.append(_text(middle, top + tall + 15, _fitted(column.label, 8), anchor="middle", colour=_SOFT))
        if not column.is_known:
            body.append(_box(left, top, wide, tall, "#eef1f5"))
            body.append(_text(middle, top + tall / 2, "no data", anchor="middle", colour=_SOFT))
            continue
        y = float(top + tall)
        for length, shade in column.parts:
            high = length / highest * tall if highest > 0 else 0.0
            if high > 0:
                y -= high
                body.append(_box(left, y, wide, high, _COLOURS[shade]))
        body.append(_text(middle, y - 4, f"{sum(length for length, _ in column.parts):g}", anchor="middle"))
    legend, height = _legend(key, top + tall + 24)
    return _svg([*body, *legend], title=title, height=height)


def _legend(key: Mapping[Shade, str], top: float) -> tuple[list[str], float]:
    body: list[str] = []
    x, y = 0.0, top
    for shade, words in key.items():
        wide = 16 + len(words) * _LETTER + 10
        if x > 0 and x + wide > _WIDE:
            x, y = 0.0, y + 17
        body.append(_box(x, y + 2, 10, 10, _COLOURS[shade]))
        body.append(_text(x + 14, y + 11, words, colour=_SOFT))
        x += wide
    return body, y + 20


def _svg(body: Sequence[str], *, title: str, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {height:.0f}" width="{_SHOWN}" '
        f'height="{height * _SHOWN / _WIDE:.0f}" role="img" font-size="11" font-family="system-ui, Arial, sans-serif">'
        f"<title>{escape(_flat(title))}</title>{''.join(body)}</svg>"
    )


def _box(x: float, y: float, wide: float, high: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{colour}"/>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = _INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def _fitted(text: str, length: int) -> str:
    flat = _flat(text)
    return flat if len(flat) <= length else f"{flat[: max(1, length - 1)]}…"


def _flat(text: str) -> str:
    """Return a text with only what XML may carry."""
    return "".join(char if char.isprintable() else "?" for char in text)
