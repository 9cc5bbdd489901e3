"""`logs classify` on labelled lines, on the same in other dress, on lines of the field, and on logs nobody labelled.

Other dress: other addresses, processes, ranks and machines, in the prefixes of ten ways to keep a log. Unlabelled:
public logs of machines without these faults, where every destructive answer is false. Exits 1 below the promised
share, or with one destructive first action on a line that accepts none. Run it with `python -m bench.classify`.
"""

import argparse
import gzip
import io
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, FirstAction
from ops_pipelines.observe.logs.classify import LineVerdict, classify_lines, read_lines
from ops_pipelines.observe.logs.matching import shared_matcher
from ops_pipelines.resources.catalogue_files import read_explaining_catalogue

PROMISED_SHARE = 0.97
SHARED = Path(__file__).parent.parent.parent / "shared"
LABELS = SHARED / "facts" / "labelled_log_lines.tsv"
HALVES = {half: Path(__file__).parents[1] / f"tests/data/field_lines_{half}.tsv" for half in ("opened", "unopened")}
"""420 real lines of public threads, labelled before the program's answer was looked at and split by thread. The opened
half was read while rows were written; the other is only counted."""
UNLABELLED = ("data/loghub/*_2k.log", "data/kernel_logs/gpud/*.log", "data/zhejianglab_2024A100/taskinfo/*.gz")
_DESTRUCTIVE = frozenset(action.value for action in DESTRUCTIVE_ACTIONS)
_PREFIX = re.compile(
    r"^(?:kern {1,2}:\w+ {1,2}: )?(?:\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-][\d:]+)? )?"
    r"(?:\[?[A-Za-z]{3,5}\.? (?:\w{3} )?[ \d]\d [\d:]+(?: \d{4})?\]? )?(?:\S+ )?(?:kernel: )?(?:\[ *[\d.]+\] )?"
    r"(?=(?:NVRM|nvidia|mlx5|pcieport|EDAC|nvme|Lustre|LNet|INFO|watchdog|md/|EXT4|nfs|mce|CPU\d|Memory|\{|pt_main|oom))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """One line of the labelled file."""

    name: str
    category: str
    accepted: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How one way of showing the labelled lines was judged."""

    line_count: int
    accepted_count: int
    destructive: tuple[str, ...]
    """Lines that accept nothing destructive and were answered so."""
    misses: tuple[str, ...]

    @property
    def share(self) -> float:
        return self.accepted_count / self.line_count


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 if a promise is not kept, else 0."""
    parser = argparse.ArgumentParser(description="First actions on labelled, altered and unlabelled log lines.")
    parser.add_argument("--seed", type=int, default=7, help="of the addresses and names in the altered lines")
    options = parser.parse_args(arguments)
    out = Console()
    if not LABELS.is_file():
        out.print("the labelled lines (../shared/facts) are not here; nothing was measured")
        return 1
    labelled = read_labelled()
    scores = {"as labelled": score(labelled, _plain)}
    for name, dress in DRESSES.items():
        scores[name] = score(labelled, dressed(dress, random.Random(options.seed)))
    table = Table(title=f"{len(labelled)} labelled lines, first action among the accepted")
    for heading in ("shown as", "accepted", "share", "destructive on harmless"):
        table.add_column(heading, justify="left" if heading == "shown as" else "right")
    for name, each in scores.items():
        table.add_row(name, str(each.accepted_count), f"{each.share:.1%}", str(len(each.destructive)))
    out.print(table)
    for name, each in scores.items():
        for miss in (*each.misses, *each.destructive):
            out.print(f"{name}: {miss}", markup=False, highlight=False)
    for half, file in HALVES.items():
        found = score(read_labelled(file), _plain)
        share, harmful = f"{found.share:.1%}", len(found.destructive)
        out.print(
            f"{half} half: {found.line_count} lines of the field, {share} accepted, {harmful} destructive on harmless"
        )
    out.print(unlabelled_table())
    out.print(speed_text(labelled))
    kept = all(each.share >= PROMISED_SHARE and not each.destructive for each in scores.values())
    return 0 if kept else 1


def read_labelled(file: Path = LABELS) -> list[Labelled]:
    """Return the lines of a labelled file."""
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [Labelled(name=row[0], category=row[2], accepted=tuple(row[3].split("|")), text=row[4]) for row in rows]


def classify_texts(texts: Sequence[bytes]) -> list[LineVerdict]:
    """Return the verdict on each line."""
    return list(
        classify_lines(
            enumerate(texts, start=1), catalogue=read_explaining_catalogue(), matcher=shared_matcher(with_meanings=True)
        )
    )


def score(labelled: Sequence[Labelled], show: Callable[[str], str]) -> Score:
    """Judge the lines as `show` writes them."""
    verdicts = classify_texts([show(line.text).encode() for line in labelled])
    misses: list[str] = []
    destructive: list[str] = []
    for line, verdict in zip(labelled, verdicts, strict=True):
        action = verdict.actions[0].value
        told = f"{line.name} {line.category}: {action} by {verdict.signature}, accepted {'|'.join(line.accepted)}"
        if action in line.accepted:
            continue
        misses.append(told)
        if action in _DESTRUCTIVE and _DESTRUCTIVE.isdisjoint(line.accepted):
            destructive.append(f"DESTRUCTIVE {told}")
    return Score(
        line_count=len(labelled),
        accepted_count=len(labelled) - len(misses),
        destructive=tuple(destructive),
        misses=tuple(misses),
    )


def _plain(text: str) -> str:
    return text


def dressed(dress: Callable[[str], str], chance: random.Random) -> Callable[[str], str]:
    """Return a function that takes a line's own prefix away, alters what differs between machines, and dresses it."""

    def show(text: str) -> str:
        return dress(alter(_PREFIX.sub("", text, count=1), chance))

    return show


def alter(text: str, chance: random.Random) -> str:
    """Return `text` of another GPU, process, rank, machine and hour; codes and registers stay as they are."""

    def pci(match: re.Match[str]) -> str:
        bus, device = chance.randrange(1, 256), chance.randrange(32)
        return f"{chance.randrange(4):04x}:{bus:02x}:{device:02x}{match[1] or ''}"

    text = re.sub(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(\.[0-7])?\b", pci, text)
    text = re.sub(r"\bpid([= ])\d+", lambda match: f"pid{match[1]}{chance.randrange(2, 4_000_000)}", text)
    text = re.sub(r"\brank(\s?)\d+", lambda match: f"rank{match[1]}{chance.randrange(4096)}", text)
    text = re.sub(r"\b(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})\b", f"10.{chance.randrange(256)}.7.9", text)
    text = re.sub(r"\bmlx5_\d+", f"mlx5_{chance.randrange(16)}", text)
    text = re.sub(r"\bnvme\d+(?!n)", f"nvme{chance.randrange(12)}", text)
    text = re.sub(r"\bnvswitch\d+", f"nvswitch{chance.randrange(6)}", text)
    text = re.sub(
        r"\bname=[\w.:-]+", f"name={chance.choice(('python3.11', 'pt_main_thread', 'mpirun', 'train'))}", text
    )
    return re.sub(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "2026-11-21T07:25:29", text)


DRESSES: dict[str, Callable[[str], str]] = {
    "no prefix": lambda text: text,
    "syslog": lambda text: f"Nov 21 07:25:29 gpu003 kernel: {text}",
    "rsyslog, ISO time": lambda text: f"2026-11-21T07:25:29.123456+01:00 gpu-a3.example.net kernel: [812.404] {text}",
    "dmesg -T": lambda text: f"[Sat Nov 21 07:25:29 2026] {text}",
    "/dev/kmsg": lambda text: f"4,88123,98123456789,-;{text}",
    "dmesg --decode": lambda text: f"kern  :err   : 2026-11-21T07:25:29,404040+00:00 {text}",
    "journald JSON": lambda text: json.dumps({"_HOSTNAME": "gpu003", "PRIORITY": "4", "MESSAGE": text}),
    "container log": lambda text: f"2026-11-21T07:25:29.404040404Z stderr F {text}",
    "srun --label, torchrun": lambda text: f"117: [default5]:[rank117]: {text}",
    "tabs around, CRLF": lambda text: f"\t{text} \t\r",
}


def unlabelled_lines(path: Path) -> list[bytes]:
    """Return the lines of a public log."""
    body = path.read_bytes()
    text = gzip.decompress(body) if path.suffix == ".gz" else body
    return [line for _, line in read_lines(io.BytesIO(text))]


def unlabelled_table() -> Table:
    """Return how public logs are judged, a row a collection."""
    table = Table(title="logs that nobody labelled: lines by first action")
    for heading in ("log", "lines", "destructive", "named by a row", "watched (MONITOR)", "nothing (NONE)"):
        table.add_column(heading, justify="left" if heading == "log" else "right")
    for pattern in UNLABELLED:
        for path in sorted(SHARED.glob(pattern)):
            verdicts = classify_texts(unlabelled_lines(path))
            count = Counter(verdict.actions[0] for verdict in verdicts)
            table.add_row(
                path.name[-40:],
                f"{len(verdicts):,}",
                str(sum(count[action] for action in DESTRUCTIVE_ACTIONS)),
                f"{sum(verdict.signature is not None for verdict in verdicts):,}",
                f"{count[FirstAction.MONITOR]:,}",
                f"{count[FirstAction.NONE]:,}",
            )
    return table


def speed_text(labelled: Sequence[Labelled], *, copies: int = 500) -> str:
    """Return how many lines a second are judged where each is a fault: the slowest mix there is."""
    texts = [line.text.encode() for line in labelled] * copies
    started = time.process_time()
    classify_texts(texts)
    return f"{len(texts) / (time.process_time() - started):,.0f} fault lines per CPU second"


if __name__ == "__main__":
    sys.exit(main())
