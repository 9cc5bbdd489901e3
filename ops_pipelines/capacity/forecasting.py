"""What will be wanted and usable week by week, and the plan that follows."""

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING

from ops_pipelines.capacity.gather_supply import gather_supply
from ops_pipelines.capacity.model import Resource, SeriesKey, quarter_of
from ops_pipelines.capacity.order import Places, drawn_watts, find_room
from ops_pipelines.capacity.past import Completeness, NoHistory, Past, gather_batches, read_past
from ops_pipelines.capacity.plan import CapacityForecast, CapacityPlan
from ops_pipelines.capacity.planning import PlanInputs, make_plan
from ops_pipelines.capacity.project_mix import mix_projects
from ops_pipelines.capacity.refresh import judge_batches
from ops_pipelines.capacity.supply import supply_weeks
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.efficiency.kept import followed_ratio
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.projects import CapacitySettings

# -- what will be wanted and what will be usable, week by week --


__all__ = ["NoHistory", "forecast_from", "forecast_quarter"]


def forecast_quarter(desk: TeamsDesk, *, as_of: date) -> CapacityForecast:
    """Return the forecast from the days before `as_of`.

    Raises NoHistory where fewer than 14 days are known, none of the last 14, or sums alone; LakeError, LedgerError;
    ValueError where the day lies ahead.
    """
    return forecast_from(desk, read_past(desk, as_of=as_of))


def forecast_from(desk: TeamsDesk, past: Past) -> CapacityForecast:
    """Return the forecast from a past that is read already. Raises LedgerError."""
    from ops_pipelines.capacity.peaks.history import outlooks_of

    weeks = desk.capacity_policy.horizon_weeks
    outlooks, vouched_weeks, outlook_notes = outlooks_of(past.history, weeks=weeks, first_day=past.as_of)
    with_projects, project_notes = mix_projects(outlooks, desk.projects, as_of=past.as_of)
    inputs, input_notes = gather_supply(desk, past, weeks=weeks)
    supply, supply_notes = supply_weeks(inputs, first_day=past.as_of, weeks=weeks)
    return CapacityForecast(
        cluster=desk.cluster.name,
        quarter=quarter_of(past.as_of),
        as_of=past.as_of,
        timezone=desk.zone.key,
        outlooks=tuple(sorted(outlooks, key=lambda each: each.key)),
        with_projects=with_projects,
        supply=supply,
        projects=tuple(desk.projects),
        vouched_weeks=vouched_weeks,
        notes=tuple(
            dict.fromkeys(
                (
                    *_stated_notes(desk),
                    *_missing_words(past.completeness),
                    *past.history.notes,
                    *outlook_notes,
                    *project_notes,
                    *input_notes,
                    *supply_notes,
                )
            )
        ),
    )


def _stated_notes(desk: TeamsDesk) -> list[str]:
    notes = []
    if desk.capacity is None:
        why = (
            "the `capacity` file cannot be used" if desk.is_capacity_named else "cluster.yaml names no `capacity` file"
        )
        notes.append(f"{why}: nothing comes, nothing goes")
    if desk.projects_trouble:
        notes.append(desk.projects_trouble)
    return notes


def _missing_words(found: Completeness) -> list[str]:
    if not found.missing:
        return []
    return [
        f"{len(found.missing)} of the last {found.expected} days are not known, the first is {found.missing[0]}: "
        "materialise daily_peaks there"
    ]


# -- what follows from a forecast --


if TYPE_CHECKING:
    from ops_pipelines.capacity.peaks.history import PeakHistory

_NOT_GPUS = (Resource.STORAGE_BYTES, Resource.NETWORK_RATIO, Resource.RACK_WATTS, Resource.COOLING_WATTS)


def plan_quarter(desk: TeamsDesk, forecast: CapacityForecast) -> CapacityPlan:
    """Return the plan. Raises NoHistory where the days of the forecast are no longer known, LakeError, LedgerError."""
    return plan_from(desk, forecast, read_past(desk, as_of=forecast.as_of))


def plan_from(desk: TeamsDesk, forecast: CapacityForecast, past: Past) -> CapacityPlan:
    """Return the plan from a past that is read already. Raises LakeError, LedgerError."""
    from ops_pipelines.lake.local_days import day_begins

    settings = desk.capacity or CapacitySettings()
    shapes = past.recorded.week_shapes()
    return make_plan(
        forecast,
        PlanInputs(
            settings=settings,
            policy=desk.capacity_policy,
            currency="" if desk.prices is None else desk.prices.currency,
            profiles={kind: shape.profile for kind, shape in shapes.items() if shape.profile is not None},
            idle_ratio=_idle(past),
            # What may wait is not recorded; what did wait is, and is taken for it.
            movable_ratio={
                kind: shape.waited_ratio for kind, shape in shapes.items() if shape.waited_ratio is not None
            },
            followed_ratio=followed_ratio(desk, before=day_begins(forecast.as_of, zone=desk.zone)),
            limits=limits_of(past.history, settings),
            refresh=judge_batches(
                gather_batches(desk, past),
                skus=settings.skus,
                prices=desk.prices,
                policy=desk.capacity_policy,
                as_of=forecast.as_of,
            ),
            room=_room(settings, forecast),
        ),
    )


def _room(settings: CapacitySettings, forecast: CapacityForecast) -> Mapping[str, Places]:
    """Return what fits of each SKU; of what nobody stated any room, nothing is said."""
    drawn = drawn_watts(forecast.outlooks, weeks=forecast.vouched_weeks or len(forecast.supply))
    rooms = (
        find_room(sku, racks=settings.racks, drawn=drawn, room_limit_watts=settings.room_limit_watts)
        for sku in settings.skus
    )
    return {
        each.sku: Places(
            nodes=each.nodes, bound_by=each.binds.value, nodes_in_room=each.nodes_in_room, doubts=each.doubts
        )
        for each in rooms
        if each.nodes is not None
    }


def _idle(past: Past) -> Mapping[GpuType, float]:
    history = past.history.of(Resource.GPUS)
    return {} if history is None else {key.gpu_type: each for key, each in history.idle_ratio.items() if not key.name}


def limits_of(past: "PeakHistory", settings: CapacitySettings) -> Mapping[SeriesKey, float]:
    """Return the limits of further resources that are known and can be held: 0 is no limit.

    What capacity.yaml states of a rack goes before what was metered.
    All that is drawn is heat: where cooling has no limit of its own, that of the room's power holds it.
    """
    room = settings.room_limit_watts
    found: dict[SeriesKey, float] = {}
    for resource in _NOT_GPUS:
        history = past.of(resource)
        if history is None:
            continue
        found |= {key: limit for key, limit in history.limits.items() if limit > 0}
        if resource is Resource.RACK_WATTS:
            stated = {each.rack: each.limit_watts for each in settings.racks if each.limit_watts}
            found |= {key: stated[key.name] for key in history.keys if key.name in stated}
        if resource is Resource.COOLING_WATTS and room is not None:
            found |= {key: room for key in history.keys if not key.name and key not in found}
    return found
