"""Who may hand alerts in, and how fast: a bearer token or a signature over the body, and a bucket of requests.

Without a secret nobody may. Secrets are read from their files at each request, since they are rotated; they are
compared in constant time and stand in no message.
"""

import hashlib
import hmac
import threading
from collections.abc import Mapping
from datetime import datetime
from enum import Enum

from ops_pipelines.resources.config.cluster_config import WebhookSettings
from ops_pipelines.resources.prometheus.connection import read_secret

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
