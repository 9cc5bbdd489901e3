"""The numbers and parts that a line names: code, PCI address, device of a fault; step, loss, throughput of a training.

Asked only for lines that a signature matched. Which line that is, is `matching`.
"""

import math
import re
from typing import NamedTuple

from ops_pipelines.core.identity import parse_pci_address

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
    """Match `pattern` where one of `words` stands alone, or behind one of `prefixes`."""
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
