"""`ops-pipelines quota`: what people read, what scripts read, an approval in one's own name, and names that mean
harm."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.core.observation import Checkpointing, Workload
from ops_pipelines.terminal.edge import ExitCode
from ops_pipelines_lab.simulator.scenario import JobSpec
from ops_pipelines_lab.simulator.twin import SimulatedSettings
from tests.flow.quota_mornings import LIMITS, MORNING, SCIENCE, QuotaStage, row_of
from tests.shell.desk import HOSTILE, ME, Answer

HELD = {str(team): limit for team, limit in LIMITS.items()}
STEERING = ("\x1b", "\x07", "\x9b", "\u202e")


class Terminal(QuotaStage):
    """A stage with a terminal in front of it."""

    def ask(self, *words: str, columns: int = 80) -> Answer:
        result = CliRunner().invoke(
            cli.app,
            ["quota", *words],
            obj=lambda _: self.desk,
            env={"COLUMNS": str(columns)},
            catch_exceptions=False,
        )
        return Answer(result.exit_code, result.stdout, result.stderr)

    def answer(self, *words: str) -> dict[str, Any]:
        found = self.ask(*words, "--json")
        assert (found.exit_code, found.stderr) == (ExitCode.OK, "")
        assert found.stdout.isascii()
        return cast("dict[str, Any]", json.loads(found.stdout))


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


def test_a_proposal_is_shown_kept_applied_and_undone(terminal: Terminal) -> None:
    dry = terminal.answer("propose")
    assert (dry["state"], terminal.answer("history")["proposals"]) == ("computed", [])

    kept = terminal.answer("propose", "--keep")
    name = kept["proposal"]
    assert (name, kept["state"], kept["actor"]) == (dry["proposal"], "proposed", ME)
    rows = terminal.answer("diff")["rows"]
    assert {row["team"]: row["in_force"] for row in rows} == HELD
    assert len(terminal.answer("apply", name, "--dry-run")["changes"]) == 3
    assert terminal.limits() == HELD

    assert terminal.ask("apply", name).exit_code == ExitCode.OK
    assert terminal.limits() == {row["team"]: row["proposed"] for row in rows}
    assert terminal.answer("history")["proposals"][0]["actor"] == ME

    assert terminal.ask("undo", name.lower()).exit_code == ExitCode.OK
    assert terminal.limits() == HELD
    assert terminal.answer("history")["proposals"][0]["state"] == "undone"


@pytest.mark.parametrize("columns", [80, 140])
def test_what_people_read_fits_the_terminal(terminal: Terminal, columns: int) -> None:
    terminal.add([row_of(HOSTILE, MORNING, 4.0, limit=4)])
    terminal.ask("propose", "--keep")

    for words in (("propose",), ("diff",), ("explain", "science"), ("history",)):
        found = terminal.ask(*words, columns=columns)

        assert found.exit_code == ExitCode.OK
        assert max(map(len, found.stdout.splitlines())) <= columns
        assert not any(char in found.stdout for char in STEERING)


def test_a_team_is_explained_with_all_that_decided(terminal: Terminal) -> None:
    view = terminal.answer("explain", "science")

    (agreed,) = view["agreed"]
    (line,) = view["lines"]
    assert (agreed["guarantee"], agreed["cap"], line["limit"]) == (8.0, None, 8)
    assert (line["wanted_mean"], line["used_mean"]) == (20.0, 8.0)
    said = terminal.ask("explain", "science").stdout
    for words in ("waited for", "12.0 GPUs", "others had", "without it"):
        assert words in said


def test_whose_jobs_preemption_would_end_is_told_with_its_rules(tmp_path: Path) -> None:
    jobs = [
        JobSpec(
            name="train",
            user="u",
            account=SCIENCE,
            workload=Workload.TRAINING,
            checkpoint_interval_seconds=600.0,
            checkpointing=Checkpointing.YES,
        )
        for _ in range(6)
    ]
    terminal = Terminal(tmp_path, *jobs)
    terminal.change(settings=SimulatedSettings(terminal.autopilot.twin))
    terminal.clock.wait(3 * 3600)

    (found,) = terminal.answer("explain", "research")["reclaim"]
    said = terminal.ask("explain", "research").stdout

    assert (found["guarantee"], found["runs"], found["free"], found["wanted"]) == (16.0, 0, 0, 16.0)
    assert [(each["team"], each["gpus"]) for each in found["jobs"]] == [("science", 8), ("science", 8)]
    assert "nothing is preempted" in found["scheduler"]
    for words in ("would have to come from borrowers", "of science: 8 GPUs, ran for 3.0 hours", "less than 2:00:00"):
        assert words in " ".join(said.split())
    yesterday = f"{terminal.now.date() - timedelta(days=1)}"
    assert terminal.answer("explain", "research", "--day", yesterday)["reclaim"] == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("explain", "sciense"), ExitCode.REFUSED, "did you mean science"),
        (("apply", "QUOTA-20261121-00000000"), ExitCode.REFUSED, "there is no proposal"),
        (("diff",), ExitCode.REFUSED, "nothing was ever proposed"),
        (("propose", "--day", "2026-11-22"), ExitCode.REFUSED, "has not started"),
        (("propose", "--day", "yesterday"), ExitCode.USAGE, "expected a day"),
        (("propose", "--day", "2026-11-20", "--keep"), ExitCode.REFUSED, "only today's"),
    ],
)
def test_what_there_is_not_is_refused_with_what_to_do(
    terminal: Terminal, words: tuple[str, ...], code: int, said: str
) -> None:
    found = terminal.ask(*words, columns=400)

    assert found.exit_code == code
    assert said in found.stderr
    assert terminal.limits() == HELD
