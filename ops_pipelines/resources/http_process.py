"""Listens and answers over HTTP such that no connection that is idle, slow or never read keeps others from an answer;
and limits what one request may take: a place among those of its kind, so many bytes, so much time.

uvicorn knows no limit for the time that a header takes, nor for an answer that nobody reads, and its own limit counts
idle connections as work: twenty that say nothing would silence it for good. Each kind of request has places of its
own, so that slow pages, slow senders and forged ones never keep health from being reported. Which kind has how many,
and what is answered, is `server`'s.
"""

import asyncio
import errno
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import cast

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

# -- limits of one request --


_LONGEST_SIZE = 12
"""Digits of a declared size: more than any machine holds."""


class RequestRefused(Exception):
    """A request that is not taken any further. The message says what was expected."""

    def __init__(self, status: HTTPStatus, words: str, *, retry_seconds: int | None = None) -> None:
        super().__init__(words)
        self.status = status
        self.retry_seconds = retry_seconds


class Places:
    """So many requests of one kind at once; for one event loop."""

    def __init__(self, count: int) -> None:
        self._left_count = count

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a place; raise RequestRefused if all are taken."""
        if self._left_count < 1:
            raise RequestRefused(
                HTTPStatus.SERVICE_UNAVAILABLE, "others are being answered; ask again in a moment", retry_seconds=1
            )
        self._left_count -= 1
        try:
            yield
        finally:
            self._left_count += 1


async def read_body(request: Request, *, most_bytes: int, seconds: float, remedy: str) -> bytes:
    """Return the body; raise RequestRefused for one that is too large or too slow, and keep no more of it.

    `remedy` says what a sender of too much may do.
    """
    too_large = RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {most_bytes} bytes; {remedy}")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or len(declared) > _LONGEST_SIZE or int(declared) > most_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                if len(body) + len(chunk) > most_bytes:
                    raise too_large
                body += chunk
    except TimeoutError:
        raise RequestRefused(HTTPStatus.REQUEST_TIMEOUT, f"expected the whole body within {seconds:g} s") from None
    except ClientDisconnect:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "the sender went away before the end of the body") from None
    return bytes(body)


# -- the process that listens --


GRACE_SECONDS = 5
MOST_CONNECTIONS = 200
"""Kept open at once: well below the 1,024 files that a process may have open unless stated otherwise."""
HEADER_SECONDS = 10.0
"""For a whole header, and for a connection that was opened to say something."""
EXCHANGE_SECONDS = 120.0
"""From the first byte of a request until its answer was read. # Assumption: a page of some MB over a poor line."""
_LONGEST_HEADER_BYTES = 16_384
"""Ours have 2 kB at most: a link's token, and what a proxy adds."""


class CannotListen(RuntimeError):
    """The address cannot be listened on. The message says why and what to do."""


class ImpatientProtocol(H11Protocol):
    """One connection: it is given up when its request does not come, or its answer is not read, in time.

    When too many are open, the one that has been silent for longest makes room.
    """

    _watch: asyncio.TimerHandle | None = None
    _is_answering = False
    """Whether the watch has seen the request come."""
    _reading: asyncio.TimerHandle | None = None
    """Runs while what was answered is not yet taken: for uvicorn an answer is out once it is buffered."""
    _silent_since = 0.0
    """By the loop's clock: when it was opened, or when it got its last answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._silent_since = self.loop.time()
        self._watch_for(HEADER_SECONDS)
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch_no_more()
        if self._reading is not None:
            self._reading.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._watch is None and not self.transport.is_closing():
            self._watch_for(HEADER_SECONDS)

    def on_response_complete(self) -> None:
        self._watch_no_more()
        self._silent_since = self.loop.time()
        if self.transport.get_write_buffer_size() and self._reading is None:
            self._reading = self.loop.call_later(EXCHANGE_SECONDS, self._give_up_unread)
        super().on_response_complete()
        if self.has_request:  # It was sent before the answer to the one before.
            self._watch_for(HEADER_SECONDS)

    @property
    def has_request(self) -> bool:
        """Whether a request has come whose answer is not yet out."""
        return self.cycle is not None and not self.cycle.response_complete

    def _watch_for(self, seconds: float) -> None:
        self._watch_no_more()
        self._watch = self.loop.call_later(seconds, self._run_out)

    def _watch_no_more(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch, self._is_answering = None, False

    def _run_out(self) -> None:
        if self.has_request and not self._is_answering:
            self._watch_for(EXCHANGE_SECONDS - HEADER_SECONDS)
            self._is_answering = True
        else:
            self.transport.abort()

    def _give_up_unread(self) -> None:
        self._reading = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _make_room(self) -> None:
        others = cast("set[ImpatientProtocol]", self.connections) - {self}
        silent = (each for each in others if not each.has_request)
        leaving = min(silent, key=lambda each: each._silent_since, default=self)
        leaving.transport.abort()
        self.connections.discard(leaving)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, on any free port for 0; raise CannotListen if there cannot be one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as problem:
        remedy = (
            "Stop the program that listens there (`ss -ltnp` names it), or choose another with --port"
            if problem.errno == errno.EADDRINUSE
            else "Choose an address of this machine with --host, and a port that this user may open with --port"
        )
        what = (problem.strerror or str(problem)).partition(" (while")[0]
        raise CannotListen(f"cannot listen on {host} port {port}: {what}. {remedy}") from problem


def configure(app: ASGIApp) -> uvicorn.Config:
    """Return how uvicorn runs: no address of a request is logged, for links in it open something."""
    return uvicorn.Config(
        app,
        http=ImpatientProtocol,
        access_log=False,
        log_level="error",  # Below stand what strangers send wrongly, a line each.
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_LONGEST_HEADER_BYTES,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


def serve(app: ASGIApp, listening: socket.socket, *, announce: Callable[[], None]) -> None:
    """Answer on `listening` until SIGTERM or SIGINT; requests under way are finished first. Main thread only.

    `announce` is called once an order to end would be heard.
    """
    server = uvicorn.Server(configure(app))

    def stop(number: int, frame: object) -> None:
        # uvicorn raises the signal once more after its graceful stop: the default handler would end us as killed.
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    announce()
    server.run(sockets=[listening])
