"""What was bought at once, and what became of it: the register, drains for incidents in the ledger, watts of racks.

Gathers for `domain.capacity.refresh`, which judges. Failures are counted over a year, or since the ledger began.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.domain.capacity.batches import Batch
from ops_pipelines.domain.capacity.resources import Resource
from ops_pipelines.flow.capacity.past import Past
from ops_pipelines.review.story.cost import spans_out
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import InstalledNode

_LOOK_BACK = timedelta(days=365)
_YEAR_SECONDS = 365.25 * 86_400
_UNSAID_BEFORE = 1990
"""A node whose rack states no day stands since 1970 in the register: of its age nobody knows anything."""
Spans = Mapping[NodeName, Sequence[tuple[datetime, datetime]]]


def gather_batches(desk: TeamsDesk, past: Past) -> tuple[Batch, ...]:
    """Return the batches that stand on the day of the forecast, by asset and day. Raises LedgerError."""
    from ops_pipelines.lake.rates import day_begins

    until = day_begins(past.as_of, zone=desk.zone)
    there: defaultdict[tuple[str, str, datetime], list[InstalledNode]] = defaultdict(list)
    for each in desk.installed:
        if each.since <= until and (each.until is None or each.until > until) and each.gpu_count:
            there[each.asset, each.gpu_type, each.since].append(each)
    counted_since = _counted_since(desk.cluster.ledger, until=until)
    out = {} if counted_since is None else _spans_out(desk.cluster.ledger, since=counted_since, until=until)
    watts = _watts_by_rack(past)
    counted = None if counted_since is None else (counted_since, until)
    return tuple(_batch(nodes, desk=desk, counted=counted, out=out, watts=watts) for _, nodes in sorted(there.items()))


def _batch(
    nodes: Sequence[InstalledNode],
    *,
    desk: TeamsDesk,
    counted: tuple[datetime, datetime] | None,
    out: Spans,
    watts: Mapping[str, float],
) -> Batch:
    first = nodes[0]
    racks = sorted({_rack_of(desk, each.node) for each in nodes} - {""})
    gpus = sum(each.gpu_count for each in nodes)
    seconds = 0.0 if counted is None else sum(_seconds(*counted, since=each.since) for each in nodes)
    lost = sum((end - begin).total_seconds() for each in nodes for begin, end in out.get(each.node, ()))
    return Batch(
        asset=first.asset,
        racks=tuple(racks),
        gpu_type=first.gpu_type,
        gpus=gpus,
        gpus_per_node=first.gpu_count,
        installed_since=_day_of(first.since, desk),
        failures=sum(len(out.get(each.node, ())) for each in nodes) if seconds else None,
        node_years=seconds / _YEAR_SECONDS,
        # Spans of two incidents on one node may overlap: no more is lost than there was.
        hours_lost_ratio=min(lost / seconds, 0.99) if seconds else None,
        watts_per_gpu=_watts_per_gpu(racks, desk=desk, watts=watts),
    )


def _counted_since(ledger: Ledger, *, until: datetime) -> datetime | None:
    """Return since when failures are on record; None: nothing is, by then."""
    first = next(iter(ledger.entries(after=0, limit=1)), None)
    if first is None or first.written_at >= until:
        return None
    return max(first.written_at, until - _LOOK_BACK)


def _spans_out(ledger: Ledger, *, since: datetime, until: datetime) -> Spans:
    found: defaultdict[NodeName, list[tuple[datetime, datetime]]] = defaultdict(list)
    for incident in ledger.incidents_since(since):
        for node, begin, end in spans_out(incident, ledger.records(incident.incident), now=until):
            if since <= begin < until:
                found[node].append((begin, min(end, until)))
    return found


def _seconds(begin: datetime, end: datetime, *, since: datetime) -> float:
    return max(0.0, (end - max(begin, since)).total_seconds())


def _rack_of(desk: TeamsDesk, node: NodeName) -> str:
    place = desk.cluster.rules.topology.places.get(node)
    return "" if place is None else place.rack


def _day_of(since: datetime, desk: TeamsDesk) -> date | None:
    return None if since.year < _UNSAID_BEFORE else since.astimezone(desk.zone).date()


def _watts_by_rack(past: Past) -> Mapping[str, float]:
    """Return the mean draw of each rack that is measured."""
    history = past.history.of(Resource.RACK_WATTS)
    if history is None:
        return {}
    return {key.name: sum(means) / len(means) for key, means in history.means.items() if means and key.name}


def _watts_per_gpu(racks: Iterable[str], *, desk: TeamsDesk, watts: Mapping[str, float]) -> float | None:
    """Return the mean draw of a GPU with its share of the rack; None where a rack of the batch is not measured."""
    named = list(racks)
    if not named or any(rack not in watts for rack in named):
        return None
    gpus = sum(each.gpu_count for each in desk.installed if each.until is None and _rack_of(desk, each.node) in named)
    return sum(watts[rack] for rack in named) / gpus if gpus else None
