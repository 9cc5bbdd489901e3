"""Who is taken for dead: a process that provably is, and nobody else."""

import os
import socket
import subprocess
import sys

import pytest

from ops_pipelines.sensors.this_process import is_gone, this_process

_SAY_NAME = "from ops_pipelines.sensors.this_process import this_process; print(this_process(), flush=True); input()"


_WHOSE = "from ops_pipelines.sensors.this_process import is_replaced_by_its_caller; print(is_replaced_by_its_caller())"
_CHILD_OF = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_WHOSE!r}], check=True)"


@pytest.mark.parametrize("program", [_WHOSE, _CHILD_OF], ids=["code server", "run of a code server"])
@pytest.mark.parametrize(
    ("command", "is_replaced"),
    [
        # As Dagster's daemon starts its own, and as deploy/systemd does.
        ("api grpc --lazy-load-user-code --socket /s --heartbeat --heartbeat-timeout 20 -m ops_pipelines", True),
        ("code-server start --heartbeat --socket /s", True),
        ("api grpc --module-name ops_pipelines.definitions --host 127.0.0.1 --port 4266", False),
        ("--heartbeat", False),
    ],
)
def test_code_server_that_its_caller_replaces_is_known_by_its_command_line(
    program: str, command: str, is_replaced: bool
) -> None:
    done = subprocess.run([sys.executable, "-c", program, *command.split()], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(is_replaced)


@pytest.fixture
def other() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _SAY_NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def name_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_process_that_runs_is_not_gone_and_one_that_was_killed_is(other: subprocess.Popen[str]) -> None:
    name = name_of(other)
    is_gone_while_it_runs = is_gone(name)

    other.kill()
    other.communicate()

    assert not is_gone_while_it_runs
    assert is_gone(name)


def test_process_is_gone_when_another_one_has_its_id_by_now() -> None:
    began = this_process().rpartition(".")[2]

    assert not is_gone(this_process())
    assert is_gone(this_process().removesuffix(began) + str(int(began) - 1))


def test_nobody_is_taken_for_dead_from_another_host_another_boot_or_another_set_of_process_ids(
    other: subprocess.Popen[str],
) -> None:
    name = name_of(other)
    other.kill()
    other.communicate()
    host, pid, origin = name.split(":")
    boot, ids, began = origin.split(".")

    assert is_gone(name)
    assert not is_gone(f"{host}-2:{pid}:{origin}")
    assert not is_gone(f"{host}:{pid}:00000000.{ids}.{began}")
    assert not is_gone(f"{host}:{pid}:{boot}.1.{began}")


@pytest.mark.parametrize(
    "name", ["", "test", "run:by-hand", f"{socket.gethostname()}:4711", f"{socket.gethostname()}:x:a.b.1"]
)
def test_name_that_does_not_say_enough_is_of_somebody_who_may_live(name: str) -> None:
    assert not is_gone(name)


def test_name_begins_with_host_and_process_id_as_a_person_looks_for_them() -> None:
    assert this_process().startswith(f"{socket.gethostname()}:{os.getpid()}:")
