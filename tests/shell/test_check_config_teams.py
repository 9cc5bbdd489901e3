"""What `check-config` says of teams, and the desk of teams that the files become."""

from pathlib import Path

import pytest

from ops_pipelines import cli
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.scheduler import QuotaChange
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.slurm.quotas import SlurmQuotas
from ops_pipelines.teams.desk import LimitsOn, NoTeams
from ops_pipelines.wiring import assemble_observatory, assemble_teams_desk, open_quotas, open_teams_desk
from ops_pipelines_lab.simulator.accounting import SimulatedQuotas
from tests.shell.desk import CLUSTER_YAML, Desk

ROOT = Path(__file__).parents[2]
TEAMS = """timezone: Asia/Shanghai
teams:
  - {team: research, contracts: [{from: 2025-01-01, guarantee: 24}]}
"""


def desk_with(directory: Path, *, teams: str | None = TEAMS, cluster: str = "", policy: str = "") -> Desk:
    desk = Desk(directory)
    named = "" if teams is None else "teams: teams.yaml\n"
    desk.cluster_file.write_text(f"{CLUSTER_YAML}{named}{cluster}", encoding="utf-8")
    if teams is not None:
        (directory / "teams.yaml").write_text(teams, encoding="utf-8")
    if policy:
        (directory / "policy.yaml").write_text(policy, encoding="utf-8")
    return desk


def test_without_teams_nothing_is_said_of_them(tmp_path: Path) -> None:
    answer = desk_with(tmp_path, teams=None).run("check-config")

    assert (answer.exit_code, answer.stderr) == (cli.ExitCode.OK, "")
    assert "limits" not in answer.stdout


def test_accounts_that_the_scheduler_lacks_are_told_and_not_fatal(tmp_path: Path) -> None:
    answer = desk_with(tmp_path).run("check-config", columns=200)

    assert answer.exit_code == cli.ExitCode.OK
    assert "1 of teams.yaml not known to it: add them, or correct the names (research)" in answer.stdout


@pytest.mark.parametrize(
    ("guarantee", "warning"),
    [
        (32, ""),
        (33, "warning: teams.yaml: no quotas can be made: 33 GPUs are guaranteed (research 33) and 32 are installed"),
    ],
)
def test_a_guarantee_beyond_what_is_installed_is_a_warning(tmp_path: Path, guarantee: int, warning: str) -> None:
    desk = desk_with(tmp_path, teams=TEAMS.replace("24", str(guarantee)))

    answer = desk.run("check-config", "--offline")

    assert answer.exit_code == cli.ExitCode.OK
    assert answer.stderr.startswith(warning)
    assert bool(answer.stderr) is bool(warning)


@pytest.mark.parametrize(
    ("cluster", "teams", "warning"),
    [
        ("quotas: {qos_of: {reserch: q}}\n", TEAMS, "quotas.qos_of names reserch, which is no team of teams.yaml"),
        ("quotas: {limits: per_type}\n", TEAMS, "quotas.limits is per_type, and no rack says its gpu_type"),
        ("", TEAMS.replace("]}", "], budget: {monthly: 10.00}}"), "cluster.yaml no `prices`"),
        ("quotas: {qos_of: {a: q}}\n", None, "quotas.qos_of names a, and cluster.yaml names no `teams`"),
    ],
)
def test_what_can_hardly_be_meant_is_a_warning(tmp_path: Path, cluster: str, teams: str | None, warning: str) -> None:
    answer = desk_with(tmp_path, teams=teams, cluster=cluster).run("check-config", "--offline")

    assert answer.exit_code == cli.ExitCode.OK
    assert answer.stderr.startswith("warning: ")
    assert warning in answer.stderr


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"teams": TEAMS.replace("Asia/Shanghai", "Europe")}, "line 1: timezone: found 'Europe'"),
        ({"teams": TEAMS.replace("guarantee", "garantee")}, "line 3: teams[0].contracts[0].garantee: unknown key"),
        ({"teams": "teams: []"}, "line 1: teams: found []"),
        ({"cluster": "prices: {currency: EUR}\n"}, "prices.per_kwh: this key is missing"),
        ({"policy": "quotas: {window_dais: 3}"}, "line 1: quotas.window_dais: unknown key; did you mean window_days?"),
    ],
)
def test_a_fault_of_a_file_is_refused_with_line_and_key(tmp_path: Path, given: dict[str, str], fault: str) -> None:
    answer = desk_with(tmp_path, **given).run("check-config", "--offline")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert fault in answer.stderr


def test_a_file_of_teams_that_is_not_there_is_refused(tmp_path: Path) -> None:
    desk = desk_with(tmp_path)
    (tmp_path / "teams.yaml").unlink()

    answer = desk.run("check-config", "--offline")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert "teams.yaml cannot be read (No such file" in answer.stderr


# --- the desk of teams --------------------------------------------------------------------------------------------


def test_the_desk_has_what_the_files_say_and_the_twin_of_the_cluster(tmp_path: Path) -> None:
    more = "quotas: {limits: per_type}\n"
    stand = desk_with(tmp_path, cluster=more, policy="mode: approve\nquotas: {window_days: 7}\n")
    config = read_cluster(stand.cluster_file)

    desk = assemble_teams_desk(config, cluster=stand.cluster, observatory=assemble_observatory(config, stand.clock))

    assert desk.agreed().parents == {"research": None}
    assert (desk.policy.rebalance.window_days, desk.limits_on, desk.prices) == (7, LimitsOn.PER_TYPE, None)
    assert desk.zone.key == "Asia/Shanghai"
    assert [each.node for each in desk.installed] == [f"gpu{number:03d}" for number in range(1, 5)]
    assert desk.cluster is stand.cluster
    assert desk.gpu_type_of == {}


def test_without_a_file_of_teams_the_desk_says_what_to_write(tmp_path: Path) -> None:
    stand = desk_with(tmp_path, teams=None)
    config = read_cluster(stand.cluster_file)

    desk = assemble_teams_desk(config, cluster=stand.cluster, observatory=assemble_observatory(config, stand.clock))

    with pytest.raises(NoTeams, match=r"write `teams: teams\.yaml`"):
        desk.agreed()
    with pytest.raises(NoTeams, match="has no `prices`"):
        desk.priced()


def test_a_limit_that_one_opening_sets_another_reads(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text((ROOT / "cluster.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    for name in ("policy.yaml", "teams.yaml", "capacity.yaml", "projects.yaml"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    desk = open_teams_desk(tmp_path / "cluster.yaml")
    science = TeamName("science")

    desk.limits().apply([QuotaChange(account=science, before=None, after=80)])

    again = open_quotas(read_cluster(tmp_path / "cluster.yaml"), clock=desk.clock)
    assert isinstance(again, SimulatedQuotas)
    assert again.read().accounts[science].limit_of(GpuType("")) == 80
    assert again.read().accounts.keys() == desk.agreed().parents.keys()
    assert open_teams_desk(tmp_path / "cluster.yaml") is desk


@pytest.mark.parametrize(("accounting", "has_limits"), [("", True), ("accounting: {kind: none}\n", False)])
def test_slurm_is_asked_where_it_keeps_limits(tmp_path: Path, accounting: str, has_limits: bool) -> None:
    stand = desk_with(tmp_path)
    text = stand.cluster_file.read_text(encoding="utf-8")
    stand.cluster_file.write_text(
        text.replace("scheduler: {kind: simulator}", "scheduler: {kind: slurm}")
        + "quotas: {qos_of: {research: research-gpus}}\n"
        + accounting,
        encoding="utf-8",
    )

    assert isinstance(open_quotas(read_cluster(stand.cluster_file), clock=stand.clock), SlurmQuotas) is has_limits
    said = stand.run("check-config", "--offline").stderr
    assert ("quotas are proposed, and cannot be applied" in said) is not has_limits
