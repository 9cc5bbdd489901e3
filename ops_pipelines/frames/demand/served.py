"""What each team ran in the hours of local days, from the same rows and by the same days as what it wanted."""

from collections.abc import Mapping
from datetime import date, datetime
from zoneinfo import ZoneInfo

import pyarrow as pa

from ops_pipelines.core.lake import Rows
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.domain.quota.fair_debt import Served
from ops_pipelines.frames.demand.daily import known_days

COLUMNS = ("team", "gpu_type", "time", "gpus_running_avg", "gpus_ran_last")


def served_days(
    hourly: pa.Table, *, start: datetime, end: datetime, zone: ZoneInfo, gpu_type: GpuType
) -> Mapping[date, Served]:
    """Return by local day what each team ran in each of its known hours. `hourly`: COLUMNS of `gpu_demand`."""
    names = ["gpus_demand_avg" if name == "gpus_running_avg" else name for name in hourly.column_names]
    days, _ = known_days(hourly.rename_columns(names), start=start, end=end, zone=zone, gpu_type=gpu_type)
    return {each.day: each.hours for each in days}


def used_gpus(quotas: Rows) -> Mapping[tuple[TeamName, GpuType], float]:
    """Return what rows of `gpu_quotas` say that each team used; who is not named, of that nothing is known."""
    assert isinstance(quotas, pa.Table)
    columns = (quotas[name].to_pylist() for name in ("team", "gpu_type", "used_mean_gpus"))
    return {
        (TeamName(team), GpuType(kind)): used for team, kind, used in zip(*columns, strict=True) if used is not None
    }
