"""Moves as plain data, that a seed, a test or a shrinking search can make; `moves` does them.

A move means no particular harm by itself, and its numbers never fail to choose something.
"""

from dataclasses import dataclass
from enum import Enum

from ops_pipelines.core.policy import ActionClass

CLASSES_OF_ACTS: tuple[ActionClass, ...] = tuple(kind for kind in ActionClass if kind is not ActionClass.QUOTAS)
"""Of acts on nodes and jobs: quotas have no act in these stories."""


class MoveKind(Enum):
    """What can be done on a stage."""

    PASS = "pass"
    OTHER_PASS = "other_pass"
    WAIT = "wait"
    BREAK = "break"
    BEND_METRICS = "bend_metrics"
    STRAIGHTEN_METRICS = "straighten_metrics"
    BEND_SCHEDULER = "bend_scheduler"
    STRAIGHTEN_SCHEDULER = "straighten_scheduler"
    FAIL_CALL = "fail_call"
    MEND_CALLS = "mend_calls"
    LOSE_ANSWER = "lose_answer"
    RUMOUR = "rumour"
    FOREIGN_DRAIN = "foreign_drain"
    FOREIGN_RESUME = "foreign_resume"
    IMITATE = "imitate"
    CANCEL = "cancel"
    SUBMIT = "submit"
    JUMP = "jump"
    CRASH = "crash"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    APPROVE = "approve"
    DRAIN_BY_HAND = "drain_by_hand"
    RETURN_BY_HAND = "return_by_hand"
    REPAIR_DONE = "repair_done"
    """Somebody mends a node that waits for hands, and says so; or does only one of the two."""
    BEND_CHECKS = "bend_checks"
    STRAIGHTEN_CHECKS = "straighten_checks"
    FORGET_WEIGHTS = "forget_weights"
    """The scheduler restarts, and no node is last choice any more."""
    RESERVE_BY_OTHERS = "reserve_by_others"
    LOWER_LIMITS = "lower_limits"
    """The operator allows less from now on, whatever was planned before."""
    SHOW_PART = "show_part"
    """The detectors see something of one part of a node that needs eyes or hands; or nothing of any any more."""
    ALERT = "alert"
    """Alertmanager reports something: that a well node is broken, that a broken one is well, all at once."""
    SAY_YES = "say_yes"
    """Somebody approves in one of the ways there are: late, twice, to an old plan, with a link that was used."""
    CHANGE_CONSENTS = "change_consents"
    """The operator changes the word for one class of acts."""
    ROLL_OUT = "roll_out"
    """Somebody rolls a release out, or says something to a rollout: yes, wait, continue, stop, back."""

    LINGER = "linger"
    """A process has stopped, or its tick or run comes late, by up to ten minutes. Its lease may be lost meanwhile,
    and another may act; or somebody renews it all the while."""
    LATE_RUN = "late_run"
    """A run is requested, and begins up to ten minutes later; its code server keeps the lease for it meanwhile."""
    SUSPEND = "suspend"
    """In the next pass the process has stopped between a before-entry and its command."""


DRAWN_APART = frozenset(
    {
        *(MoveKind.SHOW_PART, MoveKind.ALERT, MoveKind.SAY_YES, MoveKind.CHANGE_CONSENTS, MoveKind.ROLL_OUT),
        *(MoveKind.LINGER, MoveKind.LATE_RUN, MoveKind.SUSPEND),
    }
)
"""Kinds that came later: a share of the stories has them besides, so that every seed keeps its moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One thing that somebody does; what the numbers choose depends on the kind."""

    kind: MoveKind
    node: int = 0
    number: int = 0
    during: int | None = None
    """Done in the middle of the next pass, before its so-manieth question; None: at once."""
