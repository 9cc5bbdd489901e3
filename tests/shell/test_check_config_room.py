"""`check-config` refuses `mode: auto` where the scheduler would start a second copy before we could hold the first."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines import cli
from ops_pipelines.core.observation import JobStatus, NodeStatus
from ops_pipelines.core.policy import ActionClass
from ops_pipelines.core.scheduler import SchedulerLimits
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines_lab.simulator.adapters import SimulatedScheduler
from tests.shell.desk import CLUSTER_YAML, Desk

LIMITS = SchedulerLimits(
    silence_limit=timedelta(seconds=300),
    ping_interval=timedelta(seconds=100),
    answer_limit=timedelta(seconds=10),
    is_every_down_node_returned=False,
    is_requeue_the_default=True,
    unguarded="",
)
TIGHT = replace(
    LIMITS, silence_limit=timedelta(seconds=90), ping_interval=timedelta(seconds=30), unguarded="there is none"
)


def desk_with(directory: Path, *, mode: str) -> Desk:
    taken = "accepted_risks: {no_start_guard: 'A. Operator, until it is installed'}\n"
    return Desk(directory, policy=f"mode: {mode}\ndurations: {{confirm_unreachable_after_seconds: 20}}\n{taken}")


def set_limits(desk: Desk, limits: SchedulerLimits) -> None:
    class SetScheduler(SimulatedScheduler):
        def read_limits(self) -> SchedulerLimits:
            return limits

    desk.cluster = replace(desk.cluster, scheduler=SetScheduler(desk.twin))


class ForgetfulScheduler(SimulatedScheduler):
    """Answers all but the question for its limits."""

    def read_limits(self) -> SchedulerLimits:
        raise SourceUnavailable("scontrol show config did not answer")


class SilentScheduler(ForgetfulScheduler):
    """Answers nothing."""

    def read_nodes(self) -> tuple[NodeStatus, ...]:
        raise SourceUnavailable("slurmctld did not answer")

    def read_jobs(self) -> tuple[JobStatus, ...]:
        raise SourceUnavailable("slurmctld did not answer")


def test_auto_is_accepted_where_there_is_room(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, mode="auto")
    set_limits(desk, LIMITS)

    answer = desk.run("check-config")

    assert (answer.exit_code, answer.stderr) == (cli.ExitCode.OK, "")


def test_auto_is_refused_as_a_fault_of_the_configuration_where_there_is_none(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, mode="auto")
    set_limits(desk, TIGHT)

    answer = desk.run("check-config")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert answer.stderr.startswith("mode: auto is refused: at SlurmdTimeout (90 s)")
    assert answer.stdout.count("answers: ") == 5


def test_auto_without_the_start_guard_is_refused_unless_the_risk_is_taken_by_name(tmp_path: Path) -> None:
    desk = Desk(tmp_path, policy="mode: auto\ndurations: {confirm_unreachable_after_seconds: 20}\n")
    set_limits(desk, replace(LIMITS, unguarded="PrologSlurmctld is (null), not the start guard"))

    answer = desk.run("check-config")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert answer.stderr.startswith("mode: auto is refused: restarts are not guarded: PrologSlurmctld is (null)")
    assert "accepted_risks: {no_start_guard: who, and why}" in answer.stderr


def test_with_the_start_guard_little_room_is_a_warning(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, mode="auto")
    set_limits(desk, replace(TIGHT, unguarded=""))

    answer = desk.run("check-config")

    assert answer.exit_code == cli.ExitCode.OK
    assert answer.stderr.startswith("warning: the start guard will have to hold jobs: at SlurmdTimeout (90 s)")


@pytest.mark.parametrize("mode", ["observe", "approve"])
def test_other_modes_are_warned_and_can_be_used(tmp_path: Path, mode: str) -> None:
    desk = desk_with(tmp_path, mode=mode)
    set_limits(desk, TIGHT)

    answer = desk.run("check-config")

    assert answer.exit_code == cli.ExitCode.OK
    assert answer.stderr.startswith("warning: mode: auto would be refused")


def test_caution_is_a_warning_and_no_refusal(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, mode="auto")
    set_limits(desk, replace(LIMITS, is_every_down_node_returned=True))

    answer = desk.run("check-config")

    assert answer.exit_code == cli.ExitCode.OK
    assert answer.stderr.startswith("warning: ")
    assert "ReturnToService=2" in answer.stderr


def test_refusal_and_a_system_without_an_answer_are_both_named(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, mode="auto")

    class Both(SilentScheduler):
        def read_limits(self) -> SchedulerLimits:
            return TIGHT

    desk.cluster = replace(desk.cluster, scheduler=Both(desk.twin))

    answer = desk.run("check-config")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert "mode: auto is refused" in answer.stderr
    assert "scheduler: slurmctld did not answer" in answer.stderr


@pytest.mark.parametrize("scheduler", [ForgetfulScheduler, SilentScheduler])
def test_auto_that_could_not_be_checked_is_not_called_well(tmp_path: Path, scheduler: type[SimulatedScheduler]) -> None:
    desk = desk_with(tmp_path, mode="auto")
    desk.cluster = replace(desk.cluster, scheduler=scheduler(desk.twin))

    answer = desk.run("check-config")

    assert answer.exit_code == cli.ExitCode.NO_ANSWER
    assert "not checked: whether the scheduler leaves room for mode: auto: scontrol show config" in answer.stderr


def test_other_mode_that_could_not_be_checked_is_warned(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, mode="observe")
    desk.cluster = replace(desk.cluster, scheduler=ForgetfulScheduler(desk.twin))

    answer = desk.run("check-config")

    assert answer.exit_code == cli.ExitCode.OK
    assert answer.stderr.startswith("warning: not checked: whether the scheduler leaves room")


@pytest.mark.parametrize(("mode", "warning_count"), [("auto", 1), ("observe", 0)])
def test_offline_check_of_auto_says_what_it_left_out(tmp_path: Path, mode: str, warning_count: int) -> None:
    desk = desk_with(tmp_path, mode=mode)
    set_limits(desk, TIGHT)

    answer = desk.run("check-config", "--offline")

    assert answer.exit_code == cli.ExitCode.OK
    assert answer.stderr.count("warning: not checked") == warning_count


COMMANDS = """{kind: commands, inspect: [inspect, '{node}'], reset_gpu: [reset, '{node}', '{gpu}'],
  reboot: [reboot, '{node}'], power_off: [power, '{node}'], power_on: [power, '{node}'],
  power_state: [power, '{node}']}"""


def desk_without_tests(directory: Path, *, mode: str, says: str = "") -> Desk:
    fleet = CLUSTER_YAML.replace("fleet: {kind: simulator}", f"fleet: {COMMANDS}")
    return Desk(directory, policy=f"mode: {mode}\n{says}", cluster_yaml=fleet)


@pytest.mark.parametrize("words", [("--offline",), ()])
def test_auto_is_refused_before_it_begins_where_no_node_could_be_proven_well(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    answer = desk_without_tests(tmp_path, mode="auto").run("check-config", *words)

    assert "mode: auto is refused: cluster.yaml names no start_check and read_check under fleet" in answer.stderr
    assert answer.stderr.startswith("warning: " if words else "mode: auto is refused")
    assert answer.exit_code == (cli.ExitCode.OK if words else cli.ExitCode.USAGE)  # Without it, nothing would watch.


def test_who_says_that_no_tests_are_meant_may_begin(tmp_path: Path) -> None:
    answer = desk_without_tests(tmp_path, mode="auto", says="consents: {check: forbid}\n").run(
        "check-config", "--offline"
    )

    assert "start_check" not in answer.stderr


def test_rules_of_a_running_cluster_hold_no_repair_that_could_not_be_proven(tmp_path: Path) -> None:
    rules = desk_without_tests(tmp_path, mode="approve").cluster.rules

    assert set(rules.policy.lacking) == {ActionClass.RESET_GPU, ActionClass.REBOOT}
    assert rules.policy.ladder.max_power_cycles_count == 0
