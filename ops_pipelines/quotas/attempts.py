"""Rows of accounting -> attempts and waiting array tasks, each once; what cannot be is refused with its reason.

Which rows are believed, which repeat an attempt, and where attempts of one job overlap. When they wait and whether that
counts is `spans`'.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.lake.quantities import Refused, readable
from ops_pipelines.quotas.recorded import Floats, Whole

# -- waiting tasks of job arrays --


MOST_TASKS = 100_000
"""Of one row. # Assumption: MaxArraySize is 1001 by default; a slip such as 1-99999999 must not fill the memory."""
LIMIT_COLUMN = "task_limit"
"""How many of the array may run at once; 0: as many as there are."""
ARRAY_COLUMN = "array_job"
"""The array that a waiting task was listed under; null for all other rows."""

_TASKS = re.compile(r"(?P<array>\d+)_\[(?P<tasks>[\d,:\-.]*)(?:%(?P<limit>\d{1,9}))?\]")
_RANGE = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9})(?::(?P<step>\d{1,9}))?)?")


def with_tasks(rows: pa.Table) -> tuple[pa.Table, tuple[str, ...]]:
    """Return the rows with two more columns and a row for each waiting task, and the arrays that are not read whole."""
    jobs = rows["job"]
    is_array = pc.fill_null(pc.match_substring(jobs, "["), False).to_numpy()
    kept, arrays = np.flatnonzero(~is_array), np.flatnonzero(is_array)
    names: list[str] = []
    leaders: list[str | None] = []
    limits: list[int] = []
    places: list[int] = []
    unclear = []
    for place in arrays.tolist():
        text = jobs[place].as_py()
        array, tasks, limit, is_whole = read_tasks(text)
        if not is_whole:
            unclear.append(text)
        names += [f"{array}_{task}" for task in tasks] or [text]
        leaders += [array] * max(1, len(tasks))
        limits += [limit] * max(1, len(tasks))
        places += [place] * max(1, len(tasks))
    spread = rows.take(pa.array(np.concatenate((kept, np.array(places, np.int64)))))
    own = jobs.take(pa.array(kept)).combine_chunks() if len(kept) else pa.array([], pa.string())
    spread = spread.set_column(
        spread.schema.get_field_index("job"), "job", pa.concat_arrays([_plain(own), pa.array(names, pa.string())])
    )
    spread = spread.append_column(ARRAY_COLUMN, pa.array([None] * len(kept) + leaders, pa.string()))
    spread = spread.append_column(LIMIT_COLUMN, pa.array([0] * len(kept) + limits, pa.int64()))
    return spread, tuple(sorted(set(unclear)))


def read_tasks(text: str) -> tuple[str, tuple[int, ...], int, bool]:
    """Return the array, its tasks, how many may run at once (0: all), and whether that is all that the text says."""
    found = _TASKS.fullmatch(text)
    if found is None:
        return text, (), 0, False
    tasks: dict[int, None] = {}
    is_whole = True
    for part in found["tasks"].split(","):
        one = _RANGE.fullmatch(part)
        if one is None:
            # A list that is too long is cut with dots.
            is_whole = False
            continue
        first, last, step = int(one["first"]), int(one["last"] or one["first"]), int(one["step"] or 1) or 1
        span = range(first, last + 1, step)
        is_whole = is_whole and len(span) <= MOST_TASKS
        tasks |= dict.fromkeys(span[:MOST_TASKS])
    listed = tuple(tasks)[:MOST_TASKS]
    return found["array"], listed, int(found["limit"] or 0), is_whole and len(tasks) == len(listed)


def _plain(jobs: pa.Array) -> pa.Array:
    return jobs.cast(pa.string())


# -- rows of accounting -> attempts in columns of numbers, each once --


NEVER = np.iinfo(np.int64).max
"""A time that has not come, or that nobody reported."""
_SLACK = timedelta(minutes=1) // timedelta(microseconds=1)
"""Clocks of a cluster differ by less; a start that is earlier than its submission by more cannot be."""
_INTERRUPTED = ("REQUEUED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
"""An attempt that ended so is followed by another of the same job."""
_HAS_RUN = ("COMPLETED", "RUNNING", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "SUSPENDED", "COMPLETING")
"""Such an attempt has a start."""
_HAS_ENDED = ("COMPLETED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "FAILED", "CANCELLED", "REQUEUED")
"""Such an attempt has an end."""
_TIMES = ("submitted_at", "eligible_at", "started_at", "ended_at")
_TEXTS = ("job", "cluster", "account", "partition", "state", "reason", "nodes", ARRAY_COLUMN)
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Texts:
    """A column of texts: their number in each row, and what the numbers mean. Null and empty are ''."""

    codes: Whole
    words: tuple[str, ...]

    def are(self, wanted: Iterable[str]) -> Flags:
        """Return in which rows one of the requested is."""
        return np.isin(self.codes, [place for place, word in enumerate(self.words) if word in set(wanted)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attempts:
    """Attempts, and jobs that wait or gave up waiting: columns of equal length, by job and then start.

    Times are microseconds since 1970; NEVER where there is none.
    """

    job: Whole
    """Equal for attempts of one job."""
    gpus: Floats
    submitted: Whole
    eligible: Whole
    started: Whole
    """NEVER: it waits, or gave up."""
    ended: Whole
    """NEVER: it runs, or waits."""
    texts: Mapping[str, Texts]
    """account, partition, reason, nodes, array_job."""
    is_interrupted: Flags
    task_limit: Whole
    refused: tuple[Refused, ...] = ()
    read: int = 0
    """Rows that were read; those without GPUs, and those that tell an attempt again, are in neither of the others."""
    overlapping: tuple[str, ...] = ()
    """Jobs of which two attempts ran at once: the later start ended the one before."""
    contradicting: tuple[str, ...] = ()
    """Jobs of which one attempt is reported with two ends or two numbers of GPUs."""
    unclear_arrays: tuple[str, ...] = ()

    def take(self, places: Whole | Flags) -> "Attempts":
        """Return these rows, in this order."""
        texts = {name: Texts(codes=each.codes[places], words=each.words) for name, each in self.texts.items()}
        columns = {name: getattr(self, name)[places] for name in _ARRAYS}
        return replace(self, texts=texts, **columns)


_ARRAYS = ("job", "gpus", "submitted", "eligible", "started", "ended", "is_interrupted", "task_limit")


def read_attempts(rows: pa.Table) -> Attempts:
    """Return the attempts that rows of `job_accounting` tell of; `job`, `state` and `gpu_count` must be there."""
    spread, unclear = with_tasks(rows)
    texts = {name: _texts(spread, name) for name in _TEXTS}
    times = {name: _times(spread, name) for name in _TIMES}
    times["started_at"] = np.where(texts["state"].are(["PENDING"]), NEVER, times["started_at"])
    raw = spread["gpu_count"].cast(pa.float64()).to_numpy().astype(np.float64)
    wrong = _faults(texts, times, gpus=raw)
    is_kept = np.ones(spread.num_rows, np.bool_)
    refused = []
    for reason, (is_wrong, detail) in wrong.items():
        refused += [_refuse(spread, place, reason, detail) for place in np.flatnonzero(is_wrong & is_kept).tolist()]
        is_kept &= ~is_wrong
    found = Attempts(
        job=_job_numbers(texts["job"], texts["cluster"]),
        gpus=raw,
        submitted=times["submitted_at"],
        eligible=times["eligible_at"],
        started=times["started_at"],
        ended=times["ended_at"],
        texts=texts,
        is_interrupted=texts["state"].are(_INTERRUPTED),
        task_limit=spread[LIMIT_COLUMN].to_numpy(),
        refused=tuple(sorted(refused, key=lambda each: (each.reason, each.record))),
        read=rows.num_rows,
        unclear_arrays=unclear,
    ).take(is_kept & (raw != 0))
    return _without_overlaps(_each_once(found))


def _faults(texts: Mapping[str, Texts], times: Mapping[str, Whole], *, gpus: Floats) -> dict[str, tuple[Flags, str]]:
    """Return for each reason which rows have it, and what was expected. The first that a row has counts."""
    submitted, eligible, started, ended = (times[name] for name in _TIMES)
    has_start, has_end, has_submit = started != NEVER, ended != NEVER, submitted != NEVER
    never_ran = ~has_start
    with np.errstate(invalid="ignore"):
        is_negative = gpus < 0
    has_gpus = ~(gpus == 0)
    found = {
        "no_gpu_count": (~np.isfinite(gpus), "how many GPUs is not reported; expected a number, 0 for none"),
        "negative_gpus": (is_negative, "a negative number of GPUs; expected 0 or more"),
        "no_account": (texts["account"].are([""]), "no account; expected who pays"),
        "ends_before_it_starts": (has_start & (ended < started), "expected the end after the start"),
        "starts_before_submit": (
            has_start & has_submit & (started < np.where(has_submit, submitted, 0) - _SLACK),
            "expected the start at most a minute before the submission",
        ),
        "ends_before_submit": (
            never_ran & has_end & has_submit & (ended < np.where(has_submit, submitted, 0) - _SLACK),
            "expected the end after the submission",
        ),
        "no_start": (never_ran & texts["state"].are(_HAS_RUN), "its state says that it ran; expected a start"),
        "no_end": (~has_end & texts["state"].are(_HAS_ENDED), "its state says that it is over; expected an end"),
        "no_times": (never_ran & ~has_submit & (eligible == NEVER), "expected when it was submitted or eligible"),
    }
    # Jobs without GPUs are none of ours, whatever else is wrong with them.
    return {reason: (is_wrong & has_gpus, detail) for reason, (is_wrong, detail) in found.items()}


def _refuse(rows: pa.Table, place: int, reason: str, detail: str) -> Refused:
    cells = {
        name: rows[name][place].as_py()
        for name in ("job", "attempt", "account", "state", "gpu_count", *_TIMES)
        if name in rows.column_names
    }
    shown = {name: f"{cell:%Y-%m-%dT%H:%M:%SZ}" if isinstance(cell, datetime) else cell for name, cell in cells.items()}
    record = ", ".join(str(shown[name]) for name in ("job", "attempt") if name in shown)
    text = " ".join(f"{name}={cell}" for name, cell in shown.items())
    at = rows["time"][place].as_py() if "time" in rows.column_names else None
    return Refused(record=record, reason=reason, detail=detail, text=readable(text), into="gpu_demand", at=at)


def _each_once(found: Attempts) -> Attempts:
    """Return one row for each attempt, and one for each time that a job was submitted and has not run.

    An attempt that was read while it ran and again when it had ended is reported by the later reading: that with an
    end. Of two that have one the later end counts, and that they differ is reported.
    """
    has_run = found.started != NEVER
    begins = np.where(has_run, found.started, np.where(found.submitted == NEVER, found.eligible, found.submitted))
    # By all that a row says, so that the order of rows decides nothing.
    by_row = (*(each.codes for each in _ordered(found.texts)), found.submitted, found.eligible, -found.gpus)
    order = np.lexsort((*by_row, -found.ended, found.ended == NEVER, begins, has_run, found.job))
    if not len(order):
        return found
    ordered = found.take(order)
    job, at, ran = ordered.job, begins[order], has_run[order]
    is_new = np.append(True, (np.diff(job) != 0) | (np.diff(at) != 0) | (ran[1:] != ran[:-1]))
    firsts = np.flatnonzero(is_new)
    kept = firsts[np.cumsum(is_new) - 1]
    differs = (ordered.ended != ordered.ended[kept]) | (ordered.gpus != ordered.gpus[kept])
    return replace(
        ordered.take(firsts),
        # What one reading says of the time before the start, another may not know.
        submitted=np.minimum.reduceat(ordered.submitted, firsts),
        eligible=np.minimum.reduceat(ordered.eligible, firsts),
        contradicting=words_of(ordered.texts["job"], differs & (ordered.ended != NEVER)),
    )


def _ordered(texts: Mapping[str, Texts]) -> list[Texts]:
    """Return the columns with numbers in the order of their words, not in that of the rows."""
    found = []
    for each in texts.values():
        ranks = np.empty(len(each.words), np.int64)
        ranks[sorted(range(len(each.words)), key=each.words.__getitem__)] = np.arange(len(each.words))
        found.append(Texts(codes=ranks[each.codes] if len(each.words) else each.codes, words=each.words))
    return found


def _without_overlaps(found: Attempts) -> Attempts:
    """Return the attempts, each ended at the latest where the next of its job starts."""
    order = np.lexsort((found.started, found.job))
    ordered = found.take(order)
    if not len(order):
        return ordered
    following = np.full(len(order), NEVER)
    is_followed = np.append(ordered.job[1:] == ordered.job[:-1], False)
    following[:-1] = np.where(is_followed[:-1], ordered.started[1:], NEVER)
    # Who was last seen running has ended unseen when the next attempt starts; that is no fault.
    is_over = (ordered.started != NEVER) & (ordered.ended > following) & (ordered.ended != NEVER)
    overlapping = words_of(ordered.texts["job"], is_over)
    ended = np.where(ordered.started != NEVER, np.minimum(ordered.ended, following), ordered.ended)
    return replace(ordered, ended=ended, overlapping=overlapping)


def _job_numbers(jobs: Texts, clusters: Texts) -> Whole:
    """Return a number for each job: of one cluster, if the rows are of several that name themselves."""
    if len([word for word in clusters.words if word]) < 2:
        return jobs.codes
    return jobs.codes * len(clusters.words) + clusters.codes


def _texts(rows: pa.Table, name: str) -> Texts:
    if name not in rows.column_names:
        return Texts(codes=np.zeros(rows.num_rows, np.int64), words=("",))
    column = rows[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    encoded = pc.fill_null(column.cast(pa.string()), "").dictionary_encode().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], pa.string()).dictionary_encode()
    return Texts(codes=encoded.indices.to_numpy().astype(np.int64), words=tuple(encoded.dictionary.to_pylist()))


def _times(rows: pa.Table, name: str) -> Whole:
    if name not in rows.column_names:
        return np.full(rows.num_rows, NEVER)
    microseconds = rows[name].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    times: Whole = pc.fill_null(microseconds, NEVER).to_numpy()
    return times


def in_microseconds(time: datetime) -> int:
    """Return the time as attempts have it."""
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def words_of(texts: Texts, places: Flags) -> tuple[str, ...]:
    """Return what is in some rows, each once, in order."""
    return tuple(sorted({texts.words[code] for code in texts.codes[places].tolist()}))
