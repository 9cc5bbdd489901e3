"""What holds for every parser of hardware tools, whatever it read; and how a file is damaged to try it."""

import gzip
import math
from pathlib import Path

from hypothesis import strategies as st

from ops_pipelines.lake.quantities import Parsed
from ops_pipelines.lake.schema import TABLES

PUBLIC = Path(__file__).parents[3] / "../shared/data"


def check(parsed: Parsed) -> None:
    """Assert: counts close, tables have their schema, keys are unique, and every value is one that can be."""
    assert parsed.read == parsed.accepted + len(parsed.refused) + parsed.ignored
    assert len({each.record for each in parsed.refused}) == len(parsed.refused)
    assert all(each.reason.isidentifier() and each.reason.islower() for each in parsed.refused)
    for name, table in parsed.tables.items():
        assert table.schema == TABLES[name].arrow()
        assert table.num_rows
        found = table.to_pylist()
        keys = [tuple(row[column] for column in TABLES[name].sort_order) for row in found]
        assert len(set(keys)) == len(keys)
        assert all(part is not None for key in keys for part in key)
        for column in TABLES[name].columns:
            bounds = column.quantity
            values = [row[column.name] for row in found if row[column.name] is not None]
            assert all(bounds is None or bounds.low <= value <= bounds.high for value in values)
            assert all(math.isfinite(value) for value in values if isinstance(value, float))


def rows(parsed: Parsed, table: str) -> list[dict[str, object]]:
    """Return the rows of a table; none if it is not there."""
    found: list[dict[str, object]] = parsed.tables[table].to_pylist() if table in parsed.tables else []
    return found


def content(path: Path) -> bytes:
    """Return what a file holds, unpacked."""
    body = path.read_bytes()
    return gzip.decompress(body) if path.suffix == ".gz" else body


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Return a good file with a piece cut out and another put in."""
    seed = draw(st.sampled_from(seeds))
    place = draw(st.integers(0, len(seed)))
    length = draw(st.integers(0, 60))
    nasty = [
        b"1e999",
        b"NaN",
        b"-Infinity",
        b"\x00",
        b"\xed\xa0\x80",
        b'"\\ud800"',
        b"9" * 5000,
        b"[" * 3000,
        b"null",
        b"{}",
    ]
    inserted = draw(st.one_of(st.binary(max_size=30), st.sampled_from(nasty)))
    return seed[:place] + inserted + seed[place + length :]
