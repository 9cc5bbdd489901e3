"""Rows of bars with words at both ends; demand of a day and quotas of teams drawn so.

Knows lengths, colours and words, not what they mean. Every row carries its number in words, so that colour only repeats
them. Words are untrusted: whatever they hold stays text.

Where nobody knows what a team used, its quota is grey: it is not shown as free. Types of GPU stand one after another.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from itertools import pairwise

from ops_pipelines.core.proposal import GpuType, ProposedQuota, TeamName
from ops_pipelines.report.document import Shade
from ops_pipelines.report.markdown import escape_markdown
from ops_pipelines.report.pictures.canvas import LETTER_HEIGHT, Canvas, Colour, text_width
from ops_pipelines.report.pictures.hours import INLINE_AT_MOST

# -- rows of bars with words at both ends --


_SMALL_LETTERS = 26
"""At 11 pixels a letter takes about 6: what stands beside the bars must not run into them."""
_LEFT, _WIDE, _TALL = 160, 231, 15
_WORTH_NAMING = 6
"""So many rows with their names beside them tell more than a strip of all; of fewer, the strip does."""
_FIT_AT_MOST = 16
"""No more rows with names than this fit, however short they are."""
_STRIP_ROWS = 40
_LARGE_WIDE = 792
_LARGE_LABEL, _LARGE_NUMBER = 32, 40
_ROWS_AT_MOST = 60


_INK = 1
_PALETTE: tuple[Colour, ...] = (
    (255, 255, 255), (34, 34, 34), (200, 204, 210), (166, 206, 227), (0, 114, 178),
    (213, 94, 0), (0, 158, 115), (230, 159, 0), (204, 121, 167), (86, 180, 233),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """One row: who, a bar of parts from left to right, and its number in words."""

    label: str
    parts: tuple[tuple[float, Shade], ...]
    """Lengths, none below 0, in any unit that the rows of one picture share."""
    number: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What the rows of one picture share."""

    title: str
    """Also what stands in place of the picture where it cannot be seen: no words of others."""
    key: Mapping[Shade, str]
    """What each colour means, in the order in which it is explained."""
    columns: tuple[str, ...] = ()
    """Names of equal steps of the scale; then a whole step is one unit of length."""


def small_rows(rows: Sequence[BarRow], *, sheet: Sheet, words: str) -> str:
    """Return as many of the first rows as the UI shows inline, with `words` below; `words` alone without rows.

    Where few would fit with their names beside them, up to 40 are drawn, named below if that fits. `words` are
    Markdown, and at most 400 characters of them leave room for a row.
    """
    for count in range(min(len(rows), _FIT_AT_MOST), 0, -1):
        if count < min(_WORTH_NAMING, len(rows)):
            strips = (_strip(rows, sheet, words, names=names) for names in (_every_name(rows), _end_names(rows)))
            return next((strip for strip in strips if len(strip) < INLINE_AT_MOST), words)
        rest = f" · {len(rows) - count} more not drawn" if count < len(rows) else ""
        markdown = f"{_image(_draw_small(rows[:count], sheet).encode(), 'svg+xml', sheet)}\n\n{words}{rest}"
        if len(markdown) < INLINE_AT_MOST:
            return markdown
    return words


def _every_name(rows: Sequence[BarRow]) -> str:
    return "from the top: " + ", ".join(escape_markdown(_clipped(row.label, 20)) for row in rows[:_STRIP_ROWS])


def _end_names(rows: Sequence[BarRow]) -> str:
    first, last = rows[0], rows[:_STRIP_ROWS][-1]
    return f"{escape_markdown(_clipped(first.label, 20))} (top) to {escape_markdown(_clipped(last.label, 20))}"


def _strip(rows: Sequence[BarRow], sheet: Sheet, words: str, *, names: str) -> str:
    """Return the bars alone, with their names in the words below."""
    shown = rows[:_STRIP_ROWS]
    tall = 6 if len(shown) > 16 else 10
    canvas = Canvas(width=_LEFT + _WIDE, height=tall * len(shown), palette=_PALETTE)
    scale = _scale(shown, sheet, _LEFT + _WIDE)
    for place, row in enumerate(shown):
        for first, last, shade in _spans(row, scale):
            canvas.box(first, place * tall, width=last - first, height=tall - 1, colour=shade)
    rest = f" · {len(rows) - len(shown)} more not drawn" if len(rows) > len(shown) else ""
    return f"{_image(canvas.png(), 'png', sheet)}\n\n{names} · {words}{rest}"


def large_rows(rows: Sequence[BarRow], *, sheet: Sheet, words: str) -> str:
    """Return up to 60 rows with their key, for the dialog."""
    if not rows:
        return words
    rest = f" · {len(rows) - _ROWS_AT_MOST} more not drawn" if len(rows) > _ROWS_AT_MOST else ""
    return f"{_image(rows_png(rows, sheet=sheet), 'png', sheet)}\n\n{words}{rest}"


def _scale(rows: Sequence[BarRow], sheet: Sheet, wide: int) -> float:
    longest = max(sum(length for length, _ in row.parts) for row in rows)
    return wide / (len(sheet.columns) or longest or 1.0)


def _spans(row: BarRow, scale: float) -> list[tuple[int, int, Shade]]:
    """Return where each part begins and ends, in whole pixels that leave no gap; what is there is seen."""
    ends, total = [0.0], 0.0
    for length, _ in row.parts:
        total += max(0.0, length)
        ends.append(total)
    places = [round(end * scale) for end in ends]
    return [
        (first, max(last, first + 1), shade)
        for (first, last), (length, shade) in zip(pairwise(places), row.parts, strict=True)
        if length > 0 and shade is not Shade.NONE
    ]


def _draw_small(rows: Sequence[BarRow], sheet: Sheet) -> str:
    scale = _scale(rows, sheet, _WIDE)
    step = round(scale, 2)
    top = _TALL if sheet.columns else 0
    paths: dict[Shade, str] = {}
    texts = ""
    if sheet.columns:
        marks = " ".join(_mark_of(number, count=len(sheet.columns)) for number in range(len(sheet.columns)))
        texts = f'<text x="{_LEFT + scale / 2 - 3:.0f}" y="11" textLength="{_WIDE - scale + 6:.0f}">{marks}</text>'
    for place, row in enumerate(rows):
        y = top + place * _TALL
        number = "" if sheet.columns else f" {row.number}"
        label = _clipped(row.label, _SMALL_LETTERS - len(number)) + number
        texts += f'<text y="{y + 11}">{escape(label, quote=False)}</text>'
        for first, last, shade in _spans(row, scale):
            paths[shade] = paths.get(shade, "") + f"M{_LEFT + first} {y + 7}h{last - first}"
    dashes = f' stroke-dasharray="{step - 1:.0f} 1"' if sheet.columns else ""
    lines = "".join(f'<path d="{path}" stroke="{_hex(shade)}"/>' for shade, path in paths.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDE}" height="{top + len(rows) * _TALL}"'
        f' font-size="11" font-family="Arial" stroke-width="10"{dashes}>{texts}{lines}</svg>'
    )


def rows_png(rows: Sequence[BarRow], *, sheet: Sheet) -> bytes:
    """Return up to 60 rows as a PNG file. Raises ValueError without rows."""
    if not rows:
        raise ValueError("there are no rows to draw")
    shown = [*rows[:_ROWS_AT_MOST]]
    labels = [_clipped(row.label, _LARGE_LABEL) for row in shown]
    numbers = [_clipped(row.number, _LARGE_NUMBER) for row in shown]
    letter = text_width("x")
    tall = LETTER_HEIGHT + 8
    left = 8 + letter * (max(map(len, labels)) + 1)
    right = letter * (max(map(len, numbers)) + 2)
    top = 34 + (tall if sheet.columns else 0)
    key_width = sum(text_width(words) + 46 for words in sheet.key.values())
    width = max(left + _LARGE_WIDE + right, 16 + key_width, 16 + text_width(sheet.title))
    bottom = top + tall * len(shown)
    canvas = Canvas(width=width, height=bottom + 14 + tall, palette=_PALETTE)
    canvas.write(8, 8, sheet.title, colour=_INK)
    scale = _scale(shown, sheet, _LARGE_WIDE)
    for number, name in enumerate(sheet.columns):
        x = left + round(number * scale)
        canvas.box(x, top - 4, width=1, height=bottom - top + 4, colour=Shade.GREY)
        canvas.write(x + max(2, round(scale - text_width(name) + 2) // 2), top - tall, name, colour=_INK)
    for place, row in enumerate(shown):
        y = top + place * tall
        canvas.write(8, y + 2, labels[place], colour=_INK)
        canvas.write(left + _LARGE_WIDE + letter, y + 2, numbers[place], colour=_INK)
        for first, last, shade in _spans(row, scale):
            canvas.box(left + first, y, width=last - first, height=tall - 4, colour=shade)
        for number in range(1, len(sheet.columns)):
            canvas.box(left + round(number * scale), y, width=1, height=tall - 4, colour=0)
    x = 8
    for shade, words in sheet.key.items():
        canvas.box(x, bottom + 12, width=16, height=LETTER_HEIGHT, colour=shade)
        canvas.write(x + 22, bottom + 12, words, colour=_INK)
        x += text_width(words) + 46
    return canvas.png()


def _hex(shade: Shade) -> str:
    return "#" + "".join(f"{round(part / 17):x}" for part in _PALETTE[shade])


def _clipped(text: str, length: int) -> str:
    """Return a text on one line, with only what XML may carry, cut in its middle: names differ at their ends."""
    flat = "".join(char if char.isprintable() else "?" for char in text)
    half = (length - 2) // 2
    return flat if len(flat) <= length else f"{flat[: length - 2 - half]}..{flat[-half:]}"


def _image(body: bytes, kind: str, sheet: Sheet) -> str:
    return f"![{sheet.title}](data:image/{kind};base64,{b64encode(body).decode()})"


def _mark_of(number: int, *, count: int) -> str:
    """Return the letter of a column: its digit, then `a`, `b` and on; beyond the digits the last one is `v`, vendor."""
    if number < 10:
        return str(number)
    return "v" if number == count - 1 else chr(ord("a") + number - 10)


# -- a picture of one day's demand --


_SHEET = Sheet(
    title="GPU-hours of a day by team",
    key={Shade.BLUE: "ran", Shade.GREY: "held, and did nothing", Shade.ORANGE: "waited"},
)


def demand_bars(sums: Sequence[Mapping[str, object]], *, day: date) -> str:
    """Return the bars of a day's sums (`quotas.daily`), the largest demand first, with a sentence below."""
    if not sums:
        return f"{day}: nobody ran or waited for a GPU, as far as the hours are known."
    ordered = sorted(sums, key=lambda each: (-_hours(each, "demand"), str(each["team"]), str(each["gpu_type"])))
    rows = []
    for each in ordered:
        ran, waited = _hours(each, "running"), _hours(each, "pending")
        idle = min(_hours(each, "wasted"), ran)
        kind = f" {each['gpu_type']}" if each["gpu_type"] else ""
        rows.append(
            BarRow(
                label=f"{each['team']}{kind}",
                parts=((ran - idle, Shade.BLUE), (idle, Shade.GREY), (waited, Shade.ORANGE)),
                number=f"{_hours(each, 'demand'):,.0f}",
            )
        )
    ran, waited = (sum(_hours(each, name) for each in sums) for name in ("running", "pending"))
    told = f"{ran:,.0f} GPU-hours ran (blue; grey: did nothing), {waited:,.0f} waited (orange)"
    return small_rows(rows, sheet=_SHEET, words=f"{day}: {told}; beside the name: wanted")


def _hours(row: Mapping[str, object], name: str) -> float:
    amount = row[f"{name}_gpu_hours"]
    return float(amount) if isinstance(amount, int | float) else 0.0


# -- a bar a team --


_KEY = {
    Shade.BLUE: "used within its guarantee",
    Shade.SKY: "used beyond it",
    Shade.PALE: "free in the new quota",
    Shade.GREY: "use not known",
    Shade.ORANGE: "wanted beyond the new quota",
}
_WORDS = "blue: used, guaranteed · sky: used beyond · pale: free · grey: use not known · orange: wanted in vain"


def draw_quotas(lines: Sequence[ProposedQuota], *, used: Mapping[tuple[TeamName, GpuType], float]) -> tuple[str, str]:
    """Return the picture as Markdown, small and large: by type, the largest quotas first.

    Who is not in `used`, of that nobody knows what it used.
    """
    ordered = sorted(lines, key=lambda each: (each.gpu_type, -max(each.after, each.wanted_mean), each.team))
    rows = [_row(each, used=used.get((each.team, each.gpu_type))) for each in ordered]
    sheet = Sheet(title="Quotas proposed, used and wanted", key=_KEY)
    return small_rows(rows, sheet=sheet, words=_WORDS), large_rows(rows, sheet=sheet, words=_WORDS)


def _row(line: ProposedQuota, *, used: float | None) -> BarRow:
    label = f"{line.gpu_type} {line.team}" if line.gpu_type else str(line.team)
    held, parts = _held(line, used)
    return BarRow(
        label=label,
        parts=(*parts, (max(0.0, line.wanted_mean - max(held, float(line.after))), Shade.ORANGE)),
        number=f"{line.before:g} to {line.after}",
    )


def _held(line: ProposedQuota, used: float | None) -> tuple[float, tuple[tuple[float, Shade], ...]]:
    """Return how long the bar is before what is wanted in vain, and its parts."""
    if used is None:
        return line.after, ((float(line.after), Shade.GREY),)
    within = min(used, line.guarantee)
    beyond = max(0.0, min(used, float(max(line.after, line.guarantee))) - within)
    free = max(0.0, line.after - within - beyond)
    return within + beyond, ((within, Shade.BLUE), (beyond, Shade.SKY), (free, Shade.PALE))
