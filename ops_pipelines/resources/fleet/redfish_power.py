"""Power over Redfish: whether a node's BMC says that it has power, cutting it, giving it. sushy knows the protocol.

What an answer means for the port stands here; how a BMC is reached, and that nothing is sent twice, is `redfish_line`.
A call returns within 4.5 s whatever the BMC does, name look-up included: it is made by a thread of its own, which is
left behind, with nothing more to send, if it is late. sushy takes half a second to import and is imported when a BMC
is first asked.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from ops_pipelines.clock import Clock
from ops_pipelines.domain.identity import NodeName, parse_node_name
from ops_pipelines.domain.observation import PowerState
from ops_pipelines.domain.policy import PolicyError
from ops_pipelines.ports.source_error import SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.command_line import RunCommand, run_command
from ops_pipelines.resources.config.redfish_settings import (
    NODE,
    POWER_ACTS,
    Authentication,
    RedfishSettings,
    find_faults,
)
from ops_pipelines.resources.fleet.node_commands import COMMAND_LIMIT_SECONDS, CommandFleet
from ops_pipelines.resources.prometheus.connection import read_secret

if TYPE_CHECKING:
    from sushy.auth import AuthBase
    from sushy.resources.system.system import System

    from ops_pipelines.resources.fleet.redfish_line import BmcLine

Answer = TypeVar("Answer")
_STATES = {"On": PowerState.ON, "Off": PowerState.OFF}
"""All else (PoweringOn, PoweringOff, Paused, nothing) is on its way, or not told."""
_SHOWN_SYSTEM_COUNT = 6
_SHOWN_LENGTH = 240


class RedfishPower:
    """Asks the BMC of a node. Raises as `ports.fleet.Fleet` does."""

    def __init__(self, settings: RedfishSettings, *, limit_seconds: float = COMMAND_LIMIT_SECONDS) -> None:
        """Raise PolicyError naming every fault of `settings`."""
        faults = [f"fleet.redfish.{key}: {fault}" for key, fault in find_faults(settings)]
        if faults:
            raise PolicyError("; ".join(faults))
        self._settings = settings
        self._limit_seconds = limit_seconds

    def power_state(self, node: NodeName) -> PowerState:
        return self._ask(node, lambda system: _STATES.get(_told_by(system), PowerState.UNKNOWN))

    def power_off(self, node: NodeName) -> None:
        """Cut the power at once (ForceOff); a system that is off is left alone."""
        self._ask(node, lambda system: _reset(system, "ForceOff", needless={"Off"}))

    def power_on(self, node: NodeName) -> None:
        """Give power (On); a system that has it, or is getting it, is left alone."""
        self._ask(node, lambda system: _reset(system, "On", needless={"On", "PoweringOn"}))

    def _ask(self, node: NodeName, act: Callable[["System"], Answer]) -> Answer:
        name = parse_node_name(node)
        ends_at = time.monotonic() + self._limit_seconds
        address = self._settings.address_of(name)
        if not address:
            raise SourceRefused(f"no BMC of {name} is named; add it to fleet.redfish.addresses")
        password = read_secret(self._settings.password_file)
        from ops_pipelines.resources.fleet.redfish_line import BmcLine

        line = BmcLine(address, settings=self._settings, ends_at=ends_at)
        auth = _authentication(self._settings, password)
        answer: Future[Answer] = Future()

        def converse() -> None:
            """Answer first, then take leave: a session left behind counts against the few that a BMC has."""
            try:
                answer.set_result(self._talk(name, address, line=line, auth=auth, act=act))
            except BaseException as exc:
                answer.set_exception(exc)
            finally:
                line.allow(self._limit_seconds)
                _take_leave(auth)
                line.give_up()

        thread = Thread(target=converse, name=f"redfish {name}", daemon=True)
        thread.start()
        try:
            return answer.result(timeout=max(0.0, ends_at - time.monotonic()))
        except TimeoutError:
            line.give_up()
            raise SourceUnavailable(
                f"the BMC of {name} did not answer within {self._limit_seconds:g} s; whether anything took effect is "
                "unknown. Look at the BMC"
            ) from None
        except SourceError as problem:
            raise type(problem)(f"power of {name}: {problem}") from None
        finally:
            thread.join(timeout=max(0.0, ends_at - time.monotonic()))

    def _talk(
        self, name: NodeName, address: str, *, line: "BmcLine", auth: "AuthBase", act: Callable[["System"], Answer]
    ) -> Answer:
        from sushy import Sushy
        from sushy.connector import Connector
        from sushy.exceptions import (
            InvalidParameterValueError,
            MissingActionError,
            NotAcceptableError,
            ResourceNotFoundError,
            SushyError,
        )

        # Whatever it says comes back to us as an error; its log would show a BMC's text as it is.
        logging.getLogger("sushy").setLevel(logging.CRITICAL)
        connector = Connector(address)
        session = connector._session
        session.trust_env = False  # a .netrc could add a password
        for scheme in ("http://", "https://"):
            session.mount(scheme, line)
        try:
            root = Sushy(address, auth=auth, connector=connector)
            identity = self._choose(name, root.get_system_collection().members_identities or ())
            return act(root.get_system(identity))
        except SourceError:
            raise
        except (InvalidParameterValueError, MissingActionError, NotAcceptableError, ResourceNotFoundError) as exc:
            raise SourceRefused(f"the BMC does not offer it: {_shown(exc)}") from None
        except (SushyError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as exc:
            raise SourceNonsense(f"the BMC's answer is not what Redfish says: {_shown(exc)}") from None

    def _choose(self, name: NodeName, systems: Sequence[str]) -> str:
        """Return the path of the system that is the node."""
        wanted = None if self._settings.system_id is None else self._settings.system_id.replace(NODE, name)
        found = {path.rsplit("/", 1)[-1]: path for path in systems}
        shown = ", ".join(repr(each)[:60] for each in sorted(found)[:_SHOWN_SYSTEM_COUNT]) or "none"
        if wanted is None and len(found) == 1:
            return next(iter(found.values()))
        if wanted is None:
            raise SourceRefused(
                f"{len(found)} systems are behind the BMC ({shown}); name one in fleet.redfish.system_id"
            )
        if wanted not in found:
            raise SourceRefused(f"no system {wanted} is behind the BMC, but {shown}; check fleet.redfish.system_id")
        return found[wanted]


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


def _authentication(settings: RedfishSettings, password: str) -> "AuthBase":
    from sushy.auth import BasicAuth, SessionAuth

    if settings.authentication is Authentication.SESSION:
        return SessionAuth(settings.user, password)
    # As bytes, for requests writes text as Latin-1.
    return BasicAuth(settings.user.encode(), password.encode())


def _take_leave(auth: "AuthBase") -> None:
    """Close the session, if one was opened. A BMC that does not answer now ends it by itself, sooner or later."""
    with suppress(Exception):
        auth.close()


def _told_by(system: "System") -> str:
    return "" if system.power_state is None else str(system.power_state.value)


def _shown(exc: BaseException) -> str:
    """Return what an error says, on one line: parts of it are the BMC's own words."""
    return "".join(char if char.isprintable() else " " for char in f"{type(exc).__name__}: {exc}")[:_SHOWN_LENGTH]


def _reset(system: "System", value: str, *, needless: set[str]) -> None:
    from sushy import ResetType

    if _told_by(system) not in needless:
        system.reset_system(ResetType(value))
