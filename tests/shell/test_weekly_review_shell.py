"""The weekly review at its edges: page, command, asset, address, and the section of cluster.yaml."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.assets.history import weekly_review
from ops_pipelines.assets.hours import WEEKS
from ops_pipelines.core.objectives import Objective, ObjectiveKind, WorkloadClass
from ops_pipelines.report.document import to_json
from ops_pipelines.report.html import page_of
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.yaml_file import ConfigError
from ops_pipelines.resources.page_files import PageFiles
from ops_pipelines.review.week_document import week_document
from ops_pipelines.review.week_words import five_sentences, shown_ratio
from ops_pipelines.review.weekly_review import WeeklyReview, review_week
from ops_pipelines.terminal.review_views import view_review
from ops_pipelines.terminal.served_pages import NoReview, WeeklyPages
from tests.flow.review_stage import WEEK, LakeOfRows, LedgerOfValues, accounted, at, hand_computed, inventory, stage
from tests.resources.test_config_files import MINIMAL
from tests.shell.desk import Desk

UPTIME = Objective(team="alpha", workload=WorkloadClass.ANY, kind=ObjectiveKind.UPTIME, target_ratio=0.99)
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=y> url(javascript:z)"


def review(*, team: str = "alpha") -> WeeklyReview:
    lake, ledger = hand_computed()
    objective = replace(UPTIME, team=team)
    return review_week(WEEK, *stage(lake, ledger, now=at(23, 6, 30), objectives=(objective,)))


def test_a_head_of_platform_reads_five_sentences() -> None:
    work, interruptions, parts, ours, promises = five_sentences(review())

    assert work.startswith("Between 98.6 % and 98.9 % of the GPU time that jobs requested was productive")
    assert work.endswith("interruptions are known to have taken 14.8 GPU-hours.")
    assert interruptions == (
        "Jobs were interrupted 3 times, 0.5 a day: 1 by hardware, 1 by us, ahead of a fault, 1 not explained."
    )
    assert parts.startswith("Parts failed 3 times: GPU 3. 3 repairs ended, after 1 h 36 min on average. 1 is not in")
    assert "1 node seems to have been taken out for nothing (7.4 GPU-hours)" in ours
    assert promises == "1 of 1 objectives is kept."


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [(None, "-"), (1.0, "100.0 %"), (0.9996, "above 99.9 %"), (0.9994, "99.9 %"), (0.0, "0.0 %")],
)
def test_almost_all_is_never_shown_as_all(ratio: float | None, shown: str) -> None:
    assert shown_ratio(ratio) == shown


def test_hostile_names_stay_text_on_the_page() -> None:
    lake = LakeOfRows(
        job_accounting=[
            accounted(HOSTILE, at(17, 0), at(17, 5), "NODE_FAIL", team=HOSTILE, nodes=HOSTILE),
            accounted("2", at(17, 0), at(17, 5), "COMPLETED", team="\x1b]0;owned\x07"),
        ],
        inventory=inventory(at(17, 0), at(17, 2)),
    )
    found = review_week(
        WEEK, *stage(lake, LedgerOfValues(), now=at(23, 6, 30), objectives=(replace(UPTIME, team=HOSTILE),))
    )

    page = page_of(week_document(found))

    assert "<script" not in page
    assert "<img" not in page
    assert not re.search(r"<[^>]*(onerror|javascript)[^>]*>", page)
    assert "&lt;script&gt;" in page
    to_json(view_review(found))


def test_the_page_of_an_empty_lake_says_what_is_missing() -> None:
    page = page_of(week_document(review_week(WEEK, *stage(LakeOfRows(), LedgerOfValues(), now=at(20, 9)))))

    for words in ("not over", "no job with GPUs is on record", "the lake has no inventory", "No objective is declared"):
        assert words in page


def test_json_has_the_numbers_in_base_units() -> None:
    told = json.loads(to_json(view_review(review())))

    assert told["week"] == "2026-W47"
    assert told["numbers"]["work"]["wanted_gpu_hours"] == pytest.approx(1381)
    assert told["work_by_team"]["alpha"]["effective_ratio"] == pytest.approx(1331.2 / 1344)
    assert told["components"][0]["mttr_seconds"] == pytest.approx(5800)
    assert told["wrong_acts"][0]["incident"] == "INC-0002"


def test_the_command_answers_on_a_cluster_without_a_lake(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    answer = desk.run("review", "--html", str(tmp_path / "week.html"), columns=200)

    assert (answer.exit_code, answer.stderr) == (0, "")
    assert "no job with GPUs is on record" in answer.stdout
    assert (tmp_path / "week.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    wrong = desk.run("review", "--week", "2026-W60")
    assert wrong.exit_code == 2
    assert "expected a week of ISO 8601" in wrong.stderr


def test_the_asset_shows_the_week_and_keeps_its_page(tmp_path: Path) -> None:
    lake, ledger = hand_computed()
    cluster, observatory = stage(lake, ledger, now=at(23, 6, 30), objectives=(UPTIME,))
    cluster = replace(cluster, page_shelf=PageFiles(tmp_path))
    with dg.instance_for_test() as instance:
        result = dg.materialize(
            [weekly_review],
            partition_key=WEEK.before.start.strftime(WEEKS.fmt),
            instance=instance,
            resources={
                "observatory": dg.ResourceDefinition.hardcoded_resource(observatory),
                "cluster": dg.ResourceDefinition.hardcoded_resource(cluster),
            },
        )
    (event,) = result.get_asset_materialization_events()
    shown = {name: value.value for name, value in event.materialization.metadata.items()}

    assert (shown["interruption_count"], shown["failure_count"], shown["wrong_act_count"]) == (0, 1, 0)
    assert (tmp_path / "weekly-2026-W46.html").exists()

    # Anyone who asks the web process gets the kept page, without the lake.
    def no_lake() -> None:
        raise AssertionError("the kept page needs no lake")

    page = WeeklyPages().page("2026-W46", cluster, no_lake)  # type: ignore[arg-type]  # never called
    assert page == (tmp_path / "weekly-2026-W46.html").read_text(encoding="utf-8")


def test_a_page_is_made_once_an_hour_and_old_weeks_are_not_made_on_request() -> None:
    lake, ledger = hand_computed()
    cluster, observatory = stage(lake, ledger, now=at(23, 6, 30))
    opened: list[int] = []

    def open_observatory() -> object:
        opened.append(1)
        return observatory

    pages = WeeklyPages()
    first = pages.page("2026-W47", cluster, open_observatory)  # type: ignore[arg-type]  # the same observatory
    assert pages.page("2026-W47", cluster, open_observatory) is first  # type: ignore[arg-type]
    assert opened == [1]
    for asked, words in (("2026-W40", "no review of 2026-W40 is kept"), ("../../etc", "expected a week")):
        with pytest.raises(NoReview, match=words):
            pages.page(asked, cluster, open_observatory)  # type: ignore[arg-type]


def test_objectives_stand_in_cluster_yaml(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        MINIMAL
        + "objectives:\n"
        + "  - {team: alpha, workload: training, uptime_ratio: 0.995, queue_wait: {minutes: 30, ratio: 0.95}}\n"
        + "  - {team: any, workload: inference, inference_p99: {milliseconds: 800, ratio: 0.99}}\n",
        encoding="utf-8",
    )

    found = read_cluster(tmp_path / "cluster.yaml").objectives

    assert [(each.kind, each.target_ratio, each.limit) for each in found] == [
        (ObjectiveKind.UPTIME, 0.995, None),
        (ObjectiveKind.QUEUE_WAIT, 0.95, timedelta(minutes=30)),
        (ObjectiveKind.INFERENCE_P99, 0.99, timedelta(milliseconds=800)),
    ]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{team: a, workload: any}", "promises nothing"),
        ("{team: a, workload: any, uptime_ratio: 1.0}", "less than 1"),
        ("{team: '', workload: any, uptime_ratio: 0.9}", "at least 1"),
        ("{team: a, workload: batch, uptime_ratio: 0.9}", "training"),
        ("{team: a, workload: any, uptime: 0.9}", "uptime"),
        ("{team: a, workload: training, inference_p99: {milliseconds: 5, ratio: 0.9}}", "expected inference or any"),
        ("{team: a, workload: any, uptime_ratio: 0.9}, {team: a, workload: any, uptime_ratio: 0.8}", "twice"),
        ("{team: a, workload: any, queue_wait: {minutes: 0, ratio: 0.9}}", "greater than 0"),
    ],
)
def test_a_promise_that_is_none_is_refused(tmp_path: Path, entry: str, words: str) -> None:
    (tmp_path / "cluster.yaml").write_text(f"{MINIMAL}objectives: [{entry}]\n", encoding="utf-8")

    with pytest.raises(ConfigError, match=words):
        read_cluster(tmp_path / "cluster.yaml")
