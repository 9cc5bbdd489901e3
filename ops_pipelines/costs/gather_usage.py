"""What became of each installed GPU, read from the lake day by day and kept as sums; and checks of it.

A month of a large cluster is never held as rows: one local day is, and its sums stay. What took nodes from work is
`states`'. No money here.

The usage ledger assigns seconds node by node; the check adds the same rows up attempt by attempt, without looking at
anything else. Who has more than he claims was counted twice; who has less is named by a refused row, or was lost. Draw
is of GPUs alone: a site that meters its racks pays for that reading (`Installed.joules`), and what is beyond these sums
is then the operator's.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING

from ops_pipelines.core.cluster import HOUR, hour_of
from ops_pipelines.core.periods import BilledPart, CostMonth, month_to_date, whole_month
from ops_pipelines.core.policy import RequestRefused
from ops_pipelines.costs.charges import OwnerReader
from ops_pipelines.costs.statement import Held
from ops_pipelines.costs.states import FoundStates, find_states
from ops_pipelines.costs.usage import NO_TEAM, Bearer, PartUsage, UsageLine, join_usage
from ops_pipelines.teams.desk import NoTeams, TeamsDesk
from ops_pipelines.teams.price import InstalledAsset

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from ops_pipelines.costs.usage_ledger import UsageLedger
    from ops_pipelines.lake.quantities import Refused

# -- whether each attempt is in the usage ledger once --


_HOUR = timedelta(hours=1)
_WHOLE_GPU_SECONDS = 3_600
"""Accounting shares an attempt's GPUs out over its nodes, the ledger gives out whole ones: within an hour the two may
differ by one GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFaults:
    """Attempts, as `job attempt`, that the ledger does not have exactly once."""

    counted_twice: tuple[str, ...]
    lost: tuple[str, ...]


def find_attempt_faults(ledger: "UsageLedger", allocations: "pa.Table") -> AttemptFaults:
    """Return the attempts of rows that the ledger made of them counts twice, or has lost without a word."""
    import pandas as pd

    lines = [(f"{line.job} {line.attempt}", line.gpu_seconds) for line in ledger.lines if line.job]
    counted = pd.DataFrame(lines, columns=["name", "counted"]).groupby("name")["counted"].sum()
    found = _claims(ledger, allocations).join(counted, how="outer").fillna(0.0)
    # Fractions of a second are cut off at both ends of an interval.
    slack = found["hours"] * (_WHOLE_GPU_SECONDS + 2 * found["gpus"])
    is_named = found.index.isin({" ".join(each.record.split(" ")[:2]) for each in ledger.refused})
    twice = found.index[found["counted"] > found["claimed"] + slack]
    lost = found.index[(found["counted"] < found["claimed"] - slack) & ~is_named]
    return AttemptFaults(counted_twice=tuple(sorted(twice)), lost=tuple(sorted(lost)))


def _claims(ledger: "UsageLedger", allocations: "pa.Table") -> "pd.DataFrame":
    """Return by attempt, as `job attempt`, the GPU-seconds `claimed`, the most `gpus`, and in how many `hours`.

    Of rows of one key the largest claim counts, and the ledger names the others.
    """
    rows = allocations.select(["job", "attempt", "node", "time", "started_at", "ended_at", "gpu_count"]).to_pandas()
    since = rows[["time", "started_at"]].max(axis="columns").clip(lower=ledger.part.since)
    until = rows[["ended_at"]].assign(hour=rows["time"] + _HOUR).min(axis="columns").clip(upper=ledger.part.until)
    rows["claimed"] = (until - since).dt.total_seconds() * rows["gpu_count"]
    rows["name"] = rows["job"] + " " + rows["attempt"]
    held = rows[(since < until) & (rows["gpu_count"] != 0)].dropna(subset="gpu_count").sort_values("claimed")
    each = held.drop_duplicates(["name", "node", "time"], keep="last").groupby("name")
    return each.agg(claimed=("claimed", "sum"), gpus=("gpu_count", "max"), hours=("time", "nunique"))


# -- the usage ledger and gpu_efficiency -> whose GPUs drew how many joules --


_COLUMNS = ("node", "job", "time", "power_watts")
EFFICIENCY_COLUMNS = (*_COLUMNS, "utilisation_ratio")
"""What usage and energy together read of gpu_efficiency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy by who caused it."""

    joules: Mapping[Held, int]
    unmeasured_gpu_seconds: Mapping[Held, int]
    """GPU-seconds whose power nobody measured: no energy of theirs is in `joules`."""


def read_energy(lines: Iterable[UsageLine], efficiency: "pa.Table") -> Energy:
    """Return whose GPUs drew what: mean power of a job's GPUs on a node in an hour, times the seconds it had them.

    GPUs that no job held are the row of the job ``.
    """
    watts = _mean_watts(efficiency)
    exact: dict[Held, Fraction] = {}
    unmeasured: dict[Held, int] = {}
    for line in lines:
        held = (Bearer(fate=line.fate, owner=line.owner), line.gpu_type)
        power = watts.get((line.node, line.job, line.since.replace(minute=0, second=0)))
        if power is None:
            unmeasured[held] = unmeasured.get(held, 0) + line.gpu_seconds
        else:
            exact[held] = exact.get(held, Fraction(0)) + line.gpu_seconds * power
    return Energy(joules={held: round(amount) for held, amount in exact.items()}, unmeasured_gpu_seconds=unmeasured)


def _mean_watts(efficiency: "pa.Table") -> dict[tuple[str, str, datetime], Fraction]:
    found: dict[tuple[str, str, datetime], Fraction] = {}
    for row in efficiency.select(list(_COLUMNS)).to_pylist():
        power = row["power_watts"]
        if power is not None and math.isfinite(power) and power >= 0:
            # Whole milliwatts: sums of fractions of a float's size would grow without end.
            hour = row["time"].astimezone(UTC)
            found[row["node"], row["job"], hour] = Fraction(round(power * 1_000), 1_000)
    return found


_REFUSED_SHOWN = 200
"""Refused rows that are kept with their words; all of them are counted."""
_FAULTS_SHOWN = 50


class NothingYet(RequestRefused):
    """Of the month that is asked for no hour is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that was not believed, or time that was claimed and not given."""

    record: str
    """Job, attempt, node and hour. Untrusted."""
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DayUsage:
    """What became of all that was installed on one local day, as far as it is in the part."""

    day: date
    usage: PartUsage
    assets: tuple[InstalledAsset, ...]
    joules: Mapping[Held, int]
    unmeasured_gpu_seconds: Mapping[Held, int]
    """GPU-seconds whose power nobody measured."""
    storage_byte_seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCount:
    """Whether each attempt is in the ledger once."""

    count: int = 0
    counted_twice: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def is_each_once(self) -> bool:
        return not self.counted_twice and not self.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthUsage:
    """The usage of a part of a month."""

    part: BilledPart
    days: tuple[DayUsage, ...]
    attempts: AttemptCount
    refused_by_reason: Mapping[str, int]
    refused: tuple[RefusedRow, ...]
    """The first ones; how many there are of each kind is beside them."""
    notes: tuple[str, ...]
    """What is not known, in words."""
    total: PartUsage = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", join_usage(self.part, (each.usage for each in self.days)))

    @property
    def residual_gpu_seconds(self) -> int:
        """Installed GPU-seconds that stand in no line, or in two."""
        told = sum(each.gpu_seconds for each in self.total.by_bearer.values())
        return sum(self.total.installed.values()) - told


def part_of(month: CostMonth, *, now: datetime) -> BilledPart:
    """Return the month, or as much of it as is over; raise NothingYet before its first hour is."""
    if now >= month.ends_at:
        return whole_month(month)
    part = month_to_date(month, now=now)
    if part is None:
        first = f"{month.begins_at + HOUR:%Y-%m-%d %H:%M} UTC"
        raise NothingYet(f"of {month.name} no hour is over yet; ask again after {first}")
    return part


def usage_of(part: BilledPart, desk: TeamsDesk) -> MonthUsage:
    """Return what became of what was installed in a part of a month. Raises LakeError, LedgerError and NoTeams."""
    from ops_pipelines.costs.usage import days_of

    if not desk.installed:
        raise NoTeams("cluster.yaml names no nodes under `racks`; without a register of nodes no hour can be counted")
    reading = _Reading(desk=desk, owners=OwnerReader(agreements=desk.agreements), found=find_states(part, desk))
    days = tuple(reading.read_day(day, piece) for day, piece in days_of(part, zone=desk.zone))
    return MonthUsage(
        part=part,
        days=days,
        attempts=AttemptCount(
            count=sum(len(each) for each in reading.begun.values()),
            counted_twice=tuple(reading.counted_twice[:_FAULTS_SHOWN]),
            lost=tuple(reading.lost[:_FAULTS_SHOWN]),
        ),
        refused_by_reason=dict(sorted(reading.reasons.items())),
        refused=tuple(reading.refused),
        notes=(*reading.found.notes, *_notes(reading, days, desk)),
    )


@dataclass(slots=True, kw_only=True)
class _Reading:
    """What is carried from day to day while a month is read."""

    desk: TeamsDesk
    owners: OwnerReader
    found: FoundStates
    begun: dict[str, set[tuple[datetime, str]]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    refused: list[RefusedRow] = field(default_factory=list)
    counted_twice: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def read_day(self, day: date, part: BilledPart) -> DayUsage:
        """Read one day of the lake and keep its sums."""
        from ops_pipelines.costs.holds import ALLOCATION_COLUMNS
        from ops_pipelines.costs.usage_ledger import read_usage

        lake = self.desk.lake
        # A part may begin within an hour of UTC, as days of India do: the rows of that hour are both days'.
        since = hour_of(part.since)
        allocations = lake.read("job_allocations", start=since, end=part.until, columns=ALLOCATION_COLUMNS)
        efficiency = lake.read("gpu_efficiency", start=since, end=part.until, columns=EFFICIENCY_COLUMNS)
        ledger = read_usage(
            part,
            nodes=self.desk.installed,
            states=[
                each
                for each in self.found.states
                if each.since < part.until and (each.until is None or each.until > part.since)
            ],
            allocations=allocations,
            efficiency=efficiency,
            owner_of=self.owners,
            begun=self.begun,
        )
        for job, attempts in ledger.begins.items():
            self.begun.setdefault(job, set()).update(attempts)
        self._keep_refused(ledger.refused)
        self._keep_faults(find_attempt_faults(ledger, allocations))
        energy = read_energy(ledger.lines, efficiency)
        return DayUsage(
            day=day,
            usage=ledger.summed(),
            assets=ledger.installed,
            joules=dict(energy.joules),
            unmeasured_gpu_seconds={held: each for held, each in energy.unmeasured_gpu_seconds.items() if each},
            storage_byte_seconds=_storage_byte_seconds(part, self.desk),
        )

    def _keep_refused(self, refused: "tuple[Refused, ...]") -> None:
        self.reasons.update(each.reason for each in refused)
        room = _REFUSED_SHOWN - len(self.refused)
        self.refused += [
            RefusedRow(record=each.record, reason=each.reason, detail=each.detail) for each in refused[: max(0, room)]
        ]

    def _keep_faults(self, faults: "AttemptFaults") -> None:
        self.counted_twice += [each for each in faults.counted_twice if each not in self.counted_twice]
        self.lost += [each for each in faults.lost if each not in self.lost]


def _storage_byte_seconds(part: BilledPart, desk: TeamsDesk) -> int:
    """Return how much storage stood there: its size once an hour, times the hour; 0 where storage has no price."""
    if desk.prices is None or not desk.prices.cents_per_tib_month:
        return 0
    from ops_pipelines.costs.holds import STORAGE_COLUMNS, read_storage_bytes

    total, size, hour = 0, 0, hour_of(part.since)
    while hour < part.until:
        # Two grid times are enough: file systems grow by days.
        rows = desk.lake.read(
            "storage_telemetry", start=hour, end=hour + 2 * desk.observatory.step, columns=STORAGE_COLUMNS
        )
        size = read_storage_bytes(rows) or size  # An hour without a reading is as the one before.
        seconds = (min(hour + HOUR, part.until) - max(hour, part.since)).total_seconds()
        total += size * int(seconds)
        hour += HOUR
    return total


def _notes(reading: _Reading, days: tuple[DayUsage, ...], desk: TeamsDesk) -> list[str]:
    notes = []
    total = sum(sum(each.usage.installed.values()) for each in days)
    unmeasured = sum(sum(each.unmeasured_gpu_seconds.values()) for each in days)
    if unmeasured:
        notes.append(f"of {unmeasured / 3600:,.1f} of {total / 3600:,.1f} GPU-hours nobody measured the power")
    if reading.owners.strangers:
        named = sorted(reading.owners.strangers)
        notes.append(f"{len(named)} accounts are in no agreement, each a team of its own: {', '.join(named[:10])}")
    unowned = sum(
        used.gpu_seconds
        for each in days
        for (bearer, _), used in each.usage.by_bearer.items()
        if bearer.owner is not None and bearer.owner.team == NO_TEAM
    )
    if unowned:
        notes.append(f"{unowned / 3600:,.1f} GPU-hours were of jobs without an account")
    if desk.prices is not None and desk.prices.cents_per_tib_month:
        notes.append("how much storage each team fills is not measured: all of it is idle and nobody's")
    return notes
