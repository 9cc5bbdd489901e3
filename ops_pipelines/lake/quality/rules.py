"""What data checks know of columns beyond the schema, and what columns must say of each other, as data.

Data only; `expectations` makes expectations of it.

A condition over a null is no contradiction. Judging, counting and showing stand elsewhere (`profile`, `expectations`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ops_pipelines.lake.schema import TABLES

# -- what columns must say of each other --


class Severity(Enum):
    ERROR = "error"
    """The partition must not be built upon."""
    WARNING = "warning"
    """People should know; what is downstream goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossRule:
    """One rule of a table. Counted are the rows (or groups) that break it."""

    table: str
    name: str
    broken_if: str
    """SQL over the table's columns; with `per`, over aggregates of the group."""
    meaning: str
    severity: Severity = Severity.WARNING
    per: str = ""
    """Column that groups the rows; empty: each row is judged alone."""
    share_at_most: float = 0.0
    """Share of rows (groups) that may break it before it is told."""


CROSS_RULES = (
    CrossRule(
        table="gpu_telemetry",
        name="memory_used_within_total",
        broken_if="memory_used_bytes > memory_total_bytes * 1.02",
        severity=Severity.ERROR,
        meaning="a GPU uses no more memory than it has (2 % for rounding)",
    ),
    CrossRule(
        table="gpu_telemetry",
        name="memory_parts_within_total",
        broken_if="memory_used_bytes + memory_free_bytes + coalesce(memory_reserved_bytes, 0)"
        " > memory_total_bytes * 1.02",
        meaning="used, free and reserved memory are no more than the whole (2 % for rounding)",
    ),
    CrossRule(
        table="gpu_telemetry",
        name="work_draws_power",
        broken_if="utilisation_ratio > 0.5 AND power_watts <= 0",
        meaning="a GPU at work draws power; none means a broken sensor",
    ),
    CrossRule(
        table="gpu_telemetry",
        name="slice_has_profile",
        broken_if="mig_instance IS NOT NULL AND mig_profile IS NULL",
        meaning="a MIG slice names its profile, without which its share of the GPU is unknown",
    ),
    CrossRule(
        table="gpu_telemetry",
        name="gpu_on_one_node",
        broken_if="count(DISTINCT node) > 1",
        per="gpu_uuid",
        meaning="a GPU is on one node for the hour: two nodes that name one UUID are one node under two names",
    ),
    CrossRule(
        table="node_telemetry",
        name="memory_available_within_total",
        broken_if="memory_available_bytes > memory_total_bytes",
        meaning="no more memory is available than there is",
    ),
    CrossRule(
        table="node_telemetry",
        name="filesystem_available_within_size",
        broken_if="filesystem_available_bytes > filesystem_size_bytes",
        meaning="a file system has no more room than it is large",
    ),
    CrossRule(
        table="fabric_telemetry",
        name="active_link_is_up",
        broken_if="link_state = 4 AND physical_state <> 5",
        meaning="a port that is active has its physical link up",
    ),
    CrossRule(
        table="fabric_telemetry",
        name="active_link_has_rate",
        broken_if="link_state = 4 AND rate_bits_per_second <= 0",
        meaning="a port that is active has a rate",
    ),
    CrossRule(
        table="storage_telemetry",
        name="bytes_need_reads",
        broken_if="read_bytes > 0 AND read_count = 0 OR written_bytes > 0 AND write_count = 0",
        meaning="bytes are read by reads and written by writes",
    ),
    CrossRule(
        table="storage_telemetry",
        name="healthy_without_warning",
        broken_if="healthy = 1 AND critical_warning > 0",
        meaning="a device that passes SMART has no critical warning",
    ),
    CrossRule(
        table="facility_telemetry",
        name="power_within_capacity",
        broken_if="power_watts > power_capacity_watts * 1.5",
        meaning="a supply gives no more than half again its rated power",
    ),
    CrossRule(
        table="facility_telemetry",
        name="it_power_within_site_power",
        broken_if="it_power_watts > site_power_watts * 1.02",
        meaning="the IT equipment draws no more than its site (2 % for meters)",
    ),
    CrossRule(
        table="facility_telemetry",
        name="pue_fits_power",
        broken_if="abs(pue_ratio * it_power_watts - site_power_watts) > 0.05 * site_power_watts",
        meaning="PUE is site power over IT power, within 5 %",
    ),
    CrossRule(
        table="application_telemetry",
        name="latencies_ascend",
        broken_if="latency_p50_seconds > latency_p95_seconds OR latency_p95_seconds > latency_p99_seconds"
        " OR latency_p50_seconds > latency_p99_seconds",
        meaning="p50 <= p95 <= p99",
    ),
    CrossRule(
        table="job_accounting",
        name="ended_after_started",
        broken_if="ended_at < started_at",
        severity=Severity.ERROR,
        meaning="an attempt ends after it began; usage that is summed over it would be negative",
    ),
    CrossRule(
        table="job_accounting",
        name="started_after_submitted",
        broken_if="started_at < submitted_at",
        meaning="an attempt begins after it was submitted",
    ),
    CrossRule(
        table="job_accounting",
        name="elapsed_within_times",
        broken_if="elapsed_seconds > date_diff('microsecond', started_at, ended_at) / 1e6 + 2",
        meaning="no attempt ran for longer than from its start to its end (2 s for rounding)",
    ),
    CrossRule(
        table="job_accounting",
        name="elapsed_fills_times",
        broken_if="elapsed_seconds < date_diff('microsecond', started_at, ended_at) / 1e6 - 2",
        share_at_most=0.05,
        meaning="an attempt runs from its start to its end (2 s for rounding); only suspended ones ran for less",
    ),
    CrossRule(
        table="job_accounting",
        name="gpus_fit_nodes",
        broken_if="gpu_count > 16 * node_count",
        meaning="a job has at most 16 GPUs a node",
    ),
    CrossRule(
        table="job_accounting",
        name="completed_has_ended",
        broken_if="state = 'COMPLETED' AND ended_at IS NULL",
        meaning="a job that is COMPLETED has an end",
    ),
    CrossRule(
        table="job_accounting",
        name="going_has_not_ended",
        broken_if="state IN ('RUNNING', 'PENDING', 'SUSPENDED') AND ended_at IS NOT NULL",
        meaning="a job that waits or runs has no end yet",
    ),
    CrossRule(
        table="job_accounting",
        name="completed_exits_with_zero",
        broken_if="state = 'COMPLETED' AND exit_code <> 0",
        meaning="a job that is COMPLETED has exit status 0",
    ),
    CrossRule(
        table="job_accounting",
        name="canceller_of_cancelled",
        broken_if="cancelled_by IS NOT NULL AND NOT starts_with(state, 'CANCELLED')",
        meaning="only a cancelled job names who cancelled it",
    ),
    CrossRule(
        table="gpu_demand",
        name="demand_within_ran_and_waited",
        broken_if="gpus_demand_avg > gpus_running_avg + gpus_pending_avg + 1e-6",
        severity=Severity.ERROR,
        meaning="nobody wants more than ran and waited; quotas that follow it would rise out of nothing",
    ),
    CrossRule(
        table="gpu_demand",
        name="what_waits_is_wanted",
        broken_if="gpus_demand_avg < gpus_pending_avg - 1e-6",
        severity=Severity.ERROR,
        meaning="all that waits and counts is demand; only idle GPUs are taken off, and those run",
    ),
    CrossRule(
        table="gpu_demand",
        name="waste_within_ran",
        broken_if="gpus_wasted_avg > gpus_running_avg + 1e-6",
        severity=Severity.ERROR,
        meaning="no more GPUs did nothing than were held",
    ),
    CrossRule(
        table="gpu_demand",
        name="mean_wait_within_most",
        broken_if="gpus_pending_avg > gpus_pending_max + 1e-6",
        severity=Severity.ERROR,
        meaning="the mean of what waits is no more than the most that waits at once",
    ),
    CrossRule(
        table="daily_peaks",
        name="peak_is_a_number",
        broken_if="peak IS NULL OR NOT isfinite(peak) OR peak < 0",
        severity=Severity.ERROR,
        meaning="a day without a peak is no row; a quarter that is forecast from one below 0 would order nothing",
    ),
    CrossRule(
        table="daily_peaks",
        name="mean_within_peak",
        broken_if="mean > peak * (1 + 1e-9) + 1e-9",
        severity=Severity.ERROR,
        meaning="the mean of a day is no more than its highest hour",
    ),
    CrossRule(
        table="daily_peaks",
        name="hours_of_one_day",
        broken_if="hour_count > 25 OR near_peak_hours > hour_count OR censored_hours > hour_count",
        severity=Severity.ERROR,
        meaning="a local day has 25 hours at most, and no more of them are near its peak or at a cap than are known",
    ),
    CrossRule(
        table="inventory",
        name="gpu_on_one_node",
        broken_if="count(DISTINCT node) FILTER (kind = 'gpu') > 1",
        per="uuid",
        meaning="a GPU is built into one node",
    ),
)


def rules_of(table: str) -> tuple[CrossRule, ...]:
    """Return the rules of a table."""
    return tuple(rule for rule in CROSS_RULES if rule.table == table)


# -- what data checks know of columns beyond the schema --


FRESH_WITHIN_SECONDS = 300.0
"""Twenty cycles of 15 s: shorter gaps are a restart of the collector."""
RECORD_BOUNDS: Mapping[str, tuple[float, float]] = {
    "exit_code": (0, 65535),
    "exit_signal": (0, 255),
    "gpu_index": (0, 1023),
    "rank": (0, 10_000_000),
}
"""Columns of no quantity that have bounds of their own; other numbers of records are never negative."""
ANY_NUMBER = {("job_logs", "loss")}
"""A loss may be negative, and NaN is the very news."""
MAY_FALL = {"cpu_iowait_seconds"}
"""Linux itself lets it go down (proc(5): `iowait` is not reliable)."""
FILLED: Mapping[tuple[str, str], tuple[str, float]] = {
    ("gpu_telemetry", "temperature_celsius"): ("mig_instance IS NULL", 0.9),
    ("gpu_telemetry", "power_watts"): ("mig_instance IS NULL", 0.9),
    ("node_telemetry", "memory_available_bytes"): ("device = ''", 0.9),
    ("node_telemetry", "cpu_idle_seconds"): ("device = ''", 0.9),
    ("job_accounting", "state"): ("true", 0.99),
    ("job_accounting", "submitted_at"): ("true", 0.9),
    ("job_logs", "text"): ("true", 1.0),
    ("kernel_events", "text"): ("true", 1.0),
    ("inventory", "kind"): ("true", 1.0),
    ("rejected_rows", "reason"): ("true", 1.0),
}
"""Columns without which a table says little: the rows that should have them, and the share that must."""
_READABLE = r"[^\x00-\x08\x0a-\x1f\x7f]{0,1000}"
_PCI = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(\.[0-7])?"
FORMS: Mapping[str, tuple[str, Severity, str]] = {
    "gpu_uuid": (r"(GPU|MIG)-[0-9A-Za-z/-]{8,}", Severity.WARNING, "UUIDs are the driver's: GPU-... or MIG-..."),
    "pci_address": (_PCI, Severity.WARNING, "PCI addresses are domain:bus:device"),
    "mig_profile": (r"([0-9]+c\.)?[0-9]+g\.[0-9]+gb(\+.*)?", Severity.WARNING, "profiles read like 1g.10gb"),
    "link_layer": ("InfiniBand|Ethernet", Severity.WARNING, "a link is InfiniBand or Ethernet"),
    "state": (r"[A-Z][A-Z_]*", Severity.WARNING, "states are Slurm's words, in capitals"),
    "text": (_READABLE, Severity.ERROR, "texts are at most 1000 characters, none of them a control character but tab"),
    "into": ("|".join(TABLES), Severity.ERROR, "rows are rejected on their way into a table of the lake"),
    "job": (r"(?s).+", Severity.ERROR, "a job has an id"),
    "attempt": (r"(?s).+", Severity.ERROR, "an attempt has a name"),
    "position": (r"(?s).+", Severity.ERROR, "a line stands somewhere in its source"),
    "record": (r"(?s).+", Severity.ERROR, "a record stands somewhere in its source"),
}
FORMS_ELSEWHERE: Mapping[tuple[str, str], tuple[str, Severity, str] | None] = {
    ("inventory", "state"): None,
    ("gpu_telemetry", "job"): None,
    ("application_telemetry", "job"): None,
    ("gpu_efficiency", "job"): None,
    ("job_logs", "job"): None,
    ("rejected_rows", "reason"): ("[a-z][a-z0-9_]*", Severity.ERROR, "reasons are fixed snake_case codes"),
    ("job_logs", "level"): (
        "debug|info|warning|error|critical",
        Severity.WARNING,
        "levels are those of Python's logging",
    ),
    ("kernel_events", "level"): (
        "emerg|alert|crit|err|warning|notice|info|debug",
        Severity.WARNING,
        "levels are those of syslog",
    ),
}
"""Where a column of the same name means something else; None: it has no form there."""
