"""What sources may say instead of the truth: metrics, log lines and scheduler answers, each bent in one known way.

Bends values only. When a lie is reported, and to whom, is `stage`'s business.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.node_tests import NodeCheck, TestResult
from ops_pipelines.core.observation import JobState, JobStatus, NodeState, NodeStatus
from ops_pipelines.core.sources import LogBatch, LogLine, Sample

STRANGER = NodeName("gpu999")
"""A node that neither the operator nor the scheduler knows."""


class TelemetryLie(Enum):
    """How the metrics are bent."""

    SILENT = "silent"
    NONSENSE = "nonsense"
    EMPTY = "empty"
    OLD = "old"
    """Every sample an hour old: the scraper died, the store continues answering."""
    AHEAD = "ahead"
    NOT_A_NUMBER = "not_a_number"
    NEGATIVE = "negative"
    HUGE = "huge"
    DUPLICATED = "duplicated"
    """Every series twice, the second with the values of another GPU."""
    STRANGERS = "strangers"
    VANISHED = "vanished"
    """No series of one node."""
    HALF = "half"
    """One GPU of one node is missing."""
    FALSE_ALARM = "false_alarm"
    """One healthy GPU shows uncorrectable errors and a driver that asks for a reboot."""


NO_ANSWER = frozenset({TelemetryLie.SILENT, TelemetryLie.NONSENSE})
_AGE = {TelemetryLie.OLD: timedelta(hours=1), TelemetryLie.AHEAD: timedelta(minutes=-30)}
_VALUE = {TelemetryLie.NOT_A_NUMBER: float("nan"), TelemetryLie.NEGATIVE: -7.0, TelemetryLie.HUGE: 1e19}


def bend_samples(samples: tuple[Sample, ...], lie: TelemetryLie, *, node: NodeName) -> tuple[Sample, ...]:
    """Return what a source that answers says instead of `samples`; `node` is the one that it lies about."""
    if lie in _AGE:
        return tuple(replace(each, sampled_at=each.sampled_at - _AGE[lie]) for each in samples)
    if lie in _VALUE:
        return tuple(replace(each, value=_VALUE[lie]) for each in samples)
    match lie:
        case TelemetryLie.EMPTY:
            return ()
        case TelemetryLie.DUPLICATED:
            return samples + tuple(
                replace(each, value=other.value) for each, other in zip(samples, reversed(samples), strict=True)
            )
        case TelemetryLie.STRANGERS:
            return samples + tuple(replace(each, labels={**each.labels, "Hostname": STRANGER}) for each in samples)
        case TelemetryLie.VANISHED:
            return tuple(each for each in samples if each.labels["Hostname"] != node)
        case TelemetryLie.HALF:
            return tuple(each for each in samples if each.labels["Hostname"] != node or each.labels["gpu"] != "0")
        case TelemetryLie.FALSE_ALARM:
            return tuple(_alarmed(each) if _is_first_gpu(each, node) else each for each in samples)
    return samples


def _is_first_gpu(sample: Sample, node: NodeName) -> bool:
    return sample.labels["Hostname"] == node and sample.labels["gpu"] == "0"


def _alarmed(sample: Sample) -> Sample:
    alarms = {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 3.0, "DCGM_FI_DEV_GPU_RECOVERY_ACTION": 2.0}
    return replace(sample, value=alarms.get(sample.metric, sample.value))


class SchedulerLie(Enum):
    """How the scheduler's answers are bent. None of them can be distinguished from the truth by looking at one
    answer."""

    YESTERDAY = "yesterday"
    """Nodes and jobs as they were when the lie began."""
    ALL_IDLE = "all_idle"
    """Nodes that run jobs read idle."""
    NO_JOBS = "no_jobs"
    """Other people's jobs are hidden from us."""
    STRANGE_STATE = "strange_state"
    """Jobs are in a state that this program has no word for."""
    STRANGER = "stranger"
    """A node that does not exist, silent."""
    DRAINED = "drained"
    """One node reads as drained by somebody."""


def bend_nodes(
    nodes: tuple[NodeStatus, ...], lie: SchedulerLie, *, yesterday: tuple[NodeStatus, ...], node: NodeName
) -> tuple[NodeStatus, ...]:
    match lie:
        case SchedulerLie.YESTERDAY:
            return yesterday
        case SchedulerLie.ALL_IDLE:
            return tuple(replace(each, state=NodeState.IDLE, gpu_in_use_count=0) for each in nodes)
        case SchedulerLie.STRANGER:
            return (*nodes, replace(nodes[0], node=STRANGER, is_responding=False))
        case SchedulerLie.DRAINED:
            return tuple(
                replace(each, is_drained=True, reason="cable swap") if each.node == node else each for each in nodes
            )
    return nodes


def bend_jobs(
    jobs: tuple[JobStatus, ...], lie: SchedulerLie, *, yesterday: tuple[JobStatus, ...]
) -> tuple[JobStatus, ...]:
    match lie:
        case SchedulerLie.YESTERDAY:
            return yesterday
        case SchedulerLie.NO_JOBS:
            return ()
        case SchedulerLie.STRANGE_STATE:
            return tuple(replace(each, state=JobState.UNKNOWN) for each in jobs)
    return jobs


class CheckLie(Enum):
    """How what a node's own tests found is bent."""

    PASSED = "passed"
    """Whatever is wrong with the node."""
    FAILED = "failed"
    LOST = "lost"
    """There is never a result."""
    NOT_RUN = "not_run"


_BENT_RESULTS = {
    CheckLie.PASSED: TestResult.PASSED,
    CheckLie.FAILED: TestResult.FAILED,
    CheckLie.NOT_RUN: TestResult.NOT_RUN,
}


def bend_check(found: NodeCheck | None, lie: CheckLie | None) -> NodeCheck | None:
    if found is None or lie is None:
        return found
    if lie is CheckLie.LOST:
        return None
    return replace(found, tests=tuple(replace(each, result=_BENT_RESULTS[lie], said=lie.value) for each in found.tests))


class Rumour(Enum):
    """A log line that no kernel of ours wrote now."""

    FORGED_FALL = "forged_fall"
    FORGED_WISH = "forged_wish"
    TRUNCATED = "truncated"
    CONTROL_CHARACTERS = "control_characters"
    STRANGER = "stranger"
    NAMELESS = "nameless"
    SHELL = "shell"
    LATE = "late"
    EARLY = "early"
    REPEATED = "repeated"
    """The newest true line once more, at another position."""
    UNKNOWN_CODE = "unknown_code"


_FALL = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
_WISH = "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
_TEXTS: Mapping[Rumour, str] = {
    Rumour.FORGED_WISH: _WISH,
    Rumour.TRUNCATED: _FALL[:24],
    Rumour.CONTROL_CHARACTERS: "\x1b[2J\x00" + _FALL + "\r\n\u2028" + _FALL,
    Rumour.SHELL: "python3[77]: $(reboot) " + _FALL,
    Rumour.UNKNOWN_CODE: _FALL.replace(" 79,", " 9999,"),
}
_LATENESS = {Rumour.LATE: timedelta(hours=6), Rumour.EARLY: timedelta(hours=-6)}
_WRITERS: Mapping[Rumour, str | None] = {Rumour.STRANGER: "gpu001; reboot", Rumour.NAMELESS: None}


class Rumours:
    """A log source that holds whatever was planted: the port `Logs`, kept over restarts of the program."""

    source = "rumours"

    def __init__(self) -> None:
        self._lines: list[LogLine] = []

    def plant(self, rumour: Rumour, *, node: NodeName, now: datetime, newest: LogLine | None) -> None:
        line = LogLine(
            node=_WRITERS.get(rumour, node),
            written_at=now - _LATENESS.get(rumour, timedelta(0)),
            position=f"rumour:{len(self._lines)}",
            text="kernel: [  130.456250] " + _TEXTS.get(rumour, _FALL),
        )
        if rumour is Rumour.REPEATED and newest is not None:
            line = replace(newest, position=line.position)
        self._lines.append(line)

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        first = int(cursor or 0)
        lines = tuple(self._lines[first : first + max_lines])
        return LogBatch(lines=lines, cursor=str(first + len(lines)))
