"""GPUs of a local day that nobody can have: broken or in maintenance by the usage ledger, and those in pieces.

In pieces: free GPUs of a node in service of which a part is held, or is kept from jobs; a job of whole nodes cannot
have them. What is drained, down or reserved is not counted here: the ledger has it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.costs.usage import Fate
from ops_pipelines.costs.usage_ledger import UsageLedger
from ops_pipelines.domain.capacity.resources import Resource
from ops_pipelines.efficiency.placement.standing import Absence, Machine, Occupancy, Stay
from ops_pipelines.frames.peaks.day_book import DayBook
from ops_pipelines.lake.rates import HOUR

BROKEN, MAINTENANCE, BOTH = "broken", "maintenance", ""
_NAMES = {Fate.BROKEN: BROKEN, Fate.MAINTENANCE: MAINTENANCE}
_HOUR_SECONDS = 3600


def put_out(book: DayBook, ledger: UsageLedger, *, known: Iterable[int]) -> None:
    """Put broken GPUs and those in maintenance, by type, for the hours in which somebody noted how nodes were."""
    seconds: dict[GpuType, dict[tuple[int, str], int]] = {kind: defaultdict(int) for kind in ledger.installed_by_type}
    for line in ledger.lines:
        place = book.place_of(line.since)
        if line.fate in _NAMES and place is not None:
            seconds[line.gpu_type][place, _NAMES[line.fate]] += line.gpu_seconds
    day_seconds = (book.end - book.start).total_seconds()
    places = sorted(known)
    for kind, installed in sorted(ledger.installed_by_type.items()):
        for place in places:
            broken, maintenance = (seconds[kind][place, name] / _HOUR_SECONDS for name in (BROKEN, MAINTENANCE))
            values = {BROKEN: broken, MAINTENANCE: maintenance, BOTH: broken + maintenance}
            book.put(Resource.GPUS_OUT, values, hour=place, gpu_type=kind)
        if places:
            held = installed / day_seconds
            book.limit(Resource.GPUS_OUT, {BROKEN: held, MAINTENANCE: held, BOTH: held}, gpu_type=kind)


def put_stranded(
    book: DayBook,
    machines: Iterable[Machine],
    stays: Iterable[Stay],
    *,
    absences: Iterable[Absence],
    type_of: Mapping[NodeName, GpuType],
    known: Iterable[int],
) -> None:
    """Put the free GPUs that stand in pieces, by type, weighted by time within each hour."""
    occupancy = Occupancy(machines)
    kinds = sorted({type_of.get(node, GpuType("")) for node in occupancy.machines})
    pieces = dict.fromkeys(kinds, 0)
    of_node: dict[NodeName, int] = {}
    sums = {kind: [0.0] * len(book.hours) for kind in kinds}
    for stretch in occupancy.stretches(stays, absences, start=book.start, end=book.end):
        for node in stretch.changed:
            offered = occupancy.offered(node)
            is_whole = offered >= occupancy.machines[node].gpu_count
            was, of_node[node] = of_node.get(node, 0), 0 if is_whole else offered
            pieces[type_of.get(node, GpuType(""))] += of_node[node] - was
        for place, seconds in _hours(book, since=stretch.since, until=stretch.until):
            for kind in kinds:
                sums[kind][place] += pieces[kind] * seconds
    for kind in kinds:
        for place in sorted(known):
            book.put(Resource.GPUS_STRANDED, {"": sums[kind][place] / _HOUR_SECONDS}, hour=place, gpu_type=kind)


def _hours(book: DayBook, *, since: datetime, until: datetime) -> Iterable[tuple[int, float]]:
    """Yield the hours that a stretch is in, each with its seconds of it."""
    while since < until:
        place = (since - book.start) // HOUR
        edge = min(until, book.start + (place + 1) * HOUR)
        yield place, (edge - since).total_seconds()
        since = edge
