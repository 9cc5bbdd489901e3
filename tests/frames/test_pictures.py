"""Pictures are small enough for the UI, show missing data as missing, and are files that any browser reads."""

import re
import struct
import zlib
from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime, timedelta
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ops_pipelines.lake.hours import natural_order, order_rows
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.report.pictures.bars import INLINE_AT_MOST, encode_png
from ops_pipelines.report.pictures.heat_grid import Fold, Grid, gauge, growth
from ops_pipelines.report.pictures.hours import (
    DRAWINGS,
    MISSING,
    Drawing,
    heat_strip,
    palette,
    picture_of_hours,
    readable,
    sparkline,
)
from tests.frames.good_hours import HOUR, good_hour

TEMPERATURE = Drawing(title="Temperature", values=gauge("temperature_celsius"), needs="temperature_celsius", unit="°C")


def decode_png(body: bytes) -> tuple[NDArray[np.uint8], list[tuple[int, ...]]]:
    """Read a palette PNG: its pixels and its colours."""
    chunks = {}
    at = 8
    while at < len(body):
        (length,), name = struct.unpack(">I", body[at : at + 4]), body[at + 4 : at + 8]
        content = body[at + 8 : at + 8 + length]
        assert zlib.crc32(name + content) == struct.unpack(">I", body[at + 8 + length : at + 12 + length])[0]
        chunks[name] = content
        at += 12 + length
    width, height, depth, kind, *_ = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert kind == 3
    stride = -(-width * depth // 8)
    raw = zlib.decompress(chunks[b"IDAT"])
    rows: list[list[int]] = []
    for number in range(height):
        how, *line = raw[number * (stride + 1) : (number + 1) * (stride + 1)]
        above = rows[-1] if rows else [0] * stride
        for place in range(stride):
            before = (line[place - 1] if place else 0) if how == 1 else above[place] if how == 2 else 0
            line[place] = (line[place] + before) % 256
        rows.append(line)
    each = 8 // depth
    pixels = [
        [line[place // each] >> (8 - depth * (place % each + 1)) & (2**depth - 1) for place in range(width)]
        for line in rows
    ]
    colours = [tuple(chunks[b"PLTE"][start : start + 3]) for start in range(0, len(chunks[b"PLTE"]), 3)]
    return np.array(pixels, dtype=np.uint8), colours


def image_in(markdown: str) -> bytes:
    found = re.search(r"!\[[^\]]*\]\(data:image/(?:png|svg\+xml);base64,([A-Za-z0-9+/=]+)\)", markdown)
    assert found, markdown
    return b64decode(found[1])


def grid(values: NDArray[np.float64], fold: Fold = Fold.MAX) -> Grid:
    names = tuple(f"node{number:05}" for number in range(len(values)))
    return Grid(names=names, values=values, start=HOUR, end=HOUR + timedelta(hours=1), fold=fold)


@settings(max_examples=60, deadline=None)
@given(height=st.integers(1, 9), width=st.integers(1, 20), colours=st.integers(1, 16), seed=st.integers(0, 9))
def test_a_png_holds_the_pixels_that_were_given(height: int, width: int, colours: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, colours, (height, width)).astype(np.uint8)
    chosen = [(number, 2 * number, 255 - number) for number in range(colours)]

    found, read = decode_png(encode_png(pixels, palette=chosen))

    assert (found == pixels).all()
    assert read == chosen


@pytest.mark.parametrize("colours", [0, 1, 17])
def test_a_pixel_without_a_colour_is_refused(colours: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        encode_png(np.ones((2, 2), dtype=np.uint8), palette=[MISSING] * colours)


@pytest.mark.parametrize("rows", [2, 3, 16, 32, 33, 64, 2048])
def test_even_noise_stays_inline(rows: int) -> None:
    values = np.random.default_rng(rows).uniform(-1e12, 1e12, (rows, 120))
    values[0, ::2] = np.nan
    long = Drawing(title="T" * 60, values=TEMPERATURE.values, needs="x", unit="B/s")

    markdown = heat_strip(grid(values), drawing=long)

    assert len(markdown) < INLINE_AT_MOST
    decode_png(image_in(markdown))


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.one_of(st.just(np.nan), st.floats(-1e15, 1e15)), min_size=1, max_size=120))
def test_a_line_stays_inline_and_is_well_formed(values: list[float]) -> None:
    markdown = sparkline(values, title="Jobs that wait", unit="")

    assert len(markdown) < INLINE_AT_MOST
    if np.isfinite(values).any():
        ElementTree.fromstring(image_in(markdown))
    else:
        assert markdown == "Jobs that wait: no data."


@pytest.mark.parametrize("table", DRAWINGS)
def test_a_good_hour_of_every_table_has_a_picture(table: str) -> None:
    markdown = picture_of_hours(table, {HOUR: good_hour(table).rows})

    assert len(markdown) < INLINE_AT_MOST
    assert image_in(markdown)


@pytest.mark.parametrize("table", TABLES)
def test_an_hour_without_rows_is_a_sentence(table: str) -> None:
    rows = TABLES[table].from_rows([])

    assert picture_of_hours(table, {HOUR: rows}) == "No rows."


def test_rows_without_a_value_are_a_sentence() -> None:
    rows = TABLES["gpu_telemetry"].from_rows([{"node": "node1", "device": "a", "time": HOUR}])

    assert picture_of_hours("gpu_telemetry", {HOUR: rows}) == "gpu_telemetry: 1 rows, none with a value to draw."


def test_the_next_best_column_is_drawn_where_the_first_has_no_values() -> None:
    rows = TABLES["gpu_telemetry"].from_rows(
        {"node": f"node{node}", "device": "a", "time": HOUR, "utilisation_ratio": 0.5} for node in range(2)
    )

    assert "GPU utilisation" in picture_of_hours("gpu_telemetry", {HOUR: rows})


def test_missing_data_is_grey_and_said_to_be() -> None:
    values = np.full((2, 120), 50.0)
    values[1, :60] = np.nan
    values[0, 60:] = 70.0

    markdown = heat_strip(grid(values), drawing=TEMPERATURE)
    pixels, colours = decode_png(image_in(markdown))

    assert colours[0] == MISSING
    assert set(np.unique(pixels[-1, : pixels.shape[1] // 2])) == {0}
    assert 0 not in pixels[0]
    assert "grey: no data (25 %)" in markdown


def test_no_colour_of_a_value_is_grey() -> None:
    for colours in range(2, 16):
        assert all(max(colour) - min(colour) > 40 for colour in palette(colours)[1:])


def test_the_hottest_node_of_a_row_is_seen_however_many_share_it() -> None:
    values = np.full((640, 120), 40.0)
    values[321, 60:64] = 90.0

    coarse = grid(values).coarser(rows=32, columns=60)

    assert coarse.values.max() == 90.0
    assert coarse.names[16] == "node00320 ... node00339"


@pytest.mark.parametrize(("missing", "is_shown"), [(9, False), (10, False), (11, True)])
def test_a_row_of_many_nodes_is_missing_when_more_than_half_of_them_are(missing: int, is_shown: bool) -> None:
    values = np.full((20, 120), 40.0)
    values[:missing] = np.nan

    assert bool(np.isnan(grid(values).coarser(rows=1, columns=120).values).all()) is is_shown


def test_counters_are_drawn_as_rates_across_restarts_and_gaps() -> None:
    rows = TABLES["fabric_telemetry"].from_rows(
        {"node": node, "device": "p", "time": HOUR + timedelta(seconds=seconds), "receive_bytes": value}
        for node, seconds, value in (
            ("a", 0, 100.0),
            ("a", 15, 250.0),
            ("a", 30, None),
            ("a", 45, 550.0),
            ("a", 60, 30.0),
            ("b", 0, 7.0),
        )
    )

    values = rows.column("receive_bytes").to_numpy(zero_copy_only=False)
    grown, seconds = growth(values, order_rows(rows, key=("node", "device")))

    np.testing.assert_array_equal(grown, [np.nan, 150.0, np.nan, 300.0, 30.0, np.nan])
    np.testing.assert_array_equal(seconds, [np.nan, 15.0, np.nan, 30.0, 15.0, np.nan])


def test_growth_is_the_same_however_the_rows_stand() -> None:
    rows = good_hour("fabric_telemetry").rows
    shuffled = np.random.default_rng(1).permutation(rows.num_rows)
    mixed = rows.take(pa.array(shuffled))

    straight, _ = growth(rows.column("receive_bytes").to_numpy(), order_rows(rows, key=("node", "device")))
    other, _ = growth(mixed.column("receive_bytes").to_numpy(), order_rows(mixed, key=("node", "device")))

    np.testing.assert_array_equal(other, straight[shuffled])


def test_the_share_of_time_that_was_not_idle_is_drawn_of_nodes() -> None:
    rows = TABLES["node_telemetry"].from_rows(
        {
            "node": node,
            "device": "",
            "time": HOUR + timedelta(seconds=15 * cycle),
            "cpu_idle_seconds": 6.0 * cycle,
            "cpu_user_seconds": 14.0 * cycle,
        }
        for node in ("a", "b")
        for cycle in range(3)
    )

    assert "(seen 70 % to 70 %)" in picture_of_hours("node_telemetry", {HOUR: rows})


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (71.0, "°C", "71 °C"),
        (0.345, "%", "34.5 %"),
        (999.4, "W", "999 W"),
        (999.6, "W", "1 kW"),
        (38.4e9, "B/s", "38.4 GB/s"),
        (0.0, "B/s", "0 B/s"),
        (2e18, "B", "2,000 PB"),
        (12.0, "", "12"),
    ],
)
def test_numbers_are_short_and_have_their_unit(value: float, unit: str, text: str) -> None:
    assert readable(value, unit) == text


def test_names_stand_in_the_order_of_people() -> None:
    assert natural_order(["node10", "node9", "", "login", "9", "node²"]) == [
        "",
        "9",
        "login",
        "node9",
        "node10",
        "node²",
    ]


def sampled(*, every_seconds: int, hour: datetime = HOUR, nodes: Sequence[str] = ("a", "b")) -> pa.Table:
    """Return an hour of two nodes' GPUs, sampled so often."""
    return TABLES["gpu_telemetry"].from_rows(
        {"node": node, "device": "x", "time": hour + timedelta(seconds=seconds), "temperature_celsius": 50.0 + place}
        for place, node in enumerate(nodes)
        for seconds in range(0, 3600, every_seconds)
    )


@pytest.mark.parametrize("every_seconds", [15, 30, 31, 45, 60, 300, 600, 3600])
def test_what_is_sampled_seldom_is_not_missing_in_between(every_seconds: int) -> None:
    markdown = picture_of_hours("gpu_telemetry", {HOUR: sampled(every_seconds=every_seconds)})

    assert "no data" not in markdown
    assert "2 nodes from a (top) to b" in markdown


@pytest.mark.parametrize("every_seconds", [15, 60, 3600])
def test_hours_are_one_picture_in_which_an_hour_that_is_not_there_is_grey(every_seconds: int) -> None:
    later = HOUR + timedelta(hours=2)
    hours = {
        later: sampled(every_seconds=every_seconds, hour=later),
        HOUR: sampled(every_seconds=every_seconds),
        HOUR + timedelta(hours=1): TABLES["gpu_telemetry"].from_rows([]),
    }

    markdown = picture_of_hours("gpu_telemetry", hours)
    pixels, _ = decode_png(image_in(markdown))

    thirds = np.split(pixels[:, : pixels.shape[1] // 3 * 3], 3, axis=1)
    assert [bool((third == 0).all()) for third in thirds] == [False, True, False]
    assert f"{HOUR:%Y-%m-%d %H:%M} to {HOUR + timedelta(hours=3):%Y-%m-%d %H:%M} UTC" in markdown
    assert "grey: no data (33.3 %)" in markdown


def test_a_node_that_came_later_is_grey_before() -> None:
    later = HOUR + timedelta(hours=1)
    hours = {HOUR: sampled(every_seconds=60), later: sampled(every_seconds=60, hour=later, nodes=("a", "b", "c"))}

    pixels, _ = decode_png(image_in(picture_of_hours("gpu_telemetry", hours)))

    half = pixels.shape[1] // 2
    assert set(np.unique(pixels[-1, :half])) == {0}
    assert 0 not in pixels[-1, half:]
    assert 0 not in pixels[0]


def test_hours_without_rows_are_a_sentence() -> None:
    assert picture_of_hours("gpu_telemetry", {}) == "No rows."
    assert picture_of_hours("gpu_telemetry", {HOUR: TABLES["gpu_telemetry"].from_rows([])}) == "No rows."


@pytest.mark.parametrize("count", [1, 24, 60, 61, 200])
def test_the_picture_of_many_hours_stays_inline(count: int) -> None:
    hours = {
        HOUR + number * timedelta(hours=1): sampled(every_seconds=900, hour=HOUR + number * timedelta(hours=1))
        for number in range(count)
    }

    markdown = picture_of_hours("gpu_telemetry", hours)

    assert len(markdown) < INLINE_AT_MOST
    assert "no data" not in markdown
    decode_png(image_in(markdown))


def test_names_from_data_cannot_become_markup() -> None:
    hostile = "](javascript:x) <b>![y]*_`|"

    markdown = picture_of_hours("gpu_telemetry", {HOUR: sampled(every_seconds=60, nodes=(hostile, "node1"))})

    words = markdown.split("\n\n", maxsplit=1)[1]
    assert not set(words) & set("[]<>*`|!")
