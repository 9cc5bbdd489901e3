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
    spans_of,
)
from ops_pipelines.report.numbers import shown

_STYLES = {Mood.GOOD: "green", Mood.WARN: "yellow", Mood.BAD: "bold red", Mood.SOFT: "dim", None: ""}
"""Colour repeats what the word says; it never is alone."""
_STEERING = frozenset({"Cc", "Cf", "Cs", "Co"})
"""Unicode categories: control, format (direction marks), surrogate, private use."""
_NARROW = 12
"""So many characters a column of words needs at least."""
_LONGEST_NAME = 40
_TERMINAL_LINE_ENDS = re.compile(r"[\t\r\n\v\f\u0085\u2028\u2029]+")


def printable(text: str) -> str:
    """Return `text` on one line, with what could steer a terminal written out: an escape becomes `\\x1b` in letters.

    Written out and not removed: anyone who reads evidence must see that something odd was there. Direction marks
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
        table.add_column(printable(title), overflow="fold")
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
    state = (": ", document.state) if document.state is not None else ()
    out.print(text_of((document.title, *state), style="bold"))
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
                sign = f"{number}. " if block.is_ordered else f"{block.sign} "
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
            out.print(text_of(f"{block.summary}{':' if block.is_printed else ''}", style="dim"))
            for inner in block.blocks if block.is_printed else ():
                _print_block(out, inner)
        case Chart():
            lines = block.numbers or ["the page draws it"]
            print_lines(out, [f"{block.title}: {line}" for line in lines])
        case Legend() | Choices():
            pass


def _grid(rows: Mapping[str, Words], *, left: int = 0) -> RichTable:
    grid = RichTable.grid(padding=(0, 2, 0, left))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        if value:
            grid.add_row(printable(name), text_of(value))
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
    """Print a table. Empty columns are left out, as are drawings."""
    rows = table.every_row if table.folded else table.first_rows
    if table.caption:
        out.print(text_of(table.caption, style="bold"))
    if not rows:
        if table.empty:
            out.print(text_of(table.empty))
        return
    places = [place for place, column in enumerate(table.columns) if _is_printed(place, column, rows)]
    columns = [_Printed(table, place, rows) for place in places]
    narrow = [each for each in columns if each.kind is not Kind.WORDS]
    if sum(each.least + 2 for each in columns) <= out.width:
        _print_rows(out, columns, rows, below=())
    elif sum(each.longest_word + 2 for each in narrow) <= out.width:
        # What explains a row is below the table, where it may be long.
        _print_rows(out, narrow, rows, below=[each for each in columns if each.kind is Kind.WORDS])
    else:
        _print_cards(out, columns, rows)
    _print_left(out, 0 if table.folded else table.left_count, table.more)


class _Printed:
    """One column of a table on its way to the terminal."""

    def __init__(self, table: Table, place: int, rows: Sequence[Row]) -> None:
        column = table.columns[place]
        self.title, self.kind = column.title, column.kind
        self.cells = [_cell(row.cells[place], column.kind) for row in rows]
        widest = max(map(len, self.cells))
        words = [word for cell in self.cells for word in cell.plain.split()]
        self.is_whole = _is_whole(column, widest)
        title = max(map(len, column.title.split()), default=0)
        self.widest = max(widest, len(column.title))
        self.least = max(widest if self.is_whole else min(_NARROW, widest), title)
        """Numbers, times and names are whole at this width, and words have some room."""
        self.longest_word = min(self.least, max([title, *map(len, words)]))


def _print_rows(out: Console, columns: Sequence[_Printed], rows: Sequence[Row], *, below: Sequence[_Printed]) -> None:
    drawn = plain_table()
    is_tight = bool(below)
    room = out.width - sum((each.longest_word if is_tight else each.least) + 2 for each in columns)
    for each in columns:
        justify: JustifyMethod = "right" if each.kind.is_number else "left"
        width = None
        if is_tight or each.is_whole:
            least = each.longest_word if is_tight else each.least
            width = least + max(0, min(room, each.widest - least))
            room -= width - least
        drawn.add_column(printable(each.title), justify=justify, overflow="fold", width=width)
    for number, row in enumerate(rows):
        if row.role is RowRole.SUM:
            drawn.add_section()
        cells = [each.cells[number] for each in columns]
        if row.role is RowRole.PART:
            cells[0] = Text("  ") + cells[0]
        drawn.add_row(*cells, style={RowRole.SUM: "bold", RowRole.FAINT: "dim"}.get(row.role, ""))
    out.print(drawn)
    named = [each for each in columns if each.kind in (Kind.NAME, Kind.TEXT)][:2] or columns[:1]
    for number, row in enumerate(rows):
        name = Text(" ").join(each.cells[number] for each in named)
        for note in (*(each.cells[number] for each in below), text_of(row.note)):
            if note:
                out.print(name + Text(": ") + note)


def _print_cards(out: Console, columns: Sequence[_Printed], rows: Sequence[Row]) -> None:
    """Print a table for which the terminal is too narrow: a row a line, its sentences below it."""
    for number, row in enumerate(rows):
        line = Text(overflow="fold")
        for each in columns:
            if each.kind is not Kind.WORDS and each.cells[number]:
                name = text_of(f"{'  ' if line else ''}{each.title.lower()} ", style="dim")
                line.append_text(name + each.cells[number])
        out.print(line)
        sentences = [each.cells[number] for each in columns if each.kind is Kind.WORDS]
        for sentence in (*sentences, text_of(row.note)):
            if sentence:
                out.print(Padding(sentence, (0, 0, 0, 4)))


def _is_whole(column: Column, widest: int) -> bool:
    """Return whether cells are never broken: numbers and times, and names that are of no unheard-of length."""
    if column.kind is Kind.NAME:
        return widest <= _LONGEST_NAME
    return column.kind.is_number or column.kind in (Kind.MOMENT, Kind.DAY)


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
