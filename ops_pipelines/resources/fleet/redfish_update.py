"""Power and firmware over Redfish: what the port `Fleet` asks of a node's BMC.

Power: whether the BMC says that the node has it, cutting it, giving it; and the restart of a BMC itself, which touches
nothing of the node and makes the BMC's own firmware run. How long a call may take is `redfish_call`'s; how a BMC is
reached, and that nothing is sent twice, `redfish_line`'s.

Firmware: an image is asked for once (`redfish_order`), its task is followed, and the inventory has the last word.
Installing is not activating: what a task calls complete lies there, and whether it runs is read by `active_versions`
after the node was restarted as the release says. Firmware of the BMC itself that needs no restart of the node
(`activation: live`) ends with a reset of the BMC. Reading a report starts nothing: the next image of an order, and that
reset, wait until the order is given again under its key. A task that is gone (BMCs forget them when they restart, and
reuse their numbers) is decided by the inventory; until that shows the version the installation runs, and who ordered it
has a deadline.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey, NodeName, parse_node_name
from ops_pipelines.core.node_tests import parse_check_key
from ops_pipelines.core.observation import PowerState
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import Direction, InstallOrder, InstallReport, InstallState
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import RunCommand, run_command
from ops_pipelines.resources.config.redfish_settings import POWER_ACTS, RedfishSettings, origin_of
from ops_pipelines.resources.fleet.command_fleet import COMMAND_LIMIT_SECONDS, CommandFleet
from ops_pipelines.resources.fleet.redfish_call import (
    AnswerPending,
    BmcCalls,
    BmcTalk,
    Reading,
    choose_system,
    on_one_line,
    part,
    word,
)
from ops_pipelines.resources.fleet.redfish_inventory import (
    InventoryReader,
    TaskSight,
    TaskState,
    choose_manager,
    list_tasks,
    read_task,
)
from ops_pipelines.resources.fleet.redfish_order import ImageOrders, has_taken_nothing
from ops_pipelines.resources.fleet.redfish_records import (
    UpdateRecord,
    UpdateRecords,
    images_of,
    refuse_wrong_file,
    resets_bmc,
)

if TYPE_CHECKING:
    from sushy.resources.system.system import System

# -- power of the node --


_STATES = {"On": PowerState.ON, "Off": PowerState.OFF}
"""All else (PoweringOn, PoweringOff, Paused, nothing) is on its way, or not reported."""


class RedfishPower:
    """Asks the BMC of a node. Raises as `core.cluster.Fleet` does."""

    def __init__(self, settings: RedfishSettings, *, limit_seconds: float = COMMAND_LIMIT_SECONDS) -> None:
        """Raise PolicyError naming every fault of `settings`."""
        self._calls = BmcCalls(settings, limit_seconds=limit_seconds)

    def power_state(self, node: NodeName) -> PowerState:
        return self._ask(node, lambda system: _STATES.get(_told_by(system), PowerState.UNKNOWN))

    def power_off(self, node: NodeName) -> None:
        """Cut the power at once (ForceOff); a system that is off is left alone."""
        self._ask(node, lambda system: _reset(system, "ForceOff", needless={"Off"}))

    def power_on(self, node: NodeName) -> None:
        """Give power (On); a system that has it, or is getting it, is left alone."""
        self._ask(node, lambda system: _reset(system, "On", needless={"On", "PoweringOn"}))

    def _ask(self, node: NodeName, act: Callable[["System"], Reading]) -> Reading:
        return self._calls.ask(
            node, lambda talk: act(talk.root.get_system(choose_system(talk, self._calls.settings))), about="power"
        )


class RedfishFleet(CommandFleet):
    """The `Fleet` port whose power is a matter of Redfish, and everything else of commands."""

    def __init__(
        self, commands: Mapping[str, Sequence[str]], *, power: RedfishPower, clock: Clock, run: RunCommand = run_command
    ) -> None:
        """Raise PolicyError if a command and Redfish are named for the same act, or a command is wrong."""
        twice = [act for act in POWER_ACTS if act in commands]
        if twice:
            raise PolicyError(f"{', '.join(twice)}: a command and redfish are both named; keep one of them")
        super().__init__(commands, clock=clock, run=run)
        self._power = power

    def power_off(self, node: NodeName) -> None:
        self._power.power_off(node)

    def power_on(self, node: NodeName) -> None:
        self._power.power_on(node)

    def power_state(self, node: NodeName) -> PowerState:
        return self._power.power_state(node)


def _told_by(system: "System") -> str:
    return "" if system.power_state is None else str(system.power_state.value)


def _reset(system: "System", value: str, *, needless: set[str]) -> None:
    from sushy import ResetType

    if _told_by(system) not in needless:
        system.reset_system(ResetType(value))


# -- restart of the BMC --


_RESETS = ("GracefulRestart", "ForceRestart")
"""Of a manager, the gentler one first."""


def reset_manager(talk: BmcTalk, settings: RedfishSettings) -> None:
    """Send the gentlest restart that the BMC's manager offers. Raises SourceRefused if it offers none."""
    action = part(talk.get(choose_manager(talk, settings)), "Actions", "#Manager.Reset")
    target = word(action, "target")
    allowed = _allowed_resets(talk, action)
    kind = next((each for each in _RESETS if allowed is None or each in allowed), None)
    if not target or kind is None:
        raise SourceRefused("the BMC does not offer to be reset; reset it by hand")
    talk.command(target, {"ResetType": kind})


def _allowed_resets(talk: BmcTalk, action: object) -> frozenset[str] | None:
    """Return what a manager's reset may be; None if it does not say."""
    told = part(action, "ResetType@Redfish.AllowableValues")
    info = word(action, "@Redfish.ActionInfo")
    if not isinstance(told, list) and info:
        parameters = part(talk.get(info), "Parameters")
        found = (
            [each for each in parameters if word(each, "Name") == "ResetType"] if isinstance(parameters, list) else []
        )
        told = part(found[0], "AllowableValues") if found else None
    return frozenset(str(each) for each in told) if isinstance(told, list) else None


# Assumption: a quarter of the limit is enough to hash 100 MB; what is larger is hashed again by the process that sends.
_HASH_SHARE = 0.25
# Assumption: within it the process that sends an image has been started, or never will be.
_LAUNCH_LIMIT = timedelta(seconds=30)


class RedfishUpdates:
    """Asks the BMC of a node for firmware. Raises as `core.cluster.Fleet` does, within its limit."""

    def __init__(
        self,
        settings: RedfishSettings,
        *,
        state_directory: Path,
        clock: Clock,
        limit_seconds: float = COMMAND_LIMIT_SECONDS,
    ) -> None:
        """Raise PolicyError naming every fault of `settings`. `state_directory` is this class's alone."""
        self._calls = BmcCalls(settings, limit_seconds=limit_seconds)
        self._directory = state_directory
        self._reader = InventoryReader(settings)
        self._clock = clock
        self._orders = ImageOrders(settings, clock=clock)

    def start(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        """Ask for the first image of an order, or have it sent; what became of it is reported by `report`.

        Asking again under the same key asks for what is left of one that `report` calls waiting: the next image, or the
        BMC's reset. Refused where the BMC does not offer it, a file is not the one that the release names, or several
        nodes share the BMC; unavailable while another update runs there.
        """
        began = time.monotonic()
        name, known = parse_node_name(node), parse_check_key(key)
        images = images_of(order)
        self._refuse_shared(name)
        records = self._records_of(name)
        begun = records.read(known)
        if begun is not None:
            if (begun.images, begun.is_back) != (images, order.direction is Direction.BACK):
                raise SourceRefused(
                    f"another order was started under {known}; look at the BMC, and remove {known}.part"
                )
            self._go_on(begun, records)
            return
        self._calls.keep_away_as_asked(name)
        for image in images:
            if not image.is_fetched:
                refuse_wrong_file(image, within_seconds=_HASH_SHARE * self._calls.limit_seconds / len(images))
        now = self._clock.now()
        record = UpdateRecord(
            key=known,
            node=name,
            images=images,
            is_back=order.direction is Direction.BACK,
            resets_bmc=resets_bmc(order),
            asked_at=now,
            changed_at=now,
        )
        try:
            self._calls.ask(
                name,
                lambda talk: self._orders.place(talk, record, after=None, records=records),
                about="update",
                spent_seconds=time.monotonic() - began,
            )
        except AnswerPending:
            return

    def report(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        """Return how far the installation under `key` is; None if none was started there under it."""
        name, known = parse_node_name(node), parse_check_key(key)
        records = self._records_of(name)
        record = records.read(known)
        if record is None:
            return None
        if record.state is not InstallState.RUNNING:
            return _report_of(record)
        if self._orders.is_awaited(known):
            return _report_of(record, said="the BMC has not answered yet whether it takes the image")
        if record.push_path and not record.is_answered:
            is_starting = self._clock.now() - record.asked_at < _LAUNCH_LIMIT and not record.is_sent
            if is_starting or records.is_pushing(known):
                return _report_of(record, said=f"image {record.image.name} is being sent")
            record = records.read(known) or record
            if record.state is not InstallState.RUNNING:
                return _report_of(record)
            if not record.is_sent:
                return self._close(record, InstallState.FAILED, "the image was not sent to its end")
        self._calls.keep_away_as_asked(name)
        try:
            return self._calls.ask(name, lambda talk: self._look(talk, record), about="update")
        except AnswerPending as problem:
            return _report_of(record, said=str(problem))

    def active_versions(self, node: NodeName) -> Mapping[Component, str]:
        """Return the firmware that runs on a node, as its BMC reports; nothing where several nodes share the BMC."""
        name = parse_node_name(node)
        if self._sharing(name):
            return {}
        self._calls.keep_away_as_asked(name)
        return self._calls.ask(name, self._reader.sight, about="firmware").active

    def _look(self, talk: BmcTalk, record: UpdateRecord) -> InstallReport:
        if record.reset_asked_at is not None:
            return self._decide(talk, record, "the BMC was reset; the new version does not run yet")
        if record.is_over:
            return self._is_there(record, said=f"image {record.image.name} is there")
        record, sight = self._task_of(talk, record)
        if sight is None:
            why = (
                f"the task {record.task} is gone, and the inventory does not show the version yet"
                if record.task
                else "unknown: the BMC did not say whether it takes the image, and its inventory does not show it yet"
            )
            return self._decide(talk, record, why)
        if sight.state is TaskState.FAILED:
            return self._close(record, InstallState.FAILED, sight.said)
        if sight.state is TaskState.DONE or (sight.state is TaskState.WAITING and record.waits_for_reset):
            return self._is_there(record, said=sight.said, progress_ratio=sight.progress_ratio)
        return _report_of(record, said=sight.said, progress_ratio=sight.progress_ratio)

    def _task_of(self, talk: BmcTalk, record: UpdateRecord) -> tuple[UpdateRecord, TaskSight | None]:
        """Return the task of the present image. One whose answer was lost is the only new one that the BMC has."""
        records = self._records_of(record.node)
        if not record.task:
            new = [
                each
                for each in list_tasks(talk, unless=frozenset(record.tasks_before)).read
                if each.is_update and each.path not in record.earlier_tasks
            ]
            if len(new) != 1:
                return record, None
            found = replace(record, is_answered=True, task=new[0].path, task_began=new[0].began)
            return records.change(found, after=record), new[0]
        sight = read_task(talk, record.task)
        if sight is not None and record.task_began and sight.began and sight.began != record.task_began:
            return record, None  # The BMC has restarted, and given the number to another task.
        if sight is not None and sight.began and not record.task_began:
            record = records.change(replace(record, task_began=sight.began), after=record)
        return record, sight

    def _decide(self, talk: BmcTalk, record: UpdateRecord, why: str) -> InstallReport:
        """Let the inventory say whether the present image is there."""
        seen = self._reader.sight(talk)
        if record.reset_asked_at is None:
            is_there = all(seen.has(each, version) for each, version in record.image.versions.items())
        else:
            # What needs more than the BMC's reset does not run yet.
            is_there = all(
                seen.active.get(each) == image.versions[each] for image in record.images for each in image.live
            )
        if not is_there:
            return _report_of(record, said=why)
        return self._is_there(record, said="the inventory shows it")

    def _is_there(self, record: UpdateRecord, *, said: str, progress_ratio: float | None = None) -> InstallReport:
        """Say that the present image is there: that is all, or the rest waits until it is asked for."""
        if not record.left:
            return self._close(record, InstallState.INSTALLED, said, progress_ratio=progress_ratio)
        if not record.is_over:
            now = self._clock.now()
            record = self._records_of(record.node).change(replace(record, is_over=True, changed_at=now), after=record)
        return replace(_report_of(record, said=f"{said}; {record.left} is next"), state=InstallState.WAITING)

    def _go_on(self, record: UpdateRecord, records: UpdateRecords) -> None:
        """Ask for what comes after the present image, where that is there and something is left."""
        if record.state is not InstallState.RUNNING or not record.is_over or not record.left:
            return
        self._calls.keep_away_as_asked(record.node)
        ask = self._reset_once if record.at == len(record.images) - 1 else self._ask_for_next
        try:
            self._calls.ask(record.node, lambda talk: ask(talk, record, records), about="update")
        except AnswerPending:
            return

    def _ask_for_next(self, talk: BmcTalk, record: UpdateRecord, records: UpdateRecords) -> None:
        following = replace(
            record,
            at=record.at + 1,
            earlier_tasks=(*record.earlier_tasks, *([record.task] if record.task else [])),
            is_answered=False,
            is_over=False,
            is_sent=False,
            task="",
            task_began="",
            changed_at=self._clock.now(),
        )
        try:
            self._orders.place(talk, following, after=record, records=records)
        except Exception as problem:
            if not isinstance(problem, SourceUnavailable) and has_taken_nothing(problem):
                self._close(record, InstallState.FAILED, on_one_line(str(problem)))
            raise

    def _reset_once(self, talk: BmcTalk, record: UpdateRecord, records: UpdateRecords) -> None:
        now = self._clock.now()
        asked = replace(record, reset_asked_at=now, changed_at=now)
        if not records.claim(asked, after=record, looked_at=now):
            return
        try:
            reset_manager(talk, self._calls.settings)
        except Exception as problem:
            if not talk.line.has_commanded or has_taken_nothing(problem):
                records.put_back(asked, record)
                raise
            # It may have gone down before it answered: then the inventory will tell.

    def _close(
        self, record: UpdateRecord, state: InstallState, said: str, *, progress_ratio: float | None = None
    ) -> InstallReport:
        closed = replace(record, state=state, said=said, changed_at=self._clock.now())
        self._records_of(record.node).change(closed, after=record)
        return _report_of(closed, progress_ratio=progress_ratio)

    def _records_of(self, node: NodeName) -> UpdateRecords:
        return UpdateRecords(self._directory, node, clock=self._clock)

    def _refuse_shared(self, node: NodeName) -> None:
        others = self._sharing(node)
        if others:
            raise SourceRefused(
                f"the BMC of {node} is also that of {', '.join(sorted(others))[:120]}; its firmware is no one node's. "
                "Update it by hand"
            )

    def _sharing(self, node: NodeName) -> frozenset[NodeName]:
        address = self._calls.settings.address_of(node)
        if not address:
            return frozenset()
        own = origin_of(address)
        return frozenset(
            other
            for other, place in self._calls.settings.addresses.items()
            if other != node and origin_of(place) == own
        )


def _report_of(record: UpdateRecord, *, said: str | None = None, progress_ratio: float | None = None) -> InstallReport:
    return InstallReport(
        key=record.key,
        node=record.node,
        state=record.state,
        said=record.said if said is None else said,
        progress_ratio=progress_ratio,
        changed_at=record.changed_at,
    )
