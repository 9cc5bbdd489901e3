"""Pictures of incidents: small enough for the UI, drawn where the times say, and honest about gaps."""

from base64 import b64decode
from datetime import datetime, timedelta
from io import BytesIO
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ops_pipelines.core.fault import Family
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.report.pictures.bars import INLINE_AT_MOST, LETTER_HEIGHT, Canvas, text_width
from ops_pipelines.report.pictures.incidents import (
    Bar,
    as_parquet,
    driver_versions,
    large_timeline,
    telemetry_plot,
    timeline,
)
from tests.domain.builders import GPU, NOW, OTHER_GPU, after, ago
from tests.frames.test_pictures import decode_png

ORANGE, BLUE, RED = (213, 94, 0), (120, 160, 200), (170, 0, 0)


def bar(name: str = "INC-0001", *, what: str = "gpu003", began: float = 600, ended: float | None = None,
        family: Family = Family.FABRIC, seen: tuple[float, ...] = ()) -> Bar:  # fmt: skip
    return Bar(
        name=name, what=what, family=family, began_at=ago(began), ended_at=None if ended is None else ago(ended),
        seen_at=tuple(ago(each) for each in seen or (began,)),
    )  # fmt: skip


def svg_of(markdown: str) -> ElementTree.Element:
    return ElementTree.fromstring(b64decode(markdown.split("base64,")[1].split(")")[0]))


def png_of(markdown: str) -> tuple[NDArray[np.uint8], list[tuple[int, ...]]]:
    return decode_png(b64decode(markdown.split("base64,")[1].split(")")[0]))


def words_of(markdown: str) -> list[str]:
    return [each.text or "" for each in svg_of(markdown).iter("{http://www.w3.org/2000/svg}text")]


def test_small_timeline_names_each_incident_with_its_culprit_and_family() -> None:
    drawn = timeline([bar(), bar("INC-0002", what="job 42", family=Family.STALL, began=300)], now=NOW)

    assert words_of(drawn) == ["INC-0001 gpu003 fabric", "INC-0002 job 42 stall"]
    assert "21 Nov 07:19-07:30 UTC" in drawn


@pytest.mark.parametrize("ended", [None, 300.0])
def test_bar_ends_where_the_incident_did(ended: float | None) -> None:
    (stroke, _) = svg_of(timeline([bar(ended=ended)], now=NOW)).iter("{http://www.w3.org/2000/svg}path")
    drawn = stroke.attrib["d"]

    first, length = int(drawn[1:].split()[0]), int(drawn.split("h")[1])
    assert (first + length == 400) is (ended is None)
    assert length == pytest.approx(215 if ended is None else 108, abs=2)


def test_where_not_all_fit_open_ones_come_first_and_the_rest_is_counted() -> None:
    closed = [bar(f"INC-00{number}", began=500 - number, ended=10) for number in range(10, 30)]

    drawn = timeline([bar("INC-0001", began=3600), *closed], now=NOW)

    assert "INC-0001 gpu003 fabric" in words_of(drawn)
    assert f"{21 - len(words_of(drawn))} older not drawn" in drawn
    assert len(words_of(drawn)) >= 3


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.builds(
            lambda name, what, family, began, lasted, seen: Bar(
                name=name,
                what=what,
                family=family,
                began_at=ago(began),
                ended_at=None if lasted is None else ago(began) + timedelta(seconds=lasted),
                seen_at=tuple(ago(each) for each in seen),
            ),
            st.text(max_size=30),
            st.text(max_size=60),
            st.sampled_from(Family),
            st.floats(-100, 10_000_000),
            st.none() | st.floats(0, 1_000_000),
            st.lists(st.floats(-1_000, 10_000_000), max_size=30),
        ),
        max_size=12,
    )
)
def test_any_timeline_fits_into_the_page_and_is_whole(bars: list[Bar]) -> None:
    drawn = timeline(bars, now=NOW)

    assert len(drawn) < INLINE_AT_MOST
    if "base64" in drawn and all(char.isprintable() for each in bars for char in each.name + each.what):
        svg_of(drawn)
    if bars:
        pixels, colours = png_of(large_timeline(bars, now=NOW))
        assert pixels.max() < len(colours)


def test_nothing_to_draw_is_said() -> None:
    assert timeline([], now=NOW) == "No incidents."
    assert large_timeline([], now=NOW) == "No incidents."


def test_large_timeline_draws_the_bar_in_its_colour_from_begin_to_end() -> None:
    pixels, colours = png_of(large_timeline([bar(family=Family.GPU, began=600, ended=300)], now=NOW))

    left = text_width("INC-0001 gpu003 ")
    (places,) = np.nonzero(pixels[6, left : left + 560] == colours.index(ORANGE))
    whole_seconds = 600 * 1.04  # a margin is before the first
    assert places.min() / 560 == pytest.approx(24 / whole_seconds, abs=0.01)
    assert places.max() / 560 == pytest.approx(324 / whole_seconds, abs=0.01)


def rows(*, power: float = 300.0, missing: range = range(0), gpus: tuple[str, ...] = (GPU, OTHER_GPU)) -> pa.Table:
    return TABLES["gpu_telemetry"].from_rows(
        {"time": after(15 * step), "node": "gpu001", "device": gpu, "pci_address": gpu, "driver_version": "570.1",
         "power_watts": power + step}
        for gpu in gpus
        for step in range(41)
        if not (gpu == GPU and step in missing)
    )  # fmt: skip


def plot(table: pa.Table, *, marks: tuple[datetime, ...] = (), culprits: tuple[str, ...] = (GPU,)) -> bytes:
    drawn = telemetry_plot(table, title="INC-0001", marks=marks, culprits=culprits)  # type: ignore[arg-type]  # str will do
    assert drawn is not None
    return drawn


def test_plot_has_one_panel_a_quantity_that_was_measured() -> None:
    one, _ = decode_png(plot(rows()))
    measured = pa.array([0.5] * rows().num_rows)
    both = rows().set_column(rows().schema.get_field_index("utilisation_ratio"), "utilisation_ratio", measured)
    two, _ = decode_png(plot(both))

    assert two.shape[0] > one.shape[0]
    assert two.shape[1] == one.shape[1]


def test_culprit_is_drawn_in_its_colour_over_the_others() -> None:
    with_culprit, colours = decode_png(plot(rows()))
    without, _ = decode_png(plot(rows(), culprits=()))

    orange = colours.index(ORANGE)
    assert (with_culprit[78:188] == orange).sum() > (without[78:188] == orange).sum() == 0


def test_line_breaks_where_samples_are_missing() -> None:
    pixels, colours = decode_png(plot(rows(missing=range(10, 31), gpus=(GPU,))))

    drawn = (pixels[78:188] == colours.index(ORANGE)).any(axis=0)
    assert drawn[124 + 100]
    assert drawn[124 + 700]
    assert not drawn[124 + 300 : 124 + 500].any()


@pytest.mark.parametrize(
    ("at", "is_drawn"), [(after(0), True), (after(600), True), (after(601), False), (ago(1), False)]
)
def test_evidence_is_marked_where_it_was_seen_and_nowhere_else(at: datetime, is_drawn: bool) -> None:
    pixels, colours = decode_png(plot(rows(), marks=(at,)))

    assert bool((pixels[78:188] == colours.index(RED)).any()) is is_drawn


@pytest.mark.parametrize("power", [0.0, 300.0])
def test_values_that_never_change_are_drawn_all_the_same(power: float) -> None:
    flat = rows()
    flat = flat.set_column(flat.schema.get_field_index("power_watts"), "power_watts", pa.array([power] * flat.num_rows))

    pixels, colours = decode_png(plot(flat))

    assert (pixels[78:188] == colours.index(ORANGE)).any()


def test_one_sample_alone_is_drawn() -> None:
    pixels, colours = decode_png(plot(rows(gpus=(GPU,)).slice(0, 1)))

    assert (pixels[78:188] == colours.index(ORANGE)).any()


def test_rows_without_any_value_are_no_picture() -> None:
    empty = TABLES["gpu_telemetry"].from_rows([])
    blank = rows().set_column(rows().schema.get_field_index("power_watts"), "power_watts", pa.nulls(82, pa.float64()))

    assert telemetry_plot(empty, title="", marks=(), culprits=()) is None
    assert telemetry_plot(blank, title="", marks=(), culprits=()) is None


def test_parquet_keeps_the_columns_that_hold_something() -> None:
    read = pq.read_table(BytesIO(as_parquet(rows())))

    assert set(read.column_names) == {"time", "node", "device", "pci_address", "driver_version", "power_watts"}
    assert read.num_rows == 82
    assert driver_versions(rows()) == ("570.1",)
    assert driver_versions(rows().drop_columns(["driver_version"])) == ()


def test_canvas_cuts_off_what_falls_beyond_its_edge() -> None:
    canvas = Canvas(width=10, height=10, palette=[(255, 255, 255), (0, 0, 0)])

    canvas.box(-5, -5, width=7, height=7, colour=1)
    canvas.box(8, 8, width=50, height=50, colour=1)
    canvas.box(50, 50, width=5, height=5, colour=1)
    canvas.curve(np.array([-5, 20]), np.array([5.0, 5.0]), thickness=1, colour=1)

    assert canvas.pixels[:2, :2].all()
    assert canvas.pixels[8:, 8:].all()
    assert canvas.pixels[5].all()
    assert canvas.pixels.sum() == 4 + 4 + 10


def test_letters_differ_and_unknown_ones_are_question_marks() -> None:
    def written(text: str) -> bytes:
        canvas = Canvas(width=text_width(text), height=LETTER_HEIGHT, palette=[(255, 255, 255), (0, 0, 0)])
        canvas.write(0, 0, text, colour=1)
        return canvas.pixels.tobytes()

    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 -.:,/_()%+=#?!<>*[]°"
    assert len({written(letter) for letter in alphabet}) == len(alphabet)
    assert written("\u0416") == written("?")
