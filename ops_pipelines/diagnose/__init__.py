"""Who is at fault: findings -> incidents, one a cause, each with its hypothesis; lemons, defects, wear."""

__all__ = [
    "correlate",
    "defects",
    "explanation",
    "hypothesis",
    "incidents",
    "lemons",
    "shared_cause",
    "trouble_rows",
    "wear",
]
