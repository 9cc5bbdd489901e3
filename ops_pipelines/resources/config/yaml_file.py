"""A YAML file of a site, read strictly: duplicate keys refused; every fault kept, with its line and the nearest valid
key; and what a number, a text, a day or a path may be in it: types with bounds, each bound with its reason.

How a section becomes a value is `binding`'s, what the keys mean belongs to the file's reader. Nothing here knows
clusters or policies. How a shape is refused is `binding`'s too: a ValueError is the whole sentence, a
PydanticCustomError what was expected, after what was found.

    PolicyError            the operator's configuration contradicts itself (core.policy)
    └── ConfigError        a configuration file cannot be used; the message lists every fault found in it
"""

import re
import stat
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import yaml
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic import ValidationInfo as Reading
from pydantic_core import PydanticCustomError

from ops_pipelines.core.money import Cents, read_amount
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.resources.config.binding import (
    FaultsFound,
    KeyPath,
    Kinds,
    Made,
    Section,
    given_with,
    read_section,
    shown,
)

_INT = "tag:yaml.org,2002:int"
_NUMBERS = (_INT, "tag:yaml.org,2002:float")
_MOST_DIGITS = 100
_OCTAL = re.compile(r"[-+]?0[0-9_]+")
_MOST_FAULTS_TOLD = 100
_MOST_TOLD = 1_000
"""Characters of one fault."""
_MOST_VALUES = 100_000
"""Keys count too. # Assumption: as for bytes; more of them are read for ten seconds and longer."""
_MERGE = "tag:yaml.org,2002:merge"
_BOOL = "tag:yaml.org,2002:bool"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_STRING = "tag:yaml.org,2002:str"
MOST_BYTES = 5_000_000
"""# Assumption: a cluster of ten thousand nodes needs a tenth of it."""


class ConfigError(PolicyError):
    """A configuration file cannot be used. The message names the file and, for each fault, line, key and remedy."""


class YamlFile:
    """One file, its values and the faults found in it so far. Read sections with `read`, then call `finish`."""

    def __init__(self, path: Path, *, read_from: Path | None = None) -> None:
        """Read and parse `path`; raise ConfigError if there is no such file or it is not a YAML mapping.

        `read_from` is a copy that is read in its place: what it says, relative paths too, it says as if it lay there.
        """
        self.path = path
        self._read_from = read_from or path
        self._lines: dict[KeyPath, int] = {}
        self._faults: list[tuple[int, str]] = []
        self._impossible: set[KeyPath] = set()
        """Where days are given that are none: reported once, by us and not by the sections again."""
        self.is_empty = False
        """Whether nothing is in it but comments; `{}` is something."""
        self.values: Mapping[str, object] = self._parse()

    def add_fault(self, at: KeyPath, sentence: str) -> None:
        """Keep one fault of the value at `at`; the file is read on, so that one attempt shows all of them."""
        if len(sentence) > _MOST_TOLD:
            sentence = f"{sentence[:_MOST_TOLD]}..."
        line = self.line_of(at)
        self._faults.append((line, f"line {line}: {dotted(at)}: {sentence}" if at else f"line {line}: {sentence}"))

    def line_of(self, at: KeyPath) -> int:
        """Return the line of the value at `at`, or of what holds it; 1 where neither is there."""
        return next((self._lines[at[:end]] for end in range(len(at), 0, -1) if at[:end] in self._lines), 1)

    def read(self, section: Section[Made] | Kinds[Made], value: object, *, at: KeyPath, **given: object) -> Made | None:
        """Return what is made of a section, of what is `given` too, or None after keeping every fault in it."""
        try:
            return read_section(section, value, directory=self.path.resolve().parent, given=given)
        except FaultsFound as problem:
            for place, sentence in problem.faults:
                if (*at, *place) not in self._impossible:
                    self.add_fault((*at, *place), sentence)
            return None

    def finish(self) -> None:
        """Raise one ConfigError with every fault kept, in the order of the lines; return if there is none."""
        if self._faults:
            faults = [text for _, text in sorted(self._faults, key=lambda fault: fault[0])]
            head = f"{self.path}: {len(faults)} fault{'s' if len(faults) > 1 else ''}; correct the file and try again"
            if len(faults) > _MOST_FAULTS_TOLD:
                # Thousands of lines hide the first, which is often the reason of the others.
                more = len(faults) - _MOST_FAULTS_TOLD
                faults[_MOST_FAULTS_TOLD:] = [f"and {more} more; they are shown once these are gone"]
            raise ConfigError("\n  ".join([head, *faults]))

    def _parse(self) -> Mapping[str, object]:
        try:
            kind = self._read_from.stat().st_mode
            if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):  # A pipe would be waited for without end.
                raise ConfigError(f"{self.path} is no file but a pipe, socket or device; expected a YAML file")
            with self._read_from.open("rb") as file:
                read = file.read(MOST_BYTES + 1)
            if len(read) > MOST_BYTES:
                raise ConfigError(f"{self.path} is longer than {MOST_BYTES} bytes; that is no configuration")
            text = read.decode("utf-8")
        except OSError as exc:
            raise ConfigError(f"{self.path} cannot be read ({exc.strerror}); check path and permissions") from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"{self.path} is not UTF-8 text ({exc.reason} at byte {exc.start})") from exc
        try:
            loader = _CountingLoader(text)
        except yaml.YAMLError as exc:  # It looks for characters that cannot be printed at once.
            raise ConfigError(f"{self.path} is not YAML: {_in_a_line(exc)}") from exc
        try:
            node = loader.get_single_node()
            if node is None:
                self.is_empty = True
                return {}
            self._walk(node, at=(), visited=set())
            values = loader.construct_document(node)
        except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as exc:
            # PyYAML fails with bare errors on values under an explicit tag: `!!bool maybe` is a KeyError.
            raise ConfigError(f"{self.path} is not YAML: {_in_a_line(exc)}") from exc
        except RecursionError as exc:
            raise ConfigError(f"{self.path} is nested too deeply to be a configuration") from exc
        finally:
            loader.dispose()
        if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
            raise ConfigError(f"{self.path} must be a mapping of keys to sections; found {shown(values)}")
        return values

    def _walk(self, node: yaml.Node, *, at: KeyPath, visited: set[int]) -> None:
        """Note the line of every key, and keep a fault for every key given twice (YAML itself would take the last)."""
        if id(node) in visited:
            return  # an alias: its lines are known, and one that holds itself would never end
        visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._lines[(*at, index)] = item.start_mark.line + 1
                self._walk(item, at=(*at, index), visited=visited)
        elif isinstance(node, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key_node, value_node in node.value:
                if key_node.tag == _BOOL:
                    key_node.tag = _STRING  # In YAML a bare `on` is true; no key of ours is a truth.
                key = str(key_node.value)
                line = key_node.start_mark.line + 1
                self._lines[(*at, key)] = line
                if key_node.tag == _MERGE and (key in seen or not isinstance(value_node, yaml.MappingNode)):
                    # A few lines of them, each naming the one before ten times, would fill the memory.
                    raise yaml.YAMLError(f"line {line}: << takes in one section and is there once in another")
                if key in seen:
                    self.add_fault((*at, key), f"this key was given before, on line {seen[key]}; keep one")
                seen.setdefault(key, line)
                self._walk(value_node, at=(*at, key), visited=visited)
        elif isinstance(node, yaml.ScalarNode) and node.tag == _TIMESTAMP and not _is_time(node):
            self.add_fault(at, f"{node.value[:40]} is no day of the calendar; write one that is, such as 2026-01-31")
            self._impossible.add(at)
            node.tag = _STRING  # PyYAML would fail on it, and the other faults would not be reported.
        elif "\0" in node.value:
            self.add_fault(at, f"found {shown(node.value)}; expected a text without the character NUL")
            self._impossible.add(at)
            node.value = ""  # As a path it would end in a bare error.
        elif node.tag == _INT and (fault := _fault_of_whole_number(node.value)):
            self.add_fault(at, fault)
            self._impossible.add(at)
            node.tag = _STRING  # As above.
        elif node.tag in _NUMBERS and ":" in node.value:
            self.add_fault(
                at, f"{node.value} is a number to the base of 60 in YAML; write seconds, or put it in quotes"
            )


def _in_a_line(fault: Exception) -> str:
    """Return what PyYAML reports over several lines, none of which is alone of use."""
    if not isinstance(fault, yaml.MarkedYAMLError) or fault.problem_mark is None:
        return " ".join(str(fault).split())
    return f"line {fault.problem_mark.line + 1}: {fault.problem or fault.context}"


class _CountingLoader(yaml.SafeLoader):
    """Gives up early on a file with far more values than a configuration has."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._count = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._count += 1
        if self._count > _MOST_VALUES:
            raise yaml.YAMLError(f"more than {_MOST_VALUES} keys and values stand in it; that is no configuration")
        return super().compose_node(parent, index)


def _is_time(node: yaml.ScalarNode) -> bool:
    try:
        yaml.SafeLoader("").construct_yaml_timestamp(node)
    except (ValueError, OverflowError, AttributeError):  # The last: text under an explicit tag.
        return False
    return True


def _fault_of_whole_number(text: str) -> str:
    """Return what is the matter with a whole number as it is written; "" if nothing is."""
    if len(text) > _MOST_DIGITS:
        return f"found a number with {len(text)} digits; expected fewer than {_MOST_DIGITS}"
    if _OCTAL.fullmatch(text):
        # 010 would be 8 without a word.
        return f"{text} is a number to the base of 8 in YAML; write it without the 0 in front, or in quotes"
    return ""


def expand_home(path: str) -> Path:
    """Return a path with `~` written out. Raises ConfigError where it names the home of nobody known here."""
    try:
        return Path(path).expanduser()
    except RuntimeError as exc:
        raise ConfigError(f"{path[:80]!r} begins with the home of nobody known here; write the whole path") from exc


def dotted(at: KeyPath) -> str:
    """Return `racks[0].nodes` for `("racks", 0, "nodes")`."""
    text = ""
    for part in at:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


_HUNDRED = 100
LONGEST_ACCOUNT = 128
# Assumption: no cluster has more GPUs of one type; more is a slip.
MOST_GPUS = 1_000_000
# Assumption: below this share of another's weight nobody means to be served; with far smaller ones levels overflow.
_LEAST_WEIGHT = 0.001
_FIRST_PLANNED, _AFTER_PLANNED = date(2000, 1, 1), date(2100, 1, 1)
CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"


def _day(value: object) -> object:
    if type(value) is not date:
        raise PydanticCustomError("day", "expected a day without quotes and without a time, such as 2026-01-31")
    return value


def _planned_day(value: date) -> date:
    if not _FIRST_PLANNED <= value < _AFTER_PLANNED:
        raise PydanticCustomError("planned_day", "expected a day from 2000 to 2099, such as 2026-01-31")
    return value


def _whole_cents(value: float) -> float:
    if Decimal(repr(value)) * _HUNDRED % 1:
        raise PydanticCustomError("cents", "expected whole cents, such as 120000.00")
    return value


def _amount(value: str) -> Fraction:
    return read_amount(value, what="an amount")


def _cents(value: str) -> Fraction:
    return _amount(value) * _HUNDRED


def _exact_cents(value: str) -> Cents:
    cents = _cents(value)
    if cents.denominator != 1:
        raise PydanticCustomError("cents", "expected whole cents, such as '300000.00'")
    return Cents(int(cents))


def _weight(value: float) -> float:
    if 0 < value < _LEAST_WEIGHT:
        raise PydanticCustomError("weight", "expected 0, or 0.001 and more")
    return value


def _lower_case(value: str) -> GpuType:
    if value != value.lower():
        raise PydanticCustomError("gpu_type", "expected lower case, as the scheduler writes gres/gpu:<type>")
    return GpuType(value)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as problem:
        raise PydanticCustomError("zone", "expected a zone of the IANA list such as Europe/Berlin") from problem


def path_of(path: str, reading: Reading) -> Path:
    """Return the path that a text names; relative ones count from the directory of the file."""
    return given_with(reading).directory / expand_home(path)


def _existing(path: str, reading: Reading) -> Path:
    place = path_of(path, reading)
    if not place.is_file():
        raise ValueError(f"there is no file {place}")
    return place


# -- numbers --

Count = Annotated[int, Field(le=1_000_000)]
"""# Assumption: no count of nodes, jobs or tries is meant to be higher; more is a slip."""
PositiveSeconds = Annotated[float, Field(gt=0, le=366 * 86_400)]
"""As `binding.Seconds`, and not 0."""
Share = Annotated[float, Field(gt=0.0, lt=1.0)]
Probability = Annotated[float, Field(gt=0, le=1)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Watts = Annotated[float, Field(gt=0, le=1e10)]
Gpus = Annotated[float, Field(ge=0, le=MOST_GPUS)]
Weight = Annotated[float, Field(ge=0, le=MOST_GPUS), AfterValidator(_weight)]
MoneyNumber = Annotated[float, Field(ge=0, le=1e12), AfterValidator(_whole_cents)]
"""In units of the currency; up to here a float distinguishes cents."""

# -- amounts of money, as text in quotes: a number without them is read as a float, which has no exact cents --

AmountText = Annotated[str, Field(pattern=r"^[0-9]{1,15}(\.[0-9]{1,9})?$")]
"""In units of the currency, or as the key says."""
ExactAmount = Annotated[AmountText, AfterValidator(_amount)]
ExactCents = Annotated[AmountText, AfterValidator(_cents)]
"""Becomes cents, with parts of them."""
WholeCents = Annotated[AmountText, AfterValidator(_exact_cents)]

# -- texts and names --

Text = Annotated[str, Field(min_length=1)]
Line = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
"""One short line, such as the name of a project."""
Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Account = Annotated[str, Field(min_length=1, max_length=LONGEST_ACCOUNT, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$")]
"""As the scheduler writes it."""
GpuTypeName = Annotated[
    str, Field(max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?$"), AfterValidator(_lower_case)
]
HostList = Annotated[str, Field(min_length=1), AfterValidator(expand_host_list)]
"""A Slurm host list; becomes the names of nodes."""
HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")]
"""Without user, query and fragment: secrets stand in files of their own."""

# -- days and times --

Day = Annotated[date, BeforeValidator(_day)]
PlannedDay = Annotated[Day, AfterValidator(_planned_day)]
"""Of what is planned: a year such as 206 is a slip, and would count as long started."""
ClockTime = Annotated[str, Field(pattern=rf"^{CLOCK}$"), AfterValidator(time.fromisoformat)]
"""In quotes: "22:00"."""
Zone = Annotated[str, Field(min_length=1), AfterValidator(_zone)]
ZoneName = Annotated[str, Field(min_length=1), AfterValidator(lambda name: _zone(name) and name)]
"""It stays the name."""

# -- files --

AnyPath = Annotated[str, Field(min_length=1), AfterValidator(path_of)]
"""A path; relative ones count from the directory of the file."""
ExistingFile = Annotated[str, Field(min_length=1), AfterValidator(_existing)]
