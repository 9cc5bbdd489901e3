"""What became of each installed GPU-second, and the months and days that are paid for.

Values and sums only. Which second is whose is found out by `costs`; what it costs is `statement`'s. Used and wasted
stand beside the allocated and are no lines: a team pays for what it held.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, tzinfo
from enum import Enum

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import BilledPart, CostMonth, day_begins, days_between
from ops_pipelines.core.proposal import GpuType, TeamName

# -- what became of each installed GPU-second --


NO_TEAM = TeamName("unknown team")
"""Who pays for a job whose account nobody stated."""


class Fate(Enum):
    """What became of a GPU-second."""

    ALLOCATED = "allocated"
    IDLE = "idle"
    BROKEN = "broken"
    MAINTENANCE = "maintenance"
    """Rollouts and reservations of ours."""
    OVERHEAD = "overhead"
    """Tests and probation."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Owner:
    """Who pays for a job."""

    team: TeamName
    project: str = ""
    """Empty: none is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLine:
    """GPU-seconds of one node within one hour that share one fate, one owner and one cause."""

    since: datetime
    """Begin of the hour, or of what part of the hour is paid for."""
    node: NodeName
    gpu_type: GpuType
    fate: Fate
    gpu_seconds: int
    owner: Owner | None = None
    """Of what is ALLOCATED, and of nothing else."""
    job: str = ""
    attempt: str = ""
    cause: str = ""
    """Incident, rollout, reservation or state that took the GPUs; empty for what is allocated or idle."""
    used_gpu_seconds: int | None = None
    """Of those that are allocated: in which work was seen. None: not measured."""

    def __post_init__(self) -> None:
        if self.gpu_seconds < 0:
            raise ValueError(f"{self.node}: {self.gpu_seconds} GPU-seconds; expected 0 or more")
        if (self.owner is None) is (self.fate is Fate.ALLOCATED):
            raise ValueError(
                f"{self.node}: {self.fate.value} of {self.owner}; expected an owner of what is allocated only"
            )
        if self.used_gpu_seconds is not None and not 0 <= self.used_gpu_seconds <= self.gpu_seconds:
            raise ValueError(
                f"{self.node}: {self.used_gpu_seconds} of {self.gpu_seconds} GPU-seconds used; "
                "expected none below 0 or beyond the allocated"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """Who bears a cost: a team's project, or one of the lines that are nobody's work."""

    fate: Fate
    owner: Owner | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What it is sorted and reported by."""
        return (self.fate.value,) if self.owner is None else (self.fate.value, self.owner.team, self.owner.project)


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What one bearer had of one type of GPU."""

    gpu_seconds: int
    used_gpu_seconds: int = 0
    wasted_gpu_seconds: int = 0
    """Allocated, measured, and without work. What was not measured is in neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartUsage:
    """What became of all that was installed in a part of a month."""

    part: BilledPart
    installed: Mapping[GpuType, int]
    """GPU-seconds."""
    by_bearer: Mapping[tuple[Bearer, GpuType], Used]

    def __post_init__(self) -> None:
        told: dict[GpuType, int] = dict.fromkeys(self.installed, 0)
        for (_, gpu_type), used in self.by_bearer.items():
            told[gpu_type] = told.get(gpu_type, 0) + used.gpu_seconds
        wrong = [
            f"{gpu_type or 'GPUs'}: {told[gpu_type]} reported, {self.installed.get(gpu_type, 0)} installed"
            for gpu_type in sorted(told)
            if told[gpu_type] != self.installed.get(gpu_type, 0)
        ]
        if wrong:
            raise ValueError(
                f"{self.part.month.name}: GPU-seconds do not add up ({'; '.join(wrong)}); expected each installed one "
                "in exactly one line"
            )


def sum_usage(part: BilledPart, lines: Iterable[UsageLine], *, installed: Mapping[GpuType, int]) -> PartUsage:
    """Return the lines added up by bearer and type of GPU. Raises ValueError unless they are all that was installed."""
    sums: dict[tuple[Bearer, GpuType], list[int]] = {}
    for line in lines:
        if not part.since <= line.since < part.until:
            raise ValueError(
                f"{line.node}: {line.since:%Y-%m-%d %H:%M} UTC is not within {part.since:%Y-%m-%d %H:%M} to "
                f"{part.until:%Y-%m-%d %H:%M}; expected lines of the part alone"
            )
        found = sums.setdefault((Bearer(fate=line.fate, owner=line.owner), line.gpu_type), [0, 0, 0])
        found[0] += line.gpu_seconds
        if line.used_gpu_seconds is not None:
            found[1] += line.used_gpu_seconds
            found[2] += line.gpu_seconds - line.used_gpu_seconds
    order = sorted(sums, key=lambda key: (key[0].names, key[1]))
    return PartUsage(
        part=part,
        installed=dict(installed),
        by_bearer={
            key: Used(gpu_seconds=sums[key][0], used_gpu_seconds=sums[key][1], wasted_gpu_seconds=sums[key][2])
            for key in order
        },
    )


def join_usage(part: BilledPart, pieces: Iterable[PartUsage]) -> PartUsage:
    """Return the usage of a part from that of its days. Raises ValueError where one reaches beyond it."""
    installed: dict[GpuType, int] = {}
    sums: dict[tuple[Bearer, GpuType], Used] = {}
    for piece in pieces:
        if piece.part.since < part.since or piece.part.until > part.until:
            raise ValueError(f"{piece.part} is not within {part}; expected days of the part alone")
        for gpu_type, seconds in piece.installed.items():
            installed[gpu_type] = installed.get(gpu_type, 0) + seconds
        for key, used in piece.by_bearer.items():
            before = sums.get(key, Used(gpu_seconds=0))
            sums[key] = Used(
                gpu_seconds=before.gpu_seconds + used.gpu_seconds,
                used_gpu_seconds=before.used_gpu_seconds + used.used_gpu_seconds,
                wasted_gpu_seconds=before.wasted_gpu_seconds + used.wasted_gpu_seconds,
            )
    order = sorted(sums, key=lambda key: (key[0].names, key[1]))
    return PartUsage(part=part, installed=installed, by_bearer={key: sums[key] for key in order})


# -- local months --


def cost_month(year: int, month: int, *, zone: tzinfo) -> CostMonth:
    """Return one month of the zone's clock; ValueError for a month that is none."""
    following = (year + month // 12, month % 12 + 1)
    return CostMonth(
        year=year,
        month=month,
        begins_at=day_begins(date(year, month, 1), zone=zone),
        ends_at=day_begins(date(*following, 1), zone=zone),
    )


def month_at(at: datetime, *, zone: tzinfo) -> CostMonth:
    """Return the month that holds this time."""
    local = at.astimezone(zone)
    return cost_month(local.year, local.month, zone=zone)


def days_of(part: BilledPart, *, zone: tzinfo) -> Iterator[tuple[date, BilledPart]]:
    """Yield the local days of a part of a month, 23 to 25 hours each; the first and last as far as they are in it."""
    for day, since, until in days_between(part.since, part.until, zone=zone):
        yield day, BilledPart(month=part.month, since=since, until=until)
