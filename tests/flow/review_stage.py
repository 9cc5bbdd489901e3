"""A week that was computed by hand: 2026-W47 of two nodes with eight GPUs each, as rows and incidents.

alpha's job 1 (8 GPUs) runs through the whole week but for an interruption by a broken GPU: 1 h of work lost, 30 min
queue, 6 min restart. beta's job 2 (4 GPUs) is moved by us: 15 min lost, 15 min queue, the restart unseen. beta's job 3
(2 GPUs) ends in NODE_FAIL after 2 h, unexplained. Of job 4 (no GPUs) only the wait counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, cast

import pyarrow as pa

from ops_pipelines.core.action import ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.cluster import HOUR, Cluster, Observatory, hour_of
from ops_pipelines.core.entries import Entry, EntryKind
from ops_pipelines.core.identity import ActionKey, IncidentId, JobAttempt, JobId, NodeName, PlanId
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.objectives import Objective
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.periods import parse_week
from ops_pipelines.lake.schema import TABLES
from tests.domain import builders
from tests.domain.builders import action, incident, rules

WEEK = parse_week("2026-W47")
MINUTE = timedelta(minutes=1)
NODES = ("gpu001", "gpu002")


def at(day: int, hour: int, minute: int = 0) -> datetime:
    """Return a time of November 2026; the week begins on the 16th."""
    return datetime(2026, 11, day, hour, minute, tzinfo=UTC)


@cache
def _empty(table: str) -> pa.Table:
    return TABLES[table].from_rows(())


class LakeOfRows:
    """A lake that holds given rows in memory."""

    def __init__(self, **tables: Sequence[Mapping[str, object]]) -> None:
        self._hours: dict[tuple[str, datetime], pa.Table] = {}
        by_hour: dict[tuple[str, datetime], list[Mapping[str, object]]] = {}
        for name, rows in tables.items():
            for row in rows:
                by_hour.setdefault((name, hour_of(cast("datetime", row["time"]))), []).append(row)
        for key, listed in by_hour.items():
            self._hours[key] = TABLES[key[0]].from_rows(listed)

    def read(self, table: str, *, start: datetime, end: datetime, columns: Sequence[str] | None = None) -> pa.Table:
        assert end - start == HOUR, "a review reads whole hours"
        found = self._hours.get((table, start), _empty(table))
        return found if columns is None else found.select(list(columns))

    def read_hour(self, table: str, hour: datetime) -> pa.Table:
        return self.read(table, start=hour, end=hour + HOUR)


@dataclass(kw_only=True)
class LedgerOfValues:
    """The reading half of a ledger, on values."""

    incidents: tuple[Incident, ...] = ()
    acts: Mapping[str, Sequence[ActionRecord]] = field(default_factory=dict)
    tests: Mapping[str, Sequence[tuple[NodeCheck, bool]]] = field(default_factory=dict)
    lines: Sequence[Entry] = ()

    def incidents_since(self, since: datetime) -> tuple[Incident, ...]:
        return tuple(each for each in self.incidents if each.is_open or each.changed_at >= since)

    def records(self, name: IncidentId) -> tuple[ActionRecord, ...]:
        return tuple(self.acts.get(name, ()))

    def checks(self, node: NodeName, *, limit: int) -> tuple[tuple[NodeCheck, bool], ...]:
        return tuple(self.tests.get(node, ()))[:limit]

    def plan(self, plan: PlanId) -> None:
        return None

    def entries(self, *, after: int, limit: int) -> tuple[Entry, ...]:
        return tuple(each for each in self.lines if each.seq > after)[:limit]


@dataclass(kw_only=True)
class JobsNow:
    """A scheduler that is asked for its jobs alone."""

    jobs: tuple[JobStatus, ...] = ()

    def read_jobs(self) -> tuple[JobStatus, ...]:
        return self.jobs


class Noon:
    """A clock that is."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now


def stage(
    lake: LakeOfRows,
    ledger: LedgerOfValues,
    *,
    now: datetime,
    objectives: tuple[Objective, ...] = (),
    jobs: tuple[JobStatus, ...] = (),
) -> tuple[Cluster, Observatory]:
    """Return a cluster and an observatory that can be reviewed, and nothing else."""
    scheduler, clock = JobsNow(jobs=jobs), Noon(now)
    unused = cast("Any", None)
    cluster = Cluster(
        name="small",
        scheduler=cast("Any", scheduler),
        fleet=unused,
        telemetry=unused,
        logs=(),
        ledger=cast("Any", ledger),
        notifier=unused,
        clock=cast("Any", clock),
        rules=rules(),
        rules_digest=unused,
    )
    observatory = Observatory(
        name="small",
        metrics=(),
        queries=(),
        accounting=None,
        kernel_logs=(),
        job_logs=(),
        scheduler=cast("Any", scheduler),
        lake=cast("Any", lake),
        topology=rules().topology,
        clock=cast("Any", clock),
        step=timedelta(seconds=15),
        objectives=objectives,
    )
    return cluster, observatory


# -- rows --


def accounted(
    job: str,
    begin: datetime | None,
    end: datetime,
    state: str,
    *,
    team: str = "alpha",
    gpus: int = 8,
    nodes: str = "gpu001",
    eligible: datetime | None = None,
    restarts: int = 0,
    comment: str | None = None,
) -> Mapping[str, object]:
    """Return a row of job_accounting."""
    return {
        "job": job, "attempt": "unstarted" if begin is None else begin.isoformat(),
        "time": end.replace(minute=0, second=0, microsecond=0), "account": team, "state": state,
        "submitted_at": eligible or begin, "eligible_at": eligible or begin, "started_at": begin, "ended_at": end,
        "gpu_count": gpus, "nodes": nodes, "comment": comment, "restart_count": restarts,
    }  # fmt: skip


def held(job: str, begin: datetime, hour: datetime, *, team: str = "alpha", gpus: int = 8) -> Mapping[str, object]:
    """Return a row of job_allocations of an attempt that runs."""
    return {
        "job": job, "attempt": begin.isoformat(), "node": "gpu001", "time": hour, "account": team, "state": "RUNNING",
        "started_at": begin, "ended_at": None, "gpu_count": gpus,
    }  # fmt: skip


def line(job: str, when: datetime, text: str, *, step: int | None = None) -> Mapping[str, object]:
    """Return a row of job_logs."""
    return {"source": "logs", "position": f"{job}@{when.isoformat()}", "time": when, "job": job, "text": text,
            "step": step}  # fmt: skip


def inventory(since: datetime, until: datetime) -> list[Mapping[str, object]]:
    """Return rows of inventory for each hour: two nodes with eight GPUs each."""
    rows: list[Mapping[str, object]] = []
    hour = since
    while hour < until:
        for node in NODES:
            rows.append({"node": node, "device": "", "time": hour, "kind": "node"})
            rows += [
                {"node": node, "device": f"GPU-{node}-{index}", "time": hour, "kind": "gpu",
                 "uuid": f"GPU-{node}-{index}", "pci_address": f"0000:{index:02x}:00"}
                for index in range(8)
            ]  # fmt: skip
        hour += HOUR
    return rows


# -- incidents and acts --


def broken(name: str, opened: datetime, *, restored: datetime | None = None, **changes: Any) -> Incident:
    """Return an incident of a GPU of gpu001, resolved at `restored` or open."""
    finding = replace(builders.xid(79), found_at=opened - MINUTE)
    return incident(
        finding,
        name=name,
        opened_at=opened,
        changed_at=restored or opened,
        closed_at=restored,
        state=IncidentState.OPEN if restored is None else IncidentState.RESOLVED,
        **changes,
    )


def act(
    verb: Verb, name: str, begin: datetime, end: datetime, *, on: str | None = None, of: JobAttempt | None = None,
    **changes: Any,
) -> ActionRecord:  # fmt: skip
    """Return an act that was witnessed."""
    return replace(
        ActionRecord(action=action(verb, on=on, of=of, incident=name), plan=PlanId("PLAN-1"), begun_at=begin),
        outcome=Outcome(kind=OutcomeKind.DONE, witness="seen", finished_at=end),
        **changes,
    )


def checked(key: ActionKey, node: str, begin: datetime, end: datetime) -> NodeCheck:
    return NodeCheck(key=key, node=NodeName(node), suite="quick", started_at=begin, finished_at=end, tests=())


def entry(seq: int, when: datetime, kind: EntryKind, actor: str) -> Entry:
    return Entry(
        seq=seq, written_at=when, kind=kind, actor=actor, incident=None, body="{}", previous_hash="", entry_hash=""
    )


JOB_1 = JobAttempt(job=JobId("1"), started_at=at(15, 12))
JOB_2 = JobAttempt(job=JobId("2"), started_at=at(18, 6))


def hand_computed() -> tuple[LakeOfRows, LedgerOfValues]:
    """Return the week of the module's docstring."""
    lake = LakeOfRows(
        job_accounting=[
            accounted("1", at(15, 12), at(17, 0), "NODE_FAIL"),
            accounted("2", at(18, 6), at(18, 10), "REQUEUED", team="beta", gpus=4, nodes="gpu002", eligible=at(18, 5)),
            accounted("2", at(18, 10, 15), at(18, 14, 15), "COMPLETED", team="beta", gpus=4, restarts=1),
            accounted("3", at(19, 0), at(19, 2), "NODE_FAIL", team="beta", gpus=2, nodes="gpu002"),
            accounted("4", at(19, 5), at(19, 6), "COMPLETED", team="beta", gpus=0, eligible=at(19, 4, 50)),
        ],
        job_allocations=[
            held("1", at(17, 0, 30), WEEK.start + number * HOUR) for number in range(25, 168)
        ],
        job_logs=[
            line("1", at(16, 20), "Saved checkpoint to /c"),
            line("1", at(16, 23), "Saved checkpoint to /c"),
            line("1", at(17, 0, 36), "step 10", step=10),
        ],
        inventory=inventory(WEEK.start, WEEK.end),
    )  # fmt: skip
    check = act(Verb.CHECK, "INC-0002", at(18, 10, 20), at(18, 10, 30), on="gpu002")
    ledger = LedgerOfValues(
        incidents=(
            broken("INC-0000", at(15, 23), restored=at(16, 1)),
            broken("INC-0001", at(17, 0, 1), restored=at(17, 2, 1), victims=frozenset({JOB_1})),
            broken("INC-0002", at(18, 9, 50), restored=at(18, 10, 40), nodes=frozenset({NodeName("gpu002")})),
            broken("INC-0003", at(22, 23, 50)),
        ),
        acts={
            "INC-0001": (
                act(Verb.DRAIN, "INC-0001", at(17, 0, 2), at(17, 0, 3), on="gpu001"),
                act(Verb.REBOOT, "INC-0001", at(17, 0, 5), at(17, 0, 25), on="gpu001"),
            ),
            "INC-0002": (
                act(Verb.DRAIN, "INC-0002", at(18, 9, 51), at(18, 9, 52), on="gpu002"),
                act(
                    Verb.HOLD, "INC-0002", at(18, 9, 59), at(18, 10), of=JOB_2, checkpointed_at=at(18, 9, 45),
                    attempt_nodes=frozenset({NodeName("gpu002")}), gpu_count=4, lost_gpu_hours=1.0,
                ),
                act(Verb.RELEASE, "INC-0002", at(18, 10, 10), at(18, 10, 12), of=JOB_2),
                check,
                act(Verb.RESUME, "INC-0002", at(18, 10, 39), at(18, 10, 40), on="gpu002"),
            ),
            "INC-0003": (act(Verb.PAGE_HUMAN, "INC-0003", at(22, 23, 51), at(22, 23, 51)),),
        },
        tests={"gpu002": ((checked(check.action.key, "gpu002", at(18, 10, 20), at(18, 10, 30)), True),)},
        lines=(
            entry(1, at(15, 22), EntryKind.APPROVAL, "ann"),
            entry(2, at(17, 0), EntryKind.DECISION, "autopilot"),
            entry(3, at(18, 9, 58), EntryKind.APPROVAL, "ann"),
            entry(4, at(23, 1), EntryKind.PAUSE, "ann"),
        ),
    )  # fmt: skip
    return lake, ledger
