"""Lines, samples and panels -> evidence and conditions, taken in once; what nobody sees; the live cycle.

To begin with: `intake` and `alerts` (evidence into the ledger), `live_cycle` and `window` (the process that watches),
`hours` and `imports` (rows into the lake), `rules` and `condition_rules` (what observations mean), `repeated` (what a
part has shown before), `coverage`, `job_facts`, `past_states`, and `detectors.detect`.
"""

__all__ = [
    "alerts",
    "coverage",
    "detectors.detect",
    "detectors.stalls",
    "hours",
    "imports",
    "intake",
    "job_facts",
    "live_cycle",
    "logs.classify",
    "logs.files",
    "logs.matching",
    "logs.observations",
    "logs.prefix",
    "panels.grid",
    "panels.panel",
    "panels.tables",
    "past_states",
    "repeated",
    "rules",
    "window",
]
