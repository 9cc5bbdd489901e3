"""The picture of a plan: small within what the UI shows in place, large with every node where the plan has it."""

import re
import zlib
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import Interval, WorkCalendar
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.release import ReleaseName
from ops_pipelines.core.rollout import RolloutPlan, SkippedNode
from ops_pipelines.report.pictures.bars import INLINE_AT_MOST
from ops_pipelines.report.pictures.rollouts import picture_of_plan, plan_png
from ops_pipelines.rollouts.fleet import FleetNode
from ops_pipelines.rollouts.planner import plan_rollout
from tests.domain.builders import NOW, after
from tests.domain.lifecycle_fleet import ALWAYS, HOUR, TIMES, WIDE, calendars, fleet_node, fleets, policies, release

WINDOW, FREEZE, WAITS, WORKED_ON, SOAKS, CUT = 2, 3, 4, 5, 6, 8
DAY = 24 * HOUR


def plan_of(nodes: Sequence[FleetNode], calendar: WorkCalendar = ALWAYS, policy: Policy = WIDE) -> RolloutPlan:
    plan = plan_rollout(release(), nodes, policy=policy, calendar=calendar, times=TIMES, contradictions=(), now=NOW)
    assert isinstance(plan, RolloutPlan)
    return plan


def racks_of(nodes: Sequence[FleetNode]) -> dict[NodeName, str]:
    return {each.node: each.place.rack for each in nodes}


def busy(count: int) -> list[FleetNode]:
    return [fleet_node(number, free_at=after(HOUR * (1 + number % 5))) for number in range(count)]


def pixels_of(png: bytes) -> NDArray[np.uint8]:
    """Return the palette numbers of a PNG of 16 colours, undoing its filters."""
    width, height = int.from_bytes(png[16:20]), int.from_bytes(png[20:24])
    body, place = b"", 8
    while place < len(png):
        length, kind = int.from_bytes(png[place : place + 4]), png[place + 4 : place + 8]
        body += png[place + 8 : place + 8 + length] if kind == b"IDAT" else b""
        place += 12 + length
    wide = (width + 1) // 2
    raw = np.frombuffer(zlib.decompress(body), dtype=np.uint8).reshape(height, wide + 1)
    rows = np.zeros((height, wide), dtype=np.uint8)
    for number in range(height):
        kind, line = raw[number, 0], raw[number, 1:]
        if kind == 1:
            rows[number] = np.cumsum(line.astype(np.uint64)).astype(np.uint8)
        else:
            rows[number] = line + (rows[number - 1] if kind == 2 and number else 0)
    return np.stack([rows >> 4, rows & 15], axis=2).reshape(height, -1)[:, :width]


def drawn(
    nodes: Sequence[FleetNode], calendar: WorkCalendar = ALWAYS, plan: RolloutPlan | None = None
) -> NDArray[np.uint8]:
    return pixels_of(plan_png(plan or plan_of(nodes, calendar), calendar, racks=racks_of(nodes)))


def key_below(pixels: NDArray[np.uint8]) -> int:
    """Return the row where the key begins: below it every colour is once."""
    return int(pixels.shape[0]) - 40


@pytest.mark.parametrize("count", [1, 16, 40, 41, 200])
def test_the_small_picture_is_shown_in_place_and_the_large_one_is_a_png(count: int) -> None:
    nodes = busy(count)

    small, large = picture_of_plan(plan_of(nodes), ALWAYS, racks=racks_of(nodes))

    assert len(small) < INLINE_AT_MOST
    assert "data:image/svg+xml;base64," in small
    body = re.findall(r"^!\[plan: nodes x time\]\(data:image/png;base64,([^)]+)\)", large)
    assert b64decode(body[0]).startswith(b"\x89PNG")
    for markdown in (small, large):
        assert re.search(rf"{count} nodes? in \d waves?", markdown)
        assert "begins 2026-11-21 07:30 UTC, ends 2026-1" in markdown


def test_a_plan_without_a_visit_is_a_sentence() -> None:
    nodes = busy(3)
    calendar = WorkCalendar(windows=())
    plan = plan_of(nodes, calendar)

    small, large = picture_of_plan(plan, calendar, racks=racks_of(nodes))

    assert small == large
    assert small.endswith("no end expected · 0 GPU-hours lost · 3 without an expected time")
    with pytest.raises(ValueError, match="nothing to draw"):
        plan_png(plan, calendar, racks={})


def test_what_is_left_out_is_counted_beside_the_picture() -> None:
    nodes = busy(2)
    plan = replace(plan_of(nodes), skipped=(SkippedNode(node=NodeName("gpu009"), reason="opted out"),))

    assert all(each.endswith("· 1 left out") for each in picture_of_plan(plan, ALWAYS, racks=racks_of(nodes)))


@pytest.mark.parametrize("count", [12, 120])
def test_each_row_shows_waiting_then_the_visit_then_the_soak(count: int) -> None:
    nodes = busy(count)
    pixels = drawn(nodes)
    rows = [row for row in pixels[: key_below(pixels)] if WORKED_ON in row]

    assert len(rows) >= count
    for row in rows:
        work = np.flatnonzero(row == WORKED_ON)
        assert not (row[: work[0]] == SOAKS).any()
        assert not (row[work[-1] :] == WAITS).any()
        assert (row[work[-1] :] == SOAKS).any()
    assert any((row == WAITS).any() for row in rows)


def test_windows_and_freezes_are_bands_and_nobody_is_begun_on_a_freeze() -> None:
    night = Interval(begins_at=NOW, ends_at=after(6 * HOUR), name="night")
    later = Interval(begins_at=after(DAY), ends_at=after(20 * DAY), name="rest")
    freeze = Interval(begins_at=after(2 * DAY), ends_at=after(3 * DAY), name="deadline")
    nodes = busy(6)

    pixels = drawn(nodes, WorkCalendar(windows=(night, later), freezes=(freeze,)))

    shown = pixels[: key_below(pixels)]
    assert (shown == WINDOW).sum() > 1_000
    assert (shown == FREEZE).sum() > 1_000
    columns = np.flatnonzero((shown == FREEZE).any(axis=0))
    assert not (shown[:, columns[0] + 3 : columns[-1] - 3] == WORKED_ON).any()


def test_a_week_of_soak_takes_no_more_room_than_the_work_around_it() -> None:
    pixels = drawn(busy(40))
    shown = pixels[: key_below(pixels)]

    assert (shown == CUT).any()
    widest = max(int((row == SOAKS).sum()) for row in shown)
    assert widest < 0.7 * shown.shape[1]


@pytest.mark.parametrize(("count", "has_names"), [(40, True), (41, False)])
def test_up_to_forty_rows_have_names_and_more_are_lines(count: int, has_names: bool) -> None:
    assert (drawn(busy(count)).shape[0] > 18 * count) is has_names


def test_two_thousand_nodes_still_fit_a_screen() -> None:
    nodes = [fleet_node(number, rack=f"r{number // 8:03d}") for number in range(2_000)]

    pixels = drawn(nodes)

    assert 1_000 <= pixels.shape[0] <= 1_300


def test_hostile_names_stay_text() -> None:
    nodes = [fleet_node(0, node=NodeName("![x](http://evil)\n\x1b"), rack="r](<")]
    plan = replace(plan_of(nodes), release=ReleaseName("a](http://evil)<b>"))

    small, large = picture_of_plan(plan, ALWAYS, racks=racks_of(nodes))

    for markdown in (small, large):
        assert len(re.findall(r"(?<!\\)\]\(", markdown)) == 1
        assert "<b>" not in markdown


@settings(max_examples=40, deadline=None)
@given(fleets(), policies(), calendars())
def test_every_plan_can_be_drawn(nodes, policy, calendar) -> None:
    plan = plan_rollout(release(), nodes, policy=policy, calendar=calendar, times=TIMES, contradictions=(), now=NOW)

    if isinstance(plan, RolloutPlan):
        small, large = picture_of_plan(plan, calendar, racks={})
        assert len(small) < INLINE_AT_MOST
        assert plan.release in large
