"""Reads both sections `quotas`: of policy.yaml how quotas move, of cluster.yaml how limits are set.

The quotas of policy.yaml are no part of `core.policy.Policy`, under whose digest decisions about nodes are kept: a
quota that moves otherwise changes no plan. `policy_file` checks them with everything else in the file.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.resources.config.quota_models import LimitsModel, QuotaFreezeModel, QuotasModel
from ops_pipelines.resources.config.strict_yaml import YamlFile
from ops_pipelines.resources.config.team_settings import LimitSettings
from ops_pipelines.teams.settings import LimitsOn, QuotaFreeze, QuotaPolicy, RebalanceSettings

_AT = "quotas"


def read_quota_policy(path: Path, *, read_from: Path | None = None) -> QuotaPolicy:
    """Return what policy.yaml, or a copy of it, says of quotas; raise ConfigError with every fault of that section."""
    file = YamlFile(path, read_from=read_from)
    section = file.check(QuotasModel, file.values.get(_AT, {}), at=(_AT,))
    policy = None if section is None else read_quotas(file, section)
    file.finish()
    assert policy is not None, "a section that could not be read leaves a fault"
    return policy


def read_quotas(file: YamlFile, section: QuotasModel) -> QuotaPolicy | None:
    """Return the section as domain values, or None after keeping what contradicts itself in it."""
    freezes = _read_freezes(file, section.freezes)
    try:
        rebalance = RebalanceSettings(
            half_life_hours=section.half_life_hours,
            window_days=section.window_days,
            spread_ratio=section.spread_ratio,
            least_gain_ratio=section.least_gain_ratio,
            step_cap_ratio=section.step_cap_ratio,
            agreeing_days=section.agreeing_days,
            looked_at_days=section.looked_at_days,
        )
    except ValueError as problem:
        _add_fault(file, str(problem))
        rebalance = None
    try:
        policy = QuotaPolicy(
            rebalance=rebalance or RebalanceSettings(),
            slack_max_ratio=section.slack_max_ratio,
            waste_bound_ratio=section.waste_bound_ratio,
            demand_max_age=timedelta(hours=section.demand_max_age_hours),
            known_hour_min_ratio=section.known_hour_min_ratio,
            sets_fairshare=section.sets_fairshare,
            freezes=tuple(freezes),
        )
    except ValueError as problem:
        _add_fault(file, str(problem))
        return None
    return None if rebalance is None else policy


def read_limit_settings(file: YamlFile, section: LimitsModel) -> LimitSettings:
    """Return how limits are set; a QOS for two teams is kept as a fault: they would share one limit."""
    teams_of = Counter(section.qos_of.values())
    for team, qos in section.qos_of.items():
        if teams_of[qos] > 1:
            file.add_fault((_AT, "qos_of", team), f"QOS {qos} is given to several teams; give each one of its own")
    return LimitSettings(
        limits_on=LimitsOn(section.limits),
        qos_of={TeamName(team): qos for team, qos in section.qos_of.items()},
    )


def _read_freezes(file: YamlFile, entries: Iterable[QuotaFreezeModel]) -> list[QuotaFreeze]:
    freezes = []
    for index, entry in enumerate(entries):
        at = (_AT, "freezes", index)
        try:
            freeze = QuotaFreeze(name=entry.name, begins_at=entry.begins_at, ends_at=entry.ends_at)
            ends_at = None if freeze.ends_at is None else freeze.ends_at.astimezone(UTC)
            freezes.append(replace(freeze, begins_at=freeze.begins_at.astimezone(UTC), ends_at=ends_at))
        except OverflowError:
            file.add_fault(at, f"{entry.name} reaches beyond the years 1 to 9999 in UTC; expected a year like 2026")
        except ValueError as problem:
            file.add_fault(at, str(problem))
    return freezes


def _add_fault(file: YamlFile, sentence: str) -> None:
    """Keep what the domain says; its sentences open with the key, with or without the section before it."""
    key = sentence.split(" ", 1)[0].removeprefix(f"{_AT}.")
    file.add_fault((_AT, key), sentence)
