"""A sheet of pixels as a PNG of few colours, and rows of bars with words at both ends: demand of a day, quotas.

Knows lengths, colours and words, not what they mean. Every row carries its number in words, so that colour only repeats
them. Words are untrusted. Letters are drawn here, five by seven dots, because a PNG has none; what a letter is not
drawn for becomes `?`. Why not SVG, as everywhere else: Dagster's UI shows in place what is under 890 characters; a
strip of 16 nodes by 60 minutes is 408 characters as PNG, 13,088 as SVG; an hour of 2,048 nodes 30 kB, 1.8 MB.
"""

import struct
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.core.proposal import GpuType, ProposedQuota, TeamName
from ops_pipelines.report.document import Shade
from ops_pipelines.report.numbers import escape_markdown

INLINE_AT_MOST = 890
"""Characters of Markdown that the Dagster UI shows inline: 892 were, 1,044 were not."""

# -- small PNG files of few colours, by zlib and struct alone --


Colour = tuple[int, int, int]
_LARGE_BYTES = 16_384
"""Of packed pixels: a picture that opens in place is smaller, and each byte of it counts. The hardest squeezing of a
larger one costs six times the CPU for a tenth of its bytes (measured)."""


def encode_png(pixels: NDArray[np.uint8], *, palette: Sequence[Colour]) -> bytes:
    """Return a PNG of `pixels` (rows x columns, numbers of palette colours, at most 16), as small as we can make it.

    Raises ValueError if a pixel has no colour.
    """
    if pixels.size == 0 or not 0 < len(palette) <= 16 or int(pixels.max()) >= len(palette):
        raise ValueError(f"{pixels.shape} pixels up to {pixels.max(initial=0)} do not fit {len(palette)} colours")
    height, width = pixels.shape
    depth = 1 if len(palette) <= 2 else 2 if len(palette) <= 4 else 4
    packed = _pack(pixels, depth)
    header = struct.pack(">IIBBBBB", width, height, depth, 3, 0, 0, 0)
    colours = bytes(part for colour in palette for part in colour)
    body = min((_deflate(raw) for raw in _filtered(packed)), key=len)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(name, content)
        for name, content in ((b"IHDR", header), (b"PLTE", colours), (b"IDAT", body), (b"IEND", b""))
    )


def _pack(pixels: NDArray[np.uint8], depth: int) -> NDArray[np.uint8]:
    each = 8 // depth
    padded = np.pad(pixels, ((0, 0), (0, -pixels.shape[1] % each)))
    packed = np.zeros((padded.shape[0], padded.shape[1] // each), dtype=np.uint8)
    for place in range(each):
        packed |= padded[:, place::each] << np.uint8(8 - depth * (place + 1))
    return packed


def _filtered(packed: NDArray[np.uint8]) -> list[bytes]:
    """Return the rows under filters that suit blocks: none; up for rows that repeat, else none; else left."""
    up = np.vstack([packed[:1], packed[1:] - packed[:-1]])
    left = packed.copy()
    left[:, 1:] -= packed[:, :-1]
    repeats = np.zeros(len(packed), dtype=np.bool_)
    repeats[1:] = (packed[1:] == packed[:-1]).all(axis=1)
    none_rows = np.zeros(len(packed), dtype=np.uint8)
    choices = [
        (none_rows, packed),
        (none_rows + 2, up),
        (np.where(repeats, 2, 0).astype(np.uint8), np.where(repeats[:, None], up, packed)),
        (np.where(repeats, 2, 1).astype(np.uint8), np.where(repeats[:, None], up, left)),
    ]
    return [np.hstack([kind[:, None], rows]).tobytes() for kind, rows in choices]


def _deflate(raw: bytes) -> bytes:
    tried = []
    level = 6 if len(raw) > _LARGE_BYTES else 9
    for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_RLE):
        squeezer = zlib.compressobj(level, zlib.DEFLATED, 15, 9, strategy)
        tried.append(squeezer.compress(raw) + squeezer.flush())
    return min(tried, key=len)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


# -- a sheet of pixels to draw boxes, lines and small letters on --


_DOT = 2
"""Pixels of a dot: letters of five by seven dots are read without leaning forward."""
LETTER_WIDTH, LETTER_HEIGHT = 6 * _DOT, 7 * _DOT
"""Pixels of a letter with the gap to the next one, and its height."""
_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_LETTERS = {
    "A": "ehhvhhh", "B": "uhhuhhu", "C": "ehggghe", "D": "uhhhhhu", "E": "vgguggv", "F": "vgguggg", "G": "ehgnhhf",
    "H": "hhhvhhh", "I": "e44444e", "J": "72222ic", "K": "hikokih", "L": "ggggggv", "M": "hrllhhh", "N": "hhpljhh",
    "O": "ehhhhhe", "P": "uhhuggg", "Q": "ehhhlid", "R": "uhhukih", "S": "fgge11u", "T": "v444444", "U": "hhhhhhe",
    "V": "hhhhha4", "W": "hhhllla", "X": "hha4ahh", "Y": "hhha444", "Z": "v1248gv",
    "a": "00e1fhf", "b": "ggmphhu", "c": "00egghe", "d": "11djhhf", "e": "00ehvge", "f": "698s888", "g": "0fhhf1e",
    "h": "ggmphhh", "i": "40c444e", "j": "20622ic", "k": "ggikoki", "l": "c44444e", "m": "00qllhh", "n": "00mphhh",
    "o": "00ehhhe", "p": "00uhugg", "q": "00djf11", "r": "00mpggg", "s": "00ege1u", "t": "88s8896", "u": "00hhhjd",
    "v": "00hhha4", "w": "00hhlla", "x": "00ha4ah", "y": "00hhf1e", "z": "00v248v",
    "0": "ehjlphe", "1": "4c4444e", "2": "eh1248v", "3": "v2421he", "4": "26aiv22", "5": "vgu11he", "6": "68guhhe",
    "7": "v124888", "8": "ehhehhe", "9": "ehhf12c",
    " ": "0000000", "-": "000e000", ".": "00000cc", ":": "0cc0cc0", ",": "0000c48", "/": "01248g0", "_": "000000v",
    "(": "2488842", ")": "8422248", "%": "op248j3", "+": "044v440", "=": "00v0v00", "#": "aavavaa", "?": "eh12404",
    "!": "4444004", "<": "248g842", ">": "8421248", "*": "04lel40", "[": "e88888e", "]": "e22222e", "°": "ciic000",
}  # fmt: skip
"""Seven rows from the top, each a number of base 32 whose bits are the dots from the left."""


class Canvas:
    """Pixels that hold numbers of palette colours; 0 is the paper. What falls beyond the edge is cut off."""

    def __init__(self, *, width: int, height: int, palette: Sequence[Colour]) -> None:
        self._palette = tuple(palette)
        self._pixels = np.zeros((height, width), dtype=np.uint8)

    @property
    def pixels(self) -> NDArray[np.uint8]:
        return self._pixels

    def box(self, x: int, y: int, *, width: int, height: int, colour: int) -> None:
        """Fill a box whose upper left corner is (x, y); at least one pixel."""
        left, top = max(0, x), max(0, y)
        self._pixels[top : max(top, y + max(1, height)), left : max(left, x + max(1, width))] = colour

    def dotted_line(self, x: int, y: int, *, height: int, colour: int) -> None:
        """Draw a broken upright line."""
        for place in range(y, y + height):
            if place % 4 < 2:
                self.box(x, place, width=1, height=1, colour=colour)

    def curve(self, xs: NDArray[np.int64], ys: NDArray[np.float64], *, thickness: int, colour: int) -> None:
        """Draw a line through points from left to right; it breaks where a height is NaN."""
        known = np.isfinite(ys)
        heights = np.where(known, ys, 0.0)
        self._dots(xs[known], heights[known], thickness=thickness, colour=colour)
        joined = np.flatnonzero(known[:-1] & known[1:])
        if not len(joined):
            return
        across, down = xs[joined + 1] - xs[joined], heights[joined + 1] - heights[joined]
        counts = np.maximum(np.maximum(np.abs(across), np.abs(down)).astype(np.int64), 1)
        which = np.repeat(np.arange(len(joined)), counts)
        share = (np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)) / counts[which]
        first = joined[which]
        self._dots(
            xs[first] + share * across[which], heights[first] + share * down[which], thickness=thickness, colour=colour
        )

    def _dots(
        self, xs: NDArray[np.int64] | NDArray[np.float64], ys: NDArray[np.float64], *, thickness: int, colour: int
    ) -> None:
        columns, rows = np.rint(xs).astype(np.int64), np.rint(ys).astype(np.int64)
        height, width = self._pixels.shape
        for right in range(thickness):
            for below in range(thickness):
                x, y = columns + right, rows + below
                inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
                self._pixels[y[inside], x[inside]] = colour

    def write(self, x: int, y: int, text: str, *, colour: int) -> None:
        """Write a text whose upper left corner is (x, y)."""
        for place, letter in enumerate(text):
            rows = _LETTERS.get(letter, _LETTERS["?"])
            for row, digit in enumerate(rows):
                bits = _DIGITS.index(digit)
                for column in range(5):
                    if bits >> (4 - column) & 1:
                        left = x + place * LETTER_WIDTH + column * _DOT
                        self.box(left, y + row * _DOT, width=_DOT, height=_DOT, colour=colour)

    def png(self) -> bytes:
        """Return the sheet as a PNG."""
        return encode_png(self._pixels, palette=self._palette)


def text_width(text: str) -> int:
    """Return how many pixels a text is wide."""
    return len(text) * LETTER_WIDTH


# -- rows of bars with words at both ends --


_SMALL_LETTERS = 26
"""At 11 pixels a letter takes about 6: what is beside the bars must not run into them."""
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
    """Also what is in place of the picture where it cannot be seen: no words of others."""
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
    return small_rows(rows, sheet=_SHEET, words=f"{day}: {told}; beside the name: requested")


def _hours(row: Mapping[str, object], name: str) -> float:
    amount = row[f"{name}_gpu_hours"]
    return float(amount) if isinstance(amount, int | float) else 0.0


# -- a bar a team --


_KEY = {
    Shade.BLUE: "used within its guarantee",
    Shade.SKY: "used beyond it",
    Shade.PALE: "free in the new quota",
    Shade.GREY: "use not known",
    Shade.ORANGE: "requested beyond the new quota",
}
_WORDS = "blue: used, guaranteed · sky: used beyond · pale: free · grey: use not known · orange: requested in vain"


def draw_quotas(lines: Sequence[ProposedQuota], *, used: Mapping[tuple[TeamName, GpuType], float]) -> tuple[str, str]:
    """Return the picture as Markdown, small and large: by type, the largest quotas first.

    Who is not in `used`, of that nobody knows what it used.
    """
    ordered = sorted(lines, key=lambda each: (each.gpu_type, -max(each.after, each.wanted_mean), each.team))
    rows = [_row(each, used=used.get((each.team, each.gpu_type))) for each in ordered]
    sheet = Sheet(title="Quotas proposed, used and requested", key=_KEY)
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
    """Return how long the bar is before what is requested in vain, and its parts."""
    if used is None:
        return line.after, ((float(line.after), Shade.GREY),)
    within = min(used, line.guarantee)
    beyond = max(0.0, min(used, float(max(line.after, line.guarantee))) - within)
    free = max(0.0, line.after - within - beyond)
    return within + beyond, ((within, Shade.BLUE), (beyond, Shade.SKY), (free, Shade.PALE))
