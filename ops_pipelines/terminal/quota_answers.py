"""What a `quota` command asks of the desk of teams: finds, refuses unknown names, views. Prints nothing."""

from collections.abc import Sequence
from datetime import date
from difflib import get_close_matches

from ops_pipelines.core.proposal import GpuType, ProposalId, ProposalRecord, ProposalState, QuotaProposal, TeamName
from ops_pipelines.core.quota_limits import Change
from ops_pipelines.core.sources import SourceError
from ops_pipelines.quotas.changes import in_force_before, limit_of
from ops_pipelines.quotas.daily_work import newest_of
from ops_pipelines.quotas.propose import propose, used_in
from ops_pipelines.quotas.reclaim import Reclaims, reclaims_of
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.terminal.quota_views import (
    AgreedView,
    DiffRow,
    DiffView,
    PastLine,
    PreviewView,
    TeamView,
    Used,
    finite,
    view_line,
    view_reclaim,
)

_LOOKED_BACK = 60
_HISTORY = 14
_FIRST_YEAR = 1970
_NAMED = 200


def find_proposal(name: str | None, desk: TeamsDesk) -> ProposalRecord:
    """Return the proposal of that name, without one the newest; refuse what there is not."""
    ledger = desk.cluster.ledger
    if name is None:
        newest = next(iter(ledger.proposals(limit=1)), None)
        if newest is None:
            raise ByHandRefused("nothing was ever proposed; `ops-pipelines quota propose --keep` does so")
        return newest
    known = ledger.proposal(ProposalId(name[:_NAMED].upper()[:14] + name[14:_NAMED].lower()))
    if known is not None:
        return known
    near = get_close_matches(name, [each.name for each in ledger.proposals(limit=_LOOKED_BACK)], n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "`ops-pipelines quota history` lists them"
    raise ByHandRefused(f"there is no proposal {name[:_NAMED]}; {hint}")


def day_named(text: str | None, desk: TeamsDesk) -> date:
    """Return the local day that is meant; without one, today's. Raises ValueError for what is no day."""
    if text is None:
        return desk.clock.now().astimezone(desk.zone).date()
    day = date.fromisoformat(text)
    if not _FIRST_YEAR <= day.year < date.max.year:
        raise ValueError(f"{text[:40]} is no day of a cluster")
    return day


def view_diff(record: ProposalRecord, desk: TeamsDesk) -> DiffView:
    """Return what is in force, proposed and agreed, beside each other. Raises SourceError."""
    in_force = None if desk.quotas is None else desk.quotas.read()
    proposal = record.proposal
    applied = in_force_before(date.max, desk.cluster.ledger.proposals(limit=_LOOKED_BACK))
    rows = []
    for line in proposal.lines:
        account = None if in_force is None else in_force.accounts.get(line.team)
        now = (
            None
            if account is None
            else limit_of(account, line.gpu_type, count=len(proposal.supplies), newest=applied[-1] if applied else None)
        )
        rows.append(
            DiffRow(
                team=line.team,
                gpu_type=line.gpu_type,
                in_force=now,
                proposed=line.after,
                guarantee=line.guarantee,
                most=finite(line.most),
                is_as_read=now == line.limit,
            )
        )
    return DiffView(
        cluster=desk.cluster.name,
        proposal=record.name,
        state=record.state.value,
        read_at=None if in_force is None else in_force.read_at,
        rows=tuple(rows),
    )


def view_preview(
    record: ProposalRecord,
    desk: TeamsDesk,
    *,
    changes: Sequence[Change],
    hindrances: Sequence[str],
    warnings: Sequence[str],
) -> PreviewView:
    return PreviewView(
        cluster=desk.cluster.name,
        proposal=record.name,
        state=record.state.value,
        changes=tuple(map(str, changes)),
        hindrances=tuple(hindrances),
        warnings=tuple(warnings),
    )


def view_team(name: str, day: date, desk: TeamsDesk) -> TeamView:
    """Return all on one team: what was agreed, what the day's proposal says of it, and those before.

    The proposal that is kept of the day; without one it is computed. Raises as `propose`, ByHandRefused for nobody.
    """
    agreed = desk.agreed()
    team = TeamName(name)
    kept = newest_of(day, desk)
    proposal, used, state = _proposal_of(kept, day, desk)
    lines = [each for each in proposal.lines if each.team == team]
    if team not in agreed.parents and not lines:
        _refuse_unknown(name, agreed, proposal)
    kinds = sorted({*(each.gpu_type for each in proposal.supplies)})
    reclaims = _reclaims(team, day, desk)
    return TeamView(
        cluster=desk.cluster.name,
        team=team,
        day=day.isoformat(),
        belongs_to=agreed.parents.get(team),
        proposal=proposal.proposal,
        state=state,
        agreed=tuple(_agreed(agreed, day, team=team, gpu_type=kind) for kind in kinds),
        projects=tuple(
            f"{each.words}: {each.gpus:g} GPUs from {each.begins_on}"
            + ("" if each.ends_on is None else f" until {each.ends_on}")
            + ("" if each.probability == 1 else f", {each.probability:.0%} likely")
            for each in agreed.projects
            if each.team == team and (each.ends_on is None or day < each.ends_on)
        ),
        lines=tuple(view_line(each, used=used) for each in lines),
        history=_history(team, day, desk),
        reclaim=tuple(map(view_reclaim, reclaims.by_type)),
        notes=(*(each for each in proposal.notes if team and team in each.split()), *reclaims.notes),
    )


def _reclaims(team: TeamName, day: date, desk: TeamsDesk) -> Reclaims:
    """Return what preemption would give back now. What runs is of now, so of another day nothing is said."""
    now = desk.clock.now()
    if day != now.astimezone(desk.zone).date():
        return Reclaims(by_type=())
    try:
        return reclaims_of(team, desk, now=now)
    except SourceError as problem:
        return Reclaims(by_type=(), notes=(f"whose jobs preemption would end is not known: {problem}",))


def _proposal_of(kept: ProposalRecord | None, day: date, desk: TeamsDesk) -> tuple[QuotaProposal, Used, str]:
    if kept is not None:
        return kept.proposal, used_in(desk, day=day), kept.state.value
    made = propose(day, desk, now=desk.clock.now())
    return made.proposal, made.used, "computed"


def _refuse_unknown(name: str, agreed: Agreements, proposal: QuotaProposal) -> None:
    known = sorted({*agreed.parents, *(each.team for each in proposal.lines)})
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known[:10])}"
    raise ByHandRefused(f"there is no team {name[:_NAMED]}; {hint}")


def _agreed(agreed: Agreements, day: date, *, team: TeamName, gpu_type: GpuType) -> AgreedView:
    contract = agreed.contract_on(day, team=team, gpu_type=gpu_type)
    if contract is None:
        return AgreedView(
            gpu_type=gpu_type,
            contract="nothing was agreed for this day",
            guarantee=0.0,
            weight=1.0 if team in agreed.parents else 0.0,
            borrow_limit=None,
            lend_limit=None,
            reserved=0.0,
            cap=None,
            priority=0,
        )
    terms = contract.terms
    return AgreedView(
        gpu_type=gpu_type,
        contract=contract.words,
        guarantee=terms.guarantee,
        weight=terms.weight,
        borrow_limit=finite(terms.borrow_limit),
        lend_limit=finite(terms.lend_limit),
        reserved=terms.reserved,
        cap=finite(terms.cap),
        priority=terms.priority,
    )


def _history(team: TeamName, day: date, desk: TeamsDesk) -> tuple[PastLine, ...]:
    records = [
        each
        for each in desk.cluster.ledger.proposals(limit=_LOOKED_BACK)
        if each.proposal.day <= day and each.state is not ProposalState.SUPERSEDED
    ]
    return tuple(
        PastLine(
            day=record.proposal.day.isoformat(),
            proposal=record.name,
            state=record.state.value,
            gpu_type=line.gpu_type,
            before=line.before,
            after=line.after,
            reason=line.reason,
        )
        for record in records[:_HISTORY]
        for line in record.proposal.lines
        if line.team == team
    )
