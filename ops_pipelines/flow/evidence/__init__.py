"""What was seen, and what of it is due: intake from every source, kept in the ledger. Decides nothing."""
