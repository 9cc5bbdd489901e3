"""A YAML file read strictly: duplicate keys refused; every fault kept, with its line and the nearest valid key.

What the keys mean belongs to `files`. Nothing here knows clusters or policies.

    PolicyError            the operator's configuration contradicts itself (domain.policy)
    └── ConfigError        a configuration file cannot be used; the message lists every fault found in it
"""

import difflib
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from ops_pipelines.domain.policy import PolicyError

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE = "tag:yaml.org,2002:merge"
_BOOL = "tag:yaml.org,2002:bool"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_STRING = "tag:yaml.org,2002:str"
_MOST_BYTES = 5_000_000
"""# Assumption: a cluster of ten thousand nodes is told in a tenth of it."""
KeyPath = tuple[str | int, ...]
"""Where a value stands in its file: `("racks", 0, "nodes")`."""


class ConfigError(PolicyError):
    """A configuration file cannot be used. The message names the file and, for each fault, line, key and remedy."""


class StrictModel(BaseModel):
    """One section of a file: unknown keys are refused, and nothing is converted silently (`"5"` is not 5)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=StrictModel)


class YamlFile:
    """One file, its values and the faults found in it so far. Read sections with `check`, then call `finish`."""

    def __init__(self, path: Path) -> None:
        """Read and parse `path`; raise ConfigError if there is no such file or it is not a YAML mapping."""
        self.path = path
        self._lines: dict[KeyPath, int] = {}
        self._faults: list[tuple[int, str]] = []
        self._impossible: set[KeyPath] = set()
        """Where days stand that are none: told once, by us and not by the models again."""
        self.values: Mapping[str, object] = self._parse()

    def add_fault(self, at: KeyPath, sentence: str) -> None:
        """Keep one fault of the value at `at`; the file is read on, so that one attempt shows all of them."""
        line = self.line_of(at)
        self._faults.append((line, f"line {line}: {dotted(at)}: {sentence}" if at else f"line {line}: {sentence}"))

    def line_of(self, at: KeyPath) -> int:
        """Return the line of the value at `at`, or of what holds it; 1 where neither is there."""
        return next((self._lines[at[:end]] for end in range(len(at), 0, -1) if at[:end] in self._lines), 1)

    def check(self, model: type[Model], value: object, *, at: KeyPath) -> Model | None:
        """Return `value` as `model`, or None after keeping every fault in it."""
        try:
            return model.model_validate(value)
        except ValidationError as error:
            for fault in error.errors(include_url=False, include_context=False):
                where = at + tuple(fault["loc"])
                if where in self._impossible:
                    continue
                if fault["type"] == "extra_forbidden":
                    known = _section_of(model, tuple(fault["loc"])).model_fields
                    valid = [each.alias or name for name, each in known.items()]
                    self.add_fault(where, _unknown_key(str(fault["loc"][-1]), valid))
                elif fault["type"] == "missing":
                    self.add_fault(where, "this key is missing and has no default")
                else:
                    self.add_fault(where, f"found {_shown(fault['input'])}; {_lower_first(fault['msg'])}")
            return None

    def check_choice(
        self, value: object, choices: Mapping[str, type[StrictModel]], *, at: KeyPath
    ) -> StrictModel | None:
        """Return `value` as the model that its key `kind` names, or None after keeping every fault in it."""
        if not isinstance(value, Mapping):
            self.add_fault(at, f"found {_shown(value)}; expected a section with the key kind ({', '.join(choices)})")
            return None
        kind = value.get("kind")
        if not isinstance(kind, str) or kind not in choices:
            found = "no kind" if "kind" not in value else f"kind {_shown(kind)}"
            self.add_fault((*at, "kind"), f"found {found}; expected one of {', '.join(choices)}")
            return None
        return self.check(choices[kind], value, at=at)

    def find_file(self, path: str | None, *, at: KeyPath) -> Path | None:
        """Return the file that `path` names, counted from the directory of this one; keep a fault if there is none."""
        if path is None:
            return None
        absolute = self.path.resolve().parent / Path(path).expanduser()
        if not absolute.is_file():
            self.add_fault(at, f"there is no file {absolute}")
        return absolute

    def finish(self) -> None:
        """Raise one ConfigError with every fault kept, in the order of the lines; return if there is none."""
        if self._faults:
            faults = [text for _, text in sorted(self._faults, key=lambda fault: fault[0])]
            head = f"{self.path}: {len(faults)} fault{'s' if len(faults) > 1 else ''}; correct the file and try again"
            raise ConfigError("\n  ".join([head, *faults]))

    def _parse(self) -> Mapping[str, object]:
        try:
            with self.path.open("rb") as file:
                read = file.read(_MOST_BYTES + 1)
            if len(read) > _MOST_BYTES:
                raise ConfigError(f"{self.path} is longer than {_MOST_BYTES} bytes; that is no configuration")
            text = read.decode("utf-8")
        except OSError as exc:
            raise ConfigError(f"{self.path} cannot be read ({exc.strerror}); check path and permissions") from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"{self.path} is not UTF-8 text ({exc.reason} at byte {exc.start})") from exc
        try:
            loader = yaml.SafeLoader(text)
        except yaml.YAMLError as exc:  # It looks for characters that cannot be printed at once.
            raise ConfigError(f"{self.path} is not YAML: {exc}") from exc
        try:
            node = loader.get_single_node()
            if node is None:
                return {}
            self._walk(node, at=(), visited=set())
            values = loader.construct_document(node)
        except (yaml.YAMLError, ValueError, OverflowError) as exc:
            # As a key, PyYAML turns `2026-13-45` into a date and fails on it with a bare error.
            raise ConfigError(f"{self.path} is not YAML: {exc}") from exc
        except RecursionError as exc:
            raise ConfigError(f"{self.path} is nested too deeply to be a configuration") from exc
        finally:
            loader.dispose()
        if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
            raise ConfigError(f"{self.path} must be a mapping of keys to sections; found {_shown(values)}")
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
                    raise yaml.YAMLError(f"line {line}: << takes in one section and stands once in another")
                if key in seen:
                    self.add_fault((*at, key), f"this key was given before, on line {seen[key]}; keep one")
                seen.setdefault(key, line)
                self._walk(value_node, at=(*at, key), visited=visited)
        elif isinstance(node, yaml.ScalarNode) and node.tag == _TIMESTAMP and not _is_time(node):
            self.add_fault(at, f"{node.value[:40]} is no day of the calendar; write one that is, such as 2026-01-31")
            self._impossible.add(at)
            node.tag = _STRING  # PyYAML would fail on it, and the other faults would not be told.
        elif node.tag in _NUMBERS and ":" in node.value:
            self.add_fault(
                at, f"{node.value} is a number to the base of 60 in YAML; write seconds, or put it in quotes"
            )


def _is_time(node: yaml.ScalarNode) -> bool:
    try:
        yaml.SafeLoader("").construct_yaml_timestamp(node)
    except (ValueError, OverflowError, AttributeError):  # The last: text under an explicit tag.
        return False
    return True


def dotted(at: KeyPath) -> str:
    """Return `racks[0].nodes` for `("racks", 0, "nodes")`."""
    text = ""
    for part in at:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _section_of(model: type[StrictModel], where: KeyPath) -> type[StrictModel]:
    """Return the model that holds the last key of `where`: `model` itself or one nested in it."""
    for part in where[:-1]:
        annotation = model.model_fields[part].annotation if isinstance(part, str) else None
        for candidate in (annotation, *get_args(annotation)):
            if isinstance(candidate, type) and issubclass(candidate, StrictModel):
                model = candidate
    return model


def _unknown_key(key: str, valid: list[str]) -> str:
    near = [name for name in valid if name == f"{key}_seconds"] or difflib.get_close_matches(key, valid, n=1)
    if near:
        return f"unknown key; did you mean {near[0]}?"
    return f"unknown key; expected one of {', '.join(valid)}"


def _shown(value: object) -> str:
    short = reprlib.Repr()  # Of aliases within aliases a few lines would be gigabytes.
    short.maxlevel, short.maxstring = 3, 1_000
    text = repr(value) if isinstance(value, str) else short.repr(value)
    if "://" in text and "@" in text:
        return "a URL with credentials (not shown; secrets belong in a file of their own)"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
