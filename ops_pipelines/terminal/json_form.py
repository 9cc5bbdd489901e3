"""The form of an answer in JSON: any view, in the order of its fields, with times in UTC.

Field names of the views are the JSON keys: renaming one breaks the scripts of operators. The views themselves stand by
subject in the modules `..._views`.
"""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def to_json(view: "DataclassInstance") -> str:
    """Return a view as JSON in ASCII, in which no control character of an untrusted text is left as such."""
    return json.dumps(asdict(view), indent=2, ensure_ascii=True, default=_to_plain)


def _to_plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} has no form in JSON")
