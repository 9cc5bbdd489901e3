"""projects.yaml: what it becomes beside the projects of teams.yaml, how faults are reported, and what holds
meanwhile."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.resources.config.cluster_config import ClusterConfig
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.in_force import PlansInForce, read_kept_plans
from ops_pipelines.resources.config.teams_file import PLANNED_PROJECT, PROJECTS, all_projects, read_projects, read_teams
from ops_pipelines.resources.config.yaml_file import ConfigError
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.projects import PlannedProject, Project
from ops_pipelines.wiring import open_teams_desk

ROOT = Path(__file__).parents[2]
TEAMS = """timezone: UTC
teams:
  - team: research
    contracts: [{from: 2025-01-01, until: null, guarantee: 64}]
    projects:
      - {name: old model, begins: 2026-12-01, gpus: 8}
      - {name: llm, begins: 2026-12-01, ends: 2027-03-01, gpus: 64, probability: 0.8}
  - team: science
"""
GOOD = "projects: [{name: run, team: science, gpus: 16, starts: 2027-03-01}]\n"
CAPACITY = "room_limit_watts: 5\n"
SHIPPED = ("cluster.yaml", "policy.yaml", "teams.yaml", "capacity.yaml", "projects.yaml")
RUN = PlannedProject(name="run", team=TeamName("science"), gpus=16.0, starts_on=date(2027, 3, 1))
OLD_MODEL = PlannedProject(name="old model", team=TeamName("research"), gpus=8.0, starts_on=date(2026, 12, 1))


def read(directory: Path, text: str) -> tuple[PlannedProject, ...]:
    (directory / "teams.yaml").write_text(TEAMS, encoding="utf-8")
    path = directory / "projects.yaml"
    path.write_text(text, encoding="utf-8")
    teams = directory / "teams.yaml"
    return read_projects(path, agreements=read_teams(teams), teams_path=teams)


def faults_of(directory: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        read(directory, text)
    return str(refused.value).split("\n  ")[1:]


def one(more: str) -> str:
    return f"projects: [{{name: p, team: science, {more}}}]"


def test_every_key_becomes_what_it_says(tmp_path: Path) -> None:
    text = "name: p, team: research, gpu_type: h100, gpus: 64, starts: 2027-02-01, ramp_days: 42, ends: 2027-08-01"

    assert read(tmp_path, f"projects: [{{{text}, probability: 0.6}}]") == (
        PlannedProject(
            name="p", team=TeamName("research"), gpu_type=GpuType("h100"), gpus=64.0, starts_on=date(2027, 2, 1),
            ramp_days=42, ends_on=date(2027, 8, 1), probability=0.6,
        ),
    )  # fmt: skip
    assert read(tmp_path, GOOD) == (RUN,)
    assert read(tmp_path, "projects: []") == ()


def test_projects_of_teams_yaml_are_planned_demand_too_and_one_in_both_counts_once() -> None:
    research = TeamName("research")
    agreed = Agreements(
        parents={research: None},
        contracts=(),
        projects=(
            Project(
                name="llm", team=research, gpus=64.0, begins_on=date(2026, 12, 1), ends_on=date(2027, 3, 1),
                gpu_type=GpuType("h100"), probability=0.8,
            ),
        ),
    )  # fmt: skip
    llm = PlannedProject(
        name="llm", team=research, gpu_type=GpuType("h100"), gpus=64.0, starts_on=date(2026, 12, 1), ramp_days=0,
        ends_on=date(2027, 3, 1), probability=0.8,
    )  # fmt: skip

    assert all_projects(agreed, [replace(llm, gpus=1.0), RUN]) == (llm, RUN)
    assert all_projects(None, [RUN]) == (RUN,)


def test_the_shipped_file_can_be_used_and_tells_every_key() -> None:
    config = read_cluster(ROOT / "cluster.yaml")
    assert config.projects_path == ROOT / "projects.yaml"
    assert config.teams_path is not None

    found = read_projects(config.projects_path, agreements=read_teams(config.teams_path), teams_path=config.teams_path)

    assert any(each.probability < 1 for each in found)
    assert any(each.ramp_days for each in found)
    text = config.projects_path.read_text(encoding="utf-8")
    for key in (*PROJECTS.keys, *PLANNED_PROJECT.keys):
        assert key in text, key


def test_every_fault_of_a_file_is_told_at_once_with_its_line_and_key(tmp_path: Path) -> None:
    found = faults_of(
        tmp_path,
        """projects:
  - {name: llm, team: research, gpus: 8, starts: 2027-01-01}
  - {name: p, team: nobody, gpus: 8, starts: 2027-01-01}
  - {name: p, team: science, gpus: 8, starts: 2027-02-30}
  - {name: q, team: science, gpus: 8, starts: 2027-02-01, ends: 2027-02-01}
  - {name: r, team: science, gpus: 8, starts: 2027-02-01, ramp_days: 30, ends: 2027-03-01}
  - {name: s, team: science, gpus: 8, starts: 2027-02-01}
  - {name: s, team: science, gpus: 9, starts: 2027-02-01}
""",
    )

    assert found == [
        "line 2: projects[0].name: project llm of research is in teams.yaml on line 7, too; keep one of them",
        "line 3: projects[1].team: nobody is not declared in teams.yaml; declare it there, or name one of research, "
        "science",
        "line 4: projects[2].starts: 2027-02-30 is no day of the calendar; write one that is, such as 2026-01-31",
        "line 5: projects[3]: project q of science starts on 2027-02-01 and ends on 2027-02-01; expected an end on a "
        "later day",
        "line 6: projects[4]: project r of science ends before it has ramped up; expected a shorter ramp or a later "
        "end",
        "line 8: projects[6].name: project s of science is on line 7, too; rename one",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: projects: this key is missing"),
        ("projects: {a: 1}", "line 1: projects: found {'a': 1}"),
        ("projects: [3]", "line 1: projects[0]: found 3"),
        (one("gpus: 8"), "starts: this key is missing"),
        (one("gpus: 0, starts: 2027-01-01"), "wants 0 GPUs; expected more than 0"),
        (one("gpus: -1, starts: 2027-01-01"), "gpus: found -1"),
        (one("gpus: .nan, starts: 2027-01-01"), "gpus: found nan"),
        (one("gpus: 8, starts: '2027-01-01'"), "starts: found '2027-01-01'; expected a day without quotes"),
        (one("gpus: 8, starts: 2027-01-01T00:00:00Z"), "expected a day without quotes and without a time"),
        (one("gpus: 8, starts: 2027-01-01, ends: 2027-13-01"), "ends: 2027-13-01 is no day of the calendar"),
        (one("gpus: 8, starts: 2027-01-01, ramp_days: -1"), "ramp_days: found -1"),
        (one("gpus: 8, starts: 2027-01-01, probability: 0"), "probability: found 0"),
        (one("gpus: 8, starts: 2027-01-01, probability: 1.01"), "probability: found 1.01"),
        (one("gpus: 8, begins: 2027-01-01"), "projects[0].begins: unknown key"),
    ],
)
def test_what_cannot_be_is_told_with_what_was_expected(tmp_path: Path, text: str, fault: str) -> None:
    found = faults_of(tmp_path, text)

    assert any(fault in each for each in found), found


def many(count: int) -> str:
    each = "{{name: p{}, team: science, gpus: 1, starts: 2027-01-01}}"
    return f"projects: [{', '.join(each.format(number) for number in range(count))}]"


def test_a_thousand_projects_are_read_and_more_refused_at_once(tmp_path: Path) -> None:
    for few in (999, 1000):
        assert len(read(tmp_path, many(few))) == few

    (fault,) = faults_of(tmp_path, many(1001))

    assert "list should have at most 1000 items after validation, not 1001" in fault


@pytest.mark.parametrize("key", ["starts: {}", "starts: 2000-01-01, ends: {}"])
def test_days_are_of_this_century(tmp_path: Path, key: str) -> None:
    for bad in ("1999-12-31", "2100-01-01", "0206-12-01", "9999-12-31"):
        (fault,) = faults_of(tmp_path, one(f"gpus: 1, {key.format(bad)}"))
        assert f"found {bad}; expected a day from 2000 to 2099" in fault
    assert len(read(tmp_path, one("gpus: 1, starts: 2000-01-01, ends: 2099-12-31"))) == 1


def test_an_emptied_file_of_capacity_leaves_what_it_said_before(tmp_path: Path) -> None:
    config = site(tmp_path, capacity=CAPACITY)
    told(config)
    (tmp_path / "capacity.yaml").write_text("")

    found = told(config)

    assert found.capacity is not None
    assert found.capacity.room_limit_watts == 5
    assert "capacity.yaml cannot be used as it is, and what it reported before is in force" in found.trouble


def test_the_same_name_for_two_types_of_gpu_is_one_project_of_two_entries(tmp_path: Path) -> None:
    entry = "name: p, team: science, gpus: 8, starts: 2027-01-01"

    assert len(read(tmp_path, f"projects: [{{{entry}}}, {{{entry}, gpu_type: h100}}]")) == 2


# --- what holds while a file cannot be read -------------------------------------------------------------------------


def site(directory: Path, **texts: str) -> ClusterConfig:
    (directory / "state").mkdir(exist_ok=True)
    cluster = (ROOT / "cluster.yaml").read_text(encoding="utf-8").replace(".ops_pipelines", "state")
    (directory / "cluster.yaml").write_text(cluster, encoding="utf-8")
    for name, text in ({"teams": TEAMS, "capacity": CAPACITY, "projects": GOOD} | texts).items():
        (directory / f"{name}.yaml").write_text(text, encoding="utf-8")
    return read_cluster(directory / "cluster.yaml")


def told(config: ClusterConfig) -> PlansInForce:
    assert config.teams_path is not None
    return read_kept_plans(config, read_teams(config.teams_path))


def names(found: PlansInForce) -> list[str]:
    return [each.name for each in found.projects]


def test_a_broken_file_leaves_what_it_said_before_and_says_so(tmp_path: Path) -> None:
    before = told(site(tmp_path))
    after = told(site(tmp_path, capacity="room_limit: 9", projects="projects: [{name: x}]"))

    assert before.trouble == ""
    assert before.projects == after.projects
    assert after.capacity == before.capacity
    assert "capacity.yaml cannot be used as it is, and what it reported before is in force" in after.trouble
    assert "projects.yaml cannot be used as it is, and what it reported before is in force" in after.trouble
    assert told(site(tmp_path)).trouble == ""


def test_a_file_that_was_never_right_counts_for_nothing_and_stops_nothing(tmp_path: Path) -> None:
    found = told(site(tmp_path, capacity="room_limit: 9", projects="projects: 3"))

    assert (found.capacity, names(found)) == (None, ["old model", "llm"])
    assert "capacity.yaml cannot be used, so nothing of it counts" in found.trouble
    assert "projects.yaml cannot be used, so nothing of it counts" in found.trouble
    assert str(tmp_path) not in found.trouble


def test_a_team_that_goes_leaves_what_was_planned_in_force(tmp_path: Path) -> None:
    told(site(tmp_path))

    found = told(site(tmp_path, teams=TEAMS.replace("  - team: science\n", "")))

    assert names(found) == ["old model", "llm", "run"]
    assert "projects.yaml cannot be used as it is" in found.trouble


def test_what_cluster_yaml_does_not_name_is_not_there(tmp_path: Path) -> None:
    config = replace(site(tmp_path), capacity_path=None, projects_path=None)

    found = told(config)

    assert (found.capacity, found.projects[0], found.trouble) == (None, OLD_MODEL, "")
    assert read_kept_plans(config, None).projects == ()


def test_the_desk_has_what_is_planned_and_is_another_once_a_file_has_changed(tmp_path: Path) -> None:
    for name in SHIPPED:
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    before = open_teams_desk(tmp_path / "cluster.yaml")

    (tmp_path / "projects.yaml").write_text(GOOD, encoding="utf-8")
    planned = open_teams_desk(tmp_path / "cluster.yaml")
    (tmp_path / "capacity.yaml").write_text(CAPACITY, encoding="utf-8")
    stated = open_teams_desk(tmp_path / "cluster.yaml")

    assert before.capacity is not None
    assert stated.capacity is not None
    assert len(before.projects) > 1
    assert (planned.projects, planned.capacity) == ((RUN,), before.capacity)
    assert (stated.capacity.room_limit_watts, stated.capacity.skus) == (5.0, ())
    assert stated is open_teams_desk(tmp_path / "cluster.yaml")
    assert before.plan_files is not None
    assert (before.projects_trouble, stated.projects_trouble) == ("", "")
