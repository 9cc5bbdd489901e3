"""`ops-pipelines replay`, its page on `serve`, and the job of the UI: from a proposed file to what it would change."""

import json
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines import server
from ops_pipelines.assets.history import ComparisonConfig, policy_comparison
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.page_files import ComparisonPages, read_proposed_policy
from ops_pipelines.review.replay import PolicyDesk
from ops_pipelines.wiring import history_of
from tests.shell.desk import POLICY_YAML, Desk
from tests.shell.test_server import get


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A cluster in mode approve, on which one GPU was lost and nobody approved."""
    desk = Desk(tmp_path_factory.mktemp("desk"))
    desk.lose_gpu("gpu002")
    desk.clock.wait(60)
    proposed = POLICY_YAML.replace("mode: approve", "mode: auto")
    (desk.cluster_file.parent / "policy.proposed.yaml").write_text(proposed, encoding="utf-8")
    return desk


def proposed(desk: Desk) -> str:
    return str(desk.cluster_file.parent / "policy.proposed.yaml")


def test_it_says_in_words_what_would_change_and_that_the_record_was_reproduced(desk: Desk) -> None:
    answer = desk.run("replay", "--policy", proposed(desk), columns=200)

    assert answer.exit_code == 0
    assert "recorded decisions came out the same again under the rules of then" in answer.stdout
    assert "plans that ask for approval 1 → 0" in answer.stdout
    assert "drain gpu002" in answer.stdout
    assert "approval: " in answer.stdout
    assert "open-loop" in answer.stdout


def test_its_json_is_one_document_with_the_counts_first(desk: Desk) -> None:
    answer = desk.run("replay", "--policy", proposed(desk), "--json")

    view = json.loads(answer.stdout)
    assert list(view)[:5] == ["cluster", "policy", "since", "until", "summary"]
    assert view["summary"]["only_new"] == len(view["acts"]) > 0
    assert view["summary"]["then"]["approval_count"] == 1
    assert view["reproduction"]["same_count"] == view["reproduction"]["decision_count"] > 0
    assert [key["key"] for key in view["policy_differences"]] == ["mode"]
    assert {act["nodes"][0] for act in view["acts"]} == {"gpu002"}


def test_a_policy_that_production_would_refuse_is_refused(desk: Desk, tmp_path: Path) -> None:
    reckless = tmp_path / "reckless.yaml"
    reckless.write_text("mode: auto\ndrain_budget: {min_in_service_ratio: 0.0}\n", encoding="utf-8")

    answer = desk.run("replay", "--policy", str(reckless))

    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "the whole cluster could be taken out" in answer.stderr


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (("--since", "yesterday"), "is no time"),
        (("--since", "2026-11-22T00:00", "--until", "2026-11-21T00:00"), "is not before"),
        (("--until", "now", "--since", "now"), "is not before"),
    ],
)
def test_a_stretch_that_is_none_is_wrong_usage(desk: Desk, times: tuple[str, ...], said: str) -> None:
    answer = desk.run("replay", "--policy", proposed(desk), *times)

    assert answer.exit_code == 2
    assert said in answer.stderr


def test_the_page_is_written_where_it_was_asked_for_and_served_once_published(desk: Desk, tmp_path: Path) -> None:
    app = server.build_app(lambda: desk.cluster, cluster_file=desk.cluster_file)
    before = get(app, "/policy-comparison")

    answer = desk.run("replay", "--policy", proposed(desk), "--html", str(tmp_path / "page.html"), "--publish")

    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    after = get(app, "/policy-comparison")
    assert (answer.exit_code, before.status, after.status) == (0, 404, 200)
    assert "no comparison was published yet" in before.body
    assert after.body == page
    assert "policy.proposed.yaml beside the policy of then" in page


def test_a_page_that_cannot_be_written_is_said(desk: Desk, tmp_path: Path) -> None:
    answer = desk.run("replay", "--policy", proposed(desk), "--html", str(tmp_path / "missing" / "page.html"))

    assert answer.exit_code == 2
    assert "the page could not be written" in answer.stderr


def test_the_job_of_the_ui_shows_the_same_and_keeps_the_page(desk: Desk) -> None:
    config = read_cluster(desk.cluster_file)
    kept: list[str] = []

    def keep(html: str) -> str:
        kept.append(html)
        return "somewhere"

    policy_desk = PolicyDesk(
        history=history_of(desk.cluster, config, lake=None),
        read_proposed=lambda name: read_proposed_policy(name, beside=config.policy_path, topology=config.topology),
        keep_page=keep,
        clock=desk.clock,
    )

    result = dg.materialize_to_memory(
        [policy_comparison],
        resources={"policy_desk": policy_desk},
        run_config=dg.RunConfig(ops={"policy_comparison": ComparisonConfig(back_hours=2)}),
    )

    (shown,) = result.asset_materializations_for_node("policy_comparison")
    assert shown.metadata["only_new_count"].value > 0
    assert shown.metadata["page"].value == "somewhere"
    assert "policy.proposed.yaml" in kept[0]


@pytest.mark.parametrize(
    "name", ["../policy.yaml", "/etc/passwd", "state/x.yaml", "policy.txt", "", ".", "cluster.yaml/../../x.yaml"]
)
def test_only_files_beside_the_policy_are_read_for_whoever_launches_a_job(tmp_path: Path, name: str) -> None:
    desk = tmp_path / "site"
    desk.mkdir()
    (tmp_path / "policy.yaml").write_text("{}", encoding="utf-8")
    (desk / "policy.txt").write_text("{}", encoding="utf-8")

    with pytest.raises(PolicyError, match="is not the name of a policy beside"):
        read_proposed_policy(name, beside=desk / "policy.yaml", topology=None)  # type: ignore[arg-type]


def test_a_page_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    pages = ComparisonPages(tmp_path / "state")

    assert pages.newest() is None
    pages.keep("one")
    pages.keep("two")

    assert pages.newest() == "two"
    assert [each.name for each in (tmp_path / "state").iterdir()] == ["policy_comparison.html"]
