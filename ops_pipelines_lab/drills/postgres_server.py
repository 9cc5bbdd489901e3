"""A throw-away PostgreSQL in one directory, on loopback: made, started, stopped, killed, and its databases' URLs.

What is kept in it is Dagster's and the ledger's business. Root cannot run PostgreSQL: then the user `postgres` does,
who owns the directory. Writes reach the kernel as in production, and no further: drills end the server's processes, not
the machine, and what the kernel has outlives those.
"""

import os
import pwd
import re
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL

PACKAGE = "postgresql"
"""The Debian package that holds the programs; it also makes the user that runs them for root."""
USER = "postgres"
HOST = "127.0.0.1"
_PROGRAMS = ("initdb", "pg_ctl", "postgres")
_DEBIAN = Path("/usr/lib/postgresql")
"""Debian keeps the server's programs here, one directory a version, and not on the PATH."""
_WAIT_SECONDS = 180
_DATABASE_NAME = re.compile(r"[a-z][a-z_]*")


class PostgresServerError(RuntimeError):
    """The throw-away server could not do what was asked. The message says what is missing or which log to read."""


def find_programs() -> Path | None:
    """Return the directory of the newest server's programs, first on the PATH, then Debian's; None if there is none."""
    on_path = shutil.which("pg_ctl")
    found = [] if on_path is None else [Path(on_path).resolve().parent]
    versions = [path for path in _DEBIAN.glob("*") if path.name.isdecimal()]
    found += [path / "bin" for path in sorted(versions, key=lambda path: int(path.name), reverse=True)]
    return next((path for path in found if all((path / name).exists() for name in _PROGRAMS)), None)


def find_closed_directory(directory: Path) -> Path | None:
    """Return a directory above `directory` that the server's user could not pass through; None if there is none."""
    if os.geteuid() != 0:
        return None
    above = [path for path in directory.absolute().parents if path.exists()]
    return next((path for path in above if not path.stat().st_mode & 0o001), None)


class PostgresServer:
    """One throw-away server. Any number of objects and processes may speak of the same directory."""

    def __init__(self, directory: Path, *, port: int, databases: Sequence[str] = ()) -> None:
        """Describe the server; `databases` are made at its first start. Nothing is written yet."""
        for name in databases:
            if not _DATABASE_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no database name; write lower-case letters and underscores")
        self.directory = directory.absolute()
        self.port = port
        self.log = self.directory / "server.log"
        self._databases = tuple(databases)
        self._data = self.directory / "data"
        self._password_file = self.directory / "password"
        self._is_made = self.directory / "made"

    def url(self, database: str) -> str:
        """Return the URL of a database, with the password in it: other users of this machine shall not get in."""
        return self.url_of(database).render_as_string(hide_password=False)

    def url_of(self, database: str) -> URL:
        """Return the URL of a database in its parts; the password is known once the server was started."""
        return URL.create(
            "postgresql+psycopg2",
            username=USER,
            password=self._password_file.read_text(),
            host=HOST,
            port=self.port,
            database=database,
        )

    def start(self) -> None:
        """Make the server if need be, start it unless it runs, and return when it answers."""
        if not self._is_made.exists():
            self._make()
        if not self.is_running():
            self._write_settings()
            self._control("start", "--log", str(self.log))
        self._make_databases()

    def stop(self) -> None:
        """Cut off every client, write everything down and end. Stopping what does not run is no error."""
        self._end("fast")

    def kill(self) -> None:
        """End at once, as in a crash: nothing is written down, and the next start replays the log of writes."""
        self._end("immediate")

    def restart(self) -> None:
        """Crash and come back on the same port."""
        self.kill()
        self.start()

    def empty(self, database: str) -> None:
        """Throw away all that is in a database, under those who work with it."""
        engine = create_engine(self.url_of("postgres"), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(text(f'DROP DATABASE "{database}" WITH (FORCE)'))
        finally:
            engine.dispose()
        self._make_databases()

    def is_running(self) -> bool:
        """Return whether the server runs."""
        return self._is_made.exists() and self._run("pg_ctl", "status", *self._where).returncode == 0

    @property
    def _where(self) -> tuple[str, str]:
        return "--pgdata", str(self._data)

    def _make(self) -> None:
        self._program("initdb")
        closed = find_closed_directory(self.directory)
        if closed is not None:
            raise PostgresServerError(
                f"the user {USER}, who runs PostgreSQL for root, may not enter {closed}; use a directory that it may "
                "enter, such as one below /tmp, or do not run this as root"
            )
        owner = self._user()
        self.directory.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._data, ignore_errors=True)  # half made by a start that was interrupted
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(secrets.token_hex(16))
        if owner is not None:
            for path in (self.directory, self._password_file):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        self._must(
            *("initdb", *self._where, f"--username={USER}", f"--pwfile={self._password_file}"),
            *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"),
        )
        self._is_made.touch()

    def _write_settings(self) -> None:
        """Write where it listens: on loopback, without a socket, whose path would have to be short."""
        settings = {
            "listen_addresses": f"'{HOST}'",
            "port": str(self.port),
            "unix_socket_directories": "''",
            # A sync waits for whatever else the disk has to write; after a crash that can be minutes.
            "fsync": "off",
            # What was written since the last one is replayed after a crash.
            "checkpoint_timeout": "'30s'",
        }
        text_of_all = "".join(f"{name} = {setting}\n" for name, setting in settings.items())
        (self._data / "postgresql.auto.conf").write_text(text_of_all)

    def _make_databases(self) -> None:
        if not self._databases:
            return
        engine = create_engine(self.url_of("postgres"), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                known = set(connection.execute(text("SELECT datname FROM pg_database")).scalars())
                for name in self._databases:
                    if name not in known:
                        connection.execute(text(f'CREATE DATABASE "{name}"'))
        finally:
            engine.dispose()

    def _end(self, mode: str) -> None:
        if self.is_running():
            self._control("stop", "--mode", mode)

    def _control(self, verb: str, *options: str) -> None:
        self._must("pg_ctl", verb, *self._where, *options, "--wait", f"--timeout={_WAIT_SECONDS}")

    def _must(self, program: str, *options: str) -> None:
        done = self._run(program, *options)
        if done.returncode != 0:
            said = " ".join((done.stdout + done.stderr).split())
            raise PostgresServerError(f"{program} ended with {done.returncode}: {said}; read {self.log}")

    def _run(self, program: str, *options: str) -> subprocess.CompletedProcess[str]:
        owner = self._user()
        return subprocess.run(
            [self._program(program), *options],
            env={"PATH": os.defpath, "LANG": "C.UTF-8", "TZ": "UTC"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            user=None if owner is None else owner.pw_uid,
            group=None if owner is None else owner.pw_gid,
            extra_groups=None if owner is None else [],
        )

    def _program(self, name: str) -> str:
        programs = find_programs()
        if programs is None:
            raise PostgresServerError(f"PostgreSQL is missing; run: apt-get install --no-install-recommends {PACKAGE}")
        return str(programs / name)

    def _user(self) -> pwd.struct_passwd | None:
        """Return who runs the server; None for ourselves."""
        if os.geteuid() != 0:
            return None
        try:
            return pwd.getpwnam(USER)
        except KeyError:
            raise PostgresServerError(
                f"PostgreSQL refuses to run as root, and there is no user {USER}; run: apt-get install "
                f"--no-install-recommends {PACKAGE}, which makes it"
            ) from None
