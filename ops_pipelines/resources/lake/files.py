"""One file of the lake: written whole or not at all, always the same bytes for the same rows, read with its schema.

Local files are written under a name that readers pass over, flushed to the disk, and renamed. An object store takes a
file in one PUT, which is as atomic as that store makes it. Which files there are is `listing`'s business.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ops_pipelines.core.lake import LakeError
from ops_pipelines.lake.hours import (
    AGGREGATES,
    ROWS_PER_SLICE,
    SchemaChanged,
    given_columns,
    layout_of,
    unknown_columns,
)
from ops_pipelines.lake.schema import TELEMETRY_TABLES

TEMPORARY_PREFIX = ".tmp-"
_ZSTD_LEVEL = 3
_ADVICE = {
    errno.ENOSPC: "the disk is full: free space, or let `retain` remove old hours",
    errno.EDQUOT: "the quota is used up: free space, or raise it",
    errno.EFBIG: "the file would be larger than the process may write: raise its limit",
    errno.EACCES: "no right: give the lake's directory to the user that runs this",
    errno.EPERM: "no right: give the lake's directory to the user that runs this",
    errno.EROFS: "the file system is mounted read-only",
    errno.ENOTDIR: "a file stands where a directory must be",
    errno.EEXIST: "a file stands where a directory must be",
}


def is_local(path: UPath) -> bool:
    """Return whether the path is on a file system of this machine, with rename and locks."""
    return path.protocol in ("", "file", "local")


@contextmanager
def told_as_lake_error(deed: str, path: UPath | Path) -> Iterator[None]:
    """Turn what the operating system says of a file into LakeError."""
    try:
        yield
    except OSError as exc:
        raise LakeError(_complaint(deed, path, exc)) from exc


def _complaint(deed: str, path: UPath | Path, exc: OSError) -> str:
    advice = _ADVICE.get(exc.errno or 0, "")
    return f"cannot {deed} {path}: {exc.strerror or exc}{'; ' if advice else ''}{advice}"


def encode(rows: pa.Table) -> bytes:
    """Return rows as the bytes of a lake file: Parquet, zstd 3, fixed row groups, no time of writing.

    The rows must be as `lake.hours.normalise` returns them, else equal rows may give other bytes.
    """
    out = BytesIO()
    _encode_into(out, rows.schema, _sliced(rows))
    return out.getvalue()


def write_table_atomically(path: UPath, rows: pa.Table) -> None:
    """Write what `encode` returns. Afterwards the old or the new file is there whole, also if the process is killed.

    Raises LakeError (disk full, no right, ...); then the old file is as it was.
    """
    write_slices_atomically(path, rows.schema, _sliced(rows))


def write_slices_atomically(path: UPath, schema: pa.Schema, slices: Iterable[pa.Table]) -> None:
    """Write tables of ROWS_PER_SLICE rows (the last may be shorter) as `write_table_atomically` would their whole."""
    _write(path, lambda out: _encode_into(out, schema, slices))


def write_atomically(path: UPath, body: bytes) -> None:
    """Write a small file of another kind as `write_table_atomically` does."""
    _write(path, lambda out: _put(out, body))


def read_rows(path: UPath, table_name: str, *, columns: Sequence[str] | None = None, refuse_unknown: bool) -> pa.Table:
    """Return the columns of a file that hold a value (`lake.hours.given_columns`).

    Texts of telemetry stay dictionary-encoded: an hour of a large cluster fits in memory so.
    `columns`: only these, and those of the key. `refuse_unknown`: raise LakeError where the file has columns that this
    program does not know, as who writes the rows back must. Raises LakeError naming a file that is damaged or has a
    column of another type; FileNotFoundError where there is none.
    """
    layout = layout_of(table_name)
    with _named_if_damaged(path), _opened(path, table_name) as file:
        there = file.schema_arrow
        unknown = unknown_columns(table_name, there)
        if unknown and refuse_unknown:
            raise LakeError(
                f"{path} has columns that this version does not know ({', '.join(unknown)}) and would lose: "
                "run the version that wrote it"
            )
        wanted = layout.schema.names if columns is None else [*layout.key, "time", *columns]
        table = file.read([name for name in layout.schema.names if name in wanted and name in there.names])
        return given_columns(table_name, table)


def read_row_count(path: UPath) -> int:
    """Return how many rows a file has. Raises as `read_rows` does."""
    with _named_if_damaged(path), _opened(path, "") as file:
        return int(file.metadata.num_rows)


def read_time_span(path: UPath) -> tuple[datetime, datetime] | None:
    """Return the least and the greatest time in a file, by its footer; None without rows. Raises as `read_rows`."""
    with _named_if_damaged(path), _opened(path, "") as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        where = file.schema_arrow.get_field_index("time")
        spans = [group.column(where).statistics for group in groups if group.num_rows]
        return (min(each.min for each in spans), max(each.max for each in spans)) if spans else None


@contextmanager
def _named_if_damaged(path: UPath) -> Iterator[None]:
    advice = "restore it from a copy, or move it away and fill the hour again"
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as exc:
        if exc.errno is None:  # it is Arrow that complains, of what it read
            raise LakeError(f"{path} is damaged ({exc}); {advice}") from exc
        raise LakeError(_complaint("read", path, exc)) from exc
    except SchemaChanged as exc:
        raise LakeError(f"{path} does not fit this version: {exc}; run the version that wrote it") from exc
    except (pa.ArrowException, ValueError, KeyError, AttributeError) as exc:
        raise LakeError(f"{path} is damaged ({exc}); {advice}") from exc


@contextmanager
def _opened(path: UPath, table_name: str) -> Iterator[pq.ParquetFile]:
    encoded = _encoded_texts(table_name)
    with nullcontext(path.path) if is_local(path) else path.open("rb") as source:
        try:
            file = pq.ParquetFile(source, read_dictionary=encoded)
        except KeyError:  # the file lacks one of them, as it is older
            names = pq.ParquetFile(source).schema_arrow.names
            file = pq.ParquetFile(source, read_dictionary=[name for name in encoded if name in names])
        with file:
            yield file


def _encoded_texts(table_name: str) -> list[str]:
    base = AGGREGATES[table_name].table if table_name in AGGREGATES else table_name
    if base not in TELEMETRY_TABLES:
        return []
    return [field.name for field in layout_of(table_name).schema if field.type == pa.string()]


def _sliced(rows: pa.Table) -> Iterator[pa.Table]:
    for first in range(0, max(rows.num_rows, 1), ROWS_PER_SLICE):
        yield rows.slice(first, ROWS_PER_SLICE).combine_chunks()


def _encode_into(out: BinaryIO, schema: pa.Schema, slices: Iterable[pa.Table]) -> None:
    with pq.ParquetWriter(out, schema.remove_metadata(), compression="zstd", compression_level=_ZSTD_LEVEL) as writer:
        for rows in slices:
            writer.write_table(rows.replace_schema_metadata(None), row_group_size=ROWS_PER_SLICE)


def _put(out: BinaryIO, body: bytes) -> None:
    out.write(body)


def _write(path: UPath, fill: Callable[[BinaryIO], None]) -> None:
    with told_as_lake_error("write", path):
        if is_local(path):
            _write_and_rename(Path(path.path), fill)
        else:
            out = BytesIO()
            fill(out)
            path.fs.pipe_file(path.path, out.getvalue())


def _write_and_rename(path: Path, fill: Callable[[BinaryIO], None]) -> None:
    make_directory(path.parent)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{token_hex(4)}-{path.name}")
    try:
        with temporary.open("xb") as out:
            fill(out)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _flush_directory(path.parent)


def make_directory(directory: Path) -> None:
    """Make a local directory and those above it so that they survive a loss of power."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    _flush_directory(directory.parent)


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
