"""Power over Redfish: whether a node's BMC says that it has power, cutting it, giving it; and the restart of a BMC
itself, which touches nothing of the node and makes the BMC's own firmware run.

What an answer means for the port stands here. How long a call may take is `redfish_call`'s; how a BMC is reached, and
that nothing is sent twice, `redfish_line`'s; when a BMC is restarted, `redfish_update`'s.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import PowerState
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.sources import SourceRefused
from ops_pipelines.resources.commands import RunCommand, run_command
from ops_pipelines.resources.config.redfish_settings import POWER_ACTS, RedfishSettings
from ops_pipelines.resources.fleet.command_fleet import COMMAND_LIMIT_SECONDS, CommandFleet
from ops_pipelines.resources.fleet.redfish_call import Answer, BmcCalls, BmcTalk, choose_system, part, word
from ops_pipelines.resources.fleet.redfish_inventory import choose_manager

# -- power of the node --


if TYPE_CHECKING:
    from sushy.resources.system.system import System

_STATES = {"On": PowerState.ON, "Off": PowerState.OFF}
"""All else (PoweringOn, PoweringOff, Paused, nothing) is on its way, or not told."""


class RedfishPower:
    """Asks the BMC of a node. Raises as `core.machines.Fleet` does."""

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

    def _ask(self, node: NodeName, act: Callable[["System"], Answer]) -> Answer:
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
