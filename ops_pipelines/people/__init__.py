"""Orders and approvals in, notes and messages out; what of the autopilot's work has a time."""
