"""Attempts as intervals in which a job ran or waited, which type of GPU it held, and what was held unused.

Accounting has no type. A cluster of which no type is known has one, called ``. The lake's `job_accounting` has attempts
when they end; who runs is seen in the hours that it held nodes. These hours become rows of accounting, and an attempt
that was seen no more before the newest hour ends with its last.

Idle is what the rules call idle. Of a row where half of the GPUs or more do nothing beside others that work, half is
counted: that much is known.

Demand is what more GPUs, or a higher quota, would have started: also what the team's own cap holds back. A reason that
the table does not have counts, and is reported. A job waits from the time at which it could have started to its start;
one that was requeued, from the end of one attempt to the start of the next.
"""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.quotas.attempts import NEVER, Attempts, Flags, Texts
from ops_pipelines.quotas.recorded import Whole

# -- which type of GPU attempts held, from their nodes --


UNTOLD = GpuType("")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTypes:
    """Where which type is built in."""

    by_node: Mapping[NodeName, GpuType] = field(default_factory=dict)
    by_partition: Mapping[str, GpuType] = field(default_factory=dict)

    @property
    def names(self) -> tuple[GpuType, ...]:
        """All types that can come out, in alphabetical order: what is not known first."""
        return tuple(sorted({UNTOLD, *self.by_node.values(), *self.by_partition.values()}))

    @property
    def only(self) -> GpuType | None:
        """The type of the whole cluster if it has one, None if it has several."""
        found = {*self.by_node.values(), *self.by_partition.values()}
        return next(iter(found)) if len(found) == 1 else None if found else UNTOLD

    def of_nodes(self, host_list: str) -> Mapping[GpuType, float]:
        """Return what share of the GPUs of an attempt on these nodes is of which type."""
        nodes = self._nodes(host_list)
        counts = Counter(self.by_node.get(node, UNTOLD) for node in nodes)
        return {kind: count / len(nodes) for kind, count in sorted(counts.items())} or {UNTOLD: 1.0}

    def of_node(self, node: str) -> GpuType:
        return self.by_node.get(NodeName(node), UNTOLD)

    def wanted_in(self, partition: str) -> GpuType:
        """Return the type that a job in a partition, or in one of several `a,b`, waits for."""
        if self.only is not None:
            return self.only
        found = {self.by_partition.get(name, UNTOLD) for name in partition.split(",")}
        return found.pop() if len(found) == 1 else UNTOLD

    @staticmethod
    def _nodes(host_list: str) -> Sequence[NodeName]:
        try:
            return expand_host_list(host_list) if host_list else ()
        except ValueError:
            return ()


def partition_types(inventory: pa.Table, by_node: Mapping[NodeName, GpuType]) -> Mapping[str, GpuType]:
    """Return the type of each partition whose nodes all have it, by rows of the inventory."""
    found: dict[str, set[GpuType]] = {}
    for node, partitions in zip(inventory["node"].to_pylist(), inventory["partitions"].to_pylist(), strict=True):
        for name in (partitions or "").split(","):
            if name:
                found.setdefault(name, set()).add(by_node.get(NodeName(node), UNTOLD))
    return {name: kinds.pop() for name, kinds in sorted(found.items()) if len(kinds) == 1 and UNTOLD not in kinds}


def shares_of(host_lists: Texts, types: GpuTypes) -> Sequence[Mapping[GpuType, float]]:
    """Return the shares of each distinct host list, in the order of its words. Each is read once."""
    if not types.by_node:
        return [{types.only or UNTOLD: 1.0}] * len(host_lists.words)
    return [types.of_nodes(word) for word in host_lists.words]


# -- attempts that only `job_allocations` know --


_HOUR = timedelta(hours=1)
_HELD_COLUMNS = (
    "job",
    "attempt",
    "node",
    "time",
    "account",
    "partition",
    "state",
    "started_at",
    "ended_at",
    "gpu_count",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WithRunning:
    """Rows of accounting, with rows of the same form for who runs."""

    attempts: pa.Table
    unseen: int
    """Attempts whose end nobody reported, and that the newest hours do not show."""
    alone: int
    """Attempts that accounting does not have: when they were submitted is not known."""


def with_running(attempts: pa.Table, allocations: pa.Table) -> "WithRunning":
    """Return the rows of accounting with what only allocations know."""
    if not allocations.num_rows:
        return WithRunning(attempts=attempts, unseen=0, alone=0)
    covered = pc.max(allocations["time"]).as_py() + _HOUR
    has_end = pc.is_valid(attempts["ended_at"])
    over = attempts.filter(has_end).select(["job", "started_at"])
    # Most attempts are over: what remains is put together, not the hours of all.
    remaining = allocations.select(list(_HELD_COLUMNS)).join(over, keys=["job", "started_at"], join_type="left anti")
    running = _by_attempt(remaining).sort_by([("job", "ascending"), ("started_at", "ascending")])
    unseen = 0
    held: dict[tuple[str, datetime], dict[str, object]] = {}
    for row in running.to_pylist():
        if row["ended_at"] is None and row["time"] + _HOUR < covered:
            row["ended_at"] = row["time"] + _HOUR
            unseen += 1
        held[row["job"], row["started_at"]] = row
    told = _with_ends(attempts, held, has_end=has_end)
    return WithRunning(attempts=_appended(told, list(held.values())), unseen=unseen, alone=len(held))


def _with_ends(
    attempts: pa.Table, held: dict[tuple[str, datetime], dict[str, object]], *, has_end: pa.ChunkedArray
) -> pa.Table:
    """Return the rows with the ends that allocations know, and take these attempts out of `held`."""
    places = np.flatnonzero(~has_end.to_numpy())
    known = {}
    some = attempts.select(["job", "started_at"]).take(pa.array(places))
    for place, row in zip(places.tolist(), some.to_pylist(), strict=True):
        if (row["job"], row["started_at"]) in held:
            known[place] = row["job"], row["started_at"]
    if not known:
        return attempts
    ends = attempts["ended_at"].to_pylist()
    for place, key in known.items():
        ends[place] = held[key]["ended_at"]
    for key in set(known.values()):
        del held[key]
    column = attempts.schema.get_field_index("ended_at")
    return attempts.set_column(column, "ended_at", pa.array(ends, attempts.schema.field(column).type))


def _by_attempt(allocations: pa.Table) -> pa.Table:
    """Return a row for each attempt: GPUs and nodes of its nodes, each node once, and its newest hour."""
    node = allocations.group_by(["job", "started_at", "node"]).aggregate(
        [
            ("gpu_count", "max"),
            ("attempt", "min"),
            ("account", "max"),
            ("partition", "max"),
            ("ended_at", "max"),
            ("time", "max"),
        ]
    )
    newest = allocations.sort_by([("time", "ascending"), ("state", "ascending")]).group_by(
        ["job", "started_at"], use_threads=False
    )
    states = newest.aggregate([("state", "last")])
    whole = (
        node.sort_by([("node", "ascending")])
        .group_by(["job", "started_at"], use_threads=False)
        .aggregate(
            [
                ("gpu_count_max", "sum"),
                ("attempt_min", "min"),
                ("account_max", "max"),
                ("partition_max", "max"),
                ("ended_at_max", "max"),
                ("time_max", "max"),
                ("node", "list"),
            ]
        )
    )
    names = {
        "gpu_count_max_sum": "gpu_count", "attempt_min_min": "attempt", "account_max_max": "account",
        "partition_max_max": "partition", "ended_at_max_max": "ended_at", "time_max_max": "time",
        "node_list": "nodes", "state_last": "state",
    }  # fmt: skip
    nodes = pc.binary_join(whole["node_list"], ",")
    whole = whole.set_column(whole.schema.get_field_index("node_list"), "node_list", nodes)
    joined = whole.join(states, keys=["job", "started_at"])
    return joined.rename_columns([names.get(name, name) for name in joined.column_names])


def _appended(attempts: pa.Table, rows: list[dict[str, object]]) -> pa.Table:
    if not rows:
        return attempts
    schema = attempts.schema
    if "gpu_count" in schema.names:
        # GPUs by node are shares, and accounting may not say a number at all: a fraction must not be cut.
        place = schema.get_field_index("gpu_count")
        attempts = attempts.set_column(place, "gpu_count", attempts["gpu_count"].cast(pa.float64()))
        schema = attempts.schema
    columns = {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in schema}
    return pa.concat_tables(
        [attempts, pa.table(columns, schema=schema.remove_metadata())], promote_options="permissive"
    )


# -- verdicts of `gpu_efficiency` -> GPUs that a team held and nothing ran on, by hour --


_IDLE = "idle"
_HALF_IDLE = "half_idle"
_HOUR_SECONDS = 3600.0

Wasted = Mapping[tuple[TeamName, GpuType, datetime], float]


def read_waste(efficiency: pa.Table, *, types: GpuTypes) -> tuple[Wasted, float]:
    """Return mean idle GPUs by team, type and hour, and the GPU-hours of rows that name no account.

    Of jobs that share GPUs which cannot be separated each counts all of them: anyone who uses the sums bounds them.
    """
    idle = efficiency.filter(pc.fill_null(pc.equal(efficiency["verdict"], _IDLE), False))
    # GPUs that nobody held belong to no team.
    idle = idle.filter(pc.not_equal(idle["job"], ""))
    found: defaultdict[tuple[TeamName, GpuType, datetime], float] = defaultdict(float)
    untold = 0.0
    names = ("node", "time", "account", "rule", "gpu_count", "held_seconds")
    columns = [idle[name].to_pylist() for name in names]
    for node, time, account, rule, count, seconds in sorted(
        zip(*columns, strict=True), key=lambda row: (row[1], row[0], row[2] or "", row[4] or 0.0)
    ):
        gpus = (count or 0.0) * (seconds or 0.0) / _HOUR_SECONDS * (0.5 if rule == _HALF_IDLE else 1.0)
        if account:
            found[TeamName(account), types.of_node(node), time] += gpus
        else:
            untold += gpus
    return dict(found), untold


# -- why a job waits, in the scheduler's word -> whether its wait is demand --


class Counts(Enum):
    YES = "yes"
    NO = "no"
    FROM_ELIGIBLE = "from_eligible"
    """From the time at which the scheduler says that it could have started; where it says none, not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitReason:
    """One row of the catalogue."""

    reason: str
    """As the scheduler writes it; `*` means anything."""
    counts: Counts
    says: str
    source: str
    checked_on: date


_WORD = re.compile(r"[A-Za-z_ ]+")
_REASON_COLUMNS = ("reason", "counts", "says", "source", "checked_on")


@cache
def read_wait_reasons() -> tuple[WaitReason, ...]:
    """Return the rows; the first that fits counts. Raises ValueError with the line that cannot be right."""
    text = files("ops_pipelines.catalogue").joinpath("wait_reasons.csv").read_text(encoding="utf-8")
    found = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            found.append(_row(row))
        except (KeyError, ValueError, TypeError) as exc:
            raise ValueError(f"catalogue/wait_reasons.csv, line {number}: {exc}") from exc
    return tuple(found)


def find_reason(text: str) -> WaitReason | None:
    """Return the row for a reason, also for `ReqNodeNotAvail, UnavailableNodes:gpu003`; None if there is none."""
    found = _WORD.match(text.strip().lstrip("("))
    word = found[0].strip().replace(" ", "_") if found else ""
    return next((row for row in read_wait_reasons() if fnmatchcase(word, row.reason)), None)


def _row(row: Mapping[str, str]) -> WaitReason:
    if not all(row[name] for name in _REASON_COLUMNS):
        raise ValueError(f"expected all of {', '.join(_REASON_COLUMNS)}")
    return WaitReason(
        reason=row["reason"],
        counts=Counts(row["counts"]),
        says=row["says"],
        source=row["source"],
        checked_on=date.fromisoformat(row["checked_on"]),
    )


# -- attempts -> intervals of time in which a job ran or waited, each moment of a job once --


_HOLD_OFF = timedelta(seconds=180) // timedelta(microseconds=1)
"""A requeued job may become eligible so long after its end by Slurm's own doing; later, somebody held it."""
COUNTS = ""
"""What is in `Waits.why_not` for a wait that counts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waits:
    """Intervals in which jobs waited: a row each."""

    of: Whole
    """Which attempt waited, or came of it: place in the attempts."""
    begin: Whole
    end: Whole
    """NEVER: it waits still."""
    why_not: Sequence[str]
    """Why it is no demand."""
    unknown_reasons: Mapping[str, int]
    """Reasons that the catalogue does not have, and how many waits they count for."""
    stale: int
    """Rows of waiting jobs that later rows have overtaken."""


def find_waits(found: Attempts) -> Waits:
    """Return when the jobs of these attempts waited."""
    has_run = found.started != NEVER
    # The attempt before: for one that ran the row before it, for one that did not the last that began before its end.
    before = _attempts_before(found, has_run=has_run)
    had_one = before >= 0
    ended_before = np.where(had_one, found.ended[before], -1)
    interrupted = had_one & found.is_interrupted[before]
    could_start = _could_start(found)
    requeued_at = np.where(_is_later(could_start, ended_before + _HOLD_OFF), could_start, ended_before)
    begin = np.where(
        interrupted & (ended_before != NEVER),
        requeued_at,
        np.where(could_start == NEVER, NEVER, np.maximum(could_start, ended_before)),
    )
    end = np.where(has_run, found.started, found.ended)
    is_new = found.submitted >= ended_before
    # A row of a waiting job that was read before the job ran: nobody waits any more.
    is_stale = ~has_run & had_one & ((ended_before >= end) | (~interrupted & ~is_new))
    waits = (begin < end) & ~is_stale
    places = np.flatnonzero(waits)
    ends = _once_at_a_time(found.job[places], begin[places], end[places])
    reasons = _verdicts(found.texts["reason"])
    why_not = _why_not(found, places, reasons=reasons, is_requeued=interrupted, is_held_back=_beyond(found, places))
    return Waits(
        of=places,
        begin=begin[places],
        end=ends,
        why_not=why_not,
        unknown_reasons=_unknown(found.texts["reason"], places),
        stale=int(is_stale.sum()),
    )


def _attempts_before(found: Attempts, *, has_run: Flags) -> Whole:
    """Return for each row the place of the last attempt of its job that started before it did, or gave up; else -1."""
    ran = np.flatnonzero(has_run)
    moments, ranks = np.unique(
        np.concatenate((found.started[ran], np.where(has_run, found.started, found.ended))), return_inverse=True
    )
    keys = found.job.astype(np.int64) * (len(moments) + 1)
    # Attempts stand by job and start, so that their keys rise.
    order = np.argsort(keys[ran] + ranks[: len(ran)], kind="stable")
    sorted_keys = (keys[ran] + ranks[: len(ran)])[order]
    place = np.searchsorted(sorted_keys, keys + ranks[len(ran) :], side="left") - 1
    before = np.full(len(keys), -1)
    is_there = place >= 0
    before[is_there] = ran[order][place[is_there]]
    is_there &= found.job[before] == found.job
    return np.where(is_there, before, -1)


def _could_start(found: Attempts) -> Whole:
    """Return when each could first have started; NEVER where nobody says."""
    no_time = found.eligible == NEVER
    submitted = np.where(found.submitted == NEVER, -1, found.submitted)
    return np.where(no_time, found.submitted, np.maximum(found.eligible, submitted))


def _is_later(times: Whole, than: Whole) -> Flags:
    is_later: Flags = (times != NEVER) & (times > than)
    return is_later


def _once_at_a_time(job: Whole, begin: Whole, end: Whole) -> Whole:
    """Return the ends, none later than where the next wait of the same job begins."""
    order = np.lexsort((end, begin, job))
    cut = end[order]
    is_followed = np.append(job[order][1:] == job[order][:-1], False) if len(order) else np.zeros(0, np.bool_)
    following = np.append(begin[order][1:], NEVER) if len(order) else begin
    cut = np.where(is_followed, np.minimum(cut, following), cut)
    ends = np.empty_like(end)
    ends[order] = cut
    return ends


def _beyond(found: Attempts, places: Whole) -> Flags:
    """Return which waiting tasks are more than their array lets run at once."""
    arrays, limits = found.texts["array_job"].codes[places], found.task_limit[places]
    order = np.lexsort((found.gpus[places], found.submitted[places], arrays))
    begins = np.searchsorted(arrays[order], arrays[order], side="left")
    is_beyond = np.empty(len(places), np.bool_)
    is_beyond[order] = (limits[order] > 0) & (np.arange(len(places)) - begins >= limits[order])
    return is_beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReasonMeanings:
    """For each distinct reason: whether it counts, and what it means."""

    counts: Sequence[Counts]
    says: Sequence[str]


def _verdicts(reasons: Texts) -> _ReasonMeanings:
    rows = [find_reason(word) if word else None for word in reasons.words]
    return _ReasonMeanings(
        counts=[Counts.YES if row is None else row.counts for row in rows],
        says=["" if row is None else f"{word}: {row.says}" for row, word in zip(rows, reasons.words, strict=True)],
    )


def _why_not(
    found: Attempts, places: Whole, *, reasons: _ReasonMeanings, is_requeued: Flags, is_held_back: Flags
) -> Sequence[str]:
    codes = found.texts["reason"].codes[places].tolist()
    is_told = ((found.eligible != NEVER) | is_requeued)[places].tolist()
    return [
        reasons.says[code]
        if reasons.counts[code] is Counts.NO or (reasons.counts[code] is Counts.FROM_ELIGIBLE and not told)
        else _BEYOND
        if beyond
        else COUNTS
        for code, told, beyond in zip(codes, is_told, is_held_back.tolist(), strict=True)
    ]


_BEYOND = "tasks beyond what their array lets run at once"


def _unknown(reasons: Texts, places: Whole) -> Mapping[str, int]:
    counts = np.bincount(reasons.codes[places], minlength=len(reasons.words))
    return {
        word: int(count)
        for word, count in sorted(zip(reasons.words, counts.tolist(), strict=True))
        if word and count and find_reason(word) is None
    }
