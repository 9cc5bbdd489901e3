"""What somebody claims to have found: the one shape in which we and our peers are judged."""

from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.fault import Component


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One alarm."""

    name: str
    opened_at: datetime
    culprits: tuple[Component, ...]
    says: str
    is_notice: bool = False
    """It reports an owner of an error of their own program, and blames nothing of the cluster."""
    isolates: bool = True
    """It would take a node out of service, and not only call somebody."""
    rests_on: tuple[str, ...] = ()
    """What it rests on, as `rule[=code]@seconds` after it was opened, in that order."""
