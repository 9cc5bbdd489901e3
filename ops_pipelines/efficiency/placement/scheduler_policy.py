"""What a scheduler's settings mean for who waits how long. Which values are unwanted is catalogue/scheduler_policy.csv.

Pure: settings and rows in, findings out. A row whose condition does not hold, or whose setting nobody reported, says
nothing: `unknown` names the latter. Reading settings is `core.scheduler`, reading rows `efficiency.placement`.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from fnmatch import fnmatchcase

from ops_pipelines.core.scheduler import SettingsRead, Values, seconds_of

_NOTHING = frozenset({"", "(null)", "none", "n/a", "unset"})


class Scope(Enum):
    """Of what a setting is one."""

    CLUSTER = "cluster"
    PARAMETER = "parameter"
    """One word of SchedulerParameters."""
    PARTITION = "partition"
    QOS = "qos"


class Unwanted(Enum):
    """When a value is unwanted."""

    IS = "is"
    """It is one of the words of `value`, apart from what follows a comma or colon in it."""
    ALL_ZERO = "all_zero"
    """Every setting that the pattern names is 0."""
    MISSING = "missing"
    """It says nothing."""
    LACKS = "lacks"
    """None of its words begins with `value`."""
    BELOW = "below"
    """It is a number below that fact (`SchedulerSettings.facts`), or `value` itself where that is a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """One row of the catalogue."""

    name: str
    scope: Scope
    setting: str
    unwanted: Unwanted
    value: str
    default: str
    """What holds where the setting is not shown."""
    when: tuple[str, ...]
    """Conditions, all of which must hold: `has_gpus`, `preempts`, `PriorityType=priority/multifactor`, ..."""
    why: str
    set_to: str
    source: str
    checked_on: date


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFinding:
    """One setting with an unwanted value."""

    rule: str
    where: str
    """Empty for the whole cluster, else `partition batch` or `qos normal`."""
    setting: str
    found: str
    why: str
    set_to: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFindings:
    """What the check says of all rows."""

    findings: tuple[PolicyFinding, ...]
    unknown: tuple[str, ...]
    """Rules of which it could not be reported, with what was missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What is known beside the settings; None: not known."""

    queue_length: int | None = None
    """The most jobs that waited at once."""
    leaf_count: int | None = None
    saves_checkpoints: bool | None = None
    """Whether any job is known to save checkpoints."""


def find_policy_faults(
    rows: Iterable[PolicyRow], settings: SettingsRead, *, facts: ClusterFacts | None = None
) -> PolicyFindings:
    """Return which settings have unwanted values, in the order of the rows."""
    judge = _Judge(settings, facts or ClusterFacts())
    findings: list[PolicyFinding] = []
    for row in rows:
        findings += judge.judge(row)
    return PolicyFindings(findings=tuple(findings), unknown=tuple(dict.fromkeys(judge.unknown)))


class _Judge:
    """Judges rows against one reading."""

    def __init__(self, settings: SettingsRead, facts: ClusterFacts) -> None:
        self._settings = settings
        self._facts = facts
        self.unknown: list[str] = []
        text = settings.cluster.get("SchedulerParameters", "")
        words = (word.partition("=") for word in text.split(","))
        self._parameters = {name.strip(): value.strip() for name, _, value in words if name.strip() not in _NOTHING}

    def judge(self, row: PolicyRow) -> Iterator[PolicyFinding]:
        for where, values in self._places(row):
            if not all(self._holds(condition, values) for condition in row.when):
                continue
            named = self._named(row, values)
            if named is None:
                self.unknown.append(f"{row.setting}: the scheduler did not show it")
                continue
            try:
                found = self._unwanted(row, named)
            except _Untold as exc:
                self.unknown.append(f"{row.setting}: {exc}")
                continue
            if found is not None:
                yield PolicyFinding(
                    rule=row.name,
                    where=where,
                    setting=row.setting,
                    found=found,
                    why=row.why,
                    set_to=row.set_to,
                    source=row.source,
                )

    def _places(self, row: PolicyRow) -> Iterator[tuple[str, Values]]:
        if row.scope is Scope.CLUSTER:
            yield "", self._settings.cluster
        elif row.scope is Scope.PARAMETER:
            yield "", self._parameters
        else:
            listed = self._settings.partitions if row.scope is Scope.PARTITION else self._settings.qos
            for name, values in sorted(listed.items()):
                yield f"{row.scope.value} {name}", values

    @staticmethod
    def _named(row: PolicyRow, values: Values) -> Values | None:
        """Return the settings that the row names; None where none is shown and no default is known."""
        found = {name: value for name, value in values.items() if fnmatchcase(name, row.setting)}
        if not found and row.default:
            return {row.setting: row.default}
        if not found and row.unwanted in (Unwanted.MISSING, Unwanted.LACKS) and values:
            return {row.setting: ""}
        return found or None

    def _unwanted(self, row: PolicyRow, named: Values) -> str | None:
        """Return the unwanted value as it was found; None where it is fine."""
        if row.unwanted is Unwanted.ALL_ZERO:
            set_apart = {name: value for name, value in named.items() if value.lower() not in _NOTHING}
            zero = all(value in ("0", "0.0") for value in set_apart.values())
            return f"all {len(named)} are 0" if zero else None
        (value,) = list(named.values())[:1]
        if row.unwanted is Unwanted.IS:
            words = {value.lower(), *(part.strip().lower() for part in re.split("[,:]", value))}
            wanted = {word.lower() for word in row.value.split("|")}
            return (value or "(nothing)") if words & wanted else None
        if row.unwanted is Unwanted.MISSING:
            return "(nothing)" if value.lower() in _NOTHING else None
        if row.unwanted is Unwanted.LACKS:
            has = any(word.strip().lower().startswith(row.value.lower()) for word in value.split(","))
            return None if has else (value or "(nothing)")
        least, number = self._fact(row.value), _number(row, value)
        return f"{value}, below {_shown(row, least)}" if number < least else None

    def _fact(self, name: str) -> float:
        if name == "longest_time_limit":
            limits = [self._limit(partition) for partition in self._settings.partitions.values()]
            known = [limit for limit in limits if limit is not None]
            if not known:
                raise _Untold("no partition has a time limit")
            return max(known)
        if name == "queue_length":
            if self._facts.queue_length is None:
                raise _Untold("how many jobs wait is not known")
            return float(self._facts.queue_length)
        return float(name)

    @staticmethod
    def _limit(partition: Values) -> float | None:
        try:
            return seconds_of(partition.get("MaxTime", "unlimited"))
        except ValueError:
            return None

    def _holds(self, condition: str, values: Values) -> bool:
        """Return whether a condition of a row holds here; raise ValueError on one that nobody knows."""
        cluster = self._settings.cluster
        if condition == "has_gpus":
            return "gres/gpu" in values.get("TRES", "").lower()
        if condition == "preempts":
            return cluster.get("PreemptType", "preempt/none").lower() not in _NOTHING | {"preempt/none"}
        if condition == "saves_checkpoints":
            return self._facts.saves_checkpoints is not False
        if condition == "several_leaves":
            return (self._facts.leaf_count or 0) > 1
        name, is_equal, wanted = condition.partition("=")
        if not is_equal:
            raise ValueError(f"{condition!r} is no condition; expected a known word or NAME=VALUE")
        name, is_not = (name[:-1], True) if name.endswith("!") else (name, False)
        found = values.get(name, cluster.get(name, ""))
        return (found.lower() == wanted.lower()) is not is_not


class _Untold(Exception):
    """What a row is judged by is not known."""


def _number(row: PolicyRow, value: str) -> float:
    if row.value == "longest_time_limit":
        # bf_window is minutes, MaxTime a time.
        limit = seconds_of(value)
        return float("inf") if limit is None else limit
    try:
        return float(value)
    except ValueError:
        pass
    try:
        limit = seconds_of(value)
    except ValueError as exc:
        raise _Untold(str(exc)) from exc
    return float("inf") if limit is None else limit


def _shown(row: PolicyRow, least: float) -> str:
    if row.value == "longest_time_limit":
        return f"{least / 60:.0f} minutes"
    return f"{least:g}"
