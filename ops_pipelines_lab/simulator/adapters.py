"""The ports as the twin serves them, nodes and jobs among them as the simulated scheduler lists them: its beliefs in
the words of the port. Each adapter only translates: it decides nothing and has no behaviour of its own.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.identity import ActionKey, JobAttempt, JobId, NodeName, PciAddress
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.observation import (
    Checkpointing,
    JobState,
    JobStatus,
    NodeInspection,
    NodeState,
    NodeStatus,
    PowerState,
    has_moved_on,
)
from ops_pipelines.core.release import Change, Component
from ops_pipelines.core.rollout import InstallOrder, InstallReport
from ops_pipelines.core.scheduler import SchedulerLimits
from ops_pipelines.core.sources import LogBatch, LogLine, Sample, SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines_lab.simulator.hardware import Node
from ops_pipelines_lab.simulator.jobs import Job
from ops_pipelines_lab.simulator.journal import CheckOrder, EntryKind, InstallCommand, InstallPart
from ops_pipelines_lab.simulator.metrics import samples_of
from ops_pipelines_lab.simulator.node_checks import inspect, versions_told
from ops_pipelines_lab.simulator.twin import Twin
from ops_pipelines_lab.simulator.world import World


def node_status(world: World, node: Node, gpu_in_use_count: int) -> NodeStatus:
    """Return how the scheduler sees a node."""
    record = world.controller.records[node.name]
    if record.is_down:
        state = NodeState.DOWN
    elif gpu_in_use_count == 0:
        state = NodeState.IDLE
    else:
        state = NodeState.ALLOCATED if gpu_in_use_count == len(node.gpus) else NodeState.MIXED
    return NodeStatus(
        node=node.name,
        state=state,
        is_drained=record.is_drained,
        is_responding=record.is_responding,
        reason=record.reason,
        reason_set_at=record.reason_set_at,
        booted_at=record.booted_at,
        gpu_count=len(node.gpus),
        gpu_in_use_count=gpu_in_use_count,
        partitions=world.controller.partitions_of(node.name),
        is_last_choice=record.is_last_choice,
        reserved_as=(
            world.controller.reservations.name_of(node.name)
            or world.controller.reservations.booking_of(node.name, at=world.now)
        ),
    )


def _nodes(job: Job) -> frozenset[NodeName]:
    if job.state is JobState.PENDING:
        return frozenset()
    return frozenset(job.allocation or job.last_nodes)


def job_status(job: Job, now: datetime) -> JobStatus:
    """Return how the scheduler sees a job."""
    spec = job.spec
    interval_seconds = spec.declared_interval_seconds
    if interval_seconds is None and spec.checkpointing is Checkpointing.YES:
        interval_seconds = spec.checkpoint_interval_seconds
    ends_by = None
    if spec.time_limit_seconds is not None and job.started_at is not None and job.is_running:
        ends_by = job.started_at + timedelta(seconds=spec.time_limit_seconds)
    return JobStatus(
        job=job.job,
        state=job.state,
        is_held=job.is_held,
        is_requeueable=job.spec.is_requeueable,
        name=job.spec.name,
        user=job.spec.user,
        account=job.spec.account,
        workload=job.spec.workload,
        nodes=_nodes(job),
        gpu_count=job.gpu_count,
        started_at=job.started_at,
        ended_at=job.ended_at,
        restart_count=job.restart_count,
        excluded_nodes=frozenset(job.excluded),
        checkpointed_at=job.checkpointed_at(now),
        checkpointing=spec.checkpointing,
        checkpoint_every=None if interval_seconds is None else timedelta(seconds=interval_seconds),
        partition=spec.partition,
        ends_by=ends_by,
        service=spec.service,
        min_serving_count=spec.min_serving_count,
        checkpoint=spec.checkpoint,
    )


class SimulatedScheduler:
    """The port `Scheduler` on the twin."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin

    def read_nodes(self) -> tuple[NodeStatus, ...]:
        with self._twin.present() as world:
            in_use: dict[NodeName, int] = dict.fromkeys(world.hardware.nodes, 0)
            for job in world.controller.jobs.values():
                for name, gpus in job.allocation.items():
                    in_use[name] += len(gpus)
            return tuple(node_status(world, node, in_use[node.name]) for node in world.hardware.nodes.values())

    def read_jobs(self) -> tuple[JobStatus, ...]:
        with self._twin.present() as world:
            return tuple(job_status(job, world.now) for job in world.controller.jobs.values())

    def read_limits(self) -> SchedulerLimits:
        durations = self._twin.scenario.durations
        return SchedulerLimits(
            silence_limit=timedelta(seconds=durations.slurmd_timeout_seconds),
            ping_interval=timedelta(seconds=durations.ping_interval_seconds),
            # A ping without an answer is noticed at once, a node that was declared down stays down, as in `controller`.
            answer_limit=timedelta(0),
            is_every_down_node_returned=False,
            is_requeue_the_default=True,
            unguarded="" if self._twin.scenario.has_start_guard else "the scenario has no start guard",
            version=self._twin.scenario.controller_version,
        )

    def drain(self, nodes: Collection[NodeName], *, reason: str) -> None:
        _require(bool(nodes), "drain needs at least one node; an empty batch never means all")
        _require(bool(reason.strip()), "drain needs a reason")
        self._twin.command(EntryKind.DRAIN, nodes=tuple(sorted(set(nodes))), reason=reason)

    def resume(self, node: NodeName) -> None:
        self._twin.command(EntryKind.RESUME, nodes=(node,))

    def hold(self, job: JobId) -> None:
        self._twin.command(EntryKind.HOLD, job=job)

    def requeue(self, job: JobId) -> None:
        self._twin.command(EntryKind.REQUEUE, job=job)

    def exclude(self, job: JobId, nodes: Collection[NodeName]) -> None:
        _require(bool(nodes), "exclude needs at least one node; an empty collection never means all")
        self._twin.command(EntryKind.EXCLUDE, job=job, nodes=tuple(sorted(set(nodes))))

    def readmit(self, job: JobId, nodes: Collection[NodeName]) -> None:
        _require(bool(nodes), "readmit needs at least one node; an empty collection never means all")
        self._twin.command(EntryKind.READMIT, job=job, nodes=tuple(sorted(set(nodes))))

    def release(self, job: JobId) -> None:
        self._twin.command(EntryKind.RELEASE, job=job)

    def mark(self, attempts: Collection[JobAttempt]) -> None:
        _require(bool(attempts), "mark needs at least one job; an empty collection never means all")
        jobs = {job.job: job for job in self.read_jobs()}
        refused = []
        for attempt in attempts:
            if attempt.job in jobs and has_moved_on(jobs[attempt.job], attempt):
                refused.append(f"job {attempt.job} is on another attempt")
                continue
            try:
                self._twin.command(EntryKind.MARK, job=attempt.job)
            except SourceRefused as problem:
                refused.append(str(problem))
        if refused:
            raise (SourceRefused if len(attempts) == 1 else SourceUnavailable)("; ".join(refused))

    def unmark(self, jobs: Mapping[JobId, int | None]) -> None:
        _require(bool(jobs), "unmark needs at least one job; an empty collection never means all")
        # No job here has a priority of its own.
        for job in self.read_jobs():
            if job.job in jobs and job.is_held and job.ended_at is None:
                self._twin.command(EntryKind.RELEASE, job=job.job)

    def reserve(self, nodes: Collection[NodeName], *, name: str, until: datetime) -> None:
        _require(bool(nodes), "reserve needs at least one node; an empty collection never means all")
        _require_name(name)
        _require(until > self._twin.now(), f"a reservation until {until.isoformat()} would be over already")
        names = tuple(sorted(set(nodes)))
        self._twin.command(EntryKind.RESERVE, nodes=names, reservation=name, until=until)

    def book(self, nodes: Collection[NodeName], *, name: str, begins_at: datetime, ends_at: datetime) -> None:
        _require(bool(nodes), "book needs at least one node; an empty collection never means all")
        _require_name(name)
        _require(begins_at < ends_at, f"maintenance from {begins_at.isoformat()} to {ends_at.isoformat()} is none")
        _require(ends_at > self._twin.now(), f"maintenance until {ends_at.isoformat()} would be over already")
        names = tuple(sorted(set(nodes)))
        self._twin.command(EntryKind.BOOK, nodes=names, reservation=name, begins_at=begins_at, until=ends_at)

    def unreserve(self, name: str) -> None:
        _require_name(name)
        self._twin.command(EntryKind.UNRESERVE, reservation=name)

    def put_last(self, node: NodeName) -> None:
        self._twin.command(EntryKind.PUT_LAST, nodes=(node,))

    def put_back(self, node: NodeName) -> None:
        self._twin.command(EntryKind.PUT_BACK, nodes=(node,))

    def declare_down(self, node: NodeName, *, reason: str) -> None:
        _require(bool(reason.strip()), "declare_down needs a reason")
        self._twin.command(EntryKind.DECLARE_DOWN, nodes=(node,), reason=reason)


class SimulatedFleet:
    """The port `Fleet` on the twin."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin

    def inspect(self, node: NodeName) -> NodeInspection:
        with self._twin.present() as world:
            machine = _known(world, node)
            if not machine.answers:
                raise SourceUnavailable(f"{node} does not answer")
            return inspect(world.hardware, machine, now=world.now)

    def reset_gpu(self, node: NodeName, gpu: PciAddress) -> None:
        self._twin.command(EntryKind.RESET_GPU, nodes=(node,), gpu=gpu)

    def reboot(self, node: NodeName, *, reason: str) -> None:
        _require(bool(reason.strip()), "reboot needs a reason")
        self._twin.command(EntryKind.REBOOT, nodes=(node,), reason=reason)

    def reimage(self, node: NodeName, *, reason: str) -> None:
        _require(bool(reason.strip()), "reimage needs a reason")
        self._twin.command(EntryKind.REIMAGE, nodes=(node,), reason=reason)

    def start_check(self, node: NodeName, *, suite: str, tests: Collection[str], key: ActionKey) -> None:
        _require(bool(tests), "start_check needs at least one test; an empty collection never means all")
        order = CheckOrder(key=key, suite=suite, tests=tuple(tests))
        self._twin.command(EntryKind.START_CHECK, nodes=(node,), check=order)

    def read_check(self, node: NodeName, *, key: ActionKey) -> NodeCheck | None:
        with self._twin.present() as world:
            machine = _known(world, node)
            if not machine.answers:
                raise SourceUnavailable(f"{node} does not answer")
            return world.checks.read(machine, key)

    def read_versions(self, node: NodeName) -> Mapping[Component, str]:
        with self._twin.present() as world:
            machine = _known(world, node)
            if not machine.answers:
                raise SourceUnavailable(f"{node} does not answer")
            return versions_told(machine)

    def start_install(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        _require(bool(order.changes), "start_install needs at least one change; empty never means the newest")
        command = InstallCommand(key=key, parts=tuple(_part(change, order) for change in order.changes))
        self._twin.command(EntryKind.START_INSTALL, nodes=(node,), install=command)

    def read_install(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        with self._twin.present() as world:
            machine = _known(world, node)
            if not machine.answers and not world.installs.is_of_bmc(machine, key):
                raise SourceUnavailable(f"{node} does not answer")
            return world.installs.read(machine, key, now=world.now)

    def reload_driver(self, node: NodeName) -> None:
        self._twin.command(EntryKind.RELOAD_DRIVER, nodes=(node,))

    def power_off(self, node: NodeName) -> None:
        self._twin.command(EntryKind.POWER_OFF, nodes=(node,))

    def power_on(self, node: NodeName) -> None:
        self._twin.command(EntryKind.POWER_ON, nodes=(node,))

    def power_state(self, node: NodeName) -> PowerState:
        with self._twin.present() as world:
            return PowerState.ON if _known(world, node).is_powered else PowerState.OFF


class SimulatedTelemetry:
    """The port `Telemetry` on the twin: what a Prometheus that scrapes all its exporters would answer."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._interval = timedelta(seconds=twin.scenario.durations.scrape_interval_seconds)
        self._last: tuple[tuple[datetime, int], tuple[Sample, ...]] | None = None
        """What was answered last, under the scrape and the number of entries it was folded from."""

    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        # As in Prometheus, a target that cannot be scraped, or a series that it no longer shows, ends at that scrape.
        at = min(at, self._twin.now())
        grid_time = at - (at - _GRID_ORIGIN) % self._interval
        if grid_time < self._twin.began_at:
            return ()
        key = (grid_time, len(self._twin.entries()))  # an entry may be older than what was folded: see the twin
        if self._last is None or self._last[0] != key:
            with self._twin.past(grid_time) as world:
                self._last = key, tuple(samples_of(world, world.hardware.nodes.values(), at=world.now))
        return self._last[1]


class SimulatedLogs:
    """The port `Logs` on the twin: the kernel log of all nodes as a log server would have collected it.

    A position is the number of the line. It is stable as long as the wall clock is not set back: the world is then
    folded again, and lines that nobody's command caused (boots, benign lines) may change places.
    """

    def __init__(self, twin: Twin) -> None:
        self._twin = twin

    @property
    def source(self) -> str:
        return "kernel_log"

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        _require(max_lines > 0, f"max_lines is {max_lines}; it must be 1 or more")
        first = _parse_cursor(cursor)
        with self._twin.present() as world:
            known_count = len(world.hardware.lines)
            if first > known_count:
                raise SourceNonsense(f"cursor {cursor!r} lies beyond the {known_count} lines there are")
            lines = world.hardware.lines[first : first + max_lines]
        return LogBatch(
            lines=tuple(
                LogLine(node=line.node, written_at=line.written_at, position=f"line:{number}", text=line.text)
                for number, line in enumerate(lines, start=first)
            ),
            cursor=f"line:{first + len(lines)}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPorts:
    """All ports on one twin: they share its fold."""

    scheduler: SimulatedScheduler
    fleet: SimulatedFleet
    telemetry: SimulatedTelemetry
    logs: SimulatedLogs


def simulated_ports(twin: Twin) -> SimulatedPorts:
    """Return the four ports on `twin`; attach one twin per process and share it."""
    return SimulatedPorts(
        scheduler=SimulatedScheduler(twin),
        fleet=SimulatedFleet(twin),
        telemetry=SimulatedTelemetry(twin),
        logs=SimulatedLogs(twin),
    )


_RESERVATION_NAME = re.compile(r"[A-Za-z0-9._-]{1,60}")
_GRID_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)


def _require(is_given: bool, complaint: str) -> None:
    if not is_given:
        raise ValueError(complaint)


def _require_name(name: str) -> None:
    _require(
        _RESERVATION_NAME.fullmatch(name) is not None,
        f"{name[:80]!r} is no name of a reservation; expected 1 to 60 letters, digits, '.', '_' and '-'",
    )


def _part(change: Change, order: InstallOrder) -> InstallPart:
    version = order.versions[change.component]
    return InstallPart(component=change.component, version=version, activation=change.activation, means=change.means)


def _known(world: World, node: NodeName) -> Node:
    if node not in world.hardware.nodes:
        raise SourceRefused(f"there is no node {node}")
    return world.hardware.nodes[node]


def _parse_cursor(cursor: str | None) -> int:
    if cursor is None:
        return 0
    prefix, _, number = cursor.partition(":")
    if prefix != "line" or not number.isascii() or not number.isdigit():
        raise SourceNonsense(f"{cursor!r} is no cursor of this source; expected line:<number>")
    return int(number)
