"""Attempts are counted once: found by a second sum; and what the scheduler and the stores say, as rows."""

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ops_pipelines.costs.gather_usage import find_attempt_faults
from ops_pipelines.costs.holds import read_scheduler_states, read_storage_bytes
from ops_pipelines.costs.states import Condition
from ops_pipelines.costs.usage import Fate, join_usage
from ops_pipelines.costs.usage_ledger import UsageLedger, read_usage
from ops_pipelines.lake.schema import TABLES
from tests.frames.usage.usage_facts import at, attempt, between, held, node


def ledger(allocations: pa.Table, *, since: float = 0, until: float = 24) -> UsageLedger:
    return read_usage(between(since, until), nodes=[node(), node("gpu002")], states=[], allocations=allocations)


def test_a_ledger_that_has_each_attempt_once_has_no_fault() -> None:
    rows = held([attempt("1", 1, 5.5), attempt("2", 6, 9, nodes="gpu[001-002]", gpus=3)])

    faults = find_attempt_faults(ledger(rows), rows)

    assert (faults.counted_twice, faults.lost) == ((), ())


def test_an_attempt_that_stands_twice_is_found() -> None:
    rows = held([attempt("1", 1, 5)])
    found = ledger(rows)
    doubled = replace(found, lines=(*found.lines, *(line for line in found.lines if line.fate is Fate.ALLOCATED)))

    assert find_attempt_faults(doubled, rows).counted_twice == ("1 2026-05-10T01:00:00",)


def test_an_attempt_that_is_lost_is_found_unless_a_refused_row_names_it() -> None:
    rows = held([attempt("1", 1, 5)])
    found = ledger(rows)
    lost = replace(found, lines=tuple(line for line in found.lines if line.fate is not Fate.ALLOCATED))

    assert find_attempt_faults(lost, rows).lost == ("1 2026-05-10T01:00:00",)
    elsewhere = held([attempt("1", 1, 5, nodes="gpu099")])
    assert find_attempt_faults(ledger(elsewhere), elsewhere).lost == ()


@pytest.mark.parametrize("counts", [(2, 10), (10, 2)])
def test_of_two_rows_of_one_key_either_may_be_counted_and_the_other_is_named(counts: tuple[int, int]) -> None:
    rows = held([attempt("1", 1, 5, gpus=each) for each in counts])
    found = ledger(rows)
    faults = find_attempt_faults(found, rows)

    assert (faults.counted_twice, faults.lost) == ((), ())
    assert {each.reason for each in found.refused} >= {"row_twice"}


@settings(deadline=None, max_examples=60)
@example([(0, 0.0, 0.0, 1, "gpu001", False), (0, 0.0, 0.0, 2, "gpu002", False), (0, 0.0, 0.0, 10, "gpu002", False)])
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.floats(0, 47), st.floats(0, 30), st.integers(1, 16),
            st.sampled_from(["gpu001", "gpu002", "gpu[001-002]", "gpu099"]), st.booleans(),
        ),
        max_size=8,
    )
)  # fmt: skip
def test_whatever_is_claimed_each_second_is_in_one_line_and_no_attempt_is_counted_twice(
    claims: list[tuple[int, float, float, int, str, bool]],
) -> None:
    """Two days read one after the other, as a month is."""
    rows = held(
        [
            attempt(str(job), since, since + length if has_end else None, gpus=gpus, nodes=nodes)
            for job, since, length, gpus, nodes, has_end in claims
        ],
        until=48,
    )
    begun: dict[str, set[tuple[object, str]]] = {}
    days = []
    for day in (0, 24):
        found = read_usage(
            between(day, day + 24),
            nodes=[node(), node("gpu002")],
            states=[],
            allocations=rows,
            begun=begun,  # type: ignore[arg-type]  # a dict of sets
        )
        for job, attempts in found.begins.items():
            begun.setdefault(job, set()).update(attempts)
        faults = find_attempt_faults(found, rows)
        assert (faults.counted_twice, faults.lost) == ((), ())
        days.append(found.summed())

    whole = join_usage(between(0, 48), days)

    assert sum(each.gpu_seconds for each in whole.by_bearer.values()) == 2 * 8 * 48 * 3600


def test_days_beyond_their_part_are_refused() -> None:
    with pytest.raises(ValueError, match="is not within"):
        join_usage(between(0, 12), [ledger(held([]), until=13).summed()])


@pytest.mark.parametrize(
    ("state", "condition"),
    [
        ("IDLE", None),
        ("ALLOCATED", None),
        ("IDLE+DRAIN", Condition.DRAINED),
        ("DOWN+DRAIN", Condition.DOWN),
        ("down", Condition.DOWN),
        ("ALLOCATED+NOT_RESPONDING", Condition.DOWN),
    ],
)
def test_what_the_scheduler_says_of_a_node(state: str, condition: Condition | None) -> None:
    rows = TABLES["inventory"].from_rows(
        [
            {"node": "gpu001", "device": "", "kind": "node", "time": at(1), "state": state},
            {"node": "gpu001", "device": "GPU-1", "kind": "gpu", "time": at(1), "state": "DOWN"},
            {"node": "gpu002", "device": "", "kind": "node", "time": at(1), "state": None},
            {"node": "$(reboot)", "device": "", "kind": "node", "time": at(1), "state": "DOWN"},
        ]
    )

    assert read_scheduler_states(rows) == {"gpu001": condition}


def test_storage_is_the_size_of_its_targets_however_many_clients_tell_it() -> None:
    def told(host: str, device: str, size: float | None) -> dict[str, object]:
        return {"node": host, "device": device, "time": at(1), "lustre_capacity_bytes": size}

    rows = TABLES["storage_telemetry"].from_rows(
        [
            told("oss1", "lustre:ost/a", 100.0),
            told("oss2", "lustre:ost/a", 100.0),
            told("oss2", "lustre:ost/b", 50.0),
            told("oss2", "lustre:ost/c", None),
            told("gpu001", "lustre:client/scratch", 150.0),
            told("mds1", "lustre:mdt/m", 9.0),
        ]
    )

    assert read_storage_bytes(rows) == 150
