"""What `check-config` says of capacity.yaml, projects.yaml and the section `capacity` of policy.yaml."""

from pathlib import Path

import pytest

from ops_pipelines import cli
from tests.shell.desk import CLUSTER_YAML, Desk

TEAMS = "teams: [{team: research, contracts: [{from: 2025-01-01, guarantee: 24}]}]\n"
PROJECTS = "projects: [{name: run, team: research, gpus: 8, starts: 2027-01-01}]\n"
SKU = 'sku: n, gpus_per_node: 8, node_price: "1.00", watts_per_node: 9, nodes_per_rack: 4'
LEAD = "lead_time: {median_days: 10, p90_days: 20}"
PRICES = """prices: {currency: EUR, per_kwh: "0.12", pue: "1.5", assets: [{asset: hgx, priced_by: node, capex: "1",
  amortized_months: 48}]}
"""


def desk_with(
    directory: Path,
    *,
    capacity: str = "{}",
    projects: str = PROJECTS,
    teams: str = TEAMS,
    policy: str = "mode: observe\n",
    named: str = "teams: teams.yaml\n",
) -> Desk:
    desk = Desk(directory)
    cluster = CLUSTER_YAML.replace('"gpu[001-004]"', '"gpu[001-004]", model: hgx')
    more = f"{named}capacity: capacity.yaml\nprojects: projects.yaml\n{PRICES}"
    desk.cluster_file.write_text(f"{cluster}{more}", encoding="utf-8")
    for name, text in (("teams", teams), ("capacity", capacity), ("projects", projects), ("policy", policy)):
        (directory / f"{name}.yaml").write_text(text, encoding="utf-8")
    return desk


def test_files_that_are_right_are_passed_without_a_word(tmp_path: Path) -> None:
    answer = desk_with(tmp_path, capacity=f"skus: [{{{SKU}, {LEAD}}}]").run("check-config", "--offline")

    assert (answer.exit_code, answer.stderr) == (cli.ExitCode.OK, "")


def test_the_faults_of_all_three_files_are_told_in_one_attempt(tmp_path: Path) -> None:
    desk = desk_with(
        tmp_path,
        capacity="room_limit_watts: -1\n",
        projects="projects:\n  - {name: run, team: research, gpus: 8, starts: 2027-02-30}\n",
        teams=TEAMS.replace("guarantee", "garantee"),
    )

    answer = desk.run("check-config", "--offline")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert "line 1: room_limit_watts: found -1" in answer.stderr
    assert "line 2: projects[0].starts: 2027-02-30 is no day of the calendar" in answer.stderr
    assert "teams[0].contracts[0].garantee: unknown key" in answer.stderr


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"projects": PROJECTS.replace("research", "nobody")}, "nobody is not declared in teams.yaml"),
        ({"policy": "capacity: {horizon_weeks: 3}"}, "line 1: capacity.horizon_weeks: found 3"),
        ({"policy": "capacity: {horizon: 3}"}, "capacity.horizon: unknown key"),
        ({"capacity": "retirements: [{nodes: gpu009, on: 2028-01-01}]"}, "gpu009 is not a node of the cluster"),
    ],
)
def test_a_fault_is_refused_with_line_and_key(tmp_path: Path, given: dict[str, str], fault: str) -> None:
    answer = desk_with(tmp_path, **given).run("check-config", "--offline")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert fault in answer.stderr


def test_a_file_that_is_named_and_not_there_is_refused(tmp_path: Path) -> None:
    desk = desk_with(tmp_path)
    (tmp_path / "capacity.yaml").unlink()

    answer = desk.run("check-config", "--offline")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert "capacity.yaml cannot be read (No such file" in answer.stderr


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"capacity": f"skus: [{{{SKU}}}]"}, "n has no lead time, so no day can be named"),
        ({"capacity": f"skus: [{{{SKU}, {LEAD}, gpu_type: h100}}]"}, "n has GPUs 'h100', and no rack"),
        ({"capacity": "cloud: {h100: '2.00'}"}, "cloud has a price for GPUs 'h100', and no rack"),
        ({"projects": PROJECTS.replace("gpus: 8", "gpus: 8, gpu_type: h100")}, "wants GPUs 'h100', and no rack and no"),
        ({"named": ""}, "cluster.yaml no file of `teams`: whether they exist is not checked"),
    ],
)
def test_what_can_hardly_be_meant_is_a_warning(tmp_path: Path, given: dict[str, str], warning: str) -> None:
    answer = desk_with(tmp_path, **given).run("check-config", "--offline")

    assert answer.exit_code == cli.ExitCode.OK
    assert answer.stderr.startswith("warning: ")
    assert warning in answer.stderr


def test_amounts_without_a_currency_are_a_warning(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, capacity=f"skus: [{{{SKU}, {LEAD}}}]")
    text = desk.cluster_file.read_text(encoding="utf-8")
    desk.cluster_file.write_text(text.replace(PRICES, ""), encoding="utf-8")

    assert "they have no currency" in desk.run("check-config", "--offline").stderr
