"""Pages of quotas, costs, advice and placement as they are served: found from the index, never without words."""

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pytest
from starlette.applications import Starlette

from ops_pipelines.core.periods import week_of
from ops_pipelines.core.proposal import ProposalState
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.server import build_app
from tests.flow.quota_mornings import row_of
from tests.pages.quota_samples import DAY, line, record
from tests.shell.desk import HOSTILE, Desk
from tests.shell.test_cost_commands import CostDesk
from tests.shell.test_server import get

PATHS = ("/quotas", "/chargeback", "/advice", "/placement")


@pytest.fixture
def desk(tmp_path: Path) -> CostDesk:
    return CostDesk(tmp_path)


@pytest.fixture
def app(desk: CostDesk) -> Starlette:
    return build_app(lambda: desk.cluster, cluster_file=desk.cluster_file)


def advise(desk: Desk, *, subject: str = "ada/resnet_#") -> str:
    """Keep one piece of advice of the last whole week and return the week's name."""
    week = week_of(desk.clock.now()).before
    lake = ParquetLake(desk.cluster_file.parent / "state" / "lake", clock=desk.clock)
    row = {
        "team": "vision", "kind": "input_stall", "subject": subject, "time": week.end, "week": week.name,
        "told_at": week.end, "evidence": "its GPUs waited", "counter_evidence": "", "what_to_do": "more workers",
        "confidence": "high", "gain_low_gpu_hours": 60.0, "gain_gpu_hours": 120.0, "gain_cents": 34_500,
        "gain_bytes": 0.0, "held_gpu_hours": 400.0, "measure": 0.6,
    }  # fmt: skip
    lake.replace_hour("efficiency_advice", week.end, TABLES["efficiency_advice"].from_rows([row]))
    return week.name


def keep_demand(desk: Desk) -> None:
    """Keep an hour of demand of the day of the proposal that the page shows."""
    lake = ParquetLake(desk.cluster_file.parent / "state" / "lake", clock=desk.clock)
    noon = datetime.combine(DAY - timedelta(days=1), time(12), UTC)
    lake.replace_hour("gpu_demand", noon, TABLES["gpu_demand"].from_rows([row_of("vision", noon, 8.0, limit=8)]))


# -- fresh --


@pytest.mark.parametrize("path", PATHS)
def test_a_fresh_installation_says_what_fills_the_page(tmp_path: Path, path: str) -> None:
    fresh = Desk(tmp_path)

    page = get(build_app(lambda: fresh.cluster, cluster_file=fresh.cluster_file), path)

    assert page.status == 200
    assert "<code>ops-pipelines " in page.body


@pytest.mark.parametrize("path", PATHS)
def test_index_leads_to_each_page(app: Starlette, path: str) -> None:
    index = get(app, "/")

    assert index.status == 200
    assert index.body.count(f'href="{path[1:]}"') == 2


def test_where_only_the_ledger_is_served_the_others_say_so(desk: CostDesk) -> None:
    alone = build_app(lambda: desk.cluster)

    assert [get(alone, path).status for path in ("/", *PATHS)] == [200, 200, 404, 404, 404]
    assert "the lake is not at hand here" in get(alone, "/advice").body


@pytest.mark.parametrize("path", [*PATHS, "/chargeback/2026-11.csv"])
def test_nobody_can_send_anything_there(app: Starlette, path: str) -> None:
    assert get(app, path, method="POST").status == 405


def test_a_day_without_a_job_is_not_called_good(tmp_path: Path) -> None:
    fresh = Desk(tmp_path)

    page = get(build_app(lambda: fresh.cluster, cluster_file=fresh.cluster_file), "/placement")

    assert "No job is on record for this day" in page.body


# -- filled --


def test_the_newest_proposal_is_shown_with_the_command_and_on_the_index(desk: CostDesk, app: Starlette) -> None:
    kept = desk.cluster.ledger.keep_proposal(record(), now=desk.clock.now())

    page, index = get(app, "/quotas"), get(app, "/")

    assert f"ops-pipelines quota apply {kept.name}" in page.body
    assert "<b>8</b><span>GPUs move on 2026-11-22; proposed. It waits for approval.</span>" in index.body


def test_an_older_proposal_is_shown_by_its_name(desk: CostDesk, app: Starlette) -> None:
    old = desk.cluster.ledger.keep_proposal(record(day=DAY - timedelta(days=1)), now=desk.clock.now())
    desk.cluster.ledger.keep_proposal(record([line(after=33)]), now=desk.clock.now())

    page = get(app, "/quotas", query=f"proposal={old.name}")

    assert "an older proposal" in page.body
    assert ProposalState.SUPERSEDED.value in page.body


def test_a_month_is_charged_and_its_file_is_linked_once_it_is_kept(desk: CostDesk, app: Starlette) -> None:
    without = get(app, f"/chargeback/{desk.month}.csv")
    exported = desk.run("cost", "export", "--to", str(desk.cluster_file.parent / "state" / "chargeback"))

    page, kept, index = get(app, "/chargeback"), get(app, f"/chargeback/{desk.month}.csv"), get(app, "/")

    assert (without.status, exported.exit_code) == (404, 0)
    assert "residual 0.00" in page.body
    assert f'href="chargeback/{desk.month}.csv"' in page.body
    assert (kept.status, kept.media_type) == (200, "text/csv; charset=utf-8")
    assert "BilledCost" in kept.body
    assert f"borne by teams in {desk.month}" in index.body


def test_the_newest_week_with_advice_is_shown_and_stands_on_the_index(desk: CostDesk, app: Starlette) -> None:
    week = advise(desk)

    page, index = get(app, "/advice"), get(app, "/")

    assert f"Advice of {week}" in page.body
    assert "ada/resnet_#" in page.body
    assert "<b>120.0</b><span>GPU-hours a week to gain" in index.body


def test_subjects_of_users_stay_text(desk: CostDesk, app: Starlette) -> None:
    advise(desk, subject=HOSTILE + "<script>alert(1)</script>")

    page = get(app, "/advice").body

    assert "ada" not in page
    assert not any(each in page for each in ("<script>", "\x1b", "\u202e", "\x9b"))


def test_placement_stands_on_the_index_once_it_was_counted(app: Starlette) -> None:
    before = get(app, "/").body
    page = get(app, "/placement")

    assert "counted when it is opened" in before
    assert page.status == 200
    assert "were out of reach on" in get(app, "/").body


# -- what nobody asked for --


NAMES_OF_NOTHING = (
    "2026-13", "", "..", "%00", "%3Cscript%3E", "x" * 5_000, "2026-11-99", "9999-W53", "0001-W01", "9999-12-31",
)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "key"), [("/quotas", "proposal"), ("/chargeback", "month"), ("/advice", "week"), ("/placement", "day")]
)
def test_a_name_of_nothing_is_answered_in_words(app: Starlette, path: str, key: str) -> None:
    answers = [get(app, path, query=f"{key}={name}") for name in NAMES_OF_NOTHING]

    assert {each.status for each in answers} == {404}
    assert not any("<script>" in each.body or "\x00" in each.body for each in answers)


def test_no_other_file_is_given_out(app: Starlette) -> None:
    names = ("2026-11.json", "..csv", "2026-13.csv", "\x00.csv", "../ledger.sqlite", "x" * 5_000)

    assert {get(app, f"/chargeback/{name}").status for name in names} == {404}


def test_a_wrong_file_of_teams_is_told_and_leaves_the_index_and_health(desk: CostDesk, app: Starlette) -> None:
    desk.cluster_file.write_text(f"{desk.cluster_file.read_text()}\nteams: teams.yaml\n")
    (desk.cluster_file.parent / "teams.yaml").write_text("version: [")

    costs = get(app, "/chargeback")

    assert [get(app, path).status for path in ("/", "/healthz", "/quotas")] == [200, 503, 200]
    assert costs.status == 503
    assert "ops-pipelines check-config" in costs.body
    assert str(desk.cluster_file.parent) not in costs.body


def test_a_lake_that_cannot_be_read_leaves_the_index(desk: CostDesk, app: Starlette) -> None:
    advise(desk)
    keep_demand(desk)
    for file in (desk.cluster_file.parent / "state" / "lake").rglob("*.parquet"):
        file.write_bytes(b"PAR1 and then the disk was full")

    assert (get(app, "/").status, get(app, "/advice").status) == (200, 503)
    assert "cannot be read now" in get(app, "/").body
    desk.cluster.ledger.keep_proposal(replace(record()), now=desk.clock.now())
    assert "used not known" in get(app, "/quotas").body
