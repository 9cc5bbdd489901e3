"""Quotas as documents: one proposal, what it is beside what is in force, one team, the last proposals.

A section a type of GPU, a row a team: what changes most comes first. Names of teams are the scheduler's words.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.proposal import (
    GpuType,
    ProposalRecord,
    ProposalState,
    ProposedQuota,
    QuotaProposal,
    SupplyLine,
    TeamName,
)
from ops_pipelines.quotas.propose import Used
from ops_pipelines.report import document as doc
from ops_pipelines.report.document import clipped, code, link, soft, strong, toned
from ops_pipelines.report.numbers import gpus, moment, share_of, signed
from ops_pipelines.teams.desk import TeamsDesk

_DAYS_BACK = 14
"""So many days back the small curves and the list reach."""
_ROWS_OPEN = 30
"""More rows than these are folded: nobody reads two hundred at a glance."""
_BEYOND = 1.5
"""Wishes without end must not make every bar short: the scale ends at so many times the largest quota."""
_HALF_WAY = frozenset(
    {ProposalState.APPLYING, ProposalState.HALF_APPLIED, ProposalState.UNDOING, ProposalState.HALF_UNDONE}
)
"""What is in of these, only the scheduler knows."""
_MOODS: Mapping[ProposalState, doc.Mood] = {
    ProposalState.APPLIED: doc.Mood.GOOD,
    ProposalState.PROPOSED: doc.Mood.WARN,
    ProposalState.APPLYING: doc.Mood.WARN,
    ProposalState.UNDOING: doc.Mood.WARN,
    ProposalState.REFUSED: doc.Mood.BAD,
    ProposalState.HALF_APPLIED: doc.Mood.BAD,
    ProposalState.HALF_UNDONE: doc.Mood.BAD,
}
_WHAT_NOW: Mapping[ProposalState, str] = {
    ProposalState.REFUSED: "A check found it wrong; it is never applied.",
    ProposalState.APPLYING: "It is being set; what is in, only the scheduler knows.",
    ProposalState.APPLIED: "Set, and read back as proposed.",
    ProposalState.HALF_APPLIED: "Some of it is in: complete it, or undo it.",
    ProposalState.UNDOING: "It is being undone; what is in, only the scheduler knows.",
    ProposalState.HALF_UNDONE: "Some of it is undone: undo it again.",
    ProposalState.UNDONE: "It was applied, and undone.",
    ProposalState.SUPERSEDED: "A newer one took its place.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaMatter:
    """What the report of a proposal is made from."""

    cluster: str
    record: ProposalRecord | None
    """The one that is shown; None: nothing was proposed yet, or it is not kept (`computed`)."""
    records: Sequence[ProposalRecord]
    """The newest, newest first."""
    used: Used
    """What each team used on average on the last full day, where it is known."""
    policy: Policy
    has_limits: bool
    """Whether the scheduler keeps limits that can be set."""
    has_teams: bool
    """Whether anything was agreed with teams."""
    paused_because: str | None
    now: datetime
    computed: QuotaProposal | None = None
    contradictions: Sequence[str] = ()

    @property
    def proposal(self) -> QuotaProposal | None:
        return self.computed if self.record is None else self.record.proposal


def matter_of(
    record: ProposalRecord | None,
    records: Sequence[ProposalRecord],
    cluster: Cluster,
    desk: TeamsDesk | None,
    *,
    used: Used,
    computed: QuotaProposal | None = None,
    contradictions: Sequence[str] = (),
) -> QuotaMatter:
    """Return what the report of a proposal is made from; `computed` is one that is not kept. Raises LedgerError."""
    now = cluster.clock.now()
    pause = cluster.ledger.read_state(now).pause
    return QuotaMatter(
        cluster=cluster.name,
        record=record,
        records=records,
        used=used,
        computed=computed,
        contradictions=contradictions,
        policy=cluster.rules.policy,
        has_limits=desk is None or desk.quotas is not None,
        has_teams=desk is None or desk.agreements is not None,
        paused_because=None if pause is None else pause.reason,
        now=now,
    )


# -- one proposal --


def quota_document(matter: QuotaMatter) -> doc.Document:
    """Return the report of a proposal; without one, of what makes one."""
    proposal, record = matter.proposal, matter.record
    about: doc.Words = "how GPUs are shared out among teams"
    if record is not None and matter.records and record.name != matter.records[0].name:
        about = "how GPUs are shared out among teams · an older proposal, ", link("the newest", "quotas")
    return doc.Document(
        title="Quotas" if proposal is None else f"Quotas of {proposal.day}",
        cluster=matter.cluster,
        about=about,
        blocks=_fresh(has_teams=matter.has_teams) if proposal is None else _proposed(matter, proposal),
        command="ops-pipelines quota diff",
        now=matter.now,
        measures=None if proposal is None else {
            "headline": proposal.headline,
            "proposal": f"{proposal.proposal}, {state_words(record)}",
            "changed_count": sum(each.changes_anything for each in proposal.lines),
            "stands_still": proposal.frozen_because or "no",
            **{f"to_give_out{f'_{each.gpu_type}' if each.gpu_type else ''}": each.supply for each in proposal.supplies},
        },
    )  # fmt: skip


def moved_gpus(proposal: QuotaProposal) -> tuple[float, float]:
    """Return how many GPUs a proposal gives, and how many it takes."""
    changes = [each.after - each.before for each in proposal.lines]
    return sum(each for each in changes if each > 0), -sum(each for each in changes if each < 0)


def next_step(matter: QuotaMatter) -> str:
    """Return what happens to the shown proposal next, or who must do what, in a sentence."""
    record, policy = matter.record, matter.policy
    if record is None:
        return "" if matter.computed is None else "It is not kept: `--keep` writes it down, so that it can be applied."
    if record.state is not ProposalState.PROPOSED:
        return _WHAT_NOW.get(record.state, "")
    if not record.proposal.changes_anything:
        return "It would set nothing again: every quota stays as it is."
    if not matter.has_limits:
        return "This scheduler keeps no limits: quotas are proposed, no more."
    consent = policy.consent_to(ActionClass.QUOTAS)
    if policy.mode is Mode.OBSERVE:
        return "policy.yaml says mode: observe: it is shown, and nothing is set."
    if consent is Consent.FORBID:
        return "policy.yaml says consents.quotas: forbid: it is shown, and nothing is set."
    if matter.paused_because is not None:
        return f"The autopilot is paused ({clipped(matter.paused_because)}): nothing is set by itself."
    if consent is Consent.APPROVE:
        return "It waits for approval."
    if record.actor != AUTOPILOT:
        return f"It came from {clipped(record.actor)}: a person sets it."
    return "The autopilot sets it by itself within minutes."


def _command(matter: QuotaMatter) -> str | None:
    """Return the command that a person may give now; None: there is none."""
    record = matter.record
    if record is None:
        return None
    may_set = (
        matter.has_limits
        and matter.policy.mode is not Mode.OBSERVE
        and matter.policy.consent_to(ActionClass.QUOTAS) is not Consent.FORBID
    )
    open_states = (ProposalState.PROPOSED, ProposalState.HALF_APPLIED)
    if record.state in open_states and record.proposal.changes_anything and may_set:
        return f"ops-pipelines quota apply {record.name}"
    if record.state in (ProposalState.APPLIED, ProposalState.HALF_UNDONE):
        return f"ops-pipelines quota undo {record.name}"
    return None


def _fresh(*, has_teams: bool) -> tuple[doc.Block, ...]:
    every_morning = (
        "A proposal is made every morning from the demand of the last days: by the job ", code("rebalance_quotas"),
        ", which sets nothing; what policy.yaml lets be set, ", code("set_quotas"), " sets. Now and here:",
    )  # fmt: skip
    no_teams = (
        "cluster.yaml names no file of teams. Write what was agreed into ", code("teams.yaml"), ", and ",
        code("teams: teams.yaml"), " into cluster.yaml (docs/QUOTAS.md). Then:",
    )  # fmt: skip
    return (
        doc.Note(words="Nothing was proposed yet."),
        doc.Note(words=every_morning if has_teams else no_teams),
        doc.Note(words=code("ops-pipelines quota propose")),
    )


def _proposed(matter: QuotaMatter, proposal: QuotaProposal) -> tuple[doc.Block, ...]:
    record, command = matter.record, _command(matter)
    mood = doc.Mood.SOFT if record is None else _MOODS.get(record.state, doc.Mood.SOFT)
    frozen = strong("Quotas stand still.", doc.Mood.WARN), f" {clipped(proposal.frozen_because, at_most=400)}"
    since = f"{proposal.proposal}, made {moment(proposal.made_at)}"
    if record is not None:
        reason = f": {clipped(record.reason, at_most=400)}" if record.reason else ""
        since = f"{record.name}, since {moment(record.since)} by {clipped(record.actor, at_most=80)}{reason}"
    until = "" if proposal.demand_until is None else f"known until {moment(proposal.demand_until)}, "
    past = _pasts(matter.records, until=proposal)
    kinds = sorted({*(each.gpu_type for each in proposal.supplies), *(each.gpu_type for each in proposal.lines)})
    return doc.sections(
        doc.Note(words=strong(clipped(proposal.headline, at_most=400))),
        doc.Note(words=frozen, mood=doc.Mood.WARN, is_framed=True) if proposal.frozen_because else None,
        doc.Note(
            words=(
                strong(state_words(record), mood), f"  {next_step(matter)}  ", *((code(command),) if command else ()),
            ),
            is_framed=True,
        ),
        doc.Note(words=soft(since)),
        doc.Items(items=[toned(f"contradiction: {each}", doc.Mood.BAD) for each in matter.contradictions])
        if matter.contradictions else None,
        _legend(has_curves=any(len(each) > 1 for each in past.values())),
        *(_section(kind, matter, proposal, past) for kind in kinds),
        doc.Note(words=soft(f"The demand: {until}{proposal.known_hour_ratio:.0%} of its hours.")),
        doc.listed_under("What could not be reported", proposal.notes, key="notes"),
        _last_proposals(matter.records),
    )  # fmt: skip


def _legend(*, has_curves: bool) -> doc.Legend:
    return doc.Legend(
        parts=(
            doc.Bar(said="proposed", parts=((1.0, doc.Shade.SKY),)),
            doc.Bar(said="more than before", parts=((1.0, doc.Shade.GREEN),)),
            doc.Bar(said="less", parts=((1.0, doc.Shade.ORANGE),)),
            doc.Bar(said="in force", outline=1.0),
            doc.Bar(said="guarantee", ticks=(0.5,)),
            doc.Bar(said="used", dots=(0.5,)),
            doc.Bar(said="requested, queue included; › beyond the scale", rings=(0.5,)),  # noqa: RUF001
            "in force: as the ledger knows it; used and requested: mean of the last full day; debt below 0: it lent",
            *(("curve: the last 14 days",) if has_curves else ()),
        )
    )


def _section(
    kind: GpuType,
    matter: QuotaMatter,
    proposal: QuotaProposal,
    past: Mapping[tuple[TeamName, GpuType], Sequence[int]],
) -> tuple[doc.Block, ...]:
    lines = [each for each in proposal.lines if each.gpu_type == kind]
    supply = next((each for each in proposal.supplies if each.gpu_type == kind), None)
    ordered = sorted(lines, key=lambda each: (-abs(each.after - each.before), -each.after, each.team))
    whole = _scale(lines, matter.used)
    state = None if matter.record is None else matter.record.state
    return doc.sections(
        doc.Heading(text=kind or "All GPUs"),
        None if supply is None else _supply(supply),
        doc.Note(words=_moves(lines, dict(proposal.step_caps).get(kind))),
        doc.Table(
            key=f"lines_{kind}" if kind else "lines",
            columns=(
                doc.Column(title="Team", kind=doc.Kind.NAME, is_strong=True),
                doc.Column(title="Change", kind=doc.Kind.CHANGE),
                doc.Column(title="", key="bar", kind=doc.Kind.DRAWN),
                doc.Column(title="", key="curve", kind=doc.Kind.DRAWN),
                doc.Column(title="Before", kind=doc.Kind.GPUS),
                doc.Column(title="After", kind=doc.Kind.GPUS, is_strong=True),
                doc.Column(title="In force", kind=doc.Kind.GPUS),
                doc.Column(title="Guarantee", kind=doc.Kind.GPUS),
                doc.Column(title="Used", kind=doc.Kind.GPUS),
                doc.Column(title="Wanted", kind=doc.Kind.GPUS),
                doc.Column(title="Debt", kind=doc.Kind.CHANGE),
            ),
            rows=[
                _row(each, state, matter.used, whole=whole, past=past.get((each.team, kind), ())) for each in ordered
            ],
            empty="",
            at_most=_ROWS_OPEN,
            folded="teams",
        ),
    )  # fmt: skip


def _moves(lines: Sequence[ProposedQuota], step_cap: float | None) -> str:
    changes = [each.after - each.before for each in lines]
    changed = sum(abs(each) > 0 for each in changes)
    every = f"All quotas together: {sum(each.after for each in lines)}."
    if not changed:
        return f"No quota changes. {every}"
    up, down = round(sum(each for each in changes if each > 0)), round(-sum(each for each in changes if each < 0))
    teams = f"{changed} of {len(lines)} team{'' if len(lines) == 1 else 's'} change{'s' if changed == 1 else ''}"
    cap = "" if step_cap is None else f"; {step_cap:g} might move in a day"
    return f"{teams}: {up} GPUs are given, {down} taken{cap}. {every}"


def _row(
    line: ProposedQuota, state: ProposalState | None, used_by: Used, *, whole: float, past: Sequence[int]
) -> doc.Row:
    change, used = line.after - line.before, used_by.get((line.team, line.gpu_type))
    held, words = _in_force(line, state)
    numbers = {"proposed": gpus(line.after), "in force": words, "guarantee": gpus(line.guarantee),
               "used": "not known" if used is None else gpus(used), "wanted": gpus(line.wanted_mean)}  # fmt: skip
    shade = doc.Shade.GREEN if change > 0 else doc.Shade.ORANGE if change < 0 else doc.Shade.SKY
    mood = doc.Mood.GOOD if change > 0 else doc.Mood.BAD if change < 0 else None
    bar = doc.Bar(
        said=", ".join(f"{what} {number}" for what, number in numbers.items()),
        parts=((share_of(line.after, whole), shade),),
        outline=None if held is None else share_of(held, whole),
        ticks=(share_of(line.guarantee, whole),),
        rings=(min(2.0, line.wanted_mean / whole),),
        dots=() if used is None else (share_of(used, whole),),
    )
    spark: doc.Cell = ""
    if len(past) > 1:
        spark = doc.Spark(said=f"from {past[0]} to {past[-1]} in {len(past)} proposals", values=tuple(past))
    note = (clipped(line.reason), *((f" · {clipped(line.counterfactual)}",) if change else ()))
    return doc.Row(
        cells=(
            line.team, toned(signed(change), mood), bar, spark, line.before, line.after, words, line.guarantee,
            "not known" if used is None else used, line.wanted_mean, round(line.debt, 1),
        ),
        note=note,
    )  # fmt: skip


def _in_force(line: ProposedQuota, state: ProposalState | None) -> tuple[float | None, str]:
    """Return what the team is held to as far as the ledger knows, and in words."""
    if state is ProposalState.APPLIED:
        return line.after, gpus(line.after)
    if state in _HALF_WAY:
        return None, "half-way"
    return line.limit, "no limit" if line.limit is None else gpus(line.limit)


def _scale(lines: Sequence[ProposedQuota], used: Used) -> float:
    """Return how many GPUs the width of the picture means."""
    quotas = max(
        (max(each.after, each.guarantee, each.limit or 0, used.get((each.team, each.gpu_type), 0.0)) for each in lines),
        default=0.0,
    )
    wanted = max((each.wanted_mean for each in lines if math.isfinite(each.wanted_mean)), default=0.0)
    return max(1.0, quotas, min(wanted, _BEYOND * quotas)) * 1.02


def _supply(supply: SupplyLine) -> doc.Shares:
    kept_back = max(0.0, supply.installed - supply.supply - supply.broken - supply.in_rollouts)
    parts = (
        (supply.supply, "to give out", doc.Shade.SKY),
        (supply.broken, "broken", doc.Shade.ORANGE),
        (supply.in_rollouts, "in rollouts", doc.Shade.YELLOW),
        (kept_back, f"kept back (slack {supply.slack:g}, for what breaks)", doc.Shade.GREY),
    )
    return doc.Shares(
        title="What is installed, by where it is",
        about=f"{supply.installed:g} installed",
        whole=supply.installed,
        parts=[doc.Share(what=f"{size:g}", size=size, said=what, shade=shade) for size, what, shade in parts],
    )


def _last_proposals(records: Sequence[ProposalRecord]) -> tuple[doc.Block, ...]:
    past = _by_day(records)[:_DAYS_BACK]
    return (doc.Heading(text="The last proposals"), history_table(past)) if past else ()


def history_table(records: Sequence[ProposalRecord]) -> doc.Table:
    return doc.Table(
        columns=doc.columns_of("Day:day|Proposal:name|State:name|Since:moment|By|Moves:name|Stated:words"),
        rows=[_past_row(each) for each in records],
        empty="Nothing was ever proposed.",
        at_most=max(1, len(records)),
    )


def _past_row(record: ProposalRecord) -> tuple[doc.Cell, ...]:
    given, taken = moved_gpus(record.proposal)
    return (
        record.proposal.day, link(record.name, f"quotas?proposal={quote(record.name)}"),
        toned(state_words(record), _MOODS.get(record.state, doc.Mood.SOFT)), record.since, record.actor,
        f"{signed(given)} / {signed(-taken)}", clipped(record.proposal.headline, at_most=160),
    )  # fmt: skip


def state_words(record: ProposalRecord | None) -> str:
    return "computed" if record is None else record.state.value.replace("_", " ")


def _by_day(records: Sequence[ProposalRecord]) -> list[ProposalRecord]:
    """Return of each day the newest proposal that counts, newest first."""
    found: dict[object, ProposalRecord] = {}
    for record in records:
        known = found.get(record.proposal.day)
        if known is None or (record.state is ProposalState.APPLIED and known.state is not ProposalState.APPLIED):
            found[record.proposal.day] = record
    return sorted(found.values(), key=lambda each: each.proposal.day, reverse=True)


def _pasts(
    records: Sequence[ProposalRecord], *, until: QuotaProposal
) -> Mapping[tuple[TeamName, GpuType], Sequence[int]]:
    """Return what was proposed to each team, a number a day, the oldest first; refused proposals are no past."""
    earlier = [
        each.proposal
        for each in _by_day(records)
        if each.proposal.day < until.day and each.state is not ProposalState.REFUSED
    ]
    found: dict[tuple[TeamName, GpuType], list[int]] = {}
    for proposal in [*reversed(earlier[: _DAYS_BACK - 1]), until]:
        for line in proposal.lines:
            found.setdefault((line.team, line.gpu_type), []).append(line.after)
    return found
