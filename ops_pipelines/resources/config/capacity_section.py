"""The section `capacity` of policy.yaml: its shape, and what it becomes.

Orders act on nothing here: like quotas and advice it is no part of `core.policy.Policy`. `policy_file` checks it with
everything else in the file.
"""

from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from ops_pipelines.resources.config.strict_yaml import StrictModel, YamlFile
from ops_pipelines.teams.projects import CapacityPolicy

_AT = "capacity"
_D = CapacityPolicy()


def _rising(ratios: list[float]) -> list[float]:
    if any(low >= high for low, high in pairwise(ratios)):
        raise PydanticCustomError("rising", "expected ratios that rise, such as [3, 5, 10]")
    return ratios


class CapacityPolicyModel(StrictModel):
    """The defaults are those of `capacity`."""

    shortage_probability_max: Annotated[float, Field(gt=0, le=0.5)] = _D.shortage_probability_max
    horizon_weeks: Annotated[int, Field(ge=4, le=104)] = _D.horizon_weeks
    lead_time_quantile: Annotated[float, Field(ge=0.5, le=0.99)] = _D.lead_time_quantile
    least_short_weeks: Annotated[int, Field(ge=1, le=4)] = _D.least_short_weeks
    regret_ratios: Annotated[
        list[Annotated[float, Field(gt=0, le=1e6)]], Field(min_length=1, max_length=8), AfterValidator(_rising)
    ] = Field(default_factory=lambda: list(_D.regret_ratios))
    refresh_after_months: Annotated[int, Field(ge=1, le=600)] = _D.refresh_after_months
    network_ratio_max: Annotated[float, Field(gt=0, le=1)] = _D.network_ratio_max


def read_capacity_policy(path: Path, *, read_from: Path | None = None) -> CapacityPolicy:
    """Return what policy.yaml, or a copy, says of capacity; raise ConfigError with every fault of that section."""
    file = YamlFile(path, read_from=read_from)
    section = file.check(CapacityPolicyModel, file.values.get(_AT, {}), at=(_AT,))
    file.finish()
    assert section is not None, "a section that could not be read leaves a fault"
    return CapacityPolicy(
        shortage_probability_max=section.shortage_probability_max,
        horizon_weeks=section.horizon_weeks,
        lead_time_quantile=section.lead_time_quantile,
        least_short_weeks=section.least_short_weeks,
        regret_ratios=tuple(section.regret_ratios),
        refresh_after_months=section.refresh_after_months,
        network_ratio_max=section.network_ratio_max,
    )
