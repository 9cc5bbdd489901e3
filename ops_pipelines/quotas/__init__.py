"""Who may use how many GPUs: demand, proposals and their proof, applying and undoing, replays of other policies.

Others import: `gather_demand` (demand by hour), `daily_work` (the morning's proposal), `propose`, `apply`, `changes`,
`proof`, `replay`, `lint`, `answers` and `report` (documents and JSON); of demand `spans`, `daily` and `recorded`.
"""
