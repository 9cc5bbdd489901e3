"""A sheet of pixels to draw boxes, lines and small letters on, for pictures that need no browser. Knows no meaning.

Letters are drawn here because a PNG has none: five by seven dots, made for names, numbers and times. What a letter is
not drawn for becomes `?`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.frames.pictures.png import Colour, encode_png

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
