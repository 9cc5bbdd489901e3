"""Sets of rows: order, uniqueness, and which cell wins."""

import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.lake import hours
from ops_pipelines.lake.hours import (
    AGGREGATES,
    SchemaChanged,
    layout_of,
    merge,
    merged_slices,
    normalise,
    split_by_hour,
    unknown_columns,
)
from ops_pipelines.lake.schema import TABLES
from tests.ports.lake_samples import HOUR, TABLE, Row, cells, gpu, table, watts

NODES = st.sampled_from(["a", "b", "gpu-1", "gpu-10", "é", ""])
SECONDS = st.integers(0, 5)


@st.composite
def consistent_rows(draw: st.DrawFn) -> list[Row]:
    """Rows that agree: each may lack cells that another copy of it has."""
    whole = draw(
        st.dictionaries(
            st.tuples(NODES, SECONDS),
            st.tuples(st.floats(allow_nan=True), st.sampled_from(["H100", "B200"])),
            max_size=8,
        )
    )
    copies = draw(st.lists(st.tuples(st.sampled_from(sorted(whole) or [("a", 0)]), st.booleans(), st.booleans())))
    rows = [gpu(node, second, power_watts=power, gpu_model=model) for (node, second), (power, model) in whole.items()]
    for (node, second), has_power, has_model in copies:
        if (node, second) in whole:
            power, model = whole[node, second]
            some = ({"power_watts": power} if has_power else {}) | ({"gpu_model": model} if has_model else {})
            rows.append(gpu(node, second, **some))
    return rows


def test_rows_are_sorted_by_key_in_the_order_of_bytes_and_then_by_time() -> None:
    rows = table(gpu("gpu-10", 0), gpu("é", 0), gpu("gpu-9", 15), gpu("gpu-9", 0), gpu("Z", 0))

    normal = normalise(TABLE, rows)

    found = [(node, second) for node, second, _ in watts(normal)]
    assert found == [("Z", 0), ("gpu-10", 0), ("gpu-9", 0), ("gpu-9", 15), ("é", 0)]
    assert normal.schema.equals(TABLES[TABLE].arrow())


def test_a_later_part_wins_where_it_says_something_and_takes_nothing_away() -> None:
    early = table(gpu("a", 0, power_watts=1.0, gpu_model="H100"), gpu("b", 0, power_watts=5.0))
    late = table(gpu("a", 0, power_watts=2.0, temperature_celsius=40.0), gpu("c", 0))

    merged = merge(TABLE, (early, late))

    assert cells(merged, "node", "power_watts", "gpu_model", "temperature_celsius") == [
        ("a", 2.0, "H100", 40.0),
        ("b", 5.0, None, None),
        ("c", None, None, None),
    ]


def test_within_one_part_the_later_row_wins() -> None:
    rows = table(gpu("a", 0, power_watts=1.0), gpu("a", 0, power_watts=2.0), gpu("a", 0))

    assert watts(normalise(TABLE, rows)) == [("a", 0, 2.0)]


def test_no_parts_and_empty_parts_give_the_empty_table() -> None:
    assert merge(TABLE, ()).equals(TABLES[TABLE].arrow().empty_table())
    assert merge(TABLE, (table(), table())).num_rows == 0


@settings(max_examples=50, deadline=None)
@given(consistent_rows(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_agreeing_rows_give_the_same_table_in_any_order_and_split(
    rows: list[Row], chance: random.Random, part_count: int
) -> None:
    shuffled = chance.sample(rows, len(rows))
    parts = [table(*shuffled[number::part_count]) for number in range(part_count)]

    merged = merge(TABLE, parts)

    assert _same_bits(merged, merge(TABLE, (table(*rows),)))
    assert _same_bits(merge(TABLE, (merged, merged)), merged)


@settings(max_examples=50, deadline=None)
@given(consistent_rows(), st.integers(0, 8))
def test_dictionary_encoded_texts_merge_as_plain_ones(rows: list[Row], cut: int) -> None:
    plain, other = table(*rows[:cut]), table(*rows[cut:])
    texts = [number for number, field in enumerate(plain.schema) if field.type == pa.string()]
    for number in texts:
        plain = plain.set_column(number, plain.schema.names[number], plain.column(number).dictionary_encode())

    assert _same_bits(merge(TABLE, (plain, other)), merge(TABLE, (table(*rows),)))


def test_slices_together_are_the_merged_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table(*(gpu(f"n{number % 7}", number // 3, power_watts=float(number)) for number in range(60)))
    whole = merge(TABLE, (rows,))

    for size in (1, 2, 7, whole.num_rows - 1, whole.num_rows, whole.num_rows + 1):
        monkeypatch.setattr(hours, "ROWS_PER_SLICE", size)
        slices = list(merged_slices(TABLE, (rows,)))
        assert [each.num_rows for each in slices[:-1]] == [size] * (len(slices) - 1)
        assert pa.concat_tables(slices).equals(whole)


def test_keys_and_times_too_many_for_one_number_are_sorted_all_the_same() -> None:
    times = [datetime(1677, 9, 22, tzinfo=UTC), datetime(2262, 4, 1, tzinfo=UTC), HOUR]
    rows = [{"node": f"n{n}", "device": str(d), "time": at} for n in range(9) for d in range(9) for at in times]

    normal = normalise(TABLE, table(*reversed(rows)))

    assert cells(normal, "node", "device", "time") == sorted((row["node"], row["device"], row["time"]) for row in rows)


def test_a_column_that_rows_lack_is_null_and_an_unknown_one_is_named() -> None:
    rows = table(gpu("a", 0, power_watts=1.0)).select(["node", "device", "time", "power_watts"])
    rows = rows.append_column("from_the_future", pa.array([1]))

    normal = normalise(TABLE, rows)

    assert normal.schema.equals(TABLES[TABLE].arrow())
    assert cells(normal) == [("a", "GPU-0", HOUR, 1.0)]
    assert unknown_columns(TABLE, rows.schema) == ("from_the_future",)


def test_another_type_a_missing_key_and_a_null_key_are_refused() -> None:
    rows = table(gpu("a", 0, power_watts=1.0))
    where = rows.schema.get_field_index("power_watts")

    with pytest.raises(SchemaChanged, match=r"power_watts is int64 there, expected double"):
        normalise(TABLE, rows.set_column(where, "power_watts", pa.array([1])))
    with pytest.raises(SchemaChanged, match="key column device is missing"):
        normalise(TABLE, rows.drop_columns(["device"]))
    with pytest.raises(SchemaChanged, match=r"node is part of the key, and null in 1 row"):
        normalise(TABLE, rows.set_column(0, "node", pa.array([None], pa.string())))


def test_rows_are_parted_by_the_hour_of_their_time() -> None:
    rows = table(gpu("b", 3600), gpu("a", 3599.999999), gpu("a", 0), gpu("a", -0.000001))

    parted = split_by_hour(rows)

    hour = timedelta(hours=1)
    assert list(parted) == [HOUR - hour, HOUR, HOUR + hour]
    assert [part.num_rows for part in parted.values()] == [1, 2, 1]
    assert split_by_hour(table()) == {}


def test_every_table_and_aggregate_has_a_layout() -> None:
    for name in (*TABLES, *AGGREGATES):
        layout = layout_of(name)
        assert {*layout.key, "time"} <= set(layout.schema.names)
        assert len(set(layout.schema.names)) == len(layout.schema.names)
    with pytest.raises(KeyError):
        layout_of("no_such_table")


def _same_bits(one: pa.Table, other: pa.Table) -> bool:
    if one.num_rows != other.num_rows or not one.schema.equals(other.schema):
        return False
    for name in one.schema.names:
        left, right = one.column(name), other.column(name)
        if pa.types.is_floating(left.type):
            if left.is_null().to_pylist() != right.is_null().to_pylist():
                return False
            if not np.array_equal(left.to_numpy().view(np.int64), right.to_numpy().view(np.int64)):
                return False
        elif not left.equals(right):
            return False
    return True
