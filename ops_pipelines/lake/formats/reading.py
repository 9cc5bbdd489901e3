"""Values as hardware tools print them, unit by unit; and the count of what was read and refused.

Here: adding up. Not here: reading (`reading`), and why a record is refused (each format says).

Here: what nvidia-smi, smartctl, InfiniBand tools and Redfish have in common. Not here: a name that only one of them
knows; what becomes of a record (`tally`).
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache

from ops_pipelines.lake.quantities import Parsed, Quantity, Refused, readable
from ops_pipelines.lake.schema import TABLES

# -- values as hardware tools print them --


Cell = str | float | int | bool | datetime | None


class Unbelievable(ValueError):
    """One record that cannot be believed. Its reason is a fixed code; its message says what was found."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def decode(body: bytes) -> str:
    """Return `body` as text: UTF-8, or UTF-16 by its byte order mark; what does not decode becomes U+FFFD."""
    is_utf16 = body[:2] in (b"\xff\xfe", b"\xfe\xff")
    text = body.decode("utf-16" if is_utf16 else "utf-8-sig", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def as_utf8(body: bytes) -> bytes:
    """Return text that a Windows shell redirected, UTF-16 with its byte order mark, as UTF-8; all else as it is."""
    if body[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return body
    return body.decode("utf-16", errors="replace").encode("utf-8", errors="replace")


_ABSENT = frozenset(
    {
        "",
        "-",
        "--",
        "n/a",
        "na",
        "none",
        "null",
        "nan",
        "unknown",
        "undefined",
        "not supported",
        "not available",
        "not_available",
        "not applicable",
        "not found",
        "unavailable",
        "requested functionality has been deprecated",
    }
)
_BROKEN = frozenset(
    {"err!", "error", "unknown error", "insufficient permissions", "gpu requires reset", "gpu is lost", "no permission"}
)


def is_absent(text: str) -> bool:
    """Say whether the tool says that there is no value: `N/A`, `[Not Supported]`, anything else in square brackets."""
    shown = text.strip().lower()
    is_remark = (shown.startswith("[") and shown.endswith("]")) or shown.startswith(("n/a ", "n/a("))
    return shown in _ABSENT or is_remark or is_broken(text)


def is_broken(text: str) -> bool:
    """Say whether the tool says that reading the value failed: `ERR!`, `[Unknown Error]`, `[GPU requires reset]`."""
    return text.strip().lower().strip("[]") in _BROKEN


def word(value: object) -> str | None:
    """Return a text that identifies or describes, trimmed, without control characters; None if it says nothing."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    shown = readable(str(value).encode("utf-8", errors="replace").decode("utf-8")).strip()
    return None if is_absent(shown) else shown


_FACTORS = {
    "": 1.0,
    "b": 1.0,
    "kib": 1024.0,
    "mib": 1024.0**2,
    "gib": 1024.0**3,
    "tib": 1024.0**4,
    "mb": 1024.0**2,
    "gb": 1024.0**3,
    "%": 0.01,
    "w": 1.0,
    "watts": 1.0,
    "mw": 0.001,
    "kw": 1000.0,
    "c": 1.0,
    "cel": 1.0,
    "°c": 1.0,
    "celsius": 1.0,
    "hz": 1.0,
    "khz": 1e3,
    "mhz": 1e6,
    "ghz": 1e9,
    "kb/s": 1e3,
    "mb/s": 1e6,
    "gb/s": 1e9,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
    "j": 1.0,
    "mj": 0.001,
    "v": 1.0,
    "volts": 1.0,
    "mv": 0.001,
    "x": 1.0,
    "rpm": 1.0,
    "bank(s)": 1.0,
}
_NUMBER = re.compile(
    r"(?P<hex>0x[0-9a-f]{1,32})|(?P<number>[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:e[+-]?\d{1,3})?)"
    r"\s*(?P<unit>[a-z%°/()]*)",
    re.ASCII | re.IGNORECASE,
)
_SWITCHES = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0, "active": 1.0, "not active": 0.0, "pending": 1.0}


def number(value: object, *, unit: str = "", name: str = "value") -> float | None:
    """Return `value` in base units (bytes, W, Hz, ratio, s); `unit` is what it has where it states none.

    None: the source says that there is none. Raises Unbelievable(`bad_value`) for anything that is no number.
    """
    if value is None:
        return None
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        return None if math.isnan(found) else _scaled(found, _FACTORS[unit])
    if not isinstance(value, str):
        raise Unbelievable("bad_value", f"{name}: found {type(value).__name__}, expected a number")
    if is_absent(value):
        return None
    shown = value.strip().lower()
    if shown in _SWITCHES:
        return _SWITCHES[shown]
    match = _NUMBER.fullmatch(shown)
    factor = _FACTORS.get((match["unit"] or unit) if match else "?")
    if match is None or factor is None:
        raise Unbelievable("bad_value", f"{name}: found {readable(value)[:80]!r}, expected a number")
    return float(int(match["hex"], 16)) if match["hex"] else _scaled(float(match["number"]), factor)


def _scaled(value: float, factor: float) -> float:
    """Return the product; where the factor is a fraction, by division, which rounds right: 69 % is 0.69."""
    return value / round(1 / factor) if factor < 1 else value * factor


def whole(value: object, *, name: str = "value") -> int | None:
    """Return `value` as a whole number that 64 bits hold; None if there is none. Raises Unbelievable otherwise."""
    found = number(value, name=name)
    if found is None:
        return None
    if not math.isfinite(found) or found != int(found) or not -(2**63) <= found < 2**63:
        raise Unbelievable("bad_value", f"{name}: found {found:g}, expected a whole number")
    return int(found)


def size(value: object, *, unit: str = "", name: str) -> float | None:
    """Return `value` as bytes, None if there is none. Raises Unbelievable for what is no size, or past 2**80."""
    found = number(value, unit=unit, name=name)
    if found is not None and not 0 <= found <= 2.0**80:
        raise Unbelievable("out_of_range", f"{name}: found {found:g}, expected 0 to 2**80 bytes")
    return found


@cache
def _bounds(table: str) -> Mapping[str, Quantity]:
    return {each.name: each.quantity for each in TABLES[table].columns if each.quantity is not None}


def in_bounds(table: str, cells: Mapping[str, float | None]) -> dict[str, Cell]:
    """Return the cells that have a value. Raises Unbelievable(`out_of_range`) for one that cannot be (catalogue)."""
    kept: dict[str, Cell] = {}
    for column, value in cells.items():
        if value is None:
            continue
        bounds = _bounds(table)[column]
        if not bounds.low <= value <= bounds.high or not math.isfinite(value):
            raise Unbelievable(
                "out_of_range", f"{column}: found {value:g}, expected {bounds.low:g} to {bounds.high:g} {bounds.unit}"
            )
        kept[column] = value
    return kept


def at_epoch(seconds: object) -> datetime | None:
    """Return a time given in seconds since 1970, None if there is none. Raises Unbelievable(`bad_time`)."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(float(str(seconds)), tz=UTC)
    except (ValueError, OverflowError, OSError) as exc:
        shown = readable(str(seconds))[:40]
        raise Unbelievable("bad_time", f"found {shown!r}, expected seconds since 1970") from exc


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ASCTIME = re.compile(
    r"[A-Z][a-z]{2} +(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) +(?P<clock>\d\d:\d\d:\d\d) +(?P<year>\d{4})", re.ASCII
)
_SLASHED = re.compile(
    r"(?P<year>\d{4})[/-](?P<month>\d\d)[/-](?P<day>\d\d)[ T](?P<clock>\d\d:\d\d:\d\d)(?P<fraction>\.\d{1,6})?",
    re.ASCII,
)


def written_time(text: str) -> datetime | None:
    """Return `Fri Jan 27 11:32:31 2023` or `2026/07/14 08:12:38.696`, taken as UTC, for it states no zone.

    None if there is none. Raises Unbelievable(`bad_time`).
    """
    if is_absent(text):
        return None
    shown = text.strip()
    match = _ASCTIME.fullmatch(shown) or _SLASHED.fullmatch(shown)
    try:
        if match is None:
            raise ValueError(shown)
        month = match["month"]
        number_of_month = int(month) if month.isdigit() else _MONTHS.index(month.lower()) + 1
        fraction = match.groupdict().get("fraction") or ""
        hour, minute, second = (int(part) for part in match["clock"].split(":"))
        return datetime(
            int(match["year"]),
            number_of_month,
            int(match["day"]),
            hour,
            minute,
            second,
            int(f"{fraction[1:]:0<6}") if fraction else 0,
            tzinfo=UTC,
        )
    except ValueError as exc:
        raise Unbelievable("bad_time", f"found {readable(text)[:60]!r}, expected a date and a time of day") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenJson:
    """Where JSON stops being JSON."""

    line: int
    detail: str
    text: str


def json_documents(text: str) -> Iterator[object]:
    """Yield the documents of `text`, one or many in a row; the last is a BrokenJson where the rest cannot be read."""
    decoder = json.JSONDecoder(strict=False)
    position, end = 0, len(text)
    while True:
        while position < end and text[position] in " \t\r\n\x00,\ufeff\x1e":
            position += 1
        if position >= end:
            return
        try:
            document, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as exc:
            where = f"line {exc.lineno}, column {exc.colno}"
            detail = f"{exc.msg} at {where}, expected JSON"
            yield BrokenJson(line=exc.lineno, detail=detail, text=readable(text[exc.pos : exc.pos + 200]))
            return
        except (RecursionError, ValueError) as exc:
            line = text.count("\n", 0, position) + 1
            detail = f"the document at line {line} nests too deeply or holds an endless number ({type(exc).__name__})"
            yield BrokenJson(line=line, detail=detail, text=readable(text[position : position + 200]))
            return
        yield document


# -- the tally of what became of each record of one file --


@dataclass(slots=True, kw_only=True)
class Tally:
    """What has become of the records so far. Rows are unique by the key of their table and time."""

    source: str
    accepted: int = 0
    ignored: int = 0
    refused: list[Refused] = field(default_factory=list)
    _rows: dict[str, dict[tuple[Cell, ...], dict[str, Cell]]] = field(default_factory=dict)
    _records: set[str] = field(default_factory=set)

    def refuse(self, record: str, why: Unbelievable, *, text: str, into: str) -> None:
        """Count one record as refused; a place named before gets a number, so that each is unique."""
        name, again = record, 2
        while name in self._records:
            name, again = f"{record} ({again})", again + 1
        self._records.add(name)
        self.refused.append(Refused(record=name, reason=why.reason, detail=why.detail, text=readable(text), into=into))

    def has(self, table: str, row: Mapping[str, Cell]) -> bool:
        """Say whether a row with the same key and time is there."""
        return self._key(table, row) in self._rows.get(table, {})

    def put(self, table: str, row: Mapping[str, Cell]) -> bool:
        """Add a row, or to the row of the same key and time the cells that it lacks; say whether anything was new."""
        known = self._rows.setdefault(table, {}).setdefault(self._key(table, row), {})
        new = {name: cell for name, cell in row.items() if cell is not None and name not in known}
        known.update(new)
        return bool(new)

    def parsed(self) -> Parsed:
        """Return the counts and the tables."""
        return Parsed(
            read=self.accepted + self.ignored + len(self.refused),
            accepted=self.accepted,
            ignored=self.ignored,
            refused=tuple(self.refused),
            tables={name: TABLES[name].from_rows(rows.values()) for name, rows in self._rows.items() if rows},
        )

    @staticmethod
    def _key(table: str, row: Mapping[str, Cell]) -> tuple[Cell, ...]:
        return tuple(row[name] for name in TABLES[table].sort_order)
