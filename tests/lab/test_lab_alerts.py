"""What the lab demands of silences and messages, the site that gets them, and Alertmanager's configuration there."""

import json
import os
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
import yaml

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.notes import NOT_SENT, KeptNote, NoteState
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines_lab.drills import lab
from ops_pipelines_lab.drills.daemon_processes import Daemons
from ops_pipelines_lab.drills.lab_act import Act
from ops_pipelines_lab.drills.lab_acts import GpuFallsOff
from ops_pipelines_lab.drills.lab_alertmanager import AlertmanagerView, SeenSilence, alertmanager_settings, post_webhook
from ops_pipelines_lab.drills.lab_alerts import OURS, find_silences, find_unsent
from ops_pipelines_lab.drills.lab_configuration import cluster_settings, prometheus_settings
from ops_pipelines_lab.drills.lab_drill import choose_acts
from ops_pipelines_lab.drills.lab_site import ALARM_SERIES, SiteFiles, open_server
from ops_pipelines_lab.drills.lab_stage import Demand, DrillError, LabView
from ops_pipelines_lab.drills.lab_surroundings import Surroundings
from ops_pipelines_lab.drills.stack import StackError
from ops_pipelines_lab.simulator.scenario import lab_scenario
from tests.domain.builders import NOW
from tests.resources.outbox_contract import note

SHIPPED = Path(__file__).parents[2] / "deploy" / "alertmanager" / "ops_pipelines.yml"
RUNNING = SeenSilence(
    silence_id="a",
    created_by=OURS,
    comment="INC-0001 gpu001",
    state="active",
    starts_at=NOW,
    ends_at=NOW + timedelta(hours=1),
    matchers=("node=~gpu001(:[0-9]+)?",),
)
ENDED = replace(RUNNING, silence_id="b", state="expired")
PEOPLES = replace(RUNNING, silence_id="c", created_by="operator")
SENT = KeptNote(
    note=note(),
    state=NoteState.SENT,
    batch="MSG-1",
    attempt_count=1,
    next_at=NOW,
    sent_at=NOW,
    receipt="taken by JSON",
    problem="",
)


# -- what is demanded at the end --


def test_silences_of_ours_must_have_ended_and_those_of_people_must_not() -> None:
    assert unmet(find_silences([ENDED, PEOPLES], kept=["c"])) == []
    assert unmet(find_silences([ENDED, RUNNING], kept=())) == [
        "node=~gpu001(:[0-9]+)? is still silenced: INC-0001 gpu001"
    ]
    assert unmet(find_silences([replace(PEOPLES, state="expired")], kept=["c"])) == [
        "the silence c of an operator was ended"
    ]


def test_alertmanager_that_shows_nothing_proves_nothing_of_peoples_silences() -> None:
    assert unmet(find_silences([], kept=["c"])) == ["the silence c of an operator was ended"]


def test_silence_that_is_about_to_begin_is_one() -> None:
    assert len(unmet(find_silences([replace(RUNNING, state="pending")], kept=()))) == 1


@pytest.mark.parametrize(
    ("state", "problem", "is_well"),
    [
        (NoteState.SENT, "", True),
        (NoteState.SENT, "the first try failed", True),
        (NoteState.WAITING, "", True),
        (NoteState.WAITING, "no channel took it", False),
        (NoteState.UNDELIVERABLE, "no channel took it", False),
    ],
)
def test_message_may_wait_for_its_time_and_not_for_a_channel(state: NoteState, problem: str, is_well: bool) -> None:
    assert (unmet(find_unsent([SENT, replace(SENT, state=state, problem=problem)])) == []) is is_well


def test_drill_in_which_nobody_was_told_anything_proves_nothing() -> None:
    settled = replace(SENT, receipt=f"{NOT_SENT}it was settled before")

    assert unmet(find_unsent([])) == unmet(find_unsent([settled])) == ["nobody was notified of anything"]


def unmet(demands: Iterable[Demand]) -> list[str]:
    return [demand.otherwise for demand in demands if not demand.is_so]


# -- the site --


@pytest.fixture
def files(tmp_path: Path) -> SiteFiles:
    files = SiteFiles(directory=tmp_path / "site")
    files.make()
    return files


@pytest.fixture
def url(files: SiteFiles) -> Iterator[str]:
    server = open_server(files, port=0)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_site_keeps_each_message_as_one_line_whatever_stands_in_it(files: SiteFiles, url: str) -> None:
    hostile = {"title": "a\nb\u2028c", "thread": "INC-0001"}

    assert post(f"{url}/messages", json.dumps(hostile, ensure_ascii=False).encode()) == 200
    assert post(f"{url}/people", b'{"alerts": []}') == 200

    assert files.received() == (hostile,)
    assert files.told_people() == ({"alerts": []},)


@pytest.mark.parametrize(("path", "body"), [("messages", b"{"), ("messages", b"\xff"), ("people", b""), ("x", b"{}")])
def test_site_keeps_nothing_that_is_no_json_for_it(files: SiteFiles, url: str, path: str, body: bytes) -> None:
    assert post(f"{url}/{path}", body) in (400, 404)
    assert (files.received(), files.told_people()) == ((), ())


def test_alarm_is_a_series_of_its_node_until_it_is_ended(files: SiteFiles, url: str) -> None:
    files.raise_alarm(NodeName("gpu002"))
    files.raise_alarm(NodeName("gpu001"))
    files.end_alarm(NodeName("gpu002"))
    files.end_alarm(NodeName("gpu009"))

    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()

    assert lines == [f"# TYPE {ALARM_SERIES} gauge", f'{ALARM_SERIES}{{node="gpu001"}} 1']


def test_line_that_is_just_being_written_is_not_read(files: SiteFiles) -> None:
    files.messages.write_text('{"a": 1}\n{"b": ')

    assert files.received() == ({"a": 1},)


def test_who_does_not_answer_shows_nothing(files: SiteFiles, url: str) -> None:
    view = AlertmanagerView(url=url)

    assert (view.silences(), view.alerts_of(NodeName("gpu001"))) == ((), ())
    assert post_webhook(url, {}, headers={}) == 404


def post(url: str, body: bytes) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code


# -- what is around the cluster --


def settings(tmp_path: Path) -> str:
    made = alertmanager_settings(
        yaml.safe_load(SHIPPED.read_text()),
        serve_url="http://127.0.0.1:2",
        token_file=tmp_path / "token",
        people_url="http://127.0.0.1:1/people",
    )
    return yaml.safe_dump(made)


def test_shipped_receiver_stands_in_the_labs_alertmanager_with_its_addresses_changed(tmp_path: Path) -> None:
    made = yaml.safe_load(settings(tmp_path))

    (ours,) = (each for each in made["receivers"] if each["name"] == "ops_pipelines")
    assert [each["url"] for each in ours["webhook_configs"]] == ["http://127.0.0.1:2/alerts"]
    authorization = ours["webhook_configs"][0]["http_config"]["authorization"]
    assert authorization == {"type": "Bearer", "credentials_file": str(tmp_path / "token")}


def test_people_are_told_of_a_nodes_alerts_too(tmp_path: Path) -> None:
    amtool = find_or_skip("amtool", package="prometheus-alertmanager")
    file = tmp_path / "alertmanager.yml"
    file.write_text(settings(tmp_path))

    argv = [amtool, "config", "routes", "test", f"--config.file={file}"]
    told = subprocess.run([*argv, "node=gpu001"], capture_output=True, text=True, check=True).stdout

    assert told.strip() == "ops_pipelines,people"


def test_machine_without_alertmanager_has_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    around = bare_machine(tmp_path, monkeypatch)
    monkeypatch.delenv("OPS_PIPELINES_REQUIRE_SERVERS", raising=False)

    around.refuse_if_required()

    assert around.addresses.alertmanager_url is None
    assert (around.prometheus_sections(), around.scrape_jobs()) == ({}, [])
    assert set(around.cluster_sections()) == {"notifier", "serve"}


def test_missing_alertmanager_is_a_failure_where_servers_are_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = bare_machine(tmp_path, monkeypatch)
    monkeypatch.setenv("OPS_PIPELINES_REQUIRE_SERVERS", "1")

    with pytest.raises(StackError, match="apt-get install --no-install-recommends prometheus-alertmanager"):
        around.refuse_if_required()


def test_secrets_are_new_each_time_and_nobody_elses(tmp_path: Path) -> None:
    (tmp_path / "prometheus").mkdir()
    around = Surroundings(tmp_path, daemons=Daemons(run=tmp_path, log=tmp_path))

    around.write_files()
    token, key = around.addresses.token_file, tmp_path / "link.key"
    first = token.read_text(), key.read_text()
    around.write_files()

    assert {path.stat().st_mode & 0o777 for path in (token, key, tmp_path / "channels.urls")} == {0o600}
    assert token.read_text() != first[0]
    assert key.read_text() != first[1]
    assert min(map(len, first)) >= 32


def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    monkeypatch.setenv("PATH", str(tmp_path))
    return Surroundings(tmp_path, daemons=Daemons(run=tmp_path, log=tmp_path))


def test_acts_are_chosen_for_the_drill_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        lab.main(["--acts", "alerted"])

    assert "add --once" in capsys.readouterr().err


# -- what the configurations say together --


def test_labs_cluster_file_is_one_that_we_read(tmp_path: Path) -> None:
    around = started(tmp_path)
    settings_of_lab = cluster_settings(
        tmp_path,
        lab_scenario(2),
        around,
        slurm_conf=tmp_path / "slurm.conf",
        prometheus_url="http://127.0.0.1:9",
        logs=(tmp_path / "kernel.log",),
        checkpoints=tmp_path,
        ledger_url_file="ledger.url",
    )
    (tmp_path / "slurm.conf").touch()
    (tmp_path / "ledger.url").write_text("postgresql+psycopg2://127.0.0.1:1/ledger")
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(settings_of_lab))
    (tmp_path / "policy.yaml").write_text(lab.POLICY)

    read = read_cluster(tmp_path / "cluster.yaml")

    assert read.serve.base_url == around.addresses.serve_url
    assert read.serve.webhook.bearer_token_file == around.addresses.token_file
    assert read.alertmanager is None or read.alertmanager.url == around.addresses.alertmanager_url


def test_prometheus_takes_the_labs_configuration_with_the_shipped_rules(tmp_path: Path) -> None:
    promtool = find_or_skip("promtool", package="prometheus")
    around = started(tmp_path)
    file = tmp_path / "prometheus" / "prometheus.yml"
    made = prometheus_settings(lab_scenario(2), around, exporter_port=1, own_port=2)
    file.write_text(yaml.safe_dump(made))

    checked = subprocess.run([promtool, "check", "config", str(file)], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout + checked.stderr


def started(tmp_path: Path) -> Surroundings:
    (tmp_path / "prometheus").mkdir()
    around = Surroundings(tmp_path, daemons=Daemons(run=tmp_path, log=tmp_path))
    around.write_files()
    return around


def find_or_skip(program: str, *, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        missing = pytest.fail if os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") == "1" else pytest.skip
        missing(f"{program} is not installed; it comes with Debian's {package}")
    return path


# -- which acts are played --

EVERY = tuple(GpuFallsOff(cast("LabView", None), name) for name in ("controller", "pretrain", "alerted"))
"""Acts that nobody plays."""


@pytest.mark.parametrize(
    ("names", "left_out", "played"),
    [
        (None, (), ["controller", "pretrain", "alerted"]),
        (None, EVERY[2:], ["controller", "pretrain"]),
        (["alerted", "controller"], (), ["controller", "alerted"]),
        (["alerted", "controller"], EVERY[2:], ["controller"]),
    ],
)
def test_acts_are_played_in_the_drills_order(
    names: Sequence[str] | None, left_out: Sequence[Act], played: Sequence[str]
) -> None:
    assert [act.name for act in choose_acts(EVERY, names, left_out=left_out)] == played


@pytest.mark.parametrize(
    ("names", "found"), [(["nobody"], "no act nobody"), (["alerted"], "no act is left"), ([], "left")]
)
def test_drill_of_nothing_is_refused(names: Sequence[str], found: str) -> None:
    with pytest.raises(DrillError, match=found):
        choose_acts(EVERY, names, left_out=EVERY[2:])
