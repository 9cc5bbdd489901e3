"""The line to one BMC for the time of one call: one host, one deadline, bounded answers, nothing sent twice.

A transport adapter of requests, through which sushy speaks. What is asked, and what an answer means, is
`redfish_power`. sushy's own transport sends a POST again after a timeout and follows links to any host; a command that
cuts power must do neither, so an exchange that fails raises an error of the port, which sushy does not catch.

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
from urllib.parse import urljoin, urlsplit

from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from ops_pipelines.ports.source_error import SourceNonsense, SourceRefused, SourceUnavailable
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

    def allow(self, seconds: float) -> None:
        """Let requests through for some more time, to take leave."""
        self._ends_at = time.monotonic() + seconds
        self._is_given_up = False

    def _exchange(self, method: str, url: str, request: PreparedRequest) -> tuple[int, CaseInsensitiveDict[str], bytes]:
        if origin_of(url) != self._origin:
            raise SourceRefused(f"{self._name} points to another host or port; nothing was sent there")
        seconds = self._ends_at - time.monotonic()
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
            if self._is_given_up:
                raise SourceUnavailable(f"{self._name} took too long to connect; {method} was not sent")
            assert request.body is None or isinstance(request.body, bytes | str), "sushy sends JSON"
            connection.request(method, path, body=request.body, headers=dict(request.headers))
            response = connection.getresponse()
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
            raise SourceRefused(
                f"{self._name} refused {method} (HTTP {status}); check fleet.redfish.user, its password and its role"
            )
        if status >= 400 and status not in _FOR_SUSHY:
            said = f"{self._name} answered {method} with HTTP {status}{_said_in(body)}"
            raise SourceRefused(said) if status in _REFUSALS else SourceUnavailable(said)
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
