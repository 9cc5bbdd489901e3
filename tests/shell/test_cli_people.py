"""What a person says on the command line: yes to one plan, stop, continue."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ops_pipelines import cli
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.terminal import people_commands
from tests.shell.desk import ME, Desk, incident_with, record


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_approved_plan_is_shown_recorded_in_the_name_of_the_os_user_and_begun(desk: Desk) -> None:
    plan = desk.lose_gpu("gpu002")

    answer = desk.run("approve", plan, "--valid-minutes", "5", "--yes")
    (approval,) = desk.cluster.ledger.read_state(desk.clock.now()).approvals
    desk.act(plan)

    assert answer.exit_code == cli.ExitCode.OK
    assert "drain gpu002" in answer.stdout
    assert f"{plan} is approved by {ME} until 2026-11-21 07:05:06 UTC" in answer.stdout
    assert (approval.plan, approval.actor) == (plan, ME)
    assert {node.node for node in desk.cluster.scheduler.read_nodes() if node.is_drained} == {"gpu002"}


@pytest.mark.parametrize(
    ("typed", "exit_code", "approval_count"),
    [
        pytest.param("y\n", cli.ExitCode.OK, 1, id="yes"),
        pytest.param("n\n", cli.ExitCode.REFUSED, 0, id="no"),
        pytest.param("\n", cli.ExitCode.REFUSED, 0, id="an empty line means no"),
        pytest.param("", cli.ExitCode.REFUSED, 0, id="the end of input means no"),
    ],
)
def test_person_at_a_terminal_is_asked(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, typed: str, exit_code: cli.ExitCode, approval_count: int
) -> None:
    plan = desk.lose_gpu("gpu002")
    monkeypatch.setattr(people_commands, "_can_ask", lambda: True)

    answer = desk.run("approve", plan, typed=typed)

    assert answer.exit_code == exit_code
    assert "Approve exactly this for INC-0001?" in answer.stderr
    assert desk.approval_count() == approval_count


def test_script_without_yes_is_told_what_to_do_and_approves_nothing(desk: Desk) -> None:
    answer = desk.run("approve", desk.lose_gpu("gpu002"), typed="y\n")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert "repeat with --yes" in answer.stderr
    assert desk.approval_count() == 0


def let_its_owner_hold_the_job(desk: Desk) -> None:
    (job,) = desk.cluster.scheduler.read_jobs()
    desk.cluster.scheduler.hold(job.job)
    desk.clock.wait(5)


def carry_it_out(desk: Desk) -> None:
    (incident,) = json.loads(desk.run("incidents", "--json").stdout)["incidents"]
    plan = PlanId(incident["plan"]["plan"])
    desk.run("approve", plan, "--yes")
    desk.act(plan)
    desk.clock.wait(7200)


@pytest.mark.parametrize(
    ("meanwhile", "exit_code", "message"),
    [
        pytest.param(let_its_owner_hold_the_job, cli.ExitCode.REFUSED, "is outdated", id="the cluster has changed"),
        pytest.param(carry_it_out, cli.ExitCode.REFUSED, "no longer waits for approval", id="it is carried out"),
        pytest.param(Desk.silence_scheduler, cli.ExitCode.NO_ANSWER, "cannot be judged", id="nobody can tell"),
    ],
)
def test_plan_that_may_no_longer_hold_is_not_approved(
    desk: Desk, meanwhile: Callable[[Desk], None], exit_code: cli.ExitCode, message: str
) -> None:
    plan = desk.lose_gpu("gpu002")
    meanwhile(desk)

    answer = desk.run("approve", plan, "--yes")

    assert answer.exit_code == exit_code
    assert message in answer.stderr
    assert desk.approval_count() == 0


def test_unknown_plan_is_refused(desk: Desk) -> None:
    answer = desk.run("approve", "PLAN-000000000000", "--yes")

    assert answer.exit_code == cli.ExitCode.REFUSED
    assert "there is no plan PLAN-000000000000" in answer.stderr


def test_approval_in_observe_mode_is_refused_because_nothing_would_be_done(tmp_path: Path) -> None:
    desk = Desk(tmp_path, policy="mode: observe\ndrain_budget: {min_in_service_ratio: 0.5}")

    answer = desk.run("approve", desk.lose_gpu("gpu002"), "--yes")

    assert answer.exit_code == cli.ExitCode.REFUSED
    assert "mode: observe" in answer.stderr


def test_approval_while_paused_is_recorded_and_says_that_nothing_begins(desk: Desk) -> None:
    plan = desk.lose_gpu("gpu002")
    desk.run("pause", "--reason", "moving racks")

    answer = desk.run("approve", plan, "--yes")

    assert answer.exit_code == cli.ExitCode.OK
    assert "the autopilot is paused" in answer.stderr
    assert "no autopilot is running" in answer.stderr


@pytest.mark.parametrize("minutes", ["0", "1441", "soon"])
def test_approval_lasts_from_a_minute_to_a_day(desk: Desk, minutes: str) -> None:
    answer = desk.run("approve", desk.lose_gpu("gpu002"), "--yes", "--valid-minutes", minutes)

    assert answer.exit_code == cli.ExitCode.USAGE
    assert desk.approval_count() == 0


def test_resumed_autopilot_is_no_longer_paused(desk: Desk) -> None:
    desk.run("pause", "--reason", "moving racks")

    answer = desk.run("resume-autopilot")

    assert answer.exit_code == cli.ExitCode.OK
    assert f"paused by {ME}" in answer.stdout
    assert desk.cluster.ledger.read_state(desk.clock.now()).pause is None


def test_pause_without_a_reason_is_refused_and_pauses_nothing(desk: Desk) -> None:
    answer = desk.run("pause", "--reason", "  ")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert desk.cluster.ledger.read_state(desk.clock.now()).pause is None


def test_an_escalated_incident_is_closed_by_the_person_who_dealt_with_it(desk: Desk) -> None:
    given = incident_with("a human must look", desk, state=IncidentState.ESCALATED)
    record(given, desk)

    answer = desk.run("close", given.incident, "--reason", "reseated the GPU")

    assert answer.exit_code == cli.ExitCode.OK
    closed = desk.cluster.ledger.incident(given.incident)
    assert closed is not None
    assert (closed.state, closed.note) == (IncidentState.RESOLVED, f"closed by {ME}: reseated the GPU")


def test_an_incident_in_work_is_not_a_persons_to_close(desk: Desk) -> None:
    waiting = incident_with("it waits", desk, state=IncidentState.OPEN)
    record(waiting, desk)

    answer = desk.run("close", waiting.incident, "--reason", "because")

    assert answer.exit_code == cli.ExitCode.REFUSED
    assert f"{waiting.incident} is open" in answer.stderr
    assert desk.cluster.ledger.incident(waiting.incident) == waiting


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        pytest.param(("INC-9999", "--reason", "x"), cli.ExitCode.REFUSED, id="unknown incident"),
        pytest.param(("$(reboot)", "--reason", "x"), cli.ExitCode.REFUSED, id="hostile name"),
        pytest.param(("INC-0001", "--reason", " "), cli.ExitCode.USAGE, id="no reason"),
    ],
)
def test_what_cannot_be_closed_is_refused(desk: Desk, words: tuple[str, ...], exit_code: cli.ExitCode) -> None:
    assert desk.run("close", *words).exit_code == exit_code
