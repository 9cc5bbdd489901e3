"""The report of a day's placement and waits: read from the lake, the ledger and the scheduler. Changes nothing."""
