"""A dataclass bound to a section of a file: what its keys are, what they become, and where each fault is reported."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from ops_pipelines.resources.config.binding import (
    Fault,
    FaultsFound,
    Kinds,
    Section,
    dict_of,
    keys_of,
    list_of,
    needed,
    nullable,
    optional,
    read_section,
    section_of,
)
from ops_pipelines.resources.config.yaml_file import ExistingFile


class Colour(Enum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    spokes: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cart:
    name: str
    colour: Colour = Colour.RED
    rest: timedelta = timedelta(minutes=1)
    wheels: tuple[Wheel, ...] = ()
    labels: frozenset[str] = frozenset()
    weights: Mapping[str, float] = field(default_factory=dict)
    owner: str | None = None

    def __post_init__(self) -> None:
        if self.rest > timedelta(hours=1):
            raise ValueError(f"cart.rest_minutes is {self.rest}; expected an hour at most")
        if len(self.wheels) == 1:
            raise ValueError("one wheel is no cart; expected two or more")


WHEEL = section_of(Wheel, shapes={"spokes": Annotated[int, Field(ge=1)]})
CART = section_of(Cart, names={"rest": "rest_minutes"}, shapes={"wheels": list_of(WHEEL)})


def read(section: Section[Cart], value: object) -> Cart:
    return read_section(section, value, directory=Path("/"), given={})


def faults_of(section: Section[Cart] | Kinds[Cart], value: object, **given: object) -> dict[str, str]:
    with pytest.raises(FaultsFound) as found:
        read_section(section, value, directory=Path("/nowhere"), given=given)
    return {".".join(str(part) for part in at): sentence for at, sentence in found.value.faults}


def test_a_section_becomes_the_value_and_what_is_left_out_has_its_default() -> None:
    full = {
        "name": "a", "colour": "green", "rest_minutes": 1.5, "wheels": [{}, {"spokes": 3}], "labels": ["x"],
        "weights": {"a": 1}, "owner": None,
    }  # fmt: skip

    assert read(CART, full) == Cart(
        name="a",
        colour=Colour.GREEN,
        rest=timedelta(seconds=90),
        wheels=(Wheel(), Wheel(spokes=3)),
        labels=frozenset({"x"}),
        weights={"a": 1.0},
    )
    assert read(CART, {"name": "a"}) == Cart(name="a")


@pytest.mark.parametrize(
    ("value", "at", "sentence"),
    [
        ({}, "name", "this key is missing and has no default"),
        ({"name": 5}, "name", "found 5; input should be a valid string"),
        ({"name": None}, "name", "found None; input should be a valid string"),
        ({"name": "a", "colour": "blue"}, "colour", "found 'blue'; input should be 'red' or 'green'"),
        ({"name": "a", "rest_minute": 5}, "rest_minute", "unknown key; did you mean rest_minutes?"),
        ({"name": "a", "rest_minutes": "5"}, "rest_minutes", "found '5'; input should be a valid number"),
        ({"name": "a", "rest_minutes": "1e3"}, "rest_minutes", "found '1e3', a text in YAML; expected a number: "),
        ({"name": "a", "rest_minutes": 61}, "rest_minutes", "cart.rest_minutes is 1:01:00; expected an hour at most"),
        ({"name": "a", "wheels": [{}]}, "", "one wheel is no cart"),
        ({"name": "a", "wheels": [{}, {"spokes": 0}]}, "wheels.1.spokes", "found 0; input should be greater than"),
        ({"name": "a", "wheels": [{}, {"spoke": 0}]}, "wheels.1.spoke", "unknown key; did you mean spokes?"),
        ({"name": "a", "wheels": {}}, "wheels", "found {}; input should be a valid list"),
        ({"name": "a", "weights": {"a": float("inf")}}, "weights.a", "found inf; input should be a finite number"),
        ([], "", "found []; input should be a valid dictionary"),
        ({"name": "a", 5: 1}, "5", "found 5; keys should be strings"),
    ],
)
def test_a_fault_is_told_at_its_key_with_what_was_found_and_expected(value: object, at: str, sentence: str) -> None:
    faults = faults_of(CART, value)

    assert list(faults) == [at]
    assert faults[at].startswith(sentence)


def test_every_fault_of_a_section_is_told_at_once() -> None:
    assert set(faults_of(CART, {"colour": 1, "x": 1, "wheels": [{"spokes": 0}]})) == {
        "name", "colour", "x", "wheels.0.spokes"
    }  # fmt: skip


def test_what_a_partial_fills_in_may_be_left_out_and_what_is_required_may_not_be_null() -> None:
    filled = keys_of(partial(Cart, name="a"), without=("wheels",))
    strict = keys_of(Cart, without=("wheels",), required=("owner",))

    assert (filled["name"].is_required, filled["owner"].is_nullable) == (False, True)
    assert (strict["owner"].is_required, strict["owner"].is_nullable) == (True, False)


def no_lone_owner(stated: Mapping[str, object]) -> Iterator[Fault]:
    if "owner" in stated and "labels" not in stated:
        yield ("owner",), "goes with labels"


def test_a_rule_is_asked_though_a_key_has_a_fault_of_its_own() -> None:
    ruled = Section(Cart, keys_of(Cart, without=("wheels",)), rule=no_lone_owner)

    assert set(faults_of(ruled, {"name": 5, "owner": "o"})) == {"name", "owner"}
    assert faults_of(ruled, {"name": "a", "owner": "o"}) == {"owner": "goes with labels"}
    assert read(ruled, {"name": "a", "owner": "o", "labels": []}).owner == "o"
    assert set(faults_of(ruled, "cart")) == {""}


def test_a_kind_says_which_keys_a_section_has() -> None:
    kinds = Kinds({"cart": Section(partial(named, kind="cart"), needed(kind=Literal["cart"], name=str))})

    assert read_section(kinds, {"kind": "cart", "name": "a"}, directory=Path("/"), given={}).name == "a"
    assert faults_of(kinds, {"kind": "cart", "nam": "a"})["nam"] == "unknown key; did you mean name?"
    assert faults_of(kinds, {"name": "a"}) == {"kind": "found no kind; expected one of cart"}
    assert faults_of(kinds, {"kind": "sled"}) == {"kind": "found kind 'sled'; expected one of cart"}
    assert faults_of(kinds, "cart") == {"": "found 'cart'; expected a section with the key kind (cart)"}


def named(*, kind: str, name: str) -> Cart:
    return Cart(name=f"{name}")


def test_what_is_given_reaches_who_makes_the_value() -> None:
    section = Section(Cart, nullable(owner=str), given=("name",))

    assert read_section(section, {"owner": None}, directory=Path("/"), given={"name": "n"}) == Cart(name="n")


def test_relative_paths_count_from_the_directory_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    section = Section(dict, optional(found=ExistingFile, others=dict_of(str, ExistingFile)))

    assert read_section(section, {"found": "here"}, directory=tmp_path, given={}) == {"found": tmp_path / "here"}
    with pytest.raises(FaultsFound, match=r"there is no file .*gone"):
        read_section(section, {"others": {"a": "gone"}}, directory=tmp_path, given={})


def test_a_field_that_nobody_says_how_to_read_is_found_when_the_table_is_made() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Odd:
        path: Path

    with pytest.raises(TypeError, match="say it under shapes"):
        keys_of(Odd)
