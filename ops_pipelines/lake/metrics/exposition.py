"""The Prometheus text format (0.0.4, with OpenMetrics and quoted UTF-8 names) -> series, and the lines not believed.

A record is one sample line; HELP, TYPE, comments and blank lines are none. What a name means, and whether its value can
be, is for others: here a line is either a well-formed sample or refused with its reason. Reasons: `malformed_sample`,
`bad_labels`, `bad_value`, `bad_timestamp`, `invalid_utf8`, `duplicate_series`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import compress
from sys import intern
from threading import Lock

import numpy as np

from ops_pipelines.lake.metrics.series import SeriesBlock
from ops_pipelines.lake.metrics.ways import Ints
from ops_pipelines.lake.quantities import Refused, WrongKind, readable

_NAME = re.compile(rb"[A-Za-z_:][A-Za-z0-9_:]*")
# Possessive: a label value of any length and content is passed over once, never tried again.
_QUOTED = rb'"(?:[^"\\]++|\\.)*+"'
_LABEL = re.compile(
    rb"[ \t]*(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*|%(quoted)s)[ \t]*=[ \t]*(?P<value>%(quoted)s)|(?P<metric>%(quoted)s))"
    rb"[ \t]*(?P<end>,|\Z)" % {b"quoted": _QUOTED},
    re.DOTALL,
)
_EXEMPLAR = re.compile(rb"(?P<sample>[^{#]*+(?:\{(?:[^\"}]++|%b)*+\})?[^{#]*+)#[ \t]*\{.*" % _QUOTED, re.DOTALL)
_COMMENT_OF_A_METRIC = re.compile(rb"^[ \t]*#[ \t]+(?:HELP|TYPE|UNIT)[ \t]", re.MULTILINE)
_END = re.compile(rb"(?:^|\n)# EOF[ \t\r\n]*\Z")
_ESCAPE = re.compile(r'\\([\\"n])')
_WHOLE = re.compile(rb"-?\d{1,18}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 and 9999, which is what a time can hold."""
_REMEMBERED_MS, _NEW_MS = 240_000, 65_000
"""How far apart two pages may be for one to be read by the shape of the other, and while the other was met only once:
an exporter that changes its labels at each scrape must not fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposition:
    """What one page says. The points of a series are in the order of the page."""

    block: SeriesBlock
    refused: tuple[Refused, ...]
    sample_count: int
    """Sample lines that were read: points of the block, and refused ones."""


class _Refusal(ValueError):
    """A sample line that is not believed."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def decode_exposition(body: bytes, *, default_time: datetime) -> Exposition:
    """Return the samples of a page; one without a timestamp has `default_time`.

    Timestamps are milliseconds, or seconds if the page ends with OpenMetrics' `# EOF`. Labels without a value count as
    absent, as in Prometheus. The same series at the same time is a duplicate, and the first one counts.
    Raises WrongKind if the body is no exposition at all; an empty one has no samples.
    """
    text = body.removeprefix(b"\xef\xbb\xbf")
    default_ms = round((default_time - _EPOCH).total_seconds() * 1000)
    is_in_seconds = _ends(body)
    # A time that is the page's own is cut off: so all pages of one series of scrapes are alike but for their values.
    bare = (text if is_in_seconds else text.replace(b" %d\n" % default_ms, b"\n")).split(b"\n")
    parted = [line.rpartition(b" ") for line in bare]
    key = sha256(b"\n".join([head for head, _, _ in parted])).digest()
    words = [word for _, _, word in parted]
    known = _SHAPES.find(key, words, default_ms=default_ms)
    if known is not None:
        return known
    page = _Page(default_ms=default_ms, is_in_seconds=is_in_seconds)
    page.read(text.split(b"\n"), bare)
    page.demand_right_kind(body)
    found = page.finish()
    places = np.zeros(0, np.int64) if found.block.lines is None else found.block.lines - 1
    if not found.refused and all(_is_plain(parted[place][0]) for place in places.tolist()):
        _SHAPES.keep(key, words, found.block, places=places, default_ms=default_ms)
    return found


def _ends(body: bytes) -> bool:
    return _END.search(body[-4096:]) is not None


@dataclass(slots=True)
class _LabelSet:
    """One set of labels, however it was written."""

    labels: Mapping[str, str]
    series: dict[str, int] = field(default_factory=dict)
    """Name -> the series with these labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """A page that was read without any trouble, for those that differ from it in their values alone."""

    block: SeriesBlock
    is_sample: bytes
    """Of each line, 1 or 0."""
    is_other: bytes
    others: bytes
    """Digest of the last word of each line that is no sample: it must not have become one."""
    met_ms: int
    is_met_again: bool = False


class _Shapes:
    """What is around the values of the pages that were met lately. Safe for threads."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Shape] = {}
        self._lock = Lock()

    def find(self, key: bytes, words: Sequence[bytes], *, default_ms: int) -> Exposition | None:
        """Return what a page says, if all but its values is known and they are numbers; else it must be read."""
        shape = self._known.get(key)
        if shape is None or _digest_of(compress(words, shape.is_other)) != shape.others:
            return None
        said = list(compress(words, shape.is_sample))
        try:
            values = np.array(list(map(float, said)), np.float64)
        except ValueError:
            return None
        if b"_" in b"".join(said):
            return None
        with self._lock:
            self._known[key] = replace(shape, met_ms=default_ms, is_met_again=True)
        block = replace(shape.block, times=np.full(len(said), default_ms, np.int64), values=values)
        return Exposition(block=block, refused=(), sample_count=len(said))

    def keep(self, key: bytes, words: Sequence[bytes], block: SeriesBlock, *, places: Ints, default_ms: int) -> None:
        """Remember a page without its values, and forget those that were not met for long."""
        is_sample = np.zeros(len(words), np.uint8)
        is_sample[places] = 1
        is_other = (1 - is_sample).tobytes()
        shape = _Shape(
            block=replace(
                block,
                times=np.broadcast_to(np.int64(0), len(places)),
                values=np.broadcast_to(np.float64(0), len(places)),
                known={},
            ),
            is_sample=is_sample.tobytes(),
            is_other=is_other,
            others=_digest_of(compress(words, is_other)),
            met_ms=default_ms,
        )
        with self._lock:
            lately = {
                other: known
                for other, known in self._known.items()
                if abs(default_ms - known.met_ms) <= (_REMEMBERED_MS if known.is_met_again else _NEW_MS)
            }
            self._known = {**lately, key: shape}


def _digest_of(words: Iterable[bytes]) -> bytes:
    return sha256(b"\n".join(words)).digest()


_SHAPES = _Shapes()


def _is_plain(head: bytes) -> bool:
    """Return whether this, with one number behind it, is a sample of that value at the page's own time."""
    return b"#" not in head and (head.endswith(b"}") or (b"{" not in head and len(head.split()) == 1))


class _Page:
    def __init__(self, *, default_ms: int, is_in_seconds: bool) -> None:
        self._default_ms = default_ms
        self._is_in_seconds = is_in_seconds
        self._written_sets: dict[bytes, tuple[str | None, _LabelSet]] = {}
        """What is between braces -> the name in it, if any, and the labels."""
        self._plain_sets: dict[bytes, _LabelSet] = {}
        """The same, where no name is in the braces."""
        self._sets: dict[frozenset[tuple[str, str]], _LabelSet] = {}
        self._written_names: dict[bytes, str] = {}
        self._names: list[str] = []
        self._labels: list[Mapping[str, str]] = []
        self._first_times: list[int] = []
        """Time of each series' first point."""
        self._further_times: dict[int, set[int]] = {}
        """Times of a series that has more than one point."""
        self._points: list[int] = []
        """Series of each point."""
        self._times: list[int] = []
        self._values: list[float] = []
        self._lines: list[int] = []
        self._refused: list[Refused] = []

    def read(self, lines: Sequence[bytes], bare: Sequence[bytes]) -> None:
        """Read every line. What repeats known names and labels is read here, all else, and all trouble, by `_take`.

        `bare` are the lines without the time, where it is the page's own.
        """
        names, sets, default_ms = self._written_names, self._plain_sets, self._default_ms
        for number, (line, text) in enumerate(zip(lines, bare, strict=True), start=1):
            start, end = text.find(b"{"), text.rfind(b"}")
            label_set = sets.get(text[start + 1 : end])
            name = names.get(text[:start])
            word = text[end + 1 :].strip()
            if label_set is None or name is None or start < 0 or name in label_set.series or b"_" in word:
                self._take(line, number)
                continue
            try:
                value = float(word)
            except ValueError:  # or two words
                self._take(line, number)
                continue
            label_set.series[name] = series = len(self._names)
            self._names.append(name)
            self._labels.append(label_set.labels)
            self._first_times.append(default_ms)
            self._points.append(series)
            self._times.append(default_ms)
            self._values.append(value)
            self._lines.append(number)

    def _take(self, line: bytes, number: int) -> None:
        """Read one line; a sample that is not believed is refused, a line that is no sample passed over."""
        if b"#" in line:
            stripped = line.lstrip()
            if stripped.startswith(b"#"):
                return
            exemplar = _EXEMPLAR.fullmatch(stripped)
            if exemplar is not None:
                self._take(exemplar["sample"], number)
                return
        start = line.find(b"{")
        try:
            if start < 0:
                words = line.split()
                if not words:
                    return
                raw_name, raw_labels, words = words[0], b"", words[1:]
            else:
                end = line.rfind(b"}")
                if end < start:
                    raise _Refusal("malformed_sample", "the brace is not closed; expected NAME{LABELS} VALUE")
                raw_name, raw_labels, words = line[:start], line[start + 1 : end], line[end + 1 :].split()
            name, label_set = self._identify(raw_name, raw_labels)
            if not 1 <= len(words) <= 2:
                raise _Refusal(
                    "malformed_sample", f"{len(words)} words behind the series; expected a value, and perhaps a time"
                )
            value = _read_value(words[0])
            time = self._default_ms if len(words) == 1 else self._read_time(words[1])
            self._add(name, label_set, time=time, value=value, number=number)
        except _Refusal as exc:
            self._refuse(line, number, exc)

    def _identify(self, raw_name: bytes, raw_labels: bytes) -> tuple[str, _LabelSet]:
        known = self._written_sets.get(raw_labels)
        if known is None:
            quoted_name, labels = _read_labels(raw_labels)
            label_set = self._sets.setdefault(frozenset(labels.items()), _LabelSet(labels))
            known = self._written_sets[raw_labels] = quoted_name, label_set
            if quoted_name is None:
                self._plain_sets[raw_labels] = label_set
        quoted_name, label_set = known
        name = self._written_names.get(raw_name)
        if name is None:
            name = self._read_name(raw_name, quoted_name)
        elif quoted_name is not None:
            raise _Refusal("malformed_sample", "two names, one before the braces and one in them; expected one")
        return name, label_set

    def _read_name(self, raw_name: bytes, quoted_name: str | None) -> str:
        stripped = raw_name.strip(b" \t")
        if quoted_name is not None and not stripped:
            return quoted_name
        if _NAME.fullmatch(stripped) is None or quoted_name is not None:
            found = readable(stripped[:60].decode("utf-8", "replace"))
            raise _Refusal("malformed_sample", f"the name is {found!r}; expected letters, digits, _ and :")
        name = intern(stripped.decode("ascii"))
        self._written_names[raw_name] = name
        return name

    def _read_time(self, word: bytes) -> int:
        try:
            if self._is_in_seconds and b"_" not in word:
                milliseconds = round(float(word) * 1000)
            elif _WHOLE.fullmatch(word):
                milliseconds = int(word)
            else:
                raise ValueError
            if not _FIRST_MS <= milliseconds <= _LAST_MS:
                raise ValueError
        except (ValueError, OverflowError):
            unit = "seconds" if self._is_in_seconds else "whole milliseconds"
            raise _Refusal("bad_timestamp", f"the time is {_shown(word)}; expected {unit} since 1970") from None
        return milliseconds

    def _add(self, name: str, label_set: _LabelSet, *, time: int, value: float, number: int) -> None:
        series = label_set.series.get(name)
        if series is None:
            series = label_set.series[name] = len(self._names)
            self._names.append(name)
            self._labels.append(label_set.labels)
            self._first_times.append(time)
        else:
            times = self._further_times.get(series)
            if times is None:
                times = self._further_times[series] = {self._first_times[series]}
            if time in times:
                raise _Refusal("duplicate_series", f"{name} with these labels and this time is above; expected once")
            times.add(time)
        self._points.append(series)
        self._times.append(time)
        self._values.append(value)
        self._lines.append(number)

    def _refuse(self, line: bytes, number: int, refusal: _Refusal) -> None:
        text = readable(line[:4096].decode("utf-8", "backslashreplace"))
        reason, detail = refusal.reason, str(refusal)
        try:
            line.decode()
        except UnicodeDecodeError as exc:
            reason, detail = "invalid_utf8", f"byte 0x{line[exc.start]:02x} at {exc.start}; expected UTF-8"
        self._refused.append(Refused(record=f"line {number}", reason=reason, detail=detail, text=text))

    def demand_right_kind(self, body: bytes) -> None:
        """Raise WrongKind if lines that are no samples outnumber those that are, and no comment reports of metrics."""
        garbage = sum(each.reason not in ("bad_timestamp", "duplicate_series") for each in self._refused)
        if garbage > len(self._points) and not _COMMENT_OF_A_METRIC.search(body):
            first = self._refused[0]
            raise WrongKind(
                f"{garbage} of {len(self._points) + len(self._refused)} lines are no samples, as {first.record}: "
                f"{first.text[:60]!r}; expected Prometheus' text format"
            )

    def finish(self) -> Exposition:
        points = np.array(self._points, np.int64)
        # Points of one series may stand apart on the page.
        order = np.argsort(points, kind="stable") if self._further_times else slice(None)
        block = SeriesBlock(
            names=self._names,
            labels=self._labels,
            counts=np.bincount(points, minlength=len(self._names)).astype(np.int64),
            times=np.array(self._times, np.int64)[order],
            values=np.array(self._values, np.float64)[order],
            lines=np.array(self._lines, np.int64)[order],
        )
        return Exposition(
            block=block, refused=tuple(self._refused), sample_count=len(self._points) + len(self._refused)
        )


def _read_value(word: bytes) -> float:
    # Python would take 1_000; Go's hexadecimal floats have been no part of the format since Prometheus 2.13.
    try:
        if b"_" in word:
            raise ValueError
        return float(word)
    except ValueError:
        raise _Refusal("bad_value", f"the value is {_shown(word)}; expected a number, NaN, +Inf or -Inf") from None


def _read_labels(raw: bytes) -> tuple[str | None, dict[str, str]]:
    """Return the name that is in the braces, if any, and the labels that have a value."""
    metric: str | None = None
    labels: dict[str, str] = {}
    seen: set[str] = set()
    at = 0
    raw = raw.rstrip(b" \t")
    while at < len(raw):
        match = _LABEL.match(raw, at)
        if match is None:
            raise _Refusal("bad_labels", f'found {_shown(raw[at : at + 40])} among the labels; expected NAME="VALUE"')
        try:
            if match["metric"] is not None:
                if metric is not None or labels:
                    raise _Refusal("bad_labels", "a second name in the braces; expected one, in front")
                metric = _unquoted(match["metric"])
            else:
                name = _unquoted(match["name"])
                if name in seen or name == "__name__":
                    raise _Refusal("bad_labels", f"the label {readable(name[:60])} is twice; expected once")
                seen.add(name)
                value = _unquoted(match["value"])
                if value:  # Thousands of pages that are remembered say the same words.
                    labels[intern(name)] = intern(value)
        except UnicodeDecodeError:
            raise _Refusal("invalid_utf8", "bytes that are no UTF-8 in a label") from None
        at = match.end()
    return metric, labels


def _unquoted(raw: bytes) -> str:
    text = raw.decode()
    if text.startswith('"'):
        text = text[1:-1]
    # An escape that the format does not know means itself, as when Prometheus scrapes it.
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text) if "\\" in text else text


def _shown(raw: bytes) -> str:
    return repr(readable(raw[:40].decode("utf-8", "replace")))
