"""Who may use how many GPUs: demand, proposals and their proof, applying and undoing, replays of other policies.

To begin with: `gather_demand` (demand by hour), `daily_work` (the morning's proposal), `propose`, `apply`, `changes`,
`proof`, `replay`, `lint`, `answers` and `report` (documents and JSON); of demand `spans`, `daily` and `recorded`.
"""

__all__ = [
    "answers",
    "apply",
    "changes",
    "daily",
    "daily_work",
    "gather_demand",
    "lint",
    "proof",
    "propose",
    "recorded",
    "replay",
    "report",
    "spans",
    "today",
]
