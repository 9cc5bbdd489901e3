"""`scontrol show ...`, in blocks and with -o -> Key=Value pairs of each record, with the line that it begins at.

Values hold blanks (Reason, OS, a job's name), and no quotes. A job's name is a user's text: a record in which it could
pass for other fields is refused by the caller, who finds a key twice in `doubled`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ops_pipelines.frames.formats import slurm_values as values

RECORDS = values.words(
    "NodeName JobId PartitionName ReservationName LicenseName SwitchName BlockName StepId FrontendName "
    "BurstBuffer UserName TopologyName"
)
_START = re.compile(r"(?P<kind>" + "|".join(RECORDS) + r")=", re.ASCII)
_KEY = re.compile(r"(?:^|(?<=\s))(?P<key>[A-Z][A-Za-z_]{0,40}(?:[:/][A-Za-z:_]{1,40})*)=", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One record of scontrol."""

    kind: str
    """Its first key: NodeName, JobId, ..."""
    pairs: Mapping[str, str]
    """Key -> value; of a key that stands twice, the first."""
    doubled: frozenset[str]
    first: int
    last: int
    text: str


def begins_block(line: str) -> bool:
    """Return whether a line begins a record."""
    return _START.match(line) is not None


def read_blocks(text: str) -> Iterator[Block]:
    """Yield the records. A line that begins none belongs to the record before it; such lines before the first are a
    record of kind "".
    """
    gathered: list[str] = []
    first = 1
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        if begins_block(line) or not line.strip():
            if gathered:
                yield _block(gathered, first=first)
                gathered = []
            if not line.strip():
                continue
        if not gathered:
            first = number
        gathered.append(line)


def _block(lines: list[str], *, first: int) -> Block:
    text = "\n".join(lines)
    start = _START.match(text)
    pairs: dict[str, str] = {}
    doubled: set[str] = set()
    keys = list(_KEY.finditer(text))
    ends = [*(key.start() for key in keys[1:]), len(text)]
    for key, end in zip(keys, ends, strict=False):
        value = text[key.end() : end].strip()
        if key["key"] in pairs:
            doubled.add(key["key"])
        pairs.setdefault(key["key"], value)
    return Block(
        kind=start["kind"] if start else "",
        pairs=pairs,
        doubled=frozenset(doubled),
        first=first,
        last=first + len(lines) - 1,
        text=text,
    )
