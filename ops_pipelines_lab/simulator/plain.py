"""Frozen dataclasses to and from plain dicts, lists, strings and numbers, as JSON and YAML hold them.

Only the shapes that scenarios and journal entries use: str, int, float, bool, None, Enum, datetime, nested
dataclasses, `tuple[X, ...]`, `X | None`. What a field means is the business of the class that declares it.
"""

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import TypeVar

T = TypeVar("T")


class PlainError(ValueError):
    """Plain data does not fit the class it should become. The message names the field."""


def to_plain(value: object) -> object:
    """Return `value` as JSON can hold it; fields of a dataclass that equal their default are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name))
            for field in fields(value)
            if field.default is MISSING or getattr(value, field.name) != field.default
        }
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise PlainError(f"{type(value).__name__} has no plain form; use text, numbers, Enum, datetime, tuple, dataclass")


def from_plain(kind: type[T], data: object) -> T:
    """Return the `kind` that `data` describes; raise PlainError on an unknown, missing or misshapen field."""
    if not isinstance(data, Mapping):
        raise PlainError(f"{kind.__name__} needs a mapping, found {type(data).__name__}")
    hints = _hints(kind)
    unknown = sorted(str(key) for key in data if key not in hints)
    if unknown:
        raise PlainError(f"{kind.__name__} has no field {', '.join(unknown)}; known: {', '.join(hints)}")
    arguments = {
        name: _read(hint, data[name], where=f"{kind.__name__}.{name}") for name, hint in hints.items() if name in data
    }
    try:
        return kind(**arguments)
    except TypeError as exc:
        raise PlainError(f"{kind.__name__}: {exc}") from exc


_hints_by_kind: dict[type, dict[str, object]] = {}


def _hints(kind: type) -> dict[str, object]:
    if kind not in _hints_by_kind:
        _hints_by_kind[kind] = dict(typing.get_type_hints(kind))
    return _hints_by_kind[kind]


def _read(hint: object, data: object, *, where: str) -> object:
    # NewType is erased: a NodeName is read as the str that it is.
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        if data is None:
            return None
        (hint,) = (option for option in typing.get_args(hint) if option is not type(None))
        return _read(hint, data, where=where)
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise PlainError(f"{where} needs a list, found {type(data).__name__}")
        return tuple(_read(typing.get_args(hint)[0], item, where=where) for item in data)
    if not isinstance(hint, type):
        raise PlainError(f"{where} has a type that plain data cannot give: {hint}")
    return _read_one(hint, data, where=where)


def _read_one(hint: type, data: object, *, where: str) -> object:
    if is_dataclass(hint):
        return from_plain(hint, data)
    if issubclass(hint, Enum):
        return hint(data)
    if hint is datetime and isinstance(data, str):
        return datetime.fromisoformat(data)
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(data, hint) and (hint is bool or not isinstance(data, bool)):
        return data
    raise PlainError(f"{where} needs {hint.__name__}, found {data!r}")
