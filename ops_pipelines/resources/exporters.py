"""Exporters scraped directly, where no store keeps their metrics: many targets at once, none of which stops the others;
and the telemetry port on any such source that knows only the present, NVML on this node among them.

The pages stay bytes; reading them is `lake.metrics.exposition`. There is no history: what an exporter says now is all.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.sources import BodyKind, MetricSource, Page, Query, Sample, SourceUnavailable
from ops_pipelines.resources.config.cluster_config import ExporterTargets
from ops_pipelines.resources.http_access import cause_of, read_secret

# -- exporters, scraped --


if TYPE_CHECKING:
    from urllib3 import PoolManager
    from urllib3.response import BaseHTTPResponse

_CHUNK_BYTES = 1 << 16
_ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=1"
_TEXT_TYPES = ("text/plain", "application/openmetrics-text", "application/octet-stream", "")
_NODE = "{node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterConfig:
    """Where exporters are, and how they are asked."""

    targets: tuple[ExporterTargets, ...]
    timeout: timedelta = timedelta(seconds=5)
    """For each target: to connect, and for each pause of its answer."""
    max_page_bytes: int = 32 << 20
    """node_exporter writes about 0.2 MB, dcgm-exporter 0.5 MB at most."""
    worker_count: int = 32
    bearer_token_file: Path | None = None
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    url: str
    node: NodeName | None

    @property
    def name(self) -> str:
        """For people: no path, which may hold a secret."""
        return urlsplit(self.url).netloc


class ScrapedExporters:
    """Reads every target once; see `core.sources.MetricSource`."""

    def __init__(self, config: ExporterConfig) -> None:
        """Raise ValueError if a target could not work, or is named twice."""
        self._config = config
        self._targets = tuple(target for group in config.targets for target in _expand(group))
        if not self._targets:
            raise ValueError("no exporter is named; give at least one target")
        if len({target.url for target in self._targets}) != len(self._targets):
            raise ValueError("an exporter is named twice; name each URL once")
        self._pools: PoolManager | None = None

    @property
    def source(self) -> str:
        return "exporters"

    @property
    def has_history(self) -> bool:
        return False

    def read_range(
        self, queries: Sequence[Query], *, start: datetime, end: datetime, step_seconds: int
    ) -> Iterator[Page]:
        """Yield one page for each target, in the order of the configuration.

        A target that did not answer, or not with the text format, is an empty page whose note says why. Raises
        SourceUnavailable after the last page if not one target answered.
        """
        if start < end:
            raise ValueError("exporters know only now: start and end must be the same grid time")
        return self._read(start) if start == end else iter(())

    def _read(self, at: datetime) -> Iterator[Page]:
        headers = {"Accept": _ACCEPT, "Accept-Encoding": "identity"}
        if self._config.bearer_token_file is not None:
            headers["Authorization"] = f"Bearer {read_secret(self._config.bearer_token_file)}"
        pools = self._pools = self._pools or self._open_pools()
        answered = 0
        last_note = ""
        waiting: deque[tuple[_Target, Future[bytes]]] = deque()
        targets = iter(self._targets)
        with ThreadPoolExecutor(self._config.worker_count, thread_name_prefix="scrape") as workers:
            while True:
                # As many pages as workers are in memory at most: the next is asked for when one was taken.
                while len(waiting) < self._config.worker_count and (target := next(targets, None)) is not None:
                    waiting.append((target, workers.submit(self._scrape, pools, target, headers)))
                if not waiting:
                    break
                target, future = waiting.popleft()
                body, notes = b"", tuple[str, ...]()
                try:
                    body = future.result()
                    answered += 1
                except _Unread as exc:
                    last_note = f"exporter {target.name}: {exc}"
                    notes = (last_note,)
                yield Page(
                    kind=BodyKind.EXPOSITION,
                    body=body,
                    source=f"exporter {target.name}",
                    start=at,
                    end=at,
                    node=target.node,
                    notes=notes,
                )
                del body, future
        if not answered:
            raise SourceUnavailable(
                f"none of {len(self._targets)} exporters answered ({last_note}); check that they run, and the network"
            )

    def _open_pools(self) -> "PoolManager":
        import urllib3

        # One connection kept for each target: no handshake in each cycle. urllib3 knows no proxy and no .netrc.
        return urllib3.PoolManager(
            num_pools=len(self._targets),
            maxsize=1,
            block=False,
            ca_certs=None if self._config.ca_file is None else str(self._config.ca_file),
        )

    def _scrape(self, pools: "PoolManager", target: _Target, headers: dict[str, str]) -> bytes:
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        seconds = self._config.timeout.total_seconds()
        try:
            response = pools.request(
                "GET",
                target.url,
                headers=headers,
                timeout=Timeout(connect=seconds, read=seconds),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            try:
                return self._read_page(response)
            finally:
                response.close()  # keeps a connection whose page was read to its end, and drops any other
        except (HTTPError, OSError) as exc:
            raise _Unread(f"no whole answer within {seconds:g} s ({cause_of(exc)})") from None

    def _read_page(self, response: "BaseHTTPResponse") -> bytes:
        if response.status != 200:
            raise _Unread(f"answered HTTP {response.status}; expected 200")
        kind = response.headers.get("Content-Type", "").split(";", 1)[0].strip().lower()
        if kind not in _TEXT_TYPES:
            raise _Unread(f"answered {kind[:60]!r}; expected Prometheus' text format")
        chunks: list[bytes] = []
        size = 0
        for chunk in response.stream(_CHUNK_BYTES):
            chunks.append(chunk)
            size += len(chunk)
            if size > self._config.max_page_bytes:
                raise _Unread(f"answered more than {self._config.max_page_bytes} bytes")
        body = b"".join(chunks)
        if body.lstrip()[:1] in (b"<", b"[") or b"\0" in body[:1024]:
            raise _Unread("answered no text format; check the URL")
        return body


class _Unread(Exception):
    """One target gave nothing that can be used; the message says why."""


def _expand(group: ExporterTargets) -> Iterator[_Target]:
    if group.nodes and _NODE not in group.url:
        raise ValueError(f"{group.url!r} is the same for every node; put {_NODE} where the name belongs")
    if not group.nodes and _NODE in group.url:
        raise ValueError(f"{group.url!r} names a node, and no nodes are given")
    for node in group.nodes or (None,):
        url = group.url if node is None else group.url.replace(_NODE, node)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError(
                f"an exporter's URL must be http(s)://host[:port]/path, without user: found {parts.netloc}"
            )
        yield _Target(url=url, node=node)


# -- telemetry of what knows only the present --


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    read_at: datetime
    """The grid time."""
    samples: tuple[Sample, ...]


class SampledTelemetry:
    """Reads the watched GPU metrics from the pages of a source, on a grid of whole steps. Safe for threads."""

    def __init__(
        self,
        open_source: Callable[[], MetricSource],
        *,
        step_seconds: int,
        look_back: timedelta = timedelta(seconds=60),
    ) -> None:
        """`open_source` is called at the first reading. A target that falls silent keeps its samples for `look_back`.

        Those keep their own times, so how stale they are is judged truthfully.
        """
        self._open_source = open_source
        self._source: MetricSource | None = None
        self._step_seconds = step_seconds
        self._look_back = look_back
        self._lock = threading.Lock()
        self._last: _Reading | None = None
        self._by_target: dict[tuple[int, str], _Reading] = {}

    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        """Return the watched series at the grid time at or before `at`; see `core.sources.Telemetry`.

        A grid time that was just answered is answered from memory: callers at one time see one truth.
        """
        seconds = int(at.timestamp())
        grid_time = datetime.fromtimestamp(seconds - seconds % self._step_seconds, UTC)
        with self._lock:
            if self._last is None or self._last.read_at != grid_time:
                self._last = _Reading(read_at=grid_time, samples=self._read(grid_time))
            return self._last.samples

    def _read(self, grid_time: datetime) -> tuple[Sample, ...]:
        from ops_pipelines.lake.metrics.pages import read_block, watched_samples

        source = self._source = self._source or self._open_source()
        samples: list[Sample] = []
        pages = source.read_range((), start=grid_time, end=grid_time, step_seconds=self._step_seconds)
        for place, page in enumerate(pages):
            # Two pages of one host have one name; the place, which is that of the configuration, distinguishes them.
            target = (place, page.source)
            block = read_block(page)
            if block.names:
                self._by_target[target] = _Reading(read_at=grid_time, samples=watched_samples(page, block))
            known = self._by_target.get(target)
            if known is not None and timedelta(0) <= grid_time - known.read_at <= self._look_back:
                samples += known.samples
        return tuple(sorted(samples, key=lambda sample: (sample.metric, sorted(sample.labels.items()))))
