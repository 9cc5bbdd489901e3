"""Where a proposed policy is laid beside the present one: history, the proposals, and a place for the page."""

from collections.abc import Callable
from dataclasses import dataclass

from ops_pipelines.clock import Clock
from ops_pipelines.core.policy import Policy
from ops_pipelines.flow.hindsight.replay.history import History


@dataclass(frozen=True, kw_only=True)
class PolicyDesk:
    """What a comparison launched from the UI needs. It can read history and keep a page, and nothing else."""

    history: History
    read_proposed: Callable[[str], Policy]
    """Returns the policy of a file beside the present one; raises PolicyError for one that would be refused."""
    keep_page: Callable[[str], str]
    """Keeps the newest page, and returns where."""
    clock: Clock
