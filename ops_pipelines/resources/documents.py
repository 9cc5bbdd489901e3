"""Domain values as canonical JSON and back: what the ledger stores and hashes.

Canonical means that equal values give equal text: sorted keys, no spaces, ASCII, UTC times, sorted sets, whole floats
written as integers. Which values are stored, and where, is `sql_ledger`'s business.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import TypeAlias, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from ops_pipelines.ports.ledger import LedgerError

Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"
"""What JSON can say."""
T = TypeVar("T")

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN_FAULT_COUNT = 3
_ADAPTERS: dict[type, TypeAdapter[object]] = {}
"""Built on first use: one costs milliseconds."""


def encode(value: object) -> str:
    """Return `value` as canonical JSON; raise LedgerError for what JSON cannot carry without loss.

    Dataclasses, enums, aware datetimes, timedeltas, sets, tuples, lists and mappings (keys: text, integers, enums) may
    be nested at will. Half of a surrogate pair in a text becomes U+FFFD: log lines can carry one, and no database
    stores it.
    """
    try:
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (ValueError, RecursionError) as exc:
        raise LedgerError(f"{type(value).__name__} cannot be stored: {exc}; store finite, acyclic values only") from exc


def decode(kind: type[T], text: str) -> T:
    """Return the `kind` that `text` says; raise LedgerError if it lacks a field, has an unknown one or a wrong value.

    A field that `kind` gained since the text was written takes its default; one without a default is a fault. Union
    members must differ in their fields, because the text does not name the class.
    """
    try:
        return _adapter(kind).validate_json(text, strict=True, extra="forbid")
    except ValidationError as exc:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc']) or 'the whole'}: {fault['msg']}"
            for fault in exc.errors(include_url=False, include_input=False)
        ]
        shown = "; ".join(faults[:_SHOWN_FAULT_COUNT])
        raise LedgerError(
            f"a stored {kind.__name__} does not fit this program ({len(faults)} fault(s): {shown}). "
            "It was written by another version, or changed by hand: run the version that wrote it, or check the ledger."
        ) from exc


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return cast("TypeAdapter[T]", _ADAPTERS[kind])


def _plain(value: object) -> Plain:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, Enum):  # before int and str: an IntEnum is both
        return _plain(value.value)
    if isinstance(value, str):
        return value if value.isascii() else _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        # 1 and 1.0 are equal, and so are 0.0 and -0.0: each pair needs one text.
        return int(value) if value.is_integer() else value
    if isinstance(value, datetime):
        return _utc_text(value)
    if isinstance(value, timedelta):
        return str(to_jsonable_python(value))
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, frozenset | set):
        return sorted((_plain(item) for item in value), key=_sort_key)
    if isinstance(value, Mapping):
        return {_key_text(key): _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in _field_names(type(value))}
    raise LedgerError(
        f"a {type(value).__name__} cannot be stored; use dataclasses, enums, aware datetimes, timedeltas, numbers, "
        "text, tuples, frozensets and mappings"
    )


def _utc_text(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise LedgerError(f"{moment.isoformat()} has no time zone; convert it to UTC at the border")
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _sort_key(item: Plain) -> str:
    return json.dumps(item, sort_keys=True)


def _key_text(key: object) -> str:
    plain = _plain(key)
    if isinstance(plain, str):
        return plain
    if isinstance(plain, int) and not isinstance(plain, bool):
        return str(plain)
    raise LedgerError(f"a mapping with {type(key).__name__} keys cannot be stored; use text, integers or enums as keys")


@lru_cache(maxsize=256)
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))
