"""Range answers: the fast way and the strict one give the same series, and nobody guesses a number."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.lake.metrics import range_answer
from ops_pipelines.lake.metrics.range_answer import UnreadableAnswer, decode_range_answer, decode_strictly, read_notes
from ops_pipelines.lake.metrics.series import SeriesBlock

GPU = {"UUID": "GPU-1", "__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "0"}


def answer(*series: object, **beside: object) -> bytes:
    """Return an answer as Prometheus writes it: no blank anywhere."""
    document = {"status": "success", "data": {"resultType": "matrix", "result": list(series)}, **beside}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def series(values: Sequence[object], labels: Mapping[str, str] = GPU) -> dict[str, object]:
    return {"metric": dict(labels), "values": list(values)}


def plain(block: SeriesBlock) -> list[tuple[str, dict[str, str], list[tuple[int, str]]]]:
    """Return a block as values that compare: NaN equal to NaN, 0.0 apart from -0.0."""
    points = list(zip(block.times.tolist(), (repr(value) for value in block.values.tolist()), strict=True))
    ends = np.cumsum(block.counts).tolist()
    return [
        (name, dict(labels), points[end - count : end])
        for name, labels, count, end in zip(block.names, block.labels, block.counts.tolist(), ends, strict=True)
    ]


def is_read_fast(body: bytes) -> bool:
    try:
        range_answer._decode_fast(body)
    except (range_answer._NotTight, UnreadableAnswer):
        return False
    return True


def test_points_stand_by_series_in_the_order_of_the_answer() -> None:
    body = answer(
        series([[1700000000, "41.5"], [1700000015, "42"]]),
        series([[1700000000, "300"]], {"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": "GPU-1", "gpu": "0"}),
    )

    block = decode_range_answer(body)

    assert is_read_fast(body)
    assert plain(block) == [
        (
            "DCGM_FI_DEV_GPU_TEMP",
            {"UUID": "GPU-1", "gpu": "0"},
            [(1_700_000_000_000, "41.5"), (1_700_000_015_000, "42.0")],
        ),
        ("DCGM_FI_DEV_POWER_USAGE", {"UUID": "GPU-1", "gpu": "0"}, [(1_700_000_000_000, "300.0")]),
    ]
    assert (block.counts.dtype, block.times.dtype, block.values.dtype) == (np.int64, np.int64, np.float64)
    assert block.lines is None


def test_series_that_differ_in_their_name_only_share_one_label_set() -> None:
    names = ("A", "B", "C")
    body = answer(*(series([[1700000000, "1"]], {"UUID": "u", "__name__": name, "gpu": "0"}) for name in names))

    block = decode_range_answer(body)

    assert tuple(block.names) == names
    assert len({id(labels) for labels in block.labels}) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NaN", math.nan),
        ("+Inf", math.inf),
        ("-Inf", -math.inf),
        ("0", 0.0),
        ("-0", -0.0),
        ("1e+21", 1e21),
        ("1.5e-07", 1.5e-07),
        ("9223372036854775794", 9223372036854775794.0),
        ("9007199254740993", 9007199254740992.0),
        ("52.658001860210845", 52.658001860210845),
        ("4.9e-324", 5e-324),
        ("1.7976931348623157e+308", 1.7976931348623157e308),
    ],
)
def test_every_number_that_a_source_may_write_is_read_exactly(text: str, value: float) -> None:
    body = answer(series([[1700000000, text]]))

    assert is_read_fast(body)
    assert repr(decode_range_answer(body).values.tolist()) == repr([value])
    assert repr(decode_strictly(body).values.tolist()) == repr([value])


@pytest.mark.parametrize(
    ("time", "milliseconds"),
    [
        (1700000000, 1_700_000_000_000),
        (1700000000.5, 1_700_000_000_500),
        (1700000000.25, 1_700_000_000_250),
        (1700000000.123, 1_700_000_000_123),
        (1700000000.1234, 1_700_000_000_123),
        (999999999, 999_999_999_000),
        (0, 0),
        (9999999999, 9_999_999_999_000),
        (10000000000, 10_000_000_000_000),
    ],
)
def test_times_become_whole_milliseconds(time: float, milliseconds: int) -> None:
    body = answer(series([[time, "1"]]))

    assert decode_range_answer(body).times.tolist() == [milliseconds]


def test_times_of_different_width_in_one_answer_are_read() -> None:
    body = answer(series([[1700000000, "1"], [1700000000.5, "2"], [1700000001, "3"]]))

    assert decode_range_answer(body).times.tolist() == [1_700_000_000_000, 1_700_000_000_500, 1_700_000_001_000]


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param({}, id="none"),
        pytest.param({"gpu": "0"}, id="no name"),
        pytest.param({"__name__": "up"}, id="only a name"),
        pytest.param({"__name__": "up", "a": "b"}, id="VictoriaMetrics: name first"),
        pytest.param({"__name__": "up", "path": 'C:\\x "y" \n'}, id="escapes"),
        pytest.param({"__name__": "up", "who": "Z\u00fcrich \u6771\u4eac \U0001f600"}, id="not ASCII"),
        pytest.param({"__name__": "up", "trap": '"values":[['}, id="looks like values"),
        pytest.param({"__name__": "up", "trap": ']]},{"metric":{'}, id="looks like the next series"),
        pytest.param({"__name__": "up", "trap": '"]]}]}'}, id="looks like the end"),
        pytest.param({"__name__": "up", "trap": '"__name__":"down"'}, id="looks like a name"),
        pytest.param({"trap": "__name__", "a": "b"}, id="a value that is called so"),
        pytest.param({"__name__": 'http.status"code"'}, id="a name in quotes"),
        pytest.param({"__name__": "up", "a,b": "]"}, id="brackets and commas"),
    ],
)
def test_labels_are_read_whatever_stands_in_them(labels: dict[str, str]) -> None:
    body = answer(series([[1700000000, "1"]], labels), series([[1700000000, "2"]]), series([[1700000000, "3"]], labels))
    expected = dict(labels)
    name = expected.pop("__name__", "")

    found = plain(decode_range_answer(body))

    assert found == plain(decode_strictly(body))
    assert found[0] == (*found[2][:2], [(1_700_000_000_000, "1.0")]) == (name, expected, [(1_700_000_000_000, "1.0")])


def test_escapes_with_a_number_are_read() -> None:
    body = answer(series([[1700000000, "1"]])).replace(b"GPU-1", b"GPU\\u002d\\u00fc\\ud800")

    assert decode_range_answer(body).labels[0]["UUID"] == "GPU-\u00fc?"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(json.dumps(json.loads(answer(series([[1700000000, "1"]])))).encode(), id="blanks"),
        pytest.param(json.dumps(json.loads(answer(series([[1700000000, "1"]]))), indent=1).encode(), id="indented"),
        pytest.param(answer({"values": [[1700000000, "1"]], "metric": GPU}), id="values before metric"),
        pytest.param(answer({"metric": GPU, "more": [1], "values": [[1700000000, "1"]]}), id="a key between"),
        pytest.param(answer({"metric": GPU, "values": [[1700000000, "1"]], "more": 1}), id="a key behind"),
        pytest.param(
            answer({"metric": GPU, "values": [[1700000000, "1"]], "histograms": [[1700000000, {"count": "1"}]]}),
            id="a histogram beside",
        ),
        pytest.param(
            answer({"metric": GPU, "histograms": [[1700000000, {"count": "1"}]]}, series([[1700000000, "1"]])),
            id="a histogram only",
        ),
        pytest.param(answer(series([[1700000000, "1"]])) + b"\n", id="a line break at the end"),
        pytest.param(b"\n" + answer(series([[1700000000, "1"]])), id="a line break before"),
        pytest.param(answer(series([[1700000000, "1"]]), warnings=['a "]]}]} b'], infos=["i"]), id="warnings behind"),
        pytest.param(
            answer(series([[1700000000, "1"]])).replace(b'"data"', b'"isPartial":false,"data"'), id="VictoriaMetrics"
        ),
        pytest.param(answer(series([[1700000000, "1"]]), stats={"seriesFetched": "1"}), id="with statistics"),
        pytest.param(
            b'{"data":{"result":[{"metric":{"UUID":"GPU-1","__name__":"DCGM_FI_DEV_GPU_TEMP","gpu":"0"},'
            b'"values":[[1700000000,"1"]]}],"resultType":"matrix"},"status":"success"}',
            id="another order of keys",
        ),
        pytest.param(answer(series([[1700000000, " 1"]])), id="a blank in the value"),
        pytest.param(answer(series([]), series([[1700000000, "1"]])), id="a series without points"),
    ],
)
def test_other_forms_of_the_same_answer_are_read_too(body: bytes) -> None:
    found = [each for each in plain(decode_range_answer(body)) if each[2]]

    assert found == [("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-1", "gpu": "0"}, [(1_700_000_000_000, "1.0")])]


def test_empty_result_is_an_empty_block() -> None:
    block = decode_range_answer(answer())

    assert (len(block.names), len(block.times), len(block.values), block.counts.dtype) == (0, 0, 0, np.int64)


RIGHT = answer(series([[1700000000, "1"], [1700000015, "2"]]), series([[1700000000, "3"]]))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        pytest.param(b"", "no JSON", id="empty"),
        pytest.param(b"<html>login</html>", "<html>", id="a login page"),
        pytest.param(b"\x1f\x8b\x08\x00", "no JSON", id="gzip"),
        pytest.param(b"[]", "a list", id="a list"),
        pytest.param(b"[" * 100_000, "no JSON", id="deeply nested"),
        pytest.param(RIGHT[:-1], "no JSON", id="cut by one byte"),
        pytest.param(RIGHT + b"}", "no JSON", id="one brace too many"),
        pytest.param(RIGHT + RIGHT, "no JSON", id="two answers"),
        pytest.param(
            b'{"status":"error","errorType":"bad_data","error":"parse error"}', "bad_data: parse error", id="an error"
        ),
        pytest.param(RIGHT.replace(b"success", b"error"), "status is 'error'", id="an error with data"),
        pytest.param(RIGHT.replace(b"matrix", b"vector"), "resultType is 'vector'", id="another type"),
        pytest.param(
            b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1700000000,"1"]}]}}',
            "resultType is 'vector'",
            id="vector",
        ),
        pytest.param(
            b'{"status":"success","data":{"resultType":"scalar","result":[1700000000,"1"]}}', "scalar", id="scalar"
        ),
        pytest.param(b'{"status":"success","data":{"resultType":"matrix","result":null}}', "data is", id="no list"),
        pytest.param(b'{"status":"success"}', "data is absent", id="no data"),
        pytest.param(answer(5), "a series is a int", id="a series that is a number"),
        pytest.param(answer({"metric": GPU}), "are absent", id="no values"),
        pytest.param(answer({"values": [[1700000000, "1"]]}), "a metric is absent", id="no metric"),
        pytest.param(answer(series([[1700000000, "hot"]])), "a value is 'hot'", id="a word"),
        pytest.param(answer(series([[1700000000, ""]])), "a value is ''", id="an empty value"),
        pytest.param(answer(series([[1700000000, "1_0"]])), "a value", id="a number as Python writes it"),
        pytest.param(answer(series([[1700000000, "0x10"]])), "a value", id="hexadecimal"),
        pytest.param(answer(series([[1700000000, 1]])), "a value is a int", id="a number without quotes"),
        pytest.param(answer(series([[1700000000, None]])), "a value is absent", id="null"),
        pytest.param(answer(series([["1700000000", "1"]])), "a time is", id="a time in quotes"),
        pytest.param(answer(series([[-1, "1"]])), "a time is", id="before 1970"),
        pytest.param(answer(series([[1700000000000, "1"]])), "a time is", id="milliseconds"),
        pytest.param(answer(series([[True, "1"]])), "a time is", id="a truth value"),
        pytest.param(answer(series([[1700000000]])), "a point is", id="half a point"),
        pytest.param(answer(series([[1700000000, "1", 2]])), "a point is", id="three in a point"),
        pytest.param(RIGHT.replace(b'"2"]', b'"2"5]'), "no JSON", id="a digit behind a value"),
        pytest.param(RIGHT.replace(b'[1700000015,"2"]', b"[]"), "a point is", id="an empty point"),
        pytest.param(RIGHT.replace(b"1700000015", b"0700000015"), "no JSON", id="a time that begins with 0"),
        pytest.param(RIGHT.replace(b"1700000015", b"17O0000015"), "no JSON", id="a letter in a time"),
        pytest.param(RIGHT.replace(b"1700000015", b"NaN"), "no JSON", id="NaN as a time"),
        pytest.param(RIGHT.replace(b"],[", b"],{"), "no JSON", id="a brace for a bracket"),
        pytest.param(RIGHT.replace(b'"2"', b'"2\n"'), "no JSON", id="a line break in a value"),
        pytest.param(RIGHT.replace(b'"gpu":"0"', b'"gpu":0', 1), "the label gpu is a int", id="a label without quotes"),
        pytest.param(RIGHT.replace(b'"gpu"', b'"UUID"', 1), "no JSON", id="a label that occurs twice"),
        pytest.param(RIGHT.replace(b"GPU-1", b"GPU-\xff", 1), "no JSON", id="bytes that are no text"),
    ],
)
def test_what_cannot_be_believed_is_refused_with_what_was_found(body: bytes, found: str) -> None:
    with pytest.raises(UnreadableAnswer) as caught:
        decode_range_answer(body)

    assert found in str(caught.value)


def test_answer_cut_anywhere_is_refused() -> None:
    for length in range(len(RIGHT)):
        with pytest.raises(UnreadableAnswer):
            decode_range_answer(RIGHT[:length])


def test_answer_of_many_batches_is_the_same_as_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    body = answer(*(series([[1700000000 + 15 * k, str(i + k)] for k in range(i % 5 + 1)]) for i in range(40)))
    at_once = plain(decode_range_answer(body))

    monkeypatch.setattr(range_answer, "_BATCH_BYTES", 64)

    assert plain(decode_range_answer(body)) == at_once == plain(decode_strictly(body))


NUMBERS = st.one_of(
    st.floats(width=64).map(lambda value: repr(value).replace("inf", "Inf").replace("nan", "NaN")),
    st.integers(min_value=-(2**70), max_value=2**70).map(str),
    st.sampled_from(["+Inf", "-Inf", "NaN", "1e+21", "0", "1e400"]),
)
TIMES = st.one_of(
    st.integers(min_value=0, max_value=32_503_680_000),
    st.integers(min_value=10**9, max_value=2 * 10**9),
    st.integers(min_value=10**12, max_value=2 * 10**12).map(lambda milliseconds: milliseconds / 1000),
)
TEXTS = st.text(
    alphabet=st.one_of(st.sampled_from('"\\[]{},:\n_v1'), st.characters(exclude_categories=["Cs"])), max_size=12
)
LABELS = st.dictionaries(st.one_of(st.sampled_from(["__name__", "values", "metric", "gpu"]), TEXTS), TEXTS, max_size=4)


@given(st.lists(st.tuples(LABELS, st.lists(st.tuples(TIMES, NUMBERS), max_size=4)), max_size=4), st.booleans())
def test_both_ways_give_the_same(content: list[tuple[dict[str, str], list[tuple[float, str]]]], is_ascii: bool) -> None:
    result = [{"metric": labels, "values": [list(point) for point in points]} for labels, points in content]
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    body = json.dumps(document, separators=(",", ":"), ensure_ascii=is_ascii).encode()

    assert plain(decode_range_answer(body)) == plain(decode_strictly(body))


@given(st.data())
def test_damaged_answer_is_read_as_the_strict_way_reads_it_or_refused(data: st.DataObject) -> None:
    start = data.draw(st.integers(min_value=0, max_value=len(RIGHT) - 1))
    length = data.draw(st.integers(min_value=0, max_value=12))
    put_in = data.draw(st.one_of(st.binary(max_size=4), st.text(alphabet='[]{}",:0123.e-', max_size=6).map(str.encode)))
    body = RIGHT[:start] + put_in + RIGHT[start + length :]

    try:
        expected = plain(decode_strictly(body))
    except UnreadableAnswer:
        with pytest.raises(UnreadableAnswer):
            decode_range_answer(body)
    else:
        assert plain(decode_range_answer(body)) == expected


@given(st.binary(max_size=200))
def test_no_bytes_crash_it(body: bytes) -> None:
    for read in (decode_range_answer, read_notes):
        with suppress(UnreadableAnswer):
            read(body)


@pytest.mark.parametrize(
    ("body", "notes"),
    [
        pytest.param(RIGHT, (), id="none"),
        pytest.param(answer(series([[1700000000, "1"]]), warnings=["store down"]), ("store down",), id="a warning"),
        pytest.param(answer(warnings=["store \x1b[31m"]), ("store \\x1b[31m",), id="that steers a terminal"),
        pytest.param(answer(series([[1700000000, "1"]]), warnings=['a "]]}]} b']), ('a "]]}]} b',), id="a hard one"),
        pytest.param(answer(infos=["metric might not be a counter"]), (), id="a remark takes nothing away"),
        pytest.param(answer(infos=["no counter"], warnings=["store down"]), ("store down",), id="both"),
        pytest.param(answer(warnings=None, isPartial=False), (), id="nothing is partial"),
        pytest.param(answer({"metric": {}, "histograms": []}), ("1 native histograms were left out",), id="histograms"),
    ],
)
def test_notes_tell_what_the_answer_says_of_itself(body: bytes, notes: tuple[str, ...]) -> None:
    assert read_notes(body) == notes


def test_partial_answer_is_told() -> None:
    body = answer(series([[1700000000, "1"]])).replace(b'"data"', b'"isPartial":true,"data"')

    (note,) = read_notes(body)

    assert "partial" in note


def test_notes_of_an_error_are_the_error() -> None:
    with pytest.raises(UnreadableAnswer, match="timeout: too slow"):
        read_notes(b'{"status":"error","errorType":"timeout","error":"too slow"}')
