"""Seals approval links with HMAC-SHA256 (itsdangerous) and a key from a file. Implements `core.record.LinkSeal`.

The key is read for each link, so that a new one holds at once and ends all links made with the old one. It appears in
no message, no repr and no link.
"""

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from itsdangerous import BadData, URLSafeSerializer

from ops_pipelines.core.identity import Digest
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.resources.documents import encode

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
            f"{key} has mode {stat.S_IMODE(mode):04o}: whoever reads the key approves in anybody's name; "
            f"`chmod 0600 {path}`, or 0640 for a group of its own"
        )
    secret = text.rstrip()
    if not SHORTEST_KEY_BYTES <= len(secret) <= _LONGEST_KEY_BYTES:
        raise PolicyError(
            f"{key} holds {len(secret)} bytes; expected {SHORTEST_KEY_BYTES} to {_LONGEST_KEY_BYTES}. {_REMEDY}"
        )
    return secret


_REMEDY = "`(umask 077; openssl rand -base64 48 > FILE)` makes one"
