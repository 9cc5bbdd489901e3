"""`ingest metrics` and `ingest node-exporter`: what an exporter serves on /metrics, saved to a file by line.

Decoding the text, and recognising files of another kind, is `lake.metrics.exposition`; meaning and gates are
`lake.metrics.pages`; here the two meet.
"""

from datetime import datetime

from ops_pipelines.lake.formats.reading import as_utf8
from ops_pipelines.lake.metrics.exposition import Exposition, decode_exposition
from ops_pipelines.lake.metrics.pages import tabulate
from ops_pipelines.lake.metrics.series import Joined, SeriesBlock
from ops_pipelines.lake.node_names import NodeNames
from ops_pipelines.lake.quantities import Parsed, WrongKind


def parse_metrics(
    body: bytes, *, source: str, at: datetime, node: str | None = None, names: NodeNames | None = None
) -> Parsed:
    """Return what the file says; `at` is the time of samples without one. Raises WrongKind if it is no such text.

    Where no label names the node, it is `node`; without that, the one that the file's node_uname_info names. With
    `names` a label that cluster.yaml knows wins over one that it does not; without, names stay as they are. Times are
    not compared with `at`: a file may be of any day.
    """
    return place(decode_exposition(as_utf8(body), default_time=at), source=source, node=node, names=names)


def place(exposition: Exposition, *, source: str, node: str | None, names: NodeNames | None) -> Parsed:
    """Return the tables that the decoded text fills, with its unreadable lines among the refused."""
    block = exposition.block
    placed = tabulate(block, source=source, names=names or NodeNames(None), node=node or _own_name(block))
    return Parsed(
        read=placed.read + len(exposition.refused),
        accepted=placed.accepted,
        ignored=placed.ignored,
        refused=Joined(exposition.refused, placed.refused) if placed.refused else exposition.refused,
        tables=placed.tables,
    )


def _own_name(block: SeriesBlock) -> str | None:
    """Return the name by which the node's kernel calls itself, if the file holds one node's."""
    named = {
        labels.get("nodename", "")
        for name, labels in zip(block.names, block.labels, strict=True)
        if name == "node_uname_info"
    }
    return named.pop() or None if len(named) == 1 else None


_PREFIX = "node_"


def parse_node_exporter(
    body: bytes, *, source: str, at: datetime, node: str | None = None, names: NodeNames | None = None
) -> Parsed:
    """Return what the scrape says. Raises WrongKind if it is no exposition text, or of another exporter.

    The scrape itself seldom names its node: give `node`, else the kernel's own name in node_uname_info counts.
    """
    exposition = decode_exposition(as_utf8(body), default_time=at)
    series = exposition.block.names
    if series and not any(name.startswith(_PREFIX) for name in series):
        first = series[0][:80]
        raise WrongKind(f"none of {len(series)} series is node_exporter's (the first is {first!r}); try `metrics`")
    return place(exposition, source=source, node=node, names=names)
