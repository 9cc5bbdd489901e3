"""Who may use how many GPUs: guarantee, borrow, lend, what demand says, and how far quotas move in a day."""
