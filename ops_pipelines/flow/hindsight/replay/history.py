"""What a replay reads of one cluster, in one hand. Nothing in it can write or act."""

from collections.abc import Mapping
from dataclasses import dataclass

from ops_pipelines.core.lake import Lake
from ops_pipelines.core.plan import Rules
from ops_pipelines.core.record import Chronicle


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that a replay reads."""

    cluster: str
    chronicle: Chronicle
    lake: Lake | None
    """None: only what the ledger holds is replayed."""
    present: Rules
    """The rules of today's files."""
    release: Mapping[str, str]
    """Versions that nodes should have, as cluster.yaml says."""
    step_seconds: int
