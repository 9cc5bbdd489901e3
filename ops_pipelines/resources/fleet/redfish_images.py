"""The images of an order, and how each is asked for: fetched by the BMC (SimpleUpdate), or sent to it in parts.

An image that is sent is known by its sha256, which is computed before anything is asked. One that the BMC fetches
passes us by: the BMC's check of its signature is then all there is. When anything is asked is `redfish_order`'s.
"""

import hashlib
import io
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from ops_pipelines.core.release import Activation, Artifact, Change, Component
from ops_pipelines.core.rollout import Direction, InstallOrder
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.fleet.redfish_call import Document, part, word
from ops_pipelines.resources.fleet.redfish_records import Image

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
            f"image {image.name} has the sha256 {digest.hexdigest()}; the release says {image.sha256}. Fetch it anew"
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
            f"{change.component.value} {version} has no image to go back with; name it under rollback_artifacts"
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
    """Return what is said beside the image, and whether it waits for a reset: uploading is one thing, activating
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
