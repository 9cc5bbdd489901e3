"""What data checks know of columns beyond the schema: bounds of records, forms of texts, what must be filled in.

Data only; `expectations` makes expectations of it.
"""

from collections.abc import Mapping

from ops_pipelines.frames.quality.cross_rules import Severity
from ops_pipelines.frames.schema import TABLES

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
