"""How versions move: releases, what may run with what, waves, the gate between them, rollback.

To begin with: `orders` (what people order), `cycle` (a pass over all of them, and bookings), `course` and `engine` (the
tables of states), `fleet` and `versions` (what nodes run), `compatibility`, `gate.evidence` (values of the gate),
`report`, `plan_report` and `pictures` (documents and pictures), `notices` and `operator_notices`.
"""

__all__ = [
    "compatibility",
    "course",
    "cycle",
    "engine",
    "fleet",
    "gate.evidence",
    "gate_sources",
    "notices",
    "operator_notices",
    "orders",
    "pictures",
    "plan_report",
    "report",
    "rollout_pass",
    "versions",
]
