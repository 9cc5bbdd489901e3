"""What became of each installed GPU-second: one line each, whatever is claimed, at every border of time."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TypeVar
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.money import Cents
from ops_pipelines.core.periods import BilledPart, whole_month
from ops_pipelines.costs.holds import Row, owner_by_account
from ops_pipelines.costs.statement import make_statement
from ops_pipelines.costs.states import Condition, NodeState
from ops_pipelines.costs.usage import NO_TEAM, Fate, Owner, UsageLine, cost_month, days_of, month_at, sum_usage
from ops_pipelines.costs.usage_ledger import UsageLedger, read_usage
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.teams.price import AssetPrice, Installed, InstalledNode, PricedBy, PriceModel, asset_cost
from tests.frames.usage.usage_facts import H100, MAY, at, attempt, between, by_fate, held, node, state

HOUR = 3600
Each = TypeVar("Each", InstalledNode, NodeState)


def ledger(
    part: BilledPart,
    allocations: pa.Table,
    *,
    nodes: Sequence[InstalledNode] = (node(),),
    states: Sequence[NodeState] = (),
) -> UsageLedger:
    return read_usage(part, nodes=nodes, states=states, allocations=allocations)


def reasons(found: UsageLedger) -> list[str]:
    return [each.reason for each in found.refused]


# --- whose second it is -------------------------------------------------------------------------------------------


def test_each_second_is_a_jobs_or_idle() -> None:
    found = ledger(between(8, 12), held([attempt("1", 9, 10.5)]))

    assert by_fate(found) == {"1": 8 * 5400, "idle": 8 * (4 * HOUR - 5400)}
    assert found.summed().installed == {H100: 8 * 4 * HOUR}


@pytest.mark.parametrize(("end", "seconds"), [(3599, 8 * 3599), (3600, 8 * 3600), (3601, 8 * 3601)])
def test_an_hour_border_splits_lines_and_loses_no_second(end: int, seconds: int) -> None:
    found = ledger(between(8, 12), held([attempt("1", 8, 8 + end / HOUR)]))

    assert by_fate(found)["1"] == seconds
    assert [line.since for line in found.lines if line.job] == [at(8), at(9)][: 1 + (end > 3600)]


@pytest.mark.parametrize("second", [-1, 0, 1])
def test_lines_end_with_their_hour_though_the_part_ends_beside_it(second: int) -> None:
    found = ledger(between(8, 9 + second / HOUR), held([]))

    lengths = [line.gpu_seconds // 8 for line in found.lines]
    assert lengths == {-1: [3599], 0: [3600], 1: [3600, 1]}[second]


@pytest.mark.parametrize(
    ("conditions", "fate"),
    [
        ((Condition.DRAINED,), "broken"),
        ((Condition.DOWN,), "broken"),
        ((Condition.INCIDENT, Condition.DRAINED), "broken"),
        ((Condition.ROLLOUT, Condition.DRAINED), "maintenance"),
        ((Condition.ROLLOUT, Condition.DOWN), "maintenance"),
        ((Condition.RESERVATION,), "maintenance"),
        ((Condition.TEST, Condition.DRAINED), "overhead"),
        ((Condition.PROBATION,), "overhead"),
        ((Condition.INCIDENT, Condition.TEST), "broken"),
    ],
)
def test_what_took_the_node_says_what_its_hours_are(conditions: tuple[Condition, ...], fate: str) -> None:
    found = ledger(between(8, 9), held([]), states=[state(each, 0, None) for each in conditions])

    assert by_fate(found) == {fate: 8 * HOUR}


def test_a_job_on_a_drained_node_goes_on_holding_its_gpus() -> None:
    found = ledger(
        between(8, 10), held([attempt("1", 8, 9, gpus=6)]), states=[state(Condition.INCIDENT, 8.5, None, cause="INC-1")]
    )

    assert by_fate(found) == {"1": 6 * HOUR, "idle": 2 * HOUR // 2, "broken": 2 * HOUR // 2 + 8 * HOUR}
    assert {line.cause for line in found.lines if line.fate is Fate.BROKEN} == {"INC-1"}


def test_one_broken_gpu_takes_one_gpu() -> None:
    found = ledger(
        between(8, 9),
        held([attempt("1", 8, 9, gpus=4)]),
        states=[state(Condition.INCIDENT, 8, 9, cause="INC-1", gpus=1)],
    )

    assert by_fate(found) == {"1": 4 * HOUR, "broken": HOUR, "idle": 3 * HOUR}


def test_a_state_that_is_told_twice_counts_once() -> None:
    twice = [state(Condition.INCIDENT, 8, 9, cause="INC-1", gpus=1)] * 2

    assert by_fate(ledger(between(8, 9), held([]), states=twice)) == {"broken": HOUR, "idle": 7 * HOUR}


@pytest.mark.parametrize("counts", [(1, 3), (3, 1)])
def test_of_one_state_that_is_told_with_two_numbers_the_larger_counts(counts: tuple[int, int]) -> None:
    told = [state(Condition.INCIDENT, 8, 9, cause="INC-1", gpus=count) for count in counts]

    assert by_fate(ledger(between(8, 9), held([]), states=told)) == {"broken": 3 * HOUR, "idle": 5 * HOUR}


# --- requeues and collisions --------------------------------------------------------------------------------------


def test_of_two_attempts_that_claim_one_gpu_the_later_has_it_and_that_is_told() -> None:
    found = ledger(between(8, 12), held([attempt("1", 8, 11), attempt("2", 10, 12)]))

    assert by_fate(found) == {"1": 8 * 2 * HOUR, "2": 8 * 2 * HOUR}
    assert reasons(found) == ["taken_by_later_attempt"]
    assert found.refused[0].detail.startswith(f"{8 * HOUR} GPU-seconds")


def test_a_requeued_job_is_charged_once_though_its_first_attempt_has_no_end() -> None:
    found = ledger(
        between(8, 12),
        held([attempt("1", 8, None), attempt("1", 10, 11, nodes="gpu002")]),
        nodes=(node(), node("gpu002")),
    )

    assert by_fate(found)["1"] == 8 * 2 * HOUR + 8 * HOUR
    assert set(reasons(found)) == {"attempt_was_requeued"}


def test_a_requeue_that_touches_its_first_attempt_is_no_collision() -> None:
    found = ledger(between(8, 12), held([attempt("1", 8, 10), attempt("1", 10, 12)]))

    assert by_fate(found) == {"1": 8 * 4 * HOUR}
    assert found.refused == ()


def test_a_row_that_comes_twice_counts_once() -> None:
    rows = held([attempt("1", 8, 9, gpus=2)])

    found = ledger(between(8, 9), pa.concat_tables([rows, rows]))

    assert by_fate(found) == {"1": 2 * HOUR, "idle": 6 * HOUR}
    assert reasons(found) == ["row_twice"]


def test_which_of_two_rows_counts_does_not_depend_on_their_order() -> None:
    one, other = (held([attempt("1", 8, 9, account=account)]) for account in ("ml", "vision"))

    found = [ledger(between(8, 9), pa.concat_tables(rows)).lines for rows in ((one, other), (other, one))]

    assert found[0] == found[1]


def test_gpus_that_do_not_divide_by_nodes_are_shared_out_in_whole_ones() -> None:
    names = [f"gpu00{number}" for number in range(1, 6)]
    found = ledger(
        between(8, 9), held([attempt("1", 8, 9, gpus=12, nodes="gpu[001-005]")]), nodes=[node(name) for name in names]
    )

    assert [line.gpu_seconds // HOUR for line in found.lines if line.job] == [2, 3, 2, 3, 2]


# --- nodes that come and go, and what cannot be believed ----------------------------------------------------------


def test_a_node_counts_from_its_first_second_to_its_last() -> None:
    part = between(8, 12)
    stays = (node(since=at(8.5), until=at(9.5)), node(since=at(11)))

    found = ledger(part, held([attempt("1", 9, 11.5)]), nodes=stays)

    assert found.summed().installed == {H100: 8 * 2 * HOUR}
    assert [(each.node_seconds, each.gpu_seconds) for each in found.installed] == [(2 * HOUR, 16 * HOUR)]
    assert by_fate(found) == {"idle": 8 * HOUR, "1": 8 * HOUR}
    assert set(reasons(found)) == {"node_not_installed"}


def test_a_node_that_is_installed_twice_at_a_time_is_refused_with_every_fault() -> None:
    stays = [node(), node(since=at(3)), node("gpu002"), node("gpu002", since=at(4))]

    with pytest.raises(ValueError, match=r"gpu001 from .*; gpu002 from .*expected each node once"):
        ledger(between(8, 9), held([]), nodes=stays)


def test_a_node_that_nobody_registered_is_told_and_not_charged() -> None:
    found = ledger(between(8, 9), held([attempt("1", 8, 9, nodes="gpu999")]))

    assert by_fate(found) == {"idle": 8 * HOUR}
    assert reasons(found) == ["node_not_installed"]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("gpu_count", None, "gpu_count_missing"),
        ("gpu_count", -1.0, "gpu_count_impossible"),
        ("gpu_count", float("nan"), "gpu_count_impossible"),
        ("gpu_count", float("inf"), "gpu_count_impossible"),
        ("node", "a b", "unknown_node_name"),
        ("ended_at", at(7), "ends_before_it_begins"),
    ],
)
def test_a_row_that_cannot_be_believed_is_kept_with_a_reason(column: str, value: object, reason: str) -> None:
    rows = [{**row, column: value} for row in held([attempt("1", 8, 9)]).to_pylist()]

    found = ledger(between(8, 9), TABLES["job_allocations"].from_rows(rows))

    assert by_fate(found) == {"idle": 8 * HOUR}
    assert reasons(found) == [reason]


def test_a_job_without_gpus_is_passed_over() -> None:
    found = ledger(between(8, 9), held([attempt("1", 8, 9, gpus=0)]))

    assert (by_fate(found), found.refused) == ({"idle": 8 * HOUR}, ())


# --- who pays, what was used --------------------------------------------------------------------------------------


def test_a_job_without_an_account_is_of_a_team_that_is_named_so() -> None:
    found = ledger(between(8, 9), held([attempt("1", 8, 9, account=None)]))

    assert {line.owner for line in found.lines if line.job} == {Owner(team=NO_TEAM)}


def test_a_test_of_ours_is_overhead() -> None:
    def owner_of(row: Row) -> Owner | None:
        return None if row["account"] == "ops" else owner_by_account(row)

    found = read_usage(
        between(8, 9),
        nodes=[node()],
        states=[],
        allocations=held([attempt("1", 8, 9, gpus=2, account="ops"), attempt("2", 8, 9, gpus=6)]),
        efficiency=TABLES["gpu_efficiency"].from_rows(
            [{"node": "gpu001", "job": job, "time": at(8), "utilisation_ratio": 0.5} for job in ("1", "2", "")]
        ),
        owner_of=owner_of,
    )

    assert by_fate(found) == {"overhead": 2 * HOUR, "2": 6 * HOUR}
    assert [(line.job, line.used_gpu_seconds) for line in found.lines] == [("2", 3 * HOUR), ("1", None)]


def test_used_and_wasted_stand_beside_the_allocated_and_what_was_not_measured_in_neither() -> None:
    measured = TABLES["gpu_efficiency"].from_rows(
        [{"node": "gpu001", "job": "1", "time": at(8), "utilisation_ratio": 0.25}]
    )

    found = read_usage(
        between(8, 10), nodes=[node()], states=[], allocations=held([attempt("1", 8, 10)]), efficiency=measured
    )

    sums = {bearer.fate: used for (bearer, _), used in found.summed().by_bearer.items()}[Fate.ALLOCATED]
    assert (sums.gpu_seconds, sums.used_gpu_seconds, sums.wasted_gpu_seconds) == (16 * HOUR, 2 * HOUR, 6 * HOUR)


# --- months -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "year", "month", "hours"),
    [
        ("UTC", 2026, 3, 744),
        ("Europe/Berlin", 2026, 3, 743),
        ("Europe/Berlin", 2026, 10, 745),
        ("America/New_York", 2026, 3, 743),
        ("America/New_York", 2026, 11, 721),
        ("Asia/Shanghai", 2026, 3, 744),
        ("Asia/Kolkata", 2026, 2, 672),
        ("America/Santiago", 2026, 9, 719),  # midnight itself is skipped there on the 6th
    ],
)
def test_a_local_month_is_as_long_as_its_clock_says(zone: str, year: int, month: int, hours: int) -> None:
    found = cost_month(year, month, zone=ZoneInfo(zone))

    assert found.seconds == hours * HOUR
    assert found.ends_at == cost_month(year + month // 12, month % 12 + 1, zone=ZoneInfo(zone)).begins_at


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Santiago", "Asia/Kolkata"])
def test_days_are_the_month_without_gap_or_overlap(zone: str) -> None:
    for month in range(1, 13):
        part = whole_month(cost_month(2026, month, zone=ZoneInfo(zone)))

        days = list(days_of(part, zone=ZoneInfo(zone)))

        assert days[0][1].since == part.since
        assert days[-1][1].until == part.until
        assert all(before.until == after.since for (_, before), (_, after) in pairwise(days))
        assert [day.day for day, _ in days] == list(range(1, len(days) + 1))


def test_the_day_of_a_part_ends_with_the_part() -> None:
    days = list(days_of(between(20, 30), zone=ZoneInfo("UTC")))

    assert [(day.day, part.since, part.until) for day, part in days] == [(10, at(20), at(24)), (11, at(24), at(30))]


def test_a_second_before_local_midnight_is_of_the_month_before() -> None:
    zone = ZoneInfo("Asia/Shanghai")
    midnight = datetime(2026, 5, 31, 16, tzinfo=UTC)

    assert month_at(midnight - timedelta(seconds=1), zone=zone).name == "2026-05"
    assert month_at(midnight, zone=zone).name == "2026-06"


def test_an_attempt_over_a_month_border_is_shared_between_the_months() -> None:
    zone = ZoneInfo("Asia/Kolkata")  # months begin at half past an hour of UTC
    border = cost_month(2026, 6, zone=zone).begins_at
    row = {**attempt("1", 0, None), "started_at": border - timedelta(hours=1), "ended_at": border + timedelta(hours=2)}
    allocations = held([row], since=21 * 24, until=23 * 24)
    stay = node(since=MAY.begins_at - timedelta(days=9))

    months = [whole_month(cost_month(2026, month, zone=zone)) for month in (5, 6)]
    found = [ledger(month, allocations, nodes=[stay]) for month in months]

    assert border.minute == 30
    assert [by_fate(each)["1"] for each in found] == [8 * HOUR, 8 * 2 * HOUR]
    assert [each.summed().installed for each in found] == [{H100: 8 * month.seconds} for month in months]
    assert min(line.since for line in found[1].lines) == border


def test_a_line_of_another_part_is_refused() -> None:
    lines = ledger(between(8, 9), held([])).lines

    with pytest.raises(ValueError, match="expected lines of the part alone"):
        sum_usage(between(9, 10), lines, installed={H100: 8 * HOUR})


# --- laws ---------------------------------------------------------------------------------------------------------

NAMES = ("gpu001", "gpu002", "gpu003")
times = st.integers(0, 30 * HOUR).map(lambda seconds: seconds / HOUR)


@st.composite
def spans(draw: st.DrawFn) -> tuple[float, float | None]:
    since = draw(times)
    length = draw(st.one_of(st.none(), st.integers(1, 9 * HOUR)))
    return since, None if length is None else since + length / HOUR


attempts = st.builds(
    lambda job, span, gpus, nodes, account: attempt(job, *span, gpus=gpus, nodes=nodes, account=account),
    st.sampled_from(["1", "2", "3", "4"]),
    spans(),
    st.integers(0, 20),
    st.sampled_from(["gpu001", "gpu002", "gpu[001-002]", "gpu[001-003]", "gpu[002-004]"]),
    st.sampled_from(["ml", "vision", None]),
)
states = st.builds(
    lambda condition, span, name, gpus: state(condition, *span, name=name, gpus=gpus, cause="INC-1"),
    st.sampled_from(list(Condition)),
    spans(),
    st.sampled_from(NAMES),
    st.sampled_from([None, 1, 3]),
)
stays = st.tuples(*(st.builds(lambda span, name=name: (name, *span), spans()) for name in NAMES))
DAY = between(2, 29)
PRICES = PriceModel(
    currency="EUR",
    assets=(AssetPrice(asset="hgx-h100", priced_by=PricedBy.NODE, capex_cents=Cents(30_000_001), amortized_months=48),),
    cents_per_kwh=12,
    pue=2,
    network_cents_per_month=77_777,
    unmeasured_watts_per_gpu=700,
)


def registered(told: Sequence[tuple[str, float, float | None]]) -> list[InstalledNode]:
    return [node(name, since=at(since), until=None if until is None else at(until)) for name, since, until in told]


@settings(max_examples=60)
@given(jobs=st.lists(attempts, max_size=6), out=st.lists(states, max_size=5), told=stays, data=st.data())
def test_whatever_happens_every_installed_second_is_in_one_line_and_every_cent_is_borne(
    jobs: list[Row], out: list[NodeState], told: tuple[tuple[str, float, float | None], ...], data: st.DataObject
) -> None:
    nodes, rows = registered(told), held(jobs, until=40)

    found = ledger(DAY, rows, nodes=nodes, states=out)
    mixed = read_usage(
        DAY,
        nodes=data.draw(st.permutations(nodes)),
        states=data.draw(st.permutations(out)),
        allocations=rows.take(pa.array(data.draw(st.permutations(range(rows.num_rows))), pa.int64())),
    )

    usage = found.summed()  # refuses what is not in exactly one line
    assert mixed == found
    seconds = sum(usage.installed.values())
    cost = asset_cost(DAY, Installed(assets=found.installed, unmeasured_gpu_seconds=seconds), PRICES)
    assert make_statement(cost, usage).residual_cents == 0


@settings(max_examples=40)
@given(jobs=st.lists(attempts, max_size=5), out=st.lists(states, max_size=4), told=stays, cut=st.integers(1, 26))
def test_splitting_a_stretch_changes_nothing(
    jobs: list[Row], out: list[NodeState], told: tuple[tuple[str, float, float | None], ...], cut: int
) -> None:
    nodes, rows, where = registered(told), held(jobs, until=40), at(2 + cut)

    whole = ledger(DAY, rows, nodes=nodes, states=out)
    split = ledger(DAY, rows, nodes=_split(nodes, where), states=_split(out, where))
    parts = [
        line
        for part in (replace(DAY, until=where), replace(DAY, since=where))
        for line in ledger(part, rows, nodes=nodes, states=out).lines
    ]

    assert split.lines == whole.lines
    assert split.installed == whole.installed
    assert _in_order(parts) == _in_order(whole.lines)


def _split(told: Sequence[Each], where: datetime) -> list[Each]:
    found: list[Each] = []
    for each in told:
        if each.since < where and (each.until is None or where < each.until):
            found += [replace(each, until=where), replace(each, since=where)]
        else:
            found.append(each)
    return found


def _in_order(lines: Sequence[UsageLine]) -> list[UsageLine]:
    return sorted(lines, key=repr)


def test_a_month_of_a_changed_clock_is_paid_to_the_cent() -> None:
    month = whole_month(cost_month(2026, 10, zone=ZoneInfo("Europe/Berlin")))
    stay = node(since=month.since)
    row = {
        **attempt("1", 0, None),
        "time": datetime(2026, 10, 25, tzinfo=UTC),
        "started_at": datetime(2026, 10, 24, 23, tzinfo=UTC),
        "ended_at": datetime(2026, 10, 25, 5, tzinfo=UTC),
    }
    days = (datetime(2026, 10, 24, tzinfo=UTC) - at(0)) // timedelta(hours=1)

    found = ledger(month, held([row], since=days, until=days + 48), nodes=[stay])
    cost = asset_cost(month, Installed(assets=found.installed), PRICES)

    assert month.seconds == 745 * HOUR
    assert by_fate(found) == {"1": 8 * 6 * HOUR, "idle": 8 * 739 * HOUR}
    assert make_statement(cost, found.summed()).residual_cents == 0
    assert cost.cents == 625_000 + 77_777
