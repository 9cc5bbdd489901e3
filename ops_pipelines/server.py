"""The web process: health for machines, pages for people, alerts from Alertmanager. An edge: routes, and no decision.

A process of its own that answers from the ledger, so that a dead daemon shows as an old heartbeat and not as silence.
Every page asks for nothing but what it shows; what a page says is `pages`, who may hand alerts in
`resources.web_access`.
Loopback by default; in production the site's proxy is before it, with TLS and anyone who may read.

All routes stand here, with who may come, how many at once and what a failure answers: what is reachable from outside is
read in one place. That is more than 400 lines.
"""

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.health import Health, HealthWord, VitalSigns, blind_without_ledger, judge_health
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.record import ShelfError, StatementFilesError
from ops_pipelines.core.sources import LakeError, SourceError
from ops_pipelines.lake.node_names import names_of
from ops_pipelines.lake.quantities import readable
from ops_pipelines.observe.alerts import (
    NotAWebhook,
    Sender,
    read_alerts,
    read_delivery,
    reject_delivery,
    take_in_alerts,
)
from ops_pipelines.people.orders import ForgedLink, LinkRefused
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.remediate.oversight import read_vital_signs, vital_signs
from ops_pipelines.report.document import to_json
from ops_pipelines.report.html import CONTENT_SECURITY_POLICY, page_of, render
from ops_pipelines.resources.config.cluster_config import AlertmanagerSettings, ServeSettings
from ops_pipelines.resources.http_process import Places, RequestRefused, read_body
from ops_pipelines.resources.web_access import Admission, WebhookGate
from ops_pipelines.terminal.approval import LONGEST_FORM_BYTES, FormRefused, SentForm, show_plan, take_yes
from ops_pipelines.terminal.planned_pages import NoSuchRollout, RolloutPages
from ops_pipelines.terminal.served_pages import Listed, NoReview, NotThere, PageInMaking, WeeklyPages, index_document
from ops_pipelines.terminal.status import health_json
from ops_pipelines.terminal.team_pages import TeamPages
from ops_pipelines.terminal.vital_signs import VitalSignsCollector

_PLACES = {"health": 8, "pages": 10, "reviews": 4, "approvals": 8, "alerts": 4}
"""How many requests of each kind are answered at once; anyone who comes beyond is instructed to come again. A database
that hangs piles up no threads, and nothing slow keeps health from being reported. All in all fewer than the 40 threads
that there are."""
_READING_COUNT = 4
"""Bodies that are read at once, of each way to be admitted: forged signatures show only when all is read, and must not
keep those out who have the token."""
_BODY_SECONDS = 10
"""For a whole body. # Assumption: 1 MiB arrives well within it from anywhere near."""
_LATELY = timedelta(hours=24)
_MAKING_SECONDS = 30
"""After so long a page that is being made is worth another look."""
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
"""Of every answer: nothing of ours is kept by a cache, framed by another site, or taken for a script."""
OpenCluster = Callable[[], Cluster]
"""Returns the cluster, opened once, under the rules of now; raises LedgerError while its ledger cannot be opened."""


class NoSuchPage(LookupError):
    """What the address names does not exist. The message says what was asked for; it is shown, escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the routes have in hand."""

    open_cluster: OpenCluster
    settings: ServeSettings = ServeSettings()
    sender: Sender = Sender()
    """How alerts name nodes, and this cluster."""
    cluster_file: Path | None = None
    """Where the lake and the cluster's own files are found; None where only the ledger is served (tests)."""
    places: Mapping[str, Places] = field(
        default_factory=lambda: {kind: Places(count) for kind, count in _PLACES.items()}
    )


Write = Callable[[Site, Request], str]
"""Returns the whole HTML page; raises NoSuchPage, LedgerError, SourceError or LakeError. Runs in a thread."""


def build_app(
    open_cluster: OpenCluster,
    *,
    settings: ServeSettings | None = None,
    sender: Sender | None = None,
    cluster_file: Path | None = None,
) -> Starlette:
    """Return the application over the cluster that `open_cluster` opens. Routes run in threads: databases are slow."""
    site = Site(
        open_cluster=open_cluster,
        settings=settings or ServeSettings(),
        sender=sender or Sender(),
        cluster_file=cluster_file,
    )
    app = Starlette(routes=_routes(site), exception_handlers={Exception: _unforeseen})
    # Else a slash too much is answered with a redirect to whatever host the request names.
    app.router.redirect_slashes = False
    app.add_middleware(_WithHeaders)
    return app


def sender_of(alertmanager: AlertmanagerSettings | None) -> Sender:
    """Return how alerts name nodes and this cluster: as the Alertmanager of cluster.yaml does."""
    if alertmanager is None:
        return Sender()
    return Sender(node_label=alertmanager.node_label, labels=alertmanager.labels)


def _routes(site: Site) -> list[BaseRoute]:
    """Return every address that is served. A page without parameters is in `_LISTED` too: the index lists it."""
    team_pages = TeamPages(site.open_cluster, site.cluster_file)
    return [
        _metrics(site),
        _healthz(site),
        _alerts(site),
        _calendar(site),
        _page(site, "/", lambda site, request: _write_index(site, request, team_pages)),
        *_approval(site),
        _page(site, "/incidents/{incident}", _write_incident),
        *_rollouts(site),
        _page(site, "/policy-comparison", _write_policy_comparison),
        _weekly(site),
        *_teams(site, team_pages),
    ]


_LISTED: tuple[Listed, ...] = (
    Listed(
        path="rollouts", title="Rollouts", about="versions on their way through the nodes, and releases that lie ready"
    ),
    Listed(path="quotas", title="Quotas", about="who gets how many GPUs from this morning on, why, and what holds"),
    Listed(
        path="chargeback",
        title="Costs",
        about="what each GPU-hour of a month became and cost; ?month=2026-11 for another",
    ),
    Listed(path="advice", title="Advice", about="what teams could do better, and whether it was done; ?week=2026-W47"),
    Listed(
        path="placement", title="Placement", about="who waited, and what stood in pieces, on a day; ?day=2026-11-22"
    ),
    Listed(path="capacity", title="Capacity", about="what runs short when, and what to order by when; ?quarter=2026Q4"),
    Listed(path="weekly", title="Weekly review", about="reliability of the last week; ?week=2026-W47 for another"),
    Listed(
        path="policy-comparison",
        title="Policy comparison",
        about="the newest replay of history under a proposed policy",
    ),
    Listed(
        path="calendar.ics", title="Calendar", about="freezes, probations, waits, silences and repairs, to subscribe"
    ),
    Listed(path="healthz", title="Health", about="whether the autopilot sees and may act, as JSON"),
    Listed(path="metrics", title="Metrics", about="the same for Prometheus"),
)
"""What the index lists, in its order. Relative addresses: a proxy may serve us below a path."""


def _write_index(site: Site, request: Request, team_pages: TeamPages) -> str:
    cluster = site.open_cluster()
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    signs = vital_signs(cluster, state, now=now)
    document = index_document(
        cluster=cluster.name,
        health=judge_health(signs),
        incidents=state.incidents,
        lately=cluster.ledger.incidents_since(now - _LATELY),
        rollouts=state.rollouts,
        numbers=team_pages.tiles(),
        listed=_LISTED,
        has_reports=any(getattr(route, "path", "").startswith("/incidents/") for route in request.app.routes),
        now=now,
    )
    return page_of(document)


def _write_incident(site: Site, request: Request) -> str:
    from ops_pipelines.review.incident_document import incident_document
    from ops_pipelines.review.incident_report import report_on

    name = str(request.path_params["incident"])
    cluster = site.open_cluster()
    # PostgreSQL takes no zero byte, and no name of ours has one.
    incident = cluster.ledger.incident(IncidentId(name)) if name.isprintable() else None
    if incident is None:
        raise NoSuchPage(f"there is no incident {name[:80]}; `ops-pipelines incidents --all` lists the recent ones")
    return page_of(incident_document(report_on(incident, cluster)))


def _rollouts(site: Site) -> list[BaseRoute]:
    """Return the routes of rollouts: all of them, and each."""
    pages = RolloutPages()

    def write(site: Site, request: Request) -> str:
        try:
            return pages.page(str(request.path_params["rollout"]), site.open_cluster())
        except NoSuchRollout as problem:
            raise NoSuchPage(str(problem)) from problem

    return [
        _page(site, "/rollouts", lambda site, _: pages.listed(site.open_cluster())),
        _page(site, "/rollouts/{rollout}", write, kind="reviews"),
    ]


def _teams(site: Site, pages: TeamPages) -> list[BaseRoute]:
    """Return the routes of quotas, costs, advice, placement and capacity."""

    def found(write: Callable[[Request], str]) -> Write:
        def checked(_: Site, request: Request) -> str:
            try:
                return write(request)
            except NotThere as problem:
                raise NoSuchPage(str(problem)) from problem

        return checked

    def one(path: str, name: str, write: Callable[[str | None], str]) -> Route:
        return _page(site, path, found(lambda request: write(request.query_params.get(name))), kind="reviews")

    def statement(request: Request) -> Response:
        name = str(request.path_params["name"])
        try:
            content = pages.cost_file(name)
        except NotThere as problem:
            return _trouble(HTTPStatus.NOT_FOUND, str(problem))
        except (LedgerError, StatementFilesError, PolicyError) as problem:
            return _trouble(HTTPStatus.SERVICE_UNAVAILABLE, _without_paths(problem))
        media_type = "text/csv; charset=utf-8" if name.endswith(".csv") else "application/vnd.apache.parquet"
        return Response(
            content, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{name}"'}
        )

    def document(request: Request) -> Response:
        try:
            content = pages.capacity_document(request.query_params.get("quarter"))
        except NotThere as problem:
            return _told(HTTPStatus.NOT_FOUND, str(problem))
        except (LedgerError, StatementFilesError, PolicyError) as problem:
            return _told(HTTPStatus.SERVICE_UNAVAILABLE, _without_paths(problem))
        return Response(content, media_type="application/json")

    return [
        one("/quotas", "proposal", pages.quotas),
        one("/chargeback", "month", pages.costs),
        _route(site, "/chargeback/{name}", statement, kind="pages", refuse=_trouble),
        one("/advice", "week", pages.advice),
        one("/placement", "day", pages.placement),
        one("/capacity", "quarter", pages.capacity),
        _route(site, "/capacity.json", document, kind="reviews", refuse=_told),
    ]


def _write_policy_comparison(site: Site, request: Request) -> str:
    """Return the newest comparison that was published."""
    from ops_pipelines.resources.page_files import ComparisonPages
    from ops_pipelines.wiring import config_in_force

    newest = None
    if site.cluster_file is not None:
        newest = ComparisonPages(config_in_force(site.cluster_file).state_directory).newest()
    if newest is None:
        raise NoSuchPage(
            "no comparison was published yet: launch the job compare_policies, or run "
            "`ops-pipelines replay --policy FILE --publish`"
        )
    return newest


def _weekly(site: Site) -> Route:
    """Return the route of the weekly review: the page that was kept, else one that is made, where the lake is."""
    pages = WeeklyPages()

    def write(site: Site, request: Request) -> str:
        from ops_pipelines.wiring import open_observatory

        cluster_file = site.cluster_file
        if cluster_file is None:
            raise NoSuchPage("the lake is not at hand here, and a review reads it")
        try:
            return pages.page(
                request.query_params.get("week"), site.open_cluster(), lambda: open_observatory(cluster_file)
            )
        except NoReview as problem:
            raise NoSuchPage(str(problem)) from problem

    return _page(site, "/weekly", write, kind="reviews")


def _page(site: Site, path: str, write: Write, *, kind: str = "pages") -> Route:
    """Return the route of one page for people: GET only, and errors in words."""

    def answer(request: Request) -> Response:
        try:
            return HTMLResponse(write(site, request))
        except NoSuchPage as problem:
            return _trouble(HTTPStatus.NOT_FOUND, str(problem))
        except PageInMaking as problem:
            return _trouble(HTTPStatus.SERVICE_UNAVAILABLE, str(problem), retry_seconds=_MAKING_SECONDS)
        except (LedgerError, SourceError, LakeError, ShelfError, StatementFilesError, PolicyError) as problem:
            return _trouble(HTTPStatus.SERVICE_UNAVAILABLE, str(problem))

    return _route(site, path, answer, kind=kind, refuse=_trouble)


def _route(site: Site, path: str, answer: Callable[[Request], Response], *, kind: str, refuse: "Refuse") -> Route:
    """Return the route of what is answered in a thread, once there is a place for it: databases are slow."""

    async def in_turn(request: Request) -> Response:
        try:
            with site.places[kind].one():
                return await run_in_threadpool(answer, request)
        except RequestRefused as refused:
            return refuse(refused.status, str(refused), retry_seconds=refused.retry_seconds)

    return Route(path, in_turn, methods=["GET"])


def _approval(site: Site) -> list[BaseRoute]:
    """Return the routes of approval links: GET and HEAD show the plan, a POST with the form's confirmation approves."""
    path = "/approve/{token}"

    def show(request: Request) -> Response:
        return _in_words(lambda: HTMLResponse(show_plan(request.path_params["token"], site.open_cluster())))

    def take(request: Request, body: bytes) -> Response:
        form = SentForm(
            content_type=request.headers.get("content-type", ""),
            fetch_site=request.headers.get("sec-fetch-site"),
            origin=request.headers.get("origin"),
            host=request.headers.get("host", ""),
            body=body,
        )
        return _in_words(lambda: HTMLResponse(take_yes(request.path_params["token"], form, site.open_cluster())))

    async def approve(request: Request) -> Response:
        try:
            with site.places["approvals"].one():
                remedy = "the form that we gave out is shorter. Nothing was approved."
                body = await read_body(request, most_bytes=LONGEST_FORM_BYTES, seconds=_BODY_SECONDS, remedy=remedy)
                return await run_in_threadpool(take, request, body)
        except RequestRefused as refused:
            return _trouble(refused.status, str(refused), retry_seconds=refused.retry_seconds)

    return [
        _route(site, path, show, kind="approvals", refuse=_trouble),
        Route(path, approve, methods=["POST"]),
    ]


def _in_words(answer: Callable[[], Response]) -> Response:
    """Return the answer to anyone who opened an approval link, or why there is none."""
    try:
        return answer()
    except ForgedLink as problem:
        return _trouble(HTTPStatus.NOT_FOUND, str(problem))
    except LinkRefused as problem:
        return _trouble(HTTPStatus.GONE, str(problem))
    except FormRefused as problem:
        return _trouble(problem.status, str(problem))
    except ByHandRefused as problem:
        return _trouble(HTTPStatus.CONFLICT, str(problem))
    except (LedgerError, SourceError, PolicyError) as problem:
        return _trouble(HTTPStatus.SERVICE_UNAVAILABLE, _without_paths(problem))


def _without_paths(problem: Exception) -> str:
    """Return what a stranger may read of a trouble of ours: where our keys lie is the operator's to know."""
    if isinstance(problem, PolicyError):
        return "the key of the links cannot be used; `ops-pipelines check-config` says why"
    return str(problem)


def _trouble(status: HTTPStatus, words: str, *, retry_seconds: int | None = None) -> Response:
    """Return a page for a person who gets none. The connection ends, as with `_told`."""
    page = render("trouble.html", {"title": status.phrase, "words": words})
    return HTMLResponse(page, status_code=status, headers=_ending(retry_seconds))


def _ending(retry_seconds: int | None) -> dict[str, str]:
    """Return the headers with which a connection ends, so that what is left of a body is not read."""
    return {"Connection": "close"} | ({} if retry_seconds is None else {"Retry-After": str(retry_seconds)})


def _unforeseen(request: Request, problem: Exception) -> Response:
    """Answer what nobody thought of; the log has it in full, a stranger gets nothing of it."""
    answer = _trouble(
        HTTPStatus.INTERNAL_SERVER_ERROR, "this should not happen; the log of `ops-pipelines serve` has it"
    )
    answer.headers.update(_HEADERS)  # Of the answers of the outermost layer our middleware sees nothing.
    return answer


def _metrics(site: Site) -> Route:
    registry = CollectorRegistry()
    registry.register(VitalSignsCollector(site.open_cluster))

    def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return _route(site, "/metrics", metrics, kind="health", refuse=_told)


def _healthz(site: Site) -> Route:
    def healthz(request: Request) -> Response:
        health, signs = _read_health(site.open_cluster)
        status = HTTPStatus.SERVICE_UNAVAILABLE if health.word is HealthWord.BLIND else HTTPStatus.OK
        return Response(to_json(health_json(health, signs)), status_code=status, media_type="application/json")

    return _route(site, "/healthz", healthz, kind="health", refuse=_told)


def _alerts(site: Site) -> Route:
    """Return the webhook: anyone who is admitted hands in one body of Alertmanager's, once it has been read in full."""
    gate = WebhookGate(site.settings.webhook)
    one_at_a_time = threading.Lock()  # Deliveries are changes to what is remembered.
    reading = {admission: Places(_READING_COUNT) for admission in Admission}

    async def read(request: Request, admission: Admission) -> bytes:
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected Content-Type: application/json")
        most_bytes = site.settings.webhook.max_body_bytes
        remedy = "lower max_alerts in Alertmanager, or raise serve.webhook.max_body_bytes"
        with reading[admission].one():
            return await read_body(request, most_bytes=most_bytes, seconds=_BODY_SECONDS, remedy=remedy)

    async def alerts(request: Request) -> Response:
        try:
            admission = gate.admit(request.headers)
            if admission is Admission.REFUSED:
                return _told(HTTPStatus.FORBIDDEN, gate.why_refused())
            body = await read(request, admission)
            if admission is Admission.NEEDS_SIGNATURE and not gate.is_signed(request.headers, body):
                return _told(HTTPStatus.FORBIDDEN, gate.why_refused())
            wait_seconds = gate.seconds_to_wait(SystemClock().now())
            if wait_seconds > 0:
                words = "too many requests; raise group_interval, or serve.webhook.max_requests_per_minute_count"
                return _told(HTTPStatus.TOO_MANY_REQUESTS, words, retry_seconds=math.ceil(wait_seconds))
            with site.places["alerts"].one():
                return await run_in_threadpool(take, body)
        except RequestRefused as refused:
            return _told(refused.status, str(refused), retry_seconds=refused.retry_seconds)
        except (
            SourceError,
            LedgerError,
            PolicyError,
        ) as problem:  # Alertmanager tries again after a 5xx, and only then.
            return _told(HTTPStatus.SERVICE_UNAVAILABLE, str(problem))

    def take(body: bytes) -> Response:
        cluster = site.open_cluster()
        try:
            delivery = read_delivery(body)
        except NotAWebhook as problem:
            reject_delivery(str(problem), readable(body[:2_000].decode("utf-8", "replace")), cluster)
            return _told(HTTPStatus.BAD_REQUEST, str(problem))
        read = read_alerts(
            delivery,
            names=names_of(tuple(cluster.rules.topology.places)),
            sender=site.sender,
            rules=cluster.rules.catalogue.alerts,
            received_at=cluster.clock.now(),
        )
        with one_at_a_time:
            taken = take_in_alerts(read, cluster)
        return Response(to_json(taken), media_type="application/json")

    return Route("/alerts", alerts, methods=["POST"])


def _told(status: HTTPStatus, words: str, *, retry_seconds: int | None = None) -> Response:
    """Return an answer for a program: one sentence."""
    return PlainTextResponse(words + "\n", status_code=status, headers=_ending(retry_seconds))


Refuse = Callable[..., Response]
"""`_told` or `_trouble`: for a program, for a person."""


def _calendar(site: Site) -> Route:
    def calendar(request: Request) -> Response:
        from ops_pipelines.people.planned_work import planned_times
        from ops_pipelines.terminal.served_pages import MEDIA_TYPE, write_calendar

        try:
            cluster = site.open_cluster()
            feed = write_calendar(planned_times(cluster), cluster=cluster.name, now=cluster.clock.now())
        except (LedgerError, PolicyError) as problem:
            return _told(HTTPStatus.SERVICE_UNAVAILABLE, str(problem))
        return Response(feed, media_type=MEDIA_TYPE)

    return _route(site, "/calendar.ics", calendar, kind="pages", refuse=_told)


def _read_health(open_cluster: OpenCluster) -> tuple[Health, VitalSigns | None]:
    try:
        signs = read_vital_signs(open_cluster())
    except (LedgerError, PolicyError) as problem:
        return blind_without_ledger(str(problem)), None
    return judge_health(signs), signs


class _WithHeaders:
    """Puts the headers of `_HEADERS` on every answer, errors included; refuses what proxies may read otherwise.

    A body with two lengths is where a proxy and we could disagree about which request comes next (RFC 9112, 6.1).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        named = {name for name, _ in scope.get("headers", ())}
        has_two_lengths = {b"content-length", b"transfer-encoding"} <= named
        refusal = _told(HTTPStatus.BAD_REQUEST, "expected one length of the body, found two")
        await (refusal if has_two_lengths else self._app)(scope, receive, send_with_headers)
