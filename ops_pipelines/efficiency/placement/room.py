"""How many nodes of each part of the cluster could take a job, and when there was room.

To look at every node whenever a job starts takes too long on a large cluster: a node is counted again only after it
changed. What could take a job is `standing.could_take`'s to say; this only counts it.

All nodes are swept once. What a node offered from when on is kept as steps; runs in which it had room are made for a
number of GPUs that somebody asks for. Moments are counted in microseconds here: they are compared by the million.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.efficiency.placement.standing import Absence, Machine, Occupancy, Stay, is_for

# -- how many nodes of each part of the cluster could take a job --


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Nodes that the same jobs may ask for."""

    example: Machine
    at_least: tuple[dict[str, int], ...]
    """By a number of GPUs: part -> how many of its nodes offer as many or more; parts with none are left out."""


@dataclass(slots=True, kw_only=True)
class _Counted:
    """How a node was counted last."""

    machine: Machine
    part: str
    kind: _Kind
    offered: int = 0
    is_broken: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_broken = self.offered != self.machine.gpu_count


class Room:
    """The parts of one sort, racks for instance, of a cluster that changes."""

    def __init__(self, occupancy: Occupancy, part_of: Callable[[Place], str]) -> None:
        self._occupancy = occupancy
        self._counted: dict[NodeName, _Counted] = {}
        self._broken: dict[str, int] = {}
        kinds: dict[tuple[frozenset[str] | None, str], _Kind] = {}
        most = max((each.gpu_count for each in occupancy.machines.values()), default=0)
        for node, machine in occupancy.machines.items():
            key = machine.partitions, machine.place.model
            if key not in kinds:
                kinds[key] = _Kind(example=machine, at_least=tuple({} for _ in range(most + 1)))
            self._counted[node] = counted = _Counted(machine=machine, part=part_of(machine.place), kind=kinds[key])
            _add(self._broken, counted.part, counted.is_broken)
        self._kinds = tuple(kinds.values())
        self._fitting: dict[tuple[str, str | None], tuple[_Kind, ...]] = {}
        self._touched: set[NodeName] = set(self._counted)

    def touch(self, nodes: Iterable[NodeName]) -> None:
        """Say that these nodes change now, or have changed; nodes that nobody knows are passed over."""
        self._touched.update(nodes)

    def counts(self, *, gpus: int, partition: str, model: str | None) -> Mapping[str, int]:
        """Return part -> its nodes that could give so many GPUs to a job; parts without one are left out.

        Not to be changed, nor kept beyond the next change.
        """
        self._catch_up()
        key = partition, model
        if key not in self._fitting:
            self._fitting[key] = tuple(
                kind for kind in self._kinds if is_for(kind.example, partition=partition, model=model)
            )
        found = [kind.at_least[gpus] for kind in self._fitting[key] if gpus < len(kind.at_least)]
        if len(found) == 1:
            return found[0]
        summed: dict[str, int] = {}
        for counts in found:
            for part, count in counts.items():
                _add(summed, part, count)
        return summed

    @property
    def broken(self) -> Mapping[str, int]:
        """Return part -> its nodes that do not offer all of their GPUs; parts without one are whole, and left out."""
        self._catch_up()
        return self._broken

    def _catch_up(self) -> None:
        for node in self._touched:
            counted = self._counted.get(node)
            if counted is None:
                continue
            was, now = counted.offered, self._occupancy.offered(node)
            if was == now:
                continue
            step = 1 if now > was else -1
            for gpus in range(min(was, now) + 1, max(was, now) + 1):
                _add(counted.kind.at_least[gpus], counted.part, step)
            is_broken = now != counted.machine.gpu_count
            _add(self._broken, counted.part, is_broken - counted.is_broken)
            counted.offered, counted.is_broken = now, is_broken
        self._touched.clear()


def _add(counts: dict[str, int], part: str, count: int) -> None:
    """Count a part up or down; one that comes to 0 is left out."""
    total = counts.get(part, 0) + count
    if total:
        counts[part] = total
    else:
        counts.pop(part, None)


# -- when nodes had room for how many GPUs --


_EVER, _FOREVER = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_EPOCH, _TICK = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeRun:
    """A node has room from `since` until `until`."""

    since: datetime
    until: datetime
    ended_by: str


@dataclass(frozen=True, slots=True)
class _Step:
    """What a node offers from `at` until its next step."""

    at: int
    offered: int
    absence: Absence | None


@dataclass(frozen=True, slots=True)
class _Run:
    """The same as `FreeRun`, in microseconds."""

    since: int
    until: int
    ended_by: str

    def is_open(self, at: int, *, length: int) -> bool:
        """Return whether there is room for so long from `at` on, which is not before it begins."""
        return self.until == _NEVER or self.until - at >= length


_Begin = tuple[int, int]
"""When a run begins, and the place of its node: the order in which runs are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The runs of all nodes that one sort of job may ask for."""

    nodes: Sequence[NodeName]
    runs: Sequence[Sequence[_Run]]
    """Of each node, by time."""
    begins: Sequence[tuple[int, int, _Run]]
    """Of all nodes, by begin and node."""


class FreeRuns:
    """When each node had how many GPUs free."""

    def __init__(self, machines: Iterable[Machine], stays: Iterable[Stay], absences: Iterable[Absence]) -> None:
        self._machines = {each.node: each for each in machines}
        self._stays: dict[NodeName, list[Stay]] = defaultdict(list)
        self._nodes: dict[str, dict[NodeName, None]] = defaultdict(dict)
        listed, away = list(stays), list(absences)
        for stay in listed:
            for node in stay.gpus:
                self._stays[node].append(stay)
                self._nodes[stay.job][node] = None
        self._absences: dict[NodeName, list[Absence]] = defaultdict(list)
        for absence in away:
            self._absences[absence.node].append(absence)
        self._steps = _steps(self._machines.values(), listed, away)
        self._runs: dict[tuple[NodeName, int], list[_Run]] = {}
        self._lines: dict[tuple[str, int], _Line] = {}

    def of(self, node: NodeName, *, gpus: int) -> tuple[FreeRun, ...]:
        """Return when the node had so many GPUs to offer; nothing of one that nobody knows."""
        if node not in self._machines:
            return ()
        return tuple(_shown(run) for run in self._runs_of(node, gpus))

    def fewest(self, node: NodeName, *, since: datetime, until: datetime) -> int:
        """Return the fewest GPUs that were free in an interval."""
        steps, first, end = self._steps[node], _ticks(since), _ticks(until)
        if first >= end:
            return 0
        place = bisect_right(steps, first, key=lambda step: step.at) - 1
        return min(
            (step.offered for step in steps[max(0, place) : bisect_right(steps, end - 1, key=lambda step: step.at)]),
            default=0,
        )

    def earliest(
        self, *, job: str, partition: str, gpus: int, count: int, seconds: float, since: datetime, latest: datetime
    ) -> tuple[datetime, FreeRun] | None:
        """Return the first moment in [since, latest] at which so many nodes had room for so long, as if `job` had
        never started, and the run that ends first among them. None: there was none.
        """
        first, last = _ticks(since), _ticks(latest)
        if first > last:
            return None
        length = timedelta(seconds=seconds) // _TICK
        line = self._line(partition, gpus)
        own = {node: self._without(job, node, gpus) for node in self._nodes.get(job, ()) if node in self._machines}
        open_runs: list[tuple[int, _Begin, _Run]] = []
        for place, (node, runs) in enumerate(zip(line.nodes, line.runs, strict=True)):
            held = own.get(node, runs)
            number = bisect_right(held, first, key=_since) - 1
            if number >= 0 and held[number].is_open(first, length=length):
                open_runs.append((held[number].until, (first, place), held[number]))
                if len(open_runs) == count:
                    return since, _shown(min(open_runs)[2])
        heapify(open_runs)
        for at, place, run in self._begins(line, own, after=first, upto=last):
            if not run.is_open(at, length=length):
                continue
            while open_runs and not open_runs[0][2].is_open(at, length=length):
                heappop(open_runs)
            heappush(open_runs, (run.until, (at, place), run))
            if len(open_runs) == count:
                return _moment(at), _shown(open_runs[0][2])
        return None

    @staticmethod
    def _begins(
        line: _Line, own: Mapping[NodeName, Sequence[_Run]], *, after: int, upto: int
    ) -> Sequence[tuple[int, int, _Run]]:
        """Return the runs that begin in (after, upto], in their order."""
        begins = line.begins[
            bisect_right(line.begins, after, key=lambda item: item[0]) : bisect_right(
                line.begins, upto, key=lambda item: item[0]
            )
        ]
        if not own:
            return begins
        places = {place: own[node] for place, node in enumerate(line.nodes) if node in own}
        kept = [item for item in begins if item[1] not in places]
        kept += [(run.since, place, run) for place, runs in places.items() for run in runs if after < run.since <= upto]
        return sorted(kept)

    def _line(self, partition: str, gpus: int) -> _Line:
        key = partition, gpus
        if key not in self._lines:
            nodes = [
                node
                for node, machine in self._machines.items()
                if machine.partitions is None or partition in machine.partitions
            ]
            runs = [self._runs_of(node, gpus) for node in nodes]
            begins = [(run.since, place, run) for place, held in enumerate(runs) for run in held]
            # A node begins no two runs at once: no run is ever compared.
            begins.sort()
            self._lines[key] = _Line(nodes=nodes, runs=runs, begins=begins)
        return self._lines[key]

    def _runs_of(self, node: NodeName, gpus: int) -> list[_Run]:
        key = node, gpus
        if key not in self._runs:
            self._runs[key] = _runs(self._steps[node], gpus)
        return self._runs[key]

    def _without(self, job: str, node: NodeName, gpus: int) -> list[_Run]:
        others = [stay for stay in self._stays[node] if stay.job != job]
        return _runs(_steps([self._machines[node]], others, self._absences.get(node, ()))[node], gpus)


def _steps(
    machines: Iterable[Machine], stays: Iterable[Stay], absences: Iterable[Absence]
) -> Mapping[NodeName, Sequence[_Step]]:
    occupancy = Occupancy(machines)
    found: dict[NodeName, list[_Step]] = {node: [] for node in occupancy.machines}
    for stretch in occupancy.stretches(stays, absences, start=_EVER, end=_FOREVER):
        at = _ticks(stretch.since)
        for node in stretch.changed:
            found[node].append(_Step(at, occupancy.offered(node), occupancy.absence(node)))
    return found


def _runs(steps: Iterable[_Step], gpus: int) -> list[_Run]:
    found: list[_Run] = []
    since: int | None = None
    for step in steps:
        if step.offered >= gpus:
            since = step.at if since is None else since
        elif since is not None:
            absence = step.absence
            ended_by = "a job" if absence is None else f"{absence.why.value} {absence.cause}".strip()
            found.append(_Run(since, step.at, ended_by))
            since = None
    if since is not None:
        found.append(_Run(since, _NEVER, ""))
    return found


def _since(run: _Run) -> int:
    return run.since


def _ticks(moment: datetime) -> int:
    return (moment - _EPOCH) // _TICK


def _moment(ticks: int) -> datetime:
    return _EPOCH + timedelta(microseconds=ticks)


def _shown(run: _Run) -> FreeRun:
    return FreeRun(since=_moment(run.since), until=_moment(run.until), ended_by=run.ended_by)


_NEVER = _ticks(_FOREVER)
