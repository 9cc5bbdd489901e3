"""The `Fleet` port by commands that the operator configured, one fixed argument list for each act, never a shell; and
the fleet of a site, composed of these commands and of what else installs.

What the commands do on the machines is theirs; here they are filled in, run and their answers read. A command must
return when the act is accepted, within 4.5 s, and end with

    0     accepted (or answered)
    77    refused: it says no and has done nothing (EX_NOPERM of sysexits.h)
    else  whether anything happened is unknown; ssh ends with 255 if it gets no answer

`inspect` prints one JSON object; times are ISO 8601 with a zone, other keys are ignored:

    {"node": "gpu003", "boot_id": "5d2c…", "booted_at": "2026-11-21T07:00:00Z", "failures": ["/scratch is read-only"],
     "gpus": [{"pci_address": "0000:1b:00", "uuid": "GPU-…", "recovery_action": 0, "uncorrectable_ecc_count": 0,
               "is_row_remap_pending": false}]}

GPUs may add `model` and `serial`, the node `chassis_serial`. `power_state` prints `on`, `off` or `unknown`, or what
ipmitool says (`Chassis Power is on`). `start_check` prints what it likes; `read_check` prints the check (`documents`),
or `running` or `none` and ends with 4. On the node both are `ops-pipelines node-check`, found on the PATH of the user
that ssh logs in as.

`start_install` gets its order as one word, `read_install` prints the report or `none` and ends with 4, `read_versions`
prints what runs (all in `documents`); on the node they are `ops-pipelines node-install` and `node-versions`.
`reload_driver` is the site's own; it refuses while a process uses a GPU.

`reboot` should go past the scheduler (`systemctl --no-block reboot` over ssh): the drain, its reason and its time stay
as they are; the node comes back DOWN+DRAIN, with a later boot time, and waits to be resumed. `scontrol reboot` appends
` : reboot issued` to the reason and dates the drain again: one that is known by its time is not recognised afterwards.
With ASAP it undrains a node that was drained before (next_state_after_reboot RESUME), and with nextstate=DOWN the drain
is lost as well (all seen, Slurm 22.05).

The composed fleet: changes of one step with the same means are one order, in their order. Where a step has several
means, each gets its own order under the same key, one after another, as the release names them first: no BMC restarts
anything while a command installs. The next one starts when the step is asked for again; all of them are known to be
offered before the first one starts.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Protocol, TypeVar

from ops_pipelines.clock import Clock
from ops_pipelines.core.cluster import NOT_OFFERED
from ops_pipelines.core.identity import ActionKey, NodeName, PciAddress, parse_node_name, parse_pci_address
from ops_pipelines.core.node_tests import NodeCheck, parse_check_key, parse_suite_name, parse_test_name
from ops_pipelines.core.observation import NodeInspection, PowerState
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.release import Component, Means
from ops_pipelines.core.rollout import InstallOrder, InstallReport, InstallState
from ops_pipelines.core.sources import SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import (
    CommandAnswer,
    RunCommand,
    fill,
    find_word_faults,
    placeholders_in,
    run_command,
)
from ops_pipelines.resources.fleet.documents import (
    check_from_json,
    read_inspection,
    report_from_json,
    versions_from_json,
)
from ops_pipelines.resources.fleet.installs import (
    FirmwareInstaller,
    Installer,
    InstallNote,
    InstallNotes,
    order_word,
    worst,
)

# -- the operator's commands --


COMMAND_LIMIT_SECONDS = 4.5
"""A third of the lease (15 s), less some room."""
EXIT_REFUSED = 77
EXIT_NO_RESULT = 4
"""Of `read_check` and `read_install` alone: nothing was started under the key, or tests still run."""


_NEEDED: Mapping[str, frozenset[str]] = {
    "inspect": frozenset({"{node}"}),
    "reset_gpu": frozenset({"{node}", "{gpu}"}),
    "reboot": frozenset({"{node}"}),
    "reimage": frozenset({"{node}"}),
    "start_check": frozenset({"{node}", "{key}"}),
    "read_check": frozenset({"{node}", "{key}"}),
    "start_install": frozenset({"{node}", "{key}", "{order}"}),
    "read_install": frozenset({"{node}", "{key}"}),
    "read_versions": frozenset({"{node}"}),
    "reload_driver": frozenset({"{node}"}),
    "power_off": frozenset({"{node}"}),
    "power_on": frozenset({"{node}"}),
    "power_state": frozenset({"{node}"}),
}
"""Act -> what its words must name: a command without its target would act on something else."""
_REASON = "{reason}"
_OPTIONAL: Mapping[str, frozenset[str]] = {
    "reboot": frozenset({_REASON}),
    "reimage": frozenset({_REASON}),
    "start_check": frozenset({"{suite}", "{tests}"}),
}


class CommandFleet:
    """The `Fleet` port over configured commands. An act without a command is refused."""

    def __init__(self, commands: Mapping[str, Sequence[str]], *, clock: Clock, run: RunCommand = run_command) -> None:
        """`commands`: act -> argument list with `{node}`, `{gpu}` (reset_gpu), `{reason}` (reboot, reimage; alone),
        `{key}` (start_check, read_check, start_install, read_install), of start_install `{order}`, and of start_check
        `{suite}` or `{tests}` (joined by commas).

        Raises PolicyError naming every fault.
        """
        faults = [fault for act, words in commands.items() for fault in _find_faults(act, words)]
        if faults:
            raise PolicyError("; ".join(faults))
        self._commands = {act: tuple(words) for act, words in commands.items()}
        self._clock = clock
        self._run = run

    def offers(self, act: str) -> bool:
        """Return whether the site names a command for an act."""
        return act in self._commands

    def inspect(self, node: NodeName) -> NodeInspection:
        name = parse_node_name(node)
        text = self._send("inspect", {"{node}": name})
        try:
            inspection = read_inspection(text, inspected_at=self._clock.now())
        except ValueError as exc:
            raise _nonsense("inspect", name, text, exc) from exc
        if inspection.node != name:
            raise SourceNonsense(f"inspect of {name} was answered by {inspection.node!r}; check where the command goes")
        return inspection

    def reset_gpu(self, node: NodeName, gpu: PciAddress) -> None:
        self._send("reset_gpu", {"{node}": parse_node_name(node), "{gpu}": parse_pci_address(gpu)})

    def reboot(self, node: NodeName, *, reason: str) -> None:
        self._send("reboot", {"{node}": parse_node_name(node), "{reason}": reason})

    def reimage(self, node: NodeName, *, reason: str) -> None:
        self._send("reimage", {"{node}": parse_node_name(node), "{reason}": reason})

    def start_check(self, node: NodeName, *, suite: str, tests: Collection[str], key: ActionKey) -> None:
        filling = {
            "{node}": parse_node_name(node),
            "{key}": parse_check_key(key),
            "{suite}": parse_suite_name(suite),
            "{tests}": ",".join(parse_test_name(test) for test in tests),
        }
        if not tests and any("{tests}" in word for word in self._commands.get("start_check", ())):
            raise SourceRefused(f"the suite {suite} names no tests; empty never means all")
        self._send("start_check", filling)

    def read_check(self, node: NodeName, *, key: ActionKey) -> NodeCheck | None:
        name, known = parse_node_name(node), parse_check_key(key)
        filling = {"{node}": name, "{key}": known}
        answer = self._ask("read_check", filling)
        if answer.returncode == EXIT_NO_RESULT and answer.stdout.strip() in _NO_RESULT:
            return None
        text = self._accepted("read_check", filling, answer)
        try:
            return check_from_json(text, node=name, key=known)
        except ValueError as exc:
            raise _nonsense("read_check", name, text, exc) from exc

    def start_install(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        """Start all of `order` by commands, whatever means its changes name: who has several means is composed."""
        word = order_word(node, order, key=key)
        self._send("start_install", {"{node}": parse_node_name(node), "{key}": parse_check_key(key), "{order}": word})

    def read_install(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        name, known = parse_node_name(node), parse_check_key(key)
        filling = {"{node}": name, "{key}": known}
        answer = self._ask("read_install", filling)
        if answer.returncode == EXIT_NO_RESULT and answer.stdout.strip() == "none":
            return None
        text = self._accepted("read_install", filling, answer)
        try:
            return report_from_json(text, node=name, key=known)
        except ValueError as exc:
            raise _nonsense("read_install", name, text, exc) from exc

    def read_versions(self, node: NodeName) -> Mapping[Component, str]:
        name = parse_node_name(node)
        text = self._send("read_versions", {"{node}": name})
        try:
            return versions_from_json(text, node=name)
        except (ValueError, RecursionError) as exc:
            raise _nonsense("read_versions", name, text, exc) from exc

    def reload_driver(self, node: NodeName) -> None:
        self._send("reload_driver", {"{node}": parse_node_name(node)})

    def power_off(self, node: NodeName) -> None:
        self._send("power_off", {"{node}": parse_node_name(node)})

    def power_on(self, node: NodeName) -> None:
        self._send("power_on", {"{node}": parse_node_name(node)})

    def power_state(self, node: NodeName) -> PowerState:
        text = self._send("power_state", {"{node}": parse_node_name(node)})
        match = re.fullmatch(r"(?:chassis power is )?(on|off|unknown)", text.strip().lower())
        if match is None:
            raise SourceNonsense(f"power_state of {node} printed {text[:120]!r}; expected on, off or unknown")
        return PowerState(match[1])

    def _send(self, act: str, filling: Mapping[str, str]) -> str:
        return self._accepted(act, filling, self._ask(act, filling))

    def _ask(self, act: str, filling: Mapping[str, str]) -> CommandAnswer:
        words = self._commands.get(act)
        if words is None:
            raise SourceRefused(f"{NOT_OFFERED} {act}; name one under fleet in cluster.yaml, or forbid the act")
        argv = [fill(word, filling) for word in words]
        return self._run(argv, environment=dict(os.environ), timeout_seconds=COMMAND_LIMIT_SECONDS)

    def _accepted(self, act: str, filling: Mapping[str, str], answer: CommandAnswer) -> str:
        """Return what the command printed; raise SourceRefused or SourceUnavailable unless it ended with 0."""
        if answer.returncode == 0:
            return answer.stdout
        said = " / ".join(answer.stderr.strip().splitlines())[:300]
        what = f"{act} of {filling['{node}']}: {self._commands[act][0]} ended with {answer.returncode}: {said}"
        if answer.returncode == EXIT_REFUSED:
            raise SourceRefused(what)
        raise SourceUnavailable(f"{what}; whether it took effect is unknown. Look at the node")


_NO_RESULT = frozenset({"running", "none"})


def _nonsense(act: str, node: NodeName, text: str, problem: Exception) -> SourceNonsense:
    return SourceNonsense(f"{act} of {node} printed {text[:120]!r}: {problem}. Run the command by hand")


def _find_faults(act: str, words: Sequence[str]) -> list[str]:
    needed = _NEEDED.get(act)
    if needed is None:
        return [f"{act!r} is no act; expected one of {', '.join(_NEEDED)}"]
    optional = _OPTIONAL.get(act, frozenset())
    faults = find_word_faults(words, needed=needed, optional=optional, unsafe={_REASON})
    used = frozenset() if isinstance(words, str) else placeholders_in(words)
    if act == "start_check" and words and not used & optional:
        faults.append("must name {suite} or {tests} among its words: empty never means all")
    if _REASON in used and any(_REASON in word and word != _REASON for word in words):
        faults.append(f"has {_REASON} inside a word; it must be a word alone")
    return [f"{act} {fault}" for fault in faults]


# -- the fleet of a site --


Reading = TypeVar("Reading")
_KEYS: Mapping[Means, str] = {
    Means.COMMAND: "fleet.start_install and fleet.read_install",
    Means.ANSIBLE: "fleet.ansible",
    Means.REDFISH: "fleet.redfish",
}
"""What cluster.yaml must say before a means is there."""


class Reboots(Protocol):
    """Restarts nodes in the place of a command. Raises as `core.cluster.Fleet` does."""

    def reboot(self, node: NodeName) -> None:
        """Restart a node that answers and runs no job. The drain survives the reboot."""
        ...


class ComposedFleet:
    """Acts on machines by commands; installs by commands, playbooks and BMCs, as far as each is configured."""

    def __init__(
        self,
        commands: CommandFleet,
        *,
        notes: InstallNotes,
        ansible: Installer | None = None,
        firmware: FirmwareInstaller | None = None,
        reboots: Reboots | None = None,
    ) -> None:
        """`reboots`: who restarts nodes; None: the site's command."""
        self._commands = commands
        self._notes = notes
        self._firmware = firmware
        self._reboots = reboots
        by_command = _ByCommand(commands) if commands.offers("start_install") else None
        found = {Means.COMMAND: by_command, Means.ANSIBLE: ansible, Means.REDFISH: firmware}
        self._installers: Mapping[Means, Installer] = {
            means: installer for means, installer in found.items() if installer is not None
        }

    # -- installations --

    def start_install(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        orders = self._by_means(order)
        note = self._notes.read(node, key=key)
        if note is None or set(note.means) != orders.keys():
            note = InstallNote(means=tuple(orders))
            self._notes.write(node, note, key=key)
        self._installers[note.present].start(node, orders[note.present], key=key)

    def read_install(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        note = self._notes.read(node, key=key)
        if note is None:
            return self._report_of_any(node, key=key)
        means = note.present
        if means not in self._installers:
            raise _not_offered(means)
        report = self._installers[means].report(node, key=key)
        if report is None and note.over:
            said = f"by {means.value} nothing is started yet"
            return InstallReport(key=key, node=node, state=InstallState.WAITING, said=said)
        if report is None or report.state is not InstallState.INSTALLED or means is note.means[-1]:
            return report
        note = replace(note, over=note.over | {means})
        self._notes.write(node, note, key=key)
        return _waiting(report, f"by {note.present.value} it continues")

    def _by_means(self, order: InstallOrder) -> Mapping[Means, InstallOrder]:
        """Return what each means is to install; raise SourceRefused where one is not offered."""
        orders = {
            means: replace(order, changes=tuple(change for change in order.changes if change.means is means))
            for means in dict.fromkeys(change.means for change in order.changes)
        }
        if not orders:
            raise SourceRefused("the order names no change; empty never means all")
        for means in orders:
            if means not in self._installers:
                raise _not_offered(means)
        return orders

    def _report_of_any(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        """Return what is reported of a key of which we have no note: whether that is all of it, nobody knows."""
        asked = [_beside(partial(each.report, node, key=key)) for each in self._installers.values()]
        reports: list[InstallReport] = []
        problems: list[SourceError] = []
        for future in asked:
            try:
                told = future.result()
            except SourceError as problem:
                problems.append(problem)
            else:
                reports += [] if told is None else [told]
        report = worst(reports) if reports else None
        if problems and (report is None or report.state is not InstallState.FAILED):
            raise problems[0]
        if report is None or report.state is not InstallState.INSTALLED or len(self._installers) == 1:
            return report
        return _waiting(report, "whether that is all of it is seen when it is asked for again")

    def read_versions(self, node: NodeName) -> Mapping[Component, str]:
        """Return what the node reports, and of firmware that it cannot tell what its BMC does.

        Where both tell, the node is believed: it runs it, a BMC may show what is only staged.
        """
        askers: list[Callable[[], Mapping[Component, str]]] = []
        if self._commands.offers("read_versions"):
            askers.append(lambda: self._commands.read_versions(node))
        firmware = self._firmware
        if firmware is not None:
            askers.append(lambda: firmware.active_versions(node))
        if not askers:
            raise SourceRefused(f"{NOT_OFFERED} read_versions; name one under fleet in cluster.yaml")
        told: dict[Component, str] = {}
        problems: list[SourceError] = []
        for future in [_beside(ask) for ask in askers]:
            try:
                told = {**future.result(), **told}
            except SourceError as problem:
                problems.append(problem)
        if len(problems) == len(askers):
            raise problems[0]
        return told

    def reload_driver(self, node: NodeName) -> None:
        self._commands.reload_driver(node)

    # -- as the commands have it --

    def inspect(self, node: NodeName) -> NodeInspection:
        return self._commands.inspect(node)

    def reset_gpu(self, node: NodeName, gpu: PciAddress) -> None:
        self._commands.reset_gpu(node, gpu)

    def reboot(self, node: NodeName, *, reason: str) -> None:
        if self._reboots is not None:
            self._reboots.reboot(node)
            return
        self._commands.reboot(node, reason=reason)

    def reimage(self, node: NodeName, *, reason: str) -> None:
        self._commands.reimage(node, reason=reason)

    def start_check(self, node: NodeName, *, suite: str, tests: Collection[str], key: ActionKey) -> None:
        self._commands.start_check(node, suite=suite, tests=tests, key=key)

    def read_check(self, node: NodeName, *, key: ActionKey) -> NodeCheck | None:
        return self._commands.read_check(node, key=key)

    def power_off(self, node: NodeName) -> None:
        self._commands.power_off(node)

    def power_on(self, node: NodeName) -> None:
        self._commands.power_on(node)

    def power_state(self, node: NodeName) -> PowerState:
        return self._commands.power_state(node)


class _ByCommand:
    """Commands as one way to install among others."""

    def __init__(self, commands: CommandFleet) -> None:
        self._commands = commands

    def start(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        self._commands.start_install(node, order, key=key)

    def report(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        return self._commands.read_install(node, key=key)


def _beside(ask: Callable[[], Reading]) -> Future[Reading]:
    """Ask in a thread of its own: each answers within the port's limit, and so do all together."""
    answer: Future[Reading] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as problem:
            answer.set_exception(problem)

    Thread(target=run, daemon=True).start()
    return answer


def _not_offered(means: Means) -> SourceRefused:
    return SourceRefused(f"{NOT_OFFERED} installing by {means.value}; set {_KEYS[means]} in cluster.yaml")


def _waiting(report: InstallReport, what_is_next: str) -> InstallReport:
    said = f"{report.said}; {what_is_next}"
    return replace(report, state=InstallState.WAITING, said=said, progress_ratio=None)
