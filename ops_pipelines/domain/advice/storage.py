"""Advice on files that nobody reads: old checkpoints beside newer ones, data sets that are not used.

Advice, never deletion: whose files they are decides. A file without a time of its last read is never called unused.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.domain.advice.advice import Advice, AdviceKind, Confidence, Finding, Gain
from ops_pipelines.domain.advice.weighing import shown_bytes, weigh
from ops_pipelines.teams.settings import AdviceSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Files of one team that belong together: the checkpoints of a run, or a directory of data."""

    team: TeamName
    path: str
    """On one line and short; untrusted."""
    is_checkpoints: bool
    size_bytes: int
    """Of all of them."""
    count: int
    old_size_bytes: int = 0
    """Of those that were read and written last before the limit; of checkpoints never the newest."""
    old_count: int = 0
    last_used_at: datetime | None = None
    """Newest read or write of any."""
    unknown_count: int = 0
    """Those whose last read nobody knows."""


def judge_files(group: FileGroup, settings: AdviceSettings, *, since: datetime, until: datetime) -> Finding | None:
    """Files that nobody has touched for long."""
    limit = settings.stale_after if group.is_checkpoints else settings.unused_after
    if not group.old_count:
        return None
    kind = AdviceKind.STALE_CHECKPOINTS if group.is_checkpoints else AdviceKind.UNUSED_DATASETS
    last = "never as far as known" if group.last_used_at is None else f"{group.last_used_at:%Y-%m-%d}"
    advice = Advice(
        kind=kind,
        team=group.team,
        subject=group.path,
        since=since,
        until=until,
        evidence=(
            f"{group.old_count} of {group.count} files, {shown_bytes(group.old_size_bytes)}, were neither read nor "
            f"written for {limit / timedelta(days=1):g} days",
            f"anything of it was last used: {last}",
        ),
        counter_evidence=("a file may be kept on purpose, as the record of a result",),
        gain=Gain(size_bytes=group.old_size_bytes),
        what_to_do=(
            "keep the newest and the published checkpoints, move or delete the others yourself"
            if group.is_checkpoints
            else "archive it, or delete it yourself if it can be made again"
        ),
        confidence=Confidence.MEDIUM,
        measure=float(group.old_size_bytes),
        held_gpu_hours=0.0,
    )
    # A data set is used as a whole: one file that was read keeps all the others.
    used = (
        "a part of it was used"
        if not group.is_checkpoints and group.old_count + group.unknown_count < group.count
        else None
    )
    unknown = f"of {group.unknown_count} files nobody knows when they were last read" if group.unknown_count else None
    return weigh(advice, settings, against=(unknown, used))
