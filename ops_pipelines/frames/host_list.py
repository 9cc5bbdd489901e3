"""Node lists as Slurm writes them: `gpu[001-008,011],login1`. The notation only, not which nodes exist."""

import re
from itertools import product

from ops_pipelines.core.identity import NodeName, parse_node_name

# Assumption: no cluster that this program serves has more; a slip such as gpu[1-99999999] must not fill the memory.
MAX_NODE_COUNT = 100_000

_SHOWN = 200
"""Characters of a list that a message repeats."""
_TEXT_OR_BRACKETS = re.compile(r"\[(?P<ranges>[0-9,-]+)\]|(?P<text>[^\[\],\s]+)")
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
