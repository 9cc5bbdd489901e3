"""What became of each installed GPU-second, what it cost, and who pays for it.

To begin with: `statements` (a month, and budgets), `charges`, `report` (documents and JSON), `focus` (FOCUS files),
`usage` (values), `gather_usage`, `states` and `usage_ledger` (whose seconds were whose).
"""

__all__ = ["charges", "focus", "gather_usage", "holds", "report", "statements", "states", "usage", "usage_ledger"]
