"""The sections of policy.yaml that decide nothing about nodes: `quotas`, `advice`, `capacity`; each read by itself too.

They are no part of `core.policy.Policy`, under whose digest decisions about nodes are kept: a quota that moves
otherwise changes no plan. `policy_file` checks them with everything else in the file.
"""

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from ops_pipelines.resources.config.binding import (
    Fault,
    FaultsFound,
    Made,
    Section,
    dict_of,
    keys_of,
    list_of,
    located,
    nullable,
    section_of,
)
from ops_pipelines.resources.config.shapes import GpuTypeName, Line, Ratio
from ops_pipelines.resources.config.strict_yaml import YamlFile, expand_home
from ops_pipelines.teams.projects import CapacityPolicy
from ops_pipelines.teams.settings import AdviceSettings, LadderSettings, QuotaFreeze, QuotaPolicy, RebalanceSettings

# Assumption: no limit here is meant to be longer than a year; more is a slip of units.
_YEAR_DAYS = 366
_Hours = Annotated[float, Field(gt=0, le=_YEAR_DAYS * 24)]
_DayCount = Annotated[int, Field(ge=1, le=_YEAR_DAYS)]
_Days = Annotated[float, Field(gt=0, le=3660)]
_Minutes = Annotated[float, Field(ge=0, le=7 * 1440)]
_Some = Annotated[int, Field(ge=1, le=1000)]
_MAX_LISTING_BYTES = 2**30
"""Assumption: a listing of ten million files; more is to be listed by directory."""


def read_quota_policy(path: Path, *, read_from: Path | None = None) -> QuotaPolicy:
    """Return what policy.yaml, or a copy of it, says of quotas; raise ConfigError with every fault of that section."""
    return _read(path, "quotas", QUOTAS, read_from=read_from)


def read_capacity_policy(path: Path, *, read_from: Path | None = None) -> CapacityPolicy:
    """Return what policy.yaml, or a copy, says of capacity; raise ConfigError with every fault of that section."""
    return _read(path, "capacity", CAPACITY_POLICY, read_from=read_from)


def read_advice_settings(
    path: Path, *, read_from: Path | None = None
) -> tuple[AdviceSettings, Callable[[], bytes] | None]:
    """Return what policy.yaml, or a copy of it, says of advice, and what reads the listing that it names.

    Raises ConfigError.
    """
    settings, listing = _read(path, "advice", ADVICE, read_from=read_from)
    return settings, None if listing is None else listing_reader(path, listing)


def listing_reader(policy: Path, name: str) -> Callable[[], bytes]:
    """Return what reads the listing, whose path counts from the directory of policy.yaml. It may not be there yet."""
    place = policy.resolve().parent / expand_home(name)

    def read() -> bytes:
        size = place.stat().st_size
        if size > _MAX_LISTING_BYTES:
            raise ValueError(f"{place.name} has {size} bytes; list directories in place of files, up to 1 GiB")
        return place.read_bytes()

    return read


def _read(path: Path, key: str, section: Section[Made], *, read_from: Path | None) -> Made:
    file = YamlFile(path, read_from=read_from)
    made = file.read(section, file.values.get(key, {}), at=(key,))
    file.finish()
    assert made is not None, "a section that could not be read leaves a fault"
    return made


# -- quotas --

_REBALANCE = tuple(each.name for each in fields(RebalanceSettings))


def _quota_freeze(*, name: str, begins_at: datetime, ends_at: datetime | None) -> QuotaFreeze:
    freeze = QuotaFreeze(name=name, begins_at=begins_at, ends_at=ends_at)
    try:
        until = None if freeze.ends_at is None else freeze.ends_at.astimezone(UTC)
        return QuotaFreeze(name=name, begins_at=freeze.begins_at.astimezone(UTC), ends_at=until)
    except OverflowError as problem:
        found = f"{name} reaches beyond the years 1 to 9999 in UTC"
        raise ValueError(f"{found}; expected a year like 2026") from problem


def _quota_policy(**stated: object) -> QuotaPolicy:
    """Return it with what stands beside it in the file; the faults of both parts are told."""
    faults: list[Fault] = []
    rebalance = RebalanceSettings()
    try:
        # What follows was read as the fields of both.
        rebalance = RebalanceSettings(**{name: stated.pop(name) for name in _REBALANCE if name in stated})  # type: ignore[arg-type]
    except ValueError as problem:
        faults.append(located(problem, QUOTAS.keys))
    try:
        policy = QuotaPolicy(rebalance=rebalance, **stated)  # type: ignore[arg-type]
    except ValueError as problem:
        faults.append(located(problem, QUOTAS.keys))
    if faults:
        raise FaultsFound(*faults)
    return policy


QUOTA_FREEZE = Section(_quota_freeze, keys_of(QuotaFreeze, shapes={"name": Line}))
"""Times with a zone, and without quotes: 2026-12-24T00:00:00Z. `ends_at` must be said; null: no end is known."""
QUOTAS = Section(
    _quota_policy,
    keys_of(
        RebalanceSettings,
        shapes={"half_life_hours": _Hours},
        by_type={int: _DayCount},
    )
    | keys_of(
        QuotaPolicy,
        names={"demand_max_age": "demand_max_age_hours"},
        shapes={"demand_max_age": _Hours, "freezes": list_of(QUOTA_FREEZE)},
        without=("rebalance",),
    ),
)

# -- advice --


def _advice(*, storage_listing: str | None = None, **stated: object) -> tuple[AdviceSettings, str | None]:
    return AdviceSettings(**stated), storage_listing  # type: ignore[arg-type]  # each was read as its field


IDLE_LADDER = section_of(
    LadderSettings,
    names={name: f"{name}_minutes" for name in ("first_warning_after", "second_warning_after", "release_after")},
    by_type={timedelta: _Minutes},
)
ADVICE = Section(
    _advice,
    keys_of(
        AdviceSettings,
        names={
            "least_gain_bytes": "least_gain_tib",
            "idle_grace": "idle_grace_minutes",
            "warm_up": "warm_up_minutes",
            "light_most_memory_bytes": "light_most_memory_gb",
            "stale_after": "stale_after_days",
            "unused_after": "unused_after_days",
            "ladder": "idle_ladder",
        },
        shapes={
            "quiet_weeks": Annotated[int, Field(ge=1, le=52)],
            "followed_ratio": Ratio,
            "least_gain_bytes": Annotated[float, Field(ge=0, le=2**20), AfterValidator(lambda tib: round(tib * 2**40))],
            "least_seen_ratio": Ratio,
            "stall_least_ratio": Ratio,
            "communication_least_ratio": Ratio,
            "communication_gain_ratio": Ratio,
            "small_batch_least_ratio": Ratio,
            "small_batch_most_memory_ratio": Ratio,
            "straggler_least_ratio": Ratio,
            "lesser_types": dict_of(GpuTypeName, GpuTypeName),
            "light_most_utilisation_ratio": Ratio,
            "light_most_memory_bytes": Annotated[
                float, Field(gt=0, le=100_000), AfterValidator(lambda gigabytes: gigabytes * 1e9)
            ],
            "memory_least_unneeded_ratio": Ratio,
            "stale_after": _Days,
            "unused_after": _Days,
            "ladder": IDLE_LADDER,
        },
        by_type={int: _Some, timedelta: _Minutes},
        # What is measured or assumed and no site has to choose.
        without=(
            "sm_target_ratio",
            "straggler_low_ratio",
            "straggler_loss_ratio",
            "memory_margin_ratio",
            "wall_time_gain_ratio",
            "least_interval_count",
        ),
    )
    | nullable(storage_listing=Annotated[str, Field(min_length=1, max_length=4096)]),
)

# -- capacity --


def _rising(ratios: list[float]) -> list[float]:
    if any(low >= high for low, high in pairwise(ratios)):
        raise PydanticCustomError("rising", "expected ratios that rise, such as [3, 5, 10]")
    return ratios


CAPACITY_POLICY = section_of(
    CapacityPolicy,
    shapes={
        "shortage_probability_max": Annotated[float, Field(gt=0, le=0.5)],
        "horizon_weeks": Annotated[int, Field(ge=4, le=104)],
        "lead_time_quantile": Annotated[float, Field(ge=0.5, le=0.99)],
        "least_short_weeks": Annotated[int, Field(ge=1, le=4)],
        "regret_ratios": Annotated[
            list[Annotated[float, Field(gt=0, le=1e6)]], Field(min_length=1, max_length=8), AfterValidator(_rising)
        ],
        "refresh_after_months": Annotated[int, Field(ge=1, le=600)],
        "network_ratio_max": Annotated[float, Field(gt=0, le=1)],
    },
)
