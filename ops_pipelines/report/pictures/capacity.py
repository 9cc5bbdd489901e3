"""Pictures of capacity: a fan of what is expected beside what is usable, and how likely each week is short.

Drawn as wide as it is shown, for a desk and for a phone each on its own: letters keep their size.

Knows lines, bands and words, not what they mean. Each thing has its own form as well as its colour: bands grow paler
outwards, what there is has a dashed line, weeks whose width is not measured are striped, a value that fell outside is a
cross and not a dot. Words are untrusted: they are escaped, and cut to one line.

Columns above the limit are filled and dark, the others pale with a rim: colour only repeats what the limit's line
shows.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from html import escape

# -- what the pictures of capacity share --


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
    """Return the whole picture; what it shows is notified in words with it."""
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


# -- a fan --


_BANDS = ("#e3eef9", "#c2dbf0", "#94c1e3", "#5b9fd3")
"""From the outermost inwards."""
_MEDIAN, _PAST, _THERE, _ALL = "#08306b", "#222222", "#b34700", "#777777"
_LEVELS = ((_THERE, "8 3"), (_ALL, "1.5 3.5"))
"""Colours and dashes of levels, as those of what there is."""
_STRIPE_EVERY = 5.0
_WEEK = timedelta(days=7)
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FanWeek:
    """What is expected of one week."""

    first_day: date
    median: float
    bands: tuple[tuple[float, float], ...]
    """Lower and upper end of each, the outermost first."""
    is_measured: bool = True
    """False: its width follows a rule, and it is striped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThereWeek:
    """What there will be in one week."""

    first_day: date
    low: float
    middle: float
    high: float
    whole: float | None = None
    """Without what is out of service; None: not drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fan:
    """One picture."""

    title: str
    said: str
    """The same in words and numbers, for anyone who does not see it."""
    unit: str
    past: Sequence[tuple[date, float]] = ()
    weeks: Sequence[FanWeek] = ()
    band_words: Sequence[str] = ()
    """What each band is called, the outermost first."""
    there: Sequence[ThereWeek] = ()
    levels: Sequence[tuple[float, str]] = ()
    """Lines across the expected weeks, the strictest first, and what each is called; at most two are distinguished."""
    marked: date | None = None
    """The first day of a week that is marked, with `marked_words`."""
    marked_words: str = ""
    dots: Sequence[tuple[date, float, bool]] = ()
    """What came, by the first day of the week; with whether it stayed inside."""
    as_of: date | None = None


def fan_svg(fan: Fan, *, width: int = 720, height: int = 300) -> str:
    """Return the picture; 360 wide for phones. Raises ValueError where there is nothing to draw."""
    days = [
        *(day for day, _ in fan.past),
        *(week.first_day for week in fan.weeks),
        *(week.first_day for week in fan.there),
        *(day for day, _, _ in fan.dots),
    ]
    if not days:
        raise ValueError("there is nothing to draw: neither past weeks nor expected ones")
    frame = Frame.around(
        days=(min(days), max(days) + _WEEK), values=_values(fan), width=width, height=height, unit=fan.unit
    )
    body = [
        *frame.grid(),
        *_bands(fan, frame),
        *_stripes(fan, frame),
        *_medians(fan, frame),
        *_there(fan, frame),
        *_levels(fan, frame),
        *_past(fan, frame),
        *_dots(fan, frame),
        *_marks(fan, frame),
    ]
    key, total = legend(_key(fan), width=width, top=height + 4)
    return sheet([*body, *key], title=fan.title, said=fan.said, width=width, height=total)


def _values(fan: Fan) -> list[float]:
    return [
        *(peak for _, peak in fan.past),
        *(end for week in fan.weeks for band in week.bands for end in band),
        *(week.median for week in fan.weeks),
        *(end for week in fan.there for end in (week.low, week.high, week.middle)),
        *(week.whole for week in fan.there if week.whole is not None),
        *(peak for _, peak, _ in fan.dots),
        *(value for value, _ in fan.levels),
    ]


def _bands(fan: Fan, frame: Frame) -> Iterable[str]:
    for number in range(max((len(each.bands) for each in fan.weeks), default=0)):
        for run in _runs(fan.weeks):
            lower = _through(frame, [(each.first_day, each.bands[number][0]) for each in run])
            upper = _through(frame, [(each.first_day, each.bands[number][1]) for each in run])
            yield _area(lower, upper, colour=_BANDS[min(number, len(_BANDS) - 1)])


def _medians(fan: Fan, frame: Frame) -> Iterable[str]:
    for run in _runs(fan.weeks):
        yield line(_through(frame, [(each.first_day, each.median) for each in run]), colour=_MEDIAN, thick=2.0)


def _stripes(fan: Fan, frame: Frame) -> Iterable[str]:
    """Yield thin white lines over the bands of weeks that are not measured, as far apart as the eye can part them."""
    last = -_STRIPE_EVERY
    for each in fan.weeks:
        if each.is_measured or not each.bands:
            continue
        left, right = frame.x(each.first_day), frame.x(each.first_day + _WEEK)
        low, high = each.bands[0]
        x = max(left, last + _STRIPE_EVERY)
        while x < right:
            yield line([(x, frame.y(low)), (x, frame.y(high))], colour="#ffffff", thick=1.6)
            last = x
            x += _STRIPE_EVERY


def _there(fan: Fan, frame: Frame) -> Iterable[str]:
    if not fan.there:
        return
    lower = _steps(frame, [(each.first_day, each.low) for each in fan.there])
    upper = _steps(frame, [(each.first_day, each.high) for each in fan.there])
    yield _area(lower, upper, colour="#f0a060", opacity=0.35)
    whole = [(each.first_day, each.whole) for each in fan.there if each.whole is not None]
    if whole:
        yield line(_steps(frame, whole), colour=_ALL, thick=1.2, dash="1.5 3.5")
    middle = [(each.first_day, each.middle) for each in fan.there]
    yield line(_steps(frame, middle), colour=_THERE, thick=2.2, dash="8 3")


def _levels(fan: Fan, frame: Frame) -> Iterable[str]:
    if not fan.weeks:
        return
    left, right = frame.x(fan.weeks[0].first_day), frame.x(fan.weeks[-1].first_day + _WEEK)
    for (value, _), (colour, dash) in zip(fan.levels, _LEVELS, strict=False):
        yield line([(left, frame.y(value)), (right, frame.y(value))], colour=colour, thick=1.8, dash=dash)


def _past(fan: Fan, frame: Frame) -> Iterable[str]:
    run: list[tuple[date, float]] = []
    for day, peak in fan.past:
        if run and day - run[-1][0] != _WEEK:  # A week that nobody counted is a gap, not a line.
            yield line(_through(frame, run), colour=_PAST, thick=1.5)
            run = []
        run.append((day, peak))
    if run:
        yield line(_through(frame, run), colour=_PAST, thick=1.5)


def _dots(fan: Fan, frame: Frame) -> Iterable[str]:
    for day, peak, is_inside in fan.dots:
        x, y = frame.x(day + _WEEK / 2), frame.y(peak)
        if is_inside:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#222222"/>'
        else:
            yield line([(x - 4, y - 4), (x + 4, y + 4)], colour="#b3261e", thick=2.2)
            yield line([(x - 4, y + 4), (x + 4, y - 4)], colour="#b3261e", thick=2.2)


def _marks(fan: Fan, frame: Frame) -> Iterable[str]:
    for day, words, lane, colour in (
        (fan.as_of, f"as of {fan.as_of}", 0, SOFT),
        (fan.marked, fan.marked_words, 1, "#b3261e"),
    ):
        # Nothing is before the first day: there a line would only say where the picture begins.
        if day is None or not (frame.first <= day if lane else frame.first < day) or day > frame.last:
            continue
        x, top = frame.x(day), 12 + 14 * lane
        yield line([(x, frame.top), (x, frame.bottom)], colour=colour, thick=1.3, dash="3 2" if lane else "")
        fits_beside = x + 6 * len(words) + 8 < frame.width
        room = int((frame.width - x if fits_beside else x) / 6)
        anchor, beside = ("start", 4) if fits_beside else ("end", -4)
        yield text(x + beside, top + 2, cut(words, room), anchor=anchor, colour=colour)
        if lane:
            yield f'<path d="M{x - 4:.1f} {frame.top - 4:.1f}h8l-4 6z" fill="{colour}"/>'


def _key(fan: Fan) -> list[tuple[str, str]]:
    """Return drawings of 18 by 10 with their words."""
    found: list[tuple[str, str]] = []
    if fan.past:
        found.append((line([(0, 5), (18, 5)], colour=_PAST, thick=1.5), "past peak"))
    if fan.weeks:
        found.append((line([(0, 5), (18, 5)], colour=_MEDIAN, thick=2.0), "median"))
    for number, words in enumerate(fan.band_words):
        found.append((f'<rect width="18" height="10" fill="{_BANDS[min(number, len(_BANDS) - 1)]}"/>', words))
    if any(not each.is_measured for each in fan.weeks):
        stripes = "".join(line([(x, 0), (x, 10)], colour="#ffffff", thick=1.6) for x in (3, 8, 13))
        found.append((f'<rect width="18" height="10" fill="{_BANDS[1]}"/>{stripes}', "striped: width by rule"))
    if fan.there:
        box = '<rect width="18" height="10" fill="#f0a060" fill-opacity="0.35"/>'
        found.append((box + line([(0, 5), (18, 5)], colour=_THERE, thick=2.2, dash="8 3"), "usable, 5 to 95 %"))
        if any(each.whole is not None for each in fan.there):
            found.append((line([(0, 5), (18, 5)], colour=_ALL, thick=1.2, dash="1.5 3.5"), "installed"))
    for (_, words), (colour, dash) in zip(fan.levels, _LEVELS, strict=False):
        found.append((line([(0, 5), (18, 5)], colour=colour, thick=1.8, dash=dash), words))
    if any(is_inside for _, _, is_inside in fan.dots):
        found.append(('<circle cx="9" cy="5" r="3" fill="#222222"/>', "came, within the bound"))
    if any(not is_inside for _, _, is_inside in fan.dots):
        cross = line([(5, 1), (13, 9)], colour="#b3261e", thick=2.2) + line(
            [(5, 9), (13, 1)], colour="#b3261e", thick=2.2
        )
        found.append((cross, "came, above the bound"))
    return found


def _runs(weeks: Sequence[FanWeek]) -> list[list[FanWeek]]:
    """Return intervals of weeks without a gap."""
    runs: list[list[FanWeek]] = []
    for each in weeks:
        if not runs or each.first_day - runs[-1][-1].first_day != _WEEK:
            runs.append([])
        runs[-1].append(each)
    return runs


def _through(frame: Frame, points: Sequence[tuple[date, float]]) -> list[Point]:
    """Return a line through the middles of weeks, from the begin of the first to the end of the last."""
    inner = [(frame.x(day + _WEEK / 2), frame.y(value)) for day, value in points]
    return [(frame.x(points[0][0]), inner[0][1]), *inner, (frame.x(points[-1][0] + _WEEK), inner[-1][1])]


def _steps(frame: Frame, points: Sequence[tuple[date, float]]) -> list[Point]:
    return [(frame.x(day + shift), frame.y(value)) for day, value in points for shift in (timedelta(0), _WEEK)]


def _area(lower: Sequence[Point], upper: Sequence[Point], *, colour: str, opacity: float = 1.0) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*upper, *reversed(lower)))
    faint = "" if opacity == 1.0 else f' fill-opacity="{opacity:g}"'
    return f'<polygon points="{escape(points)}" fill="{colour}"{faint}/>'


# -- how likely each week is short --


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
    key, total = legend(_shortage_key(columns, limit), width=width, top=height + 4)
    return sheet([*body, *key], title=title, said=said, width=width, height=total)


def _shortage_key(columns: Sequence[ShortColumn], limit: float) -> list[tuple[str, str]]:
    found = [
        (f'<rect x="3" width="12" height="10" fill="{_UNDER}" stroke="{_RIM}"/>', "within the limit"),
        (f'<rect x="3" width="12" height="10" fill="{_OVER}"/>', "above the limit"),
    ]
    found = [found[is_over] for is_over in (False, True) if any((c.probability > limit) is is_over for c in columns)]
    if any(not each.is_measured for each in columns):
        found.append((f'<rect x="6" width="5" height="10" fill="{_UNDER}" stroke="{_RIM}"/>', "narrow: width by rule"))
    return found
