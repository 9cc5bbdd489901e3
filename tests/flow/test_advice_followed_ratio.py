"""How often advice is followed, by what it promised: enough of it, recent, and judged."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from ops_pipelines.efficiency.kept import JUDGED_WEEKS, LEAST_JUDGED, followed_ratio
from ops_pipelines.teams.desk import TeamsDesk
from tests.flow.capacity_stage import QUARTER, CapacityStage, at
from tests.flow.cost_stage import RowsLake

BEFORE = at(QUARTER)
WEEK = timedelta(days=7)
KNOWN = BEFORE - 2 * WEEK
"""What was distinguished from here on is judged later."""
Told = tuple[str | None, float | None]


def desk_with(tmp_path: Path, told: Sequence[Told], *, week: datetime = KNOWN - WEEK) -> TeamsDesk:
    desk = CapacityStage(directory=tmp_path).desk()
    rows = [
        {
            "team": "research", "kind": "idle_allocation", "subject": f"job {number}", "time": week, "week": "w",
            "told_at": week, "followed": followed, "gain_gpu_hours": gain,
        }
        for number, (followed, gain) in enumerate(told)
    ]  # fmt: skip
    lake = cast("Any", RowsLake(efficiency_advice=rows))
    return replace(desk, observatory=replace(desk.observatory, lake=lake))


@pytest.mark.parametrize(
    ("told", "ratio"),
    [
        ([("followed", 30.0)] * 2 + [("not_followed", 20.0)] * 3, 0.5),
        ([("followed", 30.0)] * 5, 1.0),
        ([("not_followed", 30.0)] * 5, 0.0),
        ([("followed", 30.0)] * 4, None),
        ([("followed", 30.0)] * 4 + [("unknown", 30.0), ("not_run_again", 9.0), (None, 9.0)], None),
        ([("followed", None)] * 5, None),
        ([], None),
    ],
    ids=[
        "by hours",
        "all",
        "none",
        "too few",
        "what was not judged",
        "nothing promised",
        "nothing reported",
    ],
)
def test_the_share_is_of_what_was_judged(tmp_path: Path, told: Sequence[Told], ratio: float | None) -> None:
    assert followed_ratio(desk_with(tmp_path, told), before=BEFORE) == ratio


@pytest.mark.parametrize(
    ("week", "is_counted"),
    [
        (KNOWN - JUDGED_WEEKS * WEEK - WEEK, False),
        (KNOWN - JUDGED_WEEKS * WEEK, True),
        (KNOWN - WEEK, True),
        (KNOWN, False),
    ],
)
def test_old_advice_and_what_was_not_judged_by_then_are_left_out(
    tmp_path: Path, week: datetime, is_counted: bool
) -> None:
    desk = desk_with(tmp_path, [("followed", 1.0)] * LEAST_JUDGED, week=week)

    assert (followed_ratio(desk, before=BEFORE) is not None) == is_counted
