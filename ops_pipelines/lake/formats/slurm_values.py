"""Cells as Slurm prints them -> values in base units: times, durations, sizes, counts, ids, states. One cell at a time.

Each function takes the text of a cell and returns the value, or None where the cell says that there is none; a cell
that says neither raises `reading.Unbelievable`. Rows and tables are the callers' business.
"""

import re
from datetime import UTC, datetime

from ops_pipelines.lake.formats.reading import Unbelievable


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text that blanks part: a long list of names in few lines."""
    return tuple(text.split())


NOTHING = frozenset(
    ("", "unknown", "none", "n/a", "(null)", "null", "none assigned", "invalid", "nan", "not_set", "n/s", "-")
)
"""Words for "there is none", in lower case."""
NO_LIMIT = frozenset(("unlimited", "infinite", "partition_limit", "not_set", "partition", "node"))
UNSET_FROM = 0xFFFFFFF0
"""NO_VAL, INFINITE and their neighbours (32 and 64 bits) leak into numbers as this or more."""
PER_CPU_FLAG = 0x80000000
"""Old Slurm marks memory per CPU with this bit (64-bit: 2**63), and some versions print it as part of the number."""
LATEST_SECONDS = 32_503_680_000
"""The year 3000. A later time is a slip."""
MOST_COUNT = 2**53
"""More than any count: a float holds it exactly."""


def is_nothing(text: str) -> bool:
    """Return whether a cell says that there is no value."""
    return text.strip().lower() in NOTHING


def shown(text: str) -> str:
    """Return a cell for a message: short, on one line."""
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


# -- times --

_ISO = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d{1,9})?\s?(?:Z|UTC|[+-]\d\d(?::?\d\d)?)?", re.ASCII | re.IGNORECASE
)
_EPOCH = re.compile(r"\d{1,20}(?:\.\d{1,9})?", re.ASCII)


def read_time(text: str) -> int | None:
    """Return microseconds since 1970, UTC. A time without zone is UTC; a bare number counts seconds; 0 is none."""
    cell = text.strip()
    if cell.lower() in NOTHING:
        return None
    if _EPOCH.fullmatch(cell):
        return epoch_microseconds(float(cell))
    if not _ISO.fullmatch(cell):
        raise Unbelievable("bad_time", f"{shown(text)}; expected 2026-11-21T05:18:55, seconds since 1970 or Unknown")
    try:
        moment = datetime.fromisoformat(re.sub(r"\s?(?:utc|z)$", "+00:00", cell.replace(",", "."), flags=re.IGNORECASE))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        found = moment - _BEGINNING
    except (ValueError, OverflowError) as exc:
        raise Unbelievable("bad_time", f"{shown(text)}: {exc}") from exc
    return epoch_microseconds(found.days * 86_400 + found.seconds + found.microseconds / 1_000_000)


_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def epoch_microseconds(seconds: float) -> int | None:
    """Return seconds since 1970 as microseconds; None for 0 and for leaked NO_VALs."""
    if seconds == 0 or UNSET_FROM <= seconds <= 0xFFFFFFFF or seconds >= 2**63:
        return None
    if not 0 < seconds < LATEST_SECONDS:
        raise Unbelievable("bad_time", f"{seconds:g} s since 1970; expected a time before the year 3000")
    return round(seconds * 1_000_000)


def iso_of(microseconds: int) -> str:
    """Return a time as the key of an attempt writes it: 2026-11-21T05:18:55Z."""
    return f"{datetime.fromtimestamp(microseconds // 1_000_000, UTC).isoformat()[:19]}Z"


def as_microseconds(moment: datetime) -> int:
    """Return an aware time as microseconds since 1970."""
    found = moment - _BEGINNING
    return (found.days * 86_400 + found.seconds) * 1_000_000 + found.microseconds


# -- durations --

_DURATION = re.compile(
    r"(?:(?P<days>\d{1,7})-(?P<after>\d{1,3}(?::\d{1,2}){0,2})|(?P<parts>\d{1,9}(?::\d{1,2}){1,2}))(?P<fraction>\.\d{1,9})?",
    re.ASCII,
)


def read_duration(text: str) -> float | None:
    """Return seconds of `1-02:03:04`, `02:03:04`, `03:04`, `02:03.456` or `1-02`; None for none and for no limit."""
    cell = text.strip()
    if cell.lower() in NOTHING or cell.lower() in NO_LIMIT:
        return None
    found = _DURATION.fullmatch(cell)
    if found is None:
        raise Unbelievable("bad_duration", f"{shown(text)}; expected a form such as 1-02:03:04, 02:03.456 or UNLIMITED")
    fraction = float(found["fraction"] or 0)
    if found["days"] is not None:
        hours, minutes, seconds, *_ = [*map(int, found["after"].split(":")), 0, 0]
        return int(found["days"]) * 86_400 + hours * 3600 + minutes * 60 + seconds + fraction
    *before, minutes, seconds = map(int, found["parts"].split(":"))
    return (before[0] if before else 0) * 3600 + minutes * 60 + seconds + fraction


def read_seconds(text: str) -> float | None:
    """Return a bare number of seconds; a duration is taken too."""
    if ":" in text:
        return read_duration(text)
    return read_number(text)


def read_minutes(text: str) -> float | None:
    """Return seconds of a duration; a bare number counts minutes, as in TimelimitRaw and in databases."""
    if ":" in text or "-" in text:
        return read_duration(text)
    found = read_number(text)
    return None if found is None else found * 60


# -- numbers and sizes --

_NUMBER = re.compile(
    r"(?P<number>\d{1,20}(?:\.\d{1,15})?(?:[eE]\+?\d{1,3})?)(?P<suffix>[KMGTPE])?", re.ASCII | re.IGNORECASE
)
_FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}


def read_number(text: str) -> float | None:
    """Return a number, `2K` as 2048; None for none, no limit and leaked NO_VALs."""
    cell = text.strip()
    if cell.lower() in NOTHING or cell.lower() in NO_LIMIT:
        return None
    found = _NUMBER.fullmatch(cell)
    if found is None:
        raise Unbelievable("bad_number", f"{shown(text)}; expected a number such as 8")
    value = float(found["number"])
    if not found["suffix"] and (UNSET_FROM <= value <= 0xFFFFFFFF or value >= MOST_COUNT):
        return None
    return value * _FACTORS[(found["suffix"] or "").upper()]


def read_count(text: str) -> int | None:
    """Return a whole number, or the first of a range `2-4`; None for none and leaked NO_VALs."""
    cell = text.strip().rstrip("+")
    least, dash, most = cell.partition("-")
    if dash and least.isdecimal() and most.isdecimal():
        cell = least
    value = read_number(cell)
    if value is None:
        return None
    if value != int(value) or value > MOST_COUNT:
        raise Unbelievable("bad_number", f"{shown(text)}; expected a whole number")
    return int(value)


def read_bytes(text: str, *, unit: str = "") -> float | None:
    """Return a size in bytes: `77460K`, `62.50G`, `0`; a number without suffix counts `unit` (`M`: MiB)."""
    cell = text.strip().rstrip("?")
    if cell.lower() in NOTHING or cell.lower() in NO_LIMIT:
        return None
    found = _NUMBER.fullmatch(cell.removesuffix("B") if len(cell) > 1 else cell)
    if found is None:
        raise Unbelievable("bad_memory", f"{shown(text)}; expected a size such as 4000M")
    value = float(found["number"])
    if not found["suffix"] and value >= 2**62:
        return None
    return value * _FACTORS[(found["suffix"] or unit).upper()]


_ASKED_MEMORY = re.compile(
    r"(?P<number>\d{1,20}(?:\.\d{1,9})?(?:e\+?\d{1,3})?)(?P<unit>[KMGTP]?)(?P<per>[nc]?)", re.ASCII | re.I
)


def read_asked_memory(text: str) -> tuple[float, str] | None:
    """Return bytes and what they are for: `4000Mn` a node, `64Gc` a CPU, `64G` the job. None for none, and for 0: all.

    22.05 and older print the mark of memory per CPU as part of the number: 2147486648Mn is 3000 MiB a CPU.
    """
    cell = text.strip()
    if cell.lower() in NOTHING or cell.lower() in NO_LIMIT or cell == "?":
        return None
    found = _ASKED_MEMORY.fullmatch(cell)
    if found is None:
        raise Unbelievable("bad_memory", f"{shown(text)}; expected a form such as 4000Mn, 64Gc or 64G")
    number, per = float(found["number"]), found["per"].lower()
    if number >= 2**62:
        return None
    if (found["unit"] or "M").upper() == "M" and PER_CPU_FLAG <= number <= 0xFFFFFFFF:
        number, per = number - PER_CPU_FLAG, "c"
    # A number without unit is in MiB: so Slurm keeps it.
    value = number * _FACTORS[(found["unit"] or "M").upper()]
    return (value, per) if value else None


# -- what jobs hold --

_TRES_NUMBERS = {"1": "cpu", "2": "mem", "3": "energy", "4": "node", "5": "billing", "1001": "gres/gpu"}
"""Ids of TRES that every Slurm database gives. Higher ones differ by site, but for the first gres (1001)."""
_GRES = re.compile(r"(?:gres[:/])?gpu(?::[^:=,()]+)?[:=](\d{1,9})", re.ASCII)


def read_tres(text: str) -> dict[str, str]:
    """Return `billing=8,cpu=8,gres/gpu:a100=8,mem=62.50G` as a mapping; numeric names as their words."""
    cell = text.strip().strip('"')
    if cell.lower() in NOTHING:
        return {}
    found: dict[str, str] = {}
    for part in cell.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            # `gres/gpfs:ess:1` and the like: a resource that was not written as the others.
            continue
        found[_TRES_NUMBERS.get(name.strip(), name.strip())] = value.strip()
    if not found and "=" not in cell and ":" not in cell:
        raise Unbelievable("bad_tres", f"{shown(text)}; expected a form such as cpu=8,gres/gpu=1")
    return found


def gpus_of_tres(tres: dict[str, str]) -> int:
    """Return the GPUs of a TRES mapping: the plain count, else the sum of the typed ones. Raises Unbelievable."""
    plain = tres.get("gres/gpu")
    if plain is not None:
        return read_count(plain) or 0
    typed = sum(read_count(value) or 0 for name, value in tres.items() if name.startswith("gres/gpu:"))
    if typed:
        return typed
    # Sites whose first two gres swapped places: gpu has 1002 there, and nothing has 1001.
    return read_count(tres["1002"]) or 0 if "1002" in tres and "gres/gpu" not in tres else 0


def times(per_node: int | None, nodes: int | None) -> int | None:
    """Return GPUs of a job of which the source counts those of one node. Raises Unbelievable for what cannot be."""
    total = None if per_node is None else per_node * max(nodes or 1, 1)
    if total is not None and total > MOST_COUNT:
        raise Unbelievable("bad_number", f"{per_node} GPUs on each of {nodes} nodes; expected fewer")
    return total


def gpus_of_gres(text: str) -> int | None:
    """Return the GPUs of `gpu:h100:8(S:0-1),gpu:a100:2(IDX:0,1),mps:100`; None if it says nothing of any gres."""
    cell = re.sub(r"\([^()]*\)", "", text.strip())
    if not cell or text.strip().lower() in NOTHING:
        return None
    total = 0
    for part in cell.removeprefix("PER_NODE:").split(","):
        found = _GRES.fullmatch(part.strip())
        if found:
            total += int(found[1])
        elif part.strip() in ("gpu", "gres/gpu", "gres:gpu"):
            total += 1
    return total


# -- ids --

JOB_ID = re.compile(
    r"(?P<job>\d{1,20}(?:_(?:\d{1,10}|\[[\d,:%\-.]{1,2000}\]))?(?:\+\d{1,6})?)"
    r"(?:\.(?P<step>batch|extern|interactive|TBD|\d{1,10}(?:\+\d{1,6})?|[A-Za-z][A-Za-z0-9_]{0,20}))?",
    re.ASCII,
)


def read_job_id(text: str) -> tuple[str, str | None]:
    """Return the job, and the step if it is one: `30_1.batch` -> `30_1`, `batch`. Raises Unbelievable."""
    cell = text.strip()
    if cell.isdecimal() and cell.isascii() and len(cell) <= 20:
        return cell, None
    if not cell:
        raise Unbelievable("no_job_id", "the job id is empty; expected one such as 123, 30_1 or 40+1")
    found = JOB_ID.fullmatch(cell)
    if found is None:
        raise Unbelievable("bad_job_id", f"{shown(text)}; expected a job id such as 123, 30_1, 30_[3-15%3] or 40+1")
    return found["job"], found["step"]


_TRACE_ID = re.compile(r"[A-Za-z][A-Za-z0-9]{0,31}[_-][A-Za-z0-9_.-]{1,64}", re.ASCII)


def read_trace_id(text: str) -> tuple[str, str | None]:
    """Return the job of a published trace, whose ids are numbers or `mitsc-00001`. Raises Unbelievable."""
    cell = text.strip()
    return (cell, None) if _TRACE_ID.fullmatch(cell) else read_job_id(cell)


def read_label(text: str) -> str | None:
    """Return a short text as one printable line; None for none."""
    cell = text.strip()
    if cell.lower() in NOTHING:
        return None
    return printable(cell)


def printable(text: str) -> str:
    """Return text without control characters, at most 1000 characters."""
    kept = text[:1000]
    return (
        kept if kept.isprintable() else "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in kept)
    )
