"""What will be wanted and what will be usable, week by week: the lake's days joined with what a site states."""

from datetime import date

from ops_pipelines.domain.capacity.plan import CapacityForecast
from ops_pipelines.domain.capacity.project_mix import mix_projects
from ops_pipelines.domain.capacity.quarters import quarter_of
from ops_pipelines.domain.capacity.supply import supply_weeks
from ops_pipelines.flow.capacity.past import Completeness, NoHistory, Past, read_past
from ops_pipelines.flow.capacity.supply import gather_supply
from ops_pipelines.teams.desk import TeamsDesk

__all__ = ["NoHistory", "forecast_from", "forecast_quarter"]


def forecast_quarter(desk: TeamsDesk, *, as_of: date) -> CapacityForecast:
    """Return the forecast from the days before `as_of`.

    Raises NoHistory where fewer than 14 days are known, none of the last 14, or sums alone; LakeError, LedgerError;
    ValueError where the day lies ahead.
    """
    return forecast_from(desk, read_past(desk, as_of=as_of))


def forecast_from(desk: TeamsDesk, past: Past) -> CapacityForecast:
    """Return the forecast from a past that is read already. Raises LedgerError."""
    from ops_pipelines.frames.peaks.outlooks import outlooks_of

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
