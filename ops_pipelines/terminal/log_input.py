"""Opens a log that a person names: a file or standard input, gzipped or not, as a stream of bytes that may end early.

What its lines mean is `observe.logs`' business.
"""

import gzip
import io
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STANDARD_INPUT = "-"
_GZIP = b"\x1f\x8b\x08"
_HEAD_BYTES = 16
_READ_AT_ONCE = 1024 * 1024


class UnreadableLog(ValueError):
    """The file cannot be read as a log. The message says why, and what to give instead."""


class SalvagedLog:
    """A log that ends where it can no longer be read, so that what stands before is answered all the same."""

    def __init__(self, stream: io.BufferedIOBase | gzip.GzipFile) -> None:
        self._stream = stream
        self.damage: OSError | EOFError | zlib.error | None = None
        """Why the log ends before its end; None while all is well."""

    def read(self, size: int, /) -> bytes:
        """Return some bytes, at most `size`; none at the end or from the damage on."""
        if self.damage is not None:
            return b""
        try:
            # `read` would gather pieces until it has `size` bytes, and lose them all with the one that fails.
            return self._stream.read1(size)
        except (OSError, EOFError, zlib.error) as problem:
            self.damage = problem
            return b""


class _Rejoined(io.RawIOBase):
    """A stream whose head was read to know its kind, from its first byte again: a pipe cannot be wound back."""

    def __init__(self, head: bytes, rest: io.BufferedIOBase) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        room = memoryview(buffer).cast("B")
        part = self._head[: len(room)] or self._rest.read1(len(room))
        self._head = self._head[len(part) :]
        room[: len(part)] = part
        return len(part)


@contextmanager
def open_log(path: str) -> Iterator[SalvagedLog]:
    """Open a log (`-`: standard input) as bytes, unpacking gzip on the way. Ask its `damage` when it has ended.

    Raises OSError, or UnreadableLog for a directory, a device, and a kind of file that is known by its first bytes.
    """
    from ops_pipelines.observe.logs.files import find_kind

    if path == STANDARD_INPUT:
        stream = cast("io.BufferedIOBase", sys.stdin.buffer)
    else:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise UnreadableLog("is a directory; give one file")
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise UnreadableLog("is neither a file nor a pipe")
        stream = Path(path).open("rb")  # noqa: SIM115 -- closed below; standard input must stay open
    try:
        # A pipe gives what was written so far, down to one byte: `read` waits for the whole head or the end.
        head = stream.read(_HEAD_BYTES)
        whole = io.BufferedReader(_Rejoined(head, stream), buffer_size=_READ_AT_ONCE)
        if head.startswith(_GZIP):
            with gzip.open(whole, "rb") as unpacked:
                yield SalvagedLog(unpacked)
            return
        kind = find_kind(head)
        if kind is not None:
            raise UnreadableLog(f"is {kind}; expected a log in plain text, or gzipped")
        yield SalvagedLog(whole)
    finally:
        if path != STANDARD_INPUT:
            stream.close()
