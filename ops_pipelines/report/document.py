"""What a report says, as values: one document per subject, which renderers draw for terminals, browsers and Dagster.

Blocks, cells and their kinds belong here, and nothing of how they look: `terminal`, `html` and `metadata` beside this
module draw every block. A subject's `report` module returns a `Document`; it never writes HTML, Markdown or tables of a
terminal. Texts may be anybody's words: a renderer escapes them, shows what is hidden, and cuts what does not end.

JSON is drawn from a mapping or a dataclass, in the order of its keys, with times in UTC. Keys are a contract with the
scripts of operators: each subject writes its own in its `report`, and no document makes them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, date, datetime
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Mood(Enum):
    """How welcome something is; the value is the class of the style sheet."""

    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    SOFT = "soft"
    """Beside the point: read last."""


class Kind(Enum):
    """What a column or a number holds: the unit of its raw values, and how they are written."""

    TEXT = "text"
    NAME = "name"
    """Of a node, team, proposal: never broken across lines."""
    WORDS = "words"
    """Sentences: the column takes what room there is."""
    COUNT = "count"
    GPUS = "gpus"
    GPU_HOURS = "gpu_hours"
    CHANGE = "change"
    """GPUs more or less."""
    CENTS = "cents"
    RATIO = "ratio"
    SECONDS = "seconds"
    BYTES = "bytes"
    MOMENT = "moment"
    DAY = "day"
    DRAWN = "drawn"
    """Bars and curves."""

    @property
    def is_number(self) -> bool:
        return self in _NUMBERS


_NUMBERS = frozenset({
    Kind.COUNT, Kind.GPUS, Kind.GPU_HOURS, Kind.CHANGE, Kind.CENTS, Kind.RATIO, Kind.SECONDS, Kind.BYTES,
})  # fmt: skip


class Shade(IntEnum):
    """What a part of a bar is drawn in: Okabe and Ito's colours, which colour-blind eyes tell apart."""

    NONE = 0
    """Paper: it only moves what follows."""
    GREY = 2
    PALE = 3
    BLUE = 4
    ORANGE = 5
    GREEN = 6
    YELLOW = 7
    PINK = 8
    SKY = 9


def clipped(text: str, *, at_most: int = 300) -> str:
    """Return a text that does not push everything else off the page."""
    return text if len(text) <= at_most else f"{text[: at_most - 1]}…"


# -- words --


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Some words that are set apart."""

    text: str
    mood: Mood | None = None
    is_strong: bool = False
    is_code: bool = False
    link: str = ""
    """Relative to the page; empty for none. Only a page can follow it."""


Words: TypeAlias = "str | Span | tuple[str | Span, ...]"


def strong(text: str, mood: Mood | None = None) -> Span:
    return Span(text=text, mood=mood, is_strong=True)


def toned(text: str, mood: Mood | None) -> Span:
    return Span(text=text, mood=mood)


def soft(text: str) -> Span:
    return Span(text=text, mood=Mood.SOFT)


def code(text: str) -> Span:
    return Span(text=text, is_code=True)


def link(text: str, to: str) -> Span:
    return Span(text=text, link=to)


def spans_of(words: Words) -> tuple[Span, ...]:
    """Return words in their parts."""
    parts = words if isinstance(words, tuple) else (words,)
    return tuple(each if isinstance(each, Span) else Span(text=each) for each in parts)


def plain(words: Words) -> str:
    """Return the text alone."""
    return "".join(each.text for each in spans_of(words))


# -- small drawings within a cell --


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar on a scale from 0 to 1, with marks on it. What is drawn is also stated: renderers without pictures say
    it."""

    said: str
    parts: tuple[tuple[float, Shade], ...] = ()
    """Lengths from left to right."""
    outline: float | None = None
    ticks: tuple[float, ...] = ()
    rings: tuple[float, ...] = ()
    """One above 1 is drawn as a sign that the scale continues."""
    dots: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """A stepped curve from 0 to its largest value."""

    said: str
    values: tuple[float, ...]


Cell: TypeAlias = "str | Span | tuple[str | Span, ...] | int | float | date | datetime | Bar | Spark | None"
"""None is what nobody knows."""


# -- blocks --


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    text: Words
    aside: str = ""
    level: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence, or a few."""

    words: Words
    mood: Mood | None = None
    is_framed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list."""

    items: Sequence[Words]
    key: str = ""
    at_most: int = 50
    is_ordered: bool = False
    sign: str = "-"
    """Before each in a terminal: `+` where they are what argues for something."""
    is_headline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Names, each with what is known of it; empty words are left out."""

    rows: Mapping[str, Words]


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number that is worth a tile."""

    value: Cell
    about: str
    kind: Kind = Kind.TEXT
    mood: Mood | None = None
    change: str = ""
    change_mood: Mood | None = None
    title: str = ""
    """Of the page that says more of it, which is at `link`."""
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    numbers: Sequence[Number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    title: str
    kind: Kind = Kind.TEXT
    key: str = ""
    """Its name where rows are data; made from the title unless given."""
    is_strong: bool = False

    @property
    def name(self) -> str:
        return self.key or self.title.lower().replace(" ", "_").replace(",", "")


class RowRole(Enum):
    """What a row is among the others."""

    PLAIN = "plain"
    PART = "part"
    """Of the row above."""
    SUM = "sum"
    """Of all the others."""
    WHOLE = "whole"
    """Of the parts below it."""
    FAINT = "faint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    cells: tuple[Cell, ...]
    note: Words = ""
    """Below the row, over its whole width."""
    role: RowRole = RowRole.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: tuple[Column, ...]
    rows: Sequence[Row | tuple[Cell, ...]]
    empty: Words = "None."
    """What is stated where there is no row."""
    key: str = ""
    """Its name in Dagster's metadata; without one it is on pages and in terminals alone."""
    at_most: int = 40
    """So many rows are shown, with their parts; sums always."""
    more: Words = ""
    """Where the other rows are."""
    folded: str = ""
    """What the other rows are called, such as `teams`: they stand behind a line. Empty: they are left out."""
    caption: str = ""

    @property
    def every_row(self) -> Sequence[Row]:
        return [each if isinstance(each, Row) else Row(cells=each) for each in self.rows]

    @property
    def first_rows(self) -> Sequence[Row]:
        return self._split()[0]

    @property
    def other_rows(self) -> Sequence[Row]:
        return self._split()[1]

    @property
    def left_count(self) -> int:
        """How many rows are not among the first ones; those that are parts of one above do not count."""
        return sum(each.role is not RowRole.PART for each in self.other_rows)

    def _split(self) -> tuple[list[Row], list[Row]]:
        first: list[Row] = []
        others: list[Row] = []
        count = 0
        for each in self.every_row:
            count += each.role not in (RowRole.PART, RowRole.SUM)
            (first if count <= self.at_most or each.role is RowRole.SUM else others).append(each)
        return first, others


def columns_of(heads: str) -> tuple[Column, ...]:
    """Return the columns of heads that bars part; each may name its kind after a colon: `Node:name|Why|Held:gpus`."""
    parts = [head.partition(":") for head in heads.split("|")]
    return tuple(Column(title=title, kind=Kind(kind or "text")) for title, _, kind in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One part of a whole."""

    what: str
    size: float
    said: str
    shade: Shade


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A whole by its parts: one bar over the width of the page, and what each colour means."""

    title: str
    parts: Sequence[Share]
    whole: float
    """At least the sum of the parts: what is left stays empty."""
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swatch:
    """A colour, or a step of `charts.STEPS`, and what it means."""

    what: str
    step: Shade | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Legend:
    """What the drawings of a table mean."""

    parts: Sequence[Bar | Swatch | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture that `report.charts` or `report.pictures` drew, and what it says in numbers."""

    title: str
    svg: str = ""
    image: str = ""
    """In place of `svg`: an address that holds a picture itself (`data:image/...`)."""
    narrow: str = ""
    """The same for a phone, as the one or the other; empty: it is good for both."""
    numbers: Sequence[str] = ()
    is_small: bool = False
    """Several of these stand beside each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What belongs to one thing, framed."""

    title: Words
    rows: Mapping[str, Words]
    key: str = ""
    """Cards of one key are a table in Dagster's metadata."""
    data: Mapping[str, str] = field(default_factory=dict)
    """What a row of that table says beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """What few readers need: behind a line in a browser."""

    summary: str
    blocks: "Sequence[Block]"
    is_open: bool = False
    is_printed: bool = True
    """False: too much for a terminal, which prints the summary alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Other documents of this kind; only a page can lead to them."""

    about: str
    current: str
    links: Mapping[str, str]
    """Names, each with its address."""


Block: TypeAlias = (
    Heading | Note | Items | Fields | Numbers | Table | Shares | Legend | Chart | Card | Fold | Choices
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole report."""

    title: str
    cluster: str
    about: Words
    blocks: Sequence[Block]
    command: str = ""
    """What prints the same in a terminal."""
    state: Span | None = None
    """How it is, beside the title."""
    now: datetime | None = None
    """None: it says by itself of when it is."""
    measures: Mapping[str, int | float | str] | None = None
    """Numbers and words that Dagster keeps, and plots, by name."""
    is_paper: bool = False
    """Printed and sent on: dark on white, wide, and led back to no other page."""
    home: str = "."
    """Where the first page is, from here; empty: nowhere."""


def sections(*parts: "Block | Sequence[Block] | None") -> tuple[Block, ...]:
    """Return blocks in a row: groups are opened, what is not there is left out."""
    found: list[Block] = []
    for each in parts:
        if isinstance(each, Sequence):
            found.extend(each)
        elif each is not None:
            found.append(each)
    return tuple(found)


def under(title: str, *parts: "Block | Sequence[Block] | None") -> tuple[Block, ...]:
    """Return the same below a heading."""
    return sections(Heading(text=title), *parts)


def listed_under(title: str, items: Sequence[str], *, key: str = "") -> tuple[Block, ...]:
    """Return a heading and its list; nothing where nothing is listed."""
    listed = [clipped(each) for each in items]
    return under(title, Items(items=listed, key=key)) if items else ()


Keys: TypeAlias = Mapping[str, object]
"""A document, or a part of one."""


def to_json(view: "DataclassInstance | Keys") -> str:
    """Return a view as JSON in ASCII, in which no control character of an untrusted text is left as such."""
    return json.dumps(
        view if isinstance(view, Mapping) else asdict(view), indent=2, ensure_ascii=True, default=_to_plain
    )


def fields_of(value: object, names: str) -> dict[str, object]:
    """Return attributes of a value under their own names, which are apart by blanks: these are the keys."""
    return {name: getattr(value, name) for name in names.split()}


def _to_plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
