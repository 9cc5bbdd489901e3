"""The twin: a directory that holds a scenario and a journal, and the world folded from them.

Any number of processes may attach to one directory. The world is never stored: each process folds it from seed,
scenario, journal and time, and continues from where it was. Commands are judged under the journal's lock, against the
world at that instant. A refused command is journalled as refused; one that did not reach its node is not journalled.

States that no cluster can be in are looked for: finding one means that the simulator is wrong, never the program under
test. The port `SchedulerSettings` is here too: what the twin's scheduler does, in the words that Slurm has for it.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from secrets import token_hex

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import HAS_PROCESSES, JobState
from ops_pipelines.core.scheduler import SettingsRead
from ops_pipelines.core.sources import SourceError, SourceRefused
from ops_pipelines_lab.simulator.commands import judge
from ops_pipelines_lab.simulator.course import Course
from ops_pipelines_lab.simulator.hardware import Node, slot_address
from ops_pipelines_lab.simulator.jobs import Job
from ops_pipelines_lab.simulator.journal import (
    CheckOrder,
    Entry,
    EntryKind,
    FaultKind,
    InstallCommand,
    Journal,
    QuotaOrder,
)
from ops_pipelines_lab.simulator.plain import from_plain, to_plain
from ops_pipelines_lab.simulator.scenario import JobSpec, Scenario
from ops_pipelines_lab.simulator.world import World


class ImpossibleStateError(AssertionError):
    """The simulated cluster is in a state that cannot exist. The message lists every contradiction."""


def check_consistency(world: World) -> None:
    """Return if the world could exist; raise ImpossibleStateError with all contradictions otherwise."""
    found = [*_in_allocations(world), *_in_reservations(world)]
    for job in world.controller.jobs.values():
        found.extend(_in_job(world, job))
    for node in world.hardware.nodes.values():
        found.extend(_in_node(world, node))
    if found:
        raise ImpossibleStateError(f"at {world.now.isoformat()}: " + "; ".join(found))


def _in_allocations(world: World) -> list[str]:
    allocated = Counter(
        (name, gpu) for job in world.controller.jobs.values() for name, gpus in job.allocation.items() for gpu in gpus
    )
    return [f"GPU {gpu} of {name} is allocated {count} times" for (name, gpu), count in allocated.items() if count > 1]


def _in_reservations(world: World) -> list[str]:
    kept = Counter(node for reservation in world.controller.reservations.all() for node in reservation.nodes)
    found = [f"{node} is in {count} reservations" for node, count in kept.items() if count > 1]
    for job in world.controller.jobs.values():
        found += [f"job {job.job} is on {name}, which is reserved" for name in job.allocation if name in kept]
    over = [each.name for each in world.controller.reservations.all() if each.until <= world.now]
    over += [each.name for each in world.controller.reservations.bookings() if each.ends_at <= world.now]
    return found + [f"reservation {name} should have run out" for name in over]


def _in_job(world: World, job: Job) -> list[str]:
    found = []
    if (job.state in HAS_PROCESSES) != bool(job.allocation):
        found.append(f"job {job.job} is {job.state.value} with {len(job.allocation)} nodes")
    if job.state in HAS_PROCESSES and len(job.allocation) != job.spec.node_count:
        found.append(f"job {job.job} has {len(job.allocation)} of {job.spec.node_count} nodes")
    if any(len(gpus) != job.spec.gpus_per_node for gpus in job.allocation.values()):
        found.append(f"job {job.job} does not have {job.spec.gpus_per_node} GPUs on each of its nodes")
    if job.state is JobState.RUNNING and job.started_at is None:
        found.append(f"job {job.job} runs without having started")
    if (job.state is JobState.COMPLETING) != bool(job.waits_for):
        found.append(f"job {job.job} is {job.state.value} and waits for {len(job.waits_for)} nodes")
    for name in job.allocation:
        if job.is_running and world.controller.records[name].is_down:
            found.append(f"job {job.job} runs on {name}, which is down")
        if job.is_running and job.hung_at is None and job.attempt not in world.hardware.nodes[name].processes:
            found.append(f"job {job.job} makes progress without a process on {name}")
    return found


def _in_node(world: World, node: Node) -> list[str]:
    found: list[str] = []
    # What cannot be killed may hold a GPU that the scheduler has given to another job meanwhile.
    processes = [process for process in node.processes.values() if not process.is_unkillable]
    held = Counter(gpu for process in processes for gpu in process.gpus)
    found.extend(f"GPU {gpu} of {node.name} is used by {count} jobs" for gpu, count in held.items() if count > 1)
    if node.is_up and not node.is_powered:
        found.append(f"{node.name} is up without power")
    if node.processes and not node.is_up:
        found.append(f"{node.name} has processes and is not up")
    if any(gpu.uncorrectable_ecc_count < 0 or gpu.remapped_row_count < 0 for gpu in node.gpus):
        found.append(f"{node.name} has a negative count")
    record = world.controller.records[node.name]
    if (record.is_drained or record.is_down) != (record.reason is not None):
        found.append(f"{node.name}: drained {record.is_drained}, down {record.is_down}, but reason {record.reason}")
    return found


class TwinError(SourceError):
    """The directory does not hold a twin, or holds one already. The message says which and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What the fold starts from; written once, read by every process."""

    seed: int
    began_at: datetime
    scenario: Scenario


class Fold:
    """The world at a time that only moves forward, unless an entry older than that time appears: then again."""

    def __init__(self, beginning: Beginning, entries: list[Entry]) -> None:
        self._beginning = beginning
        self._entries = entries
        """Shared with the twin, which appends what it reads."""
        self._applied_count = 0
        self.world = self._new_world()

    def reach(self, until: datetime) -> World:
        """Return the world at `until` (at the beginning, if that is later)."""
        until = max(until, self._beginning.began_at)
        pending = self._entries[self._applied_count :]
        if until < self.world.now or (pending and pending[0].at < self.world.now):
            self.world, self._applied_count = self._new_world(), 0
            pending = self._entries
        for entry in pending:
            if entry.at > until:
                break
            self.world.apply(entry)
            self._applied_count += 1
        self.world.advance(until)
        if pending:
            check_consistency(self.world)
        return self.world

    def _new_world(self) -> World:
        return World(self._beginning.scenario, seed=self._beginning.seed, began_at=self._beginning.began_at)


class Twin:
    """One process's view of the simulated cluster. Safe for threads; adapters and queries share one."""

    def __init__(self, directory: Path, beginning: Beginning, clock: Clock) -> None:
        self.scenario = beginning.scenario
        self.began_at = beginning.began_at
        self._beginning = beginning
        self._clock = clock
        self._journal = Journal(directory / _JOURNAL)
        self._entries: list[Entry] = []
        self._present = Fold(beginning, self._entries)
        self._past = Fold(beginning, self._entries)
        """Lags behind: readers of metrics ask for grid times a little in the past."""
        self._mutex = threading.RLock()

    @classmethod
    def create(
        cls, directory: Path, scenario: Scenario, seed: int, clock: Clock, *, past: timedelta = timedelta(0)
    ) -> "Twin":
        """Begin a twin in `directory`, which is made if need be; raise TwinError if one is there already.

        It begins now, or has a `past` of so long: every process that attaches folds it (24 h of the demo: 3 s).
        """
        directory.mkdir(parents=True, exist_ok=True)
        beginning = Beginning(seed=seed, began_at=clock.now() - past, scenario=scenario)
        (directory / _JOURNAL).touch()
        draft = directory / f"{_BEGINNING}.{token_hex(4)}"
        draft.write_text(json.dumps(to_plain(beginning), indent=1), encoding="utf-8")
        try:
            # A link appears whole or not at all, and fails where there is one already.
            (directory / _BEGINNING).hardlink_to(draft)
        except FileExistsError:
            raise TwinError(f"{directory} holds a twin already; attach to it, or use an empty directory") from None
        finally:
            draft.unlink()
        return cls(directory, beginning, clock)

    @classmethod
    def attach(cls, directory: Path, clock: Clock) -> "Twin":
        """Join the twin in `directory`; raise TwinError if there is none."""
        try:
            data = json.loads((directory / _BEGINNING).read_text(encoding="utf-8"))
            beginning = from_plain(Beginning, data)
        except FileNotFoundError:
            raise TwinError(f"{directory} holds no twin; create one first") from None
        except ValueError as exc:
            raise TwinError(f"{directory / _BEGINNING} cannot be read as a twin: {exc}") from exc
        return cls(directory, beginning, clock)

    @classmethod
    def join(cls, directory: Path, scenario: Scenario, seed: int, clock: Clock) -> "Twin":
        """Attach to the twin in `directory`, or begin one: of several processes that come at once one begins it.

        Raises TwinError for one that cannot be read.
        """
        if not (directory / _BEGINNING).exists():
            with suppress(TwinError):  # Somebody else began it in this moment.
                return cls.create(directory, scenario, seed, clock)
        return cls.attach(directory, clock)

    @contextmanager
    def present(self) -> Iterator[World]:
        """Lend the world as it is now; look, but change nothing, and keep nothing of it."""
        with self._mutex:
            with self._journal.reading():
                now = self._catch_up()
            yield self._present.reach(now)

    @contextmanager
    def past(self, at: datetime) -> Iterator[World]:
        """Lend the world as it was at `at`; a time to come is taken as now."""
        with self._mutex:
            with self._journal.reading():
                now = self._catch_up()
            yield self._past.reach(min(at, now))

    def follow(self) -> "Follower":
        """Return a reader of the past with a fold of its own, at the beginning."""
        return Follower(self, Fold(self._beginning, self._entries))

    @contextmanager
    def lend(self, fold: Fold, at: datetime) -> Iterator[World]:
        """Lend the world of `fold` as it was at `at`; a time to come is taken as now. For `Follower`."""
        with self._mutex:
            with self._journal.reading():
                now = self._catch_up()
            yield fold.reach(min(at, now))

    def inject(
        self,
        fault: FaultKind,
        *nodes: str,
        gpu: int | None = None,
        seconds: float | None = None,
        course: Course | None = None,
    ) -> Entry:
        """Let a fault happen now; return its journal entry. Raise ImpossibleFaultError if it cannot happen.

        `gpu` is the index of the GPU, for faults of one GPU; `seconds` how long a network partition lasts; `course`
        what ends the fault, where that is not what its kind says.
        """
        return self._deliver(
            Entry(
                at=self.began_at,
                kind=EntryKind.FAULT,
                nodes=nodes,
                gpu=None if gpu is None else slot_address(gpu),
                fault=fault,
                seconds=seconds,
                course=course,
            )
        )

    def repair_by_hand(self, node: str) -> None:
        """Let a technician replace what is broken on a node without work; it boots afterwards."""
        self._deliver(Entry(at=self.began_at, kind=EntryKind.REPAIR_BY_HAND, nodes=(node,)))

    def submit(self, spec: JobSpec) -> JobId:
        """Submit a job as a user would; return its id. Raise SourceRefused if it could never run."""
        with self._mutex:
            self._deliver(Entry(at=self.began_at, kind=EntryKind.SUBMIT, spec=spec))
            job = self._present.world.last_job
        assert job is not None, "a submission that was not refused created a job"
        return job

    def command(
        self,
        kind: EntryKind,
        *,
        nodes: tuple[str, ...] = (),
        job: str | None = None,
        gpu: str | None = None,
        reason: str = "",
        reservation: str = "",
        until: datetime | None = None,
        check: CheckOrder | None = None,
        begins_at: datetime | None = None,
        install: InstallCommand | None = None,
        quotas: tuple[QuotaOrder, ...] = (),
    ) -> None:
        """Deliver a command; raise SourceRefused or SourceUnavailable as `commands.judge` does."""
        self._deliver(
            Entry(
                at=self.began_at,
                kind=kind,
                nodes=nodes,
                job=job,
                gpu=gpu,
                reason=reason,
                reservation=reservation,
                until=until,
                check=check,
                begins_at=begins_at,
                install=install,
                quotas=quotas,
            )
        )

    def now(self) -> datetime:
        """Return the time that the twin has reached."""
        with self.present() as world:
            return world.now

    def entries(self) -> tuple[Entry, ...]:
        """Return the journal: everything that was received until now, refused commands included."""
        with self._mutex, self._journal.reading():
            self._catch_up()
            return tuple(self._entries)

    def _deliver(self, entry: Entry) -> Entry:
        with self._mutex, self._journal.writing():
            now = self._catch_up()
            world = self._present.reach(now)
            entry = replace(entry, at=world.now)
            try:
                judge(world, entry)
            except SourceRefused as refusal:
                self._record(replace(entry, refusal=str(refusal)))
                raise
            self._record(entry)
            self._present.reach(now)
            return entry

    def _record(self, entry: Entry) -> None:
        self._journal.append(entry)
        self._entries.append(entry)

    def _catch_up(self) -> datetime:
        """Read what is new, under the lock; return now, which is never before the last entry."""
        self._entries.extend(self._journal.read_new())
        last_at = self._entries[-1].at if self._entries else self.began_at
        # The clock may have been set back: time is still here then, until the clock has caught up. Another process
        # may not have been as far, and write an entry older than what was folded here: the fold then begins again.
        return max(self._clock.now(), last_at, self._present.world.now)


class Follower:
    """Reads the past in order, at the cost of what happened since the last read; going backwards begins again.

    The twin's own view of the past jumps as its users ask; a long read would drag it to and fro.
    """

    def __init__(self, twin: Twin, fold: Fold) -> None:
        self._twin = twin
        self._fold = fold

    @property
    def reached(self) -> datetime:
        """Return the time up to which it was read."""
        return self._fold.world.now

    @contextmanager
    def reach(self, at: datetime) -> Iterator[World]:
        """Lend the world as it was at `at`; look, but change nothing, and keep nothing of it."""
        with self._twin.lend(self._fold, at) as world:
            yield world


_BEGINNING = "twin.json"
_JOURNAL = "journal.jsonl"


class SimulatedSettings:
    """The port `SchedulerSettings` on the twin."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin

    def read(self) -> SettingsRead:
        """Return settings of a scheduler that goes by priority, then by age, and never ends a job for another."""
        with self._twin.present() as world:
            now = world.now
        gpus = self._twin.scenario.gpus_per_node
        partition = {
            "DefaultTime": "NONE",
            "MaxTime": "UNLIMITED",
            "OverSubscribe": "NO",
            "PreemptMode": "OFF",
            "TRES": f"gres/gpu={gpus}",
            "TRESBillingWeights": "GRES/gpu=1.0",
        }
        return SettingsRead(
            cluster={
                "ClusterName": "simulated",
                "PriorityType": "priority/basic",
                "SchedulerType": "sched/backfill",
                "PreemptType": "preempt/none",
                "PreemptMode": "OFF",
                "TopologyPlugin": "topology/default",
            },
            partitions=dict.fromkeys(sorted(self._twin.scenario.partitions), partition),
            read_at=now,
        )
