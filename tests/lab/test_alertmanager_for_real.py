"""A real Alertmanager and our web process: an alert becomes evidence, planned work silences it, its end ends it."""

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvicorn

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.core.action import Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.incident import IncidentEvent, IncidentState, advance
from ops_pipelines.core.notes import Silencer
from ops_pipelines.observe.alerts import Sender, fired
from ops_pipelines.people.planned_work import keep_silences
from ops_pipelines.resources.alertmanager import AlertmanagerSilencer
from ops_pipelines.resources.config.cluster_config import AlertmanagerSettings, ServeSettings, WebhookSettings
from ops_pipelines.resources.http_process import listen
from ops_pipelines.server import build_app
from tests.lab.metrics_servers import start_alertmanager
from tests.ports.ledger_samples import begin, decide, drain, incident, outcome
from tests.ports.silencer_contract import SilencerContract
from tests.shell.desk import Desk

pytestmark = pytest.mark.live
TOKEN = "a token of the test"
LABELS = {"alertname": "NodeRAIDDegraded", "node": "gpu003:9100", "cluster": "lab", "severity": "critical"}
CONFIG = """
route: {{receiver: nobody, group_by: [alertname, node], group_wait: 0s, group_interval: 1s, repeat_interval: 1h,
  routes: [{{receiver: ops_pipelines, matchers: ['node!=""'], continue: false}}]}}
receivers:
  - name: nobody
  - name: ops_pipelines
    webhook_configs:
      - url: http://127.0.0.1:{port}/alerts
        send_resolved: true
        max_alerts: 1000
        http_config: {{authorization: {{type: Bearer, credentials_file: {token_file}}}}}
"""


class ClockAhead:
    """A clock for which the servers have been up for long."""

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(hours=1)

    def wait(self, seconds: float) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Lab:
    url: str
    cluster: Cluster

    @property
    def silencer(self) -> Silencer:
        assert self.cluster.silencer is not None
        return self.cluster.silencer

    def post_alert(self, *, ends_at: datetime | None = None, **labels: str) -> None:
        alert: dict[str, object] = {
            "labels": LABELS | labels,
            "annotations": {"summary": 'a disk of "md0" is gone; rm -rf / <b>now</b>'},
        }
        if ends_at is not None:
            alert["endsAt"] = ends_at.isoformat()
        body = json.dumps([alert]).encode()
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/api/v2/alerts", body, headers), timeout=10).close()

    def states(self) -> list[str]:
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=10) as answer:
            return [each["status"]["state"] for each in json.load(answer)]


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    for _ in range(200):
        if is_so():
            return
        time.sleep(0.05)
    pytest.fail(f"not within 10 s: {what}")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    cluster = replace(Desk(tmp_path).cluster, clock=SystemClock())
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    with start_alertmanager(tmp_path, CONFIG.format(port=port, token_file=token_file)) as url:
        cluster = replace(cluster, silencer=_silencer(url, SystemClock()))
        app = build_app(
            lambda: cluster,
            settings=ServeSettings(webhook=WebhookSettings(bearer_token_file=token_file)),
            sender=Sender(node_label="node", labels={"cluster": "lab"}),
        )
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Lab(url=url, cluster=cluster)
        finally:
            server.should_exit = True
            thread.join(timeout=30)


def _silencer(url: str, clock: Clock) -> AlertmanagerSilencer:
    settings = AlertmanagerSettings(url=url, labels={"cluster": "lab"})
    return AlertmanagerSilencer(settings, cluster="lab", clock=clock)


def test_alert_is_evidence_is_silenced_during_planned_work_and_ends(lab: Lab) -> None:
    ledger, now = lab.cluster.ledger, datetime.now(UTC)
    lab.post_alert()
    wait_until(lambda: bool(fired(lab.cluster)), "the alert is a condition")
    (evidence,) = ledger.evidence_after(0, limit=10)

    decide(ledger, incident(1, state=IncidentState.ACTING, at=now), at=now)
    begin(ledger, drain(1), at=now)
    ledger.finish(drain(1).key, outcome(at=now), actor="autopilot")
    said = keep_silences(lab.silencer, lab.cluster)
    wait_until(lambda: lab.states() == ["suppressed"], "the alert is suppressed")
    again = keep_silences(lab.silencer, lab.cluster)

    resume = replace(drain(1), verb=Verb.RESUME)
    begin(ledger, resume, at=now)
    ledger.finish(resume.key, outcome(at=now), actor="autopilot")
    verifying = advance(incident(1, state=IncidentState.ACTING, at=now), IncidentEvent.STEPS_DONE, at=now, note="done")
    ledger.change_incident(verifying, actor="autopilot", now=now)
    ended = keep_silences(lab.silencer, lab.cluster)
    wait_until(lambda: lab.states() == ["active"], "the alert is heard again")
    lab.post_alert(ends_at=datetime.now(UTC))
    wait_until(lambda: not fired(lab.cluster), "the alert has ended")

    assert (evidence.observation.node, evidence.observation.signature) == ("gpu003", "NodeRAIDDegraded")
    assert (said, again, ended) == ("silenced gpu003", "nothing to silence", "ended 1 silence(s)")
    assert len(ledger.evidence_after(0, limit=10)) == 1, "reported three times, and one piece of evidence"
    assert lab.silencer.ours() == ()


def test_alert_that_ends_while_it_is_silenced_is_over_although_nobody_says_so(lab: Lab) -> None:
    ledger, now = lab.cluster.ledger, datetime.now(UTC)
    lab.post_alert()
    lab.post_alert(node="gpu004")
    wait_until(lambda: len(fired(lab.cluster)) == 2, "both alerts are conditions")
    decide(ledger, incident(1, state=IncidentState.ACTING, at=now), at=now)
    begin(ledger, drain(1), at=now)
    ledger.finish(drain(1).key, outcome(at=now), actor="autopilot")
    keep_silences(lab.silencer, lab.cluster)
    wait_until(lambda: sorted(lab.states()) == ["active", "suppressed"], "one alert is suppressed")

    lab.post_alert(ends_at=datetime.now(UTC))
    wait_until(lambda: lab.states() == ["active"], "it is resolved")
    young = keep_silences(lab.silencer, lab.cluster)
    old = keep_silences(_silencer(lab.url, ClockAhead()), lab.cluster)

    assert young == "nothing to silence", "one that has just started knows of no alert yet"
    assert "1 alert(s) are over" in old
    assert [each.node for each in fired(lab.cluster)] == ["gpu004"]


class TestAlertmanagerSilencer(SilencerContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> Iterator[str]:
        with start_alertmanager(tmp_path, "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n") as url:
            yield url

    @pytest.fixture
    def silencer(self, url: str) -> Silencer:
        return _silencer(url, SystemClock())

    @pytest.fixture
    def now(self) -> datetime:
        return SystemClock().now()

    def test_silences_of_people_and_of_other_clusters_are_not_ours(self, url: str, now: datetime) -> None:
        others = AlertmanagerSilencer(AlertmanagerSettings(url=url), cluster="other", clock=SystemClock())
        from tests.ports.silencer_contract import HOUR, wanted

        others.silence(wanted("gpu001"), starts_at=now, ends_at=now + HOUR)

        assert _silencer(url, SystemClock()).ours() == ()
        assert len(others.ours()) == 1
