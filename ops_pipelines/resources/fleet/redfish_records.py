"""The images of an order, and what was asked of BMCs under which key, kept on disk: a process that dies leaves behind
what the next must know.

A record is written before its image is asked for, and again with the BMC's answer before anything else is asked. A
record without answer: the image may have been taken or not, and is never asked for again under that key.

An image is fetched by the BMC (SimpleUpdate), or sent to it in parts. One that is sent is known by its sha256, which is
computed before anything is asked. One that the BMC fetches passes us by: the BMC's check of its signature is then all
there is. When anything is asked is `redfish_order`'s, what a record means `redfish_update`'s; the files are
`commands`'.
"""

import hashlib
import io
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey, NodeName, parse_node_name
from ops_pipelines.core.release import Activation, Artifact, Change, Component
from ops_pipelines.core.rollout import Direction, InstallOrder, InstallState
from ops_pipelines.core.sources import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import RunDirectory
from ops_pipelines.resources.fleet.redfish_call import Document, Reply, part, word
from ops_pipelines.resources.fleet.redfish_inventory import task_named_by

# -- what was asked --


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
    """One installation under one key: which of its images is under way, and what the BMC reported."""

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
                    raise SourceUnavailable("another process continued this installation at this moment; ask again")
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
        """Return the tasks that we ourselves have started on the BMC of the node."""
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
        f"what the BMC answered cannot be kept in {path} ({problem}); its tasks and inventory show it. Look at the disk"
    )


# -- images, fetched or sent --


_BLOCK_BYTES = 1 << 20
_BOUNDARY = "image-of-a-release-5f1c2a"
CONTENT_TYPE = f"multipart/form-data; boundary={_BOUNDARY}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One image, as this BMC wants to be asked for it."""

    path: str
    body: Document
    waits_for_reset: bool


def images_of(order: InstallOrder) -> tuple[Image, ...]:
    """Return what is installed, in order; changes that share a file are one image. Raises SourceRefused."""
    found: dict[str, Image] = {}
    for change in order.changes:
        version = order.versions.get(change.component)
        if version is None:
            continue
        artifact = _artifact_of(change, version, order.direction)
        if artifact.location.lower().startswith("http://"):
            raise SourceRefused(f"image {artifact.name} lies at an http address; name an https one, or a file")
        known = found.get(artifact.sha256)
        found[artifact.sha256] = Image(
            name=artifact.name,
            sha256=artifact.sha256,
            location=artifact.location,
            targets=tuple(dict.fromkeys((*(known.targets if known else ()), *change.targets))),
            versions={**(known.versions if known else {}), change.component: version},
            live=(known.live if known else frozenset())
            | ({change.component} if change.activation is Activation.LIVE else set()),
        )
    if not found:
        raise SourceRefused("the order names no version of any component; empty never means whatever is newest")
    return tuple(found.values())


def resets_bmc(order: InstallOrder) -> bool:
    """Return whether the BMC is restarted at the end: for firmware of its own that needs nothing else to run."""
    return any(
        change.component is Component.BMC
        and change.activation is Activation.LIVE
        and change.component in order.versions
        for change in order.changes
    )


def refuse_wrong_file(image: Image, *, limit_bytes: int | None = None, within_seconds: float | None = None) -> None:
    """Raise SourceRefused if an image that is sent cannot be read, is too large for the BMC, or is another.

    A file that cannot be read to its end in time is looked at again before it is sent.
    """
    ends_at = None if within_seconds is None else time.monotonic() + within_seconds
    try:
        with Path(image.location).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if limit_bytes is not None and size > limit_bytes:
                raise SourceRefused(f"image {image.name} has {size} bytes; the BMC takes {limit_bytes}")
            refuse_wrong_bytes(image, file, ends_at=ends_at)
    except OSError as problem:
        raise SourceRefused(
            f"image {image.name} cannot be read ({type(problem).__name__}); check the location in the release"
        ) from None


def refuse_wrong_bytes(image: Image, file: BinaryIO, *, ends_at: float | None = None) -> None:
    """Raise SourceRefused if the bytes are not those of the image. Raises OSError."""
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
        if ends_at is not None and time.monotonic() > ends_at:
            return
    if digest.hexdigest() != image.sha256:
        raise SourceRefused(
            f"image {image.name} has the sha256 {digest.hexdigest()}; the release says {image.sha256}. Fetch it again"
        )


def request_of(image: Image, service: Document, *, is_back: bool) -> Request:
    """Return how this BMC is asked for an image. Raises SourceRefused where it does not offer that, SourceUnavailable
    while its service is at work."""
    if part(service, "ServiceEnabled") is False:
        raise SourceRefused("the BMC's update service is disabled; enable it")
    if word(service, "Status", "State") == "Updating":
        raise SourceUnavailable("the BMC says that it is updating; nothing was asked of it")
    return _fetched(image, service, is_back=is_back) if image.is_fetched else _sent(image, service, is_back=is_back)


class ImageBody:
    """The body of a request that sends an image: three parts, read piece by piece, whose length is known."""

    def __init__(self, parameters: str, file: BinaryIO, *, name: str) -> None:
        plain = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in name)
        head = (
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="UpdateParameters"\r\n'
            f"Content-Type: application/json\r\n\r\n{parameters}\r\n"
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="UpdateFile"; filename="{plain}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        tail = f"\r\n--{_BOUNDARY}--\r\n".encode()
        self._length = len(head) + os.fstat(file.fileno()).st_size + len(tail)
        self._pieces: list[BinaryIO] = [io.BytesIO(head), file, io.BytesIO(tail)]
        self.left_bytes = self._length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        while block := self.read(_BLOCK_BYTES):
            yield block

    def read(self, size: int = -1) -> bytes:
        """Return the next piece; empty at the end."""
        wanted = _BLOCK_BYTES if size < 0 else size
        while self._pieces:
            block = self._pieces[0].read(wanted)
            if block:
                self.left_bytes -= len(block)
                return block
            del self._pieces[0]
        return b""


def _artifact_of(change: Change, version: str, direction: Direction) -> Artifact:
    if direction is Direction.FORWARD and change.artifact is not None:
        return change.artifact
    found = change.rollback_artifacts.get(version)
    if found is None:
        raise SourceRefused(
            f"{change.component.value} {version} has no image to roll back with; name it under rollback_artifacts"
        )
    return found


def _fetched(image: Image, service: Document, *, is_back: bool) -> Request:
    action = part(service, "Actions", "#UpdateService.SimpleUpdate")
    target = word(action, "target")
    if not target:
        raise SourceRefused("the BMC fetches no images (no SimpleUpdate); name a file instead of an address")
    protocol = urlsplit(image.location).scheme.upper()
    allowed = _texts_in(part(action, "TransferProtocol@Redfish.AllowableValues"))
    if allowed and protocol not in allowed:
        raise SourceRefused(f"the BMC fetches images by {', '.join(sorted(allowed))[:80]} only; name a file instead")
    supported = _texts_in(part(action, "@Redfish.OperationApplyTimeSupport", "SupportedValues"))
    parameters, waits = _parameters(image, service, supported, is_back=is_back)
    body = {"ImageURI": image.location, "TransferProtocol": protocol, **parameters}
    return Request(path=target, body=body, waits_for_reset=waits)


def _sent(image: Image, service: Document, *, is_back: bool) -> Request:
    path = word(service, "MultipartHttpPushUri")
    if not path:
        raise SourceRefused(
            "the BMC cannot be sent images (no MultipartHttpPushUri); name an https address that it may fetch them from"
        )
    limit = part(service, "MaxImageSizeBytes")
    if isinstance(limit, int) and limit > 0:
        refuse_wrong_file(image, limit_bytes=limit, within_seconds=0.0)
    supported = _texts_in(part(service, "MultipartHttpPushUri@Redfish.OperationApplyTimeSupport", "SupportedValues"))
    parameters, waits = _parameters(image, service, supported, is_back=is_back)
    return Request(path=path, body=parameters, waits_for_reset=waits)


def _parameters(
    image: Image, service: Document, supported: frozenset[str], *, is_back: bool
) -> tuple[dict[str, object], bool]:
    """Return what is stated beside the image, and whether it waits for a reset: uploading is one thing, activating
    another, and a BMC that is left to choose may restart the node at once."""
    inventory = word(service, "FirmwareInventory", "@odata.id").rstrip("/")
    found: dict[str, object] = {}
    if image.targets:
        found["Targets"] = [each if each.startswith("/") else f"{inventory}/{each}" for each in image.targets]
    if is_back:
        found["ForceUpdate"] = True  # Without it a BMC refuses what is older than what it runs.
    wanted = "Immediate" if image.is_live else "OnReset"
    if wanted in supported:
        found["@Redfish.OperationApplyTime"] = wanted
    return found, wanted == "OnReset" and wanted in supported


def _texts_in(value: object) -> frozenset[str]:
    """Return the texts of a list; a recorded BMC puts the list into another."""
    if isinstance(value, str):
        return frozenset({value})
    return frozenset().union(*map(_texts_in, value)) if isinstance(value, list) else frozenset()


def as_text(body: Document) -> str:
    return json.dumps(dict(body))
