"""The section `advice` of policy.yaml: its shape, and what it becomes.

Advice decides nothing about nodes or quotas: like the quotas it is no part of `core.policy.Policy`. `policy_file`
checks it with everything else in the file.
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ops_pipelines.core.proposal import GpuType
from ops_pipelines.resources.config.shapes import GpuTypeName
from ops_pipelines.resources.config.strict_yaml import StrictModel, YamlFile, expand_home
from ops_pipelines.teams.settings import AdviceSettings, LadderSettings

_AT = "advice"
_D = AdviceSettings()
_L = _D.ladder
_MAX_LISTING_BYTES = 2**30
"""Assumption: a listing of ten million files; more is to be listed by directory."""
Ratio = Annotated[float, Field(ge=0, le=1)]
Days = Annotated[float, Field(gt=0, le=3660)]
Minutes = Annotated[float, Field(ge=0, le=7 * 1440)]
Some = Annotated[int, Field(ge=1, le=1000)]


class IdleLadderModel(StrictModel):
    is_on: bool = _L.is_on
    first_warning_after_minutes: Minutes = _L.first_warning_after.total_seconds() / 60
    second_warning_after_minutes: Minutes = _L.second_warning_after.total_seconds() / 60
    release_after_minutes: Minutes = _L.release_after.total_seconds() / 60


class AdviceModel(StrictModel):
    """The section `advice` of policy.yaml. The defaults are those of `efficiency`."""

    tells_teams: bool = _D.tells_teams
    per_team_count: Some = _D.per_team_count
    quiet_weeks: Annotated[int, Field(ge=1, le=52)] = _D.quiet_weeks
    worse_ratio: float = _D.worse_ratio
    followed_ratio: Ratio = _D.followed_ratio
    least_gain_gpu_hours: float = _D.least_gain_gpu_hours
    least_gain_tib: Annotated[float, Field(ge=0, le=2**20)] = _D.least_gain_bytes / 2**40
    least_seen_ratio: Ratio = _D.least_seen_ratio
    idle_grace_minutes: Minutes = _D.idle_grace.total_seconds() / 60
    idle_least_hours: float = _D.idle_least_hours
    warm_up_minutes: Minutes = _D.warm_up.total_seconds() / 60
    stall_least_ratio: Ratio = _D.stall_least_ratio
    communication_least_ratio: Ratio = _D.communication_least_ratio
    communication_gain_ratio: Ratio = _D.communication_gain_ratio
    small_batch_least_ratio: Ratio = _D.small_batch_least_ratio
    small_batch_most_memory_ratio: Ratio = _D.small_batch_most_memory_ratio
    straggler_least_ratio: Ratio = _D.straggler_least_ratio
    lesser_types: dict[GpuTypeName, GpuTypeName] = Field(default_factory=dict)
    light_most_utilisation_ratio: Ratio = _D.light_most_utilisation_ratio
    light_most_memory_gb: Annotated[float, Field(gt=0, le=100_000)] = _D.light_most_memory_bytes / 1e9
    memory_least_unneeded_ratio: Ratio = _D.memory_least_unneeded_ratio
    least_attempt_count: Some = _D.least_attempt_count
    wall_time_least_factor: float = _D.wall_time_least_factor
    unsaved_least_hours: float = _D.unsaved_least_hours
    interval_least_factor: float = _D.interval_least_factor
    least_failure_count: Some = _D.least_failure_count
    stale_after_days: Days = _D.stale_after / timedelta(days=1)
    unused_after_days: Days = _D.unused_after / timedelta(days=1)
    storage_listing: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    idle_ladder: IdleLadderModel = IdleLadderModel()


def read_advice_settings(
    path: Path, *, read_from: Path | None = None
) -> tuple[AdviceSettings, Callable[[], bytes] | None]:
    """Return what policy.yaml, or a copy of it, says of advice, and what reads the listing that it names.

    Raises ConfigError.
    """
    file = YamlFile(path, read_from=read_from)
    section = file.check(AdviceModel, file.values.get(_AT, {}), at=(_AT,))
    settings = None if section is None else read_advice(file, section)
    file.finish()
    assert settings is not None and section is not None, "a section that could not be read leaves a fault"  # noqa: PT018
    return settings, None if section.storage_listing is None else listing_reader(path, section.storage_listing)


def read_advice(file: YamlFile, section: AdviceModel) -> AdviceSettings | None:
    """Return the section as domain values, or None after keeping what contradicts itself in it."""
    ladder = section.idle_ladder
    stated = section.model_dump(
        exclude={
            "idle_ladder", "storage_listing", "least_gain_tib", "idle_grace_minutes", "warm_up_minutes",
            "light_most_memory_gb", "stale_after_days", "unused_after_days", "lesser_types",
        }
    )  # fmt: skip
    try:
        return AdviceSettings(
            **stated,
            least_gain_bytes=round(section.least_gain_tib * 2**40),
            idle_grace=timedelta(minutes=section.idle_grace_minutes),
            warm_up=timedelta(minutes=section.warm_up_minutes),
            light_most_memory_bytes=section.light_most_memory_gb * 1e9,
            stale_after=timedelta(days=section.stale_after_days),
            unused_after=timedelta(days=section.unused_after_days),
            lesser_types={GpuType(kind): GpuType(lesser) for kind, lesser in section.lesser_types.items()},
            ladder=LadderSettings(
                is_on=ladder.is_on,
                first_warning_after=timedelta(minutes=ladder.first_warning_after_minutes),
                second_warning_after=timedelta(minutes=ladder.second_warning_after_minutes),
                release_after=timedelta(minutes=ladder.release_after_minutes),
            ),
        )
    except ValueError as problem:
        key = str(problem).split(" ", 1)[0].removeprefix(f"{_AT}.").rstrip(":")
        file.add_fault((_AT, key), str(problem))
        return None


def listing_reader(policy: Path, name: str) -> Callable[[], bytes]:
    """Return what reads the listing, whose path counts from the directory of policy.yaml. It may not be there yet."""
    place = policy.resolve().parent / expand_home(name)

    def read() -> bytes:
        size = place.stat().st_size
        if size > _MAX_LISTING_BYTES:
            raise ValueError(f"{place.name} has {size} bytes; list directories in place of files, up to 1 GiB")
        return place.read_bytes()

    return read
