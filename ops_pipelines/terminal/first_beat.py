"""`status --wait`: what a start waits for, step by step, until the autopilot has looked for the first time.

Each step is seen from outside, in the files and on the ports that the processes share: none is asked to say it.
"""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from ops_pipelines.clock import Clock
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.health import WATCHER

if TYPE_CHECKING:
    from ops_pipelines.core.cluster import Cluster

_POLL_SECONDS = 0.5
_SAY_EVERY_SECONDS = 15.0
_ANSWER_SECONDS = 1.0


class NotBegun(RuntimeError):
    """The first look did not come within the limit; says which step is missing, and what to do."""


class FirstBeat:
    """A start that is being waited for."""

    def __init__(
        self,
        open_cluster: "Callable[[], Cluster]",
        *,
        code_server: tuple[str, int],
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """`code_server`: where deploy/workspace.yaml says that it listens. `say` is told each step."""
        self._open_cluster = open_cluster
        self._code_server = code_server
        self._clock = clock
        self._say = say
        self._began_at = clock.now()
        self._said_at = self._began_at

    def wait(self, *, limit_seconds: float) -> None:
        """Return once the autopilot has looked; raise NotBegun at the limit, PolicyError on a wrong configuration."""
        cluster: Cluster | None = None
        host, port = self._code_server
        steps: list[tuple[str, str, Callable[[Cluster], str | None]]] = [
            (
                f"the code server at {host}:{port}",
                "start it: ops-pipelines code-server; it loads for up to a minute. Its log says why it ended",
                self._code_server_answers,
            ),
            (
                "the daemon's first tick",
                "start dagster-daemon with the same DAGSTER_HOME and -w deploy/workspace.yaml; its log says more",
                self._daemon_ticks,
            ),
            (
                f"the first look ({WATCHER})",
                "the code server's log says what holds it up; `ops-pipelines check-config` asks each system",
                self._has_looked,
            ),
        ]
        while cluster is None:
            try:
                cluster = self._open_cluster()
            except LedgerError as problem:
                self._pause_or_give_up("the ledger", str(problem), limit_seconds=limit_seconds)
        rules = cluster.rules
        nodes, mode = len(rules.topology.places), rules.policy.mode.value
        self._told(f"configuration read: {cluster.name}, {nodes} nodes, mode {mode}")
        self._told("ledger opened")
        for what, remedy, seen in steps:
            while (how := seen(cluster)) is None:
                self._pause_or_give_up(what, remedy, limit_seconds=limit_seconds)
            self._told(how)

    def _code_server_answers(self, cluster: "Cluster") -> str | None:
        host, port = self._code_server
        try:
            with socket.create_connection((host, port), timeout=_ANSWER_SECONDS):
                return f"code server answers at {host}:{port}"
        except OSError:
            # One on another port shows by what it does.
            return "code server runs, on another port" if self._daemon_ticks(cluster) else None

    def _daemon_ticks(self, cluster: "Cluster") -> str | None:
        held = cluster.ledger.held_lease(cluster.clock.now())
        return None if held is None else f"daemon turns the sensors: {held.holder} holds the lease"

    def _has_looked(self, cluster: "Cluster") -> str | None:
        now = cluster.clock.now()
        beat = next((each for each in cluster.ledger.heartbeats() if each.name == WATCHER), None)
        return None if beat is None or beat.is_silent(now) else f"first look done: {beat.note}"

    def _told(self, what: str) -> None:
        self._said_at = self._clock.now()
        self._say(f"{self._seconds():4.0f} s  {what}")

    def _pause_or_give_up(self, what: str, remedy: str, *, limit_seconds: float) -> None:
        if self._seconds() >= limit_seconds:
            raise NotBegun(f"waited {limit_seconds:g} s in vain for {what}; {remedy}")
        if (self._clock.now() - self._said_at).total_seconds() >= _SAY_EVERY_SECONDS:
            self._told(f"waiting for {what}")
        self._clock.wait(_POLL_SECONDS)

    def _seconds(self) -> float:
        return (self._clock.now() - self._began_at).total_seconds()
