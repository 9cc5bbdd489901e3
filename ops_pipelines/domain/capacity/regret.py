"""What it costs to order too few or too many nodes, in the mean, at several prices of a shortage over idleness.

Idle is what is bought and usable and not wanted; short is what is wanted and not there; both over the same hours of the
weeks from which an order of today serves. The price of an idle GPU-hour is the SKU's: price over its months, and
support; energy is not in it, for what is idle draws less. Small where ratio / (1 + ratio) of the peaks are served.
"""

from collections.abc import Sequence
from datetime import date
from fractions import Fraction

from ops_pipelines.core.money import Cents, to_cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.domain.capacity.need import TypeWeek
from ops_pipelines.domain.capacity.plan import RegretRow
from ops_pipelines.domain.capacity.shortage import DayProfile, short_hours
from ops_pipelines.domain.capacity.supply import points_with_more, usable_ratio
from ops_pipelines.teams.projects import Sku

_HOURS_A_MONTH = Fraction(365 * 24, 12)
_STEPS = 12


def cents_per_gpu_hour(sku: Sku) -> Fraction:
    """Return what one GPU of the SKU costs in an hour, used or not; in cents."""
    monthly = Fraction(sku.node_cents, sku.amortized_months) + sku.support_cents_per_month
    return monthly / sku.gpus_per_node / _HOURS_A_MONTH


def counts_around(nodes: int) -> tuple[int, ...]:
    """Return 0, the number itself with its neighbours, and even steps up to twice of it; 0 to 2 for 0."""
    last = max(2, 2 * nodes)
    even = {last * number // _STEPS for number in range(_STEPS + 1)}
    return tuple(sorted(even | {nodes, nodes + 1, max(0, nodes - 1)}))


def regret_rows(
    gpu_type: GpuType,
    weeks: Sequence[TypeWeek],
    sku: Sku,
    profile: DayProfile,
    *,
    nodes: int,
    since: date,
    ratios: Sequence[float],
) -> tuple[RegretRow, ...]:
    """Return a row for each of `counts_around(nodes)`; none where no week begins on `since` or later."""
    judged = [each for each in weeks if each.first_day >= since]
    if not judged:
        return ()
    hour_cents = cents_per_gpu_hour(sku)
    counts = counts_around(nodes)
    short = [
        sum(
            short_hours(week.tail, points_with_more(week.supply, count * sku.gpus_per_node), profile) for week in judged
        )
        for count in counts
    ]
    # Of what is bought and usable, all is used but what does not make a shortage smaller.
    usable_hours = profile.counted_hours * sum(usable_ratio(week.supply) for week in judged)
    idle = [
        max(0.0, count * sku.gpus_per_node * usable_hours - (short[0] - left))
        for count, left in zip(counts, short, strict=True)
    ]
    costs = [
        [hour_cents * (Fraction(unused) + Fraction(ratio) * Fraction(left)) for ratio in ratios]
        for unused, left in zip(idle, short, strict=True)
    ]
    rounded = [[to_cents(each) for each in row] for row in costs]
    best = [min(row[place] for row in rounded) for place in range(len(ratios))]
    return tuple(
        RegretRow(
            gpu_type=gpu_type,
            nodes=count,
            short_gpu_hours=left,
            idle_gpu_hours=unused,
            cents_by_ratio=tuple(row),
            regret_by_ratio=tuple(Cents(each - low) for each, low in zip(row, best, strict=True)),
        )
        for count, left, unused, row in zip(counts, short, idle, rounded, strict=True)
    )
