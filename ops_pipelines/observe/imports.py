"""Takes files from outside into the lake: the format is read, nodes are settled, what is not believed is kept too."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from ops_pipelines.core.sources import Lake
from ops_pipelines.lake.quantities import Parsed, WrongKind

if TYPE_CHECKING:
    from ops_pipelines.lake.node_names import NodeNames

Parse = Callable[..., Parsed]


class FileKind(Enum):
    """What a file from outside is stated to be."""

    METRICS = "metrics"
    SACCT = "sacct"
    LOG = "log"
    NVIDIA_SMI = "nvidia-smi"
    SMARTCTL = "smartctl"
    INFINIBAND = "infiniband"
    REDFISH = "redfish"
    NODE_EXPORTER = "node-exporter"
    SLURM = "slurm"


_LABELLED = frozenset({FileKind.METRICS, FileKind.NODE_EXPORTER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file as it was found: one body, or a tree of them (a directory, an archive)."""

    source: str
    """A name that stays with these bytes: the same file taken in twice gives the same rows."""
    at: datetime
    """The time of records that state none."""
    body: bytes | None
    files: Mapping[str, bytes] | None
    """Relative path -> content; None where there is one body."""


def ingest(
    document: Document, *, kind: FileKind, lake: Lake, known_nodes: Collection[str] | None, node: str | None
) -> Parsed:
    """Read a document and keep what it says; return what became of its records.

    `known_nodes` None: no cluster is known, and no node is marked as unknown. `node` is the node of records that name
    none. Raises WrongKind if the document is of another kind, LakeError if the lake cannot be written.
    """
    from ops_pipelines.lake.metrics.pages import REJECTED, rejected_rows
    from ops_pipelines.lake.node_names import NodeNames, mark_nodes

    names = NodeNames(known_nodes)
    parsed = _parse(document, kind=kind, node=node, names=names)
    tables = {name: mark_nodes(rows, names) for name, rows in parsed.tables.items()}
    for name, rows in tables.items():
        lake.add(name, rows)
    if parsed.refused:
        lake.add(REJECTED, rejected_rows(parsed.refused, source=document.source, at=document.at))
    return replace(parsed, tables=tables)


def _parse(document: Document, *, kind: FileKind, node: str | None, names: "NodeNames") -> Parsed:
    parse, parse_tree = _parsers(kind)
    if kind in _LABELLED:
        # Which of several labels names the node can only be reported by who knows the nodes.
        parse = partial(parse, names=names)
    if document.body is not None:
        return parse(document.body, source=document.source, at=document.at, node=node)
    if parse_tree is None:
        raise WrongKind(f"{document.source} is a directory or an archive; for {kind.value} expected one file")
    return parse_tree(document.files, source=document.source, at=document.at, node=node)


def _parsers(kind: FileKind) -> tuple[Parse, Parse | None]:
    """Return the parser of a kind, and that of its trees; each is imported when it is needed."""
    if kind is FileKind.METRICS:
        from ops_pipelines.lake.metrics import pages as metrics

        return metrics.parse_metrics, None
    if kind is FileKind.SACCT:
        from ops_pipelines.lake.formats import sacct

        return sacct.parse, None
    if kind is FileKind.LOG:
        from ops_pipelines.observe.logs import tables as log

        return log.parse, None
    if kind is FileKind.NVIDIA_SMI:
        from ops_pipelines.lake.formats import nvidia_smi

        return nvidia_smi.parse, None
    if kind is FileKind.SMARTCTL:
        from ops_pipelines.lake.formats import smartctl

        return smartctl.parse, None
    if kind is FileKind.INFINIBAND:
        from ops_pipelines.lake.formats import infiniband

        return infiniband.parse, infiniband.parse_tree
    if kind is FileKind.REDFISH:
        from ops_pipelines.lake.formats import redfish

        return redfish.parse, redfish.parse_tree
    if kind is FileKind.NODE_EXPORTER:
        from ops_pipelines.lake.metrics import pages as node_exporter

        return node_exporter.parse_node_exporter, None
    from ops_pipelines.lake.formats import slurm

    return slurm.parse, None
