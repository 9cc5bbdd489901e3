"""The ports `Accounting` and `Quotas` on the twin: what it did to its jobs, as the text that sacct would print, and the
limits of its accounts. Decides nothing; what a limit does is `jobs`'.

A job that ended is forgotten by the simulated scheduler, as by a real one, so its end is read from the world as it was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.core.scheduler import (
    ALL_TYPES,
    AccountQuota,
    Change,
    FairshareChange,
    QuotaProbe,
    QuotasInForce,
    TypedLimits,
    find_obstacles,
    needs_types,
    refuse_twice_the_same,
)
from ops_pipelines.core.sources import AccountingPage, SourceRefused
from ops_pipelines_lab.simulator.jobs import EndCause, Job, Loss
from ops_pipelines_lab.simulator.journal import EntryKind, QuotaOrder
from ops_pipelines_lab.simulator.twin import Twin
from ops_pipelines_lab.simulator.world import World

PAGE = timedelta(hours=6)
DELIMITER = "\x1f"
_COLUMNS = (
    "JobID JobIDRaw User Account Partition State ExitCode Submit Eligible Start End ElapsedRaw NNodes NCPUS ReqTRES "
    "AllocTRES NodeList Reason Restarts JobName"
)
_HEADER = tuple(_COLUMNS.split())
_CPUS_PER_GPU = 8
_EXITS = {"COMPLETED": "0:0", "FAILED": "1:0"}
_STATES = {EndCause.REQUEUED: "REQUEUED", EndCause.NODE_DOWN: "NODE_FAIL", EndCause.CRASHED_AND_REQUEUED: "REQUEUED"}
"""What Slurm calls an attempt after which the job runs again."""
_MOMENT = timedelta(microseconds=1)
_SETTLED = timedelta(minutes=10)
"""Within this time after its end an attempt is certainly over, or its job waits again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One attempt, or a job that waits. `started_at` is None where it did not start, `ended_at` until it has ended."""

    job: JobId
    name: str
    user: str
    account: str
    partition: str
    state: str
    submitted_at: datetime
    eligible_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    nodes: tuple[NodeName, ...]
    asked_node_count: int
    gpu_count: int
    restart_count: int
    reason: str = "None"


class SimulatedAccounting:
    """The port `Accounting` on the twin."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin

    @property
    def source(self) -> str:
        return "simulator"

    def read_attempts(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        """Yield pages of at most six hours. Times are cut to whole seconds, as Slurm keeps them."""
        if start >= end:
            raise ValueError(f"{start} to {end} holds no time; expected the start before the end")
        return self._read_pages(start=start, end=end)

    def read_overlapping(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        """Yield one page: what ended in the interval, and what ran at its end, as it was then."""
        if start >= end:
            raise ValueError(f"{start} to {end} holds no time; expected the start before the end")
        return self._read_overlapping(start=start, end=end)

    def read_waiting(self, *, at: datetime) -> Iterator[AccountingPage]:
        """Yield one page: the queue as it was at `at`, each job with the reason that Slurm would give."""
        with self._twin.past(at) as world:
            rows = list(_waiting(world))
        yield self._page(rows, start=at, end=at)

    def _read_overlapping(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        rows = self._ended(start, end)
        with self._twin.past(end - _MOMENT) as world:
            if world.now >= start:
                rows += [row for row in _running(world) if row.started_at is not None and row.started_at < end]
        # An attempt that was seen to end within the interval may still run at its end.
        unique = {(row.job, row.started_at): row for row in reversed(rows)}
        yield self._page(list(reversed(unique.values())), start=start, end=end)

    def _read_pages(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        while start < end:
            until = min(start + PAGE, end)
            yield self._page(self._ended(start, until), start=start, end=until)
            start = until

    def _ended(self, start: datetime, end: datetime) -> list[_Row]:
        return [
            row
            for row in self._read_rows(start, end)
            if row.ended_at is not None and start <= _second(row.ended_at) < end
        ]

    def _page(self, rows: Sequence[_Row], *, start: datetime, end: datetime) -> AccountingPage:
        lines = [DELIMITER.join(_HEADER), *(_line(row) for row in rows), ""]
        return AccountingPage(body="\n".join(lines).encode(), source=self.source, start=start, end=end)

    def _read_rows(self, start: datetime, end: datetime) -> list[_Row]:
        with self._twin.present() as world:
            now = world.now
            losses = [loss for loss in world.controller.losses if start <= _second(loss.ended_at) < end]
        # A job stays in sight for a while after its end: looked at more often than that, none is missed.
        step = timedelta(seconds=self._twin.scenario.durations.min_job_age_seconds) / 2
        first, last = max(start, self._twin.began_at), min(now, end + _SETTLED)
        looks = (
            {first + number * step for number in range(max((last - first) // step, 0) + 1)} if first <= last else set()
        )
        before_losses = {loss.ended_at - _MOMENT for loss in losses}
        over: dict[tuple[JobId, datetime | None], _Row] = {}
        broken: list[_Row] = []
        for moment in sorted({*looks, *before_losses, *([last] if first <= last else [])}):
            with self._twin.past(moment) as world:
                over.update({(row.job, row.started_at): row for row in _finished(world)})
                if moment in before_losses:
                    broken += _broken(world, [loss for loss in losses if loss.ended_at - _MOMENT == moment])
        # The end of a job says more than the moment at which its last attempt was seen to end.
        broken = [row for row in broken if (row.job, row.started_at) not in over]
        return sorted([*over.values(), *broken], key=lambda row: (str(row.ended_at), int(row.job)))


def _finished(world: World) -> Iterator[_Row]:
    for job in world.controller.jobs.values():
        if job.ended_at is not None:
            yield _row(
                job,
                state=job.state.name,
                started_at=job.started_at if job.last_nodes else None,
                ended_at=job.ended_at,
                nodes=job.last_nodes,
            )


def _running(world: World) -> Iterator[_Row]:
    for job in world.controller.jobs.values():
        if job.ended_at is None and job.allocation:
            yield _row(job, state="RUNNING", started_at=job.started_at, ended_at=None, nodes=tuple(job.allocation))


def _waiting(world: World) -> Iterator[_Row]:
    for job in world.controller.jobs.values():
        if job.state is JobState.PENDING and job.ended_at is None:
            yield _row(job, state="PENDING", started_at=None, ended_at=None, nodes=(), reason=_reason(job, world))


def _reason(job: Job, world: World) -> str:
    """Return Slurm's word for what holds a waiting job back: the first of them that is true."""
    if job.is_held:
        return "JobHeldUser"
    if job.eligible_at > world.now:
        return "BeginTime"
    controller = world.controller
    return "AssocGrpGRES" if controller.quotas.holds(job, controller.jobs.values()) else "Resources"


def _broken(world: World, losses: list[Loss]) -> Iterator[_Row]:
    for loss in losses:
        job = world.controller.jobs.get(loss.attempt.job)
        state = _STATES.get(loss.cause)
        if job is not None and state is not None:
            yield _row(
                job,
                state=state,
                started_at=loss.attempt.started_at,
                ended_at=loss.ended_at,
                nodes=tuple(job.allocation),
            )


def _row(
    job: Job,
    *,
    state: str,
    started_at: datetime | None,
    ended_at: datetime | None,
    nodes: tuple[NodeName, ...],
    reason: str = "None",
) -> _Row:
    return _Row(
        job=job.job,
        name=job.spec.name,
        user=job.spec.user,
        account=job.spec.account,
        partition=job.spec.partition,
        state=state,
        submitted_at=job.submitted_at,
        eligible_at=job.eligible_at,
        started_at=started_at,
        ended_at=ended_at,
        nodes=nodes,
        asked_node_count=job.spec.node_count,
        gpu_count=job.gpu_count,
        restart_count=job.restart_count,
        reason=reason,
    )


def _line(row: _Row) -> str:
    cpus, count = row.gpu_count * _CPUS_PER_GPU, row.gpu_count
    nodes = len(row.nodes)
    elapsed = 0
    if row.started_at is not None and row.ended_at is not None:
        elapsed = int((_second(row.ended_at) - _second(row.started_at)).total_seconds())
    asked = f"billing={cpus},cpu={cpus},gres/gpu={count},node={row.asked_node_count}"
    cells = (
        row.job,
        row.job,
        row.user,
        row.account,
        row.partition,
        "CANCELLED by 0" if row.state == "CANCELLED" else row.state,
        _EXITS.get(row.state, "0:15"),
        _text(row.submitted_at),
        _text(row.eligible_at),
        "None" if row.started_at is None else _text(row.started_at),
        "Unknown" if row.ended_at is None else _text(row.ended_at),
        str(elapsed),
        str(nodes),
        str(cpus),
        asked,
        "" if row.started_at is None else asked,
        ",".join(row.nodes) or "None assigned",
        row.reason,
        str(row.restart_count),
        row.name,
    )
    return DELIMITER.join(cells)


def _second(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")


_ONE_TYPE = "every simulated node has GPUs of one type, and jobs name none; set a limit on all types together"


class SimulatedQuotas:
    """The port `Quotas` on the twin. A batch is one entry of its journal: in as a whole, or not at all."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin

    def read(self) -> QuotasInForce:
        with self._twin.present() as world:
            quotas = world.controller.quotas
            accounts = {
                TeamName(name): AccountQuota(
                    account=TeamName(name),
                    parent=None,
                    limits={ALL_TYPES: quotas.limits[name]} if name in quotas.limits else {},
                    fairshare=quotas.fairshares[name],
                )
                for name in sorted(quotas.accounts)
            }
            return QuotasInForce(accounts=accounts, read_at=world.now)

    def probe(self) -> QuotaProbe:
        return QuotaProbe(
            is_enforced=True,
            enforced_because="the simulated scheduler holds every job beyond its account's limit",
            typed_limits=TypedLimits.NOT_HELD,
            typed_because=_ONE_TYPE,
            gpu_billing=dict.fromkeys(sorted(self._twin.scenario.partitions), 1.0),
        )

    def apply(self, changes: Sequence[Change]) -> None:
        refuse_twice_the_same(changes)
        if not changes:
            return
        if typed := needs_types(changes):
            raise SourceRefused(f"{', '.join(map(str, typed))[:300]}: {_ONE_TYPE}")
        accounts = self.read().accounts
        obstacles = find_obstacles(changes, accounts)
        if obstacles:
            raise SourceRefused("; ".join(obstacles))
        due = [change for change in changes if change.stands_in(accounts[change.account]) != change.after]
        if due:
            self._twin.command(EntryKind.SET_QUOTAS, quotas=tuple(map(_order, due)))


def _order(change: Change) -> QuotaOrder:
    return QuotaOrder(account=change.account, value=change.after, is_fairshare=isinstance(change, FairshareChange))
