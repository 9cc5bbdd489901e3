"""The text format: every dialect of one sample line, what is refused and why, and what is no exposition at all."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.lake.metrics import exposition
from ops_pipelines.lake.metrics.exposition import Exposition, decode_exposition
from ops_pipelines.lake.quantities import WrongKind

AT = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
AT_MS = 1_795_246_200_000
SCRAPES = Path(__file__).parents[2].parent / "shared" / "data" / "dcgm_scrapes"
GOOD = b'up{job="dcgm"} 1\n'


def decode(body: bytes) -> Exposition:
    return decode_exposition(body, default_time=AT)


def samples(page: Exposition) -> list[tuple[str, dict[str, str], int, str, int]]:
    block = page.block
    assert block.lines is not None
    series = [i for i, count in enumerate(block.counts.tolist()) for _ in range(count)]
    return [
        (block.names[i], dict(block.labels[i]), time, repr(value), line)
        for i, time, value, line in zip(
            series, block.times.tolist(), block.values.tolist(), block.lines.tolist(), strict=True
        )
    ]


def test_samples_are_read_with_their_lines_and_the_default_time() -> None:
    page = decode(
        b"# HELP up whether it answers\n# TYPE up gauge\n"
        b'up{job="dcgm",gpu="0"} 1\n\n# a comment\nload 0.5\nup{job="dcgm",gpu="1"} 0\nload{job="dcgm",gpu="1"} 2'
    )

    assert (page.sample_count, page.refused) == (4, ())
    assert samples(page) == [
        ("up", {"job": "dcgm", "gpu": "0"}, AT_MS, "1.0", 3),
        ("load", {}, AT_MS, "0.5", 6),
        ("up", {"job": "dcgm", "gpu": "1"}, AT_MS, "0.0", 7),
        ("load", {"job": "dcgm", "gpu": "1"}, AT_MS, "2.0", 8),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b'up{a="1",b="2"} 5',
        b'up{a="1",b="2"} 5\r',
        b'up{a="1",b="2",} 5',
        b' \tup { a = "1" , b\t=\t"2" } \t 5 \t',
        b'up{b="2",a="1"}5',
        b'up{a="1",b="2",empty=""} 5',
        b'{"up",a="1",b="2"} 5',
        b'{"up","a"="1","b"="2"} 5.0e0',
        b'up{a="1",b="2"} +5',
        b'up{a="1",b="2"} 5 # {trace_id="x}"} 0.67 1520879607.789',
        b'up{a="1",b="2"} 5 # {} 0.67',
    ],
)
@pytest.mark.parametrize("before", [b"", b'up{a="0",b="2"} 1\n', b'down{a="1",b="2"} 1\nup 2\n'])
def test_one_sample_in_many_hands(line: bytes, before: bytes) -> None:
    page = decode(before + line)

    assert page.refused == ()
    assert samples(page)[-1] == ("up", {"a": "1", "b": "2"}, AT_MS, "5.0", before.count(b"\n") + 1)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (rb"C:\\x", "C:\\x"),
        (rb"say \"hi\"", 'say "hi"'),
        (rb"two\nlines", "two\nlines"),
        (rb"\\n", "\\n"),
        (rb"\\\"", '\\"'),
        (rb"\x \t", r"\x \t"),
        (b"}", "}"),
        (b"{a=b}", "{a=b}"),
        (b"a, b # {c} 1", "a, b # {c} 1"),
        (b"tab\there\rthere", "tab\there\rthere"),
        ("Zürich 東京".encode(), "Zürich 東京"),
        (b" ", " "),
    ],
)
def test_label_values_are_unescaped_and_otherwise_left_alone(written: bytes, value: str) -> None:
    page = decode(b'up{a="' + written + b'",b="2"} 5\nload{a="' + written + b'",b="2"} 6')

    assert [each[:2] for each in samples(page)] == [("up", {"a": value, "b": "2"}), ("load", {"a": value, "b": "2"})]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NaN", "nan"),
        ("nan", "nan"),
        ("+Inf", "inf"),
        ("-Inf", "-inf"),
        ("Inf", "inf"),
        ("1e+21", "1e+21"),
        ("1.5E-7", "1.5e-07"),
        (".5", "0.5"),
        ("-0", "-0.0"),
        ("9223372036854775794", "9.223372036854776e+18"),
    ],
)
def test_values_are_read_as_written(text: str, value: str) -> None:
    assert samples(decode(f"up {text}".encode()))[0][3] == value


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"up", "malformed_sample"),
        (b'up{a="1"}', "malformed_sample"),
        (b'up{a="1" 5', "malformed_sample"),
        (b"up 5 1700000000000 7", "malformed_sample"),
        (b"1up 5", "malformed_sample"),
        (b"my-metric 5", "malformed_sample"),
        (b'{a="1"} 5', "malformed_sample"),
        (b'up{"down"} 5', "malformed_sample"),
        (b'up} 5{a="1"', "malformed_sample"),
        (b"up{a=1} 5", "bad_labels"),
        (b"up{a='1'} 5", "bad_labels"),
        (b'up{a="1} 5', "bad_labels"),
        (b'up{a="1"b="2"} 5', "bad_labels"),
        (b'up{a="1",,b="2"} 5', "bad_labels"),
        (b'up{a-b="1"} 5', "bad_labels"),
        (b'up{a="1",a="2"} 5', "bad_labels"),
        (b'up{a="",a="2"} 5', "bad_labels"),
        (b'up{__name__="down"} 5', "bad_labels"),
        (b"up{a} 5", "bad_labels"),
        (b"up five", "bad_value"),
        (b"up 0x10", "bad_value"),
        (b"up 0x1p-2", "bad_value"),
        (b"up 1_000", "bad_value"),
        (b"up 1,5", "bad_value"),
        (b'up{a="1"} 1_000', "bad_value"),
        (b"up 5 soon", "bad_timestamp"),
        (b"up 5 1700000000.5", "bad_timestamp"),
        (b"up 5 253402300800000", "bad_timestamp"),
        (b"up 5 1_7", "bad_timestamp"),
        (b'up{a="\xff"} 5', "invalid_utf8"),
        (b"up\xff 5", "invalid_utf8"),
        (b"up 5\xff", "invalid_utf8"),
        (GOOD.strip(), "duplicate_series"),
        (b'up{ job="dcgm", empty="" } 0', "duplicate_series"),
    ],
)
def test_sample_that_is_not_believed_is_refused_and_the_others_stay(line: bytes, reason: str) -> None:
    page = decode(GOOD + line + b'\nload{job="dcgm"} 5\n')

    (refused,) = page.refused
    assert (refused.record, refused.reason, page.sample_count) == ("line 2", reason, 3)
    assert refused.detail
    assert refused.text.isprintable()
    assert [(name, line) for name, *_, line in samples(page)] == [("up", 1), ("load", 3)]


def test_timestamps_are_milliseconds() -> None:
    assert [each[2] for each in samples(decode(b"up 1 1700000000123\nload 1 -5\nidle 1"))] == [
        1_700_000_000_123,
        -5,
        AT_MS,
    ]


@pytest.mark.parametrize("end", [b"# EOF\n", b"# EOF", b"# EOF\r\n\n"])
def test_timestamps_are_seconds_on_a_page_that_ends_as_openmetrics_does(end: bytes) -> None:
    page = decode(
        b"# TYPE up counter\nup_total 1 1700000000.123\nup_created 1.7e9 1700000000\nidle 1 1700000000123\n" + end
    )

    assert [each[2] for each in samples(page)] == [1_700_000_000_123, 1_700_000_000_000]
    assert [each.reason for each in page.refused] == ["bad_timestamp"]


def test_points_of_one_series_at_several_times_stand_together() -> None:
    page = decode(b'up{a="1"} 1 1000\nup{a="2"} 5 1000\nup{a="1"} 2 2000\nup{a="1"} 3 2000\nup{a="1"} 4 1000\n')

    assert page.block.counts.tolist() == [2, 1]
    assert [(labels["a"], time, value, line) for _, labels, time, value, line in samples(page)] == [
        ("1", 1000, "1.0", 1),
        ("1", 2000, "2.0", 3),
        ("2", 1000, "5.0", 2),
    ]
    assert [(each.record, each.reason) for each in page.refused] == [
        ("line 4", "duplicate_series"),
        ("line 5", "duplicate_series"),
    ]


def test_buckets_of_a_histogram_are_plain_series() -> None:
    page = decode(b'lat_bucket{le="0.5"} 1\nlat_bucket{le="+Inf"} 2\nlat_sum 3\nlat_count 2\n')

    assert page.block.names == ["lat_bucket", "lat_bucket", "lat_sum", "lat_count"]
    assert page.block.labels[1] == {"le": "+Inf"}


def test_equal_label_sets_are_one_object() -> None:
    block = decode(b'a{x="1",y="2"} 1\nb{x="1",y="2"} 1\nc{y="2", x="1"} 1\n').block

    assert len({id(labels) for labels in block.labels}) == 1


@pytest.mark.parametrize("body", [b"", b"\n\n", b"# nothing here\n", b"# HELP up whether it answers\n# EOF\n"])
def test_page_without_samples_is_empty(body: bytes) -> None:
    page = decode(body)

    assert (page.sample_count, len(page.block.names), page.refused) == (0, 0, ())


def test_page_whose_samples_are_all_bad_is_still_an_exposition_if_it_tells_of_metrics() -> None:
    page = decode(b"# TYPE up gauge\nup one\nup{ two\n")

    assert [each.reason for each in page.refused] == ["bad_value", "malformed_sample"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"status":"success","data":{"resultType":"matrix","result":[]}}', id="JSON"),
        pytest.param(b'{\n  "nodes": [\n    {"name": "gpu001"}\n  ]\n}\n', id="indented JSON"),
        pytest.param(b"<?xml version='1.0'?>\n<nvidia_smi_log>\n<timestamp>now</timestamp>\n", id="XML"),
        pytest.param(b"<html><body>\n404 page not found\n</body></html>\n", id="HTML"),
        pytest.param(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", id="gzip"),
        pytest.param("up 1\nload 2\n".encode("utf-16"), id="UTF-16"),
        pytest.param(b"PAR1\x15\x04\x15\x10", id="Parquet"),
        pytest.param(b"JobID|State|ExitCode\n1|COMPLETED|0:0\n2|FAILED|1:0\n", id="sacct"),
        pytest.param(b"[  130.456250] NVRM: Xid (PCI:0000:1b:00): 79, pid=1\n", id="a kernel log"),
        pytest.param(b"The quick brown fox\njumps over\nthe lazy dog\n", id="prose"),
    ],
)
def test_file_of_another_kind_is_told(body: bytes) -> None:
    with pytest.raises(WrongKind, match=r"expected Prometheus' text format"):
        decode(body)


LINES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.text(alphabet='abc_:{}",=# \t\\1.e+-\r', max_size=30).map(str.encode),
        st.sampled_from([b'up{a="1"} 1', b'up{a="2"} 1', b"up 1", b'up{a="1"} 1 5', b"# TYPE up gauge", b"# EOF", b""]),
    ),
    max_size=12,
)


@given(LINES)
def test_no_bytes_crash_it_and_the_counts_close(lines: list[bytes]) -> None:
    with suppress(WrongKind):
        page = decode(b"\n".join(lines))

        assert page.sample_count == len(page.block.values) + len(page.refused)
        assert len({each.record for each in page.refused}) == len(page.refused)
        found = samples(page)
        assert len({(name, *sorted(labels.items()), time) for name, labels, time, *_ in found}) == len(found)


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True).filter(lambda name: name != "__name__"),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10),
        max_size=4,
    ),
    st.floats(),
)
def test_what_is_written_is_read_back(labels: dict[str, str], value: float) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    inside = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
    line = f"up{{{inside}}} {value!r}\nload{{{inside}}} {value!r}\n"

    assert [each[:2] + each[3:4] for each in samples(decode(line.encode()))] == [
        ("up", labels, repr(value)),
        ("load", labels, repr(value)),
    ]


@pytest.mark.parametrize(
    "name", ["ericsson_ccd.prom", "linode_lke_rtx4000ada.prom", "rafay.prom", "vmware_vks_1_35.prom"]
)
def test_real_scrapes_are_read_without_a_refusal(name: str) -> None:
    if not SCRAPES.is_dir():
        pytest.skip("the public data is not beside the repository")

    page = decode((SCRAPES / name).read_bytes())

    assert page.refused == ()
    assert page.sample_count > 10


def test_recorded_exporter_is_read_whole() -> None:
    page = decode((Path(__file__).parents[1] / "data" / "dcgm-exporter-one-t4.prom").read_bytes())

    assert (page.sample_count, page.refused) == (20, ())


# -- pages that differ in their values alone --

_PLAIN = ("up", "load", 'a{b="1"}', 'a{b="2",c="} 5"}', 'a{e="x y"}', "a{}", f'a{{f="1 {AT_MS}"}}', '{"q",b="1"}')
_ODD = (
    'a{d="# {x}"}', "a{bad}", 'b {g="1"}', "# HELP a b", "# TYPE a", "", "#", " ", "garbage", 'b{h="1"} 5 # {i="1"}',
)  # fmt: skip
_WORDS = ("NaN", "+Inf", "1_0", "x", "", "5\t", "0x1p2", "-3e5", str(AT_MS), '1 # {t="1"} 1', "}", "1 2", "# EOF")


def outcome(body: bytes) -> object:
    try:
        page = decode(body)
    except WrongKind as problem:
        return str(problem)
    return samples(page), page.refused, page.sample_count


@pytest.mark.parametrize("seed", range(40))
def test_a_page_says_the_same_whatever_was_read_before(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, remembering, known_count = Random(seed), exposition._Shapes(), 0
    for _ in range(60):
        heads, odd, stamped = draw.sample(_PLAIN + _ODD * (seed % 2), 6), draw.choice([0, 0.05]), draw.random()
        for _ in range(4):
            lines = []
            for head in heads:
                word = draw.choice(_WORDS) if draw.random() < odd else f"{draw.random() * 9:.2f}"
                time = AT_MS - (draw.random() < odd)
                lines.append(f"{head} {word} {time}" if stamped < 0.5 and draw.random() >= odd else f"{head} {word}")
            body = ("\n".join(lines) + draw.choice(["\n", "\n", "\n", "", "\n# EOF\n"] if odd else ["\n"])).encode()
            monkeypatch.setattr(exposition, "_SHAPES", exposition._Shapes())
            fresh = outcome(body)

            monkeypatch.setattr(exposition, "_SHAPES", remembering)
            known_count += len(remembering._known)
            assert outcome(body) == fresh, body

    assert known_count


@pytest.mark.parametrize(("times_met", "remembered"), [(1, 2), (2, 5)])
def test_a_shape_that_was_not_met_for_long_is_forgotten_and_sooner_one_that_never_came_again(
    monkeypatch: pytest.MonkeyPatch, times_met: int, remembered: int
) -> None:
    monkeypatch.setattr(exposition, "_SHAPES", exposition._Shapes())
    for minute in range(60):
        for _ in range(times_met):
            decode_exposition(f'up{{start="{minute}"}} 1\n'.encode(), default_time=AT + timedelta(minutes=minute))

    assert len(exposition._SHAPES._known) == remembered
