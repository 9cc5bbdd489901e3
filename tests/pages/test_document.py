"""The document model: what each renderer makes of each block, of words that mean harm, and of a narrow terminal."""

import re
from datetime import UTC, date, datetime
from itertools import pairwise

import dagster as dg
import pytest

from ops_pipelines.report import document as doc
from ops_pipelines.report.document import Kind
from ops_pipelines.report.html import page_of
from ops_pipelines.report.metadata import metadata_of
from ops_pipelines.report.numbers import shown
from tests.pages.golden import FOLDER, REPORTS, printed

EVIL = '"><script>alert(1)</script> [x](javascript:y) \u202e\x1b[2J'
AT = datetime(2026, 11, 22, 8, 15, 2, tzinfo=UTC)


def document(*blocks: doc.Block, **changed: object) -> doc.Document:
    given: dict[str, object] = {"title": "T", "cluster": "small", "about": "about", "blocks": blocks}
    return doc.Document(**{**given, **changed})  # type: ignore[arg-type]  # fields by name


def every_block(words: str) -> doc.Document:
    """Return a document in which each block of the model holds the words wherever it takes any."""
    bar = doc.Bar(said=words, parts=((0.5, doc.Shade.BLUE),), ticks=(0.4,), rings=(2.0,), dots=(0.1,), outline=0.9)
    table = doc.Table(
        key="table", caption=words, more=words,
        columns=(doc.Column(title=words, kind=Kind.NAME), doc.Column(title="n", kind=Kind.COUNT),
                 doc.Column(title="w", kind=Kind.WORDS), doc.Column(title="d", kind=Kind.DRAWN)),
        rows=[doc.Row(cells=(words, 1, doc.strong(words), bar), note=words), (doc.link(words, "x"), 2, words, "")],
        at_most=1,
    )  # fmt: skip
    return document(
        doc.Heading(text=words, aside=words),
        doc.Note(words=(words, doc.code(words), doc.soft(words))),
        doc.Items(items=[words], key="items"),
        doc.Fields(rows={words: words}),
        doc.Numbers(numbers=[doc.Number(value=words, about=words, change=words)]),
        table,
        doc.Shares(title=words, whole=2, parts=[doc.Share(what=words, size=1, said=words, shade=doc.Shade.SKY)]),
        doc.Legend(parts=(words, bar, doc.Swatch(what=words, step=2))),
        doc.Chart(title=words, svg="<svg/>", numbers=(words,)),
        doc.Card(title=words, rows={words: words}, key="cards", data={"team": words}),
        doc.Fold(summary=words, blocks=(doc.Note(words=words), table)),
        doc.Choices(about=words, current="", links={words: "x"}),
        title=words, cluster=words, about=words, command=words, now=AT, measures={"said": words},
    )  # fmt: skip


# -- words that mean harm --


def test_no_block_lets_words_become_markup_or_hide_anything() -> None:
    page = page_of(every_block(EVIL))

    assert "<script" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert page.count("&lt;script&gt;") > 20


def test_no_block_lets_words_steer_a_terminal() -> None:
    text = printed(every_block(EVIL))

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[2J" in text


def test_no_block_lets_words_become_markdown() -> None:
    found = metadata_of(every_block(EVIL))

    assert set(found) == {"said", "items", "table", "cards"}
    assert isinstance(found["table"], dg.TableMetadataValue)
    assert isinstance(found["cards"], dg.TableMetadataValue)
    records = (*found["table"].records, *found["cards"].records)
    texts = [str(value) for record in records for value in record.data.values()]
    for text in (*texts, str(found["items"].value)):
        assert "](" not in text.replace("\\]", "")
        assert "<script" not in text.replace("\\<", "")


def test_words_without_an_end_are_cut_on_a_page() -> None:
    assert "x" * 601 not in page_of(every_block("x" * 10_000))


# -- numbers --


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (None, Kind.COUNT, "-"),
        (1_234, Kind.COUNT, "1,234"),
        (0.5, Kind.RATIO, "50.0 %"),
        (-1_205, Kind.CENTS, "\u221212.05"),
        (123_456, Kind.CENTS, "1,234.56"),
        (8.0, Kind.GPUS, "8"),
        (float("inf"), Kind.GPUS, "no end"),
        (999.94, Kind.GPU_HOURS, "999.9"),
        (1_000.0, Kind.GPU_HOURS, "1,000"),
        (-8, Kind.CHANGE, "\u22128"),
        (0.04, Kind.CHANGE, "0"),
        (59, Kind.SECONDS, "59 s"),
        (60, Kind.SECONDS, "1 min"),
        (7_200, Kind.SECONDS, "2.0 h"),
        (172_800, Kind.SECONDS, "2.0 d"),
        (2**40, Kind.BYTES, "1.0 TiB"),
        (AT, Kind.MOMENT, "2026-11-22 08:15:02 UTC"),
        (date(2026, 11, 22), Kind.DAY, "2026-11-22"),
        ("no limit", Kind.GPUS, "no limit"),
    ],
)  # fmt: skip
def test_each_kind_is_written_one_way(value: doc.Cell, kind: Kind, words: str) -> None:
    assert shown(value, kind) == words


# -- tables --


def teams(count: int, **changed: object) -> doc.Table:
    rows: list[doc.Row] = [doc.Row(cells=(f"team{number:02}", 100 * number)) for number in range(count)]
    rows.append(doc.Row(cells=("sum", 1), role=doc.RowRole.SUM))
    columns = doc.Column(title="Team", kind=Kind.NAME), doc.Column(title="Cost", kind=Kind.CENTS)
    given: dict[str, object] = {"columns": columns, "rows": rows, "key": "teams", "at_most": 3}
    return doc.Table(**{**given, **changed})  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(("count", "left"), [(2, 0), (3, 0), (4, 1), (10, 7)])
def test_rows_beyond_the_first_are_counted_and_a_sum_is_always_shown(count: int, left: int) -> None:
    page = page_of(document(teams(count)))

    assert (f"and {left} more" in page) is (left > 0)
    assert page.count('<tr class="sum') == 1


def test_folded_rows_are_all_there() -> None:
    folded = document(teams(10, folded="teams"))

    assert "7 more teams" in page_of(folded)
    assert page_of(folded).count("<bdi>team") == 10
    assert printed(folded).count("team0") == 10


def test_data_holds_raw_numbers_and_no_sum_among_its_parts() -> None:
    found = metadata_of(document(teams(3)))["teams"]

    assert isinstance(found, dg.TableMetadataValue)
    assert [record.data for record in found.records] == [
        {"team": "team00", "cost": 0.0}, {"team": "team01", "cost": 1.0}, {"team": "team02", "cost": 2.0},
    ]  # fmt: skip


def test_parts_stay_with_their_row() -> None:
    part = doc.RowRole.PART
    rows = [("a", 1), doc.Row(cells=("a / x", 1), role=part), ("b", 2), doc.Row(cells=("b / y", 2), role=part)]

    table = teams(0, rows=rows, at_most=1)

    assert [row.cells[0] for row in table.first_rows] == ["a", "a / x"]
    assert table.left_count == 1


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 110, 200])
def test_a_terminal_of_any_width_holds_every_number_whole(columns: int) -> None:
    table = doc.Table(
        columns=(doc.Column(title="Proposal", kind=Kind.NAME), doc.Column(title="Moves", kind=Kind.CENTS),
                 doc.Column(title="Why", kind=Kind.WORDS)),
        rows=[("QUOTA-1", 123_456_789, "because nobody else asked for any of these GPUs on that day")],
    )  # fmt: skip

    text = printed(document(table), columns=columns)

    assert all(len(each) <= columns for each in text.splitlines())
    assert "QUOTA-1" in text
    assert "1,234,567.89" in text
    assert re.sub(r"\s+", " ", text).count("nobody") == 1


# -- drawings --


def test_a_bar_ends_where_its_scale_does() -> None:
    bar = doc.Bar(said="over", parts=((0.7, doc.Shade.BLUE), (0.9, doc.Shade.SKY)), ticks=(0.5,))
    table = doc.Table(columns=(doc.Column(title="", kind=Kind.DRAWN),), rows=[(bar,)])

    drawn = re.findall(r'<rect x="([\d.]+)%" y="7" width="([\d.]+)%"', page_of(document(table)))

    assert [(float(at), float(wide)) for at, wide in drawn] == [(0, 70), (70, 30)]
    assert all(float(at) + float(wide) <= float(after) + 0.01 for (at, wide), (after, _) in pairwise(drawn))


# -- what operators see --


@pytest.mark.parametrize("name", REPORTS)
def test_each_report_reads_as_it_was_last_agreed(name: str) -> None:
    assert printed(REPORTS[name]()) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
