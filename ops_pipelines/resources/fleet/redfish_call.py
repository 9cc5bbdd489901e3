"""One call to the BMC of one node: who it is, how long it may take, and what an error of sushy means for the port.

A call returns within its limit whatever the BMC does, name look-up included: it is made by a thread of its own, which
is left behind, with nothing more to send, if it is late. Only the answer to a command that has left already may be
waited for longer, in the background (`AnswerPending`). What is asked is for the caller, the bytes are
`redfish_line`'s.
sushy takes half a second to import and is imported when a BMC is first asked.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

from ops_pipelines.core.identity import NodeName, parse_node_name
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.sources import SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.config.redfish_settings import NODE, Authentication, RedfishSettings, find_faults
from ops_pipelines.resources.http_access import read_secret

if TYPE_CHECKING:
    from requests import Response
    from sushy import Sushy
    from sushy.auth import AuthBase
    from sushy.connector import Connector

    from ops_pipelines.resources.fleet.redfish_line import BmcLine

Reading = TypeVar("Reading")
Document = Mapping[str, object]
_SHOWN_COUNT = 6
_SHOWN_LENGTH = 240
# Assumption: a BMC that asks for more than a minute is asked again after one, for an installation has a deadline.
_LONGEST_KEPT_AWAY_SECONDS = 60.0
_JSON_FAULTS = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


class Stream(Protocol):
    """A body that is read piece by piece, and knows its length."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[bytes]: ...

    def read(self, size: int = -1, /) -> bytes: ...


class AnswerPending(SourceUnavailable):
    """The command has left and its answer is awaited in the background; who asked need not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the BMC answered with success; `document` is empty where it says nothing."""

    status: int
    location: str
    document: Document


class BmcTalk:
    """A conversation under way. Raises errors of the port, and what sushy raises; `BmcCalls` translates that."""

    def __init__(self, node: NodeName, *, root: "Sushy", connector: "Connector", line: "BmcLine", address: str) -> None:
        self.node = node
        self.root = root
        self.line = line
        self.address = address
        self._connector = connector

    @property
    def root_document(self) -> Document:
        return _document_of(self.root.json)

    def look(self, path: str) -> Reply:
        """Return what lies at `path`; where nothing does, sushy raises ResourceNotFoundError."""
        return _reply_of(self._connector.get(path))

    def get(self, path: str) -> Document:
        return self.look(path).document

    def find(self, path: str) -> Reply | None:
        """Return what lies at `path`, None if nothing does."""
        from sushy.exceptions import ResourceNotFoundError

        try:
            return self.look(path)
        except ResourceNotFoundError:
            return None

    def command(self, path: str, body: Document, *, linger_seconds: float = 0.0) -> Reply:
        """Send one POST, once."""
        self.line.expect_command(urlsplit(urljoin(self.address, path)).path, linger_seconds=linger_seconds)
        return _reply_of(self._connector.post(path, data=dict(body)))

    def push(self, path: str, body: Stream, *, content_type: str) -> Reply:
        """Send one POST whose body is read piece by piece."""
        url = urljoin(self.address, path)
        self.line.expect_command(urlsplit(url).path)
        headers = {"Content-Type": content_type, "OData-Version": "4.0"}
        answer = self._connector._session.post(url, data=body, headers=headers)
        if answer.status_code >= 400:
            raise SourceRefused(f"the BMC does not offer to be sent an image there (HTTP {answer.status_code})")
        return _reply_of(answer)


class BmcCalls:
    """Calls the BMCs of nodes."""

    def __init__(self, settings: RedfishSettings, *, limit_seconds: float) -> None:
        """Raise PolicyError naming every fault of `settings`."""
        faults = [f"fleet.redfish.{key}: {fault}" for key, fault in find_faults(settings)]
        if faults:
            raise PolicyError("; ".join(faults))
        self.settings = settings
        self.limit_seconds = limit_seconds
        self._not_before: dict[NodeName, float] = {}

    def keep_away_as_asked(self, node: NodeName) -> None:
        """Raise SourceUnavailable as long as the BMC asked to be left alone. For what is in no hurry."""
        left = self._not_before.get(node, 0.0) - time.monotonic()
        if left > 0:
            raise SourceUnavailable(
                f"the BMC of {node} asked to be left alone for {left:.0f} s more; nothing was asked"
            )

    def ask(
        self, node: NodeName, act: Callable[[BmcTalk], Reading], *, about: str, spent_seconds: float = 0.0
    ) -> Reading:
        """Return what `act` makes of the conversation. Raises as `core.cluster.Fleet` does.

        `spent_seconds` of the limit are over already.
        """
        name = parse_node_name(node)
        ends_at = time.monotonic() + max(0.0, self.limit_seconds - spent_seconds)
        address = self.settings.address_of(name)
        if not address:
            raise SourceRefused(f"no BMC of {name} is named; add it to fleet.redfish.addresses")
        password = read_secret(self.settings.password_file)
        from ops_pipelines.resources.fleet.redfish_line import BmcLine

        line = BmcLine(address, settings=self.settings, ends_at=ends_at)
        auth = _authentication(self.settings, password)
        answer: Future[Reading] = Future()

        def converse() -> None:
            """Reading first, then take leave: a session left behind counts against the few that a BMC has."""
            try:
                answer.set_result(_talk(name, address, line=line, auth=auth, act=act))
            except BaseException as exc:
                answer.set_exception(exc)
            finally:
                line.allow(self.limit_seconds)
                _take_leave(auth)
                line.give_up()

        thread = Thread(target=converse, name=f"redfish {name}", daemon=True)
        thread.start()
        try:
            return answer.result(timeout=max(0.0, ends_at - time.monotonic()))
        except TimeoutError:
            if line.leave_if_commanded():
                raise AnswerPending(
                    f"{about} of {name}: the BMC has the command and has not answered it within "
                    f"{self.limit_seconds:g} s; whether it took effect is unknown. Look at the BMC"
                ) from None
            raise SourceUnavailable(
                f"the BMC of {name} did not answer within {self.limit_seconds:g} s; whether anything took effect is "
                "unknown. Look at the BMC"
            ) from None
        except SourceError as problem:
            seconds = min(getattr(problem, "retry_after_seconds", None) or 0.0, _LONGEST_KEPT_AWAY_SECONDS)
            self._not_before[name] = time.monotonic() + seconds
            raise _kind_of(problem)(f"{about} of {name}: {problem}") from None
        finally:
            thread.join(timeout=max(0.0, ends_at - time.monotonic()))


def choose(paths: Sequence[str], wanted: str | None, *, what: str, key: str) -> str:
    """Return the path of the one that is requested, or of the only one. Raises SourceRefused."""
    found = {path.rstrip("/").rsplit("/", 1)[-1]: path for path in paths}
    shown = ", ".join(repr(each)[:60] for each in sorted(found)[:_SHOWN_COUNT]) or "none"
    if wanted is None and len(found) == 1:
        return next(iter(found.values()))
    if wanted is None:
        raise SourceRefused(f"{len(found)} {what}s are behind the BMC ({shown}); name one in fleet.redfish.{key}")
    if wanted not in found:
        raise SourceRefused(f"no {what} {wanted} is behind the BMC, but {shown}; check fleet.redfish.{key}")
    return found[wanted]


def choose_system(talk: BmcTalk, settings: RedfishSettings) -> str:
    """Return the path of the system that is the node."""
    wanted = None if settings.system_id is None else settings.system_id.replace(NODE, talk.node)
    return choose(talk.root.get_system_collection().members_identities or (), wanted, what="system", key="system_id")


def links_in(document: Document, *keys: str) -> tuple[str, ...]:
    """Return the paths of a list of links; raise ValueError if it is none."""
    found = part(document, *keys)
    if not isinstance(found, list):
        raise ValueError(f"{'.'.join(keys)} is no list")
    paths = tuple(part(each, "@odata.id") for each in found)
    if not all(isinstance(each, str) for each in paths):
        raise ValueError(f"{'.'.join(keys)} holds what is no link")
    return tuple(str(each) for each in paths)


def part(document: object, *keys: str) -> object:
    """Return what lies under the keys, one in the other; None where nothing does."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def word(document: object, *keys: str) -> str:
    """Return the text under the keys; empty where there is none."""
    found = part(document, *keys)
    return found if isinstance(found, str) else ""


def on_one_line(text: str, length: int = _SHOWN_LENGTH) -> str:
    """Return a BMC's own words as they may be shown."""
    return "".join(char if char.isprintable() else " " for char in text)[:length]


def _talk(
    name: NodeName, address: str, *, line: "BmcLine", auth: "AuthBase", act: Callable[[BmcTalk], Reading]
) -> Reading:
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
        return act(BmcTalk(name, root=root, connector=connector, line=line, address=address))
    except SourceError:
        raise
    except (InvalidParameterValueError, MissingActionError, NotAcceptableError, ResourceNotFoundError) as exc:
        raise SourceRefused(f"the BMC does not offer it: {_shown(exc)}") from None
    except (SushyError, *_JSON_FAULTS) as exc:
        raise SourceNonsense(f"the BMC's answer is not what Redfish says: {_shown(exc)}") from None


def _reply_of(answer: "Response") -> Reply:
    content = answer.content
    document = _document_of(json.loads(content)) if content.strip() else {}
    return Reply(status=answer.status_code, location=answer.headers.get("Location", ""), document=document)


def _document_of(value: object) -> Document:
    if not isinstance(value, dict):
        raise ValueError("a document is no object")
    return value


def _kind_of(problem: SourceError) -> type[SourceError]:
    kinds = (SourceRefused, SourceNonsense, SourceUnavailable)
    return next((kind for kind in kinds if isinstance(problem, kind)), SourceError)


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


def _shown(exc: BaseException) -> str:
    """Return what an error says, on one line: parts of it are the BMC's own words."""
    return on_one_line(f"{type(exc).__name__}: {exc}")
