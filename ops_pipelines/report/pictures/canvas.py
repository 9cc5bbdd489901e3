"""A sheet of pixels to draw boxes, lines and small letters on, and PNG files of few colours.

Letters are drawn here because a PNG has none: five by seven dots, made for names, numbers and times. What a letter is
not drawn for becomes `?`.

Why not SVG, as everywhere else: Dagster's UI shows in place what is under 890 characters. Measured, in base64: a strip
of 16 nodes by 60 minutes is 408 characters as PNG, 13,088 as SVG of merged cells; an hour of 2,048 nodes 30 kB, 1.8 MB.
"""

import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
