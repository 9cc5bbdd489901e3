"""What the processes say of themselves: the disk that they use, the first heartbeat, metrics."""

import os
import socket
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.health import WATCHER, VitalSigns
from ops_pipelines.core.notes import NoteState
from ops_pipelines.core.policy import Mode, PolicyError
from ops_pipelines.remediate.oversight import read_vital_signs
from ops_pipelines.resources.config.cluster_config import ClusterConfig
from ops_pipelines.resources.config.in_force import read_cluster_in_force

# -- what the program's files take on this machine's disks, by part --


_PART_OF: Mapping[str, str] = {
    "lake": "lake",
    "evidence": "evidence",
    "reports": "pages",
    "chargeback": "pages",
    "capacity": "pages",
    "log": "logs",
}
"""By the first name below the state directory or Dagster's home."""
_BLOCK_BYTES = 512
_PATIENCE_SECONDS = 1.0


def disk_use_of(cluster_file: Path, *, state: Path | None) -> Mapping[str, int]:
    """Return what each part takes; nothing where no configuration says where it lies."""
    try:
        config = read_cluster_in_force(cluster_file, now=SystemClock().now(), named=state).content
    except PolicyError:
        return {}
    return read_disk_use(config, dagster_home=os.environ.get("DAGSTER_HOME"))


def read_disk_use(config: ClusterConfig, *, dagster_home: str | None) -> Mapping[str, int]:
    """Return the bytes of blocks that each part takes. `snapshots` are within `ledger`, and counted in both."""
    state = config.state_directory
    homes = [Path(dagster_home)] if dagster_home else []
    found = Counter[str]()
    for name, size in _sizes(state, without=homes):
        found["ledger" if name.startswith("ledger.sqlite") else _PART_OF.get(name, "other")] += size
    lake = Path(config.lake.url)
    if "://" not in config.lake.url and not lake.is_relative_to(state):
        found["lake"] += sum(size for _, size in _sizes(lake, without=[]))
    for home in homes:
        for name, size in _sizes(home, without=[]):
            found["logs" if _PART_OF.get(name) == "logs" else "dagster"] += size
    if "ledger" in found:
        found["snapshots"] = _snapshots(state / "ledger.sqlite")
    return dict(sorted(found.items()))


def _sizes(root: Path, *, without: list[Path]) -> Iterator[tuple[str, int]]:
    """Yield of each file the first name below `root`, and what it takes. What goes away meanwhile is passed over."""
    left_out = {str(path.resolve()) for path in without}
    waiting = [(str(root.resolve()), "")]
    while waiting:
        directory, top = waiting.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    name = top or entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if entry.path in left_out:
                            continue
                        waiting.append((entry.path, name))
                    yield name, entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
        except OSError:
            continue


def _snapshots(ledger: Path) -> int:
    """Return what decisions were made from, and the rules of then: compressed, each once."""
    try:
        with closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True, timeout=_PATIENCE_SECONDS)) as connection:
            (size,) = connection.execute("SELECT coalesce(sum(length(compressed)), 0) FROM documents").fetchone()
            return int(size)
    except sqlite3.Error:
        return 0


# -- `status --wait` --


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
        """`code_server`: where deploy/workspace.yaml says that it listens. `say` is reported each step."""
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


# -- the program's own health as Prometheus reads it --


class VitalSignsCollector(Collector):
    """Computes every metric from the ledger at the moment of the scrape."""

    def __init__(self, open_cluster: Callable[[], Cluster]) -> None:
        self._open_cluster = open_cluster

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return what the ledger says; where it cannot be read only that, so that no old number passes for a new."""
        try:
            cluster = self._open_cluster()
            signs = read_vital_signs(cluster)
            notes = {} if cluster.outbox is None else cluster.outbox.count_notes()
        except (LedgerError, PolicyError):
            yield _gauge("ledger_up", "Whether the ledger could be read for this scrape.", 0)
            return
        yield _gauge("ledger_up", "Whether the ledger could be read for this scrape.", 1)
        yield from _of_the_processes(signs)
        yield from _of_the_work(signs)
        if notes:
            yield _of_the_outbox(notes)


def _of_the_outbox(notes: Mapping[NoteState, int]) -> GaugeMetricFamily:
    messages = _gauge("messages", "Notes of the outbox: waiting, sent within 90 days, undeliverable.", labels=["state"])
    for state in NoteState:
        messages.add_metric([state.value], notes.get(state, 0))
    return messages


def _of_the_processes(signs: VitalSigns) -> Iterator[GaugeMetricFamily]:
    beats = _gauge("heartbeat_timestamp_seconds", "When each process that watches last ended a tick.", labels=["name"])
    for beat in signs.heartbeats:
        beats.add_metric([beat.name], beat.at.timestamp())
    yield beats
    sources = _gauge("source_failing", "Whether a source did not answer when it was last asked.", labels=["source"])
    for source, problem in signs.source_problems().items():
        sources.add_metric([source], problem is not None)
    yield sources
    yield _gauge("lease_held", "Whether any process has the right to act.", signs.is_lease_held)
    yield _gauge(
        "bystanders",
        "Processes that watch beside the one that may act: stop the second code server or daemon.",
        len(signs.bystanders),
    )
    yield _gauge("paused", "Whether a person has stopped new actions.", signs.pause is not None)
    modes = _gauge("mode", "The mode that the running autopilot works with.", labels=["mode"])
    for mode in Mode:
        modes.add_metric([mode.value], mode is signs.working_mode)
    yield modes


def _of_the_work(signs: VitalSigns) -> Iterator[GaugeMetricFamily]:
    yield _gauge("ledger_head", "Lines of the ledger.", signs.head_seq)
    if signs.newest_evidence_at is not None:
        newest = signs.newest_evidence_at.timestamp()
        yield _gauge("newest_evidence_timestamp_seconds", "When the evidence taken in last was observed.", newest)
    yield _gauge("undecided_evidence", "Observations taken in and not decided on yet.", signs.undecided_evidence_count)
    incidents = _gauge("open_incidents", "Incidents that are not final.", labels=["state", "response"])
    for (state, response), count in signs.open_incidents.items():
        incidents.add_metric([state.value, response.name.lower()], count)
    yield incidents
    yield _gauge("actions_without_outcome", "Actions started, without an outcome yet.", signs.unfinished_action_count)
    begun_at = signs.oldest_unfinished_begun_at
    age_seconds = 0.0 if begun_at is None else (signs.taken_at - begun_at).total_seconds()
    yield _gauge(
        "oldest_action_without_outcome_seconds", "How long the oldest of them is under way; 0 without one.", age_seconds
    )


def _gauge(name: str, explanation: str, value: float | None = None, *, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"ops_pipelines_{name}", explanation, value=value, labels=labels or None)
