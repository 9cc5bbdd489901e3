"""Asks a BMC for one image, once: recorded before it is asked, and never while another update runs there.

What the answer leads to is `redfish_update`'s. How an image is asked for is `redfish_images`', what is kept of it
`redfish_records`'. An image that is sent goes by `redfish_push`, in a process of its own.
"""

from dataclasses import replace
from threading import Lock

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.config.redfish_settings import RedfishSettings
from ops_pipelines.resources.fleet.redfish_call import BmcTalk, Reply, word
from ops_pipelines.resources.fleet.redfish_images import Request, as_text, request_of
from ops_pipelines.resources.fleet.redfish_push import settings_as_text
from ops_pipelines.resources.fleet.redfish_records import UpdateRecord, UpdateRecords, answered
from ops_pipelines.resources.fleet.redfish_tasks import TaskSight, TaskState, list_tasks

_PUSH_MODULE = "ops_pipelines.resources.fleet.redfish_push"
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
