"""Orders and approvals in, notes and messages out; what of the autopilot's work has a time."""

__all__ = ["compose", "delivery", "orders", "planned_work"]
