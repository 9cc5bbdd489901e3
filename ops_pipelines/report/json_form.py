"""Draws an answer as JSON: a mapping or a dataclass, in the order of its keys, with times in UTC.

Keys are a contract with the scripts of operators: each subject writes its own in its `report`, and no document makes
them.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Keys: TypeAlias = Mapping[str, object]
"""A document, or a part of one."""


def to_json(view: "DataclassInstance | Keys") -> str:
    """Return a view as JSON in ASCII, in which no control character of an untrusted text is left as such."""
    return json.dumps(
        view if isinstance(view, Mapping) else asdict(view), indent=2, ensure_ascii=True, default=_to_plain
    )


def fields_of(value: object, names: str) -> dict[str, object]:
    """Return attributes of a value under their own names, which are apart by blanks: these are the keys."""
    return {name: getattr(value, name) for name in names.split()}


def _to_plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
