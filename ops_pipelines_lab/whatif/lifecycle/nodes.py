"""Nodes of the simulated cluster and what can happen to them. Values only; what happens when is `world`'s."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ops_pipelines_lab.whatif.lifecycle.jobs import Job

MODELS = ("a", "b")


class Event(Enum):
    JOB_END = 0
    FAILURE = 1
    """In the background: on this node, whatever it runs."""
    BAD_FAILURE = 2
    """By the new version."""
    HANG = 3
    REPAIRED = 4
    VISIT_END = 5
    CALL = 6
    """Whoever rolls out asked to be called."""


@dataclass(slots=True)
class Node:
    number: int
    model: int
    rack: int
    factor: float
    """Of its step time: above 1 it is slower than others."""
    is_measured: bool = False
    """Whether its runs are kept."""
    runs: list[float] = field(default_factory=list)
    """Seconds of a step, a value a run, since it is measured."""
    job: Job | None = None
    is_drained: bool = False
    is_out: bool = False
    """Failed, or in a visit."""
    is_updated: bool = False
    is_capped: bool = False
    """Takes no wide gangs: it soaks."""
    updated_at: float = 0.0
    worked_seconds: float = 0.0
    """Under jobs that are over, since it was updated."""
    visit: int = 0
    """How many there were: what was foreseen for another is forgotten."""
    epoch: int = 0
    """Grows with each change of version: what was foreseen for another is forgotten."""


class Watcher(Protocol):
    """Whoever rolls out, as the world tells them what happens."""

    def node_free(self, number: int) -> None:
        """A drained node has no job any more, or is repaired."""
        ...

    def visit_ended(self, number: int) -> None: ...

    def node_failed(self, number: int) -> None:
        """Something broke on a node that is not in a visit."""
        ...

    def called(self, mark: int) -> None:
        """The time of a `call_at` has come."""
        ...


class Nobody:
    """Watches a world without a rollout."""

    def node_free(self, number: int) -> None: ...

    def visit_ended(self, number: int) -> None: ...

    def node_failed(self, number: int) -> None: ...

    def called(self, mark: int) -> None: ...
