"""Rows of the lake on their way to a panel: few columns, few rows, and what they say of the whole."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName, PciAddress
from ops_pipelines.frames.panels.columns import PANEL_COLUMNS
from ops_pipelines.lake.rates import step_seconds as step_seconds_of
from ops_pipelines.lake.schema import TABLES, ColumnType

_SMALL_BYTES = 64_000_000


def panel_rows(table: str, rows: pa.Table) -> pa.Table:
    """Return what a panel needs of rows of `table`: few columns, texts encoded, and no row without a value in them."""
    spec = TABLES[table]
    wanted = [name for name in dict.fromkeys((*spec.key, "time", *PANEL_COLUMNS[table])) if name in rows.column_names]
    if table in ("job_logs", "rejected_rows"):
        wanted = [name for name in wanted if name in ("time", *PANEL_COLUMNS[table])]
    rows = rows.select(wanted)
    if table == "job_logs":
        rows = rows.filter(pc.is_valid(rows["job"]))
    elif table == "rejected_rows":
        is_loss = pc.and_(
            pc.equal(rows["into"], "application_telemetry"),
            pc.and_(pc.equal(rows["reason"], "not_finite"), pc.starts_with(rows["text"], "training_loss")),
        )
        rows = rows.filter(is_loss)
    elif table not in ("gpu_telemetry", "job_allocations"):
        rows = with_a_value(rows, [name for name in PANEL_COLUMNS[table] if name in wanted])
    keys = {*spec.key, "time", *PANEL_COLUMNS["job_allocations"]}
    rows = rows.select([name for name in rows.column_names if name in keys or rows[name].null_count < rows.num_rows])
    for place_of, name in enumerate(rows.column_names):
        is_text = spec.by_name[name].type is ColumnType.TEXT
        if is_text and not pa.types.is_dictionary(rows[name].type) and table != "rejected_rows":
            rows = rows.set_column(place_of, name, rows[name].dictionary_encode())
    return rows


def joined_rows(parts: Sequence[pa.Table]) -> pa.Table:
    """Return rows that `panels.rows` made, one part after the other; a column that a part lacks is null there."""
    joined = pa.concat_tables(parts, promote_options="default")
    # Many small parts cost more than their rows do, and large ones would be copied for little.
    return joined.unify_dictionaries().combine_chunks() if joined.nbytes <= _SMALL_BYTES else joined


def grid_step_of(rows: pa.Table) -> int | None:
    """Return the distance in seconds of the grid that most rows stand on; None for rows of fewer than two times."""
    found = step_seconds_of(rows["time"])
    return None if found is None else max(1, round(found))


def times_of(rows: pa.Table) -> tuple[datetime, ...]:
    """Return the times of rows, each once, in order."""
    return tuple(sorted(rows["time"].unique().to_pylist()))


def addresses_of(rows: pa.Table) -> Mapping[NodeName, frozenset[PciAddress]]:
    """Return the PCI addresses of the GPUs that rows of gpu_telemetry name, by node."""
    if "pci_address" not in rows.column_names:
        return {}
    pairs = rows.select(["node", "pci_address"]).group_by(["node", "pci_address"]).aggregate([])
    found: dict[NodeName, set[PciAddress]] = {}
    for node, address in zip(pairs["node"].to_pylist(), pairs["pci_address"].to_pylist(), strict=True):
        if address is not None:
            found.setdefault(NodeName(node), set()).add(PciAddress(address))
    return {node: frozenset(addresses) for node, addresses in found.items()}


def with_a_value(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows in which one of the columns says something."""
    said = [pc.is_valid(rows[name]) for name in columns if rows[name].null_count < rows.num_rows]
    if not said:
        return rows.slice(0, 0)
    kept = said[0]
    for each in said[1:]:
        kept = pc.or_(kept, each)
    return rows.filter(kept)


def begins_with(texts: pa.ChunkedArray, prefixes: Sequence[str]) -> pa.ChunkedArray:
    """Return where a text begins with one of the prefixes; null where it is null."""

    def begins(words: pa.Array) -> pa.Array:
        found = pc.starts_with(words, prefixes[0])
        for prefix in prefixes[1:]:
            found = pc.or_(found, pc.starts_with(words, prefix))
        return found

    return says(texts, begins)


def says(texts: pa.ChunkedArray, is_so: Callable[[pa.Array], pa.Array]) -> pa.ChunkedArray:
    """Return for each text what `is_so` says of it: asked once a word, not once a row, where the texts are encoded."""
    if not pa.types.is_dictionary(texts.type):
        return is_so(texts.cast(pa.string()))
    chunks = []
    words: pa.Array | None = None
    for chunk in texts.unify_dictionaries().chunks:
        if words is None:  # All chunks have the same by now.
            words = is_so(chunk.dictionary.cast(pa.string()))
        chunks.append(words.take(chunk.indices))
    return pa.chunked_array(chunks, pa.bool_())
