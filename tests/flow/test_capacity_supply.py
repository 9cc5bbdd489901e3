"""What supply follows from: the register, what is stated, measured days, rollouts; and what past is too little."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from ops_pipelines.capacity.chances import SupplyInputs
from ops_pipelines.capacity.forecasting import gather_supply
from ops_pipelines.capacity.past import NoHistory, catch_up, read_past
from ops_pipelines.core.identity import Digest, NodeName, PlanId, RolloutId
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.core.release import ReleaseName
from ops_pipelines.core.rollout import NodeStage, Rollout, RolloutNode, RolloutState, Wave
from ops_pipelines.teams.projects import Arrival, Retirement
from tests.flow.capacity_stage import GPUS, H100, QUARTER, SETTINGS, CapacityStage, at, node
from tests.flow.cost_stage import CostLedger
from tests.flow.quota_mornings import TODAY, Past, QuotaStage

SHORT = QUARTER - timedelta(days=40)
NAMES = tuple(NodeName(f"gpu{number:03}") for number in range(4))


def gathered(tmp_path: Path, *, ledger: CostLedger | None = None, **changed: Any) -> tuple[SupplyInputs, Sequence[str]]:
    desk = CapacityStage(directory=tmp_path, first=SHORT, ledger=ledger or CostLedger()).desk(**changed)
    return gather_supply(desk, read_past(desk, as_of=QUARTER), weeks=8)


# -- the register --


def test_what_stands_on_the_day_is_installed(tmp_path: Path) -> None:
    yesterday, tomorrow = QUARTER - timedelta(days=1), QUARTER + timedelta(days=1)
    found, notes = gathered(
        tmp_path,
        installed=(
            node(0),
            node(1, until=yesterday),
            node(2, until=QUARTER),
            node(3, until=tomorrow),
            node(4, since=QUARTER),
            node(5, since=tomorrow),
            node(6, gpu_type=GpuType("")),
        ),
    )

    assert found.installed == {"h100": 24, "": 8}
    assert found.arrivals == (Arrival(sku="hgx-h100", gpu_type=H100, gpus=8, on=tomorrow),)
    assert found.retirements == (Retirement(nodes=(NodeName("gpu003"),), gpu_type=H100, gpus=8, on=tomorrow),)
    assert notes == ()


def test_without_a_register_it_is_said(tmp_path: Path) -> None:
    found, notes = gathered(tmp_path, installed=())

    assert found.installed == {}
    assert notes == ("cluster.yaml names no nodes under `racks`: what is installed is not known",)


def test_what_is_stated_comes_and_goes_and_a_node_goes_once(tmp_path: Path) -> None:
    arrival = Arrival(sku="hgx-h100", gpu_type=H100, gpus=16, on=date(2026, 12, 1), probability=0.8)
    stated = Retirement(nodes=NAMES[:2], gpu_type=H100, gpus=16, on=date(2026, 12, 24))
    end = date(2027, 1, 1)

    found, notes = gathered(
        tmp_path,
        capacity=replace(SETTINGS, arrivals=(arrival,), retirements=(stated,)),
        installed=(node(0, until=end), node(1), node(2)),
    )

    assert found.arrivals == (arrival,)
    assert found.retirements == (
        Retirement(nodes=NAMES[:1], gpu_type=H100, gpus=8, on=end),
        Retirement(nodes=NAMES[1:2], gpu_type=H100, gpus=8, on=date(2026, 12, 24)),
    )
    assert notes == (
        "gpu000 retire in capacity.yaml on 2026-12-24 and have an end in cluster.yaml, too: the end of cluster.yaml "
        "counts",
    )


def test_what_comes_by_both_files_in_one_month_is_counted_and_pointed_out(tmp_path: Path) -> None:
    same, other = (
        Arrival(sku="hgx-h100", gpu_type=H100, gpus=8, on=on) for on in (date(2026, 12, 31), date(2027, 1, 1))
    )

    found, notes = gathered(
        tmp_path,
        capacity=replace(SETTINGS, arrivals=(same, other)),
        installed=(node(0), node(1, since=date(2026, 12, 1))),
    )

    assert [each.gpus for each in found.arrivals] == [8, 8, 8]
    assert notes == (
        "8 GPUs of hgx-h100 arrive on 2026-12-31 in capacity.yaml, and racks of cluster.yaml with the same type on "
        "2026-12-01: both are counted; if they are the same, take them out of capacity.yaml",
    )


@pytest.mark.parametrize(("days", "installed"), [(-1, 8), (0, 16), (1, 16)])
def test_what_was_to_retire_before_the_forecast_is_gone_though_cluster_yaml_has_it(
    tmp_path: Path, days: int, installed: int
) -> None:
    stated = Retirement(nodes=NAMES[:1], gpu_type=H100, gpus=8, on=QUARTER + timedelta(days=days))

    found, _ = gathered(tmp_path, capacity=replace(SETTINGS, retirements=(stated,)), installed=(node(0), node(1)))

    assert found.installed == {"h100": installed}


# -- measured days --


def test_shares_are_of_what_was_installed_on_the_day(tmp_path: Path) -> None:
    half = QUARTER - timedelta(days=20)
    found, _ = gathered(
        tmp_path, installed=tuple(node(number, since=half if number % 2 else date(2025, 1, 1)) for number in range(40))
    )

    out, stranded = found.out_ratios[H100], found.stranded_ratios[H100]
    assert len(out) == len(stranded) == 40
    assert stranded[:20] == (2 / (GPUS / 2),) * 20
    assert stranded[20:] == (2 / GPUS,) * 20
    assert set(out[20:]) == {each / GPUS for each in (6.0, 7.0, 8.0, 9.0, 10.0)}


# -- rollouts --


def rollout(*waves: Wave, state: RolloutState = RolloutState.RUNNING) -> Rollout:
    return Rollout(
        rollout=RolloutId("RO-0001"), release=ReleaseName("driver"), release_digest=Digest("d"), plan=PlanId("PLAN-1"),
        state=state, waves=waves, since=at(SHORT), owner="autopilot", reason="", created_by="ann", created_at=at(SHORT),
    )  # fmt: skip


def wave(number: int, nodes: Sequence[NodeName], *, days: int, until: int | None = None) -> Wave:
    return Wave(
        number=number,
        nodes=tuple(nodes),
        is_canary=False,
        planned_from=at(QUARTER + timedelta(days=days)),
        planned_until=None if until is None else at(QUARTER + timedelta(days=until)),
    )


def ledger_of(known: Rollout, *, stage: NodeStage = NodeStage.PENDING) -> CostLedger:
    nodes = [
        RolloutNode(rollout=known.rollout, node=name, wave=each.number, stage=stage, since=at(SHORT))
        for each in known.waves
        for name in each.nodes
    ]
    return CostLedger(begun_rollouts=(known,), nodes_of={known.rollout: nodes})


def test_planned_waves_take_as_many_nodes_as_may_be_out_at_once(tmp_path: Path) -> None:
    waves = wave(1, NAMES[:1], days=-3, until=-2), wave(2, NAMES[1:], days=13, until=15), wave(3, (), days=70)

    found, _ = gathered(tmp_path, ledger=ledger_of(rollout(*waves)))

    # The policy lets two be out at once; a wave that should have been taken already still comes.
    assert found.rollout_gpus == {H100: [8.0, 16.0, 16.0, 0.0, 0.0, 0.0, 0.0, 0.0]}


@pytest.mark.parametrize(
    ("state", "stage"), [(RolloutState.PAUSED, NodeStage.PENDING), (RolloutState.RUNNING, NodeStage.UPDATED)]
)
def test_what_is_paused_or_done_takes_nothing(tmp_path: Path, state: RolloutState, stage: NodeStage) -> None:
    known = rollout(wave(1, NAMES, days=1), state=state)

    found, _ = gathered(tmp_path, ledger=ledger_of(known, stage=stage))

    assert found.rollout_gpus == {}


def test_a_wave_without_a_time_takes_nothing_in_any_week(tmp_path: Path) -> None:
    known = rollout(Wave(number=1, nodes=NAMES, is_canary=False))

    found, _ = gathered(tmp_path, ledger=ledger_of(known))

    assert found.rollout_gpus == {}


# -- the past --


@pytest.mark.parametrize(("days", "is_enough"), [(0, False), (1, False), (13, False), (14, True), (15, True)])
def test_fewer_than_two_weeks_are_no_history(tmp_path: Path, days: int, is_enough: bool) -> None:
    desk = CapacityStage(directory=tmp_path, first=QUARTER - timedelta(days=days)).desk()

    if is_enough:
        found = read_past(desk, as_of=QUARTER).completeness
        assert (found.known, found.expected, found.missing) == (days, days, ())
    else:
        with pytest.raises(NoHistory, match="14 are needed: materialise daily_peaks there"):
            read_past(desk, as_of=QUARTER)


@pytest.mark.parametrize(("silent", "is_enough"), [(12, True), (13, True), (14, False)])
def test_a_past_that_ended_two_weeks_ago_is_no_history(tmp_path: Path, silent: int, is_enough: bool) -> None:
    stage = CapacityStage(directory=tmp_path, first=SHORT, until=QUARTER - timedelta(days=silent))
    desk = stage.desk(today=QUARTER)

    if is_enough:
        assert read_past(desk, as_of=QUARTER).completeness.known == 28 - silent
    else:
        with pytest.raises(NoHistory, match="nothing is known of the 14 days before 2026-10-01"):
            read_past(desk, as_of=QUARTER)


def test_days_after_the_forecast_are_not_looked_at(tmp_path: Path) -> None:
    desk = CapacityStage(directory=tmp_path, first=SHORT, until=QUARTER + timedelta(days=9)).desk()

    found = read_past(desk, as_of=QUARTER)

    history = found.history.resources[0].series
    assert history.day(history.day_count) == QUARTER


def test_a_day_that_has_not_come_is_refused(tmp_path: Path) -> None:
    desk = CapacityStage(directory=tmp_path, first=SHORT).desk()

    with pytest.raises(ValueError, match="as of 2026-10-02 was asked for, and today is 2026-10-01 in UTC"):
        read_past(desk, as_of=QUARTER + timedelta(days=1))


@pytest.mark.parametrize(("lost", "is_enough"), [(0, True), (2, True), (3, False)])
def test_orders_follow_only_where_nine_of_ten_days_are_known(tmp_path: Path, lost: int, is_enough: bool) -> None:
    gone = frozenset(QUARTER - timedelta(days=5 + number) for number in range(lost))
    desk = CapacityStage(directory=tmp_path, first=SHORT, left_out=gone).desk()

    found = read_past(desk, as_of=QUARTER).completeness

    assert found.is_enough is is_enough
    assert (found.known, found.expected, frozenset(found.missing)) == (28 - lost, 28, gone)


def test_where_all_days_are_counted_nothing_is_caught_up(tmp_path: Path) -> None:
    assert catch_up(CapacityStage(directory=tmp_path, first=SHORT).desk(), as_of=QUARTER) == ()


def test_the_last_two_days_are_counted_where_nobody_did(tmp_path: Path) -> None:
    desk = QuotaStage(tmp_path).desk
    two, one = TODAY - timedelta(days=2), TODAY - timedelta(days=1)

    assert catch_up(desk, as_of=TODAY) == (two, one)
    kept = desk.lake.read("daily_peaks", start=at(two), end=at(TODAY))
    assert kept.num_rows == 8
    assert catch_up(desk, as_of=TODAY) == ()


def test_a_day_of_which_nothing_is_known_is_not_counted(tmp_path: Path) -> None:
    desk = QuotaStage(tmp_path, past=Past(until=at(TODAY - timedelta(days=1)))).desk

    assert catch_up(desk, as_of=TODAY) == (TODAY - timedelta(days=2),)
