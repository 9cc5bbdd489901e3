"""`status --wait`: a start is reported step by step, and the step that does not come is named."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ops_pipelines import cli
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.health import WATCHER
from ops_pipelines.remediate.judgement import TTL
from ops_pipelines.remediate.oversight import beat
from ops_pipelines.terminal.vital_signs import FirstBeat, NotBegun
from tests.shell.desk import Desk
from tests.simulator.fake_clock import FakeClock


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@contextmanager
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def nobody_listens() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def tick(cluster: Cluster) -> None:
    now = cluster.clock.now()
    cluster.ledger.take_lease(holder="code-1", ttl=TTL, is_gone=lambda _: False, now=now)


class SlowStart(FakeClock):
    """Takes the next step of a start whenever somebody has waited."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self._steps = list(steps)

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        if self._steps:
            self._steps.pop(0)()


def start(desk: Desk, clock: FakeClock, port: int) -> tuple[FirstBeat, list[str]]:
    said: list[str] = []
    return FirstBeat(lambda: desk.cluster, code_server=("127.0.0.1", port), clock=clock, say=said.append), said


def test_each_step_is_told_as_it_comes(desk: Desk) -> None:
    clock = SlowStart(
        lambda: tick(desk.cluster),
        lambda: beat(desk.cluster, name=WATCHER, holder="code-1", note="nothing new", answers={}),
    )
    with listening() as port:
        begun, said = start(desk, clock, port)

        begun.wait(limit_seconds=10)

    assert [line.partition("  ")[2] for line in (each.strip() for each in said)] == [
        "configuration read: test, 4 nodes, mode approve",
        "ledger opened",
        f"code server answers at 127.0.0.1:{port}",
        "daemon turns the sensors: code-1 holds the lease",
        "first look done: nothing new",
    ]


def test_code_server_that_does_not_come_is_named_with_what_to_do(desk: Desk) -> None:
    begun, said = start(desk, FakeClock(), nobody_listens())

    with pytest.raises(NotBegun, match=r"waited 40 s in vain for the code server at 127\.0\.0\.1:\d+; start it"):
        begun.wait(limit_seconds=40)

    assert sum("waiting for the code server" in line for line in said) == 2


def test_daemon_that_does_not_turn_is_named(desk: Desk) -> None:
    with listening() as port, pytest.raises(NotBegun, match=r"the daemon's first tick; start dagster-daemon"):
        start(desk, FakeClock(), port)[0].wait(limit_seconds=3)


def test_code_server_on_another_port_shows_by_its_lease(desk: Desk) -> None:
    tick(desk.cluster)
    begun, said = start(desk, FakeClock(), nobody_listens())

    with pytest.raises(NotBegun, match="the first look"):
        begun.wait(limit_seconds=3)

    assert any("code server runs, on another port" in line for line in said)


def test_ledger_that_is_not_there_yet_is_waited_for(desk: Desk) -> None:
    answers = [LedgerError("the server does not answer")]

    def open_cluster() -> Cluster:
        if answers:
            raise answers.pop()
        return desk.cluster

    said: list[str] = []
    begun = FirstBeat(open_cluster, code_server=("127.0.0.1", nobody_listens()), clock=FakeClock(), say=said.append)

    with pytest.raises(NotBegun):
        begun.wait(limit_seconds=3)

    assert "configuration read" in said[0]


def test_status_that_waits_in_vain_ends_with_3_and_prints_nothing(desk: Desk) -> None:
    answer = desk.run("status", "--wait", "0", "--code-server", f"127.0.0.1:{nobody_listens()}")

    assert (answer.exit_code, answer.stdout) == (cli.ExitCode.NO_ANSWER, "")
    assert "configuration read: test" in answer.stderr
    assert "in vain for the code server" in answer.stderr


def test_status_shows_how_it_stands_once_the_first_look_is_done(desk: Desk) -> None:
    tick(desk.cluster)
    beat(desk.cluster, name=WATCHER, holder="code-1", note="nothing new", answers={})

    answer = desk.run("status", "--wait", "5", "--code-server", f"127.0.0.1:{nobody_listens()}")

    assert answer.exit_code == cli.ExitCode.OK
    assert "first look done" in answer.stderr
    assert answer.stdout.startswith("observing: ")


@pytest.mark.parametrize("word", ["4266", "host:", ":4266x"])
def test_address_of_no_code_server_is_refused(desk: Desk, word: str) -> None:
    assert desk.run("status", "--wait", "1", "--code-server", word).exit_code == cli.ExitCode.USAGE
