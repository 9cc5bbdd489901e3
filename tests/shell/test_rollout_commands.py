"""`ops-pipelines rollout`: what people read, what scripts read, orders in one's own name, and text that means harm."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.core.observation import JobStatus, NodeStatus
from ops_pipelines.core.policy import ActionClass, Consent, Mode
from ops_pipelines.core.release import Component, Reversibility
from ops_pipelines.core.rollout import NodeStage, RolloutState
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.rollouts import orders
from tests.scenarios.rollout_stage import (
    FIRST,
    KERNEL,
    NEW_KERNEL,
    PERSON,
    ROLLOUT_POLICY,
    RolloutStage,
    change,
    release_of,
)
from tests.shell.desk import HOSTILE, ME, Answer

PLAN_KEYS: dict[str, object] = {
    "cluster": None, "made_at": None, "release": None, "about": None, "plan": None, "refused": None,
    "changes": ["component", "version", "activation", "reversible", "conditions"],
    "node_count": None,
    "waves": ["wave", "kind", "nodes", "planned_from", "planned_until"],
    "starts_at": None, "finishes_at": None, "lost_gpu_hours": None,
    "teams": ["team", "nodes", "gpu_count", "first_at", "last_at"],
    "not_touched": ["node", "reason"],
    "contradictions": ["rule", "said", "source", "nodes"],
    "needs_yes_for": None, "sight": None, "warnings": None,
}  # fmt: skip
ROLLOUT_KEYS: dict[str, object] = {
    "rollout": None, "release": None, "plan": None, "state": None, "owner": None, "reason": None, "since": None,
    "deadline": None, "wave": None, "wave_count": None, "nodes_by_stage": None, "finishes_at": None,
    "created_by": None, "created_at": None, "yes_by": None, "stopped_because": None, "waits_for": None,
    "tests": ["test", "verdict", "said", "evidence_ratio"],
    "verdict": None,
    "nodes": ["node", "wave", "stage", "direction", "since", "deadline", "reason", "failure"],
}  # fmt: skip
STEERING = ("\x1b", "\x07", "\x9b", "\u202e", "\r")
ORDERS = ("pause", "resume", "abort", "back")


class SilentScheduler:
    """A controller that does not answer."""

    def read_nodes(self) -> tuple[NodeStatus, ...]:
        raise SourceUnavailable("slurmctld did not answer within 4 s; check that it runs")

    def read_jobs(self) -> tuple[JobStatus, ...]:
        raise SourceUnavailable("slurmctld did not answer within 4 s; check that it runs")


class Terminal(RolloutStage):
    """A stage with a terminal in front of it."""

    def ask(self, *words: str, columns: int = 80) -> Answer:
        result = CliRunner().invoke(
            cli.app,
            ["rollout", *words],
            obj=lambda _: self.cluster,
            env={"COLUMNS": str(columns)},
            catch_exceptions=False,
        )
        return Answer(result.exit_code, result.stdout, result.stderr)

    def answer(self, *words: str) -> dict[str, Any]:
        """Return the JSON of an answer that is well: alone on standard output, in ASCII."""
        found = self.ask(*words, "--json")
        assert (found.exit_code, found.stderr) == (cli.ExitCode.OK, "")
        assert found.stdout.isascii()
        return cast("dict[str, Any]", json.loads(found.stdout))


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    terminal = Terminal(tmp_path, node_count=3)
    terminal.files.releases["autumn"] = KERNEL
    return terminal


def keys_of(document: dict[str, Any], shape: dict[str, object]) -> dict[str, object]:
    """Return the keys of a document in the form of a shape; of an empty list what the shape says of its elements."""
    return {
        key: list(value[0]) if isinstance(value, list) and value and isinstance(value[0], dict)
        else shape.get(key) if value == []
        else None
        for key, value in document.items()
    }  # fmt: skip


def assert_fits(answer: Answer, columns: int = 80) -> None:
    assert max(map(len, answer.stdout.splitlines())) <= columns
    assert not any(char in answer.stdout + answer.stderr for char in STEERING)


# -- plan --


def test_plan_in_json_has_the_documented_keys_and_stands_alone(terminal: Terminal) -> None:
    terminal.files.releases["autumn"] = replace(KERNEL, opted_out=frozenset({"gpu002"}))

    view = terminal.answer("plan", "autumn")

    assert list(view) == list(PLAN_KEYS)
    assert keys_of(view, PLAN_KEYS) == PLAN_KEYS
    assert (view["node_count"], view["refused"]) == (2, "")
    assert [(each["wave"], each["kind"]) for each in view["waves"]] == [(1, "canary"), (2, "deciding")]
    assert view["not_touched"] == [{"node": "gpu002", "reason": "opted out"}]


@pytest.mark.parametrize(
    ("command", "shape"), [("plan", PLAN_KEYS), ("status", {"cluster": 0, "rollouts": 0, **ROLLOUT_KEYS})]
)
def test_every_key_is_told_by_the_help(terminal: Terminal, command: str, shape: dict[str, object]) -> None:
    said = terminal.ask(command, "--help", columns=200).stdout

    nested = [each for value in shape.values() if isinstance(value, list) for each in value]
    assert [key for key in (*shape, *nested) if key not in said] == []


def test_plan_for_people_fits_the_terminal_and_changes_nothing(terminal: Terminal) -> None:
    answer = terminal.ask("plan", "autumn")

    assert answer.exit_code == cli.ExitCode.OK
    assert "3 in 2 waves" in answer.stdout
    assert NEW_KERNEL in answer.stdout
    assert_fits(answer)
    assert terminal.cluster.ledger.rollout_count() == 0


def test_plan_that_is_refused_says_why_and_ends_with_that_code(terminal: Terminal) -> None:
    terminal.files.releases["autumn"] = replace(KERNEL, opted_out=frozenset({"gpu001", "gpu002", "gpu003"}))

    shown, told = terminal.ask("plan", "autumn"), terminal.ask("plan", "autumn", "--json")

    assert (shown.exit_code, told.exit_code) == (cli.ExitCode.REFUSED, cli.ExitCode.REFUSED)
    assert "autumn cannot be rolled out: no_node" in " ".join(shown.stdout.split())
    view = json.loads(told.stdout)
    assert list(view) == list(PLAN_KEYS)
    assert (view["plan"], view["waves"], view["finishes_at"], view["lost_gpu_hours"]) == (None, [], None, None)
    assert view["refused"].startswith("no_node: ")


def test_a_rule_that_refuses_a_plan_is_told_once(terminal: Terminal) -> None:
    terminal.files.releases["autumn"] = replace(KERNEL, models=frozenset({"gb200-nvl72"}))

    answer = terminal.ask("plan", "autumn", columns=200)

    assert answer.exit_code == cli.ExitCode.REFUSED
    assert answer.stdout.count("no node is a gb200-nvl72") == 1
    assert "(racks of cluster.yaml)" in answer.stdout


@pytest.mark.parametrize("command", ["plan", "start"])
def test_a_release_that_is_not_there_is_a_mistake_of_the_caller(terminal: Terminal, command: str) -> None:
    answer = terminal.ask(command, "spring")

    assert (answer.exit_code, answer.stdout) == (cli.ExitCode.USAGE, "")
    assert "there is no release spring" in answer.stderr


def test_plan_without_a_scheduler_says_so(terminal: Terminal) -> None:
    terminal.cluster = replace(terminal.cluster, scheduler=cast("Scheduler", SilentScheduler()))

    answer = terminal.ask("plan", "autumn", "--json")

    assert (answer.exit_code, answer.stdout) == (cli.ExitCode.NO_ANSWER, "")
    assert "slurmctld did not answer" in answer.stderr


def test_plan_says_what_cannot_go_back(terminal: Terminal) -> None:
    parts = {"reversibility": Reversibility.NO, "rollback": ()}
    terminal.files.releases["autumn"] = release_of(change(Component.KERNEL, NEW_KERNEL, **parts))

    assert terminal.answer("plan", "autumn")["needs_yes_for"] == ["kernel"]
    assert "cannot be rolled back  kernel" in terminal.ask("plan", "autumn").stdout


# -- start --


def test_start_opens_the_plan_that_was_read_and_no_other(terminal: Terminal) -> None:
    plan = terminal.answer("plan", "autumn")["plan"]

    other = terminal.ask("start", "autumn", "--plan", "PLAN-other")
    same = terminal.ask("start", "autumn", "--plan", plan)

    assert other.exit_code == cli.ExitCode.REFUSED
    assert f"the plan is {plan} by now, not PLAN-other" in other.stderr
    assert same.stdout.startswith("ROLL-0001 (autumn) is running: ")
    assert terminal.rollout().created_by == ME
    assert terminal.cluster.ledger.rollout_count() == 1


def test_start_waits_for_a_yes_or_is_refused_as_the_policy_says(terminal: Terminal) -> None:
    terminal.use_policy(replace(ROLLOUT_POLICY, mode=Mode.OBSERVE))
    observed = terminal.ask("start", "autumn")
    terminal.use_policy(replace(ROLLOUT_POLICY, consents={ActionClass.UPDATE: Consent.APPROVE}))
    waits = terminal.ask("start", "autumn")
    yes = terminal.ask("approve", "roll-0001")

    assert (observed.exit_code, observed.stdout) == (cli.ExitCode.REFUSED, "")
    assert "is awaiting yes" in waits.stdout
    assert yes.stdout == f"ROLL-0001 (autumn) is running: {ME} approved\n"
    assert terminal.rollout().yes_by == ME


# -- status and history --


def test_without_a_rollout_that_is_said(terminal: Terminal) -> None:
    assert terminal.ask("status").stdout == "no rollout is under way\n"
    assert terminal.ask("history").stdout == "Rollouts\nNone is under way, and none ended in the last 30 days.\n"
    assert terminal.answer("status")["rollouts"] == []


def test_status_and_history_in_json_have_the_documented_keys(terminal: Terminal) -> None:
    terminal.start()
    terminal.run_to(RolloutState.SOAKING)

    views = [terminal.answer(*words) for words in (("status",), ("status", "ROLL-0001"), ("history",))]

    for view in views:
        assert list(view) == ["cluster", "taken_at", "rollouts", "problems"]
        (rollout,) = view["rollouts"]
        assert list(rollout) == list(ROLLOUT_KEYS)
        assert keys_of(rollout, ROLLOUT_KEYS) == ROLLOUT_KEYS
        assert rollout["tests"]
        assert rollout["nodes_by_stage"] == {"soaking": 1, "pending": 2}
        assert rollout["state"] == "soaking"
    assert views[0] == views[1] == views[2]


def test_status_for_people_shows_the_gate_and_who_is_on_its_way_and_fits(terminal: Terminal) -> None:
    terminal.start()
    terminal.run_to(RolloutState.SOAKING)

    answer = terminal.ask("status")

    assert answer.exit_code == cli.ExitCode.OK
    assert answer.stdout.startswith("ROLL-0001: soaking\n")
    assert "gpu001" in answer.stdout
    assert "gpu002" not in answer.stdout
    assert_fits(answer)
    assert_fits(terminal.ask("history"))


@pytest.mark.parametrize(("columns", "is_table"), [(40, False), (80, True), (110, True), (200, True)])
def test_history_is_a_table_only_where_its_columns_are_wide_enough(
    terminal: Terminal, columns: int, is_table: bool
) -> None:
    terminal.start()

    answer = terminal.ask("history", columns=columns)

    assert answer.stdout.startswith("Rollouts\nRollout ") is is_table
    assert "ROLL-0001 " in answer.stdout
    assert "started by day-shift" in " ".join(answer.stdout.split())
    assert_fits(answer, columns)


def test_a_rollout_that_is_over_is_in_the_history_and_shown_by_its_name(terminal: Terminal) -> None:
    terminal.start()
    orders.abort(FIRST, terminal.cluster, actor=PERSON, reason="not today")
    terminal.run_to()

    assert terminal.ask("status").stdout == "no rollout is under way\n"
    (shown,) = terminal.answer("status", "roll-0001")["rollouts"]
    assert (shown["state"], shown["tests"], shown["verdict"]) == ("aborted", [], "")
    assert [each["rollout"] for each in terminal.answer("history")["rollouts"]] == ["ROLL-0001"]

    terminal.let_pass(timedelta(days=30, seconds=1).total_seconds())

    assert terminal.answer("history")["rollouts"] == []


@pytest.mark.parametrize("words", [("status",), ("approve",), *((each, "--reason", "why") for each in ORDERS)])
def test_a_rollout_that_nobody_knows_is_refused_with_what_to_ask(terminal: Terminal, words: Sequence[str]) -> None:
    answer = terminal.ask(words[0], "ROLL-0009", *words[1:])

    assert (answer.exit_code, answer.stdout) == (cli.ExitCode.REFUSED, "")
    assert "there is no rollout ROLL-0009; `ops-pipelines rollout history` lists them" in answer.stderr


# -- orders --


def test_orders_hold_in_the_name_of_who_gave_them(terminal: Terminal) -> None:
    terminal.start()

    said, owners = [], []
    for order in ORDERS:
        said.append(terminal.ask(order, "ROLL-0001", "--reason", f"for {order}").stdout)
        owners.append(terminal.rollout().owner)

    assert said == [
        f"ROLL-0001 (autumn) is paused: {ME}: for pause\n",
        f"ROLL-0001 (autumn) is running: {ME}: for resume\n",
        f"ROLL-0001 (autumn) is ending: {ME}: for abort\n",
        f"ROLL-0001 (autumn) is going back: {ME}: for back\n",
    ]
    assert owners == [ME, "autopilot", "autopilot", "autopilot"]


@pytest.mark.parametrize("order", [*ORDERS, "skip"])
@pytest.mark.parametrize("reason", [None, "", "  "])
def test_an_order_needs_a_reason(terminal: Terminal, order: str, reason: str | None) -> None:
    terminal.start()
    node = ["gpu002"] if order == "skip" else []

    answer = terminal.ask(order, "ROLL-0001", *node, *([] if reason is None else ["--reason", reason]))

    assert (answer.exit_code, answer.stdout) == (cli.ExitCode.USAGE, "")
    assert "--reason" in answer.stderr
    assert terminal.rollout().state is RolloutState.RUNNING


def test_an_order_that_the_state_does_not_take_is_refused(terminal: Terminal) -> None:
    terminal.start()

    for words in (("approve", "ROLL-0001"), ("resume", "ROLL-0001", "--reason", "why")):
        answer = terminal.ask(*words)
        assert (answer.exit_code, answer.stdout) == (cli.ExitCode.REFUSED, "")
        assert "ROLL-0001 is running" in answer.stderr


def test_a_node_is_left_out_once(terminal: Terminal) -> None:
    terminal.start()
    skip = ("skip", "ROLL-0001", "gpu003", "--reason", "a paper is due")

    first, second = terminal.ask(*skip), terminal.ask(*skip)

    assert (first.exit_code, first.stdout) == (cli.ExitCode.OK, "gpu003 is left out of ROLL-0001\n")
    assert second.exit_code == cli.ExitCode.REFUSED
    assert terminal.stage_of("gpu003") is NodeStage.SKIPPED


@pytest.mark.parametrize("name", ["gpu009", "$(reboot)", "gpu[001-003]"])
def test_what_is_no_node_of_the_rollout_is_not_left_out(terminal: Terminal, name: str) -> None:
    terminal.start()

    answer = terminal.ask("skip", "ROLL-0001", name, "--reason", "why")

    assert answer.exit_code in (cli.ExitCode.USAGE, cli.ExitCode.REFUSED)
    assert NodeStage.SKIPPED not in {each.stage for each in terminal.nodes().values()}


# -- what means harm --


def test_text_of_releases_and_people_never_steers_the_terminal(terminal: Terminal) -> None:
    terminal.files.releases["autumn"] = replace(KERNEL, about=HOSTILE)
    terminal.start(terminal.files.releases["autumn"])
    shown = [
        terminal.ask("pause", "ROLL-0001", "--reason", HOSTILE),
        terminal.ask("status"),
        terminal.ask("history"),
        terminal.ask("status", HOSTILE),
        terminal.ask("plan", HOSTILE),
        terminal.ask("skip", "ROLL-0001", HOSTILE, "--reason", HOSTILE),
        terminal.ask("abort", "ROLL-0001", "--reason", "enough"),
    ]
    terminal.run_to()
    shown.append(terminal.ask("plan", "autumn"))

    for answer in shown:
        assert not any(char in answer.stdout + answer.stderr for char in STEERING)
    for answer in (shown[0], shown[1], shown[2], shown[-1]):
        assert_fits(answer)
        assert "[bold]loud[/bold]" in "".join(answer.stdout.split())
    assert "\x1b" not in json.dumps(terminal.answer("history"))
