"""What came of one simulated rollout, ours or a peer's."""

from dataclasses import dataclass


@dataclass(slots=True)
class Outcome:
    """Filled while it is played. Times are the world's, in seconds."""

    node_count: int
    began_at: float
    is_over: bool = False
    is_done: bool = False
    """Every node that could be updated is."""
    is_stopped: bool = False
    """Went back, waits for people, or goes no further."""
    has_asked: bool = False
    """Stopped because it could not decide."""
    is_back: bool = False
    """Every touched node runs its old version and works."""
    touched_count: int = 0
    """Nodes that were changed when it stopped, or that are being changed then."""
    upgraded_count: int = 0
    decided_at: float | None = None
    """When the canaries were found good, or it stopped on them."""
    watched_from: float | None = None
    """When the last canary worked again and all of them were looked at together; None: it was stopped before."""
    ended_at: float | None = None
    reason: str = ""
    """Why it stopped."""

    def note_stop(self, reason: str, *, at: float, touched_count: int, has_asked: bool = False) -> None:
        """It stops here; what was touched may still go back."""
        self.is_stopped, self.has_asked, self.reason, self.touched_count = True, has_asked, reason, touched_count
        if self.decided_at is None:
            self.decided_at = at

    def close(self, *, at: float, is_done: bool, is_back: bool, upgraded_count: int) -> None:
        """Nothing happens any more."""
        self.is_over, self.ended_at = True, at
        self.is_done, self.is_back, self.upgraded_count = is_done, is_back, upgraded_count
