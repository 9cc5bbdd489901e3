"""The report of a quarter as it is served: what was kept, as a page and as JSON, and from the index."""

import json
from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path

import pytest
from starlette.applications import Starlette

from ops_pipelines.capacity.answers import json_of
from ops_pipelines.capacity.model import first_day_of, quarter_before, quarter_of
from ops_pipelines.resources.page_files import CAPACITY_DIRECTORY, PlanDirectory
from ops_pipelines.server import build_app
from tests.pages.capacity_sample import whole_report
from tests.shell.desk import Desk
from tests.shell.test_server import get


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def app(desk: Desk) -> Starlette:
    return build_app(lambda: desk.cluster, cluster_file=desk.cluster_file)


def files(desk: Desk) -> PlanDirectory:
    return PlanDirectory(desk.cluster_file.parent / "state" / CAPACITY_DIRECTORY)


def present(desk: Desk) -> str:
    return quarter_of(desk.clock.now().astimezone(UTC).date())


def keep(desk: Desk, name: str, *, headline: str = "") -> None:
    quarter = name[:6]
    report = whole_report()
    found = replace(
        report,
        forecast=replace(report.forecast, quarter=quarter),
        plan=replace(report.plan, quarter=quarter),
        headline=(headline or f"this is {name}",),
    )
    files(desk).keep(f"{name}.json", json_of(found))


def test_before_the_first_quarter_the_page_says_what_makes_one(app: Starlette) -> None:
    page, document = get(app, "/capacity"), get(app, "/capacity.json")

    assert (page.status, document.status) == (200, 404)
    assert "was planned yet" in page.body
    assert "<code>ops-pipelines capacity report</code>" in page.body
    assert "was planned yet" in document.body


def test_the_newest_quarter_that_was_kept_is_shown_and_its_tile(desk: Desk, app: Starlette) -> None:
    before = quarter_before(present(desk))
    keep(desk, quarter_before(before))
    keep(desk, before)

    page, index = get(app, "/capacity"), get(app, "/")

    assert f"this is {before}" in page.body
    assert f'href="capacity?quarter={quarter_before(before)}"' in page.body
    assert 'href="capacity"' in index.body
    assert f"overdue since then: order 2 of lustre, 200 TiB, and 1 more ({before})" in index.body


def test_a_quarter_and_its_check_are_shown_by_name(desk: Desk, app: Starlette) -> None:
    quarter = present(desk)
    month = f"{first_day_of(quarter) + timedelta(days=40):%Y-%m}"
    keep(desk, quarter)
    keep(desk, f"{quarter}-check-{month}")

    first, check = (get(app, "/capacity", query=f"quarter={each}") for each in (quarter, f"{quarter}-check-{month}"))

    assert f"this is {quarter}</li>" in first.body
    assert f'href="capacity?quarter={quarter}-check-{month}"' in first.body
    assert f"this is {quarter}-check-{month}" in check.body


def test_the_document_is_what_was_kept(desk: Desk, app: Starlette) -> None:
    keep(desk, present(desk))

    served = get(app, "/capacity.json", query=f"quarter={present(desk)}")

    assert (served.status, served.media_type) == (200, "application/json")
    assert json.loads(served.body)["headline"] == [f"this is {present(desk)}"]
    assert served.body.encode() == files(desk).read(f"{present(desk)}.json")


def test_a_report_that_was_made_anew_is_shown_at_once(desk: Desk, app: Starlette) -> None:
    keep(desk, present(desk), headline="the first")
    first = get(app, "/capacity")
    keep(desk, present(desk), headline="the second")

    assert "the first" in first.body
    assert "the second" in get(app, "/capacity").body


@pytest.mark.parametrize(
    "asked",
    ["2019Q1", "2026Q5", "0000Q1", "0001Q1", "", "../2026Q4", "2026Q4-check-2026-09", "2026Q4-check-",
     "2026Q4.json", "%00", "x" * 900],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/capacity", "/capacity.json"])
def test_what_was_not_kept_or_is_no_quarter_is_not_found(desk: Desk, app: Starlette, path: str, asked: str) -> None:
    answer = get(app, path, query=f"quarter={asked}")

    assert answer.status == 404
    assert len(answer.body) < 9_000


def test_a_name_of_a_stranger_stays_text(app: Starlette) -> None:
    assert "<script" not in get(app, "/capacity", query="quarter=<script>alert(1)</script>").body


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"version": 9}'])
@pytest.mark.parametrize("path", ["/capacity", "/capacity.json"])
def test_a_report_that_cannot_be_read_is_told_and_the_index_stands(
    desk: Desk, app: Starlette, content: bytes, path: str
) -> None:
    files(desk).keep(f"{present(desk)}.json", content)

    answer, index = get(app, path), get(app, "/")

    assert answer.status == 503
    assert "Move it away" in answer.body
    assert index.status == 200
    assert "cannot be read now; its page says why" in index.body


def test_where_only_the_ledger_is_served_it_says_so(desk: Desk) -> None:
    alone = build_app(lambda: desk.cluster)

    assert [get(alone, path).status for path in ("/capacity", "/capacity.json")] == [404, 404]


@pytest.mark.parametrize("path", ["/capacity", "/capacity.json"])
def test_nobody_can_send_anything_there(app: Starlette, path: str) -> None:
    assert get(app, path, method="POST").status == 405
