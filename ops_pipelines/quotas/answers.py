"""What is asked about quotas: a proposal by name, what is in force beside it, all on one team; as documents and JSON.

Unknown names are refused with those that are similar. A proposal and the last ones as documents are `report`'s. The
keys of the JSON are a contract with the scripts of operators; null there: without limit, or not known. Longer than
most: each answer is beside its JSON.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from difflib import get_close_matches

from ops_pipelines.core.proposal import (
    GpuType,
    ProposalId,
    ProposalRecord,
    ProposalState,
    ProposedQuota,
    QuotaProposal,
    TeamName,
)
from ops_pipelines.core.sources import SourceError
from ops_pipelines.quotas.apply import Preview
from ops_pipelines.quotas.changes import in_force_before, limit_of
from ops_pipelines.quotas.daily_work import newest_of
from ops_pipelines.quotas.propose import Used, propose, used_in
from ops_pipelines.quotas.reclaim import Reclaim, Reclaims, reclaims_of
from ops_pipelines.quotas.report import history_table, state_words
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.report import document as doc
from ops_pipelines.report.document import fields_of, toned
from ops_pipelines.teams.contracts import Agreements, Contract
from ops_pipelines.teams.desk import TeamsDesk

_LOOKED_BACK = 60
_HISTORY = 14
_FIRST_YEAR = 1970
_NAMED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """One line of a proposal beside what the scheduler holds the team to now."""

    line: ProposedQuota
    limit: int | None
    """None: no limit, or none that is known."""

    @property
    def is_as_read(self) -> bool:
        """Whether what is in force is what the proposal was made from."""
        return self.limit == self.line.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A proposal beside what is in force."""

    record: ProposalRecord
    read_at: datetime | None
    """None: this scheduler keeps no limits."""
    rows: tuple[InForce, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfTeam:
    """All that is known of one team's quota on a day."""

    team: TeamName
    day: date
    belongs_to: TeamName | None
    proposal: QuotaProposal
    state: str
    """`computed` where the proposal is not kept."""
    used: Used
    contracts: tuple[tuple[GpuType, Contract | None], ...]
    """For each type of GPU; None: nothing was agreed for this day."""
    is_agreed: bool
    """Whether the team is named by what was agreed at all."""
    projects: tuple[str, ...]
    history: tuple[ProposalRecord, ...]
    reclaims: Reclaims
    """As of now; nothing for another day than today, for an organisation, and where a note says why."""

    @property
    def lines(self) -> tuple[ProposedQuota, ...]:
        return tuple(each for each in self.proposal.lines if each.team == self.team)

    @property
    def history_lines(self) -> Iterable[tuple[ProposalRecord, ProposedQuota]]:
        """Return what each proposal stated of the team, the newest first."""
        return ((each, line) for each in self.history for line in each.proposal.lines if line.team == self.team)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return those of the proposal that name the team, and what is not known of `reclaims`."""
        named = (each for each in self.proposal.notes if self.team and self.team in each.split())
        return *named, *self.reclaims.notes


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


def beside_what_is_in_force(record: ProposalRecord, desk: TeamsDesk) -> Beside:
    """Return a proposal beside what is in force. Raises SourceError."""
    in_force = None if desk.quotas is None else desk.quotas.read()
    proposal = record.proposal
    applied = in_force_before(date.max, desk.cluster.ledger.proposals(limit=_LOOKED_BACK))
    newest, count = applied[-1] if applied else None, len(proposal.supplies)
    rows = []
    for line in proposal.lines:
        account = None if in_force is None else in_force.accounts.get(line.team)
        limit = None if account is None else limit_of(account, line.gpu_type, count=count, newest=newest)
        rows.append(InForce(line=line, limit=limit))
    return Beside(record=record, read_at=None if in_force is None else in_force.read_at, rows=tuple(rows))


def all_on_team(name: str, day: date, desk: TeamsDesk) -> OfTeam:
    """Return all on one team: what was agreed, what the day's proposal says of it, and those before.

    The proposal that is kept of the day; without one it is computed. Raises as `propose`, ByHandRefused for nobody.
    """
    agreed, team = desk.agreed(), TeamName(name)
    kept = newest_of(day, desk)
    if kept is not None:
        proposal, used, state = kept.proposal, used_in(desk, day=day), kept.state.value
    else:
        made = propose(day, desk, now=desk.clock.now())
        proposal, used, state = made.proposal, made.used, "computed"
    if team not in agreed.parents and all(each.team != team for each in proposal.lines):
        _refuse_unknown(name, agreed, proposal)
    return OfTeam(
        team=team,
        day=day,
        belongs_to=agreed.parents.get(team),
        proposal=proposal,
        state=state,
        used=used,
        contracts=tuple(
            (kind, agreed.contract_on(day, team=team, gpu_type=kind))
            for kind in sorted({each.gpu_type for each in proposal.supplies})
        ),
        is_agreed=team in agreed.parents,
        projects=tuple(
            f"{each.words}: {each.gpus:g} GPUs from {each.begins_on}"
            + ("" if each.ends_on is None else f" until {each.ends_on}")
            + ("" if each.probability == 1 else f", {each.probability:.0%} likely")
            for each in agreed.projects
            if each.team == team and (each.ends_on is None or day < each.ends_on)
        ),
        history=_history(day, desk),
        reclaims=_reclaims(team, day, desk),
    )


def _reclaims(team: TeamName, day: date, desk: TeamsDesk) -> Reclaims:
    """Return what preemption would give back now. What runs is of now, so of another day nothing is reported."""
    now = desk.clock.now()
    if day != now.astimezone(desk.zone).date():
        return Reclaims(by_type=())
    try:
        return reclaims_of(team, desk, now=now)
    except SourceError as problem:
        return Reclaims(by_type=(), notes=(f"whose jobs preemption would end is not known: {problem}",))


def _refuse_unknown(name: str, agreed: Agreements, proposal: QuotaProposal) -> None:
    known = sorted({*agreed.parents, *(each.team for each in proposal.lines)})
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known[:10])}"
    raise ByHandRefused(f"there is no team {name[:_NAMED]}; {hint}")


def _history(day: date, desk: TeamsDesk) -> tuple[ProposalRecord, ...]:
    records = desk.cluster.ledger.proposals(limit=_LOOKED_BACK)
    past = [each for each in records if each.proposal.day <= day and each.state is not ProposalState.SUPERSEDED]
    return tuple(past[:_HISTORY])


# -- JSON --


def proposal_json(
    proposal: QuotaProposal,
    record: ProposalRecord | None,
    *,
    cluster: str,
    used: Used,
    contradictions: Sequence[str] = (),
) -> dict[str, object]:
    """Return what `ops-pipelines quota propose --json` prints; `state` is `computed` where it is not kept."""
    return {
        "cluster": cluster,
        "day": proposal.day.isoformat(),
        "proposal": proposal.proposal,
        "state": "computed" if record is None else record.state,
        "since": proposal.made_at if record is None else record.since,
        "actor": "" if record is None else record.actor,
        "reason": "" if record is None else record.reason,
        "made_at": proposal.made_at,
        "headline": proposal.headline,
        "stands_still": proposal.frozen_because,
        "lines": [_json_line(each, used=used) for each in proposal.lines],
        "supplies": [
            {
                **fields_of(each, "gpu_type installed broken in_rollouts"),
                "kept_back": each.slack,
                "supply": each.supply,
            }
            for each in proposal.supplies
        ],
        "notes": proposal.notes,
        "contradictions": contradictions,
        "demand_until": proposal.demand_until,
        "known_hour_ratio": proposal.known_hour_ratio,
    }


def _json_line(line: ProposedQuota, *, used: Used) -> dict[str, object]:
    return {
        **fields_of(line, "team gpu_type limit before after guarantee"),
        "most": _finite(line.most),
        "used_mean": used.get((line.team, line.gpu_type)),
        **fields_of(line, "wanted_mean ran_last debt reason counterfactual"),
    }


def beside_json(found: Beside, *, cluster: str) -> dict[str, object]:
    """Return what `ops-pipelines quota diff --json` prints."""
    return {
        "cluster": cluster,
        "proposal": found.record.name,
        "state": found.record.state,
        "read_at": found.read_at,
        "rows": [
            {
                "team": each.line.team,
                "gpu_type": each.line.gpu_type,
                "in_force": each.limit,
                "proposed": each.line.after,
                "guarantee": each.line.guarantee,
                "most": _finite(each.line.most),
                "is_as_read": each.is_as_read,
            }
            for each in found.rows
        ],
    }


def preview_json(found: Preview, *, cluster: str) -> dict[str, object]:
    """Return what `ops-pipelines quota apply --dry-run --json` prints."""
    return {
        "cluster": cluster,
        "proposal": found.record.name,
        "state": found.record.state,
        "changes": [str(each) for each in found.changes],
        "hindrances": found.hindrances,
        "warnings": found.warnings,
    }


def history_json(records: Sequence[ProposalRecord], *, cluster: str) -> dict[str, object]:
    """Return what `ops-pipelines quota history --json` prints."""
    return {"cluster": cluster, "proposals": [record_json(each) for each in records]}


def record_json(record: ProposalRecord) -> dict[str, object]:
    """Return one proposal of `quota history --json`, which `quota apply --json` prints, too."""
    return {
        "proposal": record.name,
        "day": record.proposal.day.isoformat(),
        **fields_of(record, "state since actor"),
        "changed_count": sum(line.changes_anything for line in record.proposal.lines),
        "headline": record.proposal.headline,
        "reason": record.reason,
    }


def team_json(found: OfTeam, *, cluster: str) -> dict[str, object]:
    """Return what `ops-pipelines quota explain --json` prints."""
    return {
        "cluster": cluster,
        "team": found.team,
        "day": found.day.isoformat(),
        "belongs_to": found.belongs_to,
        "proposal": found.proposal.proposal,
        "state": found.state,
        "agreed": [_json_agreed(*each, is_agreed=found.is_agreed) for each in found.contracts],
        "projects": found.projects,
        "lines": [_json_line(each, used=found.used) for each in found.lines],
        "history": [
            {
                "day": record.proposal.day.isoformat(),
                "proposal": record.name,
                "state": record.state,
                **fields_of(line, "gpu_type before after reason"),
            }
            for record, line in found.history_lines
        ],
        "reclaim": [
            {
                **fields_of(each, "gpu_type guarantee runs free"),
                "wanted": each.report.wanted_gpus,
                "jobs": [
                    {"job": job.job, "team": job.team, "gpus": job.gpu_count, "ran_seconds": job.ran.total_seconds()}
                    for job in each.report.jobs
                ],
                "missing": each.report.missing_gpus,
                "rule": each.report.rule,
                "scheduler": each.report.scheduler,
            }
            for each in found.reclaims.by_type
        ],
        "notes": found.notes,
    }


def _json_agreed(kind: GpuType, contract: Contract | None, *, is_agreed: bool) -> dict[str, object]:
    terms = None if contract is None else contract.terms
    return {
        "gpu_type": kind,
        "contract": "nothing was agreed for this day" if contract is None else contract.words,
        "guarantee": 0.0 if terms is None else terms.guarantee,
        "weight": float(is_agreed) if terms is None else terms.weight,
        "borrow_limit": None if terms is None else _finite(terms.borrow_limit),
        "lend_limit": None if terms is None else _finite(terms.lend_limit),
        "reserved": 0.0 if terms is None else terms.reserved,
        "cap": None if terms is None else _finite(terms.cap),
        "priority": 0 if terms is None else terms.priority,
    }


def _finite(amount: float) -> float | None:
    return None if math.isinf(amount) else amount


_JOBS_SHOWN = 10


def history_document(records: Sequence[ProposalRecord], *, cluster: str) -> doc.Document:
    """Return the proposals of all days, as they were kept."""
    return doc.Document(title="Proposals", cluster=cluster, about="the newest first", blocks=(history_table(records),))


def beside_document(found: Beside, *, cluster: str) -> doc.Document:
    """Return what is in force, what is proposed, and what was agreed."""
    record = found.record
    has_types = any(each.line.gpu_type for each in found.rows)
    changed = ", ".join(each.line.team for each in found.rows if not each.is_as_read)
    stale = f"changed since it was proposed: {changed}; propose again before it is applied"
    return doc.Document(
        title=f"{record.name}: {state_words(record)}",
        cluster=cluster,
        about="what is in force, what is proposed, what was agreed",
        blocks=doc.sections(
            doc.Table(
                columns=(
                    doc.Column(title="Team", kind=doc.Kind.NAME),
                    *((doc.Column(title="Type"),) if has_types else ()),
                    doc.Column(title="In force", kind=doc.Kind.GPUS),
                    doc.Column(title="Proposed", kind=doc.Kind.GPUS),
                    doc.Column(title="Change", kind=doc.Kind.CHANGE),
                    doc.Column(title="Guarantee", kind=doc.Kind.GPUS),
                    doc.Column(title="At most", kind=doc.Kind.GPUS),
                ),
                rows=[
                    (
                        each.line.team,
                        *((each.line.gpu_type,) if has_types else ()),
                        "no limit" if each.limit is None else each.limit,
                        each.line.after,
                        "" if each.limit is None else each.line.after - each.limit,
                        each.line.guarantee,
                        "no cap" if math.isinf(each.line.most) else each.line.most,
                    )
                    for each in found.rows
                ],
                at_most=max(1, len(found.rows)),
            ),
            doc.Note(words=stale) if changed and record.state is ProposalState.PROPOSED else None,
            doc.Note(words="this scheduler keeps no limits") if found.read_at is None else None,
        ),
    )


def preview_document(found: Preview, *, cluster: str) -> doc.Document:
    """Return what would be set, and what is in the way."""
    return doc.Document(
        title=f"{found.record.name}: {state_words(found.record)}",
        cluster=cluster,
        about="what applying it would do",
        blocks=doc.sections(
            doc.Items(items=[f"would be set: {each}" for each in found.changes] or ["nothing would be set"]),
            doc.Items(items=[toned(f"in the way: {each}", doc.Mood.BAD) for each in found.hindrances]),
            doc.Items(items=[toned(f"warning: {each}", doc.Mood.WARN) for each in found.warnings]),
        ),
    )


def team_document(found: OfTeam, *, cluster: str) -> doc.Document:
    """Return one team's agreements, its quota with the reason, and what it was before."""
    itself = doc.Note(words="it gets no quota itself: the teams below it do, and its terms bind their sum")
    past = [
        f"{record.proposal.day}{_of(line.gpu_type)} {line.before:g} -> {line.after} ({state_words(record)}): "
        f"{line.reason}"
        for record, line in found.history_lines
    ]
    return doc.Document(
        title=f"{found.team} on {found.day}",
        cluster=cluster,
        about="all that is known of its quota",
        blocks=doc.sections(
            doc.Fields(
                rows={
                    "belongs to": found.belongs_to or "",
                    "proposal": f"{found.proposal.proposal}, {found.state.replace('_', ' ')}",
                }
            ),
            doc.Items(items=[*(_agreed(*each) for each in found.contracts), *found.projects]),
            *(_quota(each, found.used.get((each.team, each.gpu_type))) for each in found.lines),
            None if found.lines else itself,
            *(_reclaim(each) for each in found.reclaims.by_type),
            (doc.Heading(text="Until now"), doc.Items(items=past)) if past else None,
            doc.listed_under("Notes", found.notes),
        ),
    )


def _quota(line: ProposedQuota, used: float | None) -> tuple[doc.Block, ...]:
    waited = None if used is None else max(0.0, line.wanted_mean - used)
    is_same = round(line.before, 3) == line.after
    return (
        doc.Heading(text=f"The quota{_of(line.gpu_type)}"),
        doc.Fields(
            rows={
                "held to": "nothing" if line.limit is None else f"{line.limit} GPUs",
                "proposed": str(line.after) if is_same else f"{line.before:g} -> {line.after}",
                "wanted": f"{line.wanted_mean:.1f} GPUs on average of the last full day, queue included",
                "ran": "" if used is None else f"{used:.1f} GPUs",
                "waited for": "" if waited is None else f"{waited:.1f} GPUs",
                "ran last": f"{line.ran_last:g} GPUs in the last full hour",
                "debt": _debt(line.debt),
                "why": line.reason,
                "without it": line.counterfactual,
            }
        ),
    )


def _reclaim(found: Reclaim) -> tuple[doc.Block, ...]:
    """Return whose jobs preemption would end for the guarantee; one line where nothing would have to."""
    report = found.report
    stands = f"{found.guarantee:g} GPUs guaranteed, {found.runs} run, {found.free} healthy ones stand free"
    heading = doc.Heading(text=f"If it requested all of its guarantee{_of(found.gpu_type)} now")
    if not report.wanted_gpus:
        return heading, doc.Note(words=f"{stands}: no job would have to end")
    jobs = [
        f"job {each.job} of {each.team}: {each.gpu_count} GPUs, ran for {each.ran.total_seconds() / 3600:.1f} hours"
        for each in report.jobs
    ]
    missing = f"{report.missing_gpus:g} GPUs, until jobs end by themselves" if report.missing_gpus else ""
    return (
        heading,
        doc.Note(words=f"{stands}: {report.wanted_gpus:g} would have to come from borrowers"),
        doc.Items(items=jobs or ["no borrower's job may be taken"], at_most=_JOBS_SHOWN),
        doc.Fields(rows={"to wait for": missing, "rule": report.rule, "scheduler": report.scheduler}),
    )


def _agreed(kind: GpuType, contract: Contract | None) -> str:
    name = f"{kind}: " if kind else ""
    if contract is None:
        return f"{name}nothing was agreed for this day"
    terms = contract.terms
    limits = {
        "borrows at most": terms.borrow_limit, "lends at most": terms.lend_limit,
        "reserved": terms.reserved or math.inf, "never more than": terms.cap,
    }  # fmt: skip
    more = "".join(f", {what} {amount:g}" for what, amount in limits.items() if math.isfinite(amount))
    given = f"guarantee {terms.guarantee:g}, weight {terms.weight:g}{more}, priority {terms.priority}"
    return f"{name}{contract.words}: {given}"


def _debt(debt: float) -> str:
    if abs(debt) < 0.05:
        return "none: it had its fair share"
    if debt > 0:
        return f"it had {debt:.1f} GPUs beyond its fair share"
    return f"others had {-debt:.1f} GPUs of its fair share"


def _of(kind: GpuType) -> str:
    return f" of {kind}" if kind else ""
