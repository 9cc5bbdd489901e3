"""A real PostgreSQL for tests marked `live`: where it comes from, when its absence is a failure, how a commit breaks.

`start_server` skips where PostgreSQL is not installed, unless OPS_PIPELINES_REQUIRE_SERVERS=1 says it must be there.
"""

import os
import select
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import make_url

from ops_pipelines_lab.drills.postgres_server import HOST, PACKAGE, PostgresServer, find_programs
from ops_pipelines_lab.drills.stack import free_ports

_SIGNS_OF_CHANGE = (b"INSERT INTO ", b"UPDATE ", b"DELETE FROM ")
_COMMIT = b"COMMIT\0"
_CHUNK_BYTES = 65_536


@contextmanager
def start_server(*, databases: Sequence[str] = ()) -> Iterator[PostgresServer]:
    """Start a server in a directory of its own and delete it afterwards.

    Not below pytest's tmp_path: as root, the server's user may not enter that.
    """
    if find_programs() is None and os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") != "1":
        pytest.skip(f"PostgreSQL is not installed; Debian's package is {PACKAGE}")
    directory = Path(tempfile.mkdtemp(prefix="postgres-"))
    server = PostgresServer(directory, port=free_ports(1), databases=databases)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


class CommitBreaker:
    """A network between the ledger and its server that breaks when a transaction commits that changes something.

    `before` is asked before each such commit: if it returns true, the connection is cut, and the server never hears of
    the commit. `after` is asked when the commit is done: if true, it is cut, and nobody hears of the success.
    """

    def __init__(
        self, url: str, *, before: Callable[[], bool] = lambda: False, after: Callable[[], bool] = lambda: False
    ) -> None:
        self._server = make_url(url)
        self._before, self._after = before, after
        self._listener = socket.create_server((HOST, 0))
        self._clients: list[tuple[threading.Thread, socket.socket]] = []
        self._door = threading.Thread(target=self._let_in)
        self._door.start()

    @property
    def url(self) -> str:
        """The URL of the same database by way of this network."""
        port = self._listener.getsockname()[1]
        return self._server.set(port=port).render_as_string(hide_password=False)

    def close(self) -> None:
        """Cut every connection and let nobody in any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._door.join()
        self._listener.close()
        for thread, client in self._clients:
            with suppress(OSError):  # it has left
                client.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _let_in(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            thread = threading.Thread(target=self._carry, args=(client,))
            self._clients.append((thread, client))
            thread.start()

    def _carry(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection((HOST, self._server.port or 0)) as server:
            self._carry_until_cut(client, server)

    def _carry_until_cut(self, client: socket.socket, server: socket.socket) -> None:
        is_changing, is_committing = False, False
        while True:
            readable, _, _ = select.select([client, server], [], [])
            if server in readable:
                answer = server.recv(_CHUNK_BYTES)
                # The driver waits for each answer, so what follows a commit is the commit's.
                if not answer or (is_committing and self._after()):
                    return
                is_committing = False
                client.sendall(answer)
            if client in readable:
                question = client.recv(_CHUNK_BYTES)
                is_changing = is_changing or any(sign in question for sign in _SIGNS_OF_CHANGE)
                is_committing = is_changing and _COMMIT in question
                if not question or (is_committing and self._before()):
                    return
                is_changing = is_changing and not is_committing
                server.sendall(question)
