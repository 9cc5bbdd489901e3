"""Collects the evidence of an incident and has it kept, before its first act and whenever it opens or changes.

Nothing here decides or acts, and nothing here may hold up an act. Before one, what is at hand is copied and nothing
else: what the lake knows around it, and pictures, come with the bundle of the next run. The lake is given a limited
time then, and the directory that bundles are kept in always, each in a thread of its own; what could not be had is
named in the bundle, and a bundle that could not be kept is noted on the incident, in the ledger, while the plan
continues.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from threading import Event, Thread

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.fault import ComponentKind
from ops_pipelines.core.identity import IncidentId, JobId, NodeName, PlanId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import NO_NODE, JobStatus, NodeStatus
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.record import BundleError, Recalled, RecalledLine, Recollection, SavedBundle

OPENED, CHANGED = "opened", "changed"
MARGIN = timedelta(minutes=10)
"""How far before its first and after its last evidence we look around an incident."""
_LONGEST_WINDOW = timedelta(hours=1)
MAX_LINES = 2_000
_MAX_WINDOW_NODES, _MAX_WINDOW_JOBS, _MAX_STATE_NODES = 16, 16, 512
PATIENCE_WITH_THE_DISK = timedelta(seconds=0.5)
"""How long acts wait for the directory of bundles, however many plans begin together. Some KB take milliseconds."""
PATIENCE_OF_A_RUN = timedelta(seconds=30)
_LONGEST_TEXT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Surroundings:
    """What the lake has of an incident, as files."""

    lines: tuple[RecalledLine, ...] = ()
    files: Mapping[str, bytes]
    driver_versions: tuple[str, ...] = ()
    missing: tuple[str, ...]


_LATER = _Surroundings(files={}, missing=("lines and metrics around the event: nobody looks for them before an act",))


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleReport:
    """What became of the bundles of one pass."""

    saved: Mapping[IncidentId, SavedBundle]
    problems: Mapping[IncidentId, str]
    newest: Mapping[IncidentId, SavedBundle] = field(default_factory=dict)
    """The newest bundle of each incident that was looked at, saved now or earlier."""


def reason_before(plan: PlanId) -> str:
    """Return the reason of the bundle that is saved before a plan's first act."""
    return f"before-{plan}"


def save_before_acting(
    begun: Collection[tuple[Incident, IncidentPlan]],
    cluster: Cluster,
    *,
    nodes: Mapping[NodeName, NodeStatus],
    jobs: Mapping[JobId, JobStatus],
) -> BundleReport:
    """Keep the evidence of incidents whose plans are about to begin; return what was kept and what was not.

    Raises nothing. Takes at most PATIENCE_WITH_THE_DISK, however many begin, and asks the lake nothing.
    """
    wanted = [_Wanted(incident=incident, plan=plan, reason=reason_before(plan.plan)) for incident, plan in begun]
    return _save_all(wanted, cluster, nodes=nodes, jobs=jobs, looking=None, writing=PATIENCE_WITH_THE_DISK)


def save_as_it_is(
    incidents: Iterable[Incident],
    cluster: Cluster,
    *,
    nodes: Collection[NodeStatus],
    jobs: Collection[JobStatus],
    but: Collection[IncidentId] = (),
) -> BundleReport:
    """Keep the evidence of open incidents that have opened, or changed since their newest bundle.

    `but` names those whose evidence somebody else keeps at the same time: their newest bundle is only reported.
    The first picture of an incident stays; later ones take each other's place. Raises nothing that bundles cause.
    """
    if cluster.bundles is None:
        return BundleReport(saved={}, problems={})
    wanted: list[_Wanted] = []
    newest: dict[IncidentId, SavedBundle] = {}
    problems: dict[IncidentId, str] = {}
    for incident in incidents:
        try:
            known = cluster.bundles.of(incident.incident)
        except BundleError as problem:
            problems[incident.incident] = str(problem)
            continue
        if known:
            newest[incident.incident] = known[-1]
        is_opened = any(each.reason == OPENED for each in known)
        if (
            incident.is_open
            and incident.incident not in but
            and not (is_opened and incident.changed_at <= known[-1].saved_at)
        ):
            plan = None if incident.plan is None else cluster.ledger.plan(incident.plan)
            wanted.append(_Wanted(incident=incident, plan=plan, reason=CHANGED if is_opened else OPENED))
    report = _save_all(
        wanted,
        cluster,
        nodes={each.node: each for each in nodes},
        jobs={each.job: each for each in jobs},
        looking=PATIENCE_OF_A_RUN,
        writing=PATIENCE_OF_A_RUN,
    )
    return BundleReport(
        saved=report.saved, problems=problems | dict(report.problems), newest=newest | dict(report.saved)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    incident: Incident
    plan: IncidentPlan | None
    reason: str


def _save_all(
    wanted: Sequence[_Wanted],
    cluster: Cluster,
    *,
    nodes: Mapping[NodeName, NodeStatus],
    jobs: Mapping[JobId, JobStatus],
    looking: timedelta | None,
    writing: timedelta,
) -> BundleReport:
    if cluster.bundles is None or not wanted:
        return BundleReport(saved={}, problems={})
    now = cluster.clock.now()
    incidents = [each.incident for each in wanted]
    around = {} if looking is None else _look_around(incidents, cluster, now=now, patience=looking)
    saved: dict[IncidentId, SavedBundle] = {}
    problems: dict[IncidentId, str] = {}

    def write(is_over: Event) -> None:
        for each in wanted:
            if is_over.is_set():
                return
            name = each.incident.incident
            try:
                saved[name] = _save(each, cluster, around=around.get(name, _LATER), nodes=nodes, jobs=jobs, now=now)
            except Exception as problem:  # see the charter: no fault of ours or the disk's stops an act
                problems[name] = str(problem)

    ending = give_time(write, task="evidence-write", cluster=cluster, patience=writing)
    kept, refused = dict(saved), dict(problems)
    late = (
        "the evidence directory does not answer: an earlier write hangs; the next run that finds it well keeps it"
        if ending is Ending.HANGS
        else f"{len(wanted)} at once took longer than {writing.total_seconds():g} s; the next run keeps it"
    )
    unkept = [name for name in (each.incident.incident for each in wanted) if name not in kept]
    return BundleReport(saved=kept, problems={name: refused.get(name, late) for name in unkept})


class Ending(Enum):
    """How a task ended that was given a limited time."""

    DONE = "done"
    LATE = "late"
    """It continues, and nobody waits for it."""
    HANGS = "hangs"
    """It was not started: an earlier one that was late still continues."""


_late: dict[tuple[str, str], Thread] = {}
"""(cluster, task) -> the thread that was late: while it lives no other is started, or each pass would leave one."""


def give_time(work: Callable[[Event], None], *, task: str, cluster: Cluster, patience: timedelta) -> Ending:
    """Do `work` in a thread, and wait no longer than `patience`; from then on the event that it was given is set."""
    key = (cluster.name, task)
    earlier = _late.get(key)
    if earlier is not None and earlier.is_alive():
        return Ending.HANGS
    _late.pop(key, None)
    is_over = Event()
    working = Thread(target=work, args=(is_over,), name=task, daemon=True)
    working.start()
    working.join(patience.total_seconds())
    is_over.set()
    if not working.is_alive():
        return Ending.DONE
    _late[key] = working
    return Ending.LATE


def _save(
    wanted: _Wanted,
    cluster: Cluster,
    *,
    around: _Surroundings,
    nodes: Mapping[NodeName, NodeStatus],
    jobs: Mapping[JobId, JobStatus],
    now: datetime,
) -> SavedBundle:
    assert cluster.bundles is not None, "asked for by `_save_all`"
    incident = wanted.incident
    missing = list(around.missing)
    present = [nodes[name] for name in concerned_nodes(incident, jobs)[:_MAX_STATE_NODES] if name in nodes]
    of_jobs = [jobs[name] for name in concerned_jobs(incident) if name in jobs]
    if not nodes:
        missing.append("state of nodes and jobs: the scheduler was not asked, since only messages are sent")
    if not around.driver_versions:
        missing.append("version of the driver: no metrics of the window name it")
    missing.append("version of the scheduler: it is not asked for it")
    documents: dict[str, object] = {
        "incident.json": incident,
        "state.json": {
            "taken_at": now,
            "cluster": cluster.name,
            "mode": cluster.rules.policy.mode,
            "rules_digest": cluster.rules_digest,
            "versions": {"ops_pipelines": our_version(), "driver": around.driver_versions},
            "nodes": present,
            "jobs": of_jobs,
        },
    }
    if wanted.plan is not None:
        documents["plan.json"] = wanted.plan
    return cluster.bundles.save(
        incident.incident,
        reason=wanted.reason,
        at=now,
        documents=documents,
        files={"lines.txt": lines_file(incident, around.lines), **around.files},
        missing=missing,
    )


def concerned_nodes(incident: Incident, jobs: Mapping[JobId, JobStatus]) -> tuple[NodeName, ...]:
    """Return the nodes that an incident concerns, culprits first, then where it shows, then those of its victims."""
    culprits = sorted(incident.nodes)
    seen = sorted({finding.node for finding in incident.findings if finding.node != NO_NODE})
    hypothesis = incident.hypothesis
    if hypothesis is not None:
        culprits = [each.node for each in hypothesis.culprits if each.node is not None] + culprits
        seen += sorted(hypothesis.affected_nodes)
    held = sorted(node for name in concerned_jobs(incident) if name in jobs for node in jobs[name].nodes)
    return tuple(dict.fromkeys([*culprits, *seen, *held]))


def concerned_jobs(incident: Incident) -> tuple[JobId, ...]:
    """Return the jobs that an incident concerns: those suspected, then those it names, then its victims."""
    suspected = [
        JobId(each.name)
        for each in (() if incident.hypothesis is None else incident.hypothesis.culprits)
        if each.kind is ComponentKind.JOB
    ]
    named = [finding.job for finding in incident.findings if finding.job is not None]
    return tuple(dict.fromkeys([*suspected, *named, *(attempt.job for attempt in sorted(incident.victims))]))


def lines_file(incident: Incident, recalled: Sequence[RecalledLine]) -> bytes:
    """Return the lines as text, at most MAX_LINES: the evidence itself, marked `*`, and what was written around it.

    A character that could steer a terminal is written out as an escape.
    """
    evidence = {
        (each.observed_at, each.node, each.source, _one_line(each.text))
        for finding in incident.findings
        for each in finding.evidence
        if each.text
    }
    shown = [(at, "*", node, source, text) for at, node, source, text in evidence]
    told = {(node, text) for _, node, _, text in evidence}
    for line in recalled:
        text = _one_line(line.text)
        if (line.node, text) not in told:
            where = f"{line.node} job {line.job}".strip() if line.job else line.node
            shown.append((line.written_at, " ", NodeName(where), line.source, text))
    began = began_at(incident)
    nearest = sorted(shown, key=lambda each: (each[1] != "*", abs(each[0] - began)))[:MAX_LINES]
    lines = [
        f"{mark} {at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}  {_one_line(node) or '-'}  {_one_line(source)}  {text}"
        for at, mark, node, source, text in sorted(nearest)
    ]
    head = f"# {len(lines)} lines, {sum(line.startswith('*') for line in lines)} of them evidence (*), times in UTC"
    if len(shown) > len(nearest):
        head += f"; {len(shown) - len(nearest)} more left out, the farthest in time"
    return "\n".join([head, *lines, ""]).encode("utf-8", "backslashreplace")


def began_at(incident: Incident) -> datetime:
    """Return when the first of an incident's evidence was seen."""
    return min((finding.found_at for finding in incident.findings), default=incident.opened_at)


def _last_seen_at(incident: Incident) -> datetime:
    return max((finding.last_at or finding.found_at for finding in incident.findings), default=incident.opened_at)


def window_of(incident: Incident, *, now: datetime) -> tuple[datetime, datetime]:
    """Return from when to when we look around an incident: never beyond `now`, never more than an hour."""
    began = began_at(incident)
    start = began - MARGIN
    end = min(_last_seen_at(incident) + MARGIN, max(now, began), start + _LONGEST_WINDOW)
    return start, end


@cache
def our_version() -> str:
    """Return the version of this program."""
    try:
        return version("ops-pipelines")
    except PackageNotFoundError:
        return "not installed as a package"


def _look_around(
    incidents: Sequence[Incident], cluster: Cluster, *, now: datetime, patience: timedelta
) -> Mapping[IncidentId, _Surroundings]:
    """Ask the lake about each incident, in a thread of its own: a store that hangs must not hold up who acts."""
    recollection = cluster.recollection
    if recollection is None:
        nothing = "lines and metrics around the event: this cluster keeps none"
        return {each.incident: _Surroundings(files={}, missing=(nothing,)) for each in incidents}
    found: dict[IncidentId, _Surroundings] = {}

    def look(is_over: Event) -> None:
        for each in incidents:
            if is_over.is_set():
                return
            found[each.incident] = _surroundings(each, recollection, now=now)

    ending = give_time(look, task="evidence-look", cluster=cluster, patience=patience)
    in_time = dict(found)
    why = (
        "the lake does not answer: an earlier question hangs"
        if ending is Ending.HANGS
        else f"not read within {patience.total_seconds():g} s"
    )
    late = _Surroundings(files={}, missing=(f"lines and metrics around the event: {why}",))
    return {each.incident: in_time.get(each.incident, late) for each in incidents}


def _surroundings(incident: Incident, recollection: Recollection, *, now: datetime) -> _Surroundings:
    from ops_pipelines.report.pictures import incidents as pictures

    start, end = window_of(incident, now=now)
    nodes = concerned_nodes(incident, {})
    jobs = concerned_jobs(incident)
    try:
        recalled: Recalled = recollection.recall(
            nodes=nodes[:_MAX_WINDOW_NODES],
            jobs=jobs[:_MAX_WINDOW_JOBS],
            start=start,
            end=end,
            nearest_to=began_at(incident),
            max_lines=MAX_LINES,
        )
        missing = list(recalled.missing)
        files: dict[str, bytes] = {}
        drivers: tuple[str, ...] = ()
        if recalled.telemetry is not None and recalled.telemetry.num_rows:
            drivers = pictures.driver_versions(recalled.telemetry)
            drawn = pictures.telemetry_plot(
                recalled.telemetry,
                title=f"{incident.incident}: GPUs around the event",
                marks=tuple(finding.found_at for finding in incident.findings),
                culprits=incident.gpus,
            )
            if drawn is not None:
                files["telemetry.png"] = drawn
            files["telemetry.parquet"] = pictures.as_parquet(recalled.telemetry)
    except Exception as problem:  # what was read so far is worth keeping, and so is the reason
        return _Surroundings(files={}, missing=(f"lines and metrics around the event: {problem}",))
    if len(nodes) > _MAX_WINDOW_NODES:
        missing.append(f"lines and metrics of {len(nodes) - _MAX_WINDOW_NODES} more nodes than {_MAX_WINDOW_NODES}")
    return _Surroundings(lines=recalled.lines, files=files, driver_versions=drivers, missing=tuple(missing))


def _one_line(text: str) -> str:
    shown = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
    return "".join(char if char.isprintable() else _written_out(char) for char in shown)


def _written_out(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def note_with(note: str, problem: str | None) -> str:
    """Return an incident's note with what went wrong with its bundle."""
    return note if problem is None else f"{note}; its evidence could not be kept: {problem}"


def tidy(cluster: Cluster) -> str | None:
    """Delete bundles that have served their time; return what went wrong, None if nothing did."""
    if cluster.bundles is None:
        return None
    try:
        open_ones = [each.incident for each in cluster.ledger.read_state(cluster.clock.now()).incidents]
        cluster.bundles.tidy(cluster.clock.now(), keep=open_ones)
    except (RuntimeError, LedgerError) as problem:
        return str(problem)
    return None
