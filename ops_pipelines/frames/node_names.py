"""Which node a label or a row means: host names in every shape, the label dialects, and what cluster.yaml knows.

Only names are settled here; which GPU or port of the node is meant is `gpu_labels` and the catalogue's business.
"""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from ops_pipelines.frames.parsed import readable

if TYPE_CHECKING:
    import pyarrow as pa

HOST_LABELS = (
    "Hostname",
    "hostname",
    "node",
    "kubernetes_node",
    "nodename",
    "node_name",
    "exported_node",
    "exported_instance",
)
"""Labels that say which node is measured, best first."""
TARGET_LABELS = ("instance", "host")
"""Labels that may say where the exporter listens, a pod's address even: believed if known, or if nothing is better."""
NODE_LABELS = (*HOST_LABELS, *TARGET_LABELS)

_PORT = re.compile(r":\d{1,5}")
_MAX_NAME_LENGTH = 253
_REMEMBERED_COUNT = 100_000
"""Names and labels come from outside: what is remembered of them is bounded, whatever they are."""


class NodeNames:
    """Settles names against the nodes of cluster.yaml. Remembers what it settled: thousands of series share a node."""

    def __init__(self, known: Collection[str] | None) -> None:
        """Take the names of cluster.yaml; None: there is no cluster.yaml, and every name is as good as the next."""
        self._known = None if known is None else frozenset(known)
        self._settled: dict[str, tuple[str, bool | None]] = {}
        self._found: dict[tuple[str | None, ...], tuple[str, bool | None]] = {}
        self._others: dict[str, str | None] = {}
        for name in self._known or ():
            for other in {name.casefold(), _first_label(name).casefold()}:
                # Two nodes that share a short name are told apart by the full one only.
                self._others[other] = None if other in self._others else name

    def settle(self, name: str) -> tuple[str, bool | None]:
        """Return the node's name, and whether cluster.yaml lacks it (None: there is none).

        `gpu001`, `GPU001`, `gpu001.site.example` and `gpu001:9400` are all the known `gpu001`. A name that is not
        known loses its port only. An empty name belongs to no node, and lacks nothing.
        """
        found = self._settled.get(name)
        if found is None:
            if len(self._settled) > _REMEMBERED_COUNT:
                self._settled.clear()
            found = self._settled[name] = self._settle(name)
        return found

    def _settle(self, name: str) -> tuple[str, bool | None]:
        text = _without_port(name.strip())
        shown = text if text.isascii() and text.isprintable() else readable(text)
        shown = shown[:_MAX_NAME_LENGTH]
        if self._known is None or not shown:
            return shown, None
        if shown in self._known:
            return shown, False
        folded = shown.casefold()
        for candidate in (folded, _first_label(folded)):
            known = self._others.get(candidate)
            if known is not None and _may_be(folded, known.casefold()):
                return known, False
        return shown, True

    def find(self, labels: Mapping[str, str], *, node: str | None = None) -> tuple[str, bool | None]:
        """Return the node that a label set means, as `settle` does; '' if it names none. `node` is who was asked.

        A known name wins over every other. Without one: a label that names the node measured, then `node`, then
        where the exporter listens. Raises ValueError if the labels name two different known nodes.
        """
        key = (node, *map(labels.get, NODE_LABELS))
        found = self._found.get(key)
        if found is None:
            if len(self._found) > _REMEMBERED_COUNT:
                self._found.clear()
            found = self._found[key] = self._find(labels, node=node)
        return found

    def _find(self, labels: Mapping[str, str], *, node: str | None) -> tuple[str, bool | None]:
        named = [self.settle(value) for label in HOST_LABELS if (value := labels.get(label))]
        targets = [self.settle(value) for label in TARGET_LABELS if (value := labels.get(label))]
        asked = [self.settle(node)] if node else []
        known = list(dict.fromkeys(name for name, is_unknown in (*named, *targets) if is_unknown is False))
        if len(known) > 1:
            raise ValueError(f"the labels name two nodes, {known[0]} and {known[1]}; expected one")
        if known:
            return known[0], False
        candidates = [found for found in asked if found[1] is False] or [*named, *asked, *targets]
        return candidates[0] if candidates else ("", None)


@lru_cache(maxsize=4)
def names_of(known: tuple[str, ...]) -> NodeNames:
    """Return who settles names of these nodes: the same one each time, so that what it settled is settled once."""
    return NodeNames(known)


def mark_nodes(table: "pa.Table", names: NodeNames) -> "pa.Table":
    """Return the table with settled names in `node`, and `unknown_node` set; unchanged if it lacks these columns.

    A row of no node (null or '') has null. Rows keep their order: a caller that needs them sorted sorts them again.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not {"node", "unknown_node"} <= set(table.column_names):
        return table
    encoded = pc.dictionary_encode(table.column("node").combine_chunks())
    settled = [names.settle(name or "") for name in encoded.dictionary.to_pylist()]
    marked = table
    for column, values in (
        ("node", [name for name, _ in settled]),
        ("unknown_node", [is_unknown for _, is_unknown in settled]),
    ):
        field = table.schema.field(column)
        taken = pa.array(values, field.type).take(encoded.indices)
        marked = marked.set_column(table.schema.get_field_index(column), field, taken)
    return marked


def _first_label(name: str) -> str:
    return name.split(".", 1)[0]


def _may_be(folded: str, known: str) -> bool:
    """Return whether one is the other, or its short form: `gpu001.a` is not the known `gpu001.b`, nor 10.0.0.1 10.x."""
    return folded == known or folded.startswith(f"{known}.") or known.startswith(f"{folded}.")


def _without_port(text: str) -> str:
    """Return `name` of `name:9100`, and the address of `[fe80::1]:9100`; an IPv6 address without brackets as it is."""
    if text.startswith("["):
        return text[1:].split("]", 1)[0]
    head, colon, port = text.rpartition(":")
    return head if colon and ":" not in head and _PORT.fullmatch(colon + port) else text
