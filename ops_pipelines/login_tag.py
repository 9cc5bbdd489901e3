"""Who launched a run: a tag that only the web gateway's login can put there, and only on this one run.

The tag is an HMAC over name, job, run and time, so that a form, a re-execution, a back-fill or a copied tag says
nothing. Its key lies in Dagster's home, readable by its owner alone. Dagster's webserver imports this: it imports
little.
"""

import hashlib
import hmac
import os
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

LOGIN_TAG = "ops_pipelines/login"
LOGIN_SCOPE = "ops_pipelines.login"
"""Where the gateway leaves the login's name in the request's scope: no header reaches it."""
LOGIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
TAG_LIFE = timedelta(minutes=15)
"""A launch waits for seconds in its queue; a run that begins later than this is asked for again."""
_KEY_FILE = "login.key"
_KEY_BYTES = 32
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class LoginKeyError(RuntimeError):
    """The key cannot be used. The message says why, and what to do."""


def login_key(home: Path) -> bytes:
    """Return the key in Dagster's home, made if there is none; raise LoginKeyError if others may read it."""
    path = home / _KEY_FILE
    try:
        fresh = home / f".{_KEY_FILE}.{os.getpid()}"
        if not path.exists():
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(os.urandom(_KEY_BYTES))
            try:
                os.link(fresh, path)  # whole or not at all; who comes second takes the first one's
            except FileExistsError:
                pass
            finally:
                fresh.unlink()
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(_KEY_BYTES + 1)
    except OSError as problem:
        raise LoginKeyError(f"{path} cannot be used: {problem}; Dagster's home must be ours to write") from problem
    if mode & _OTHERS or len(key) != _KEY_BYTES:
        raise LoginKeyError(
            f"{path} has mode {stat.S_IMODE(mode):04o} and {len(key)} bytes; expected 0600 and {_KEY_BYTES} bytes; "
            "delete it, and a new one is made"
        )
    return key


def seal_login(key: bytes, *, name: str, job: str, run: str, now: datetime) -> str:
    """Return the tag's text: when, whose, and the seal over them, the job and the run."""
    second = int(now.timestamp())
    return f"{second}:{name}:{_seal(key, name=name, job=job, run=run, second=second)}"


def read_login(key: bytes, text: str, *, job: str, run: str, now: datetime) -> str | None:
    """Return whose login the tag tells of; None if it is not ours, of another run, or too old."""
    second, _, rest = text.partition(":")
    name, _, seal = rest.rpartition(":")
    if not (second.isascii() and second.isdecimal() and len(second) <= 12 and LOGIN_NAME.fullmatch(name)):
        return None
    expected = _seal(key, name=name, job=job, run=run, second=int(second))
    if not hmac.compare_digest(seal.encode(), expected.encode()):
        return None
    sealed_at = datetime.fromtimestamp(int(second), UTC)
    return name if abs(now - sealed_at) <= TAG_LIFE else None


def _seal(key: bytes, *, name: str, job: str, run: str, second: int) -> str:
    said = "\n".join(("ops_pipelines login 1", str(second), name, job, run))
    return hmac.new(key, said.encode(), hashlib.sha256).hexdigest()
