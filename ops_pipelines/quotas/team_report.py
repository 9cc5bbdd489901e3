"""What `quota diff`, `apply --dry-run`, `explain` and `history` show, as documents. Computes nothing."""

import math
from collections.abc import Sequence

from ops_pipelines.core.proposal import (
    GpuType,
    ProposalRecord,
    ProposalState,
    ProposedQuota,
)
from ops_pipelines.quotas.answers import Beside, OfTeam
from ops_pipelines.quotas.apply import Preview
from ops_pipelines.quotas.reclaim import Reclaim
from ops_pipelines.quotas.report import history_table, state_words
from ops_pipelines.report import document as doc
from ops_pipelines.report.document import toned
from ops_pipelines.teams.contracts import Contract

_JOBS_SHOWN = 10


def history_document(records: Sequence[ProposalRecord], *, cluster: str) -> doc.Document:
    """Return the proposals of all days, as they were kept."""
    return doc.Document(title="Proposals", cluster=cluster, about="the newest first", blocks=(history_table(records),))


def beside_document(found: Beside, *, cluster: str) -> doc.Document:
    """Return what is in force, what is proposed, and what was agreed."""
    record = found.record
    has_types = any(each.line.gpu_type for each in found.rows)
    changed = ", ".join(each.line.team for each in found.rows if not each.is_as_read)
    stale = f"changed since it was proposed: {changed}; propose anew before it is applied"
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
    heading = doc.Heading(text=f"If it wanted all of its guarantee{_of(found.gpu_type)} now")
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
