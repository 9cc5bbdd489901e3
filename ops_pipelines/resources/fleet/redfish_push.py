"""Sends one image to one BMC, in a process of its own: `python -m … DIRECTORY KEY`, started by `redfish_order`.

An image has 100 MB and more; whoever ordered it does not wait, and may end. Where it is sent to stands in the record
under the key, who we are in the lock beside it. That the whole image may have left is written down before its last
piece does, so that a record without that mark proves that the BMC never had it.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.node_tests import parse_check_key
from ops_pipelines.core.rollout import InstallState
from ops_pipelines.core.sources import SourceError, SourceRefused
from ops_pipelines.resources.config.redfish_settings import RedfishSettings
from ops_pipelines.resources.fleet.redfish_call import BmcCalls, BmcTalk, on_one_line
from ops_pipelines.resources.fleet.redfish_images import CONTENT_TYPE, ImageBody, refuse_wrong_bytes
from ops_pipelines.resources.fleet.redfish_records import UpdateRecord, UpdateRecords, answered

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


if __name__ == "__main__":
    _clock = SystemClock()
    _directory, _key = Path(sys.argv[1]), parse_check_key(sys.argv[2])
    _records = UpdateRecords(_directory.parent, NodeName(_directory.name), clock=_clock)
    _told = TypeAdapter(dict[str, object]).validate_json(_records.runs.lock(_key).read_bytes())
    push(_records, _key, _SETTINGS.validate_json(str(_told["settings"])), clock=_clock)
