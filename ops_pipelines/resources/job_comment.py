"""What a job says of itself in its comment: its workload, and when or where its last checkpoint was made.

Users write comments, so nothing here is believed beyond its form; whatever has no such form means "not said".

    {"workload": "training", "checkpointed_at": "2026-11-21T07:00:00Z", "ckpt": "/ckpt/run7/last"}
    workload=training ckpt=/ckpt/run7/last
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ops_pipelines.domain.observation import Workload

_COMMENT_MAX_LENGTH = 4096
"""Longer comments are not read. Assumption: what we ask for fits ten times over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobComment:
    """What a job says of itself. UNKNOWN and None: it says nothing, or nothing that makes sense."""

    workload: Workload = Workload.UNKNOWN
    checkpointed_at: datetime | None = None
    checkpoint_path: str | None = None
    """Absolute; whether it may be looked at is for whoever looks."""


def read_job_comment(comment: str, *, now: datetime) -> JobComment:
    """Return what `comment` says; never raises. A checkpoint in the future or in local time is not believed."""
    if len(comment) > _COMMENT_MAX_LENGTH:
        return JobComment()
    said = _object(comment) if comment.lstrip().startswith("{") else _words(comment)
    return JobComment(
        workload=_workload(said.get("workload")),
        checkpointed_at=_past_time(said.get("checkpointed_at"), now=now),
        checkpoint_path=_absolute_path(said.get("ckpt")),
    )


def _object(comment: str) -> Mapping[str, object]:
    try:
        said = json.loads(comment)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _words(comment: str) -> Mapping[str, object]:
    return {key: value for key, equals, value in (word.partition("=") for word in comment.split()) if equals}


def _workload(value: object) -> Workload:
    try:
        return Workload(value.strip().lower()) if isinstance(value, str) else Workload.UNKNOWN
    except ValueError:
        return Workload.UNKNOWN


def _past_time(value: object, *, now: datetime) -> datetime | None:
    try:
        if isinstance(value, bool):
            return None
        if isinstance(value, int | float):
            time = datetime.fromtimestamp(value, UTC) if math.isfinite(value) and value > 0 else None
        elif isinstance(value, str):
            time = datetime.fromisoformat(value)
        else:
            return None
        if time is None or time.tzinfo is None or time > now:
            return None
        return time.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _absolute_path(value: object) -> str | None:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        return None
    return value
