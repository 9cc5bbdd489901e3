"""What the cluster did for whom, what that cost, and who is told: read from the ledger and the lake."""
