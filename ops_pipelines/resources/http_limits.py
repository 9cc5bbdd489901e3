"""What one request may take of the web process: a place among those of its kind, so many bytes, so much time.

Each kind of request has places of its own, so that slow pages, slow senders and forged ones never keep health from
being told. Which kind has how many is `server`'s; connections that ask nothing are `http_process`'s.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request

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

    `remedy` says what whoever sends too much may do.
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
