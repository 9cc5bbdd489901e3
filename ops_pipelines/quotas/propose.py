"""One morning's proposal of quotas, its notes and its rows in the lake.

Names of teams in it are others' words: anyone who shows them escapes them.

The ledger says what was proposed and what became of it; the lake repeats it beside demand, for SQL and pictures.

Pure but for `propose` and `keep`. The same inputs give the same proposal. What cannot be believed refuses it, with what
was found and what to do; what is merely not known is carried, and named in the notes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime

from ops_pipelines.core.cluster import hour_of
from ops_pipelines.core.proposal import (
    GpuType,
    ProposalRecord,
    ProposalState,
    ProposedQuota,
    QuotaProposal,
    SupplyLine,
    TeamName,
    Terms,
)
from ops_pipelines.core.sources import Rows
from ops_pipelines.quotas.changes import fairshares_of, in_force_before, limits_of
from ops_pipelines.quotas.demand import DemandDay, fair_demand, launches_on, remember
from ops_pipelines.quotas.morning import RECORDS, Morning, TypePast, days_of, known_hours, look, of_type, refuse_unknown
from ops_pipelines.quotas.proof import ProofInputs, contradictions_in
from ops_pipelines.quotas.proposing import headline_of_lines, propose_lines
from ops_pipelines.quotas.rebalance import rebalance, wished_quotas
from ops_pipelines.quotas.today import Today, debts_against, quotas_lately
from ops_pipelines.teams.contracts import carry_undeclared
from ops_pipelines.teams.desk import TeamsDesk

# -- what a proposal says beside its lines --


_NAMED = 5


def notes_on_teams(morning: Morning, kind: GpuType, demanded: frozenset[TeamName]) -> Iterator[str]:
    agreed = morning.agreements
    for team in sorted(demanded - frozenset(agreed.parents)):
        yield (
            f"{team} is in demand{of_type(kind)} and nobody declared it: what others leave is its share, and no limit "
            "is set for it; declare it in teams.yaml"
        )
    for team in sorted(demanded & agreed.organisations):
        yield f"jobs are charged to {team} itself, which has teams of its own: what they want is left out"
    if any(any(day.hours.get(TeamName(""), ())) for day in days_of(morning.past[kind])):
        yield f"jobs without an account run or wait{of_type(kind)}: they are left out"
    if morning.in_force is not None:
        missing = sorted(agreed.askers - morning.in_force.accounts.keys())
        if missing:
            yield f"the scheduler has no account {', '.join(missing[:_NAMED])}: no limit can be set there; add it"
        for rejected in morning.in_force.rejected[:_NAMED]:
            yield f"a limit could not be believed: {rejected.reason}"


def notes_on_hours(morning: Morning) -> Iterator[str]:
    for kind, known in sorted(morning.past.items()):
        _, missing = known_hours(known, as_of=morning.as_of)
        if missing:
            first = f"{missing[0]:%Y-%m-%d %H:%M} UTC"
            yield f"{len(missing)} hours of demand{of_type(kind)} are missing, the first of {first}"
        days = days_of(known)
        wanted = morning.policy.rebalance.window_days
        if days and (morning.day - days[0].day).days < wanted:
            yield f"demand{of_type(kind)} is known since {days[0].day} only, and {wanted} days are looked at"
    if morning.untold is not None:
        days = (*morning.untold.days, *([] if morning.untold.today is None else [morning.untold.today]))
        hours = sum(sum(amounts) for day in days for amounts in day.hours.values())
        if hours >= 1:
            yield f"{hours:.0f} GPU-hours were requested of which nobody can tell the type: they are left out"


# -- the lines of a proposal as rows of the lake's table `gpu_quotas` --


TABLE = "gpu_quotas"
Used = Mapping[tuple[TeamName, GpuType], float]
"""GPUs that each team ran on average on the last full day."""


def store_lines(desk: TeamsDesk, proposal: QuotaProposal, *, state: ProposalState, used: Used) -> int:
    """Make these lines all that the lake says of the proposal's day; return how many there are. Raises LakeError."""
    from ops_pipelines.lake.schema import TABLES

    at = begin_of(proposal.day, desk)
    rows: Rows = TABLES[TABLE].from_rows(
        {
            "team": line.team,
            "gpu_type": line.gpu_type,
            "time": at,
            "proposal": proposal.proposal,
            "state": state.value,
            "limit_gpus": line.limit,
            "before_gpus": line.before,
            "after_gpus": line.after,
            "guarantee_gpus": line.guarantee,
            "ran_last_gpus": line.ran_last,
            "used_mean_gpus": used.get((line.team, line.gpu_type)),
            "wanted_mean_gpus": line.wanted_mean,
            "debt_gpus": line.debt,
            "reason": line.reason,
            "counterfactual": line.counterfactual,
        }
        for line in proposal.lines
    )
    desk.lake.replace_hour(TABLE, hour_of(at), rows)
    return rows.num_rows


def used_in(desk: TeamsDesk, *, day: date) -> Used:
    """Return what the lake says that each team used, in the lines of a day; nothing where the day has none."""
    from ops_pipelines.quotas.daily import used_gpus

    return used_gpus(desk.lake.read_hour(TABLE, hour_of(begin_of(day, desk))))


def begin_of(day: date, desk: TeamsDesk) -> datetime:
    """Return when a local day begins, in UTC."""
    from ops_pipelines.core.periods import day_begins

    return day_begins(day, zone=desk.zone)


# -- one morning's proposal of quotas --


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """A proposal, and what it is proved against."""

    proposal: QuotaProposal
    inputs: ProofInputs
    used: Mapping[tuple[TeamName, GpuType], float]
    """GPUs that each team ran on average on the last full day."""

    @property
    def contradictions(self) -> tuple[str, ...]:
        """What the proofs find; nothing: it may be kept and applied."""
        return contradictions_in(self.proposal, self.inputs)


def propose(day: date, desk: TeamsDesk, *, now: datetime) -> Proposed:
    """Return what is proposed for a local day. Raises as `morning.look`."""
    return propose_from(look(day, desk, now=now), made_at=now)


def keep(proposed: Proposed, desk: TeamsDesk, *, actor: str, now: datetime) -> ProposalRecord:
    """Write a proposal down, as refused if a proof contradicts it. One of the same lines is returned as it is."""
    problems = proposed.contradictions
    record = ProposalRecord(
        proposal=proposed.proposal,
        state=ProposalState.REFUSED if problems else ProposalState.PROPOSED,
        since=now,
        actor=actor,
        reason="; ".join(problems) if problems else proposed.proposal.headline,
    )
    return desk.cluster.ledger.keep_proposal(record, now=now)


def proof_inputs(proposal: QuotaProposal, desk: TeamsDesk) -> ProofInputs:
    """Return what a stored proposal is proved against: agreements and earlier proposals, read again."""
    records = desk.cluster.ledger.proposals(limit=RECORDS)
    return ProofInputs(
        terms={line.gpu_type: desk.agreed().terms_on(proposal.day, line.gpu_type) for line in proposal.supplies},
        policy=desk.policy,
        earlier=in_force_before(proposal.day, records),
    )


def propose_from(morning: Morning, *, made_at: datetime) -> Proposed:
    """Return the proposal that follows from one morning. Raises NoProposal."""
    refuse_unknown(morning)
    lines: list[ProposedQuota] = []
    caps: list[tuple[GpuType, float]] = []
    notes = list(morning.notes)
    earlier = in_force_before(morning.day, morning.records)
    for supply in sorted(morning.supplies, key=lambda each: each.gpu_type):
        kind = supply.gpu_type
        terms, demanded = _terms_of(morning, kind)
        notes += notes_on_teams(morning, kind, demanded)
        today = _today(morning, supply, terms, earlier)
        rebalanced = rebalance(today, settings=morning.policy.rebalance)
        lines += propose_lines(
            rebalanced,
            today=today,
            gpu_type=kind,
            limits=limits_of(morning, kind),
            wanted=_wanted(morning.past[kind]),
            fairshares=fairshares_of(morning),
        )
        caps.append((kind, rebalanced.step_cap))
    notes += notes_on_hours(morning)
    proposal = QuotaProposal(
        day=morning.day,
        made_at=made_at,
        lines=tuple(lines),
        supplies=tuple(sorted(morning.supplies, key=lambda each: each.gpu_type)),
        step_caps=tuple(caps),
        headline=headline_of_lines(
            lines,
            supplies=morning.supplies,
            step_caps=caps,
            frozen_because=morning.frozen_because,
            strangers={each.team for each in lines} - set(morning.agreements.parents),
        ),
        frozen_because=morning.frozen_because,
        notes=tuple(dict.fromkeys(notes)),
        demand_until=morning.demand_until,
        known_hour_ratio=min(known_hours(each, as_of=morning.as_of)[0] for each in morning.past.values()),
    )
    terms_by_type = {
        line.gpu_type: morning.agreements.terms_on(morning.day, line.gpu_type) for line in morning.supplies
    }
    return Proposed(
        proposal=proposal,
        inputs=ProofInputs(terms=terms_by_type, policy=morning.policy, earlier=earlier),
        used={
            (team, kind): gpus for kind, known in sorted(morning.past.items()) for team, gpus in _used(known).items()
        },
    )


# -- one type of GPU --


def _terms_of(morning: Morning, kind: GpuType) -> tuple[tuple[Terms, ...], frozenset[TeamName]]:
    """Return the terms of all declared teams, and of those in demand that nobody declared; and who is in demand."""
    agreed = morning.agreements
    demanded = frozenset(
        team for day in days_of(morning.past[kind]) for team, amounts in day.hours.items() if team and any(amounts)
    )
    asking = demanded - agreed.organisations
    return carry_undeclared(agreed.terms_on(morning.day, kind), demanded=asking), demanded


def _today(morning: Morning, supply: SupplyLine, terms: Sequence[Terms], earlier: Sequence[QuotaProposal]) -> Today:
    """Return what the rebalancer is given: memory up to now, wishes of the last days, floors, debts."""
    kind, known = supply.gpu_type, morning.past[supply.gpu_type]
    settings, agreed = morning.policy.rebalance, morning.agreements
    strangers = frozenset(each.team for each in terms) - frozenset(agreed.parents)
    teams = [each.team for each in terms if each.team not in agreed.organisations]
    days = [_of_teams(day, teams) for day in days_of(known)]
    fair = [fair_demand(day, terms=terms, supply=supply.supply) for day in days]
    launches = launches_on(morning.day, agreed.projects, gpu_type=kind)
    chances = [
        remember(fair[: len(fair) - back], teams=teams, settings=settings, launches=launches)
        for back in reversed(range(min(settings.looked_at_days, len(fair))))
    ]
    debts = debts_against(fair, served=[_served(known, day, teams) for day in days])
    wished = [wished_quotas(terms, each, supply=supply.supply, strangers=strangers, debts=debts) for each in chances]
    limits = limits_of(morning, kind)
    contract = wished_quotas(terms, {}, supply=supply.supply, strangers=strangers)
    quotas = {team: _first(limits.get(team), contract.get(team, 0.0)) for team in teams}
    return Today(
        terms=terms,
        quotas=quotas,
        chances=chances[-1],
        too_large=wished,
        ran_last=days[-1].ran_last,
        supply=supply.supply,
        strangers=strangers,
        debts=debts,
        gangs={team: gpus for (team, of), gpus in morning.gangs.items() if of == kind and team in set(teams)},
        launches=launches.words,
        lately=quotas_lately(morning.day, earlier, gpu_type=kind, now=quotas, settings=settings),
        frozen_because=morning.frozen_because,
        returns_to_contract="" if morning.frozen_because else morning.returns_to_contract,
    )


def _first(limit: int | None, agreed: float) -> float:
    return agreed if limit is None else float(limit)


def _of_teams(day: DemandDay, teams: Sequence[TeamName]) -> DemandDay:
    """Return the day of those who get quotas, with zeros for who has no row in it."""
    nothing = (0.0,) * day.hour_count
    return replace(day, hours={team: day.hours.get(team, nothing) for team in teams})


def _served(known: TypePast, day: DemandDay, teams: Sequence[TeamName]) -> Mapping[TeamName, Sequence[float]]:
    ran = known.served.get(day.day, {})
    return {team: ran.get(team, ()) for team in teams}


def _wanted(known: TypePast) -> Mapping[TeamName, float]:
    """Return what each team requested on average on the last full day; before the first one, on the running day."""
    days = known.past.days or days_of(known)
    return {team: math.fsum(hours) / len(hours) for team, hours in days[-1].hours.items() if hours}


def _used(known: TypePast) -> Mapping[TeamName, float]:
    """Return what each team ran on average, on the day that `_wanted` is of."""
    days = known.past.days or days_of(known)
    return {team: math.fsum(hours) / len(hours) for team, hours in known.served.get(days[-1].day, {}).items() if hours}
