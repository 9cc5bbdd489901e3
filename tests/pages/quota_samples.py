"""Proposals by hand, for pages: few teams, many teams, hostile words."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

from ops_pipelines.core.proposal import (
    GpuType,
    ProposalRecord,
    ProposalState,
    ProposedQuota,
    QuotaProposal,
    SupplyLine,
    TeamName,
)

DAY = date(2026, 11, 22)
NOW = datetime(2026, 11, 22, 7, 30, tzinfo=UTC)
H100 = GpuType("")


def line(
    team: str = "vision",
    *,
    before: float = 32,
    after: int = 40,
    guarantee: float = 24,
    wanted: float = 45,
    limit: int | None = 32,
    kind: GpuType = H100,
    reason: str = "it requested 45 GPUs on the last full day, and others left theirs unused.",
) -> ProposedQuota:
    return ProposedQuota(
        team=TeamName(team), gpu_type=kind, limit=limit, before=before, after=after, guarantee=guarantee, most=96,
        floor=24, ran_last=30, wanted_mean=wanted, debt=1.5, reason=reason,
        counterfactual="With the quota before it would miss 11.2 GPU-hours an hour, with this one 4.1.",
    )  # fmt: skip


def supply(kind: GpuType = H100, *, installed: float = 96) -> SupplyLine:
    return SupplyLine(gpu_type=kind, installed=installed, broken=4, in_rollouts=8, slack=8, supply=installed - 12)


def proposal(lines: Sequence[ProposedQuota], *, day: date = DAY, frozen_because: str = "") -> QuotaProposal:
    kinds = sorted({each.gpu_type for each in lines})
    return QuotaProposal(
        day=day, made_at=NOW - (DAY - day), lines=tuple(sorted(lines, key=lambda each: (each.gpu_type, each.team))),
        supplies=tuple(supply(kind) for kind in kinds), step_caps=tuple((kind, 9.6) for kind in kinds),
        headline=f"{sum(each.before != each.after for each in lines)} of {len(lines)} quotas change.",
        frozen_because=frozen_because, demand_until=NOW,
    )  # fmt: skip


def record(
    lines: Sequence[ProposedQuota] = (line(),),
    *,
    state: ProposalState = ProposalState.PROPOSED,
    day: date = DAY,
    frozen_because: str = "",
) -> ProposalRecord:
    return ProposalRecord(
        proposal=proposal(lines, day=day, frozen_because=frozen_because),
        state=state,
        since=NOW,
        actor="autopilot",
        reason="",
    )


def days(count: int) -> list[ProposalRecord]:
    """Return a proposal a day, the newest first; each gives `vision` two more than the one before."""
    return [
        record([line(after=40 - 2 * back)], day=DAY - timedelta(days=back), state=ProposalState.APPLIED)
        for back in range(count)
    ]
