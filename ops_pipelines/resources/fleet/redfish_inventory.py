"""What a BMC reports: which firmware runs and which lies staged, and which tasks it has and how far each is.

Only read here; what follows for an installation is `redfish_update`'s. Which id of an inventory is which component is
data: `catalogue/redfish_components.csv`. Where a component has several parts (eight GPUs, two CPLDs), their distinct
versions stand together, in order, with `+` between them: a node of which one part was left behind runs no version that
a release names. The state of a task is read; its progress is shown and never believed.
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
from urllib.parse import urljoin, urlsplit

from ops_pipelines.core.release import Component
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.config.redfish_settings import RedfishSettings, origin_of
from ops_pipelines.resources.fleet.redfish_call import (
    BmcTalk,
    Document,
    Reply,
    choose,
    choose_system,
    links_in,
    on_one_line,
    part,
    word,
)

# -- firmware that runs and lies staged --


TABLE = "redfish_components.csv"
_COLUMNS = ["id_pattern", "component", "standing", "says", "source", "checked_on"]
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~_()-]{0,63}")
"""What a release could name, and the brackets that a recorded BlueField writes. All else counts as not reported."""
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
    """What an inventory reports of components. What it cannot tell is missing."""

    active: Mapping[Component, str]
    staged: Mapping[Component, frozenset[str]]

    def has(self, component: Component, version: str) -> bool:
        """Return whether a version runs, or lies there to run after the next restart."""
        return self.active.get(component) == version or version in self.staged.get(component, ())


class InventoryReader:
    """Reads inventories, and keeps for a minute what it had read when time was up, so that the next call continues."""

    def __init__(self, settings: RedfishSettings) -> None:
        self._settings = settings
        self._read: dict[str, dict[str, tuple[float, Document]]] = {}
        """Address -> path -> when, and what."""
        self._expands: dict[str, bool] = {}
        """Address -> whether the whole list in one answer came in time, once it was asked for."""

    def sight(self, talk: BmcTalk) -> FirmwareSight:
        """Return what the BMC reports of the node. Raises SourceUnavailable if there was time for a part of it only."""
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
                f"{problem}; {done} of {len(paths)} entries of its firmware inventory are read, the next call continues"
            ) from None
        del self._read[talk.address]
        yield from ((path, kept[path][1]) for path in paths)

    def _beside(self, talk: BmcTalk, *, missing: frozenset[Component]) -> Iterator[tuple[Component, str]]:
        """Yield what the system and the manager say themselves, of BMCs whose inventory does not name it."""
        if Component.BIOS in missing:
            with suppress(SourceRefused):  # Which system is the node cannot be known: then nothing is reported.
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


# -- tasks --


_SAID_LENGTH = 200
_LOOKED_AT_COUNT = 5
"""Assumption: of a list that cannot be had in one answer only the newest are read, or a call would take too long."""
_GONE = frozenset({404, 410})
_FAILED = frozenset({"Exception", "Cancelled", "Killed"})
"""DSP2046, Task.TaskState. Interrupted and Suspended are expected to continue; Completed is with warnings at worst."""


class TaskState(Enum):
    RUNNING = "running"
    WAITING = "waiting"
    """Pending some condition, such as the reset that an update was asked to be applied on."""
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSight:
    """One task, as the BMC reports it."""

    path: str
    state: TaskState
    said: str
    progress_ratio: float | None = None
    began: str = ""
    """As the BMC writes it, by its own clock: good to tell two tasks of one number apart, and for nothing else."""
    is_update: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskList:
    """The tasks that a BMC keeps."""

    paths: frozenset[str]
    """Of all of them."""
    read: tuple[TaskSight, ...]
    """Of a long list only the newest."""


def read_task(talk: BmcTalk, path: str) -> TaskSight | None:
    """Return what lies under the path of a task or of its monitor; None if it is gone."""
    from ops_pipelines.resources.fleet.redfish_line import BmcRefusal

    try:
        reply = talk.find(path)
    except BmcRefusal as problem:
        if problem.status in _GONE:
            return None
        if problem.status in (401, 403):
            raise
        # A monitor answers, once the task is over, what the command would have been answered.
        return TaskSight(path=path, state=TaskState.FAILED, said=on_one_line(str(problem), _SAID_LENGTH))
    return None if reply is None else sight_of_reply(path, reply)


def sight_of_reply(path: str, reply: Reply) -> TaskSight:
    """Return what an answer says of the task under `path`: its document, or the bare status of a monitor."""
    if word(reply.document, "TaskState"):
        return _sight_of_task(path, reply.document)
    if reply.status == 202:
        return TaskSight(path=path, state=TaskState.RUNNING, said="accepted, and not over yet")
    return TaskSight(path=path, state=TaskState.DONE, said=f"over (HTTP {reply.status})")


def task_named_by(reply: Reply, *, address: str) -> str:
    """Return where the task of a command lies, as the BMC's answer says; empty if it names none of its own."""
    is_task = bool(word(reply.document, "TaskState")) or word(reply.document, "@odata.type").startswith("#Task.")
    path = word(reply.document, "@odata.id") if is_task else ""
    url = urljoin(address, path or reply.location)
    try:
        is_own = origin_of(url) == origin_of(address)
    except ValueError:
        return ""
    parts = urlsplit(url)
    return parts.path + (f"?{parts.query}" if parts.query else "") if is_own and parts.path.strip("/") else ""


def list_tasks(talk: BmcTalk, *, unless: frozenset[str] = frozenset()) -> TaskList:
    """Return the tasks that the BMC keeps; those named in `unless` are not read."""
    listed = _list_path(talk)
    if listed and can_expand(talk.root_document):
        reply = talk.find(f"{listed}?$expand=.($levels=1)")
        whole = part(reply.document, "Members") if reply is not None else None
        if isinstance(whole, list) and all(word(each, "TaskState") for each in whole):
            sights = tuple(_sight_of_task(word(each, "@odata.id"), each) for each in whole)
            paths = frozenset(each.path for each in sights)
            return TaskList(paths=paths, read=tuple(each for each in sights if each.path not in unless))
    reply = talk.find(listed) if listed else None
    found = () if reply is None else links_in(reply.document, "Members")
    newest = sorted((path for path in found if path not in unless), key=_number_of)[-_LOOKED_AT_COUNT:]
    read = (read_task(talk, path) for path in newest)
    return TaskList(paths=frozenset(found), read=tuple(each for each in read if each is not None))


def _list_path(talk: BmcTalk) -> str:
    service = word(talk.root_document, "Tasks", "@odata.id")
    reply = talk.find(service) if service else None
    return "" if reply is None else word(reply.document, "Tasks", "@odata.id")


def _number_of(path: str) -> tuple[int, str]:
    """Rank a task by the digits that its id ends with, as BMCs count them."""
    name = path.rstrip("/").rsplit("/", 1)[-1]
    digits = name[len(name.rstrip("0123456789")) :]
    return (int(digits[:18]) if digits else -1, name)


def _sight_of_task(path: str, document: Document) -> TaskSight:
    told = word(document, "TaskState")
    status = word(document, "TaskStatus")
    if told in _FAILED or (told == "Completed" and status == "Critical"):
        state = TaskState.FAILED
    elif told == "Completed":
        state = TaskState.DONE
    else:
        state = TaskState.WAITING if told == "Pending" else TaskState.RUNNING
    percent = part(document, "PercentComplete")
    is_number = isinstance(percent, int | float) and not isinstance(percent, bool) and 0 <= percent <= 100
    target = word(document, "Payload", "TargetUri")
    return TaskSight(
        path=path,
        state=state,
        said=_said_in(document) or on_one_line(f"{told} {status}".strip(), _SAID_LENGTH),
        progress_ratio=float(percent) / 100 if is_number and isinstance(percent, int | float) else None,
        began=word(document, "StartTime")[:40],
        # A task that does not say what it is about counts as an update: one too many is waited for, none is disturbed.
        is_update=not target or "UpdateService" in target,
    )


def _said_in(document: Document) -> str:
    messages = part(document, "Messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return on_one_line((word(last, "Message") or word(last, "MessageId")).strip(), _SAID_LENGTH)
