"""`ingest node-exporter`: a scrape of node_exporter. A record is one sample line."""

from datetime import datetime

from ops_pipelines.lake.formats.metrics import place
from ops_pipelines.lake.formats.reading import as_utf8
from ops_pipelines.lake.metrics.exposition import decode_exposition
from ops_pipelines.lake.node_names import NodeNames
from ops_pipelines.lake.quantities import Parsed, WrongKind

_PREFIX = "node_"


def parse(body: bytes, *, source: str, at: datetime, node: str | None = None, names: NodeNames | None = None) -> Parsed:
    """Return what the scrape says. Raises WrongKind if it is no exposition text, or of another exporter.

    The scrape itself seldom names its node: give `node`, else the kernel's own name in node_uname_info counts.
    """
    exposition = decode_exposition(as_utf8(body), default_time=at)
    series = exposition.block.names
    if series and not any(name.startswith(_PREFIX) for name in series):
        first = series[0][:80]
        raise WrongKind(f"none of {len(series)} series is node_exporter's (the first is {first!r}); try `metrics`")
    return place(exposition, source=source, node=node, names=names)
