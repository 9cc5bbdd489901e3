"""Binds a dataclass to a section of a file: which keys it has, how each is bounded, how it becomes the value.

A value of a subject is declared once, there. What a file adds to it is a table beside its reader: keys that have other
names, bounds, units. pydantic reads by it, strictly: unknown keys are refused, nothing is converted silently (`"5"` is
not 5), and a key that is left out has the default of the dataclass. Where a fault is in a file is `yaml_file`'s,
what a text or a number may be too.

    LADDER = section_of(LadderLimits, shapes={"max_reboots_count": Count})
"""

import difflib
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import date, datetime, timedelta
from enum import Enum
from functools import cached_property, partial
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Generic, Literal, NewType, TypeVar, Union, cast, get_args, get_origin

from pydantic import Field, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic import ValidationInfo as Reading
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema

Made = TypeVar("Made")
KeyPath = tuple[str | int, ...]
"""Where a value is in its file: `("racks", 0, "nodes")`."""
Fault = tuple[KeyPath, str]
"""Where something is wrong, and what: found, expected, and what to do."""
Seconds = Annotated[float, Field(ge=0, le=366 * 86_400)]
"""# Assumption: no limit of this program is meant to be longer than a year; more is a slip of units."""
_STRICT = core_schema.CoreConfig(strict=True, allow_inf_nan=False)
_UNITS = ("seconds", "minutes", "hours", "days")
_PLAIN: tuple[object, ...] = (object, bool, int, float, str, date, datetime)
_CONVERTED: Mapping[object, Callable[[list[object]], object]] = {tuple: tuple, frozenset: frozenset}
_EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")


class FaultsFound(ValueError):
    """What is in a section cannot be used: the faults, each with its place counted from the section."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("; ".join(sentence for _, sentence in faults))
        self.faults = faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a section."""

    field: str
    """The argument that it becomes."""
    shape: object
    """What pydantic reads: a type with its bounds, a Section or a Kinds."""
    is_required: bool = False
    is_nullable: bool = False
    convert: Callable[[object], object] | None = None
    """What is made of the value; None: it is taken as it was read."""


class Section(Generic[Made]):
    """A mapping of a file with these keys and no others, and what is made of it."""

    def __init__(
        self,
        make: Callable[..., Made],
        keys: Mapping[str, Key],
        *,
        given: Collection[str] = (),
        rule: Callable[[Mapping[str, object]], Iterable[Fault]] | None = None,
    ) -> None:
        """`make` takes what the keys hold by name, and the named parts of what `read_section` is given.

        What contradicts itself it refuses with FaultsFound, or with a ValueError whose sentence may begin with the key
        that it is about. It is not asked where a key has a fault of its own; a `rule`, which sees what is in the
        file, is.
        """
        self.keys = keys
        self._make = make
        self._given = given
        self._rule = rule

    @cached_property
    def adapter(self) -> TypeAdapter[Made]:
        return TypeAdapter(annotated(self))

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        known = {}
        for name, key in self.keys.items():
            inner = handler.generate_schema(annotated(key.shape))
            shape = core_schema.nullable_schema(inner) if key.is_nullable else inner
            known[name] = core_schema.typed_dict_field(shape, required=key.is_required)
        others = core_schema.no_info_plain_validator_function(self._refuse_key)
        mapping = core_schema.typed_dict_schema(known, extra_behavior="allow", extras_schema=others, config=_STRICT)
        made = core_schema.with_info_after_validator_function(self._made, mapping)
        return made if self._rule is None else core_schema.no_info_wrap_validator_function(self._ruled, made)

    def _refuse_key(self, _: object) -> object:
        raise PydanticCustomError("unknown_key", "unknown key", {"valid": list(self.keys)})

    def _ruled(self, value: object, read: Callable[[object], Made]) -> Made:
        assert self._rule is not None, "only sections with a rule are read so"
        faults = list(self._rule(value)) if isinstance(value, Mapping) else []
        try:
            made = read(value)
        except ValidationError as problem:
            raise refusal(*_faults_of(problem), *faults) from problem
        if faults:
            raise refusal(*faults)
        return made

    def _made(self, values: dict[str, object], reading: Reading) -> Made:
        stated = {}
        try:
            for name, value in values.items():
                key = self.keys[name]
                stated[key.field] = value if key.convert is None else key.convert(value)
            return self._make(**stated, **{name: given_with(reading).values[name] for name in self._given})
        except FaultsFound as problem:
            raise refusal(*problem.faults) from problem
        except (ValueError, OverflowError) as problem:
            raise refusal(located(problem, self.keys)) from problem


class Kinds(Generic[Made]):
    """A section whose key `kind` says which keys it has."""

    def __init__(self, choices: Mapping[str, Section[Made]]) -> None:
        self.choices = choices

    @cached_property
    def adapter(self) -> TypeAdapter[Made]:
        return TypeAdapter(annotated(self))

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._read)

    def _read(self, value: object, reading: Reading) -> Made:
        if not isinstance(value, Mapping):
            expected = f"expected a section with the key kind ({', '.join(self.choices)})"
            raise refusal(((), f"found {shown(value)}; {expected}"))
        kind = value.get("kind")
        if not isinstance(kind, str) or kind not in self.choices:
            found = "no kind" if "kind" not in value else f"kind {shown(kind)}"
            raise refusal((("kind",), f"found {found}; expected one of {', '.join(self.choices)}"))
        return self.choices[kind].adapter.validate_python(value, context=reading.context)


def section_of(
    made: Callable[..., Made],
    *,
    names: Mapping[str, str] | None = None,
    shapes: Mapping[str, object] | None = None,
    by_type: Mapping[object, object] | None = None,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    required: Collection[str] = (),
) -> Section[Made]:
    """Return the section whose keys are the fields of a dataclass, as `keys_of` has them."""
    keys = keys_of(made, names=names, shapes=shapes, by_type=by_type, only=only, without=without, required=required)
    return Section(made, keys)


def keys_of(
    made: object,
    *,
    names: Mapping[str, str] | None = None,
    shapes: Mapping[str, object] | None = None,
    by_type: Mapping[object, object] | None = None,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    required: Collection[str] = (),
) -> dict[str, Key]:
    """Return a key for each field of a dataclass, for `only` some of them, or for those that are not left out.

    A key is named as its field. Of a duration the unit is at the end of the key: as `names` has it, else seconds.
    `shapes` says how a field is read where its type does not say it all, `by_type` how the other fields of a type are.
    What may be None may be null. What a partial of the dataclass fills in may be left out; what is `required` may not,
    nor be null, though it may there.
    """
    names, shapes, by_type = names or {}, shapes or {}, by_type or {}
    filled: Collection[str] = ()
    if isinstance(made, partial):
        filled = made.keywords
        made = made.func
    keys = {}
    for each in fields(cast("type", made)):
        if each.name in without or (only is not None and each.name not in only) or not each.init:
            continue
        hint, is_nullable = _without_none(each.type)
        name = names.get(each.name, f"{each.name}_seconds" if hint is timedelta else each.name)
        keys[name] = Key(
            field=each.name,
            shape=shapes.get(each.name) or by_type.get(hint) or _shape_of(hint),
            is_required=each.name in required
            or (each.default is MISSING and each.default_factory is MISSING and each.name not in filled),
            is_nullable=is_nullable and each.name not in required,
            convert=_into(hint, name),
        )
    return keys


def needed(**shapes: object) -> dict[str, Key]:
    """Return keys that must be there, each with its shape, for what no dataclass states."""
    return {name: Key(field=name, shape=shape, is_required=True) for name, shape in shapes.items()}


def optional(**shapes: object) -> dict[str, Key]:
    """Return keys that may be left out."""
    return {name: Key(field=name, shape=shape) for name, shape in shapes.items()}


def nullable(**shapes: object) -> dict[str, Key]:
    """Return keys that may be left out or null."""
    return {name: Key(field=name, shape=shape, is_nullable=True) for name, shape in shapes.items()}


def list_of(shape: object, *, least: int | None = None, most: int | None = None) -> object:
    """Return the shape of a list of so many."""
    return Annotated[GenericAlias(list, (annotated(shape),)), Field(min_length=least, max_length=most)]


def dict_of(key: object, shape: object) -> object:
    """Return the shape of a mapping."""
    return GenericAlias(dict, (key, annotated(shape)))


def annotated(shape: object) -> type:
    """Return a shape as pydantic takes types."""
    return cast("type", Annotated[object, shape] if isinstance(shape, Section | Kinds) else shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a section is read with, beside what is in it."""

    directory: Path
    """Of the file: from there relative paths count."""
    values: Mapping[str, object]


def given_with(reading: Reading) -> Given:
    """Return what a section is read with, for those who read a part of it."""
    context = reading.context
    assert isinstance(context, Given), "sections are read with read_section"
    return context


def read_section(
    section: Section[Made] | Kinds[Made], value: object, *, directory: Path, given: Mapping[str, object]
) -> Made:
    """Return what is made of a section; raise FaultsFound with every fault in it."""
    try:
        return section.adapter.validate_python(value, context=Given(directory=directory, values=given))
    except ValidationError as problem:
        raise FaultsFound(*_faults_of(problem)) from problem


def located(problem: Exception, keys: Collection[str]) -> Fault:
    """Return what a subject refuses, at the key that its sentence begins with: `claims.slowdown_ratio is 2; ...`."""
    first = str(problem).split(" ", 1)[0].rstrip(":").rpartition(".")[2]
    return (first,) if first in keys else (), str(problem)


def refusal(*faults: Fault) -> ValidationError:
    """Return what a part of a section that is read raises, where it knows the places of its faults."""
    details = [
        InitErrorDetails(type=PydanticCustomError("sentence", "{sentence}", {"sentence": text}), loc=at, input=None)
        for at, text in faults
    ]
    return ValidationError.from_exception_data("section", details)


def shown(value: object) -> str:
    """Return what was found, short enough for a sentence, and without what may be a secret."""
    if isinstance(value, date):
        return value.isoformat()  # With its time of day, if it has one.
    short = reprlib.Repr()  # Of aliases within aliases a few lines would be gigabytes.
    short.maxlevel, short.maxstring = 3, 1_000
    text = repr(value) if isinstance(value, str) else short.repr(value)
    if "://" in text and "@" in text:
        return "a URL with credentials (not shown; secrets belong in a file of their own)"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _faults_of(problem: ValidationError) -> list[Fault]:
    return [(tuple(each["loc"]), _sentence(each)) for each in problem.errors(include_url=False)]


def _sentence(fault: ErrorDetails) -> str:
    """Return what pydantic says of a value as a sentence for the operator."""
    context = fault.get("ctx", {})
    match fault["type"]:
        case "sentence":
            return str(context["sentence"])
        case "value_error":
            return str(context["error"])
        case "unknown_key":
            return _unknown_key(str(fault["loc"][-1]), context["valid"])
        case "missing":
            return "this key is missing and has no default"
        case "float_type" if _EXPONENT.fullmatch(str(fault["input"])):
            expected = "a number: with a point and a signed exponent, such as 1.0e+3, or without an exponent"
            return f"found {shown(fault['input'])}, a text in YAML; expected {expected}"
    return f"found {shown(fault['input'])}; {fault['msg'][:1].lower()}{fault['msg'][1:]}"


def _unknown_key(key: str, valid: list[str]) -> str:
    near = [name for name in valid if name == f"{key}_seconds"] or difflib.get_close_matches(key, valid, n=1)
    if near:
        return f"unknown key; did you mean {near[0]}?"
    return f"unknown key; expected one of {', '.join(valid)}"


def _shape_of(hint: object) -> object:
    """Return how a field of this type is read, where nothing else is stated of it."""
    if isinstance(hint, NewType):
        return _shape_of(hint.__supertype__)
    if hint in _PLAIN:
        return hint
    if hint is timedelta:
        return Seconds
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Literal[tuple(each.value for each in hint)]
    origin, parts = get_origin(hint), get_args(hint)
    if origin is list or origin in _CONVERTED:
        return list_of(_shape_of(parts[0]))
    if origin is Mapping:
        return dict_of(_shape_of(parts[0]), _shape_of(parts[1]))
    raise TypeError(f"how {hint} is read is not known; say it under shapes")


def _into(hint: object, name: str) -> Callable[[object], object] | None:
    """Return what makes a value of this type of what was read; None where both are the same."""
    if hint is timedelta:
        unit = next(each for each in _UNITS if name.endswith(each))
        return lambda value: timedelta(**{unit: value}) if isinstance(value, int | float) else value
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    made = _CONVERTED.get(get_origin(hint))
    return None if made is None else lambda value: made(value) if isinstance(value, list) else value


def _without_none(hint: object) -> tuple[object, bool]:
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    others = [each for each in parts if each is not NoneType]
    return (others[0] if len(others) == 1 else hint), len(others) < len(parts)
