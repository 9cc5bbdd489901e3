"""Whether each attempt is in the usage ledger once, and whose GPUs drew how many joules.

The ledger gives out seconds node by node; here the same rows are added up attempt by attempt, without looking at
anything else. Who has more than he claims was counted twice; who has less is named by a refused row, or was lost.

GPUs alone: what the rest of a node draws is in no row of them. A site that meters its racks pays for that reading
(`Installed.joules`), and what is beyond these sums is then the operator's.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pyarrow as pa

from ops_pipelines.costs.holds import ALLOCATION_COLUMNS
from ops_pipelines.costs.statement import Held
from ops_pipelines.costs.usage import Bearer, UsageLine
from ops_pipelines.costs.usage_ledger import UsageLedger

# -- whether each attempt stands in the usage ledger once --


_HOUR = timedelta(hours=1)
_WHOLE_GPU_SECONDS = 3_600
"""Accounting shares an attempt's GPUs out over its nodes, the ledger gives out whole ones: within an hour the two may
differ by one GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFaults:
    """Attempts, as `job attempt`, that the ledger does not have exactly once."""

    counted_twice: tuple[str, ...]
    lost: tuple[str, ...]


@dataclass(slots=True)
class _Claimed:
    gpu_seconds: float = 0.0
    hours: int = 0
    gpus: float = 0.0


def find_attempt_faults(ledger: UsageLedger, allocations: pa.Table) -> AttemptFaults:
    """Return the attempts of rows that the ledger made of them counts twice, or has lost without a word."""
    counted: dict[str, int] = {}
    for line in ledger.lines:
        if line.job:
            name = f"{line.job} {line.attempt}"
            counted[name] = counted.get(name, 0) + line.gpu_seconds
    named = {" ".join(each.record.split(" ")[:2]) for each in ledger.refused}
    twice, lost = [], []
    claimed = _claimed(ledger, allocations)
    for name in sorted({*claimed, *counted}):
        claim = claimed.get(name, _Claimed())
        # Fractions of a second are cut off at both ends of a stretch.
        slack = claim.hours * (_WHOLE_GPU_SECONDS + 2 * claim.gpus)
        has = counted.get(name, 0)
        if has > claim.gpu_seconds + slack:
            twice.append(name)
        elif has < claim.gpu_seconds - slack and name not in named:
            lost.append(name)
    return AttemptFaults(counted_twice=tuple(twice), lost=tuple(lost))


def _claimed(ledger: UsageLedger, allocations: pa.Table) -> dict[str, _Claimed]:
    """Return what each attempt claims; of rows of one key the largest claim, and the ledger names the others."""
    rows: dict[tuple[object, ...], tuple[float, float]] = {}
    for row in allocations.select(list(ALLOCATION_COLUMNS)).to_pylist():
        since = max(row["time"], row["started_at"] or row["time"], ledger.part.since)
        until = min(row["time"] + _HOUR, row["ended_at"] or row["time"] + _HOUR, ledger.part.until)
        if since >= until or not row["gpu_count"]:
            continue
        key = (row["job"], row["attempt"], row["node"], row["time"])
        claim = (until - since).total_seconds() * row["gpu_count"], row["gpu_count"]
        rows[key] = max(rows.get(key, claim), claim)
    found: dict[str, _Claimed] = {}
    hours: dict[str, set[object]] = {}
    for (job, attempt, _, hour), (gpu_seconds, gpu_count) in rows.items():
        name = f"{job} {attempt}"
        claimed = found.setdefault(name, _Claimed())
        claimed.gpu_seconds += gpu_seconds
        claimed.gpus = max(claimed.gpus, gpu_count)
        hours.setdefault(name, set()).add(hour)
        claimed.hours = len(hours[name])
    return found


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


def read_energy(lines: Iterable[UsageLine], efficiency: pa.Table) -> Energy:
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


def _mean_watts(efficiency: pa.Table) -> dict[tuple[str, str, datetime], Fraction]:
    found: dict[tuple[str, str, datetime], Fraction] = {}
    for row in efficiency.select(list(_COLUMNS)).to_pylist():
        power = row["power_watts"]
        if power is not None and math.isfinite(power) and power >= 0:
            # Whole milliwatts: sums of fractions of a float's size would grow without end.
            hour = row["time"].astimezone(UTC)
            found[row["node"], row["job"], hour] = Fraction(round(power * 1_000), 1_000)
    return found
