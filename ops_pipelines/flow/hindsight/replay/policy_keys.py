"""Which keys two policies set differently, named as in policy.yaml."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.policy import Policy
from ops_pipelines.flow.hindsight.replay.result import KeyDifference

ABSENT = "not set"


def compare_policies(then: Policy, new: Policy) -> tuple[KeyDifference, ...]:
    """Return each key with different values, by name; a key that only one of them has is `not set` in the other."""
    before, after = dict(_flat(then)), dict(_flat(new))
    return tuple(
        KeyDifference(key=key, then=before.get(key, ABSENT), new=after.get(key, ABSENT))
        for key in sorted(before.keys() | after.keys())
        if before.get(key, ABSENT) != after.get(key, ABSENT)
    )


def _flat(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    if is_dataclass(value):
        for field in fields(value):
            yield from _flat(getattr(value, field.name), f"{key}.{field.name}" if key else field.name)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(item, f"{key}.{_word(name)}")
    elif isinstance(value, timedelta):
        yield f"{key}_seconds", f"{value.total_seconds():g}"
    elif isinstance(value, (tuple, list)) and any(is_dataclass(each) for each in value):
        for number, each in enumerate(value):
            yield from _flat(each, f"{key}[{number}]")
    elif isinstance(value, Collection) and not isinstance(value, str):
        yield key, ", ".join(sorted(map(_word, value))) or "none"
    else:
        yield key, _word(value)


def _word(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "no limit"
    return f"{value:g}" if isinstance(value, float) else str(value)
