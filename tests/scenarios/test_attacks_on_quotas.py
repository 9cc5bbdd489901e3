"""Inputs that mean harm, or are merely broken, all along the way of quotas: nothing crashes, nothing is guessed."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.core.proposal import ProposalId, ProposalState, TeamName
from ops_pipelines.core.scheduler import Change, QuotaChange, QuotaProbe, QuotasInForce
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.config.teams_file import read_teams
from ops_pipelines.resources.config.yaml_file import ConfigError
from ops_pipelines.terminal.edge import ExitCode
from tests.flow.quota_mornings import HOUR, LIMITS, MORNING, SCIENCE, Past, QuotaStage, row_of
from tests.shell.desk import HOSTILE, Answer

DAY = timedelta(days=1)
HELD = {str(team): limit for team, limit in LIMITS.items()}
BEGINS = 1_699_999_200
STEERING = ("\x1b", "\x07", "\x9b", "\u202e")


class Terminal(QuotaStage):
    """A stage with a terminal in front of it; what is no answer of the program is raised."""

    def ask(self, *words: str) -> Answer:
        result = CliRunner().invoke(
            cli.app, ["quota", *words], obj=lambda _: self.desk, env={"COLUMNS": "300"}, catch_exceptions=False
        )
        return Answer(result.exit_code, result.stdout, result.stderr)

    def kept(self) -> str:
        assert self.ask("propose", "--keep").exit_code == ExitCode.OK
        return self.desk.cluster.ledger.proposals(limit=1)[0].name


class DeadPort:
    """Fits Quotas: slurmdbd is down."""

    def read(self) -> QuotasInForce:
        raise SourceUnavailable("slurmdbd did not answer within 10 s; check that it runs")

    def probe(self) -> QuotaProbe:
        raise SourceUnavailable("slurmdbd did not answer within 10 s; check that it runs")

    def apply(self, changes: object) -> None:
        raise SourceUnavailable("slurmdbd did not answer within 10 s; check that it runs")


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path, past=Past(days=3))


# -- files --


@pytest.mark.parametrize("text", [b'teams:\n  - {team: "a\x00b"}\n', b"teams:\n  - {team: a}\n\x1b[2J\n"])
def test_a_character_that_cannot_be_printed_is_a_fault_of_the_file(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "teams.yaml"
    file.write_bytes(text)

    with pytest.raises(ConfigError, match=r"teams\.yaml is not YAML"):
        read_teams(file)


def demand_file(directory: Path, **columns: object) -> Path:
    """Two teams for four days; columns are replaced."""
    hours = [BEGINS + 3600 * number for number in range(96) for _ in "ab"]
    rows: dict[str, object] = {"hour_ts": hours, "team": ["a", "b"] * 96}
    rows |= {name: [4.0] * 192 for name in ("gpus_running_avg", "gpus_pending_avg", "gpus_demand_avg")}
    rows |= {"capacity_gpus": [16.0] * 192, **columns}
    pq.write_table(pa.table(rows), directory / "demand.parquet")
    return directory / "demand.parquet"


def replay(*words: str) -> Answer:
    result = CliRunner().invoke(cli.app, ["quota", "replay", *words], env={"COLUMNS": "200"}, catch_exceptions=False)
    return Answer(result.exit_code, result.stdout, result.stderr)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"capacity_gpus": [0.0] * 192}, "capacity_gpus adds up to 0"),
        ({"capacity_gpus": [1.7e308] * 192}, "capacity_gpus adds up to inf"),
        ({"hour_ts": [str(BEGINS + 3600 * (each // 2)) for each in range(192)]}, "hour_ts is string"),
        ({"gpus_demand_avg": [math.nan] * 192}, "192 rows cannot be believed"),
    ],
)
def test_demand_of_which_nothing_can_be_shared_out_is_refused(
    tmp_path: Path, columns: dict[str, object], said: str
) -> None:
    found = replay("--demand", str(demand_file(tmp_path, **columns)))

    assert found.exit_code == ExitCode.USAGE
    assert said in found.stderr


def test_names_in_a_file_steer_no_terminal(tmp_path: Path) -> None:
    found = replay("--demand", str(demand_file(tmp_path, team=["\x1b[2Ja", HOSTILE] * 96)))

    assert found.exit_code == ExitCode.OK
    assert not any(char in found.stdout + found.stderr for char in STEERING)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("", ExitCode.USAGE, "column team is missing"),
        ("\ufeffteam,guarantee_gpus\na,8\nb,8\n", ExitCode.OK, ""),
        ("team,guarantee_gpus\na,1,000\nb,8\n", ExitCode.USAGE, "line 2: more cells than columns"),
        ('team,guarantee_gpus\na,"1,000"\nb,8\n', ExitCode.USAGE, "line 2: a is guaranteed '1,000' GPUs"),
        ("team,guarantee_gpus\na,nan\nb,8\n", ExitCode.USAGE, "line 2: a is guaranteed 'nan' GPUs"),
    ],
)
def test_guarantees_are_read_as_they_stand_or_refused(tmp_path: Path, text: str, code: int, said: str) -> None:
    file = tmp_path / "owed.csv"
    file.write_text(text, encoding="utf-8")

    found = replay("--demand", str(demand_file(tmp_path)), "--guarantees", str(file))

    assert found.exit_code == code
    assert said in found.stderr


# -- the lake --


@pytest.mark.parametrize("column", ["gpus_demand_avg", "gpus_ran_last", "gpus_running_avg"])
@pytest.mark.parametrize("amount", [math.nan, math.inf, -1.0, 1e300])
def test_damaged_hours_of_demand_refuse_or_change_nothing_beyond_what_there_is(
    terminal: Terminal, column: str, amount: float
) -> None:
    hour = MORNING - HOUR
    rows = [{**row_of(SCIENCE, hour, 20.0, limit=8), column: amount}]
    terminal.desk.lake.replace_hour("gpu_demand", hour, TABLES["gpu_demand"].from_rows(rows))

    found = terminal.ask("propose", "--keep")

    assert found.exit_code in (ExitCode.OK, ExitCode.REFUSED)
    (record, *_) = (*terminal.desk.cluster.ledger.proposals(limit=1), None)
    if record is not None and record.state is ProposalState.PROPOSED:
        assert sum(each.after for each in record.proposal.lines) <= 48
        assert all(math.isfinite(each.ran_last) and each.ran_last >= 0 for each in record.proposal.lines)


def test_hostile_accounts_in_demand_steer_nothing_and_reach_the_scheduler_as_they_are(terminal: Terminal) -> None:
    terminal.add([row_of(HOSTILE, MORNING - number * HOUR, 4.0, limit=4) for number in range(1, 30)])

    name = terminal.kept()
    shown = [terminal.ask("propose"), terminal.ask("diff"), terminal.ask("apply", name), terminal.ask("history")]

    for each in shown:
        assert not any(char in each.stdout + each.stderr for char in STEERING)
    assert terminal.limits().keys() == HELD.keys(), "an account that the scheduler does not know is never made up"


# -- applying --


@pytest.mark.parametrize(
    "name", ["", " ", "QUOTA-", "QUOTA-20261121-zzzzzzzz", "../../etc/passwd", HOSTILE, "'; drop table", "x" * 5000]
)
@pytest.mark.parametrize("command", ["apply", "undo", "diff"])
def test_a_name_that_names_no_proposal_is_refused(terminal: Terminal, command: str, name: str) -> None:
    terminal.kept()

    found = terminal.ask(command, "--", name)

    assert found.exit_code == ExitCode.REFUSED
    assert not any(char in found.stderr for char in STEERING)
    assert len(found.stderr) < 1000
    assert terminal.limits() == HELD


def test_applying_twice_sets_once_and_undoing_twice_undoes_once(terminal: Terminal) -> None:
    name = terminal.kept()

    first, second = terminal.ask("apply", name), terminal.ask("apply", name)
    limits = terminal.limits()
    undone, again = terminal.ask("undo", name), terminal.ask("undo", name)

    assert [each.exit_code for each in (first, second, undone, again)] == [ExitCode.OK] * 4
    assert limits != HELD
    assert terminal.limits() == HELD
    assert "nothing was changed" in second.stdout
    assert "nothing was changed" in again.stdout
    assert terminal.ask("apply", name).exit_code == ExitCode.REFUSED, "what was undone is proposed again, not revived"


@pytest.mark.parametrize(("hours", "code"), [(17, ExitCode.OK), (35, ExitCode.OK), (37, ExitCode.REFUSED)])
def test_a_proposal_of_yesterday_is_applied_only_while_it_is_young(terminal: Terminal, hours: int, code: int) -> None:
    name = terminal.kept()
    terminal.clock.wait(hours * 3600)

    found = terminal.ask("apply", name)

    assert found.exit_code == code, found.stderr
    assert (terminal.limits() != HELD) is (code is ExitCode.OK)


def test_after_a_change_by_hand_nothing_is_overwritten(terminal: Terminal) -> None:
    name = terminal.kept()
    terminal.port.apply([QuotaChange(account=SCIENCE, before=LIMITS[SCIENCE], after=3)])

    found = terminal.ask("apply", name)

    assert found.exit_code == ExitCode.REFUSED
    assert "somebody changed it" in found.stderr
    assert terminal.limits() == {**HELD, "science": 3}


@pytest.mark.parametrize("words", [("propose",), ("propose", "--keep"), ("diff",), ("apply",), ("undo",)])
def test_while_slurmdbd_is_down_it_is_said_and_nothing_else_happens(terminal: Terminal, words: tuple[str, ...]) -> None:
    name = terminal.kept()
    terminal.change(quotas=DeadPort())

    found = terminal.ask(*words, *([name] if words[0] in ("apply", "undo") else []))

    expected = ExitCode.REFUSED if words[0] == "undo" else ExitCode.NO_ANSWER
    assert found.exit_code == expected, found.stdout + found.stderr
    record = terminal.desk.cluster.ledger.proposal(ProposalId(name))
    assert record is not None
    assert record.state is ProposalState.PROPOSED


def test_an_account_that_was_removed_is_named_and_the_others_are_set(terminal: Terminal) -> None:
    name = terminal.kept()
    terminal.change(quotas=_WithoutAccount(terminal.port.read, terminal.port.probe, terminal.port.apply))

    found = terminal.ask("apply", name)

    assert found.exit_code == ExitCode.OK
    assert "nothing is set for science" in " ".join(found.stdout.split())
    assert terminal.limits()[SCIENCE] == HELD[SCIENCE]


class _WithoutAccount:
    """Fits Quotas: science was deleted."""

    def __init__(
        self, read: Callable[[], QuotasInForce], probe: Callable[[], QuotaProbe], apply: Callable[..., None]
    ) -> None:
        self._read, self.probe, self._apply = read, probe, apply

    def read(self) -> QuotasInForce:
        found = self._read()
        return replace(found, accounts={team: each for team, each in found.accounts.items() if team != SCIENCE})

    def apply(self, changes: list[Change]) -> None:
        self._apply(changes)


# -- words --


@pytest.mark.parametrize(
    "words",
    [
        ("propose", "--day", "2026-13-01"),
        ("propose", "--day", "0000-00-00"),
        ("propose", "--day", "1969-12-31"),
        ("propose", "--day", "1970-01-01"),
        ("propose", "--day", "0001-01-01"),
        ("propose", "--day", "9999-12-31"),
        ("propose", "--day", ""),
        ("explain", "science", "--day", "0001-01-01"),
        ("explain", "science", "--day", "9999-12-31"),
        ("explain", ""),
        ("explain", HOSTILE),
        ("explain", "x" * 5000),
        ("history", "--limit", "0"),
        ("history", "--limit", "1000000"),
    ],
)
def test_odd_words_are_answered_with_what_to_do(terminal: Terminal, words: tuple[str, ...]) -> None:
    found = terminal.ask(*words)

    assert found.exit_code in (ExitCode.USAGE, ExitCode.REFUSED), found.stdout
    assert found.stderr.strip()
    assert not any(char in found.stderr for char in STEERING)


def test_a_team_is_explained_by_its_whole_name_alone(terminal: Terminal) -> None:
    terminal.add([row_of(TeamName("sci"), MORNING - number * HOUR, 4.0, limit=4) for number in range(1, 30)])

    assert "sci is in demand" not in terminal.ask("explain", "science").stdout
