"""The usage ledger and gpu_efficiency -> whose GPUs drew how many joules, and for which nobody measured it.

GPUs alone: what the rest of a node draws is in no row of them. A site that meters its racks pays for that reading
(`Installed.joules`), and what is beyond these sums is then the operator's.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction

import pyarrow as pa

from ops_pipelines.domain.cost.lines import Held
from ops_pipelines.domain.cost.usage import Bearer, UsageLine

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
