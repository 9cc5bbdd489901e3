"""The files of rollouts: the directory of releases beside cluster.yaml, the calendars that policy.yaml names, and the
tables that say which versions run together.

A site lays tables of its own beside its releases: one of the same name takes the place of ours, whole. They are refused
if the linter complains. What the rows mean is `core.release`'s, what makes them worthless
`rollouts.compatibility`'s; one release file is read by `config.release_file`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from enum import Enum
from pathlib import Path
from typing import TypeVar

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.record import CalendarText
from ops_pipelines.core.release import (
    Activation,
    CompatibilityTables,
    Component,
    CudaDriver,
    DowngradeRule,
    DriverBranch,
    ExactMatch,
    FirmwareOrder,
    FloorKind,
    LeastActivation,
    NodeModel,
    Release,
    Reversibility,
    SlurmUpgrade,
    Trait,
    VersionFloor,
)
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.resources.catalogue_files import parse_table, shipped_table
from ops_pipelines.resources.config.release_file import find_release, hash_artifacts, read_here, release_names
from ops_pipelines.rollouts.compatibility import lint_tables

# -- tables of compatibility --


Row = Mapping[str, str]
Value = TypeVar("Value")
Key = TypeVar("Key")
Word = TypeVar("Word", bound=Enum)
_END = ("source", "checked_on")
TABLES: Mapping[str, tuple[str, ...]] = {
    "node_models.csv": ("name", "traits", *_END),
    "driver_cuda.csv": ("cuda", "driver", "kind", *_END),
    "driver_branches.csv": ("branch", "kind", "ends_on", "max_cuda_major", *_END),
    "exact_matches.csv": ("component", "equals", "where", *_END),
    "firmware_order.csv": ("models", "stages", "is_chosen", *_END),
    "activations.csv": ("component", "activation", *_END),
    "version_floors.csv": ("kind", "component", "from_version", "models", "needs", "floor", *_END),
    "slurm_upgrades.csv": ("major", "from_majors", *_END),
    "downgrades.csv": ("component", "scope", "reversible", "says", *_END),
}
"""Table -> its columns."""


def read_tables(site: Path | None = None) -> CompatibilityTables:
    """Return the tables that hold: those of the directory `site`, and ours where it has none of the name.

    Raises PolicyError naming the row that cannot be read, and every contradiction that the linter finds.
    """
    try:
        return _read(lambda name: _text(name, site))
    except ValueError as problem:
        raise PolicyError(str(problem)) from problem


def _text(name: str, site: Path | None) -> tuple[str, str]:
    """Return the text of a table, and by which name a fault in it is reported."""
    if site is None or not (site / name).exists():
        return shipped_table(name), f"catalogue/{name}"
    try:
        return (site / name).read_text(encoding="utf-8"), str(site / name)
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"{site / name} cannot be read ({problem}); check the file, or take it away") from problem


def _read(text_of: Callable[[str], tuple[str, str]]) -> CompatibilityTables:
    def rows(name: str, build: Callable[[Row, str], Value]) -> tuple[Value, ...]:
        text, table = text_of(name)
        return parse_table(text, table, TABLES[name], lambda row: build(row, _source(row, table)))

    tables = CompatibilityTables(
        models=_by("node_models.csv", rows("node_models.csv", _model), lambda each: each.name),
        cuda_drivers=rows("driver_cuda.csv", _cuda_driver),
        branches=_by("driver_branches.csv", rows("driver_branches.csv", _branch), lambda each: each.branch),
        exact_matches=rows("exact_matches.csv", _exact_match),
        orders=rows("firmware_order.csv", _order),
        activations=_by("activations.csv", rows("activations.csv", _activation), lambda each: each.component),
        floors=rows("version_floors.csv", _floor),
        slurm=_by("slurm_upgrades.csv", rows("slurm_upgrades.csv", _slurm), lambda each: each.major),
        downgrades=_by("downgrades.csv", rows("downgrades.csv", _downgrade), lambda each: each.component),
    )
    faults = lint_tables(tables)
    if faults:
        raise ValueError(f"the tables of versions contradict themselves: {'; '.join(faults)}")
    return tables


def _by(name: str, values: Iterable[Value], key: Callable[[Value], Key]) -> Mapping[Key, Value]:
    found: dict[Key, Value] = {}
    for each in values:
        if key(each) in found:
            raise ValueError(f"{name}: {key(each)} is there twice; keep one row")
        found[key(each)] = each
    return found


def _model(row: Row, source: str) -> NodeModel:
    return NodeModel(name=_filled(row, "name"), traits=frozenset(_words(Trait, row, "traits")), source=source)


def _cuda_driver(row: Row, source: str) -> CudaDriver:
    is_family = _one_of(row, "kind", {"family": True, "toolkit": False})
    return CudaDriver(cuda=_filled(row, "cuda"), driver=_filled(row, "driver"), is_family=is_family, source=source)


def _branch(row: Row, source: str) -> DriverBranch:
    return DriverBranch(
        branch=_number(row, "branch"),
        kind=_filled(row, "kind"),
        ends_on=_date(row, "ends_on") if row["ends_on"] else None,
        max_cuda_major=_number(row, "max_cuda_major"),
        source=source,
    )


def _exact_match(row: Row, source: str) -> ExactMatch:
    return ExactMatch(
        component=_word(Component, row, "component"),
        equals=_word(Component, row, "equals"),
        where=_word(Trait, row, "where"),
        source=source,
    )


def _order(row: Row, source: str) -> FirmwareOrder:
    stages = [stage.split("+") for stage in _filled(row, "stages").split(">")]
    components = [[_parse(Component, word.strip(), "stages") for word in stage] for stage in stages]
    for stage in components:
        if len(set(stage)) < len(stage):
            raise ValueError(f"stages is {row['stages']!r}; it names a component twice in one stage")
    return FirmwareOrder(
        models=_names(row, "models"),
        stages=tuple(frozenset(stage) for stage in components),
        is_chosen=_one_of(row, "is_chosen", {"yes": True, "no": False}),
        source=source,
    )


def _activation(row: Row, source: str) -> LeastActivation:
    return LeastActivation(
        component=_word(Component, row, "component"), activation=_word(Activation, row, "activation"), source=source
    )


def _floor(row: Row, source: str) -> VersionFloor:
    return VersionFloor(
        kind=_word(FloorKind, row, "kind"),
        component=_word(Component, row, "component"),
        from_version=row["from_version"],
        models=_names(row, "models"),
        needs=_word(Component, row, "needs"),
        floor=_filled(row, "floor"),
        source=source,
    )


def _slurm(row: Row, source: str) -> SlurmUpgrade:
    return SlurmUpgrade(major=_filled(row, "major"), from_majors=_names(row, "from_majors"), source=source)


def _downgrade(row: Row, source: str) -> DowngradeRule:
    component, is_of_majors = _word(Component, row, "component"), _one_of(row, "scope", {"majors": True, "all": False})
    if is_of_majors and component is not Component.SLURM:
        raise ValueError(f"scope is majors for {component.value}; only Slurm's major releases are known")
    return DowngradeRule(
        component=component,
        reversibility=_word(Reversibility, row, "reversible"),
        is_of_majors=is_of_majors,
        said=_filled(row, "says"),
        source=source,
    )


def _source(row: Row, table: str) -> str:
    return f"{_filled(row, 'source')} ({table}, checked {_date(row, 'checked_on')})"


def _filled(row: Row, column: str) -> str:
    if not row[column].strip():
        raise ValueError(f"{column} is empty")
    return row[column].strip()


def _names(row: Row, column: str) -> frozenset[str]:
    return frozenset(filter(None, row[column].split("|")))


def _number(row: Row, column: str) -> int:
    if not (row[column].isascii() and row[column].isdecimal()):
        raise ValueError(f"{column} is {row[column]!r}; expected a whole number")
    return int(row[column])


def _date(row: Row, column: str) -> date:
    try:
        return date.fromisoformat(row[column])
    except ValueError as problem:
        raise ValueError(f"{column} is {row[column]!r}; expected a day such as 2026-11-22") from problem


def _one_of(row: Row, column: str, choices: Mapping[str, bool]) -> bool:
    if row[column] not in choices:
        raise ValueError(f"{column} is {row[column]!r}; expected {' or '.join(choices)}")
    return choices[row[column]]


def _words(kind: type[Word], row: Row, column: str) -> list[Word]:
    return [_parse(kind, word, column) for word in row[column].split("|") if word]


def _word(kind: type[Word], row: Row, column: str) -> Word:
    return _parse(kind, row[column], column)


def _parse(kind: type[Word], word: str, column: str) -> Word:
    try:
        return kind(word)
    except ValueError as problem:
        choices = ", ".join(str(each.value) for each in kind)
        raise ValueError(f"{column} is {word!r}; expected one of {choices}") from problem


# -- the directory of releases --


_LONGEST_CALENDAR = 10_000_000


class ReleaseDirectory:
    """Reads everything again each time (`core.record.RolloutFiles`)."""

    def __init__(self, directory: Path, *, calendars: Sequence[Path]) -> None:
        self._directory = directory
        self._calendars = tuple(calendars)

    def release_names(self) -> tuple[str, ...]:
        return release_names(self._directory)

    def release(self, name: str) -> Release:
        return find_release(self._directory, name)

    def check_artifacts(self, release: Release) -> None:
        hash_artifacts(release, read_here)

    def tables(self) -> CompatibilityTables:
        return read_tables(self._directory / "catalogue")

    def calendars(self) -> tuple[CalendarText, ...]:
        return tuple(_read_calendar(path) for path in self._calendars)


def _read_calendar(path: Path) -> CalendarText:
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_CALENDAR + 1)
    except OSError as problem:
        raise SourceUnavailable(f"calendar {path}: {problem.strerror or problem}") from problem
    if len(text) > _LONGEST_CALENDAR:
        raise SourceUnavailable(f"calendar {path} is longer than {_LONGEST_CALENDAR} bytes; that is no calendar")
    return CalendarText(name=path.name, text=text)
