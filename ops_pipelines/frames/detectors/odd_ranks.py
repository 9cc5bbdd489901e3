"""In a job whose ranks all wait: the one that does not wait as the others do.

All ranks of a collective that hangs spin alike, but for the one that never came to it. Named is one GPU or one node;
of several nodes none. That the job hangs is `hang`'s finding.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ops_pipelines.core.identity import GpuUuid, NodeName, PciAddress
from ops_pipelines.core.observation import NO_NODE
from ops_pipelines.frames.detectors.allocations import Allocation, Columns, row_median
from ops_pipelines.frames.detectors.signs_of_life import recent_mean
from ops_pipelines.frames.panels.detection import held_lately
from ops_pipelines.frames.panels.panel import Flags, Numbers, Panel

RECENT_SECONDS = 60
WAITS_ABOVE_RATIO, ABSENT_BELOW_RATIO = 0.9, 0.5
MEMORY_GONE_RATIO = 0.2
"""Of the median: pipeline stages differ, but not by this much."""
ACTIVITY_APART_RATIO, POWER_APART_RATIO, POWER_APART_WATTS = 0.3, 0.25, 40.0
SPREADS_APART = 6.0
"""Besides: so many robust standard deviations of the job's own ranks."""
IDLE_CPU_RATIO, LEAST_CPU_CORES = 0.3, 4.0
LARGEST_SHARE = 0.4
"""More ranks than this share are no exception, unless they are one node of several."""
_MAD_TO_SIGMA = 1.4826
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OddRanks:
    """Who differs over the rows `first` to `last` of an allocation, both included."""

    first: int
    last: int
    node: NodeName
    gpu: PciAddress | None
    gpu_uuid: GpuUuid | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Oddity:
    how: str
    holds: Flags
    """(rows, GPUs of the job)"""


def find_odd_ranks(panel: Panel, held: Allocation, *, first: int, last: int) -> Iterator[OddRanks]:
    """Yield who differs in the rows `first` to `last` of an allocation, a new one where that changes."""
    rows = panel.rows_in(RECENT_SECONDS)
    begin = max(0, first - rows + 1)
    stretch = slice(begin, last + 1)
    oddities = [
        replace(oddity, holds=oddity.holds[first - begin :])
        for oddity in _oddities(panel, held, stretch, rows=rows, lately=first)
    ]
    if not oddities:
        yield OddRanks(first=first, last=last, node=NO_NODE, gpu=None, gpu_uuid=None, text="its ranks are not compared")
        return
    flags = np.logical_or.reduce([oddity.holds for oddity in oddities])
    changes = np.flatnonzero((flags[1:] != flags[:-1]).any(axis=1)) + 1
    open_one: OddRanks | None = None
    for start, end in zip([0, *changes.tolist()], [*changes.tolist(), len(flags)], strict=True):
        named = _name(panel, held, oddities, row=start)
        if open_one is not None and (named.node, named.gpu) == (open_one.node, open_one.gpu):
            open_one = replace(open_one, last=first + end - 1)
            continue
        if open_one is not None:
            yield open_one
        open_one = replace(named, first=first + start, last=first + end - 1)
    if open_one is not None:
        yield open_one


def _oddities(panel: Panel, held: Allocation, rows_of: slice, *, rows: int, lately: int) -> list[_Oddity]:
    def recent(column: str) -> Numbers:
        return recent_mean(held.of(panel.gpus, column, columns=held.gpus)[rows_of], rows)

    if not len(held.gpus):
        return []
    utilisation, memory = recent("utilisation_ratio"), recent("memory_used_bytes")
    waits = utilisation >= WAITS_ABOVE_RATIO
    most_wait = 2 * np.count_nonzero(waits, axis=1) >= np.count_nonzero(~np.isnan(utilisation), axis=1)
    usual_memory = row_median(memory)[:, np.newaxis]
    power = recent("power_watts")
    watts_apart = np.maximum(POWER_APART_RATIO * np.nan_to_num(row_median(power)), POWER_APART_WATTS)
    found = [
        _Oddity(how="is not in the collective", holds=(utilisation <= ABSENT_BELOW_RATIO) & most_wait[:, np.newaxis]),
        _Oddity(how="has freed its memory", holds=memory < MEMORY_GONE_RATIO * usual_memory),
        _Oddity(
            how="shows other SM activity",
            holds=_is_apart(recent("sm_active_ratio"), least=np.full(len(power), ACTIVITY_APART_RATIO)),
        ),
        _Oddity(how="draws other power", holds=_is_apart(power, least=watts_apart)),
        _Oddity(how="gives no samples any more", holds=_vanished(panel, held, rows_of, rows=rows, lately=lately)),
        _Oddity(how="stands on a node whose CPU is idle", holds=_idle_host(panel, held, rows_of, rows=rows)),
    ]
    return found if (~np.isnan(utilisation) | ~np.isnan(power) | ~np.isnan(memory)).any() else []


def _is_apart(values: Numbers, *, least: Numbers) -> Flags:
    median = row_median(values)[:, np.newaxis]
    away = np.abs(values - median)
    spread = row_median(away)[:, np.newaxis] * _MAD_TO_SIGMA
    return (away >= least[:, np.newaxis]) & (away > SPREADS_APART * spread)


def _vanished(panel: Panel, held: Allocation, rows_of: slice, *, rows: int, lately: int) -> Flags:
    """Return which GPUs are gone while another of their node is seen, or with their node altogether."""
    seen = held.seen(panel.gpus, columns=held.gpus)
    was_seen = seen[max(0, lately - 4 * rows) : lately].any(axis=0)
    recently: Flags = np.array(held_lately(seen, rows))[rows_of]
    node_recently: Flags = np.array(held_lately(held.seen(panel.nodes, columns=held.nodes), rows))[rows_of]
    host = _hosts(panel, held)
    of_node = np.stack([recently[:, host == place].any(axis=1) for place in range(len(held.nodes))], axis=1)
    # With its node altogether: it is silent, or dead. With its siblings still seen: it fell off the bus.
    may_be_named: Flags = np.array(of_node | ~node_recently)[:, host]
    return np.array(~recently & was_seen & may_be_named, dtype=bool)


def _idle_host(panel: Panel, held: Allocation, rows_of: slice, *, rows: int) -> Flags:
    if "cpu_busy_seconds" not in panel.nodes:
        return np.zeros((rows_of.stop - rows_of.start, len(held.gpus)), dtype=bool)
    cores = recent_mean(held.growth(panel.nodes, "cpu_busy_seconds", columns=held.nodes)[rows_of], rows)
    median = row_median(cores)[:, np.newaxis]
    idle = (cores < IDLE_CPU_RATIO * median) & (median >= LEAST_CPU_CORES)
    return idle[:, _hosts(panel, held)]


def _hosts(panel: Panel, held: Allocation) -> Columns:
    """Return for each GPU of the job the place of its node among the job's nodes."""
    order = {panel.nodes.parts[column].node: place for place, column in enumerate(held.nodes)}
    return np.array([order[panel.gpus.parts[gpu].node] for gpu in held.gpus], dtype=np.intp)


def _name(panel: Panel, held: Allocation, oddities: list[_Oddity], *, row: int) -> OddRanks:
    """Return whom the oddities of one row point at."""
    how = {oddity.how: np.flatnonzero(oddity.holds[row]) for oddity in oddities}
    odd = np.unique(np.concatenate(list(how.values())))
    parts = [panel.gpus.parts[held.gpus[column]] for column in odd]
    nodes = sorted({part.node for part in parts})
    nobody = OddRanks(first=row, last=row, node=NO_NODE, gpu=None, gpu_uuid=None, text="all ranks wait alike")
    if not parts:
        return nobody
    told = "; ".join(f"{words}: {len(columns)}" for words, columns in how.items() if len(columns))
    if len(nodes) > 1:
        shown = ", ".join(nodes[:_SHOWN]) + (f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else "")
        return replace(nobody, text=f"{len(parts)} of {len(held.gpus)} ranks differ, on {shown} ({told}): no one node")
    if len(held.nodes) == 1 and (len(parts) > 1 or len(parts) > LARGEST_SHARE * len(held.gpus)):
        return replace(nobody, text=f"{len(parts)} of {len(held.gpus)} ranks differ on its only node ({told})")
    if len(parts) == 1:
        part, what = parts[0], "; ".join(words for words, columns in how.items() if len(columns))
        return replace(
            nobody,
            node=part.node,
            gpu=PciAddress(part.device),
            gpu_uuid=part.uuid,
            text=f"GPU {part.device} of {part.node} differs from all others: it {what}",
        )
    return replace(nobody, node=nodes[0], text=f"{len(parts)} ranks of {nodes[0]} differ from all others ({told})")
