"""A simulated twin cluster behind every port. It decides nothing and never reads the ledger."""
