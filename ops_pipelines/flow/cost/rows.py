"""A charge as rows for people: hours by fate and owner, and who bears how many cents of what. Sums; decides nothing.

The same rows stand in Dagster's pages and in the terminal. Every line of a statement is in exactly one row, so that
their totals are the cost of the assets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ops_pipelines.core.money import Cents
from ops_pipelines.domain.cost.lines import Line, Service
from ops_pipelines.domain.cost.statement import Statement
from ops_pipelines.domain.cost.usage import Bearer, Fate, PartUsage, Used

_HOUR_SECONDS = 3_600
_OPERATOR_ROWS = (Fate.IDLE, Fate.BROKEN, Fate.MAINTENANCE, Fate.OVERHEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursRow:
    """GPU-hours of one owner, or of one of the fates that are nobody's work."""

    fate: Fate
    team: str
    project: str
    gpu_hours: float
    used_gpu_hours: float
    wasted_gpu_hours: float
    """Held, measured, and without work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """What one owner pays, or what stays with the operator under one name."""

    fate: Fate
    team: str
    project: str
    gpu_hours: float
    cents: Mapping[Service, Cents] = field(default_factory=dict)

    @property
    def total_cents(self) -> Cents:
        return Cents(sum(self.cents.values()))

    def of(self, *services: Service) -> Cents:
        return Cents(sum(self.cents.get(each, 0) for each in services))


def hours_rows(usage: PartUsage) -> tuple[HoursRow, ...]:
    """Return the hours by bearer, all types of GPUs together: teams first, then what is nobody's."""
    sums: dict[Bearer, Used] = {}
    for (bearer, _), used in usage.by_bearer.items():
        before = sums.get(bearer, Used(gpu_seconds=0))
        sums[bearer] = Used(
            gpu_seconds=before.gpu_seconds + used.gpu_seconds,
            used_gpu_seconds=before.used_gpu_seconds + used.used_gpu_seconds,
            wasted_gpu_seconds=before.wasted_gpu_seconds + used.wasted_gpu_seconds,
        )
    return tuple(
        HoursRow(
            fate=bearer.fate,
            team="" if bearer.owner is None else bearer.owner.team,
            project="" if bearer.owner is None else bearer.owner.project,
            gpu_hours=sums[bearer].gpu_seconds / _HOUR_SECONDS,
            used_gpu_hours=sums[bearer].used_gpu_seconds / _HOUR_SECONDS,
            wasted_gpu_hours=sums[bearer].wasted_gpu_seconds / _HOUR_SECONDS,
        )
        for bearer in _in_order(sums)
    )


def hours_by_fate(usage: PartUsage) -> dict[Fate, float]:
    """Return the GPU-hours of each fate; together they are all that was installed."""
    found = dict.fromkeys(Fate, 0.0)
    for row in hours_rows(usage):
        found[row.fate] += row.gpu_hours
    return found


def cost_rows(statement: Statement) -> tuple[CostRow, ...]:
    """Return who bears what: teams first, then the lines of the operator, each of these whether it is 0 or not."""
    lines: dict[Bearer, list[Line]] = {Bearer(fate=fate): [] for fate in _OPERATOR_ROWS}
    for line in statement.lines:
        lines.setdefault(line.bearer, []).append(line)
    return tuple(_cost_row(bearer, lines[bearer]) for bearer in _in_order(lines))


def _cost_row(bearer: Bearer, lines: Iterable[Line]) -> CostRow:
    cents: dict[Service, Cents] = {}
    gpu_seconds = 0
    for line in lines:
        cents[line.service] = Cents(cents.get(line.service, 0) + line.cents)
        if line.service is Service.GPU:
            gpu_seconds += int(line.quantity)
    return CostRow(
        fate=bearer.fate,
        team="" if bearer.owner is None else bearer.owner.team,
        project="" if bearer.owner is None else bearer.owner.project,
        gpu_hours=gpu_seconds / _HOUR_SECONDS,
        cents=cents,
    )


def _in_order(bearers: Iterable[Bearer]) -> list[Bearer]:
    places = {fate: place for place, fate in enumerate(Fate)}
    return sorted(bearers, key=lambda each: (places[each.fate], each.names))
