"""Hours of the lake as pictures: what of each table is drawn first, as a strip of nodes x time or as lines.

One per table, small enough to open at once: the UI shows Markdown inline below about 900 characters. Colours are
viridis, which all eyes can order; grey is missing data, and never a value.
"""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.report.numbers import counted
from ops_pipelines.report.pictures.bars import INLINE_AT_MOST, Colour, encode_png
from ops_pipelines.report.pictures.heat_grid import Fold, Grid, Values, busy_share, gauge, grid_of, join_hours, rate

# -- what of each table is worth drawing first --


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What is worth drawing first of a table."""

    title: str
    values: Values
    needs: str
    """The column without which there is nothing to draw."""
    unit: str
    fold: Fold = Fold.MAX
    by: str = "node"
    entity: str = "node"


DRAWINGS: Mapping[str, tuple[Drawing, ...]] = {
    "gpu_telemetry": (
        Drawing(
            title="GPU temperature, hottest of the node",
            values=gauge("temperature_celsius"),
            needs="temperature_celsius",
            unit="°C",
        ),
        Drawing(
            title="GPU utilisation, mean of the node",
            values=gauge("utilisation_ratio"),
            needs="utilisation_ratio",
            unit="%",
            fold=Fold.MEAN,
        ),
        Drawing(title="GPU power, highest of the node", values=gauge("power_watts"), needs="power_watts", unit="W"),
    ),
    "node_telemetry": (
        Drawing(
            title="CPU time that was not idle",
            values=busy_share(
                idle="cpu_idle_seconds", others=("cpu_user_seconds", "cpu_system_seconds", "cpu_iowait_seconds")
            ),
            needs="cpu_idle_seconds",
            unit="%",
            fold=Fold.MEAN,
        ),
        Drawing(title="Load average", values=gauge("load_1m"), needs="load_1m", unit=""),
        Drawing(
            title="Memory that new work can have",
            values=gauge("memory_available_bytes"),
            needs="memory_available_bytes",
            unit="B",
            fold=Fold.MEAN,
        ),
    ),
    "fabric_telemetry": (
        Drawing(
            title="Data received, busiest port of the node",
            values=rate("receive_bytes"),
            needs="receive_bytes",
            unit="B/s",
        ),
        Drawing(title="Link state, 4 is active", values=gauge("link_state"), needs="link_state", unit=""),
    ),
    "storage_telemetry": (
        Drawing(
            title="Time busy, busiest device of the node", values=rate("busy_seconds"), needs="busy_seconds", unit="%"
        ),
        Drawing(title="Data read, busiest device", values=rate("read_bytes"), needs="read_bytes", unit="B/s"),
        Drawing(
            title="Device temperature, hottest of the node",
            values=gauge("temperature_celsius"),
            needs="temperature_celsius",
            unit="°C",
        ),
    ),
    "facility_telemetry": (
        Drawing(
            title="Power", values=gauge("power_watts"), needs="power_watts", unit="W", by="device", entity="device"
        ),
        Drawing(
            title="Temperature",
            values=gauge("temperature_celsius"),
            needs="temperature_celsius",
            unit="°C",
            by="device",
            entity="sensor",
        ),
    ),
    "application_telemetry": (
        Drawing(
            title="Duration of a training step",
            values=gauge("step_seconds"),
            needs="step_seconds",
            unit="s",
            by="device",
            entity="job",
        ),
        Drawing(
            title="Latency, 95th percentile",
            values=gauge("latency_p95_seconds"),
            needs="latency_p95_seconds",
            unit="s",
            by="device",
            entity="service",
        ),
        Drawing(
            title="Requests that wait",
            values=gauge("queue_depth_count"),
            needs="queue_depth_count",
            unit="",
            by="device",
            entity="service",
        ),
    ),
    "platform_telemetry": (
        Drawing(title="Jobs that wait", values=gauge("jobs_pending_count"), needs="jobs_pending_count", unit=""),
        Drawing(
            title="Scrapes that worked",
            values=gauge("target_up"),
            needs="target_up",
            unit="%",
            fold=Fold.MEAN,
            by="device",
            entity="target",
        ),
    ),
    "gpu_efficiency": (
        Drawing(
            title="SM activity of the jobs of a node",
            values=gauge("sm_active_ratio"),
            needs="sm_active_ratio",
            unit="%",
            fold=Fold.MEAN,
        ),
        Drawing(
            title="Utilisation of the jobs of a node",
            values=gauge("utilisation_ratio"),
            needs="utilisation_ratio",
            unit="%",
            fold=Fold.MEAN,
        ),
    ),
    "monitoring_coverage": (
        Drawing(
            title="Samples that are there, of those expected",
            values=gauge("coverage_ratio"),
            needs="coverage_ratio",
            unit="%",
            fold=Fold.MEAN,
        ),
    ),
    "gpu_demand": (
        Drawing(
            title="GPUs requested by each team", values=gauge("gpus_demand_avg"), needs="gpus_demand_avg", unit="",
            by="team", entity="team",
        ),
    ),
    "kernel_events": (
        Drawing(title="Lines", values=gauge("ones"), needs="ones", unit="", fold=Fold.COUNT),
    ),
    "job_logs": (
        Drawing(title="Lines", values=gauge("ones"), needs="ones", unit="", fold=Fold.COUNT, by="job", entity="job"),
    ),
    "job_accounting": (
        Drawing(
            title="Attempts that ended", values=gauge("ones"), needs="ones", unit="", fold=Fold.COUNT, by="state",
            entity="state",
        ),
    ),
}  # fmt: skip
"""By table, in the order of worth; the first of which there is any value is drawn."""


# -- pictures of hours --


MISSING: Colour = (200, 204, 210)
_VIRIDIS: tuple[Colour, ...] = (
    (68, 1, 84), (72, 40, 120), (62, 73, 137), (49, 104, 142), (38, 130, 142),
    (31, 158, 137), (53, 183, 121), (110, 206, 88), (181, 222, 43), (253, 231, 37),
)  # fmt: skip
_SIZES = (
    (32, 60, 12),
    (24, 60, 10),
    (24, 60, 7),
    (16, 60, 7),
    (16, 30, 7),
    (12, 30, 6),
    (8, 30, 5),
    (8, 20, 4),
    (4, 20, 4),
)
"""Rows, columns and colours of a small strip, from the finest on: the first that fits is drawn."""
_WIDTH = 360


def picture_of_hours(table_name: str, hours: Mapping[datetime, pa.Table]) -> str:
    """Return one small picture of some hours of a table, of what the newest of them has to show."""
    drawing: Drawing | None = None
    instead = ""
    grids: dict[datetime, Grid] = {}
    for hour in sorted(hours, reverse=True):
        rows = hours[hour]  # read now, and released: a day of a large cluster fits in no memory
        if not rows.num_rows:
            continue
        if not instead:
            instead = _nothing(table_name, rows)
            drawing = _choose(table_name, rows)
        grid = None if drawing is None else _draw(drawing, rows)
        if grid is not None:
            grids[hour] = grid
    if drawing is None:
        return instead or "No rows."
    return _small(join_hours(dict(sorted(grids.items()))), drawing=drawing)


def _small(grid: Grid, *, drawing: Drawing) -> str:
    if len(grid.names) == 1:
        title = f"{drawing.title}, {_span(grid)}"
        return sparkline(grid.coarser(rows=1, columns=60).values[0], title=title, unit=drawing.unit)
    return heat_strip(grid, drawing=drawing)


def _choose(table_name: str, rows: pa.Table) -> Drawing | None:
    """Return the first drawing of a table for which the rows have a value."""
    return next((each for each in DRAWINGS.get(table_name, ()) if _draw(each, rows) is not None), None)


def _draw(drawing: Drawing, rows: pa.Table) -> Grid | None:
    counted = rows.append_column("ones", pa.array(np.ones(rows.num_rows)))
    chosen = counted.filter(pc.is_valid(counted.column(drawing.needs)))
    if not chosen.num_rows:
        return None
    return grid_of(chosen, drawing.values(chosen, None), by=drawing.by, fold=drawing.fold)


def _nothing(table_name: str, rows: pa.Table) -> str:
    return f"{table_name}: {rows.num_rows:,} rows, none with a value to draw." if rows.num_rows else "No rows."


def heat_strip(grid: Grid, *, drawing: Drawing) -> str:
    """Return a strip of entities x time with its legend, the finest that stays inline."""
    words = ""
    for rows, columns, colours in _SIZES:
        coarse = grid.coarser(rows=rows, columns=columns)
        words = legend(grid, drawing=drawing, drawn=coarse)
        pixels = _levels(coarse.values, *scale_of(grid, unit=drawing.unit), colours)
        tall = max(2, min(12, 160 // len(pixels)))
        wide = _WIDTH // pixels.shape[1]
        body = encode_png(pixels.repeat(tall, 0).repeat(wide, 1), palette=palette(colours))
        markdown = f"{_image('heat strip', 'png', body)}\n\n{words}"
        if len(markdown) < INLINE_AT_MOST:
            return markdown
    return words


def legend(grid: Grid, *, drawing: Drawing, drawn: Grid) -> str:
    """Return the line below a picture: what is drawn, from which colour to which, of whom, when, what grey means.

    `drawn` is `grid` as coarse as the picture has it.
    """
    low, high = float(np.nanmin(grid.values)), float(np.nanmax(grid.values))
    bottom, top = scale_of(grid, unit=drawing.unit)
    colours = f"dark {readable(bottom, drawing.unit)}, yellow {readable(top, drawing.unit)}"
    if (low, high) != (bottom, top):
        colours += f" (seen {readable(low, drawing.unit)} to {readable(high, drawing.unit)})"
    each = -(-len(grid.names) // len(drawn.values))
    packed = f" (about {each} a row)" if each > 1 else ""
    missing = float(np.isnan(drawn.values).mean())
    grey = f" · grey: no data ({readable(max(missing, 0.001), '%')})" if missing else ""
    whose = f"{_entities(grid, drawing)} from {_plain(grid.names[0])} (top) to {_plain(grid.names[-1])}{packed}"
    return f"{drawing.title}: {colours} · {whose} · {_span(grid)}{grey}"


def _span(grid: Grid) -> str:
    newest = f"{grid.end:%H:%M}" if grid.end - grid.start == timedelta(hours=1) else f"{grid.end:%Y-%m-%d %H:%M}"
    return f"{grid.start:%Y-%m-%d %H:%M} to {newest} UTC"


def _plain(name: str) -> str:
    """Return a name from data, short, without what Markdown would take for its own."""
    return re.sub(r"[^\w./: ()-]", "?", name if len(name) <= 24 else f"{name[:11]}..{name[-11:]}", flags=re.ASCII)


def _entities(grid: Grid, drawing: Drawing) -> str:
    return counted(len(grid.names), drawing.entity)


def scale_of(grid: Grid, *, unit: str) -> tuple[float, float]:
    """Return the values of the first and the last colour: 0 to 100 % for shares, else what was seen."""
    low, high = float(np.nanmin(grid.values)), float(np.nanmax(grid.values))
    if unit == "%":
        return min(0.0, low), max(1.0, high)
    return (0.0 if grid.fold is Fold.COUNT else low), high


def palette(colours: int) -> list[Colour]:
    """Return grey for missing data and then so many colours from dark to bright."""
    anchors = np.array(_VIRIDIS, dtype=np.float64)
    at = np.linspace(0, len(anchors) - 1, colours)
    parts = [np.interp(at, np.arange(len(anchors)), anchors[:, part]).round().astype(int) for part in range(3)]
    return [MISSING, *((int(red), int(green), int(blue)) for red, green, blue in zip(*parts, strict=True))]


def _levels(values: NDArray[np.float64], low: float, high: float, colours: int) -> NDArray[np.uint8]:
    """Return the number of each cell's colour, 0 for missing."""
    known = np.isfinite(values)
    share = (np.where(known, values, low) - low) / (high - low) if high > low else np.zeros(values.shape)
    return np.where(known, 1 + np.clip(share * colours, 0, colours - 1), 0).astype(np.uint8)


def sparkline(values: Sequence[float] | NDArray[np.float64], *, title: str, unit: str) -> str:
    """Return a line over evenly spaced values, NaN for none, which is drawn as a grey band."""
    line = np.asarray(values, dtype=np.float64)
    known = np.isfinite(line)
    if not known.any():
        return f"{title}: no data."
    low, high = float(line[known].min()), float(line[known].max())
    heights = np.full(len(line), 20) if high == low else 37 - np.round(34 * (np.nan_to_num(line) - low) / (high - low))
    wide = max(6, _WIDTH // len(line))
    runs = _runs(known)
    path = "".join(
        "M" + " ".join(f"{place * wide + 3},{int(heights[place])}" for place in range(first, end)) + "h1"
        for first, end in runs
    )
    bands = "".join(
        f"M{first * wide},0h{(end - first) * wide}v40h-{(end - first) * wide}" for first, end in _runs(~known)
    )
    grey = f'<path d="{bands}" fill="#c8ccd2"/>' if bands else ""
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(line) * wide}" height="40">{grey}'
        f'<path d="{path}" fill="none" stroke="#31688e" stroke-width="2"/></svg>'
    )
    last = readable(float(line[known][-1]), unit)
    words = f"{title}: {readable(low, unit)} to {readable(high, unit)}, last {last}{' · grey: no data' if grey else ''}"
    markdown = f"{_image('line', 'svg+xml', drawn.encode())}\n\n{words}"
    if len(markdown) < INLINE_AT_MOST or len(line) < 4:
        return markdown
    return sparkline(line[::2], title=title, unit=unit)


def _runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return where a flag is set: begin and end of each run."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return [(int(first), int(end)) for first, end in list(pairwise(edges))[::2]]


def _image(alt: str, kind: str, body: bytes) -> str:
    return f"![{alt}](data:image/{kind};base64,{b64encode(body).decode()})"


def readable(value: float, unit: str) -> str:
    """Return a number with its unit, short: 71 °C, 34 %, 1.2 GB/s."""
    if unit == "%":
        return f"{_digits(100 * value)} %"
    if unit in ("B", "B/s", "W"):
        for prefix in ("", "k", "M", "G", "T"):
            if abs(value) < 999.5:
                return f"{_digits(value)} {prefix}{unit}"
            value /= 1000
        return f"{_digits(value)} P{unit}"
    return f"{_digits(value)} {unit}".rstrip()


def _digits(value: float) -> str:
    """Return about three digits, without an exponent unless the number is far from 1."""
    if abs(value) >= 99.5:
        return f"{value:,.0f}"
    if abs(value) >= 9.95:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.3g}"
