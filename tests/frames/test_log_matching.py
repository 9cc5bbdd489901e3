"""Bulk matching: Hyperscan and `re` find the same pairs, lines are lines, and only safe patterns are let in."""

import csv
import gzip
import itertools
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.observe.logs import signals
from ops_pipelines.observe.logs.matching import (
    Matcher,
    Matches,
    Rule,
    find_fault,
    hyperscan_scan,
    re_scan,
    read_rules,
    shared_matcher,
)

pytest.importorskip("hyperscan", reason="no wheel of Hyperscan for this machine; `re` is what is used here")
DATA = Path(__file__).parents[3] / "shared" / "data"
RULES = read_rules()
REFERENCE = Matcher(RULES, scan=re_scan(RULES))


@cache
def fast() -> Matcher:
    """Compiling takes seconds: who only collects this module does not pay for it."""
    return Matcher(RULES, scan=hyperscan_scan(RULES))


def rule(pattern: str, *, name: str = "r") -> Rule:
    return Rule(
        id=name, origin="kernel", component="gpu", category="c", level="info", pattern=pattern, example="x",
        meaning="m", source="s", checked_on="",
    )  # fmt: skip


def pairs(matches: Matches) -> list[tuple[int, int]]:
    return list(zip(matches.lines.tolist(), matches.rules.tolist(), strict=True))


def both(*patterns: str) -> tuple[Matcher, Matcher]:
    rules = [rule(pattern, name=f"r{number}") for number, pattern in enumerate(patterns)]
    return Matcher(rules, scan=hyperscan_scan(rules)), Matcher(rules, scan=re_scan(rules))


def public_lines() -> Iterator[bytes]:
    for path in sorted(DATA.glob("loghub/*.log")) + sorted(DATA.glob("kernel_logs/gpud/*.log")):
        yield path.read_bytes()
    for path in sorted(DATA.glob("zhejianglab_2024A100/taskinfo/*.gz")):
        yield gzip.decompress(path.read_bytes())


@pytest.mark.skipif(not DATA.is_dir(), reason="the public logs (../shared/data) are not here")
def test_both_engines_find_the_same_in_public_logs() -> None:
    buffer = b"\n".join(public_lines())

    assert pairs(fast().match_buffer(buffer)) == pairs(REFERENCE.match_buffer(buffer))


def test_both_engines_find_the_same_in_all_examples_at_once() -> None:
    buffer = "\n".join(each.example for each in RULES).encode()

    found = pairs(fast().match_buffer(buffer))

    assert found == pairs(REFERENCE.match_buffer(buffer))
    assert {(number, number) for number in range(len(RULES))} <= set(found)


WORDS = sorted({word for each in RULES for word in each.example.split()})
EXAMPLES = [each.example for each in RULES]


@st.composite
def mutated_examples(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(EXAMPLES))
    start, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
    middle = draw(st.sampled_from(["", "\n", "\r", "\x00", " ", text[start:end], text[start:end].upper()]))
    return text[:start] + middle + text[end:]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(mutated_examples(), st.lists(st.sampled_from(WORDS)).map(" ".join)), max_size=12))
def test_both_engines_find_the_same_in_torn_lines(lines: list[str]) -> None:
    buffer = "\n".join(lines).encode()

    assert pairs(fast().match_buffer(buffer)) == pairs(REFERENCE.match_buffer(buffer))


@settings(deadline=None)
@given(st.binary(max_size=400), st.integers(1, 64))
def test_any_bytes_in_blocks_of_any_size_give_the_same_as_in_one(buffer: bytes, block_bytes: int) -> None:
    text = buffer + b"\nNVRM: Xid (PCI:0000:1b:00): 79, x\n" + buffer

    whole = fast().match_buffer(text)
    parts = fast().match_buffer(text, block_bytes=block_bytes)

    assert pairs(whole) == pairs(parts) == pairs(REFERENCE.match_buffer(text, block_bytes=block_bytes))
    assert np.array_equal(whole.offsets, parts.offsets)


@pytest.mark.parametrize(
    ("buffer", "expected"),
    [
        pytest.param(b"", [], id="empty"),
        pytest.param(b"\n\n\n", [], id="blank lines"),
        pytest.param(b"ab", [(0, 0)], id="without a line end"),
        pytest.param(b"x\nab\n", [(1, 0)], id="second line"),
        pytest.param(b"a\nb", [], id="not over a line end"),
        pytest.param(b"abab\nab", [(0, 0), (1, 0)], id="twice in one line is one pair"),
        pytest.param(b"ab cd\ncd", [(0, 0), (0, 1), (1, 1)], id="two rules"),
    ],
)
def test_pairs_are_lines_and_rules(buffer: bytes, expected: list[tuple[int, int]]) -> None:
    for matcher in both("ab", "cd"):
        assert pairs(matcher.match_buffer(buffer)) == expected


def test_offsets_are_where_lines_begin() -> None:
    matches = both("ab")[0].match_buffer(b"ab\nxx\n ab\n\nab")

    assert matches.offsets.tolist() == [0, 6, 11]


def test_first_rule_of_a_line_is_its_signature() -> None:
    lines, rules = both("cd", "ab")[0].match_buffer(b"ab cd\nab").first_rules()

    assert (lines.tolist(), rules.tolist()) == ([0, 1], [0, 1])


def test_no_match_has_no_first_rule() -> None:
    lines, rules = both("cd")[0].match_buffer(b"ab").first_rules()

    assert (lines.tolist(), rules.tolist()) == ([], [])


@pytest.mark.parametrize(
    "pattern",
    [
        "a$", r"a\sb", r"a\Wb", r"a\Db", "[^a]b", "(?=a)b", "(?<!a)b", r"(a)\1", "(?P<x>a)", r"\Aa", r"a\Z", "ü", "",
        "a*", "(a", r"\Qa\E",
    ],
)  # fmt: skip
def test_pattern_that_engines_read_differently_is_refused(pattern: str) -> None:
    assert find_fault(pattern)


@pytest.mark.parametrize("pattern", ["a", r"(?i)ab{0,3}c", r"a[^)\n]{1,9}\)", r"\bUE \d{1,3}\b", r"a\$b", "(?:a|b)c"])
def test_pattern_of_the_common_subset_is_let_in(pattern: str) -> None:
    assert find_fault(pattern) == ""


def test_threads_match_at_the_same_time() -> None:
    buffer = ("\n".join(EXAMPLES) + "\n").encode() * 20
    expected = pairs(signals.match_buffer(buffer))
    results: list[bool] = []

    def work() -> None:
        results.append(pairs(signals.match_buffer(buffer)) == expected)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [True] * 4


def test_shared_matcher_is_compiled_once() -> None:
    assert shared_matcher() is shared_matcher()


def test_labels_of_the_facts_table_are_read_as_tabs_say() -> None:
    path = DATA.parent / "facts" / "labelled_log_lines.tsv"
    if not path.is_file():
        pytest.skip("the labelled lines (../shared/facts) are not here")
    with path.open(encoding="utf-8") as stream:
        rows = csv.reader((line for line in stream if not line.startswith("#")), delimiter="\t", quoting=csv.QUOTE_NONE)
        buffer = "\n".join(row[4] for row in rows).encode()

    assert pairs(fast().match_buffer(buffer)) == pairs(REFERENCE.match_buffer(buffer))
    assert len(set(itertools.chain(fast().match_buffer(buffer).lines.tolist()))) == buffer.count(b"\n") + 1
