"""Rows of `monitoring_coverage` of one hour while they are made, and what the hour before remembers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ops_pipelines.core.identity import Topology

GONE_AFTER = timedelta(days=7)
"""After that, what vanished is taken to be gone for good. Nodes and GPUs of cluster.yaml never are."""
COMPLETE_RATIO = 0.95
"""Fewer samples than this share are a gap worth a word."""
MAJORITY_RATIO = 0.5
GPU_TABLE = "gpu_telemetry"

Key = tuple[str, str, str]
"""Node, device, quantity."""


@dataclass(slots=True, kw_only=True)
class Measure:
    """One hour, while its rows are made."""

    hour: datetime
    steps: int
    fresh: int
    topology: Topology
    before: Mapping[Key, Mapping[str, object]]
    rows: dict[Key, dict[str, object]] = field(default_factory=dict)

    def known_before(self, key: Key) -> bool:
        """Whether the hour before has it, and it is not gone for good."""
        row = self.before.get(key)
        return row is not None and not self.is_gone(row["missing_since"])

    def is_gone(self, missing_since: object) -> bool:
        return isinstance(missing_since, datetime) and self.hour - missing_since >= GONE_AFTER

    def since(self, key: Key, *, newest: datetime | None) -> datetime:
        """Return since when something is missing: its newest sample, else what the hour before says, else its end."""
        earlier = (self.before.get(key) or {}).get("missing_since")
        return newest or (earlier if isinstance(earlier, datetime) else self.hour)

    def add(self, key: Key, *, expected: int, seen: int, since: datetime | None, because: str | None) -> None:
        node, device, quantity = key
        self.rows[key] = {
            "node": node,
            "device": device,
            "quantity": quantity,
            "time": self.hour,
            "expected_count": expected,
            "seen_count": seen,
            "coverage_ratio": seen / expected if expected else 1.0,
            "missing_since": since,
            "because": because,
        }


def gaps(seen: int, expected: int) -> str | None:
    """Return a word on gaps; None where there are none to speak of."""
    return None if seen >= COMPLETE_RATIO * expected else f"gaps: {seen} of {expected} samples"
