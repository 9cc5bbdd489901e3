from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.lake.inventory import Change, ChangeKind, Seat, follow, parent_of
from ops_pipelines.lake.schema import TABLES

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
A = {"uuid": "GPU-aaaaaaaa-0000-0000-0000-000000000001", "serial": "1654100000001"}
B = {"uuid": "GPU-bbbbbbbb-0000-0000-0000-000000000002", "serial": "1654100000002"}


def hour(number: float) -> datetime:
    return START + timedelta(hours=number)


def seen(at: float, gpu: Mapping[str, str], node: str, address: str | None, index: int | None) -> dict[str, object]:
    """Return one row of the inventory."""
    return {
        "node": node,
        "device": gpu.get("uuid") or address or f"gpu{index}",
        "time": hour(at),
        "kind": "gpu",
        "pci_address": address,
        "gpu_index": index,
        "source": "test",
        **gpu,
    }


def changes(*rows: Mapping[str, object]) -> tuple[Change, ...]:
    return follow(TABLES["inventory"].from_rows(rows))


def test_a_gpu_that_stays_makes_no_change() -> None:
    assert changes(*(seen(at, A, "n1", "0000:1b:00", 0) for at in range(5))) == ()


def test_an_index_that_changes_at_a_boot_is_no_move() -> None:
    (change,) = changes(seen(0, A, "n1", "0000:1b:00", 0), seen(1, A, "n1", "0000:1b:00", 1))

    assert change == Change(
        kind=ChangeKind.RENUMBERED,
        gpu=A["serial"],
        before=Seat(node="n1", pci_address="0000:1b:00", gpu_index=0),
        after=Seat(node="n1", pci_address="0000:1b:00", gpu_index=1),
        last_seen_at=hour(0),
        since=hour(1),
    )


def test_a_gpu_is_followed_to_another_slot_and_to_another_node() -> None:
    found = changes(
        seen(0, A, "n1", "0000:1b:00", 0), seen(1, A, "n1", "0000:43:00", 2), seen(2, A, "n2", "0000:43:00", 2)
    )

    assert [(change.kind, change.after.node) for change in found] == [
        (ChangeKind.MOVED, "n1"),
        (ChangeKind.TRANSFERRED, "n2"),
    ]


def test_a_gpu_that_went_away_and_came_back_moved_twice() -> None:
    found = changes(
        seen(0, A, "n1", "0000:1b:00", 0), seen(1, A, "n2", "0000:1b:00", 0), seen(2, A, "n1", "0000:1b:00", 0)
    )

    assert [change.after.node for change in found] == ["n2", "n1"]


def test_two_gpus_that_changed_places_are_a_swap() -> None:
    found = changes(
        seen(0, A, "n1", "0000:1b:00", 0),
        seen(0, B, "n2", "0000:1b:00", 0),
        seen(1, A, "n2", "0000:1b:00", 0),
        seen(1, B, "n1", "0000:1b:00", 0),
    )

    assert {(change.gpu, change.kind, change.other) for change in found} == {
        (A["serial"], ChangeKind.SWAPPED, B["serial"]),
        (B["serial"], ChangeKind.SWAPPED, A["serial"]),
    }


def test_a_new_serial_in_the_same_slot_is_a_replacement() -> None:
    (change,) = changes(seen(0, A, "n1", "0000:1b:00", 0), seen(30, B, "n1", "0000:1b:00", 0))

    assert (change.kind, change.gpu, change.other) == (ChangeKind.REPLACED, B["serial"], A["serial"])
    assert (change.last_seen_at, change.since) == (hour(0), hour(30))


def test_a_second_gpu_in_a_free_slot_replaces_nobody() -> None:
    assert changes(seen(0, A, "n1", "0000:1b:00", 0), seen(1, B, "n1", "0000:43:00", 1)) == ()


def test_a_serial_follows_the_board_although_its_uuid_changed() -> None:
    reborn = {"serial": A["serial"], "uuid": B["uuid"]}

    (change,) = changes(seen(0, A, "n1", "0000:1b:00", 0), seen(1, reborn, "n2", "0000:1b:00", 0))

    assert (change.kind, change.gpu) == (ChangeKind.TRANSFERRED, A["serial"])


def test_without_serials_the_uuid_follows() -> None:
    uuid = {"uuid": A["uuid"]}

    (change,) = changes(seen(0, uuid, "n1", "0000:1b:00", 0), seen(1, uuid, "n1", "0000:43:00", 0))

    assert (change.kind, change.gpu) == (ChangeKind.MOVED, A["uuid"])


def test_a_serial_that_two_gpus_have_at_once_is_the_boards() -> None:
    twin = {"uuid": B["uuid"], "serial": A["serial"]}
    rows = [
        seen(at, gpu, "n1", address, 0) for at in (0, 1) for gpu, address in ((A, "0000:1b:00"), (twin, "0000:1c:00"))
    ]

    assert changes(*rows) == ()


def test_what_a_sighting_does_not_say_is_no_change() -> None:
    found = changes(
        seen(0, A, "n1", "0000:1b:00", None),
        seen(1, A, "n1", None, 0),
        seen(2, A, "n1", "0000:1b:00", 0),
        seen(3, A, "n1", None, None),
    )

    assert found == ()


def test_rows_that_name_no_gpu_are_passed_over() -> None:
    nameless = {"serial": "0000000000000", "uuid": "GPU-00000000-0000-0000-0000-000000000000"}

    assert changes(seen(0, nameless, "n1", "0000:1b:00", 0), seen(1, nameless, "n1", "0000:43:00", 0)) == ()
    assert changes({**seen(0, A, "n1", "0000:1b:00", 0), "kind": "nic"}, seen(1, A, "n2", "0000:1b:00", 0)) == ()


def test_a_mig_slice_belongs_to_its_gpu() -> None:
    slice_ = {"device": f"{A['uuid']}/mig7", "kind": "mig", "uuid": "MIG-41b3359c-e721-56e5-8009-12e5797ed514"}

    found = changes(
        {**seen(0, A, "n1", "0000:1b:00", 0)},
        {**seen(1, {}, "n2", "0000:1b:00", 0), **slice_},
    )

    assert parent_of(f"{A['uuid']}/mig7") == A["uuid"]
    assert parent_of(A["uuid"]) == A["uuid"]
    assert [(change.kind, change.gpu) for change in found] == [(ChangeKind.TRANSFERRED, A["serial"])]


def test_rows_of_gpu_telemetry_are_followed_too() -> None:
    rows = TABLES["gpu_telemetry"].from_rows(
        {
            "node": "n1",
            "device": A["uuid"],
            "time": hour(at),
            "gpu_uuid": A["uuid"],
            "pci_address": "0000:1b:00",
            "gpu_index": index,
        }
        for at, index in ((0, 0), (1, 0), (2, 3))
    )

    (change,) = follow(rows)

    assert (change.kind, change.since, change.last_seen_at) == (ChangeKind.RENUMBERED, hour(2), hour(1))


def test_no_rows_no_changes() -> None:
    assert follow(TABLES["inventory"].from_rows([])) == ()


_SIGHTINGS = st.lists(
    st.builds(
        seen,
        st.integers(0, 6),
        st.sampled_from([A, B, {"uuid": A["uuid"]}, {"serial": B["serial"]}, {}]),
        st.sampled_from(["n1", "n2"]),
        st.sampled_from(["0000:1b:00", "0000:43:00", None]),
        st.sampled_from([0, 1, None]),
    ),
    max_size=10,
)


def unique(rows: Iterable[Mapping[str, object]]) -> pa.Table:
    return TABLES["inventory"].from_rows({(row["node"], row["device"], row["time"]): row for row in rows}.values())


@given(_SIGHTINGS, st.randoms())
def test_whatever_was_seen_changes_are_ordered_and_do_not_depend_on_the_order_of_rows(
    rows: list[dict[str, object]], random: Random
) -> None:
    table = unique(rows)
    order = list(range(table.num_rows))
    random.shuffle(order)

    found = follow(table)

    assert [change.since for change in found] == sorted(change.since for change in found)
    assert all(change.before != change.after or change.kind is ChangeKind.REPLACED for change in found)
    assert all(change.other != change.gpu for change in found)
    assert found == follow(table.take(pa.array(order, pa.int64())))
