"""A fan: what was, week by week, what is expected after it and how sure that is, beside what there will be. SVG.

Knows lines, bands and words, not what they mean. Each thing has its own form as well as its colour: bands grow paler
outwards, what there is has a dashed line, weeks whose width is not measured are striped, a value that fell outside is a
cross and not a dot. Words are untrusted: they are escaped, and cut to one line.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from html import escape

from ops_pipelines.frames.pictures.capacity_axes import SOFT, Frame, cut, legend, line, sheet, text

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
    """The same in words and numbers, for whoever does not see it."""
    unit: str
    past: Sequence[tuple[date, float]] = ()
    weeks: Sequence[FanWeek] = ()
    band_words: Sequence[str] = ()
    """What each band is called, the outermost first."""
    there: Sequence[ThereWeek] = ()
    levels: Sequence[tuple[float, str]] = ()
    """Lines across the expected weeks, the strictest first, and what each is called; at most two are told apart."""
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
        # Nothing stands before the first day: there a line would only say where the picture begins.
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
    """Return stretches of weeks without a gap."""
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
