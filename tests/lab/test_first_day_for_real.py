"""`init` and `doctor` on a real Slurm and a real Prometheus: what they find, write and leave alone."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ops_pipelines import cli
from ops_pipelines.core.policy import Mode
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.policy_file import read_policy
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster
from ops_pipelines_lab.drills.slurm_cluster_files import ACCOUNT_SHARES, GPU_TYPE
from tests.lab.metrics_servers import start_prometheus
from tests.lab.slurm_server import start_cluster

pytestmark = pytest.mark.live

SEEN_NODES = ("gpu001", "gpu002", "other01")
"""Of a cluster of three: gpu003 has no exporter, and other01 is of a cluster beside it, in the same store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the systems are."""

    slurm: SlurmCluster
    prometheus_url: str
    logs: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    now = time.time() // 15 * 15
    rows = [
        (
            f'DCGM_FI_DEV_GPU_TEMP{{Hostname="{node}",cluster="{"b" if node == "other01" else "a"}",gpu="{gpu}",'
            f'job="dcgm",pci_bus_id="00000000:{gpu + 1:02X}:00.0"}}',
            40.0,
            at,
        )
        for node in SEEN_NODES
        for gpu in range(8)
        for at in (now - 15 * ago for ago in reversed(range(-40, 8)))
    ]
    logs = directory / "nodes"
    logs.mkdir()
    (logs / "gpu001.log").write_text("Nov 29 00:00:00 gpu001 kernel: [    0.000000] Linux version 6.1.0\n")
    with start_cluster(node_count=3) as slurm, start_prometheus(directory, rows) as url:
        yield Site(slurm=slurm, prometheus_url=url, logs=logs)


def call(site: Site, *words: str) -> Result:
    return CliRunner().invoke(cli.app, words, env={**os.environ, **site.slurm.client_environment, "COLUMNS": "200"})


def init(site: Site, directory: Path, *words: str) -> Result:
    where = ("--prometheus", site.prometheus_url, "--logs", f"{site.logs}/*.log")
    return call(site, "init", str(directory), *where, "--slurm-conf", str(site.slurm.settings.slurm_conf), *words)


def test_init_writes_what_the_systems_say(site: Site, tmp_path: Path) -> None:
    answer = init(site, tmp_path / "ops")

    assert answer.exit_code == 0, answer.output
    config = read_cluster(tmp_path / "ops" / "cluster.yaml")
    assert sorted(config.topology.places) == list(site.slurm.node_names)
    assert {each.gpu_type for each in config.bought.values()} == {GPU_TYPE}
    assert config.telemetry.labels == {"cluster": "a"}
    assert config.logs.node_name_source.value == "file_stem"
    assert read_policy(config.policy_path, topology=config.topology).mode is Mode.OBSERVE
    assert config.teams_path is not None
    assert all(f"team: {name}" in config.teams_path.read_text() for name in ACCOUNT_SHARES)
    assert "no GPU metrics of 1 node(s): gpu003" in answer.stdout


def test_a_second_init_overwrites_nothing_and_says_what_differs(site: Site, tmp_path: Path) -> None:
    init(site, tmp_path)
    cluster_file = tmp_path / "cluster.yaml"
    cluster_file.write_text(cluster_file.read_text().replace("gpu[001-003]", "gpu[001-002]"))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "policy.yaml").unlink()

    answer = init(site, tmp_path)

    assert answer.exit_code == 0, answer.output
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert "1 node(s) with GPUs are in no rack: gpu003" in answer.stdout


def test_a_dry_run_writes_nothing(site: Site, tmp_path: Path) -> None:
    answer = init(site, tmp_path / "ops", "--dry-run")

    assert answer.exit_code == 0, answer.output
    assert not (tmp_path / "ops").exists()


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--prometheus", "http://127.0.0.1:1"),
        ("--prometheus", "http://127.0.0.1:1", "--exporters", "http://{node}:9400/metrics", "--logs", "/x"),
        ("--prometheus", "http://127.0.0.1:1", "--logs", "/x", "--bmc", "https://{node}-bmc"),
    ],
)
def test_what_is_not_named_is_asked_for(site: Site, tmp_path: Path, words: tuple[str, ...]) -> None:
    answer = call(site, "init", str(tmp_path / "ops"), *words)

    assert answer.exit_code == 2
    assert not (tmp_path / "ops").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--prometheus", "localhost:9090", "--logs", "/x"),
        ("--prometheus", "http://:9090", "--logs", "/x"),
        ("--exporters", "http://gpu:9400/metrics", "--logs", "/x"),
        (
            "--prometheus",
            "http://127.0.0.1:1",
            "--logs",
            "/x",
            "--bmc",
            "https://{node}",
            "--bmc-user",
            "u",
            "--bmc-password-file",
            "/none",
        ),
    ],
)
def test_an_option_that_no_file_can_hold_is_named(site: Site, tmp_path: Path, words: tuple[str, ...]) -> None:
    conf = ("--slurm-conf", str(site.slurm.settings.slurm_conf))
    answer = call(site, "init", str(tmp_path / "ops"), *words, *conf)

    assert (answer.exit_code, answer.exception.__class__) == (2, SystemExit), answer.output
    assert "correct the option" in answer.stderr
    assert not (tmp_path / "ops").exists()


def test_a_directory_that_cannot_be_written_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "ops").write_text("a file")

    answer = init(site, tmp_path / "ops")

    assert answer.exit_code == 2
    assert "cannot be written" in answer.stderr


def test_the_files_can_be_read_by_the_services(site: Site, tmp_path: Path) -> None:
    init(site, tmp_path / "ops")

    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "ops").iterdir()} == {0o644}
    assert (tmp_path / "ops").stat().st_mode & 0o777 == 0o755


def test_systems_that_do_not_answer_are_blind_and_the_rest_is_written(site: Site, tmp_path: Path) -> None:
    where = ("--prometheus", "http://127.0.0.1:1", "--logs", str(tmp_path / "none" / "*.log"))
    answer = call(site, "init", str(tmp_path), *where, "--slurm-conf", str(site.slurm.settings.slurm_conf))

    assert answer.exit_code == 0, answer.output
    assert "telemetry: http://127.0.0.1:1 did not answer" in answer.stdout
    assert len(read_cluster(tmp_path / "cluster.yaml").topology.places) == 3


def test_a_slurm_that_does_not_answer_gives_no_files(site: Site, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nAuthType=auth/none\n")
    where = ("--prometheus", site.prometheus_url, "--logs", "/x", "--slurm-conf", str(conf))

    answer = call(site, "init", str(tmp_path / "ops"), *where)

    assert answer.exit_code == 3
    assert not (tmp_path / "ops").exists()


def test_doctor_says_what_is_blind_and_the_next_step(site: Site, tmp_path: Path) -> None:
    init(site, tmp_path)

    answer = call(site, "doctor", "--cluster", str(tmp_path / "cluster.yaml"), "--json")

    assert answer.exit_code == 3, answer.output
    told = json.loads(answer.stdout)
    assert set(told) == {"cluster", "mode", "works", "blind", "dangerous", "next_step"}
    assert any(each.startswith("scheduler: answers: 3 nodes") for each in told["works"])
    assert any("gpu003" in each for each in told["blind"])
    assert any(each.startswith("autopilot") for each in told["blind"])
    assert "start the three processes" in told["next_step"]
