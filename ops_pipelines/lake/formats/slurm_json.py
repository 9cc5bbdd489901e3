"""JSON as Slurm's clients and REST servers print it, 21.08 to 25.11; states and exit codes.

An answer that was cut keeps the objects that are whole. What an object means is the callers' business.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ops_pipelines.lake.formats import slurm_values as values
from ops_pipelines.lake.formats.reading import Unbelievable
from ops_pipelines.lake.formats.slurm_values import NOTHING, shown, words

# -- states and exit codes as Slurm writes them -> words in capitals, exit status and signal --


STATES = words(
    "BOOT_FAIL CANCELLED COMPLETED COMPLETING CONFIGURING DEADLINE EXPIRING FAILED LAUNCH_FAILED NODE_FAIL "
    "OUT_OF_MEMORY PENDING POWER_UP_NODE PREEMPTED RECONFIG_FAIL REQUEUED REQUEUE_FED REQUEUE_HOLD RESIZING "
    "RESV_DEL_HOLD REVOKED RUNNING SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED TIMEOUT UPDATE_DB"
)
"""The states of squeue(1) and sacct(1), 20.11 to 25.11."""
_SHORT = dict(
    pair.split("=")
    for pair in words(
        "BF=BOOT_FAIL CA=CANCELLED CD=COMPLETED CF=CONFIGURING CG=COMPLETING DL=DEADLINE EX=EXPIRING F=FAILED "
        "LF=LAUNCH_FAILED NF=NODE_FAIL OOM=OUT_OF_MEMORY PD=PENDING PR=PREEMPTED R=RUNNING RD=RESV_DEL_HOLD "
        "RF=REQUEUE_FED RH=REQUEUE_HOLD RQ=REQUEUED RS=RESIZING RV=REVOKED SI=SIGNALING SE=SPECIAL_EXIT "
        "SO=STAGE_OUT ST=STOPPED S=SUSPENDED TO=TIMEOUT UD=UPDATE_DB COMPLETE=COMPLETED CANCELED=CANCELLED "
        "NODEFAIL=NODE_FAIL"
    )
)
_NUMBERED = words(
    "PENDING RUNNING SUSPENDED COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE OUT_OF_MEMORY"
)
"""The states as the database numbers them, from 0."""
ENDED = frozenset(
    words(
        "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT"
    )
)
"""An attempt in one of these is over; REQUEUED too, in accounting."""
WAITING = frozenset(["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"])
_CANCELLED_BY = re.compile(r"CANCELLED\s+by\s+(?P<who>\S+)", re.IGNORECASE)
_STATE_WORD = re.compile(r"[^\W\d_][\w+*~#!%$@^-]*(?:[ +,][\w+*-]+)*")


def read_state(text: str) -> tuple[str, str | None]:
    """Return a state in Slurm's capitals, and who cancelled in `CANCELLED by 1234`.

    A state that no version of Slurm has is kept as it is, in capitals. Raises Unbelievable if there is none.
    """
    cell = text.strip()
    cancelled = _CANCELLED_BY.fullmatch(cell)
    if cancelled:
        return "CANCELLED", cancelled["who"]
    if cell.isdecimal() and len(cell) < 12:
        # The low byte is the state, the rest are flags.
        base = int(cell) & 0xFF
        return (_NUMBERED[base], None) if base < len(_NUMBERED) else (f"STATE_{base}", None)
    word = cell.upper()
    if word.endswith("+"):
        # A column of fixed width cuts: OUT_OF_ME+, CANCELLED+.
        fitting = [state for state in STATES if state.startswith(word[:-1])]
        word = min(fitting, key=len) if fitting else word
    word = _SHORT.get(word, word)
    if not _STATE_WORD.fullmatch(word) or len(word) > 64:
        raise Unbelievable("bad_state", f"{shown(text)}; expected a state such as COMPLETED")
    return word, None


def read_exit_code(text: str) -> tuple[int, int] | None:
    """Return exit status and signal of `3:0`; None for none."""
    cell = text.strip()
    if cell.lower() in NOTHING:
        return None
    status, colon, signal = cell.partition(":")
    if not (status.isdecimal() and (not colon or signal.isdecimal())) or len(status) > 10 or len(signal) > 10:
        raise Unbelievable("bad_exit_code", f"{shown(text)}; expected exit status and signal, as 3:0")
    return int(status), int(signal or 0)


def read_wait_status(number: int) -> tuple[int, int]:
    """Return exit status and signal of a wait status: 768 is exit 3, 9 is signal 9."""
    return number >> 8 & 0xFF, number & 0x7F


# -- JSON as Slurm's clients and REST servers print it, 21.08 to 25.11 --


Row = Mapping[str, object]
_DECODER = json.JSONDecoder()
_LISTS = values.words(
    "jobs nodes sinfo statistics partitions reservations licenses shares accounts associations users QOS qos "
    "clusters events TRES instances wckeys"
)
"""Under these names answers hold their records."""
_LIST_START = re.compile(r'"(' + "|".join(_LISTS) + r')"\s*:\s*\[')


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmReply:
    """One answer of Slurm."""

    key: str
    """What its records are: jobs, nodes, sinfo, statistics, ..."""
    records: Sequence[object]
    broken: str | None = None
    """Why the text ends to make sense after these records; None: it is whole."""
    rest: str = ""
    """What follows from there."""
    errors: Sequence[object] = ()
    version: tuple[int, ...] = ()


def looks_like_json(text: str) -> bool:
    """Return whether a text begins as a JSON object or list does."""
    return text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[")


def read_answer(text: str) -> SlurmReply | None:
    """Return the answer in `text`, as far as it is whole; None if it is none of Slurm's."""
    try:
        document = _DECODER.decode(text.strip("\ufeff \t\r\n\x00"))
    except (ValueError, RecursionError) as exc:
        return _bare(_lines(text)) or _salvage(text, why=f"{type(exc).__name__}: {exc}"[:200])
    if isinstance(document, list):
        return _bare(document)
    if not isinstance(document, dict):
        return None
    for key in _LISTS:
        held = document.get(key)
        if key == "shares" and isinstance(held, dict):
            held = held.get("shares")
        if isinstance(held, list) or (key == "statistics" and isinstance(held, dict)):
            errors = document.get("errors")
            return SlurmReply(
                key=key,
                records=held if isinstance(held, list) else [held],
                errors=errors if isinstance(errors, list) else (),
                version=_version(document),
            )
    return _bare([document])


def _bare(records: Sequence[object]) -> SlurmReply | None:
    """Return records that were taken out of an answer, as `jq .jobs` and `jq .jobs[]` do; None if they are others."""
    first = next((record for record in records if isinstance(record, dict)), {})
    is_job = "job_id" in first and ("job_state" in first or ("time" in first and "state" in first))
    is_node = "name" in first and "state" in first and "real_memory" in first
    return SlurmReply(key="jobs" if is_job else "nodes", records=records) if is_job or is_node else None


def _lines(text: str) -> list[object]:
    """Return the objects of a text that holds one a line, or several in a row; empty if that is not so."""
    found: list[object] = []
    position, stripped = 0, text.strip("\ufeff \t\r\n\x00")
    try:
        while position < len(stripped):
            record, position = _DECODER.raw_decode(stripped, position)
            found.append(record)
            while position < len(stripped) and stripped[position] in " \t\r\n":
                position += 1
    except (ValueError, RecursionError):
        return []
    return found


def _salvage(text: str, *, why: str) -> SlurmReply | None:
    found = _LIST_START.search(text)
    if found is None:
        return None
    records: list[object] = []
    position = found.end()
    while True:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if position >= len(text) or text[position] == "]":
            break
        try:
            record, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        records.append(record)
    # A list that was closed before the damage is whole, what is beside it matters less.
    is_whole = position < len(text) and text[position] == "]"
    return SlurmReply(
        key=found[1], records=records, broken=None if is_whole else why, rest=text[position : position + 1000]
    )


def _version(document: Row) -> tuple[int, ...]:
    meta = _object(document, "meta")
    slurm = _object(meta, "Slurm") or _object(meta, "slurm")
    return tuple(int(part) for part in re.findall(r"\d{1,4}", str(slurm.get("release", "")))[:3])


def _object(row: Row, key: str) -> Row:
    value = row.get(key)
    return value if isinstance(value, dict) else {}


def child(row: Row, *keys: str) -> Row:
    """Return the object at a path; an empty one if there is none."""
    for key in keys:
        row = _object(row, key)
    return row


def label(row: Row, *keys: str) -> str | None:
    """Return the first text among `keys`, printable; None for none. A number counts as its digits."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, str):
            found = values.read_label(value)
            if found is not None:
                return found
        elif isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return None


def number(row: Row, *keys: str) -> float | None:
    """Return the first number among `keys`; None if absent, unset, infinite or a leaked NO_VAL. Raises Unbelievable."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, dict):
            if value.get("infinite") or not value.get("set", True):
                continue
            value = value.get("number")
        if value is None:
            continue
        if isinstance(value, str):
            found = values.read_number(value)
            if found is None:
                continue
            return found
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unbelievable("bad_number", f"{key} is {str(value)[:60]!r}; expected a number")
        if value != value or abs(value) >= 0xFFFFFFFE:
            continue
        return float(value)
    return None


def large(row: Row, key: str) -> float | None:
    """Return a number that may be large, as bytes are: only the 64-bit NO_VALs count as none."""
    value = row.get(key)
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**62:
        return None
    return float(value)


def whole(row: Row, *keys: str) -> int | None:
    """Return a whole number, not negative; None for none. Raises Unbelievable."""
    found = number(row, *keys)
    if found is None:
        return None
    if found != int(found):
        raise Unbelievable("bad_number", f"{keys[0]} is {found}; expected a whole number")
    return int(found) if found >= 0 else None


def time(row: Row, *keys: str) -> int | None:
    """Return microseconds since 1970; None for 0 and unset. Raises Unbelievable."""
    found = number(row, *keys)
    return None if found is None else values.epoch_microseconds(found)


def names(row: Row, key: str) -> list[str]:
    """Return words in capitals: one text, or a list of them. Raises Unbelievable."""
    value = row.get(key)
    words = [value] if isinstance(value, str) else value
    if words is None:
        return []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Unbelievable("bad_state", f"{key} is {str(value)[:60]!r}; expected a word or a list of them")
    return [values.printable(word.upper()) for word in words if word]


def joined(row: Row, key: str) -> str | None:
    """Return a list of words, or a text, as words parted by commas; None for none."""
    value = row.get(key)
    if isinstance(value, list):
        return values.read_label(",".join(str(word) for word in value))
    return values.read_label(value) if isinstance(value, str) else None


def exit_of(row: Row, key: str, *, is_wait_status: bool) -> tuple[int, int] | None:
    """Return exit status and signal, as any version writes them; None for none."""
    value = row.get(key)
    if isinstance(value, dict) and ("return_code" in value or "status" in value):
        signal = child(value, "signal")
        return whole(value, "return_code") or 0, whole(signal, "id", "signal_id") or 0
    found = whole(row, key)
    if found is None:
        return None
    return read_wait_status(found) if is_wait_status else (found, 0)


def gpus_of_list(tres: object) -> int | None:
    """Return the GPUs of a TRES list of objects: the plain count, else the sum of the typed ones; None for no list."""
    if not isinstance(tres, list) or not tres:
        return None
    plain, typed = 0, 0
    for each in tres:
        if isinstance(each, dict) and each.get("type") == "gres":
            name, count = str(each.get("name")), int(large(each, "count") or 0)
            plain += count if name == "gpu" else 0
            typed += count if name.startswith("gpu:") else 0
    total = plain or typed
    if total > values.MOST_COUNT:
        raise Unbelievable("bad_number", f"{total} GPUs; expected fewer")
    return total


def count_of_list(tres: object, kind: str) -> float | None:
    """Return the count of one kind in a TRES list of objects."""
    if isinstance(tres, list):
        for each in tres:
            if isinstance(each, dict) and each.get("type") == kind:
                return large(each, "count")
    return None
