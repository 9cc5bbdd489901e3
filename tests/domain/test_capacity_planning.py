from collections.abc import Sequence
from dataclasses import replace
from datetime import date

import pytest

from ops_pipelines.capacity.chances import DayProfile
from ops_pipelines.capacity.model import CapacityForecast, SeriesKey, SeriesOutlook, SupplyWeek, Way, WeekPeak
from ops_pipelines.capacity.planning import PlanInputs, make_plan
from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.teams.projects import CapacityPolicy, CapacitySettings, LeadTime, StoreExpansion
from tests.domain.capacity_examples import AS_OF, H100, certain, day, sku, usable

POLICY = CapacityPolicy(horizon_weeks=10)
SCRATCH = SeriesKey(resource="storage_bytes", name="/scratch")


def series(peaks: Sequence[float], *, key: SeriesKey) -> SeriesOutlook:
    return SeriesOutlook(
        key=key, treatment="ordinary", weeks=tuple(certain(peak, week=number) for number, peak in enumerate(peaks))
    )


def gpus(peaks: Sequence[float], *, gpu_type: GpuType = H100) -> SeriesOutlook:
    return series(peaks, key=SeriesKey(resource="gpus", gpu_type=gpu_type))


def supply_of(gpu_type: GpuType = H100, *, amount: float = 100.0, weeks: int = 10) -> tuple[SupplyWeek, ...]:
    return tuple(replace(usable((amount, 1.0), week=number), gpu_type=gpu_type) for number in range(weeks))


def forecast(
    demand: Sequence[SeriesOutlook], supply: Sequence[SupplyWeek], *, further: Sequence[SeriesOutlook] = ()
) -> CapacityForecast:
    return CapacityForecast(
        cluster="c",
        quarter="2026Q4",
        as_of=AS_OF,
        timezone="UTC",
        outlooks=(*demand, *further),
        with_projects=tuple(demand),
        supply=tuple(supply),
        projects=(),
        vouched_weeks=4,
        notes=(),
    )


INPUTS = PlanInputs(
    settings=CapacitySettings(
        skus=(sku(),),
        expansions=(
            StoreExpansion(
                resource="storage_bytes", names=("/scratch",), step=50.0, step_cents=Cents(10),
                lead_time=LeadTime(median_days=7, p90_days=7),
            ),
        ),
        cloud_cents_per_gpu_hour={H100: Cents(300)},
    ),
    policy=POLICY,
    currency="EUR",
    profiles={H100: DayProfile(near_peak_hours=10.0)},
    limits={SCRATCH: 100.0},
)  # fmt: skip
SHORT = [90.0] * 5 + [108.0] * 5


def test_a_plan_says_what_is_short_what_to_order_and_what_else_could_be_done() -> None:
    plan = make_plan(forecast([gpus(SHORT)], supply_of()), INPUTS)

    assert [each.shortage_probability for each in plan.short_weeks] == [0.0] * 5 + [1.0] * 5
    assert plan.short_weeks[5].expected_short_gpu_hours == pytest.approx(560)
    assert [(each.what, each.count, each.order_by) for each in plan.orders] == [("hgx", 1, day(7))]
    assert [each.way for each in plan.alternatives] == [
        Way.NOTHING, Way.BUY, Way.CLOUD, Way.QUOTAS, Way.EFFICIENCY,
    ]  # fmt: skip
    assert [each.nodes for each in plan.regret] == [0, 1, 2]
    assert (plan.currency, plan.quarter, plan.as_of) == ("EUR", "2026Q4", date(2026, 10, 1))
    assert len(plan.notes) == 3
    assert plan.notes[0].startswith("hgx: 1 is the fewest with which each week keeps the limit of 10 %")
    assert "70 of the week's 168" in plan.notes[1]


def test_a_type_that_is_not_short_has_a_line_and_no_alternatives() -> None:
    plan = make_plan(forecast([gpus([90.0] * 10)], supply_of()), INPUTS)

    assert [each.count for each in plan.orders] == [0]
    assert plan.alternatives == ()
    assert plan.regret == ()


def test_the_most_urgent_order_comes_first() -> None:
    a100 = GpuType("a100")
    plan = make_plan(
        forecast(
            [gpus(SHORT), gpus([90.0] * 10, gpu_type=a100)],
            (*supply_of(), *supply_of(a100)),
            further=[series([90.0] + [110.0] * 9, key=SCRATCH)],
        ),
        INPUTS,
    )

    assert [(each.series.resource, each.order_by) for each in plan.orders] == [
        ("storage_bytes", day(0)), ("gpus", day(7)), ("gpus", None),
    ]  # fmt: skip


def test_the_order_of_what_is_given_changes_nothing() -> None:
    a100 = GpuType("a100")
    demand, supply = [gpus(SHORT), gpus(SHORT, gpu_type=a100)], (*supply_of(), *supply_of(a100))

    assert make_plan(forecast(demand, supply), INPUTS) == make_plan(forecast(demand[::-1], supply[::-1]), INPUTS)


def test_a_name_of_an_expansion_that_nobody_measured_is_pointed_out() -> None:
    known, slip = (
        StoreExpansion(resource="storage_bytes", names=names, step=1.0, step_cents=Cents(1), lead_time=None)
        for names in ((SCRATCH.name,), ("scrath",))
    )
    given = forecast([gpus(SHORT)], supply_of(), further=[series([1.0] * 10, key=SCRATCH)])

    def notes_with(*stated: StoreExpansion) -> list[str]:
        settings = replace(INPUTS.settings, expansions=stated)
        return [each for each in make_plan(given, replace(INPUTS, settings=settings)).notes if "enlarged" in each]

    assert notes_with(known) == []
    assert notes_with(known, slip) == [
        "capacity.yaml says how storage_bytes of scrath is enlarged, and nothing was measured of it; check the name"
    ]


def test_what_is_missing_is_noted_and_never_taken_for_nothing() -> None:
    nothing = SeriesOutlook(key=SeriesKey(resource="gpus", gpu_type=GpuType("none")), treatment="short", weeks=())
    plan = make_plan(
        forecast(
            [gpus(SHORT, gpu_type=GpuType("b200")), nothing],
            supply_of(),
            further=[series([1.0] * 10, key=SeriesKey(resource="rack_watts", name="r1")), series([1.0], key=SCRATCH)],
        ),
        INPUTS,
    )

    assert plan.short_weeks == ()
    assert list(plan.notes) == [
        "b200: is requested, and nothing is known of its supply; not judged",
        "none: nothing is known of its demand, so no shortage either",
        "h100: is installed, and nothing is known of its demand; not judged",
        "1 further series (storage, links, power, cooling) stays within its limit; what new nodes would add is not "
        "in them",
        "no limit is known of rack_watts r1; not judged",
    ]


def test_a_profile_that_nobody_measured_a_short_forecast_and_missing_statements_are_noted() -> None:
    bare = PlanInputs(settings=CapacitySettings(skus=(sku(days=None),)), policy=POLICY)

    plan = make_plan(forecast([gpus(SHORT[2:8])], supply_of()), bare)

    assert any("6 weeks are known of 10" in each for each in plan.notes)
    assert any("8 of each day are assumed" in each for each in plan.notes)
    assert any("hgx: no lead time is stated" in each for each in plan.notes)
    assert any("no prices are stated" in each for each in plan.notes)


def test_weeks_beyond_the_policy_s_horizon_are_not_judged() -> None:
    plan = make_plan(forecast([gpus([90.0] * 10 + [500.0] * 5)], supply_of(weeks=15)), INPUTS)

    assert len(plan.short_weeks) == 10
    assert plan.orders[0].short_from is None


def test_beside_an_order_stands_the_number_that_costs_least() -> None:
    short = make_plan(forecast([gpus(SHORT)], supply_of()), INPUTS)
    calm = make_plan(forecast([gpus([90.0] * 10)], supply_of()), INPUTS)

    assert short.orders[0].count == 1
    (told,) = [each for each in short.notes if "by expected cost alone" in each]
    for place, ratio in enumerate(short.regret_ratios):
        (best, *_) = [each.nodes for each in short.regret if not each.regret_by_ratio[place]]
        assert f" {best} at {ratio:g}" in told
    assert not any("expected cost" in each for each in calm.notes)


def test_teams_are_no_type_of_their_own() -> None:
    team = series(SHORT, key=SeriesKey(resource="gpus", gpu_type=H100, name="vision"))

    plan = make_plan(forecast([team], supply_of()), INPUTS)

    assert plan.orders == ()


def test_an_empty_forecast_is_an_empty_plan() -> None:
    plan = make_plan(forecast([], ()), INPUTS)

    assert (plan.orders, plan.short_weeks, plan.alternatives, plan.regret) == ((), (), (), ())


def test_demand_that_is_vouched_for_or_not_is_judged_alike() -> None:
    drawn = tuple(
        WeekPeak(first_day=each.first_day, quantiles=each.quantiles, is_vouched=False) for each in gpus(SHORT).weeks
    )

    assert make_plan(forecast([replace(gpus(SHORT), weeks=drawn)], supply_of()), INPUTS) == make_plan(
        forecast([gpus(SHORT)], supply_of()), INPUTS
    )
