"""Which firmware a BMC says that runs, and which lies staged: its inventory, read as versions of components.

Which id of an inventory is which component is data: `catalogue/redfish_components.csv`. Where a component has several
parts (eight GPUs, two CPLDs), their distinct versions stand together, in order, with `+` between them: a node of which
one part was left behind runs no version that a release names. Installing is `redfish_update`'s.
"""

import csv
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

from ops_pipelines.core.release import Component
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.config.redfish_settings import RedfishSettings
from ops_pipelines.resources.fleet.redfish_call import (
    BmcTalk,
    Document,
    choose,
    choose_system,
    links_in,
    part,
    word,
)

TABLE = "redfish_components.csv"
_COLUMNS = ["id_pattern", "component", "standing", "says", "source", "checked_on"]
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~_()-]{0,63}")
"""What a release could name, and the brackets that a recorded BlueField writes. All else counts as not told."""
_PAGE_LIMIT = 4
# Assumption: what was read of an inventory is as good for a minute; the good reads of a rollout are 30 s apart.
_KEPT_SECONDS = 60.0


class Standing(Enum):
    """What it means that the inventory lists a version under an id."""

    RUNNING = "running"
    INSTALLED = "installed"
    """Runs, unless another entry of the component says that it is running."""
    STAGED = "staged"
    OTHER = "other"
    """Neither: an older image that is kept, or a part that is no component of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentRule:
    """One row of the table; the first that fits an id counts."""

    id_pattern: str
    component: Component | None
    standing: Standing
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirmwareSight:
    """What an inventory tells of components. What it cannot tell is missing."""

    active: Mapping[Component, str]
    staged: Mapping[Component, frozenset[str]]

    def has(self, component: Component, version: str) -> bool:
        """Return whether a version runs, or lies there to run after the next restart."""
        return self.active.get(component) == version or version in self.staged.get(component, ())


class InventoryReader:
    """Reads inventories, and keeps for a minute what it had read when time was up, so that the next call goes on."""

    def __init__(self, settings: RedfishSettings) -> None:
        self._settings = settings
        self._read: dict[str, dict[str, tuple[float, Document]]] = {}
        """Address -> path -> when, and what."""
        self._expands: dict[str, bool] = {}
        """Address -> whether the whole list in one answer came in time, once it was asked for."""

    def sight(self, talk: BmcTalk) -> FirmwareSight:
        """Return what the BMC tells of the node. Raises SourceUnavailable if there was time for a part of it only."""
        rules = read_rules()
        found = [
            (rule, entry)
            for path, entry in self._entries(talk, rules)
            if (rule := rule_of(_id_in(path), rules)) is not None and rule.component is not None
        ]
        sight = sight_of((rule, entry) for rule, entry in found)
        missing = frozenset({Component.BIOS, Component.BMC}) - sight.active.keys()
        return FirmwareSight(active={**dict(self._beside(talk, missing=missing)), **sight.active}, staged=sight.staged)

    def _entries(self, talk: BmcTalk, rules: tuple[ComponentRule, ...]) -> Iterator[tuple[str, Document]]:
        """Yield each entry that some component needs, with its path."""
        service = word(talk.root_document, "UpdateService", "@odata.id")
        listed = service and word(talk.get(service), "FirmwareInventory", "@odata.id")
        if not listed or talk.find(listed) is None:
            return
        if self._expands.get(talk.address, True) and can_expand(talk.root_document):
            self._expands[talk.address] = False
            whole = part(talk.get(f"{listed}?$expand=.($levels=1)"), "Members")
            self._expands[talk.address] = True
            if isinstance(whole, list) and whole and all(word(each, "Id") for each in whole):
                yield from ((word(each, "@odata.id") or word(each, "Id"), each) for each in whole)
                return
        wanted = [path for path in _members(talk, listed) if _is_wanted(_id_in(path), rules)]
        yield from self._one_by_one(talk, wanted)

    def _one_by_one(self, talk: BmcTalk, paths: list[str]) -> Iterator[tuple[str, Document]]:
        kept = self._read.setdefault(talk.address, {})
        for path in [path for path, (at, _) in kept.items() if time.monotonic() - at > _KEPT_SECONDS]:
            del kept[path]
        try:
            for path in paths:
                if path not in kept:
                    reply = talk.find(path)
                    kept[path] = (time.monotonic(), {} if reply is None else reply.document)
        except SourceUnavailable as problem:
            done = sum(path in kept for path in paths)
            raise SourceUnavailable(
                f"{problem}; {done} of {len(paths)} entries of its firmware inventory are read, the next call goes on"
            ) from None
        del self._read[talk.address]
        yield from ((path, kept[path][1]) for path in paths)

    def _beside(self, talk: BmcTalk, *, missing: frozenset[Component]) -> Iterator[tuple[Component, str]]:
        """Yield what the system and the manager say themselves, of BMCs whose inventory does not name it."""
        if Component.BIOS in missing:
            with suppress(SourceRefused):  # It cannot be told which system is the node: then nothing is told.
                yield from _version_in(talk.get(choose_system(talk, self._settings)), "BiosVersion", Component.BIOS)
        if Component.BMC in missing:
            with suppress(SourceRefused):
                yield from _version_in(talk.get(choose_manager(talk, self._settings)), "FirmwareVersion", Component.BMC)


@cache
def read_rules() -> tuple[ComponentRule, ...]:
    """Return the shipped table. Raises ValueError naming the row that cannot be read."""
    return parse_rules((files("ops_pipelines.catalogue") / TABLE).read_text(encoding="utf-8"))


def parse_rules(text: str) -> tuple[ComponentRule, ...]:
    """Return the rows of a table. Raises ValueError on unknown words, on rows without a source, and on doubles."""
    reader = csv.DictReader(text.splitlines(), strict=True)
    if reader.fieldnames != _COLUMNS:
        raise ValueError(f"catalogue/{TABLE}: expected the columns {', '.join(_COLUMNS)}")
    rules = tuple(_rule(row) for row in reader)
    patterns = [rule.id_pattern for rule in rules]
    twice = {pattern for pattern in patterns if patterns.count(pattern) > 1}
    if twice:
        raise ValueError(f"catalogue/{TABLE} has more than one row for {', '.join(sorted(twice))}; keep one")
    return rules


def rule_of(identity: str, rules: tuple[ComponentRule, ...]) -> ComponentRule | None:
    """Return the row that says what an id means; None if none does."""
    return next((rule for rule in rules if fnmatchcase(identity, rule.id_pattern)), None)


def sight_of(entries: Iterable[tuple[ComponentRule, Document]]) -> FirmwareSight:
    """Return what entries of an inventory mean together."""
    told: dict[tuple[Component, Standing], set[str]] = defaultdict(set)
    unsure: set[Component] = set()
    for rule, entry in entries:
        version = word(entry, "Version").strip()
        if rule.component is None:
            continue
        # A spare is an image that lies beside the one that runs.
        is_spare = word(entry, "Status", "State") == "StandbySpare"
        standing = Standing.STAGED if is_spare else rule.standing
        if _VERSION.fullmatch(version):
            told[rule.component, standing].add(version)
        elif standing is Standing.RUNNING:
            unsure.add(rule.component)
    active: dict[Component, str] = {}
    staged: dict[Component, frozenset[str]] = {}
    for component in {component for component, _ in told}:
        running, installed = told[component, Standing.RUNNING], told[component, Standing.INSTALLED]
        now = running or installed
        # Of a part that does not tell its version nobody knows whether it was left behind.
        if now and component not in unsure:
            active[component] = "+".join(sorted(now))
        staged[component] = frozenset(told[component, Standing.STAGED] | (installed if running else set()))
    return FirmwareSight(active=active, staged=staged)


def can_expand(root: Document) -> bool:
    """Return whether a list may be asked for with its entries in it."""
    query = part(root, "ProtocolFeaturesSupported", "ExpandQuery")
    return part(query, "NoLinks") is True and part(query, "Levels") is True


def choose_manager(talk: BmcTalk, settings: RedfishSettings) -> str:
    """Return the path of the manager that is the BMC itself."""
    listed = word(talk.root_document, "Managers", "@odata.id")
    paths = links_in(talk.get(listed), "Members") if listed else ()
    return choose(paths, settings.manager_id, what="manager", key="manager_id")


def _version_in(document: Document, key: str, component: Component) -> Iterator[tuple[Component, str]]:
    version = word(document, key).strip()
    if _VERSION.fullmatch(version):
        yield component, version


def _members(talk: BmcTalk, path: str) -> list[str]:
    found: list[str] = []
    for _ in range(_PAGE_LIMIT):
        document = talk.get(path)
        found += links_in(document, "Members")
        path = word(document, "Members@odata.nextLink")
        if not path:
            break
    return found


def _is_wanted(identity: str, rules: tuple[ComponentRule, ...]) -> bool:
    rule = rule_of(identity, rules)
    return rule is not None and rule.component is not None


def _id_in(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def _rule(row: Mapping[str, str | None]) -> ComponentRule:
    pattern, component, standing = row["id_pattern"], row["component"], row["standing"]
    where = f"catalogue/{TABLE}, {pattern!r}"
    if not pattern or not row["source"] or not row["checked_on"]:
        raise ValueError(f"{where}: id_pattern, source and checked_on must say something; write 'assumption: ...'")
    try:
        return ComponentRule(
            id_pattern=pattern,
            component=Component(component) if component else None,
            standing=Standing(standing),
            source=f"{row['source']} (catalogue/{TABLE})",
        )
    except ValueError as problem:
        raise ValueError(f"{where}: {problem}") from None
