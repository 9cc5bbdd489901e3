"""What a task of a BMC says of an update, and which tasks a BMC has: states read, never progress believed.

What follows from it for an installation is `redfish_update`'s.
"""

from dataclasses import dataclass
from enum import Enum
from urllib.parse import urljoin, urlsplit

from ops_pipelines.resources.config.redfish_settings import origin_of
from ops_pipelines.resources.fleet.redfish_call import BmcTalk, Document, Reply, links_in, on_one_line, part, word
from ops_pipelines.resources.fleet.redfish_inventory import can_expand

_SAID_LENGTH = 200
_LOOKED_AT_COUNT = 5
"""Assumption: of a list that cannot be had in one answer only the newest are read, or a call would take too long."""
_GONE = frozenset({404, 410})
_FAILED = frozenset({"Exception", "Cancelled", "Killed"})
"""DSP2046, Task.TaskState. Interrupted and Suspended are expected to go on; Completed is with warnings at worst."""


class TaskState(Enum):
    RUNNING = "running"
    WAITING = "waiting"
    """Pending some condition, such as the reset that an update was asked to be applied on."""
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSight:
    """One task, as the BMC tells it."""

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
