"""Pages of rollouts as the web process serves them: found from the index, refused in words, never slow twice."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from starlette.applications import Starlette

from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.rollout import NodeStage, RolloutState
from ops_pipelines.server import build_app
from ops_pipelines_lab.simulator.adapters import SimulatedScheduler
from tests.ports.ledger_samples import NOW
from tests.ports.rollout_samples import begun, change, open_rollout
from tests.shell.desk import Desk
from tests.shell.test_server import get

AUTO = "mode: auto\ndrain_budget: {min_in_service_ratio: 0.5}\n"


class CountingScheduler(SimulatedScheduler):
    """Counts how often somebody asks for jobs."""

    count = 0

    def read_jobs(self) -> tuple[JobStatus, ...]:
        type(self).count += 1
        return super().read_jobs()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, policy=AUTO)


@pytest.fixture
def app(desk: Desk) -> Starlette:
    return build_app(lambda: desk.cluster)


def soak(desk: Desk) -> None:
    """Open a rollout of which a node soaks, so that the gate has something to judge."""
    _, nodes = open_rollout(desk.cluster.ledger, 1)
    way = begun(nodes[0])
    change(desk.cluster.ledger, None, way)
    for stage in (
        NodeStage.INSTALLING,
        NodeStage.ACTIVATING,
        NodeStage.VERIFYING,
        NodeStage.TESTING,
        NodeStage.RETURNING,
        NodeStage.SOAKING,
    ):
        way = replace(way, stage=stage, returned_at=NOW if stage is NodeStage.SOAKING else None)
        change(desk.cluster.ledger, None, way)


def test_index_leads_to_all_rollouts_and_to_each_that_is_under_way(desk: Desk, app: Starlette) -> None:
    open_rollout(desk.cluster.ledger, 1)

    index, listed, page = (get(app, path) for path in ("/", "/rollouts", "/rollouts/ROLL-0001"))

    assert 'href="rollouts"' in index.body
    assert 'href="rollouts/ROLL-0001"' in index.body
    assert 'href="rollouts/ROLL-0001"' in listed.body
    assert (listed.status, page.status, page.media_type) == (200, 200, "text/html; charset=utf-8")
    assert "ops-pipelines rollout pause ROLL-0001" in page.body


def test_index_of_a_cluster_without_a_rollout_lists_none(app: Starlette) -> None:
    assert "Rollouts under way" not in get(app, "/").body
    assert "None is under way" in get(app, "/rollouts").body


def test_releases_are_listed_readable_or_not(desk: Desk, app: Starlette) -> None:
    shipped = Path(__file__).parents[2] / "releases" / "kernel-6.8.0-1040.yaml"
    folder = desk.cluster_file.parent / "releases"
    folder.mkdir()
    (folder / shipped.name).write_text(shipped.read_text())
    (folder / "broken.yaml").write_text("name: [")

    page = get(app, "/rollouts")

    assert page.status == 200
    assert "ops-pipelines rollout plan broken</code> says why" in page.body
    assert "kernel 6.8.0-1040-nvidia" in page.body
    assert str(folder) not in page.body


@pytest.mark.parametrize("name", ["ROLL-0009", "\x00", "..", "<script>", "\u202e1000-LLOR", "x" * 5_000])
def test_rollout_that_is_none_shows_nothing_and_is_text(app: Starlette, name: str) -> None:
    answer = get(app, f"/rollouts/{name}")

    assert (answer.status, "<script>" in answer.body, "\x00" in answer.body) == (404, False, False)


@pytest.mark.parametrize("path", ["/rollouts", "/rollouts/ROLL-0001"])
def test_nobody_can_send_anything_there(app: Starlette, path: str) -> None:
    assert get(app, path, method="POST").status == 405


def test_scheduler_that_does_not_answer_leaves_the_page_and_is_told_on_it(desk: Desk, app: Starlette) -> None:
    soak(desk)
    desk.silence_scheduler()

    page = get(app, "/rollouts/ROLL-0001")

    assert page.status == 200
    assert "the scheduler does not say who works" in page.body


@pytest.mark.parametrize(("seconds", "asked_count"), [(19, 1), (20, 2), (21, 2)])
def test_what_the_gate_sees_is_asked_once_in_20_seconds(
    desk: Desk, app: Starlette, seconds: int, asked_count: int
) -> None:
    soak(desk)
    CountingScheduler.count = 0
    desk.cluster = replace(desk.cluster, scheduler=CountingScheduler(desk.twin))

    first = get(app, "/rollouts/ROLL-0001")
    desk.clock.wait(seconds)
    get(app, "/rollouts/ROLL-0001")

    assert "did not come well" in first.body
    assert CountingScheduler.count == asked_count


def test_rollout_that_moved_on_is_judged_anew_at_once(desk: Desk, app: Starlette) -> None:
    soak(desk)
    get(app, "/rollouts/ROLL-0001")
    CountingScheduler.count = 0
    desk.cluster = replace(desk.cluster, scheduler=CountingScheduler(desk.twin))
    known = desk.cluster.ledger.rollouts(final_since=None)[0]
    paused = replace(known, state=RolloutState.PAUSED, reason="another", since=NOW + timedelta(seconds=1))
    change(desk.cluster.ledger, paused)

    page = get(app, "/rollouts/ROLL-0001")

    assert "<b><bdi>another</bdi></b>" in page.body
    assert CountingScheduler.count == 1
