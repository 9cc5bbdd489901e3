"""What became of the records of one file or answer: accepted into tables, rejected with a reason, or ignored.

The counts close: read = accepted + rejected + ignored. What a record is, each format says for itself; how the text of
one is shown is the same for all.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TEXT_LENGTH = 1000
"""Characters of a line that are kept as evidence. The longest Xid line seen (NVLink 5 register words) has about 250."""


class WrongKind(ValueError):
    """The bytes are of another kind than was said. The message: what was found, what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One record that was not believed."""

    record: str
    """Where it stands: `line 12`, a series, a JSON pointer. Unique within the source."""
    reason: str
    """A fixed snake_case code; never holds data."""
    detail: str
    """What was found, what was expected."""
    text: str
    """The record, made readable (`readable`)."""
    into: str | None = None
    """The table that it would have gone to, where that is known."""
    at: datetime | None = None
    """When it was measured, where it says so and can be believed."""


@runtime_checkable
class CountsReasons(Protocol):
    """Refused records that can be counted without being written out one by one."""

    def count_reasons(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What one file or answer says."""

    read: int
    accepted: int
    ignored: int
    refused: Sequence[Refused] = ()
    tables: Mapping[str, "pa.Table"] = field(default_factory=dict)
    """Table of `schema.TABLES` -> its rows, in its Arrow schema. Tables without rows are left out."""

    def __post_init__(self) -> None:
        if self.read != self.accepted + len(self.refused) + self.ignored:
            found = f"{self.accepted} accepted + {len(self.refused)} rejected + {self.ignored} ignored"
            raise ValueError(f"{self.read} read, but {found}")

    @property
    def reasons(self) -> dict[str, int]:
        """Reason -> how many records were rejected for it, in alphabetical order."""
        if isinstance(self.refused, CountsReasons):
            return dict(sorted(self.refused.count_reasons().items()))
        return dict(sorted(Counter(each.reason for each in self.refused).items()))


def readable(text: str) -> str:
    """Return `text` on one line, without control characters (they could steer a terminal), at most 1000 characters."""
    kept = text[:MAX_TEXT_LENGTH].strip("\x00\r\n")
    is_clean = kept.isprintable()
    shown = kept if is_clean else "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in kept)
    return shown if len(text) <= MAX_TEXT_LENGTH else f"{shown}[cut at {MAX_TEXT_LENGTH} of {len(text)} characters]"
