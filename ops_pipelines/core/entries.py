"""What the ledger holds: entries, the state that follows from them, approvals, the lease; and how it fails."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.identity import IncidentId, NodeName, PlanId, RolloutId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import Observation
from ops_pipelines.core.proof import ActProof, Refusal
from ops_pipelines.core.rollout import Rollout

AUTOPILOT = "autopilot"


KEPT_ACTS = "acts kept in sight"
"""The source whose cursor names acts by their keys: `read_state` shows them however old they are."""


class LedgerError(RuntimeError):
    """The ledger cannot be read or written, or it contradicts itself. Nothing was changed.

    Unless the server went away while it committed: then ask again; `begin`, `finish` and `take_in` may be repeated.
    """


class LedgerDamaged(LedgerError):
    """What is stored can no longer be read as a ledger: parts of it are gone or overwritten."""


class LedgerConflict(LedgerError):
    """Somebody else decided in between: read again, decide again. Nothing was changed."""


class LinkUsed(LedgerError):
    """The link of an approval has given its one yes already. Nothing was changed."""


class EntryKind(Enum):
    """What a line of the chain records."""

    DECISION = "decision"
    INCIDENT = "incident"
    PLAN = "plan"
    PROOF = "proof"
    """A plan was proved, or contradicted."""
    APPROVAL = "approval"
    ACTION_BEGUN = "action_begun"
    ACTION_RESENT = "action_resent"
    """The command is sent once more: it provably had no effect, and nobody is known to have accepted it."""
    ACTION_SENT = "action_sent"
    ACTION_FINISHED = "action_finished"
    ACTION_REFUSED = "action_refused"
    ROLLOUT = "rollout"
    """A rollout and nodes in it, as they are from now on."""
    QUOTAS = "quotas"
    """A proposal of quotas, as it is from now on."""
    LEDGER = "ledger"
    """A person stated that this ledger is the one to continue with: it was restored, or started again."""
    PAUSE = "pause"
    RESUME_AUTOPILOT = "resume_autopilot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the chain. `entry_hash` covers every other field and the hash of the line before."""

    seq: int
    written_at: datetime
    kind: EntryKind
    actor: str
    """Who: `autopilot`, or the operating-system user of the command line."""
    incident: IncidentId | None
    body: str
    """Canonical JSON of the recorded value."""
    previous_hash: str
    entry_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observation as taken in; `seq` grows with every row."""

    seq: int
    observation: Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The kill switch: who stopped new actions, when and why."""

    actor: str
    since: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerNews:
    """What people have to know of the ledger itself."""

    key: str
    """Names it: the same news has the same name in each process."""
    words: str
    is_refusal: bool
    """Whether nothing may be started."""


class ApprovalWay(Enum):
    """Where somebody approved, and so what is behind the name."""

    TERMINAL = "terminal"
    """The command line: the name is the operating system's word for its user. Also all of older versions."""
    LINK = "link"
    """A link that was made for this person: the name is that of anyone who it was sent to."""
    UI = "ui"
    """A job launched in Dagster's pages, which know no users: the name is what was typed there."""
    CHAT = "chat"
    """A link that was opened from a chat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """Somebody's approval of exactly one plan, until it expires."""

    plan: PlanId
    actor: str
    given_at: datetime
    expires_at: datetime
    via: ApprovalWay = ApprovalWay.TERMINAL
    link: str = ""
    """sha256 of the link's token, of which the ledger takes one yes; empty where there was no link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """The right to act, as it is held."""

    token: str
    holder: str
    epoch: int
    """Grows with each change of holder; what was started under a lower one is another's to continue with."""
    taken_at: datetime | None
    """When this epoch began; None: an older version began it."""
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """What is true now, read in one transaction."""

    head_seq: int
    decided_through: int
    """Evidence up to this sequence number has been decided on."""
    evidence_head: int
    incidents: tuple[Incident, ...]
    """Every incident that is not final, oldest first."""
    incident_count: int
    """How many incidents there ever were; the next one gets this number plus one."""
    last_change_seq: dict[IncidentId, int]
    """The chain position of the last change of each incident in `incidents` (its own, its actions' or its plan's)."""
    records: tuple[ActionRecord, ...]
    """Actions of open incidents, actions without an outcome, all actions started in the last 24 hours, and those of
    rollouts that are not final on nodes that are out: in hand, pulled out or lost."""
    approvals: tuple[Approval, ...]
    """Approvals that had not expired at the time given to `read_state`."""
    pause: Pause | None
    past_approvals: tuple[Approval, ...] = ()
    """Approvals that expired within the last 24 hours: what was started on them is finished."""
    rollouts: tuple[Rollout, ...] = ()
    """Every rollout that is not final, oldest first."""
    owned: Mapping[NodeName, RolloutId] = field(default_factory=dict)
    """Nodes that a rollout has in hand: nobody else may act on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The before-entry is written: send the command."""

    record: ActionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyBegun:
    """The key exists: with an outcome the action is over; without one its witness must be read, never sent blindly."""

    record: ActionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainVerdict:
    """What the audit found: the chain is whole, or the first line where it is not."""

    entry_count: int
    head_hash: str
    first_broken_seq: int | None
    problem: str

    @property
    def is_whole(self) -> bool:
        return self.first_broken_seq is None and not self.problem


Guard = Callable[[ActionRecord, LedgerState], Refusal | ActProof | None]
"""Judges an action on the ledger's state inside the budget transaction: a refusal, or what was proved of it.

None lets a message pass, and nothing else.
"""
