"""Serves the program's own health over HTTP: `/metrics` for Prometheus, `/healthz` for everything else. Reads only.

A process of its own that answers from the ledger, so that a dead daemon shows as an old heartbeat and not as silence.
What the signs mean is `domain.health`'s business; whom to page is said in deploy/prometheus.
"""

import errno
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus

import uvicorn
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ops_pipelines.domain.health import HealthWord, VitalSigns, blind_without_ledger, judge_health
from ops_pipelines.domain.policy import Mode
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.heartbeat import read_vital_signs
from ops_pipelines.ports.ledger import LedgerError
from ops_pipelines.terminal.json_form import to_json
from ops_pipelines.terminal.status_views import HealthView, view_health

_GRACE_SECONDS = 5
_CONCURRENT_COUNT = 20
"""More requests at once are turned away with 503: a hanging database must not pile up threads without end."""

OpenCluster = Callable[[], Cluster]
"""Returns the cluster, opened once; raises LedgerError each time that its ledger cannot be opened."""


class CannotListen(RuntimeError):
    """The address cannot be listened on. The message says why and what to do."""


def build_app(open_cluster: OpenCluster) -> Starlette:
    """Return the two pages of the cluster that `open_cluster` opens. They run in threads: a database may be slow."""
    registry = CollectorRegistry()
    registry.register(_VitalSignsCollector(open_cluster))

    def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def healthz(request: Request) -> Response:
        view = _read_health(open_cluster)
        status = HTTPStatus.SERVICE_UNAVAILABLE if view.word == HealthWord.BLIND.value else HTTPStatus.OK
        return Response(to_json(view), status_code=status, media_type="application/json")

    return Starlette(routes=[Route("/metrics", metrics, methods=["GET"]), Route("/healthz", healthz, methods=["GET"])])


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, on any free port for 0; raise CannotListen if there cannot be one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as problem:
        remedy = (
            "Stop the program that listens there (`ss -ltnp` names it), or choose another with --port"
            if problem.errno == errno.EADDRINUSE
            else "Choose an address of this machine with --host, and a port that this user may open with --port"
        )
        what = (problem.strerror or str(problem)).partition(" (while")[0]
        raise CannotListen(f"cannot listen on {host} port {port}: {what}. {remedy}") from problem


def serve(app: Starlette, listening: socket.socket, *, announce: Callable[[], None]) -> None:
    """Answer on `listening` until SIGTERM or SIGINT; requests under way are finished first. Main thread only.

    `announce` is called once whoever tells this process to end is heard.
    """
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        lifespan="off",
        ws="none",
        server_header=False,
        limit_concurrency=_CONCURRENT_COUNT,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    server = uvicorn.Server(config)

    def stop(number: int, frame: object) -> None:
        # uvicorn raises the signal once more after its graceful stop: the default handler would end us as killed.
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    announce()
    server.run(sockets=[listening])


def _read_health(open_cluster: OpenCluster) -> HealthView:
    try:
        signs = read_vital_signs(open_cluster())
    except LedgerError as problem:
        return view_health(blind_without_ledger(str(problem)), None)
    return view_health(judge_health(signs), signs)


class _VitalSignsCollector(Collector):
    """Computes every metric from the ledger at the moment of the scrape."""

    def __init__(self, open_cluster: OpenCluster) -> None:
        self._open_cluster = open_cluster

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return what the ledger says; where it cannot be read only that, so that no old number passes for a new."""
        try:
            signs = read_vital_signs(self._open_cluster())
        except LedgerError:
            yield _gauge("ledger_up", "Whether the ledger could be read for this scrape.", 0)
            return
        yield _gauge("ledger_up", "Whether the ledger could be read for this scrape.", 1)
        yield from _of_the_processes(signs)
        yield from _of_the_work(signs)


def _of_the_processes(signs: VitalSigns) -> Iterator[GaugeMetricFamily]:
    beats = _gauge("heartbeat_timestamp_seconds", "When each process that watches last ended a tick.", labels=["name"])
    for beat in signs.heartbeats:
        beats.add_metric([beat.name], beat.at.timestamp())
    yield beats
    sources = _gauge("source_failing", "Whether a source did not answer when it was last asked.", labels=["source"])
    for source, problem in signs.source_problems().items():
        sources.add_metric([source], problem is not None)
    yield sources
    yield _gauge("lease_held", "Whether any process has the right to act.", signs.is_lease_held)
    yield _gauge("paused", "Whether a person has stopped new actions.", signs.pause is not None)
    modes = _gauge("mode", "The mode that the running autopilot works with.", labels=["mode"])
    for mode in Mode:
        modes.add_metric([mode.value], mode is signs.working_mode)
    yield modes


def _of_the_work(signs: VitalSigns) -> Iterator[GaugeMetricFamily]:
    yield _gauge("ledger_head", "Lines of the ledger.", signs.head_seq)
    if signs.newest_evidence_at is not None:
        newest = signs.newest_evidence_at.timestamp()
        yield _gauge("newest_evidence_timestamp_seconds", "When the evidence taken in last was observed.", newest)
    yield _gauge("undecided_evidence", "Observations taken in and not decided on yet.", signs.undecided_evidence_count)
    incidents = _gauge("open_incidents", "Incidents that are not final.", labels=["state", "response"])
    for (state, response), count in signs.open_incidents.items():
        incidents.add_metric([state.value, response.name.lower()], count)
    yield incidents
    yield _gauge("actions_without_outcome", "Actions begun, without an outcome yet.", signs.unfinished_action_count)
    begun_at = signs.oldest_unfinished_begun_at
    age_seconds = 0.0 if begun_at is None else (signs.taken_at - begun_at).total_seconds()
    yield _gauge(
        "oldest_action_without_outcome_seconds", "How long the oldest of them is under way; 0 without one.", age_seconds
    )


def _gauge(name: str, explanation: str, value: float | None = None, *, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"ops_pipelines_{name}", explanation, value=value, labels=labels or None)
