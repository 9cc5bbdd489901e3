"""Verdicts of `gpu_efficiency` -> GPUs that a team held and nothing ran on, by hour, team and type of GPU.

Idle is what the rules call idle. Of a row where half of the GPUs or more do nothing beside others that work, half is
counted: that much is known. What somebody wanted is not decided here.
"""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.frames.demand.gpu_types import GpuTypes

_IDLE = "idle"
_HALF_IDLE = "half_idle"
_HOUR_SECONDS = 3600.0

Wasted = Mapping[tuple[TeamName, GpuType, datetime], float]


def read_waste(efficiency: pa.Table, *, types: GpuTypes) -> tuple[Wasted, float]:
    """Return mean idle GPUs by team, type and hour, and the GPU-hours of rows that name no account.

    Of jobs that share GPUs which cannot be told apart each counts all of them: whoever uses the sums bounds them.
    """
    idle = efficiency.filter(pc.fill_null(pc.equal(efficiency["verdict"], _IDLE), False))
    # GPUs that nobody held belong to no team.
    idle = idle.filter(pc.not_equal(idle["job"], ""))
    found: defaultdict[tuple[TeamName, GpuType, datetime], float] = defaultdict(float)
    untold = 0.0
    names = ("node", "time", "account", "rule", "gpu_count", "held_seconds")
    columns = [idle[name].to_pylist() for name in names]
    for node, time, account, rule, count, seconds in sorted(
        zip(*columns, strict=True), key=lambda row: (row[1], row[0], row[2] or "", row[4] or 0.0)
    ):
        gpus = (count or 0.0) * (seconds or 0.0) / _HOUR_SECONDS * (0.5 if rule == _HALF_IDLE else 1.0)
        if account:
            found[TeamName(account), types.of_node(node), time] += gpus
        else:
            untold += gpus
    return dict(found), untold
