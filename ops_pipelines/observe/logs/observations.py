"""Rows of logs whose signature means something -> evidence. Bounded: a flood is a few observations and a count.

Xid and SXid lines of kernels are no signatures here: `signals` believes them line by line. What a signature means is
`observe.rules`; which lines match it is `matching`.
"""

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.identity import JobId, NodeName, PciAddress, parse_job_id, parse_node_name, parse_pci_address
from ops_pipelines.core.observation import NO_NODE, Observation, Signal
from ops_pipelines.core.sources import LogLine
from ops_pipelines.lake.hours import microseconds, text_codes
from ops_pipelines.observe.logs.matching import Origin, Rule, read_rules
from ops_pipelines.observe.logs.signals import observe_log_lines

LOG_TABLES = ("kernel_events", "job_logs")


MOST_ALIKE = 5
"""Observations of one signature on one part in a minute: the first ones, and the last with the count."""


_MINUTE_MICROSECONDS = 60_000_000


_MENTIONS_XID = r"\bS?Xid\b"


_INFORMATIVE_LEVELS = frozenset({"info", "notice"})


_INFORMATIVE_CATEGORIES = frozenset({"training_progress", "recovery_notice", "host_boot"})


_BENIGN = "benign"


_LINK = re.compile(r"mlx[45]_|ib\d|eth\d|en[ospx]|bond\d")


_DISK = re.compile(r"nvme\d|sd[a-z]|md\d|dm-\d|ata\d")


_ON_GPU = frozenset({"gpu", "nvlink"})
"""Components of signatures whose PCI address is a GPU's, where nobody knows the GPUs of the node."""


def observations_of(
    rows: pa.Table,
    *,
    table: str,
    gpus: Mapping[NodeName, Collection[PciAddress]] | None = None,
    most_alike: int = MOST_ALIKE,
) -> tuple[Observation, ...]:
    """Return the evidence in rows of `kernel_events` or `job_logs` (`table`), oldest first.

    Signatures that only inform are left out, and what a job prints in the words of a kernel: it is a program's. Of one
    signature on one node, device and job in one minute at most `most_alike` are returned: the first ones, and the
    last, whose `value` says how many there were in all (of the others, and where none is left out, it is 1). `gpus`
    are the GPUs of nodes, as far as they are known.
    """
    wanted = [each.id for each in read_rules() if not _is_left_out(each, table=table)]
    known = [each.id for each in read_rules()]
    signature = rows["signature"].cast(pa.string())
    # A signature that this catalogue lacks was written by another version: unknown, and kept.
    is_wanted = pc.or_(_is_in(signature, wanted), pc.invert(_is_in(signature, known)))
    found = rows.filter(pc.fill_null(pc.and_(pc.is_valid(signature), is_wanted), False))
    if table == "kernel_events":
        found = found.filter(pc.fill_null(pc.invert(pc.match_substring_regex(found["text"], _MENTIONS_XID)), True))
    if not found.num_rows:
        return ()
    found = found.take(pa.array(np.argsort(microseconds(found["time"]), kind="stable")))
    counts = _thin(found, table=table, most_alike=most_alike)
    kept = found.take(pa.array(np.flatnonzero(counts)))
    return tuple(
        _observation(row, count=count, gpus=gpus)
        for row, count in zip(kept.to_pylist(), counts[counts > 0].tolist(), strict=True)
    )


def coded_observations(
    rows: pa.Table, *, received_at: datetime, known_nodes: Collection[NodeName]
) -> tuple[Observation, ...]:
    """Return the Xid and SXid lines among rows of `kernel_events`, believed as `signals.observe_log_lines` does."""
    mentioned = rows.filter(pc.fill_null(pc.match_substring_regex(rows["text"], _MENTIONS_XID), False))
    lines: dict[str, list[LogLine]] = {}
    for row in mentioned.select(["source", "position", "time", "node", "text"]).to_pylist():
        line = LogLine(node=row["node"], written_at=row["time"], position=row["position"], text=row["text"])
        lines.setdefault(row["source"], []).append(line)
    return tuple(
        observation
        for source, listed in lines.items()
        for observation in observe_log_lines(listed, source=source, received_at=received_at, known_nodes=known_nodes)[0]
    )


def _is_left_out(rule: Rule, *, table: str) -> bool:
    if table == "job_logs" and rule.origin == Origin.KERNEL:
        return True
    is_informative = rule.category in _INFORMATIVE_CATEGORIES or rule.category.startswith(_BENIGN)
    return is_informative or rule.level in _INFORMATIVE_LEVELS


def _is_in(column: pa.ChunkedArray, words: list[str]) -> pa.ChunkedArray:
    return pc.is_in(column, value_set=pa.array(words, pa.string()))


def _thin(rows: pa.Table, *, table: str, most_alike: int) -> NDArray[np.int64]:
    """Return for each row 0 if it is left out, else how many it is for. The rows are in the order of time."""
    names = ("signature", "node", "job") if table == "job_logs" else ("signature", "node", "device", "pci_address")
    group = np.unique(microseconds(rows["time"]) // _MINUTE_MICROSECONDS, return_inverse=True)[1].astype(np.int64)
    for name in names:
        codes, words = text_codes(rows[name])
        group = np.unique(group * (len(words) + 1) + codes + 1, return_inverse=True)[1].astype(np.int64)
    totals = np.bincount(group)
    order = np.argsort(group, kind="stable")
    starts = np.cumsum(totals) - totals
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(starts, totals)
    total = totals[group]
    counts = np.where(rank < most_alike - 1, 1, 0)
    counts[rank == total - 1] = 1
    is_count_of_all = (rank == total - 1) & (total > most_alike)
    counts[is_count_of_all] = total[is_count_of_all]
    return counts


def _observation(
    row: Mapping[str, object], *, count: int, gpus: Mapping[NodeName, Collection[PciAddress]] | None
) -> Observation:
    node = _node(row["node"])
    rule = _rules().get(str(row["signature"]))
    time = row["time"]
    assert isinstance(time, datetime), "the schema of the table"
    return Observation(
        signal=Signal.LOG_SIGNATURE,
        node=node,
        observed_at=time,
        source=str(row["source"]),
        position=str(row["position"]),
        gpu=_gpu(row.get("pci_address"), node=node, rule=rule, gpus=gpus),
        text=str(row["text"] or ""),
        component=_component(row.get("device"), node=node),
        job=_job(row.get("job")),
        signature=str(row["signature"]),
        value=float(count),
    )


def _node(name: object) -> NodeName:
    """Return the node; NO_NODE for a row without one, or with a name that could not be one."""
    try:
        return parse_node_name(str(name or ""))
    except ValueError:
        return NO_NODE


def _job(name: object) -> JobId | None:
    try:
        return None if name is None else parse_job_id(str(name))
    except ValueError:
        return None


def _gpu(
    address: object, *, node: NodeName, rule: Rule | None, gpus: Mapping[NodeName, Collection[PciAddress]] | None
) -> PciAddress | None:
    """Return the GPU that the row names; a PCI address may be a network card's or a bridge's, too."""
    if address is None:
        return None
    try:
        parsed = parse_pci_address(str(address))
    except ValueError:
        return None
    of_node = None if gpus is None else gpus.get(node)
    if of_node:
        return parsed if parsed in of_node else None
    return parsed if rule is not None and rule.component in _ON_GPU else None


def _component(device: object, *, node: NodeName) -> Component | None:
    name = str(device or "")
    owner = node if node != NO_NODE else None
    if _LINK.match(name):
        return Component(kind=ComponentKind.LINK, name=name, node=owner)
    if _DISK.match(name):
        return Component(kind=ComponentKind.DISK, name=name, node=owner)
    return None


@cache
def _rules() -> Mapping[str, Rule]:
    return {rule.id: rule for rule in read_rules()}
