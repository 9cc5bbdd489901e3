"""Raw log lines -> what each means, with the numbers and parts that it names.

Asked only for lines that a signature matched. Which line that is, is `matching`.

One answer for each line, blank and unreadable ones included. Xid and SXid lines are judged by the code tables, the
NVLink subcodes and the words of the line; all others by the first signature that matches. A line alone is no evidence
of a node's state: whether the kernel wrote it is `signals`' question, what becomes of it that of `observe.rules`.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, FirstAction
from ops_pipelines.core.finding import Catalogue, CodeRule
from ops_pipelines.core.identity import parse_pci_address
from ops_pipelines.observe.condition_rules import NVLINK_CODES, find_severity, judge_nvlink, judge_sxid
from ops_pipelines.observe.logs.files import is_binary
from ops_pipelines.observe.logs.guess import guess_of
from ops_pipelines.observe.logs.matching import Matcher

# -- the numbers and parts that a line names --


_CODE = re.compile(
    r"\bS?Xid\s{0,3}\([^()]{1,60}\)\s{0,2}:\s{0,3}(\d{1,6})\b|\bXid=(\d{1,4})\b"
    r"|\bNVSwitch (?:non-)?fatal error (\d{1,6})\b"
)
_PCI = re.compile(r"(?<![0-9a-fA-F])([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)(?![0-9a-fA-F:])")
_DEVICE = re.compile(
    r"\b(nvidia-nvswitch\d{1,3}|mlx[45]_(?!core|ib\b|en\b)[A-Za-z0-9_]{1,20}|nvme\d{1,3}(?:n\d{1,3}(?:p\d{1,3})?)?|md\d{1,3}|dm-\d{1,4}|sd[a-z]{1,3}\d{0,3}"
    r"|bond\d{1,3}|ib\d{1,3}|eth\d{1,3}|en[ospx][a-z0-9]{1,14}|ata\d{1,3}(?:\.\d{2})?|GPU ?\d{1,2}\b"
    r"|(?:CPU|cpu) ?#?\d{1,4}\b|MC\d{1,3}|DIMM[_#A-Z0-9]{1,16})"
)
_STEP_MARKS = ("StepId=", "*** JOB ", "*** STEP ", ".batch] ", ".extern] ", ".interactive] ")
_STEP_OF_JOB = re.compile(
    r"\bStepId=(\d{1,10})\b|\*\*\* (?:JOB|STEP) (\d{1,10})\b|\[(\d{1,10})\.(?:batch|extern|interactive)\] "
)
_LINK = re.compile(r"\b[Ll]ink (\d{1,3})\b")
_JOB = re.compile(r"\b(?:JOB|STEP|[Jj]ob(?:[Ii]d)?[= ]|SLURM_JOB_ID=)\s?(\d{1,10})\b")
# The rest is asked of the line in lower case.
_NUMBER = r"([+-]?\d[\d,]{0,18}(?:\.\d{1,18})?(?:e[+-]?\d{1,3})?)"
_STEP = re.compile(r"(?:step(?! ?time)s?|iteration|iter)['\"]?\s{0,3}[:=#]?\s{0,12}(\d{1,15})\b(?!\.\d)")
_BAR = re.compile(r"%\|[^|]{0,400}\|\s{0,4}(\d{1,15})/")
_SECONDS = re.compile(
    r"(?:elapsed time per iteration|(?:step|iter(?:ation)?|batch)[_ ]?time)"
    rf"\s?(?:\(?(m?s)\)?)?['\"]?\s?[:=]\s{{0,3}}{_NUMBER}\s?(ms|s)?"
)
_RATE = re.compile(r"\b(\d{1,9}(?:\.\d{1,9})?)\s?(s/it|it/s)\b")
_LOSS = re.compile(rf"loss['\"]?\s{{0,2}}[:=]?\s{{0,3}}['\"]?{_NUMBER}")
_TOKENS = re.compile(
    r"(?:tokens?[ _/]?(?:per[ _]?|/)s(?:ec(?:ond)?)?|tok/s(?:ec)?)(?![a-z]|[/ _]?(?:per[ _])?(?:gpu|device))"
    rf"(?:\s?\([^)]{{0,40}}\))?['\"]?\s{{0,2}}[:=]?\s{{0,3}}{_NUMBER}"
)
_FLOPS = re.compile(
    r"(?<![a-z])([tpg])flops?(?:/s(?:/gpu)?)?(?:\s?\([^)]{0,40}\))?\)?['\"]?"
    rf"\s{{0,2}}[:=]\s{{0,3}}{_NUMBER}"
)
_SCALE = {"g": 1e9, "t": 1e12, "p": 1e15}


class FaultDetails(NamedTuple):
    """Parts of a fault's line; None: it names none."""

    code: int | None
    pci_address: str | None
    device: str | None


class TrainingNumbers(NamedTuple):
    """Numbers of a training step; None: not stated, or no number."""

    step: int | None
    step_seconds: float | None
    loss: float | None
    tokens_per_second: float | None
    flops_per_second: float | None


def fault_details(text: str) -> FaultDetails:
    """Return code, PCI address (as 0000:1b:00) and device that a line names."""
    code = _CODE.search(text)
    found = _PCI.search(text)
    device = _DEVICE.search(text)
    link = _LINK.search(text) if device is None or device[1].startswith(("nvidia-nvswitch", "GPU")) else None
    named = None if device is None else device[1]
    if link is not None:
        named = f"link {link[1]}" if named is None else f"{named}/link {link[1]}"
    return FaultDetails(
        None if code is None else int(code[1] or code[2] or code[3]),
        None if found is None else parse_pci_address(found[1]),
        named,
    )


def job_of(text: str) -> str | None:
    """Return the Slurm job that a line of Slurm names."""
    match = _JOB.search(text)
    return None if match is None else match[1]


def job_of_step(text: str) -> str | None:
    """Return the job of a step that any line names in the words of slurmstepd."""
    if not any(mark in text for mark in _STEP_MARKS):
        return None
    match = _STEP_OF_JOB.search(text)
    return None if match is None else match[1] or match[2] or match[3]


def training_numbers(text: str) -> TrainingNumbers:
    """Return what a line of a training says of its step, in base units."""
    # Most lines hold few of these: looking for a word first costs a tenth of the pattern.
    lower = text.lower()
    step = _first(lower, _STEP, words=("step", "iter"), prefixes=("global_", "global")) or (
        _BAR.search(lower) if "%|" in lower else None
    )
    seconds = _SECONDS.search(lower) if "time" in lower else None
    step_seconds: float | None = None
    if seconds is not None:
        step_seconds = _number(seconds[2], factor=1e-3 if "ms" in (seconds[1], seconds[3]) else 1.0)
    elif "it" in lower and (rate := _RATE.search(lower)) is not None:
        value = float(rate[1])
        step_seconds = value if rate[2] == "s/it" else (1.0 / value if value > 0 else None)
    loss = _first(lower, _LOSS, words=("loss",), prefixes=("lm_", "train_", "training_"))
    tokens = _TOKENS.search(lower) if "tok" in lower else None
    flops = _FLOPS.search(lower) if "flop" in lower else None
    return TrainingNumbers(
        None if step is None else int(step[1]),
        step_seconds,
        None if loss is None else _number(loss[1]),
        None if tokens is None else _number(tokens[1]),
        None if flops is None else _number(flops[2], factor=_SCALE[flops[1]]),
    )


def _first(
    text: str, pattern: re.Pattern[str], *, words: tuple[str, ...], prefixes: tuple[str, ...]
) -> re.Match[str] | None:
    """Match `pattern` where one of `words` is alone, or behind one of `prefixes`."""
    for word in words:
        place = text.find(word)
        while place >= 0:
            before = text[place - 1 : place]
            if not (before.isalpha() or before == "_") or text.endswith(prefixes, 0, place):
                match = pattern.match(text, place)
                if match is not None:
                    return match
            place = text.find(word, place + 1)
    return None


def _number(text: str, *, factor: float = 1.0) -> float | None:
    try:
        value = float(text.rstrip(",").replace(",", "")) * factor
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# -- raw log lines -> what each means --


MAX_LINE_BYTES = 64 * 1024
"""What is read of one line. The words of a fault stand at its beginning; the longest line known here has 3 KiB."""
BLOCK_LINES = 20_000
BLOCK_BYTES = 16 * 1024 * 1024
"""A block ends at whichever comes first, so that a file of endless lines needs no more memory than another."""
LABELLED_HEADING = b"# id\tsource"
XID_RECOVERY_ACTION_CHANGED = 154
_TEXT_COLUMN = 4
_CHUNK_BYTES = 1024 * 1024

_XID = re.compile(r"NVRM: {0,3}Xid {0,3}\([^()\n]{1,60}\) {0,2}: {0,3}(\d{1,6})\b(.*)", re.DOTALL)
_SXID = re.compile(r"SXid {0,2}\([^()\n]{1,60}\) {0,2}: {0,3}(\d{4,6})\b(.*)", re.DOTALL)
_FABRIC_MANAGER = re.compile(r"(detected NVSwitch (?:non-)?fatal error) (\d{4,6})\b", re.IGNORECASE)
_RELAYED = re.compile(r"\bxid(?:[ _-]error)?s?[ :=#]{1,3}(\d{1,3})\b", re.IGNORECASE)
_UNREADABLE_SHARE = 0.3
"""# Assumption: as `log_kinds.is_binary` draws the line; a few bad bytes in a line do not hide its words."""
_UNKNOWN_CODE_CONFIDENCE = 0.5
_CODE_CONFIDENCE = 0.9
_DISPUTED_CONFIDENCE = 0.8


class ByteSource(Protocol):
    """What lines are read from: a file opened for bytes, and whatever reads like one."""

    def read(self, size: int, /) -> bytes:
        """Return some bytes, at most `size`; none at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineVerdict:
    """What one line means, taken alone."""

    line: int
    """Number of the physical line, from 1."""
    signature: str | None
    """`xid_79`, `sxid_20034`, `xid_unknown`, or the row of log_signatures.csv or log_meanings.csv; None: no row."""
    category: str
    """In the words of the labelled lines; of lines that no row names `guessed`, `unknown`, `blank` or `unreadable`."""
    component: str
    actions: tuple[FirstAction, ...]
    """Preferred first; never empty."""
    confidence: float


BLANK = ("blank", "none", (FirstAction.NONE,), 1.0)
UNREADABLE = ("unreadable", "unknown", (FirstAction.MONITOR,), 0.1)


def classify_lines(
    lines: Iterable[tuple[int, bytes]], *, catalogue: Catalogue, matcher: Matcher
) -> Iterator[LineVerdict]:
    """Yield one verdict for each (number, line), in order; memory holds one block of lines at a time.

    A line is bytes without its newline; a carriage return at its end belongs to the line ending.
    """
    for block in _blocks(lines):
        texts = [line[:MAX_LINE_BYTES].replace(b"\n", b" ").rstrip(b"\r") for _, line in block]
        found_lines, found_rules = matcher.match_buffer(b"\n".join(texts)).first_rules()
        rules = dict(zip(found_lines.tolist(), found_rules.tolist(), strict=True))
        for index, ((number, _), text) in enumerate(zip(block, texts, strict=True)):
            rule = rules.get(index)
            yield _judge(number, text, None if rule is None else matcher.rules[rule].id, catalogue)


def _blocks(lines: Iterable[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    block: list[tuple[int, bytes]] = []
    size_bytes = 0
    for number, line in lines:
        block.append((number, line))
        size_bytes += len(line)
        if len(block) >= BLOCK_LINES or size_bytes >= BLOCK_BYTES:
            yield block
            block, size_bytes = [], 0
    if block:
        yield block


def read_lines(stream: ByteSource) -> Iterator[tuple[int, bytes]]:
    """Yield (number, text) for each line of `stream` that is to be judged, in order; numbers count physical lines.

    A line ends at a newline and nowhere else; of one longer than MAX_LINE_BYTES the rest is not kept. A first line
    that starts `# id<TAB>source` makes the stream the table of labelled lines: its lines with `#` are passed over, and
    of the others the fifth column is the text, empty where there is none.
    """
    is_labelled = False
    for number, line in enumerate(_split(stream), start=1):
        if number == 1:
            is_labelled = line.startswith(LABELLED_HEADING)
        if not is_labelled:
            yield number, line
        elif not line.startswith(b"#"):
            columns = line.split(b"\t", _TEXT_COLUMN + 1)
            yield number, columns[_TEXT_COLUMN] if len(columns) > _TEXT_COLUMN else b""


def _split(stream: ByteSource) -> Iterator[bytes]:
    held = b""
    while chunk := stream.read(_CHUNK_BYTES):
        first, *others = chunk.split(b"\n")
        held = (held + first)[:MAX_LINE_BYTES]
        for part in others:
            yield held
            held = part[:MAX_LINE_BYTES]
    if held:
        yield held


def _judge(number: int, text: bytes, signature: str | None, catalogue: Catalogue) -> LineVerdict:
    if signature is None:
        category, component, actions, confidence = _judge_unmatched(text)
        return LineVerdict(
            line=number, signature=None, category=category, component=component, actions=actions, confidence=confidence
        )
    readable = text.decode("utf-8", errors="backslashreplace")
    row = catalogue.signatures[signature]
    verdict = LineVerdict(
        line=number,
        signature=signature,
        category=row.category,
        component=row.component,
        actions=row.actions,
        confidence=row.confidence,
    )
    xid = _XID.search(readable)
    if xid is not None:
        return _judge_xid(int(xid[1]), xid[2], verdict, catalogue)
    sxid = _SXID.search(readable)
    if sxid is not None and signature != "sxid_detail":
        return _judge_sxid(int(sxid[1]), sxid[2], verdict, catalogue)
    told = _FABRIC_MANAGER.search(readable)
    if told is not None:
        return _judge_sxid(int(told[2]), told[1], verdict, catalogue)
    relayed = _RELAYED.search(readable) if signature in ("xid_relayed", "device_plugin_unhealthy") else None
    if relayed is not None:
        return _judge_relayed(int(relayed[1]), verdict, catalogue)
    return verdict


def _judge_unmatched(text: bytes) -> tuple[str, str, tuple[FirstAction, ...], float]:
    """Return the verdict on a line that no row names: anyone who speaks of a fault is watched, nobody is punished."""
    if not text.strip():
        return BLANK
    if is_binary(text) or _undecodable_count(text) > _UNREADABLE_SHARE * len(text):
        return UNREADABLE
    return guess_of(text)


def _undecodable_count(text: bytes) -> int:
    return 0 if text.isascii() else len(text) - len(text.decode("utf-8", errors="ignore").encode())


def _judge_xid(code: int, rest: str, verdict: LineVerdict, catalogue: Catalogue) -> LineVerdict:
    rule = catalogue.xids.get(code)
    if rule is None:
        return _unknown_code(verdict, signature="xid_unknown", category="gpu_unknown_xid")
    if code == XID_RECOVERY_ACTION_CHANGED:
        # The rows of 154 tell the numbers apart; the table knows the code alone.
        return verdict
    if code in NVLINK_CODES:
        judged = judge_nvlink(code, rest, catalogue.nvlink_subcodes)
        is_fatal = judged.first_action in DESTRUCTIVE_ACTIONS
        return replace(
            verdict,
            signature=f"xid_{code}",
            category="nvlink5_fatal" if is_fatal else "nvlink5_nonfatal",
            actions=_with_others(judged.first_action, (FirstAction.REBOOT_NODE,) if is_fatal else ()),
            confidence=_CODE_CONFIDENCE if judged.subcode is not None else _DISPUTED_CONFIDENCE,
        )
    return _by_code(verdict, rule, signature=f"xid_{code}", action=rule.first_action)


def _judge_sxid(code: int, words: str, verdict: LineVerdict, catalogue: Catalogue) -> LineVerdict:
    rule = catalogue.sxids.get(code)
    if rule is None:
        return _unknown_code(verdict, signature="sxid_unknown", category="nvswitch_nonfatal")
    judged = _by_code(verdict, rule, signature=f"sxid_{code}", action=judge_sxid(rule, words))
    if verdict.category in ("nvswitch_thermal", "nvlink_fabric_manager"):
        return judged
    return replace(judged, category="nvswitch_fatal" if find_severity(words) else "nvswitch_nonfatal")


def _judge_relayed(code: int, verdict: LineVerdict, catalogue: Catalogue) -> LineVerdict:
    """Return what a code means that another program repeats: the table's answer, but nothing destructive on hearsay."""
    rule = catalogue.xids.get(code)
    if rule is None or rule.first_action in DESTRUCTIVE_ACTIONS:
        return verdict
    return replace(verdict, actions=_with_others(rule.first_action, verdict.actions))


def _by_code(verdict: LineVerdict, rule: CodeRule, *, signature: str, action: FirstAction) -> LineVerdict:
    """Return the verdict of the code's own row; what the signature's row names besides it follows."""
    return replace(
        verdict,
        signature=signature,
        actions=_with_others(action, verdict.actions),
        confidence=_DISPUTED_CONFIDENCE if rule.is_disputed else _CODE_CONFIDENCE,
    )


def _unknown_code(verdict: LineVerdict, *, signature: str, category: str) -> LineVerdict:
    return replace(
        verdict,
        signature=signature,
        category=category,
        actions=(FirstAction.MONITOR,),
        confidence=_UNKNOWN_CODE_CONFIDENCE,
    )


def _with_others(first: FirstAction, others: Iterable[FirstAction]) -> tuple[FirstAction, ...]:
    return (first, *(other for other in others if other is not first))
