"""What a log line says of itself before its message: time, node, level, rank, and whether the kernel wrote it.

The dialects of kernels, syslog, fabric managers, BMCs, Slurm, Python, glog, torch, NCCL and public log collections, one
or several in a row. For tables only: what counts as evidence for an incident is the strict business of `signals`.
Long, because the dialects stand beside the one loop that tries them: their order is what distinguishes them.
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from ops_pipelines.observe.logs.matching import Origin


class Said(NamedTuple):
    """What one line says; None: it does not."""

    microseconds: int | None
    """Since 1970, UTC. A time without a zone is taken as UTC, one without a year as the newest that fits."""
    node: str | None
    level: str | None
    """In the words of the kernel: emerg, alert, crit, err, warning, notice, info, debug."""
    origin: str | None
    """`Origin.KERNEL` or `Origin.PROGRAM`; None if the line does not tell."""
    rank: int | None


_NOTHING = Said(None, None, None, None, None)
KERNEL_LEVELS = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
LEVELS = {
    "trace": "debug", "debug": "debug", "debug2": "debug", "debug3": "debug", "debug4": "debug", "debug5": "debug",
    "verbose": "debug", "version": "info", "info": "info", "notice": "notice", "warn": "warning", "warning": "warning",
    "err": "err", "error": "err", "severe": "err", "crit": "crit", "critical": "crit", "fatal": "crit",
    "alert": "alert", "emerg": "emerg", "panic": "emerg", "failure": "err",
    "i": "info", "w": "warning", "e": "err", "f": "crit", "d": "debug", "success": "info", "failed": "err",
}  # fmt: skip
_KERNEL_TAGS = frozenset(
    {
        "kernel", "nv-fabricmanager", "nvidia-fabricmanager", "fabricmanager", "nv-hostengine", "mcelog", "rasdaemon",
        "smartd", "ipmievd", "ipmiseld", "bmc", "sel", "nvidia-persistenced", "nvlsm", "dmesg",
    }
)  # fmt: skip
_FACILITIES = frozenset(
    {
        "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp",
        *(f"local{number}" for number in range(8)),
    }
)  # fmt: skip
_MONTHS = {
    "jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6,
    "jul": 7, "aug": 8, "sep": 9, "oct": 10, "nov": 11, "dec": 12,
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400_000_000
_MAX_STEPS = 8
_MAX_STAMPS = 4096
_LEVEL_WORDS = "TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|SEVERE|CRITICAL|FATAL|SUCCESS"

_ISO = re.compile(
    r"\[?(\d{4})[-/](\d\d)[-/](\d\d)[T_ ](\d\d):(\d\d):(\d\d)(?:[.,:](\d{1,9}))?(?: ?(Z|UTC|[+-]\d\d:?\d\d)(?![\w:]))?"
    r"(?:\]|(?=[\s|,;:\]\"'-]|$))[:,;]?\s{0,8}"
)
_PLAIN_SYSLOG = re.compile(
    r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) ([A-Za-z0-9][^\s\[\]|:]{0,254}) "
    r"([^\s:\[\]|]{1,128})(?:\[[^\]\s]{1,20}\])?: ?"
)
_KMSG = re.compile(r"(\d{1,4}),\d{1,20},(\d{1,18}),[^;\s]{1,64};")
_TASK = re.compile(r"(\d{1,7}): (?=\S)")
_CLOCK = re.compile(r"\[ {0,10}(\d{1,10})\.(\d{3,9})\]\s?")
_CALLER = re.compile(r"\[ {0,8}[TC]\d{1,10}\]\s?")
_DMESG_DATE = re.compile(
    r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))? (\d{4})\]\s?"
)
_FABRIC = re.compile(
    r"\[([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d{4}) (\d\d):(\d\d):(\d\d)(?:\.\d{1,9})?\] ?"
    r"(?:\[([A-Z]{2,12})\] ?)?(?:\[tid \d{1,10}\] ?)?"
)
_BRACKET_LEVEL = re.compile(rf"\[ ?({_LEVEL_WORDS}) {{0,4}}(?:\|[^\]]{{0,200}})?\]:?\s?", re.IGNORECASE)
_BRACKET_RANK = re.compile(
    r"\[(?:rank ?|Rank |RANK )(\d{1,7})\][:,]?\s?|\[PG [^\]]{0,80}?Rank (\d{1,7})\]\s?"
    r"|\[\d{1,9},(\d{1,7})\]<std(?:out|err)>:\s?"
)
_LOGGER = re.compile(rf"[A-Za-z_][\w.]{{0,120}}: (?=\[(?:{_LEVEL_WORDS})\])")
_BRACKET_SKIP = re.compile(
    r"\[default\d{1,4}\]:\s?|\[[\w.<>/-]{1,80}:\d{1,6}(?::[^\]\s]{0,80})?\]\s?"
    r"|\[PID:? ?\d{1,9}\]\s?|\[\d{1,10}\.(?:batch|extern|interactive|\d{1,6})\]\s?|\[c10d\]\s?"
)
_C10D = re.compile(r"\[([EWIFD])(?:(\d{1,2}?)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?)? [\w./-]{1,80}:\d{1,6}\]\s?")
_GLOG = re.compile(r"([IWEFD])(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))? {1,8}(?:\d{1,10} )?\S{1,120}?\]\s?")
_CLASSIC = re.compile(
    r"(?:[A-Z][a-z]{2} (?=[A-Z][a-z]{2} ))?([^\W\d_]{3,12})\.? {1,2}(\d{1,2}) (?:(\d{4}) )?"
    r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?: (\d{4}))?(?=[\s:]):?\s?"
)
_DECODED = re.compile(r"([a-z0-9]{3,8}) {0,6}:([a-z]{3,7}) {0,6}: ?")
_PRIORITY = re.compile(r"<(\d{1,3})>(1 )?\s?")
_HOST_TAG = re.compile(r"([A-Za-z0-9@_][^\s\[\]|:]{0,254}) ([^\s:\[\]|]{1,128})(?:\[([^\]\s]{1,20})\])?:\s?")
_RFC5424 = re.compile(
    r"([^\s-]\S{0,254}|-) (\S{1,128}) (\S{1,128}) (\S{1,64}) (?:-|(?:\[(?:[^\]\\]|\\.){0,2000}\])+)\s?"
)
_TAG = re.compile(
    r"([A-Za-z][\w./()@-]{0,63}?)(?:\[\d{1,10}(?::\d{1,10})?\]):\s?|(kernel|nv-fabricmanager|nvidia-fabricmanager):\s?"
)
_SLURM = re.compile(
    r"(?:slurmstepd|slurmd|slurmctld|slurmdbd|slurmrestd|srun|salloc|sbatch|sackd)(?:-([A-Za-z0-9][\w.-]{0,127}))?:\s"
)
_LEVEL = re.compile(
    rf"\s{{0,4}}(?:[|-] ?)?(?:\d{{1,9}} (?={_LEVEL_WORDS}))?({_LEVEL_WORDS})\b(?:[:|,-]|\s|$)[\s|]{{0,4}}"
    r"|(error|fatal|debug\d?|verbose|info|warning|err|crit)(?::\s|\[\d)",
    re.IGNORECASE,
)
_PY_NAME_LEVEL = re.compile(rf"- [\w.<>/-]{{1,120}} - ({_LEVEL_WORDS}) - ")
_NCCL = re.compile(
    r"([A-Za-z0-9][\w.-]{0,127}):\w{1,12}(?::\w{1,12})? \[\d{1,4}\] .{0,120}?\bNCCL (INFO|WARN|ERROR|TRACE|VERSION)\b"
)
_NCCL_RANK = re.compile(r"\brank (\d{1,7}) nranks\b")
_CRI = re.compile(r"(?:stdout|stderr) [FP] ")
_SUPERCOMPUTER = re.compile(r"(\S{1,20}) (\d{9,10}) \d{4}\.\d\d\.\d\d (\S{1,128}) ")
_HPC = re.compile(r"\d{1,12} (\S{1,128}) \S{1,128} \S{1,128} (\d{9,10}) \d ")
_SEL = re.compile(
    r"\s{0,8}[0-9a-fA-F]{1,5} \| +(\d\d)/(\d\d)/(\d{2,4}) \| +(\d\d):(\d\d):(\d\d)(?: ([AP]M))?(?: [A-Z]{2,5})? \| "
)
_SPARK = re.compile(rf"(\d\d)/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d) (?={_LEVEL_WORDS})")
_EPOCH_START = re.compile(r"(1\d{9})(?:\.(\d{1,9}))? (?=\S)")
_FILE_NAME = re.compile(r"[\w.-]{1,80}\.log\S{0,80} (?=\d{4}-\d\d-\d\d )")
_LOGFMT = re.compile(r"""(?:time|ts|timestamp)=["']?(?=\d{4}-)""")
_LOGFMT_LEVEL = re.compile(r"""\b(?:level|lvl|severity)=["']?(\w{1,10})""")
_HADOOP_BLANKS = re.compile(r"[\s\x00]{1,64}")
_RTC = re.compile(r"setting system clock to \d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d UTC \((\d{9,11})\)")


class PrefixReader:
    """Reads the lines of one source in their order; what one line reports (when the node booted) serves the next."""

    def __init__(self, *, at: datetime) -> None:
        self._at_microseconds = to_microseconds(at)
        self._newest_possible_year = (at.astimezone(UTC) + timedelta(days=1)).year
        self._stamps: dict[str, int] = {}
        self._newest_years: dict[tuple[int, int], int] = {}
        self._boot_microseconds: int | None = None

    def read(self, text: str) -> Said:
        """Return what `text` says; never raises."""
        match = _PLAIN_SYSLOG.match(text)
        if match is not None:
            said = self._plain_syslog(text, match)
            if said is not None:
                return said
        return self._step_by_step(text)

    def _plain_syslog(self, text: str, match: re.Match[str]) -> Said | None:
        """Read `Nov 21 07:25:29 gpu003 kernel: `, the commonest prefix, at once; None if it is not quite that."""
        stamp = match[1]
        time = self._stamps.get(stamp)
        if time is None:
            month = _MONTHS.get(stamp[:3].lower())
            if month is None:
                return None
            classic = _CLASSIC.match(text)
            time = None if classic is None else self._without_year(month, int(stamp[4:6]), classic, 4, fraction=None)
            if time is None:
                return None
            if len(self._stamps) >= _MAX_STAMPS:
                self._stamps.clear()
            self._stamps[stamp] = time
        if match[2].lower() in LEVELS:
            return None
        end = match.end()
        if text.startswith("[", end) and _CLOCK.match(text, end) is not None:
            return Said(time, match[2], None, origin_of_tag(match[3]), None)
        level = _LEVEL.match(text, end)
        if level is None and text.startswith(("[", "<"), end):
            return None
        word = None if level is None else LEVELS.get((level[1] or level[2]).lower())
        return Said(time, match[2], word, origin_of_tag(match[3]), None)

    def _step_by_step(self, text: str) -> Said:
        time: int | None = None
        clock: int | None = None
        node: str | None = None
        level: str | None = None
        origin: str | None = None
        rank: int | None = None
        position = 0
        for _ in range(_MAX_STEPS):
            first = text[position : position + 1]
            match: re.Match[str] | None = None
            if first.isdigit():
                match = _ISO.match(text, position)
                if match is not None:
                    if time is None:
                        time = self._iso(match)
                    position = match.end()
                    cri = _CRI.match(text, position)
                    if cri is not None:
                        position = cri.end()
                        continue
                    start = position
                    node, level, origin, position = self._host(text, position, node, level, origin)
                    if level is not None and position == start:
                        break  # a level word follows, and behind it the message
                    continue
                match = _KMSG.match(text, position)
                if match is not None:
                    level, clock, position = KERNEL_LEVELS[int(match[1]) & 7], int(match[2]), match.end()
                    origin = Origin.KERNEL if origin is None else origin
                    break
                match = _TASK.match(text, position)
                if match is not None:
                    rank = int(match[1]) if rank is None else rank
                    position = match.end()
                    continue
                match = _HPC.match(text, position)
                if match is not None:
                    node, time, origin = node or match[1], int(match[2]) * 1_000_000, origin or Origin.PROGRAM
                    break
                match = _SPARK.match(text, position)
                if match is not None:
                    time = self._time(2000 + int(match[1]), int(match[2]), int(match[3]), match, 4)
                    position = match.end()
                    continue
                match = _EPOCH_START.match(text, position)
                if match is not None and time is None:
                    time = int(match[1]) * 1_000_000 + _fraction(match[2])
                    position = match.end()
                    continue
                if " | " in text:
                    time, origin = self._sel(text, position, time, origin)
            elif first == "[":
                match = _CLOCK.match(text, position)
                if match is not None:
                    clock = int(match[1]) * 1_000_000 + _fraction(match[2])
                    origin = Origin.KERNEL if origin is None else origin
                    caller = _CALLER.match(text, match.end())
                    position = match.end() if caller is None else caller.end()
                    break
                match = _ISO.match(text, position)
                if match is not None:
                    time = self._iso(match) if time is None else time
                    position = match.end()
                    continue
                match = _DMESG_DATE.match(text, position)
                if match is not None:
                    month = _MONTHS.get(match[1].lower())
                    if month is not None and time is None:
                        time = self._time(int(match[7]), month, int(match[2]), match, 3, fraction=match[6])
                    origin = Origin.KERNEL if origin is None else origin
                    break
                match = _BRACKET_LEVEL.match(text, position)
                if match is not None:
                    level = LEVELS.get(match[1].lower(), level)
                    position = match.end()
                    continue
                match = _BRACKET_RANK.match(text, position)
                if match is not None:
                    rank = int(match[1] or match[2] or match[3])
                    origin, position = origin or Origin.PROGRAM, match.end()
                    continue
                match = _C10D.match(text, position)
                if match is not None:
                    level, origin, position = LEVELS[match[1].lower()], origin or Origin.PROGRAM, match.end()
                    if match[2] and time is None:
                        time = self._without_year(int(match[2]), int(match[3]), match, 4, fraction=match[7])
                    continue
                match = _FABRIC.match(text, position)
                if match is not None:
                    month = _MONTHS.get(match[1].lower())
                    if month is not None and time is None:
                        time = self._time(int(match[3]), month, int(match[2]), match, 4)
                    level = LEVELS.get((match[7] or "").lower(), level)
                    origin = Origin.KERNEL if origin is None else origin
                    break
                match = _BRACKET_SKIP.match(text, position)
                if match is not None:
                    origin, position = origin or Origin.PROGRAM, match.end()
                    continue
            elif first == "<":
                match = _PRIORITY.match(text, position)
                if match is not None and int(match[1]) < 192:
                    level = KERNEL_LEVELS[int(match[1]) & 7]
                    position = match.end()
                    if match[2]:
                        time, node, origin, position = self._rfc5424(text, position, time, node, origin)
                    continue
            elif first.isalpha():
                step = self._word(text, position, time, node, level, origin)
                if step is not None:
                    time, node, level, origin, position = step
                    continue
                if "NCCL " in text:
                    match = _NCCL.match(text, position)
                    if match is not None:
                        node, level, origin = node or match[1], LEVELS[match[2].lower()], origin or Origin.PROGRAM
                        ranked = _NCCL_RANK.search(text, match.end())
                        rank = int(ranked[1]) if ranked is not None and rank is None else rank
            elif first == "-":
                match = _SUPERCOMPUTER.match(text, position)
                if match is not None:
                    time, node, position = int(match[2]) * 1_000_000, match[3], match.end()
                    continue
                match = _PY_NAME_LEVEL.match(text, position)
                if match is not None:
                    level, origin = LEVELS[match[1].lower()], origin or Origin.PROGRAM
            elif first in " \t\x00":
                match = _HADOOP_BLANKS.match(text, position)
                if match is not None:
                    if "|" in text and time is None:
                        time, origin = self._sel(text, position, time, origin)
                        if time is not None:
                            break
                    position = match.end()
                    continue
            break
        if level is None:
            match = _LEVEL.match(text, position)
            if match is not None:
                level = LEVELS.get((match[1] or match[2]).lower())
        if clock is not None:
            time = self._relative(text, clock, time)
        return Said(time, node, level, origin, rank)

    def _word(
        self, text: str, position: int, time: int | None, node: str | None, level: str | None, origin: str | None
    ) -> tuple[int | None, str | None, str | None, str | None, int] | None:
        """Read one step that begins with a letter; None if there is none."""
        match = _CLASSIC.match(text, position)
        if match is not None:
            month = _MONTHS.get(match[1][:3].lower())
            if month is not None:
                year = match[3] or match[8]
                if time is None and year:
                    time = self._time(int(year), month, int(match[2]), match, 4, fraction=match[7])
                elif time is None:
                    time = self._without_year(month, int(match[2]), match, 4, fraction=match[7])
                node, level, origin, end = self._host(text, match.end(), node, level, origin)
                return time, node, level, origin, end
        match = _GLOG.match(text, position) if text[position] in "IWEFD" else None
        if match is not None:
            if time is None:
                time = self._without_year(int(match[2]), int(match[3]), match, 4, fraction=match[7])
            return time, node, LEVELS[match[1].lower()], origin or Origin.PROGRAM, match.end()
        match = _DECODED.match(text, position)
        if match is not None and match[1] in _FACILITIES and match[2] in LEVELS:
            if match[1] == "kern" and origin is None:
                origin = Origin.KERNEL
            return time, node, LEVELS[match[2]], origin, match.end()
        match = _SLURM.match(text, position)
        if match is not None:
            return time, node or match[1], level, origin or Origin.PROGRAM, match.end()
        match = _TAG.match(text, position)
        if match is not None:
            return time, node, level, origin or origin_of_tag(match[1] or match[2]), match.end()
        match = _LOGGER.match(text, position)
        if match is not None:
            return time, node, level, origin or Origin.PROGRAM, match.end()
        match = _FILE_NAME.match(text, position) or _LOGFMT.match(text, position)
        if match is not None:
            if level is None and "=" in match[0]:
                found = _LOGFMT_LEVEL.search(text, match.end())
                level = None if found is None else LEVELS.get(found[1].lower())
            return time, node, level, origin or Origin.PROGRAM, match.end()
        match = _SUPERCOMPUTER.match(text, position)
        if match is not None and time is None:
            return int(match[2]) * 1_000_000, match[3], level, origin, match.end()
        return None

    def _host(
        self, text: str, position: int, node: str | None, level: str | None, origin: str | None
    ) -> tuple[str | None, str | None, str | None, int]:
        """Read `host tag[pid]:` behind a time."""
        found_level = _LEVEL.match(text, position)
        if found_level is not None:
            return (
                node,
                LEVELS.get((found_level[1] or found_level[2]).lower(), level),
                origin or Origin.PROGRAM,
                position,
            )
        match = _HOST_TAG.match(text, position)
        if match is not None and not match[1].isdigit():
            is_host = match[1].lower() not in LEVELS
            tag = match[2]
            return (node or match[1]) if is_host else node, level, origin or origin_of_tag(tag), match.end()
        match = _RFC5424.match(text, position)
        if match is not None and match[1] != "-" and " - " in match[0]:
            return node or match[1], level, origin or origin_of_tag(match[2]), match.end()
        return node, level, origin, position

    def _rfc5424(
        self, text: str, position: int, time: int | None, node: str | None, origin: str | None
    ) -> tuple[int | None, str | None, str | None, int]:
        match = _ISO.match(text, position)
        if match is not None:
            time, position = self._iso(match) if time is None else time, match.end()
        elif text.startswith("- ", position):
            position += 2
        match = _RFC5424.match(text, position)
        if match is None:
            return time, node, origin, position
        host = None if match[1] == "-" else match[1]
        return time, node or host, origin or origin_of_tag(match[2]), match.end()

    def _sel(self, text: str, position: int, time: int | None, origin: str | None) -> tuple[int | None, str | None]:
        """Read a line of a BMC's event log, as `ipmitool sel list` prints it."""
        match = _SEL.match(text, position)
        if match is None:
            return time, origin
        year = int(match[3]) + (2000 if len(match[3]) == 2 else 0)
        found = self._time(year, int(match[1]), int(match[2]), match, 4)
        if found is not None and match[7]:
            hour = int(match[4])
            found += ((hour % 12 + (12 if match[7] == "PM" else 0)) - hour) * 3_600_000_000
        return found, Origin.KERNEL

    def _relative(self, text: str, clock: int, time: int | None) -> int | None:
        """Return the time of a line that gives microseconds since boot; known once the kernel has set its clock."""
        if self._boot_microseconds is None or "setting system clock" in text:
            match = _RTC.search(text)
            if match is not None:
                self._boot_microseconds = int(match[1]) * 1_000_000 - clock
        if time is not None or self._boot_microseconds is None:
            return time
        return self._boot_microseconds + clock

    def _iso(self, match: re.Match[str]) -> int | None:
        zone = match[8]
        offset = 0
        if zone and zone not in ("Z", "UTC"):
            digits = zone[1:].replace(":", "")
            minutes = int(digits[:2]) * 60 + int(digits[2:])
            offset = (minutes if zone[0] == "+" else -minutes) * 60_000_000
        time = self._time(int(match[1]), int(match[2]), int(match[3]), match, 4, fraction=match[7])
        return None if time is None else time - offset

    def _without_year(
        self, month: int, day: int, match: re.Match[str], first: int, *, fraction: str | None
    ) -> int | None:
        """Return the time in the newest year that puts it at most a day after `at`."""
        year = self._newest_years.get((month, day))
        if year is None:
            year = self._newest_year(month, day)
            self._newest_years[month, day] = year
        return self._time(year, month, day, match, first, fraction=fraction)

    def _newest_year(self, month: int, day: int) -> int:
        # Eight years hold a 29 February, also around 1900 and 2100.
        for year in range(self._newest_possible_year, self._newest_possible_year - 9, -1):
            start = _day(year, month, day)
            if start is not None and start <= self._at_microseconds + _DAY:
                return year
        return self._newest_possible_year

    def _time(
        self, year: int, month: int, day: int, match: re.Match[str], first: int, *, fraction: str | None = None
    ) -> int | None:
        """Return day and clock as microseconds; hour, minute and second are the groups from `first` on."""
        start = _day(year, month, day)
        if start is None:
            return None
        hour, minute, second = match.group(first, first + 1, first + 2)
        seconds = (int(hour) * 60 + int(minute)) * 60 + int(second)
        if hour > "23" or minute > "59" or second > "60":
            return None
        return start + seconds * 1_000_000 + (_fraction(fraction) if fraction else 0)


def to_microseconds(time: datetime) -> int:
    """Return microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)


@lru_cache(maxsize=4096)
def _day(year: int, month: int, day: int) -> int | None:
    """Return when a day begins; None if the calendar has no such day."""
    try:
        return to_microseconds(datetime(year, month, day, tzinfo=UTC))
    except ValueError:
        return None


def _fraction(digits: str | None) -> int:
    return int(digits[:6].ljust(6, "0")) if digits else 0


def origin_of_tag(tag: str) -> str:
    return Origin.KERNEL if tag.lower() in _KERNEL_TAGS else Origin.PROGRAM
