"""How numbers and texts are written for people, the same in every renderer: GPUs, hours, money, shares, spans, times.

A dash is what nobody knows. Formats alone: what a number means is its subject's. Text from anywhere goes into Markdown
through `escape_markdown` alone.
"""

import math
import re
from datetime import UTC, date, datetime, timedelta

from ops_pipelines.core.money import Cents
from ops_pipelines.report.document import Bar, Cell, Kind, Span, Spark, plain

DASH = "-"
_MINUS = "\u2212"
_SPACES = frozenset("\n\t\u00a0\u2009\u202f")
_UNSEEN = "\ufffd"


def shown(value: Cell, kind: Kind) -> str:
    """Return a value of a kind in words."""
    if value is None:
        return DASH
    if isinstance(value, Bar | Spark):
        return value.said
    if isinstance(value, str | Span | tuple):
        return plain(value)
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, date):
        return value.isoformat()
    match kind:
        case Kind.GPUS:
            return gpus(value)
        case Kind.GPU_HOURS:
            return hours(value)
        case Kind.CHANGE:
            return signed(value)
        case Kind.CENTS:
            return money(int(value))
        case Kind.RATIO:
            return percent(value)
        case Kind.SECONDS:
            return span(value)
        case Kind.BYTES:
            return bytes_words(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def counted(number: float, what: str) -> str:
    """Return a number of things: `1 row`, `2 rows`, with thousands apart."""
    return f"{number:,.0f} {what}{'' if number == 1 else 's'}"


def gpus(count: float | None) -> str:
    """Return a number of GPUs: whole ones without a decimal."""
    if count is None:
        return DASH
    if not math.isfinite(count):
        return "no end"
    rounded = round(count, 1)
    return f"{rounded:,.0f}" if rounded == int(rounded) else f"{rounded:,.1f}"


def hours(count: float | None) -> str:
    """Return GPU-hours: small ones with a decimal, large ones whole."""
    if count is None:
        return DASH
    return f"{count:,.1f}" if abs(count) < 1_000 else f"{count:,.0f}"


def signed(count: float) -> str:
    """Return a change with its sign; `0` for none."""
    size_of = gpus(abs(count))
    return size_of if size_of == "0" else f"{'+' if count > 0 else _MINUS}{size_of}"


def money(cents: Cents | int | None) -> str:
    """Return cents as an amount with thousands apart, exactly."""
    if cents is None:
        return DASH
    whole, rest = divmod(abs(cents), 100)
    return f"{_MINUS if cents < 0 else ''}{whole:,}.{rest:02d}"


def percent(ratio: float | None, digits: int = 1) -> str:
    """Return a ratio 0..1 as `94.2 %`."""
    return DASH if ratio is None else f"{ratio:.{digits}%}".replace("%", " %")


def bytes_words(size: float) -> str:
    """Return a size in the largest unit that leaves a number above 1."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:,.0f} B"


def span(seconds: float | None) -> str:
    """Return a wait: seconds below a minute, minutes below two hours, then hours, then days."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3_600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:.1f} d"


def span_words(seconds: float) -> str:
    """Return a span in its two largest units, as `2 h 5 min`."""
    whole = round(seconds)
    if whole < 0:
        return f"-{span_words(-seconds)}"
    parts = [(whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next((place for place, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number) or "0 s"


def duration(length: timedelta | None) -> str:
    """Return a span in its two largest units; a dash where there is none."""
    return DASH if length is None else span_words(length.total_seconds())


def moment(at: datetime | None) -> str:
    """Return a time as `2026-11-22 08:15:02 UTC`."""
    return DASH if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def share_of(value: float, whole: float) -> float:
    """Return where a value is between 0 and a whole, as 0..1."""
    return 0.0 if whole <= 0 else min(1.0, max(0.0, value / whole))


def seen(text: str) -> str:
    """Return a text in which nothing is hidden: a direction mark could turn the words of an approval around.

    Lone surrogates, which no page can be encoded with, go the same way.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _SPACES else _UNSEEN for char in text)


_SPECIAL = re.compile(
    r"([\\`*\[\]<>!|#~&{}$@]|(?<![^\W_])_|_(?![^\W_])|(?<=\w):(?=//)|(?<=[Ww]{3})\.|^[-+=]|^\d+(?=[.)](?:\s|$)))"
)
"""An underscore within a word is none of Markdown's, and names of tests are full of them."""


_LONGEST_SENTENCE = 400


def escape_markdown(text: str, *, at_most: int = _LONGEST_SENTENCE) -> str:
    """Return a text on one line, at most so many characters of it, in which no character means anything to Markdown.

    Neither to GitHub's dialect: no link is made of an address, and no cell of a table ends.
    """
    flat = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    shown = flat if len(flat) <= at_most else f"{flat[: at_most - 1]}…"
    return _SPECIAL.sub(_written_out, shown)


def _written_out(found: re.Match[str]) -> str:
    """Return a sign with a backslash before it; a number at the beginning would be a list: a space makes it none."""
    return f"\\{found[0]}" if not found[0].isdigit() else f"{found[0]}\\"
