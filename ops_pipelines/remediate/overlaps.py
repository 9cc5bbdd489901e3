"""Sees where two copies of a job ran at once, writes it down as a fact of an incident, and pages at once; asks nobody.

Which attempts ran where is remembered in the ledger, as one line that is written over: the scheduler shows nothing of
an attempt that is over. Where it guards restarts itself nothing is reported: it saw to it before the start. What makes
an overlap is `core.overlap`'s.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import OVERLAP, Action, ActionRecord, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerConflict
from ops_pipelines.core.identity import JobAttempt, JobId, NodeName
from ops_pipelines.core.incident import Incident, handed_to_people
from ops_pipelines.core.observation import JobStatus, NodeState, NodeStatus
from ops_pipelines.core.overlap import (
    Certainty,
    Overlap,
    Watched,
    brought_up_to_date,
    find_overlap,
    is_worth_watching,
    tell,
    watch,
    what_to_do,
)
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.sources import SourceError
from ops_pipelines.lake.telemetry import GpuTelemetry
from ops_pipelines.observe.intake import Intake
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.remediate.perform import send_once

_SOURCE = "attempts by node"
_REMEMBER_EVERY = timedelta(minutes=1)
"""An attempt that began and lost its node within one of these, while we did not look, is not known afterwards."""
_LETS_GO = frozenset({Verb.RELEASE, Verb.UNMARK})
"""What we release we had seen clear, whatever the clocks of two hosts say."""
_AT_WORK_RATIO = 0.05
_STALE_SERIES = timedelta(seconds=60)
"""A series of a node that died is shown for so long at most (two scrapes of 30 s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """What is kept from look to look."""

    read_at: datetime | None
    """When jobs were last read; None: never."""
    silent: frozenset[NodeName]
    watched: Mapping[JobAttempt, Watched]

    def is_outdated(self, silent: frozenset[NodeName], now: datetime) -> bool:
        """Return whether jobs are to be read now: a node fell silent, something is not clear, or a minute is over."""
        is_old = self.read_at is None or not timedelta(0) <= now - self.read_at < _REMEMBER_EVERY
        return is_old or bool(silent - self.silent) or any(each.unclear for each in self.watched.values())


def see_to_overlaps(cluster: Cluster, seen: Intake, *, lease: Lease) -> None:
    """Look for two copies of one job, and report those that nobody was notified of; what fails, the next look tries."""
    try:
        if seen.nodes is not None:
            _look(cluster, seen, lease=lease)
        for incident in cluster.ledger.read_state(cluster.clock.now()).incidents:
            if incident.overlaps:
                _tell_people(incident, cluster, lease=lease)
    except (LedgerConflict, SourceError):
        return


def _look(cluster: Cluster, seen: Intake, *, lease: Lease) -> None:
    now, ledger = cluster.clock.now(), cluster.ledger
    nodes = {each.node: each for each in seen.nodes or ()}
    silent = frozenset(name for name, each in nodes.items() if not each.is_responding)
    memory = _read(ledger.cursor(_SOURCE))
    if not memory.is_outdated(silent, now):
        return
    jobs = {each.job: each for each in cluster.scheduler.read_jobs()}
    lease.require(ledger, cluster.clock.now())
    records = ledger.read_state(now).records
    cut = _cut(records)
    let_go = {
        each.action.attempt: each.begun_at for each in records if each.action.verb in _LETS_GO and each.took_effect
    }
    known = {**_begun(jobs.values()), **memory.watched}
    if any(_may_be_given_up(each, jobs.get(each.attempt.job), nodes) for each in known.values()):
        nodes = {each.node: each for each in cluster.scheduler.read_nodes()}
    kept: dict[JobAttempt, Watched] = {}
    for attempt, before in known.items():
        job = jobs.get(attempt.job)
        watched = watch(before, job, nodes, cut=cut, now=now)
        is_vouched = attempt in let_go and let_go[attempt] >= max(watched.silent.values(), default=now)
        if not watched.is_over or (watched.silent and not is_vouched and not _is_settled(watched, job, seen, cluster)):
            kept[attempt] = watched
    line = _write(kept.values(), silent=silent, now=now)
    ledger.take_in(source=_SOURCE, observations=(), rejected=(), cursor=line, now=now)


def _begun(jobs: Iterable[JobStatus]) -> dict[JobAttempt, Watched]:
    return {
        attempt: Watched(attempt=attempt, nodes=job.nodes)
        for job in jobs
        if is_worth_watching(job) and (attempt := job.attempt) is not None
    }


def _may_be_given_up(watched: Watched, job: JobStatus | None, nodes: Mapping[NodeName, NodeStatus]) -> bool:
    """Return whether an attempt has just ended of which a node was silent when nodes were read: given up meanwhile?"""
    if watched.is_over or watched.is_at_work(job):
        return False
    present = [nodes[name] for name in watched.nodes - watched.silent.keys() if name in nodes]
    return any(not each.is_responding and each.state is not NodeState.DOWN for each in present)


def _cut(records: Iterable[ActionRecord]) -> Mapping[NodeName, list[datetime]]:
    """Return when nodes were seen without power that we had cut."""
    found: dict[NodeName, list[datetime]] = {}
    for each in records:
        if each.action.verb is Verb.POWER_OFF and each.took_effect and each.action.node is not None and each.outcome:
            found.setdefault(each.action.node, []).append(each.outcome.finished_at)
    return found


def _is_settled(watched: Watched, job: JobStatus | None, seen: Intake, cluster: Cluster) -> bool:
    """Write down what is known of overlaps with an attempt that is over; return whether there is no more to learn."""
    now, ledger = cluster.clock.now(), cluster.ledger
    found = None if job is None else find_overlap(watched, job, now=now)
    for incident in ledger.incidents_since(min(watched.silent.values())):
        own = {each: _renewed(each, watched, job, seen, now) for each in incident.overlaps}
        if found is not None and any(each.name == found.name for each in own):
            found = None
        if incident.is_open and any(known != newest for known, newest in own.items()):
            changed = replace(incident, overlaps=tuple(own.values()), changed_at=now)
            ledger.change_incident(changed, actor=AUTOPILOT, now=now)
            return False  # Somebody may just be writing the incident as it was before: the next look sees.
    if found is not None:
        if not cluster.scheduler.read_limits().unguarded:
            return True
        incident = _incident_of(found, cluster)
        overlaps = (*incident.overlaps, _with_proof(found, watched, seen.gpu_telemetry))
        ledger.change_incident(replace(incident, overlaps=overlaps, changed_at=now), actor=AUTOPILOT, now=now)
        return False
    return job is None or not watched.unclear


def _renewed(known: Overlap, watched: Watched, job: JobStatus | None, seen: Intake, now: datetime) -> Overlap:
    if known.earlier != watched.attempt:
        return known
    proven = _with_proof(known, watched, seen.gpu_telemetry)
    return brought_up_to_date(proven, watched, job, now=now)


def _with_proof(overlap: Overlap, watched: Watched, telemetry: GpuTelemetry | None) -> Overlap:
    """Return an overlap as certain where GPUs of the silent node were seen at work after the later attempt began."""
    if telemetry is None or overlap.certainty is not Certainty.POSSIBLE or overlap.ended_at is not None:
        return overlap
    busy = {each.node for each in telemetry.readings if (each.utilisation_ratio or 0.0) >= _AT_WORK_RATIO}
    for each in telemetry.statuses:
        since = watched.silent.get(each.node)
        if each.node not in busy & overlap.earlier_nodes or since is None:
            continue
        if each.newest_sample_at >= max(overlap.later.started_at, since + _STALE_SERIES):
            why = f"GPUs of {each.node} were at work at {each.newest_sample_at:%H:%M:%S} UTC"
            return replace(overlap, certainty=Certainty.CERTAIN, why=why)
    return overlap


def _incident_of(overlap: Overlap, cluster: Cluster) -> Incident:
    """Return the open incident that a node of the earlier attempt belongs to, else a new one."""
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    for incident in reversed(state.incidents):
        if incident.nodes & overlap.earlier_nodes:
            return incident
    note = f"two copies of job {overlap.later.job} at once: its checkpoints are to be looked at"
    return handed_to_people(number=state.incident_count + 1, note=note, now=now)


def _tell_people(incident: Incident, cluster: Cluster, *, lease: Lease) -> None:
    """Page once about each overlap, those of one look together, and tell each owner once."""
    records = [each for each in cluster.ledger.records(incident.incident) if each.action.part.startswith(OVERLAP)]
    pages = [each.action for each in records if each.action.verb is Verb.PAGE_HUMAN]
    told = {name for each in pages for name in each.part.removeprefix(OVERLAP).split()}
    told_now = [each for each in incident.overlaps if each.certainty is not Certainty.EXCLUDED]
    untold = [each for each in told_now if each.name not in told]
    if untold:
        pages.append(_page(incident, untold, now=cluster.clock.now()))
    for page in pages:
        send_once(page, cluster, lease=lease)
    if cluster.rules.policy.mode is Mode.OBSERVE:
        return  # Owners hear nothing of us then.
    begun = {each.action.attempt: each.action for each in records if each.action.verb is Verb.NOTIFY_OWNER}
    for each in told_now:
        notice = begun.get(each.later) or _notice(incident, each, now=cluster.clock.now())
        send_once(notice, cluster, lease=lease)


def _page(incident: Incident, overlaps: Iterable[Overlap], *, now: datetime) -> Action:
    listed = list(overlaps)
    text = " ".join(f"{_sentence(each, now)} {what_to_do(each)}" for each in listed)
    part = OVERLAP + " ".join(each.name for each in listed)
    return Action(verb=Verb.PAGE_HUMAN, incident=incident.incident, text=text, part=part)


def _notice(incident: Incident, overlap: Overlap, *, now: datetime) -> Action:
    return Action(
        verb=Verb.NOTIFY_OWNER,
        incident=incident.incident,
        attempt=overlap.later,
        text=f"{_sentence(overlap, now)} {what_to_do(overlap)}",
        part=OVERLAP + overlap.name,
    )


def _sentence(overlap: Overlap, now: datetime) -> str:
    told = tell(overlap, now=now)
    return f"{told[:1].upper()}{told[1:]}."


def _read(line: str | None) -> _Memory:
    if not line:
        return _Memory(read_at=None, silent=frozenset(), watched={})
    told, at = json.loads(line), datetime.fromisoformat
    watched = (
        Watched(
            attempt=JobAttempt(job=JobId(each["job"]), started_at=at(each["started_at"])),
            nodes=frozenset(NodeName(name) for name in each["nodes"]),
            checkpointed_at=at(each["saved_at"]) if "saved_at" in each else None,
            silent={NodeName(name): at(since) for name, since in each.get("silent", {}).items()},
            clear={NodeName(name): (at(since), how) for name, (since, how) in each.get("clear", {}).items()},
            is_over=each.get("is_over", False),
        )
        for each in told["attempts"]
    )
    return _Memory(
        read_at=at(told["read_at"]),
        silent=frozenset(NodeName(each) for each in told["silent"]),
        watched={each.attempt: each for each in watched},
    )


def _write(watched: Iterable[Watched], *, silent: Iterable[NodeName], now: datetime) -> str:
    return json.dumps(
        {"read_at": now.isoformat(), "silent": sorted(silent), "attempts": [_kept(each) for each in watched]},
        separators=(",", ":"),
    )


def _kept(watched: Watched) -> dict[str, object]:
    """Return an attempt as it is kept, without what is as usual: of thousands most never see a silent node."""
    kept: dict[str, object] = {
        "job": watched.attempt.job,
        "started_at": watched.attempt.started_at.isoformat(),
        "nodes": sorted(watched.nodes),
    }
    if watched.checkpointed_at is not None:
        kept["saved_at"] = watched.checkpointed_at.isoformat()
    if watched.silent:
        kept["silent"] = {name: since.isoformat() for name, since in watched.silent.items()}
        kept["clear"] = {name: (at.isoformat(), how) for name, (at, how) in watched.clear.items()}
        kept["is_over"] = watched.is_over
    return kept
