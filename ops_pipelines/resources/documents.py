"""Domain values as canonical JSON and back: what the ledger stores and hashes.

Canonical means that equal values give equal text: sorted keys, no spaces, ASCII, UTC times, sorted sets, whole floats
written as integers. Which values are stored, and where, is `sql_ledger`'s business.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import TypeAlias, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from ops_pipelines.core.entries import LedgerError

T = TypeVar("T")
_Writer: TypeAlias = Callable[..., str]

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN_FAULT_COUNT = 3
_TEXTS_KEPT = 8_192
"""Two batches of a storm, in some 10 MB."""
_ADAPTERS: dict[type, TypeAdapter[object]] = {}
"""Built on first use: one costs milliseconds."""
_TUPLES: dict[type, TypeAdapter[object]] = {}


def encode(value: object) -> str:
    """Return `value` as canonical JSON; raise LedgerError for what JSON cannot carry without loss.

    Dataclasses, enums, aware datetimes, dates, timedeltas, sets, tuples, lists and mappings (keys: text, integers,
    enums) may be nested at will. Half of a surrogate pair in a text becomes U+FFFD: log lines can carry one, and no
    database stores it.
    """
    try:
        return _text(value)
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
        raise _not_fitting(kind, exc) from exc


def decode_all(kind: type[T], texts: Iterable[str]) -> tuple[T, ...]:
    """Return what each of `texts` says, as `decode` does, but all at once: four times as fast for small ones."""
    kept = list(texts)
    if kind not in _TUPLES:
        _TUPLES[kind] = TypeAdapter(tuple[kind, ...])  # type: ignore[valid-type]  # made at run time
    try:
        decoded = _TUPLES[kind].validate_json(f"[{','.join(kept)}]", strict=True, extra="forbid")
    except ValidationError as exc:
        raise _not_fitting(kind, exc) from exc
    values = cast("tuple[T, ...]", decoded)
    if len(values) != len(kept):
        raise LedgerError(f"of stored {kind.__name__} there are {len(values)} instead of {len(kept)}; check the ledger")
    return values


def _not_fitting(kind: type, problem: ValidationError) -> LedgerError:
    faults = [
        f"{'.'.join(str(part) for part in fault['loc']) or 'the whole'}: {fault['msg']}"
        for fault in problem.errors(include_url=False, include_input=False)
    ]
    shown = "; ".join(faults[:_SHOWN_FAULT_COUNT])
    return LedgerError(
        f"a stored {kind.__name__} does not fit this program ({len(faults)} fault(s): {shown}). "
        "It was written by another version, or changed by hand: run the version that wrote it, or check the ledger."
    )


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return cast("TypeAdapter[T]", _ADAPTERS[kind])


class _Writers(dict[type, _Writer]):
    """How a value of a type is written; found on first use. A storm stores a million values a minute."""

    def __missing__(self, kind: type) -> _Writer:
        writer = self[kind] = _writer_of(kind)
        return writer


_WRITERS = _Writers()


def keep_texts_of(kind: type) -> None:
    """Keep the texts of the newest values of a kind, which must be hashable: equal values have equal texts.

    What an observation says is written as evidence, in the next snapshot, and in each finding that rests on it.
    """
    _WRITERS[kind] = lru_cache(maxsize=_TEXTS_KEPT)(_writer_of(kind))


def _text(value: object) -> str:
    return _WRITERS[type(value)](value)


def _writer_of(kind: type) -> _Writer:
    if dataclasses.is_dataclass(kind):
        return _writer_of_dataclass(kind)
    writer = next((writer for base, writer in _WRITERS_OF_BASES if issubclass(kind, base)), None)
    if writer is None:
        raise LedgerError(
            f"a {kind.__name__} cannot be stored; use dataclasses, enums, aware datetimes, dates, timedeltas, numbers, "
            "text, tuples, frozensets and mappings"
        )
    return writer


def _writer_of_dataclass(kind: type) -> _Writer:
    names = sorted(field.name for field in dataclasses.fields(kind))
    if not names:
        return lambda _: "{}"
    # One name more than there is, because attrgetter gives no tuple for one alone.
    values_of = attrgetter(*names, names[0])
    leads = [f"{',' if number else '{'}{encode_basestring_ascii(name)}:" for number, name in enumerate(names)]
    writers = _WRITERS

    def write(value: object) -> str:
        values = values_of(value)
        return "".join([lead + writers[type(item)](item) for lead, item in zip(leads, values, strict=False)]) + "}"

    return write


def _write_text(text: str) -> str:
    return encode_basestring_ascii(text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text))


def _write_float(number: float) -> str:
    if not math.isfinite(number):
        raise ValueError(f"{number} is no number of JSON")
    # 1 and 1.0 are equal, and so are 0.0 and -0.0: each pair needs one text.
    return int.__repr__(int(number)) if number.is_integer() else float.__repr__(number)


def _write_time(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise LedgerError(f"{moment.isoformat()} has no time zone; convert it to UTC at the border")
    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return f'"{in_utc.isoformat()[:-6]}Z"'


def _write_enum(member: Enum) -> str:
    return _text(member.value)


def _write_sequence(items: Iterable[object]) -> str:
    return f"[{','.join(map(_text, items))}]"


def _write_set(items: Iterable[object]) -> str:
    return f"[{','.join(sorted(map(_text, items)))}]"


def _write_mapping(mapping: Mapping[object, object]) -> str:
    # Two keys may have one text; the later counts, as in JSON itself.
    texts = {_key_text(key): _text(item) for key, item in mapping.items()}
    return "{" + ",".join(f"{encode_basestring_ascii(key)}:{texts[key]}" for key in sorted(texts)) + "}"


def _key_text(key: object) -> str:
    plain = key
    while isinstance(plain, Enum):
        plain = plain.value
    if isinstance(plain, str):
        return _LONE_SURROGATE.sub("\ufffd", plain)
    if isinstance(plain, int) and not isinstance(plain, bool):
        return int.__repr__(plain)
    raise LedgerError(f"a mapping with {type(key).__name__} keys cannot be stored; use text, integers or enums as keys")


_WRITERS_OF_BASES: tuple[tuple[type, _Writer], ...] = (
    (type(None), lambda _: "null"),
    (Enum, _write_enum),  # before int and str: an IntEnum is both
    (str, _write_text),
    (bool, lambda value: "true" if value else "false"),
    (int, int.__repr__),
    (float, _write_float),
    (datetime, _write_time),  # before date: it is one, too
    (date, lambda value: _write_text(value.isoformat())),
    (timedelta, lambda value: _write_text(str(to_jsonable_python(value)))),
    (tuple, _write_sequence),
    (list, _write_sequence),
    (frozenset, _write_set),
    (set, _write_set),
    (Mapping, _write_mapping),
)
"""How a type and everything derived from it is written; the first that fits."""
