"""Lines of a statement, and what they are made of beside cost and usage. Values; `statement` puts them together."""

from dataclasses import dataclass
from enum import Enum

from ops_pipelines.core.money import Amount, Cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.domain.cost.usage import Bearer, Fate, Owner, Used

OPERATOR = Bearer(fate=Fate.OVERHEAD)
"""Who bears what nobody can be told to have caused."""
Held = tuple[Bearer, GpuType]
"""Who, on GPUs of which type."""


class Service(Enum):
    """What a line is for."""

    GPU = "gpu"
    ENERGY = "energy"
    NETWORK = "network"
    STORAGE = "storage"
    CREDIT = "credit"
    """What a team gets back: below 0."""
    INCIDENT_CREDIT = "x_incident_credit"
    """The same amount, borne by the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line. What it counts is GPU-seconds; joules for energy, byte-seconds for storage."""

    service: Service
    bearer: Bearer
    gpu_type: GpuType
    """Empty: of no type, or of the only one."""
    quantity: Amount
    cents: Cents
    cause: str = ""
    """The incident that a credit is for."""
    credited: Owner | None = None
    """Of the operator's line for a credit: who gets it."""
    used: Used | None = None
    """Of GPU lines: what of it was used."""

    @property
    def names(self) -> tuple[str, ...]:
        """What lines are sorted by."""
        credited = ("", "") if self.credited is None else (self.credited.team, self.credited.project)
        return self.service.value, *self.bearer.names, self.gpu_type, self.cause, *credited


@dataclass(frozen=True, slots=True, kw_only=True)
class LostHours:
    """GPU-seconds of a team that one of our own incidents made worthless."""

    owner: Owner
    gpu_type: GpuType
    incident: str
    gpu_seconds: int

    def __post_init__(self) -> None:
        if not self.incident or self.gpu_seconds < 0:
            raise ValueError(
                f"{self.owner.team}: {self.gpu_seconds} GPU-seconds lost to {self.incident!r}; "
                "expected 0 or more, and an incident"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBytes:
    """What a team's files took."""

    owner: Owner
    byte_seconds: int
