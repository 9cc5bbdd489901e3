"""What cluster.yaml says of teams beside naming their file: how limits are set, what stands in each rack. Values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.teams.settings import LimitsOn


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """The section `quotas` of cluster.yaml. How far quotas move is policy.yaml's."""

    limits_on: LimitsOn = LimitsOn.TOTAL
    qos_of: Mapping[TeamName, str] = field(default_factory=dict)
    """Teams whose GPUs the scheduler limits by a QOS in place of the account, and which QOS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """What was bought with one node, and when it came."""

    gpu_type: GpuType = GpuType("")
    """As the scheduler writes it; empty where the cluster has one type, or tells none apart."""
    installed_since: date | None = None
    """The first day that it stood there, in the zone of the teams; None: it always did."""
