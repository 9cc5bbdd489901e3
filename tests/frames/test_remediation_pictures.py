"""Pictures of remediation: inline within the limit, every node in one of them, no hostile word in the markup."""

import re
from base64 import b64decode
from collections.abc import Iterable
from datetime import timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.plan import BlastRadius, Remaining
from ops_pipelines.remediate.ladder import Rung
from ops_pipelines.remediate.pictures import (
    RUNG_WORDS,
    Picture,
    ladder_picture,
    probation_picture,
    proof_picture,
    queue_picture,
    saved_picture,
)
from ops_pipelines.remediate.standings import Probation, Standing
from ops_pipelines.report.document import Shade
from ops_pipelines.report.pictures.bars import INLINE_AT_MOST, BarRow, Sheet, large_rows, rows_png, small_rows
from tests.domain.builders import NOW, after, ago, incident

SHEET = Sheet(title="bars", key={Shade.BLUE: "blue"})
NO_PROOF = BlastRadius(jobs=(), teams=(), lost_gpu_hours=0.0, unknown_loss_count=0, remaining=(), violations=())


def standing(number: int, rung: Rung = Rung.DRAIN, *failed: Rung) -> Standing:
    return standing_of(f"gpu{number:03d}", rung, failed)


def standing_of(name: str, rung: Rung, failed: Iterable[Rung]) -> Standing:
    return Standing(
        node=NodeName(name),
        incident=incident(),
        rung=rung,
        since=NOW,
        failed=frozenset(failed),
        next_rung=None,
        waits_for="",
    )


def watched(name: str, *, since: float, left: float) -> Probation:
    return Probation(node=NodeName(name), incident=incident(), since=ago(since), until=after(left), jobs=None)


def drawing_of(markdown: str) -> str:
    (body,) = re.findall(r"^!\[[^\]]*\]\(data:image/svg\+xml;base64,([^)]+)\)", markdown)
    return b64decode(body).decode()


def words_of(markdown: str) -> list[str]:
    texts = ElementTree.fromstring(drawing_of(markdown)).iter("{http://www.w3.org/2000/svg}text")
    return [each.text or "" for each in texts]


def test_nothing_to_draw_is_a_sentence() -> None:
    empty = [
        ladder_picture([]),
        queue_picture({}, now=NOW),
        probation_picture([], now=NOW),
        saved_picture({}, uncounted_job_count=0),
        proof_picture(NO_PROOF),
    ]

    assert [each.small for each in empty] == [
        "No node is above watching.",
        "The repair queue is empty.",
        "No node is on probation.",
        "No moment was chosen yet that saved or cost GPU-hours.",
        "The plan takes nothing out of service.",
    ]
    assert [each.small for each in empty] == [each.large for each in empty]


def test_highest_node_of_the_ladder_stands_first_with_its_name() -> None:
    picture = ladder_picture([standing(1), standing(2, Rung.RETURN_TO_VENDOR, Rung.REBOOT), standing(3, Rung.FENCE)])

    assert words_of(picture.small) == ["0 1 2 3 4 5 6 7 8 9 a v", "gpu002", "gpu003", "gpu001"]
    assert picture.large.startswith("![ladder: nodes x rungs](data:image/png;base64,")


@pytest.mark.parametrize(("count", "label"), [(8, "gpu000"), (9, "gpu000 +8"), (200, "gpu000 +199")])
def test_many_nodes_that_stand_alike_are_one_row(count: int, label: str) -> None:
    picture = ladder_picture([standing(number) for number in range(count)])

    assert label in words_of(picture.small) or f"{label} (top)" in picture.small
    assert f"{count} nodes" in picture.small


def test_every_rung_has_a_column_whose_name_fits() -> None:
    assert list(RUNG_WORDS) == list(Rung)
    assert max(map(len, RUNG_WORDS.values())) <= 5


def test_longest_waiting_stands_first_in_the_repair_queue() -> None:
    waiting = {"gpu001": ago(3600), "gpu002": ago(3 * 86400)}

    assert words_of(queue_picture(waiting, now=NOW).small) == ["gpu002 3 d 0 h", "gpu001 1 h 00 min"]


@pytest.mark.parametrize(("left", "words"), [(60.0, "1 min left"), (0.0, "over"), (-60.0, "over")])
def test_probation_that_is_over_says_so(left: float, words: str) -> None:
    assert words_of(probation_picture([watched("gpu001", since=600, left=left)], now=NOW).small) == [f"gpu001 {words}"]


def test_saved_hours_are_told_by_day_with_the_teams_that_saved_most() -> None:
    by_day = {"2026-11-20": {"a": 1.0}, "2026-11-21": {"a": 2.0, "b": 5.0, "c": 3.0, "d": 0.5}}

    small = saved_picture(by_day, uncounted_job_count=2).small

    assert words_of(small) == ["21 Nov 10.5 GPU-h", "20 Nov 1.0 GPU-h"]
    assert "11.5 GPU-hours" in small
    assert "blue b, orange a, green c, grey others" in small
    assert "2 jobs without known costs in no sum" in small


def test_plan_shows_the_tightest_part_first() -> None:
    parts = (
        Remaining(kind="cluster", name="cluster", total_count=64, out_before_count=1, out_after_count=2, limit=""),
        Remaining(kind="rack", name="r1", total_count=4, out_before_count=1, out_after_count=2, limit="at most 2"),
        Remaining(kind="partition", name="none", total_count=0, out_before_count=0, out_after_count=0, limit=""),
    )
    proof = BlastRadius(jobs=(), teams=(), lost_gpu_hours=0.0, unknown_loss_count=0, remaining=parts, violations=())

    assert words_of(proof_picture(proof).small) == ["rack r1 2 of 4", "cluster 62 of 64"]


NAMES = st.text(min_size=1, max_size=80)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(NAMES, st.sampled_from(list(Rung)[1:]), st.frozensets(st.sampled_from(Rung))), max_size=30))
def test_any_ladder_is_shown_in_place_and_well_formed(rows: list[tuple[str, Rung, frozenset[Rung]]]) -> None:
    picture = ladder_picture([standing_of(name, rung, failed) for name, rung, failed in rows])

    is_shown(picture)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(NAMES, st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6)), max_size=40))
def test_any_probation_and_queue_are_shown_in_place(rows: list[tuple[str, int, int]]) -> None:
    probations = [watched(name, since=since, left=left) for name, since, left in rows]

    is_shown(probation_picture(probations, now=NOW))
    waiting = {each.node: each.since for each in probations}
    is_shown(queue_picture(waiting, now=NOW + timedelta(days=40)))


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(NAMES, st.floats(-1e6, 1e6), max_size=12), st.integers(1, 20))
def test_any_savings_are_shown_in_place(teams: dict[str, float], day_count: int) -> None:
    by_day = {f"2026-11-{day:02d}": teams for day in range(1, day_count + 1)}

    is_shown(saved_picture(by_day, uncounted_job_count=3))


def is_shown(picture: Picture) -> None:
    assert len(picture.small) < INLINE_AT_MOST
    assert picture.small
    if "svg+xml" in picture.small:
        ElementTree.fromstring(drawing_of(picture.small))
    shown = re.sub(r"^!\[[^\]]*\]\([^)]*\)", "", re.sub(r"\\.", "", picture.small))
    assert not re.search(r"[<\[`]", shown)


def test_rows_beyond_the_large_picture_are_counted() -> None:
    rows = [BarRow(label=str(number), parts=((1.0, Shade.BLUE),), number="1") for number in range(61)]

    assert large_rows(rows, sheet=SHEET, words="all").endswith("all · 1 more not drawn")
    assert large_rows(rows[:60], sheet=SHEET, words="all").endswith("all")
    assert small_rows([], sheet=SHEET, words="all") == "all"
    with pytest.raises(ValueError, match="no rows"):
        rows_png([], sheet=SHEET)


def test_what_is_there_is_seen_however_small() -> None:
    rows = [
        BarRow(label="a", parts=((1e6, Shade.BLUE),), number=""),
        BarRow(label="b", parts=((1e-3, Shade.BLUE),), number=""),
    ]

    assert re.findall(r"h(\d+)", drawing_of(small_rows(rows, sheet=SHEET, words=""))) == ["231", "1"]
