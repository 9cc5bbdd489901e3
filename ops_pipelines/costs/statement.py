"""The statement of a part of a month: its lines, credits, and who bears how many cents, so that they add up.

Whose incident it was, and which hours it cost, is the caller's to know; here is what these hours are worth.

Sharing out alone. What the assets cost is `price`'s, what became of the GPUs `usage`'s. Every share is by largest
remainder with ties to the smaller name, so that the same facts give the same cents in whatever order they come. Broken,
idle and maintained hours bear their own share at the rate of all installed hours: no team pays for them, and nobody
pays for them twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from ops_pipelines.core.money import Amount, Cents, share_cents
from ops_pipelines.core.periods import BilledPart
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.costs.usage import Bearer, Fate, Owner, PartUsage, Used
from ops_pipelines.teams.price import AssetCost, Item

# -- lines of a statement --


OPERATOR = Bearer(fate=Fate.OVERHEAD)
"""Who bears what has no known cause."""
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


# -- what a team gets back for hours that our own incidents made worthless --


_FOR_WORK = (Service.GPU, Service.ENERGY, Service.NETWORK)


def credit_lines(
    charged: Sequence[Line], gpu_seconds: Mapping[Held, int], lost: Sequence[LostHours]
) -> tuple[list[Line], tuple[LostHours, ...]]:
    """Return the credits, each with the operator's line, and the hours that nothing was paid for.

    An hour is credited at what the team paid for its hours of this type on average, energy and network with it.
    """
    wanted: dict[tuple[Owner, GpuType], dict[str, int]] = {}
    for each in lost:
        incidents = wanted.setdefault((each.owner, each.gpu_type), {})
        incidents[each.incident] = incidents.get(each.incident, 0) + each.gpu_seconds
    lines: list[Line] = []
    refused: list[LostHours] = []
    for owner, gpu_type in sorted(wanted):
        held = (Bearer(fate=Fate.ALLOCATED, owner=owner), gpu_type)
        asked = wanted[owner, gpu_type]
        granted = _granted(asked, had=gpu_seconds.get(held, 0))
        refused += [
            LostHours(owner=owner, gpu_type=gpu_type, incident=incident, gpu_seconds=seconds - granted[incident])
            for incident, seconds in sorted(asked.items())
            if seconds > granted[incident]
        ]
        for credit in _worth(granted, held=held, had=gpu_seconds.get(held, 0), charged=charged):
            lines += [credit, _borne_by_operator(credit)]
    return lines, tuple(refused)


def _granted(asked: Mapping[str, int], *, had: int) -> dict[str, int]:
    """Return the GPU-seconds of each incident that are credited: no more together than there were."""
    granted: dict[str, int] = {}
    for incident, seconds in sorted(asked.items()):
        granted[incident] = min(seconds, had - sum(granted.values()))
    return granted


def _worth(granted: Mapping[str, int], *, held: Held, had: int, charged: Sequence[Line]) -> list[Line]:
    paid = sum(line.cents for line in charged if (line.bearer, line.gpu_type) == held and line.service in _FOR_WORK)
    # What was not lost has the empty name, which no incident has.
    shares = share_cents(Cents(paid), {**granted, "": had - sum(granted.values())}) if had else {}
    return [
        Line(
            service=Service.CREDIT,
            bearer=held[0],
            gpu_type=held[1],
            quantity=seconds,
            cents=Cents(-shares[incident]),
            cause=incident,
        )
        for incident, seconds in granted.items()
        if seconds
    ]


def _borne_by_operator(credit: Line) -> Line:
    return Line(
        service=Service.INCIDENT_CREDIT,
        bearer=OPERATOR,
        gpu_type=credit.gpu_type,
        quantity=credit.quantity,
        cents=Cents(-credit.cents),
        cause=credit.cause,
        credited=credit.bearer.owner,
    )


# -- the statement of a part of a month --


_HOUR_SECONDS = 3_600
_IDLE: Held = (Bearer(fate=Fate.IDLE), GpuType(""))
_BY_GPU = (Item.CAPEX, Item.SUPPORT, Item.SPACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Who bears what. It closes: a residual other than 0 is refused."""

    part: BilledPart
    currency: str
    asset_cents: Cents
    lines: tuple[Line, ...]
    rates: Mapping[GpuType, Fraction]
    """Cents of one installed GPU-hour, without energy and network."""
    refused_credits: tuple[LostHours, ...] = ()
    """Hours beyond what the team had of these GPUs in this part: nothing was paid for them here."""

    def __post_init__(self) -> None:
        if self.residual_cents:
            raise ValueError(
                f"{self.part.month.name}: lines are {self.residual_cents} cents short of {self.asset_cents}; "
                "expected them to add up to the cost of the assets"
            )
        if sum(line.cents for line in self.lines if line.service in (Service.CREDIT, Service.INCIDENT_CREDIT)):
            raise ValueError(f"{self.part.month.name}: credits without equal lines of the operator")

    @property
    def residual_cents(self) -> Cents:
        """What the assets cost beyond what the lines say."""
        return Cents(self.asset_cents - sum(line.cents for line in self.lines))

    def cents_of(self, owner: Owner) -> Cents:
        """Return what an owner pays, less credits."""
        return Cents(sum(line.cents for line in self.lines if line.bearer.owner == owner))


def make_statement(
    cost: AssetCost,
    usage: PartUsage,
    *,
    joules: Mapping[Held, Amount] | None = None,
    lost: Sequence[LostHours] = (),
) -> Statement:
    """Return the statement of a part of a month.

    `joules`: energy by who caused it; what is left of the energy is the operator's. None: it is shared by GPU-seconds.
    How much storage each team uses is not known: all of it is idle. Raises ValueError where cost and usage are of two
    parts, or where more energy is reported than is paid for.
    """
    if cost.part != usage.part:
        raise ValueError(f"cost of {cost.part} and usage of {usage.part}; expected one part of one month")
    gpu_seconds = {held: used.gpu_seconds for held, used in usage.by_bearer.items()}
    charged = [
        *_gpu_lines(cost, usage),
        *_lines(Service.ENERGY, cost.cents_of(Item.ENERGY), _energy(cost, joules, gpu_seconds)),
        *_lines(Service.NETWORK, cost.cents_of(Item.NETWORK), gpu_seconds),
        *_lines(Service.STORAGE, cost.cents_of(Item.STORAGE), {_IDLE: cost.storage_byte_seconds}),
    ]
    credited, refused = credit_lines(charged, gpu_seconds, lost)
    return Statement(
        part=cost.part,
        currency=cost.currency,
        asset_cents=cost.cents,
        lines=tuple(sorted((*charged, *credited), key=lambda line: line.names)),
        rates=_rates(cost, usage),
        refused_credits=refused,
    )


def _gpu_lines(cost: AssetCost, usage: PartUsage) -> list[Line]:
    """Return the lines of installed GPUs: those of each type bear what that type costs, all bear what is for all."""
    everyone = {held: used.gpu_seconds for held, used in usage.by_bearer.items()}
    cents = _shared(cost.cents_of(*_BY_GPU), everyone)
    for gpu_type in sorted({each.gpu_type for each in cost.items if each.gpu_type is not None}):
        of_type = {held: seconds for held, seconds in everyone.items() if held[1] == gpu_type}
        for held, share in _shared(cost.cents_of(*_BY_GPU, gpu_type=gpu_type), of_type).items():
            cents[held] = Cents(cents.get(held, 0) + share)
    return [
        Line(
            service=Service.GPU,
            bearer=bearer,
            gpu_type=gpu_type,
            quantity=everyone.get((bearer, gpu_type), 0),
            cents=share,
            used=usage.by_bearer.get((bearer, gpu_type)),
        )
        for (bearer, gpu_type), share in cents.items()
    ]


def _lines(service: Service, total: Cents, weights: Mapping[Held, Amount]) -> list[Line]:
    return [
        Line(
            service=service, bearer=bearer, gpu_type=gpu_type, quantity=weights.get((bearer, gpu_type), 0), cents=share
        )
        for (bearer, gpu_type), share in _shared(total, weights).items()
        if share or weights.get((bearer, gpu_type))
    ]


def _shared(total: Cents, weights: Mapping[Held, Amount]) -> dict[Held, Cents]:
    """Return the total shared out; where nobody has a weight, the operator bears it."""
    if total and not any(weights.values()):
        return {(OPERATOR, GpuType("")): total}
    by_names = {(*bearer.names, gpu_type): (bearer, gpu_type) for bearer, gpu_type in weights}
    shares = share_cents(total, {names: weights[held] for names, held in by_names.items()})
    return {by_names[names]: share for names, share in shares.items()}


def _energy(
    cost: AssetCost, joules: Mapping[Held, Amount] | None, gpu_seconds: Mapping[Held, int]
) -> Mapping[Held, Amount]:
    if joules is None:
        total = sum(gpu_seconds.values())
        return {held: cost.joules * seconds / total for held, seconds in gpu_seconds.items()} if total else {}
    reported, rest = sum(joules.values()), (OPERATOR, GpuType(""))
    if reported > cost.joules:
        raise ValueError(
            f"{float(reported):g} joules reported by user, {float(cost.joules):g} paid for; expected no more than that"
        )
    return {**joules, rest: joules.get(rest, 0) + cost.joules - reported}


def _rates(cost: AssetCost, usage: PartUsage) -> dict[GpuType, Fraction]:
    everyone = sum(usage.installed.values())
    common = Fraction(cost.cents_of(*_BY_GPU) * _HOUR_SECONDS, everyone) if everyone else Fraction(0)
    return {
        gpu_type: common + Fraction(cost.cents_of(*_BY_GPU, gpu_type=gpu_type) * _HOUR_SECONDS, seconds)
        for gpu_type, seconds in sorted(usage.installed.items())
        if seconds
    }
