"""Drawings as SVG for pages: marks, curves and strips within a document, bars and columns of a review or a comparison.

Knows lengths, colours and words, not what they mean. Lines and marks of a document take the page's own colours by
class, so that they can be read on dark paper too; columns are drawn 360 units wide, with the words of a row above its
bar, so that nothing shrinks below reading size. Words are untrusted: they are escaped, and cut to one line.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape

from ops_pipelines.report.document import Bar, Shade, Shares, Spark
from ops_pipelines.report.numbers import seen, share_of
from ops_pipelines.report.pictures.bars import BarRow

COLOURS: Mapping[Shade, str] = {
    Shade.NONE: "none", Shade.GREY: "#b3b9c2", Shade.PALE: "#a6cee3", Shade.BLUE: "#0072b2", Shade.ORANGE: "#d55e00",
    Shade.GREEN: "#35a57f", Shade.YELLOW: "#e69f00", Shade.PINK: "#cc79a7", Shade.SKY: "#56b4e9",
}  # fmt: skip
STEPS = ("#e3edf7", "#a6cee3", "#5fa8d3", "#2171b5", "#08306b")
"""From least to most."""
_SPARK_WIDE, _SPARK_TALL = 84.0, 20.0


def bar_svg(bar: Bar) -> str:
    """Return a bar as wide as its cell."""
    drawn = '<rect class="track" y="5" width="100%" height="16"/>'
    at = 0.0
    for length, shade in bar.parts:
        wide = min(length, 1.0 - at)
        if wide > 0 and shade is not Shade.NONE:
            drawn += f'<rect x="{_percent(at)}" y="7" width="{_percent(wide)}" height="12" fill="{COLOURS[shade]}"/>'
        at = min(1.0, at + wide)
    if bar.outline is not None:
        drawn += f'<rect class="outline" y="5" width="{_percent(bar.outline)}" height="16"/>'
    for each in bar.ticks:
        drawn += f'<line class="tick" x1="{_percent(each)}" x2="{_percent(each)}" y1="1" y2="25"/>'
    for each in bar.rings:
        if each > 1:
            drawn += '<text x="100%" y="17" text-anchor="end" fill="currentColor" font-size="13">&#8250;</text>'
        else:
            drawn += f'<circle class="ring" cx="{_percent(min(each, 0.995))}" cy="13" r="4.5"/>'
    for each in bar.dots:
        drawn += f'<circle class="dot" cx="{_percent(min(each, 0.995))}" cy="13" r="3"/>'
    return f'<svg class="bar" height="26" {_label(bar.said)}>{drawn}</svg>'


def spark_svg(spark: Spark) -> str:
    """Return a stepped curve from 0 to its largest value; nothing of fewer than two values."""
    values = spark.values
    if len(values) < 2:
        return ""
    top, wide = max(1.0, *values), _SPARK_WIDE / len(values)
    heights = [1 + (_SPARK_TALL - 2) * (1 - each / top) for each in values]
    points = [(x, y) for number, y in enumerate(heights) for x in (number * wide, (number + 1) * wide)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    size = f'width="{_SPARK_WIDE:g}" height="{_SPARK_TALL:g}" viewBox="0 0 {_SPARK_WIDE:g} {_SPARK_TALL:g}"'
    return f'<svg class="spark" {size} {_label(spark.said)}><polyline points="{path}"/></svg>'


def shares_svg(shares: Shares) -> str:
    """Return one bar over the whole width."""
    drawn, at = "", 0.0
    for each in shares.parts:
        wide = min(share_of(each.size, shares.whole), 1.0 - at)
        if wide > 0:
            drawn += f'<rect x="{_percent(at)}" width="{_percent(wide)}" height="22" fill="{COLOURS[each.shade]}"/>'
        at += wide
    return f'<svg class="strip" height="22" {_label(shares.title)}>{drawn}</svg>'


def steps_svg(cells: Sequence[tuple[int, str]], *, title: str) -> str:
    """Return cells beside each other, darker the higher their step 0 to 4; each says its words."""
    wide = 1 / max(1, len(cells))
    drawn = "".join(
        f'<rect class="s{step}" x="{_percent(number * wide)}" width="{_percent(wide)}" height="34" '
        f'fill="{STEPS[step]}"><title>{_words(said)}</title></rect>'
        for number, (step, said) in enumerate(cells)
    )
    return f'<svg class="strip" height="34" role="img" aria-label="{_words(title)}">{drawn}</svg>'


def swatch_svg(colour: Shade | int) -> str:
    """Return a patch of a colour, or of a step."""
    fill = COLOURS[colour] if isinstance(colour, Shade) else STEPS[colour]
    return f'<svg class="swatch" width="12" height="12"><rect width="12" height="12" fill="{fill}"/></svg>'


def _label(said: str) -> str:
    return f'role="img" aria-label="{_words(said)}"'


def _words(text: str) -> str:
    return escape(seen(text)[:300], quote=True)


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2f}".rstrip("0").rstrip(".") + "%"


# -- drawings of a weekly review --


_WIDE = 360
_SHOWN = 540
"""Pixels on a wide screen; a phone shrinks it to its own width."""
_ROW = 34
_BAR = 12
_LETTER = 5.9
"""Units that a letter of 11 units takes on average."""
_ROWS_AT_MOST = 24
_INK, _SOFT, _GRID = "#222", "#555", "#d9dee6"


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
                body.append(_box(x, top + 17, max(wide, 1.0), _BAR, COLOURS[shade]))
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
                body.append(_box(left, y, wide, high, COLOURS[shade]))
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
        body.append(_box(x, y + 2, 10, 10, COLOURS[shade]))
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


# -- acts over time under two policies, mirrored --


_WIDE_COLUMNS, _HALF, _LEFT, _BOTTOM = 480, 78, 34, 20
_STEPS = tuple(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440, 10080))
_COLUMNS_AT_MOST = 48
_LABELS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One act at one time on one or both sides."""

    at: datetime
    what: str
    shade: Shade
    is_above: bool
    """Whether the proposed policy does it."""
    is_below: bool
    """Whether the policy of then did."""


def policy_columns(marks: Sequence[Mark], *, since: datetime, until: datetime) -> str:
    """Return the picture as SVG; empty without marks. Raises ValueError for an interval that is empty."""
    if until <= since:
        raise ValueError("the interval to draw is empty")
    if not marks:
        return ""
    step = next((each for each in _STEPS if (until - since) / each <= _COLUMNS_AT_MOST), _STEPS[-1])
    count = max(1, -(-(until - since) // step))
    columns: list[Counter[tuple[bool, Shade, str]]] = [Counter() for _ in range(count)]
    for mark in marks:
        place = min(count - 1, max(0, int((mark.at - since) / step)))
        sides = ((True, mark.is_above), (False, mark.is_below))
        columns[place].update((side, mark.shade, mark.what) for side, is_there in sides if is_there)
    highest = max(_height(column, is_above=side) for column in columns for side in (True, False)) or 1
    wide = (_WIDE_COLUMNS - _LEFT) / count
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
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE_COLUMNS} {height}" role="img" width="720" '
        f'height="{height * 1.5:.0f}" font-family="Arial, sans-serif" font-size="11"><title>Acts over time: the '
        "proposed policy above the line, the policy of then below it</title>"
        f'<text x="0" y="12">new</text><text x="0" y="{2 * middle - 2}">then</text>'
        f'<text x="{_LEFT - 6}" y="{middle - _HALF + 26}" text-anchor="end" fill="#666">{highest}</text>'
        f'<path d="M{_LEFT} {middle}H{_WIDE_COLUMNS}" stroke="#222"/>{body}'
        f"{_labels(since, until, y=height - 5)}</svg>"
    )


def _height(column: Counter[tuple[bool, Shade, str]], *, is_above: bool) -> int:
    return sum(count for (side, *_), count in column.items() if side is is_above)


def _column(
    column: Counter[tuple[bool, Shade, str]], *, x: float, wide: float, middle: int, scale: float, at: datetime
) -> str:
    drawn = ""
    base = {True: 0.0, False: 0.0}
    for (is_above, shade, what), count in sorted(column.items()):
        tall = count * scale
        y = middle - 1 - base[is_above] - tall if is_above else middle + 1 + base[is_above]
        words = escape(f"{at:%Y-%m-%d %H:%M} {'new' if is_above else 'then'}: {count} {_flat(what)}")
        drawn += (
            f'<rect x="{x + 0.5:.1f}" y="{y:.1f}" width="{max(1.5, wide - 1):.1f}" height="{tall:.1f}" '
            f'fill="{COLOURS[shade]}"><title>{words}</title></rect>'
        )
        base[is_above] += tall
    return drawn


def _labels(since: datetime, until: datetime, *, y: int) -> str:
    span = until - since
    shape = "%H:%M:%S" if span < timedelta(minutes=10) else "%H:%M" if span < timedelta(hours=36) else "%d %b"
    places = [(since + span * number / (_LABELS - 1), number) for number in range(_LABELS)]
    anchors = {0: "start", _LABELS - 1: "end"}
    return "".join(
        f'<text x="{_LEFT + (_WIDE_COLUMNS - _LEFT) * number / (_LABELS - 1):.0f}" y="{y}" '
        f'text-anchor="{anchors.get(number, "middle")}">{at.strftime(shape)}</text>'
        for at, number in places
    )
