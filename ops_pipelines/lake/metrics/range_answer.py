"""The JSON answer of a range query -> series, at wire speed.

Two ways to one result. The fast one cuts the values out of the bytes and hands them, some megabytes at a time, to
Arrow's CSV reader; it takes only the tight form that Prometheus, Thanos, Mimir and VictoriaMetrics write, and checks
each piece of it. All else is read by the strict one, over `json`: slower, and the reference of the tests. What neither
understands is refused whole; there are no guessed numbers. Asking is `resources.prometheus`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from numpy.typing import NDArray

from ops_pipelines.lake.metrics.series import SeriesBlock
from ops_pipelines.lake.quantities import readable

_VALUES = b'"values":[['
_HEAD_END = b'"data":{"resultType":"matrix","result":[{"metric":'
_BATCH_BYTES = 4 << 20
"""Values handed to the CSV reader at once; measured as fast as any size from 1 to 8 MiB, and memory stays small."""
_LATEST_SECONDS = 32_503_680_000
"""The year 3000: a later time is a mistake of units."""
_MAX_NOTES = 20

# A batch is `,{T,"V"],[T,"V"],{T,"V"`: the brace marks the first point of a series. With `]` as the end of a row and
# `"` between cells, a row is `,[T,` and `V` and an empty cell: anything else that stood there would show in a cell.
_END_OF_ROW = bytes(ord("\n") if byte == ord("]") else byte for byte in range(256))
_CELLS = ("time", "value", "rest")
_PARSE = arrow_csv.ParseOptions(delimiter='"', quote_char=False, ignore_empty_lines=False)
# Without `null_values`, NaN would silently become null, and "" a number that nobody wrote.
_CONVERT = arrow_csv.ConvertOptions(
    column_types={"time": pa.string(), "value": pa.float64(), "rest": pa.string()},
    null_values=[],
    strings_can_be_null=False,
)


class UnreadableAnswer(ValueError):
    """The body is no range answer, or not a whole one. The message says what was found."""


class _NotTight(Exception):
    """The body is not in the form that the fast way reads; it may well be right."""


def decode_range_answer(body: bytes) -> SeriesBlock:
    """Return the series of a whole answer of /api/v1/query_range in the answer's order; a series without name has "".

    Native histograms have no number and are left out (`read_notes` reports). Raises UnreadableAnswer.
    """
    try:
        return _decode_fast(body)
    except (_NotTight, UnreadableAnswer):  # the second: what was cut out is no label set, so the cut was wrong
        return decode_strictly(body)


def read_notes(body: bytes) -> tuple[str, ...]:
    """Return why the answer may lack something: warnings, partial answers, histograms that were left out.

    Remarks on the query (`infos`: "metric might not be a counter") take nothing away and are no notes. Raises
    UnreadableAnswer if the source answered an error, or no JSON object.
    """
    envelope = _read_envelope(body)
    notes: list[str] = []
    if envelope.get("isPartial") is True:
        notes.append("the answer is partial: some stores did not take part")
    said = envelope.get("warnings")
    if isinstance(said, list):
        notes += [readable(str(each)[:300]) for each in said[:_MAX_NOTES]]
    count = body.count(b'"histograms":')
    if count:
        notes.append(f"{count} native histograms were left out")
    return tuple(notes)


class _Labels:
    """Parses label sets, each different one once: series that differ in their name only share one object."""

    def __init__(self) -> None:
        self._known: dict[bytes, Mapping[str, str]] = {}
        self._names: dict[bytes, str] = {}

    def read(self, text: bytes) -> tuple[str, Mapping[str, str]]:
        """Return name and labels of `{"__name__":"up",...}`."""
        at = text.find(b'"__name__":"')
        if at < 0 or b"\\" in text:  # no name, or a quote may be part of a text: no short cut
            name, labels = _read_metric(_load(text))
            return name, self._known.setdefault(text if at < 0 else repr(sorted(labels.items())).encode(), labels)
        end = text.find(b'"', at + 12)
        if end < 0:
            raise UnreadableAnswer("a label set breaks off within a name")
        rest = text[:at] + text[end + 1 :]
        known = self._known.get(rest)
        raw_name = text[at + 12 : end]
        found_name = self._names.get(raw_name)
        if known is None or found_name is None:
            found_name, labels = _read_metric(_load(text))
            self._names[raw_name] = found_name
            known = self._known.setdefault(rest, labels)
        return found_name, known


class _Points:
    """Gathers the values of series and decodes them batch by batch."""

    def __init__(self) -> None:
        self.counts: list[NDArray[np.int64]] = []
        self.times: list[NDArray[np.int64]] = []
        self.values: list[NDArray[np.float64]] = []
        self._waiting: list[memoryview] = []
        self._waiting_bytes = 0

    def add(self, section: memoryview) -> None:
        """Take `T,"V"],[T,"V`: what is between `[[` and `"]]`."""
        self._waiting.append(section)
        self._waiting_bytes += len(section)
        if self._waiting_bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        rows = b"".join((b",{", b'"],{'.join(self._waiting), b'"')).translate(_END_OF_ROW)
        reading = arrow_csv.ReadOptions(column_names=_CELLS, use_threads=False, block_size=len(rows) + 1)
        try:
            table = arrow_csv.read_csv(
                pa.py_buffer(rows), read_options=reading, parse_options=_PARSE, convert_options=_CONVERT
            ).combine_chunks()
        except pa.ArrowInvalid:
            raise _NotTight from None
        if table.num_rows == 0 or _bytes_of(table, "rest").size:
            raise _NotTight
        firsts, times = _read_times(_bytes_of(table, "time"), row_count=table.num_rows)
        if len(firsts) != len(self._waiting):
            raise _NotTight
        self.counts.append(np.diff(firsts, append=table.num_rows))
        self.times.append(times)
        self.values.append(table["value"].to_numpy())
        self._waiting, self._waiting_bytes = [], 0


def _bytes_of(table: pa.Table, column: str) -> NDArray[np.uint8]:
    """Return the text of all rows, one after the other."""
    (chunk,) = table[column].chunks
    _, offsets, data = chunk.buffers()
    ends = np.frombuffer(offsets, np.int32)
    return np.frombuffer(data if data is not None else b"", np.uint8)[ends[0] : ends[table.num_rows]]


def _read_times(text: NDArray[np.uint8], *, row_count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that begin a series, and all times in ms, from cells `,[1700000000.123,` of equal width.

    Raises _NotTight for other widths: times before 2001, more than three decimals, or mixed ones.
    """
    width, left_over = divmod(text.size, row_count)
    if left_over or width not in (13, 15, 16, 17):
        raise _NotTight
    cells = text.reshape(row_count, width)
    mark = cells[:, 1]
    firsts = np.flatnonzero(mark == ord("{"))
    frame_is_right = (
        (cells[:, 0] == ord(",")).all()
        and (cells[:, -1] == ord(",")).all()
        and ((mark == ord("{")) | (mark == ord("["))).all()
        and (width == 13 or (cells[:, 12] == ord(".")).all())
    )
    digits = cells[:, 2:-1] - np.uint8(ord("0"))  # what is below "0" wraps round to a large number
    columns = [*range(10), *range(11, width - 3)]
    if not frame_is_right or (digits[:, columns] > 9).any() or (digits[:, 0] == 0).any():
        raise _NotTight
    times = np.zeros(row_count, np.int64)
    for column in columns:
        times *= 10
        times += digits[:, column]
    times *= 10 ** (13 - len(columns))
    return firsts, times


def _decode_fast(body: bytes) -> SeriesBlock:
    at = body.find(_VALUES)
    head_end = body.find(_HEAD_END, 0, max(at, 0))
    if head_end < 0:
        raise _NotTight
    labels_at = head_end + len(_HEAD_END)
    view = memoryview(body)
    labels, points = _Labels(), _Points()
    names: list[str] = []
    label_sets: list[Mapping[str, str]] = []
    while True:
        if body[at - 2 : at] != b"},":
            raise _NotTight
        name, label_set = labels.read(body[labels_at : at - 1])
        names.append(name)
        label_sets.append(label_set)
        start = at + len(_VALUES)
        at = body.find(_VALUES, start)
        # The last `"]]}` before the next values ends these, unless a label or a warning holds one: not tight.
        end = body.rfind(b'"]]}', start, at if at >= 0 else len(body))
        if end < 0:
            raise _NotTight
        points.add(view[start:end])
        if at < 0:
            break
        if body[end + 4 : end + 15] != b',{"metric":':
            raise _NotTight
        labels_at = end + 15
    points.flush()
    _check_envelope(body[:head_end], body[end + 4 :])
    return SeriesBlock(
        names=names,
        labels=label_sets,
        counts=np.concatenate(points.counts),
        times=np.concatenate(points.times),
        values=np.concatenate(points.values),
    )


def _check_envelope(head: bytes, tail: bytes) -> Mapping[str, object]:
    """Return what is around the data. Raises _NotTight unless it is an object that says success and ends right."""
    if not tail.startswith(b"]}"):
        raise _NotTight
    try:
        envelope = json.loads(head + b'"data":null' + tail[2:])
    except (ValueError, RecursionError):
        raise _NotTight from None
    if not isinstance(envelope, dict) or envelope.get("status") != "success" or "data" not in envelope:
        raise _NotTight
    return envelope


def _read_envelope(body: bytes) -> Mapping[str, object]:
    start, end = body.find(_HEAD_END), body.rfind(b'"]]}]}')
    if 0 <= start < end:
        try:
            return _check_envelope(body[:start], body[end + 4 :])
        except _NotTight:
            pass
    document = _load(body)
    _demand_success(document)
    return {str(key): value for key, value in document.items() if key != "data"}


def decode_strictly(body: bytes) -> SeriesBlock:
    """Return what `decode_range_answer` returns, by way of `json`: for every form that the API may write."""
    document = _load(body)
    _demand_success(document)
    data = document.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("result"), list):
        _refuse(f"data is {_named(data)}", "an object with a list in `result`")
    if data.get("resultType") != "matrix":
        _refuse(f"resultType is {str(data.get('resultType'))[:40]!r}", "'matrix', as a range query gives")
    names: list[str] = []
    label_sets: list[Mapping[str, str]] = []
    shared: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
    counts: list[int] = []
    times: list[int] = []
    values: list[float] = []
    for series in data["result"]:
        if not isinstance(series, dict):
            _refuse(f"a series is {_named(series)}", "an object")
        name, labels = _read_metric(series.get("metric"))
        points = series.get("values")
        if points is None and "histograms" in series:
            continue
        if not isinstance(points, list):
            _refuse(f"the values of {name} are {_named(points)}", "a list")
        for point in points:
            time, value = _read_point(point)
            times.append(time)
            values.append(value)
        names.append(name)
        label_sets.append(shared.setdefault(tuple(sorted(labels.items())), labels))
        counts.append(len(points))
    return SeriesBlock(
        names=names,
        labels=label_sets,
        counts=np.array(counts, np.int64),
        times=np.array(times, np.int64),
        values=np.array(values, np.float64),
    )


def _load(text: bytes) -> dict[str, object]:
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise UnreadableAnswer(
            f"found {readable(text[:60].decode('utf-8', 'replace'))!r}, which is no JSON ({type(exc).__name__}: "
            f"{readable(str(exc)[:120])}); expected the whole answer of a range query"
        ) from None
    if not isinstance(document, dict):
        _refuse(f"the body is {_named(document)}", "an object")
    return document


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} outside quotes")


def _demand_success(document: Mapping[str, object]) -> None:
    if document.get("status") != "success":
        kind, error = (readable(str(document.get(key))[:200]) for key in ("errorType", "error"))
        _refuse(f"status is {str(document.get('status'))[:40]!r} ({kind}: {error})", "'success'")


def _read_metric(metric: object) -> tuple[str, Mapping[str, str]]:
    if not isinstance(metric, dict):
        _refuse(f"a metric is {_named(metric)}", "an object")
    labels: dict[str, str] = {}
    for name, value in metric.items():
        if not isinstance(value, str):
            _refuse(f"the label {readable(name[:60])} is {_named(value)}", "a text")
        # Half of a surrogate pair is no text: Arrow could not hold it.
        labels[_whole_text(name)] = _whole_text(value)
    return labels.pop("__name__", ""), labels


def _whole_text(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _read_point(point: object) -> tuple[int, float]:
    """Return time in ms and value of `[1700000000.123,"41.5"]`."""
    if not isinstance(point, list) or len(point) != 2:
        _refuse(f"a point is {_named(point)}", "a list of time and value")
    time, text = point
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time <= _LATEST_SECONDS:
        _refuse(f"a time is {str(time)[:40]!r}", "seconds since 1970")
    if not isinstance(text, str) or not text.isascii() or "_" in text:
        _refuse(f"a value is {_named(text)}", "a number in quotes")
    try:
        return round(time * 1000) if isinstance(time, int) else int(np.rint(time * 1000)), float(text)
    except ValueError:
        _refuse(f"a value is {readable(text[:40])!r}", "a number in quotes")


def _named(value: object) -> str:
    return "absent" if value is None else f"a {type(value).__name__}"


def _refuse(found: str, expected: str) -> NoReturn:
    raise UnreadableAnswer(f"{found}; expected {expected}")
