"""Asks a BMC for one image, once: recorded before it is asked, and never while another update runs there.

What the answer leads to is `redfish_update`'s. How an image is asked for, and what is kept of it, is
`redfish_records`'.

An image that is sent has 100 MB and more, so it goes by a process of its own, this module with the arguments
`DIRECTORY KEY`; who ordered it does not wait, and may end. Where it is sent to is in the record under the key,
who we are in the lock beside it. That the whole image may have left is written down before its last piece does, so that
a record without that mark proves that the BMC never had it.
"""

import sys
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from pydantic import TypeAdapter

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.node_tests import parse_check_key
from ops_pipelines.core.rollout import InstallState
from ops_pipelines.core.sources import SourceError, SourceRefused, SourceUnavailable
from ops_pipelines.resources.config.redfish_settings import RedfishSettings
from ops_pipelines.resources.fleet.redfish_call import BmcCalls, BmcTalk, Reply, on_one_line, word
from ops_pipelines.resources.fleet.redfish_inventory import TaskSight, TaskState, list_tasks
from ops_pipelines.resources.fleet.redfish_records import (
    CONTENT_TYPE,
    ImageBody,
    Request,
    UpdateRecord,
    UpdateRecords,
    answered,
    as_text,
    refuse_wrong_bytes,
    request_of,
)

# -- the process that sends an image --


_LIMIT_SECONDS = 1800.0
"""NVIDIA's controller gives a firmware script as much (infra-controller, fixtures of DGX H100, read 2026-11-21)."""
_SETTINGS = TypeAdapter(RedfishSettings)


def settings_as_text(settings: RedfishSettings) -> str:
    """Return settings for the process that sends; the password stays in its file."""
    return _SETTINGS.dump_json(settings).decode()


def push(records: UpdateRecords, key: ActionKey, settings: RedfishSettings, *, clock: Clock) -> None:
    """Send the image that the record under `key` names, and write down what came of it."""
    record = records.read(key)
    if record is None or record.is_answered or record.is_sent or record.state is not InstallState.RUNNING:
        return
    try:
        with Path(record.image.location).open("rb") as file:
            refuse_wrong_bytes(record.image, file)
            file.seek(0)
            body = _MarkedBody(record, records, file)
            BmcCalls(settings, limit_seconds=_LIMIT_SECONDS).ask(
                record.node, lambda talk: _send(talk, body, records, clock=clock), about="update"
            )
    except (SourceError, OSError) as problem:
        known = records.read(key) or record
        if isinstance(problem, SourceRefused) or not known.is_sent:
            said = on_one_line(str(problem))
            records.write(replace(known, state=InstallState.FAILED, said=said, changed_at=clock.now()))


class _MarkedBody(ImageBody):
    """Marks the record before the last piece is handed out."""

    def __init__(self, record: UpdateRecord, records: UpdateRecords, file: BinaryIO) -> None:
        super().__init__(record.push_parameters, file, name=record.image.name)
        self.record = record
        self._records = records

    def read(self, size: int = -1) -> bytes:
        block = super().read(size)
        if block and self.left_bytes == 0 and not self.record.is_sent:
            self.record = replace(self.record, is_sent=True)
            self._records.write(self.record)
        return block


def _send(talk: BmcTalk, body: _MarkedBody, records: UpdateRecords, *, clock: Clock) -> None:
    from ops_pipelines.resources.fleet.redfish_line import BmcFailure

    try:
        reply = talk.push(body.record.push_path, body, content_type=CONTENT_TYPE)
    except BmcFailure as problem:
        if problem.is_too_busy:
            raise SourceRefused(str(problem)) from None
        raise
    records.write(answered(body.record, reply, address=talk.address, now=clock.now()))


# -- one image, asked for once --


_PUSH_MODULE = "ops_pipelines.resources.fleet.redfish_order"
# Assumption: some BMCs fetch the image before they answer.
_LINGER_SECONDS = 60.0
_BUSY_IDS = frozenset({"UpdateInProgress", "AnotherUpdateInProgress", "ResourceInUse", "ServiceTemporarilyUnavailable"})
"""Of the registries Base and Update: the BMC would take it another time."""


class ImageOrders:
    """Asks for images within conversations, and knows those whose answer a thread of this process awaits."""

    def __init__(self, settings: RedfishSettings, *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._awaited: set[ActionKey] = set()
        self._lock = Lock()

    def is_awaited(self, key: ActionKey) -> bool:
        with self._lock:
            return key in self._awaited

    def place(self, talk: BmcTalk, record: UpdateRecord, *, after: UpdateRecord | None, records: UpdateRecords) -> None:
        """Ask for the present image of a record, which takes the place of `after`; if another was faster, for nothing.

        Of an image that the BMC did not take no record is left.
        """
        service = talk.get(word(talk.root_document, "UpdateService", "@odata.id") or "/redfish/v1/UpdateService")
        request = request_of(record.image, service, is_back=record.is_back)
        looked_at = self._clock.now()
        tasks = list_tasks(talk)
        _refuse_busy(records, tasks.read)
        asked = replace(
            record,
            asked_at=self._clock.now(),
            tasks_before=tuple(sorted(tasks.paths)),
            waits_for_reset=request.waits_for_reset,
            push_path="" if record.image.is_fetched else request.path,
            push_parameters="" if record.image.is_fetched else as_text(request.body),
        )
        if not records.claim(asked, after=after, looked_at=looked_at):
            return
        if asked.push_path:
            self._send(asked, after=after, records=records)
        else:
            self._fetch(talk, asked, request, after=after, records=records)

    def _fetch(
        self,
        talk: BmcTalk,
        record: UpdateRecord,
        request: Request,
        *,
        after: UpdateRecord | None,
        records: UpdateRecords,
    ) -> None:
        """Have the BMC fetch an image. Its answer is kept before anything else is asked."""
        with self._lock:
            self._awaited.add(record.key)
        try:
            reply = self._posted(talk, request)
        except Exception as problem:
            is_unknown = talk.line.has_commanded and not has_taken_nothing(problem)
            if not is_unknown:
                records.put_back(record, after)
            if _says_busy(problem):
                raise SourceUnavailable(str(problem)) from None
            if is_unknown and not isinstance(problem, SourceUnavailable):
                raise SourceUnavailable(
                    f"the BMC's answer cannot be read ({type(problem).__name__}); whether it takes the image its tasks "
                    "and its inventory will tell"
                ) from None
            raise
        else:
            records.write(answered(record, reply, address=talk.address, now=self._clock.now()))
        finally:
            with self._lock:
                self._awaited.discard(record.key)

    def _posted(self, talk: BmcTalk, request: Request) -> Reply:
        from ops_pipelines.resources.fleet.redfish_line import BmcRefusal

        try:
            return talk.command(request.path, request.body, linger_seconds=_LINGER_SECONDS)
        except BmcRefusal as problem:
            if problem.status != 400 or "ForceUpdate" not in request.body or _says_busy(problem):
                raise
            # It may know the property no better than to refuse it; it has done nothing.
            plain = {key: value for key, value in request.body.items() if key != "ForceUpdate"}
            return talk.command(request.path, plain, linger_seconds=_LINGER_SECONDS)

    def _send(self, record: UpdateRecord, *, after: UpdateRecord | None, records: UpdateRecords) -> None:
        settings = replace(
            self._settings,
            address=None,
            addresses={record.node: self._settings.address_of(record.node) or ""},
            password_file=self._settings.password_file.absolute(),
            ca_file=None if self._settings.ca_file is None else self._settings.ca_file.absolute(),
        )
        told = {"node": record.node, "settings": settings_as_text(settings)}
        try:
            records.runs.launch(record.key, told, module=_PUSH_MODULE)
        except OSError as problem:
            records.put_back(record, after)
            raise SourceRefused(f"the process that sends the image cannot be started ({problem})") from None


def _refuse_busy(records: UpdateRecords, tasks: tuple[TaskSight, ...]) -> None:
    """Raise SourceUnavailable while another update runs; one of ours that only waits for a reset is none."""
    pushed = records.pushed()
    if pushed is not None:
        raise SourceUnavailable(f"an image is being sent to the BMC already (installation {pushed})")
    own = records.tasks()
    for each in tasks:
        is_in_the_way = each.state is TaskState.RUNNING or (each.state is TaskState.WAITING and each.path not in own)
        if each.is_update and is_in_the_way:
            raise SourceUnavailable(f"another update runs on the BMC ({each.path[:80]}: {each.said})")


def has_taken_nothing(problem: Exception) -> bool:
    """Return whether the BMC, by its own answer, has not done what it was asked."""
    from sushy.exceptions import NotAcceptableError, ResourceNotFoundError

    from ops_pipelines.resources.fleet.redfish_line import BmcFailure

    if isinstance(problem, BmcFailure):
        return problem.is_too_busy
    return isinstance(problem, SourceRefused | ResourceNotFoundError | NotAcceptableError)


def _says_busy(problem: Exception) -> bool:
    from ops_pipelines.resources.fleet.redfish_line import BmcRefusal

    return isinstance(problem, BmcRefusal) and bool(problem.message_ids & _BUSY_IDS)


if __name__ == "__main__":
    _clock = SystemClock()
    _directory, _key = Path(sys.argv[1]), parse_check_key(sys.argv[2])
    _records = UpdateRecords(_directory.parent, NodeName(_directory.name), clock=_clock)
    _told = TypeAdapter(dict[str, object]).validate_json(_records.runs.lock(_key).read_bytes())
    push(_records, _key, _SETTINGS.validate_json(str(_told["settings"])), clock=_clock)
