"""What was, looked at again: incidents reported, weeks reviewed, days replayed under another policy.

To begin with: `incident_report`, `weekly_review`, `replay` and `replay_result`, `shift`, `retrace` (what was known);
for what people read `incident_document`, `week_document` and `replay_document`; for sums of their own `job_runs`,
`cost`, `week_work` and `week_incidents`.
"""

__all__ = [
    "chain",
    "cost",
    "incident_document",
    "incident_report",
    "job_runs",
    "replay",
    "replay_document",
    "replay_result",
    "retrace",
    "shift",
    "week_acts",
    "week_document",
    "week_incidents",
    "week_words",
    "week_work",
    "weekly_review",
]
