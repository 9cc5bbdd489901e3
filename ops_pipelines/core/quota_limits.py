"""What limits hold in the scheduler for the GPUs of each account, and setting them. No quota is decided here.

A limit is what the GPUs of an account may sum up to, those of the accounts below it included. It decides who *starts*:
whatever runs goes on, also where it is more than a limit that was just lowered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol

from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.sources import SourceUnavailable

ALL_TYPES = GpuType("")
"""GPUs of every type together."""
MOST = 2**31 - 2
"""Above it schedulers keep marks such as "unset" and "infinite"; 2**31 - 1 is Slurm's share of the parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountQuota:
    """What holds for one account by its own settings; what its parents have holds beside it."""

    account: TeamName
    parent: TeamName | None
    """The account that it belongs to; None: it is the topmost."""
    limits: Mapping[GpuType, int]
    """GPUs at most; what is not named has no limit. Under `ALL_TYPES` that of all types together."""
    fairshare: int | None
    """Its shares among its siblings; None: it has no place of its own, its users share with those of its parent."""

    def limit_of(self, gpu_type: GpuType) -> int | None:
        """Return the most GPUs of this type; None: no limit."""
        return self.limits.get(gpu_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasInForce:
    """One reading."""

    accounts: Mapping[TeamName, AccountQuota]
    read_at: datetime
    unheeded: frozenset[TeamName] = frozenset()
    """Accounts of which the running scheduler follows other limits than those kept: it was not told, or not yet."""
    rejected: tuple[Rejected, ...] = ()
    """What could not be believed; the accounts named there are missing above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChange:
    """One limit of one account."""

    account: TeamName
    gpu_type: GpuType = ALL_TYPES
    before: int | None
    """As it was read; None: no limit."""
    after: int | None

    def __post_init__(self) -> None:
        for name, value in (("before", self.before), ("after", self.after)):
            _check(value, what=f"limit {name} of {self.account!r}")

    @property
    def undone(self) -> "QuotaChange":
        """Return the change that takes this one back."""
        return QuotaChange(account=self.account, gpu_type=self.gpu_type, before=self.after, after=self.before)

    def stands_in(self, quota: AccountQuota) -> int | None:
        """Return what the account has of what this changes."""
        return quota.limit_of(self.gpu_type)

    def __str__(self) -> str:
        return f"{self.account} {self.gpu_type or 'all GPUs'}: {_limit(self.before)} -> {_limit(self.after)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FairshareChange:
    """The shares of one account among its siblings; None: none of its own."""

    account: TeamName
    before: int | None
    after: int | None

    def __post_init__(self) -> None:
        for name, value in (("before", self.before), ("after", self.after)):
            _check(value, what=f"fair share {name} of {self.account!r}")

    @property
    def undone(self) -> "FairshareChange":
        """Return the change that takes this one back."""
        return FairshareChange(account=self.account, before=self.after, after=self.before)

    def stands_in(self, quota: AccountQuota) -> int | None:
        """Return what the account has of what this changes."""
        return quota.fairshare

    def __str__(self) -> str:
        return f"{self.account} fair share: {_share(self.before)} -> {_share(self.after)}"


Change = QuotaChange | FairshareChange


class QuotasHalfApplied(SourceUnavailable):
    """The scheduler stopped answering in the middle of a batch.

    Each change is in as a whole or not at all. Applying the same changes again completes them; applying what undoes
    `are_in` restores what was.
    """

    def __init__(
        self, reason: str, *, are_in: Sequence[Change], are_not_in: Sequence[Change], unknown: Sequence[Change]
    ) -> None:
        parts = (("in", are_in), ("not in", are_not_in), ("unknown whether in", unknown))
        told = "; ".join(f"{word}: {', '.join(map(str, changes))}" for word, changes in parts if changes)
        super().__init__(f"{reason}. Of the changes are {told}. Apply them again to complete them")
        self.are_in = tuple(are_in)
        self.are_not_in = tuple(are_not_in)
        self.unknown = tuple(unknown)


class TypedLimits(Enum):
    """Whether a limit on GPUs of one type also holds a job that asks for GPUs and names no type."""

    HELD = "held"
    NOT_HELD = "not_held"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaProbe:
    """What limits are worth on this cluster, as it is set up now."""

    is_enforced: bool
    """Whether any limit holds anybody."""
    enforced_because: str
    """What that was judged by: the setting, its value, and what to set."""
    typed_limits: TypedLimits
    typed_because: str
    """As above."""
    counted_types: frozenset[GpuType] = frozenset()
    """The types that are counted apart, so that a limit can be set on them."""
    gpu_billing: Mapping[str, float] = field(default_factory=dict)
    """Partition with GPUs -> what one GPU weighs in the usage that fair share compares; 0: it is free."""
    warnings: tuple[str, ...] = ()
    """What else weakens limits or fair share, each with its setting and what to do."""


class Quotas(Protocol):
    """Reads and sets limits. Every method raises SourceUnavailable or SourceNonsense."""

    def read(self) -> QuotasInForce:
        """Return what holds for each account."""
        ...

    def probe(self) -> QuotaProbe:
        """Return what limits are worth here.

        Where settings do not tell, it may submit jobs that are held from the beginning, look at what became of their
        requests, and cancel them.
        """
        ...

    def apply(self, changes: Sequence[Change]) -> None:
        """Make the changes; none is fine. What is as it shall be already is left alone.

        Who asks reads afterwards, and compares. Lowering comes before raising, so that the sum is never larger than
        before and after. Raises

        * ValueError for two changes of one thing;
        * SourceRefused, and nothing was changed, if an account is unknown, if something is neither as `before` nor as
          `after` says (somebody else changed it), or if a limit would be set where limits hold nobody, or on a type
          where `probe` does not say HELD: then a limit on all types together is what can be had. Lifting is always
          possible, so that what was set can be undone;
        * SourceRefused in the middle of a batch where the scheduler says no: the message says what is in;
        * QuotasHalfApplied if the scheduler stops answering in the middle.
        """
        ...


def refuse_twice_the_same(changes: Sequence[Change]) -> None:
    """Raise ValueError if two changes are of the same thing."""
    seen: set[tuple[TeamName, GpuType | None]] = set()
    for change in changes:
        key = change.account, change.gpu_type if isinstance(change, QuotaChange) else None
        if key in seen:
            raise ValueError(f"{change}: a second change of the same in one batch; give one each")
        seen.add(key)


def find_obstacles(changes: Sequence[Change], accounts: Mapping[TeamName, AccountQuota]) -> tuple[str, ...]:
    """Return why the changes cannot be made on what stands there; nothing if they can."""
    found = []
    for change in changes:
        quota = accounts.get(change.account)
        if quota is None:
            found.append(f"there is no account {change.account[:80]!r}; add it, or name one that exists")
        elif (value := change.stands_in(quota)) not in (change.before, change.after):
            found.append(f"{change}: it is {'none' if value is None else value}; somebody changed it, propose anew")
    return tuple(found)


def needs_enforcement(changes: Sequence[Change]) -> bool:
    """Return whether any limit is to be set; what is lifted, and shares, need none."""
    return any(isinstance(change, QuotaChange) and change.after is not None for change in changes)


def needs_types(changes: Sequence[Change]) -> tuple[QuotaChange, ...]:
    """Return the changes that set a limit on one type; a limit that is lifted holds nobody and needs nothing."""
    return tuple(
        change
        for change in changes
        if isinstance(change, QuotaChange) and change.gpu_type != ALL_TYPES and change.after is not None
    )


def _check(value: int | None, *, what: str) -> None:
    if value is not None and not 0 <= value <= MOST:
        raise ValueError(f"{what} is {value}; expected 0 to {MOST}, or None")


def _limit(value: int | None) -> str:
    return "no limit" if value is None else str(value)


def _share(value: int | None) -> str:
    return "its parent's" if value is None else str(value)
