"""What a team gets back for hours that our own incidents made worthless, and the operator's line beside it.

Whose incident it was, and which hours it cost, is told by whoever asks; here is what these hours are worth.
"""

from collections.abc import Mapping, Sequence

from ops_pipelines.core.money import Cents, share_cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.domain.cost.lines import OPERATOR, Held, Line, LostHours, Service
from ops_pipelines.domain.cost.usage import Bearer, Fate, Owner

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
