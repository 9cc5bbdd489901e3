"""Moves of those who approve, and of the operator who says whose yes is needed; moves like those of `moves`.

Everything goes through the program's own doors; each yes that they took is noted in the orders that the judge goes by,
with the times that the person meant.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum
from urllib.parse import quote, unquote

from ops_pipelines.core.entries import EntryKind
from ops_pipelines.core.identity import Digest, PlanId, digest_of
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import ActionClass, Consent
from ops_pipelines.core.record import ApprovalLinks
from ops_pipelines.people import orders
from ops_pipelines.people.orders import link_for, read_link
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.resources.documents import encode
from tests.safety.move_kinds import CLASSES_OF_ACTS, Move, MoveKind
from tests.safety.stage import GivenLink, Stage

LINK_LIFE = timedelta(seconds=20)


class Yes(Enum):
    """How an approval is given."""

    FOR_LONG = "for_long"
    FOR_A_MOMENT = "for_a_moment"
    BY_LINK = "by_link"
    LINK_FOR_LATER = "link_for_later"
    """Somebody is sent a link, and says nothing yet."""
    BY_OLDEST_LINK = "by_oldest_link"
    """Used or not, expired or not, whatever has become of its plan."""
    BY_EVERY_LINK_AGAIN = "by_every_link_again"


class OpenSeal:
    """Seals nothing: the tokens of a story are made by nobody else."""

    def seal(self, says: Mapping[str, str]) -> str:
        return "~".join(f"{quote(key)}={quote(value)}" for key, value in sorted(says.items()))

    def open(self, token: str) -> Mapping[str, str] | None:
        pairs = [each.partition("=") for each in token.split("~")]
        return {unquote(key): unquote(value) for key, _, value in pairs}

    def digest(self, plan: IncidentPlan) -> Digest:
        return digest_of(encode(plan))


def say_yes(stage: Stage, move: Move) -> None:
    """Approve the newest plan, or to one of the two before it, whether or not it still waits for one."""
    way = tuple(Yes)[move.number % len(Yes)]
    if way is Yes.BY_OLDEST_LINK:
        _use(stage, stage.given_links[:1])
        return
    if way is Yes.BY_EVERY_LINK_AGAIN:
        _use(stage, [each for each in stage.given_links if each.is_used] or stage.given_links)
        return
    position = move.number // len(Yes) % 3
    for plan in plans_ever_made(stage)[position : position + 1]:
        if way in (Yes.BY_LINK, Yes.LINK_FOR_LATER):
            stage.given_links.append(_make_link(plan, stage))
            _use(stage, stage.given_links[-1:] if way is Yes.BY_LINK else [])
            continue
        seconds = 2 if way is Yes.FOR_A_MOMENT else 3600
        with suppress(ByHandRefused):
            _, given = orders.approve(plan, stage.desk, actor="day-shift", valid_for=timedelta(seconds=seconds))
            _note(stage, plan, given.given_at, given.expires_at)


def plans_ever_made(stage: Stage) -> tuple[PlanId, ...]:
    """Return every plan in the ledger, the newest first."""
    entries = stage.ledger.entries(after=0, limit=10_000)
    return tuple(stage.plan_of(entry) for entry in reversed(entries) if entry.kind is EntryKind.PLAN)


def _make_link(plan: PlanId, stage: Stage) -> GivenLink:
    links = ApprovalLinks(seal=OpenSeal(), base_url="https://ops.example.org", life=LINK_LIFE)
    url = link_for(plan, replace(stage.desk, approval_links=links), person="day-shift")
    assert url is not None
    until = stage.own_clock.now() + LINK_LIFE
    return GivenLink(token=url.rsplit("/", 1)[1], plan=plan, until=until)


def _use(stage: Stage, given: list[GivenLink]) -> None:
    links = ApprovalLinks(seal=OpenSeal(), base_url="https://ops.example.org", life=LINK_LIFE)
    desk = replace(stage.desk, approval_links=links)
    for link in given:
        with suppress(ByHandRefused):
            now = stage.own_clock.now()
            orders.approve_by_link(read_link(link.token, desk), desk)
            if link.is_used or now >= link.until:
                stage.link_faults.append(f"an approval with a link to {link.plan} that was {link.why_dead}")
            else:
                _note(stage, link.plan, now, link.until)
            link.is_used = True


def _note(stage: Stage, plan: PlanId, given_at: datetime, expires_at: datetime) -> None:
    stage.orders.approved.setdefault(plan, []).append((given_at, expires_at))


def change_consents(stage: Stage, move: Move) -> None:
    """Give one class of acts another word. A policy that forbids every drain is not read, so none does."""
    kind = CLASSES_OF_ACTS[move.number % len(CLASSES_OF_ACTS)]
    word = tuple(Consent)[move.number // len(CLASSES_OF_ACTS) % len(Consent)]
    if kind is ActionClass.ISOLATE and word is Consent.FORBID:
        word = Consent.APPROVE
    policy = stage.orders.policy
    stage.use_policy(replace(policy, consents={**policy.consents, kind: word}))


MOVES_OF_CONSENT = {MoveKind.SAY_YES: say_yes, MoveKind.CHANGE_CONSENTS: change_consents}
