"""What jobs and teams could do better, by evidence; where jobs run, what is stranded, who waits.

To begin with: `week` (a week's advice, as document and JSON too), `kept` (as the lake keeps it), `verdicts`
(utilisation in context), `advice_on_holding` (the ladder of idle GPUs), and of `placement`: `day` and `document`.
"""

__all__ = [
    "advice",
    "advice_on_holding",
    "kept",
    "placement.day",
    "placement.document",
    "placement.rows",
    "placement.standing",
    "verdicts",
    "week",
]
