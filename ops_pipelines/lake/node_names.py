"""Which node a label or a row means; and node lists as Slurm writes them.

Only names are settled here; which GPU or port of the node is meant is `gpu_labels` and the catalogue's business.
"""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

from ops_pipelines.core.identity import NodeName, parse_node_name
from ops_pipelines.lake.quantities import readable

# -- node lists as Slurm writes them --


# Assumption: no cluster that this program serves has more; a slip such as gpu[1-99999999] must not fill the memory.
MAX_NODE_COUNT = 100_000

_SHOWN = 200
"""Characters of a list that a message repeats."""
_TEXT_OR_BRACKETS = re.compile(r"\[(?P<ranges>[0-9,-]+)\]|(?P<text>[^\[\],\s]+)")
_NUMBERED = re.compile(r"(?P<name>.*?)(?P<number>[0-9]{1,12})", re.ASCII)
_RANGE = re.compile(r"(?P<first>\d{1,12})(?:-(?P<last>\d{1,12}))?")


def expand_host_list(text: str) -> tuple[NodeName, ...]:
    """Return the nodes that `text` names, in its order; raise ValueError on anything that is not a host list.

    Leading zeros are kept (`gpu[001-003]`); several brackets multiply (`r[1-2]n[1-4]`). An empty text names no
    node and is refused: empty never means all.
    """
    nodes: list[NodeName] = []
    for part in _split_outside_brackets(text):
        nodes.extend(_expand_part(part))
        if len(nodes) > MAX_NODE_COUNT:
            raise ValueError(f"{text[:_SHOWN]!r} names more than {MAX_NODE_COUNT} nodes; check the ranges")
    return tuple(nodes)


def fold_host_list(nodes: Collection[NodeName]) -> str:
    """Return the nodes as one host list in which runs are ranges: `gpu[001-008,011],login1`. No node: an empty text."""
    runs: dict[tuple[str, int], list[int]] = {}
    others: list[str] = []
    for node in sorted(nodes):
        found = _NUMBERED.fullmatch(node)
        if found is None:
            others.append(node)
        else:
            runs.setdefault((found["name"], len(found["number"])), []).append(int(found["number"]))
    folded = [f"{name}{_ranges(sorted(numbers), width=width)}" for (name, width), numbers in runs.items()]
    return ",".join(sorted((*folded, *others)))


def _ranges(numbers: list[int], *, width: int) -> str:
    parts: list[str] = []
    begin = previous = numbers[0]
    for number in (*numbers[1:], None):
        if number != previous + 1:
            parts.append(f"{begin:0{width}}" if begin == previous else f"{begin:0{width}}-{previous:0{width}}")
            begin = -1 if number is None else number
        previous = -1 if number is None else number
    return parts[0] if parts == [f"{numbers[0]:0{width}}"] else f"[{','.join(parts)}]"


def _split_outside_brackets(text: str) -> list[str]:
    # One pass: a pattern that looks ahead for each comma takes minutes for a long line.
    parts, begin, is_inside = [], 0, False
    for place, character in enumerate(text):
        if character in "[]":
            is_inside = character == "["
        elif character == "," and not is_inside:
            parts.append(text[begin:place].strip())
            begin = place + 1
    parts.append(text[begin:].strip())
    if not all(parts):
        raise ValueError(f"{text[:_SHOWN]!r} has an empty part; expected a host list such as gpu[001-008],gpu011")
    return parts


def _expand_part(part: str) -> list[NodeName]:
    choices: list[list[str]] = []
    end = 0
    count = 1
    for piece in _TEXT_OR_BRACKETS.finditer(part):
        if piece.start() != end:
            break
        end = piece.end()
        choices.append([piece["text"]] if piece["text"] else _expand_ranges(piece["ranges"], part=part))
        count *= len(choices[-1])
        if count > MAX_NODE_COUNT:
            raise ValueError(f"{part!r} names more than {MAX_NODE_COUNT} nodes; check the ranges")
    if end != len(part):
        raise ValueError(f"{part!r} is not a host list; expected a form such as gpu[001-008]")
    return [parse_node_name("".join(chosen)) for chosen in product(*choices)]


def _expand_ranges(ranges: str, *, part: str) -> list[str]:
    numbers: list[str] = []
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise ValueError(f"{item!r} in {part!r} is not a number or a range such as 001-008")
        first, last = match["first"], match["last"] or match["first"]
        if int(last) < int(first):
            raise ValueError(f"the range {item} in {part!r} runs backwards")
        if int(last) - int(first) >= MAX_NODE_COUNT:
            raise ValueError(f"the range {item} in {part!r} names more than {MAX_NODE_COUNT} nodes")
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers


# -- which node a label or a row means --


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
                # Two nodes that share a short name are distinguished by the full one only.
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
