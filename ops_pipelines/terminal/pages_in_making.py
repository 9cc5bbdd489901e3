"""Pages that take long: made beside the answers to others, one at a time, and remembered for the hour.

Knows names and times of pages, not what they say.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import datetime
from threading import Lock, Thread


class PageInMaking(Exception):
    """The page is being made, and takes longer than anybody waits for an answer. The message says since when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """One page on its way."""

    name: str
    hour: datetime
    since: datetime
    page: Future[str]


class PagesInMaking:
    """Pages of one kind."""

    def __init__(self, *, patience_seconds: float) -> None:
        """An asker waits up to `patience_seconds`: thousands of nodes take minutes, and proxies give up before."""
        self._patience_seconds = patience_seconds
        self._lock = Lock()
        self._making: dict[str, _Making] = {}
        """By name; the newest of each."""

    def page(self, name: str, write: Callable[[], str], *, title: str, hour: datetime, now: datetime) -> str:
        """Return the page of that name as it was made in this hour, now or before.

        `title` is how people call such pages: `the review of`. Raises PageInMaking, and what `write` raises.
        """
        making = self._make(name, write, hour=hour, now=now)
        wait([making.page], timeout=self._patience_seconds)
        if making.name != name or not making.page.done():
            raise PageInMaking(
                f"{title} {making.name} is being made since {making.since:%H:%M:%S} UTC, from weeks of the lake; "
                "ask again in half a minute"
            )
        return making.page.result()

    def _make(self, name: str, write: Callable[[], str], *, hour: datetime, now: datetime) -> _Making:
        """Return the page of this hour, made or begun now; while another one is being made, that one."""
        with self._lock:
            known = self._making.get(name)
            if known is not None and ((known.hour == hour and not _failed(known)) or not known.page.done()):
                return known
            other = next((each for each in self._making.values() if not each.page.done()), None)
            if other is not None:
                return other
            self._making = {key: each for key, each in self._making.items() if each.hour == hour}
            begun = _Making(name=name, hour=hour, since=now, page=Future())
            self._making[name] = begun
            # Ends with the process: whoever stops it does not wait for a page.
            Thread(target=_fulfil, args=(begun.page, write), name=f"page {name}", daemon=True).start()
            return begun


def _fulfil(page: Future[str], write: Callable[[], str]) -> None:
    try:
        page.set_result(write())
    except BaseException as problem:
        page.set_exception(problem)


def _failed(making: _Making) -> bool:
    return making.page.done() and making.page.exception() is not None
