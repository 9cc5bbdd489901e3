"""The lake: bytes of sources and files -> checked rows by hour, their schema and what is expected of them.

To begin with: `schema` (tables and columns), `quantities` and `node_names` (what is measured, and where), `hours`,
`inventory`, `accounting`, `rates` and `telemetry` (rows of an hour, read), `expectations` and `profile` (what a closed
hour must be). `formats` and `metrics` turn bytes into rows: they are for `observe`, which takes them in, and for the
adapters that fetch them.
"""

__all__ = [
    "accounting",
    "expectations",
    "formats.calendar",
    "formats.infiniband",
    "formats.nvidia_smi",
    "formats.nvidia_smi_layouts",
    "formats.redfish",
    "formats.sacct",
    "formats.slurm",
    "formats.slurm_tables",
    "formats.smartctl",
    "hours",
    "inventory",
    "metrics.pages",
    "metrics.range_answer",
    "node_names",
    "profile",
    "quantities",
    "rates",
    "schema",
    "telemetry",
]
