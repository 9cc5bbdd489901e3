"""What a job says of itself in its comment: its workload, its checkpoints, and the service that it is a replica of.

Users write comments, so nothing here is believed beyond its form; whatever has no such form means "not said".

    {"workload": "training", "checkpointed_at": "2026-11-21T07:00:00Z", "ckpt": "/ckpt/run7/last", "ckpt_every": 1800}
    workload=training ckpt=/ckpt/run7/last ckpt_every=1800
    workload=inference service=chat min_serving=3 ckpt=none
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.observation import Checkpointing, Workload

_COMMENT_MAX_LENGTH = 4096
"""Longer comments are not read. Assumption: what we ask for fits ten times over."""
_NO_CHECKPOINT = "none"
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MIN_SERVING_MAX = 100_000
_EVERY_MIN_SECONDS, _EVERY_MAX_SECONDS = 10, 7 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class JobComment:
    """What a job says of itself. UNKNOWN, None, 0 and empty: it says nothing, or nothing that makes sense."""

    workload: Workload = Workload.UNKNOWN
    checkpointed_at: datetime | None = None
    checkpoint_path: str | None = None
    """Absolute; whether it may be looked at is for whoever looks."""
    checkpointing: Checkpointing = Checkpointing.UNKNOWN
    """YES if it says when one was made, NO if it says `ckpt=none`. A path alone is a promise."""
    checkpoint_every: timedelta | None = None
    service: str = ""
    min_serving_count: int = 0


def read_job_comment(comment: str, *, now: datetime) -> JobComment:
    """Return what `comment` says; never raises. A checkpoint in the future or in local time is not believed."""
    if len(comment) > _COMMENT_MAX_LENGTH:
        return JobComment()
    said = _object(comment) if comment.lstrip().startswith("{") else _words(comment)
    checkpointed_at = _past_time(said.get("checkpointed_at"), now=now)
    every = _whole_number(said.get("ckpt_every"), least=_EVERY_MIN_SECONDS, most=_EVERY_MAX_SECONDS)
    return JobComment(
        workload=_workload(said.get("workload")),
        checkpointed_at=checkpointed_at,
        checkpoint_path=_absolute_path(said.get("ckpt")),
        checkpointing=_checkpointing(said.get("ckpt"), checkpointed_at=checkpointed_at),
        checkpoint_every=None if every is None else timedelta(seconds=every),
        service=_service(said.get("service")),
        min_serving_count=_whole_number(said.get("min_serving"), least=0, most=_MIN_SERVING_MAX) or 0,
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


def _checkpointing(value: object, *, checkpointed_at: datetime | None) -> Checkpointing:
    if checkpointed_at is not None:
        return Checkpointing.YES
    is_none = isinstance(value, str) and value.strip().lower() == _NO_CHECKPOINT
    return Checkpointing.NO if is_none else Checkpointing.UNKNOWN


def _whole_number(value: object, *, least: int, most: int) -> int | None:
    """Return a whole number within bounds, from a number or its digits; None for all else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(most)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        return None
    return value


def _service(value: object) -> str:
    return value if isinstance(value, str) and _SERVICE.fullmatch(value) else ""
