"""The process behind the pages on real connections: the idle, the slow and those that never read keep nobody out."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from ops_pipelines.resources import http_process
from ops_pipelines.resources.http_process import ImpatientProtocol, configure

ASKED = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = 40_000_000
"""More than the kernel keeps for a reader."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Connection]]
Serve = Callable[[Scope, Receive, Send], Awaitable[None]]


async def small(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * LARGE})


@asynccontextmanager
async def served(app: Serve = small, state: ServerState | None = None) -> AsyncIterator[Connect]:
    config, state = configure(app), state or ServerState()
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: ImpatientProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        return reader, writer

    try:
        yield connect
    finally:
        for writer in writers:
            writer.transport.abort()
        server.close()
        for task in state.tasks:
            task.cancel()
        await asyncio.sleep(0)


async def ask(connection: Connection, sent: bytes = ASKED) -> bytes:
    """Return the status line that comes back; empty where the connection was closed."""
    reader, writer = connection
    writer.write(sent)
    try:
        return (await asyncio.wait_for(reader.readline(), 5)).rstrip()
    except ConnectionError:
        return b""


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_process, "HEADER_SECONDS", 0.05)
    monkeypatch.setattr(http_process, "EXCHANGE_SECONDS", 0.15)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "], ids=["nothing", "half a header"])
def test_connection_that_does_not_ask_in_time_is_given_up(said: bytes) -> None:
    async def wait() -> bytes:
        async with served() as connect:
            return await ask(await connect(), said)

    assert asyncio.run(wait()) == b""


@pytest.mark.usefixtures("hasty")
def test_second_request_of_a_connection_is_watched_like_the_first() -> None:
    async def wait() -> tuple[bytes, bytes]:
        async with served() as connect:
            connection = await connect()
            first = await ask(connection)
            await connection[0].readuntil(b"ok")
            return first, await ask(connection, ASKED[:-2])

    assert asyncio.run(wait()) == (b"HTTP/1.1 200 OK", b"")


@pytest.mark.usefixtures("hasty")
def test_answer_that_nobody_reads_is_given_up() -> None:
    async def wait() -> int:
        state, asked = ServerState(), asyncio.Event()

        async def tell_then_answer(scope: Scope, receive: Receive, send: Send) -> None:
            asked.set()
            await large(scope, receive, send)

        async with served(tell_then_answer, state) as connect:
            reader, writer = await connect()
            writer.transport.pause_reading()
            writer.write(ASKED)
            await asyncio.wait_for(asked.wait(), 30)
            async with asyncio.timeout(30):
                while state.connections:
                    await asyncio.sleep(0.01)
            writer.transport.resume_reading()
            try:
                return len(await asyncio.wait_for(reader.read(-1), 30))
            except ConnectionError:
                return 0

    assert asyncio.run(wait()) < LARGE


def test_silent_crowd_makes_room_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_process, "MOST_CONNECTIONS", 3)

    async def crowd() -> tuple[list[bytes], bytes]:
        async with served() as connect:
            silent = [await connect() for _ in range(5)]
            answer = await ask(await connect())
            return [await ask(each) for each in silent], answer

    late, answer = asyncio.run(crowd())

    assert answer == b"HTTP/1.1 200 OK"
    assert late == [b"", b"", b"", b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK"], "the one that was silent longest goes first"


def test_requests_sent_at_once_are_answered_in_their_order() -> None:
    async def ask_thrice() -> bytes:
        async with served() as connect:
            reader, writer = await connect()
            writer.write(ASKED * 3)
            return b"".join([await reader.readuntil(b"ok") for _ in range(3)])

    assert asyncio.run(ask_thrice()).count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 40_000,
    ],
    ids=["no host", "two hosts", "two lengths", "negative length", "raw bytes", "long header"],
)
def test_request_that_can_be_read_two_ways_or_without_end_is_refused(said: bytes) -> None:
    async def wait() -> bytes:
        async with served() as connect:
            return await ask(await connect(), said)

    assert asyncio.run(wait()) == b"HTTP/1.1 400 Bad Request"


def test_addresses_are_logged_nowhere_and_the_sender_is_believed_in_nothing() -> None:
    config = configure(small)

    assert (config.access_log, config.proxy_headers, config.server_header) == (False, False, False)
