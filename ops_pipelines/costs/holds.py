"""What cuts a node's time: GPUs that are installed, states that took them, and who held whole GPUs.

Intervals are half-open, UTC; fractions of a second are cut off at both ends, so that what touches continues to touch.
What a row cannot mean is kept as refused, with a reason; so is the time that an attempt claims after the job's next one
had started. Who has which GPUs where claims collide is `usage_ledger`'s.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName, parse_node_name
from ops_pipelines.core.periods import BilledPart
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.costs.states import Condition
from ops_pipelines.costs.usage import NO_TEAM, Owner
from ops_pipelines.lake.quantities import Refused

# -- rows of job_allocations -> who held how many whole GPUs of which node from when to when --


ALLOCATION_COLUMNS = (
    "job", "attempt", "node", "time", "name", "user", "account", "partition", "started_at", "ended_at", "gpu_count",
)  # fmt: skip
_KEY = ("job", "attempt", "node", "time")
_HOUR = timedelta(hours=1)
_MOST_NODES = 100_000
"""Shares of GPUs are fractions with the node count below the line: larger ones are noise of floats."""
Row = Mapping[str, object]
Begins = Mapping[str, Collection[tuple[datetime, str]]]
"""Job -> when each of its attempts began, and its name."""
ReadOwner = Callable[[Row], Owner | None]
"""Who pays for an attempt; None: it is a test of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An attempt held GPUs of a node."""

    node: NodeName
    job: str
    attempt: str
    owner: Owner | None
    """None: a test of ours."""
    began_at: datetime
    """The attempt: of two that claim one GPU, the later has it."""
    since: datetime
    until: datetime
    gpu_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """What rows say together."""

    holds: tuple[Hold, ...]
    refused: tuple[Refused, ...]
    begins: Begins = field(default_factory=dict)


def owner_by_account(row: Row) -> Owner:
    """Return the account as the team that pays, without a project; a row without one is of `NO_TEAM`."""
    account = row.get("account")
    return Owner(team=TeamName(str(account)) if account else NO_TEAM)


def read_holds(
    allocations: pa.Table, *, part: BilledPart, owner_of: ReadOwner = owner_by_account, begun: Begins | None = None
) -> Holds:
    """Return the holds of rows within a part of a month. Attempts without GPUs hold none, and are passed over.

    `begun`: attempts of rows that were read before. An attempt without an end ended where one of these began.
    """
    rows, refused = _one_of_each(allocations.select(list(ALLOCATION_COLUMNS)).to_pylist())
    read: list[tuple[Hold, Fraction]] = []
    begins: dict[str, set[tuple[datetime, str]]] = {}
    known = {} if begun is None else begun
    for row in rows:
        fault = _fault(row)
        if fault is not None:
            refused.append(_refused(row, reason=fault[0], detail=fault[1]))
            continue
        if not row["gpu_count"]:
            continue
        hold = _hold(row, owner_of)
        begins.setdefault(hold.job, set(known.get(hold.job, ()))).add((hold.began_at, hold.attempt))
        since, until = max(hold.since, part.since), min(hold.until, part.until)
        if since < until:
            assert isinstance(row["gpu_count"], (int, float)), "as `_fault` has seen"
            share = Fraction(row["gpu_count"]).limit_denominator(_MOST_NODES)
            read.append((replace(hold, since=since, until=until), share))
    kept, late = _one_attempt_at_a_time(_in_whole_gpus(read), begins=begins)
    order = sorted(kept, key=lambda each: (each.node, each.since, each.job, each.attempt))
    return Holds(
        holds=tuple(order),
        refused=tuple(sorted((*refused, *late), key=lambda each: each.record)),
        begins=begins,
    )


def _one_of_each(rows: Iterable[Row]) -> tuple[list[Row], list[Refused]]:
    """Return one row of each key, and the others as refused; which one does not depend on the order of rows."""
    kept: dict[tuple[object, ...], Row] = {}
    refused: list[Refused] = []
    for row in rows:
        key = tuple(row[name] for name in _KEY)
        before = kept.get(key)
        if before is not None:
            refused.append(_refused(row, reason="row_twice", detail="a second row of its key; expected one"))
        kept[key] = row if before is None else min(row, before, key=repr)
    return list(kept.values()), refused


def _fault(row: Row) -> tuple[str, str] | None:
    """Return why a row cannot be believed: a code, and what was found and expected."""
    count = row["gpu_count"]
    try:
        parse_node_name(str(row["node"]))
    except ValueError as error:
        return "unknown_node_name", str(error)
    if not isinstance(count, (int, float)):
        return "gpu_count_missing", "no number of GPUs; expected 0 or more"
    if not (math.isfinite(count) and count >= 0):
        return "gpu_count_impossible", f"{count} GPUs; expected a number of 0 or more"
    began_at, ended_at = row["started_at"], row["ended_at"]
    if isinstance(began_at, datetime) and isinstance(ended_at, datetime) and ended_at < began_at:
        return "ends_before_it_begins", f"from {began_at} to {ended_at}; expected an end after the begin"
    return None


def _hold(row: Row, owner_of: ReadOwner) -> Hold:
    """Return the hold of one row, within its hour; a begin or end that is not reported is the hour's."""
    assert isinstance(row["time"], datetime), "the schema of the table"
    hour = row["time"].astimezone(UTC)
    began_at, ended_at = _second(row["started_at"]), _second(row["ended_at"])
    return Hold(
        node=parse_node_name(str(row["node"])),
        job=str(row["job"]),
        attempt=str(row["attempt"]),
        owner=owner_of(row),
        began_at=began_at or hour,
        since=max(hour, began_at or hour),
        until=min(hour + _HOUR, ended_at or hour + _HOUR),
        gpu_count=0,
    )


def _second(at: object) -> datetime | None:
    return at.astimezone(UTC).replace(microsecond=0) if isinstance(at, datetime) else None


def _in_whole_gpus(read: Iterable[tuple[Hold, Fraction]]) -> list[Hold]:
    """Return holds with whole GPUs: accounting shares an attempt's GPUs out evenly, and 12 on 5 nodes are 2.4 each.

    In the order of its nodes each gets what brings the sum so far nearest to what it should be, so that the attempt
    has as many as it asked for.
    """
    by_hour: dict[tuple[str, str, datetime], list[tuple[Hold, Fraction]]] = {}
    for hold, share in read:
        hour = hold.since.replace(minute=0, second=0)
        by_hour.setdefault((hold.job, hold.attempt, hour), []).append((hold, share))
    found: list[Hold] = []
    for parts in by_hour.values():
        exact, given = Fraction(0), 0
        for hold, share in sorted(parts, key=lambda each: (each[0].node, each[0].since)):
            exact += share
            count = math.floor(exact + Fraction(1, 2)) - given
            given += count
            if count:
                found.append(replace(hold, gpu_count=count))
    return found


def _one_attempt_at_a_time(
    holds: Sequence[Hold], *, begins: Mapping[str, set[tuple[datetime, str]]]
) -> tuple[list[Hold], list[Refused]]:
    """Return the holds with each attempt ended where the job's next began, and what that took away.

    A requeued job whose first attempt never got an end in the books would be charged for both.
    """
    next_began_at = {
        (job, *before): after[0] for job, listed in begins.items() for before, after in pairwise(sorted(listed))
    }
    kept: list[Hold] = []
    late: list[Refused] = []
    for hold in holds:
        ends_at = next_began_at.get((hold.job, hold.began_at, hold.attempt))
        until = hold.until if ends_at is None else max(hold.since, min(hold.until, ends_at))
        if until < hold.until:
            late.append(_superseded(replace(hold, since=until)))
        if hold.since < until:
            kept.append(replace(hold, until=until))
    return kept, late


def _superseded(hold: Hold) -> Refused:
    return Refused(
        record=f"{hold.job} {hold.attempt} {hold.node} {hold.since:%Y-%m-%dT%H:%M:%S}",
        reason="attempt_was_requeued",
        detail=f"{hold.gpu_count} GPUs from {hold.since:%H:%M:%S} to {hold.until:%H:%M:%S} UTC are claimed by an "
        "attempt whose job had started again; expected one attempt at a time, and counted the later",
        text="",
        into="usage_ledger",
        at=hold.since,
    )


def _refused(row: Row, *, reason: str, detail: str) -> Refused:
    at = row["time"] if isinstance(row["time"], datetime) else None
    when = "" if at is None else f" {at:%Y-%m-%dT%H:%M:%S}"
    return Refused(
        record=f"{row['job']} {row['attempt']} {row['node']}{when}",
        reason=reason,
        detail=detail,
        text="",
        into="usage_ledger",
        at=at,
    )


# -- rows of inventory -> what the scheduler stated of nodes in an hour --


INVENTORY_COLUMNS = ("node", "kind", "state")
STORAGE_COLUMNS = ("device", "lustre_capacity_bytes")
_TARGETS = "lustre:ost/"
"""Where data is kept; clients tell the same space once more, and metadata targets hold no files."""


def read_scheduler_states(inventory: pa.Table) -> Mapping[NodeName, Condition | None]:
    """Return each node whose state is reported, with what keeps it from work; None: nothing does."""
    is_node = pc.and_(pc.equal(inventory["kind"], "node"), pc.is_valid(inventory["state"]))
    found: dict[NodeName, Condition | None] = {}
    for row in inventory.filter(is_node).select(list(INVENTORY_COLUMNS)).to_pylist():
        marks = str(row["state"]).upper().split("+")
        try:
            node = parse_node_name(row["node"])
        except ValueError:
            continue
        if "DOWN" in marks or "NOT_RESPONDING" in marks:
            found[node] = Condition.DOWN
        else:
            found[node] = Condition.DRAINED if "DRAIN" in marks else None
    return found


def read_storage_bytes(storage: pa.Table) -> int:
    """Return the capacity of the file systems that rows name, each target once."""
    targets = storage.filter(pc.starts_with(storage["device"], _TARGETS))
    by_target: dict[str, float] = {}
    for row in targets.select(list(STORAGE_COLUMNS)).to_pylist():
        size = row["lustre_capacity_bytes"]
        if size is not None and size >= 0:
            by_target[row["device"]] = max(size, by_target.get(row["device"], 0.0))
    return round(sum(by_target.values()))
