"""The `Fleet` port by commands that the operator configured: one fixed argument list for each act. Never a shell.

What the commands do on the machines is theirs; here they are filled in, run and their answers read. A command must
return when the act is accepted, within 4.5 s, and end with

    0     accepted (or answered)
    77    refused: it says no and has done nothing (EX_NOPERM of sysexits.h)
    else  whether anything happened is unknown; ssh ends with 255 if it gets no answer

`inspect` prints one JSON object; times are ISO 8601 with a zone, other keys are ignored:

    {"node": "gpu003", "boot_id": "5d2c…", "booted_at": "2026-11-21T07:00:00Z", "failures": ["/scratch is read-only"],
     "gpus": [{"pci_address": "0000:1b:00", "uuid": "GPU-…", "recovery_action": 0, "uncorrectable_ecc_count": 0,
               "is_row_remap_pending": false}]}

`power_state` prints `on`, `off` or `unknown`, or what ipmitool says (`Chassis Power is on`).
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from pydantic import AwareDatetime, BaseModel, ConfigDict, NonNegativeInt, ValidationError

from ops_pipelines.clock import Clock
from ops_pipelines.domain.identity import GpuUuid, NodeName, PciAddress, parse_node_name, parse_pci_address
from ops_pipelines.domain.observation import GpuInspection, NodeInspection, PowerState, RecoveryAction
from ops_pipelines.domain.policy import PolicyError
from ops_pipelines.ports.source_error import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.command_line import RunCommand, run_command

COMMAND_LIMIT_SECONDS = 4.5
"""A third of the lease (15 s), less some room."""
EXIT_REFUSED = 77

SSH_REBOOT = ("ssh", "-oBatchMode=yes", "-oConnectTimeout=3", "{node}", "systemctl", "--no-block", "reboot")
"""Reboot past the scheduler: the drain, its reason and its time stay as they are (seen, Slurm 22.05). The node comes
back DOWN+DRAIN, with a later boot time, and waits to be resumed."""
SLURM_REBOOT = ("scontrol", "reboot", "{node}")
"""Reboot by Slurm, once the node is idle. The drain stays, but Slurm appends ` : reboot issued` to its reason and dates
it anew (seen, 22.05): a drain that is known by its time is not recognised afterwards. Never with ASAP: that undrains a
node which was drained before (next_state_after_reboot RESUME), and with nextstate=DOWN the drain is lost as well."""

_NEEDED: Mapping[str, frozenset[str]] = {
    "inspect": frozenset({"{node}"}),
    "reset_gpu": frozenset({"{node}", "{gpu}"}),
    "reboot": frozenset({"{node}"}),
    "power_off": frozenset({"{node}"}),
    "power_on": frozenset({"{node}"}),
    "power_state": frozenset({"{node}"}),
}
"""Act -> what its words must name: a command without its target would act on something else."""
_PLACEHOLDER = re.compile(r"\{[a-z]+\}")
"""Other braces stand for themselves: a Redfish body is JSON."""
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ssh", "pdsh", "clush", "ansible", "su"})
"""Programs that hand their words to a shell, here or there. Names and addresses are safe in one, a reason is not."""


class CommandFleet:
    """The `Fleet` port over configured commands. An act without a command is refused."""

    def __init__(self, commands: Mapping[str, Sequence[str]], *, clock: Clock, run: RunCommand = run_command) -> None:
        """`commands`: act -> argument list with `{node}`, `{gpu}` (reset_gpu) and `{reason}` (reboot, a word alone).

        Raises PolicyError naming every fault.
        """
        faults = [fault for act, words in commands.items() for fault in _find_faults(act, words)]
        if faults:
            raise PolicyError("; ".join(faults))
        self._commands = {act: tuple(words) for act, words in commands.items()}
        self._clock = clock
        self._run = run

    def inspect(self, node: NodeName) -> NodeInspection:
        name = parse_node_name(node)
        text = self._send("inspect", {"{node}": name})
        try:
            document = _NodeDocument.model_validate_json(text)
            gpus = tuple(_read_gpu(gpu) for gpu in document.gpus)
        except (ValidationError, ValueError) as exc:
            raise SourceNonsense(f"inspect of {name} printed {text[:120]!r}: {exc}. Run the command by hand") from exc
        if document.node != name:
            raise SourceNonsense(f"inspect of {name} was answered by {document.node!r}; check where the command goes")
        if len({gpu.gpu for gpu in gpus}) != len(gpus):
            raise SourceNonsense(f"inspect of {name} lists a GPU twice; nothing of it is believed")
        return NodeInspection(
            node=name,
            inspected_at=self._clock.now(),
            boot_id=document.boot_id,
            booted_at=document.booted_at,
            gpus=gpus,
            failures=tuple(document.failures),
        )

    def reset_gpu(self, node: NodeName, gpu: PciAddress) -> None:
        self._send("reset_gpu", {"{node}": parse_node_name(node), "{gpu}": parse_pci_address(gpu)})

    def reboot(self, node: NodeName, *, reason: str) -> None:
        self._send("reboot", {"{node}": parse_node_name(node), "{reason}": reason})

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
        words = self._commands.get(act)
        if words is None:
            raise SourceRefused(f"no command is configured for {act}; name one, or forbid the act")
        argv = [_fill(word, filling) for word in words]
        answer = self._run(argv, environment=dict(os.environ), timeout_seconds=COMMAND_LIMIT_SECONDS)
        if answer.returncode == 0:
            return answer.stdout
        said = " / ".join(answer.stderr.strip().splitlines())[:300]
        what = f"{act} of {filling['{node}']}: {argv[0]} ended with {answer.returncode}: {said}"
        if answer.returncode == EXIT_REFUSED:
            raise SourceRefused(what)
        raise SourceUnavailable(f"{what}; whether it took effect is unknown. Look at the node")


def _find_faults(act: str, words: Sequence[str]) -> list[str]:
    needed = _NEEDED.get(act)
    if needed is None:
        return [f"{act!r} is no act; expected one of {', '.join(_NEEDED)}"]
    if isinstance(words, str) or not words:
        return [f"the command for {act} is {words!r}; expected a list of words, the program first"]
    used = {placeholder for word in words for placeholder in _PLACEHOLDER.findall(word)}
    allowed = needed | ({"{reason}"} if act == "reboot" else set())
    faults = [f"{act} has {word}, which is filled with nothing" for word in sorted(used - allowed)]
    faults += [f"{act} must name {word} among its words" for word in sorted(needed - used)]
    if _PLACEHOLDER.search(words[0]):
        faults.append(f"{act} starts with {words[0]!r}; the program must be fixed")
    if "{reason}" in used:
        if any("{reason}" in word and word != "{reason}" for word in words):
            faults.append(f"{act} has {{reason}} inside a word; it must be a word alone")
        if PurePath(words[0]).name in _SHELLS:
            faults.append(f"{act} hands {{reason}} to {words[0]}, which hands it to a shell; leave it out")
    return faults


def _fill(word: str, filling: Mapping[str, str]) -> str:
    """Fill in one pass: what is filled in is never looked at again, so a reason may say `{gpu}`."""
    return _PLACEHOLDER.sub(lambda match: filling[match[0]], word)


class _GpuDocument(BaseModel):
    model_config = ConfigDict(strict=True)

    pci_address: str
    uuid: str
    recovery_action: int
    uncorrectable_ecc_count: NonNegativeInt
    is_row_remap_pending: bool


class _NodeDocument(BaseModel):
    model_config = ConfigDict(strict=True, str_min_length=1)

    node: str
    boot_id: str
    booted_at: AwareDatetime
    gpus: list[_GpuDocument]
    failures: list[str]


def _read_gpu(document: _GpuDocument) -> GpuInspection:
    return GpuInspection(
        gpu=parse_pci_address(document.pci_address),
        gpu_uuid=GpuUuid(document.uuid),
        recovery_action=RecoveryAction(document.recovery_action),
        uncorrectable_ecc_count=document.uncorrectable_ecc_count,
        is_row_remap_pending=document.is_row_remap_pending,
    )
