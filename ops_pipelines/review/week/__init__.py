"""The weekly reliability review: counts what a week brought, by team and component."""
