"""Who may come in over the web: approval links sealed with HMAC-SHA256 (itsdangerous), and senders of alerts, by a
bearer token or a signature over the body, and how fast.

Implements `core.record.LinkSeal`. Keys and secrets are read from their files at each use, since they are rotated: a new
one holds at once and ends all links made with the old one. They are compared in constant time, and stand in no message,
no repr and no link. Without a secret nobody may hand alerts in.
"""

import hashlib
import hmac
import os
import re
import stat
import threading
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path

from itsdangerous import BadData, URLSafeSerializer

from ops_pipelines.core.identity import Digest
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.resources.config.cluster_config import WebhookSettings
from ops_pipelines.resources.documents import encode
from ops_pipelines.resources.http_access import read_secret

# -- approval links --


SHORTEST_KEY_BYTES = 32
"""As long as what HMAC-SHA256 gives: a shorter one could be guessed sooner than a signature."""
_LONGEST_KEY_BYTES = 4096
_SALT = "ops_pipelines approval link 1"
_VERSION = "1"
"""Opens each token: without it some would open with a dot, and proxies hide what does."""
_TOKEN = re.compile(_VERSION + r"[A-Za-z0-9_.-]+")


class KeyFileSeal:
    """Seals with the key in one file."""

    def __init__(self, key_file: Path) -> None:
        self._key_file = key_file

    def seal(self, says: Mapping[str, str]) -> str:
        """As the port says; raise PolicyError if the key cannot be used."""
        token = self._serializer().dumps(dict(sorted(says.items())))
        return _VERSION + (token if isinstance(token, str) else token.decode("ascii"))

    def open(self, token: str) -> Mapping[str, str] | None:
        """As the port says; raise PolicyError if the key cannot be used.

        Base64 has several texts for the same bytes: only the one that we wrote ourselves is ours, else one link would
        have several names in the ledger.
        """
        serializer = self._serializer()
        if not _TOKEN.fullmatch(token):
            return None
        try:
            says: object = serializer.loads(token.removeprefix(_VERSION))
        except BadData:
            return None
        if not isinstance(says, dict) or not all(isinstance(part, str) for pair in says.items() for part in pair):
            return None
        return says if self.seal(says) == token else None

    def digest(self, plan: IncidentPlan) -> Digest:
        """As the port says."""
        return Digest(hashlib.sha256(encode(plan).encode()).hexdigest())

    def _serializer(self) -> URLSafeSerializer:
        return URLSafeSerializer(
            read_link_key(self._key_file),
            salt=_SALT,
            signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256},
        )


def read_link_key(path: Path) -> bytes:
    """Return the key in a file; raise PolicyError if it is missing, too short, or open to others than owner and group.

    White space at its end is not part of it.
    """
    key = f"serve.link_key_file {path}"
    try:
        # Without waiting: a pipe in its place would hold us up for good.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_LONGEST_KEY_BYTES + 1) if stat.S_ISREG(mode) else b""
    except OSError as problem:
        raise PolicyError(f"{key} cannot be read: {problem.strerror or problem}. {_REMEDY}") from problem
    if not stat.S_ISREG(mode):
        raise PolicyError(f"{key} is no plain file. {_REMEDY}")
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise PolicyError(
            f"{key} has mode {stat.S_IMODE(mode):04o}: anyone who reads the key approves in anybody's name; "
            f"`chmod 0600 {path}`, or 0640 for a group of its own"
        )
    secret = text.rstrip()
    if not SHORTEST_KEY_BYTES <= len(secret) <= _LONGEST_KEY_BYTES:
        raise PolicyError(
            f"{key} holds {len(secret)} bytes; expected {SHORTEST_KEY_BYTES} to {_LONGEST_KEY_BYTES}. {_REMEDY}"
        )
    return secret


_REMEDY = "`(umask 077; openssl rand -base64 48 > FILE)` makes one"


# -- senders of alerts --


SIGNATURE_HEADER = "x-signature-256"
_SIGNATURE_PREFIX = "sha256="


class Admission(Enum):
    """What the headers alone say of a request."""

    ADMITTED = "admitted"
    NEEDS_SIGNATURE = "needs_signature"
    """It carries a signature: the body decides."""
    REFUSED = "refused"


class WebhookGate:
    """Judges senders of alerts."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._bucket = TokenBucket(per_minute_count=settings.max_requests_per_minute_count)

    def admit(self, headers: Mapping[str, str]) -> Admission:
        """Return what the headers say, names in lower case; raises SourceUnavailable if a secret cannot be read."""
        settings = self._settings
        given = headers.get("authorization", "")
        scheme, _, token = given.partition(" ")
        if settings.bearer_token_file is not None and scheme.lower() == "bearer":
            expected = read_secret(settings.bearer_token_file)
            return Admission.ADMITTED if _is_same(token.strip(), expected) else Admission.REFUSED
        if settings.hmac_key_file is not None and headers.get(SIGNATURE_HEADER, "").startswith(_SIGNATURE_PREFIX):
            return Admission.NEEDS_SIGNATURE
        return Admission.REFUSED

    def is_signed(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Return whether the body is signed with our key; raises SourceUnavailable if the key cannot be read."""
        if self._settings.hmac_key_file is None:
            return False
        key = read_secret(self._settings.hmac_key_file).encode()
        expected = _SIGNATURE_PREFIX + hmac.new(key, body, hashlib.sha256).hexdigest()
        return _is_same(headers.get(SIGNATURE_HEADER, ""), expected)

    def seconds_to_wait(self, now: datetime) -> float:
        """Return 0 and count one request, or how long until there is room for one."""
        return self._bucket.take(now)

    def why_refused(self) -> str:
        """Return what a sender must do, without telling which part was wrong."""
        settings = self._settings
        if settings.bearer_token_file is None and settings.hmac_key_file is None:
            return (
                "no secret is set for alerts, so none is taken; name serve.webhook.bearer_token_file or "
                "serve.webhook.hmac_key_file in cluster.yaml"
            )
        ways = []
        if settings.bearer_token_file is not None:
            ways.append("Authorization: Bearer with the token of serve.webhook.bearer_token_file")
        if settings.hmac_key_file is not None:
            ways.append("X-Signature-256: sha256= and the HMAC-SHA256 of the body under serve.webhook.hmac_key_file")
        return f"expected {', or '.join(ways)}"


class TokenBucket:
    """Lets so many requests a minute pass, as many at once after a minute of rest. One a process; safe in threads."""

    def __init__(self, *, per_minute_count: int) -> None:
        self._most = float(per_minute_count)
        self._left = float(per_minute_count)
        self._at: datetime | None = None
        self._lock = threading.Lock()

    def take(self, now: datetime) -> float:
        """Return 0 and take one, or the seconds until there is one. A clock set back refills nothing."""
        with self._lock:
            elapsed_seconds = 0.0 if self._at is None else max(0.0, (now - self._at).total_seconds())
            self._at = now
            self._left = min(self._most, self._left + elapsed_seconds * self._most / 60)
            if self._left >= 1:
                self._left -= 1
                return 0.0
            return (1 - self._left) * 60 / self._most


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), expected.encode())
