"""The shipped Prometheus rules: promtool agrees with them, and they name only what `/metrics` shows."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from ops_pipelines.remediate.oversight import beat
from ops_pipelines.server import build_app
from tests.ports.ledger_samples import decide, incident, observation, take_in
from tests.shell.desk import Desk
from tests.shell.test_server import Answer, get

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "ops_pipelines.rules.yml"
METRIC = re.compile(r"\bops_pipelines_[a-z_]+")


@pytest.fixture
def metrics(tmp_path: Path) -> Answer:
    """Return a scrape in which every metric has a sample."""
    desk = Desk(tmp_path)
    ledger, now = desk.cluster.ledger, desk.clock.now()
    take_in(ledger, observation("1", at=now))
    decide(ledger, incident(1, at=now), at=now)
    beat(desk.cluster, name="fault_sensor", holder="host-a:1", note="nothing new", answers={"scheduler": None})
    return get(build_app(lambda: desk.cluster), "/metrics")


def rules() -> list[dict[str, object]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def promtool(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        if os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") == "1":
            pytest.fail("promtool is required here; install it (Debian: prometheus)")
        pytest.skip("promtool is not installed")
    command = [program, *arguments]
    return subprocess.run(command, cwd=RULES.parent, input=typed, capture_output=True, text=True, check=False)


@pytest.mark.live
def test_promtool_accepts_the_rules() -> None:
    done = promtool("check", "rules", "--lint-fatal", RULES.name)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.live
@pytest.mark.parametrize("file", sorted(path.name for path in RULES.parent.glob("*.test.yml")))
def test_rules_page_when_they_should_and_not_before(file: str) -> None:
    done = promtool("test", "rules", file)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.live
def test_promtool_finds_no_fault_with_the_metrics(metrics: Answer) -> None:
    done = promtool("check", "metrics", typed=metrics.body)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_rules_name_only_metrics_that_are_served(metrics: Answer) -> None:
    named = {name for rule in rules() for name in METRIC.findall(str(rule["expr"]) + str(rule["annotations"]))}

    assert len(named) > 5
    assert named - metrics.names() - {"ops_pipelines_"} == set()


def test_every_alert_has_a_test_and_says_what_to_do() -> None:
    tested = "".join(path.read_text() for path in RULES.parent.glob("*.test.yml"))

    for rule in rules():
        assert f"alertname: {rule['alert']}" in tested
        assert rule["labels"] in ({"severity": "page"}, {"severity": "info"})
        assert isinstance(rule["annotations"], dict)
        assert set(rule["annotations"]) == {"summary", "description"}
