"""teams.yaml: what it becomes, how every fault is reported, and that the shipped one fits the simulated cluster."""

import math
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.proposal import GpuType, TeamName, Terms
from ops_pipelines.quotas.lint import lint_quotas
from ops_pipelines.quotas.today import Capacity
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.teams_file import BUDGET, CONTRACT, PROJECT, TEAM, TEAMS, read_teams
from ops_pipelines.resources.config.yaml_file import ConfigError
from ops_pipelines.teams.contracts import Agreements, Contract, Remarks
from ops_pipelines.teams.projects import Project
from ops_pipelines_lab.simulator.scenario import demo_scenario

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "teams.yaml"
FULL = """
timezone: Asia/Shanghai
teams:
  - team: research
    parent: science
    contracts:
      - {gpu_type: h100, from: 2026-01-01, until: 2027-01-01, guarantee: 96, weight: 2, borrow_limit: 32,
         lend_limit: 48.5, reserved: 16, cap: 120, priority: -1}
      - {from: 2026-01-01, until: null, guarantee: 8, borrow_limit: null, lend_limit: null, cap: null}
    projects: [{name: llm, begins: 2026-12-01, ends: 2027-03-01, gpus: 64, gpu_type: h100, probability: 0.8}]
    budget: {monthly: 120000.07}
  - {team: science}
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "teams.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def faults_of(directory: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        read_teams(write(directory, text))
    return str(refused.value).split("\n  ")[1:]


def one_team(*contracts: str, more: str = "") -> str:
    lines = "".join(f"\n      - {{{each}}}" for each in contracts) or " []"
    return f"teams:\n  - team: a\n    contracts:{lines}\n{more}"


def test_every_key_becomes_what_it_says(tmp_path: Path) -> None:
    research, science = TeamName("research"), TeamName("science")

    assert read_teams(write(tmp_path, FULL)) == Agreements(
        parents={research: science, science: None},
        contracts=(
            Contract(
                terms=Terms(
                    team=research,
                    guarantee=96.0,
                    weight=2.0,
                    borrow_limit=32.0,
                    lend_limit=48.5,
                    reserved=16.0,
                    cap=120.0,
                    priority=-1,
                ),
                gpu_type=GpuType("h100"),
                valid_from=date(2026, 1, 1),
                valid_until=date(2027, 1, 1),
            ),
            Contract(terms=Terms(team=research, guarantee=8.0), valid_from=date(2026, 1, 1)),
        ),
        projects=(
            Project(
                name="llm",
                team=research,
                gpus=64.0,
                gpu_type=GpuType("h100"),
                begins_on=date(2026, 12, 1),
                ends_on=date(2027, 3, 1),
                probability=0.8,
            ),
        ),
        monthly_budget_cents={research: 12_000_007},
        timezone="Asia/Shanghai",
    )


def test_what_is_left_out_has_the_defaults_of_the_terms(tmp_path: Path) -> None:
    agreed = read_teams(write(tmp_path, one_team("from: 2026-01-01, guarantee: 8")))

    assert agreed.terms_on(date(2026, 1, 1), GpuType("")) == (Terms(team=TeamName("a"), guarantee=8.0),)
    assert (agreed.timezone, agreed.projects, agreed.monthly_budget_cents) == ("UTC", (), {})
    assert agreed.contracts[0].terms.most == math.inf


def test_the_shipped_file_declares_every_account_of_the_simulated_cluster_and_can_be_kept() -> None:
    agreed = read_teams(SHIPPED)
    accounts = {TeamName(job.account) for job in demo_scenario().initial_jobs}
    gpus = float(len(read_cluster(ROOT / "cluster.yaml").topology.places) * 8)

    found = lint_quotas(
        agreed,
        day=date(2026, 1, 1),
        capacity={GpuType(""): Capacity(installed=gpus, healthy=gpus - 64.0)},
    )

    assert agreed.parents.keys() == accounts
    assert found == Remarks()


def test_the_comments_of_the_shipped_file_tell_every_key() -> None:
    text = SHIPPED.read_text(encoding="utf-8")
    for section in (TEAMS, TEAM, BUDGET, CONTRACT, PROJECT):
        for key in section.keys:
            assert key in text, key


# --- faults -------------------------------------------------------------------------------------------------------


def test_every_fault_of_a_file_is_told_at_once_with_its_line_and_key(tmp_path: Path) -> None:
    found = faults_of(
        tmp_path,
        """timezone: Europe
teams:
  - team: a
    parent: nobody
    budgett: {monthly: 1}
    contracts:
      - {from: 2026-01-01, guarantee: -1}
      - {from: 2026-01-01, guarantee: 8, cap: 4, until: 2026-01-01}
  - team: a
  - team: b
    parent: b
    contracts:
      - {from: 2026-01-01, guarantee: 8}
      - {from: 2026-06-01, guarantee: 8, form: x}
      - {from: 2026-07-01, guarantee: 8}
    projects:
      - {name: p, begins: 2026-02-01, ends: 2026-01-01, gpus: 8}
      - {name: q, begins: 2026-02-01, gpus: 8}
      - {name: q, begins: 2026-02-01, gpus: 8}
  - c
""",
    )

    assert found == [
        "line 1: timezone: found 'Europe'; expected a zone of the IANA list such as Europe/Berlin",
        "line 5: teams[0].budgett: unknown key; did you mean budget?",
        "line 7: teams[0].contracts[0].guarantee: found -1; input should be greater than or equal to 0",
        "line 8: teams[0].contracts[1]: a: reserved 0, guarantee 8, cap 4; expected none larger than the next",
        "line 8: teams[0].contracts[1].until: the contract of a from 2026-01-01 until 2026-01-01 holds on no day; "
        "expected `until` later than `from`",
        "line 9: teams[1].team: a is declared twice; keep one entry, with the contracts of both",
        "line 11: teams[2].parent: b belongs to itself; leave the parent of one of them out",
        "line 14: teams[2].contracts[1].form: unknown key; did you mean from?",
        "line 15: teams[2].contracts[2]: the contract of b from 2026-07-01 on begins while the contract of b from "
        "2026-01-01 on holds; expected one for a day: end the earlier on 2026-07-01, or begin the later when it ends",
        "line 17: teams[2].projects[0]: project p of b begins on 2026-02-01 and ends on 2026-01-01; expected an end on "
        "a later day",
        "line 19: teams[2].projects[2].name: project q of b is there twice; rename one",
        "line 20: teams[3]: found 'c'; input should be a valid dictionary",
    ]


def test_a_parent_that_is_not_declared_and_one_in_a_circle_are_told(tmp_path: Path) -> None:
    found = faults_of(
        tmp_path,
        "teams:\n  - {team: a, parent: b}\n  - {team: b, parent: a}\n  - {team: c, parent: nobody}\n",
    )

    assert found == [
        "line 2: teams[0].parent: a belongs to itself by way of b; leave the parent of one of them out",
        "line 4: teams[2].parent: c belongs to nobody, which is not declared; declare it as a team, or leave the "
        "parent out",
    ]


def test_a_team_that_has_a_fault_is_declared_all_the_same(tmp_path: Path) -> None:
    found = faults_of(tmp_path, "teams:\n  - {team: a, parent: b}\n  - {team: b, budget: 5}\n")

    assert len(found) == 1
    assert found[0].startswith("line 3: teams[1].budget: found 5")


def test_two_contracts_that_are_alike_are_told_on_the_line_of_the_second(tmp_path: Path) -> None:
    alike = "from: 2026-01-01, guarantee: 8"

    (fault,) = faults_of(tmp_path, one_team(alike, alike))

    assert fault.startswith("line 5: teams[0].contracts[1]: the contract of a from 2026-01-01 on begins with")


@pytest.mark.parametrize(
    ("contract", "fault"),
    [
        ("guarantee: 8", "contracts[0].from: this key is missing"),
        ("from: 2026-01-01", "contracts[0].guarantee: this key is missing"),
        ("from: '2026-01-01', guarantee: 8", "from: found '2026-01-01'; expected a day without quotes and without"),
        ("from: 2026-01-01T00:00:00Z, guarantee: 8", "expected a day without quotes and without a time"),
        ("from: null, guarantee: 8", "from: found None; expected a day"),
        ("from: 2026-01-01, guarantee: null", "guarantee: found None"),
        ("from: 2026-01-01, guarantee: yes", "guarantee: found True"),
        ("from: 2026-01-01, guarantee: '8'", "guarantee: found '8'"),
        ("from: 2026-01-01, guarantee: .nan", "guarantee: found nan"),
        ("from: 2026-01-01, guarantee: .inf", "guarantee: found inf"),
        ("from: 2026-01-01, guarantee: 1000001", "guarantee: found 1000001"),
        ("from: 2026-01-01, guarantee: 8, cap: -0.5", "cap: found -0.5"),
        ("from: 2026-01-01, guarantee: 8, cap: 7.9", "guarantee 8, cap 7.9; expected none larger than the next"),
        ("from: 2026-01-01, guarantee: 8, reserved: 8.1", "reserved 8.1, guarantee 8, cap inf; expected none"),
        ("from: 2026-01-01, guarantee: 8, weight: 0.0009", "weight: found 0.0009; expected 0, or 0.001 and more"),
        ("from: 2026-01-01, guarantee: 8, priority: 1.5", "priority: found 1.5"),
        ("from: 2026-01-01, guarantee: 8, gpu_type: H100", "gpu_type: found 'H100'; expected lower case"),
        ("from: 2026-01-01, guarantee: 8, gpu_type: 'h 1'", "gpu_type: found 'h 1'"),
        ("from: 2026-01-01, guarantee: 8, guarantee: 9", "guarantee: this key was given before, on line 4; keep one"),
        ("valid_from: 2026-01-01, guarantee: 8", "contracts[0].valid_from: unknown key; expected one of from, until"),
    ],
)
def test_a_contract_that_cannot_be_is_told_with_what_was_expected(tmp_path: Path, contract: str, fault: str) -> None:
    found = faults_of(tmp_path, one_team(contract))

    assert any(fault in each for each in found), found


@pytest.mark.parametrize(
    "contract",
    [
        "from: 2026-01-01, guarantee: 8, cap: 8",
        "from: 2026-01-01, guarantee: 8, reserved: 8",
        "from: 2026-01-01, guarantee: 0, weight: 0",
        "from: 2026-01-01, guarantee: 0.5, weight: 0.001",
        "from: 2026-01-01, until: 2026-01-02, guarantee: 1000000",
    ],
)
def test_what_is_just_within_its_bounds_is_taken(tmp_path: Path, contract: str) -> None:
    assert len(read_teams(write(tmp_path, one_team(contract))).contracts) == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: teams: this key is missing"),
        ("teams: []", "line 1: teams: found []"),
        ("teams: {a: 1}", "line 1: teams: found {'a': 1}"),
        ("teams: [{}]", "line 1: teams[0].team: this key is missing"),
        ("teams: [{team: 7}]", "line 1: teams[0].team: found 7"),
        ("teams: [{team: 'a,b'}]", "line 1: teams[0].team: found 'a,b'"),
        ("teams: [{team: a}]\nteam: x", "line 2: team: unknown key; did you mean teams?"),
        ("teams: [{team: a, contracts: x}]", "line 1: teams[0].contracts: found 'x'"),
        ("teams: [{team: a, contracts: [3]}]", "line 1: teams[0].contracts[0]: found 3"),
        ("teams: [{team: a, projects: [{name: p, begins: 2026-01-01, gpus: 0}]}]", "wants 0 GPUs; expected more"),
        ("teams: [{team: a, budget: {monthly: 0.005}}]", "budget.monthly: found 0.005; expected whole cents"),
        ("teams: [{team: a, budget: {monthly: -1}}]", "budget.monthly: found -1"),
        ("timezone: ../../etc/passwd\nteams: [{team: a}]", "line 1: timezone: found '../../etc/passwd'; expected"),
        ("teams: &a [*a]", "line 1: teams[0]: found"),
    ],
)
def test_a_file_that_cannot_be_is_told_with_its_line(tmp_path: Path, text: str, fault: str) -> None:
    found = faults_of(tmp_path, text)

    assert any(fault in each for each in found), found


@pytest.mark.parametrize(
    ("written", "cents"),
    [("0", 0), ("0.29", 29), ("1.1", 110), ("1000000000000", 10**14), ("999999999999.99", 10**14 - 1)],
)
def test_a_budget_is_exact_to_the_cent(tmp_path: Path, written: str, cents: int) -> None:
    agreed = read_teams(write(tmp_path, f"teams: [{{team: a, budget: {{monthly: {written}}}}}]"))

    assert agreed.monthly_budget_cents == {"a": cents}


# --- whatever it says ---------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.sampled_from(
        ["null", "yes", "1", "-1", ".nan", "1e400", "2026-01-01", "a", "'a'", "0x1F", "1:30", "~", "{1: 2}"]
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]"),
    max_leaves=4,
)
KEYS = st.sampled_from(
    ["team", "parent", "contracts", "projects", "budget", "from", "until", "guarantee", "cap", "name", "begins", "x"]
)


def section(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(KEYS, values), max_size=5)
    return pairs.map(lambda each: "{" + ", ".join(f"{key}: {value}" for key, value in each) + "}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    teams=st.lists(
        section(
            VALUES | section(VALUES) | st.lists(section(VALUES), max_size=2).map(lambda each: f"[{', '.join(each)}]")
        ),
        max_size=3,
    )
)
def test_whatever_the_file_says_it_is_read_or_refused_as_a_file(tmp_path: Path, teams: list[str]) -> None:
    path = write(tmp_path, f"teams: [{', '.join(teams)}]")
    try:
        agreed = read_teams(path)
    except ConfigError:
        return

    assert agreed.parents
