"""Evidence for tests of the gate: small, plain, and every value can be reported otherwise."""

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Claims
from ops_pipelines.rollouts.gate.evidence import (
    CauseCounts,
    ControlShift,
    EventCounts,
    EventKind,
    GateEvidence,
    LevelKind,
    LevelSamples,
    UpdateTry,
)
from ops_pipelines.rollouts.gate.judge_wave import Looking

BEGAN = datetime(2026, 3, 2, 8, tzinfo=UTC)
LIMITS = RolloutLimits()
CLAIMS = Claims()
DECIDING = Looking(claims=CLAIMS, limits=LIMITS, sought=CLAIMS, is_updated=True)
FIRST = Looking(claims=CLAIMS, limits=LIMITS, sought=None, is_updated=True)
LATER = Looking(claims=CLAIMS, limits=LIMITS, sought=None, is_updated=True, is_canary=False)
USUAL = 0.0065


def names(count: int) -> tuple[NodeName, ...]:
    return tuple(NodeName(f"gpu{number:03d}") for number in range(count))


def tries(failed_count: int, count: int, *, model: str = "h100", signature: str = "") -> tuple[UpdateTry, ...]:
    """Return the first `failed_count` of `count` updates as failed."""
    return tuple(
        UpdateTry(node=node, model=model, is_good=place >= failed_count, signature=signature)
        for place, node in enumerate(names(count))
    )


def failures(
    count: int,
    node_days: float,
    *,
    kind: EventKind = EventKind.NODE_FAILURE,
    control_count: int = 63,
    control_node_days: float = 9_700.0,
    past_count: int = 0,
    past_node_days: float = 0.0,
    own_count: int = 0,
    own_node_days: float = 0.0,
) -> EventCounts:
    return EventCounts(
        kind=kind,
        treated_count=count,
        treated_node_days=node_days,
        control_count=control_count,
        control_node_days=control_node_days,
        past_count=past_count,
        past_node_days=past_node_days,
        own_count=own_count,
        own_node_days=own_node_days,
    )


def cause(
    node_count: int, node_days: float, *, control_count: int = 0, control_node_days: float = 9_700.0
) -> CauseCounts:
    return CauseCounts(
        cause="GPU fell off the bus",
        treated_nodes=frozenset(names(node_count)),
        treated_node_days=node_days,
        control_count=control_count,
        control_node_days=control_node_days,
    )


def steps(
    slowdown: float,
    *,
    node_count: int = 30,
    before_count: int = 10,
    after_count: int = 10,
    kind: LevelKind = LevelKind.STEP_TIME,
    spread: float = 0.03,
    rng: random.Random | None = None,
) -> tuple[LevelSamples, ...]:
    """Return runs of nodes: drawn where there is a generator, else spread evenly around their mean."""

    def runs(mean: float, count: int) -> tuple[float, ...]:
        if rng is not None:
            return tuple(mean * (1 + spread * rng.gauss(0, 1)) for _ in range(count))
        return tuple(
            mean * (1 + spread * (1 if place % 2 else -1) * (place < count - count % 2)) for place in range(count)
        )

    return tuple(
        LevelSamples(
            kind=kind, node=node, before=runs(2.0, before_count), after=runs(2.0 * (1 + slowdown), after_count)
        )
        for node in names(node_count)
    )


def evidence(
    hours: float = 9.0,
    *,
    tried: Sequence[UpdateTry] | None = None,
    counts: Sequence[EventCounts] | None = None,
    levels: Sequence[LevelSamples] | None = None,
    shifts: Sequence[ControlShift] = (),
    causes: Sequence[CauseCounts] = (),
    soaks: Mapping[NodeName, timedelta] | None = None,
    node_count: int = 30,
) -> GateEvidence:
    """Return what a wave of thirty shows after so many hours at work: by itself, that nothing is wrong."""
    worked = timedelta(hours=hours)
    return GateEvidence(
        at=BEGAN + worked,
        tries=tuple(tries(0, node_count) if tried is None else tried),
        counts=tuple([failures(0, node_count * hours / 24)] if counts is None else counts),
        levels=tuple(steps(0.0, node_count=node_count) if levels is None else levels),
        shifts=tuple(shifts),
        causes=tuple(causes),
        soaks=dict.fromkeys(names(node_count), worked) if soaks is None else soaks,
        soak_began_at=BEGAN,
    )
