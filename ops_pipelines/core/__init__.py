"""What every subject speaks: names, findings, incidents, actions, plans, policy; the ledger and the other ports."""
