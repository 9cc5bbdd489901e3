"""The shape of teams.yaml: one model a section, nothing but keys, types and bounds.

What it becomes is `teams_file`'s; how faults are told is `strict_yaml`'s. Teams, contracts and projects are checked one
by one, so that a slip in one hides nothing in another.
"""

from datetime import date
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from ops_pipelines.resources.config.strict_yaml import StrictModel

LONGEST_ACCOUNT = 128
# Assumption: no cluster has more GPUs of one type; more is a slip.
_MOST_GPUS = 1_000_000
# Assumption: below this share of another's weight nobody means to be served; with far smaller ones levels overflow.
_LEAST_WEIGHT = 0.001
_CENTS = 100
_FIRST_PLANNED, _AFTER_PLANNED = date(2000, 1, 1), date(2100, 1, 1)


def _day(value: object) -> object:
    if type(value) is not date:
        raise PydanticCustomError("day", "expected a day without quotes and without a time, such as 2026-01-31")
    return value


def _planned_day(value: date) -> date:
    if not _FIRST_PLANNED <= value < _AFTER_PLANNED:
        raise PydanticCustomError("planned_day", "expected a day from 2000 to 2099, such as 2026-01-31")
    return value


def _whole_cents(value: float) -> float:
    if Decimal(repr(value)) * _CENTS % 1:
        raise PydanticCustomError("cents", "expected whole cents, such as 120000.00")
    return value


def _weight(value: float) -> float:
    if 0 < value < _LEAST_WEIGHT:
        raise PydanticCustomError("weight", "expected 0, or 0.001 and more")
    return value


def _lower_case(value: str) -> str:
    if value != value.lower():
        raise PydanticCustomError("gpu_type", "expected lower case, as the scheduler writes gres/gpu:<type>")
    return value


Account = Annotated[str, Field(min_length=1, max_length=LONGEST_ACCOUNT, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$")]
"""As the scheduler writes it."""
GpuTypeName = Annotated[
    str, Field(max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?$"), AfterValidator(_lower_case)
]
Day = Annotated[date, BeforeValidator(_day)]
PlannedDay = Annotated[Day, AfterValidator(_planned_day)]
"""Of what is planned: a year such as 206 is a slip, and would count as long begun."""
Gpus = Annotated[float, Field(ge=0, le=_MOST_GPUS)]
Weight = Annotated[float, Field(ge=0, le=_MOST_GPUS), AfterValidator(_weight)]
Money = Annotated[float, Field(ge=0, le=1e12), AfterValidator(_whole_cents)]
"""In units of the currency; up to here a float tells cents apart."""


class ContractModel(StrictModel):
    """null for a limit: not limited; for `until`: no end was agreed."""

    valid_from: Day = Field(alias="from")
    until: Day | None = None
    gpu_type: GpuTypeName = ""
    guarantee: Gpus
    weight: Weight = 1.0
    borrow_limit: Gpus | None = None
    lend_limit: Gpus | None = None
    reserved: Gpus = 0.0
    cap: Gpus | None = None
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    unit: Annotated[int, Field(ge=1, le=_MOST_GPUS)] = 1
    """Quotas are whole multiples of so many GPUs."""


class ProjectModel(StrictModel):
    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
    begins: Day
    ends: Day | None = None
    gpus: Gpus
    gpu_type: GpuTypeName = ""
    probability: float = 1.0


class BudgetModel(StrictModel):
    monthly: Money


class TeamModel(StrictModel):
    team: Account
    parent: Account | None = None
    contracts: list[object] = Field(default_factory=list)
    projects: list[object] = Field(default_factory=list)
    budget: BudgetModel | None = None


class TeamsModel(StrictModel):
    """teams.yaml."""

    timezone: Annotated[str, Field(min_length=1, max_length=128)] = "UTC"
    teams: Annotated[list[object], Field(min_length=1)]
