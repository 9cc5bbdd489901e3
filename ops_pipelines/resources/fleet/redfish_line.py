"""The line to one BMC for the time of one call: one host, one deadline, bounded answers, nothing sent twice.

A transport adapter of requests, through which sushy speaks. Who calls, and for how long, is `redfish_call`'s; what an
answer means is for who asks (`redfish_inventory`, `redfish_update`). sushy's own transport sends a
POST again after a timeout and follows links to any host; a command that cuts power or writes firmware must do neither,
so an exchange that fails raises an error of the port, which sushy does not catch.

Imports requests: to be imported when a BMC is asked, not before.
"""

import io
import json
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Lock
from typing import IO, cast
from urllib.parse import urljoin, urlsplit

from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from ops_pipelines.core.sources import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.config.redfish_settings import RedfishSettings, origin_of

MAX_ANSWER_BYTES = 4 << 20
"""The largest system of the dumps that we have is 20 kB."""
_MAX_HOPS = 2
"""HPE's iLO sends a path without its last slash on to the one with it."""
_SAID_LENGTH = 200
_FOR_SUSHY = frozenset({404, 406})
"""A missing ActionInfo is no reason to give up, and some BMCs take no `Accept-Encoding: identity`."""
_REFUSALS = frozenset({400, 401, 403, 405, 409, 410, 412, 413, 415, 422, 428, 501})
"""The BMC says no and has done nothing. Other errors (408, 429, 500, 503) say nothing about that."""
_TOO_BUSY = frozenset({429, 503})
_LONGEST_RETRY_AFTER_SECONDS = 3600.0


class BmcRefusal(SourceRefused):
    """The BMC refused. `status`: of HTTP; `message_ids`: by which registries name its answer."""

    def __init__(self, text: str, *, status: int = 0, message_ids: frozenset[str] = frozenset()) -> None:
        super().__init__(text)
        self.status = status
        self.message_ids = message_ids


class BmcFailure(SourceUnavailable):
    """The BMC answered with an error that does not say whether anything was done.

    `retry_after_seconds`: how long it asks to be left alone; None: it does not say.
    """

    def __init__(self, text: str, *, status: int = 0, retry_after_seconds: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_seconds = retry_after_seconds

    @property
    def is_too_busy(self) -> bool:
        """Whether the BMC says that it did not even look at what it was asked (RFC 9110, RFC 6585)."""
        return self.status in _TOO_BUSY


class BmcLine(BaseAdapter):
    """Carries requests to one address until `ends_at`; every other address is refused."""

    def __init__(self, address: str, *, settings: RedfishSettings, ends_at: float) -> None:
        """`ends_at` is a `time.monotonic()`. Raises SourceUnavailable if the CA file cannot be read."""
        super().__init__()
        self._origin = origin_of(address)
        self._name = urlsplit(address).netloc
        self._context = _trust(settings) if address.startswith("https:") else None
        self._ends_at = ends_at
        self._is_given_up = False
        self._socket: socket.socket | None = None
        self._command_path = ""
        self._linger_seconds = 0.0
        self._lock = Lock()
        self.has_commanded = False
        """Whether the request that was announced (`expect_command`) may have left: then nobody may send it again."""

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: object = None,
        verify: object = True,
        cert: object = None,
        proxies: Mapping[str, str] | None = None,
    ) -> Response:
        """Return the answer to `request`, sent once. Certificates, limits and proxies of the caller count for nothing.

        Raises SourceUnavailable, SourceRefused or SourceNonsense unless the answer is a success, 404 or 406.
        """
        method, url = request.method or "GET", request.url or ""
        for _ in range(_MAX_HOPS + 1):
            status, headers, body = self._exchange(method, url, request)
            if not 300 <= status < 400:
                return self._accepted(method, url, request, status, headers, body)
            if method != "GET" or "Location" not in headers:
                raise SourceRefused(f"{self._name} sends {method} elsewhere (HTTP {status}); name its own address")
            url = urljoin(url, headers["Location"])
        raise SourceNonsense(f"{self._name} sends every request on to another path; look at its web server")

    def close(self) -> None:
        """Nothing is kept between requests."""

    def give_up(self) -> None:
        """End the exchange under way, from another thread, and send nothing more."""
        self._is_given_up = True
        if self._socket is not None:
            with suppress(OSError):
                # Past the TLS layer, whose own shutdown is not made for another thread.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def expect_command(self, path: str, *, linger_seconds: float = 0.0) -> None:
        """Watch for a POST to `path`, whose answer may be awaited `linger_seconds` longer than all others."""
        self._command_path = path
        self._linger_seconds = linger_seconds

    def leave_if_commanded(self) -> bool:
        """Return whether the command has left, so that its answer is worth waiting for; else send nothing more."""
        with self._lock:
            if self.has_commanded:
                return True
            self._is_given_up = True
        self.give_up()
        return False

    def allow(self, seconds: float) -> None:
        """Let requests through for some more time, to take leave."""
        self._ends_at = time.monotonic() + seconds
        self._is_given_up = False

    def _exchange(self, method: str, url: str, request: PreparedRequest) -> tuple[int, CaseInsensitiveDict[str], bytes]:
        if origin_of(url) != self._origin:
            raise SourceRefused(f"{self._name} points to another host or port; nothing was sent there")
        is_command = method == "POST" and bool(self._command_path) and urlsplit(url).path == self._command_path
        seconds = self._ends_at - time.monotonic() + (self._linger_seconds if is_command else 0.0)
        if self._is_given_up or seconds <= 0:
            raise SourceUnavailable(f"{self._name} answers too slowly; {method} was not sent")
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        scheme, host, port = self._origin
        connection = (
            HTTPSConnection(host, port, timeout=seconds, context=self._context)
            if scheme == "https"
            else HTTPConnection(host, port, timeout=seconds)
        )
        try:
            connection.connect()
            self._socket = connection.sock
            with self._lock:
                if self._is_given_up:
                    raise SourceUnavailable(f"{self._name} took too long to connect; {method} was not sent")
                self.has_commanded |= is_command
            # Of sushy JSON, of an image a stream that knows its length.
            body = cast("IO[bytes] | bytes | str | None", request.body)
            connection.request(method, path, body=body, headers=dict(request.headers))
            with connection.getresponse() as response:
                headers = CaseInsensitiveDict(response.getheaders())
                return response.status, headers, self._read(response)
        except ssl.SSLCertVerificationError as exc:
            raise SourceUnavailable(
                f"the certificate of {self._name} is not trusted ({exc.verify_message}); nothing was sent. "
                "Name its authority in fleet.redfish.ca_file"
            ) from None
        except OSError as exc:
            raise SourceUnavailable(f"{self._name} gave no answer to {method} ({type(exc).__name__})") from None
        except HTTPException as exc:
            raise SourceNonsense(f"{self._name} answered {method} with no HTTP ({type(exc).__name__})") from None
        finally:
            connection.close()

    def _read(self, response: HTTPResponse) -> bytes:
        body = response.read(MAX_ANSWER_BYTES + 1)
        if len(body) > MAX_ANSWER_BYTES:
            raise SourceNonsense(f"{self._name} answered more than {MAX_ANSWER_BYTES} bytes; it was not read on")
        if response.length:
            raise SourceUnavailable(f"{self._name} cut its answer off; {response.length} bytes of it are missing")
        return body

    def _accepted(
        self,
        method: str,
        url: str,
        request: PreparedRequest,
        status: int,
        headers: CaseInsensitiveDict[str],
        body: bytes,
    ) -> Response:
        if status in (401, 403):
            raise BmcRefusal(
                f"{self._name} refused {method} (HTTP {status}); check fleet.redfish.user, its password and its role",
                status=status,
            )
        if status >= 400 and status not in _FOR_SUSHY:
            said = f"{self._name} answered {method} with HTTP {status}{_said_in(body)}"
            if status in _REFUSALS:
                raise BmcRefusal(said, status=status, message_ids=_message_ids_in(body))
            raise BmcFailure(said, status=status, retry_after_seconds=_retry_after(headers))
        kind = headers.get("Content-Type", "").split(";", 1)[0].strip().lower()
        if status < 300 and method == "GET" and kind and not kind.endswith("json"):
            raise SourceNonsense(f"{self._name} answered {kind[:40]!r}; expected JSON. Is that address a BMC's?")
        answer = Response()
        answer.status_code, answer.headers, answer.url, answer.request = status, headers, url, request
        answer.raw = io.BytesIO(body)
        return answer


def _trust(settings: RedfishSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if settings.ca_file is None else str(settings.ca_file))
    except OSError as exc:
        raise SourceUnavailable(
            f"the certificates in {settings.ca_file} cannot be read ({type(exc).__name__}); check the file"
        ) from None
    if not settings.is_certificate_checked:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _said_in(body: bytes) -> str:
    """Return what an error of Redfish says, on one line; "" if the body is none."""
    try:
        error = json.loads(body)["error"]
        told = [each["Message"] for each in error.get("@Message.ExtendedInfo", ())] or [error["message"]]
        text = " / ".join(str(each) for each in told)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""
    return ": " + "".join(char if char.isprintable() else " " for char in text)[:_SAID_LENGTH]


def _message_ids_in(body: bytes) -> frozenset[str]:
    try:
        error = json.loads(body)["error"]
        told = {str(each["MessageId"]) for each in error.get("@Message.ExtendedInfo", ())} | {str(error.get("code"))}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return frozenset()
    return frozenset(each.rsplit(".", 1)[-1] for each in told)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After; a date, which a BMC's clock seldom gets right, counts as none."""
    told = headers.get("Retry-After", "").strip()
    return min(float(told), _LONGEST_RETRY_AFTER_SECONDS) if told.isascii() and told.isdecimal() else None
