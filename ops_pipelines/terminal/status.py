"""How the cluster, the program and the ledger are doing: what `status`, /healthz and `audit verify` answer.

Values, the keys of their JSON and the documents; also where the cluster cannot be opened. Incidents are `incidents`';
what the processes report of themselves is `vital_signs`'.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import NoReturn

import typer

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import ChainVerdict, Entry, EntryKind, LedgerDamaged, LedgerError, Pause
from ops_pipelines.core.health import Health, HealthWord, VitalSigns, judge_health
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.policy import Mode, PolicyError
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.job_moves import standing_marks
from ops_pipelines.remediate.oversight import vital_signs
from ops_pipelines.remediate.verbs import count_outcomes
from ops_pipelines.report import document as doc
from ops_pipelines.report.document import Keys, Mood, fields_of
from ops_pipelines.report.numbers import counted, duration
from ops_pipelines.resources.config.in_force import state_directories
from ops_pipelines.resources.state_files import PauseFile
from ops_pipelines.review.shift import node_word
from ops_pipelines.terminal.edge import ExitCode, complain

_LATELY = timedelta(hours=24)
_ENTRIES_AT_ONCE = 1000


# -- `status` and /healthz --


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The answer of `status`. What a system did not answer is None, and `problems` says so."""

    cluster: str
    taken_at: datetime
    health: Health
    signs: VitalSigns | None
    """None where the ledger cannot be read."""
    paused: Pause | None
    mode: Mode | None = None
    """What holds by the policy file."""
    nodes_by_state: Mapping[str, int] | None = None
    jobs_by_state: Mapping[str, int] | None = None
    marks: tuple[ActionRecord, ...] | None = None
    """Holds of jobs for silent nodes, so that they start nowhere else while their processes may still write."""
    open_incidents_by_state: Mapping[str, int] | None = None
    actions_by_outcome: Mapping[str, int] | None = None
    """Started in the last 24 hours; `open` counts those without an outcome."""
    problems: tuple[str, ...]
    disk_bytes: Mapping[str, int]
    """What files here take, by part (`read_disk_use`); empty where it is not known."""

    @property
    def is_blind(self) -> bool:
        return self.health.word is HealthWord.BLIND


def read_status(cluster: Cluster, *, disk_bytes: Mapping[str, int]) -> Status:
    """Return the state of the cluster and of the autopilot; what the scheduler does not answer is a problem."""
    problems, nodes_by_state, jobs_by_state, jobs = [], None, None, None
    try:
        nodes_by_state = _count_words(node_word(node) for node in cluster.scheduler.read_nodes())
        jobs = cluster.scheduler.read_jobs()
        present = (job.state.value for job in jobs if job.state in (JobState.PENDING, JobState.RUNNING))
        jobs_by_state = _count_words(present)
    except SourceError as problem:
        problems.append(str(problem))
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    recent = tuple(record for record in state.records if record.begun_at > now - _LATELY)
    signs = vital_signs(cluster, state, now=now)
    return Status(
        cluster=cluster.name,
        taken_at=now,
        health=judge_health(signs),
        signs=signs,
        mode=cluster.rules.policy.mode,
        paused=state.pause,
        nodes_by_state=nodes_by_state,
        jobs_by_state=jobs_by_state,
        marks=None if jobs is None else tuple(standing_marks(state.records, {job.job: job for job in jobs})),
        open_incidents_by_state=_count_words(incident.state.value for incident in state.incidents),
        actions_by_outcome=count_outcomes(recent),
        problems=(*problems, *(str(each) for each in cluster.troubles)),
        disk_bytes=disk_bytes,
    )


def status_json(status: Status) -> Keys:
    signs, health = status.signs, health_json(status.health, status.signs)
    return {
        **fields_of(status, "cluster taken_at"),
        "health": health,
        "mode": status.mode,
        "paused": status.paused,
        "is_autopilot_alive": None if signs is None else signs.is_lease_held,
        **fields_of(status, "nodes_by_state jobs_by_state"),
        "marked_jobs": None
        if status.marks is None
        else [
            {
                "job": mark.action.attempt.job,
                "nodes": sorted(mark.attempt_nodes),
                "since": mark.begun_at,
                "incident": mark.action.incident,
            }
            for mark in status.marks
            if mark.action.attempt is not None
        ],
        **fields_of(status, "open_incidents_by_state actions_by_outcome"),
        "waiting_evidence_count": health["waiting_evidence_count"],
        **fields_of(status, "problems disk_bytes"),
    }


def health_json(health: Health, signs: VitalSigns | None) -> Keys:
    """Return the health with what it was judged on; without `signs`, which an unreadable ledger does not give."""
    newest_at = None if signs is None else signs.newest_evidence_at
    return {
        "word": health.word,
        "reasons": health.reasons,
        "mode": None if signs is None else signs.working_mode,
        "heartbeats": [
            {
                **fields_of(beat, "name at"),
                "age_seconds": (signs.taken_at - beat.at).total_seconds(),
                **fields_of(beat, "holder note mode is_lease_held failing_sources"),
            }
            for beat in signs.heartbeats
        ]
        if signs is not None
        else [],
        "newest_evidence_at": newest_at,
        "newest_evidence_age_seconds": None
        if signs is None or newest_at is None
        else (signs.taken_at - newest_at).total_seconds(),
        "waiting_evidence_count": None if signs is None else signs.undecided_evidence_count,
        "ledger_head": None if signs is None else signs.head_seq,
    }


def status_document(status: Status) -> doc.Document:
    """Return the state of the cluster: first, in one word, how the autopilot is, and what a person must see to."""
    word, (first, *further) = status.health.word, status.health.reasons
    is_stopped = word in (HealthWord.BLIND, HealthWord.PAUSED)
    return doc.Document(
        title=word.value,
        state=doc.toned(first, Mood.BAD if is_stopped else None),
        cluster=status.cluster,
        about="",
        command="ops-pipelines status",
        now=status.taken_at,
        blocks=doc.sections(doc.Items(items=further), doc.Fields(rows=_status_rows(status))),
    )


def _status_rows(status: Status) -> Mapping[str, doc.Words]:
    signs = status.signs
    if signs is None:  # Without a ledger nothing more is known.
        return {"cluster": status.cluster}
    newest_at, waiting = signs.newest_evidence_at, signs.undecided_evidence_count
    newest = "" if newest_at is None else f"; the newest is {duration(status.taken_at - newest_at)} old"
    marked = (f"{mark.action.attempt.job} ({', '.join(sorted(mark.attempt_nodes))})"
              for mark in status.marks or () if mark.action.attempt is not None)  # fmt: skip
    return {
        "cluster": status.cluster,
        "mode": "" if status.mode is None else status.mode.value,
        "autopilot": "alive" if signs.is_lease_held else "not running: no process holds the lease",
        "nodes": _counts(status.nodes_by_state),
        "jobs": _counts(status.jobs_by_state),
        "held for silent nodes": ", ".join(marked),
        "incidents": _counts(status.open_incidents_by_state),
        "actions, 24 h": _counts(status.actions_by_outcome),
        "evidence": (f"{waiting} new, not decided on yet" if waiting else "all decided on") + newest,
        "ledger": f"{signs.head_seq} entries",
        "disk": ", ".join(f"{part} {size / 1e6:,.1f} MB" for part, size in status.disk_bytes.items()),
        **{beat.name: f"{duration(signs.taken_at - beat.at)} ago: {beat.note}" for beat in signs.heartbeats},
    }


def _count_words(words: Iterable[str]) -> Mapping[str, int]:
    """Return how often each word comes, in the order of the alphabet."""
    return dict(sorted(Counter(words).items()))


def _counts(counts: Mapping[str, int] | None) -> str:
    if counts is None:
        return "not known: see the message on standard error"
    return ", ".join(f"{count} {word.replace('_', ' ')}" for word, count in counts.items()) or "none"


# -- the ledger: its lines in words, and whether the chain of them is whole (`audit verify`) --


def audit(cluster: Cluster, *, expect_head: str | None) -> ChainVerdict:
    """Return whether the ledger is whole and, if a head hash was noted down earlier, still contains that line."""
    verdict = cluster.ledger.verify_chain()
    if expect_head is not None and not verdict.problem and not _has_entry(cluster.ledger, expect_head):
        return replace(verdict, problem=f"no line has the hash {expect_head}: the chain was cut or replaced")
    return verdict


def _has_entry(ledger: Ledger, entry_hash: str) -> bool:
    """Return whether the chain contains a line with this hash."""
    after = 0
    while lines := ledger.entries(after=after, limit=_ENTRIES_AT_ONCE):
        if any(line.entry_hash == entry_hash for line in lines):
            return True
        after = lines[-1].seq
    return False


def audit_json(verdict: ChainVerdict, *, cluster: str) -> Keys:
    return {
        "cluster": cluster,
        **fields_of(verdict, "is_whole entry_count head_hash first_broken_seq problem"),
    }


def audit_document(verdict: ChainVerdict, *, cluster: str) -> doc.Document:
    """Return what was found and, where the chain is broken, where."""
    where = "" if verdict.first_broken_seq is None else f" at entry {verdict.first_broken_seq}"
    if not verdict.is_whole:
        state = doc.toned(f"DAMAGED{where}: {verdict.problem}", Mood.BAD)
    elif verdict.entry_count == 0:
        state = doc.toned("the ledger is empty: no line was ever written, or it was replaced", Mood.WARN)
    else:
        state = doc.toned("the ledger is whole", Mood.GOOD)
    rows = {"cluster": cluster, "entries": str(verdict.entry_count), "head hash": verdict.head_hash}
    return doc.Document(title="Ledger", state=state, cluster=cluster, about="", blocks=(doc.Fields(rows=rows),))


def gist_of(entry: Entry) -> str:
    """Return what a line of the chain says, by the names of its fields; another version's gives fewer words."""
    try:
        body = json.loads(entry.body)
    except ValueError:
        return "its body is no JSON: run `ops-pipelines audit verify`"
    if not isinstance(body, dict):
        return ""
    match entry.kind:
        case EntryKind.INCIDENT:
            return f"{body.get('state', '')}: {body.get('note', '')}"
        case EntryKind.PLAN:
            return f"{body.get('plan', '')}: {counted(len(body.get('actions', ())), 'step')}"
        case EntryKind.APPROVAL:
            return f"{body.get('plan', '')} until {body.get('expires_at', '')} via {body.get('via', 'terminal')}"
        case EntryKind.ROLLOUT:
            return _rollout_gist(body)
        case EntryKind.QUOTAS:
            return _quotas_gist(body)
        case EntryKind.LEDGER:
            return f"{'restored' if body.get('restored') else 'started again'}: {body.get('reason', '')}"
        case _:
            return ", ".join(_action_gist(body))


def _action_gist(body: Mapping[str, object]) -> Iterator[str]:
    action, outcome, refusal = body.get("action"), body.get("outcome"), body.get("refusal")
    if isinstance(action, dict):
        attempt = action.get("attempt")
        job = f"job {attempt.get('job')}" if isinstance(attempt, dict) else ""
        parts = (str(action.get("verb", "")).replace("_", " "), job, action.get("node"), action.get("gpu"))
        yield " ".join(str(part) for part in parts if part)
    if isinstance(outcome, dict):
        yield f"{outcome.get('kind', '')}: {outcome.get('witness', '')}"
    if isinstance(refusal, dict):
        yield str(refusal.get("reason", ""))


def _rollout_gist(body: Mapping[str, object]) -> str:
    """Return where a rollout is, or its node where only one changed; else how many nodes changed."""
    rollout, nodes = body.get("rollout"), body.get("nodes")
    changed = [each for each in nodes if isinstance(each, dict)] if isinstance(nodes, list) else []
    if isinstance(rollout, dict):
        return f"{rollout.get('rollout', '')} {rollout.get('state', '')}: {rollout.get('reason', '')}"
    if len(changed) == 1:
        (node,) = changed
        return f"{node.get('rollout', '')} {node.get('node', '')} {node.get('stage', '')}: {node.get('reason', '')}"
    return f"{changed[0].get('rollout', '')}: {len(changed)} nodes" if changed else ""


def _quotas_gist(body: Mapping[str, object]) -> str:
    """Return where a proposal is, and whose place it took."""
    standing, superseded = body.get("standing"), body.get("superseded")
    words = str(body.get("proposal", ""))
    if isinstance(standing, dict):
        words += f" {standing.get('state', '')}: {standing.get('reason', '')}"
    if isinstance(superseded, list) and superseded:
        words += f" (in place of {', '.join(map(str, superseded))})"
    return words


# -- where the cluster cannot be opened --


CANNOT_OPEN = (PolicyError, LedgerError)
"""What is in the way of opening a cluster, and is no fault of ours."""
_NOT_KNOWN = "whether the autopilot runs, and when it last beat, is not known"


def status_without(problem: Exception, cluster_file: Path, *, state: Path | None) -> Status:
    """Return what is known all the same."""
    pause = found_pause(cluster_file, state=state)
    since = "" if pause is None else f"{pause.since:%Y-%m-%d %H:%M:%S} UTC"
    paused = "" if pause is None else f"paused by {pause.actor} since {since}: {pause.reason}"
    reasons = tuple(each for each in (_what(problem), paused, _NOT_KNOWN) if each)
    return Status(
        cluster=str(cluster_file),
        taken_at=SystemClock().now(),
        health=Health(word=HealthWord.BLIND, reasons=reasons),
        signs=None,
        paused=pause,
        problems=(str(problem),),
        disk_bytes={},
    )


def found_pause(cluster_file: Path, *, state: Path | None) -> Pause | None:
    """Return the pause in the first state directory that holds one."""
    found = (PauseFile(place).read() for place in state_directories(cluster_file, named=state))
    return next((pause for pause in found if pause is not None), None)


def end_without(problem: Exception) -> NoReturn:
    """Name what is broken, and end with the exit code for it."""
    complain(str(problem))
    raise typer.Exit(ExitCode.DAMAGED if isinstance(problem, LedgerDamaged) else ExitCode.NO_ANSWER) from problem


def _what(problem: Exception) -> str:
    what = "the ledger" if isinstance(problem, LedgerError) else "the configuration"
    return f"{what} cannot be read; why is on standard error"
