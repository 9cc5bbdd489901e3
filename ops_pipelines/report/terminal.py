"""Draws documents for people at a terminal, at 80 columns and wider. Loads rich: for the edges alone.

Text from logs, jobs and people reaches the terminal only through `printable`. Names and ids are folded, never cut;
drawings are left out where a cell beside them says the same.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, JustifyMethod
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from ops_pipelines.report.document import (
    Bar,
    Block,
    Card,
    Cell,
    Chart,
    Choices,
    Column,
    Document,
    Fields,
    Fold,
    Heading,
    Items,
    Kind,
    Legend,
    Mood,
    Note,
    Number,
    Numbers,
    Row,
    RowRole,
    Shares,
    Span,
    Spark,
    Table,
    Words,
    plain,
    spans_of,
)
from ops_pipelines.report.numbers import shown

_STYLES = {Mood.GOOD: "green", Mood.WARN: "yellow", Mood.BAD: "bold red", Mood.SOFT: "dim", None: ""}
"""Colour repeats what the word says; it never stands alone."""
_STEERING = frozenset({"Cc", "Cf", "Cs", "Co"})
"""Unicode categories: control, format (direction marks), surrogate, private use."""
_NARROW = 8
"""So many characters a column of words needs at least; where there is less room, numbers are folded, too."""
_TERMINAL_LINE_ENDS = re.compile(r"[\t\r\n\v\f\u0085\u2028\u2029]+")


def printable(text: str) -> str:
    """Return `text` on one line, with what could steer a terminal written out: an escape becomes `\\x1b` in letters.

    Written out and not removed: whoever reads evidence must see that something odd was there. Direction marks
    (`\\u202e`) count as steering: they make a line read otherwise than it is.
    """
    flat = _TERMINAL_LINE_ENDS.sub(" ", text)
    return "".join(_written_out(char) if unicodedata.category(char) in _STEERING else char for char in flat)


def _written_out(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def console() -> Console:
    """Return a console on standard output that takes text as it is: neither markup nor emoji codes nor highlighting."""
    return Console(markup=False, emoji=False, highlight=False)


def print_lines(out: Console, lines: Iterable[str]) -> None:
    """Print each line, cleaned, folded at the width of the terminal."""
    for line in lines:
        out.print(text_of(line))


def print_fields(out: Console, fields: Mapping[str, Words]) -> None:
    """Print names and values in two columns; empty values are left out."""
    out.print(_grid(fields, left=2))


def plain_table(*titles: str) -> RichTable:
    """Return a table without lines, whose cells are folded."""
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def text_of(words: Words, style: str = "") -> Text:
    """Return words as rich takes them, cleaned."""
    found = Text(overflow="fold", style=style)
    for each in spans_of(words):
        found.append(printable(each.text), style=_style(each))
    return found


def _style(span: Span) -> str:
    return f"{'bold ' if span.is_strong else ''}{_STYLES[span.mood]}".strip()


def print_document(out: Console, document: Document) -> None:
    """Print every block; what only a browser can do (other pages, charts) is left out."""
    out.print(text_of(document.title, style="bold"))
    for each in document.blocks:
        _print_block(out, each)


def _print_block(out: Console, block: Block) -> None:
    match block:
        case Heading():
            aside = f"  {block.aside}" if block.aside else ""
            out.print(Text("\n") + text_of(block.text, style="bold") + text_of(aside))
        case Note():
            out.print(text_of(block.words, style=_STYLES[block.mood]))
        case Items():
            shown_items = block.items[: block.at_most]
            for number, each in enumerate(shown_items, start=1):
                sign = f"{number}. " if block.is_ordered else "- "
                out.print(Padding(text_of((sign, *spans_of(each))), (0, 0, 0, 2)))
            _print_left(out, len(block.items) - len(shown_items))
        case Fields():
            print_fields(out, block.rows)
        case Numbers():
            _print_numbers(out, block.numbers)
        case Table():
            _print_table(out, block)
        case Shares():
            parts = ", ".join(f"{each.what} {each.said}" for each in block.parts if each.size)
            print_lines(out, [f"{block.title}: {parts or 'none'}"])
        case Card():
            out.print(Text("\n") + text_of(block.title))
            out.print(Padding(_grid(block.rows), (0, 0, 0, 2)))
        case Fold():
            print_lines(out, [f"\n{block.summary}:"])
            for inner in block.blocks:
                _print_block(out, inner)
        case Chart():
            for line in block.numbers:
                print_lines(out, [f"{block.title}: {line}"])
        case Legend() | Choices():
            pass


def _grid(rows: Mapping[str, Words], *, left: int = 0) -> RichTable:
    grid = RichTable.grid(padding=(0, 2, 0, left))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        if value:
            grid.add_row(name, text_of(value))
    return grid


def _print_numbers(out: Console, numbers: Sequence[Number]) -> None:
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for each in numbers:
        value = text_of(shown(each.value, each.kind), style=_STYLES[each.mood])
        grid.add_row(value, text_of(f"{each.about}{f' ({each.change})' if each.change else ''}"))
    out.print(grid)


def _print_table(out: Console, table: Table) -> None:
    """Print a table. Columns in which nothing stands are left out, as are drawings."""
    rows = table.every_row if table.folded else table.first_rows
    if table.caption:
        out.print(text_of(table.caption, style="bold"))
    if not rows:
        if table.empty:
            out.print(text_of(table.empty))
        return
    places = [place for place, column in enumerate(table.columns) if _is_printed(place, column, rows)]
    has_room = _least_width(table, places, rows) <= out.width
    drawn = plain_table()
    for place in places:
        column = table.columns[place]
        justify: JustifyMethod = "right" if column.kind.is_number else "left"
        drawn.add_column(column.title, justify=justify, overflow="fold", no_wrap=has_room and _is_whole(column))
    for row in rows:
        if row.role is RowRole.SUM:
            drawn.add_section()
        style = {RowRole.SUM: "bold", RowRole.FAINT: "dim"}.get(row.role, "")
        cells = [_cell(row.cells[place], table.columns[place].kind) for place in places]
        if row.role is RowRole.PART:
            cells[0] = Text("  ") + cells[0]
        drawn.add_row(*cells, style=style)
    out.print(drawn)
    for row in rows:
        if row.note:
            out.print(text_of((f"{plain(_cell(row.cells[0], Kind.TEXT).plain)}: ", *spans_of(row.note))))
    _print_left(out, 0 if table.folded else table.left_count, table.more)


def _is_whole(column: Column) -> bool:
    return column.kind.is_number or column.kind in (Kind.MOMENT, Kind.DAY)


def _least_width(table: Table, places: Sequence[int], rows: Sequence[Row]) -> int:
    """Return how wide a table is whose numbers are whole and whose other columns are narrow."""
    return sum(
        2
        + (
            max(len(table.columns[place].title), *(len(_cell(row.cells[place], column.kind)) for row in rows))
            if _is_whole(column := table.columns[place])
            else _NARROW
        )
        for place in places
    )


def _is_printed(place: int, column: Column, rows: Sequence[Row]) -> bool:
    nothing = (None, "", 0) if column.kind is Kind.CENTS else (None, "")
    return column.kind is not Kind.DRAWN and any(row.cells[place] not in nothing for row in rows)


def _cell(cell: Cell, kind: Kind) -> Text:
    if isinstance(cell, Bar | Spark):
        return text_of(cell.said)
    return text_of(cell if isinstance(cell, Span | tuple) else shown(cell, kind))


def _print_left(out: Console, left_count: int, more: Words = "") -> None:
    if left_count > 0:
        where: tuple[str | Span, ...] = ("; ", *spans_of(more)) if more else ()
        out.print(text_of((f"and {left_count} more", *where), style="dim"))
