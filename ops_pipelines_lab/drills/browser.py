"""Asks our own pages on loopback what a person's browser asks: open an address, send a form. Renders nothing."""

import urllib.error
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

_LIMIT_SECONDS = 60.0
"""# Assumption: the weekly review, the slowest page, is made within it on two loaded cores."""
_NO_ANSWER = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What came back."""

    status: int
    """Of HTTP; 0 if nothing answered, and then `page` says why."""
    page: str

    @property
    def is_ok(self) -> bool:
        return self.status == 200


def open_page(url: str, *, form: dict[str, str] | None = None) -> Shown:
    """Return what stands at the address; with a form, what is answered to it. Raises ValueError off the loopback."""
    if urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
        raise ValueError(f"{url} is not on this machine; the drills ask nobody else")
    data = None if form is None else urlencode(form).encode()
    try:
        with urllib.request.urlopen(url, data=data, timeout=_LIMIT_SECONDS) as answer:  # noqa: S310 - loopback, see above
            return Shown(status=answer.status, page=answer.read().decode("utf-8", "replace"))
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Shown(status=refusal.code, page=refusal.read().decode("utf-8", "replace"))
    except (urllib.error.URLError, TimeoutError, ConnectionError) as problem:
        return Shown(status=_NO_ANSWER, page=str(problem))
