"""Pictures of incidents: when each lasted and what showed it, and what the GPUs did around one.

Every bar carries its words, so that colour only repeats them. A small timeline (SVG) stays inline in the Dagster UI;
the large one and the plot of a window (PNG) are for a dialog or a file.
"""

from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ops_pipelines.core.fault import Family
from ops_pipelines.core.identity import PciAddress
from ops_pipelines.report.pictures.bars import INLINE_AT_MOST, LETTER_HEIGHT, Canvas, Colour, text_width
from ops_pipelines.report.pictures.hours import readable

_PAPER, _INK, _GRID, _SHADE = 0, 1, 2, 3
_BASE: tuple[Colour, ...] = ((255, 255, 255), (34, 34, 34), (200, 204, 210), (236, 238, 241))
_FAMILY_COLOURS: Mapping[Family, Colour] = {
    Family.GPU: (213, 94, 0), Family.MEMORY: (213, 94, 0),
    Family.NVLINK: (204, 121, 167), Family.PCIE: (204, 121, 167),
    Family.FABRIC: (0, 114, 178),
    Family.SILENCE: (110, 110, 110), Family.UNKNOWN: (110, 110, 110),
    Family.HEAT: (230, 159, 0), Family.POWER: (230, 159, 0),
    Family.STORAGE: (86, 180, 233), Family.DISK: (86, 180, 233),
    Family.HOST: (140, 86, 75), Family.SOFTWARE: (140, 86, 75),
    Family.SLOWNESS: (0, 158, 115), Family.STALL: (0, 158, 115), Family.COLLECTIVE: (0, 158, 115),
    Family.APPLICATION: (148, 103, 189), Family.NORMAL: (148, 103, 189),
}  # fmt: skip
"""Okabe and Ito's colours, which colour-blind eyes tell apart, and two more; kin share one."""
_TICK_BELOW = 6
_SMALL_COUNT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One incident on a timeline."""

    name: str
    what: str
    """What broke, in a few letters: the culprit."""
    family: Family
    began_at: datetime
    ended_at: datetime | None
    """None while it lasts."""
    seen_at: tuple[datetime, ...]
    """When its evidence was seen."""


def timeline(bars: Sequence[Bar], *, now: datetime) -> str:
    """Return a small picture as Markdown that the UI shows inline; a sentence where there is nothing to draw.

    Where not all fit, those that last go before those that ended, and the newest first.
    """
    if not bars:
        return "No incidents."
    by_worth = sorted(bars, key=lambda bar: (bar.ended_at is None, bar.began_at), reverse=True)
    for count in range(min(len(bars), _SMALL_COUNT), 0, -1):
        shown = sorted(by_worth[:count], key=lambda bar: bar.began_at)
        for tick_count in (12, 4, 1):
            picture = _image(_draw_small(shown, now=now, tick_count=tick_count).encode(), kind="svg+xml")
            markdown = f"{picture}\n\n{_words(shown, len(bars), now=now)}"
            if len(markdown) < INLINE_AT_MOST:
                return markdown
    return _words(by_worth[:1], len(bars), now=now)


def _draw_small(bars: Sequence[Bar], *, now: datetime, tick_count: int) -> str:
    """Return the bars as SVG, whose letters cost less than those of a PNG."""
    start, end = _span(bars, now)
    left, wide, tall = 176, 224, 15

    def across(at: datetime) -> int:
        return left + round(min(1.0, max(0.0, (at - start) / (end - start))) * wide)

    lines, ticks = "", ""
    for row, bar in enumerate(bars):
        y = row * tall + 7
        name = escape(f"{_clipped(bar.name, 9)} {_clipped(bar.what, 10)} {bar.family.value}")
        first, last = across(bar.began_at), across(bar.ended_at or end)
        colour = "".join(f"{round(part / 17):x}" for part in _FAMILY_COLOURS[bar.family])
        lines += f'<text y="{y + 4}">{name}</text><path d="M{first} {y}h{max(2, last - first)}" stroke="#{colour}"/>'
        places = list(dict.fromkeys(across(at) for at in sorted(bar.seen_at)))[:tick_count]
        ticks += "".join(f"M{x} {y - 5}v11" for x in places)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide}" height="{tall * len(bars)}">'
        f"<style>text{{font:11px sans-serif}}path{{stroke-width:9}}</style>{lines}"
        f'<path d="{ticks}" stroke="#222" style="stroke-width:1"/></svg>'
    )


def large_timeline(bars: Sequence[Bar], *, now: datetime) -> str:
    """Return a picture of up to 40 bars, for the dialog."""
    if not bars:
        return "No incidents."
    shown = sorted(bars, key=lambda bar: bar.began_at)[-40:]
    return f"{_image(_draw(shown, now=now), kind='png')}\n\n{_words(shown, len(bars), now=now)}"


def _words(shown: Sequence[Bar], count: int, *, now: datetime) -> str:
    start, end = _span(shown, now)
    rest = f" · {count - len(shown)} older not drawn" if count > len(shown) else ""
    days = (
        f"{start:%d %b %H:%M} to {end:%d %b %H:%M}"
        if start.date() != end.date()
        else f"{start:%d %b %H:%M}-{end:%H:%M}"
    )
    return f"{days} UTC · ticks: evidence · to the edge: still open{rest}"


def _span(bars: Sequence[Bar], now: datetime) -> tuple[datetime, datetime]:
    start = min(bar.began_at for bar in bars).astimezone(UTC)
    end = max(now, start + timedelta(minutes=1)).astimezone(UTC)
    return start - (end - start) / 25, end


def _draw(bars: Sequence[Bar], *, now: datetime) -> bytes:
    letter = text_width("x")
    names = [f"{_clipped(bar.name, 9)} {_clipped(bar.what, 24)}" for bar in bars]
    families = [bar.family.value for bar in bars]
    left = letter * (max(map(len, names)) + 1)
    right = letter * (max(map(len, families)) + 1)
    wide = 560
    tall = LETTER_HEIGHT + 12
    bar_height = LETTER_HEIGHT
    colours = list(dict.fromkeys(_FAMILY_COLOURS[bar.family] for bar in bars))
    canvas = Canvas(width=left + wide + right, height=tall * len(bars) + LETTER_HEIGHT + 8, palette=(*_BASE, *colours))
    start, end = _span(bars, now)

    def across(at: datetime) -> int:
        share = (at - start) / (end - start)
        return left + round(min(1.0, max(0.0, share)) * (wide - 1))

    bottom = tall * len(bars)
    for at in _round_times(start, end, count=6):
        label = f"{at:%H:%M}" if end - start < timedelta(hours=36) else f"{at:%d %b}"
        canvas.box(across(at), 0, width=1, height=bottom, colour=_GRID)
        canvas.write(across(at) - text_width(label) // 2, bottom + 6, label, colour=_INK)
    for row, bar in enumerate(bars):
        top = row * tall + 4
        colour = len(_BASE) + colours.index(_FAMILY_COLOURS[bar.family])
        first, last = across(bar.began_at), across(bar.ended_at or end)
        canvas.write(0, top, names[row], colour=_INK)
        canvas.box(first, top, width=last - first + 1, height=bar_height, colour=colour)
        for seen_at in bar.seen_at:
            canvas.box(across(seen_at), top, width=2, height=bar_height + _TICK_BELOW, colour=_INK)
        canvas.write(left + wide + letter // 2, top, families[row], colour=colour)
    return canvas.png()


def _clipped(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 2]}.."


def _round_times(start: datetime, end: datetime, *, count: int) -> list[datetime]:
    """Return up to `count` + 1 full minutes, quarters, hours or days within the span, evenly apart."""
    for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7200, 14400, 43200):
        step = timedelta(minutes=minutes)
        if (end - start) / step <= count:
            break
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    first = midnight + step * -(-(start - midnight) // step)
    margin = (end - start) / 20
    times = [first + step * number for number in range(count + 2)]
    return [at for at in times if start + margin <= at <= end - margin]


def _image(body: bytes, *, kind: str) -> str:
    return f"![timeline](data:image/{kind};base64,{b64encode(body).decode()})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    column: str
    title: str
    unit: str


_PANELS = (
    _Panel(column="utilisation_ratio", title="utilisation", unit="%"),
    _Panel(column="sm_active_ratio", title="SM active", unit="%"),
    _Panel(column="power_watts", title="power", unit="W"),
    _Panel(column="temperature_celsius", title="temperature", unit="°C"),
    _Panel(column="sm_clock_hertz", title="SM clock", unit="Hz"),
)
_PANELS_AT_MOST = 4
_PLOT_WIDTH, _PLOT_HEIGHT, _PLOT_LEFT, _PLOT_TOP, _PLOT_GAP = 800, 110, 124, 78, 36
_OTHERS, _CULPRIT, _MARK = 4, 5, 6
_PLOT_PALETTE: tuple[Colour, ...] = (*_BASE, (120, 160, 200), (213, 94, 0), (170, 0, 0))


def telemetry_plot(
    rows: pa.Table, *, title: str, marks: Sequence[datetime], culprits: Collection[PciAddress]
) -> bytes | None:
    """Return what GPUs did, one panel a quantity and one line a GPU, as a PNG; None where no quantity has a value.

    Rows of `gpu_telemetry`. GPUs of `culprits` are orange and drawn last, `marks` are broken red lines. Where a line
    stops there are no samples.
    """
    times = _microseconds(rows)
    panels = [panel for panel in _PANELS if _has_values(rows, panel.column)][:_PANELS_AT_MOST]
    if not panels or not len(times):
        return None
    start, end = int(times.min()), max(int(times.max()), int(times.min()) + 1)
    series = _series_of(rows, times, culprits)
    bottom = _PLOT_TOP + len(panels) * (_PLOT_HEIGHT + _PLOT_GAP) - _PLOT_GAP
    canvas = Canvas(width=_PLOT_LEFT + _PLOT_WIDTH + 16, height=bottom + 50, palette=_PLOT_PALETTE)
    canvas.write(8, 6, _clipped(title, 70), colour=_INK)
    key = 8
    for words, colour in ((f"{len(series)} GPUs", _OTHERS), ("culprit", _CULPRIT), ("evidence", _MARK)):
        canvas.box(key, 36, width=16, height=5, colour=colour)
        canvas.write(key + 22, 32, words, colour=_INK)
        key += 46 + text_width(words)

    def across(at: NDArray[np.int64]) -> NDArray[np.int64]:
        return _PLOT_LEFT + (at - start) * (_PLOT_WIDTH - 1) // (end - start)

    shown_marks = [mark for mark in dict.fromkeys(_stamp(at) for at in marks) if start <= mark <= end]
    for number, panel in enumerate(panels):
        top = _PLOT_TOP + number * (_PLOT_HEIGHT + _PLOT_GAP)
        values = _numbers(rows, panel.column)
        low, high = _scale_of(values, panel.unit)
        canvas.box(_PLOT_LEFT, top, width=_PLOT_WIDTH, height=_PLOT_HEIGHT, colour=_SHADE)
        canvas.write(_PLOT_LEFT, top - 18, panel.title, colour=_INK)
        for level, y in ((high, top), (low, top + _PLOT_HEIGHT - LETTER_HEIGHT)):
            label = readable(level, panel.unit)
            canvas.write(_PLOT_LEFT - 6 - text_width(label), y, label, colour=_INK)
        for mark in shown_marks:
            canvas.dotted_line(int(across(np.array([mark]))[0]), top, height=_PLOT_HEIGHT, colour=_MARK)
        for is_culprit, places in series:
            heights = top + (_PLOT_HEIGHT - 3) * (1 - (values[places] - low) / (high - low))
            xs, ys = _with_gaps(times[places], heights)
            canvas.curve(across(xs), ys, thickness=2 if is_culprit else 1, colour=_CULPRIT if is_culprit else _OTHERS)
    begin, finish = datetime.fromtimestamp(start / 1e6, UTC), datetime.fromtimestamp(end / 1e6, UTC)
    for at in _round_times(begin, finish, count=8):
        x = int(across(np.array([_stamp(at)]))[0])
        label = f"{at:%H:%M}"
        canvas.box(x, bottom, width=1, height=5, colour=_INK)
        canvas.write(x - text_width(label) // 2, bottom + 8, label, colour=_INK)
    canvas.write(_PLOT_LEFT, bottom + 30, f"{begin:%Y-%m-%d %H:%M:%S} to {finish:%H:%M:%S} UTC", colour=_INK)
    return canvas.png()


def as_parquet(rows: pa.Table) -> bytes:
    """Return rows as a Parquet file, without the columns that hold nothing."""
    kept = [name for name in rows.column_names if rows.column(name).null_count < rows.num_rows]
    out = BytesIO()
    pq.write_table(rows.select(kept), out, compression="zstd")
    return out.getvalue()


def driver_versions(rows: pa.Table) -> tuple[str, ...]:
    """Return the versions of the driver that rows of `gpu_telemetry` name."""
    if "driver_version" not in rows.column_names:
        return ()
    return tuple(sorted(str(each) for each in rows.column("driver_version").unique().to_pylist() if each))


def _microseconds(rows: pa.Table) -> NDArray[np.int64]:
    return (
        np.asarray(rows.column("time").cast(pa.timestamp("us", tz="UTC")).to_numpy())
        .astype("datetime64[us]")
        .astype(np.int64)
    )


def _stamp(at: datetime) -> int:
    return round(at.timestamp() * 1e6)


def _has_values(rows: pa.Table, column: str) -> bool:
    return column in rows.column_names and bool(np.isfinite(_numbers(rows, column)).any())


def _numbers(rows: pa.Table, column: str) -> NDArray[np.float64]:
    return np.asarray(rows.column(column).cast(pa.float64()).to_numpy(), dtype=np.float64)


def _series_of(
    rows: pa.Table, times: NDArray[np.int64], culprits: Collection[PciAddress]
) -> list[tuple[bool, NDArray[np.intp]]]:
    """Return for each GPU whether it is a culprit, and its rows in the order of time; culprits last."""
    names = rows.select(["node", "device"]).to_pylist()
    addresses = rows.column("pci_address").to_pylist() if "pci_address" in rows.column_names else [None] * len(names)
    places: dict[tuple[str, str], list[int]] = {}
    guilty: set[tuple[str, str]] = set()
    for place, (name, address) in enumerate(zip(names, addresses, strict=True)):
        key = (name["node"], name["device"])
        places.setdefault(key, []).append(place)
        if address in culprits:
            guilty.add(key)
    series = []
    for key, of_gpu in places.items():
        order = np.array(of_gpu, dtype=np.intp)
        series.append((key in guilty, order[np.argsort(times[order], kind="stable")]))
    return sorted(series, key=lambda each: each[0])


def _scale_of(values: NDArray[np.float64], unit: str) -> tuple[float, float]:
    """Return the values at the bottom and the top of a panel, never equal."""
    if unit == "%":
        return 0.0, max(1.0, float(np.nanmax(values)))
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def _with_gaps(times: NDArray[np.int64], heights: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the points with a break wherever samples are more than three times as far apart as they mostly are."""
    if len(times) < 3:
        return times, heights
    gaps = np.diff(times)
    breaks = np.flatnonzero(gaps > 3 * np.median(gaps)) + 1
    return np.insert(times, breaks, times[breaks - 1]), np.insert(heights, breaks, np.nan)
