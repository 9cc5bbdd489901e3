"""What was bought at once is one batch; what took its nodes out is counted since the ledger began."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ops_pipelines.capacity.past import gather_batches, read_past
from ops_pipelines.capacity.planning import Batch
from ops_pipelines.core.action import Verb
from ops_pipelines.core.entries import Entry, EntryKind
from tests.domain.builders import incident
from tests.flow.capacity_stage import QUARTER, CapacityStage, node
from tests.flow.cost_stage import CostLedger
from tests.flow.review_stage import act, entry

OLD, NEW = date(2025, 1, 1), date(2026, 6, 1)
NODES = (*(node(number, since=OLD) for number in range(4)), *(node(number, since=NEW) for number in range(4, 6)))


def when(day: date, hour: int = 0) -> datetime:
    return datetime(day.year, day.month, day.day, hour, tzinfo=UTC)


def began(day: date) -> Entry:
    return entry(1, when(day), EntryKind.DECISION, "autopilot")


def batches(directory: Path, ledger: CostLedger | None = None, **changed: Any) -> tuple[Batch, ...]:
    desk = CapacityStage(directory=directory).desk(installed=NODES, **changed)
    if ledger is not None:
        desk = replace(desk, cluster=replace(desk.cluster, ledger=ledger))  # type: ignore[arg-type]  # its reading half
    return gather_batches(desk, read_past(desk, as_of=QUARTER))


def out_of_service(name: str, on: str, since: datetime, until: datetime) -> CostLedger:
    return CostLedger(
        incidents=(incident(name=name),),
        acts={name: (act(Verb.DRAIN, name, since, since, on=on), act(Verb.RESUME, name, until, until, on=on))},
        lines=(began(date(2026, 4, 1)),),
    )


def test_one_model_of_one_day_is_one_batch(tmp_path: Path) -> None:
    old, new = batches(tmp_path)

    assert (old.installed_since, old.gpus, old.gpus_per_node) == (OLD, 32, 8)
    assert (new.installed_since, new.gpus) == (NEW, 16)


def test_where_nothing_is_on_record_no_failures_are_told(tmp_path: Path) -> None:
    old, new = batches(tmp_path)

    assert (old.failures, new.failures, old.node_years) == (None, None, 0.0)
    assert old.hours_lost_ratio is None


def test_failures_count_since_the_ledger_began_and_since_the_node_stood_there(tmp_path: Path) -> None:
    since = when(date(2026, 5, 1))
    old, new = batches(tmp_path, out_of_service("INC-0001", "gpu001", since, since + timedelta(days=2)))

    recorded_days = (QUARTER - date(2026, 4, 1)).days
    assert (old.failures, new.failures) == (1, 0)
    assert old.node_years == pytest.approx(4 * recorded_days / 365.25)
    assert new.node_years == pytest.approx(2 * (QUARTER - NEW).days / 365.25)
    assert old.hours_lost_ratio == pytest.approx(2 / (4 * recorded_days))
    assert new.hours_lost_ratio == 0.0


@pytest.mark.parametrize(("day", "count"), [(date(2026, 9, 30), 1), (QUARTER, 0)])
def test_what_came_after_the_forecasts_day_is_not_known_then(tmp_path: Path, day: date, count: int) -> None:
    since = when(day)
    old, _ = batches(tmp_path, out_of_service("INC-0001", "gpu001", since, since + timedelta(hours=30)))

    assert old.failures == count
    assert old.hours_lost_ratio == pytest.approx(count / (4 * (QUARTER - date(2026, 4, 1)).days))


def test_a_ledger_that_begins_after_the_forecasts_day_tells_nothing(tmp_path: Path) -> None:
    old, _ = batches(tmp_path, CostLedger(lines=(began(QUARTER),)))

    assert old.failures is None


def test_nodes_that_are_gone_or_not_there_yet_are_in_no_batch(tmp_path: Path) -> None:
    installed = (node(0, since=OLD, until=QUARTER), node(1, since=QUARTER + timedelta(days=1)), node(2, since=OLD))
    desk = CapacityStage(directory=tmp_path).desk(installed=installed)

    (batch,) = gather_batches(desk, read_past(desk, as_of=QUARTER))

    assert batch.gpus == 8


def test_of_a_rack_that_states_no_day_no_age_is_told(tmp_path: Path) -> None:
    desk = CapacityStage(directory=tmp_path).desk(installed=(node(0, since=date(1970, 1, 1)),))

    (batch,) = gather_batches(desk, read_past(desk, as_of=QUARTER))

    assert batch.installed_since is None
