"""The logs port on Grafana Loki's HTTP API: lines of nodes or jobs, followed by their time.

Tested against a fake server that behaves as Loki's documentation of `/loki/api/v1/query_range` says; no real Loki was
at hand. Asks and hands on: what a line means is `lake`. Secrets are read from files at each question, sent in
headers only, and stand in no message.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

from ops_pipelines.clock import Clock
from ops_pipelines.core.sources import LogBatch, LogLine, SourceNonsense
from ops_pipelines.resources.config.cluster_config import LokiSettings
from ops_pipelines.resources.http_access import HttpAccess

_PATH = "/loki/api/v1/query_range"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_ANSWER_BYTES = 256 * 1024 * 1024
_MAX_WINDOWS = 400
"""Windows asked in one reading. Each is one question, and an empty one costs Loki little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cursor:
    """Everything before `nanoseconds` was read, and of that very moment the lines with these digests."""

    nanoseconds: int
    seen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    nanoseconds: int
    labels: Mapping[str, str]
    text: str

    @property
    def digest(self) -> str:
        """Tell the entries of one moment apart. Loki itself drops an equal line of the same stream and time."""
        stream = json.dumps(sorted(self.labels.items()))
        return hashlib.sha256(f"{stream}\n{self.text}".encode(errors="backslashreplace")).hexdigest()[:16]


class LokiLogs:
    """Follows what one LogQL query selects, forward in time.

    Several lines may have the same nanosecond: the cursor holds the digests of those that were handed on, so that a
    batch may end between them. Lines that reach Loki later than `settle` with an earlier time are not seen.
    """

    def __init__(self, settings: LokiSettings, *, clock: Clock, source: str = "kernel_log") -> None:
        """Raise ValueError if the settings could not work: no URL, a secret in it, or two credentials."""
        self._access = HttpAccess(settings, url=settings.url, system="Loki", tenant=settings.tenant)
        if not settings.query.strip().startswith("{"):
            raise ValueError(f'{settings.query!r} selects no streams; expected LogQL such as {{job="kernel"}}')
        if settings.window <= timedelta(0) or settings.max_page_lines < 2:
            raise ValueError("window must be above 0, and max_page_lines at least 2")
        self._settings = settings
        self._url = self._access.url
        self._clock = clock
        self._source = source

    @property
    def source(self) -> str:
        return self._source

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        """Return the next lines in the order of their times; see `core.sources.Logs`."""
        now = self._clock.now()
        end = _nanoseconds(now - self._settings.settle)
        beginning = _Cursor(nanoseconds=_nanoseconds(now - self._settings.look_back))
        place = beginning if cursor is None else _load(cursor)
        window = self._settings.window // timedelta(microseconds=1) * 1000
        notes: tuple[str, ...] = ()
        for _ in range(_MAX_WINDOWS):
            if place.nanoseconds >= end:
                break
            stop = min(place.nanoseconds + window, end)
            entries, is_stuck = self._read_page(place, stop=stop, max_lines=max_lines)
            if entries:
                place = _behind(place, entries)
                return LogBatch(lines=self._lines(entries), cursor=_dump(place), notes=notes)
            if is_stuck:
                # The server gives no more of one moment than a page. Continuing loses the rest of it, and says so.
                notes = (
                    f"more than {self._settings.max_page_lines} lines have the time {place.nanoseconds} ns; the rest "
                    "of that moment is lost: raise max_entries_limit_per_query and max_page_lines",
                )
                place = _Cursor(nanoseconds=place.nanoseconds + 1)
                continue
            place = _Cursor(nanoseconds=stop) if stop > place.nanoseconds else place
        return LogBatch(lines=(), cursor=_dump(place), notes=notes)

    def _read_page(self, place: _Cursor, *, stop: int, max_lines: int) -> tuple[list[_Entry], bool]:
        """Return the next unread entries below `stop`, and whether a page was full of nothing but read ones."""
        limit = min(max_lines + len(place.seen), self._settings.max_page_lines)
        while True:
            page = self._ask(start=place.nanoseconds, stop=stop, limit=limit)
            page.sort(key=lambda entry: (entry.nanoseconds, entry.digest))
            is_full = len(page) >= limit
            if is_full and page[-1].nanoseconds == page[0].nanoseconds and limit < self._settings.max_page_lines:
                # Which of several lines of one moment a page holds is the server's choice: ask for all of them.
                limit = min(limit * 4, self._settings.max_page_lines)
                continue
            if is_full and page[-1].nanoseconds > page[0].nanoseconds:
                # The last moment may continue behind the page; it is read whole with the next one.
                last = page[-1].nanoseconds
                page = [entry for entry in page if entry.nanoseconds < last]
            seen = Counter(place.seen)
            unread = [entry for entry in page if not _is_seen(entry, place, seen)]
            if unread or not is_full:
                return unread[:max_lines], False
            if page and page[-1].nanoseconds > place.nanoseconds:
                return [], False
            if limit >= self._settings.max_page_lines:
                return [], True
            limit = min(limit * 4, self._settings.max_page_lines)

    def _lines(self, entries: Sequence[_Entry]) -> tuple[LogLine, ...]:
        return tuple(
            LogLine(
                node=_node(entry.labels, self._settings.node_labels),
                written_at=_EPOCH + timedelta(microseconds=entry.nanoseconds // 1000),
                position=f"{entry.nanoseconds}:{entry.digest}",
                text=entry.text.removesuffix("\n").removesuffix("\r"),
                job=None if self._settings.job_label is None else entry.labels.get(self._settings.job_label),
            )
            for entry in entries
        )

    def _ask(self, *, start: int, stop: int, limit: int) -> list[_Entry]:
        from requests import RequestException

        parameters = {
            "query": self._settings.query,
            "start": str(start),
            "end": str(stop),
            "limit": str(limit),
            "direction": "forward",
        }
        with self._access.open({"Accept": "application/json"}) as session:
            try:
                with session.get(
                    f"{self._url}{_PATH}",
                    params=parameters,
                    timeout=self._access.timeout_seconds,
                    allow_redirects=False,
                    stream=True,
                ) as answer:
                    status = answer.status_code
                    body = _read_body(answer.iter_content(1 << 20), url=self._url) if status == 200 else b""
            except (RequestException, OSError) as exc:
                raise self._access.silence(exc) from None
        if status != 200:
            raise self._access.refusal(status, path=_PATH, refused="the query; check the LogQL, window and limit")
        return _entries(body, url=self._url)


def _is_seen(entry: _Entry, place: _Cursor, seen: Counter[str]) -> bool:
    """Return whether the cursor holds this entry; of equal ones, each as often as it was handed on."""
    if entry.nanoseconds < place.nanoseconds:
        return True
    if entry.nanoseconds > place.nanoseconds or not seen[entry.digest]:
        return False
    seen[entry.digest] -= 1
    return True


def _behind(place: _Cursor, entries: Sequence[_Entry]) -> _Cursor:
    last = entries[-1].nanoseconds
    earlier = place.seen if last == place.nanoseconds else ()
    return _Cursor(nanoseconds=last, seen=(*earlier, *(entry.digest for entry in entries if entry.nanoseconds == last)))


def _dump(place: _Cursor) -> str:
    return json.dumps({"version": 1, "ns": place.nanoseconds, "seen": list(place.seen)}, separators=(",", ":"))


def _load(cursor: str) -> _Cursor:
    try:
        document = json.loads(cursor)
        seen = document["seen"]
        if document["version"] != 1 or type(document["ns"]) is not int or document["ns"] < 0:
            raise ValueError("an unknown version, or no time")
        if not isinstance(seen, list) or not all(isinstance(digest, str) for digest in seen):
            raise ValueError("no list of digests")
        return _Cursor(nanoseconds=document["ns"], seen=tuple(seen))
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise SourceNonsense(f"the Loki cursor cannot be read ({exc}); delete it to read from the beginning") from exc


def _nanoseconds(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000


def _node(labels: Mapping[str, str], names: Iterable[str]) -> str | None:
    for name in names:
        value = labels.get(name)
        if value:
            host, _, port = value.rpartition(":")
            return host if host and ":" not in host and port.isdigit() else value
    return None


def _read_body(chunks: Iterable[bytes], *, url: str) -> bytes:
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > _MAX_ANSWER_BYTES:
            raise SourceNonsense(f"{url} answered more than {_MAX_ANSWER_BYTES} bytes; make max_page_lines smaller")
    return bytes(body)


def _entries(body: bytes, *, url: str) -> list[_Entry]:
    try:
        data = json.loads(body)["data"]
        if data["resultType"] != "streams":
            raise ValueError(f"a result of type {str(data['resultType'])[:40]!r}; the query must select log lines")
        found: list[_Entry] = []
        for stream in data["result"]:
            labels = {str(name): str(value) for name, value in cast("dict[str, object]", stream["stream"]).items()}
            for value in stream["values"]:
                # A third element holds structured metadata; the first two are the time and the line.
                nanoseconds, text = int(value[0]), value[1]
                if not isinstance(text, str) or not 0 <= nanoseconds < 1 << 63:
                    raise ValueError("an entry without text, or with an impossible time")
                found.append(_Entry(nanoseconds=nanoseconds, labels=labels, text=text))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as exc:
        raise SourceNonsense(f"{url} answered, but no Loki streams ({type(exc).__name__}: {str(exc)[:120]})") from None
    return found
