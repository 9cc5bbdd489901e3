"""Bulk log matching against one `re` alternation of the same rules: CPU time, interleaved, the answers compared first.

Peer: all patterns joined by `|`, searched over the same buffer and sent on to the next line after each match, as a
careful script would; it finds which lines match, ours also which rules. Shown too: the rules one after the other by
`re`, each with its own literal, which is what we fall back on. Exits 1 below the promised ratio.
Run it with `make bench`, or `python -m bench.signals`.
"""

import argparse
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ops_pipelines.observe.logs import signals
from ops_pipelines.observe.logs.matching import Matcher, Rule, re_scan, read_rules

PROMISED_RATIO = 40.0
LOGHUB = Path(__file__).parent.parent.parent / "shared" / "data" / "loghub"
MATCHING_RATIO = 0.03
"""Share of lines that match a rule; in the public samples it is far less."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if the ratio is not reached, else 0."""
    parser = argparse.ArgumentParser(description="Bulk log matching against a Python re alternation.")
    parser.add_argument("--megabytes", type=int, default=2, help="size of the log mix")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side, interleaved")
    options = parser.parse_args(arguments)
    rules = read_rules()
    mix = build_mix(rules, size_bytes=options.megabytes * 1_000_000)
    alternation = join_patterns(rules)
    if not _agree(mix, rules, alternation):
        Console(stderr=True).print("the answers differ; nothing was measured")
        return 1
    ours: list[float] = []
    peers: list[float] = []
    fallbacks: list[float] = []
    fallback = Matcher(rules, scan=re_scan(rules))
    for _ in range(options.rounds):
        ours.append(_cpu_seconds(lambda: signals.match_buffer(mix), count=5))
        fallbacks.append(_cpu_seconds(lambda: fallback.match_buffer(mix), count=1))
        peers.append(_cpu_seconds(lambda: search_lines(mix, alternation), count=1))
    ratio = statistics.median(peers) / statistics.median(ours)
    lines = mix.count(b"\n")
    found = len(signals.match_buffer(mix).first_rules()[0])
    table = Table(title=f"{len(rules)} rules, {len(mix) / 1e6:.1f} MB, {lines:,} lines, {found / lines:.1%} matching")
    for heading in ("matcher", "CPU seconds (median)", "MB/s", "lines/s"):
        table.add_column(heading, justify="left" if heading == "matcher" else "right")
    rows = (("signals.match_buffer", ours), ("re alternation", peers), ("re, rule by rule", fallbacks))
    for name, seconds in rows:
        median = statistics.median(seconds)
        table.add_row(name, f"{median:.4f}", f"{len(mix) / median / 1e6:,.0f}", f"{lines / median:,.0f}")
    Console().print(table)
    Console().print(f"ratio {ratio:.1f}x, promised {PROMISED_RATIO:.0f}x")
    return 0 if ratio >= PROMISED_RATIO else 1


def build_mix(rules: Sequence[Rule], *, size_bytes: int) -> bytes:
    """Return log lines of about `size_bytes`: public samples, else made-up ones, with some that match in between."""
    samples = [line for path in sorted(LOGHUB.glob("*.log")) for line in path.read_bytes().splitlines()]
    quiet = samples or [
        f"Nov 21 07:{number // 60 % 60:02d}:{number % 60:02d} gpu{number % 512:03d} kernel: [{number:8d}.123456] "
        f"docker0: port {number % 16}(veth{number:07x}) entered forwarding state".encode()
        for number in range(2000)
    ]
    examples = [rule.example.encode() for rule in rules]
    dice = random.Random(1)
    mixed: list[bytes] = []
    size = 0
    while size < size_bytes:
        line = dice.choice(examples) if dice.random() < MATCHING_RATIO else dice.choice(quiet)
        mixed.append(line)
        size += len(line) + 1
    return b"\n".join(mixed) + b"\n"


def join_patterns(rules: Sequence[Rule]) -> re.Pattern[bytes]:
    """Return all rules as one alternation."""
    return re.compile(
        b"|".join(
            f"(?i:{rule.pattern[4:]})".encode() if rule.pattern.startswith("(?i)") else f"(?:{rule.pattern})".encode()
            for rule in rules
        )
    )


def search_lines(buffer: bytes, alternation: re.Pattern[bytes]) -> list[int]:
    """Return where the matching lines begin."""
    found: list[int] = []
    match = alternation.search(buffer)
    while match is not None:
        found.append(buffer.rfind(b"\n", 0, match.start()) + 1)
        line_end = buffer.find(b"\n", match.end())
        match = alternation.search(buffer, line_end + 1) if line_end >= 0 else None
    return found


def _agree(mix: bytes, rules: Sequence[Rule], alternation: re.Pattern[bytes]) -> bool:
    """Return whether all three find the same: the pairs of the `re` reference, the lines of the alternation."""
    ours = signals.match_buffer(mix)
    reference = Matcher(rules, scan=re_scan(rules)).match_buffer(mix)
    pairs_agree = bool(np.array_equal(ours.lines, reference.lines) and np.array_equal(ours.rules, reference.rules))
    peers: NDArray[np.int64] = np.asarray(search_lines(mix, alternation), dtype=np.int64)
    return pairs_agree and bool(np.array_equal(np.unique(ours.offsets), peers))


def _cpu_seconds(work: Callable[[], object], *, count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - start) / count


if __name__ == "__main__":
    sys.exit(main())
