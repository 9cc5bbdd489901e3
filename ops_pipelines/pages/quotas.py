"""The page of quotas: what one proposal changes, for whom and why, and how far it is. Values in, HTML out.

A section a type of GPU, a row a team: what changes most comes first. With many teams the others are folded away.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.proposal import ProposalRecord, ProposalState, QuotaProposal
from ops_pipelines.pages.quota_rows import HALF_WAY, PROPOSALS_SHOWN, Used, by_day, sections_of
from ops_pipelines.report.document import clipped
from ops_pipelines.report.html import render
from ops_pipelines.report.numbers import signed

_GOOD = frozenset({ProposalState.APPLIED})
_BAD = frozenset({ProposalState.REFUSED, ProposalState.HALF_APPLIED, ProposalState.HALF_UNDONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaMatter:
    """What the page is made from."""

    cluster: str
    record: ProposalRecord | None
    """The one that is shown; None: nothing was proposed yet."""
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


def write_quotas(matter: QuotaMatter) -> str:
    """Return the page."""
    record = matter.record
    sections = [] if record is None else sections_of(record, records=matter.records, used=matter.used)
    return render(
        "quotas.html",
        {
            "cluster": matter.cluster,
            "now": matter.now,
            "record": record,
            "proposal": None if record is None else record.proposal,
            "state": "" if record is None else record.state.value.replace("_", " "),
            "mood": "" if record is None else _mood(record.state),
            "next": "" if record is None else next_step(matter),
            "command": None if record is None else _command(matter),
            "sections": sections,
            "has_curves": any(row.spark for each in sections for row in each.rows),
            "past": [_past_row(each) for each in by_day(matter.records)[:PROPOSALS_SHOWN]],
            "has_teams": matter.has_teams,
            "is_newest": record is None or not matter.records or record.name == matter.records[0].name,
        },
    )


def moved_gpus(proposal: QuotaProposal) -> tuple[float, float]:
    """Return how many GPUs a proposal gives, and how many it takes."""
    changes = [each.after - each.before for each in proposal.lines]
    return sum(each for each in changes if each > 0), -sum(each for each in changes if each < 0)


def next_step(matter: QuotaMatter) -> str:
    """Return what happens to the shown proposal next, or who must do what, in a sentence."""
    record, policy = matter.record, matter.policy
    if record is None or record.state is not ProposalState.PROPOSED:
        return _WHAT_NOW.get(ProposalState.PROPOSED if record is None else record.state, "")
    if not record.proposal.changes_anything:
        return "It would set nothing anew: every quota stays as it is."
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
        return "It waits for a yes."
    if record.actor != AUTOPILOT:
        return f"It came from {clipped(record.actor)}: a person sets it."
    return "The autopilot sets it by itself within minutes."


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


def _command(matter: QuotaMatter) -> str | None:
    """Return the command that a person may give now; None: there is none."""
    record = matter.record
    assert record is not None, "asked of a proposal only"
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


def _mood(state: ProposalState) -> str:
    if state in _BAD:
        return "bad"
    if state in _GOOD:
        return "good"
    return "warn" if state in (ProposalState.PROPOSED, *HALF_WAY) else "soft"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    name: str
    day: str
    state: str
    mood: str
    moved: str
    headline: str


def _past_row(record: ProposalRecord) -> _Past:
    given, taken = moved_gpus(record.proposal)
    return _Past(
        name=record.name,
        day=record.proposal.day.isoformat(),
        state=record.state.value.replace("_", " "),
        mood=_mood(record.state),
        moved=f"{signed(given)} / {signed(-taken)}",
        headline=clipped(record.proposal.headline, at_most=160),
    )
