"""What was asked of BMCs under which key, kept on disk: a process that dies leaves behind what the next must know.

A record is written before its image is asked for, and again with the BMC's answer before anything else is asked. A
record without answer: the image may have been taken or not, and is never asked for again under that key. What a record
means is `redfish_update`'s; the files are `detached_runs`'.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey, NodeName, parse_node_name
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import InstallState
from ops_pipelines.core.sources import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.detached_runs import RunDirectory
from ops_pipelines.resources.fleet.redfish_call import Reply, word
from ops_pipelines.resources.fleet.redfish_tasks import task_named_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of an order, and what runs once it is installed and activated."""

    name: str
    sha256: str
    location: str
    targets: tuple[str, ...]
    versions: Mapping[Component, str]
    live: frozenset[Component]
    """Of these, what takes effect without a restart of the node."""

    @property
    def is_live(self) -> bool:
        """Whether all of it does."""
        return self.live == self.versions.keys()

    @property
    def is_fetched(self) -> bool:
        """Whether the BMC fetches it itself; else it is sent."""
        return self.location.lower().startswith(("https://", "http://"))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRecord:
    """One installation under one key: which of its images is under way, and what the BMC said."""

    key: ActionKey
    node: NodeName
    images: tuple[Image, ...]
    is_back: bool
    resets_bmc: bool
    """Once all images are there the BMC is restarted, to run its own."""
    asked_at: datetime
    at: int = 0
    """Of the image under way."""
    tasks_before: tuple[str, ...] = ()
    """Those that the BMC had when it was asked: the task of an answer that was lost is none of them."""
    is_answered: bool = False
    is_over: bool = False
    """The image under way is there: the BMC answered so, or was seen to have it."""
    task: str = ""
    """Where the task lies; empty: none was named."""
    task_began: str = ""
    waits_for_reset: bool = False
    """The BMC was asked to apply the image on the next reset."""
    push_path: str = ""
    """Where the image is sent to; empty: the BMC fetches it."""
    push_parameters: str = ""
    is_sent: bool = False
    """The last piece of an image that is sent may have left."""
    earlier_tasks: tuple[str, ...] = ()
    """Of the images before."""
    reset_asked_at: datetime | None = None
    state: InstallState = InstallState.RUNNING
    said: str = ""
    changed_at: datetime

    @property
    def image(self) -> Image:
        return self.images[self.at]

    @property
    def left(self) -> str:
        """What is to be asked for after the image under way, in words; empty: nothing."""
        if self.at < len(self.images) - 1:
            return f"image {self.images[self.at + 1].name}"
        return "the reset of the BMC" if self.resets_bmc and self.reset_asked_at is None else ""


def answered(record: UpdateRecord, reply: Reply, *, address: str, now: datetime) -> UpdateRecord:
    """Return the record with what the BMC answered to its image."""
    task = task_named_by(reply, address=address)
    return replace(
        record,
        is_answered=True,
        is_over=not task and reply.status != 202,
        task=task,
        task_began=word(reply.document, "StartTime")[:40] if task else "",
        changed_at=now,
    )


_ADAPTER = TypeAdapter(UpdateRecord)


# Assumption: a minute after it was asked, a BMC that took an image lists a task for it.
_HEARD_WITHIN = timedelta(seconds=60)


class UpdateRecords:
    """The records of one node."""

    def __init__(self, directory: Path, node: NodeName, *, clock: Clock) -> None:
        """`directory` holds those of all nodes, each in a directory of its own."""
        self.runs = RunDirectory(directory / parse_node_name(node), clock=clock)
        self._home = RunDirectory(directory, clock=clock)

    def read(self, key: ActionKey) -> UpdateRecord | None:
        """Return what is kept under `key`, None if nothing is. Raises SourceUnavailable, SourceNonsense."""
        path = self.runs.part(key)
        try:
            return _ADAPTER.validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise SourceUnavailable(f"{path} cannot be read ({type(problem).__name__}); check its owner") from None
        except ValidationError as problem:
            raise SourceNonsense(
                f"{path} is not what this program writes ({problem.error_count()} faults); look at the BMC, and move "
                "the file away"
            ) from None

    def claim(self, record: UpdateRecord, *, after: UpdateRecord | None, looked_at: datetime) -> bool:
        """Write a record in place of `after` (None: of none) and return True; return False if another was faster.

        `looked_at`: when the BMC was looked at and found idle. Raises SourceUnavailable if another image was asked for
        since, and SourceRefused if the record cannot be kept: what nobody would remember is not asked for.
        """
        try:
            self._home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._home.trust()
            with self.runs.starting():
                if self.read(record.key) != after:
                    return False
                if any(_is_in_the_way(each, looked_at) for each in self.all() if each.key != record.key):
                    raise SourceUnavailable("another image was asked for at this moment; nothing was asked")
                self._replace(record)
                return True
        except OSError as problem:
            raise SourceRefused(f"{self.runs.path} cannot be written ({problem}); nothing was asked") from None

    def change(self, record: UpdateRecord, *, after: UpdateRecord) -> UpdateRecord:
        """Write what was seen since `after`, and return it. Raises SourceUnavailable if another was faster."""
        try:
            with self.runs.starting():
                if self.read(record.key) != after:
                    raise SourceUnavailable("another process went on with this installation at this moment; ask again")
                self._replace(record)
                return record
        except OSError as problem:
            raise _not_kept(self.runs.path, problem) from None

    def write(self, record: UpdateRecord) -> None:
        """Put a record in place, whole. Raises SourceUnavailable if it cannot be kept."""
        try:
            self._replace(record)
        except OSError as problem:
            raise _not_kept(self.runs.path, problem) from None

    def put_back(self, record: UpdateRecord, before: UpdateRecord | None) -> None:
        """Undo a claim of which the BMC has taken nothing. Raises SourceUnavailable if that cannot be kept."""
        if before is not None:
            self.write(before)
            return
        try:
            self.runs.part(record.key).unlink(missing_ok=True)
        except OSError as problem:
            raise _not_kept(self.runs.path, problem) from None

    def is_pushing(self, key: ActionKey) -> bool:
        """Return whether the process that sends the image of `key` lives."""
        return self.runs.is_alive(self.runs.lock(key))

    def pushed(self) -> ActionKey | None:
        """Return the key whose image is being sent to the BMC of the node."""
        try:
            return next((ActionKey(key) for key, _ in self.runs.running()), None)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise SourceUnavailable(f"{self.runs.path} cannot be read ({problem}); check its owner") from None

    def all(self) -> tuple[UpdateRecord, ...]:
        """Return the records of the node, as far back as they are kept. Raises as `read` does."""
        found = (self.read(ActionKey(path.stem)) for path in sorted(self.runs.path.glob("[0-9a-f]*.part")))
        return tuple(each for each in found if each is not None)

    def tasks(self) -> frozenset[str]:
        """Return the tasks that we ourselves have begun on the BMC of the node."""
        return frozenset(task for each in self.all() for task in (each.task, *each.earlier_tasks) if task)

    def _replace(self, record: UpdateRecord) -> None:
        self.runs.replace(self.runs.part(record.key), _ADAPTER.dump_json(record).decode())


def _is_in_the_way(other: UpdateRecord, looked_at: datetime) -> bool:
    """Return whether the BMC, when it was looked at, could not yet show what it was asked for."""
    if other.state is not InstallState.RUNNING:
        return False
    is_unheard = not other.is_answered and looked_at - other.asked_at < _HEARD_WITHIN
    return is_unheard or other.asked_at >= looked_at


def _not_kept(path: Path, problem: OSError) -> SourceUnavailable:
    return SourceUnavailable(
        f"what the BMC said cannot be kept in {path} ({problem}); its tasks and inventory will tell. Look at the disk"
    )
