"""From incidents to acts and back: decides, proves, guards, performs, verifies, returns. Nothing here knows Dagster.

To begin with: `decide` (a snapshot to a decision), `snapshot` (what it rests on), `gate` and `carry_out` (plans
put in force and carried out), `reflex` (drains within a tick), `perform` and `judgement` (one act, on whose right),
`verify` (repaired nodes), `by_hand` (what a person does), `due` (when a run is worth starting, and when to interrupt),
`oversight` (what nobody else waits for), `overlaps` (two copies of a job), `timeliness`, `ladder`, `standings`,
`repair_report`, `restart_costs`, `bundle`; of `guardrails` the modules `facts`, `judge`, `consents` and `lints`.

`plan_proof` and `act_proof` are the second opinion: they share the nouns of `core` with the rest, and no code.
"""

__all__ = [
    "act_proof",
    "bundle",
    "by_hand",
    "carry_out",
    "decide",
    "due",
    "gate",
    "guardrails.budgets",
    "guardrails.consents",
    "guardrails.facts",
    "guardrails.judge",
    "guardrails.lints",
    "job_moves",
    "judgement",
    "ladder",
    "overlaps",
    "oversight",
    "perform",
    "pictures",
    "plan_proof",
    "probation",
    "reflex",
    "repair_report",
    "restart_costs",
    "snapshot",
    "standings",
    "timeliness",
    "verbs",
    "verification",
    "verify",
]
