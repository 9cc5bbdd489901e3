"""Proposals of quotas for tests: a few lines, each from a limit to another."""

import math
from datetime import UTC, date, datetime

from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.proposal import (
    GpuType,
    ProposalEvent,
    ProposalRecord,
    ProposalState,
    ProposedQuota,
    QuotaProposal,
    SentChange,
    SupplyLine,
    TeamName,
)
from tests.ports.proved_plans import passed_quotas

DAY = date(2026, 3, 1)
MADE_AT = datetime(2026, 3, 1, 5, 0, tzinfo=UTC)


def line(
    team: str,
    limit: int | None,
    after: int,
    *,
    gpu_type: str = "",
    guarantee: float = 0.0,
    fairshare: tuple[int | None, int | None] = (None, None),
) -> ProposedQuota:
    """Return one line: from a limit, or from nothing, to another."""
    return ProposedQuota(
        team=TeamName(team),
        gpu_type=GpuType(gpu_type),
        limit=limit,
        before=float(guarantee if limit is None else limit),
        after=after,
        guarantee=guarantee,
        most=math.inf,
        floor=guarantee,
        ran_last=0.0,
        wanted_mean=float(after),
        debt=-0.25,
        reason=f"{team} is to have {after}",
        counterfactual="",
        fairshare_before=fairshare[0],
        fairshare_after=fairshare[1],
    )


def proposal(
    *lines: ProposedQuota, day: date = DAY, made_at: datetime = MADE_AT, supply: float = 32.0
) -> QuotaProposal:
    """Return a proposal; without lines, one that moves 8 GPUs from product to research."""
    chosen = lines or (line("product", 16, 8), line("research", 8, 16))
    types = sorted({each.gpu_type for each in chosen})
    return QuotaProposal(
        day=day,
        made_at=made_at,
        lines=chosen,
        supplies=tuple(
            SupplyLine(gpu_type=each, installed=supply, broken=0.0, in_rollouts=0.0, slack=0.0, supply=supply)
            for each in types
        ),
        step_caps=tuple((each, supply) for each in types),
        headline="a test",
        demand_until=made_at,
    )


def kept(
    ledger: Ledger, made: QuotaProposal | None = None, *, state: ProposalState = ProposalState.PROPOSED
) -> ProposalRecord:
    """Keep a proposal and return it as it is stored."""
    chosen = made or proposal()
    record = ProposalRecord(proposal=chosen, state=state, since=chosen.made_at, actor=AUTOPILOT, reason="05:00")
    return ledger.keep_proposal(record, now=chosen.made_at)


def move(
    ledger: Ledger,
    record: ProposalRecord,
    *events: ProposalEvent,
    at: datetime = MADE_AT,
    token: str | None = None,
    sent: tuple[SentChange, ...] = (),
) -> ProposalRecord:
    """Let events happen to a proposal, one after another; `sent` is reported with the first."""
    for number, event in enumerate(events):
        record = ledger.change_proposal(
            record.name,
            event,
            actor="ada",
            reason=f"{event.value} of a test",
            lease_token=token,
            now=at,
            sent=() if number else sent,
            proof=passed_quotas(record.proposal, ledger, at=at) if event is ProposalEvent.BEGIN else None,
        )
    return record
