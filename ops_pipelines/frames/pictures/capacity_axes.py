"""What the pictures of capacity share: days across, values up, their grid and labels, a legend, and a sheet. SVG.

Drawn as wide as it is shown, for a desk and for a phone each on its own: letters keep their size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from html import escape

INK, SOFT, GRID = "#222222", "#555555", "#d9dee6"
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 34, 22
_LETTER = 5.9
"""Units that a letter of 11 units takes on average."""
_MONTH_STEPS = (1, 2, 3, 6, 12, 24)
_LABEL_WIDE = 54
_TICKS = 5
_LEAST_STEP = 1e-12
"""Whatever is smaller is nothing, here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Where days and values stand on the sheet."""

    first: date
    last: date
    low: float
    high: float
    step: float
    """Between two lines of the grid."""
    width: int
    height: int
    unit: str

    @classmethod
    def around(cls, *, days: tuple[date, date], values: Sequence[float], width: int, height: int, unit: str) -> "Frame":
        """Return a frame in which all values have room; it begins at 0 unless all of them lie far above it."""
        most, least = max((0.0, *values)), min(values, default=0.0)
        # Values that hardly differ would fill the sheet with nothing: a tenth of the largest is always seen.
        spread = max(most - least, most / 10)
        bottom = 0.0 if least < most * 0.6 else least - spread * 0.35
        step = _nice((most - bottom) / _TICKS)
        low = math.floor(bottom / step) * step
        return cls(
            first=days[0],
            last=days[1],
            low=low,
            high=max(math.ceil(most / step) * step, low + step),
            step=step,
            width=width,
            height=height,
            unit=unit,
        )

    @property
    def top(self) -> float:
        return _TOP

    @property
    def bottom(self) -> float:
        return self.height - _BOTTOM

    def x(self, day: date) -> float:
        share = (day - self.first) / (self.last - self.first)
        return _LEFT + share * (self.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.bottom - share * (self.bottom - _TOP)

    def grid(self) -> list[str]:
        """Return lines and labels of both axes."""
        body = [text(0, 12, self.unit, colour=SOFT)]
        for number in range(round((self.high - self.low) / self.step) + 1):
            value = self.low + number * self.step
            y = self.y(value)
            body.append(line([(_LEFT, y), (self.width - _RIGHT, y)], colour=GRID, thick=1.0))
            body.append(text(_LEFT - 5, y + 4, f"{value:,.6g}", anchor="end", colour=SOFT))
        if self.low > 0:
            body.append(text(_LEFT + 4, self.bottom - 4, f"begins at {self.low:,.6g}", colour=SOFT))
        for day in self._months():
            x = self.x(day)
            body.append(line([(x, self.bottom), (x, self.bottom + 4)], colour=SOFT, thick=1.0))
            if x + _LABEL_WIDE / 2 < self.width:
                body.append(text(x, self.bottom + 16, f"{day:%Y-%m}", anchor="middle", colour=SOFT))
        return body

    def _months(self) -> list[date]:
        months = max(1.0, (self.last - self.first).days / 30.44)
        a_month = (self.width - _LEFT - _RIGHT) / months
        step = next((each for each in _MONTH_STEPS if each * a_month >= _LABEL_WIDE), _MONTH_STEPS[-1])
        found = []
        for month in range(12 * self.first.year + self.first.month - 1, 12 * self.last.year + self.last.month):
            day = date(month // 12, month % 12 + 1, 1)
            if month % step == 0 and self.first <= day <= self.last:
                found.append(day)
        return found


def sheet(body: Sequence[str], *, title: str, said: str, width: int, height: float) -> str:
    """Return the whole picture; what it shows is told in words with it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
        f'height="{height:.0f}" role="img" font-size="11" font-family="system-ui, Arial, sans-serif">'
        f"<title>{escape(flat(title))}</title><desc>{escape(flat(said))}</desc>{''.join(body)}</svg>"
    )


def legend(entries: Sequence[tuple[str, str]], *, width: int, top: float) -> tuple[list[str], float]:
    """Return drawings of 18 by 10 with their words, as many in a row as fit, and where they end."""
    body: list[str] = []
    x, y = 0.0, top
    for drawing, words in entries:
        wide = 24 + len(words) * _LETTER + 12
        if x > 0 and x + wide > width:
            x, y = 0.0, y + 17
        body.append(f'<g transform="translate({x:.1f} {y:.1f})">{drawing}</g>')
        body.append(text(x + 23, y + 9, words, colour=SOFT))
        x += wide
    return body, y + 18 if entries else top


def line(points: Sequence[tuple[float, float]], *, colour: str, thick: float, dash: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{thick:g}"{dashes}/>'


def text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(flat(words))}</text>'


def cut(words: str, letters: int) -> str:
    return words if len(words) <= letters else f"{words[: max(1, letters - 1)]}…"


def flat(words: str) -> str:
    """Return a text with only what XML may carry."""
    return "".join(char if char.isprintable() else "?" for char in words)


def _nice(step: float) -> float:
    """Return the smallest of 1, 2, 2.5 and 5 times a power of ten that is no smaller."""
    if step < _LEAST_STEP:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next((each * power for each in (1.0, 2.0, 2.5, 5.0) if each * power >= step * 0.999), 10.0 * power)
