"""The ledger's schema history, run by alembic when a ledger is opened; each version is frozen once released."""
