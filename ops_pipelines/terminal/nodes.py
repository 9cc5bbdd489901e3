"""What `ladder`, `probation`, `repair list` and `versions` answer: how nodes are doing; keys of JSON and documents.

Which repair comes next is `remediate.ladder`'s, which version should run `rollouts.fleet`'s.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import NodeName, listed
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.policy import Durations, LadderLimits
from ops_pipelines.core.proof import Refusal
from ops_pipelines.remediate.by_hand import WaitingRepair
from ops_pipelines.remediate.ladder import RUNGS, Rung, limit_of, max_tries, rung_of
from ops_pipelines.remediate.standings import Probation, Standing, standings_of
from ops_pipelines.report import document as doc
from ops_pipelines.report.document import Keys, fields_of
from ops_pipelines.report.numbers import duration, moment
from ops_pipelines.rollouts.fleet import VersionsSeen
from ops_pipelines.rollouts.versions import Fit, VersionLine
from ops_pipelines.terminal.incidents import state_of
from ops_pipelines.terminal.outlook import Outlook

_JOBS_SHOWN = 5
_NAMES_SHOWN = 6
_DRIFTS_SHOWN = 40


# -- `ladder` --


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderPlace:
    """Where one node is on the ladder, and what keeps it there now."""

    standing: Standing
    waits_for: str


def ladder_places(cluster: Cluster, outlook: Outlook, *, node: NodeName | None) -> tuple[LadderPlace, ...]:
    """Return every node above watching, or the one; of an incident that waits with what its plan waits for."""
    return tuple(
        LadderPlace(standing=each, waits_for=_waits_for(each, outlook))
        for each in standings_of(cluster, outlook.state)
        if node in (None, each.node)
    )


def _waits_for(standing: Standing, outlook: Outlook) -> str:
    incident = standing.incident
    present = outlook.present(incident.incident) if incident.state is IncidentState.OPEN else None
    if isinstance(present, Refusal):
        return f"{present.guardrail}: {present.reason}"
    if incident.state in (IncidentState.OPEN, IncidentState.ACTING):
        return outlook.view(incident).waits_for or standing.waits_for
    return standing.waits_for


def ladder_json(places: Sequence[LadderPlace], *, cluster: str, now: datetime, problems: Sequence[str]) -> Keys:
    return {
        "cluster": cluster,
        "taken_at": now,
        "nodes": [_place_json(each.standing, each.waits_for, now=now) for each in places],
        "problems": problems,
    }


def _place_json(standing: Standing, waits_for: str, *, now: datetime) -> Keys:
    incident = standing.incident
    return {
        "node": standing.node,
        **fields_of(incident, "incident state"),
        "rung": rung_word(standing.rung),
        "rung_number": int(standing.rung),
        "since": standing.since,
        "for_seconds": max(0.0, (now - standing.since).total_seconds()),
        "cause": incident.cause,
        "tries": [
            {"repair": rung_word(rung_of(each.response)), **fields_of(each, "ended_at why")} for each in incident.tries
        ],
        "next_rung": None if standing.next_rung is None else rung_word(standing.next_rung),
        "waits_for": waits_for,
    }


def ladder_document(places: Sequence[LadderPlace], *, cluster: str, now: datetime) -> doc.Document:
    """Return one row a node: where it is, what did not help, what comes next."""
    columns = "Node:name|Rung:name|For:name|Incident:name|State:name|What was tried, and what comes next:words"
    rows = [
        (
            each.standing.node, f"{int(each.standing.rung)} {_spaced(each.standing.rung)}",
            duration(max(timedelta(0), now - each.standing.since)),
            each.standing.incident.incident, state_of(each.standing.incident), "; ".join(_course(each)),
        )
        for each in places
    ]  # fmt: skip
    return _table_document("Ladder", columns, rows, empty="no node is above watching", cluster=cluster)


def _course(place: LadderPlace) -> Sequence[str]:
    standing = place.standing
    tried = [f"{_spaced(rung_of(each.response))} did not help: {each.why}" for each in standing.incident.tries]
    coming = [] if standing.next_rung is None else [f"then: {_spaced(standing.next_rung)}"]
    return [standing.incident.cause, *tried, *coming, *([f"waits for {place.waits_for}"] if place.waits_for else [])]


def rung_word(rung: Rung) -> str:
    """Return the name of a rung as scripts compare it."""
    return rung.name.lower()


def _spaced(rung: Rung) -> str:
    return rung_word(rung).replace("_", " ")


_REPAIRS = (Response.ISOLATE, Response.RESET_GPU, Response.REBOOT_NODE, Response.POWER_CYCLE, Response.REIMAGE)


def rungs_json(durations: Durations, limits: LadderLimits) -> Sequence[Keys]:
    """Return the table of rungs with the limits that policy.yaml sets; null where there is none."""
    tries = {rung_of(each): max_tries(each, limits) for each in _REPAIRS}
    found = []
    for rung, rule in RUNGS.items():
        limit = limit_of(rung, durations)
        found.append(
            {
                "rung": rung_word(rung),
                "number": int(rung),
                "acts": [verb.value for verb in rule.verbs],
                **fields_of(rule, "precondition witness compensation"),
                "limit_seconds": None if limit is None else limit.total_seconds(),
                "max_tries": tries.get(rung),
            }
        )
    return found


def rungs_document(durations: Durations, limits: LadderLimits, *, cluster: str) -> doc.Document:
    """Return the table of rungs, one block a rung: on 80 columns six of them would be unreadable."""
    tries = {rung_of(each): max_tries(each, limits) for each in _REPAIRS}
    blocks = []
    for rung, rule in RUNGS.items():
        limit = limit_of(rung, durations)
        rows = {
            "acts": ", ".join(verb.value.replace("_", " ") for verb in rule.verbs) or "none",
            "precondition": rule.precondition,
            "witness": rule.witness,
            "compensation": rule.compensation,
            "time limit": "none" if limit is None else duration(limit),
            "tries a day": f"{tries[rung]} a node; more are passed over" if rung in tries else "",
        }
        blocks.append(doc.Card(title=doc.strong(f"{int(rung)} {_spaced(rung)}"), rows=rows))
    return doc.Document(title="Rungs", cluster=cluster, about="", blocks=blocks)


# -- `probation` and `repair list` --


def probations_json(found: Sequence[Probation], *, cluster: str, now: datetime, problems: Sequence[str]) -> Keys:
    """Return each node on probation with what would end it, either way; `jobs` null if the scheduler is silent."""
    return {
        "cluster": cluster,
        "taken_at": now,
        "nodes": [
            {
                "node": each.node,
                "incident": each.incident.incident,
                **fields_of(each, "since until"),
                "left_seconds": max(0.0, (each.until - now).total_seconds()),
                "ends_with": (
                    f"no fault on it until {moment(each.until)}: it is chosen like any other again; "
                    "a fault on it before: it is drained, and the next repair is planned"
                ),
                "jobs": each.jobs,
            }
            for each in found
        ],
        "problems": problems,
    }


def probations_document(found: Sequence[Probation], *, cluster: str, now: datetime) -> doc.Document:
    rows = [
        (
            each.node, each.incident.incident, each.since, duration(max(timedelta(0), each.until - now)),
            "not known" if each.jobs is None else listed(each.jobs, at_most=_JOBS_SHOWN) or "none",
        )
        for each in found
    ]  # fmt: skip
    columns = "Node:name|Incident:name|Since:moment|Left:name|Jobs on it"
    note = "a fault ends it early: the node is drained again, and the next repair is planned"
    return _table_document("Probation", columns, rows, empty="no node is on probation", note=note, cluster=cluster)


def queue_json(found: Sequence[WaitingRepair], *, cluster: str, now: datetime) -> Keys:
    """Return the repair queue in short; the report of each has the rest."""
    return {
        "cluster": cluster,
        "taken_at": now,
        "nodes": [
            {
                "node": each.report.node,
                "incident": each.incident.incident,
                "since": each.since,
                "age_seconds": each.age.total_seconds(),
                "cause": each.report.what_broke,
                "parts": [
                    f"{part.part}{f', serial {part.serial}' if part.serial else ''}" for part in each.report.parts
                ],
                "asks": each.report.asks,
            }
            for each in found
        ],
    }


def queue_document(found: Sequence[WaitingRepair], *, cluster: str) -> doc.Document:
    """Return one row a node, the longest waiting first."""
    rows = [
        (each.report.node, each.incident.incident, duration(each.age), "; ".join(each.report.asks)) for each in found
    ]
    columns = "Node:name|Incident:name|Waits:name|What is asked for:words"
    note = "`ops-pipelines repair report INC-...` is for the vendor; `repair done INC-... --note ...` ends the wait"
    return _table_document("Repairs", columns, rows, empty="the repair queue is empty", note=note, cluster=cluster)


def _table_document(
    title: str, columns: str, rows: Sequence[tuple[doc.Cell, ...]], *, empty: str, cluster: str, note: str = ""
) -> doc.Document:
    """Return a document of one table, with a note below it where it has rows."""
    return doc.Document(
        title=title,
        cluster=cluster,
        about="",
        blocks=doc.sections(
            doc.Table(columns=doc.columns_of(columns), rows=rows, at_most=len(rows), empty=empty),
            doc.Note(words=note, mood=doc.Mood.SOFT) if note and rows else None,
        ),
    )


# -- `versions` --


def versions_json(seen: VersionsSeen, *, cluster: str) -> Keys:
    """Return what runs. `told_by` is `node`, `inventory` (the node did not answer), or empty."""
    return {
        "cluster": cluster,
        "taken_at": seen.taken_at,
        "node_count": len({each.node for each in seen.lines}),
        "drift_count": len(seen.drifts),
        "silent_nodes": seen.silent,
        "versions": [_version_json(each) for each in seen.lines],
        "problems": seen.problems,
    }


def _version_json(line: VersionLine) -> Keys:
    seen, due = line.seen, line.wanted
    return {
        **fields_of(line, "node model component"),
        "runs": None if seen is None else seen.version,
        "seen_at": None if seen is None else seen.seen_at,
        "told_by": "" if seen is None else "node" if seen.is_live else "inventory",
        "should_run": None if due is None else due.version,
        "said_by": "" if due is None else due.said_by,
        "fit": line.fit,
    }


def versions_document(seen: VersionsSeen, *, cluster: str) -> doc.Document:
    """Return how many nodes run which version, and every one that runs another than it should."""
    drifts = [each for each in seen.lines if each.fit is Fit.DRIFTS]
    counted = [
        (component, model, version, f"{len(nodes)}: {listed(nodes, at_most=_NAMES_SHOWN)}")
        for (component, model, version), nodes in _by_version(seen.lines).items()
    ]
    return doc.Document(
        title="Versions",
        cluster=cluster,
        about="",
        now=seen.taken_at,
        blocks=doc.sections(
            doc.Fields(
                rows={
                    "nodes": str(len({each.node for each in seen.lines})),
                    "drift": f"{len(seen.drifts)} versions" if seen.drifts else "none",
                    "silent": f"{len(seen.silent)} did not answer: {listed(seen.silent, at_most=_NAMES_SHOWN)}"
                    if seen.silent
                    else "",
                }
            ),
            doc.Table(columns=doc.columns_of("Component|Model|Version|Nodes"), rows=counted, at_most=len(counted)),
            doc.Table(
                columns=doc.columns_of("Node:name|Component|Runs|Should run|Stated by|Seen"),
                rows=[_drift_row(each) for each in drifts],
                at_most=_DRIFTS_SHOWN,
                more="--json lists them all",
                empty="",
            ),
        ),
    )


def _drift_row(line: VersionLine) -> tuple[doc.Cell, ...]:
    seen, due = line.seen, line.wanted
    how = "" if seen is None else moment(seen.seen_at) + ("" if seen.is_live else ", by the inventory")
    return (
        line.node,
        line.component.value,
        "" if seen is None else seen.version,
        "" if due is None else due.version,
        "" if due is None else due.said_by,
        how,
    )


def _by_version(lines: Sequence[VersionLine]) -> Mapping[tuple[str, str, str], Sequence[str]]:
    """Return the nodes that run each version, components in their order, the version of most nodes first."""
    order = {component: place for place, component in enumerate(dict.fromkeys(each.component.value for each in lines))}
    nodes: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for each in lines:
        if each.seen is not None:
            nodes[each.component.value, each.model, each.seen.version].append(each.node)
    sizes = Counter({key: len(names) for key, names in nodes.items()})
    return {key: nodes[key] for key in sorted(nodes, key=lambda key: (order[key[0]], key[1], -sizes[key], key[2]))}
