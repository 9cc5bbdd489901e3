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

GPUs may add `model` and `serial`, the node `chassis_serial`. `power_state` prints `on`, `off` or `unknown`, or what
ipmitool says (`Chassis Power is on`). `start_check` prints what it likes; `read_check` prints the check
(`node_documents`), or `running` or `none` and ends with 4. On the node both are `ops-pipelines node-check`, found on
the PATH of the user that ssh logs in as.

`reboot` should go past the scheduler (`systemctl --no-block reboot` over ssh): the drain, its reason and its time stay
as they are; the node comes back DOWN+DRAIN, with a later boot time, and waits to be resumed. `scontrol reboot` appends
` : reboot issued` to the reason and dates the drain anew: one that is known by its time is not recognised afterwards.
With ASAP it undrains a node that was drained before (next_state_after_reboot RESUME), and with nextstate=DOWN the drain
is lost as well (all seen, Slurm 22.05).
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath

from ops_pipelines.clock import Clock
from ops_pipelines.domain.identity import ActionKey, NodeName, PciAddress, parse_node_name, parse_pci_address
from ops_pipelines.domain.node_health.node_check import NodeCheck, parse_check_key, parse_suite_name, parse_test_name
from ops_pipelines.domain.observation import NodeInspection, PowerState
from ops_pipelines.domain.policy import PolicyError
from ops_pipelines.ports.fleet import NOT_OFFERED
from ops_pipelines.ports.source_error import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.command_line import CommandAnswer, RunCommand, run_command
from ops_pipelines.resources.fleet.node_documents import check_from_json, gpus_of, parse_inspection

COMMAND_LIMIT_SECONDS = 4.5
"""A third of the lease (15 s), less some room."""
EXIT_REFUSED = 77
EXIT_NO_RESULT = 4
"""Of `read_check` alone: the tests run, or none were started under the key."""


_NEEDED: Mapping[str, frozenset[str]] = {
    "inspect": frozenset({"{node}"}),
    "reset_gpu": frozenset({"{node}", "{gpu}"}),
    "reboot": frozenset({"{node}"}),
    "reimage": frozenset({"{node}"}),
    "start_check": frozenset({"{node}", "{key}"}),
    "read_check": frozenset({"{node}", "{key}"}),
    "power_off": frozenset({"{node}"}),
    "power_on": frozenset({"{node}"}),
    "power_state": frozenset({"{node}"}),
}
"""Act -> what its words must name: a command without its target would act on something else."""
_OPTIONAL: Mapping[str, frozenset[str]] = {
    "reboot": frozenset({"{reason}"}),
    "reimage": frozenset({"{reason}"}),
    "start_check": frozenset({"{suite}", "{tests}"}),
}
_PLACEHOLDER = re.compile(r"\{[a-z]+\}")
"""Other braces stand for themselves: a Redfish body is JSON."""
_SHELLS = frozenset({
    "sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "busybox", "su", "runuser",
    "ssh", "slogin", "autossh", "sshpass", "rsh", "rexec", "rlogin", "mosh", "plink", "dbclient",
    "pdsh", "dsh", "pssh", "parallel-ssh", "parallel", "clush", "xdsh", "psh", "ansible", "salt", "salt-ssh",
})  # fmt: skip
"""Programs that hand their words to a shell, here or there. Names and addresses are safe in one, a reason is not."""


class CommandFleet:
    """The `Fleet` port over configured commands. An act without a command is refused."""

    def __init__(self, commands: Mapping[str, Sequence[str]], *, clock: Clock, run: RunCommand = run_command) -> None:
        """`commands`: act -> argument list with `{node}`, `{gpu}` (reset_gpu), `{reason}` (reboot, reimage; alone),
        `{key}` (start_check, read_check), and of start_check `{suite}` or `{tests}` (joined by commas).

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
            document = parse_inspection(text)
            gpus = gpus_of(document)
        except ValueError as exc:
            raise SourceNonsense(f"inspect of {name} printed {text[:120]!r}: {exc}. Run the command by hand") from exc
        if document.node != name:
            raise SourceNonsense(f"inspect of {name} was answered by {document.node!r}; check where the command goes")
        return NodeInspection(
            node=name,
            inspected_at=self._clock.now(),
            boot_id=document.boot_id,
            booted_at=document.booted_at,
            gpus=gpus,
            failures=tuple(document.failures),
            chassis_serial=document.chassis_serial,
        )

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
            raise SourceNonsense(
                f"read_check of {name} printed {text[:120]!r}: {exc}. Run the command by hand"
            ) from exc

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
            raise SourceRefused(f"{NOT_OFFERED} {act}; name one, or forbid the act")
        argv = [_fill(word, filling) for word in words]
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


def _find_faults(act: str, words: Sequence[str]) -> list[str]:
    needed = _NEEDED.get(act)
    if needed is None:
        return [f"{act!r} is no act; expected one of {', '.join(_NEEDED)}"]
    if isinstance(words, str) or not words:
        return [f"the command for {act} is {words!r}; expected a list of words, the program first"]
    used = {placeholder for word in words for placeholder in _PLACEHOLDER.findall(word)}
    allowed = needed | _OPTIONAL.get(act, frozenset())
    faults = [f"{act} has {word}, which is filled with nothing" for word in sorted(used - allowed)]
    faults += [f"{act} must name {word} among its words" for word in sorted(needed - used)]
    if _PLACEHOLDER.search(words[0]):
        faults.append(f"{act} starts with {words[0]!r}; the program must be fixed")
    if act == "start_check" and not used & _OPTIONAL[act]:
        faults.append("start_check must name {suite} or {tests} among its words: empty never means all")
    if "{reason}" in used:
        if any("{reason}" in word and word != "{reason}" for word in words):
            faults.append(f"{act} has {{reason}} inside a word; it must be a word alone")
        # Every word: `sudo`, `timeout 5` and `env` run what follows them, and so do a site's own wrappers.
        # A word of `env -S` holds several.
        shells = [part for word in words for part in word.split() if PurePath(part).name.lower() in _SHELLS]
        faults += [f"{act} hands {{reason}} to {word}, which hands it to a shell; leave it out" for word in shells]
    return faults


def _fill(word: str, filling: Mapping[str, str]) -> str:
    """Fill in one pass: what is filled in is never looked at again, so a reason may say `{gpu}`."""
    return _PLACEHOLDER.sub(lambda match: filling[match[0]], word)
