"""The ledger on SQLAlchemy: tables, hash chain, projections, migrations."""
