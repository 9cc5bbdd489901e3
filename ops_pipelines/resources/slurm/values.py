"""Single values of a row of Slurm's JSON: texts, state names, numbers, times, node lists and GPUs. Pure.

One value each, in the shapes of 22.05 to 25.11; what a row as a whole says is `answers` and `jobs`.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from ops_pipelines.core.identity import NodeName
from ops_pipelines.lake.node_names import expand_host_list

Row = Mapping[str, object]
"""One JSON object; nothing about its values is known yet."""

_UNSET_FROM = 0xFFFFFFFE
"""NO_VAL and INFINITE (32 and 64 bits) leak into numbers as this or more (25.11: cpu_load 4294967294)."""


def text_of(row: Row, key: str, *, is_required: bool = True) -> str:
    value = row.get(key)
    if value is None and not is_required:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}; expected text")
    return value


def names_of(row: Row, key: str, *, is_required: bool = True) -> frozenset[str]:
    """Return state names in upper case: one text (22.05: state beside flags) or a list of both (23.02 and later)."""
    value = row.get(key)
    words = [value] if isinstance(value, str) else value
    if words is None and not is_required:
        return frozenset()
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or (is_required and not words):
        raise ValueError(f"{key} is {value!r}; expected a state or a list of them")
    return frozenset(word.upper() for word in words)


def number_of(row: Row, key: str) -> int | None:
    """Return a whole number; None if it is absent, unset, infinite or a leaked NO_VAL."""
    value = row.get(key)
    if isinstance(value, dict):
        if value.get("infinite") or not value.get("set"):
            return None
        value = value.get("number")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} is {value!r}; expected a number")
    if not math.isfinite(value) or value >= _UNSET_FROM:
        return None
    return int(value)


def time_of(row: Row, key: str) -> datetime | None:
    """Return a point in time; None if it is unset (0)."""
    seconds = number_of(row, key)
    if not seconds:
        return None
    if seconds < 0:
        raise ValueError(f"{key} is {seconds}; expected seconds since 1970")
    return datetime.fromtimestamp(seconds, UTC)


def nodes_of(host_list: str) -> frozenset[NodeName]:
    """Return the nodes of a host list; none for an empty one, as a pending job has it."""
    return frozenset(expand_host_list(host_list)) if host_list else frozenset()


def count_gpus(gres: str) -> int:
    """Return the GPUs of `gpu:h100:8(S:0-1),gpu:a100:2(IDX:0,1),mps:100`."""
    total = 0
    for part in re.split(r",(?![^(]*\))", gres):
        match = re.fullmatch(r"gpu(?::[^:()]+)?:(\d+)(?:\(.*\))?", part)
        if match:
            total += int(match[1])
    return total


def count_job_gpus(row: Row) -> int:
    """Return a job's GPUs: allocated, else asked for. Typed TRES repeat the plain one, where that is accounted."""
    tres = text_of(row, "tres_alloc_str", is_required=False) or text_of(row, "tres_req_str", is_required=False)
    counts = {name: int(count) for name, count in re.findall(r"(?:^|,)gres/(gpu(?::[^=,]+)?)=(\d+)", tres)}
    if counts:
        return counts.get("gpu") or sum(counts.values())
    details = row.get("gres_detail")
    return sum(count_gpus(str(detail)) for detail in details) if isinstance(details, list) else 0
