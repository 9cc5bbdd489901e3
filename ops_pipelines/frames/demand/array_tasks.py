"""Waiting tasks of job arrays: one row `30_[3-15%3]` of accounting -> a row for each task.

Only the notation, and the rows. A task that has started has a row of its own under the same name, so that `waits` can
tell which of these rows is old.
"""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
