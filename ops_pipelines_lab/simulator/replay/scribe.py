"""Writes the log lines of a recorded day: prefixes as sites have them, wrong clocks, lines lost, late or doubled.

What a line says is `texts`; why it is written belongs to whoever calls. A node keeps one dialect all day.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from numpy.random import Generator

from ops_pipelines.core.sources import LogLine
from ops_pipelines_lab.simulator.replay.fleet import Fleet
from ops_pipelines_lab.simulator.replay.jobs import Attempt

_DIALECTS = ("rfc3339", "syslog", "dated_dmesg", "rfc5424", "plain")
_DIALECT_SHARES = (0.6, 0.2, 0.07, 0.08, 0.05)


@dataclass(kw_only=True)
class Scribe:
    """All lines of one day."""

    rng: Generator
    fleet: Fleet
    began_at: datetime
    seconds: float
    written: list[tuple[float, str | None, datetime, str, str | None]] = field(default_factory=list)
    """(when it arrived, node, when it says it was written, text, job)."""
    dialects: list[str] = field(init=False)
    boots: list[float] = field(init=False)
    silent: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    """Node -> stretches in which nothing of it arrives."""

    def __post_init__(self) -> None:
        drawn = self.rng.choice(len(_DIALECTS), size=self.fleet.node_count, p=_DIALECT_SHARES)
        self.dialects = [_DIALECTS[index] for index in drawn]
        self.boots = [-float(before) for before in self.fleet.booted_before_seconds]

    def at(self, seconds: float) -> datetime:
        return self.began_at + timedelta(seconds=seconds)

    def kernel(self, node: int, at: float, message: str, *, tag: str = "kernel") -> None:
        """Write one line of a node's kernel (or of a daemon that writes to its log)."""
        if not self._arrives(node, at):
            return
        name = self.fleet.names[node]
        said = self.at(at + float(self.fleet.skew_seconds[node]))
        up = max(at - self.boots[node], 0.0)
        clock = f"[{up:12.6f}] " if tag == "kernel" else ""
        dialect = self.dialects[node]
        if dialect == "syslog":
            text = f"{said:%b} {said.day:2d} {said:%H:%M:%S} {name} {tag}: {clock}{message}"
        elif dialect == "dated_dmesg" and tag == "kernel":
            text = f"[{said:%a %b} {said.day:2d} {said:%H:%M:%S %Y}] {message}"
        elif dialect == "rfc5424" and tag == "kernel":
            text = f"<4>1 {said.isoformat(timespec='microseconds')} {name} kernel - - - {clock}{message}"
        elif dialect == "plain" and tag == "kernel":
            text = f"{clock}{message}"
        else:
            text = f"{said.isoformat(timespec='microseconds')} {name} {tag}: {clock}{message}"
        self.written.append((at, name, said, text, None))

    def kernel_event(self, node: int, at: float, message: str, *, lost: float = 0.0) -> bool:
        """Write a line that matters as the field has it: sometimes lost, sometimes late, sometimes doubled.

        Return whether it was written at least once. Lines of one event are up to seconds apart from what the sensors
        show; one in fifteen comes with a delay of up to 40 s, one in eight is repeated within a minute.
        """
        if self.rng.random() < lost:
            return False
        delay = float(self.rng.uniform(5, 40)) if self.rng.random() < 0.07 else float(self.rng.exponential(0.6))
        self.kernel(node, at + delay, message)
        if self.rng.random() < 0.12:
            for _ in range(int(self.rng.integers(1, 4))):
                self.kernel(node, at + delay + float(self.rng.uniform(0.01, 50)), message)
        return True

    def job(self, attempt: Attempt, at: float, text: str, *, rank: int = 0) -> None:
        """Write one line of a job, from the node of `rank`."""
        node = attempt.nodes[min(rank // 8, len(attempt.nodes) - 1)]
        if not self._arrives(node, at):
            return
        said = self.at(at + float(self.fleet.skew_seconds[node]))
        self.written.append((at, self.fleet.names[node], said, text, attempt.job))

    def lines(self) -> tuple[tuple[LogLine, ...], tuple[datetime, ...]]:
        """Return everything that arrived within the day, by time of arrival, and when each line arrived."""
        # What was written ahead of time and falls into a silence never arrived.
        dark: dict[str, list[tuple[float, float]]] = {
            self.fleet.names[node]: stretches for node, stretches in self.silent.items()
        }
        ordered = sorted(
            (
                each
                for each in self.written
                if not any(began <= each[0] < ended for began, ended in dark.get(each[1] or "", ()))
            ),
            key=lambda each: each[0],
        )
        within = [each for each in ordered if 0 <= each[0] < self.seconds]
        return tuple(
            LogLine(node=node, written_at=said, position=f"{position:08d}", text=text, job=job)
            for position, (_, node, said, text, job) in enumerate(within)
        ), tuple(self.at(each[0]) for each in within)

    def _arrives(self, node: int, at: float) -> bool:
        return not any(began <= at < ended for began, ended in self.silent.get(node, ()))
