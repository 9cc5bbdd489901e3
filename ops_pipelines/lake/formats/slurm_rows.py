"""Delimited and fixed-width text -> rows of cells, as Slurm's clients print tables and as databases export them.

A user's text may hold the delimiter or a line break: where the number of fields and the cells whose form is strict
leave one reading only, the row is put together again, else it is refused. What a column means is the callers'.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ops_pipelines.lake.quantities import Refused, readable

MOST_JOINED_LINES = 50
"""A user's text with more line breaks is not put together again."""

Fits = Callable[[Sequence[str]], bool]
"""Whether the cells of strict form (ids, times, states) stand where they should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a table is written."""

    names: tuple[str, ...]
    """Of the columns, as the header has them."""
    delimiter: str | None = None
    """None: fixed width."""
    is_closed: bool = False
    """The delimiter is after the last column, too (`--parsable`)."""
    spans: tuple[tuple[int, int | None], ...] = ()
    """Of the columns, where the width is fixed."""


@dataclass(slots=True, kw_only=True)
class Rows:
    """The rows of a table: all of one length, with the lines that they stand in."""

    width: int
    """Columns."""
    flat: list[str] = field(default_factory=list)
    """The cells, row after row: one list, for a list a row costs most of the time."""
    lines: list[tuple[int, int]] = field(default_factory=list)
    """First and last line of each row, from 1."""
    refused: list[Refused] = field(default_factory=list)
    repeated_headers: int = 0

    def row(self, index: int) -> list[str]:
        """Return the cells of one row."""
        return self.flat[index * self.width : (index + 1) * self.width]

    def column(self, index: int) -> list[str]:
        """Return the cells of one column."""
        return self.flat[index :: self.width]

    def rows(self) -> Iterator[list[str]]:
        """Yield the rows."""
        return (self.row(index) for index in range(len(self.lines)))

    def record(self, index: int) -> str:
        """Return where a row is."""
        return record_of(*self.lines[index])


def record_of(first: int, last: int) -> str:
    """Return the name of a record: `line 12`, or `line 12-13`."""
    return f"line {first}" if first == last else f"line {first}-{last}"


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_%]*(?:[:/][A-Za-z0-9_:/]+)*(?:\([A-Za-z/]+\))?", re.ASCII)
"""A column's name: JobID, S:C:T, CPUS(A/I/O/T), NODELIST(REASON)."""
_RULE = re.compile(r"\s*-{2,}(?:\s+-+)*\s*")


def read_shape(header: str, *, below: str = "") -> Shape | None:
    """Return how the table under `header` is written; `below` is the line after it. None if it heads no table."""
    plain = header.replace('"', "").rstrip()
    words = list(_WORD.finditer(plain))
    if not words or plain[: words[0].start()].strip():
        return None
    names = tuple(word[0] for word in words)
    if _RULE.fullmatch(below) and len(below.split()) == len(names):
        spans = tuple((found.start(), found.end()) for found in re.finditer(r"-+", below))
        return Shape(names=names, spans=spans)
    between = {plain[one.end() : two.start()].strip(" ") for one, two in pairwise(words)}
    after = header.rstrip("\n").replace('"', "")[words[-1].end() :].strip(" ")
    marks = between - {""}
    if len(marks) == 1 and after in ("", *marks):
        # A name of two words, as `Def QOS`, is one between two marks.
        mark = marks.pop()
        parted = [part.strip(" ") for part in plain.removesuffix(mark).split(mark)]
        return Shape(names=tuple(parted), delimiter=mark, is_closed=after == mark)
    if marks or after:
        return None
    return Shape(names=names, spans=_blank_spans(plain, words))


def _blank_spans(header: str, words: Sequence[re.Match[str]]) -> tuple[tuple[int, int | None], ...]:
    """Return where columns stand that are parted by blanks: a header that begins with a blank is right-aligned."""
    if header[:1] == " ":
        ends = [word.end() for word in words[:-1]]
        return tuple(zip([0, *ends], [*ends, None], strict=True))
    starts = [0, *(word.start() for word in words[1:])]
    return tuple(zip(starts, [*starts[1:], None], strict=True))


def read_rows(
    lines: Sequence[str], shape: Shape, *, first_line: int, flexible: Sequence[int], fits: Fits, header: str = ""
) -> Rows:
    """Return the rows in `lines`, of which the first is line `first_line` of the file. Blank lines are no rows.

    `flexible` are the columns of free text, which may hold the delimiter. A line equal to `header` is a header again.
    """
    if shape.delimiter is None:
        return _fixed_rows(lines, shape, first_line=first_line, header=header)
    return _Delimited(lines, shape, first_line=first_line, flexible=flexible, fits=fits, header=header).read()


def _fixed_rows(lines: Sequence[str], shape: Shape, *, first_line: int, header: str) -> Rows:
    rows = Rows(width=len(shape.names))
    for number, line in enumerate(lines, start=first_line):
        if not line.strip() or _RULE.fullmatch(line):
            continue
        if line == header:
            rows.repeated_headers += 1
            continue
        cells = [line[start:end].strip() for start, end in shape.spans]
        words = line.split()
        # Blanks between all cells say more than positions do, which wide cells shift.
        if len(words) == len(shape.names):
            cells = words
        elif any(_is_cut(line, start) for start, _ in shape.spans[1:]):
            rows.refused.append(_field_count(line, number, number, found=len(words), expected=len(shape.names)))
            continue
        rows.flat += cells
        rows.lines.append((number, number))
    return rows


def _is_cut(line: str, start: int) -> bool:
    """Return whether a column's edge goes through a word."""
    return 0 < start < len(line) and line[start - 1] != " " and line[start] != " "


def _field_count(text: str, first: int, last: int, *, found: int, expected: int) -> Refused:
    return Refused(
        record=record_of(first, last),
        reason="field_count",
        detail=f"found {found} fields, expected {expected}",
        text=readable(text),
    )


class _Delimited:
    def __init__(
        self,
        lines: Sequence[str],
        shape: Shape,
        *,
        first_line: int,
        flexible: Sequence[int],
        fits: Fits,
        header: str,
    ) -> None:
        self._lines, self._first, self._header = lines, first_line, header
        self._delimiter = shape.delimiter or "|"
        self._count = len(shape.names)
        self._is_closed = shape.is_closed
        self._flexible, self._fits = flexible, fits
        self._is_quoting = self._delimiter in (",", ";", "\t")
        self._rows = Rows(width=self._count)

    def read(self) -> Rows:
        lines, delimiter, expected, rows = self._lines, self._delimiter, self._count + self._is_closed, self._rows
        is_closed, is_quoting, header = self._is_closed, self._is_quoting, self._header
        index, end = 0, len(lines)
        while index < end:
            line = lines[index]
            cells = line.split(delimiter)
            if len(cells) != expected or (is_quoting and '"' in line) or (is_closed and cells[-1]):
                index = self._take_odd(index)
                continue
            index += 1
            if line == header:
                rows.repeated_headers += 1
                continue
            if is_closed:
                cells.pop()
            rows.flat += cells
            rows.lines.append((self._first + index - 1, self._first + index - 1))
        return rows

    def _split(self, text: str) -> list[str]:
        """Return the fields of one row, which may be quoted as in CSV."""
        if self._is_quoting and '"' in text:
            try:
                quoted = next(csv.reader([text], delimiter=self._delimiter), [])
            except csv.Error:
                quoted = []
            if len(quoted) == self._count:
                return quoted
        cells = text.split(self._delimiter)
        is_one_more = len(cells) == self._count + 1 or (self._is_closed and len(cells) > self._count)
        if is_one_more and not cells[-1].strip():
            cells.pop()
        return cells

    def _take_odd(self, index: int) -> int:
        """Take the row that begins at `index` and does not have the right number of fields; return where to
        continue."""
        line = self._lines[index]
        if not line.strip(" \t\x00") or _RULE.fullmatch(line):
            return index + 1
        cells = self._split(line)
        if len(cells) == self._count:
            self._keep(cells, index, index)
            return index + 1
        if len(cells) > self._count:
            merged = self._merge(cells)
            if merged:
                self._keep(merged, index, index)
            else:
                self._refuse(line, index, index, found=len(cells))
            return index + 1
        last = self._find_end(index)
        if last is not None:
            joined = "\n".join(self._lines[index : last + 1])
            whole = self._split(joined)
            merged = whole if len(whole) == self._count else self._merge(whole)
            if merged and self._fits(merged):
                self._keep(merged, index, last)
                return last + 1
        self._refuse(line, index, index, found=len(cells))
        return index + 1

    def _find_end(self, index: int) -> int | None:
        """Return the line in which a row ends that was broken at `index`; None if no number of lines makes a row."""
        text = self._lines[index]
        for last in range(index + 1, min(index + 1 + MOST_JOINED_LINES, len(self._lines))):
            # A line that is a row by itself belongs to no other.
            cells = self._split(self._lines[last])
            if len(cells) >= self._count and self._fits(cells[: self._count]):
                return None
            text = f"{text}\n{self._lines[last]}"
            found = len(self._split(text))
            if found >= self._count:
                return last
        return None

    def _merge(self, cells: list[str]) -> list[str] | None:
        """Return a row with too many fields put together: one column of free text held the delimiter. None: unclear."""
        if self._delimiter == ",":
            cells = _merge_lists(cells)
            if len(cells) == self._count:
                return cells if self._fits(cells) else None
        extra = len(cells) - self._count
        if extra < 0 or len(cells) > self._count + 200:
            return None
        readings = []
        for at in self._flexible:
            reading = [
                *cells[:at],
                self._delimiter.join(cells[at : at + extra + 1]),
                *cells[at + extra + 1 :],
            ]
            if self._fits(reading):
                readings.append(reading)
        return readings[0] if len(readings) == 1 else None

    def _keep(self, cells: list[str], first: int, last: int) -> None:
        self._rows.flat += cells
        self._rows.lines.append((self._first + first, self._first + last))

    def _refuse(self, text: str, first: int, last: int, *, found: int) -> None:
        place = self._first + first, self._first + last
        self._rows.refused.append(_field_count(text, *place, found=found, expected=self._count))


_PAIR = re.compile(r"\s*[a-z0-9_/:.-]+=[^=]*", re.ASCII)


def _merge_lists(cells: Sequence[str]) -> list[str]:
    """Return cells with comma lists put together again: TRES (`cpu=1,mem=2G`) and host lists (`n[1,3]`).

    Two TRES columns side by side part where a name comes again.
    """
    merged: list[str] = []
    names: set[str] = set()
    for cell in cells:
        name = cell.partition("=")[0].strip() if _PAIR.fullmatch(cell) else ""
        if merged and merged[-1].count("[") > merged[-1].count("]"):
            merged[-1] = f"{merged[-1]},{cell}"
        elif name and names and name not in names:
            merged[-1] = f"{merged[-1]},{cell}"
            names.add(name)
        else:
            merged.append(cell)
            names = {name} if name else set()
    return merged
