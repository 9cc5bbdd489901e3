"""What Slurm's clients print of nodes, settings and reservations, read in the shapes of 22.05 to 25.11. Pure.

Here: single values of a row of JSON, the nodes, what `scontrol show config` says, and reservations: the words that ask
for one and how their records are read. Not here: jobs (`jobs`), limits and quotas (`quota_limits`), and running any
client (`client`, `scheduler`).

JSON, because text cannot be trusted: `scontrol show job -o` prints the job's name unquoted, so a name with a newline
forges whole records of other jobs (seen with 22.05). Reservations are text, because 22.05 knows no other form; only
administrators make them, so no user's text is in it.

Our reservations keep nodes free and let no job in, so three things were chosen by trying 22.05.8:

* `Users=` is our own user alone, and even his jobs start there only if they ask for the reservation by name.
* `Flags=FLEX`: such a job outlives the end of the reservation. Without the flag Slurm kills it (TIMEOUT at the end).
* Neither IGNORE_JOBS nor OVERLAP: a node that is busy or reserved otherwise is refused, and with it the whole batch.

Bookings announce maintenance, `Flags=MAINT,IGNORE_JOBS`: running jobs continue, and a job that would run into it waits
("ReqNodeNotAvail, May be reserved for other job"). MAINT may overlap other reservations, and they it, on nodes that
are busy, drained or reserved. Nodes and end may change at any time, the start only until it has come ("Reservation
already started"): to postpone one that is in force, it is deleted and made again.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ops_pipelines.core.identity import NodeName, parse_node_name
from ops_pipelines.core.observation import NodeState, NodeStatus, Rejected
from ops_pipelines.core.scheduler import SchedulerLimits
from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.resources.slurm.guard.installation import PROLOG, WRAPPER

# -- single values of a row of JSON --


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


# -- nodes and settings --


LAST_CHOICE_WEIGHT = 1_000_000
"""Added to the weight of a node that is chosen last. Assumption: no site gives its nodes weights as high; a node that
has one reads as a last choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAnswer:
    """What was stated of nodes, and the rows that could not be believed."""

    nodes: tuple[NodeStatus, ...]
    weights: Mapping[NodeName, int]
    """Slurm fills the nodes of the least weight first. A node whose weight is not reported is absent."""
    rejected: tuple[Rejected, ...]


def read_nodes_answer(text: str, *, source: str) -> NodesAnswer:
    """Return the nodes of `sinfo --json` (22.05) or `scontrol show nodes --json` (23.02 and later).

    Raises SourceUnavailable if the answer reports errors (22.05 prints no nodes and rc 0 when slurmctld is gone),
    SourceNonsense if it is not such an answer.
    """
    nodes: list[NodeStatus] = []
    weights: dict[NodeName, int] = {}

    def take(row: Row) -> None:
        weight = number_of(row, "weight")
        status = _read_node(row, weight=weight)
        nodes.append(status)
        if weight is not None:
            weights[status.node] = weight

    rejected = read_rows(text, key="nodes", source=source, take=take)
    return NodesAnswer(nodes=tuple(nodes), weights=weights, rejected=rejected)


def read_config_answer(text: str, *, source: str) -> SchedulerLimits:
    """Return the limits of `scontrol show config`: lines such as `SlurmdTimeout           = 300 sec`.

    Raises SourceNonsense if one of them is missing or is no number: no default is guessed.
    """
    settings = settings_in(text)

    def number(name: str) -> int:
        found = re.fullmatch(r"([0-9]+)(?: sec)?", settings.get(name, ""))
        if found is None:
            shown = settings.get(name, "nothing")[:80]
            raise SourceNonsense(f"{source} printed {shown!r} for {name}; expected a number. Run it by hand")
        return int(found[1])

    silence_limit = timedelta(seconds=number("SlurmdTimeout"))
    return SchedulerLimits(
        # At 0 slurmctld neither gives a node up nor pings one that has answered before.
        silence_limit=silence_limit or None,
        ping_interval=silence_limit / 3 or None,
        answer_limit=timedelta(seconds=number("MessageTimeout")),
        is_every_down_node_returned=number("ReturnToService") == 2,
        is_requeue_the_default=number("JobRequeue") != 0,
        unguarded=_why_unguarded(prolog_in(text)),
        version=settings.get("SLURM_VERSION", ""),
    )


_RUN_BY_US = {
    "22.05": "every act of the lab was played on it",
    "25.11": "its contracts, the start guard, reboots and every act of the lab but the rollout were run on it",
}
"""Release -> what of it we ran; docs/SLURM.md says how to run more."""


def tell_version(version: str) -> str:
    """Return the version that a controller says it is, and what of it was run by us; empty if it does not say."""
    if not version:
        return ""
    release = ".".join(version.split(".")[:2])
    known = ", ".join(_RUN_BY_US)
    return f"Slurm {version}: {_RUN_BY_US.get(release, f'not run by us; of {known} we know')}"


def settings_in(text: str) -> Mapping[str, str]:
    """Return the settings of `scontrol show config`, one a line; whether any is there is for the caller."""
    settings: dict[str, str] = {}
    for line in text.splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting:
            # Sections of plugins follow: the first of a name is Slurm's own.
            settings.setdefault(name.strip(), value.strip())
    return settings


def prolog_in(text: str) -> str:
    """Return the PrologSlurmctld of `scontrol show config`; empty if it is not shown.

    25.11 numbers them (`PrologSlurmctld[0]`), and runs them all: of several it is ours, if that is among them.
    """
    shown = settings_in(text)
    found = [value for name, value in shown.items() if name.partition("[")[0] == PROLOG]
    return next((each for each in found if Path(each).name == WRAPPER), found[0] if found else "")


def _why_unguarded(prolog: str) -> str:
    """Return why a PrologSlurmctld is not our guard, empty if it is: whether that works is for others to ask."""
    if Path(prolog).name == WRAPPER:
        return ""
    return f"{PROLOG} is {prolog[:120] or 'not shown'}, not the start guard"


def node_listing(version: tuple[int, int]) -> tuple[str, ...]:
    """Return the command that lists every node as `read_nodes_answer` reads it."""
    # From 23.02 `sinfo --json` groups nodes into rows; before, scontrol has no --json.
    if version < _FIRST_VERSION_WITH_SCONTROL_JSON:
        return ("sinfo", "--all", "--json")
    return ("scontrol", "--all", "show", "nodes", "--json")


# -- answers and rows --


def read_rows(text: str, *, key: str, source: str, take: Callable[[Row], None]) -> tuple[Rejected, ...]:
    """Hand each row of the list `key` to `take`; return those on which it raised ValueError. Raises as above."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise SourceNonsense(f"{source} printed no JSON ({exc}): {text[:120]!r}; run it by hand") from exc
    if not isinstance(answer, dict):
        raise SourceNonsense(f"{source} printed {type(answer).__name__}; expected an object with {key!r}")
    if answer.get("errors"):
        raise SourceUnavailable(f"{source} reports {json.dumps(answer['errors'])[:300]}; check slurmctld and munge")
    rows = answer.get(key)
    if not isinstance(rows, list):
        raise SourceNonsense(f"{source} printed no list {key!r}; expected one in 22.05 to 25.11. Run it by hand")
    rejected: list[Rejected] = []
    for position, row in enumerate(rows):
        try:
            if not isinstance(row, dict):
                raise ValueError(f"it is {type(row).__name__}; expected an object")
            take(row)
        except ValueError as exc:
            raw = json.dumps(row, default=str)[:500]
            rejected.append(Rejected(source=source, position=f"{key}[{position}]", reason=str(exc), text=raw))
    return tuple(rejected)


def _read_node(row: Row, *, weight: int | None) -> NodeStatus:
    names = names_of(row, "state") | names_of(row, "state_flags", is_required=False)
    return NodeStatus(
        node=parse_node_name(text_of(row, "name")),
        state=next((state for name, state in _NODE_STATES.items() if name in names), NodeState.UNKNOWN),
        # FAIL is DRAIN by another name: no new work until it is taken back.
        is_drained=not names.isdisjoint({"DRAIN", "FAIL"}),
        is_responding=names.isdisjoint({"NOT_RESPONDING", "NO_RESPOND"}),
        reason=text_of(row, "reason", is_required=False) or None,
        reason_set_at=time_of(row, "reason_changed_at"),
        booted_at=time_of(row, "boot_time"),
        gpu_count=count_gpus(text_of(row, "gres", is_required=False)),
        gpu_in_use_count=_gpus_in_use(row),
        partitions=_partitions(row),
        is_last_choice=weight is not None and weight >= LAST_CHOICE_WEIGHT,
    )


def _partitions(row: Row) -> frozenset[str]:
    value = row.get("partitions")
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"partitions is {value!r}; expected a list of names")
    return frozenset(value)


def _gpus_in_use(row: Row) -> int:
    """Return how many GPUs are in use by jobs.

    22.05 keeps counting those of a silent node that it gave up by itself (seen: 16 of 8). No job is without a CPU,
    so where none is allocated no GPU is.
    """
    return 0 if row.get("alloc_cpus") == 0 else count_gpus(text_of(row, "gres_used", is_required=False))


_FIRST_VERSION_WITH_SCONTROL_JSON = (23, 2)
_NODE_STATES = {
    "DOWN": NodeState.DOWN,
    "ALLOCATED": NodeState.ALLOCATED,
    "MIXED": NodeState.MIXED,
    "IDLE": NodeState.IDLE,
}


# -- reservations --


_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
_RECORD = re.compile(
    r"ReservationName=(?P<name>.+?) StartTime=(?P<start>\S+) EndTime=(?P<end>\S+) Duration=\S+ Nodes=(?P<nodes>\S*) .*"
)
_NONE = "No reservations in the system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Slurm keeps the record of one that is over for half a minute (seen: 26 s); its nodes take work at its end."""

    name: str
    nodes: frozenset[NodeName]
    starts_at: datetime
    ends_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationsAnswer:
    """What was stated of reservations, and the lines that could not be believed."""

    reservations: tuple[Reservation, ...]
    rejected: tuple[Rejected, ...]


def checked_reservation_name(name: str) -> str:
    """Return `name`; raise ValueError unless it is a word that means nothing else to Slurm."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} names no reservation; expected 1 to 60 letters, digits, '_' and '-'")
    return name


def reservation_words(
    nodes: Sequence[NodeName], *, name: str, until: datetime, now: datetime, user_id: int, is_known: bool
) -> tuple[str, ...]:
    """Return the command that makes the reservation, or changes the one that is known under this name.

    Changing replaces the nodes in one step, and changes nothing if it is refused. Slurm counts in whole seconds.
    """
    if until.tzinfo is None or until.replace(microsecond=0) <= now:
        raise ValueError(f"the reservation would end at {until}, and it is {now}; give a later time with its zone")
    end = f"EndTime={until.astimezone(UTC).strftime(_TIME_FORMAT)}"
    what = (f"ReservationName={checked_reservation_name(name)}", f"Nodes={','.join(nodes)}")
    if is_known:
        return ("scontrol", "update", *what, end)
    return ("scontrol", "create", "reservation", *what, f"Users={user_id}", "StartTime=now", end, "Flags=FLEX")


def booking_words(
    nodes: Sequence[NodeName],
    *,
    name: str,
    begins_at: datetime,
    ends_at: datetime,
    now: datetime,
    user_id: int,
    known: Reservation | None,
) -> tuple[str, ...]:
    """Return the command that announces maintenance, or changes what is `known` under this name (`can_be_changed`)."""
    if begins_at.tzinfo is None or ends_at.tzinfo is None:
        raise ValueError(f"maintenance from {begins_at} to {ends_at} has no zone; give both times with theirs")
    if ends_at.replace(microsecond=0) <= max(begins_at, now).replace(microsecond=0):
        raise ValueError(f"maintenance from {begins_at} to {ends_at} is none at {now}; it must end later")
    start = "now" if begins_at <= now else begins_at.astimezone(UTC).strftime(_TIME_FORMAT)
    end = f"EndTime={ends_at.astimezone(UTC).strftime(_TIME_FORMAT)}"
    what = (f"ReservationName={checked_reservation_name(name)}", f"Nodes={','.join(nodes)}")
    if known is None:
        who = f"Users={user_id}"
        return ("scontrol", "create", "reservation", *what, who, f"StartTime={start}", end, "Flags=MAINT,IGNORE_JOBS")
    return ("scontrol", "update", *what, *((f"StartTime={start}",) if known.starts_at > now else ()), end)


def can_be_changed(known: Reservation, *, begins_at: datetime, now: datetime) -> bool:
    """Return whether what is known can become a booking from `begins_at`; else it is deleted first."""
    return known.ends_at > now and (known.starts_at > now or begins_at <= now)


def read_reservations_answer(text: str, *, source: str) -> ReservationsAnswer:
    """Return the reservations of `scontrol show reservation -o`, printed in UTC. Raises SourceNonsense on no text."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise SourceNonsense(f"{source} printed nothing; expected records or {_NONE!r}. Run it by hand")
    reservations: list[Reservation] = []
    rejected: list[Rejected] = []
    for position, line in enumerate(lines):
        if line.strip() == _NONE:
            continue
        try:
            reservations.append(_read_record(line))
        except ValueError as exc:
            rejected.append(Rejected(source=source, position=f"line {position + 1}", reason=str(exc), text=line[:500]))
    return ReservationsAnswer(reservations=tuple(reservations), rejected=tuple(rejected))


def reserved_nodes(reservations: Collection[Reservation], *, now: datetime) -> dict[NodeName, str]:
    """Return node -> reservation in force; of several the first by name, so that each reading says the same."""
    in_force = [each for each in reservations if each.starts_at <= now < each.ends_at]
    return {
        node: each.name for each in sorted(in_force, key=lambda each: each.name, reverse=True) for node in each.nodes
    }


def _read_record(line: str) -> Reservation:
    found = _RECORD.fullmatch(line)
    if found is None:
        raise ValueError("it is no record; expected ReservationName=, StartTime=, EndTime=, Duration= and Nodes=")
    return Reservation(
        name=found["name"],
        # A reservation may be of licences alone.
        nodes=nodes_of("" if found["nodes"] == "(null)" else found["nodes"]),
        starts_at=datetime.strptime(found["start"], _TIME_FORMAT).replace(tzinfo=UTC),
        ends_at=datetime.strptime(found["end"], _TIME_FORMAT).replace(tzinfo=UTC),
    )
