"""Nodes, who held them, and free GPUs of every node at every moment.

Values only. How rows of the lake become these is `efficiency.placement`.

At one moment ends come before absences, and these before starts, so that what one job gives back another may get.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.core.proposal import TeamName

# -- what placement is judged by --


_SLACK = 1e-6
"""GPUs: accounting shares them out among nodes by division."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node that may be given to jobs."""

    node: NodeName
    place: Place
    gpu_count: int
    cpu_count: int | None = None
    """None: nobody reports."""
    memory_bytes: float | None = None
    partitions: frozenset[str] | None = None
    """None: nobody reports; empty: it is in none, so that no job can ask for it."""

    def __post_init__(self) -> None:
        if self.gpu_count < 0:
            raise ValueError(f"{self.node} has {self.gpu_count} GPUs; expected 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """One attempt of a job, and what it held of which node. Name and user are the user's text."""

    job: str
    name: str
    user: str
    team: TeamName
    partition: str
    began_at: datetime
    ended_at: datetime | None
    """None: it runs still, as far as is known."""
    gpus: Mapping[NodeName, float]
    """Node -> GPUs that it held there; nodes that cluster.yaml does not name are not among them."""
    cpus_per_node: float | None = None
    memory_bytes_per_node: float | None = None
    time_limit_seconds: float | None = None
    """None: no limit, or nobody reports."""

    @property
    def gpu_count(self) -> float:
        return sum(self.gpus.values())

    @property
    def key(self) -> tuple[str, datetime]:
        return self.job, self.began_at


class Away(Enum):
    """Why a node takes no new job. Of several that hold, the first here counts."""

    DOWN = "down"
    DRAINED = "drained"
    RESERVED = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A node takes no new job for a while; anyone who runs there continues."""

    node: NodeName
    why: Away
    since: datetime
    until: datetime | None
    """None: it lasts."""
    cause: str = ""
    """As the source says it: the reservation's name, the drain's reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One job waited, or waits, for its start. Name and user are the user's text."""

    job: str
    name: str
    user: str
    team: TeamName
    partition: str
    gpu_count: float
    node_count: int
    since: datetime
    """When it could first have started."""
    until: datetime | None
    """When it started; None: it waits still."""
    reason: str = ""
    """As the scheduler last stated it; empty: not reported."""
    is_for_room: bool = True
    """Whether it waits for GPUs, and not for a limit of its own, another job or its hour."""
    time_limit_seconds: float | None = None

    def seconds(self, now: datetime) -> float:
        """Return how long it waited, up to `now` if it waits still."""
        return max(0.0, ((self.until or now) - self.since).total_seconds())


def whole(gpus: float) -> int:
    """Return how many whole GPUs that is."""
    return int(gpus + _SLACK)


def needed(gpus: float) -> int:
    """Return how many whole GPUs hold that much: at least one."""
    return max(1, -int(-(gpus - _SLACK) // 1))


# -- free GPUs of every node at every moment, from who held what --


_RANKS = {why: rank for rank, why in enumerate(Away)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What changes at a moment. The cluster is shown as it was just before."""

    at: datetime
    started: Stay | None
    """None: a job ended, or a node went away or came back."""
    nodes: frozenset[NodeName]
    """The nodes that may differ afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An interval of time in which nothing changed."""

    since: datetime
    until: datetime
    changed: frozenset[NodeName]
    """The nodes that may differ from the interval before; in the first one all."""


class Occupancy:
    """The cluster at one moment. It changes while `play` or `stretches` continues."""

    def __init__(self, machines: Iterable[Machine]) -> None:
        self.machines: Mapping[NodeName, Machine] = {each.node: each for each in machines}
        self.stays: dict[NodeName, dict[tuple[str, datetime], Stay]] = defaultdict(dict)
        self.held_by_team: dict[TeamName, float] = defaultdict(float)
        self._held: dict[NodeName, float] = defaultdict(float)
        self._absences: dict[NodeName, list[Absence]] = defaultdict(list)

    def free(self, node: NodeName) -> int:
        """Return the GPUs that nobody holds, also where the node takes no jobs."""
        machine = self.machines.get(node)
        return 0 if machine is None else max(0, whole(machine.gpu_count - self._held[node]))

    def absence(self, node: NodeName) -> Absence | None:
        """Return why the node takes no new job; None if it does."""
        return min(self._absences[node], key=lambda each: (_RANKS[each.why], each.since), default=None)

    def offered(self, node: NodeName) -> int:
        """Return the GPUs that a new job could get there."""
        return 0 if self._absences.get(node) else self.free(node)

    def play(
        self, stays: Iterable[Stay], absences: Iterable[Absence] = (), *, until: datetime | None = None
    ) -> Iterator[Change]:
        """Yield each change up to `until`, which it does not hold; the cluster is as before it while it is looked at.

        Afterwards it is as just before `until`. Who holds no node that is known changes nothing here.
        """
        events: list[tuple[datetime, int, str, int, Stay | Absence]] = []
        for number, stay in enumerate(stays):
            events.append((stay.began_at, 2, stay.job, number, stay))
            if stay.ended_at is not None:
                events.append((stay.ended_at, 0, stay.job, number, stay))
        for number, absence in enumerate(absences):
            events.append((absence.since, 1, absence.node, number, absence))
            if absence.until is not None:
                events.append((absence.until, 0, absence.node, number, absence))
        begun: set[int] = set()
        for at, rank, _, _, what in sorted(events, key=lambda event: event[:4]):
            if until is not None and at >= until:
                return
            nodes = frozenset(what.gpus) if isinstance(what, Stay) else frozenset({what.node})
            if rank == 0:
                # What ends at its own beginning has never been.
                if id(what) in begun:
                    yield Change(at=at, started=None, nodes=nodes)
                    self._end(what)
            elif not _is_empty(what):
                yield Change(at=at, started=what if isinstance(what, Stay) else None, nodes=nodes)
                begun.add(id(what))
                self._begin(what)

    def stretches(
        self, stays: Iterable[Stay], absences: Iterable[Absence] = (), *, start: datetime, end: datetime
    ) -> Iterator[Interval]:
        """Yield the intervals of [start, end) in which nothing changed; the cluster is as in the one just yielded."""
        changed: set[NodeName] = set(self.machines)
        now = start
        for change in self.play(stays, absences, until=end):
            if change.at > now:
                yield Interval(since=now, until=change.at, changed=frozenset(changed))
                changed, now = set(), change.at
            changed |= change.nodes & self.machines.keys()
        if end > now:
            yield Interval(since=now, until=end, changed=frozenset(changed))

    def _begin(self, what: Stay | Absence) -> None:
        if isinstance(what, Absence):
            self._absences[what.node].append(what)
            return
        self.held_by_team[what.team] += what.gpu_count
        for node, gpus in what.gpus.items():
            self._held[node] += gpus
            self.stays[node][what.key] = what

    def _end(self, what: Stay | Absence) -> None:
        if isinstance(what, Absence):
            self._absences[what.node].remove(what)
            return
        self.held_by_team[what.team] -= what.gpu_count
        for node, gpus in what.gpus.items():
            self._held[node] -= gpus
            self.stays[node].pop(what.key, None)


def stands_at(
    moment: datetime, machines: Iterable[Machine], *, stays: Iterable[Stay], absences: Iterable[Absence] = ()
) -> Occupancy:
    """Return the cluster as it stood just before `moment`."""
    found = Occupancy(machines)
    for _ in found.play(stays, absences, until=moment):
        pass
    return found


def is_for(machine: Machine, *, partition: str, model: str | None) -> bool:
    """Return whether a job of this partition may ask for the node. `model`: only nodes of that model; None: any.

    A node whose partitions nobody reports is in all of them.
    """
    is_in = machine.partitions is None or partition in machine.partitions
    return is_in and (model is None or machine.place.model == model)


def could_take(occupancy: Occupancy, node: NodeName, *, gpus: int, partition: str, model: str | None) -> bool:
    """Return whether the node could give so many GPUs to a job of this partition now. Which nodes: `is_for`."""
    return is_for(occupancy.machines[node], partition=partition, model=model) and occupancy.offered(node) >= gpus


def _is_empty(what: Stay | Absence) -> bool:
    begin, end = (what.began_at, what.ended_at) if isinstance(what, Stay) else (what.since, what.until)
    return end is not None and end <= begin
