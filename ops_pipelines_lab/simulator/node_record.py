"""What the pretended scheduler believes of one node. Who changes it, and when, is `controller`'s business."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(slots=True)
class NodeRecord:
    """What the scheduler believes of one node."""

    booted_at: datetime
    heard_at: datetime
    """When it last registered, or began to answer again."""
    is_drained: bool = False
    is_down: bool = False
    is_responding: bool = True
    reason: str | None = None
    reason_set_at: datetime | None = None
    expects_reboot: bool = False
    """The scheduler itself had it rebooted, so its next registration is no surprise."""
    is_last_choice: bool = False
    """Jobs are put on it only where no other node fits."""

    @property
    def takes_jobs(self) -> bool:
        return self.is_responding and not self.is_drained and not self.is_down
