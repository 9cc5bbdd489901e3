"""Seals what a link says, so that nobody else can make or change one. What an approval link says is `flow`'s."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from ops_pipelines.domain.identity import Digest
from ops_pipelines.domain.plan import IncidentPlan


class LinkSeal(Protocol):
    """Makes and reads tokens that fit into a URL, with a key that never leaves it."""

    def seal(self, says: Mapping[str, str]) -> str:
        """Return the token that says this: the same words give the same token. Letters, digits, `-`, `_` and `.`."""
        ...

    def open(self, token: str) -> Mapping[str, str] | None:
        """Return what a token says; None if we did not make it exactly so, whatever text it is."""
        ...

    def digest(self, plan: IncidentPlan) -> Digest:
        """Return the sha256 of the whole plan as the ledger stores it, every word and number of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalLinks:
    """How a cluster's approval links are made: by whose seal, under which address, valid for how long."""

    seal: LinkSeal
    base_url: str
    """How people reach the web process, without a slash at its end."""
    life: timedelta
