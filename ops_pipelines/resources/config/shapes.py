"""What a number, a text, a day or a path may be in the files of a site: types with bounds, each bound with its reason.

Which key takes which is said where the file is read. How they are refused is `binding`'s: a ValueError is the whole
sentence, a PydanticCustomError what was expected, after what was found.
"""

from datetime import date, time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic import ValidationInfo as Reading
from pydantic_core import PydanticCustomError

from ops_pipelines.core.money import Cents, read_amount
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.resources.config.binding import given_with
from ops_pipelines.resources.config.strict_yaml import expand_home

_HUNDRED = 100
LONGEST_ACCOUNT = 128
# Assumption: no cluster has more GPUs of one type; more is a slip.
MOST_GPUS = 1_000_000
# Assumption: below this share of another's weight nobody means to be served; with far smaller ones levels overflow.
_LEAST_WEIGHT = 0.001
_FIRST_PLANNED, _AFTER_PLANNED = date(2000, 1, 1), date(2100, 1, 1)
CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"


def _day(value: object) -> object:
    if type(value) is not date:
        raise PydanticCustomError("day", "expected a day without quotes and without a time, such as 2026-01-31")
    return value


def _planned_day(value: date) -> date:
    if not _FIRST_PLANNED <= value < _AFTER_PLANNED:
        raise PydanticCustomError("planned_day", "expected a day from 2000 to 2099, such as 2026-01-31")
    return value


def _whole_cents(value: float) -> float:
    if Decimal(repr(value)) * _HUNDRED % 1:
        raise PydanticCustomError("cents", "expected whole cents, such as 120000.00")
    return value


def _amount(value: str) -> Fraction:
    return read_amount(value, what="an amount")


def _cents(value: str) -> Fraction:
    return _amount(value) * _HUNDRED


def _exact_cents(value: str) -> Cents:
    cents = _cents(value)
    if cents.denominator != 1:
        raise PydanticCustomError("cents", "expected whole cents, such as '300000.00'")
    return Cents(int(cents))


def _weight(value: float) -> float:
    if 0 < value < _LEAST_WEIGHT:
        raise PydanticCustomError("weight", "expected 0, or 0.001 and more")
    return value


def _lower_case(value: str) -> GpuType:
    if value != value.lower():
        raise PydanticCustomError("gpu_type", "expected lower case, as the scheduler writes gres/gpu:<type>")
    return GpuType(value)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as problem:
        raise PydanticCustomError("zone", "expected a zone of the IANA list such as Europe/Berlin") from problem


def path_of(path: str, reading: Reading) -> Path:
    """Return the path that a text names; relative ones count from the directory of the file."""
    return given_with(reading).directory / expand_home(path)


def _existing(path: str, reading: Reading) -> Path:
    place = path_of(path, reading)
    if not place.is_file():
        raise ValueError(f"there is no file {place}")
    return place


# -- numbers --

Count = Annotated[int, Field(le=1_000_000)]
"""# Assumption: no count of nodes, jobs or tries is meant to be higher; more is a slip."""
PositiveSeconds = Annotated[float, Field(gt=0, le=366 * 86_400)]
"""As `binding.Seconds`, and not 0."""
Share = Annotated[float, Field(gt=0.0, lt=1.0)]
Probability = Annotated[float, Field(gt=0, le=1)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Watts = Annotated[float, Field(gt=0, le=1e10)]
Gpus = Annotated[float, Field(ge=0, le=MOST_GPUS)]
Weight = Annotated[float, Field(ge=0, le=MOST_GPUS), AfterValidator(_weight)]
MoneyNumber = Annotated[float, Field(ge=0, le=1e12), AfterValidator(_whole_cents)]
"""In units of the currency; up to here a float tells cents apart."""

# -- amounts of money, as text in quotes: a number without them is read as a float, which has no exact cents --

AmountText = Annotated[str, Field(pattern=r"^[0-9]{1,15}(\.[0-9]{1,9})?$")]
"""In units of the currency, or as the key says."""
ExactAmount = Annotated[AmountText, AfterValidator(_amount)]
ExactCents = Annotated[AmountText, AfterValidator(_cents)]
"""Becomes cents, with parts of them."""
WholeCents = Annotated[AmountText, AfterValidator(_exact_cents)]

# -- texts and names --

Text = Annotated[str, Field(min_length=1)]
Line = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
"""One short line, such as the name of a project."""
Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Account = Annotated[str, Field(min_length=1, max_length=LONGEST_ACCOUNT, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$")]
"""As the scheduler writes it."""
GpuTypeName = Annotated[
    str, Field(max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?$"), AfterValidator(_lower_case)
]
HostList = Annotated[str, Field(min_length=1), AfterValidator(expand_host_list)]
"""A Slurm host list; becomes the names of nodes."""
HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")]
"""Without user, query and fragment: secrets stand in files of their own."""

# -- days and times --

Day = Annotated[date, BeforeValidator(_day)]
PlannedDay = Annotated[Day, AfterValidator(_planned_day)]
"""Of what is planned: a year such as 206 is a slip, and would count as long begun."""
ClockTime = Annotated[str, Field(pattern=rf"^{CLOCK}$"), AfterValidator(time.fromisoformat)]
"""In quotes: "22:00"."""
Zone = Annotated[str, Field(min_length=1), AfterValidator(_zone)]
ZoneName = Annotated[str, Field(min_length=1), AfterValidator(lambda name: _zone(name) and name)]
"""It stays the name."""

# -- files --

AnyPath = Annotated[str, Field(min_length=1), AfterValidator(path_of)]
"""A path; relative ones count from the directory of the file."""
ExistingFile = Annotated[str, Field(min_length=1), AfterValidator(_existing)]
